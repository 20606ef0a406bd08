"""Why: explain."""

from __future__ import annotations

from pathlib import Path

import click

from faperf.cli.shared import format_option, nvcc_option, open_project, progress_shown, say_warnings


@click.command()
@click.argument("version")
@click.option("--against", metavar="VERSION", help="Compare with this version; by default with the parent.")
@click.option(
    "--against-nvcc",
    metavar="PATH|RELEASE",
    help="Compare with the same version as this compiler builds it, as for --nvcc.",
)
@click.option("--target", metavar="SM", help="For this target; by default that of pyproject.toml, else the first.")
@click.option("--workload", metavar="NAME", help="Measured figures on this workload; the version's first by default.")
@click.option("--sass", is_flag=True, help="Show the instructions of the loop that changed, too.")
@nvcc_option
@format_option
@click.pass_obj
def explain(
    directory: Path,
    version: str,
    against: str | None,
    against_nvcc: str | None,
    target: str | None,
    workload: str | None,
    sass: bool,
    nvcc: str | None,
    style: str,
) -> None:
    """Why VERSION is as fast as it is: ranked causes with their evidence, source lines and what to try.

    From static facts, timings, accuracy and counters as far as they are known. Builds what it looks at; records nothing.

    \b
    Example:
      faperf explain v18
      faperf explain v17 --against v16-i16 --sass
      faperf explain v15 --against-nvcc 13.5
    """
    if against and against_nvcc:
        raise click.UsageError("--against-nvcc compares a version with itself; leave --against out")
    from faperf.building import Workshop
    from faperf.explaining import Question
    from faperf.explaining import explain as find
    from faperf.report.explanation import explanation_text

    with progress_shown() as progress:
        workshop = Workshop.open(open_project(directory), nvcc=nvcc, progress=progress)
        found = find(workshop, Question(version, against, target, workload, against_nvcc))
    click.echo(explanation_text(found.diagnosis, found.sass if sass or style == "json" else None, style))
    say_warnings(workshop.history)
