"""The commands: parse, call, print. Only the module of the command that runs is imported, and everything heavy inside it."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

import click

from faperf import __version__
from faperf.cli.screen import annotate, complain, guard_output, screen_options
from faperf.cli.shared import INTERRUPTED
from faperf.errors import FaperfError

COMMANDS = {
    "run": ("run", "run"), "bundle": ("run", "bundle"), "exec": ("run", "execute"), "emulate": ("emulate", "emulate"),
    "import": ("exchange", "import_"), "export": ("exchange", "export"),
    "gate": ("gate", "gate"), "accept": ("gate", "accept"), "bisect": ("bisect", "bisect"),
    "calibrate": ("calibrate", "calibrate"), "explain": ("explain", "explain"), "peers": ("explain", "peers"),
    "ladder": ("views", "ladder"), "diff": ("views", "diff"), "history": ("views", "history"), "show": ("views", "show"),
    "list": ("views", "list_versions"), "report": ("report", "report"),
    "check": ("tend", "check"), "new": ("tend", "new"), "doctor": ("tend", "doctor"), "toolchain": ("tend", "toolchain"),
    "machine": ("tend", "machine"), "gc": ("tend", "gc"), "completion": ("complete", "completion"),
}  # fmt: skip
"""Each command's module in this package, and its name there."""


def main() -> None:
    """Run a command; turn faperf's errors into a message and an exit code, here and nowhere else."""
    guard_output()
    try:
        sys.exit(cli.main(standalone_mode=False) or 0)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except FaperfError as error:
        complain(str(error))
        annotate(error)
        sys.exit(error.exit_code)
    except (KeyboardInterrupt, click.Abort):
        complain(
            "interrupted; finished builds are kept: faperf run --resume goes on, other commands start again and find them"
        )
        sys.exit(INTERRUPTED)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(1)
    except OSError as error:
        complain(f"{error.filename or 'the system'}: {error.strerror or error}")
        sys.exit(1)


class _Commands(click.Group):
    """`COMMANDS`, each imported when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 (click's own signature)
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in COMMANDS and cmd_name not in self.commands:
            module, name = COMMANDS[cmd_name]
            command = getattr(import_module(f"{__name__}.{module}"), name)
            _with_screen_options(command)
            self.add_command(command)
        return super().get_command(ctx, cmd_name)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="faperf")
@click.option(
    "-C", "directory", type=click.Path(exists=True, file_okay=False, path_type=Path), default=Path(),
    help="Work as if started in this directory.",
)  # fmt: skip
@click.pass_context
def cli(context: click.Context, directory: Path) -> None:
    """The regression harness and performance history of a kernel that is tuned through many versions.

    \b
    faperf run                compile, inspect and record every version; print the ladder
    faperf diff HEAD~1 HEAD   what a commit changed
    """
    context.obj = directory


def _with_screen_options(command: click.Command) -> None:
    command.params.extend(screen_options())
    for inner in command.commands.values() if isinstance(command, click.Group) else ():
        _with_screen_options(inner)


_with_screen_options(cli)
