"""benchmarks/gate_power.py with a bench that is made up: which gates come in which state, the second look, the table."""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import gate_power
from benchmarks.contest import tools
from benchmarks.contest.kernels import Kernel
from benchmarks.contest.plan import State
from benchmarks.gate_power import Case, Trial, Trials, measure, report, table, trial, upcoming, with_cases
from faperf.device import Gpu
from faperf.job import Job, JobWorkload, Side, Task
from faperf.judge import Thresholds, Verdict
from faperf.launch import ResolvedArgument, ResolvedLaunch
from faperf.record import SCHEMA, Interval, Protocol, Run, Timing, replace
from tests import fake_gpu

SHAPE = {"B": 1, "H": 2, "S": 512, "D": 64}
LAUNCH = ResolvedLaunch(
    entry="k", grid=(1, 1, 1), block=(32, 1, 1), cluster=(1, 1, 1), smem=0, args=[ResolvedArgument(tensor="O")]
)
LOOPS = [
    Kernel(name=name, cubin=b"", launches=[LAUNCH], tensors={"O": ((512,), "float16")})
    for name in ("10000", "10025", "10050", "10100")
]
V13 = Side(
    name="v13@sm_90a", version="v13", target="sm_90a", build="b13", code="c13", cubin=b"", launches={"published": [LAUNCH]},
    operation="attention_forward", operation_version=1, layout="BSHD",
)  # fmt: skip
RUN = Run(schema=SCHEMA, id="r", commit=None, when="2026-11-30", faperf="0", machine="h200", entries=[])
JOB = Job(
    schema=SCHEMA, faperf="0", commit=None, dirty=[], seeds=[1],
    protocol=Protocol(), sides=[V13], workloads=[JobWorkload("published", "d", SHAPE)], tasks=[], run=RUN,
)  # fmt: skip
WORK = {"loop 10050": 1.005, "loop 10100": 1.01}


def canned(job: Job) -> Callable[[Task], Timing]:
    return lambda task: fake_gpu.timing(job, task, lambda name: WORK.get(name, 1.0))


def a_trial(case: str, true: float, state: str, verdict: Verdict, first: Verdict | None = None) -> Trial:
    return Trial(
        case=case, true=true, state=state, verdict=verdict, first=first, change=true, low=true, high=true, instances=[],
        regime="burst", seconds=2.0,
    )  # fmt: skip


def test_the_cases_are_built_of_the_attention_kernels_job() -> None:
    job, cases = with_cases(JOB, LOOPS)
    assert [(case.true, case.task.side, case.task.partners["baseline"]) for case in cases] == [
        (0.005, "loop 10050", "loop 10000"),
        (0.01, "loop 10100", "loop 10000"),
        (0.0, "v13@sm_90a", "v13@sm_90a baseline"),
    ]
    builds = [(job.side(case.task.side).build, job.side(case.task.partners["baseline"]).build) for case in cases]
    assert builds == [("loop 10050", "loop 10000"), ("loop 10100", "loop 10000"), ("b13", "b13")]


def test_a_workload_too_small_for_the_kernel_of_known_work_is_refused() -> None:
    big = [replace(kernel, tensors={"O": ((2 * 512 * 64 + 1,), "float16")}) for kernel in LOOPS]
    with pytest.raises(SystemExit, match="writes 131074 bytes, the workload has room for 131072"):
        with_cases(JOB, big)


def test_each_case_gets_as_much_time_and_every_state_in_turn() -> None:
    cases = [Case(name, 0.0, Task(name, "w", {})) for name in ("a", "b")]
    seconds = {"a": 2.0, "b": 4.0}  # b takes a second look each time
    done: list[Trial] = []
    for _ in range(18):
        case, state = upcoming(cases, done)
        one = a_trial(case.name, 0.0, state, Verdict.SAME)
        done.append(replace(one, seconds=seconds[case.name]))
    assert Counter((t.case, t.state) for t in done) == {
        **{("a", state): 4 for state in gate_power.STATES},
        **{("b", state): 2 for state in gate_power.STATES},
    }


