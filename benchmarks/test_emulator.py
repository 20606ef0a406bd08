"""What the emulator costs after decoding, in warp-instructions a second: one head at S = 256 and 1024, eight at 256; and what
`faperf run` emulates of each version of the ladder, decoding, inputs and references included.

Where other work shares the cores: `--benchmark-timer=time.process_time`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from faperf.build import Builder
from faperf.emulating import Emulation, answer, asked
from faperf.emulator.emulate import Device
from faperf.emulator.ptx import parse
from faperf.manifest import load_manifests
from faperf.operations import BUILT_IN, Operations
from faperf.project import Project
from faperf.toolchain import find_toolchain
from tests.emulating import subject_of, tcgen05_subject

ATTENTION = BUILT_IN["attention_forward"]
ROOT = Path(__file__).parents[1]
MANIFESTS = load_manifests(Project(ROOT))
LADDER = [name for name in MANIFESTS.versions if name.startswith("v")]


@pytest.mark.parametrize("schedule", ["lockstep", "lazy"])
@pytest.mark.parametrize("version", ["v12", "v13", "v16", "v21", "tcgen05"])
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
    rounds = 12 if heads * length < 1000 else 3  # what is over soon is disturbed more
    benchmark.pedantic(lambda: device.launch(launch, schedule), rounds=rounds, warmup_rounds=1)
    benchmark.extra_info["warp_instructions_a_second"] = round(device.executed / (rounds + 1) / benchmark.stats["min"])


@pytest.mark.parametrize("version", LADDER)
def test_what_run_emulates(benchmark: Any, tmp_path: Path, version: str) -> None:
    found = MANIFESTS.versions[version]
    artifact = Builder(ROOT, tmp_path / "cache", find_toolchain()).build(found, "sm_103a")
    first = MANIFESTS.workloads_of(found)[0]
    ask = asked(Operations({}), found, artifact.key, artifact.ptx.read_text(), first, tmp_path)
    benchmark.pedantic(lambda: answer(ask))
