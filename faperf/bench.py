"""The worker's child: it owns the CUDA context, verifies and times what its parent asks for (`python -m faperf.bench`)."""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from faperf import record
from faperf.device import (
    VOIDING_REASONS,
    Arena,
    Block,
    Card,
    Kernels,
    LaunchError,
    control_identity,
    preload,
    reason_words,
)
from faperf.frames import (
    SLACK_S,
    Answer,
    Begin,
    Checked,
    Faulted,
    Landed,
    Launching,
    Ready,
    Time,
    Timed,
    Verify,
    read_frame,
    write_frame,
)
from faperf.job import Job, JobWorkload, Side, Task, blank_check, launch_of
from faperf.operations import Operation, Operations, tensors_of
from faperf.record import Check, Interval, Pair, Timing
from faperf.verify import POISON, checked

if TYPE_CHECKING:
    from faperf.ranksum import Estimate

CONTROL = "control"
STILL_WARM_S = 1.0
SLOWER_BY = 20
"""A block may take so many times as long as its launches did before it counts as hanging, beside one launch's own limit."""


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
        with self.launching(side.timeout_s), self.profiled(profiled):
            self.card.run_once(bound)
        return arena

    def placed(self, side: Side, workload: JobWorkload, distribution: str, seed: int) -> Arena:
        """Poisoned memory with the inputs in it."""
        inputs = self.inputs(side, workload, distribution, seed)
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

    def build_of(self, side: Side) -> str:
        """What a side's figures stand for."""
        return side.build

    def control_of(self, side: Side) -> Side | None:
        """The peer that stands for the control beside `side`; None for the control kernel."""
        control = self.job.control
        return control.side if control and control.side.operation == side.operation else None

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

    def inputs(self, side: Side, workload: JobWorkload, distribution: str, seed: int) -> dict[str, Any]:
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
            operation, inputs = self.operations[side.operation], self.inputs(side, workload, distribution, seed)
            arguments = (self.card.xp, inputs, workload.shape, side.layout)
            self._known_truth[key] = (operation.reference(*arguments), operation.plain(*arguments))
        return self._known_truth[key]

    @contextlib.contextmanager
    def launching(self, limit_s: float) -> Iterator[None]:
        self.tell(Launching(limit_s))
        yield
        self.tell(Landed())

    # ── timing ──

    def time(self, task: Task) -> Timing:
        """The protocol over a task's side and its partners, the control always among them. Raises LaunchError."""
        from faperf.timing import measure

        side, workload = self.job.side(task.side), self.job.workload(task.workload)
        sides = {side.name: side, **{name: self.job.side(name) for name in task.partners.values()}}
        device = _Interleaved(self, sides, workload)
        measured = measure(device, [*sides, CONTROL], self.job.protocol, self.draw, self._steady_mhz())
        self._last = (time.monotonic(), measured.steady_mhz)
        own = measured.series[0]
        clocks = {series.side: series.clock_mhz for series in measured.series}
        roles = {name: role for role, name in task.partners.items()} | {CONTROL: CONTROL}
        control = self.control_of(side)
        builds = {name: self.build_of(each) for name, each in sides.items()}
        builds[CONTROL] = self.build_of(control) if control else control_identity(self.card.capability)
        shape, ms = workload.shape, own.ms.value
        operation = self.operations[side.operation]
        flops = operation.flops(shape)
        peak = _peak(self.card.capability)
        per_clock = flops / (ms * 1e-3) / (own.clock_mhz * 1e6) / self.card.sms if own.clock_mhz else None
        regime = "sustained" if "power cap" in reason_words(own.reasons) else "burst"
        void = [word for s in measured.series for word in reason_words(s.reasons & VOIDING_REASONS)]
        if others := self.card.others():
            void.append(f"{len(others)} other process(es) on the card")
        return Timing(
            schema=record.SCHEMA,
            build=builds[side.name],
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
            power_w=max(device.power_w, default=None),
            launches=own.launches,
            events=sorted({word for s in measured.series for word in reason_words(s.reasons)}),
            void=sorted(set(void)),
            pairs=[
                Pair(
                    role=roles[ratio.partner],
                    build=builds[ratio.partner],
                    version=CONTROL if ratio.partner == CONTROL else sides[ratio.partner].version,
                    time=_interval(ratio.time),
                    cycles=_interval(ratio.cycles) if ratio.cycles else None,
                    instances=[round(value, 6) for value in ratio.instances],
                    clock_gap=_gap(own.clock_mhz, clocks[ratio.partner]),
                )
                for ratio in measured.ratios
            ],
        )

    def _steady_mhz(self) -> float | None:
        """The clock at which the last timing ended, where the card has had no time to cool down since."""
        when, clock = self._last
        return clock if time.monotonic() - when < STILL_WARM_S else None


class _Interleaved:
    """The protocol's device: every side's modules loaded anew and one arena for all of them, placed anew, an instance."""

    def __init__(self, bench: Bench, sides: dict[str, Side], workload: JobWorkload) -> None:
        self._bench, self._sides, self._workload = bench, sides, workload
        self._seconds: dict[str, float] = {}
        self._bound: dict[str, Any] = {}
        self._arena: Arena | None = None  # what is bound lies in it
        self.power_w: list[float] = []
        """At the end of each block, where the card tells."""

    def renew(self) -> None:
        bench, workload = self._bench, self._workload
        first = next(iter(self._sides.values()))
        operation = bench.operations[first.operation]
        inputs = bench.inputs(first, workload, operation.distributions[0], bench.job.seeds[0])
        self._bound = {}
        self._arena = arena = Arena(tensors_of(operation, workload.shape, first.layout), spread=bench.draw)
        for name, values in inputs.items():
            arena.tensors[name][...] = values
        for name, side in self._sides.items():
            self._bound[name] = bench.bind(side, workload, arena.tensors)
        if peer := bench.control_of(first):
            self._bound[CONTROL] = bench.bind(record.replace(peer, layout=first.layout), workload, arena.tensors)
        else:
            self._bound[CONTROL] = bench.card.control()
        bench.card.wait()

    def block(self, side: str, launches: int) -> Block:
        own_limit = self._sides[side].timeout_s if side in self._sides else SLACK_S
        with self._bench.launching(own_limit + SLOWER_BY * launches * self._seconds.get(side, 0.0)):
            block = self._bench.card.block(self._bound[side], launches)
        self._seconds[side] = block.elapsed_s / launches
        if (watts := self._bench.card.power_w()) is not None:
            self.power_w.append(watts)
        return block


def _interval(estimate: Estimate) -> Interval:
    return Interval(value=estimate.value, low=estimate.low, high=estimate.high)


def _gap(a: float | None, b: float | None) -> float | None:
    return abs(a / b - 1) if a and b else None


def _peak(capability: str) -> float | None:
    """The chip's dense fp16 peak in FLOP/s, or None where it is not known."""
    from faperf.chips import CHIPS

    chip = CHIPS.get(capability.replace(".", ""))
    return chip.peak_tflops * 1e12 if chip and chip.peak_tflops else None


def main(make: Callable[..., Bench]) -> None:
    """The child: read a job, then serve requests until the pipe ends or the context is lost."""
    _end_with_parent()
    requests, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever a library prints must not land among the frames
    preload()
    content = read_frame(requests)
    if content is None:
        return
    begin = msgspec.msgpack.decode(content, type=Begin)
    bench = make(begin.job, Operations(begin.places), lambda answer: write_frame(answers, answer))
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
    main(Bench)
