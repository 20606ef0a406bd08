"""One fact of one version × target at a time, as a test runner asks: does it compile, is it right, how fast is it, is it worse?

Several processes of a session (pytest-xdist's) share a folder: who asks first works, under a lock, and the others read what came
of it. As at a gate, nothing is recorded but builds.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from faperf import record
from faperf.build import Builder
from faperf.building import Outcome, Progress, Selection, Step, Workshop, build_record, entry_of
from faperf.comparison import GateReport, GateRow
from faperf.device import Gpu, can_measure, find_gpu
from faperf.errors import FaperfError, SelectionError
from faperf.gate import gate as pass_gate
from faperf.harness import emulate
from faperf.history import NO_GPU_CLASS, new_run, write_atomically
from faperf.judge import Finding, over_budget
from faperf.manifest import Manifests, load_manifests
from faperf.measuring import Found, job_of, perform
from faperf.operations import load_operations
from faperf.project import Project
from faperf.record import Build, Check, EmulatorVerdict, Entry, Timing
from faperf.sass import inspect
from faperf.trees import Ask
from faperf.worker import Here

T = TypeVar("T")


class Built(msgspec.Struct, frozen=True):
    entry: Entry
    build: Build


class Verified(msgspec.Struct, frozen=True):
    """Checks by silicon or the emulator, and the timing where one was asked for; `refused` says why there is neither."""

    checks: list[Check] = []
    timing: Timing | None = None
    refused: str | None = None


class _Kept(msgspec.Struct, Generic[T]):
    """What came of some work: a result, or an error's three parts."""

    result: T | None = None
    error: tuple[str, str | None, str | None] | None = None


