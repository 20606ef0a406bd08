"""Opcodes of every generation: arithmetic, comparison, conversion, moves, memory, shuffles and votes.

Sections of the PTX ISA manual: "Integer Arithmetic Instructions", "Floating Point Instructions", "Half Precision …",
"Comparison and Selection", "Logic and Shift", "Data Movement and Conversion". Approximate functions are as exact as numpy's;
fma rounds once up to a rare double rounding through float64.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from faperf.emulator.decode import (
    LOCAL_WINDOW,
    PARAM_WINDOW,
    Address,
    Decoder,
    Operation,
    addresses,
    handles,
)
from faperf.emulator.fault import NotEmulatedError
from faperf.emulator.memory import SHARED_WINDOW
from faperf.emulator.ptx import TYPE_BITS, Instruction
from faperf.emulator.state import DTYPES, STORAGE, WARP, Array, Path

TINY = np.float32(2.0**-126)
IGNORED = {
    "rn", "approx", "full", "wide", "lo", "hi", "ftz", "sat", "sync", "uni", "relaxed", "acquire", "release", "gpu", "cta",
    "sys", "weak", "volatile", "global", "shared", "shared::cta", "local", "param", "const", "nc", "ca", "cg", "cs", "lu",
    "cv", "wb", "wt", "L1::no_allocate", "L1::evict_first", "L1::evict_last", "L1::evict_normal", "L1::evict_unchanged",
    "L2::64B", "L2::128B", "L2::256B", "L2::evict_first", "L2::evict_last", "L2::evict_normal",
}  # fmt: skip


def type_of(ins: Instruction) -> str:
    """The last part that names a type, as a signed or unsigned integer or a float: `b32` is `u32`."""
    return canonical(next(part for part in reversed(ins.parts) if part in TYPE_BITS or part in ("bf16", "bf16x2")))


def canonical(kind: str) -> str:
    return f"u{kind[1:]}" if kind[0] == "b" and kind[1:].isdigit() else kind


def only(ins: Instruction, *allowed: str) -> None:
    """Raises NotEmulatedError for a modifier that is not known to be harmless."""
    for part in ins.parts[1:]:
        if part not in IGNORED and part not in allowed and part not in TYPE_BITS:
            raise NotEmulatedError(f"no emulation of .{part} in {ins.opcode}", ins.place)


def flush(row: Array, mask: Any) -> None:
    """Subnormal results to zero of the same sign (.ftz)."""
    np.multiply(row, np.float32(0), out=row, where=(np.abs(row) < TINY) & mask)


def ufunc(d: Decoder, ins: Instruction, function: Any, kind: str, operands: tuple[str, ...], out: str) -> Operation:
    """`out = function(*operands)`, all of one type, under the path's mask."""
    bits = int(kind[1:])
    rows = [d.row(text, bits) for text in operands]
    to = d.out(out, bits)
    ftz, sat = "ftz" in ins, "sat" in ins
    if sat and kind[0] != "f":
        raise NotEmulatedError(f"no emulation of .sat in {ins.opcode}", ins.place)
    if len(rows) == 1:
        (a,) = rows

        def unary(path: Path) -> None:
            r = path.r[kind]
            function(r[a], out=r[to], where=path.mask)

        made: Operation = unary
    else:
        a, b = rows

        def binary(path: Path) -> None:
            r = path.r[kind]
            function(r[a], r[b], out=r[to], where=path.mask)

        made = binary
    return finished(made, kind, to, ftz, sat)


def finished(made: Operation, kind: str, to: int, ftz: bool, sat: bool) -> Operation:
    """With .ftz and .sat, where they are asked for."""
    if not (ftz and kind == "f32") and not sat:
        return made

    def with_modifiers(path: Path) -> None:
        made(path)
        row = path.r[kind][to]
        if sat:
            np.copyto(row, np.nan_to_num(np.clip(row, 0, 1)), where=path.mask)
        if ftz and kind == "f32":
            flush(row, path.mask)

    return with_modifiers


def computed(d: Decoder, kind: str, sources: list[tuple[str, str]], out: str,
             function: Callable[..., Array], ins: Instruction) -> Operation:  # fmt: skip
    """`out = function(*sources)`, each source with its own type; the result is written under the mask."""
    rows = [(k, d.row(text, 1 if k == "pred" else int(k[1:]))) for k, text in sources]
    to = d.out(out, int(kind[1:]))

    def run(path: Path) -> None:
        r = path.r
        np.copyto(r[kind][to], function(*(r[k][row] for k, row in rows)), where=path.mask, casting="unsafe")

    return finished(run, kind, to, "ftz" in ins, "sat" in ins)


