"""The gate: is the working tree worse than its baseline? Both are built here, compared, and timed side by side."""

from __future__ import annotations

import dataclasses
from functools import cache

import msgspec

from faperf import record
from faperf.attribution import attributed
from faperf.building import Selection, Workshop
from faperf.comparison import GateReport, diff
from faperf.errors import CompileError, FaperfError, HistoryError, ManifestError, SelectionError
from faperf.evidence import measure
from faperf.harness import NOWHERE, emulate
from faperf.history import write_atomically
from faperf.judge import Status, Verdict, worst
from faperf.judging import PINNED, Judge
from faperf.looks import BASELINE, check_budget
from faperf.project import Project
from faperf.trees import Ask, distrusted, tree_at, working_tree
from faperf.worker import Here

RESULT = "gate.json"


def gate(workshop: Workshop, selection: Selection, ask: Ask, here: Here = NOWHERE) -> GateReport:
    """Build both sides, compare what the compiler made of them, time what changed, and judge. Nothing is checked out."""
    repository = workshop.repository
    if repository is None:
        raise SelectionError("there is no git repository here, so there is no baseline")
    named = repository.resolve(ask.baseline) if ask.baseline else None
    if ask.trusted_config:  # from here on, and for whatever code it names
        if named is None:
            raise SelectionError("a baseline whose configuration is trusted must be named", remedy="give --baseline")
        trusted = Project(workshop.commit_tree(named))
        workshop = dataclasses.replace(workshop, project=dataclasses.replace(workshop.project, trusted=trusted))
    config = workshop.project.config
    ask = dataclasses.replace(ask, pinned=ask.pinned or config.pinned)
    pin = repository.resolve(ask.pinned) if ask.pinned else None
    shops = [dataclasses.replace(workshop, toolchain=toolchain) for toolchain in ask.toolchains] or [workshop]
    check_budget(ask.budget_s, workshop.limits)
    built = cache(lambda: working_tree(shops[-1], selection, ask))
    commit = named or repository.baseline(config.default_branch, lambda: bool(built().outcome.run.dirty))
    old = tree_at(shops[0], commit, selection, recorded=False)
    new = built()
    pinned = tree_at(shops[-1], pin, selection, recorded=False) if pin and pin != commit else None
    if ask.trusted_config:
        new = distrusted(new, old)

    asked = {(version.id, target) for tree in (old, new) for version, target in tree.steps}
    was, now = (record.replace(tree.outcome.run, partial=False) for tree in (old, new))  # all that was asked for
    rows = diff(was, now, old.outcome.builds | new.outcome.builds, workshop.limits)
    rows = [row for row in rows if row.place in asked]
    changed = {row.place for row in rows if row.verdict is Verdict.UNMEASURED}
    partners = {BASELINE: old, **({PINNED: pinned} if pinned else {})}
    found = measure(workshop, new, partners, changed, ask, here, foreseeing=True)
    if ask.emulate and config.emulate:
        added = {row.place for row in rows if row.verdict is Verdict.NEW}
        fresh = [step for step in new.steps if (step[0].id, step[1]) in changed | added]
        gpu = here.gpu if here.reason is None else None
        emulate(shops[-1], new.manifests, new.outcome, fresh, gpu, lambda check: None)
    judge = Judge(workshop, old, new, pinned, ask, found)
    judged = [gate_row for row in rows for gate_row in judge.annotated(row)]
    if len(shops) == 2:
        judged = attributed(shops, commit, selection, old, new, judged, ask, here)
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


def _ours(error: FaperfError) -> bool:
    """Whether a build failed for no reason of its version's: a full disk, a compiler that does not run."""
    return not isinstance(error, CompileError | ManifestError)
