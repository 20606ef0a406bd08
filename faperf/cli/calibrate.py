"""What a gate's verdict is worth on this machine: calibrate."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from faperf.cli.complete import VERSION
from faperf.cli.screen import complain, present, progress_shown
from faperf.cli.shared import (
    WRONG,
    format_option,
    jobs_option,
    nvcc_option,
    open_project,
    say_warnings,
    targets_option,
    workloads_option,
)


@click.command()
@click.argument("versions", nargs=-1, type=VERSION)
@targets_option
@workloads_option
@click.option(
    "--gates", type=click.IntRange(min=2), default=20, show_default=True, help="So many of each version and workload."
)
@click.option(
    "--budget",
    "budget_s",
    type=click.FloatRange(min=0.2),
    default=2.0,
    show_default=True,
    metavar="SECONDS",
    help="GPU time of a gate for a version, as for faperf gate.",
)
@click.option("--show", "shown", is_flag=True, help="Measure nothing: add up the calibrations on record.")
@jobs_option
@nvcc_option
@format_option
@click.pass_obj
def calibrate(
    directory: Path,
    versions: tuple[str, ...],
    targets: tuple[str, ...],
    workloads: tuple[str, ...],
    gates: int,
    budget_s: float,
    shown: bool,
    jobs: int | None,
    nvcc: str | None,
    style: str,
) -> None:
    """Many gates of each of VERSIONS (all by default) against itself, on the GPU that is here: what they call a change is a
    false alarm, and how they scatter tells the smallest change that a gate sees. Recorded; faperf gate reads it.

    \b
    Example:
      faperf calibrate v13             20 gates, some 50 s
      faperf calibrate --show          all calibrations added up; needs no GPU
    """
    from faperf.history import History
    from faperf.power import added_up, tallies
    from faperf.report.calibration import calibration_text

    project = open_project(directory)
    history = History(project)
    if shown:
        known = history.calibrations()
        present(calibration_text(added_up(known), tallies(known), style), style)
        say_warnings(history)
        return
    from faperf.worker import Here

    with Here.find() as here, progress_shown() as progress:
        from faperf.building import Selection, Workshop  # while the worker's own libraries load
        from faperf.calibrate import calibrate as run_gates

        workshop = Workshop.open(project, nvcc=nvcc, jobs=jobs, progress=progress)
        found = run_gates(workshop, Selection(versions, targets), workloads, gates, budget_s, here)
    for failure in found.failures:
        complain(str(failure))
    if found.calibrations:
        known = history.calibrations(found.calibrations[0].machine)
        present(calibration_text(found.calibrations, tallies(known), style), style)
    say_warnings(history)
    if found.wrong:
        complain("a kernel is wrong, so it was not calibrated: faperf run says where")
        sys.exit(WRONG)
    if found.failures:
        sys.exit(1)
