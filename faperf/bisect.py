"""Which commit made a version worse? First-parent commits are halved; few of them are built, and fewer tested."""

from __future__ import annotations

import difflib
import enum
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from faperf import record
from faperf.building import Selection, Workshop
from faperf.comparison import Bisection, BisectStep, Commit, Fate, Judgement, diff_row
from faperf.errors import BisectionError, CompileError, ManifestError, MeasuringError, SelectionError
from faperf.evidence import Evidence, measure
from faperf.harness import NOWHERE, run_commit
from faperf.history import write_atomically
from faperf.judge import (
    UNDECIDED,
    Finding,
    Rule,
    Severity,
    Status,
    Verdict,
    compare_static,
    judge_pair,
    less_accurate,
    overridden,
)
from faperf.looks import BASELINE
from faperf.manifest import Manifests, Version, Workload, check_workloads, load_manifests
from faperf.measuring import side_name, workloads_to_measure
from faperf.project import Project
from faperf.record import Build, Check, Entry, Place
from faperf.report.terminal import judgement_text
from faperf.sass import listing
from faperf.trees import Ask, Tree, tree_at
from faperf.worker import Here

if TYPE_CHECKING:
    from faperf.gitinfo import Repository

UNJUDGED = (*UNDECIDED, Verdict.UNMEASURED)
FOLDER = "bisect"
"""Under `.faperf/`: the SASS diffs that were found."""


class Metric(enum.StrEnum):
    """By what a commit is worse."""

    TIME = "time"
    STATIC = "static"
    ACCURACY = "accuracy"


@dataclass(frozen=True)
class Question:
    """What is asked. Without a target, one that can be measured here; without a metric, time where it can be measured."""

    version: str
    good: str
    bad: str = "HEAD"
    target: str | None = None
    workload: str | None = None
    metric: Metric | None = None


