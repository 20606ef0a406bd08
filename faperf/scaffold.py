"""What faperf writes into a project's own files: a new version's, and accepted regressions. Comments are kept."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from faperf.errors import ManifestError, SelectionError
from faperf.history import write_atomically
from faperf.manifest import WORKLOADS, Accepted, Identifier, Version, load_manifests
from faperf.operations import Operation
from faperf.project import Project

if TYPE_CHECKING:
    from ruamel.yaml import YAML


C_TYPES = {"float16": "__half", "float32": "float", "float64": "double", "int32": "int", "int64": "long long"}
KERNEL = """\
// {id}: {title}.
#include <cuda_fp16.h>

extern "C" __global__ void {operation}({parameters}) {{
    // Write every element of {outputs}.
}}
"""
MANIFEST = """\
schema: 1
id: {id}
title: {title}
source: kernels/{id}.cu
targets: [{target}]
operation: {{name: {operation}, layout: {layout}}}
workloads: [{workload}]
tile: {{m: 64, n: 64}}            # rows and columns that a CTA handles at a time
launches:
  - entry: {operation}
    grid: [1]                   # arithmetic over {names}: cdiv({first}, 64)
    block: [128]
    smem: 0                     # dynamic shared memory, in bytes
    args: [{arguments}]
notes: {{hypothesis: "", change: "", lesson: ""}}
"""


def first_version(project: Project, version_id: str, title: str, name: str, operation: Operation) -> list[Path]:
    """A version that has no parent yet: a kernel without a body, its manifest, and a small workload where there is none of its
    operation. Returns the files. Overwrites nothing: raises ManifestError.
    """
    _check_id(version_id)
    source, manifest = project.root / "kernels" / f"{version_id}.cu", project.manifests / f"{version_id}.yaml"
    listed = project.manifests / WORKLOADS
    _refuse_known(project, source, manifest)
    known = [w.name for w in load_manifests(project).workloads.values() if w.operation == name]
    if not known and listed.exists():
        raise ManifestError(f"has no workload of {name}", where=project.relative(listed), remedy="add a small one")
    tensors = [
        f"{'' if tensor in operation.outputs else 'const '}{C_TYPES.get(kind, 'void')}* {tensor}"
        for tensor, kind in operation.tensors.items()
    ]
    names = operation.parameters
    arguments = [f"{{tensor: {tensor}}}" for tensor in operation.tensors] + [
        f"{{scalar: {n}, type: i32}}" for n in names
    ]
    quoted = msgspec.json.encode(title).decode()
    facts = {
        "id": version_id, "title": quoted, "operation": name, "target": project.config.default_target,
        "layout": operation.layouts[0], "workload": known[0] if known else "small", "names": ", ".join(names), "first": names[0],
        "arguments": ", ".join(arguments),
    }  # fmt: skip
    parameters = ", ".join([*tensors, *(f"int {n}" for n in names)])
    outputs = ", ".join(operation.outputs)
    kernel = KERNEL.format(id=version_id, title=title, operation=name, parameters=parameters, outputs=outputs)
    written = {source: kernel, manifest: MANIFEST.format(**facts)}
    if not known:
        shape = ", ".join(f"{n}: {1 if n in ('B', 'H') else 64}" for n in names)
        written[listed] = f"schema: 1\nworkloads:\n  small:\n    operation: {name}\n    shape: {{{shape}}}\n"
    for path, text in written.items():
        write_atomically(path, text.encode())
    return list(written)


def _check_id(version_id: str) -> None:
    try:
        msgspec.convert(version_id, Identifier)
    except msgspec.ValidationError as error:
        raise SelectionError(f"'{version_id}' cannot be an id", remedy="letters, digits, '.', '_' and '-'") from error


def _refuse_known(project: Project, *paths: Path) -> None:
    for path in paths:
        if path.exists():
            raise ManifestError("is there already", where=project.relative(path), remedy="choose another id")


def new_version(project: Project, version_id: str, parent: Version, title: str) -> tuple[Path, Path]:
    """Copy `parent`'s kernel and manifest as `version_id`; comments and order of the manifest are kept.

    The parent's notes, accepted regressions and lesson are its own and are left out. Overwrites nothing: raises ManifestError.
    """
    _check_id(version_id)
    old_source = project.root / parent.source
    source = old_source.with_name(version_id + old_source.suffix)
    manifest = project.manifests / f"{version_id}.yaml"
    _refuse_known(project, source, manifest)
    try:
        code = old_source.read_bytes()
    except OSError as error:
        raise ManifestError(f"source '{parent.source}' cannot be read: {error.strerror}", where=parent.id) from error

    yaml = _yaml()
    content = yaml.load((project.manifests / f"{parent.id}.yaml").read_text(encoding="utf-8"))
    content["id"] = version_id
    content["title"] = title
    content["source"] = project.relative(source)
    if "parent" in content:
        content["parent"] = parent.id
    else:
        content.insert(list(content).index("id") + 1, "parent", parent.id)
    content["notes"] = {"hypothesis": "", "change": title, "lesson": ""}
    content.pop("accept", None)
    write_atomically(source, code)
    write_atomically(manifest, _dumped(yaml, content))
    return source, manifest


def accept(project: Project, version: Version, entries: Sequence[Accepted]) -> Path:
    """Add accepted regressions to a version's manifest, in place of older ones of the same metric and builds."""
    yaml = _yaml()
    manifest = project.manifests / f"{version.id}.yaml"
    content = yaml.load(manifest.read_text(encoding="utf-8"))
    known = content.setdefault("accept", [])
    for entry in entries:
        new = {
            "metric": entry.metric,
            "from": entry.from_,
            "to": entry.to,
            "max": int(entry.max) if entry.max.is_integer() else entry.max,
            "reason": entry.reason,
            "until": entry.until,
        }
        known[:] = [old for old in known if any(old[key] != new[key] for key in ("metric", "from", "to"))] + [new]
    write_atomically(manifest, _dumped(yaml, content))
    return manifest


def _yaml() -> YAML:
    from ruamel.yaml import YAML  # reads and writes with comments, which takes 0.1 s to load

    yaml = YAML()
    yaml.preserve_quotes = True
    yaml.width = 4096
    yaml.representer.ignore_aliases = lambda *_: True
    yaml.indent(mapping=2, sequence=4, offset=2)
    return yaml


def _dumped(yaml: YAML, content: object) -> bytes:
    text = io.StringIO()
    yaml.dump(content, text)
    return text.getvalue().encode()
