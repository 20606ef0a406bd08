"""What searches: bisect."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from pathlib import Path

import click

from faperf.cli.complete import TARGET, VERSION, WORKLOAD
from faperf.cli.screen import present, progress_shown
from faperf.cli.shared import format_option, jobs_option, nvcc_option, open_project, say_warnings


@click.command()
@click.argument("version", type=VERSION)
@click.option("--good", required=True, metavar="REF", help="A commit where it was fine.")
@click.option("--bad", default="HEAD", show_default=True, metavar="REF", help="A later commit where it is worse.")
@click.option("--target", metavar="SM", type=TARGET, help="For this target (sm_103a); by default one that runs here.")
@click.option(
    "--workload", metavar="NAME", type=WORKLOAD, help="Measure on this workload; by default the version's first."
)
@click.option(
    "--metric",
    type=click.Choice(["time", "static", "accuracy"]),
    help="Worse by what; time where a GPU that runs the target is here, else static.",
)
@jobs_option
@nvcc_option
@format_option
@click.pass_obj
def bisect(
    directory: Path,
    version: str,
    good: str,
    bad: str,
    target: str | None,
    workload: str | None,
    metric: str | None,
    jobs: int | None,
    nvcc: str | None,
    style: str,
) -> None:
    """Find the first-parent commit that made VERSION worse. Builds few commits, jumps those that run the same code.

    Exit code 0: found; 4: commits that do not build, or verdicts that were inconclusive, leave several. Nothing is checked out.

    \b
    Example:
      faperf bisect v13 --good v1.0
      faperf bisect v13 --good HEAD~20 --metric static --target sm_103a
    """
    from faperf.worker import Here

    with nullcontext(Here()) if metric == "static" else Here.find() as here, progress_shown() as progress:
        from faperf.bisect import Metric, Question  # while the worker's own libraries load
        from faperf.bisect import bisect as find
        from faperf.building import Workshop
        from faperf.report.terminal import bisect_text

        workshop = Workshop.open(open_project(directory), nvcc=nvcc, jobs=jobs, progress=progress)
        question = Question(version, good, bad, target, workload, Metric(metric) if metric else None)
        found = find(workshop, question, here)
    present(bisect_text(found, style), style)
    say_warnings(workshop.history)
    sys.exit(int(found.status))
