"""The gate: is the working tree worse than its baseline? Both are built here, compared, and timed side by side."""

from __future__ import annotations

import dataclasses
import datetime
import math
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from faperf import record
from faperf.building import Outcome, Selection, Step, Workshop
from faperf.comparison import DiffRow, GateReport, GateRow, Measured, Regression, diff
from faperf.errors import CompileError, FaperfError, HistoryError, ManifestError, SelectionError
from faperf.figures import informed, silicon_of
from faperf.harness import NOWHERE, Wish, build_tree, emulate, run_commit
from faperf.history import write_atomically
from faperf.job import Job, Task
from faperf.judge import (
    TIME,
    UNDECIDED,
    Cause,
    Finding,
    Severity,
    Status,
    Thresholds,
    Verdict,
    acceptance,
    attribute,
    instances_needed,
    judge_pair,
    less_accurate,
    over_budget,
    overridden,
    thresholds_from,
    worst,
)
from faperf.locating import Locator
from faperf.manifest import Accepted, Budgets, Manifests, Version, load_manifests
from faperf.measuring import SEED, Found, against, job_of, perform
from faperf.operations import load_operations
from faperf.power import foresee
from faperf.project import Project
from faperf.record import Check, Interval, Pair, Protocol, Timing
from faperf.toolchain import Toolchain
from faperf.worker import Here

BASELINE, PINNED = "baseline", "pinned"
SEEDS = [SEED, SEED + 1, SEED + 2]
"""Of the inputs that both sides are verified on: what these explain is no loss of accuracy."""
RESULT = "gate.json"
Place = tuple[str, str]
"""(version, target)."""


@dataclass(frozen=True)
class Ask:
    """What a gate is asked: against which commits, on which workloads, how strictly. `budget_s`: GPU time a version.

    `timed`: False verifies only. `sharing`: how many such measurements share one budget of false alarms (a bisection's steps).
    """

    baseline: str | None = None
    pinned: str | None = None
    workloads: tuple[str, ...] = ()
    require_measured: bool = False
    emulate: bool = False
    trusted_config: bool = False
    budget_s: float = Protocol().budget_s
    timed: bool = True
    sharing: int = 1
    toolchains: tuple[Toolchain, ...] = ()
    """None: that of the workshop. Two: the old one builds the baseline, the new one the working tree."""

    def command(self, selection: Selection, baseline: str) -> str:
        """What to type to ask the same of the same commits."""
        options: list[tuple[str, str]] = [("--baseline", baseline[:12])]
        options += [("--pinned", self.pinned)] if self.pinned else []
        options += [("--target", target) for target in selection.targets]
        options += [("--workload", workload) for workload in self.workloads]
        options += [("--toolchain", toolchain.identity.nvcc) for toolchain in self.toolchains]
        options += [("--require", "measured")] if self.require_measured else []
        words = ["faperf", "gate", *selection.versions, *(word for option in options for word in option)]
        return shlex.join([*words, *(["--trusted-config"] if self.trusted_config else [])])


@dataclass(frozen=True)
class Tree:
    """The versions of a commit, or of the working tree, as one toolchain builds them."""

    outcome: Outcome
    manifests: Manifests
    steps: list[Step]

    def version(self, place: Place) -> Version | None:
        return self.manifests.versions.get(place[0])


@dataclass
class Evidence:
    """What was measured of the changed versions: by (version, target, workload), and each side's checks by its name."""

    timings: dict[tuple[str, str, str], Timing] = field(default_factory=dict)
    checks: dict[tuple[str, str], list[Check]] = field(default_factory=dict)
    job: Job | None = None
    comparisons: int = 1
    unmeasured: str | None = None
    notes: list[str] = field(default_factory=list)


