"""Accuracy figures by hand on two elements, each way to fail with its words, and the places that they name."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from faperf.verify import POISON, Accuracy, _place, compare

AXES = "BSHD"
ELSEWHERE_NAN = 0x7E00
"""The NaN that arithmetic gives."""


def halves(*values: float) -> np.ndarray:
    return np.array(values, np.float16).reshape(1, len(values), 1, 1)


def against(output: np.ndarray, reference: list[float], baseline: list[float] | None = None, **more: Any) -> Accuracy:
    wanted = np.array(reference, np.float64).reshape(output.shape)
    plain = halves(*(baseline or reference)).reshape(output.shape)
    return compare(np, output, wanted, plain, AXES, **more)


def filled(shape: tuple[int, ...], places: dict[tuple[int, ...], int]) -> np.ndarray:
    """Ones, and bit patterns at some places."""
    output = np.ones(shape, np.float16)
    for place, bits in places.items():
        output.view(np.uint16)[place] = bits
    return output


def test_figures_by_hand() -> None:
    """The reference has norm 5, the output is off by ½ in one element and the plain implementation by ⅛."""
    found = against(halves(3, 4.5), [3, 4], [3.125, 4], ratio=3)
    assert found.relative_l2 == 0.1
    assert found.max_abs == 0.5
    assert found.baseline_l2 == 0.025
    assert found.bound == pytest.approx(0.075)
    assert found.ratio == pytest.approx(4)
    assert not found.ok
    assert found.failure == (
        "relative L2 error 1.00e-01 is over the bound 7.50e-02; worst at [B=0, S=1, H=0, D=0]: 4.5, should be 4"
    )


def test_errors_add_up_as_squares() -> None:
    found = against(halves(3.75, 5), [3, 4], bound=1)
    assert found.relative_l2 == pytest.approx(1.25 / 5)  # √(¾² + 1²) = 1¼
    assert found.max_abs == 1


@pytest.mark.parametrize(
    ("more", "bound"),
    [
        ({}, 0.05),  # 2 × 0.025
        ({"ratio": 4.0}, 0.1),
        ({"ratio": 0.001}, 1 / 1024),
        ({"bound": 0.25}, 0.25),
        ({"bound": 1e-6}, 1e-6),  # an explicit bound may be under an ulp
        ({"ratio": 4.0, "bound": 0.25}, 0.25),
    ],
)
def test_bound(more: dict[str, float], bound: float) -> None:
    assert against(halves(3, 4), [3, 4], [3.125, 4], **more).bound == pytest.approx(bound)


@pytest.mark.parametrize(("output", "ok"), [(4.25, True), (4.3, False)])
def test_at_the_bound_is_well(output: float, ok: bool) -> None:
    """Twice the plain implementation's ⅛ and no more."""
    assert against(halves(3, output), [3, 4], [3.125, 4]).ok is ok


@pytest.mark.parametrize(("output", "ok"), [(1024, True), (1025, True), (1026, False)])
def test_an_ulp_is_well_though_the_plain_implementation_has_no_error(output: float, ok: bool) -> None:
    found = against(halves(output), [1024])
    assert found.ok is ok
    assert found.baseline_l2 == 0
    assert found.ratio == (0 if output == 1024 else math.inf)


def test_a_reference_of_zeros_makes_the_error_absolute() -> None:
    assert against(halves(0, 0), [0, 0]).ok
    assert against(halves(0, 0.5), [0, 0]).relative_l2 == 0.5


@pytest.mark.parametrize(
    ("bits", "value"), [(ELSEWHERE_NAN, "nan"), (0xFE00, "nan"), (0x7C00, "inf"), (0xFC00, "-inf")]
)
def test_what_is_not_finite_is_the_worst(bits: int, value: str) -> None:
    """One element of 120, though another is wrong by a finite amount, and the explicit bound is generous."""
    output = filled((2, 5, 3, 4), {(1, 2, 0, 3): bits, (0, 0, 0, 0): 0x7BFF})
    found = against(output, [1.0] * output.size, bound=1e9)
    assert found.failure is not None
    assert f"worst at [B=1, S=2, H=0, D=3]: {value}, should be 1" in found.failure
    assert found.max_abs == math.inf
    assert "unwritten" not in found.failure


