"""A child process that owns the CUDA context, and its parent's handle on it.

Whatever a kernel does happens in the child: a fault ends the child, a hang is ended by the parent at the launch's own time
limit, and the next task starts in a new child as if nothing had happened. They talk in frames over pipes: four bytes of
length, then msgpack. Never pickle.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import random
import select
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any, Self
from typing import Protocol as Interface

import msgspec

from faperf import record
from faperf.device import (
    VOIDING_REASONS,
    Arena,
    Block,
    Card,
    Gpu,
    Kernels,
    LaunchError,
    control_identity,
    find_gpu,
    missing_libraries,
    preload,
    reason_words,
)
from faperf.errors import MeasuringError
from faperf.job import Job, JobWorkload, Side, Task
from faperf.launch import launch_digest
from faperf.operations import Operation, Operations, Place, tensors_of
from faperf.record import Check, Interval, Pair, Timing
from faperf.verify import POISON, checked

if TYPE_CHECKING:
    from faperf.ranksum import Estimate

CONTROL = "control"
SLACK_S = 120.0
"""How long the child may take for anything but a launch of the measured kernel: importing, references, warming up."""
DYING_S = 5.0
"""How long a child that has closed its pipe may take to end by itself."""
TAIL_BYTES = 4096
HANG = "hang"
DIED = "worker died"
CLOCK_GAP = 0.02
STILL_WARM_S = 1.0
SLOWER_BY = 20
"""A block may take so many times as long as its launches did before it counts as hanging, beside one launch's own limit."""
MOST_BYTES = 2**28
"""No frame is longer. Four letters of text, read as a length, are."""


class Begin(msgspec.Struct, frozen=True, tag=True):
    """The first frame: what is to be measured, and where a project's own operations are found."""

    job: Job
    places: dict[str, Place]


class Verify(msgspec.Struct, frozen=True, tag=True):
    """Verify a side on a workload and one distribution's inputs of a seed; answered by Checked."""

    side: str
    workload: str
    distribution: str
    seed: int


class Time(msgspec.Struct, frozen=True, tag=True):
    """Time a task's side against its partners; answered by Timed."""

    task: Task


class Ready(msgspec.Struct, frozen=True, tag=True):
    """The child is up. `others`: process ids that compute on the card too."""

    gpu: str
    card: str
    driver: str
    capability: str
    others: list[int]


class Launching(msgspec.Struct, frozen=True, tag=True):
    """From now on the kernel runs; it has `limit_s` seconds."""

    limit_s: float


class Landed(msgspec.Struct, frozen=True, tag=True):
    """The launch is over."""


class Checked(msgspec.Struct, frozen=True, tag=True):
    check: Check


class Timed(msgspec.Struct, frozen=True, tag=True):
    timing: Timing


class Faulted(msgspec.Struct, frozen=True, tag=True):
    """A launch failed. `lost`: the child ends with it."""

    kind: str
    detail: str
    lost: bool


Request = Begin | Verify | Time
Answer = Ready | Launching | Landed | Checked | Timed | Faulted
_Frame = msgspec.Struct


class Readable(Interface):
    def read(self, count: int, /) -> bytes: ...


class Writable(Interface):
    def write(self, content: memoryview, /) -> int: ...

    def flush(self) -> None: ...


def write_frame(stream: Writable, message: _Frame) -> None:
    content = msgspec.msgpack.encode(message)
    frame = memoryview(struct.pack("<I", len(content)) + content)
    while frame:
        frame = frame[stream.write(frame) :]
    stream.flush()


def read_frame(stream: Readable) -> bytes | None:
    """The next frame, or None at the end of the stream. Raises DecodeError where something else than a frame begins."""
    header = _read_exactly(stream, 4)
    if header is None:
        return None
    (length,) = struct.unpack("<I", header)
    if length > MOST_BYTES:
        raise msgspec.DecodeError(f"no frame begins with {header!r}")
    return _read_exactly(stream, length)


def _read_exactly(stream: Readable, count: int) -> bytes | None:
    content = bytearray()
    while len(content) < count:
        part = stream.read(count - len(content))
        if not part:
            return None
        content += part
    return bytes(content)


# ── the parent's side ────────────────────────────────────────────────────────────────────────────────────────────────


class FaultError(Exception):
    """A request ended in a classified fault; the handle is ready for the next one."""

    def __init__(self, kind: str, detail: str) -> None:
        super().__init__(detail)
        self.kind = kind
        self.detail = detail


