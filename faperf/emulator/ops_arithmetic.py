"""Arithmetic, logic, shifts and comparisons of every generation.

Sections of the PTX ISA manual: "Integer Arithmetic Instructions", "Floating Point Instructions", "Half Precision …",
"Comparison and Selection", "Logic and Shift". Approximate functions are as exact as numpy's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from faperf.emulator.batch import PURE
from faperf.emulator.decode import Decoder, handles
from faperf.emulator.fault import NotEmulatedError
from faperf.emulator.ops_common import Elementwise, computed, only, type_of, ufunc
from faperf.emulator.ptx import Instruction
from faperf.emulator.rounding import (
    EDGE,
    HALF_EDGE,
    HALF_TINY,
    MODES,
    TINY,
    brain,
    doubtful,
    flushed,
    from_brain,
    fused,
    fused_double,
    half,
    largest,
    odd_single,
    odd_sum,
    positive,
    saturated,
    single,
)
from faperf.emulator.state import DTYPES, STORAGE, Array

PLAIN = {"add": np.add, "sub": np.subtract, "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}
SMALL = ("f16", "f16x2", "bf16", "bf16x2")


@handles("add", "sub", memory=PURE)
def _add(d: Decoder, ins: Instruction) -> Elementwise:
    only(ins, *SMALL, "f32x2", *MODES)
    return _two(d, ins, PLAIN[ins.parts[0]])


def _two(d: Decoder, ins: Instruction, function: Any) -> Elementwise:
    kind = type_of(ins)
    if "f32x2" in ins:
        return _packed_single(d, ins, lambda a, b: function(a, b))
    if kind in SMALL:
        return _half(d, ins, lambda a, b: function(a, b))
    mode = _mode(ins)
    if kind == "f32" and mode != "rn":

        def directed(a: Array, b: Array) -> Array:
            x, y = a.astype(np.float64), b.astype(np.float64)
            if function is np.multiply:
                return single(x * y, mode)
            return single(odd_sum(x, y if function is np.add else -y, mode), mode)

        return computed(d, kind, [(kind, text) for text in ins.operands[1:]], ins.operands[0], directed, ins)
    if mode != "rn":
        raise NotEmulatedError(f"no emulation of {ins.opcode}", ins.place)
    if kind == "f32" and "ftz" in ins and function is np.multiply:

        def flushing(a: Array, b: Array) -> Array:
            result = a * b
            edge = np.abs(result) == TINY
            if edge.any():
                result = np.where(edge, single(flushed(a.astype(np.float64) * b, EDGE)), result)
            return result

        return computed(d, kind, [(kind, text) for text in ins.operands[1:]], ins.operands[0], flushing, ins)
    return ufunc(d, ins, function, kind, ins.operands[1:], ins.operands[0])


def _mode(ins: Instruction) -> str:
    return next((part for part in ins.parts if part in MODES), "rn")


def _half(d: Decoder, ins: Instruction, function: Callable[..., Array]) -> Elementwise:
    """f16, bf16 and pairs of them: computed in float32, or by `function` in float64 rounded to odd, and rounded once.

    float32 has more than twice their bits, so that rounding to it first does no harm ("double rounding is innocuous").
    """
    if _mode(ins) != "rn":
        raise NotEmulatedError(f"no emulation of {ins.opcode}", ins.place)
    width = 32 if ins.parts[-1].endswith("x2") else 16
    ftz, sat, relu, of_brain = "ftz" in ins, "sat" in ins, "relu" in ins, "bf16" in ins.parts[-1]
    store, kind = STORAGE[width], f"u{width}"

    def taken(row: Array) -> Array:
        halves = row.view(np.uint16)
        values = from_brain(halves) if of_brain else halves.view(np.float16).astype(np.float32)
        return flushed(values, TINY if of_brain else HALF_TINY) if ftz else values

    def rounded(*rows: Array) -> Array:
        result = function(*(taken(row) for row in rows))
        if relu:
            result = positive(result)
        if sat:
            result = saturated(result)
        if of_brain:
            result = odd_single(result) if result.dtype == np.float64 else result
            result = brain(flushed(result) if ftz else result)
        else:
            result = half(flushed(result, HALF_EDGE) if ftz else result).view(np.uint16)
        packed: Array = result.view(store)
        return packed

    return computed(d, kind, [(kind, text) for text in ins.operands[1:]], ins.operands[0], rounded, ins)


def _packed_single(d: Decoder, ins: Instruction, function: Callable[..., Array]) -> Elementwise:
    """f32x2: two floats in 64 bits."""
    if _mode(ins) != "rn":
        raise NotEmulatedError(f"no emulation of {ins.opcode}", ins.place)
    ftz = "ftz" in ins

    def both(*rows: Array) -> Array:
        values = [flushed(row.view(np.float32)) if ftz else row.view(np.float32) for row in rows]
        result = function(*values).astype(np.float32)
        packed: Array = (flushed(result) if ftz else result).view(np.uint64)
        return packed

    return computed(d, "u64", [("u64", text) for text in ins.operands[1:]], ins.operands[0], both, ins)


@handles("mul", memory=PURE)
def _mul(d: Decoder, ins: Instruction) -> Elementwise:
    only(ins, *SMALL, "f32x2", *MODES)
    kind = type_of(ins)
    if kind[0] == "f" or kind in SMALL or "f32x2" in ins or "lo" in ins:
        return _two(d, ins, np.multiply)
    a, b = ins.operands[1:]
    bits = int(kind[1:])
    if "wide" in ins:
        wide = f"{kind[0]}{2 * bits}"
        return computed(
            d, wide, [(kind, a), (kind, b)], ins.operands[0],
            lambda x, y: x.astype(DTYPES[wide]) * y.astype(DTYPES[wide]), ins,
        )  # fmt: skip
    if bits != 32:
        raise NotEmulatedError(f"no emulation of {ins.opcode}", ins.place)
    wide = f"{kind[0]}64"
    return computed(
        d, kind, [(kind, a), (kind, b)], ins.operands[0],
        lambda x, y: (x.astype(DTYPES[wide]) * y.astype(DTYPES[wide])) >> DTYPES[wide](32), ins,
    )  # fmt: skip


@handles("mad", memory=PURE)
def _mad(d: Decoder, ins: Instruction) -> Elementwise:
    only(ins)
    kind = type_of(ins)
    out, a, b, c = ins.operands
    if kind[0] == "f":
        made: Elementwise = _fma(d, ins)
        return made
    if "wide" in ins:
        wide = f"{kind[0]}{2 * int(kind[1:])}"
        return computed(
            d, wide, [(kind, a), (kind, b), (wide, c)], out,
            lambda x, y, z: x.astype(DTYPES[wide]) * y.astype(DTYPES[wide]) + z, ins,
        )  # fmt: skip
    if "lo" not in ins:
        raise NotEmulatedError(f"no emulation of {ins.opcode}", ins.place)
    return computed(d, kind, [(kind, a), (kind, b), (kind, c)], out, lambda x, y, z: x * y + z, ins)


@handles("fma", memory=PURE)
def _fma(d: Decoder, ins: Instruction) -> Elementwise:
    """One rounding. The usual way through float64 rounds twice where float64's own result lies half-way between two floats."""
    only(ins, *SMALL, "f32x2", "relu", *MODES)
    kind, mode = type_of(ins), _mode(ins)
    if "f32x2" in ins:
        return _packed_single(d, ins, lambda x, y, z: single(fused(x, y, z)))
    if kind in SMALL:
        return _half(d, ins, fused)
    sources = [(kind, text) for text in ins.operands[1:]]
    if kind == "f64":
        if mode != "rn":
            raise NotEmulatedError(f"no emulation of {ins.opcode}", ins.place)
        return computed(d, kind, sources, ins.operands[0], fused_double, ins)

    def once(x: Array, y: Array, z: Array) -> Array:
        total = x.astype(np.float64) * y + z
        if mode != "rn":
            total = fused(x, y, z, mode)
            return single(flushed(total, EDGE) if "ftz" in ins else total, mode)
        near = total.astype(np.float32)
        where = doubtful(total, near)
        if len(where):
            a, b, c = (_at(each, where, total.shape) for each in (x, y, z))
            exact = fused(a, b, c)
            near.reshape(-1)[where] = single(flushed(exact, EDGE) if "ftz" in ins else exact)
        return near

    return computed(d, kind, sources, ins.operands[0], once, ins)


