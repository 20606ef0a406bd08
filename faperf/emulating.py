"""A build on the CPU: the same launch, inputs, reference and comparison as on silicon, by `emulator` instead of a card.

Verdicts are kept in `.faperf/emulated/` by all that they depend on, so that nothing is emulated twice.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from faperf import record
from faperf.emulator import LAZY, LOCKSTEP, RANDOM, VERSION
from faperf.emulator.emulate import Device
from faperf.emulator.fault import DiagnosisError, NotEmulatedError
from faperf.emulator.ptx import Module, parse
from faperf.history import write_atomically
from faperf.launch import ResolvedLaunch, launch_digest
from faperf.manifest import Version, Workload
from faperf.operations import Operation, Operations, Place, find_operation, tensors_of
from faperf.record import Check, Emulated, EmulatorVerdict
from faperf.resolve import resolve
from faperf.verify import POISON, checked

SEED = 20_261_130
BY = "emulator"
LARGEST_CLUSTER = 16
"""CTAs that a cluster may have on any card."""


class Subject(msgspec.Struct, frozen=True, kw_only=True):
    """What is emulated: a build's PTX with its launches for one workload, and how wrong it may be."""

    build: str
    ptx: str
    launches: list[ResolvedLaunch]
    workload: str
    shape: dict[str, int]
    layout: str
    ratio_to_fp16: float | None = None
    bound: float | None = None


class Verdict(msgspec.Struct, frozen=True):
    """What an emulation came to: a check, or why there is none. `known`: from an earlier emulation."""

    check: Check | None = None
    refused: str | None = None
    known: bool = False


def small_workloads(version: Version, first: Workload) -> list[Workload]:
    """Workloads of a version that take about a second: one tile of S in two batches, and three tiles in two heads.

    Where the CTAs come in clusters, as many times more as the clusters need. An operation without B, H and S keeps its first
    workload as it is. Raises ManifestError where the launch's arithmetic does not work out.
    """
    if not {"B", "H", "S"} <= set(first.shape):
        return [first]
    tile = math.lcm(version.tile.m, version.tile.n)

    def workload(b: int, h: int, s: int) -> Workload:
        shape = {**first.shape, "B": b, "H": h, "S": s}
        return Workload(f"emulated[S={s}]", "emulated", first.operation, shape)

    def divides(launch: ResolvedLaunch) -> bool:
        return not any(size % part for size, part in zip(launch.grid, launch.cluster, strict=True))

    found = []
    for b, h, tiles in ((2, 1, 1), (1, 2, 3)):
        several = [workload(b, h, tiles * tile * times) for times in range(1, LARGEST_CLUSTER + 1)]
        fitting = (each for each in several if all(map(divides, resolve(version, each))))
        found.append(next(fitting, several[0]))
    return found


