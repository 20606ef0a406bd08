"""The commands: parse, call, print. Everything heavy is imported inside the command that needs it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from faperf import __version__
from faperf.errors import FaperfError

if TYPE_CHECKING:
    from faperf.building import Outcome, Progress, Workshop
    from faperf.history import History
    from faperf.project import Project
    from faperf.record import Build, Run

INTERRUPTED = 130
REGRESSION = 3
WRONG = 5

F = TypeVar("F", bound=Callable[..., Any])


def main() -> None:
    """Run a command; turn faperf's errors into a message and an exit code, here and nowhere else."""
    try:
        sys.exit(cli.main(standalone_mode=False) or 0)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except FaperfError as error:
        complain(str(error))
        sys.exit(error.exit_code)
    except (KeyboardInterrupt, click.Abort):
        complain("interrupted; finished builds are kept: faperf run --resume goes on")
        sys.exit(INTERRUPTED)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(1)
    except OSError as error:
        complain(f"{error.filename or 'the system'}: {error.strerror or error}")
        sys.exit(1)


def complain(message: str) -> None:
    click.echo(f"{click.style('faperf:', fg='red')} {message}", err=True)


def format_option(command: F) -> F:
    return click.option(
        "--format", "style", type=click.Choice(["table", "markdown", "json"]), default="table", show_default=True,
        help="How to print.",
    )(command)  # fmt: skip


def nvcc_option(command: F) -> F:
    return click.option("--nvcc", metavar="PATH", help="The nvcc to build with (or FAPERF_NVCC).")(command)


def jobs_option(command: F) -> F:
    return click.option(
        "--jobs", "-j", type=click.IntRange(min=1), help="Builds at a time; as many as there are cores by default."
    )(command)


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="faperf")
@click.option(
    "-C", "directory", type=click.Path(exists=True, file_okay=False, path_type=Path), default=Path(),
    help="Work as if started in this directory.",
)  # fmt: skip
@click.pass_context
def cli(context: click.Context, directory: Path) -> None:
    """The regression harness and performance history of a kernel that is tuned through many versions.

    \b
    faperf run                compile, inspect and record every version; print the ladder
    faperf diff HEAD~1 HEAD   what a commit changed
    """
    context.obj = directory


