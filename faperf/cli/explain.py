"""Why: explain, peers."""

from __future__ import annotations

from pathlib import Path

import click

from faperf.cli.complete import TARGET, VERSION
from faperf.cli.screen import complain, note, progress_shown
from faperf.cli.shared import format_option, nvcc_option, open_project, say_warnings, workloads_option


@click.command()
@click.argument("version", type=VERSION)
@click.option("--against", metavar="VERSION", help="Compare with this version; by default with the parent.")
@click.option(
    "--against-nvcc",
    metavar="PATH|RELEASE",
    help="Compare with the same version as this compiler builds it, as for --nvcc.",
)
@click.option(
    "--target", metavar="SM", type=TARGET, help="For this target; by default that of pyproject.toml, else the first."
)
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


@click.command()
@click.argument("version", required=False)
@click.option("--target", metavar="SM", help="Our version's target; by default one that runs here.")
@workloads_option
@click.option("--peer", "names", multiple=True, metavar="NAME", help="Only this backend; may be repeated.")
@click.option(
    "--budget",
    "budget_s",
    type=click.FloatRange(min=0.2),
    metavar="SECONDS",
    help="GPU time a backend; 2 s by default.",
)
@click.option("--no-counters", is_flag=True, help="Do not ask the hardware for tensor-core activity.")
@nvcc_option
@format_option
@click.pass_obj
def peers(
    directory: Path,
    version: str | None,
    target: str | None,
    workloads: tuple[str, ...],
    names: tuple[str, ...],
    budget_s: float | None,
    no_counters: bool,
    nvcc: str | None,
    style: str,
) -> None:
    """Other implementations beside VERSION (by default the fastest measured here), on the GPU that is here; recorded.

    They are verified against the same reference and timed interleaved with ours. One that cannot run here keeps its row and says
    why; pip install 'faperf[peers]' brings what there are wheels of.

    \b
    Example:
      faperf peers
      faperf peers v13 --workload published --workload lengths --format markdown
    """
    from faperf.building import Workshop
    from faperf.peering import run_peers
    from faperf.report.peers import peers_text

    with progress_shown() as progress:
        workshop = Workshop.open(open_project(directory), nvcc=nvcc, progress=progress)
        found = run_peers(workshop, version, target, workloads, names, budget_s, counted=not no_counters)
    click.echo(peers_text(found.results, found.refused, style))
    if found.recorded:
        note(f"Recorded in {workshop.project.relative(found.recorded)}")
    if any(result.failure and result.name == result.ours for result in found.results):
        complain("our version is wrong: faperf run says where")
    say_warnings(workshop.history)
