"""Every error that faperf raises on purpose. Imports nothing; the CLI turns it into a message and an exit code once.

FaperfError                    exit 1: says what is wrong, where, and what to do
├── ConfigError                pyproject.toml, [tool.faperf]
├── ManifestError              a manifest or workloads.yaml that cannot be used as it stands
├── ToolchainError             no compiler, or one that does not answer
├── CompileError               nvcc refused the source; carries its message
├── InspectionError            a cubin or a disassembly that cannot be read
├── MeasuringError             a GPU that cannot be used, a launch that failed outside of a run
│   └── ForbiddenError         no hardware counters for this user, whatever is profiled
├── GitError                   no repository, an unknown commit, a shallow clone
├── HistoryError               a record that cannot be read or written
├── BisectionError             the ends of a bisection do not fit its question
└── SelectionError             exit 2: a version, target or workload that does not exist
"""

from __future__ import annotations


class FaperfError(Exception):
    """Base of all. `where` is a place ("manifests/v12.yaml:7"), `remedy` what the reader can do."""

    exit_code = 1

    def __init__(self, what: str, *, where: str | None = None, remedy: str | None = None) -> None:
        super().__init__(what)
        self.what = what
        self.where = where
        self.remedy = remedy

    def __str__(self) -> str:
        text = f"{self.where}: {self.what}" if self.where else self.what
        return f"{text}\n  → {self.remedy}" if self.remedy else text


class ConfigError(FaperfError):
    pass


class ManifestError(FaperfError):
    pass


class ToolchainError(FaperfError):
    pass


class CompileError(FaperfError):
    pass


class InspectionError(FaperfError):
    pass


class MeasuringError(FaperfError):
    pass


class ForbiddenError(MeasuringError):
    pass


class GitError(FaperfError):
    pass


class HistoryError(FaperfError):
    pass


class BisectionError(FaperfError):
    pass


class SelectionError(FaperfError):
    exit_code = 2
