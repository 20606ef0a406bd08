"""Between the commands and the screen: how much is said, in which colours, how work is seen to go on, and to whom it is said."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from faperf.building import Progress
    from faperf.errors import FaperfError

QUIET, VERBOSE = "faperf.quiet", "faperf.verbose"
COLORS = {
    "red": "SLOWER|REGRESSION|WRONG|BROKEN|ERROR|LESS ACCURATE|MISSING",
    "yellow": "INCONCLUSIVE|INCOMPARABLE",
    "green": "FASTER|PASSED",
}


# ── options of every command ─────────────────────────────────────────────────────────────────────────────────────────


def screen_options() -> list[click.Option]:
    """They may stand before a command's name and behind it."""

    def told(key: str) -> Callable[[click.Context, click.Parameter, bool], None]:
        return lambda context, parameter, value: context.meta.update({key: True}) if value else None

    def color(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
        if value is not None:
            context.color = {"always": True, "never": False}.get(value)
        elif os.environ.get("NO_COLOR") and context.parent is None:  # https://no-color.org
            context.color = False

    def option(*names: str, callback: Any, help: str, **more: Any) -> click.Option:
        return click.Option(names, expose_value=False, is_eager=True, callback=callback, help=help, **more)

    return [
        option("--quiet", "-q", is_flag=True, callback=told(QUIET), help="Say nothing but the result and what is wrong."),
        option("--verbose", "-v", is_flag=True, callback=told(VERBOSE), help="Say more: the tools, and what was known already."),
        option(
            "--color", type=click.Choice(["auto", "always", "never"]), callback=color,
            help="auto: on a terminal, unless NO_COLOR is set.",
        ),
    ]  # fmt: skip


def _asked(key: str) -> bool:
    context = click.get_current_context(silent=True)
    return context is not None and bool(context.meta.get(key))


# ── what is said ─────────────────────────────────────────────────────────────────────────────────────────────────────


def present(text: str, style: str = "table") -> None:
    """A command's result. A table's verdicts get their colour on a terminal; click leaves it out elsewhere."""
    if style == "table":
        for color, words in COLORS.items():
            text = re.sub(rf"\b({words})\b", lambda found, color=color: click.style(found[1], fg=color), text)  # type: ignore[misc]
    click.echo(text)


def complain(message: str) -> None:
    """An error. The command's own context may be gone by now."""
    color = False if os.environ.get("NO_COLOR") else None
    click.echo(f"{click.style('faperf:', fg='red')} {message}", err=True, color=color)


def warn(message: str) -> None:
    click.echo(f"{click.style('warning:', fg='yellow')} {message}", err=True)


def note(message: str) -> None:
    """What is good to know, unless --quiet."""
    if not _asked(QUIET):
        click.echo(message, err=True)


# ── progress ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@contextmanager
def progress_shown() -> Iterator[Progress]:
    """A bar with the time left on a terminal, a plain line for each step elsewhere; nothing where everything was known."""
    from faperf.building import Progress

    detail = note if _asked(VERBOSE) else lambda line: None
    if _asked(QUIET):
        yield Progress()
    elif not sys.stderr.isatty() or os.environ.get("TERM") == "dumb":
        lines = _Lines()
        yield Progress(begin=lines.begin, step=lines.step, say=note, detail=detail)
    else:
        with _bar() as (begin, step, say):
            yield Progress(begin=begin, step=step, say=say, detail=say if _asked(VERBOSE) else detail)


class _Lines:
    """Steps as lines: `[3/25] v13 for sm_90a: built, about 40 s left`."""

    def begin(self, _: str, total: int) -> None:
        self.total, self.done, self.started = total, 0, time.monotonic()

    def step(self, label: str, cached: bool) -> None:
        self.done += 1
        if cached and not _asked(VERBOSE):
            return
        count = f"[{self.done}/{self.total}] " if self.total > 1 else ""
        seconds = (time.monotonic() - self.started) / self.done * (self.total - self.done)
        left = f", about {duration(seconds)} left" if seconds >= 1 else ""
        click.echo(f"{count}{label}{' (known)' if cached else ''}{left}", err=True)


def duration(seconds: float) -> str:
    """40 s, 3 min, 2 h."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


@contextmanager
def _bar() -> Iterator[tuple[Callable[[str, int], None], Callable[[str, bool], None], Callable[[str], None]]]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    context = click.get_current_context(silent=True)
    console = Console(stderr=True, no_color=context.color is False if context else None)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(compact=True))
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("building", total=None)

        def say(line: str) -> None:
            bar.console.print(line, highlight=False, markup=False)

        yield (
            lambda what, total: bar.reset(task, total=total, description=what),
            lambda label, cached: bar.update(task, advance=1, description=label),
            say,
        )


# ── GitHub Actions ───────────────────────────────────────────────────────────────────────────────────────────────────


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


def annotate(error: FaperfError) -> None:
    """In GitHub Actions, where a failed step shows its annotations and hides its log."""
    if in_actions():
        from faperf.report.actions import error_command

        issue_commands([error_command(str(error))])


def issue_commands(commands: Iterable[str]) -> None:
    """Workflow commands of our own. To stderr, which the runner reads as well: stdout may go to a file."""
    stream = sys.stderr.stream if isinstance(sys.stderr, _Guarded) else sys.stderr
    for command in commands:
        print(command, file=stream, flush=True)
