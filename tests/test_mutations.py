"""The emulator is held to the table of mutations."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import msgspec
import pytest

from faperf.build import Builder
from faperf.emulating import Emulation
from faperf.emulator import SCHEDULES
from faperf.manifest import load_manifests
from faperf.operations import BUILT_IN
from faperf.project import Project
from faperf.record import Check
from faperf.toolchain import Toolchain
from tests.conftest import REPOSITORY
from tests.emulating import subject_of
from tests.mutations import MISSED, MUTATIONS, WRONG, Mutation, table

ATTENTION = BUILT_IN["attention_forward"]
SHAPE = {"B": 2, "H": 2, "S": 256, "D": 128}


@pytest.mark.compile
@pytest.mark.parametrize("mutation", MUTATIONS, ids=[mutation.name for mutation in MUTATIONS])
def test_a_mutation_is_found(mutation: Mutation, tmp_path: Path, toolchain: Toolchain, shared_cache: Path) -> None:
    version = load_manifests(Project(REPOSITORY)).versions[mutation.version]
    shutil.copytree(REPOSITORY / "kernels", tmp_path / "kernels")
    source = tmp_path / version.source
    source.write_text(re.sub(r"(?m)^static_assert", "// static_assert", mutation.applied(source.read_text())))
    artifact = Builder(tmp_path, tmp_path / "cache", toolchain).build(version, "sm_90a")
    right = subject_of(mutation.version, "sm_90a", SHAPE, toolchain, shared_cache)
    subject = msgspec.structs.replace(right, build=artifact.key, ptx=artifact.ptx.read_text())
    emulation = Emulation(ATTENTION)
    checks = [emulation.check(subject, "growing", schedule) for schedule in SCHEDULES]
    assert [_found(check) for check in checks if _found(check) == mutation.finds], [
        (check.schedule, check.failure) for check in checks
    ]
    if mutation.finds != MISSED:
        assert all(not check.ok for check in checks)
        assert all(".cu:" in str(check.failure) for check in checks if check.fault)


def _found(check: Check) -> str:
    return MISSED if check.ok else check.fault or WRONG


def test_the_docs_show_the_table() -> None:
    page = (REPOSITORY / "docs" / "emulator.md").read_text(encoding="utf-8")
    assert table() in page, "run: python docs/mutation_table.py"
