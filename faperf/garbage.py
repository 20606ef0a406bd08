"""Cleaning `.faperf/`: builds nobody asked for lately, files of other commits, what a killed run left behind.

Records are never touched: what a user measured is theirs. Nor are added compilers: they cost a download, so only
`faperf toolchain remove` removes them.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from faperf.errors import HistoryError
from faperf.history import in_use
from faperf.project import Project

DAY_S = 86_400.0


@dataclass(frozen=True)
class Swept:
    """What was removed (or would be): how many things, and their bytes."""

    count: int
    size: int


def sweep(project: Project, *, older_than_days: float, dry_run: bool) -> Swept:
    """Remove what was not used for `older_than_days` days. Raises HistoryError when a file cannot be removed."""
    now = time.time()
    stale = [path for path in _candidates(project.state) if now - path.lstat().st_mtime >= _age(path, older_than_days)]
    size = sum(_size(path) for path in stale)
    for path in [] if dry_run else stale:
        try:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        except OSError as error:
            raise HistoryError(f"cannot remove: {error.strerror}", where=str(path)) from error
    return Swept(len(stale), size)


def _age(path: Path, days: float) -> float:
    """Seconds after which `path` may go. What another process may be writing now stays for an hour in any case."""
    busy = path.name.startswith(".tmp-") or (path.parent.name == "pending" and in_use(path))
    return max(days * DAY_S, 3_600.0) if busy else days * DAY_S


def _candidates(state: Path) -> Iterator[Path]:
    """A build is touched whenever it is used, so its age is the time since."""
    patterns = ("cache/builds/*", "cache/requests/*", "cache/.tmp-*", "trees/*", "trees/.tmp-*", "pending/*")
    for pattern in (*patterns, "bisect/*", "toolchains/.tmp-*"):
        yield from state.glob(pattern)


def _size(path: Path) -> int:
    if not path.is_dir():
        return path.lstat().st_size
    return sum(file.lstat().st_size for file in path.rglob("*") if file.is_file())
