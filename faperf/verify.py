"""An output against its reference → accuracy figures, and what is wrong with it in words.

Arrays are numpy's or cupy's. The bound is relative: `ratio` × the error of a plain fp16 implementation, but never less than
2⁻¹⁰, an ulp of fp16 (Dao-AILab's flash-attention tests bound by twice the same-precision baseline as well).
"""

from __future__ import annotations

import math
from typing import Any

import msgspec

LEAST_BOUND = 2.0**-10
DEFAULT_RATIO = 2.0
POISON = 0x7E5A
"""A quiet NaN of fp16 with a payload that no arithmetic gives: what still holds it was never written."""


class Accuracy(msgspec.Struct, frozen=True):
    """Errors against float64, over the compared rows. `ratio` is to the plain fp16 implementation's error.

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


def compare(
    xp: Any,
    output: Any,
    reference: Any,
    baseline: Any,
    axes: str,
    *,
    ratio: float | None = None,
    bound: float | None = None,
    overwritten: int = 0,
) -> Accuracy:
    """`output` (halves) against `reference` (float64) and a plain implementation's `baseline`, all of the same shape.

    `axes` names the dimensions for messages ("BSHD"). `overwritten` is how many elements of the guard bands changed.
    """
    unwritten = int((output.view(xp.uint16) == POISON).sum())
    error = output.astype(xp.float64) - reference
    norm = _norm(reference) or 1.0
    relative = _norm(error) / norm
    plain = _norm(baseline.astype(xp.float64) - reference) / norm
    limit = bound if bound is not None else max((ratio or DEFAULT_RATIO) * plain, LEAST_BOUND)
    distance = xp.abs(error)
    distance = xp.where(xp.isfinite(distance), distance, xp.inf)
    failure = None
    if overwritten:
        failure = f"wrote {overwritten} elements outside of its output"
    elif unwritten:
        first = int((output.view(xp.uint16) == POISON).ravel().argmax())
        failure = (
            f"left {unwritten} of {output.size} elements unwritten, the first at {_place(first, output.shape, axes)}"
        )
    elif not relative <= limit:
        worst = int(distance.ravel().argmax())
        got, wanted = float(output.ravel()[worst]), float(reference.ravel()[worst])
        failure = (
            f"relative L2 error {relative:.2e} is over the bound {limit:.2e}; worst at "
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


def _place(index: int, shape: tuple[int, ...], axes: str) -> str:
    """`[B=0, S=17, H=3, D=5]` for a flat index."""
    parts = []
    for axis, size in zip(reversed(axes), reversed(shape), strict=True):
        index, position = divmod(index, size)
        parts.append(f"{axis}={position}")
    return "[" + ", ".join(reversed(parts)) + "]"
