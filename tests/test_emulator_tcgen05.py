"""tcgen05 and TMA on the emulator: a small attention kernel."""

from __future__ import annotations

from pathlib import Path

import pytest

from faperf.emulating import Emulation
from faperf.emulator import SCHEDULES
from faperf.operations import BUILT_IN
from faperf.toolchain import Toolchain
from tests.emulating import tcgen05_subject

ATTENTION = BUILT_IN["attention_forward"]
SHAPE = {"B": 2, "H": 2, "S": 256, "D": 128}


@pytest.mark.compile
def test_tcgen05_attention_is_right_in_every_schedule(toolchain: Toolchain, shared_cache: Path) -> None:
    subject = tcgen05_subject(SHAPE, toolchain, shared_cache)
    for schedule in SCHEDULES:
        for distribution in ATTENTION.distributions if schedule == "lockstep" else ["growing"]:
            check = Emulation(ATTENTION).check(subject, distribution, schedule)
            assert check.failure is None, (schedule, distribution)
            assert check.relative_l2 is not None
            assert check.relative_l2 < 1e-3


@pytest.mark.compile
def test_the_maximum_of_a_load_is_that_of_its_values(toolchain: Toolchain, shared_cache: Path) -> None:
    reduced = Emulation(ATTENTION).check(tcgen05_subject(SHAPE, toolchain, shared_cache), "normal")
    plain = tcgen05_subject(SHAPE, toolchain, shared_cache, Path(__file__).parents[1], "-DPLAIN_MAX")
    assert "ld.red" not in plain.ptx
    assert Emulation(ATTENTION).check(plain, "normal").relative_l2 == reduced.relative_l2