class _Limited:
    """The parent's end of an unbuffered pipe, for `limit_s` seconds in all. Raises TimeoutError."""

    def __init__(self, pipe: IO[bytes] | None, limit_s: float) -> None:
        assert pipe is not None
        self._pipe, self._end = pipe, time.monotonic() + limit_s

    def read(self, count: int) -> bytes:
        self._wait(select.select([self._pipe], [], [], self._left())[0])
        return self._pipe.read(count)

    def write(self, content: memoryview) -> int:
        self._wait(select.select([], [self._pipe], [], self._left())[1])
        return self._pipe.write(content[: select.PIPE_BUF])  # so much never blocks where select found room

    def flush(self) -> None:
        """Nothing is buffered."""

    def _left(self) -> float:
        return max(0.0, self._end - time.monotonic())

    def _wait(self, ready: list[Any]) -> None:
        if not ready:
            raise TimeoutError


CHILD = (sys.executable, "-P", "-m", "faperf.worker")
"""`-P`: no module of the directory it is started in stands for a library, be that a stranger's checkout."""
ENVIRONMENT = {
    "CUDA_DEVICE_ORDER": "PCI_BUS_ID",  # as nvidia-smi counts
    "CUPY_ACCELERATORS": "",  # the first sum through CUB takes half a second, and five where cupy has not compiled it yet
}


class Worker:
    """One job's worker. Starts a child when it is first asked, and a new one after each fault or hang.

    `spawn` may come long before the job is known: the child then imports its libraries, and leaves the card alone.
    """

    def __init__(self, job: Job | None = None, command: Sequence[str] = CHILD) -> None:
        self.job = job
        self.places: dict[str, Place] = {}
        self.command = command
        self.ready: Ready | None = None
        self.children = 0
        self._child: subprocess.Popen[bytes] | None = None
        self._errors: IO[bytes] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def spawn(self) -> None:
        """Start a child where there is none; it waits for the job."""
        if self._child is None:
            self.children += 1
            self.ready = None
            self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (a pipe that nobody reads would fill up)
            self._child = subprocess.Popen(
                self.command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                bufsize=0,  # `select` must see all that was not read yet
                start_new_session=True,
                env=os.environ | ENVIRONMENT,
            )

    def start(self) -> Ready:
        """Make sure that a child has the job. Raises MeasuringError when none comes up: that is no kernel's fault."""
        self.spawn()
        if self.ready is None:
            assert self.job is not None
            self._send(Begin(self.job, self.places))
            answer = self._receive(SLACK_S)
            if not isinstance(answer, Ready):
                fault = self._fault(answer)
                raise MeasuringError(
                    f"the worker does not start: {fault.kind}: {fault.detail}", remedy="faperf doctor"
                ) from fault
            self.ready = answer
        return self.ready

    def verify(self, side: str, workload: str, distribution: str, seed: int) -> Check:
        """Raises FaultError."""
        answer = self._ask(Verify(side, workload, distribution, seed))
        assert isinstance(answer, Checked)
        return answer.check

    def time(self, task: Task) -> Timing:
        """Raises FaultError."""
        answer = self._ask(Time(task))
        assert isinstance(answer, Timed)
        return answer.timing

    def stop(self) -> None:
        """End the child and all that it started."""
        if self._child is not None:
            with self._child as child, contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            self._child = None
        if self._errors is not None:
            self._errors.close()
            self._errors = None

    def _ask(self, request: Verify | Time) -> Checked | Timed:
        self.start()
        self._send(request)
        limit = SLACK_S
        while True:
            answer = self._receive(limit)
            limit = SLACK_S
            if isinstance(answer, Launching):
                limit = answer.limit_s
            elif isinstance(answer, Checked | Timed):
                return answer
            elif not isinstance(answer, Landed):
                raise self._fault(answer)

    def _send(self, message: Request) -> None:
        assert self._child is not None
        with contextlib.suppress(BrokenPipeError, TimeoutError):  # either shows when the answer is waited for
            write_frame(_Limited(self._child.stdin, SLACK_S), message)

    def _receive(self, limit_s: float) -> Answer | str | None:
        """The next answer; the word HANG when none came in time, or what is wrong with it; None when the child ended."""
        assert self._child is not None
        try:
            content = read_frame(_Limited(self._child.stdout, limit_s))
            return msgspec.msgpack.decode(content, type=Answer) if content is not None else None
        except TimeoutError:
            return HANG
        except msgspec.DecodeError as error:
            return f"garbled answer: {error}"

    def _fault(self, answer: Answer | str | None) -> FaultError:
        """What went wrong, in one exception; a child that cannot go on is ended."""
        if isinstance(answer, Faulted):
            if answer.lost:
                self.stop()
            return FaultError(answer.kind, answer.detail)
        if answer == HANG:
            self.stop()
            return FaultError(HANG, "did not finish within its time limit and was killed")
        if isinstance(answer, str):
            self.stop()
            return FaultError(DIED, answer)
        child, errors = self._child, self._errors
        assert child is not None
        assert errors is not None
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(DYING_S)  # its pipe closes a moment before it ends
        errors.seek(max(0, errors.seek(0, os.SEEK_END) - TAIL_BYTES))
        last = errors.read().decode(errors="replace").strip().splitlines()[-1:] or ["no message"]
        self.stop()
        return FaultError(DIED, f"exit {child.returncode}: {last[0]}")