@cli.command()
@click.argument("versions", nargs=-1)
@click.option("--target", "targets", multiple=True, metavar="SM", help="Only this target (sm_103a); may be repeated.")
@click.option(
    "--workload", "workloads", multiple=True, metavar="NAME", help="Measure on this workload; may be repeated."
)
@click.option("--no-gpu", is_flag=True, help="Compile and inspect only, even where a GPU is.")
@click.option("--again", is_flag=True, help="Measure what an earlier run has measured, too.")
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
      faperf run --commits v1.0..HEAD --skip-existing
      faperf run --bundle job.faperf   on a GPU host without git, nvcc or the sources
    """
    if bundle:
        _run_bundle(bundle, out or bundle.with_name(bundle.name + ".results"))
        return
    from faperf.building import Selection, Workshop
    from faperf.harness import Wish, run_tree

    if commits and resume:
        raise click.UsageError("--resume goes on with a run of the working tree; with --commits use --skip-existing")
    if skip_existing and not commits:
        raise click.UsageError("--skip-existing goes with --commits")
    project = _project(directory)
    selection = Selection(versions, targets)
    with _progress() as progress:
        workshop = Workshop.open(project, nvcc=nvcc, jobs=jobs, progress=progress)
        if commits:
            outcomes = _run_commits(workshop, commits, selection, skip_existing)
        else:
            wish = Wish(no_gpu=no_gpu, resume=resume, again=again, workloads=workloads, commit=commit)
            outcomes = [run_tree(workshop, selection, wish)]
    if not commits:
        (outcome,) = outcomes
        shown = workloads[0] if workloads else None
        _print_ladder(project, workshop.history, outcome.run, outcome.builds, targets, style, shown)
        _say_recorded(project, workshop.history, outcome)
    failures = [failure for outcome in outcomes for failure in outcome.failures]
    for failure in failures:
        complain(str(failure))
    if not commits:
        failures += _say_broken(project)
    _say_warnings(workshop.history)
    if any(outcome.wrong for outcome in outcomes):
        sys.exit(WRONG)
    if failures:
        sys.exit(1)


@cli.command()
@click.option("--target", metavar="SM", help="The target to show; by default that of pyproject.toml, or sm_103a.")
@click.option("--commit", metavar="REF", help="The record of this commit; the newest of HEAD by default.")
@click.option("--workload", metavar="NAME", help="Measured figures on this workload; each version's first by default.")
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
    from faperf.figures import builds_of, informed, latest_run, open_repository
    from faperf.history import History
    from faperf.manifest import load_manifests
    from faperf.measuring import check_workloads

    project = _project(directory)
    history, repository = History(project), open_repository(project)
    if commit:
        if repository is None:
            raise SelectionError("there is no git repository here, so there are no commits")
        chosen = history.newest_run(repository.resolve(commit))
        if chosen is None:
            raise SelectionError(f"no record of {commit}", remedy=f"faperf run --commits {commit}~1..{commit}")
    else:
        chosen = latest_run(history, repository)
    if workload:
        there = [name for entry in (chosen.entries if chosen else []) for name in entry.launches]
        check_workloads([workload], [*load_manifests(project).workloads, *there])
    chosen = informed(history, repository, chosen) if chosen else None
    builds = builds_of(history, chosen) if chosen else {}
    _print_ladder(project, history, chosen, builds, (target,) if target else (), style, workload)
    _say_warnings(history)


@cli.command()
@click.argument("a")
@click.argument("b", required=False)
@click.option("--exit-code", is_flag=True, help="Exit with 3 on a regression, with 5 when a version no longer builds.")
@click.option("--all", "show_unchanged", is_flag=True, help="Show unchanged versions too.")
@click.option("--rerun", "again", is_flag=True, help="Time both commits' builds interleaved here, on this GPU.")
@click.option("--workload", metavar="NAME", help="Measured figures on this workload; each version's first by default.")
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
    """
    from faperf.building import Selection, Workshop
    from faperf.comparison import diff as compare
    from faperf.comparison import rerun
    from faperf.errors import SelectionError
    from faperf.figures import silicon_of
    from faperf.harness import Wish, rerun_commits, run_of, run_tree
    from faperf.judge import Verdict, thresholds_from
    from faperf.manifest import load_manifests
    from faperf.measuring import check_workloads
    from faperf.report.terminal import diff_text

    project = _project(directory)
    with _progress() as progress:
        workshop = Workshop.open(project, nvcc=nvcc, jobs=jobs, progress=progress)
        if workshop.repository is None:
            raise SelectionError("there is no git repository here, so there are no commits to compare")
        old_commit = workshop.repository.resolve(a)
        new_commit = workshop.repository.resolve(b) if b else None
        old, old_builds = run_of(workshop, old_commit)
        if new_commit:
            new, new_builds = run_of(workshop, new_commit)
        else:
            outcome = run_tree(workshop, Selection(), Wish(no_gpu=True))
            new, new_builds = outcome.run, outcome.builds
    if workload:
        there = [name for entry in [*old.entries, *new.entries] for name in entry.launches]
        check_workloads([workload], [*load_manifests(project).workloads, *there])
    limits, history = thresholds_from(project.config.thresholds), workshop.history
    silicon = (silicon_of(history, old, workload), silicon_of(history, new, workload))
    rows = compare(old, new, {**old_builds, **new_builds}, limits, *silicon)
    if again:
        if new_commit is None:
            raise click.UsageError("--rerun compares two commits; commit the working tree first")
        with _progress() as progress:
            workshop.progress = progress
            timings = rerun_commits(workshop, old_commit, new_commit, rows, (workload,) if workload else ())
        rows = rerun(rows, timings, limits)
    click.echo(diff_text(rows, old, new, style, show_unchanged=show_unchanged))
    _say_warnings(workshop.history)
    if exit_code:
        broken = any(row.verdict is Verdict.BROKEN for row in rows)
        sys.exit(WRONG if broken else REGRESSION if any(row.regression for row in rows) else 0)


