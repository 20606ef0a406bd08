"""What reads records: ladder, diff, show, list."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from faperf.cli.complete import TARGET, VERSION, WORKLOAD
from faperf.cli.screen import present, progress_shown
from faperf.cli.shared import (
    REGRESSION,
    WRONG,
    format_option,
    jobs_option,
    nvcc_option,
    open_project,
    print_ladder,
    say_broken,
    say_warnings,
)

if TYPE_CHECKING:
    from faperf.comparison import Elsewhere
    from faperf.listing import LoopDiff


@click.command()
@click.option(
    "--target", metavar="SM", type=TARGET, help="The target to show; pyproject.toml's by default, or sm_103a."
)
@click.option("--commit", metavar="REF", help="The record of this commit; the newest of HEAD by default.")
@click.option(
    "--workload",
    metavar="NAME",
    type=WORKLOAD,
    help="Measured figures on this workload; each version's first by default.",
)
@format_option
@click.pass_obj
def ladder(directory: Path, target: str | None, commit: str | None, workload: str | None, style: str) -> None:
    """The versions and what each changed against its parent, from records. Builds nothing.

    \b
    Example:
      faperf ladder
      faperf ladder --target sm_90a --format markdown
    """
    from faperf.errors import SelectionError
    from faperf.figures import builds_of, completed, informed, latest_run, open_repository
    from faperf.history import History
    from faperf.manifest import check_workloads, load_manifests

    project = open_project(directory)
    history, repository = History(project), open_repository(project)
    elsewhere: Elsewhere = {}
    if commit:
        if repository is None:
            raise SelectionError("there is no git repository here, so there are no commits")
        chosen = history.newest_run(repository.resolve(commit))
        if chosen is None:
            raise SelectionError(f"no record of {commit}", remedy=f"faperf run --commits {commit}~1..{commit}")
    else:
        chosen = latest_run(history, repository)
        chosen, elsewhere = completed(history, repository, chosen) if chosen else (None, {})
    if workload:
        there = [name for entry in (chosen.entries if chosen else []) for name in entry.launches]
        check_workloads([workload], [*load_manifests(project, history.index).workloads, *there])
    chosen = informed(history, repository, chosen) if chosen else None
    builds = builds_of(history, chosen) if chosen else {}
    print_ladder(project, history, chosen, builds, (target,) if target else (), style, workload, elsewhere)
    say_warnings(history)


@click.command()
@click.argument("a")
@click.argument("b", required=False)
@click.option("--exit-code", is_flag=True, help="Exit with 3 on a regression, with 5 when a version no longer builds.")
@click.option("--all", "show_unchanged", is_flag=True, help="Show unchanged versions too.")
@click.option("--rerun", "again", is_flag=True, help="Time both commits' builds interleaved here, on this GPU.")
@click.option(
    "--workload", metavar="NAME", type=WORKLOAD, help="Figures on this workload; each version's first by default."
)
@click.option(
    "--sass", metavar="VERSION", type=VERSION, help="Show how this version's instructions changed, folded to the loop."
)
@jobs_option
@nvcc_option
@format_option
@click.pass_obj
def diff(
    directory: Path,
    a: str,
    b: str | None,
    exit_code: bool,
    show_unchanged: bool,
    again: bool,
    workload: str | None,
    sass: str | None,
    jobs: int | None,
    nvcc: str | None,
    style: str,
) -> None:
    """What changed from commit A to commit B (the working tree by default), version by version.

    Commits without a record are built from git; nothing is checked out.

    \b
    Example:
      faperf diff HEAD~1 HEAD
      faperf diff main --exit-code    the working tree against main
      faperf diff v1.0 HEAD --rerun    both interleaved on this machine's GPU
      faperf diff HEAD~1 --sass v18    the instructions of v18 as well
    """
    if again and b is None:
        raise click.UsageError("--rerun compares two commits; commit the working tree first")
    from faperf.comparison import diff as compare
    from faperf.comparison import rerun
    from faperf.errors import SelectionError
    from faperf.figures import open_repository, recorded, silicon_of
    from faperf.history import History
    from faperf.judge import Verdict, thresholds_from
    from faperf.manifest import check_workloads, load_manifests
    from faperf.report.terminal import diff_text

    project = open_project(directory)
    history, repository = History(project), open_repository(project)
    if repository is None:
        raise SelectionError("there is no git repository here, so there are no commits to compare")
    old_commit = repository.resolve(a)
    new_commit = repository.resolve(b) if b else None
    old_side = recorded(history, old_commit)
    new_side = recorded(history, new_commit) if new_commit else None
    loops: dict[str, LoopDiff] = {}
    if again or sass or old_side is None or new_side is None:
        from faperf.building import Selection, Workshop
        from faperf.explaining import loops_of_commits
        from faperf.harness import Wish, rerun_commits, run_of, run_tree

        with progress_shown() as progress:
            workshop = Workshop.open(project, nvcc=nvcc, jobs=jobs, progress=progress)
            workshop.history = history
            old_side = run_of(workshop, old_commit)
            if new_commit:
                new_side = run_of(workshop, new_commit)
            else:
                outcome = run_tree(workshop, Selection(), Wish())
                new_side = outcome.run, outcome.builds
            loops = loops_of_commits(workshop, old_commit, new_commit, sass) if sass else {}
    (old, old_builds), (new, new_builds) = old_side, new_side
    if workload:
        there = [name for entry in [*old.entries, *new.entries] for name in entry.launches]
        check_workloads([workload], [*load_manifests(project, history.index).workloads, *there])
    limits = thresholds_from(project.config.thresholds)
    silicon = (silicon_of(history, old, workload), silicon_of(history, new, workload))
    rows = compare(old, new, {**old_builds, **new_builds}, limits, *silicon)
    if again and new_commit:
        with progress_shown() as progress:
            workshop.progress = progress
            timings = rerun_commits(workshop, old_commit, new_commit, rows, (workload,) if workload else ())
        rows = rerun(rows, timings, limits)
    present(diff_text(rows, old, new, style, show_unchanged=show_unchanged, sass=loops), style)
    if loops and style != "json":
        from faperf.report.explanation import loops_text

        click.echo("\n" + loops_text(loops, style))
    say_warnings(history)
    if exit_code:
        broken = any(row.verdict is Verdict.BROKEN for row in rows)
        sys.exit(WRONG if broken else REGRESSION if any(row.regression for row in rows) else 0)


@click.command()
@click.argument("version", type=VERSION)
@format_option
@click.pass_obj
def show(directory: Path, version: str, style: str) -> None:
    """All that is known of VERSION: manifest, notes, static facts by target, published figures.

    \b
    Example:
      faperf show v13
    """
    from faperf.comparison import ladder as build_ladder
    from faperf.errors import SelectionError
    from faperf.figures import (
        builds_of,
        completed,
        informed,
        latest_run,
        open_repository,
        silicon_of,
        worth_of,
    )
    from faperf.history import History
    from faperf.judge import thresholds_from
    from faperf.manifest import load_manifests
    from faperf.operations import load_operations
    from faperf.report.terminal import show_text

    project = open_project(directory)
    history = History(project)
    manifests = load_manifests(project, history.index)
    reported = history.reported_row(version)
    if version not in manifests.versions and reported is None:
        raise SelectionError(
            f"no version '{version}'", remedy="faperf list shows what there is; faperf check, what is broken"
        )
    repository = open_repository(project)
    newest = latest_run(history, repository)
    newest = completed(history, repository, newest)[0] if newest else None
    newest = informed(history, repository, newest) if newest else None
    builds = builds_of(history, newest) if newest else {}
    found = [e for e in newest.entries if e.version == version] if newest else []
    limits = thresholds_from(project.config.thresholds)
    findings = {
        entry.target: next(
            row.findings
            for row in build_ladder(entry.target, manifests, newest, builds, [], limits)
            if row.version == version
        )
        for entry in found
        if version in manifests.versions
    }
    pairs = [(entry, builds.get(entry.build or "")) for entry in found]
    silicon = silicon_of(history, newest) if newest else {}
    operations = load_operations(project)
    worth = worth_of(history, manifests, operations, newest, builds, silicon, version) if newest else {}
    chosen = manifests.versions.get(version)
    external = history.external(version)
    present(show_text(chosen, version, pairs, findings, reported, silicon, worth, external, style), style)
    say_warnings(history)


@click.command()
@click.argument("version")
@click.option("--target", metavar="SM", help="Only timings for this target.")
@click.option("--workload", metavar="NAME", help="Only timings on this workload.")
@click.option("--class", "machine_class", metavar="NAME", help="Only timings of this machine class.")
@click.option("--regime", metavar="NAME", help="Only timings of this regime: burst or sustained.")
@click.option("--static", is_flag=True, help="Registers, spills and occupancy alone, also where its time was measured.")
@click.option(
    "--last", metavar="N", type=click.IntRange(min=1), default=20, show_default=True, help="How many to list."
)
@format_option
@click.pass_obj
def history(
    directory: Path,
    version: str,
    target: str | None,
    workload: str | None,
    machine_class: str | None,
    regime: str | None,
    static: bool,
    last: int,
    style: str,
) -> None:
    """The time of VERSION over first-parent commits, and the commits at which it changed.

    Of several series that fit, the one that was measured last is shown, and the others are named. Where no time was measured, the
    static facts are shown: the commits at which the code, its occupancy or its correctness became another.

    \b
    Example:
      faperf history v13
      faperf history v20 --target sm_103a --static
      faperf history v13 --workload published --class nvidia-h200-700w-140gib --last 50
    """
    from faperf.errors import SelectionError
    from faperf.figures import open_repository
    from faperf.history import History
    from faperf.judge import thresholds_from
    from faperf.report.course import course_text, seen_of, stands_text
    from faperf.series import ancestry, changes_of, described, positions_of, series_of, stands_of

    project = open_project(directory)
    records, repository = History(project), open_repository(project)
    if repository is None:
        raise SelectionError("there is no git repository here, so there are no commits")
    commits = ancestry(records, repository)
    wanted = {"target": target, "workload": workload, "machine": machine_class, "regime": regime}
    stored = records.timings(version)
    everything = [s for s in series_of(stored, positions_of(commits, stored, repository)) if s.points]
    fitting = [s for s in everything if all(v in (None, getattr(s.place, k)) for k, v in wanted.items())]
    if static or (not fitting and not (workload or machine_class or regime)):
        stands = stands_of(records, commits, version)
        own = {name: found for name, found in stands.items() if target in (None, name)}
        if own:
            shown = [stand.commit for found in own.values() for stand in found[-last:]]
            limits = thresholds_from(project.config.thresholds)
            present(
                stands_text(version, own, described(records, repository, shown, version), limits, last, style), style
            )
            say_warnings(records)
            return
    if not fitting:
        there = "; ".join(
            f"{s.place.target}, {s.place.workload}, {s.place.machine}, {s.place.regime}" for s in everything
        )
        none = f"no record of '{version}' at a commit of HEAD's line or of what was merged into it"
        what = f"no timing of '{version}' of that kind" if everything else none
        remedy = f"there are: {there}" if everything else "faperf run; faperf list names the versions"
        raise SelectionError(what, remedy=remedy)
    chosen = max(fitting, key=lambda s: s.points[-1].position)
    changes = changes_of(records, chosen, thresholds_from(project.config.thresholds).time_cut)
    newest = chosen.points[-last:]
    shown = [point.commit for point in newest] + [chosen.points[change.at].commit for change in changes]
    counters = [c for c in records.counters() if c.workload == chosen.place.workload]
    builds = {point.timing.build for point in newest}
    seen = {key: seen_of(records.build(key), [c for c in counters if c.build == key]) for key in builds}
    named = described(records, repository, shown, version)
    click.echo(course_text(chosen, changes, named, fitting, seen, last, style))
    say_warnings(records)


@click.command("list")
@format_option
@click.pass_obj
def list_versions(directory: Path, style: str) -> None:
    """The versions: parent, title, targets, workloads.

    \b
    Example:
      faperf list --format json
    """
    from faperf.manifest import load_manifests
    from faperf.report.terminal import list_text

    project = open_project(directory)
    click.echo(list_text(load_manifests(project), style))
    if say_broken(project):
        sys.exit(1)