@dataclass(frozen=True)
class Here:
    """The GPU of this machine, or why nothing is measured on one; and a worker for it, whose child may be coming up."""

    gpu: Gpu | None = None
    reason: str | None = "--no-gpu was given"
    worker: Worker | None = None

    @classmethod
    @contextlib.contextmanager
    def find(cls) -> Iterator[Here]:
        """Look for a GPU, and have a child load its libraries while the compiler works."""
        gpu, reason = find_gpu()
        with Worker() as worker:
            missing = missing_libraries()
            if gpu is not None and not missing:
                worker.spawn()
            elif gpu is not None:
                reason = f"there is a {gpu.name}, but {', '.join(missing)} is not installed (pip install 'faperf[gpu]')"
            yield cls(gpu, reason, worker)


# ── the child's side ─────────────────────────────────────────────────────────────────────────────────────────────────


class Bench:
    """The child's state: the card, one arena for verification, inputs and references kept by workload and distribution."""

    def __init__(self, job: Job, operations: Mapping[str, Operation], tell: Callable[[Answer], None]) -> None:
        self.job = job
        self.tell = tell
        self.card = Card()
        self.operations = operations
        self.draw = random.Random()  # placements and orders are never the same twice
        self._last: tuple[float, float | None] = (-math.inf, None)
        self._known_inputs: dict[tuple[str, str, str, int], dict[str, Any]] = {}
        self._known_truth: dict[tuple[str, str, str, int], tuple[dict[str, Any], dict[str, Any]]] = {}

    def ready(self) -> Ready:
        card = self.card
        return Ready(card.name, card.card, card.driver, card.capability, card.others())

    # ── verification ──

    def launch(
        self, side: Side, workload: JobWorkload, distribution: str, seed: int, *, profiled: bool = False
    ) -> Arena:
        """Launch once into poisoned memory; `profiled`: so that a profiler sees this launch alone. Raises LaunchError."""
        arena = self.placed(side, workload, distribution, seed)
        bound = self.bind(side, workload, arena.tensors)
        with self._launching(side.timeout_s), self.profiled(profiled):
            self.card.run_once(bound)
        return arena

    def placed(self, side: Side, workload: JobWorkload, distribution: str, seed: int) -> Arena:
        """Poisoned memory with the inputs in it."""
        inputs = self._inputs(side, workload, distribution, seed)
        operation = self.operations[side.operation]
        arena = Arena(tensors_of(operation, workload.shape, side.layout))
        for name in operation.tensors:
            arena.poison(name, POISON)
            if name in inputs:
                arena.tensors[name][...] = inputs[name]
        self.card.wait()
        return arena

    def bind(self, side: Side, workload: JobWorkload, tensors: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        """A side's launches over `tensors`, its module loaded anew. Raises LaunchError."""
        return Kernels(side.cubin, side.launches[workload.name]).bind(tensors)

    def profiled(self, wanted: bool) -> contextlib.AbstractContextManager[None]:
        return self.card.profiled() if wanted else contextlib.nullcontext()

    def verify(self, request: Verify) -> Check:
        """Launch and compare. Raises LaunchError."""
        side, workload = self.job.side(request.side), self.job.workload(request.workload)
        distribution, seed = request.distribution, request.seed
        operation = self.operations[side.operation]
        reference, baseline = self._truth(side, workload, distribution, seed)
        arena = self.launch(side, workload, distribution, seed)
        return checked(
            blank_check(self.job, side, workload, distribution, seed),
            self.card.xp, operation, side.layout, arena.tensors, reference, baseline,
            ratio=side.ratio_to_fp16, bound=side.bound,
            overwritten=sum(arena.overwritten(name, POISON) for name in operation.tensors),
        )  # fmt: skip

    def _inputs(self, side: Side, workload: JobWorkload, distribution: str, seed: int) -> dict[str, Any]:
        key = (side.layout, workload.digest, distribution, seed)
        if key not in self._known_inputs:
            operation = self.operations[side.operation]
            made = operation.inputs(self.card.xp, workload.shape, side.layout, distribution, seed)
            self._known_inputs[key] = made
        return self._known_inputs[key]

    def _truth(
        self, side: Side, workload: JobWorkload, distribution: str, seed: int
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """(float64 reference, plain result), worked out once."""
        key = (side.layout, workload.digest, distribution, seed)
        if key not in self._known_truth:
            operation, inputs = self.operations[side.operation], self._inputs(side, workload, distribution, seed)
            arguments = (self.card.xp, inputs, workload.shape, side.layout)
            self._known_truth[key] = (operation.reference(*arguments), operation.plain(*arguments))
        return self._known_truth[key]

    @contextlib.contextmanager
    def _launching(self, limit_s: float) -> Iterator[None]:
        self.tell(Launching(limit_s))
        yield
        self.tell(Landed())

    # ── timing ──

    def time(self, task: Task) -> Timing:
        """The protocol over a task's side and its partners, the control always among them. Raises LaunchError."""
        from faperf.timing import measure

        side, workload = self.job.side(task.side), self.job.workload(task.workload)
        sides = {side.name: side, **{name: self.job.side(name) for name in task.partners.values()}}
        bench = _Interleaved(self, sides, workload)
        power: list[float] = []
        device = _Sampled(bench, self.card, power)
        measured = measure(device, [*sides, CONTROL], self.job.protocol, self.draw, self._steady_mhz())
        self._last = (time.monotonic(), measured.steady_mhz)
        own = measured.series[0]
        series = {series.side: series for series in measured.series}
        roles = {name: role for role, name in task.partners.items()} | {CONTROL: CONTROL}
        shape, ms = workload.shape, own.ms.value
        operation = self.operations[side.operation]
        flops = operation.flops(shape)
        peak = _peak(self.card.capability)
        per_clock = flops / (ms * 1e-3) / (own.clock_mhz * 1e6) / self.card.sms if own.clock_mhz else None
        gaps = {name: _gap(own.clock_mhz, s.clock_mhz) for name, s in series.items()}
        regime = "sustained" if "power cap" in reason_words(own.reasons) else "burst"
        void = [  # at the power cap a side that draws more runs slower: a cause, not a doubt
            f"the SM clock differs by {gap:.1%} from {name}'s"
            for name, gap in gaps.items()
            if regime == "burst" and gap is not None and gap > CLOCK_GAP and name != CONTROL
        ]
        void += [f"{word}" for s in measured.series for word in reason_words(s.reasons & VOIDING_REASONS)]
        if others := self.card.others():
            void.append(f"{len(others)} other process(es) on the card")
        return Timing(
            schema=record.SCHEMA,
            build=side.build,
            launch=launch_of(side, workload),
            workload=workload.name,
            shape=shape,
            machine=self.job.run.machine,
            gpu=self.card.name,
            card=self.card.card,
            driver=self.card.driver,
            regime=regime,
            protocol=record.PROTOCOL_VERSION,
            ms=_interval(own.ms),
            tflops=flops / ms / 1e9,
            gib_s=operation.bytes(shape) / (ms * 1e-3) / 2**30,
            clock_mhz=own.clock_mhz,
            flops_per_clock_sm=per_clock,
            share_of_peak=flops / (ms * 1e-3) / peak if peak else None,
            power_w=max(power, default=None),
            launches=own.launches,
            events=sorted({word for s in measured.series for word in reason_words(s.reasons)}),
            void=sorted(set(void)),
            pairs=[
                Pair(
                    role=roles[ratio.partner],
                    build=self._build_of(ratio.partner),
                    version=CONTROL if ratio.partner == CONTROL else sides[ratio.partner].version,
                    time=_interval(ratio.time),
                    cycles=_interval(ratio.cycles) if ratio.cycles else None,
                    instances=[round(value, 6) for value in ratio.instances],
                    clock_gap=gaps[ratio.partner],
                )
                for ratio in measured.ratios
            ],
        )

    def _steady_mhz(self) -> float | None:
        """The clock at which the last timing ended, where the card has had no time to cool down since."""
        when, clock = self._last
        return clock if time.monotonic() - when < STILL_WARM_S else None

    def _build_of(self, name: str) -> str:
        return control_identity(self.card.capability) if name == CONTROL else self.job.side(name).build


class _Interleaved:
    """The protocol's device: every side's modules loaded anew and one arena for all of them, placed anew, an instance."""

    def __init__(self, bench: Bench, sides: dict[str, Side], workload: JobWorkload) -> None:
        self._bench, self._sides, self._workload = bench, sides, workload
        self._seconds: dict[str, float] = {}
        self._bound: dict[str, Any] = {}
        self._arena: Arena | None = None

    def renew(self) -> None:
        bench, workload = self._bench, self._workload
        first = next(iter(self._sides.values()))
        operation = bench.operations[first.operation]
        inputs = bench._inputs(first, workload, operation.distributions[0], bench.job.seeds[0])
        self._bound = {}
        arena = Arena(tensors_of(operation, workload.shape, first.layout), spread=bench.draw)
        for name, values in inputs.items():
            arena.tensors[name][...] = values
        for name, side in self._sides.items():
            self._bound[name] = bench.bind(side, workload, arena.tensors)
        self._arena = arena
        self._bound[CONTROL] = bench.card.control()
        bench.card.wait()

    def block(self, side: str, launches: int) -> Block:
        own_limit = self._sides[side].timeout_s if side in self._sides else SLACK_S
        with self._bench._launching(own_limit + SLOWER_BY * launches * self._seconds.get(side, 0.0)):
            block = self._bench.card.block(self._bound[side], launches)
        self._seconds[side] = block.elapsed_s / launches
        return block


class _Sampled:
    """A device that notes the power at the end of each block."""

    def __init__(self, device: _Interleaved, card: Card, power: list[float]) -> None:
        self._device, self._card, self._power = device, card, power

    def renew(self) -> None:
        self._device.renew()

    def block(self, side: str, launches: int) -> Block:
        block = self._device.block(side, launches)
        if (watts := self._card.power_w()) is not None:
            self._power.append(watts)
        return block


def blank_check(job: Job, side: Side, workload: JobWorkload, distribution: str, seed: int) -> Check:
    """A check without its outcome."""
    return Check(
        schema=record.SCHEMA,
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


def _interval(estimate: Estimate) -> Interval:
    return Interval(value=estimate.value, low=estimate.low, high=estimate.high)


def _gap(a: float | None, b: float | None) -> float | None:
    return abs(a / b - 1) if a and b else None


def _peak(capability: str) -> float | None:
    """The chip's dense fp16 peak in FLOP/s, or None where it is not known."""
    from faperf.chips import CHIPS

    chip = CHIPS.get(capability.replace(".", ""))
    return chip.peak_tflops * 1e12 if chip and chip.peak_tflops else None


def main(make: type[Bench] | None = None) -> None:
    """The child: read a job, then serve requests until the pipe ends or the context is lost."""
    _end_with_parent()
    requests, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever a library prints must not land among the frames
    preload()
    content = read_frame(requests)
    if content is None:
        return
    begin = msgspec.msgpack.decode(content, type=Begin)
    bench = (make or Bench)(begin.job, Operations(begin.places), lambda answer: write_frame(answers, answer))
    write_frame(answers, bench.ready())
    while (content := read_frame(requests)) is not None:
        request = msgspec.msgpack.decode(content, type=Verify | Time)
        try:
            if isinstance(request, Verify):
                write_frame(answers, Checked(bench.verify(request)))
            else:
                write_frame(answers, Timed(bench.time(request.task)))
        except LaunchError as fault:
            write_frame(answers, Faulted(fault.kind, fault.detail, fault.context_lost))
            if fault.context_lost:
                os._exit(1)  # a destructor would only meet the lost context again


def _end_with_parent() -> None:
    """Have the kernel end this process with its parent, however that ends: in a launch that hangs we would not notice."""
    pr_set_pdeathsig = 1
    with contextlib.suppress(OSError, AttributeError):  # not Linux
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)


if __name__ == "__main__":
    main()
