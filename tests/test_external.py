"""Programs that nobody here wrote, unmodified, judge the emulator: their kernels run on it and they check the results.

`make test` runs one, if the package is there; `make test-external` installs the package and runs all of them.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from faperf.emulator import LAZY, RANDOM
from faperf.toolchain import Toolchain
from tests.conftest import REPOSITORY
from tests.external.programs import PACKAGE, PROGRAMS, controls_of, curand, cutlass

NEEDED = cutlass() is None
pytestmark = [
    pytest.mark.compile,
    pytest.mark.skipif(NEEDED, reason=f"{PACKAGE} is not installed (pip install 'faperf[external]')"),
]
PAGE = REPOSITORY / "docs" / "emulator.md"
QUICK = ["blackwell 02"]
"""In `make test`: tcgen05, TMA, mbarriers, and a check of its own, in a few seconds once it is compiled."""
CLUSTERED = ["wgmma_tma_sm90 NT", "wgmma_tma_sm90 TN", "blackwell 03", "blackwell 04", "blackwell 05"]
CONTROLS = [(broken, program.name) for program in PROGRAMS.values() for broken in controls_of(program)]


def _skip_unless_asked(name: str) -> None:
    if name not in QUICK and not os.environ.get("FAPERF_EXTERNAL_TESTS"):
        pytest.skip("compiles or runs for minutes: make test-external")
    if name.startswith("77") and curand() is None:
        pytest.skip("nvidia-curand is not installed (pip install 'faperf[external]')")


@pytest.mark.parametrize("name", PROGRAMS)
def test_it_says_that_its_result_is_right(name: str, toolchain: Toolchain, tmp_path: Path) -> None:
    _skip_unless_asked(name)
    program = PROGRAMS[name]
    run = program.run(toolchain, tmp_path)
    assert program.right(run), run.output[-3000:]
    assert "warp-instructions" in run.output
    row = f"| {name} | {program.target} | `{' '.join(program.arguments)}` | right |"
    assert row in PAGE.read_text(encoding="utf-8"), "run: python -m docs.external_table"


@pytest.mark.parametrize("schedule", [LAZY, RANDOM])
@pytest.mark.parametrize("name", CLUSTERED)
def test_those_in_clusters_are_right_in_every_schedule(
    name: str, schedule: str, toolchain: Toolchain, tmp_path: Path
) -> None:
    _skip_unless_asked(name)
    run = PROGRAMS[name].run(toolchain, tmp_path, schedule=schedule)
    assert PROGRAMS[name].right(run), run.output[-3000:]


@pytest.mark.parametrize(("broken", "name"), CONTROLS, ids=[" ".join(control) for control in CONTROLS])
def test_it_notices_a_device_that_is_wrong(broken: str, name: str, toolchain: Toolchain, tmp_path: Path) -> None:
    """The negative control: a check that cannot fail proves nothing."""
    _skip_unless_asked(name)
    program = PROGRAMS[name]
    run = program.run(toolchain, tmp_path, broken)
    assert "not emulated" not in run.output
    assert not program.right(run), run.output[-3000:]
