"""One kernel launch as plain numbers: what a manifest's arithmetic comes to for one workload."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import msgspec


class ResolvedArgument(msgspec.Struct, frozen=True, omit_defaults=True):
    """An argument with its numbers. `box` in elements, `swizzle` in bytes, as `cuTensorMapEncodeTiled` takes them."""

    tensor: str | None = None
    tensor_map: str | None = None
    box: list[int] | None = None
    swizzle: int = 0
    scalar: float | int | None = None
    type: str | None = None


class ResolvedLaunch(msgspec.Struct, frozen=True):
    """One kernel launch: grid in CTAs, block in threads, `smem` in bytes of dynamic shared memory."""

    entry: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    cluster: tuple[int, int, int]
    smem: int
    args: list[ResolvedArgument]

    @property
    def threads(self) -> int:
        return self.block[0] * self.block[1] * self.block[2]


def launch_digest(launches: Sequence[ResolvedLaunch]) -> str:
    """Equal digests are the same launch: grid, block, cluster, shared memory, arguments and tensor maps."""
    return hashlib.sha256(msgspec.json.encode(launches)).hexdigest()[:16]
