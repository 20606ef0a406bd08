"""What the emulator costs after decoding, in warp-instructions a second: one head at S = 256 and 1024, eight at 256."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from faperf.emulating import Emulation
from faperf.emulator.emulate import Device
from faperf.emulator.ptx import parse
from faperf.operations import BUILT_IN
from faperf.toolchain import find_toolchain
from tests.emulating import subject_of, tcgen05_subject

ATTENTION = BUILT_IN["attention_forward"]


@pytest.mark.parametrize("schedule", ["lockstep", "lazy"])
@pytest.mark.parametrize("version", ["v12", "v13", "v16", "tcgen05"])
@pytest.mark.parametrize(("heads", "length"), [(1, 256), (8, 256), (1, 1024)])
def test_attention(benchmark: Any, tmp_path: Path, version: str, heads: int, length: int, schedule: str) -> None:
    shape = {"B": 1, "H": heads, "S": length, "D": 128}
    toolchain = find_toolchain()
    if version == "tcgen05":
        subject = tcgen05_subject(shape, toolchain, tmp_path)
    else:
        subject = subject_of(version, "sm_103a", shape, toolchain, tmp_path)
    inputs = Emulation(ATTENTION)._inputs(subject, "normal")[0]
    device = Device(parse(subject.ptx), {**inputs, "O": inputs["Q"]})
    (launch,) = subject.launches
    benchmark.pedantic(lambda: device.launch(launch, schedule), rounds=3, warmup_rounds=1)
    benchmark.extra_info["warp_instructions_a_second"] = round(device.executed / 4 / benchmark.stats["min"])
