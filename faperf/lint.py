"""What `faperf check` finds in manifests without compiling anything."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from faperf.chips import MAX_REGISTERS_PER_THREAD, MAX_THREADS_PER_BLOCK, chip_of, targets_known
from faperf.errors import ManifestError
from faperf.launch import ResolvedArgument, ResolvedLaunch
from faperf.manifest import Manifests, Version
from faperf.operations import Operation
from faperf.project import Project
from faperf.resolve import resolve

LEAST_REGISTERS = 16
MOST_IN_A_BOX = 256


@dataclass(frozen=True)
class Problem:
    """Something that will not work, or will not do what it seems to. `where` is a file and a key."""

    where: str
    what: str

    def __str__(self) -> str:
        return f"{self.where}: {self.what}"


def lint(project: Project, manifests: Manifests, operations: Mapping[str, Operation]) -> list[Problem]:
    """Every problem of every manifest, in ladder order; broken files first."""
    problems = [Problem(error.where or "manifests", error.what) for error in manifests.broken]
    for version in manifests.versions.values():
        where = f"manifests/{version.id}.yaml"
        for check in CHECKS:
            problems += [
                Problem(f"{where}, {key}", what) for key, what in check(project, manifests, operations, version)
            ]
    return problems


Found = Iterator[tuple[str, str]]
"""(key, what is wrong)."""


def _files(project: Project, manifests: Manifests, operations: Mapping[str, Operation], version: Version) -> Found:
    path = (project.root / version.source).resolve()
    if not path.is_relative_to(project.root):
        yield "source", f"'{version.source}' lies outside the project"
    elif not path.is_file():
        yield "source", f"'{version.source}' does not exist"
    elif path.stem != version.id:
        yield "source", f"'{version.source}' should have the manifest's stem: {version.id}{path.suffix}"


def _parents(project: Project, manifests: Manifests, operations: Mapping[str, Operation], version: Version) -> Found:
    if version.parent is None:
        return
    if version.parent not in manifests.versions:
        yield "parent", f"there is no version '{version.parent}'"
    seen = [version.id]
    above = version.parent
    while above in manifests.versions and above not in seen:
        seen.append(above)
        above = manifests.versions[above].parent or ""
    if above == version.id:
        yield "parent", f"is its own ancestor: {' → '.join([*seen, above])}"


def _names(project: Project, manifests: Manifests, operations: Mapping[str, Operation], version: Version) -> Found:
    for target in version.targets:
        if chip_of(target) is None:
            yield "targets", f"unknown target '{target}' (known: {', '.join(targets_known())})"
    families = {workload.family for workload in manifests.workloads.values()}
    for name in version.workloads:
        if name not in families and name not in manifests.workloads:
            yield "workloads", f"workloads.yaml has no '{name}' (it has: {', '.join(sorted(families)) or 'none'})"
    operation = operations.get(version.operation.name)
    if operation is None:
        yield "operation", f"unknown operation '{version.operation.name}' (known: {', '.join(operations)})"
        return
    if version.operation.layout not in operation.layouts:
        yield "operation", f"unknown layout '{version.operation.layout}' (known: {', '.join(operation.layouts)})"
    for workload in manifests.workloads_of(version):
        if workload.operation != operation.name:
            yield "workloads", f"{workload.name} is of operation {workload.operation}, the version of {operation.name}"
        elif set(workload.shape) != set(operation.parameters):
            yield "workloads", f"{workload.name} must give {', '.join(operation.parameters)}"
    for launch in version.launches:
        for argument in launch.args:
            tensor = argument.tensor or argument.tensor_map
            if tensor and tensor not in operation.tensors:
                yield "args", f"{operation.name} has no tensor '{tensor}' (it has: {', '.join(operation.tensors)})"


def _launches(project: Project, manifests: Manifests, operations: Mapping[str, Operation], version: Version) -> Found:
    for workload in manifests.workloads_of(version):
        try:
            launches = resolve(version, workload)
        except ManifestError as error:
            yield (error.where or "").partition(", ")[2], error.what
            continue
        for launch in launches:
            for key, what in _limits(launch, version):
                yield key, f"{what} (workload {workload.name})"
            if (operation := operations.get(version.operation.name)) and set(workload.shape) == set(
                operation.parameters
            ):
                for argument in launch.args:
                    for what in _map_limits(argument, operation, workload.shape, version.operation.layout):
                        yield "args", f"tensor map of {argument.tensor_map}: {what} (workload {workload.name})"


def _limits(launch: ResolvedLaunch, version: Version) -> Found:
    if launch.threads > MAX_THREADS_PER_BLOCK:
        yield "block", f"{launch.threads} threads; a CTA has at most {MAX_THREADS_PER_BLOCK}"
    if launch.block[2] > 64:
        yield "block", f"block.z is {launch.block[2]}; at most 64"
    for axis, size in zip("yz", launch.grid[1:], strict=True):
        if size > 65_535:
            yield "grid", f"grid.{axis} is {size}; at most 65535"
    for target in version.targets:
        chip = chip_of(target)
        if chip is None:
            continue
        if launch.smem > chip.smem_per_block:
            yield "smem", f"{launch.smem} bytes; a CTA on {target} gets at most {chip.smem_per_block}"
        ctas = launch.cluster[0] * launch.cluster[1] * launch.cluster[2]
        if ctas > chip.max_cluster:
            yield "cluster", f"{ctas} CTAs; {target} takes at most {chip.max_cluster}"
    for axis, size, cluster in zip("xyz", launch.grid, launch.cluster, strict=True):
        if size % cluster:
            yield "cluster", f"{cluster} does not divide grid.{axis} = {size}"


def _map_limits(
    argument: ResolvedArgument, operation: Operation, shape: Mapping[str, int], layout: str
) -> Iterator[str]:
    """What cuTensorMapEncodeTiled would refuse without saying why."""
    box, tensor = argument.box or [], argument.tensor_map
    if tensor is None or tensor not in operation.tensors:
        return
    extents = operation.dimensions(tensor, shape, layout)
    element = int(re.sub(r"\D", "", operation.tensors[tensor]) or 8) // 8
    if len(box) != len(extents):
        yield f"a box of {len(box)} dimensions; the tensor has {', '.join(reversed(extents))}"
        return
    if max(box) > MOST_IN_A_BOX:
        yield f"{max(box)} elements along a dimension of the box; at most {MOST_IN_A_BOX}"
    if box[0] * element % 16:
        yield f"lines of {box[0] * element} bytes; they must be multiples of 16"
    if argument.swizzle and box[0] * element > argument.swizzle:
        yield f"lines of {box[0] * element} bytes are longer than the swizzle of {argument.swizzle}"
    if list(extents.values())[-1] * element % 16:
        yield f"the tensor's lines have {list(extents.values())[-1] * element} bytes; they must be multiples of 16"


def _budgets(project: Project, manifests: Manifests, operations: Mapping[str, Operation], version: Version) -> Found:
    budgets, tolerance = version.budgets, version.tolerance
    if budgets.registers is not None and not LEAST_REGISTERS <= budgets.registers <= MAX_REGISTERS_PER_THREAD:
        yield "budgets.registers", f"{budgets.registers}; a thread has {LEAST_REGISTERS} to {MAX_REGISTERS_PER_THREAD}"
    if budgets.spill_bytes is not None and (budgets.spill_bytes < 0 or budgets.spill_bytes % 4):
        yield "budgets.spill_bytes", f"{budgets.spill_bytes}; registers spill by 4 bytes, from 0"
    if budgets.ctas_per_sm is not None and budgets.ctas_per_sm < 1:
        yield "budgets.ctas_per_sm", f"{budgets.ctas_per_sm}; a kernel that runs has at least 1"
    chips = [chip for target in version.targets if (chip := chip_of(target))]
    if budgets.smem_bytes is not None and not 0 <= budgets.smem_bytes <= max(
        (chip.smem_per_block for chip in chips), default=0
    ):
        yield "budgets.smem_bytes", f"{budgets.smem_bytes} bytes; no target gives a CTA that much"
    for name, value in (("ratio_to_fp16", tolerance.ratio_to_fp16), ("bound", tolerance.bound)):
        if value is not None and not 0 < value < float("inf"):
            yield f"tolerance.{name}", f"{value}; must be a number above 0"


def _register_flag(
    project: Project, manifests: Manifests, operations: Mapping[str, Operation], version: Version
) -> Found:
    flag = next((flag for flag in version.flags if re.match(r"--?maxrregcount=", flag)), None)
    path = (project.root / version.source).resolve()
    if flag is None or not path.is_relative_to(project.root) or not path.is_file():
        return
    bounded = _bounded_kernels(path.read_text(encoding="utf-8", errors="replace"))
    for launch in version.launches:
        if launch.entry in bounded:
            yield (
                "flags",
                (
                    f"{flag} has no effect: {launch.entry} has __launch_bounds__ in {version.source}, and ptxas goes by that"
                    " (give it a second value, the least CTAs per SM, or drop it)"
                ),
            )


def _bounded_kernels(source: str) -> set[str]:
    """The kernels whose declaration carries `__launch_bounds__`, by name; comments are left out."""
    code = re.sub(r"//[^\n]*|/\*.*?\*/", " ", source, flags=re.DOTALL)
    code = re.sub(r"^\s*#(?:[^\n]*\\\n)*[^\n]*", " ", code, flags=re.MULTILINE)
    declarations = [part for part in re.split(r"[;{}]", code) if "__global__" in part and "__launch_bounds__" in part]
    return {match[1] for part in declarations if (match := re.search(r"(\w+)\s*\([^()]*\)\s*$", part))}


CHECKS: tuple[Callable[[Project, Manifests, Mapping[str, Operation], Version], Found], ...] = (
    _files,
    _parents,
    _names,
    _launches,
    _budgets,
    _register_flag,
)
