"""A kernel with its inputs and its launch, and how far two results of it are apart."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from faperf.launch import ResolvedArgument, ResolvedLaunch

PRELUDE = r"""#include <stdint.h>
struct alignas(64) Map { char content[128]; };
__device__ inline void arm(uint32_t barrier, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" :: "r"(barrier), "r"(bytes) : "memory");
}
__device__ inline void begin(uint32_t barrier, uint32_t count) {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;\n fence.mbarrier_init.release.cluster;"
                 :: "r"(barrier), "r"(count) : "memory");
}
__device__ inline void await(uint32_t barrier) {
    asm volatile("{ .reg .pred p; again: mbarrier.try_wait.parity.shared.b64 p, [%0], 0; @!p bra again; }"
                 :: "r"(barrier) : "memory");
}
"""
BITS, ULP, ABSOLUTE, RELATIVE, SUM = "bits", "ulp", "absolute", "relative", "sum"
"""How a difference is told: not at all, results are equal but for a NaN's payload; in ulp; as it is or as a part of the value,
whichever is less; as a part of the value; of a sum of products, as a part of Σ|a·b| + |c|."""


@dataclass(frozen=True)
class Probe:
    """`source` holds the kernel `entry`; probes of a file that share a kernel give the same text.

    `out` is the tensor that is compared, elements of `kind` (f32, f16, bf16, f64 or an integer); `magnitude`, for SUM, is
    Σ|a·b| + |c| by element.
    """

    name: str
    family: str
    source: str
    entry: str
    tensors: dict[str, Any]
    args: list[ResolvedArgument]
    out: str = "out"
    kind: str = "u32"
    how: str = BITS
    grid: int = 1
    block: int = 32
    smem: int = 0
    cluster: int = 1
    magnitude: Any = field(default=None, repr=False)

    @property
    def launch(self) -> ResolvedLaunch:
        return ResolvedLaunch(
            self.entry, (self.grid, 1, 1), (self.block, 1, 1), (self.cluster, 1, 1), self.smem, self.args
        )

    @property
    def digest(self) -> str:
        """Of kernel, launch and inputs: a recorded result stands for these alone."""
        parts = [self.source, repr(self.launch)]
        content = b"".join(name.encode() + array.tobytes() for name, array in sorted(self.tensors.items()))
        return hashlib.sha256("\0".join(parts).encode() + content).hexdigest()[:16]


def file_of(probes: Iterable[Probe]) -> str:
    """One source of all their kernels."""
    return PRELUDE + "\n".join(dict.fromkeys(probe.source for probe in probes))


def tensors(*names: str) -> list[ResolvedArgument]:
    return [ResolvedArgument(tensor=name) for name in names]


def numbers(*values: int) -> list[ResolvedArgument]:
    return [ResolvedArgument(scalar=value, type="i32") for value in values]


def generator(name: str) -> np.random.RandomState:
    """Seeded by a probe's name; RandomState's streams are frozen for good."""
    return np.random.RandomState(int(hashlib.sha256(name.encode()).hexdigest()[:8], 16))


def bell(shape: tuple[int, ...], random: Any) -> Any:
    """About normal, of variance 1: a sum of whole numbers, which every machine works out alike."""
    return (random.randint(-(1 << 15), 1 << 15, (*shape, 3)).sum(-1)) / 2.0**15


# ── comparison ───────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Distance:
    """How far two results are apart. `ulp` and `most` (in the probe's own measure) are over elements that are finite in both.

    `strange` counts elements of which one is infinite or NaN, and the other not the same.
    """

    elements: int
    equal: int
    ulp: int
    strange: int
    most: float = 0
    worst: str = ""


def bits_of(array: Any, kind: str) -> Any:
    """The elements' bits, flat. f16x2 and bf16x2 count as two elements."""
    unsigned = {"f16": np.uint16, "bf16": np.uint16, "f32": np.uint32, "f64": np.uint64}.get(kind)
    flat = np.ascontiguousarray(array).reshape(-1)
    return flat.view(unsigned if unsigned is not None else f"u{flat.itemsize}")


def float_of(bits: Any, kind: str) -> Any:
    """Bits → float64."""
    if kind == "bf16":
        return (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return bits.view({"f16": np.float16, "f32": np.float32, "f64": np.float64}[kind]).astype(np.float64)


def distance(probe: Probe, one: Any, other: Any) -> Distance:
    """Between two results of a probe."""
    a, b = bits_of(one, probe.kind), bits_of(other, probe.kind)
    if probe.kind[0] not in "fb":
        wrong = np.flatnonzero(a != b)
        worst = f"[{wrong[0]}] {int(a[wrong[0]]):#x} and {int(b[wrong[0]]):#x}" if len(wrong) else ""
        return Distance(len(a), int((a == b).sum()), 0, len(wrong), worst=worst)
    with np.errstate(invalid="ignore"):
        x, y = float_of(a, probe.kind), float_of(b, probe.kind)
    same = (a == b) | (np.isnan(x) & np.isnan(y))
    finite = np.isfinite(x) & np.isfinite(y)
    ulps = np.where(finite & ~same, np.abs(ordered(a) - ordered(b)), 0)
    strange = ~same & ~finite
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        apart = np.where(finite & (x != y), np.abs(x - y), 0.0)
        part = apart / np.maximum(np.abs(x), 2.0**-126)
        measure = {
            BITS: ulps, ULP: ulps, ABSOLUTE: np.minimum(apart, part), RELATIVE: part,
            SUM: apart / np.maximum(np.ravel(1 if probe.magnitude is None else probe.magnitude), 2.0**-126),
        }[probe.how]  # fmt: skip
        measure = np.where(finite, measure, 0)
    at = int(np.argmax(np.where(strange, np.inf, np.where(same, -1, measure))))
    worst = "" if same.all() else f"[{at}] {x[at]!r} ({int(a[at]):#x}) and {y[at]!r} ({int(b[at]):#x})"
    return Distance(len(a), int(same.sum()), int(ulps.max()), int(strange.sum()), float(measure.max()), worst)


def ordered(bits: Any) -> Any:
    """Integers in the order of the floats: neighbours are 1 apart, and both zeros are 0."""
    signed = bits.view(f"i{bits.itemsize}").astype(np.int64)
    return np.where(signed < 0, -(signed & ((1 << (8 * bits.itemsize - 1)) - 1)), signed)
