"""Timings with a second look: what is undecided or void after the first is measured once more, and judged by both together."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

from faperf import record
from faperf.building import Progress
from faperf.errors import SelectionError
from faperf.job import Job, Task
from faperf.judge import UNDECIDED, Thresholds, instances_needed, judge_pair
from faperf.measuring import Found, perform
from faperf.operations import Operations
from faperf.record import Check, Interval, Protocol, Timing
from faperf.worker import Worker

BASELINE = "baseline"
Work = tuple[str, str]
"""(side's name, workload)."""


@dataclass(frozen=True)
class Look:
    """A task's first timing, and `both` as one where there were two (else the first again)."""

    first: Timing
    both: Timing


@dataclass
class Looks:
    """What a job's tasks gave: every check, and the timings in order, as a task may stand in a job several times.

    `comparisons`: how many share one budget of false alarms.
    """

    limits: Thresholds
    comparisons: int = 1
    checks: dict[Work, list[Check]] = field(default_factory=dict)
    first: dict[Work, list[Timing]] = field(default_factory=dict)
    second: dict[Work, list[Timing]] = field(default_factory=dict)

    def take(
        self,
        job: Job,
        card: str,
        operations: Operations,
        progress: Progress,
        worker: Worker | None = None,
        *,
        timed: bool = True,
    ) -> None:
        """Verify and (if `timed`) time every task; then what is undecided once more, on the first seed's inputs."""

        def keep(timings: dict[Work, list[Timing]], name: str, found: Found) -> None:
            work = (name, found.workload)
            if isinstance(found, Timing):
                timings.setdefault(work, []).append(found)
            else:
                self.checks.setdefault(work, []).append(found)

        perform(job, card, operations, partial(keep, self.first), progress.say, worker, timed=timed, progress=progress)
        tasks = {(task.side, task.workload): task for task in job.tasks}
        again = [task for work, task in tasks.items() for first in self.first.get(work, []) if self._open(first, task)]
        if again:
            progress.say(f"inconclusive: {len(again)} measured once more")
            rest = record.replace(job, tasks=again, seeds=job.seeds[:1])
            perform(rest, card, operations, partial(keep, self.second), progress.say, progress=progress)

    def at(self, task: Task) -> list[Look]:
        """A task's looks, in order. A second one that failed or was not taken is left out."""
        work = (task.side, task.workload)
        second = iter(self.second.get(work, []))
        looks = []
        for first in self.first.get(work, []):
            more = next(second, None) if self._open(first, task) else None
            looks.append(Look(first, pooled(first, more) if more else first))
        return looks

    def _open(self, timing: Timing, task: Task) -> bool:
        return any(judge_pair(timing, role, self.limits, self.comparisons) in UNDECIDED for role in task.partners)


def check_budget(budget_s: float, limits: Thresholds) -> None:
    """Raises SelectionError for a budget that has no effect: fewer instances than one comparison needs, and not the usual one."""
    usual, least = Protocol(), instances_needed(1, limits, 1)
    each_s = usual.budget_s / usual.instances
    if budget_s != usual.budget_s and round(budget_s / each_s) < least:
        what = f"--budget {budget_s:g} is too little: a verdict takes {least} instances of {each_s:g} s each"
        raise SelectionError(what, remedy=f"--budget {least * each_s:g} or more")


def protocol_for(comparisons: int, limits: Thresholds, budget_s: float) -> Protocol:
    """As many instances as the false-alarm budget of all comparisons needs, and GPU time in proportion."""
    usual = Protocol()
    instances = instances_needed(comparisons, limits, round(usual.instances * budget_s / usual.budget_s))
    return record.replace(usual, instances=instances, budget_s=usual.budget_s * instances / usual.instances)


def pooled(first: Timing, second: Timing) -> Timing:
    """Both looks as one: the instances of both, and the second one's own figures. A void look counts for nothing."""
    from faperf.stats import estimate  # numpy, for those who measure

    if first.void or second.void:
        return second if first.void else first
    pairs = []
    for pair in second.pairs:
        before = first.pair(pair.role)
        if before is not None and before.build == pair.build:
            instances = [*before.instances, *pair.instances]
            time = estimate(instances)
            interval = Interval(value=time.value, low=time.low, high=time.high)
            pair = record.replace(pair, instances=instances, time=interval, cycles=None)
        pairs.append(pair)
    return record.replace(second, pairs=pairs, launches=first.launches + second.launches)