def test_an_undecided_gate_looks_once_more_and_judges_both_looks_together() -> None:
    job, cases = with_cases(JOB, LOOPS)
    looks = 0

    def timed(task: Task) -> Timing:
        nonlocal looks
        looks += 1
        timing = canned(job)(task)
        wide = Interval(value=0.005, low=-0.001, high=0.011)
        return replace(timing, pairs=[replace(pair, time=wide) for pair in timing.pairs]) if looks == 1 else timing

    found = trial(timed, cases[0], State.HOT.value, Thresholds())
    assert (looks, found.first, found.verdict) == (2, Verdict.INCONCLUSIVE, Verdict.SLOWER)
    assert len(found.instances) == 20
    assert found.change == pytest.approx(math.log(1.005), abs=1e-6)


def test_the_table_counts_by_hand() -> None:
    trials = [a_trial("v13, A/A", 0.0, "idle", Verdict.SAME) for _ in range(58)]
    trials.append(a_trial("v13, A/A", 0.0, "hot", Verdict.SAME, Verdict.INCONCLUSIVE))
    trials += [a_trial("loop, +1 %", 0.01, "hot", Verdict.SLOWER) for _ in range(8)]
    trials += [a_trial("loop, +1 %", 0.01, "hot", verdict) for verdict in (Verdict.FASTER, Verdict.INCOMPARABLE)]
    rows = [[cell.strip() for cell in row.split("|")[1:-1]] for row in table(trials).splitlines()[2:]]
    # 59 without an alarm: 1 − 0.05^(1/59) = 4.95 %; 8 of 10: 49.3 %; 1 of 10: 39.4 % (Clopper–Pearson's tables)
    assert rows == [
        ["loop, +1 %", "all", "10", "8", "49.3%", "1", "39.4%", "0", "1", "0"],
        ["loop, +1 %", "hot", "10", "8", "49.3%", "1", "39.4%", "0", "1", "0"],
        ["v13, A/A", "all", "59", "", "", "0", "5.0%", "0", "0", "1"],
        ["v13, A/A", "idle", "58", "", "", "0", "5.0%", "0", "0", "0"],
        ["v13, A/A", "hot", "1", "", "", "0", "95.0%", "0", "0", "1"],
    ]


class Bench:
    """Stands in for the worker's: canned figures, and the card's name."""

    def __init__(self, job: Job, *_: Any) -> None:
        self.job = job
        self.card = SimpleNamespace(card="c0ffee", name="Fake H200", driver="580", sms=132)

    def verify(self, _: Any) -> Any:
        return SimpleNamespace(failure=None)

    def time(self, task: Task) -> Timing:
        return canned(self.job)(task)


@pytest.fixture
def no_gpu_needed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[State]:
    held: list[State] = []
    monkeypatch.setattr(gate_power, "find_gpu", lambda: (Gpu("Fake H200", "9.0", 700, 143771, "c0ffee"), None))
    monkeypatch.setattr(gate_power, "attention", lambda *_: (None, None, JOB))
    monkeypatch.setattr(gate_power, "known_work", lambda *_: (LOOPS, []))
    monkeypatch.setattr(gate_power, "Bench", Bench)
    monkeypatch.setattr(gate_power, "Workshop", SimpleNamespace(open=lambda project: SimpleNamespace(
        project=project, toolchain=SimpleNamespace(nvcc="nvcc"), limits=Thresholds())))  # fmt: skip
    monkeypatch.setattr(tools, "Weather", lambda: SimpleNamespace(hold=held.append))
    monkeypatch.setattr(gate_power, "ENVIRONMENT", {})
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return held


def test_it_measures_until_the_time_is_up_saves_and_pools(
    no_gpu_needed: list[State], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ticks = iter(range(10_000))
    monkeypatch.setattr("benchmarks.gate_power.time.monotonic", lambda: float(next(ticks)))
    paths = [tmp_path / "0.json", tmp_path / "1.json"]
    for path in paths:
        measure(path, seconds=60.0)
    both = [Trials.load(path) for path in paths]
    verdicts = {(t.case, t.verdict) for found in both for t in found.trials}
    assert verdicts == {("loop, +0.5 %", "SLOWER"), ("loop, +1 %", "SLOWER"), ("v13, A/A", "SAME")}
    assert set(no_gpu_needed) == {State.IDLE, State.HOT}
    with pytest.raises(SystemExit, match="is there already"):
        measure(paths[0], seconds=1.0)
    capsys.readouterr()
    monkeypatch.setattr(sys, "argv", ["gate_power", "--pool", *map(str, paths)])
    gate_power.main()
    assert capsys.readouterr().out.strip() == report(both).strip()
    assert f"Fake H200 (card c0ffee, driver 580), {both[0].when}: {len(both[0].trials)} gates" in report(both)
