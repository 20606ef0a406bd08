"""`faperf report`: what history tells, gathered for the pages of a site."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from faperf import __version__
from faperf.chips import chip_of, memory_tb_s
from faperf.comparison import Silicon, ladder
from faperf.figures import builds_of, completed, informed, latest_run, metrics_by_version, open_repository, silicon_of
from faperf.history import History
from faperf.index import StoredTiming
from faperf.judge import thresholds_from
from faperf.manifest import Manifests, load_manifests
from faperf.operations import Operation, load_operations
from faperf.project import Project
from faperf.record import Build, Entry
from faperf.report.pages import Content, Course, Roof, Standing, Step, Under, VersionPage, write_pages
from faperf.series import ancestry, changes_of, positions_of, runs_along, series_of


def write_site(project: Project, history: History, into: Path) -> int:
    """Write the whole site. Returns how many commits of this branch have a record. Raises ConfigError without the libraries."""
    content = gather(project, history)
    write_pages(content, into)
    return len(content.steps)


def gather(project: Project, history: History) -> Content:
    repository, manifests, reported = open_repository(project), load_manifests(project), history.reported()
    limits = thresholds_from(project.config.thresholds)
    run = latest_run(history, repository)
    run, elsewhere = completed(history, repository, run) if run else (None, {})
    run = informed(history, repository, run) if run else None
    builds = builds_of(history, run) if run else {}
    workloads = dict.fromkeys(name for entry in (run.entries if run else ()) for name in entry.measured)
    first = silicon_of(history, run) if run else {}
    silicon = {name: silicon_of(history, run, name) for name in workloads} if run else {}
    every = [first, *silicon.values()]
    timings = [measured.timing for each in every for measured in each.values() if measured.timing]
    partners = {timing.build for timing in timings} | {pair.build for timing in timings for pair in timing.pairs}
    builds |= {key: build for key in partners - set(builds) if (build := history.build(key))}
    targets = {t for version in manifests.versions.values() for t in version.targets} | {
        file.target for file in reported
    }
    ladders = {t: ladder(t, manifests, run, builds, reported, limits, first) for t in sorted(targets)}
    operations = load_operations(project)
    worth = {name: metrics_by_version(manifests, operations, builds, each) for name, each in silicon.items()}
    commits = ancestry(history, repository) if repository else []
    stored = history.timings()
    steps, standings, known = _steps(history, commits, stored)
    found = series_of(stored, positions_of(commits, stored, repository))
    courses = [Course(s, changes_of(history, s, limits.time_cut)) for s in found if s.points]
    described = repository.described([*steps, *_commits_of(courses, steps)]) if repository else {}
    return Content(
        project=project.root.name,
        faperf=__version__,
        made=f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC" + (f", commit {commits[0][:12]}" if commits else ""),
        run=run,
        elsewhere=elsewhere,
        reported=reported,
        ladders=ladders,
        versions=[_version_page(project, manifests, name) for name in manifests.versions],
        silicon=silicon,
        worth=worth,
        roofs=_roofs(manifests, operations, silicon),
        peers=history.peers(),
        courses=courses,
        described=described,
        commits=len(commits),
        steps=[Step(commit, changed) for commit, changed in steps.items()],
        standings=standings,
        builds={**known, **builds},
        stored=[one.timing for one in stored],
        calibrations=history.calibrations(),
    )


def _commits_of(courses: list[Course], known: Mapping[str, object]) -> list[str]:
    points = (point.commit for course in courses for point in course.series.points)
    return [commit for commit in dict.fromkeys(points) if commit not in known]


def _steps(
    history: History, commits: list[str], stored: list[StoredTiming]
) -> tuple[dict[str, dict[tuple[str, str], int | None]], list[Standing], dict[str, Build]]:
    """Of each recorded commit, oldest first, what stands otherwise than at the one before: (version, target) → the number of
    its standing, None where it is gone. With the standings and their builds.
    """
    timings = {(t.file.run_id, t.version, t.target, t.timing.workload): t.timing for t in stored}
    numbers: dict[tuple[object, ...], int] = {}
    standings: list[Standing] = []
    builds: dict[str, Build] = {}
    before: dict[tuple[str, str], Entry] = {}
    steps: dict[str, dict[tuple[str, str], int | None]] = {}
    for commit, run in runs_along(history, commits):
        now = {entry.place: entry for entry in run.entries}
        changed: dict[tuple[str, str], int | None] = {} if run.partial else dict.fromkeys(before.keys() - now.keys())
        for place, entry in now.items():
            if before.get(place) == entry:
                continue
            key = (*place, entry.build, entry.ctas_per_sm, entry.smem, entry.error, tuple(entry.measured.items()))
            if key not in numbers:
                numbers[key] = len(standings)
                workload, run_id = next(iter(entry.measured.items()), (None, ""))
                standings.append(Standing(entry, timings.get((run_id, *place, workload or ""))))
                if entry.build and entry.build not in builds and (build := history.build(entry.build)):
                    builds[entry.build] = build
            changed[place] = numbers[key]
        before = {**before, **now} if run.partial else now
        steps[commit] = changed
    return steps, standings, builds


def _version_page(project: Project, manifests: Manifests, name: str) -> VersionPage:
    version = manifests.versions[name]
    parent = manifests.versions.get(version.parent or "")
    diff = None
    if parent is not None:
        old, new = (_source(project, path) for path in (parent.source, version.source))
        diff = list(difflib.unified_diff(old, new, parent.source, version.source, lineterm="")) if old or new else None
    return VersionPage(version, [v.id for v in manifests.versions.values() if v.parent == name], diff)


def _source(project: Project, path: str) -> list[str]:
    try:
        return (project.root / path).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []


def _roofs(manifests: Manifests, operations: Mapping[str, Operation], silicon: Mapping[str, Silicon]) -> list[Roof]:
    """Of each GPU that measured and whose rates are known."""
    under: dict[tuple[str, str], list[Under]] = {}
    for workload, each in silicon.items():
        for (name, target), measured in each.items():
            version, timing = manifests.versions.get(name), measured.timing
            if version is None or timing is None:
                continue
            operation = operations.get(version.operation.name)
            if operation is not None:
                intensity = operation.flops(timing.shape) / operation.bytes(timing.shape)
                under.setdefault((timing.gpu, target), []).append(Under(name, workload, intensity, timing.tflops))
    roofs = []
    for (gpu, target), points in sorted(under.items()):
        chip, bandwidth = chip_of(target), memory_tb_s(gpu)
        if chip is not None and chip.peak_tflops and bandwidth:
            roofs.append(Roof(gpu, chip.peak_tflops, bandwidth, points))
    return roofs
