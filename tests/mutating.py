"""Kernels that were made wrong, ready to be emulated: those of one version are compiled in one run of nvcc."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from faperf.emulating import Subject
from faperf.toolchain import Toolchain, scrubbed_environment
from tests.conftest import REPOSITORY
from tests.emulating import TCGEN05, launches_of, tcgen05_launch
from tests.mutations import Mutation


def subjects(mutations: Sequence[Mutation], target: str, shape: dict[str, int], toolchain: Toolchain) -> list[Subject]:
    """Mutations of one version, on one workload. Their PTX is one text, in which each has an entry of its own."""
    (version,) = {mutation.version for mutation in mutations}
    launches = [tcgen05_launch(shape)] if version == "tcgen05" else launches_of(version, shape)
    ptx = _compiled(tuple(mutations), launches[0].entry, target, toolchain)
    return [
        Subject(
            build=f"{version} {target}",
            ptx=ptx,
            launches=[msgspec.structs.replace(launch, entry=f"{launch.entry}_{number}") for launch in launches],
            workload="small",
            shape=shape,
            layout="BSHD",
        )
        for number in range(len(mutations))
    ]


@cache
def _compiled(mutations: tuple[Mutation, ...], entry: str, target: str, toolchain: Toolchain) -> str:
    """The PTX of all of them: the headers are read once. Each stands in a namespace, its entry has a number."""
    file = Path(TCGEN05 if mutations[0].version == "tcgen05" else f"kernels/{mutations[0].version}.cu")
    original = (REPOSITORY / file).read_text(encoding="utf-8")
    parts = re.findall(r"(?m)^#include .*$", original)
    with TemporaryDirectory() as scratch:
        for number, mutation in enumerate(mutations):
            wrong = re.sub(r"(?m)^static_assert", "// static_assert", mutation.applied(original))
            own = Path(scratch, f"{number}/{file.name}")
            own.parent.mkdir()
            own.write_text(wrong, encoding="utf-8")
            name = f"{entry}_{number}"
            parts += [
                f"#define {entry} {name}",
                f'namespace wrong_{number} {{\n#include "{own}"\n}}',
                f"#undef {entry}",
            ]
        together = Path(scratch, "together.cu")
        together.write_text("\n".join(parts) + "\n", encoding="utf-8")
        command = [
            *(str(toolchain.nvcc), "-ptx", f"-arch=compute_{target.removeprefix('sm_')}", "-lineinfo"),
            *(f"-ccbin={toolchain.host}", "-I", str(REPOSITORY / file.parent), str(together), "-o", f"{scratch}/ptx"),
        ]
        answer = subprocess.run(command, env=scrubbed_environment(), capture_output=True, text=True)
        assert answer.returncode == 0, answer.stdout + answer.stderr
        return Path(scratch, "ptx").read_text(encoding="utf-8")
