"""One thread an element: conversions, arithmetic and approximate functions; and what a warp does together."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.silicon.probe import ABSOLUTE, BITS, RELATIVE, ULP, Probe, generator, tensors

BLOCK = 256
REGISTER = {8: ("h", "uint16_t"), 16: ("h", "uint16_t"), 32: ("r", "uint32_t"), 64: ("l", "uint64_t")}
STORAGE = {16: np.uint16, 32: np.uint32, 64: np.uint64}


def width(kind: str) -> int:
    return {"f16x2": 32, "bf16x2": 32, "bf16": 16, "u8": 32, "s8": 32}.get(kind, 0) or int(kind[1:])


def kernel(entry: str, asm: str, ins: tuple[str, ...], out: str) -> str:
    names = "abc"[: len(ins)]
    parameters = "".join(f"const {REGISTER[width(k)][1]}* {name}, " for name, k in zip(names, ins, strict=True))
    inputs = ", ".join(f'"{REGISTER[width(k)][0]}"({name}[i])' for name, k in zip(names, ins, strict=True))
    letter, ctype = REGISTER[width(out)]
    return f"""extern "C" __global__ void {entry}({parameters}{ctype}* out) {{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    {ctype} d;
    asm volatile("{asm}" : "={letter}"(d) : {inputs});
    out[i] = d;
}}"""


# ── inputs ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def specials(kind: str) -> Any:
    """Zeros, the smallest and largest of each sort, infinities, NaN, ones, powers, halves between integers."""
    exponent, mantissa = {"f16": (5, 10), "bf16": (8, 7), "f32": (8, 23), "f64": (11, 52)}[kind]
    one, top = (1 << (exponent - 1)) - 1, (1 << exponent) - 1
    last = (1 << mantissa) - 1
    found = [0, 1, 2, last, 1 << mantissa, (1 << mantissa) + 1, (top - 1) << mantissa | last, top << mantissa]
    found += [top << mantissa | 1 << (mantissa - 1), one << mantissa, one << mantissa | 1, (one - 1) << mantissa | last]
    found += [(one + n) << mantissa for n in (-2, -1, 1, 2, 3)] + [(one + 1) << mantissa | 1 << (mantissa - 1)]
    found += [(one - 1) << mantissa | 1 << (mantissa - 1), one << mantissa | 1 << (mantissa - 1), last >> 1]
    bits = np.array([*found, *(n | 1 << (exponent + mantissa) for n in found)], np.uint64)
    return bits.astype(STORAGE[1 + exponent + mantissa])


NEAR = {
    "f16": [65503, 65504, 65519, 65520, 65535, 65536, 2.0**-24, 2.0**-25, 1.5 * 2.0**-25, 2.0**-14, 6.1e-5, 1 + 2.0**-11],
    "bf16": [3.39e38, 3.3961775e38, 1 + 2.0**-8, 1 + 3 * 2.0**-8, 1 + 2.0**-9, 9.2e-41],
    "exponent": [126, 127, 127.5, 128, 128.5, -126, -126.5, -127, -128, -148.5, -149, -149.5, -150, -151, -200, 15, 16, -24],
    "integer": [2.0**31, 2.0**31 - 128, -(2.0**31), -(2.0**31) - 256, 2.0**32, 2.0**32 - 256, 2.0**63, 2.0**64, -1, -0.5,
                127.5, 128, 255.5, 256, -128.5, -129, 32767.5, 65535.5, 0.5, 1.5, 2.5, -1.5, -2.5, 8388607.5, 8388608.5],
}  # fmt: skip


def values(kind: str, count: int, random: Any, near: tuple[str, ...] = ()) -> Any:
    """Specials, what lies near a limit, any bits, and numbers of an everyday size."""
    if kind[0] in "us":
        bits = random.randint(0, 1 << 16, (count, 4)).astype(np.uint16).view(np.uint64).reshape(-1)
        bits[:8] = [0, 1, 2, (1 << 64) - 1, 1 << 31, (1 << 31) - 1, 1 << 63, (1 << 63) - 1]
        bits[8:40] >>= np.arange(32).astype(np.uint64) * np.uint64(2)
        return bits.astype(STORAGE[max(width(kind), 16)])
    if kind in ("f16x2", "bf16x2"):
        halves = [values(kind[:-2], count, random, near) for _ in range(2)]
        random.shuffle(halves[1])
        return np.stack(halves, axis=1).copy().view(np.uint32).reshape(-1)
    store = STORAGE[width(kind)]
    any_bits = random.randint(0, 1 << 16, (count, 4)).astype(np.uint16).view(np.uint64).reshape(-1).astype(store)
    everyday = np.ldexp(random.randint(-(1 << 24), 1 << 24, count) / 2.0**24, random.randint(-9, 7, count))
    close = np.array([v for name in near for v in NEAR[name]], np.float64)
    close = np.concatenate([close, -close]) if len(close) else close
    everyday = np.concatenate([close, everyday])
    if kind == "bf16":
        ordinary = (everyday.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    else:
        with np.errstate(over="ignore"):
            ordinary = everyday.astype({"f16": np.float16, "f32": np.float32, "f64": np.float64}[kind]).view(store)
    first = np.concatenate([specials(kind), ordinary[: count // 2]])
    return np.concatenate([first, any_bits])[:count]


def pairs(kind: str, count: int, random: Any) -> tuple[Any, Any]:
    """Every special with every other first."""
    a, b = values(kind, count, random), values(kind, count, random)
    random.shuffle(b)
    if kind in ("f16", "bf16", "f32", "f64"):
        all_of = specials(kind)
        one, other = (part.reshape(-1) for part in np.meshgrid(all_of, all_of))
        few = min(len(one), count // 2)
        which = random.permutation(len(one))[:few]
        a[:few], b[:few] = one[which], other[which]
    return a, b


# ── the table ────────────────────────────────────────────────────────────────────────────────────────────────────────


def probe(
    family: str, asm: str, ins: tuple[str, ...], out: str, how: str = BITS, count: int = 1024, near: tuple[str, ...] = (),
    label: str = "",
) -> Probe:  # fmt: skip
    name = label or asm.split()[0]
    entry = "p_" + name.replace(".", "_").replace("::", "_").replace(" ", "_").replace("-", "m")
    text = asm if " " in asm else f"{asm} %0, " + ", ".join(f"%{i + 1}" for i in range(len(ins))) + ";"
    random = generator(name)
    if len(ins) == 1:
        given = [values(ins[0], count, random, near)]
    elif ins[0] == ins[1]:
        given = list(pairs(ins[0], count, random))
        given += [random.permutation(values(kind, count, random)) for kind in ins[2:]]
    else:
        given = [values(kind, count, random, near) for kind in ins]
    arrays = dict(zip("abc", given, strict=False))
    arrays["out"] = np.zeros(count, STORAGE[width(out)])
    kind = {"f16x2": "f16", "bf16x2": "bf16"}.get(out, out)
    return Probe(
        name, family, kernel(entry, text, ins, out), entry, arrays, tensors(*arrays), kind=kind, how=how,
        grid=count // BLOCK, block=BLOCK,
    )  # fmt: skip


def conversions() -> list[Probe]:
    found = []
    for out, near in (("f16", ("f16",)), ("bf16", ("bf16",))):
        for rounding in ("rn", "rz"):
            found += [probe("cvt to " + out, f"cvt.{rounding}.{out}.f32", ("f32",), out, near=near)]
            found += [probe("cvt to " + out, f"cvt.{rounding}.{out}x2.f32", ("f32", "f32"), f"{out}x2", near=near)]
        for more in ("relu", "satfinite"):
            found += [probe("cvt to " + out, f"cvt.rn.{more}.{out}.f32", ("f32",), out, near=near)]
            found += [probe("cvt to " + out, f"cvt.rn.{more}.{out}x2.f32", ("f32", "f32"), f"{out}x2", near=near)]
        found += [probe("cvt from 16 bits", f"cvt.f32.{out}", (out,), "f32")]
    for rounding in ("rni", "rzi", "rmi", "rpi"):
        found += [
            probe("cvt f32 to integer", f"cvt.{rounding}.{k}.f32", ("f32",), k, near=("integer",))
            for k in ("s32", "u32")
        ]
        found += [probe("cvt f32 to integral f32", f"cvt.{rounding}.f32.f32", ("f32",), "f32", near=("integer",))]
    found += [
        probe("cvt f32 to integer", f"cvt.rzi.{k}.f32", ("f32",), k, near=("integer",))
        for k in ("s64", "u64", "s16", "u16")
    ]
    found += [probe("cvt f32 to integer", "cvt.rni.ftz.s32.f32", ("f32",), "s32", near=("integer",))]
    found += [
        probe("cvt integer to float", f"cvt.rn.f32.{k}", (k,), "f32")
        for k in ("s32", "u32", "s64", "u64", "s16", "u16")
    ]
    found += [probe("cvt integer to float", f"cvt.rn.f16.{k}", (k,), "f16") for k in ("s32", "u32", "s16")]
    found += [probe("cvt integer to float", f"cvt.rn.f64.{k}", (k,), "f64") for k in ("s64", "u64", "s32")]
    found += [probe("cvt between f32 and f64", "cvt.rn.f32.f64", ("f64",), "f32"),
              probe("cvt between f32 and f64", "cvt.f64.f32", ("f32",), "f64"),
              probe("cvt f32 to integral f32", "cvt.sat.f32.f32", ("f32",), "f32"),
              probe("cvt f32 to integral f32", "cvt.ftz.f32.f32", ("f32",), "f32")]  # fmt: skip
    found += [probe("cvt integer to integer", f"cvt.{a}.{b}", (b,), a) for a, b in (
        ("u64", "u32"), ("s64", "s32"), ("u32", "u64"), ("u32", "u16"), ("s32", "s16"), ("u16", "u32"))]  # fmt: skip
    found += [probe("cvt integer to integer", "cvt.sat.s16.s32", ("s32",), "s16"),
              probe("cvt integer to integer", "cvt.sat.u16.s32", ("s32",), "u16")]  # fmt: skip
    return found


def approximations() -> list[Probe]:
    found = []
    for name in ("ex2", "lg2", "rcp", "sqrt", "rsqrt"):
        near, how = ("exponent",) if name == "ex2" else (), ABSOLUTE if name == "lg2" else ULP
        found += [
            probe(f"{name}.approx.f32", f"{name}.approx{ftz}.f32", ("f32",), "f32", how, 2048, near)
            for ftz in ("", ".ftz")
        ]
    found += [probe("tanh.approx.f32", "tanh.approx.f32", ("f32",), "f32", RELATIVE, 2048)]
    for name in ("sin", "cos"):  # their error has a bound between -π and π only
        made = probe(f"{name}.approx.f32", f"{name}.approx.f32", ("f32",), "f32", ABSOLUTE)
        made.tensors["a"][:] = (np.arange(-512, 512) * np.float32(np.pi / 512)).astype(np.float32).view(np.uint32)
        found.append(made)
    found += [
        probe("div", f"div.{how}.f32", ("f32", "f32"), "f32", ULP, 2048)
        for how in ("approx", "full", "approx.ftz", "full.ftz")
    ]
    found += [probe("div", f"div.{how}.f32", ("f32", "f32"), "f32", BITS, 2048) for how in ("rn", "rn.ftz")]
    found += [probe("rcp, sqrt, rounded", f"{name}.rn.f32", ("f32",), "f32") for name in ("rcp", "sqrt")]
    found += [probe("rcp, sqrt, rounded", f"{name}.rn.ftz.f32", ("f32",), "f32") for name in ("rcp", "sqrt")]
    for kind in ("f16", "bf16"):
        for name, ftz in (("ex2", ".ftz" if kind == "bf16" else ""), ("tanh", "")):
            one = probe(f"{name}.approx.{kind}", f"{name}.approx{ftz}.{kind}", (kind,), kind, ULP, 1 << 16)
            one.tensors["a"][:] = np.arange(1 << 16)
            two = probe(f"{name}.approx.{kind}", f"{name}.approx{ftz}.{kind}x2", (f"{kind}x2",), f"{kind}x2", ULP)
            found += [one, two]
    return found


def arithmetic() -> list[Probe]:
    found = []
    for modes in ("", ".ftz", ".sat", ".rz", ".rm", ".rp"):
        rounding = modes if modes in (".rz", ".rm", ".rp") else ".rn" + modes
        found += [
            probe("f32 add, sub, mul", f"{name}{rounding}.f32", ("f32", "f32"), "f32") for name in ("add", "sub", "mul")
        ]
        found += [probe("f32 fma", f"fma{rounding}.f32", ("f32", "f32", "f32"), "f32", count=2048)]
    found += [probe("f32 min, max", f"{name}{mode}.f32", ("f32", "f32"), "f32", count=2048)
              for name in ("min", "max") for mode in ("", ".NaN", ".ftz")]  # fmt: skip
    found += [
        probe("f32 neg, abs", f"{name}{ftz}.f32", ("f32",), "f32") for name in ("neg", "abs") for ftz in ("", ".ftz")
    ]
    for kind in ("f16", "f16x2", "bf16", "bf16x2"):
        two, three = (kind, kind), (kind, kind, kind)
        found += [
            probe(f"{kind[: kind.find('16') + 2]} arithmetic", f"{name}.{kind}", two, kind)
            for name in ("add", "sub", "mul")
        ]
        found += [probe(f"{kind[: kind.find('16') + 2]} arithmetic", f"fma.rn.{kind}", three, kind, count=2048)]
        found += [probe(f"{kind[: kind.find('16') + 2]} arithmetic", f"fma.rn.relu.{kind}", three, kind)]
        found += [probe(f"{kind[: kind.find('16') + 2]} min, max", f"{name}{nan}.{kind}", two, kind)
                  for name in ("min", "max") for nan in ("", ".NaN")]  # fmt: skip
        found += [
            probe(f"{kind[: kind.find('16') + 2]} neg, abs", f"{name}.{kind}", (kind,), kind) for name in ("neg", "abs")
        ]
    found += [probe("f16 arithmetic", f"{name}.f16x2", ("f16x2",) * n, "f16x2")
              for name, n in (("fma.rn.ftz", 3), ("fma.rn.sat", 3), ("add.ftz", 2), ("mul.ftz", 2), ("add.sat", 2))]  # fmt: skip
    found += [probe("f64", f"{name}.f64", ("f64",) * n, "f64") for name, n in (("add", 2), ("mul", 2), ("fma.rn", 3))]
    integers = [("mul.lo.s32", 2), ("mul.hi.s32", 2), ("mul.hi.u32", 2), ("min.s32", 2), ("max.u32", 2), ("mad.lo.s32", 3),
                ("prmt.b32", 3), ("shf.l.wrap.b32", 3), ("shf.r.wrap.b32", 3), ("shf.l.clamp.b32", 3), ("shf.r.clamp.b32", 3),
                ("shl.b32", 2), ("shr.u32", 2), ("shr.s32", 2), ("bfe.u32", 3), ("bfe.s32", 3), ("popc.b32", 1), ("clz.b32", 1),
                ("brev.b32", 1), ("abs.s32", 1), ("neg.s32", 1), ("not.b32", 1), ("div.u32", 2), ("rem.u32", 2)]  # fmt: skip
    for name, n in integers:
        made = probe("integers", name, ("u32",) * n, "u32")
        shifts = {"shl": "b", "shr": "b", "shf": "c"}.get(name[:3])
        if shifts:
            made.tensors[shifts][: len(made.tensors[shifts]) // 2] %= 70
        if name[:3] == "bfe":
            made.tensors["b"][:900] %= 40
            made.tensors["c"][:900] %= 40
        if name[:3] in ("div", "rem"):
            made.tensors["b"][made.tensors["b"] == 0] = 7
        found.append(made)
    found += [probe("integers", f"lop3.b32 %0, %1, %2, %3, {table};", ("u32",) * 3, "u32", label=f"lop3.b32.{table}")
              for table in (0x96, 0xE8, 0x1D)]  # fmt: skip
    for compare in ("eq", "ne", "lt", "le", "gt", "ge", "equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan"):
        text = f"{{ .reg .pred p; setp.{compare}.f32 p, %1, %2; selp.u32 %0, 1, 0, p; }}"
        found.append(probe("comparisons", text, ("f32", "f32"), "u32", label=f"setp.{compare}.f32"))
    return found


def together() -> list[Probe]:
    """shfl, vote, redux, elect: what the lanes of a warp do together."""
    found = []
    for mode in ("up", "down", "bfly", "idx"):
        text = (
            f"{{ .reg .pred p; .reg .b32 v, w; shfl.sync.{mode}.b32 v|p, %1, %2, %3, 0xffffffff; selp.u32 w, 1, 0, p; "
            "mov.b64 %0, {v, w}; }"
        )
        made = probe("shfl", text, ("u32", "u32", "u32"), "u64", label=f"shfl.{mode}")
        random = generator(f"shfl.{mode} lanes")
        made.tensors["b"][:] = random.randint(0, 40, 1024)
        made.tensors["c"][:] = random.randint(0, 32, 1024) | random.choice([0, 0x1000, 0x1800, 0x1C00, 0x1E00], 1024)
        made.tensors["c"][:512] = 0 if mode == "up" else 31
        found.append(made)
    found += [probe("redux", f"redux.sync.{what}.{kind} %0, %1, 0xffffffff;", ("u32",), "u32", label=f"redux.{what}.{kind}")
              for what, kind in (("add", "u32"), ("add", "s32"), ("min", "s32"), ("max", "s32"), ("min", "u32"), ("max", "u32"),
                                 ("and", "b32"), ("or", "b32"), ("xor", "b32"))]  # fmt: skip
    for mode in ("all", "any", "uni"):
        text = (
            f"{{ .reg .pred p, q; .reg .b32 v; and.b32 v, %1, 7; setp.ne.u32 p, v, %2; vote.sync.{mode}.pred q, p, "
            "0xffffffff; selp.u32 %0, 1, 0, q; }"
        )
        made = probe("vote", text, ("u32", "u32"), "u32", label=f"vote.{mode}")
        made.tensors["b"][:] = 3
        made.tensors["a"][:256] = np.repeat([3, 4, 3, 5, 3, 3, 4, 3], 32)
        found.append(made)
    ballot = "{ .reg .pred p; setp.lt.s32 p, %1, 0; vote.sync.ballot.b32 %0, p, 0xffffffff; }"
    found += [probe("vote", ballot, ("u32",), "u32", label="vote.ballot")]
    elect = (
        "{ .reg .pred p; .reg .b32 v, w; elect.sync v|p, 0xffffffff; selp.u32 w, 64, 0, p; add.u32 v, v, w; "
        "xor.b32 %0, v, %1; }"
    )
    found += [probe("vote", elect, ("u32",), "u32", label="elect")]
    return found


def probes() -> list[Probe]:
    return [*conversions(), *approximations(), *arithmetic(), *together()]
