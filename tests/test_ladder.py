"""The ladder for sm_103a, v14 … v21: what nvcc makes of each version, and that the emulator finds it right.

The facts are those that the manifests and the heads of the kernels tell. With another nvcc they may differ, and then say so.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

from faperf.build import Builder
from faperf.emulating import Emulation
from faperf.emulator import LAZY, LOCKSTEP, RANDOM
from faperf.history import History
from faperf.manifest import Manifests, Version, load_manifests
from faperf.operations import BUILT_IN
from faperf.project import Project
from faperf.record import KernelFacts
from faperf.resolve import resolve
from faperf.sass import inspect
from faperf.toolchain import Toolchain
from tests.conftest import REPOSITORY
from tests.emulating import subject_of

ATTENTION = BUILT_IN["attention_forward"]
PINNED = "13.0.88"
TARGET = "sm_103a"

FACTS = {
    # registers, spill bytes, UTCHMMA in all, and in the main loop: R2UR, BSSY, LDL + STL
    "v14": (87, 0, 8, 8, 2, 0),
    "v15": (96, 0, 12, 9, 3, 0),
    "v16": (96, 0, 12, 10, 3, 0),
    "v16-i16": (96, 0, 12, 9, 3, 0),
    "v16-l32": (96, 0, 12, 9, 3, 0),
    "v17": (72, 0, 24, 24, 3, 0),
    "v17-t64": (75, 0, 20, 20, 3, 0),
    "v18": (128, 0, 12, 49, 11, 0),
    "v19": (128, 28, 12, 7, 3, 3),
    "v19-use": (127, 0, 12, 3, 3, 0),
    "v19-x8": (125, 0, 12, 13, 3, 0),
    "v20": (105, 0, 12, 8, 5, 0),
    "v21": (114, 0, 24, 53, 0, 0),
}


@cache
def manifests() -> Manifests:
    return load_manifests(Project(REPOSITORY))


def rungs() -> list[Version]:
    return [version for version in manifests().versions.values() if version.id in FACTS]


def built(version: str, toolchain: Toolchain, cache: Path) -> tuple[KernelFacts, str]:
    """A version's facts, and the digest of its code."""
    artifact = Builder(REPOSITORY, cache, toolchain).build(manifests().versions[version], TARGET)
    inspection = inspect(artifact.directory, toolchain.nvdisasm)
    return inspection.kernels[0], inspection.code


@pytest.mark.compile
@pytest.mark.parametrize("version", FACTS)
def test_what_nvcc_makes_of_a_version(version: str, toolchain: Toolchain, shared_cache: Path) -> None:
    if toolchain.identity.nvcc != PINNED:
        pytest.skip(f"these facts are nvcc {PINNED}'s; this is {toolchain.identity.nvcc}")
    kernel, _ = built(version, toolchain, shared_cache)
    loop = {opcode: kernel.main_loop.get(opcode, 0) for opcode in ("R2UR", "BSSY", "LDL", "STL")}
    mmas = sum(count for shape, count in kernel.mma_shapes.items() if shape.startswith("UTCHMMA"))
    seen = (kernel.registers, kernel.spill_bytes, mmas, loop["R2UR"], loop["BSSY"], loop["LDL"] + loop["STL"])
    assert seen == FACTS[version]
    assert kernel.path == ("HMMA+UTCHMMA" if version == "v14" else "UTCHMMA")
    assert kernel.register_cap == (168 if version == "v21" else 128)
    assert ("LDTM.STAT" in kernel.main_loop) == (version[:3] in ("v19", "v20"))


@pytest.mark.compile
def test_v16_l32_is_v15_and_v16_i16_is_not_v16(toolchain: Toolchain, shared_cache: Path) -> None:
    code = {name: built(name, toolchain, shared_cache)[1] for name in ("v15", "v16-l32", "v16", "v16-i16")}
    assert code["v16-l32"] == code["v15"]
    assert len(set(code.values())) == 3


