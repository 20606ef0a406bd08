"""What has to be measured, as one self-contained unit of plain data: no YAML, no expressions, no sources."""

from __future__ import annotations

import msgspec

from faperf.launch import ResolvedLaunch, launch_digest
from faperf.record import SCHEMA, Check, Place, Protocol, Run


class Side(msgspec.Struct, frozen=True, kw_only=True):
    """One build to measure: its cubin, and its resolved launches for each workload it knows. `name` is unique in a job."""

    name: str
    version: str
    target: str
    build: str
    code: str
    cubin: bytes
    operation: str
    operation_version: int
    launches: dict[str, list[ResolvedLaunch]]
    layout: str
    ratio_to_fp16: float | None = None
    bound: float | None = None
    timeout_s: float = 5.0

    @property
    def place(self) -> Place:
        return self.version, self.target


class Control(msgspec.Struct, frozen=True):
    """A peer that stands for the control kernel beside versions of its operation. `modules`: where a project's own ones lie."""

    side: Side
    modules: str


class JobWorkload(msgspec.Struct, frozen=True):
    """A workload as numbers: what it is called, its digest, its shape."""

    name: str
    digest: str
    shape: dict[str, int]


class Task(msgspec.Struct, frozen=True, eq=True):
    """Verify `side` on a workload's every distribution and, when it is right, time it against `partners` (role → side)."""

    side: str
    workload: str
    partners: dict[str, str]


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """All that has to be measured, as plain data: the local worker, a GPU host without git, nvcc or sources, and a cluster's
    worker take the same. Each side is verified on the inputs of every seed, and timed on the first one's.
    """

    schema: int
    faperf: str
    commit: str | None
    dirty: list[str]
    seeds: list[int]
    protocol: Protocol
    sides: list[Side]
    workloads: list[JobWorkload]
    tasks: list[Task]
    run: Run
    control: Control | None = None

    def side(self, name: str) -> Side:
        if self.control and self.control.side.name == name:
            return self.control.side
        return next(side for side in self.sides if side.name == name)

    def workload(self, name: str) -> JobWorkload:
        return next(workload for workload in self.workloads if workload.name == name)


def blank_check(job: Job, side: Side, workload: JobWorkload, distribution: str, seed: int) -> Check:
    """A check without its outcome."""
    return Check(
        schema=SCHEMA,
        build=side.build,
        launch=launch_of(side, workload),
        workload=workload.name,
        shape=workload.shape,
        operation=side.operation,
        operation_version=side.operation_version,
        by="silicon",
        distribution=distribution,
        seed=seed,
    )


def launch_of(side: Side, workload: JobWorkload) -> str:
    return launch_digest(side.launches[workload.name])