def _at(values: Array, where: Array, shape: tuple[int, ...]) -> Array:
    """Elements at flat places of a shape that the values broadcast to."""
    whole: Array = np.broadcast_to(values, shape)
    return whole.take(where) if values.shape == shape else whole[np.unravel_index(where, shape)]


@handles("min", "max", memory=PURE)
def _extreme(d: Decoder, ins: Instruction) -> Elementwise:
    only(ins, "NaN", *SMALL, "xorsign", "abs")
    if "xorsign" in ins or "abs" in ins:
        raise NotEmulatedError(f"no emulation of {ins.opcode}", ins.place)
    kind, least, nan = type_of(ins), ins.parts[0] == "min", "NaN" in ins
    if kind in SMALL:
        return _half(d, ins, lambda *values: _fold(lambda a, b: largest(a, b, least, nan), values))
    sources = [(kind, text) for text in ins.operands[1:]]
    if kind[0] == "f":
        return computed(
            d,
            kind,
            sources,
            ins.operands[0],
            lambda *values: _fold(lambda a, b: largest(a, b, least, nan), values),
            ins,
        )
    return ufunc(d, ins, np.minimum if least else np.maximum, kind, ins.operands[1:], ins.operands[0])


def _fold(function: Any, values: tuple[Array, ...]) -> Array:
    result = values[0]
    for value in values[1:]:
        result = function(result, value)
    return result


