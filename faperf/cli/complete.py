"""Shell completion: a script for the shell, and the names that a project has."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


class Known(click.ParamType[str]):
    """A name that the project's manifests know: a version, a target or a workload. Any text is taken; the command judges it."""

    name = "text"

    def __init__(self, what: str) -> None:
        self.what = what

    def shell_complete(
        self,
        ctx: click.Context,
        param: click.Parameter,  # noqa: ARG002 (click's own signature)
        incomplete: str,
    ) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        try:
            directory = ctx.find_root().params.get("directory") or Path()
            names = _names(self.what, directory)
        except Exception:  # a shell that completes has no use for an error
            return []
        return [CompletionItem(name) for name in names if name.startswith(incomplete)]


VERSION, TARGET, WORKLOAD = Known("version"), Known("target"), Known("workload")


def _names(what: str, directory: Path) -> list[str]:
    from faperf.manifest import family_of, load_manifests
    from faperf.project import Project

    manifests = load_manifests(Project.find(directory))
    if what == "target":
        return sorted({target for version in manifests.versions.values() for target in version.targets})
    if what == "workload":
        return sorted({name for workload in manifests.workloads for name in (workload, family_of(workload))})
    return list(manifests.versions)


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the script with which SHELL completes commands, options, and the project's versions, targets and workloads.

    \b
    Example:
      eval "$(faperf completion bash)"                                    # in ~/.bashrc; zsh as well
      faperf completion fish > ~/.config/fish/completions/faperf.fish
    """
    from click.shell_completion import get_completion_class

    found: Any = get_completion_class(shell)
    root = context.find_root().command
    click.echo(found(root, {}, "faperf", "_FAPERF_COMPLETE").source())
