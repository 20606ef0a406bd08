"""The site that `faperf report` writes."""

from __future__ import annotations

import time
from pathlib import Path

import click

from faperf.cli.shared import open_project, say_broken, say_warnings


@click.command()
@click.option(
    "--output", type=click.Path(file_okay=False, path_type=Path), metavar="DIR",
    help="Where to write it; .faperf/report by default.",
)  # fmt: skip
@click.pass_obj
def report(directory: Path, output: Path | None) -> None:
    """Write a site of all that history tells: static files that need no server and no network.

    \b
    Example:
      faperf report
      faperf report --output public    as a CI artefact, or for a web server
    """
    from faperf.history import History
    from faperf.site import write_site

    project = open_project(directory)
    history = History(project)
    began = time.monotonic()
    into = output or project.make_state() / "report"
    commits = write_site(project, history, into)
    click.echo(f"{into / 'index.html'}: {commits} recorded commits, in {time.monotonic() - began:.1f} s")
    say_broken(project)
    say_warnings(history)
