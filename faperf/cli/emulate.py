"""A closer look at one version on the CPU: emulate."""

from __future__ import annotations

import math
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from faperf.cli.complete import TARGET, VERSION, WORKLOAD
from faperf.cli.screen import progress_shown
from faperf.cli.shared import WRONG, nvcc_option, open_project
from faperf.emulator import SCHEDULES

if TYPE_CHECKING:
    from faperf.emulator.ptx import Instruction
    from faperf.emulator.state import Path as Strand


CTAS = 16
"""Of a workload as it is: they show what a CTA does in all of its loop, in seconds."""


@click.command()
@click.argument("version", type=VERSION)
@click.option("--target", metavar="SM", type=TARGET, help="The target; the version's first by default.")
@click.option("--workload", metavar="NAME", type=WORKLOAD, help="A workload as it is; two small ones by default.")
@click.option(
    "--ctas",
    type=click.IntRange(min=1),
    metavar="N",
    help=f"How many CTAs, drawn by the seed; {CTAS} of a workload that is named, all of a small one by default.",
)
@click.option("--distribution", metavar="NAME", help="Inputs of one distribution; of all by default.")
@click.option(
    "--schedule", "schedules", type=click.Choice(SCHEDULES), multiple=True, help="A schedule; all by default."
)
@click.option("--seed", type=int, default=0, show_default=True, help="Of the inputs and of the random schedule.")
@click.option(
    "--exact-sums",
    is_flag=True,
    help="Sum matrix products bit for bit as a Hopper tensor core does: some times slower.",
)
@click.option("--trace", is_flag=True, help="Print every instruction as warps execute it.")
@nvcc_option
@click.pass_obj
def emulate(
    directory: Path,
    version: str,
    target: str | None,
    workload: str | None,
    ctas: int | None,
    distribution: str | None,
    schedules: tuple[str, ...],
    seed: int,
    exact_sums: bool,
    trace: bool,
    nvcc: str | None,
) -> None:
    """Run VERSION's PTX on the CPU and compare with float64, saying what is wrong and where. Nothing is recorded.

    \b
    Example:
      faperf emulate v13
      faperf emulate v13 --target sm_90a --schedule lazy
      faperf emulate v12 --schedule lockstep --distribution normal --trace
      faperf emulate v13 --workload published --ctas 4
      faperf emulate h16 --schedule lockstep --exact-sums
    """
    from faperf.build import Builder
    from faperf.building import Selection, Workshop
    from faperf.emulating import Emulation, small_workloads, subject_of
    from faperf.emulator.fault import NotEmulatedError
    from faperf.errors import SelectionError
    from faperf.manifest import load_manifests
    from faperf.operations import load_operations

    project = open_project(directory)
    manifests = load_manifests(project)
    Selection((version,), (target,) if target else ()).steps(manifests)
    chosen = manifests.versions[version]
    own = manifests.workloads_of(chosen)
    named = [w for w in own if workload in (w.name, w.family)]
    if not own or (workload and not named):
        raise SelectionError(f"{version} has no workload '{workload}'", remedy="faperf list")
    operation = load_operations(project)[chosen.operation.name]
    if distribution and distribution not in operation.distributions:
        raise SelectionError(
            f"no distribution '{distribution}'", remedy=f"there are: {', '.join(operation.distributions)}"
        )
    with progress_shown() as progress:
        workshop = Workshop.open(project, nvcc=nvcc, progress=progress)
        builder = Builder(project.root, project.make_state() / "cache", workshop.toolchain)
        artifact = builder.build(chosen, target or chosen.targets[0])
    emulation = Emulation(operation, seed, exact_sums)
    wrong, warned = False, set[str]()
    sample = ctas or (CTAS if workload else None)
    for each in named or small_workloads(chosen, own[0]):
        subject = subject_of(chosen, artifact.key, artifact.ptx.read_text(encoding="utf-8"), each)
        whole = math.prod(subject.launches[0].grid)
        for schedule in schedules or SCHEDULES:
            for name in [distribution] if distribution else operation.distributions:
                started, executed = time.perf_counter(), emulation.executed
                try:
                    check = emulation.check(subject, name, schedule, _tell if trace else None, sample)
                except NotEmulatedError as error:
                    raise SelectionError(f"{version} is not emulated: {error}") from error
                took, count = time.perf_counter() - started, emulation.executed - executed
                said = f"right, relative L2 {check.relative_l2:.2e}" if check.ok else f"WRONG: {check.failure}"
                part = f"{min(sample, whole):,} of {whole:,} CTAs, " if sample and len(subject.launches) == 1 else ""
                click.echo(f"{each.name}, {schedule}, {name}: {said} ({part}{count:,} warp-instructions, {took:.2f} s)")
                for warning in check.warnings:
                    if warning not in warned:
                        click.echo(f"  warning: {warning}")
                warned.update(check.warnings)
                wrong = wrong or not check.ok
    if wrong:
        sys.exit(WRONG)


def _tell(path: Strand, ins: Instruction) -> None:
    who = path.wave.name_of(int(path.lanes()[0]))
    guard = f"@{'!' if ins.negated else ''}{ins.guard} " if ins.guard else ""
    click.echo(f"{who} (+{path.warps - 1}): {guard}{ins.opcode} {', '.join(ins.operands)}  // {ins.place}")