@cli.command()
@click.argument("versions", nargs=-1)
@click.option("--out", "path", type=click.Path(path_type=Path), required=True, help="The file to write.")
@click.option("--target", "targets", multiple=True, metavar="SM", help="Only this target (sm_90a); may be repeated.")
@click.option(
    "--workload", "workloads", multiple=True, metavar="NAME", help="Measure on this workload; may be repeated."
)
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

    with _progress() as progress:
        workshop = Workshop.open(_project(directory), nvcc=nvcc, jobs=jobs, progress=progress)
        outcome, job = bundle_tree(workshop, Selection(versions, targets), workloads)
    for failure in outcome.failures:
        complain(str(failure))
    write_bundle(job, path)
    click.echo(f"{path}: {len(job.tasks)} to measure, {path.stat().st_size / 1e6:.1f} MB")
    if outcome.failures:
        sys.exit(1)


@cli.command("import")
@click.argument("results", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.pass_obj
def import_(directory: Path, results: Path) -> None:
    """File the RESULTS of a bundle that another host measured.

    \b
    Example:
      faperf import job.faperf.results
    """
    from faperf.harness import import_results
    from faperf.history import History
    from faperf.measuring import read_results

    project = _project(directory)
    path = import_results(History(project), read_results(results))
    click.echo(f"Recorded in {project.relative(path)}")


@cli.command("exec")
@click.argument("version")
@click.option("--once", is_flag=True, required=True, help="One launch; there is no other way yet.")
@click.option("--target", metavar="SM", help="The target; the first that runs here by default.")
@click.option("--workload", metavar="NAME", help="The workload; the version's first by default.")
@nvcc_option
@click.pass_obj
def execute(
    directory: Path, version: str, once: bool, target: str | None, workload: str | None, nvcc: str | None
) -> None:
    """Launch VERSION in this process, on normal inputs, for ncu and compute-sanitizer.

    \b
    Example:
      ncu --clock-control none -k attention_forward faperf exec v13 --once
    """
    from faperf.building import Selection, Workshop
    from faperf.harness import exec_once
    from faperf.manifest import load_manifests

    project = _project(directory)
    manifests = load_manifests(project)
    Selection((version,)).steps(manifests)
    exec_once(Workshop.open(project, nvcc=nvcc), manifests.versions[version], target, workload)
    click.echo(f"{version}: launched once")


@cli.command()
@click.argument("version")
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
    from faperf.figures import builds_of, informed, latest_run, open_repository, silicon_of
    from faperf.history import History
    from faperf.judge import thresholds_from
    from faperf.manifest import load_manifests
    from faperf.report.terminal import show_text

    project = _project(directory)
    history, manifests = History(project), load_manifests(project)
    reported = history.reported_row(version)
    if version not in manifests.versions and reported is None:
        raise SelectionError(
            f"no version '{version}'", remedy="faperf list shows what there is; faperf check, what is broken"
        )
    repository = open_repository(project)
    newest = latest_run(history, repository)
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
    click.echo(show_text(manifests.versions.get(version), version, pairs, findings, reported, silicon, style))
    _say_warnings(history)


@cli.command("list")
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

    project = _project(directory)
    click.echo(list_text(load_manifests(project), style))
    if _say_broken(project):
        sys.exit(1)


@cli.command()
@format_option
@click.pass_obj
def check(directory: Path, style: str) -> None:
    """Lint every manifest without compiling: keys, files, parents, budgets, grids, flags. Exit code 1 when one is wrong.

    \b
    Example:
      faperf check
    """
    from faperf.lint import lint
    from faperf.manifest import load_manifests
    from faperf.operations import load_operations
    from faperf.report.terminal import as_json, table

    project = _project(directory)
    manifests = load_manifests(project)
    problems = lint(project, manifests, load_operations(project.config.operations))
    if style == "json":
        click.echo(as_json(problems))
    elif style == "markdown":
        click.echo(table(("where", "what"), [(p.where, p.what) for p in problems], style))
    else:
        for problem in problems:
            click.echo(str(problem))
        count = len(manifests.versions) + len(manifests.broken)
        click.echo(f"{count} manifests, {len(problems) or 'no'} problem{'' if len(problems) == 1 else 's'}")
    if problems:
        sys.exit(1)


@cli.command()
@click.argument("version")
@click.option("--from", "parent", required=True, metavar="W", help="The version to start from.")
@click.option("--title", default="say what this version changes", show_default=True, help="A line for the ladder.")
@click.pass_obj
def new(directory: Path, version: str, parent: str, title: str) -> None:
    """Start VERSION from another one: copy its kernel and its manifest.

    \b
    Example:
      faperf new v14 --from v13 --title "TMA replaces cp.async"
    """
    from faperf.building import Selection
    from faperf.manifest import load_manifests
    from faperf.scaffold import new_version

    project = _project(directory)
    manifests = load_manifests(project)
    Selection((parent,)).steps(manifests)
    source, manifest = new_version(project, version, manifests.versions[parent], title)
    click.echo(f"{project.relative(source)}\n{project.relative(manifest)}")
    click.echo(f"Edit them, then: faperf check && faperf run {version}")


@cli.command()
@nvcc_option
@format_option
@click.pass_obj
def doctor(directory: Path, nvcc: str | None, style: str) -> None:
    """What is here, what is missing, and how to get it. Exit code 1 when faperf cannot compile here.

    \b
    Example:
      faperf doctor
    """
    from faperf.doctor import examine
    from faperf.report.terminal import as_json, table

    found = examine(_project(directory), nvcc)
    if style == "json":
        click.echo(as_json(found))
    else:
        words = {(True, True): "ok", (True, False): "ok", (False, True): "MISSING", (False, False): "no"}
        rows = [(d.what, words[d.ok, d.needed], d.found, d.remedy if not d.ok else "") for d in found]
        click.echo(table(("", "", "found", "to get it"), rows, style, {"found": 60, "to get it": 50}))
    if any(d.needed and not d.ok for d in found):
        sys.exit(1)


@cli.command()
@click.option("--older-than", "days", type=click.FloatRange(min=0), default=30.0, show_default=True, metavar="DAYS")
@click.option("--all", "everything", is_flag=True, help="The whole cache, whatever its age.")
@click.option("--dry-run", is_flag=True, help="Only say what would go.")
@click.pass_obj
def gc(directory: Path, days: float, everything: bool, dry_run: bool) -> None:
    """Clean .faperf/: cached builds, files of other commits, unfinished runs. Records are kept.

    \b
    Example:
      faperf gc --older-than 7
    """
    from faperf.garbage import sweep

    swept = sweep(_project(directory), older_than_days=0 if everything else days, dry_run=dry_run)
    verb = "would remove" if dry_run else "removed"
    click.echo(f"{verb} {swept.count} things, {swept.size / 1e6:.1f} MB")


@cli.group()
def machine() -> None:
    """Whether this machine's records are shared through git.

    \b
    Example:
      faperf machine add
    """


@machine.command("add")
@click.option(
    "--class", "machine_class", metavar="NAME", help="Its class; by default GPU name, power limit and memory."
)
@click.pass_obj
def machine_add(directory: Path, machine_class: str | None) -> None:
    """Enrol this machine: from now on its records go to history/, to be committed.

    \b
    Example:
      faperf machine add
    """
    import re

    from faperf.device import NO_GPU_CLASS, find_gpu
    from faperf.history import History

    if machine_class and (
        not re.fullmatch(r"[a-z0-9][a-z0-9.-]*", machine_class) or machine_class in ("builds", "reported")
    ):
        raise click.BadParameter(
            "lower-case letters, digits, '.' and '-'; not builds or reported", param_hint="--class"
        )
    gpu, _ = find_gpu()
    name = machine_class or (gpu.machine_class if gpu else NO_GPU_CLASS)
    History(_project(directory)).enrol(name)
    click.echo(f"enrolled as {name}: records of this machine go to history/{name}/ and history/builds/; commit them")


# ── what several commands share ──────────────────────────────────────────────────────────────────────────────────────


def _project(directory: Path) -> Project:
    from faperf.project import Project

    return Project.find(directory)


def _run_bundle(bundle: Path, out: Path) -> None:
    """Measure a bundle; there may be no project here."""
    from faperf.harness import run_bundle
    from faperf.measuring import read_bundle, write_results

    results = run_bundle(read_bundle(bundle), lambda line: click.echo(line, err=True))
    write_results(results, out)
    click.echo(f"{out}: {len(results.records)} records; bring it home and faperf import it")
    if results.wrong:
        sys.exit(WRONG)


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


def _print_ladder(
    project: Project,
    history: History,
    chosen: Run | None,
    builds: dict[str, Build],
    targets: tuple[str, ...],
    style: str,
    workload: str | None = None,
) -> None:
    from faperf.comparison import ladder as build_ladder
    from faperf.figures import silicon_of
    from faperf.judge import thresholds_from
    from faperf.manifest import load_manifests
    from faperf.report.terminal import ladder_text

    manifests, reported = load_manifests(project), history.reported()
    limits = thresholds_from(project.config.thresholds)
    known = sorted({t for v in manifests.versions.values() for t in v.targets} | {file.target for file in reported})
    default = project.config.default_target
    chosen_targets = list(targets) or [default if default in known or not known else known[0]]
    silicon = silicon_of(history, chosen, workload) if chosen else {}
    partners = {pair.build for m in silicon.values() if m.timing for pair in m.timing.pairs} - set(builds)
    builds = builds | {key: build for key in partners if (build := history.build(key))}
    if not targets and chosen and not any(t == chosen_targets[0] for _, t in silicon):
        chosen_targets += sorted({t for _, t in silicon})  # what was measured here is shown, whatever the default is
    texts = []
    for target in chosen_targets:
        rows = build_ladder(target, manifests, chosen, builds, reported, limits, silicon)
        texts.append(ladder_text(rows, target, chosen, reported, style))
    joined = f"[{', '.join(texts)}]" if style == "json" and len(texts) > 1 else "\n\n".join(texts)
    click.echo(joined)
    others = [target for target in known if target not in chosen_targets]
    if others and style == "table":
        click.echo(f"\nOther targets: {', '.join(f'faperf ladder --target {target}' for target in others)}")


def _say_recorded(project: Project, history: History, outcome: Outcome) -> None:
    if any(run.commit == outcome.run.commit for run in history.pending()):
        click.echo("An unfinished run of this commit is there: --resume goes on with it, faperf gc drops it.", err=True)
    if outcome.recorded is None:
        click.echo("Nothing new to record: this commit's record says the same.", err=True)
    else:
        click.echo(f"Recorded in {project.relative(outcome.recorded)}", err=True)


def _say_broken(project: Project) -> list[FaperfError]:
    from faperf.manifest import load_manifests

    broken = load_manifests(project).broken
    for error in broken:
        complain(str(error))
    return list(broken)


def _say_warnings(history: History) -> None:
    for warning in history.warnings:
        click.echo(f"{click.style('warning:', fg='yellow')} {warning}", err=True)


@contextmanager
def _progress() -> Iterator[Progress]:
    """A bar on a terminal, a line for each build elsewhere; nothing where everything comes from the cache."""
    from faperf.building import Progress

    if not sys.stderr.isatty():
        yield Progress(
            step=lambda label, cached: None if cached else click.echo(label, err=True),
            say=lambda line: click.echo(line, err=True),
        )
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("building", total=None)
        yield Progress(
            begin=lambda total: bar.reset(task, total=total),
            step=lambda label, cached: bar.update(task, advance=1, description=label),
            say=lambda line: bar.console.print(line, highlight=False, markup=False),
        )
