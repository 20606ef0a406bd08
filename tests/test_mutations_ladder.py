"""The emulator is held to v16 and v21 made wrong."""

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
from tests.emulating import subject_of
from tests.mutations import MISSED, Mutation, found
from tests.mutations_ladder import LADDER

SHAPES = {"v16": {"B": 2, "H": 2, "S": 128, "D": 128}, "v21": {"B": 1, "H": 1, "S": 512, "D": 128}}
"""Two tiles of keys turn v16's barriers once; eight turn v21's rings of four."""

emulation = Emulation(BUILT_IN["attention_forward"])  # keeps inputs and references


@pytest.mark.compile
@pytest.mark.parametrize("mutation", LADDER, ids=[mutation.name for mutation in LADDER])
def test_a_mutation_is_found(mutation: Mutation, tmp_path: Path, toolchain: Toolchain) -> None:
    """In the first schedule that finds anything."""
    shutil.copytree(REPOSITORY / "kernels", tmp_path / "kernels")
    source = tmp_path / f"kernels/{mutation.version}.cu"
    source.write_text(re.sub(r"(?m)^static_assert", "// static_assert", mutation.applied(source.read_text())))
    shape = SHAPES[mutation.version]
    subject = subject_of(mutation.version, "sm_103a", shape, toolchain, tmp_path / "cache", tmp_path)
    verdicts = (emulation.verdict(subject, "peaked", schedule, tmp_path / "kept") for schedule in SCHEDULES)
    assert next((what for verdict in verdicts if (what := found(verdict)) != MISSED), MISSED) == mutation.finds
