"""The emulator is held to the table of mutations."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from faperf.emulating import Emulation
from faperf.emulator import SCHEDULES
from faperf.operations import BUILT_IN
from faperf.toolchain import Toolchain
from tests.conftest import REPOSITORY
from tests.emulating import TCGEN05, subject_of, tcgen05_subject
from tests.mutations import MISSED, MUTATIONS, WARNED, Mutation, found, table
from tests.mutations_cluster import CLUSTER
from tests.mutations_hopper import HOPPER
from tests.mutations_ladder import LADDER

emulation = Emulation(BUILT_IN["attention_forward"])  # keeps inputs and references
RUN_HERE = [*MUTATIONS, *HOPPER]
SHAPE = {"B": 2, "H": 2, "S": 256, "D": 128}
HOPPER_SHAPE = {"B": 1, "H": 2, "S": 256, "D": 128}
"""Two to four tiles of keys; a CTA of these kernels does more at a time."""


@pytest.mark.compile
@pytest.mark.parametrize("mutation", RUN_HERE, ids=[mutation.name for mutation in RUN_HERE])
def test_a_mutation_is_found(mutation: Mutation, tmp_path: Path, toolchain: Toolchain) -> None:
    source = tmp_path / (TCGEN05 if mutation.version == "tcgen05" else f"kernels/{mutation.version}.cu")
    for directory in ("kernels", "tests/data/kernels"):
        shutil.copytree(REPOSITORY / directory, tmp_path / directory)
    source.write_text(re.sub(r"(?m)^static_assert", "// static_assert", mutation.applied(source.read_text())))
    if mutation.version == "tcgen05":
        subject = tcgen05_subject(SHAPE, toolchain, tmp_path / "cache", tmp_path)
    else:
        shape = HOPPER_SHAPE if mutation in HOPPER else SHAPE
        subject = subject_of(mutation.version, "sm_90a", shape, toolchain, tmp_path / "cache", tmp_path)
    verdicts = []
    for schedule in SCHEDULES:  # until one finds it; what is missed, is missed in all
        verdicts.append(emulation.verdict(subject, "growing", schedule, tmp_path / "kept"))
        if mutation.finds not in (MISSED, WARNED) and found(verdicts[-1]) == mutation.finds:
            break
    assert found(verdicts[-1]) == mutation.finds, verdicts
    assert (mutation.finds in (MISSED, WARNED)) == any(verdict.check and verdict.check.ok for verdict in verdicts)
    faults = [verdict.check.failure for verdict in verdicts if verdict.check and verdict.check.fault]
    assert all(".cu:" in str(failure) or "ends without freeing" in str(failure) for failure in faults)


def test_the_docs_show_the_table() -> None:
    page = (REPOSITORY / "docs" / "emulator.md").read_text(encoding="utf-8")
    assert table([*MUTATIONS, *LADDER, *HOPPER, *CLUSTER]) in page, "run: python -m docs.mutation_table"
