"""The emulator is held to what a card gave (tests/silicon, tests/data/silicon)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from faperf.emulator import SCHEDULES
from faperf.emulator.fault import MISALIGNED, OUT_OF_BOUNDS, DiagnosisError
from faperf.emulator.ptx import parse
from faperf.toolchain import Toolchain
from tests.conftest import REPOSITORY
from tests.silicon import suites
from tests.silicon.compare import findings, limits_table, table

PAGE = REPOSITORY / "docs" / "emulator.md"
REMEDY = "run: python -m docs.silicon_table"


@pytest.mark.compile
@pytest.mark.parametrize("suite", suites.SUITES)
def test_the_emulator_agrees_with_the_card(suite: str, tmp_path: Path, toolchain: Toolchain) -> None:
    results, about = suites.recorded(suite)
    probes = suites.probes_of(suite)
    changed = [probe.name for probe in probes if about["digests"].get(probe.name) != probe.digest]
    assert changed == [], "a probe changed: run python -m tests.silicon.record where there is a GPU"
    assert {*results, *about["faults"]} == {probe.name for probe in probes}
    module = parse(suites.build(suite, tmp_path, toolchain).ptx.read_text())
    found = list(findings(suite, module, lambda probe: results[probe.name]))
    assert [line for finding in found for line in finding.wrong] == []
    assert table(found) in PAGE.read_text(encoding="utf-8"), REMEDY


@pytest.mark.compile
def test_what_faults_on_the_card_is_diagnosed(tmp_path: Path, toolchain: Toolchain) -> None:
    """Coordinates that are no multiple of 16 bytes, and stores at negative ones: illegal instructions on an H200."""
    faults = suites.recorded("copies")[1]["faults"]
    module = parse(suites.build("copies", tmp_path, toolchain).ptx.read_text())
    assert len(faults) > 50
    for probe in suites.probes_of("copies"):
        if probe.name in faults:
            with pytest.raises(DiagnosisError) as found:
                suites.emulated(module, probe)
            assert found.value.kind in (MISALIGNED, OUT_OF_BOUNDS)


@pytest.mark.compile
@pytest.mark.parametrize("case", suites.recorded_attentions(), ids=lambda case: case.name)
def test_the_ladder_agrees_with_the_card(case: suites.Attention, shared_cache: Path, toolchain: Toolchain) -> None:
    results, about = suites.recorded("attention")
    assert about["digests"][case.name] == case.digest
    module = parse(suites.build_version(case.version, toolchain, shared_cache).ptx.read_text())
    card = results[case.name].astype(np.float64)
    most, norm = (2.0**-9, 2.0**-10) if case.version == "h20" else (2.0**-10, 2.0**-13)  # h20 takes ex2 of halves
    for schedule in SCHEDULES if case.version[0] == "v" else SCHEDULES[:1]:
        apart = np.abs(case.emulated(module, schedule).astype(np.float64) - card)
        assert apart.max() <= most * np.abs(card).max()
        assert np.linalg.norm(apart) <= norm * np.linalg.norm(card)
    if case.version == "h14":
        assert (case.emulated(module, exact_sums=True) == card).mean() > 0.999


def test_the_docs_show_what_the_card_itself_is_worth() -> None:
    assert limits_table(suites.recorded("limits")[0]) in PAGE.read_text(encoding="utf-8"), REMEDY
