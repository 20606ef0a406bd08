"""How a tensor core sums products: bit for bit as an H200 does (tests/data/silicon), or fast and a few rounding errors apart.

A Hopper tensor core multiplies exactly, brings the products of one instruction's k and the accumulator to the exponent of the
largest of them, cuts each to 25 bits below it, adds, and cuts the sum to float32 (or rounds it to nearest for an f16
result). It was described by Fasi, Higham, Mikaitis and Pranesh, "Numerical behavior of NVIDIA tensor cores" (2021), for its
predecessors.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from faperf.emulator.rounding import single
from faperf.emulator.state import Array

KEPT_BITS = 25
THREADS_FROM = 1 << 18
"""Multiply-adds of a product from which on it takes threads."""
NONE = -(1 << 20)
"""The exponent of what is zero."""


def exponents(x: Array, least: int) -> Array:
    """Of the numbers as they are stored: a subnormal's is `least`."""
    found = np.maximum(np.frexp(x)[1].astype(np.int64) - 1, least)
    return np.where(x == 0, NONE, found)


def multiply(a: Array, b: Array, c: Array | None, to_half: bool, least: int, exact: bool) -> Array:
    """a[…, m, k]·b[…, n, k]ᵀ + c[…, m, n] as float32 holds it (`to_half`: as float16 does).

    `least` is the smallest exponent of a's and b's type: -14 for f16, -126 for bf16, whose products float32 does not hold.
    """
    if exact:
        return _aligned(a, b, c, to_half, least)
    wide: Any = np.float32 if least == -14 else np.float64
    product = _by_one_thread(a.astype(wide, copy=False), np.swapaxes(b, -1, -2).astype(wide, copy=False))
    total = (product if c is None else product + c).astype(np.float32, copy=False)
    return total.astype(np.float16) if to_half else total


def _by_one_thread(a: Array, b: Array) -> Array:
    """a[…, m, k]·b[…, k, n] in pieces for which OpenBLAS starts no threads: on shared cores they cost more than they save."""
    rows = max(1, THREADS_FROM // (b.shape[-2] * b.shape[-1]))
    if rows >= a.shape[-2]:
        whole: Array = np.matmul(a, b)
        return whole
    return np.concatenate([np.matmul(a[..., n : n + rows, :], b) for n in range(0, a.shape[-2], rows)], axis=-2)


def _aligned(a: Array, b: Array, c: Array | None, to_half: bool, least: int) -> Array:
    x, y = a.astype(np.float64), b.astype(np.float64)
    start = np.zeros((*x.shape[:-1], y.shape[-2])) if c is None else c.astype(np.float64)
    products = x[..., :, None, :] * y[..., None, :, :]
    heights = np.where(products == 0, NONE, exponents(x, least)[..., :, None, :] + exponents(y, least)[..., None, :, :])
    top = np.maximum(heights.max(-1), exponents(start, -126))
    unit = np.ldexp(1.0, np.maximum(top - KEPT_BITS, -1000).astype(np.int32))
    total = (np.trunc(products / unit[..., None]).sum(-1) + np.trunc(start / unit)) * unit
    odd = ~(np.isfinite(x).all(-1)[..., :, None] & np.isfinite(y).all(-1)[..., None, :] & np.isfinite(start))
    if odd.any():
        total = np.where(odd, products.sum(-1) + start, total)
    if to_half:
        return total.astype(np.float16)
    return np.where(np.abs(total) >= 2.0**128, total, single(total, "rz")).astype(np.float32)
