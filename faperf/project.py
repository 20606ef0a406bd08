"""Where a project lies and what its pyproject.toml says under [tool.faperf]."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec

from faperf.errors import ConfigError


class Config(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="kebab", kw_only=True):
    """[tool.faperf]. `thresholds` is decoded by `judge`, the only place that knows them. `emulate`: `run` verifies without a GPU
    what no GPU here can run. `peers` and `operations` name a project's own, as "module:ATTRIBUTE". `control` is "peer:NAME" where
    a peer stands for the control kernel.
    """

    default_branch: str = "main"
    default_target: str = "sm_103a"
    pinned: str | None = None
    operations: dict[str, str] = {}
    peers: dict[str, str] = {}
    control: str | None = None
    emulate: bool = True
    thresholds: dict[str, Any] = {}


@dataclass(frozen=True)
class Project:
    """A directory with `manifests/`. Every path in a record or a message is relative to `root`, with `/`.

    `trusted` stands for its own pyproject.toml and Python modules, where those may be a stranger's.
    """

    root: Path
    trusted: Project | None = None

    @classmethod
    def find(cls, start: Path, *, or_there: bool = False) -> Project:
        """The nearest directory from `start` upward that has `manifests/`; with `or_there`, `start` itself where none has."""
        start = start.resolve()
        for directory in (start, *start.parents):
            if (directory / "manifests").is_dir():
                return cls(directory)
        if or_there:
            return cls(start)
        raise ConfigError(
            "no manifests/ here or in any directory above",
            where=str(start),
            remedy="run faperf inside a project, or make one: faperf new NAME",
        )

    @cached_property
    def config(self) -> Config:
        if self.trusted is not None:
            return self.trusted.config
        path = self.root / "pyproject.toml"
        if not path.exists():
            return Config()
        import tomllib

        try:
            table = tomllib.loads(path.read_text(encoding="utf-8")).get("tool", {}).get("faperf", {})
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ConfigError(str(error), where="pyproject.toml") from error
        try:
            return msgspec.convert(table, Config)
        except msgspec.ValidationError as error:
            raise ConfigError(
                str(error),
                where="pyproject.toml, [tool.faperf]",
                remedy="known keys: " + ", ".join(field.encode_name for field in msgspec.structs.fields(Config)),
            ) from error

    @property
    def modules(self) -> Path:
        """Where the Python modules lie that `operations` names."""
        return self.trusted.modules if self.trusted is not None else self.root

    @property
    def state(self) -> Path:
        """`.faperf/`: cache, added compilers, unfinished runs, records of a machine that is not enrolled.

        Ignored by git by its own file.
        """
        return self.root / ".faperf"

    @property
    def toolchains(self) -> Path:
        """The CUDA compilers that `faperf toolchain add` installed, each in a directory by its version."""
        return self.state / "toolchains"

    @property
    def manifests(self) -> Path:
        return self.root / "manifests"

    @property
    def has_versions(self) -> bool:
        return any(path.name != "workloads.yaml" for path in self.manifests.glob("*.yaml"))

    @property
    def history(self) -> Path:
        return self.root / "history"

    def make_state(self) -> Path:
        """Create `.faperf/`, with a .gitignore of its own so that trying the tool leaves `git status` clean."""
        ignore = self.state / ".gitignore"
        try:
            self.state.mkdir(exist_ok=True)
            if not ignore.exists():
                ignore.write_text("*\n", encoding="utf-8")
        except OSError as error:
            raise ConfigError(
                f"cannot write: {error.strerror}",
                where=str(self.state),
                remedy="free some space or fix the permissions",
            ) from error
        return self.state

    def relative(self, path: Path) -> str:
        """`path` as records and messages name it: relative to the root where it lies under it."""
        return path.relative_to(self.root).as_posix() if path.is_relative_to(self.root) else path.as_posix()