def gate(workshop: Workshop, selection: Selection, ask: Ask, here: Here = NOWHERE) -> GateReport:
    """Build both sides, compare what the compiler made of them, time what changed, and judge. Nothing is checked out."""
    repository = workshop.repository
    if repository is None:
        raise SelectionError("there is no git repository here, so there is no baseline")
    commit = (
        repository.resolve(ask.baseline)
        if ask.baseline
        else repository.baseline(workshop.project.config.default_branch)
    )
    if ask.trusted_config:  # from here on, and for whatever code it names
        trusted = Project(workshop.commit_tree(commit))
        workshop = dataclasses.replace(workshop, project=dataclasses.replace(workshop.project, trusted=trusted))
    config = workshop.project.config
    ask = dataclasses.replace(ask, pinned=ask.pinned or config.pinned)
    pin = repository.resolve(ask.pinned) if ask.pinned else None
    shops = [dataclasses.replace(workshop, toolchain=toolchain) for toolchain in ask.toolchains] or [workshop]
    old = tree_at(shops[0], commit, selection, recorded=False)
    new = _working_tree(shops[-1], selection, ask)
    pinned = tree_at(shops[-1], pin, selection, recorded=False) if pin and pin != commit else None
    if ask.trusted_config:
        new = _distrusted(new, old)
    limits = thresholds_from(config.thresholds)

    asked = {(version.id, target) for tree in (old, new) for version, target in tree.steps}
    was, now = (record.replace(tree.outcome.run, partial=False) for tree in (old, new))  # all that was asked for
    rows = diff(was, now, old.outcome.builds | new.outcome.builds, limits)
    rows = [row for row in rows if (row.version, row.target) in asked]
    changed = {(row.version, row.target) for row in rows if row.verdict is Verdict.UNMEASURED}
    partners = {BASELINE: old, **({PINNED: pinned} if pinned else {})}
    found = measure(workshop, new, partners, changed, ask, limits, here, foreseeing=True)
    if ask.emulate and config.emulate:
        added = {(row.version, row.target) for row in rows if row.verdict is Verdict.NEW}
        fresh = [step for step in new.steps if (step[0].id, step[1]) in changed | added]
        gpu = here.gpu if here.reason is None else None
        emulate(shops[-1], new.manifests, new.outcome, fresh, gpu, lambda check: None)
    judge = _Judge(workshop, old, new, pinned, ask, limits, found)
    judged = [gate_row for row in rows for gate_row in judge.annotated(row)]
    if len(shops) == 2:
        judged = _attributed(shops, commit, selection, old, new, judged, ask, limits, here)
    trees = [old, new, *([pinned] if pinned else [])]
    failed = list(dict.fromkeys(str(error) for tree in trees for error in tree.outcome.failures if _ours(error)))
    report = GateReport(
        schema=record.SCHEMA,
        baseline=commit,
        head=new.outcome.run.commit,
        dirty=new.outcome.run.dirty,
        pinned=pin,
        toolchains=[f"nvcc {shop.toolchain.identity.nvcc}" for shop in shops],
        unmeasured=found.unmeasured,
        status=worst([*(row.status for row in judged), *([Status.ERROR] if new.manifests.broken or failed else [])]),
        rows=judged,
        notes=[*failed, *found.notes, *judge.notes()],
        command=ask.command(selection, commit),
        folder=repository.folder,
    )
    write_atomically(workshop.project.make_state() / RESULT, msgspec.json.encode(report))
    return report


def last_report(project: Project) -> GateReport:
    """What the last gate of this project found. Raises HistoryError without one."""
    path = project.state / RESULT
    try:
        return msgspec.json.decode(path.read_bytes(), type=GateReport)
    except (FileNotFoundError, msgspec.DecodeError) as error:
        raise HistoryError("no gate has run here yet", remedy="faperf gate") from error


# ── both sides ───────────────────────────────────────────────────────────────────────────────────────────────────────


def _ours(error: FaperfError) -> bool:
    """Whether a build failed for no reason of its version's: a full disk, a compiler that does not run."""
    return not isinstance(error, CompileError | ManifestError)


