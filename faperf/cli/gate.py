"""What judges: gate, accept."""

from __future__ import annotations

import os
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import click

from faperf.cli.complete import VERSION
from faperf.cli.screen import in_actions, issue_commands, present, progress_shown
from faperf.cli.shared import jobs_option, nvcc_option, open_project, say_warnings, targets_option, workloads_option

if TYPE_CHECKING:
    import datetime

    from faperf.comparison import GateReport
    from faperf.project import Project

SUFFIXES = {".md": "markdown", ".json": "json", ".xml": "junit", ".sarif": "sarif", ".txt": "table"}
"""In which format `--write` writes a file."""


@click.command()
@click.argument("versions", nargs=-1, type=VERSION)
@click.option(
    "--baseline", metavar="REF", help="Compare with this commit; by default where HEAD left the default branch."
)
@click.option(
    "--pinned",
    metavar="REF",
    help="Compare with this commit too (a release): small losses add up. Or pyproject's pinned.",
)
@targets_option
@workloads_option
@click.option("--no-gpu", is_flag=True, help="Static facts alone: neither measure nor emulate.")
@click.option("--require", type=click.Choice(["measured"]), help="Throughput that was not measured is inconclusive.")
@click.option(
    "--inconclusive",
    type=click.Choice(["pass", "fail"]),
    default="fail",
    show_default=True,
    help="Whether an inconclusive gate exits with 0 or with 4.",
)
@click.option(
    "--budget", "budget_s", type=click.FloatRange(min=0.2), metavar="SECONDS", help="GPU time a version; 2 s."
)
@click.option(
    "--toolchain",
    "toolchains",
    multiple=True,
    metavar="RELEASE|PATH",
    help="Given twice: the baseline's compiler and the working tree's; what got worse is put down to source or compiler.",
)
@click.option(
    "--write",
    "files",
    multiple=True,
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write the report to this file too, in the format of its suffix: .md, .json, .xml (JUnit), .sarif, .txt.",
)
@click.option(
    "--trusted-config",
    is_flag=True,
    help="For a stranger's pull request: thresholds, operations, budgets and accepted regressions are the baseline's.",
)
@click.option(
    "--format",
    "style",
    type=click.Choice(["table", "markdown", "json", "junit", "sarif"]),
    default="table",
    show_default=True,
    help="How to print.",
)
@jobs_option
@nvcc_option
@click.pass_obj
def gate(
    directory: Path,
    versions: tuple[str, ...],
    baseline: str | None,
    pinned: str | None,
    targets: tuple[str, ...],
    workloads: tuple[str, ...],
    no_gpu: bool,
    require: str | None,
    inconclusive: str,
    budget_s: float | None,
    toolchains: tuple[str, ...],
    files: tuple[Path, ...],
    trusted_config: bool,
    jobs: int | None,
    nvcc: str | None,
    style: str,
) -> None:
    """Whether the working tree is worse than its baseline. For CI; nothing is checked out.

    Exit code 0: fine; 1: error; 3: regression; 4: inconclusive; 5: a wrong result, or a version that no longer builds.

    \b
    Example:
      faperf gate                         against where HEAD left the default branch
      faperf gate --baseline v1.0 --require measured
      faperf gate --toolchain 13.0 --toolchain 13.5
      faperf gate --write comment.md --write gate.sarif --write junit.xml
    """
    if len(toolchains) > 2:
        raise click.UsageError("--toolchain is given once or twice")
    if trusted_config and not baseline:
        what = "--trusted-config needs --baseline: which branch is the default one is the pull request's own word"
        raise click.UsageError(what)
    if toolchains and nvcc:
        raise click.UsageError("--nvcc names one compiler, --toolchain one or two: give either")
    unknown = [file for file in files if file.suffix not in SUFFIXES]
    if unknown:
        raise click.UsageError(f"--write {unknown[0]}: the suffix is one of {', '.join(SUFFIXES)}")
    from faperf.worker import Here

    with nullcontext(Here()) if no_gpu else Here.find() as here, progress_shown() as progress:
        from faperf.building import Selection, Workshop  # while the worker's own libraries load
        from faperf.gate import gate as pass_gate
        from faperf.history import write_atomically
        from faperf.report.gate import gate_text
        from faperf.toolchain import find_toolchain
        from faperf.trees import Ask

        project = open_project(directory)
        chosen = tuple(find_toolchain(name, installed=project.toolchains) for name in toolchains)
        workshop = Workshop.open(project, nvcc=toolchains[-1] if toolchains else nvcc, jobs=jobs, progress=progress)
        ask = Ask(
            baseline=baseline,
            pinned=pinned,
            workloads=workloads,
            require_measured=require is not None,
            emulate=not no_gpu,
            trusted_config=trusted_config,
            toolchains=chosen if len(chosen) == 2 else (),
            budget_s=budget_s or Ask.budget_s,
        )
        report = pass_gate(workshop, Selection(versions, targets), ask, here)
    present(gate_text(report, style), style)
    for file in files:
        write_atomically(file, f"{gate_text(report, SUFFIXES[file.suffix])}\n".encode())
    tell_actions(report)
    say_warnings(workshop.history)
    from faperf.judge import Status

    passing = report.status is Status.INCONCLUSIVE and inconclusive == "pass"
    sys.exit(0 if passing else int(report.status))


