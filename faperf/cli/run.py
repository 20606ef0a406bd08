"""What builds and measures: run, bundle, exec."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from faperf.cli.complete import TARGET, VERSION, WORKLOAD
from faperf.cli.screen import complain, note, progress_shown, warn
from faperf.cli.shared import (
    WRONG,
    format_option,
    jobs_option,
    nvcc_option,
    open_project,
    print_ladder,
    say_broken,
    say_warnings,
    targets_option,
    workloads_option,
)

if TYPE_CHECKING:
    from faperf.building import Outcome, Workshop
    from faperf.history import History
    from faperf.project import Project
    from faperf.record import Run


@click.command()
@click.argument("versions", nargs=-1, type=VERSION)
@targets_option
@workloads_option
@click.option("--no-gpu", is_flag=True, help="Compile and inspect only: neither measure nor emulate.")
@click.option("--again", is_flag=True, help="Measure what an earlier run has measured, too.")
@click.option("--counters", is_flag=True, help="Count in the hardware too, by ncu: tensor activity, stalls, traffic.")
@click.option("--resume", is_flag=True, help="Go on with the last unfinished run of this commit.")
@click.option("--commits", metavar="A..B", help="Run the first-parent commits after A up to B, from git.")
@click.option("--skip-existing", is_flag=True, help="With --commits: leave out commits that have a record.")
@click.option("--commit", metavar="HASH", help="The commit to record for, where there is no git.")
@click.option(
    "--bundle", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Measure this bundle instead."
)
@click.option(
    "--out", type=click.Path(path_type=Path), help="With --bundle: the results file; BUNDLE.results by default."
)
@jobs_option
@nvcc_option
@format_option
@click.pass_obj
def run(
    directory: Path,
    versions: tuple[str, ...],
    targets: tuple[str, ...],
    workloads: tuple[str, ...],
    no_gpu: bool,
    again: bool,
    counters: bool,
    resume: bool,
    commits: str | None,
    skip_existing: bool,
    commit: str | None,
    bundle: Path | None,
    out: Path | None,
    jobs: int | None,
    nvcc: str | None,
    style: str,
) -> None:
    """Compile, inspect, verify, time and record VERSIONS (all by default) for HEAD, and print the ladder.

    A version that does not compile is reported and the others go on; the exit code is then 1, and 5 when a version is wrong.

    \b
    Example:
      faperf run                       all versions, all targets
      faperf run v13 --target sm_103a  one of them
      faperf run v13 --counters        and what the hardware counts in one launch
      faperf run --commits v1.0..HEAD --skip-existing
      faperf run --bundle job.faperf   on a GPU host without git, nvcc or the sources
    """
    if out and not bundle:
        raise click.UsageError("--out goes with --bundle")
    if bundle:
        _refuse_others(click.get_current_context(), ("bundle", "out"))
        _run_bundle(directory, bundle, out or bundle.with_name(bundle.name + ".results"))
        return
    if commits and resume:
        raise click.UsageError("--resume goes on with a run of the working tree; with --commits use --skip-existing")
    if skip_existing and not commits:
        raise click.UsageError("--skip-existing goes with --commits")
    from faperf.errors import SelectionError
    from faperf.worker import Here

    with nullcontext(Here()) if no_gpu or commits else Here.find() as here, progress_shown() as progress:
        from faperf.building import Selection, Workshop  # while the worker's own libraries load
        from faperf.harness import Wish, run_tree

        project = open_project(directory)
        if not (versions or commits) and not project.has_versions:
            raise SelectionError("manifests/ has no version yet", remedy="faperf new NAME starts one")
        selection = Selection(versions, targets)
        workshop = Workshop.open(project, nvcc=nvcc, jobs=jobs, progress=progress)
        if commits:
            outcomes = _run_commits(workshop, commits, selection, skip_existing)
        else:
            wish = Wish(resume=resume, again=again, workloads=workloads, commit=commit, emulate=not no_gpu)
            outcomes = [run_tree(workshop, selection, wish, here)]
    if not commits:
        (outcome,) = outcomes
        shown = workloads[0] if workloads else None
        print_ladder(project, workshop.history, outcome.run, outcome.builds, targets, style, shown)
        _say_recorded(project, workshop.history, outcome)
        _warn_flat(workshop.history, outcome.run)
        if counters:
            _count(workshop, selection, outcome, workloads, here, nvcc, style)
    failures = [failure for outcome in outcomes for failure in outcome.failures]
    for failure in failures:
        complain(str(failure))
    if not commits:
        failures += say_broken(project)
    say_warnings(workshop.history)
    if any(outcome.wrong for outcome in outcomes):
        sys.exit(WRONG)
    if failures:
        sys.exit(1)


@click.command()
@click.argument("versions", nargs=-1, type=VERSION)
@click.option("--out", "path", type=click.Path(path_type=Path), required=True, help="The file to write.")
@targets_option
@workloads_option
@jobs_option
@nvcc_option
@click.pass_obj
def bundle(
    directory: Path,
    versions: tuple[str, ...],
    path: Path,
    targets: tuple[str, ...],
    workloads: tuple[str, ...],
    jobs: int | None,
    nvcc: str | None,
) -> None:
    """Build VERSIONS here and pack all that a GPU host needs to measure them: cubins, launches, protocol, commit.

    \b
    Example:
      faperf bundle --out job.faperf    then, on the GPU host: faperf run --bundle job.faperf
      faperf import job.faperf.results  back here
    """
    from faperf.building import Selection, Workshop
    from faperf.harness import bundle_tree
    from faperf.measuring import write_bundle

    with progress_shown() as progress:
        workshop = Workshop.open(open_project(directory), nvcc=nvcc, jobs=jobs, progress=progress)
        outcome, job = bundle_tree(workshop, Selection(versions, targets), workloads)
    for failure in outcome.failures:
        complain(str(failure))
    write_bundle(job, path)
    click.echo(f"{path}: {len(job.tasks)} to measure, {path.stat().st_size / 1e6:.1f} MB")
    if outcome.failures:
        sys.exit(1)


@click.command("exec")
@click.argument("versions", nargs=-1, required=True, type=VERSION)
@click.option("--once", is_flag=True, required=True, help="One launch; there is no other way yet.")
@click.option("--target", metavar="SM", type=TARGET, help="The target; the first that runs here by default.")
@click.option("--workload", metavar="NAME", type=WORKLOAD, help="The workload; the version's first by default.")
@nvcc_option
@click.pass_obj
def execute(
    directory: Path, versions: tuple[str, ...], once: bool, target: str | None, workload: str | None, nvcc: str | None
) -> None:
    """Launch VERSIONS in this process, on normal inputs, for ncu and compute-sanitizer.

    Only those launches stand between cudaProfilerStart and Stop (ncu --profile-from-start off); behind each of several follows a
    kernel named stamp.

    \b
    Example:
      ncu --clock-control none -k attention_forward faperf exec v13 --once
    """
    from faperf.building import Selection, Workshop
    from faperf.harness import exec_once
    from faperf.manifest import load_manifests

    project = open_project(directory)
    manifests = load_manifests(project)
    Selection(versions).steps(manifests)
    exec_once(Workshop.open(project, nvcc=nvcc), [manifests.versions[name] for name in versions], target, workload)
    click.echo(f"{', '.join(versions)}: launched once")


def _refuse_others(context: click.Context, allowed: Sequence[str]) -> None:
    """Raises UsageError for what was given beside a bundle, which says itself what is measured."""
    for parameter in context.command.params:
        given = context.get_parameter_source(str(parameter.name)) is ParameterSource.COMMANDLINE
        if given and parameter.name not in allowed:
            name = parameter.opts[0] if isinstance(parameter, click.Option) else parameter.human_readable_name
            what = f"{name} does not go with --bundle: what a bundle measures was said to faperf bundle"
            raise click.UsageError(what)


def _warn_flat(history: History, run: Run) -> None:
    """Of each version whose time stays as it is while its workloads grow."""
    from faperf.figures import timings_of
    from faperf.report.worth import flat_line

    for entry in run.entries:
        if len(entry.measured) > 1 and (line := flat_line(timings_of(history, run, entry.version, entry.target))):
            warn(f"{entry.version} for {entry.target}: {line}")


def _run_bundle(directory: Path, bundle: Path, out: Path) -> None:
    """Measure a bundle; there may be no project here, and if there is it lends its operations."""
    from faperf.errors import ConfigError
    from faperf.harness import run_bundle
    from faperf.measuring import read_bundle, write_results
    from faperf.operations import Operations, load_operations
    from faperf.project import Project

    try:
        project = Project.find(directory)
    except ConfigError:
        operations = Operations({})
    else:
        operations = load_operations(project)
    with progress_shown() as progress:
        results = run_bundle(read_bundle(bundle), operations, progress)
    write_results(results, out)
    click.echo(f"{out}: {len(results.records)} records; bring it home and faperf import it")
    if results.wrong:
        sys.exit(WRONG)


def _count(
    workshop: Workshop,
    selection: Any,
    outcome: Outcome,
    workloads: tuple[str, ...],
    here: Any,
    nvcc: str | None,
    style: str,
) -> None:
    """Counters behind the ladder; where they are refused, a line says why and nothing fails."""
    from faperf.counting import count_versions
    from faperf.report.worth import counters_text

    with progress_shown() as progress:
        workshop.progress = progress
        found = count_versions(workshop, selection, outcome, workloads, here.gpu, nvcc)
    if found.rows:
        click.echo("\n" + counters_text(found.rows, style))
    for line in [*found.notes, *([found.refused] if found.refused else [])]:
        complain(line)
    if found.recorded:
        click.echo(f"Recorded in {workshop.project.relative(found.recorded)}", err=True)


def _run_commits(workshop: Workshop, span: str, selection: Any, skip_existing: bool) -> list[Outcome]:
    from faperf.errors import SelectionError
    from faperf.harness import run_commit

    if workshop.repository is None:
        raise SelectionError("there is no git repository here, so there are no commits")
    outcomes = []
    for commit in workshop.repository.commits(span):
        name = f"{commit[:12]} {workshop.repository.subject(commit)}"
        if skip_existing and workshop.history.newest_run(commit, dirty=False):
            click.echo(f"{name}: has a record")
            continue
        outcome = run_commit(workshop, commit, selection)
        outcomes.append(outcome)
        built = sum(1 for entry in outcome.run.entries if entry.build)
        click.echo(f"{name}: {built} built, {len(outcome.failures)} failed")
    return outcomes


def _say_recorded(project: Project, history: History, outcome: Outcome) -> None:
    if any(run.commit == outcome.run.commit for run in history.pending()):
        note("An unfinished run of this commit is there: --resume goes on with it, faperf gc drops it.")
    if outcome.recorded is None:
        note("Nothing new to record: this commit's record says the same.")
    else:
        note(f"Recorded in {project.relative(outcome.recorded)}")