def _working_tree(workshop: Workshop, selection: Selection, ask: Ask) -> Tree:
    outcome, manifests, steps = build_tree(workshop, selection, Wish(workloads=ask.workloads))
    workshop.history.abandon(outcome.run.id)
    return Tree(outcome, manifests, steps)


def tree_at(workshop: Workshop, commit: str, selection: Selection, *, recorded: bool = True) -> Tree:
    """A commit's versions, built from git, and by default recorded for it."""
    outcome = run_commit(workshop, commit, selection, recorded=recorded)
    manifests = load_manifests(Project(workshop.commit_tree(commit)))
    steps = [step for step in Selection().steps(manifests) if selection.includes(step)]
    return Tree(outcome, manifests, steps)


def _distrusted(new: Tree, old: Tree) -> Tree:
    """`new`, whose versions have the budgets, tolerance and accepted regressions that the baseline gives them."""

    def trusted(version: Version) -> Version:
        known = old.manifests.versions.get(version.id)
        if known is None:
            return record.replace(version, accept=[], rules={})
        return record.replace(
            version, budgets=known.budgets, tolerance=known.tolerance, rules=known.rules, accept=known.accept
        )

    versions = {name: trusted(version) for name, version in new.manifests.versions.items()}
    manifests = dataclasses.replace(new.manifests, versions=versions)
    return Tree(new.outcome, manifests, [(versions[version.id], target) for version, target in new.steps])


# ── measuring ────────────────────────────────────────────────────────────────────────────────────────────────────────


def measure(
    workshop: Workshop,
    new: Tree,
    partners: dict[str, Tree],
    changed: set[Place],
    ask: Ask,
    limits: Thresholds,
    here: Here,
    *,
    foreseeing: bool = False,
) -> Evidence:
    """Time the changed versions against their partners; what is inconclusive or void once more, then no further.

    `foreseeing`: raises ConfigError where this machine's calibration says that the budget cannot see `time_detect`.
    """
    gpu = here.gpu
    found = Evidence(unmeasured=here.reason)
    if gpu is None or here.reason is not None or not changed:
        return found
    operations = load_operations(workshop.project)

    def job_for(tree: Tree) -> Job:
        steps = [step for step in tree.steps if (step[0].id, step[1]) in changed and gpu.runs(step[1])]
        return job_of(operations, tree.manifests, tree.outcome, steps, ask.workloads)

    job = against(job_for(new), {role: job_for(tree) for role, tree in partners.items()}, gpu.machine_class)
    if not job.tasks:
        return Evidence(unmeasured=f"nothing that changed runs on the {gpu.name} (compute capability {gpu.capability})")
    found.comparisons = ask.sharing * sum(len(task.partners) for task in job.tasks)
    protocol = protocol_for(found.comparisons, limits, ask.budget_s)
    if foreseeing:
        shapes = {task.workload: job.workload(task.workload).shape for task in job.tasks}
        known = workshop.history.calibrations(workshop.history.class_here(gpu.machine_class))
        found.notes = foresee(known, shapes, protocol, found.comparisons, limits)
    found.job = job = record.replace(job, seeds=SEEDS, protocol=protocol)
    progress, say = workshop.progress, workshop.progress.say

    def keep(name: str, measured: Found) -> None:
        if isinstance(measured, Check):
            found.checks.setdefault((name, measured.workload), []).append(measured)
            return
        side = job.side(name)
        place = (side.version, side.target, measured.workload)
        before = found.timings.get(place)
        found.timings[place] = pooled(before, measured) if before else measured

    perform(job, gpu.card, operations, keep, say, here.worker, timed=ask.timed, progress=progress)
    again = [task for task in job.tasks if _undecided(job, task, found, limits)]
    if again:
        say(f"inconclusive: {len(again)} measured once more")
        second = record.replace(job, tasks=again, seeds=SEEDS[:1])
        perform(second, gpu.card, operations, keep, say, progress=progress)
    return found


