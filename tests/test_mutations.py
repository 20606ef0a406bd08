"""The emulator is held to the table of mutations."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path

import pytest

from faperf.emulating import Emulation
from faperf.emulator import SCHEDULES
from faperf.operations import BUILT_IN
from faperf.toolchain import Toolchain
from tests.conftest import REPOSITORY
from tests.mutating import subjects
from tests.mutations import MISSED, MUTATIONS, Mutation, found, table
from tests.mutations_cluster import CLUSTER
from tests.mutations_hopper import HOPPER
from tests.mutations_ladder import LADDER

emulation = Emulation(BUILT_IN["attention_forward"])  # keeps inputs, references and PTX that was read
ALL = [*MUTATIONS, *LADDER, *HOPPER]
OF_VERSION = {version: list(its) for version, its in groupby(ALL, key=lambda mutation: mutation.version)}
FOUR_TILES, TWO_TILES = ({"B": 2, "H": 2, "S": length, "D": 128} for length in (256, 128))
SHAPES = {
    **dict.fromkeys(("v12", "v13", "tcgen05"), FOUR_TILES), "v16": TWO_TILES, "v21": {"B": 1, "H": 1, "S": 512, "D": 128}
}  # fmt: skip
"""Two tiles of keys turn v16's barriers once; eight turn v21's rings of four."""
HOPPER_SHAPE = {"B": 1, "H": 2, "S": 256, "D": 128}


@pytest.mark.compile
@pytest.mark.parametrize("mutation", ALL, ids=[mutation.name for mutation in ALL])
def test_a_mutation_is_found(mutation: Mutation, tmp_path: Path, toolchain: Toolchain) -> None:
    """In one schedule after the other, until one finds it; of the ladder, as the first that anything finds."""
    version, its = mutation.version, OF_VERSION[mutation.version]
    target = "sm_103a" if version in ("tcgen05", "v16", "v21") else "sm_90a"
    subject = subjects(its, target, SHAPES.get(version, HOPPER_SHAPE), toolchain)[its.index(mutation)]
    distribution = "peaked" if mutation in LADDER else "growing"
    for schedule in SCHEDULES:
        verdict = emulation.verdict(subject, distribution, schedule, tmp_path / "kept")
        if found(verdict) != MISSED and (found(verdict) == mutation.finds or mutation in LADDER):
            break
    assert found(verdict) == mutation.finds, verdict
    if verdict.check is not None and verdict.check.fault is not None:
        assert ".cu:" in str(verdict.check.failure) or "ends without freeing" in str(verdict.check.failure)


def test_the_docs_show_the_table() -> None:
    page = (REPOSITORY / "docs" / "emulator.md").read_text(encoding="utf-8")
    assert table([*ALL, *CLUSTER]) in page, "run: python -m docs.mutation_table"
