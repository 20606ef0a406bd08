"""h14 to h23: right in the emulator, and compiled into what their heads say."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from faperf.build import Builder
from faperf.emulating import Emulation
from faperf.manifest import load_manifests
from faperf.operations import BUILT_IN
from faperf.project import Project
from faperf.record import KernelFacts
from faperf.sass import Inspection, inspect
from faperf.toolchain import Toolchain
from tests.conftest import REPOSITORY
from tests.emulating import subject_of

ATTENTION = BUILT_IN["attention_forward"]
VERSIONS = [name for name in load_manifests(Project(REPOSITORY)).versions if name.startswith("h")]
SPILLING = "h15"
CONSUMERS_AND_PRODUCERS = {"h21", "h21-n128", "h22", "h22-d64", "h23"}
SUMS_IN_HALVES = {"h20", "h20-acc16"}

pytestmark = pytest.mark.compile


@pytest.mark.parametrize("version", VERSIONS)
def test_it_is_right_when_transfers_land_late(version: str, toolchain: Toolchain, shared_cache: Path) -> None:
    """Row maxima grow from tile to tile; where a ring of two has tiles of 128 keys there are three, so that it goes round."""
    tall = 384 if version >= "h22" else 256
    shape = {"B": 1, "H": 1, "S": tall, "D": 64 if version.endswith("d64") else 128}
    subject = subject_of(version, "sm_90a", shape, toolchain, shared_cache)
    check = Emulation(ATTENTION).check(subject, "growing", "lazy")
    assert check.failure is None
    assert check.relative_l2 is not None
    assert check.baseline_l2 is not None
    assert (check.relative_l2 < 1.2 * check.baseline_l2) == (version not in SUMS_IN_HALVES)


def test_a_persistent_cta_goes_on_to_the_next_query_tile(toolchain: Toolchain, shared_cache: Path) -> None:
    """One CTA for four tiles of two heads, where the manifest would launch four."""
    subject = subject_of("h23", "sm_90a", {"B": 1, "H": 2, "S": 256, "D": 128}, toolchain, shared_cache)
    (launch,) = subject.launches
    assert launch.grid == (4, 1, 1)
    alone = replace(subject, launches=[replace(launch, grid=(1, 1, 1))])
    assert Emulation(ATTENTION).check(alone, "growing", "lazy").failure is None


@pytest.fixture(scope="module")
def inspected(toolchain: Toolchain, shared_cache: Path) -> dict[str, Inspection]:
    versions = load_manifests(Project(REPOSITORY)).versions
    builder = Builder(REPOSITORY, shared_cache, toolchain)
    return {name: inspect(builder.build(versions[name], "sm_90a").directory, toolchain.nvdisasm) for name in VERSIONS}


def kernel(inspection: Inspection) -> KernelFacts:
    (found,) = inspection.kernels
    return found


@pytest.mark.parametrize("version", VERSIONS)
def test_only_the_version_that_was_put_on_a_diet_afterwards_spills(
    version: str, inspected: dict[str, Inspection]
) -> None:
    facts = kernel(inspected[version])
    local = sum(facts.main_loop.get(opcode, 0) for opcode in ("LDL", "STL"))
    assert (facts.spill_bytes > 0, local > 0) == (version == SPILLING, version == SPILLING)
    serialised = any("wgmma.mma_async instructions are serialized" in text for text in inspected[version].messages)
    assert serialised == (version == SPILLING)


@pytest.mark.parametrize("version", VERSIONS)
def test_its_matrix_products_are_wgmma(version: str, inspected: dict[str, Inspection]) -> None:
    """h14's PV alone is mma.sync; TMA loads, and no copy goes through registers or cp.async."""
    facts = kernel(inspected[version])
    assert ("HMMA" in facts.opcodes) == (version == "h14")
    assert "HGMMA" in facts.main_loop
    assert "UTMALDG" in facts.opcodes
    assert not {"LDGSTS", "LDG"} & set(facts.opcodes)


@pytest.mark.parametrize("version", sorted(CONSUMERS_AND_PRODUCERS))
def test_registers_are_shared_out_among_warpgroups(version: str, inspected: dict[str, Inspection]) -> None:
    facts = kernel(inspected[version])
    assert sum(facts.opcodes["USETMAXREG"]) == 2
    assert facts.registers == facts.register_cap
    assert not any("setmaxnreg" in text for text in inspected[version].messages)


def test_what_each_step_changes_in_the_main_loop(inspected: dict[str, Inspection]) -> None:
    """Chains of wgmma: 8 steps of 16 along D = 128 for QK, and one for each 16 keys for PV, a block of 64 rows."""
    loops = {version: kernel(facts).main_loop for version, facts in inspected.items()}
    products = {version: loop["HGMMA"] for version, loop in loops.items()}
    assert products["h14"] == 8
    assert products["h15"] == products["h16"] == products["h17"] == products["h18"] == 2 * (8 + 8)
    assert products["h21"] == products["h20"] == 2 * (8 + 4)
    assert products["h22"] == 8 + 8
    assert products["h22-d64"] == 4 + 8
    assert products["h23"] == 8 + (8 + 8) + 8  # a query tile: its first QK, the loop over keys, its last PV
    assert loops["h18"]["BSSY"] >= loops["h16"].get("BSSY", 0) + 4  # waits of one lane, which the warp goes around
    assert loops["h20"]["HFMA2"] == 2 * 32
    assert sum(kernel(inspected["h17"]).opcodes["HGMMA"]) == 2 * (8 + 8) + 2 * 8
    assert kernel(inspected["h16"]).registers < kernel(inspected["h15"]).registers