def protocol_for(comparisons: int, limits: Thresholds, budget_s: float) -> Protocol:
    """As many instances as the false-alarm budget of all comparisons needs, and GPU time in proportion."""
    usual = Protocol()
    instances = instances_needed(comparisons, limits, round(usual.instances * budget_s / usual.budget_s))
    return record.replace(usual, instances=instances, budget_s=usual.budget_s * instances / usual.instances)


def _undecided(job: Job, task: Task, found: Evidence, limits: Thresholds) -> bool:
    side = job.side(task.side)
    timing = found.timings.get((side.version, side.target, task.workload))
    verdicts = [judge_pair(timing, role, limits, found.comparisons) for role in task.partners] if timing else []
    return any(verdict in UNDECIDED for verdict in verdicts)


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


# ── judging ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass
class _Judge:
    """Rows of a comparison → rows of the gate."""

    workshop: Workshop
    old: Tree
    new: Tree
    pinned: Tree | None
    ask: Ask
    limits: Thresholds
    found: Evidence

    def __post_init__(self) -> None:
        history, repository = self.workshop.history, self.workshop.repository
        assert repository is not None
        head = repository.head()
        self.today = repository.committed(head) if head else datetime.date.today()
        self._known = silicon_of(history, informed(history, repository, self.new.outcome.run))
        self._before = silicon_of(history, informed(history, repository, self.old.outcome.run))
        self._broken = {
            Path(str(error.where).partition(":")[0]).stem: str(error) for error in self.new.manifests.broken
        }

    def rows(self, row: DiffRow) -> list[GateRow]:
        """One row a workload that was timed; one for the version where none was."""
        place = (row.version, row.target)
        row = record.replace(row, findings=overridden(row.findings, self._rules(place)))
        workloads: list[str | None] = [w for *where, w in self.found.timings if tuple(where) == place]
        workloads += [
            w for (name, w), checks in self.found.checks.items() if self._is(name, place) and w not in workloads
        ]
        return [self._row(row, place, workload) for workload in workloads or [None]]

    def annotated(self, row: DiffRow) -> list[GateRow]:
        """The same, with what is to be said at lines of the sources."""
        place = (row.version, row.target)
        artifact = self.new.outcome.artifacts.get(row.new.build or "") if row.new else None
        root, nvdisasm = self.workshop.project.root, self.workshop.toolchain.nvdisasm
        locator = Locator(root, row.version, self.new.version(place), artifact, nvdisasm)
        ruled = record.replace(row, findings=overridden(row.findings, self._rules(place)))
        return [record.replace(each, annotations=locator.annotations(ruled, each)) for each in self.rows(row)]

    def _row(self, row: DiffRow, place: Place, workload: str | None) -> GateRow:
        timing = self.found.timings.get((*place, workload)) if workload else None
        verdict, status = row.verdict, Status.FINE
        error = row.new.error if row.new else None
        if verdict in (Verdict.GONE, Verdict.INCOMPARABLE) and row.version in self._broken:
            verdict, error = Verdict.BROKEN, self._broken[row.version]
        notes = [f.text for f in row.findings if f.severity is not Severity.REGRESSION] + self._void(timing)
        if row.old is not None and row.old.build is None and row.new_build is not None:
            verdict, notes = Verdict.NEW, [*notes, "did not build at the baseline"]
        since = self._since_pinned(timing, place)
        drift = None
        if timing is not None:
            verdict = judge_pair(timing, BASELINE, self.limits, self.found.comparisons)
            drift = self._drift(timing, since.role, place) if since else None
            if timing.pair(BASELINE) is None:
                notes.append("not timed against the baseline, whose result is wrong")
        wrong = self._wrong(place, workload)
        entry = self.new.outcome.run.entry(*place)
        if entry is not None and entry.emulated is not None:  # no GPU here ran it
            (wrong if entry.emulated.startswith("WRONG") else notes).append(_emulated(entry.emulated))
        drifted = since.time if since and drift is Verdict.SLOWER else None
        regressions = self._regressions(row, place, workload, timing, verdict, drifted)
        undecided = {verdict, drift} & set(UNDECIDED)
        if verdict is Verdict.BROKEN or wrong:
            status = Status.WRONG
        elif error:
            status = Status.ERROR
        elif any(regression.counts for regression in regressions):
            status = Status.REGRESSION
        elif undecided or (self.ask.require_measured and verdict is Verdict.UNMEASURED):
            status = Status.INCONCLUSIVE
        known = self._known.get(place)
        last = known.timing if known and verdict in (Verdict.UNCHANGED, Verdict.UNMEASURED) else None
        pair = timing.pair(BASELINE) if timing else None
        return GateRow(
            version=row.version,
            target=row.target,
            workload=workload or (known.workload if last and known else None),
            status=status,
            verdict=verdict,
            old_build=row.old.build if row.old else None,
            new_build=row.new.build if row.new else None,
            change=pair.time if pair else None,
            pinned=drift,
            since_pinned=since.time if since else None,
            regressions=regressions,
            notes=notes,
            wrong=wrong,
            error=error,
            cause=self._cause(place, timing, verdict, regressions),
            tflops=timing.tflops if timing else last.tflops if last else None,
            carried=timing is None and last is not None,
        )

    def _is(self, side: str, place: Place) -> bool:
        job = self.found.job
        return job is not None and (job.side(side).version, job.side(side).target) == place

    def _wrong(self, place: Place, workload: str | None) -> list[str]:
        checks = self.found.checks.get((f"{place[0]}@{place[1]}", workload or ""), [])
        return list(dict.fromkeys(f"{c.distribution}: {c.failure}" for c in checks if not c.ok))

    def _void(self, timing: Timing | None) -> list[str]:
        return [f"void: {reason}" for reason in timing.void] if timing else []

    def _drift(self, timing: Timing, role: str, place: Place) -> Verdict:
        """Time since the pinned commit, beside what has been accepted since then."""
        allowed = sum(entry.max for entry in self._accepted_since(place))
        return judge_pair(timing, role, self.limits, self.found.comparisons, allowed)

    def _since_pinned(self, timing: Timing | None, place: Place) -> Pair | None:
        """The pair with the pinned commit; the baseline's stands for it where both are the same code and launch."""
        if timing is None or self.pinned is None:
            return None
        then, old = (tree.outcome.run.entry(*place) for tree in (self.pinned, self.old))
        if pair := timing.pair(PINNED):
            return pair
        launches = [entry.launches.get(timing.workload) for entry in (then, old) if entry]
        same = then and old and launches[0] == launches[1] and self.workshop.history.same_code(then.build, old.build)
        return timing.pair(BASELINE) if same else None

    def _accepted_since(self, place: Place) -> list[Accepted]:
        """The slowdowns that were accepted after the pinned commit, and still are."""
        version, then = self.new.version(place), self.pinned.version(place) if self.pinned else None
        known = then.accept if then else []
        entries = version.accept if version else []
        return [e for e in entries if e.metric == TIME and e not in known and self.today <= e.until]

    def _regressions(
        self,
        row: DiffRow,
        place: Place,
        workload: str | None,
        timing: Timing | None,
        verdict: Verdict,
        drifted: Interval | None,
    ) -> list[Regression]:
        found: list[tuple[str, str, float, float]] = []
        version = self.new.version(place)
        judged = [*self._over_budget(row, place), *self._less_accurate(place, workload)]
        for finding in [*row.findings, *overridden(judged, self._rules(place))]:
            if finding.severity is Severity.REGRESSION:
                metric = finding.rule.name.lower()
                found.append((metric, finding.text, finding.amount, _up(finding.amount)))
        pair = timing.pair(BASELINE) if timing else None
        if pair is not None and verdict is Verdict.SLOWER:
            found.append(
                (TIME, "slower than the baseline", math.expm1(pair.time.value), _up(math.expm1(pair.time.high)))
            )
        old, new = (str(entry.build) if entry else "None" for entry in (row.old, row.new))
        same = self.workshop.history.same_code
        regressions = [
            Regression(
                metric=metric,
                text=text,
                amount=amount,
                limit=limit,
                accepted=acceptance(
                    version.accept if version else [],
                    metric,
                    amount,
                    (old, new),
                    same,
                    self.today,
                ),
            )
            for metric, text, amount, limit in found
        ]
        if drifted is not None and not any(r.metric == TIME and r.counts for r in regressions):
            # What was accepted is taken off already, so no entry is asked again. A new entry for this step replaces its old one.
            accepted = self._accepted_since(place)
            others = sum(e.max for e in accepted if not (same(e.from_, old) and same(e.to, new)))
            regressions.append(
                Regression(
                    metric=TIME,
                    text=f"slower than {self.ask.pinned}, by small steps",
                    amount=math.expm1(drifted.value) - sum(e.max for e in accepted),
                    limit=_up(math.expm1(drifted.high) - others),
                )
            )
        return regressions

    def _rules(self, place: Place) -> dict[str, str]:
        version = self.new.version(place)
        return {str(rule): severity for rule, severity in version.rules.items()} if version else {}

    def _over_budget(self, row: DiffRow, place: Place) -> list[Finding]:
        """What breaks a budget now, and did not at the baseline. Unchanged versions are not asked again."""
        version, then = self.new.version(place), self.old.version(place)
        if version is None or row.new is None or row.new_build is None or row.verdict is Verdict.UNCHANGED:
            return []
        findings = []
        for name in Budgets.__struct_fields__:
            now = over_budget(_only(version.budgets, name), row.new_build, row.new)
            if then and row.old and row.old_build:
                before = over_budget(_only(then.budgets, name), row.old_build, row.old)
                now = [f for f in now if all(f.amount > known.amount for known in before)]
            findings += now
        return findings

    def _less_accurate(self, place: Place, workload: str | None) -> list[Finding]:
        name = f"{place[0]}@{place[1]}"
        new = self.found.checks.get((name, workload or ""), [])
        old = self.found.checks.get((f"{name} {BASELINE}", workload or ""), [])
        return less_accurate(old, new, self.limits)

    def _cause(
        self, place: Place, timing: Timing | None, verdict: Verdict, regressions: Sequence[Regression]
    ) -> Cause | None:
        """With one toolchain: the source, or what moved the stored figures where nothing is slower side by side."""
        if verdict is Verdict.SLOWER or any(regression.counts for regression in regressions):
            return attribute(Verdict.SLOWER, None, None, machine_moved=False)
        if timing is None:
            return None
        stored = self._before.get(place)
        if stored is None or stored.timing is None or verdict is not Verdict.SAME:
            return None
        if (moved := _machine_moved(stored, timing)) is None or moved[0] < self.limits.time_detect:
            return None
        return attribute(verdict, None, None, machine_moved=moved[1] > self.limits.drift)

    def notes(self) -> list[str]:
        """Manifests that cannot be read, and accepted regressions that are about no build that is here any more."""
        same = self.workshop.history.same_code
        here: dict[str, list[str | None]] = {}
        for entry in self.new.outcome.run.entries:
            here.setdefault(entry.version, []).append(entry.build)
        pinned = self.pinned.manifests.versions if self.pinned else None

        def needed(version: Version, entry: Accepted) -> bool:
            if any(same(entry.to, build) for build in here.get(version.id, [])):
                return True
            then = pinned.get(version.id) if pinned is not None else None
            return pinned is not None and (then is None or entry not in then.accept)

        stale = [
            f"stale: {version.id} has an accepted regression of {entry.metric} to build {entry.to}, which is not here any more"
            for version in self.new.manifests.versions.values()
            if len(here.get(version.id, [])) == len(version.targets)  # else it may be about one that was not asked for
            for entry in version.accept
            if not needed(version, entry)
        ]
        return [*(str(error) for error in self.new.manifests.broken), *stale]


