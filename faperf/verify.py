"""A kernel's outputs against their reference → accuracy figures, and what is wrong with them in words.

Arrays are numpy's or cupy's. The bound is relative: `ratio` × the error of a plain implementation in the same precision, but
never less than an ulp of the output, 2⁻¹⁰ for fp16 (Dao-AILab's flash-attention tests bound by twice the same-precision
baseline as well).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from faperf import record
from faperf.operations import Operation
from faperf.record import Check

DEFAULT_RATIO = 2.0
POISON = 0x7E5A
"""A quiet NaN of fp16 with a payload that no arithmetic gives: what still holds it was never written. (As a float32 or an
int32, twice over, it is a number beyond what a test computes.)"""


class Accuracy(msgspec.Struct, frozen=True):
    """Errors against float64, over the compared rows. `ratio` is to the plain implementation's error.

    `failure` says what is wrong, with the worst element, its place and both values; None when all is well.
    """

    relative_l2: float
    max_abs: float
    baseline_l2: float
    bound: float
    ratio: float
    failure: str | None = None

    @property
    def ok(self) -> bool:
        return self.failure is None


def checked(
    check: Check,
    xp: Any,
    operation: Operation,
    layout: str,
    found: Mapping[str, Any],
    reference: Mapping[str, Any],
    baseline: Mapping[str, Any],
    *,
    ratio: float | None = None,
    bound: float | None = None,
    overwritten: int = 0,
) -> Check:
    """`check` with the figures of the output that is wrong, or else of the one that is nearest to its bound."""

    def accuracy(name: str) -> Accuracy:
        of = f"{name}: " if len(operation.outputs) > 1 else ""
        return compare(
            xp, found[name], reference[name], baseline[name], tuple(operation.dimensions(name, check.shape, layout)),
            of=of, ratio=ratio, bound=bound, overwritten=overwritten,
        )  # fmt: skip

    worst = max(map(accuracy, operation.outputs), key=lambda each: (not each.ok, each.relative_l2 / each.bound))
    return record.replace(
        check,
        relative_l2=worst.relative_l2,
        max_abs=worst.max_abs if math.isfinite(worst.max_abs) else None,
        baseline_l2=worst.baseline_l2,
        bound=worst.bound,
        failure=worst.failure,
    )


def compare(
    xp: Any,
    output: Any,
    reference: Any,
    baseline: Any,
    axes: Sequence[str],
    *,
    of: str = "",
    ratio: float | None = None,
    bound: float | None = None,
    overwritten: int = 0,
) -> Accuracy:
    """`output` against `reference` (float64) and a plain implementation's `baseline`, all of the same shape.

    `axes` names the dimensions for messages, and `of` the tensor. `overwritten` is how many elements of guard bands changed.
    """
    untouched = (output.view(xp.uint16).reshape(output.size, -1) == POISON).all(axis=1)
    unwritten = int(untouched.sum())
    error = output.astype(xp.float64) - reference
    norm = _norm(reference) or 1.0
    relative = _norm(error) / norm
    plain = _norm(baseline.astype(xp.float64) - reference) / norm
    limit = bound if bound is not None else max((ratio or DEFAULT_RATIO) * plain, float(xp.finfo(output.dtype).eps))
    distance = xp.abs(error)
    distance = xp.where(xp.isfinite(distance), distance, xp.inf)
    failure = None
    if overwritten:
        failure = f"{of}wrote {overwritten} elements outside of its output"
    elif unwritten:
        place = _place(int(untouched.argmax()), output.shape, axes)
        failure = f"{of}left {unwritten} of {output.size} elements unwritten, the first at {place}"
    elif not relative <= limit:
        worst = int(distance.ravel().argmax())
        got, wanted = float(output.ravel()[worst]), float(reference.ravel()[worst])
        failure = (
            f"{of}relative L2 error {relative:.2e} is over the bound {limit:.2e}; worst at "
            f"{_place(worst, output.shape, axes)}: {got:g}, should be {wanted:g}"
        )
    return Accuracy(
        relative_l2=relative,
        max_abs=float(distance.max()),
        baseline_l2=plain,
        bound=limit,
        ratio=relative / plain if plain else math.inf if relative else 0.0,
        failure=failure,
    )


def _norm(values: Any) -> float:
    """The L2 norm. (`linalg.norm` of cupy loads three libraries first, which takes longer than all else here.)"""
    return math.sqrt(float((values * values).sum()))


def _place(index: int, shape: tuple[int, ...], axes: Sequence[str]) -> str:
    """`[B=0, S=17, H=3, D=5]` for a flat index."""
    parts = []
    for axis, size in zip(reversed(axes), reversed(shape), strict=True):
        index, position = divmod(index, size)
        parts.append(f"{axis}={position}")
    return "[" + ", ".join(reversed(parts)) + "]"
