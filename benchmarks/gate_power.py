"""How much a gate sees, and how often it is wrong: many gates on this machine's GPU, with nothing, a pause or a burst of dense
work before each in turn. Needs a GPU and torch.

`python -m benchmarks.gate_power [FILE] --seconds 300` measures and saves each gate as it comes; `--pool FILE…` prints what
several files come to. Under CUDA_VISIBLE_DEVICES=0 and =1 two run at once. The cases:
  +0.5 %, +1 %   the contest's kernel of known work against itself with so many more rounds
  A/A            kernels/v13.cu against itself, modules and buffers anew each instance
A gate is as `faperf gate` measures: the same protocol with the control, `judge_pair`, a second look where that is undecided.
"""

from __future__ import annotations

import argparse
import math
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import numpy as np
from tabulate import tabulate

from benchmarks.contest.kernels import OPERATION, Kernel, attention, known_work
from benchmarks.contest.plan import State
from faperf import record
from faperf.bench import Bench
from faperf.building import Workshop
from faperf.device import find_gpu
from faperf.frames import Verify
from faperf.history import new_run_id, now, write_atomically
from faperf.job import Job, Side, Task
from faperf.judge import UNDECIDED, Thresholds, Verdict, judge_pair, voided
from faperf.looks import BASELINE, pooled, protocol_for
from faperf.measuring import the_card
from faperf.operations import BUILT_IN, tensors_of
from faperf.project import Project
from faperf.record import Protocol, Timing
from faperf.stats import rate_at_least, rate_at_most
from faperf.worker import ENVIRONMENT

AS_IT_IS = "as it is"
STATES = (AS_IT_IS, State.IDLE.value, State.HOT.value)


class Case(msgspec.Struct, frozen=True):
    """A task whose side does `true` more work than its baseline. `share` of the time is relative to the other cases'."""

    name: str
    true: float
    task: Task
    share: float = 1.0