# ── arithmetic ───────────────────────────────────────────────────────────────────────────────────────────────────────

PLAIN = {"add": np.add, "sub": np.subtract, "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}


@handles("add", "sub")
def _add(d: Decoder, ins: Instruction) -> Operation:
    only(ins, "f16x2", "f32x2")
    return _two(d, ins, PLAIN[ins.parts[0]])


def _two(d: Decoder, ins: Instruction, function: Any) -> Operation:
    kind = type_of(ins)
    if "f32x2" in ins:
        return _packed_single(d, ins, function)
    if kind in ("f16", "f16x2"):
        return _half(d, ins, lambda a, b: function(a, b))
    return ufunc(d, ins, function, kind, ins.operands[1:], ins.operands[0])


def _half(d: Decoder, ins: Instruction, function: Callable[..., Array]) -> Operation:
    """f16 and f16x2: computed in float32 (float64 for fma) and rounded once."""
    width = 32 if "f16x2" in ins else 16
    rows = [d.row(text, width) for text in ins.operands[1:]]
    to = d.out(ins.operands[0], width)
    wide = np.float64 if len(rows) == 3 else np.float32
    store = STORAGE[width]

    def run(path: Path) -> None:
        r = path.r[f"u{width}"]
        values = [np.ascontiguousarray(r[row]).view(np.float16).astype(wide) for row in rows]
        np.copyto(r[to], function(*values).astype(np.float16).view(store), where=path.mask)

    return run


def _packed_single(d: Decoder, ins: Instruction, function: Callable[..., Array]) -> Operation:
    """f32x2: two floats in 64 bits."""
    rows = [d.row(text, 64) for text in ins.operands[1:]]
    to = d.out(ins.operands[0], 64)

    def run(path: Path) -> None:
        r = path.r["u64"]
        values = [np.ascontiguousarray(r[row]).view(np.float32) for row in rows]
        if len(values) == 3:
            values = [value.astype(np.float64) for value in values]
        np.copyto(r[to], function(*values).astype(np.float32).view(np.uint64), where=path.mask)

    return run


@handles("mul")
def _mul(d: Decoder, ins: Instruction) -> Operation:
    only(ins, "f16x2", "f32x2")
    kind = type_of(ins)
    if kind[0] == "f" or "f32x2" in ins or "lo" in ins:
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


@handles("mad")
def _mad(d: Decoder, ins: Instruction) -> Operation:
    only(ins)
    kind = type_of(ins)
    out, a, b, c = ins.operands
    if kind[0] == "f":
        made: Operation = _fma(d, ins)
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


@handles("fma")
def _fma(d: Decoder, ins: Instruction) -> Operation:
    only(ins, "f16x2", "f32x2")
    kind = type_of(ins)
    if "f32x2" in ins:
        return _packed_single(d, ins, lambda x, y, z: x * y + z)
    if kind in ("f16", "f16x2"):
        return _half(d, ins, lambda x, y, z: x * y + z)
    sources = [(kind, text) for text in ins.operands[1:]]
    if kind == "f64":
        return computed(d, kind, sources, ins.operands[0], lambda x, y, z: x * y + z, ins)
    return computed(
        d, kind, sources, ins.operands[0], lambda x, y, z: x.astype(np.float64) * y + z.astype(np.float64), ins
    )


@handles("min", "max")
def _extreme(d: Decoder, ins: Instruction) -> Operation:
    only(ins, "NaN", "f16x2", "xorsign", "abs")
    if "xorsign" in ins or "abs" in ins:
        raise NotEmulatedError(f"no emulation of {ins.opcode}", ins.place)
    kind, largest = type_of(ins), ins.parts[0] == "max"
    function: Any = np.maximum if largest else np.minimum
    if kind[0] == "f" and "NaN" not in ins:
        function = np.fmax if largest else np.fmin
    if kind in ("f16", "f16x2"):
        return _half(d, ins, lambda *values: _fold(function, values))
    if len(ins.operands) == 3:
        return ufunc(d, ins, function, kind, ins.operands[1:], ins.operands[0])
    sources = [(kind, text) for text in ins.operands[1:]]
    return computed(d, kind, sources, ins.operands[0], lambda *values: _fold(function, values), ins)


def _fold(function: Any, values: tuple[Array, ...]) -> Array:
    result = values[0]
    for value in values[1:]:
        result = function(result, value)
    return result


@handles("and", "or", "xor")
def _bitwise(d: Decoder, ins: Instruction) -> Operation:
    only(ins)
    if "pred" in ins:
        rows, to = [d.row(text, 1) for text in ins.operands[1:]], d.out(ins.operands[0], 1)
        function = {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor}[ins.parts[0]]

        def run(path: Path) -> None:
            r = path.r["pred"]
            function(r[rows[0]], r[rows[1]], out=r[to], where=path.mask)

        return run
    return ufunc(d, ins, PLAIN[ins.parts[0]], type_of(ins), ins.operands[1:], ins.operands[0])


@handles("not")
def _not(d: Decoder, ins: Instruction) -> Operation:
    if "pred" in ins:
        row, to = d.row(ins.operands[1], 1), d.out(ins.operands[0], 1)
        return lambda path: np.copyto(path.r["pred"][to], ~path.r["pred"][row], where=path.mask)
    return ufunc(d, ins, np.bitwise_not, type_of(ins), ins.operands[1:], ins.operands[0])


@handles("neg", "abs")
def _sign(d: Decoder, ins: Instruction) -> Operation:
    only(ins, "f16x2")
    kind, function = type_of(ins), np.negative if ins.parts[0] == "neg" else np.abs
    if kind in ("f16", "f16x2"):
        return _half(d, ins, lambda a: function(a))
    return ufunc(d, ins, function, kind, ins.operands[1:], ins.operands[0])


@handles("shl", "shr")
def _shift(d: Decoder, ins: Instruction) -> Operation:
    kind = type_of(ins)
    bits, left = int(kind[1:]), ins.parts[0] == "shl"
    function = np.left_shift if left else np.right_shift
    out, a, b = ins.operands
    row = d.row(b, 32)
    amount = d.constant(row, 32)
    if amount is not None and amount < bits:
        source, to, by = d.row(a, bits), d.out(out, bits), DTYPES[kind](amount)
        return lambda path: function(path.r[kind][source], by, out=path.r[kind][to], where=path.mask)

    def shift(x: Array, n: Array) -> Array:
        whole = function(x, np.minimum(n, bits - 1).astype(x.dtype))
        return whole if kind[0] == "s" else np.where(n < bits, whole, x.dtype.type(0))

    return computed(d, kind, [(kind, a), ("u32", b)], out, shift, ins)


@handles("shf")
def _funnel(d: Decoder, ins: Instruction) -> Operation:
    out, low, high, by = ins.operands
    left, wrap = "l" in ins, "wrap" in ins

    def shift(a: Array, b: Array, c: Array) -> Array:
        n = ((c & np.uint32(31)) if wrap else np.minimum(c, 32)).astype(np.uint64)
        both = b.astype(np.uint64) << np.uint64(32) | a
        return (both << n) >> np.uint64(32) if left else both >> n

    return computed(d, "u32", [("u32", low), ("u32", high), ("u32", by)], out, shift, ins)


@handles("lop3")
def _lop3(d: Decoder, ins: Instruction) -> Operation:
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

    return computed(d, "u32", [("u32", a), ("u32", b), ("u32", c)], out, look_up, ins)


@handles("prmt")
def _permute(d: Decoder, ins: Instruction) -> Operation:
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


@handles("bfe")
def _extract(d: Decoder, ins: Instruction) -> Operation:
    kind = type_of(ins)
    bits = int(kind[1:])
    out, a, start, length = ins.operands

    def extract(x: Array, p: Array, n: Array) -> Array:
        p, n = p & np.uint32(255), np.minimum(n & np.uint32(255), bits)
        u = x.astype(np.uint64) if kind[0] == "u" else x.astype(np.int64).astype(np.uint64)
        shifted = np.where(p < 64, u >> np.minimum(p, 63).astype(np.uint64), 0).astype(np.uint64)
        ones = np.where(n < 64, (np.uint64(1) << np.minimum(n, 63).astype(np.uint64)) - np.uint64(1), ~np.uint64(0))
        found = shifted & ones.astype(np.uint64)
        if kind[0] == "s":
            top = np.where(n > 0, (found >> (np.maximum(n, 1) - 1).astype(np.uint64)) & np.uint64(1), 0)
            found = np.where(top > 0, found | ~ones.astype(np.uint64), found)
        return found.astype(DTYPES[f"u{bits}"]).view(DTYPES[kind])

    return computed(d, kind, [(kind, a), ("u32", start), ("u32", length)], out, extract, ins)


@handles("bfi")
def _insert(d: Decoder, ins: Instruction) -> Operation:
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


@handles("popc", "clz", "brev")
def _count(d: Decoder, ins: Instruction) -> Operation:
    kind = type_of(ins)
    bits = int(kind[1:])

    def count(x: Array) -> Array:
        ones = (x[:, None] >> np.arange(bits, dtype=x.dtype)) & x.dtype.type(1)
        if ins.parts[0] == "popc":
            return ones.sum(1).astype(np.uint32)
        if ins.parts[0] == "brev":
            back = ones[:, ::-1].astype(np.uint64) << np.arange(bits, dtype=np.uint64)
            return back.sum(1).astype(x.dtype)
        return np.where(ones.any(1), ones[:, ::-1].argmax(1), bits).astype(np.uint32)

    out = kind if ins.parts[0] == "brev" else "u32"
    return computed(d, out, [(kind, ins.operands[1])], ins.operands[0], count, ins)


@handles("div", "rem")
def _divide(d: Decoder, ins: Instruction) -> Operation:
    only(ins)
    kind = type_of(ins)
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


FUNCTIONS: dict[str, Callable[[Array], Array]] = {
    "ex2": np.exp2, "lg2": np.log2, "rcp": np.reciprocal, "sqrt": np.sqrt, "rsqrt": lambda x: 1 / np.sqrt(x),
    "tanh": np.tanh, "sin": np.sin, "cos": np.cos,
}  # fmt: skip


@handles(*FUNCTIONS)
def _function(d: Decoder, ins: Instruction) -> Operation:
    only(ins, "f16x2")
    kind, function = type_of(ins), FUNCTIONS[ins.parts[0]]
    if kind in ("f16", "f16x2"):
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


@handles("setp")
def _set_predicate(d: Decoder, ins: Instruction) -> Operation:
    kind = type_of(ins)
    only(ins, *COMPARE, "and", "or", "xor")
    compare = COMPARE[ins.parts[1]]
    if ins.parts[1] == "ne" and kind[0] == "f":
        compare = lambda a, b: (a < b) | (a > b)  # noqa: E731
    both = ins.operands[0].split("|")
    bits = int(kind[1:])
    a, b = d.row(ins.operands[1], bits), d.row(ins.operands[2], bits)
    combine, third, inverse = None, 0, False
    if len(ins.operands) == 4:
        combine = {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor}[ins.parts[2]]
        inverse = ins.operands[3].startswith("!")
        third = d.row(ins.operands[3].lstrip("!"), 1)
    to, second = d.out(both[0], 1), (d.out(both[1], 1) if len(both) > 1 else None)

    def run(path: Path) -> None:
        r = path.r[kind]
        result = compare(r[a], r[b])
        opposite = ~result
        predicates = path.r["pred"]
        if combine is not None:
            other = ~predicates[third] if inverse else predicates[third]
            result, opposite = combine(result, other), combine(opposite, other)
        np.copyto(predicates[to], result, where=path.mask)
        if second is not None:
            np.copyto(predicates[second], opposite, where=path.mask)

    return run


@handles("selp")
def _select(d: Decoder, ins: Instruction) -> Operation:
    kind = type_of(ins)
    out, a, b, p = ins.operands
    return computed(d, kind, [(kind, a), (kind, b), ("pred", p)], out, lambda x, y, q: np.where(q, x, y), ins)


# ── moves and conversions ────────────────────────────────────────────────────────────────────────────────────────────


@handles("mov")
def _move(d: Decoder, ins: Instruction) -> Operation:
    if "pred" in ins:
        row, to = d.row(ins.operands[1], 1), d.out(ins.operands[0], 1)
        return lambda path: np.copyto(path.r["pred"][to], path.r["pred"][row], where=path.mask)
    bits = int(type_of(ins)[1:])
    if not any("{" in text for text in ins.operands):
        kind = f"u{bits}"
        row, to = d.row(ins.operands[1], bits), d.out(ins.operands[0], bits)
        return lambda path: np.copyto(path.r[kind][to], path.r[kind][row], where=path.mask)
    targets, sources = (d.vector(text) for text in ins.operands)
    small = bits // max(len(targets), len(sources))
    large, store = STORAGE[bits], STORAGE[small]
    if len(targets) == 1:
        rows, out = [d.row(text, small) for text in sources], d.out(targets[0], bits)

        def pack(path: Path) -> None:
            r = path.r[f"u{small}"]
            together = np.stack([r[row] for row in rows], axis=1)
            np.copyto(path.r[f"u{bits}"][out], together.view(large)[:, 0], where=path.mask)

        return pack
    source = d.row(sources[0], bits)
    outs = [None if text == "_" else d.out(text, small) for text in targets]

    def unpack(path: Path) -> None:
        apart = path.r[f"u{bits}"][source].copy().view(store).reshape(-1, len(outs))
        r = path.r[f"u{small}"]
        for index, to in enumerate(outs):
            if to is not None:
                np.copyto(r[to], apart[:, index], where=path.mask)

    return unpack


ROUND: dict[str, Callable[[Array], Array]] = {
    "rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil,
    "rn": np.rint, "rz": np.trunc, "rm": np.floor, "rp": np.ceil,
}  # fmt: skip


@handles("cvt")
def _convert(d: Decoder, ins: Instruction) -> Operation:
    only(ins, *ROUND, "bf16", "bf16x2", "relu")
    kinds = [canonical(part) for part in ins.parts[1:] if part in TYPE_BITS or part in ("bf16", "bf16x2")]
    target, source = kinds
    if "relu" in ins or (target not in ("f16x2", "bf16x2") and len(ins.operands) != 2):
        raise NotEmulatedError(f"no emulation of {ins.opcode}", ins.place)
    if target == "f16x2" and source == "f32" and "rn" in ins:
        high, low, to = d.row(ins.operands[1], 32), d.row(ins.operands[2], 32), d.out(ins.operands[0], 32)

        def pack(path: Path) -> None:
            r = path.r["f32"]
            both = np.empty((len(r[low]), 2), np.float16)
            both[:, 0], both[:, 1] = r[low], r[high]
            np.copyto(path.r["u32"][to], both.view(np.uint32)[:, 0], where=path.mask)

        return pack
    if target == "bf16x2" and source == "f32" and "rn" in ins:
        return computed(
            d, "u32", [("u32", ins.operands[1]), ("u32", ins.operands[2])], ins.operands[0],
            lambda hi, lo: to_bfloat(hi).astype(np.uint32) << np.uint32(16) | to_bfloat(lo), ins,
        )  # fmt: skip
    if target == "bf16" and source == "f32" and "rn" in ins:
        return computed(d, "u16", [("u32", ins.operands[1])], ins.operands[0], to_bfloat, ins)
    if source == "bf16" and target == "f32":
        return computed(
            d, "u32", [("u16", ins.operands[1])], ins.operands[0], lambda x: x.astype(np.uint32) << np.uint32(16), ins
        )
    if "bf16" in kinds or "bf16x2" in kinds or "f16x2" in kinds:
        raise NotEmulatedError(f"no emulation of {ins.opcode}", ins.place)
    return _convert_plain(d, ins, target, source)


def to_bfloat(x: Array) -> Array:
    """Bits of float32 → bits of bfloat16, to nearest even."""
    rounded = (
        (x.astype(np.uint64) + np.uint64(0x7FFF) + ((x >> np.uint32(16)) & np.uint32(1))) >> np.uint64(16)
    ).astype(np.uint16)
    nan = (x & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000)
    return np.where(nan, np.uint16(0x7FFF), rounded)


def _convert_plain(d: Decoder, ins: Instruction, target: str, source: str) -> Operation:
    """Between integers and floats. Integers are cut, or sign-extended, to the width of the register that holds them."""
    wide_in, wide_out = d.bits(ins.operands[1], int(source[1:])), d.bits(ins.operands[0], int(target[1:]))
    mode = next((ROUND[part] for part in ins.parts if part in ROUND), None)
    narrow_from = np.dtype(f"{ {'u': 'u', 's': 'i', 'f': 'f'}[source[0]] }{int(source[1:]) // 8}".replace(" ", ""))
    narrow_to = np.dtype(f"{ {'u': 'u', 's': 'i', 'f': 'f'}[target[0]] }{int(target[1:]) // 8}".replace(" ", ""))
    to_float, from_float, sat = target[0] == "f", source[0] == "f", "sat" in ins
    if to_float and mode not in (None, np.rint) and not (from_float and target == source):
        raise NotEmulatedError(f"no emulation of {ins.opcode}", ins.place)
    kept = f"u{wide_out}" if not to_float else target

    def convert(x: Array) -> Array:
        value = x.astype(narrow_from)
        if from_float and not to_float:
            limit = np.iinfo(narrow_to)
            whole = np.nan_to_num((mode or np.trunc)(value.astype(np.float64)))
            low, high = float(limit.min), float(limit.max)
            result = np.where(whole >= high, limit.max, np.clip(whole, low, np.nextafter(high, 0)).astype(narrow_to))
            value = result.astype(narrow_to)
        elif from_float and target == source:
            value = mode(value) if mode is not None and any(p.endswith("i") for p in ins.parts if p in ROUND) else value
        elif sat and not to_float:
            limit = np.iinfo(narrow_to)
            value = np.clip(value.astype(np.int64), limit.min, limit.max)
        value = value.astype(narrow_to)
        return (
            value
            if to_float
            else value.astype(np.dtype(f"{'i' if target[0] == 's' else 'u'}{wide_out // 8}")).view(
                np.dtype(f"u{wide_out // 8}")
            )
        )

    kind = source if from_float else f"u{wide_in}" if source[0] == "u" else f"s{wide_in}"
    return computed(d, kept, [(kind, ins.operands[1])], ins.operands[0], convert, ins)


@handles("cvta")
def _to_address(d: Decoder, ins: Instruction) -> Operation:
    """To and from generic addresses: a window for each space; global addresses are generic as they are."""
    window = {"shared": SHARED_WINDOW, "shared::cta": SHARED_WINDOW, "local": LOCAL_WINDOW}.get(
        next(part for part in ins.parts if part in ("shared", "shared::cta", "local", "global", "const", "param")), 0
    )
    bits = int(type_of(ins)[1:])
    shift = -window if "to" in ins else window
    return computed(d, f"s{bits}", [(f"s{bits}", ins.operands[1])], ins.operands[0], lambda x: x + np.int64(shift), ins)


# ── memory ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _space(ins: Instruction) -> str:
    if "shared::cluster" in ins:
        return "shared"
    return next(
        (p.replace("::cta", "") for p in ins.parts if p in ("shared", "shared::cta", "global", "local", "const")), ""
    )


def spaces(path: Path, space: str, address: Array, ins: Instruction) -> tuple[str, Array]:
    """The space of generic addresses, and the addresses in it."""
    if space:
        return ("global" if space == "const" else space), address
    for name, window in (("shared", SHARED_WINDOW), ("local", LOCAL_WINDOW)):
        inside = (address >= window) & (address < window + 2**32)
        if inside.all():
            return name, address - window
        if inside.any():
            raise NotEmulatedError(f"{ins.opcode} to several spaces at once", ins.place)
    return "global", address


def _units(ins: Instruction) -> tuple[str, int, int]:
    """(type, bytes of an element, elements)."""
    kind = canonical(next(part for part in reversed(ins.parts) if part in TYPE_BITS))
    count = next((int(part[1:]) for part in ins.parts if part in ("v2", "v4", "v8")), 1)
    return kind, int(kind[1:]) // 8, count


@handles("ld", "ldu")
def _load(d: Decoder, ins: Instruction) -> Operation:
    only(ins, "v2", "v4", "v8", "shared::cluster", "mmio", "b128", "L2::cache_hint")
    kind, size, count = _units(ins)
    names = d.vector(ins.operands[0])
    widths = [d.bits(name, 8 * size) for name in names]
    outs = [d.out(name, width) for name, width in zip(names, widths, strict=True)]
    signed, space = kind[0] == "s", _space(ins)
    parameter = d.parameter(ins.operands[1])
    store = np.dtype(f"u{size}")

    def spread(path: Path, rows: Array) -> None:
        for index, (out, width) in enumerate(zip(outs, widths, strict=True)):
            column = rows[:, index]
            if width != 8 * size:
                column = column.view(f"i{size}").astype(f"i{width // 8}") if signed else column
            target = path.r[f"u{width}"][out]
            path.put(target, column.astype(target.dtype))

    if parameter is not None:

        def load_parameter(path: Path) -> None:
            content = np.frombuffer(path.wave.extra["parameters"], store, count, parameter)
            spread(path, np.broadcast_to(content, (len(path.lanes()), count)).copy())

        return load_parameter
    address = d.address(ins.operands[1])

    def load(path: Path) -> None:
        where, at = spaces(path, space, addresses(path, address), ins)
        memory: Any = {"global": path.wave.memory, "shared": path.wave.shared, "local": path.wave.local}[where]
        offset = memory.locate(path, at, size * count, ins)
        if where == "shared":
            memory.read(path, offset, size * count, ins)
        spread(path, memory.view(size, count).take(offset // (size * count), axis=0))

    return load


@handles("st")
def _store(d: Decoder, ins: Instruction) -> Operation:
    only(ins, "v2", "v4", "v8", "shared::cluster", "mmio", "L2::cache_hint")
    if "async" in ins or "param" in ins:
        raise NotEmulatedError(f"no emulation of {ins.opcode}", ins.place)
    _, size, count = _units(ins)
    names = d.vector(ins.operands[1])
    widths = [d.bits(name, 8 * size) for name in names]
    rows = [d.row(name, width) for name, width in zip(names, widths, strict=True)]
    address, space, store = d.address(ins.operands[0]), _space(ins), np.dtype(f"u{size}")

    def save(path: Path) -> None:
        where, at = spaces(path, space, addresses(path, address), ins)
        memory: Any = {"global": path.wave.memory, "shared": path.wave.shared, "local": path.wave.local}[where]
        offset = memory.locate(path, at, size * count, ins)
        if where == "shared":
            memory.write(path, offset, size * count, ins)
        values = np.stack(
            [path.pick(path.r[f"u{w}"][row]).astype(store) for w, row in zip(widths, rows, strict=True)], axis=1
        )
        memory.view(size, count)[offset // (size * count)] = values

    return save


@handles("atom", "red")
def _atomic(d: Decoder, ins: Instruction) -> Operation:
    """One lane after the other, in the order of lanes."""
    kinds = ("add", "min", "max", "and", "or", "xor", "exch", "cas", "inc", "dec")
    what = next(part for part in ins.parts if part in kinds)
    only(ins, *kinds)
    if what in ("inc", "dec"):
        raise NotEmulatedError(f"no emulation of {ins.opcode}", ins.place)
    kind, space, returns = type_of(ins), _space(ins), ins.parts[0] == "atom"
    bits = int(kind[1:])
    out = d.out(ins.operands[0], bits) if returns else None
    rest = ins.operands[1:] if returns else ins.operands
    address, rows = d.address(rest[0]), [d.row(text, bits) for text in rest[1:]]
    combine: dict[str, Callable[..., Any]] = {
        "add": lambda old, new: old + new, "min": min, "max": max, "and": lambda old, new: old & new,
        "or": lambda old, new: old | new, "xor": lambda old, new: old ^ new, "exch": lambda old, new: new,
        "cas": lambda old, wanted, new: new if old == wanted else old,
    }  # fmt: skip
    function, dtype = combine[what], DTYPES[kind]

    def run(path: Path) -> None:
        where, at = spaces(path, space, addresses(path, address), ins)
        memory: Any = {"global": path.wave.memory, "shared": path.wave.shared}[where]
        index = memory.locate(path, at, bits // 8, ins) // (bits // 8)
        cells = memory.bytes.view(dtype)
        values = [path.pick(path.r[kind][row]) for row in rows]
        before = np.zeros(len(index), dtype)
        for lane, cell in enumerate(index):
            before[lane] = cells[cell]
            cells[cell] = function(cells[cell], *(value[lane] for value in values))
        if out is not None:
            path.put(path.r[kind][out], before)

    return run


# ── a warp together ──────────────────────────────────────────────────────────────────────────────────────────────────


def together(path: Path, ins: Instruction) -> None:
    """A warp-wide instruction needs its lanes here. Raises NotEmulatedError where they are apart."""
    if not path.whole_warps():
        raise NotEmulatedError(f"{ins.opcode} by a part of a warp while its other lanes are elsewhere", ins.place)


def among(path: Path, members: Array, ins: Instruction) -> None:
    """Every lane that the mask names must be here."""
    if path.mask is not True:
        named = (members.reshape(-1, WARP) >> np.arange(WARP, dtype=np.uint32)) & np.uint32(1)
        gone = path.wave.exited[path.start : path.stop].reshape(-1, WARP)
        here = path.mask.reshape(-1, WARP)
        if (
            here & (here.astype(int) @ np.ones((WARP, 1), int) > 0) & ((named > 0) & ~here & ~gone).any(1)[:, None]
        ).any():
            raise NotEmulatedError(f"{ins.opcode} names lanes that are elsewhere", ins.place)


@handles("shfl.sync")
def _shuffle(d: Decoder, ins: Instruction) -> Operation:
    """PTX ISA "shfl.sync": the source lane by mode, within segments given by c."""
    mode = ins.parts[2]
    both = ins.operands[0].split("|")
    source, by, bound = (d.row(text, 32) for text in ins.operands[1:4])
    members = d.row(ins.operands[4], 32)
    to, second = d.out(both[0], 32), (d.out(both[1], 1) if len(both) > 1 else None)
    lane = np.arange(WARP)

    def run(path: Path) -> None:
        r = path.r["u32"]
        among(path, r[members], ins)
        b = r[by].reshape(-1, WARP).astype(np.int64) & 31
        c = r[bound].reshape(-1, WARP).astype(np.int64)
        segment, clamp = (c >> 8) & 31, c & 31
        last = (lane & segment) | (clamp & ~segment)
        first = lane & segment
        if mode == "up":
            chosen, good = lane - b, lane - b >= last
        elif mode == "down":
            chosen, good = lane + b, lane + b <= last
        elif mode == "bfly":
            chosen, good = lane ^ b, (lane ^ b) <= last
        else:
            chosen = first | (b & ~segment)
            good = chosen <= last
        chosen = np.where(good, chosen, lane)
        values = np.take_along_axis(r[source].reshape(-1, WARP), chosen, axis=1).reshape(-1)
        np.copyto(r[to], values, where=path.mask)
        if second is not None:
            np.copyto(path.r["pred"][second], good.reshape(-1), where=path.mask)

    return run


@handles("vote.sync", "activemask")
def _vote(d: Decoder, ins: Instruction) -> Operation:
    bits = np.uint32(1) << np.arange(WARP, dtype=np.uint32)
    if ins.parts[0] == "activemask":
        to = d.out(ins.operands[0], 32)

        def active(path: Path) -> None:
            here = np.broadcast_to(path.mask, path.stop - path.start).reshape(-1, WARP)
            path.put(path.r["u32"][to], path.pick(np.repeat((here * bits).sum(1).astype(np.uint32), WARP)))

        return active
    mode = ins.parts[2]
    negated = ins.operands[1].startswith("!")
    source, members = d.row(ins.operands[1].lstrip("!"), 1), d.row(ins.operands[2], 32)
    to = d.out(ins.operands[0], 32 if mode == "ballot" else 1)

    def run(path: Path) -> None:
        among(path, path.r["u32"][members], ins)
        here = np.broadcast_to(path.mask, path.stop - path.start).reshape(-1, WARP)
        value = path.r["pred"][source].reshape(-1, WARP)
        value = (~value if negated else value) & here
        if mode == "ballot":
            answer = np.repeat((value * bits).sum(1).astype(np.uint32), WARP)
            np.copyto(path.r["u32"][to], answer, where=path.mask)
            return
        every, some = (value | ~here).all(1), value.any(1)
        answer = {"all": every, "any": some, "uni": every | ~some}[mode]
        np.copyto(path.r["pred"][to], np.repeat(answer, WARP), where=path.mask)

    return run


@handles("redux.sync")
def _reduce(d: Decoder, ins: Instruction) -> Operation:
    kind, what = type_of(ins), ins.parts[2]
    function = {
        "add": np.add, "min": np.minimum, "max": np.maximum, "and": np.bitwise_and, "or": np.bitwise_or,
        "xor": np.bitwise_xor,
    }[what]  # fmt: skip
    source, members, to = d.row(ins.operands[1], 32), d.row(ins.operands[2], 32), d.out(ins.operands[0], 32)

    def run(path: Path) -> None:
        together(path, ins)
        among(path, path.r["u32"][members], ins)
        values = path.r[kind][source].reshape(-1, WARP)
        np.copyto(path.r[kind][to], np.repeat(function.reduce(values, axis=1), WARP), where=path.mask)

    return run


@handles("elect.sync")
def _elect(d: Decoder, ins: Instruction) -> Operation:
    """The lowest lane that is here is the leader."""
    both = ins.operands[0].split("|")
    to, chosen = d.out(both[0], 32), d.out(both[1], 1)

    def run(path: Path) -> None:
        together(path, ins)
        here = np.broadcast_to(path.mask, path.stop - path.start).reshape(-1, WARP)
        leader = here.argmax(1)
        np.copyto(path.r["u32"][to], np.repeat(leader, WARP).astype(np.uint32), where=path.mask)
        np.copyto(path.r["pred"][chosen], (np.arange(WARP) == leader[:, None]).reshape(-1), where=path.mask)

    return run


@handles("bar.warp.sync")
def _warp_barrier(d: Decoder, ins: Instruction) -> Operation:
    members = d.row(ins.operands[0], 32)
    return lambda path: among(path, path.r["u32"][members], ins)


@handles(
    "membar", "fence.acq_rel", "fence.sc", "fence.mbarrier_init", "fence.proxy.async", "fence.proxy.alias", "prefetch",
    "prefetchu", "griddepcontrol", "nanosleep", "discard", "applypriority",
)  # fmt: skip
def _nothing(d: Decoder, ins: Instruction) -> Operation:
    """What orders or hints only."""
    return lambda path: None


__all__ = ["PARAM_WINDOW", "Address"]