def tell_actions(report: GateReport) -> None:
    """In GitHub Actions: annotations, and the summary of this step."""
    from faperf.report.actions import step_commands
    from faperf.report.gate import gate_text

    if in_actions():
        issue_commands(step_commands(report))
    if summary := os.environ.get("GITHUB_STEP_SUMMARY"):
        with open(summary, "a", encoding="utf-8") as file:
            file.write(f"{gate_text(report, 'markdown')}\n\n")


@click.command()
@click.argument("version", type=VERSION)
@click.option("--reason", required=True, metavar="TEXT", help="Why it is worth it; for the reviewer and for later.")
@click.option(
    "--until", type=click.DateTime(["%Y-%m-%d"]), metavar="DATE", help="Until when; 90 days after HEAD by default."
)
@click.pass_obj
def accept(directory: Path, version: str, reason: str, until: datetime.datetime | None) -> None:
    """Accept what the last gate found of VERSION: written into its manifest, to be reviewed and committed.

    A gate fails again when the entry has expired (by HEAD's date), or when the regression exceeds it.

    \b
    Example:
      faperf accept v13 --reason "exact rounding costs 1 %" --until 2027-06-01
    """
    import datetime

    from faperf.building import Selection
    from faperf.errors import SelectionError
    from faperf.gate import last_report
    from faperf.history import History
    from faperf.manifest import Accepted, load_manifests
    from faperf.scaffold import accept as write

    project = open_project(directory)
    manifests = load_manifests(project)
    Selection((version,)).steps(manifests)
    history = History(project)

    def code(key: str | None) -> str:
        build = history.build(key or "")
        return build.code if build else str(key)

    found: dict[tuple[str, str, str], float] = {}
    for row in last_report(project).rows:
        for regression in row.regressions if row.version == version else []:
            if regression.counts:  # on several workloads it is one entry, which allows for the worst
                key = (regression.metric, code(row.old_build), code(row.new_build))
                found[key] = max(regression.limit, found.get(key, 0.0))
    if not found:
        raise SelectionError(f"the last gate found nothing of {version} to accept", remedy="faperf gate")
    last_day = until.date() if until else _head_date(project) + datetime.timedelta(days=90)
    entries = [
        Accepted(metric=metric, from_=old, to=new, max=limit, reason=reason, until=last_day)
        for (metric, old, new), limit in found.items()
    ]
    path = write(project, manifests.versions[version], entries)
    for entry in entries:
        click.echo(f"{project.relative(path)}: {entry.metric}, at most {entry.max:g}, until {entry.until}")


def _head_date(project: Project) -> datetime.date:
    import datetime

    from faperf.figures import open_repository

    repository = open_repository(project)
    head = repository.head() if repository else None
    return repository.committed(head) if repository and head else datetime.date.today()
