"""What several commands share: options, exit codes, the project, progress and the ladder's table."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from faperf.errors import FaperfError

if TYPE_CHECKING:
    from faperf.building import Progress
    from faperf.history import History
    from faperf.project import Project
    from faperf.record import Build, Run

INTERRUPTED = 130
REGRESSION = 3
WRONG = 5

F = TypeVar("F", bound=Callable[..., Any])


class _Guarded:
    """A stream of which GitHub Actions takes nothing for a command, whoever wrote it."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        from faperf.report.actions import harmless

        written: int = self.stream.write(harmless(text))
        return written

    def __getattr__(self, name: str) -> Any:
        if name == "buffer":  # a way around
            raise AttributeError(name)
        return getattr(self.stream, name)


def in_actions() -> bool:
    return os.environ.get("GITHUB_ACTIONS") == "true"


def guard_output() -> None:
    """From here on, what is printed in GitHub Actions is text and no command, but for `issue_commands`."""
    if in_actions():
        sys.stdout, sys.stderr = _Guarded(sys.stdout), _Guarded(sys.stderr)


def issue_commands(commands: Iterable[str]) -> None:
    """Workflow commands of our own. To stderr, which the runner reads as well: stdout may go to a file."""
    stream = sys.stderr.stream if isinstance(sys.stderr, _Guarded) else sys.stderr
    for command in commands:
        print(command, file=stream, flush=True)


def complain(message: str) -> None:
    click.echo(f"{click.style('faperf:', fg='red')} {message}", err=True)


def format_option(command: F) -> F:
    return click.option(
        "--format", "style", type=click.Choice(["table", "markdown", "json"]), default="table", show_default=True,
        help="How to print.",
    )(command)  # fmt: skip


def nvcc_option(command: F) -> F:
    return click.option(
        "--nvcc", metavar="PATH|RELEASE",
        help="The nvcc to build with (or FAPERF_NVCC): its path, or a release of `faperf toolchain list`, as in 13.5.",
    )(command)  # fmt: skip


def jobs_option(command: F) -> F:
    return click.option(
        "--jobs", "-j", type=click.IntRange(min=1), help="Builds at a time; as many as there are cores by default."
    )(command)


def targets_option(command: F) -> F:
    return click.option(
        "--target", "targets", multiple=True, metavar="SM", help="Only this target (sm_103a); may be repeated."
    )(command)


def workloads_option(command: F) -> F:
    return click.option(
        "--workload", "workloads", multiple=True, metavar="NAME", help="Measure on this workload; may be repeated."
    )(command)


def open_project(directory: Path) -> Project:
    from faperf.project import Project

    return Project.find(directory)


def print_ladder(
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


def say_broken(project: Project) -> list[FaperfError]:
    from faperf.manifest import load_manifests

    broken = load_manifests(project).broken
    for error in broken:
        complain(str(error))
    return list(broken)


def say_warnings(history: History) -> None:
    for warning in history.warnings:
        click.echo(f"{click.style('warning:', fg='yellow')} {warning}", err=True)


@contextmanager
def progress_shown() -> Iterator[Progress]:
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
