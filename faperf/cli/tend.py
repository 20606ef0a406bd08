"""What tends a project: check, new, doctor, toolchain, gc, machine."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from faperf.cli.complete import VERSION
from faperf.cli.screen import complain, present
from faperf.cli.shared import format_option, nvcc_option, open_project


@click.command()
@format_option
@click.pass_obj
def check(directory: Path, style: str) -> None:
    """Lint every manifest without compiling: keys, files, parents, budgets, grids, flags. Exit code 1 when one is wrong.

    \b
    Example:
      faperf check
    """
    from faperf.lint import lint
    from faperf.manifest import load_manifests
    from faperf.operations import load_operations
    from faperf.report.tables import as_json, table

    project = open_project(directory)
    manifests = load_manifests(project)
    problems = lint(project, manifests, load_operations(project))
    if style == "json":
        click.echo(as_json(problems))
    elif style == "markdown":
        click.echo(table(("where", "what"), [(p.where, p.what) for p in problems], style))
    else:
        for problem in problems:
            click.echo(str(problem))
        count = len(manifests.versions) + len(manifests.broken)
        click.echo(
            f"{count} manifest{'' if count == 1 else 's'}, {len(problems) or 'no'} problem{'' if len(problems) == 1 else 's'}"
        )
    if problems:
        sys.exit(1)


@click.command()
@click.argument("version")
@click.option("--from", "parent", metavar="W", type=VERSION, help="The version to start from.")
@click.option("--title", default="say what this version changes", show_default=True, help="A line for the ladder.")
@click.option("--operation", metavar="NAME", help="Without --from: what it computes; the project's own by default.")
@click.pass_obj
def new(directory: Path, version: str, parent: str | None, title: str, operation: str | None) -> None:
    """Start VERSION: a copy of another one's kernel and manifest, or without --from a kernel without a body.

    \b
    Example:
      faperf new v14 --from v13 --title "TMA replaces cp.async"
      faperf new g1 --operation gemm    the first one of a project
    """
    from faperf.building import Selection
    from faperf.errors import SelectionError
    from faperf.manifest import load_manifests
    from faperf.operations import BUILT_IN, load_operations
    from faperf.project import Project
    from faperf.scaffold import first_version, new_version

    if parent:
        if operation:
            raise click.UsageError("--operation is for a version without --from")
        project = open_project(directory)
        manifests = load_manifests(project)
        Selection((parent,)).steps(manifests)
        written = list(new_version(project, version, manifests.versions[parent], title))
    else:
        project = Project.find(directory, or_there=True)
        operations = load_operations(project)
        name = operation or next(iter([*project.config.operations, *BUILT_IN]))
        if name not in operations:
            known = ", ".join([*project.config.operations, *BUILT_IN])
            raise SelectionError(
                f"no operation '{name}'", remedy=f"there are: {known}; docs/tutorial.md shows how to write one"
            )
        written = first_version(project, version, title, name, operations[name])
    click.echo("\n".join(map(project.relative, written)))
    click.echo(f"Edit them, then: faperf check && faperf run {version}")


@click.command()
@nvcc_option
@format_option
@click.pass_obj
def doctor(directory: Path, nvcc: str | None, style: str) -> None:
    """What is here, what is missing, and how to get it. Exit code 1 when faperf cannot compile here.

    \b
    Example:
      faperf doctor
    """
    from faperf.doctor import examine
    from faperf.report.tables import as_json, table

    found = examine(open_project(directory), nvcc)
    if style == "json":
        click.echo(as_json(found))
    else:
        words = {(True, True): "ok", (True, False): "ok", (False, True): "MISSING", (False, False): "no"}
        rows = [(d.what, words[d.ok, d.needed], d.found, d.remedy if not d.ok else "") for d in found]
        present(table(("", "", "found", "to get it"), rows, style, {"found": 60, "to get it": 50}))
    if any(d.needed and not d.ok for d in found):
        sys.exit(1)


@click.command()
@click.option("--older-than", "days", type=click.FloatRange(min=0), default=30.0, show_default=True, metavar="DAYS")
@click.option("--all", "everything", is_flag=True, help="The whole cache, whatever its age.")
@click.option("--dry-run", is_flag=True, help="Only say what would go.")
@click.pass_obj
def gc(directory: Path, days: float, everything: bool, dry_run: bool) -> None:
    """Clean .faperf/: cached builds, files of other commits, unfinished runs. Records and added compilers are kept.

    \b
    Example:
      faperf gc --older-than 7
    """
    from faperf.garbage import sweep

    swept = sweep(open_project(directory), older_than_days=0 if everything else days, dry_run=dry_run)
    verb = "would remove" if dry_run else "removed"
    click.echo(f"{verb} {swept.count} things, {swept.size / 1e6:.1f} MB")


@click.group()
def toolchain() -> None:
    """CUDA compilers beside the one at hand, from PyPI, in .faperf/: a kernel's registers and spills differ between them.

    \b
    Example:
      faperf toolchain add 13.5
      faperf run --nvcc 13.5
    """


@toolchain.command("add")
@click.argument("release")
@click.pass_obj
def toolchain_add(directory: Path, release: str) -> None:
    """Install the newest nvcc of RELEASE (13.5, or nvcc's own 13.5.37) with pip: some 140 MB, and 360 MB on disk.

    No other command downloads anything.

    \b
    Example:
      faperf toolchain add 13.5
    """
    from faperf.compilers import add

    project = open_project(directory)
    project.make_state()
    added = add(project.toolchains, release)
    click.echo(f"nvcc {added.nvcc}, {added.megabytes}: {project.relative(Path(added.path))}")
    click.echo(f"Use it: faperf run --nvcc {release}")


@toolchain.command("list")
@format_option
@click.pass_obj
def toolchain_list(directory: Path, style: str) -> None:
    """The compilers at hand: the one that is used without --nvcc, and those that were added.

    \b
    Example:
      faperf toolchain list
    """
    from faperf.compilers import added, default
    from faperf.errors import ToolchainError
    from faperf.report.tables import as_json, table

    project = open_project(directory)
    found = added(project.toolchains)
    try:
        found.insert(0, default(project.toolchains))
    except ToolchainError as error:
        complain(f"without --nvcc: {error}")
    if style == "json":
        click.echo(as_json(found))
    else:
        rows = [(c.nvcc, c.origin, project.relative(Path(c.path)), c.megabytes) for c in found]
        click.echo(table(("nvcc", "from", "path", "size"), rows, style))


@toolchain.command("remove")
@click.argument("release")
@click.pass_obj
def toolchain_remove(directory: Path, release: str) -> None:
    """Remove an added compiler. What it built stays in the cache, and the records stay.

    \b
    Example:
      faperf toolchain remove 13.5
    """
    from faperf.compilers import remove

    removed = remove(open_project(directory).toolchains, release)
    click.echo(f"removed nvcc {removed.nvcc}, {removed.megabytes}")


@click.group()
def machine() -> None:
    """Whether this machine's records are shared through git.

    \b
    Example:
      faperf machine add
    """


@machine.command("add")
@click.option(
    "--class", "machine_class", metavar="NAME", help="Its class; by default GPU name, power limit and memory."
)
@click.pass_obj
def machine_add(directory: Path, machine_class: str | None) -> None:
    """Enrol this machine: from now on its records go to history/, to be committed.

    \b
    Example:
      faperf machine add
    """
    import re

    from faperf.device import find_gpu
    from faperf.history import NO_GPU_CLASS, History

    if machine_class and (
        not re.fullmatch(r"[a-z0-9][a-z0-9.-]*", machine_class) or machine_class in ("builds", "external", "reported")
    ):
        raise click.BadParameter(
            "lower-case letters, digits, '.' and '-'; not builds, external or reported", param_hint="--class"
        )
    gpu, _ = find_gpu()
    name = machine_class or (gpu.machine_class if gpu else NO_GPU_CLASS)
    History(open_project(directory)).enrol(name)
    click.echo(f"enrolled as {name}: records of this machine go to history/{name}/ and history/builds/; commit them")
