"""The probes of tests/silicon on the GPU that is here: the recorded results hold, and so does the emulator. `make gpu-test`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from faperf.device import can_measure, find_gpu
from faperf.emulator.ptx import parse
from faperf.toolchain import Toolchain
from tests.silicon import suites
from tests.silicon.card import Card
from tests.silicon.compare import findings
from tests.silicon.probe import Probe, distance

GPU, REASON = find_gpu()
if GPU is not None and not can_measure():
    GPU, REASON = None, "cupy is not installed"
if GPU is not None and not GPU.runs(suites.TARGET):
    REASON, GPU = f"{GPU.name} does not run {suites.TARGET}", None
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(GPU is None, reason=f"no GPU: {REASON}")]


@pytest.mark.parametrize("suite", suites.SUITES)
def test_the_emulator_agrees_with_this_card(suite: str, tmp_path: Path, toolchain: Toolchain) -> None:
    artifact = suites.build(suite, tmp_path, toolchain)
    card, recorded = Card(artifact.cubin), suites.recorded(suite)[0]
    changed = []

    def run(probe: Probe) -> np.ndarray:
        result: np.ndarray = card.run([probe.launch], probe.tensors, probe.out)
        apart = distance(probe, recorded[probe.name], result)
        if apart.equal < apart.elements:
            changed.append(f"{probe.name}: {apart}")
        return result

    wrong = [line for finding in findings(suite, parse(artifact.ptx.read_text()), run) for line in finding.wrong]
    assert changed == []
    assert wrong == []


@pytest.mark.parametrize("case", suites.attentions(), ids=lambda case: case.name)
def test_the_ladder_gives_what_was_recorded(case: suites.Attention, tmp_path: Path, toolchain: Toolchain) -> None:
    artifact = suites.build_version(case.version, toolchain, tmp_path)
    result = case.kept(Card(artifact.cubin).run(case.launches, case.tensors, "O"))
    assert np.array_equal(result, suites.recorded("attention")[0][case.name])