@pytest.mark.compile
@pytest.mark.parametrize("version", FACTS)
def test_a_version_is_right(version: str, toolchain: Toolchain, shared_cache: Path) -> None:
    """Three tiles of keys or more, and two heads and two batches, so that a row of the wrong one shows."""
    shape = {"B": 2, "H": 2, "S": {"v17": 384, "v21": 256}.get(version, 192), "D": 128}
    subject = subject_of(version, TARGET, shape, toolchain, shared_cache)
    assert Emulation(ATTENTION).check(subject, "growing", LOCKSTEP).failure is None


@pytest.mark.compile
@pytest.mark.parametrize("version", ["v14", "v16", "v17", "v18", "v20", "v21"])
def test_a_version_is_right_in_other_schedules(version: str, toolchain: Toolchain, shared_cache: Path) -> None:
    shape = {"B": 1, "H": 1, "S": {"v17": 384, "v21": 256}.get(version, 192), "D": 128}
    subject = subject_of(version, TARGET, shape, toolchain, shared_cache)
    for schedule in (LAZY, RANDOM):
        assert Emulation(ATTENTION).check(subject, "peaked", schedule).failure is None, schedule


@pytest.mark.compile
def test_v20_pays_with_precision_and_more_so_on_long_sequences(toolchain: Toolchain, shared_cache: Path) -> None:
    """As its manifest tells: of one CTA of the published workload, and of a sequence of an eighth."""
    error = {}
    for version in ("v16", "v20"):
        for length in (128, 1024):
            shape = {"B": 1, "H": 1, "S": length, "D": 128}
            subject = subject_of(version, TARGET, shape, toolchain, shared_cache)
            error[version, length] = Emulation(ATTENTION).check(subject, "normal", sample=1).relative_l2 or 0.0
    assert 2.5e-4 < error["v16", 1024] < 3.1e-4
    assert error["v20", 128] > 2 * error["v16", 128]
    assert error["v20", 1024] > 1.25 * error["v20", 128]


@pytest.mark.parametrize("version", FACTS)
def test_a_versions_head_and_manifest_tell_its_story(version: str) -> None:
    told = manifests().versions[version]
    head = (REPOSITORY / told.source).read_text(encoding="utf-8").partition("#include")[0]
    assert len(head.splitlines()) <= 15
    assert head.startswith(f"// {version} (parent {told.parent}): ")
    assert "has not run on a card" in head
    assert re.search(r"[Nn]ot\s+(//\s+)?(measured|timed)", head)
    assert all((told.notes.hypothesis, told.notes.change, told.notes.lesson))
    reported = History(Project(REPOSITORY)).reported_row(version)
    if reported is not None and reported[1].tflops is not None:
        assert f"{reported[1].tflops:.2f} TFLOPS" in head


def test_geometry_is_fixed_but_where_it_is_the_experiment() -> None:
    published = manifests().workloads["published"]
    for version in rungs():
        (launch,) = resolve(version, published)
        assert version.flags == ["--use_fast_math"]
        if version.id != "v21":
            assert launch.threads == 512
        if version.id not in ("v17", "v21"):
            assert (version.tile.m, version.tile.n, launch.grid) == (64, 64, (16, 64, 1))
        maps = {a.tensor_map: (a.box, a.swizzle) for a in launch.args if a.tensor_map}
        rows = {"Q": 128 if version.id in ("v17", "v21") else 64, "K": version.tile.n, "V": version.tile.n}
        assert maps == {name: ([64, 1, count, 1], 128) for name, count in rows.items()}


@pytest.mark.parametrize("version", FACTS)
def test_shared_memory_of_the_manifest_is_that_of_the_kernel(version: str) -> None:
    """nvcc holds the source to the number; here the manifest and the head are."""
    (launch,) = resolve(manifests().versions[version], manifests().workloads["published"])
    source = (REPOSITORY / manifests().versions[version].source).read_text(encoding="utf-8")
    assert f"sizeof(Shared) == {launch.smem}," in source
    assert set(re.findall(r"(\d+) bytes of dynamic", source)) <= {str(launch.smem)}
