"""Moves, conversions, memory, shuffles and votes of every generation ("Data Movement and Conversion", "Atomics")."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from faperf.emulator.decode import LOCAL_WINDOW, Decoder, Operation, addresses, handles
from faperf.emulator.fault import NotEmulatedError
from faperf.emulator.memory import SHARED_WINDOW
from faperf.emulator.ops_common import canonical, computed, only, spaces, together, type_of
from faperf.emulator.ptx import TYPE_BITS, Instruction
from faperf.emulator.rounding import brain, half, positive
from faperf.emulator.state import DTYPES, STORAGE, WARP, Array, Path

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
    only(ins, *ROUND, "bf16", "bf16x2", "relu", "satfinite")
    kinds = [canonical(part) for part in ins.parts[1:] if part in TYPE_BITS or part in ("bf16", "bf16x2")]
    target, source = kinds
    if source == "f32" and target in ("f16", "bf16", "f16x2", "bf16x2"):
        return _narrow(d, ins, target)
    if source == "bf16" and target == "f32":
        return computed(
            d, "u32", [("u16", ins.operands[1])], ins.operands[0], lambda x: x.astype(np.uint32) << np.uint32(16), ins
        )
    if {"bf16", "bf16x2", "f16x2"} & set(kinds) or {"relu", "satfinite"} & set(ins.parts) or len(ins.operands) != 2:
        raise NotEmulatedError(f"no emulation of {ins.opcode}", ins.place)
    return _convert_plain(d, ins, target, source)


LARGEST = {"f16": np.float32(65504), "bf16": np.float32(2.0**128 - 2.0**120)}


def _narrow(d: Decoder, ins: Instruction, target: str) -> Operation:
    """One or two f32 to f16 or bf16; of two the first is the upper half."""
    mode = next((part for part in ins.parts if part in ("rn", "rz")), None)
    if mode is None or "sat" in ins:
        raise NotEmulatedError(f"no emulation of {ins.opcode}", ins.place)
    kind, relu, finite = target.removesuffix("x2"), "relu" in ins, "satfinite" in ins
    round_to = brain if kind == "bf16" else lambda x, mode: half(x, mode).view(np.uint16)

    def bits(x: Array) -> Array:
        if relu:
            x = positive(x)
        if finite:
            x = np.clip(x, -LARGEST[kind], LARGEST[kind])
        return round_to(x, mode)

    if target == kind:
        return computed(d, "u16", [("f32", ins.operands[1])], ins.operands[0], bits, ins)
    high, low, to = d.row(ins.operands[1], 32), d.row(ins.operands[2], 32), d.out(ins.operands[0], 32)

    def pack(path: Path) -> None:
        r = path.r["f32"]
        both = np.empty((len(r[low]), 2), np.uint16)
        both[:, 0], both[:, 1] = bits(r[low]), bits(r[high])
        np.copyto(path.r["u32"][to], both.view(np.uint32)[:, 0], where=path.mask)

    return pack


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
            if limit.bits == 64:  # a NaN is 0 in 32 bits and less, and the top bit alone in 64
                value = np.where(np.isnan(x), np.uint64(1 << 63).astype(narrow_to), value)
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


def _units(ins: Instruction) -> tuple[str, int, int]:
    """(type, bytes of an element, elements)."""
    kind = canonical(next(part for part in reversed(ins.parts) if part in TYPE_BITS))
    count = next((int(part[1:]) for part in ins.parts if part in ("v2", "v4", "v8")), 1)
    return kind, int(kind[1:]) // 8, count


@handles("ld", "ldu")
def load(d: Decoder, ins: Instruction) -> Operation:
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

    def take(path: Path) -> None:
        where, at = spaces(path, space, addresses(path, address), ins)
        memory: Any = {"global": path.wave.memory, "shared": path.wave.shared, "local": path.wave.local}[where]
        offset = memory.locate(path, at, size * count, ins)
        if where == "shared":
            memory.read(path, offset, size * count, ins)
        spread(path, memory.view(size, count).take(offset // (size * count), axis=0))

    return take


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
        memory.put(size, count, offset, values)

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
        memory.put(bits // 8, 1, index * (bits // 8), memory.view(bits // 8, 1)[index])
        if out is not None:
            path.put(path.r[kind][out], before)

    return run


# ── a warp together ──────────────────────────────────────────────────────────────────────────────────────────────────


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