def _only(budgets: Budgets, name: str) -> Budgets:
    return Budgets(**{name: getattr(budgets, name)})


def _emulated(words: str) -> str:
    return words if words.startswith("not emulated") else f"emulated: {words}"


def _up(amount: float) -> float:
    """An amount with room to be measured again: to the next of three digits."""
    if amount <= 0 or amount == int(amount):
        return amount
    step = 10.0 ** (math.floor(math.log10(amount)) - 2)
    return round(math.ceil(amount / step) * step, 12)


def _machine_moved(stored: Measured, now: Timing) -> tuple[float, float] | None:
    """By how much the candidate's and the control's own time differ from the baseline's stored ones, as log ratios."""
    then = stored.timing
    if then is None or any(getattr(then, f) != getattr(now, f) for f in ("machine", "shape", "protocol", "regime")):
        return None
    controls = [(timing.ms.value, pair) for timing in (then, now) if (pair := timing.pair("control"))]
    if len(controls) != 2:
        return None
    before, after = (ms / math.exp(pair.time.value) for ms, pair in controls)
    return math.log(now.ms.value / then.ms.value), abs(math.log(after / before))


# ── attribution ──────────────────────────────────────────────────────────────────────────────────────────────────────


def _attributed(
    shops: Sequence[Workshop],
    commit: str,
    selection: Selection,
    old: Tree,
    new: Tree,
    rows: list[GateRow],
    ask: Ask,
    limits: Thresholds,
    here: Here,
) -> list[GateRow]:
    """Rows that got worse, with what did it: both sources are built with both toolchains, and what was timed is timed."""
    worse = {(row.version, row.target) for row in rows if row.status is Status.REGRESSION}
    if not worse:
        return rows
    new_with_old = _working_tree(shops[0], selection, ask)
    old_with_new = tree_at(shops[1], commit, selection, recorded=False)
    if ask.trusted_config:
        new_with_old = _distrusted(new_with_old, old)
    by_source = _Effect(shops[1], old, new_with_old, worse, ask, limits, here)
    by_toolchain = _Effect(shops[1], old, old_with_new, worse, ask, limits, here)

    def cause(row: GateRow) -> Cause | None:
        place = (row.version, row.target)
        if place not in worse:
            return row.cause
        metrics = {regression.metric for regression in row.regressions if regression.counts}
        if TIME in metrics:
            metrics = {TIME}
            if row.verdict is not Verdict.SLOWER:
                return row.cause  # since the pinned commit, which one compiler built with the working tree
        source, toolchain = (effect.on(row, metrics) for effect in (by_source, by_toolchain))
        return attribute(Verdict.SLOWER, source, toolchain, machine_moved=False)

    return [record.replace(row, cause=cause(row)) for row in rows]


class _Effect:
    """How one change alone (the source's, or the toolchain's) bears on a version: SLOWER where it makes it worse."""

    def __init__(
        self,
        workshop: Workshop,
        old: Tree,
        new: Tree,
        worse: set[Place],
        ask: Ask,
        limits: Thresholds,
        here: Here,
    ) -> None:
        builds = old.outcome.builds | new.outcome.builds
        rows = [r for r in diff(old.outcome.run, new.outcome.run, builds, limits) if (r.version, r.target) in worse]
        changed = {(row.version, row.target) for row in rows if row.verdict is Verdict.UNMEASURED}
        found = measure(workshop, new, {BASELINE: old}, changed, ask, limits, here)

        judge = _Judge(workshop, old, new, None, ask, limits, found)
        self._rows = [judged for row in rows for judged in judge.rows(row)]

    def on(self, worse: GateRow, metrics: set[str]) -> Verdict:
        """Whether it makes `worse` worse in one of `metrics`."""
        here = [row for row in self._rows if (row.version, row.target) == (worse.version, worse.target)]
        rows = [row for row in here if row.workload == worse.workload] or here
        guilty = any(regression.metric in metrics for row in rows for regression in row.regressions)
        return Verdict.SLOWER if guilty else Verdict.SAME
