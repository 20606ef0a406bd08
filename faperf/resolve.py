"""A manifest's launches for one workload, as numbers; and whether a kernel takes them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TypeVar

from faperf.arithmetic import ExpressionError, evaluate, evaluate_real
from faperf.errors import ManifestError
from faperf.launch import ResolvedArgument, ResolvedLaunch
from faperf.manifest import SCALAR_BYTES, Argument, Expression, Launch, Version, Workload
from faperf.record import Build, KernelFacts

Number = TypeVar("Number", int, float)
POINTER_BYTES = 8
TENSOR_MAP_BYTES = 128
FLT_MAX = (2 - 2**-23) * 2.0**127
RANGES: dict[str, tuple[float, float]] = {
    "i32": (-(2**31), 2**31 - 1),
    "u32": (0, 2**32 - 1),
    "i64": (-(2**63), 2**63 - 1),
    "u64": (0, 2**64 - 1),
    "f32": (-FLT_MAX, FLT_MAX),
    "f64": (-math.inf, math.inf),
}
"""The least and the greatest finite value of each scalar type."""


def resolve(version: Version, workload: Workload) -> list[ResolvedLaunch]:
    """The launches of `version` for `workload`. Raises ManifestError where the arithmetic does not work out."""
    return [_resolve_launch(version, launch, workload) for launch in version.launches]


def kernel_for(version: Version, launch: ResolvedLaunch, build: Build) -> KernelFacts:
    """The kernel of `build` that `launch` starts. Raises ManifestError where it is missing or takes other arguments."""
    where = f"manifests/{version.id}.yaml, launches"
    kernel = build.kernel(launch.entry)
    if kernel is None:
        names = ", ".join(k.entry for k in build.kernels) or "none"
        raise ManifestError(
            f"the cubin has no kernel '{launch.entry}'",
            where=where,
            remedy=f'it has: {names} (extern "C" keeps a name as it is written)',
        )
    given = [_bytes(argument) for argument in launch.args]
    if given != kernel.parameter_bytes:
        raise ManifestError(
            f"{launch.entry} takes arguments of {kernel.parameter_bytes} bytes; the manifest gives {given}",
            where=where,
            remedy="a tensor is a pointer of 8 bytes, a tensor map 128, a scalar as its type says",
        )
    if kernel.max_threads is not None and launch.threads > kernel.max_threads:
        raise ManifestError(
            f"block has {launch.threads} threads; __launch_bounds__ of {launch.entry} allows {kernel.max_threads}",
            where=where,
        )
    return kernel


def _bytes(argument: ResolvedArgument) -> int:
    if argument.type is not None:
        return SCALAR_BYTES[argument.type]
    return TENSOR_MAP_BYTES if argument.tensor_map is not None else POINTER_BYTES


def _resolve_launch(version: Version, launch: Launch, workload: Workload) -> ResolvedLaunch:
    def place(key: str) -> str:
        return f"manifests/{version.id}.yaml, {key}, workload {workload.name}"

    def evaluated(
        arithmetic: Callable[[float | str, Mapping[str, int]], Number], expression: float | str, key: str
    ) -> Number:
        try:
            return arithmetic(expression, workload.shape)
        except ExpressionError as issue:
            raise ManifestError(str(issue), where=place(key)) from issue

    def number(expression: Expression, key: str, least: int) -> int:
        value = evaluated(evaluate, expression, key)
        if value < least:
            raise ManifestError(f"'{expression}' gives {value}; the least is {least}", where=place(key))
        return value

    def triple(expressions: list[Expression], key: str) -> tuple[int, int, int]:
        x, y, z = (*(number(expression, key, 1) for expression in expressions), 1, 1, 1)[:3]
        return x, y, z

    def scalar(argument: Argument) -> float | None:
        if argument.scalar is None or argument.type is None:
            return None
        arithmetic = evaluate_real if argument.type.startswith("f") else evaluate
        value = evaluated(arithmetic, argument.scalar, "args")
        least, most = RANGES[argument.type]
        if not least <= value <= most:
            raise ManifestError(
                f"'{argument.scalar}' gives {value}, which {argument.type} does not hold", where=place("args")
            )
        return value

    arguments = [
        ResolvedArgument(
            tensor=argument.tensor,
            tensor_map=argument.tensor_map,
            box=list(argument.box) if argument.box else None,
            swizzle=argument.swizzle or 0,
            scalar=scalar(argument),
            type=argument.type,
        )
        for argument in launch.args
    ]
    return ResolvedLaunch(
        entry=launch.entry,
        grid=triple(launch.grid, "grid"),
        block=triple(launch.block, "block"),
        cluster=triple(launch.cluster, "cluster"),
        smem=number(launch.smem, "smem", 0),
        args=arguments,
    )