@dataclass
class Checker:
    """`steps` are all that the session will ask about, `timed` those of them whose time it wants."""

    project: Project
    shared: Path
    baseline: str | None = None
    gpu_wanted: bool = True
    steps: Sequence[Step] = ()
    timed: Sequence[Step] = ()

    @cached_property
    def manifests(self) -> Manifests:
        return load_manifests(self.project)

    @cached_property
    def _workshop(self) -> Workshop:
        return Workshop.open(self.project, progress=Progress(say=print))

    @cached_property
    def _builder(self) -> Builder:
        return Builder(self.project.root, self.project.make_state() / "cache", self._workshop.toolchain)

    @cached_property
    def _gpu(self) -> tuple[Gpu | None, str]:
        """The GPU to measure on, or None and why."""
        if not self.gpu_wanted:
            return None, "--faperf-no-gpu was given"
        gpu, reason = find_gpu()
        if gpu is not None and not can_measure():
            return None, f"there is a {gpu.name}, but cupy is not installed"
        return gpu, reason or ""

    def build(self, step: Step) -> Built:
        """Raises FaperfError: what the compiler says, or why the launch does not fit the kernel."""

        def work() -> Built:
            artifact = self._builder.build(*step)
            inspect(artifact.directory, self._workshop.toolchain.nvdisasm)
            build = build_record(step, artifact, self._workshop.toolchain)
            entry = entry_of(step, build, self.manifests, load_operations(self.project))
            self._workshop.history.save_build(build)
            return Built(entry, build)

        return self._once(f"build {_name(step)}", Built, work)

    def over_budget(self, step: Step) -> list[Finding]:
        built = self.build(step)
        return over_budget(step[0].budgets, built.build, built.entry)

    def verify(self, step: Step) -> Verified:
        """On the GPU that is here, where it runs the target, else by the emulator."""

        def work() -> Verified:
            outcome = self._outcome(step)
            gpu, reason = self._gpu
            if gpu is not None and gpu.runs(step[1]):
                return self._measured(step, outcome, gpu)
            if not self.project.config.emulate:
                why = f"the {gpu.name} does not run {step[1]}" if gpu else reason
                return Verified(refused=f"not verified: {why}; emulate is off")
            checks: list[Check] = []
            emulate(self._workshop, self.manifests, outcome, [step], None, checks.append)
            said = outcome.run.entries[0].emulated
            if said is None:
                return Verified(refused="it has no workload")
            return Verified(checks, refused=str(said) if said.verdict is EmulatorVerdict.REFUSED else None)

        return self._once(f"verify {_name(step)}", Verified, work)

    def timing(self, step: Step) -> Verified:
        """As `verify`; its `refused` says why there is no timing."""
        gpu, reason = self._gpu
        if gpu is None or not gpu.runs(step[1]):
            why = f"the {gpu.name} does not run {step[1]}" if gpu else reason
            return Verified(refused=f"not timed: {why}")
        return self.verify(step)

    def gate(self, step: Step) -> list[GateRow]:
        """The gate's rows of a version × target; one gate judges all of `steps`. Raises SelectionError without a baseline."""
        repository = self._workshop.repository
        if self.baseline is None:
            if repository is None:
                raise SelectionError("there is no git repository here, so there is no baseline")
            if len(list(islice(repository.first_parents(), 2))) < 2 and not repository.is_shallow:
                raise SelectionError("HEAD is the first commit, so there is no baseline")
        versions = tuple(dict.fromkeys(version.id for version, _ in self.steps))
        targets = tuple(dict.fromkeys(target for _, target in self.steps))

        for each in self.steps:
            with contextlib.suppress(FaperfError):  # the gate finds these builds, and says itself what does not build
                self.build(each)

        def work() -> GateReport:
            with Here.find() if self.gpu_wanted else contextlib.nullcontext(Here()) as here:
                ask = Ask(baseline=self.baseline, emulate=True)
                return pass_gate(self._workshop, Selection(versions, targets), ask, here)

        report = self._once(f"gate {versions} {targets}", GateReport, work)
        return [row for row in report.rows if row.place == (step[0].id, step[1])]

    # ── inside ──

    def _outcome(self, step: Step) -> Outcome:
        """A run of this step alone, as measuring and emulating take it."""
        built, artifact = self.build(step), self._builder.find(*step)
        if artifact is None:
            raise FaperfError(f"{_name(step)} changed while it was tested", remedy="run again")
        run = new_run(None, self._gpu[0].machine_class if self._gpu[0] else NO_GPU_CLASS)
        run = record.replace(run, partial=True, entries=[built.entry])
        return Outcome(run, {built.build.key: built.build}, {built.build.key: artifact}, [])

    def _measured(self, step: Step, outcome: Outcome, gpu: Gpu) -> Verified:
        operations = load_operations(self.project)
        job = job_of(operations, self.manifests, outcome, [step], ())
        found: list[Found] = []
        if job.tasks:
            perform(job, gpu.card, operations, lambda _, one: found.append(one), print, timed=step in self.timed)
        timings = [one for one in found if isinstance(one, Timing)]
        refused = None if job.tasks else "it has no workload"
        return Verified([one for one in found if isinstance(one, Check)], timings[-1] if timings else None, refused)

    def _once(self, what: str, kind: type[T], work: Callable[[], T]) -> T:
        """What `work` gives, or the error that it raises, once in all processes of the session."""
        path = self.shared / f"{hashlib.sha256(what.encode()).hexdigest()[:20]}.json"
        with _locked(path.with_suffix(".lock")):
            try:
                kept: _Kept[T] = msgspec.json.decode(path.read_bytes(), type=_Kept[kind])  # type: ignore[valid-type]
            except FileNotFoundError:
                kept = _kept(work)
                write_atomically(path, msgspec.json.encode(kept))
        if kept.error is not None:
            text, where, remedy = kept.error
            raise FaperfError(text, where=where, remedy=remedy)
        assert kept.result is not None
        return kept.result


def _kept(work: Callable[[], T]) -> _Kept[T]:
    try:
        return _Kept(result=work())
    except FaperfError as error:
        return _Kept(error=(error.what, error.where, error.remedy))


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _name(step: Step) -> str:
    return f"{step[0].id} for {step[1]}"
