"""The commands: parse, call, print. Everything heavy is imported inside the command that needs it."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from faperf import __version__
from faperf.cli import bisect, calibrate, complete, emulate, exchange, explain, gate, report, run, tend, views
from faperf.cli.screen import annotate, complain, guard_output, screen_options
from faperf.cli.shared import INTERRUPTED
from faperf.errors import FaperfError

COMMANDS = [
    *(run.run, run.bundle, exchange.import_, exchange.export, run.execute, emulate.emulate),
    *(gate.gate, gate.accept, bisect.bisect, calibrate.calibrate),
    *(explain.explain, explain.peers),
    *(views.ladder, views.diff, views.history, views.show, views.list_versions, report.report),
    *(tend.check, tend.new, tend.doctor, tend.toolchain, tend.machine, tend.gc, complete.completion),
]


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


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
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


for command in COMMANDS:
    cli.add_command(command)
_with_screen_options(cli)
