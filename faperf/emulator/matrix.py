"""Matrices in shared memory as a matrix descriptor names them, and swizzled boxes of tensors.

"Matrix Descriptor Format" and "Strides" of wgmma and tcgen05, "Swizzling Modes" of tensor copies. Elements have 16 bits. A
swizzle of S bytes XORs bits 4… of the *absolute* shared address with bits 7….
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from faperf.emulator.fault import BAD_DESCRIPTOR, DiagnosisError, NotEmulatedError
from faperf.emulator.ptx import Instruction
from faperf.emulator.rounding import from_brain
from faperf.emulator.state import Array

HALF = 2
GROUP = 8
"""Rows of a core matrix."""
WGMMA_SWIZZLE = {0: 0, 1: 128, 2: 64, 3: 32}
TCGEN05_SWIZZLE = {0: 0, 2: 128, 4: 64, 6: 32}


@dataclass(frozen=True)
class Descriptor:
    """Start, leading and stride byte offsets, and swizzle in bytes."""

    start: int
    leading: int
    stride: int
    swizzle: int


def wgmma_descriptor(bits: int, ins: Instruction) -> Descriptor:
    """Bits 0-13 start, 16-29 leading, 32-45 stride, 62-63 swizzle; addresses in units of 16 bytes."""
    return _descriptor(bits, WGMMA_SWIZZLE[bits >> 62], ins)


def tcgen05_descriptor(bits: int, ins: Instruction) -> Descriptor:
    """The same fields, but bits 46-48 are 0b001 and bits 61-63 the swizzle. Raises DiagnosisError."""
    if bits >> 46 & 7 != 1:
        raise DiagnosisError(BAD_DESCRIPTOR, f"bits 46-48 of {bits:#x} are {bits >> 46 & 7:#b}, not 0b001", ins.place)
    if bits >> 61 not in TCGEN05_SWIZZLE:
        raise NotEmulatedError(f"swizzle mode {bits >> 61} of descriptor {bits:#x}", ins.place)
    return _descriptor(bits, TCGEN05_SWIZZLE[bits >> 61], ins)


def _descriptor(bits: int, swizzle: int, ins: Instruction) -> Descriptor:
    if bits >> 49 & 7:
        raise NotEmulatedError(f"base offset {bits >> 49 & 7} of descriptor {bits:#x}", ins.place)
    return Descriptor((bits & 0x3FFF) << 4, (bits >> 16 & 0x3FFF) << 4, (bits >> 32 & 0x3FFF) << 4, swizzle)


def swizzled(address: Array, swizzle: int) -> Array:
    """Absolute shared addresses as a swizzle of 0, 32, 64 or 128 bytes places them."""
    bits = {0: 0, 32: 1, 64: 3, 128: 7}[swizzle]
    return address ^ ((address >> 7 & bits) << 4)


@dataclass(frozen=True)
class Footprint:
    """The 16-byte chunks of an operand, by their number within the CTA's shared memory.

    [rows, depth / 8] where a chunk is along k, [depth, rows / 8] where it is along the rows (`across`).
    """

    chunks: Array
    across: bool

    def gather(self, memory: Array, base: Array, brain: bool = False) -> Array:
        """[cta, rows, depth] in float32, of chunks [chunk, 8] of 16 bits; `base` is the first chunk of each CTA.

        The 16 bits are those of a half, or with `brain` of a bfloat16.
        """
        bits = memory.take(base[:, None, None] + self.chunks, axis=0)
        found: Array = from_brain(bits) if brain else bits.view(np.float16).astype(np.float32)
        found = found.reshape(len(base), len(self.chunks), -1)
        return found.transpose(0, 2, 1) if self.across else found


@lru_cache(maxsize=4096)
def footprint(d: Descriptor, rows: int, depth: int, across: bool) -> Footprint:
    address = addresses_of(d, rows, depth, across)
    return Footprint((address[::8].T if across else address[:, ::8]) >> 4, across)


@lru_cache(maxsize=4096)
def footprints(descriptors: tuple[Descriptor, ...], rows: int, depth: int, across: bool) -> Footprint:
    """Operands of `rows` × `depth` one after the other along k."""
    parts = [footprint(each, rows, depth, across).chunks for each in descriptors]
    return Footprint(np.concatenate(parts, axis=0 if across else 1), across)


def addresses_of(d: Descriptor, rows: int, depth: int, across: bool) -> Array:
    """The shared address of each element [row, k] of an operand of `rows` × `depth`.

    K-major: rows of `swizzle` bytes in groups of 8, `stride` from group to group; without a swizzle core matrices of 8 rows of
    16 bytes, `leading` from one to the next along k. `across` (MN-major): lines of k that hold `swizzle` bytes of rows, 8 of
    them a group, `stride` from group to group, `leading` to the next `swizzle` bytes of rows; without a swizzle core matrices
    of 8 lines of 16 bytes, `leading` from one to the next along k and `stride` along the rows.
    """
    row, k = np.arange(rows)[:, None], np.arange(depth)[None, :]
    if across:
        width = d.swizzle // HALF or 8
        across_rows, along_k = (d.leading, d.stride) if d.swizzle else (d.stride, d.leading)
        offset = row // width * across_rows + k // GROUP * along_k + k % GROUP * width * HALF + row % width * HALF
    elif d.swizzle:
        offset = row // GROUP * d.stride + row % GROUP * d.swizzle + k * HALF
    else:
        offset = row // GROUP * d.stride + k // 8 * d.leading + row % GROUP * 16 + k % 8 * HALF
    return swizzled(d.start + offset, d.swizzle)