@handles("and", "or", "xor", memory=PURE)
def _bitwise(d: Decoder, ins: Instruction) -> Elementwise:
    only(ins)
    if "pred" in ins:
        function = {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor}[ins.parts[0]]
        return computed(d, "pred", [("pred", text) for text in ins.operands[1:]], ins.operands[0], function, ins)
    return ufunc(d, ins, PLAIN[ins.parts[0]], type_of(ins), ins.operands[1:], ins.operands[0])


@handles("not", memory=PURE)
def _not(d: Decoder, ins: Instruction) -> Elementwise:
    if "pred" in ins:
        return computed(d, "pred", [("pred", ins.operands[1])], ins.operands[0], np.logical_not, ins)
    return ufunc(d, ins, np.bitwise_not, type_of(ins), ins.operands[1:], ins.operands[0])


@handles("neg", "abs", memory=PURE)
def _sign(d: Decoder, ins: Instruction) -> Elementwise:
    only(ins, *SMALL)
    kind, function = type_of(ins), np.negative if ins.parts[0] == "neg" else np.abs
    if kind in SMALL:
        return _half(d, ins, lambda a: function(a))
    return ufunc(d, ins, function, kind, ins.operands[1:], ins.operands[0])


@handles("shl", "shr", memory=PURE)
def _shift(d: Decoder, ins: Instruction) -> Elementwise:
    kind = type_of(ins)
    bits, left = int(kind[1:]), ins.parts[0] == "shl"
    function = np.left_shift if left else np.right_shift
    out, a, b = ins.operands
    row = d.row(b, 32)
    amount = d.constant(row, 32)
    if amount is not None and amount < bits:
        by = DTYPES[kind](amount)
        return computed(d, kind, [(kind, a)], out, lambda x: function(x, by), ins, amount)

    def shift(x: Array, n: Array) -> Array:
        whole = function(x, np.minimum(n, bits - 1).astype(x.dtype))
        return whole if kind[0] == "s" else np.where(n < bits, whole, x.dtype.type(0))

    return computed(d, kind, [(kind, a), ("u32", b)], out, shift, ins)


@handles("shf", memory=PURE)
def _funnel(d: Decoder, ins: Instruction) -> Elementwise:
    out, low, high, by = ins.operands
    left, wrap = "l" in ins, "wrap" in ins

    def shift(a: Array, b: Array, c: Array) -> Array:
        n = ((c & np.uint32(31)) if wrap else np.minimum(c, 32)).astype(np.uint64)
        both = b.astype(np.uint64) << np.uint64(32) | a
        return (both << n) >> np.uint64(32) if left else both >> n

    return computed(d, "u32", [("u32", low), ("u32", high), ("u32", by)], out, shift, ins)


@handles("lop3", memory=PURE)
def _lop3(d: Decoder, ins: Instruction) -> Elementwise:
    if len(ins.operands) != 5:
        raise NotEmulatedError(f"no emulation of {ins.opcode}", ins.place)
    out, a, b, c, table = ins.operands
    bits = d.number(table)

    def look_up(x: Array, y: Array, z: Array) -> Array:
        result = np.zeros_like(x)
        for index in range(8):
            if bits >> index & 1:
                result |= (x if index & 4 else ~x) & (y if index & 2 else ~y) & (z if index & 1 else ~z)
        return result

    return computed(d, "u32", [("u32", a), ("u32", b), ("u32", c)], out, look_up, ins, bits)


