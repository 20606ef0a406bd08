"""`faperf new V --from W`: a version's two files, from its parent's."""

from __future__ import annotations

import io
from pathlib import Path

from faperf.errors import ManifestError, SelectionError
from faperf.history import write_atomically
from faperf.manifest import Identifier, Version
from faperf.project import Project


def new_version(project: Project, version_id: str, parent: Version, title: str) -> tuple[Path, Path]:
    """Copy `parent`'s kernel and manifest as `version_id`; comments and order of the manifest are kept.

    The parent's notes, accepted regressions and lesson are its own and are left out. Overwrites nothing: raises ManifestError.
    """
    import msgspec
    from ruamel.yaml import YAML

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

    yaml = YAML()
    yaml.preserve_quotes = True
    yaml.width = 4096
    yaml.indent(mapping=2, sequence=4, offset=2)
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
    text = io.StringIO()
    yaml.dump(content, text)
    write_atomically(source, code)
    write_atomically(manifest, text.getvalue().encode())
    return source, manifest
