"""Results that are rounded once, as IEEE 754 and the PTX ISA ask: fused multiply-add, directed modes, bfloat16, flushing."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np

from faperf.emulator.state import Array

TINY = np.float32(2.0**-126)
HALF_TINY = np.float32(2.0**-14)
EDGE = 2.0**-126 * (1 - 2.0**-25)
HALF_EDGE = np.float32(2.0**-14 * (1 - 2.0**-12))
"""A result below is subnormal after it was rounded to the type's bits, however small its exponent: only then .ftz takes it."""
_ONE = np.uint32(1)
_HALF_WAY = np.int64(-1 << 63)
"""The 29 bits of float64 that float32 has not, shifted to the top, where they are half of its last one."""
_NOWHERE = np.zeros(0, np.intp)
MODES = ("rn", "rz", "rm", "rp")


def flushed(x: Array, tiny: Any = TINY) -> Array:
    """Subnormal numbers as zeros of their sign (.ftz)."""
    if tiny is TINY and x.dtype == np.float32:
        bits = x.view(np.uint32)
        if int(np.minimum.reduce((bits + bits) - _ONE, axis=None)) >= 0xFFFFFF:  # zeros wrap around; no exponent is 0
            return x
    small = (np.abs(x) < tiny) & (x != 0)
    return np.where(small, x * x.dtype.type(0), x) if small.any() else x


def odd_sum(x: Array, y: Array, mode: str = "rn") -> Array:
    """x + y in float64; where that is inexact, rounded to odd: what is rounded again to less is then rounded as if once.

    A sum of zero is -0 when rounding down, unless both are +0.

    (Knuth's TwoSum gives the error; Boldo and Melquiond, "Emulation of a FMA and correctly rounded sums".)
    """
    total = x + y
    part = total - x
    error = (x - (total - part)) + (y - part)
    bits = total.view(np.int64)
    away = (error > 0) == (total > 0)
    wrong = (error != 0) & ((bits & 1) == 0) & np.isfinite(total)
    if mode == "rm":
        bits = np.where((total == 0) & (np.signbit(x) | np.signbit(y)), np.int64(-1 << 63), bits)
    return np.where(wrong, np.where(away, bits + 1, bits - 1), bits).view(np.float64)


def fused(a: Array, b: Array, c: Array, mode: str = "rn") -> Array:
    """a·b + c of numbers of up to 24 bits, in float64 rounded to odd."""
    return odd_sum(a.astype(np.float64) * b.astype(np.float64), c.astype(np.float64), mode)


def doubtful(x: Array, near: Array) -> Array:
    """The flat places where float64 lies exactly half-way between two floats of 24 bits, or where those are subnormal: rounding
    may have led there. `near` is x in float32.
    """
    half_way, bits, zero = (x.view(np.int64) << 35) == _HALF_WAY, near.view(np.uint32), near == 0
    tiny = int(np.minimum.reduce((bits + bits) - _ONE, axis=None)) <= 0xFFFFFF
    if tiny or (np.count_nonzero(zero) and np.count_nonzero(x[zero])):
        half_way |= (np.abs(x) <= TINY) & (x != 0)
    return np.flatnonzero(half_way) if np.count_nonzero(half_way) else _NOWHERE


def positive(x: Array) -> Array:
    """Numbers up to 0 and -0 as +0 (.relu). NaN stays."""
    return np.where(x <= 0, x.dtype.type(0), x)


def fused_double(a: Array, b: Array, c: Array) -> Array:
    """a·b + c in float64, by rational numbers where that matters: attention kernels hardly use it."""
    near: Array = a * b + c
    a, b, c = np.broadcast_arrays(a, b, c)
    for at in np.flatnonzero(np.isfinite(near) & np.isfinite(a) & np.isfinite(b) & np.isfinite(c)):
        exact = Fraction(float(a.flat[at])) * Fraction(float(b.flat[at])) + Fraction(float(c.flat[at]))
        if exact:
            near.flat[at] = float(exact)
    return near


def single(x: Array, mode: str = "rn") -> Array:
    """float64 → float32 in a rounding mode."""
    near = x.astype(np.float32)
    if mode == "rn":
        return near
    back = near.astype(np.float64)
    if mode == "rz":
        wrong, towards = np.abs(back) > np.abs(x), np.float32(0)
    else:
        wrong = back > x if mode == "rm" else back < x
        towards = np.float32(-np.inf if mode == "rm" else np.inf)
    return np.where(wrong, np.nextafter(near, towards), near)


def half(x: Array, mode: str = "rn") -> Array:
    """float32 or float64 → float16, to nearest even or (rz) towards zero."""
    near = x.astype(np.float16)
    if mode == "rn":
        return near
    wrong = np.abs(near.astype(x.dtype)) > np.abs(x)
    return np.where(wrong, np.nextafter(near, np.float16(0)), near)


def brain(x: Array, mode: str = "rn") -> Array:
    """float32 → the 16 bits of bfloat16, to nearest even or (rz) towards zero. NaN is 0x7FFF."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    if mode == "rz":
        cut = (bits >> np.uint32(16)).astype(np.uint16)
    else:
        more = np.uint64(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
        cut = ((bits + more) >> np.uint64(16)).astype(np.uint16)
    return np.where(np.isnan(x), np.uint16(0x7FFF), cut)


def odd_single(x: Array) -> Array:
    """float64 → float32 rounded to odd, to be rounded again to bfloat16."""
    cut = single(x, "rz")
    inexact = (cut.astype(np.float64) != x) & np.isfinite(cut)
    return (cut.view(np.uint32) | inexact.astype(np.uint32)).view(np.float32)


def from_brain(bits: Array) -> Array:
    """The 16 bits of bfloat16 → float32."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def largest(a: Array, b: Array, least: bool = False, nan: bool = False) -> Array:
    """PTX's max (min with `least`): +0 is larger than -0; a NaN only where both are, or with `nan` where one is."""
    functions = (np.minimum, np.fmin) if least else (np.maximum, np.fmax)
    result = functions[not nan](a, b)
    if np.count_nonzero(result == 0):
        zeros = (a == 0) & (b == 0)
        negative = np.signbit(a) | np.signbit(b) if least else np.signbit(a) & np.signbit(b)
        zero = result.dtype.type(0)
        result = np.where(zeros, np.where(negative, -zero, zero), result)
    return result


def saturated(x: Array) -> Array:
    """Into [0, 1]; NaN and -0 become +0 (.sat)."""
    return np.where(x > 0, np.minimum(x, x.dtype.type(1)), x.dtype.type(0))


def halves_of(values: Array, brain: bool = False) -> Array:
    """Float32 values that 16 bits hold, as the bits of a half or, with `brain`, of a bfloat16."""
    if brain:
        return (np.ascontiguousarray(values).view(np.uint32) >> np.uint32(16)).astype(np.uint16)
    return values.astype(np.float16).view(np.uint16)