@handles("prmt", memory=PURE)
def _permute(d: Decoder, ins: Instruction) -> Elementwise:
    if ins.parts[1] != "b32":
        raise NotEmulatedError(f"no emulation of {ins.opcode}", ins.place)

    def pick(a: Array, b: Array, selector: Array) -> Array:
        both = b.astype(np.uint64) << np.uint64(32) | a
        result = np.zeros_like(a)
        for byte in range(4):
            which = (selector >> np.uint32(4 * byte)) & np.uint32(15)
            value = ((both >> (which & np.uint32(7)).astype(np.uint64) * np.uint64(8)) & np.uint64(255)).astype(
                np.uint32
            )
            sign = np.where(value & np.uint32(128), np.uint32(255), np.uint32(0))
            result |= np.where(which & np.uint32(8), sign, value) << np.uint32(8 * byte)
        return result

    out, a, b, c = ins.operands
    return computed(d, "u32", [("u32", a), ("u32", b), ("u32", c)], out, pick, ins)


@handles("bfe", memory=PURE)
def _extract(d: Decoder, ins: Instruction) -> Elementwise:
    kind = type_of(ins)
    bits = int(kind[1:])
    out, a, start, length = ins.operands

    def extract(x: Array, p: Array, n: Array) -> Array:
        p, n = p & np.uint32(255), np.minimum(n & np.uint32(255), bits)
        shift = np.minimum(p, 63)
        u = x.astype(np.uint64) >> shift.astype(np.uint64)
        if kind[0] == "s":
            u = (x.astype(np.int64) >> shift.astype(np.int64)).astype(np.uint64)
        ones = np.where(n < 64, (np.uint64(1) << np.minimum(n, 63).astype(np.uint64)) - np.uint64(1), ~np.uint64(0))
        found = u & ones.astype(np.uint64)
        if kind[0] == "s":
            last = np.minimum(p.astype(np.int64) + n - 1, bits - 1)  # beyond the top bit it is the top bit
            top = np.where(n > 0, (x.astype(np.int64) >> np.maximum(last, 0)) & 1, 0)
            found = np.where(top > 0, found | ~ones.astype(np.uint64), found)
        return found.astype(DTYPES[f"u{bits}"]).view(DTYPES[kind])

    return computed(d, kind, [(kind, a), ("u32", start), ("u32", length)], out, extract, ins)


@handles("bfi", memory=PURE)
def _insert(d: Decoder, ins: Instruction) -> Elementwise:
    kind = type_of(ins)
    bits = int(kind[1:])
    out, a, b, start, length = ins.operands

    def insert(x: Array, y: Array, p: Array, n: Array) -> Array:
        p, n = (v.astype(np.uint64) & np.uint64(255) for v in (p, n))
        ones = np.where(n < 64, (np.uint64(1) << np.minimum(n, 63).astype(np.uint64)) - np.uint64(1), ~np.uint64(0))
        place = np.where(p < bits, ones.astype(np.uint64) << np.minimum(p, 63).astype(np.uint64), 0).astype(np.uint64)
        moved = np.where(p < bits, x.astype(np.uint64) << np.minimum(p, 63).astype(np.uint64), 0).astype(np.uint64)
        return (y.astype(np.uint64) & ~place) | (moved & place)

    return computed(d, kind, [(kind, a), (kind, b), ("u32", start), ("u32", length)], out, insert, ins)


@handles("popc", "clz", "brev", memory=PURE)
def _count(d: Decoder, ins: Instruction) -> Elementwise:
    kind = type_of(ins)
    bits = int(kind[1:])

    def count(x: Array) -> Array:
        ones = (x[..., None] >> np.arange(bits, dtype=x.dtype)) & x.dtype.type(1)
        if ins.parts[0] == "popc":
            return ones.sum(-1).astype(np.uint32)
        if ins.parts[0] == "brev":
            back = ones[..., ::-1].astype(np.uint64) << np.arange(bits, dtype=np.uint64)
            return back.sum(-1).astype(x.dtype)
        return np.where(ones.any(-1), ones[..., ::-1].argmax(-1), bits).astype(np.uint32)

    out = kind if ins.parts[0] == "brev" else "u32"
    return computed(d, out, [(kind, ins.operands[1])], ins.operands[0], count, ins)