class Trial(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One gate. `change` is a log ratio; `seconds` all that it took; `first` the verdict of the first of two looks."""

    case: str
    true: float
    state: str
    verdict: Verdict
    first: Verdict | None = None
    change: float
    low: float
    high: float
    instances: list[float]
    regime: str
    void: list[str] = []
    seconds: float


class Trials(msgspec.Struct, frozen=True, kw_only=True):
    """What one process measured, and where."""

    when: str
    gpu: str
    card: str
    driver: str
    protocol: int
    budget_s: float
    instances: int
    trials: list[Trial]

    @classmethod
    def load(cls, path: Path) -> Trials:
        return msgspec.json.decode(path.read_bytes(), type=cls)

    def save(self, path: Path) -> None:
        write_atomically(path, msgspec.json.encode(self) + b"\n")


# ── measuring ──


def measure(path: Path, seconds: float) -> Trials:
    """Gates until the time is up, saved to `path` after each."""
    if path.exists():
        raise SystemExit(f"{path} is there already: name another, or read it with --pool")
    gpu, reason = find_gpu()
    if gpu is None:
        raise SystemExit(f"this needs a GPU: {reason}")
    os.environ.update(ENVIRONMENT)  # before cupy is imported: it must count cards as nvidia-smi does
    from benchmarks.contest.tools import Weather

    workshop = Workshop.open(Project.find(Path(__file__).parent))
    limits = workshop.limits
    protocol = protocol_for(1, limits, Protocol().budget_s)
    target = f"sm_{gpu.capability.replace('.', '')}a"
    _, _, job = attention(workshop, target)
    job = record.replace(job, protocol=protocol)
    bench = Bench(job, BUILT_IN, lambda _: None)
    with the_card(bench.card.card, print):
        check = bench.verify(Verify(job.sides[0].name, job.workloads[0].name, "normal", job.seeds[0]))
        if check.failure:
            raise SystemExit(f"{check.build} is wrong, so it is not timed: {check.failure}")
        kernels, _ = known_work(workshop.toolchain.nvcc, target, bench.card.sms)
        bench.job, cases = with_cases(job, kernels)
        weather = Weather()
        found = Trials(
            when=now(),
            gpu=bench.card.name,
            card=bench.card.card,
            driver=bench.card.driver,
            protocol=record.PROTOCOL_VERSION,
            budget_s=protocol.budget_s,
            instances=protocol.instances,
            trials=[],
        )
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            case, state = upcoming(cases, found.trials)
            if state != AS_IT_IS:
                weather.hold(State(state))
            found.trials.append(trial(lambda task: voided(bench.time(task)), case, state, limits))
            found.save(path)
            print(line(found.trials[-1]), flush=True)
    return found


def with_cases(job: Job, kernels: Sequence[Kernel]) -> tuple[Job, list[Case]]:
    """The attention kernel's job with what is compared in it. The kernels of known work write into its output tensor."""
    own, workload = job.sides[0], job.workloads[0]
    base, *slower = [kernel for kernel in kernels if kernel.name in ("10000", "10050", "10100")]
    room, needed = (
        math.prod(extents) * np.dtype(dtype).itemsize
        for extents, dtype in (tensors_of(BUILT_IN[OPERATION], workload.shape, own.layout)["O"], base.tensors["O"])
    )
    if needed > room:
        raise SystemExit(f"the kernel of known work writes {needed} bytes, the workload has room for {room}")

    def side(kernel: Kernel) -> Side:
        launches = {workload.name: kernel.launches}
        name = f"loop {kernel.name}"
        return record.replace(
            own, name=name, version=name, build=name, code=name, cubin=kernel.cubin, launches=launches
        )

    itself = record.replace(own, name=f"{own.name} {BASELINE}")
    loops = [side(kernel) for kernel in (base, *slower)]
    pairs = [("loop, +0.5 %", 0.005, loops[1], loops[0]), ("loop, +1 %", 0.01, loops[2], loops[0])]
    pairs.append((f"{own.version}, A/A", 0.0, own, itself))
    cases = [
        Case(name, true, Task(a.name, workload.name, {BASELINE: b.name}), share=1.0 if true else 2.0)
        for name, true, a, b in pairs
    ]
    return record.replace(job, sides=[own, itself, *loops]), cases


def upcoming(cases: Sequence[Case], done: Sequence[Trial]) -> tuple[Case, str]:
    """The case that had the least of its share so far, in the state that follows its last one."""
    case = min(cases, key=lambda case: sum(trial.seconds for trial in done if trial.case == case.name) / case.share)
    return case, STATES[sum(trial.case == case.name for trial in done) % len(STATES)]


def trial(timed: Callable[[Task], Timing], case: Case, state: str, limits: Thresholds) -> Trial:
    begin = time.monotonic()
    timing = timed(case.task)
    verdict, first = judge_pair(timing, BASELINE, limits), None
    if verdict in UNDECIDED:
        first = verdict
        timing = pooled(timing, timed(case.task))
        verdict = judge_pair(timing, BASELINE, limits)
    pair = timing.pair(BASELINE)
    assert pair is not None
    return Trial(
        case=case.name,
        true=case.true,
        state=state,
        verdict=verdict,
        first=first,
        change=pair.time.value,
        low=pair.time.low,
        high=pair.time.high,
        instances=pair.instances,
        regime=timing.regime,
        void=timing.void,
        seconds=time.monotonic() - begin,
    )


def line(trial: Trial) -> str:
    words = [f"{math.expm1(trial.change):+8.3%} {trial.verdict:13s} {trial.seconds:5.1f} s {trial.regime:9s}"]
    words += ["second look"] if trial.first else []
    return " ".join([f"{trial.case:14s} {trial.state:9s}", *words, *trial.void])


# ── what it comes to ──

HEADERS = (
    "case",
    "before",
    "gates",
    "caught",
    "at least",
    "false alarms",
    "at most",
    "inconclusive",
    "void",
    "second look",
)


def table(trials: Sequence[Trial]) -> str:
    """Case × state of the card. Bounds are Clopper and Pearson's, each one-sided at 95 %."""
    rows = []
    for true, case in sorted({(trial.true, trial.case) for trial in trials}, reverse=True):
        own = [trial for trial in trials if trial.case == case]
        for state in (None, *STATES):
            some = [trial for trial in own if state in (None, trial.state)]
            if some:
                rows.append([case, state or "all", *_counts(some, slower=true > 0)])
    return tabulate(rows, HEADERS, tablefmt="github", disable_numparse=True)


def _counts(trials: Sequence[Trial], *, slower: bool) -> list[str]:
    count = len(trials)
    caught = sum(trial.verdict is Verdict.SLOWER for trial in trials)
    faster = sum(trial.verdict is Verdict.FASTER for trial in trials)
    wrong = faster if slower else caught + faster
    return [
        str(count),
        f"{caught}" if slower else "",
        f"{rate_at_least(caught, count):.1%}" if slower else "",
        f"{wrong}",
        f"{rate_at_most(wrong, count):.1%}",
        f"{sum(trial.verdict is Verdict.INCONCLUSIVE for trial in trials)}",
        f"{sum(trial.verdict is Verdict.INCOMPARABLE for trial in trials)}",
        f"{sum(trial.first is not None for trial in trials)}",
    ]


def report(found: Sequence[Trials]) -> str:
    lines = [
        f"- {f.gpu} (card {f.card}, driver {f.driver}), {f.when}: {len(f.trials)} gates, protocol {f.protocol}, "
        f"{f.budget_s:g} s and {f.instances} instances a look"
        for f in found
    ]
    return "\n".join([*lines, "", table([trial for f in found for trial in f.trials])])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gate_power", description="How much does a gate see?")
    parser.add_argument("file", type=Path, nargs="?", help="where to save; by default a new file in $OUT or here")
    parser.add_argument("--seconds", type=float, default=240.0, help="stop after so long (default: 240)")
    parser.add_argument(
        "--pool", type=Path, nargs="+", metavar="FILE", help="measure nothing; print the table of these"
    )
    asked = parser.parse_args()
    if asked.pool:
        print(report([Trials.load(path) for path in asked.pool]))
        return
    path = asked.file or Path(os.environ.get("OUT", ".")) / f"gate_power-{new_run_id()}.json"
    print(report([measure(path, asked.seconds)]))
    print(f"\nsaved: {path}")


if __name__ == "__main__":
    main()
