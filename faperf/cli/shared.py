"""What several commands share: options, exit codes, the project and the ladder's table."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from faperf.cli.complete import TARGET, WORKLOAD
from faperf.cli.screen import complain, present, warn
from faperf.errors import FaperfError

if TYPE_CHECKING:
    from faperf.comparison import Elsewhere
    from faperf.history import History
    from faperf.project import Project
    from faperf.record import Build, Run

INTERRUPTED = 130
REGRESSION = 3
WRONG = 5

F = TypeVar("F", bound=Callable[..., Any])


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
        "--jobs", "-j", type=click.IntRange(min=1), help="Builds or emulations at a time; as many as cores by default."
    )(command)


def targets_option(command: F) -> F:
    return click.option(
        "--target",
        "targets",
        multiple=True,
        metavar="SM",
        type=TARGET,
        help="Only this target (sm_103a); may be repeated.",
    )(command)


def workloads_option(command: F) -> F:
    return click.option(
        "--workload",
        "workloads",
        multiple=True,
        metavar="NAME",
        type=WORKLOAD,
        help="Measure on this workload; may be repeated.",
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
    elsewhere: Elsewhere | None = None,
) -> None:
    from faperf.comparison import ladder as build_ladder
    from faperf.figures import silicon_of
    from faperf.judge import thresholds_from
    from faperf.manifest import load_manifests
    from faperf.report.terminal import ladder_text

    manifests, reported = load_manifests(project, history.index), history.reported()
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
        texts.append(ladder_text(rows, target, chosen, reported, style, elsewhere or {}))
    joined = f"[{', '.join(texts)}]" if style == "json" and len(texts) > 1 else "\n\n".join(texts)
    present(joined, style)
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
        warn(warning)
