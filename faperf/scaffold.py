"""What faperf writes into a project's own files: a new version's two, and accepted regressions. Comments are kept."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from faperf.errors import ManifestError, SelectionError
from faperf.history import write_atomically
from faperf.manifest import Accepted, Identifier, Version
from faperf.project import Project

if TYPE_CHECKING:
    from ruamel.yaml import YAML


def new_version(project: Project, version_id: str, parent: Version, title: str) -> tuple[Path, Path]:
    """Copy `parent`'s kernel and manifest as `version_id`; comments and order of the manifest are kept.

    The parent's notes, accepted regressions and lesson are its own and are left out. Overwrites nothing: raises ManifestError.
    """
    import msgspec

    try:
        msgspec.convert(version_id, Identifier)
    except msgspec.ValidationError as error:
        raise SelectionError(f"'{version_id}' cannot be an id", remedy="letters, digits, '.', '_' and '-'") from error
    old_source = project.root / parent.source
    source = old_source.with_name(version_id + old_source.suffix)
    manifest = project.manifests / f"{version_id}.yaml"
    for path in (source, manifest):
        if path.exists():
            raise ManifestError("is there already", where=project.relative(path), remedy="choose another id")
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