def search(
    last: int,
    code: Callable[[int], Hashable | None],
    test: Callable[[int], Fate],
    tell: Callable[[int, Fate, int], None] = lambda number, fate, left: None,
) -> tuple[int, int]:
    """The last commit of 0 … `last` that is fine and the first that is worse; commit 0 is known to be fine, `last` to be worse.

    Only skipped commits lie between the two. `code(n)` is what commit n runs, None when it cannot be had; equal code is
    tested once. Every step looks at the middle one of those that are left, and `tell` hears how many are left then.
    """
    fates: dict[Hashable, Fate] = {None: Fate.SKIPPED, code(0): Fate.FINE, code(last): Fate.WORSE}
    fine, worse, skipped = 0, last, set[int]()
    while left := _between(fine, worse, skipped):
        number = left[len(left) // 2]
        runs = code(number)
        if runs not in fates:
            fates[runs] = test(number)
        fate = fates[runs]
        if fate is Fate.FINE:
            fine = number
        elif fate is Fate.WORSE:
            worse = number
        else:
            skipped.add(number)
        tell(number, fate, len(_between(fine, worse, skipped)))
    return fine, worse


def _between(fine: int, worse: int, skipped: set[int]) -> list[int]:
    return [number for number in range(fine + 1, worse) if number not in skipped]


def halvings(count: int) -> int:
    """How many steps it takes at most to search among `count` commits."""
    return count.bit_length()


def bisect(workshop: Workshop, question: Question, here: Here = NOWHERE) -> Bisection:
    """Check both ends, then search between them. Raises BisectionError where the ends do not fit the question."""
    repository = workshop.repository
    if repository is None:
        raise SelectionError("there is no git repository here, so there are no commits to bisect")
    commits = repository.commits_between(repository.resolve(question.good), repository.resolve(question.bad))
    if len(commits) == 1:
        raise SelectionError(
            f"--good and --bad are the same commit, {commits[0][:12]}", remedy="give --good an earlier one"
        )
    return _Bisector(workshop, repository, commits, question, here).run()


# ── inside ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class _Site:
    """What a commit made of the version."""

    entry: Entry
    build: Build

    @property
    def code(self) -> Hashable:
        """Equal for commits between which the gate would find the version unchanged."""
        return self.build.code, frozenset(self.entry.launches.values())


class _Bisector:
    def __init__(
        self, workshop: Workshop, repository: Repository, commits: list[str], question: Question, here: Here
    ) -> None:
        self.workshop, self.repository, self.commits, self.here = workshop, repository, commits, here
        self.last = len(commits) - 1
        config = workshop.project.config
        self.limits = workshop.limits
        manifests, version = self._version_at(self.last, question.version)
        self.rules = {str(rule): severity for rule, severity in version.rules.items()}
        own = [workload.name for workload in manifests.workloads_of(version)]
        check_workloads([question.workload] if question.workload else [], own)
        self.metric, target = _what_can_be_judged(version, question, here, config.default_target)
        self.place: Place = (version.id, target)
        self.selection = Selection((version.id,), (target,))
        wanted = (question.workload,) if question.workload else ()
        self.workloads = workloads_to_measure(version, manifests, wanted)
        self.sites: dict[int, _Site | str] = {}
        self.judged: dict[Hashable, tuple[int, Judgement]] = {}
        self.steps: list[BisectStep] = []

    def run(self) -> Bisection:
        good, bad = self._end(0), self._end(self.last)
        name = f"{self.place[0]} for {self.place[1]}"
        ends = f"{self.commits[self.last][:12]} than at {self.commits[0][:12]}"
        if good.code == bad.code:
            raise BisectionError(f"{name} is not worse at {ends}: same code, same launch", remedy="give other ends")
        self.judged[good.code] = (0, Judgement(fate=Fate.FINE))
        fate = self.test(self.last)
        self.tell(self.last, fate, self.last - 1)
        judgement = self.steps[0].judgement
        if fate is Fate.FINE:
            found = judgement_text(judgement)
            raise BisectionError(
                f"{name} is not worse at {ends} by {self.metric}: {found}",
                remedy="give other ends, or another --metric (time, static, accuracy)",
            )
        if fate is Fate.SKIPPED and judgement.verdict is None:
            raise BisectionError(f"{name} cannot be judged by {self.metric} at {ends}: {judgement.why}")
        if fate is Fate.SKIPPED:
            return self._report(0, self.last, judgement)
        fine, worse = search(self.last, self.code, self.test, self.tell)
        return self._report(fine, worse, self.judged[self._end(worse).code][1])

    # ── the search's questions ──

    def code(self, number: int) -> Hashable | None:
        site = self._site(number)
        return site.code if isinstance(site, _Site) else None

    def test(self, number: int) -> Fate:
        good, site = self._end(0), self._end(number)
        static = self.metric is Metric.STATIC
        judgement = self._by_static_facts(good, site) if static else self._by_measuring(number)
        self.judged[site.code] = (number, judgement)
        return judgement.fate

    def tell(self, number: int, fate: Fate, left: int) -> None:
        site = self._site(number)
        if isinstance(site, _Site):
            tested, judgement = self.judged[site.code]
        else:
            tested, judgement = number, Judgement(fate=fate, why=site)
        twin = None if tested == number else self.commits[tested]
        step = BisectStep(self._commit(number), judgement, twin)
        self.steps.append(step)
        about = len(self.steps) + halvings(left)
        same = f" (same code as {twin[:12]})" if twin else ""
        what = f"{step.commit.hash[:12]} {step.commit.subject}: {judgement_text(judgement)}{same}"
        self.workshop.progress.say(f"{len(self.steps)} of about {about}: {what}")

    # ── building ──

    def _version_at(self, number: int, name: str) -> tuple[Manifests, Version]:
        commit = self.commits[number]
        manifests = load_manifests(Project(self.workshop.commit_tree(commit)))
        version = manifests.versions.get(name)
        if version is None:
            broken = next((f" that can be read: {error}" for error in manifests.broken if name in str(error)), "")
            raise SelectionError(
                f"no version '{name}' at {commit[:12]}{broken}",
                remedy=f"there are: {', '.join(manifests.versions) or 'none'}",
            )
        return manifests, version

    def _end(self, number: int) -> _Site:
        site = self._site(number)
        if isinstance(site, str):
            which = "good" if number == 0 else "bad"
            what = f"the {which} end {self.commits[number][:12]} cannot be judged: {site}"
            raise BisectionError(what, remedy=f"give --{which} a commit where {self.place[0]} builds")
        return site

    def _site(self, number: int) -> _Site | str:
        """The version at a commit, from records where they know it as this compiler builds it; or why it is skipped."""
        if number not in self.sites:
            commit = self.commits[number]
            run = self.workshop.history.newest_run(commit, dirty=False)
            entry = run.entry(*self.place) if run else None
            build = self.workshop.history.build(entry.build) if entry and entry.build else None
            known = entry and build and build.toolchain == self.workshop.toolchain.identity
            self.sites[number] = _Site(entry, build) if known and entry and build else self._build(commit)
        return self.sites[number]

    def _build(self, commit: str) -> _Site | str:
        outcome = run_commit(self.workshop, commit, self.selection)
        for failure in outcome.failures:
            if not isinstance(failure, CompileError | ManifestError):
                raise failure
        entry = outcome.run.entry(*self.place)
        if entry is None:
            broken = load_manifests(Project(self.workshop.commit_tree(commit))).broken
            return f"no {self.place[0]} for {self.place[1]}" + (" that can be read" if broken else "")
        if entry.build is None:
            return ": ".join((entry.error or "does not build").splitlines()[:2])
        return _Site(entry, outcome.builds[entry.build])

    def _commit(self, number: int) -> Commit:
        commit = self.commits[number]
        return Commit(commit, self.repository.subject(commit), self.repository.authored(commit))

    # ── judging ──

    def _by_static_facts(self, good: _Site, site: _Site) -> Judgement:
        found = compare_static(good.build, good.entry, site.build, site.entry, self.limits, same_version=True)
        return self._by_findings(found)

    def _by_findings(self, found: list[Finding]) -> Judgement:
        """By the rules of the manifest at the bad end."""
        findings = overridden(found, self.rules)
        worse = any(finding.severity is Severity.REGRESSION for finding in findings)
        return Judgement(fate=Fate.WORSE if worse else Fate.FINE, findings=findings)

    @cached_property
    def _good_tree(self) -> Tree:
        return tree_at(self.workshop, self.commits[0], self.selection)

    def _by_measuring(self, number: int) -> Judgement:
        """Verify, and time against the good commit's build as the gate does: interleaved, once more where undecided."""
        tree = tree_at(self.workshop, self.commits[number], self.selection)
        if self._workloads(tree) != self._workloads(self._good_tree):
            return Judgement(fate=Fate.SKIPPED, why="it has other workloads than the good commit")
        ask = Ask(
            workloads=tuple(workload.name for workload in self.workloads),
            timed=self.metric is Metric.TIME,
            sharing=1 + halvings(self.last - 1),
        )
        partners = {BASELINE: self._good_tree}
        found = measure(self.workshop, tree, partners, {self.place}, ask, self.here)
        if found.job is None:
            return Judgement(fate=Fate.SKIPPED, why=found.unmeasured or "nothing was measured")
        name = side_name(*self.place)
        checks = {workload.name: found.checks.get((name, workload.name), []) for workload in self.workloads}
        before = {w: found.checks.get((f"{name} {BASELINE}", w), []) for w in checks}
        if wrong := [check for several in before.values() for check in several if not check.ok]:
            what = f"{self.place[0]} is wrong at the good end {self.commits[0][:12]}: {_failure(wrong[0])}"
            raise BisectionError(what, remedy="give --good a commit where it is right")
        wrong = [check for several in checks.values() for check in several if not check.ok]
        if self.metric is Metric.ACCURACY:
            worse = [Finding(Rule.ACCURACY, Severity.REGRESSION, f"wrong on {_failure(check)}") for check in wrong]
            worse += [f for w in checks for f in less_accurate(before[w], checks[w], self.limits)]
            return self._by_findings(worse)
        if wrong:
            return Judgement(fate=Fate.SKIPPED, why=f"it is wrong on {_failure(wrong[0])}")
        return self._by_time(found)

    def _workloads(self, tree: Tree) -> list[Workload]:
        version = tree.version(self.place)
        names = [workload.name for workload in self.workloads]
        return workloads_to_measure(version, tree.manifests, names) if version else []

    def _by_time(self, found: Evidence) -> Judgement:
        """The verdict that decides: SLOWER on any workload, else undecided on any, else the first one's."""
        judged = []
        for workload in self.workloads:
            timing = found.timings[(*self.place, workload.name)]
            verdict = judge_pair(timing, BASELINE, self.limits, found.comparisons)
            fate = Fate.WORSE if verdict is Verdict.SLOWER else Fate.SKIPPED if verdict in UNJUDGED else Fate.FINE
            pair = timing.pair(BASELINE)
            judged.append(
                Judgement(
                    fate=fate,
                    why=f"void: {', '.join(timing.void)}" if timing.void else None,
                    workload=workload.name,
                    verdict=verdict,
                    change=pair.time if pair else None,
                )
            )
        return min(judged, key=lambda judgement: (Fate.WORSE, Fate.SKIPPED, Fate.FINE).index(judgement.fate))

    # ── the answer ──

    def _report(self, fine: int, worse: int, judgement: Judgement) -> Bisection:
        before, after = self._end(fine), self._end(worse)
        found = worse - fine == 1 and judgement.fate is Fate.WORSE
        kernel = max(after.build.kernels, key=lambda kernel: kernel.instructions).entry
        sass = self._sass(fine, worse, kernel)
        file = None
        if sass:
            name = f"{self.place[0]}-{self.place[1]}-{self.commits[worse][:12]}.diff"
            file = self.workshop.project.make_state() / FOLDER / name
            write_atomically(file, "".join(f"{line}\n" for line in sass).encode())
        return Bisection(
            schema=record.SCHEMA,
            version=self.place[0],
            target=self.place[1],
            metric=self.metric,
            good=self._commit(0),
            bad=self._commit(self.last),
            commits=self.last,
            status=Status.FINE if found else Status.INCONCLUSIVE,
            steps=self.steps,
            first=self._commit(worse) if found else None,
            predecessor=self._commit(fine),
            judgement=judgement,
            candidates=[] if found else [self._commit(number) for number in range(fine + 1, worse + 1)],
            diff=diff_row(*self.place, before.entry, after.entry, before.build, after.build, self.limits),
            kernel=kernel,
            sass=sass,
            sass_file=self.workshop.project.relative(file) if file else None,
        )

    def _sass(self, fine: int, worse: int, kernel: str) -> list[str]:
        """How the instructions of `kernel` changed, as a unified diff of normalised lines."""
        names, listings = [], []
        for number in (fine, worse):
            outcome = tree_at(self.workshop, self.commits[number], self.selection).outcome
            entry = outcome.run.entry(*self.place)
            key = entry.build if entry and entry.build else ""
            build, artifact = outcome.builds[key], outcome.artifacts[key]
            known = build.kernel(kernel) or max(build.kernels, key=lambda kernel: kernel.instructions)
            names.append(f"{known.entry} at {self.commits[number][:12]}")
            listings.append(listing(artifact.cubin, self.workshop.toolchain.nvdisasm, known.entry))
        return list(difflib.unified_diff(listings[0], listings[1], names[0], names[1], lineterm=""))


def _what_can_be_judged(version: Version, question: Question, here: Here, default_target: str) -> tuple[Metric, str]:
    """The metric and the target. Raises MeasuringError where the metric that is asked for cannot be measured here."""
    if question.target and question.target not in version.targets:
        raise SelectionError(
            f"{version.id} is not for target '{question.target}'", remedy=f"it is for: {', '.join(version.targets)}"
        )
    targets = [question.target] if question.target else version.targets
    runs = [target for target in targets if here.gpu is not None and here.gpu.runs(target)]
    obstacle = here.reason
    if obstacle is None and here.gpu is not None and not runs:
        obstacle = f"the {here.gpu.name} (compute capability {here.gpu.capability}) does not run {', '.join(targets)}"
    metric = question.metric or (Metric.STATIC if obstacle else Metric.TIME)
    if metric is not Metric.STATIC and obstacle:
        raise MeasuringError(
            f"--metric {metric} cannot be measured here: {obstacle}",
            remedy="--metric static compares what the compiler made of it; or run this where a GPU is (faperf doctor)",
        )
    if metric is not Metric.STATIC:
        return metric, runs[0]
    return metric, default_target if default_target in targets else targets[0]


def _failure(check: Check) -> str:
    return f"{check.workload}, {check.distribution}: {check.failure}"