@handles("div", "rem", memory=PURE)
def _divide(d: Decoder, ins: Instruction) -> Elementwise:
    only(ins)
    kind = type_of(ins)
    if kind[0] == "f" and "approx" in ins:
        return computed(
            d, kind, [(kind, text) for text in ins.operands[1:]], ins.operands[0], _approximate_quotient, ins
        )
    if kind[0] == "f":
        return ufunc(d, ins, np.divide, kind, ins.operands[1:], ins.operands[0])
    quotient = ins.parts[0] == "div"
    sources = [(kind, text) for text in ins.operands[1:]]
    if kind[0] == "u":
        return ufunc(d, ins, np.floor_divide if quotient else np.remainder, kind, ins.operands[1:], ins.operands[0])

    def truncated(x: Array, y: Array) -> Array:
        unsigned = DTYPES[f"u{kind[1:]}"]
        magnitude = (np.abs(x).view(unsigned) // np.abs(y).view(unsigned)).view(x.dtype)
        whole = np.where((x < 0) != (y < 0), -magnitude, magnitude)
        return whole if quotient else x - whole * y

    return computed(d, kind, sources, ins.operands[0], truncated, ins)


def _approximate_quotient(x: Array, y: Array) -> Array:
    """PTX ISA "div.approx": for 2^126 < |y| the reciprocal is 0."""
    return np.where((np.abs(y) > np.float32(2.0**126)) & np.isfinite(y), x * np.copysign(np.float32(0), y), x / y)


FUNCTIONS: dict[str, Callable[[Array], Array]] = {
    "ex2": np.exp2, "lg2": np.log2, "rcp": np.reciprocal, "sqrt": np.sqrt, "rsqrt": lambda x: 1 / np.sqrt(x),
    "tanh": np.tanh, "sin": np.sin, "cos": np.cos,
}  # fmt: skip


@handles(*FUNCTIONS, memory=PURE)
def _function(d: Decoder, ins: Instruction) -> Elementwise:
    only(ins, *SMALL)
    kind, function = type_of(ins), FUNCTIONS[ins.parts[0]]
    if kind in SMALL:
        return _half(d, ins, function)
    if isinstance(function, np.ufunc):
        return ufunc(d, ins, function, kind, ins.operands[1:], ins.operands[0])
    return computed(d, kind, [(kind, ins.operands[1])], ins.operands[0], function, ins)


# ── comparison ───────────────────────────────────────────────────────────────────────────────────────────────────────

COMPARE: dict[str, Any] = {
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
    "lo": np.less, "ls": np.less_equal, "hi": np.greater, "hs": np.greater_equal, "neu": np.not_equal,
    "equ": lambda a, b: ~((a < b) | (a > b)), "ltu": lambda a, b: ~(a >= b), "leu": lambda a, b: ~(a > b),
    "gtu": lambda a, b: ~(a <= b), "geu": lambda a, b: ~(a < b), "num": lambda a, b: ~(np.isnan(a) | np.isnan(b)),
    "nan": lambda a, b: np.isnan(a) | np.isnan(b),
}  # fmt: skip


@handles("setp", memory=PURE)
def _set_predicate(d: Decoder, ins: Instruction) -> Elementwise:
    kind = type_of(ins)
    only(ins, *COMPARE, "and", "or", "xor")
    compare = COMPARE[ins.parts[1]]
    if ins.parts[1] == "ne" and kind[0] == "f":
        compare = lambda a, b: (a < b) | (a > b)  # noqa: E731
    both, bits = ins.operands[0].split("|"), int(kind[1:])
    sources = [(kind, d.row(text, bits)) for text in ins.operands[1:3]]
    combine, inverse = None, False
    if len(ins.operands) == 4:
        combine = {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor}[ins.parts[2]]
        inverse = ins.operands[3].startswith("!")
        sources.append(("pred", d.row(ins.operands[3].lstrip("!"), 1)))

    def decide(x: Array, y: Array, other: Any = None) -> Any:
        result = compare(x, y)
        if combine is None:
            return (result, ~result) if len(both) > 1 else result
        other = ~other if inverse else other
        return (combine(result, other), combine(~result, other)) if len(both) > 1 else combine(result, other)

    outs = [("pred", d.out(text, 1)) for text in both]
    plain = len(both) == 1 and combine is None
    return Elementwise(ins, outs, sources, compare if plain else decide, (len(both), inverse))


@handles("selp", memory=PURE)
def _select(d: Decoder, ins: Instruction) -> Elementwise:
    kind = type_of(ins)
    out, a, b, p = ins.operands
    return computed(d, kind, [(kind, a), (kind, b), ("pred", p)], out, _choose, ins)


def _choose(x: Array, y: Array, which: Array) -> Array:
    chosen: Array = np.where(which, x, y)
    return chosen