def subject_of(version: Version, build: str, ptx: str, workload: Workload) -> Subject:
    """Raises ManifestError where the launch's arithmetic does not work out."""
    return Subject(
        build=build,
        ptx=ptx,
        launches=resolve(version, workload),
        workload=workload.name,
        shape=workload.shape,
        layout=version.operation.layout,
        ratio_to_fp16=version.tolerance.ratio_to_fp16,
        bound=version.tolerance.bound,
    )


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be verified of one build: what in which order, until something is wrong or cannot be emulated.

    `place` is that of a project's own operation. Verdicts are kept in the directory `kept`.
    """

    operation: str
    place: Place | None
    plan: list[tuple[Subject, str, str]]
    kept: Path


def asked(operations: Operations, version: Version, build: str, ptx: str, first: Workload, kept: Path) -> Ask:
    """What `faperf run` verifies: the small workloads of a version, the larger one on every distribution and schedule.

    Raises ManifestError where a launch's arithmetic does not work out.
    """
    name = version.operation.name
    distributions = operations[name].distributions
    *smaller, largest = (subject_of(version, build, ptx, workload) for workload in small_workloads(version, first))
    hard = distributions[min(1, len(distributions) - 1)]
    plan = [(subject, distributions[0], LOCKSTEP) for subject in smaller]
    plan += [(largest, distribution, LOCKSTEP) for distribution in distributions]
    plan += [(largest, hard, LAZY), (largest, hard, RANDOM)]
    return Ask(operation=name, place=operations.places.get(name), plan=plan, kept=kept)


def answer(ask: Ask) -> list[Verdict]:
    """Emulates what is not known."""
    emulation = Emulation(find_operation(ask.operation, ask.place))
    return list(_until_wrong(emulation.verdict(*each, ask.kept) for each in ask.plan))


def answers(asks: Sequence[Ask], jobs: int) -> Iterator[list[Verdict]]:
    """The answer to each, in order. `jobs` processes emulate at a time, the largest builds first, where several are to be."""
    known = [_known(ask) for ask in asks]
    anew = [number for number, found in enumerate(known) if found is None]
    if min(jobs, len(anew)) < 2:
        yield from (found or answer(ask) for found, ask in zip(known, asks, strict=True))
        return
    pool = ProcessPoolExecutor(min(jobs, len(anew)), get_context("spawn"))
    try:
        largest_first = sorted(anew, key=lambda number: -math.prod(asks[number].plan[-1][0].shape.values()))
        futures = {number: pool.submit(answer, asks[number]) for number in largest_first}
        for number, found in enumerate(known):
            yield futures[number].result() if found is None else found
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def summary(verdicts: Sequence[Verdict]) -> Emulated:
    """An answer in one: it ends with what is wrong or was refused."""
    last = verdicts[-1]
    if last.check is None:
        return Emulated(EmulatorVerdict.REFUSED, str(last.refused))
    if not last.check.ok:
        return Emulated(
            EmulatorVerdict.WRONG, f"on {last.check.distribution}, {last.check.workload}: {last.check.failure}"
        )
    return Emulated(EmulatorVerdict.RIGHT)


def _known(ask: Ask) -> list[Verdict] | None:
    """The answer, if all of it was kept."""
    emulation, missing = Emulation(find_operation(ask.operation, ask.place)), Verdict()
    found = list(_until_wrong(emulation.kept(*each, ask.kept) or missing for each in ask.plan))
    return None if missing in found else found


def _until_wrong(verdicts: Iterable[Verdict]) -> Iterator[Verdict]:
    for verdict in verdicts:
        yield verdict
        if verdict.check is None or not verdict.check.ok:
            return


class Emulation:
    """Checks of one operation's kernels. Parsed PTX, inputs and references are kept.

    With `exact_sums` matrix products are summed as a Hopper tensor core sums them (`tensor_core`).
    """

    def __init__(self, operation: Operation, seed: int = SEED, exact_sums: bool = False) -> None:
        self.operation, self.seed, self.exact_sums = operation, seed, exact_sums
        self.executed = 0
        """Warp-instructions, over all checks."""
        self._modules: dict[str, Module] = {}
        self._truth: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {}

    def verdict(self, subject: Subject, distribution: str, schedule: str, kept: Path) -> Verdict:
        """A check as it was kept in the directory `kept`, or made now."""
        known = self.kept(subject, distribution, schedule, kept)
        if known is not None:
            return known
        try:
            verdict = Verdict(self.check(subject, distribution, schedule))
        except NotEmulatedError as error:
            verdict = Verdict(refused=str(error))
        write_atomically(self._place(subject, distribution, schedule, kept), msgspec.json.encode(verdict))
        return verdict

    def kept(self, subject: Subject, distribution: str, schedule: str, kept: Path) -> Verdict | None:
        """A check from an earlier emulation, if there was one."""
        with contextlib.suppress(OSError, msgspec.DecodeError):
            content = self._place(subject, distribution, schedule, kept).read_bytes()
            verdict = msgspec.json.decode(content, type=Verdict)
            if verdict.check is None:
                return Verdict(refused=verdict.refused, known=True)
            own = record.replace(verdict.check, build=subject.build, workload=subject.workload)
            return Verdict(own, known=True)
        return None

    def _place(self, subject: Subject, distribution: str, schedule: str, kept: Path) -> Path:
        parts = (subject.ptx, subject.launches, subject.shape, subject.layout, subject.ratio_to_fp16, subject.bound)
        doing: tuple[Any, ...] = (
            self.operation.name, self.operation.version, distribution, self.seed, schedule, VERSION,
            *(["exact sums"] if self.exact_sums else []),
        )  # fmt: skip
        return kept / f"{hashlib.sha256(msgspec.json.encode((parts, doing))).hexdigest()[:24]}.json"

    def check(
        self,
        subject: Subject,
        distribution: str,
        schedule: str = LOCKSTEP,
        trace: Any = None,
        sample: int | None = None,
    ) -> Check:
        """Emulate and compare. A diagnosis is a failed check. Raises NotEmulatedError.

        Of a single launch a `sample` of CTAs may run; compared is then what they have stored.
        """
        inputs, reference, baseline = self._inputs(subject, distribution)
        tensors = {}
        for name, (size, dtype) in tensors_of(self.operation, subject.shape, subject.layout).items():
            tensors[name] = np.empty(size, dtype)
            tensors[name].view(np.uint16)[...] = POISON
            if name in inputs:
                tensors[name][...] = inputs[name]
        check = Check(
            schema=record.SCHEMA,
            build=subject.build,
            launch=launch_digest(subject.launches),
            workload=subject.workload,
            shape=subject.shape,
            operation=self.operation.name,
            operation_version=self.operation.version,
            by=BY,
            distribution=distribution,
            seed=self.seed,
            schedule=schedule,
        )
        if subject.build not in self._modules:
            self._modules[subject.build] = parse(subject.ptx)
        device = Device(self._modules[subject.build], tensors, self.exact_sums)
        device.trace = trace
        try:
            for launch in subject.launches:
                device.launch(launch, schedule, self.seed, sample if len(subject.launches) == 1 else None)
        except DiagnosisError as diagnosis:
            return record.replace(check, fault=diagnosis.kind, failure=f"{diagnosis.kind}: {diagnosis}")
        finally:
            self.executed += device.executed
            check = record.replace(check, warnings=sorted(device.warnings))
        found = {name: device.memory.content(name) for name in self.operation.outputs}
        if sample is not None:
            stored = {name: device.memory.stored(name) for name in found}
            if not any(places.any() for places in stored.values()):
                return record.replace(check, failure=f"the CTAs that ran stored nothing of {', '.join(found)}")
            found, reference, baseline = (
                {name: np.where(stored[name], values[name], values[name].dtype.type(0)) for name in found}
                for values in (found, reference, baseline)
            )
        verdict = checked(
            check, np, self.operation, subject.layout, found, reference, baseline,
            ratio=subject.ratio_to_fp16, bound=subject.bound,
        )  # fmt: skip
        if verdict.failure is None:
            return verdict
        notes = self._out_of_order(subject, tensors, sample)
        return record.replace(verdict, failure="; ".join([verdict.failure, *notes]))

    def _out_of_order(self, subject: Subject, tensors: dict[str, Any], sample: int | None) -> list[str]:
        """A wrong result: run once more and look where the operands of matrix products come from.

        Halves are drawn for it: 16 bytes of them are hardly ever the same at two places.
        """
        drawn = np.random.default_rng(self.seed)
        distinct = {
            name: drawn.standard_normal(content.shape, np.float32).astype(np.float16)
            if content.dtype == np.float16 and name not in self.operation.outputs
            else content
            for name, content in tensors.items()
        }
        device = Device(self._modules[subject.build], distinct)
        device.follows_origins = True
        with contextlib.suppress(DiagnosisError):
            for launch in subject.launches:
                device.launch(launch, LOCKSTEP, self.seed, sample if len(subject.launches) == 1 else None)
        return list(device.notes)

    def _inputs(self, subject: Subject, distribution: str) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        """(inputs, float64 reference, plain result), worked out once."""
        key = f"{subject.layout} {sorted(subject.shape.items())} {distribution}"
        if key not in self._truth:
            inputs = self.operation.inputs(np, subject.shape, subject.layout, distribution, self.seed)
            arguments = (np, inputs, subject.shape, subject.layout)
            self._truth[key] = (inputs, self.operation.reference(*arguments), self.operation.plain(*arguments))
        return self._truth[key]
