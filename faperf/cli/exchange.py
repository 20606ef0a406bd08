"""What trades figures with other hosts and other tools: import, export."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from faperf.cli.screen import complain, note
from faperf.cli.shared import open_project, say_warnings

if TYPE_CHECKING:
    from faperf.project import Project
    from faperf.record import Run


@click.command("import")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--version", metavar="VERSION", help="For nvbench's: the version that its benchmarks are of.")
@click.pass_obj
def import_(directory: Path, file: Path, version: str | None) -> None:
    """File what was measured elsewhere: the results of a bundle, or what nvbench --json wrote. FILE tells which by its content.

    Figures of nvbench stay a kind of their own: faperf show prints them beside its own, and nothing compares the two.

    \b
    Example:
      faperf import job.faperf.results
      faperf import bench.json --version v13    of `nvbench --json bench.json`
    """
    from faperf.errors import SelectionError
    from faperf.harness import import_results
    from faperf.history import History
    from faperf.measuring import read_results
    from faperf.nvbench import is_nvbench

    project = open_project(directory)
    history = History(project)
    if not is_nvbench(file.read_bytes()):
        if version:
            raise SelectionError("--version is for a file of nvbench's; the results of a bundle say it themselves")
        path = import_results(history, read_results(file))
        click.echo(f"Recorded in {project.relative(path)}")
        return
    _import_nvbench(project, file, version)


def _import_nvbench(project: Project, file: Path, version: str | None) -> None:
    from faperf.building import Selection
    from faperf.errors import HistoryError, SelectionError
    from faperf.figures import open_repository
    from faperf.history import History, now
    from faperf.manifest import load_manifests
    from faperf.nvbench import benchmark_names, figures_in, skipped_in

    content, history, manifests = file.read_bytes(), History(project), load_manifests(project)
    names = benchmark_names(content)
    Selection((version,) if version else ()).steps(manifests)
    versions = {name: version or name for name in names if version or name in manifests.versions}
    if not versions:
        what = f"no version is called as a benchmark of it: {', '.join(names) or 'it has none'}"
        raise SelectionError(what, where=str(file), remedy="name the version: --version V")
    repository = open_repository(project)
    found = figures_in(content, versions, repository.head() if repository else None, now())
    if not found:
        raise HistoryError("holds no figure: every state was skipped", where=str(file))
    path = history.file_external(found)
    of = ", ".join(dict.fromkeys(figure.version for figure in found))
    click.echo(f"{len(found)} figures of {found[0].tool} for {of}, by its protocol: {project.relative(path)}")
    left = [name for name in names if name not in versions]
    if left:
        note(f"Left out, as no version is called so: {', '.join(left)}")
    if skipped := skipped_in(content):
        note(f"Left out, as nvbench skipped them: {len(skipped)} states ({'; '.join(dict.fromkeys(skipped))})")
    say_warnings(history)


@click.command()
@click.argument("style", metavar="FORMAT", type=click.Choice(["csv", "pytest-benchmark", "github-action-benchmark"]))
@click.option("--commit", metavar="REF", help="The record of this commit; the newest of HEAD by default.")
@click.option("--all", "everything", is_flag=True, help="Every recorded run, oldest first; csv only.")
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), help="The file to write; stdout by default.")
@click.pass_obj
def export(directory: Path, style: str, commit: str | None, everything: bool, out: Path | None) -> None:
    """Recorded figures for other tools: csv, pytest-benchmark (its compare reads it) or github-action-benchmark.

    Measured figures alone, never reported ones. github-action-benchmark takes its file as tool customSmallerIsBetter.

    \b
    Example:
      faperf export csv --all --out history.csv
      faperf export pytest-benchmark --out .benchmarks/head.json
      faperf export github-action-benchmark --out bench.json
    """
    from faperf.figures import figures_of, latest_run, open_repository
    from faperf.history import History, write_atomically
    from faperf.report.export import EXPORTS

    if everything and (style != "csv" or commit):
        raise click.UsageError("--all is for csv, and without --commit: the other formats hold one run")
    project = open_project(directory)
    history, repository = History(project), open_repository(project)
    runs: list[Run | None]
    if everything:
        runs = [history.load_run(run_file) for run_file in history.run_files()]
    elif commit:
        runs = [history.newest_run(repository.resolve(commit)) if repository else None]
    else:
        runs = [latest_run(history, repository)]
    figures = [figure for run in runs if run for figure in figures_of(history, run)]
    timed = sum(figure.timing is not None for figure in figures)
    text = f"{EXPORTS[style](figures)}\n"
    if out:
        write_atomically(out, text.encode())
        click.echo(f"{out}: {len(figures)} figures, {timed} of them timed")
    else:
        click.echo(text, nl=False)
    say_warnings(history)
    if not figures or (style != "csv" and not timed):
        complain("nothing to export: " + ("no record" if not figures else "no timing on record"))
        sys.exit(1)