def test_unwritten() -> None:
    output = filled((2, 5, 3, 4), {(1, 2, 0, 3): POISON, (1, 4, 2, 0): POISON})
    found = against(output, [1.0] * output.size, bound=1e9)
    assert found.failure == "left 2 of 120 elements unwritten, the first at [B=1, S=2, H=0, D=3]"
    assert found.max_abs == math.inf


def test_poison_is_a_quiet_nan_that_arithmetic_does_not_give() -> None:
    assert np.isnan(np.array([POISON], np.uint16).view(np.float16)[0])
    assert POISON & 0x0200  # the quiet bit
    with np.errstate(invalid="ignore"):
        made = np.array([np.inf, 0], np.float16) * np.array([0, np.inf], np.float16)
    assert POISON not in {int(bits) & 0x7FFF for bits in made.view(np.uint16)}


def test_overwritten_though_the_output_is_right() -> None:
    found = against(halves(3, 4), [3, 4], overwritten=3)
    assert found.failure == "wrote 3 elements outside of its output"
    assert found.relative_l2 == 0
    assert not found.ok


def test_out_of_bounds_is_said_before_what_it_left_out() -> None:
    output = filled((1, 2, 1, 1), {(0, 1, 0, 0): POISON})
    assert against(output, [1, 1], overwritten=1).failure == "wrote 1 elements outside of its output"
    unwritten = against(output, [1, 1]).failure
    assert unwritten == "left 1 of 2 elements unwritten, the first at [B=0, S=1, H=0, D=0]"


def test_a_constant_error_everywhere_is_found() -> None:
    """No element is wrong by much, the norm is."""
    output = np.full((1, 64, 2, 8), 1.01, np.float16)
    assert not against(output, [1.0] * output.size).ok


def test_one_bad_element_among_many_may_hide_in_the_norm() -> None:
    """What a relative L2 error cannot see: `max_abs` shows it."""
    output = filled((1, 1024, 8, 128), {(0, 5, 6, 7): 0x4000})  # 2 instead of 1
    found = against(output, [1.0] * output.size)
    assert found.ok
    assert found.max_abs == 1
    assert found.relative_l2 == pytest.approx(2**-10)


@pytest.mark.parametrize(
    ("index", "shape", "axes", "place"),
    [
        (0, (2, 5, 3, 4), "BSHD", "[B=0, S=0, H=0, D=0]"),
        (3, (2, 5, 3, 4), "BSHD", "[B=0, S=0, H=0, D=3]"),
        (4, (2, 5, 3, 4), "BSHD", "[B=0, S=0, H=1, D=0]"),
        (60 + 2 * 12 + 1 * 4 + 2, (2, 5, 3, 4), "BSHD", "[B=1, S=2, H=1, D=2]"),
        (60 + 1 * 20 + 2 * 4 + 2, (2, 3, 5, 4), "BHSD", "[B=1, H=1, S=2, D=2]"),
        (119, (2, 3, 5, 4), "BHSD", "[B=1, H=2, S=4, D=3]"),
        (5, (7,), "N", "[N=5]"),
    ],
)
def test_place(index: int, shape: tuple[int, ...], axes: str, place: str) -> None:
    assert _place(index, shape, axes) == place


@pytest.mark.parametrize("axes", ["BSHD", "BHSD"])
def test_the_worst_element_is_named_by_the_layout(axes: str) -> None:
    output = filled((2, 5, 3, 4), {(1, 2, 0, 3): 0x4500, (0, 4, 2, 0): 0x4400})  # 5, and 4
    wanted = np.ones(output.shape)
    failure = compare(np, output, wanted, wanted.astype(np.float16), axes).failure
    assert failure is not None
    place = ", ".join(f"{axis}={at}" for axis, at in zip(axes, (1, 2, 0, 3), strict=True))
    assert failure.endswith(f"worst at [{place}]: 5, should be 1")
