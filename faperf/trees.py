"""What a gate compares: each side's versions, as a toolchain builds them from a commit or from the working tree."""

from __future__ import annotations

import dataclasses
import shlex
from dataclasses import dataclass

from faperf import record
from faperf.building import Outcome, Selection, Step, Workshop
from faperf.harness import Wish, build_tree, run_commit
from faperf.manifest import Manifests, Version, load_manifests
from faperf.project import Project
from faperf.record import Place, Protocol
from faperf.toolchain import Toolchain


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


def working_tree(workshop: Workshop, selection: Selection, ask: Ask) -> Tree:
    outcome, manifests, steps = build_tree(workshop, selection, Wish(workloads=ask.workloads))
    workshop.history.abandon(outcome.run.id)
    return Tree(outcome, manifests, steps)


def tree_at(workshop: Workshop, commit: str, selection: Selection, *, recorded: bool = True) -> Tree:
    """A commit's versions, built from git, and by default recorded for it."""
    outcome = run_commit(workshop, commit, selection, recorded=recorded)
    manifests = load_manifests(Project(workshop.commit_tree(commit)))
    steps = [step for step in Selection().steps(manifests) if selection.includes(step)]
    return Tree(outcome, manifests, steps)


def distrusted(new: Tree, old: Tree) -> Tree:
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
