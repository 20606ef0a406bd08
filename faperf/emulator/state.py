"""The registers of a wave of CTAs, and the paths that run through them.

A wave is as many CTAs as run together. Its lanes lie as [warp, cta, lane], so that one warp of all CTAs, or neighbouring
warps of all of them, are a slice. A path is a slice of lanes at one place of the program, with a mask where not all of them
take part. Vector clocks (Lamport's order, one clock a warp and one for each agent that works asynchronously on its behalf)
say which writes a warp has been told of.

A cluster runs as one CTA that has the warps of all its CTAs, those of rank 0 first: where arrays are by CTA, they are then by
cluster. Only what belongs to each CTA, as its shared and tensor memory do, is by `home`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from faperf.emulator.fault import NotEmulatedError

if TYPE_CHECKING:
    from faperf.emulator.barrier import Barriers
    from faperf.emulator.decode import Program
    from faperf.emulator.memory import Global, Local, Shared
    from faperf.emulator.moments import Moments
    from faperf.emulator.ptx import Instruction
    from faperf.emulator.schedule import Scheduler, Wait

WARP = 32
Array = Any
"""A numpy array; its functions say little that a type checker could hold them to."""
Mask = Any
"""True, or one bool a lane: what numpy takes as `where`."""

DTYPES: dict[str, Any] = {
    "pred": np.bool_, "u16": np.uint16, "s16": np.int16, "f16": np.float16, "u32": np.uint32, "s32": np.int32,
    "f32": np.float32, "u64": np.uint64, "s64": np.int64, "f64": np.float64,
}  # fmt: skip
STORAGE: dict[int, Any] = {1: np.bool_, 16: np.uint16, 32: np.uint32, 64: np.uint64}


def bits_of(kind: str) -> int:
    return 1 if kind == "pred" else int(kind[1:])


class Views(dict[str, list[Array]]):
    """The rows of a slice of lanes as any type: `views["f32"][row]`. Made when they are first asked for."""

    def __init__(self, registers: dict[int, Array], start: int, stop: int) -> None:
        super().__init__()
        self._slice = slice(start, stop)
        self.tables: dict[str, Array] = _Tables(registers, self._slice)
        """The same as two dimensions, [row, lane]."""

    def __missing__(self, kind: str) -> list[Array]:
        rows = list(self.tables[kind])
        self[kind] = rows
        return rows


class _Tables(dict[str, Array]):
    def __init__(self, registers: dict[int, Array], part: slice) -> None:
        super().__init__()
        self._registers, self._slice = registers, part

    def __missing__(self, kind: str) -> Array:
        self[kind] = self._registers[bits_of(kind)].view(DTYPES[kind])[:, self._slice]
        return self[kind]


class Wave:
    """CTAs that run together, and all that belongs to them. `ctas` are their (x, y, z)."""

    def __init__(
        self, program: Program, ctas: Sequence[tuple[int, int, int]], grid: tuple[int, int, int],
        block: tuple[int, int, int], memory: Global, smem: int, before: Wave | None = None,
        cluster: tuple[int, int, int] = (1, 1, 1),
    ) -> None:  # fmt: skip
        """`ctas` are, of each cluster, the first.

        A wave `before` that is over, of the same launch, gives its registers: new pages cost more than all of its math.
        """
        from faperf.emulator.barrier import Barriers
        from faperf.emulator.memory import Local, Shared
        from faperf.emulator.moments import Moments

        self.program, self.ctas, self.grid, self.block = program, list(ctas), grid, block
        self.cluster, self.size = cluster, math.prod(cluster)
        """`size` counts the CTAs of a cluster."""
        self.threads = block[0] * block[1] * block[2]
        self.cta_warps = -(-self.threads // WARP)
        self.warps = self.cta_warps * self.size
        count = len(self.ctas)
        self.lanes = self.warps * count * WARP
        flat = np.arange(self.lanes)
        self.flat_warp = flat // WARP
        self.cta = flat // WARP % count
        self.warp = flat // WARP // count % self.cta_warps
        self.home_of_warp = np.arange(self.warps * count) % count * self.size + (
            np.arange(self.warps * count) // count // self.cta_warps
        )
        """The number of each flat warp's CTA among all of the wave: cluster · size + rank."""
        self.tid = self.warp * WARP + flat % WARP
        self.exists = self.tid < self.threads
        self.exited = np.zeros(self.lanes, bool)
        self.agents = FIRST_BARRIER * self.warps + BARRIER_AGENTS
        if self.agents > MOST_AGENTS:
            raise NotEmulatedError(f"{self.size} CTAs of {self.cta_warps} warps in a cluster")
        self.clocks = np.zeros((self.warps * count, self.agents), np.int32)
        self.clocks[np.arange(self.warps * count), np.arange(self.warps * count) // count] = 1
        self.async_clock = np.ones((self.warps * count, 4), np.int32)
        self.sealed, self.proxied = np.zeros((2, self.warps * count), np.int32)
        self.fenced, self.proxy_fenced, self.released = np.zeros((3, *self.clocks.shape), np.int32)
        """A warp's own clock at its last tcgen05.fence::before_thread_sync and fence.proxy.async; what it knew at its last
        tcgen05.fence::after_thread_sync and fence.proxy.async, and at its last fence (where there are clusters)."""
        self.memory = memory
        self.shared: Shared = Shared(self, smem)
        self.moments: Moments = Moments(self)
        self.local: Local = Local(self)
        self.barriers: Barriers = Barriers(self)
        self.scheduler: Scheduler
        self.extra: dict[str, Any] = {}
        self.pending: dict[int, Any] = {}
        """By the first warp of a path: what it has not waited for (`pending`)."""
        self.warnings: dict[str, None] = {}
        self.executed = 0
        self._views: dict[tuple[int, int], Views] = {}
        self.registers: dict[int, Array]
        if before is not None and before.lanes == self.lanes:
            self.registers, self._views = before.registers, before._views
        else:
            self.registers = {bits: np.zeros((rows, self.lanes), STORAGE[bits]) for bits, rows in program.rows.items()}
            for (bits, row), value in program.constants.items():
                self.registers[bits][row] = np.array(value, np.uint64).astype(STORAGE[bits])
        self._fill()

    def _fill(self) -> None:
        """Special registers have rows of their own, as constants do."""
        rank = self.home_of_warp[self.flat_warp] % self.size
        of_cluster = np.stack(np.unravel_index(rank, self.cluster[::-1])[::-1], axis=1)
        place = np.array(self.ctas)[self.cta] + of_cluster
        cluster = place // self.cluster
        (nx, ny, nz), (cx, cy, cz) = self.grid, self.cluster
        tid, (bx, by, _) = self.tid, self.block
        one_hot = np.uint32(1) << (np.arange(self.lanes) % WARP).astype(np.uint32)
        special: dict[str, Any] = {
            "%tid.x": tid % bx, "%tid.y": tid // bx % by, "%tid.z": tid // bx // by,
            "%ntid.x": bx, "%ntid.y": by, "%ntid.z": self.block[2],
            "%ctaid.x": place[:, 0], "%ctaid.y": place[:, 1], "%ctaid.z": place[:, 2],
            "%nctaid.x": nx, "%nctaid.y": ny, "%nctaid.z": nz,
            "%clusterid.x": cluster[:, 0], "%clusterid.y": cluster[:, 1], "%clusterid.z": cluster[:, 2],
            "%nclusterid.x": nx // cx, "%nclusterid.y": ny // cy, "%nclusterid.z": nz // cz,
            "%cluster_ctaid.x": of_cluster[:, 0], "%cluster_ctaid.y": of_cluster[:, 1],
            "%cluster_ctaid.z": of_cluster[:, 2], "%cluster_ctarank": rank,
            "%cluster_nctaid.x": cx, "%cluster_nctaid.y": cy, "%cluster_nctaid.z": cz, "%cluster_nctarank": self.size,
            "%is_explicit_cluster": self.size > 1, "%laneid": np.arange(self.lanes) % WARP, "%warpid": self.warp,
            "%nwarpid": self.cta_warps, "%lanemask_eq": one_hot, "%lanemask_lt": one_hot - np.uint32(1),
            "%lanemask_le": one_hot * np.uint32(2) - np.uint32(1), "%smid": self.home_of_warp[self.flat_warp],
            "%nsmid": len(self.ctas) * self.size,
            "%lanemask_ge": ~(one_hot - np.uint32(1)), "%lanemask_gt": ~(one_hot * np.uint32(2) - np.uint32(1)),
            "%dynamic_smem_size": self.shared.dynamic, "%total_smem_size": self.shared.size,
        }  # fmt: skip
        for (bits, row), name in self.program.specials.items():
            self.registers[bits][row] = special[name]
        if self.size > 1:
            for bits, row in self.program.shared_rows:
                value = self.program.constants[bits, row]
                self.registers[bits][row] = value + (rank << RANK_BIT).astype(STORAGE[bits])

    def views(self, start: int, stop: int) -> Views:
        if (start, stop) not in self._views:
            self._views[start, stop] = Views(self.registers, start, stop)
        return self._views[start, stop]

    def warn(self, what: str, ins: Instruction) -> None:
        """Something that is often harmless, once for each place."""
        self.warnings.setdefault(f"{what}, at {ins.place}")

    def name_of(self, lane: int) -> str:
        """`warp 3 of CTA (1, 0, 0)` for a flat lane."""
        return f"warp {self.warp[lane]} of CTA {self.place_of(int(self.home_of_warp[self.flat_warp[lane]]))}"

    def place_of(self, home: int) -> tuple[int, int, int]:
        """The coordinates of a CTA of the wave."""
        column, rank = divmod(home, self.size)
        x, y, z = self.ctas[column]
        within = np.unravel_index(rank, self.cluster[::-1])
        return x + int(within[2]), y + int(within[1]), z + int(within[0])

    def warp_name(self, warp: int) -> str:
        """`warp 3`; `warp 3 of rank 1` where there are clusters."""
        rank, own = divmod(warp, self.cta_warps)
        return f"warp {own} of rank {rank}" if self.size > 1 else f"warp {own}"


RANK_BIT = 24
"""Shared addresses name a CTA of their cluster by its rank in the bits from here on, as those of a card do."""
CLOCK_BITS = 20
"""A stamp is an agent and, in so many bits, its clock."""
MOST_AGENTS = 1 << (31 - CLOCK_BITS)
BARRIER_AGENTS = 32
COPY, TENSOR, BULK, FIRST_BARRIER = 1, 2, 3, 4
"""Agents of a warp, by `warps * kind + warp`: its cp.async, its MMAs, its bulk stores. After them one a TMA barrier."""

SPECIALS = {
    *(f"%{name}.{axis}" for name in ("tid", "ntid", "ctaid", "nctaid", "clusterid", "nclusterid", "cluster_ctaid",
                                    "cluster_nctaid") for axis in "xyz"),
    "%cluster_ctarank", "%cluster_nctarank", "%is_explicit_cluster", "%laneid", "%warpid", "%nwarpid", "%lanemask_eq",
    "%lanemask_lt", "%lanemask_le", "%lanemask_gt", "%lanemask_ge", "%smid", "%nsmid", "%dynamic_smem_size",
    "%total_smem_size",
}  # fmt: skip


@dataclass
class Join:
    """Where paths meet again: at block `at`, once `missing` of them have come or ended. `came` are the lanes that wait."""

    at: int
    outer: Join | None
    missing: int
    came: list[Array] = field(default_factory=list)
    home: list[Path] = field(default_factory=list)


class Path:
    """Lanes `start` … `stop`-1 of a wave at block `pc`, those of `mask`; `r` are their registers."""

    __slots__ = ("asked", "join", "mask", "pc", "r", "start", "stop", "wait", "warps", "wave")

    def __init__(self, wave: Wave, lanes: Array, pc: int, join: Join | None) -> None:
        """`lanes` are flat and ascending."""
        self.wave, self.pc, self.join = wave, pc, join
        self.start = int(lanes[0]) // WARP * WARP
        self.stop = (int(lanes[-1]) // WARP + 1) * WARP
        self.r = wave.views(self.start, self.stop)
        self.mask: Mask = True
        if len(lanes) < self.stop - self.start:
            self.mask = np.zeros(self.stop - self.start, bool)
            self.mask[lanes - self.start] = True
        self.warps = (self.stop - self.start) // WARP
        if self.mask is not True:
            self.warps = int(self.mask.reshape(-1, WARP).any(1).sum())
        self.wait: Wait | None = None
        self.asked = -1
        """How much had happened when the wait was last not over."""

    def lanes(self) -> Array:
        """The flat lanes that take part."""
        if self.mask is True:
            return np.arange(self.start, self.stop)
        return np.flatnonzero(self.mask) + self.start

    def pick(self, row: Array) -> Array:
        """Those elements of a row (or of any array by lane of the slice) that take part."""
        return row if self.mask is True else row[self.mask]

    def put(self, row: Array, values: Array) -> None:
        """Write one value for each lane that takes part."""
        if self.mask is True:
            row[...] = values
        else:
            row[self.mask] = values

    @property
    def flat_warps(self) -> Array:
        """The flat warp of each lane that takes part."""
        return self.pick(self.wave.flat_warp[self.start : self.stop])

    @property
    def ctas(self) -> Array:
        return self.pick(self.wave.cta[self.start : self.stop])

    @property
    def homes(self) -> Array:
        return self.wave.home_of_warp[self.flat_warps]

    @property
    def ranks(self) -> Array:
        """That of each lane's CTA in its cluster."""
        return self.homes % self.wave.size

    def runs(self) -> list[Path]:
        """Its lanes as paths of neighbours: those of each CTA of a cluster are apart where a warp between has another task."""
        lanes = self.lanes()
        return [
            Path(self.wave, part, self.pc, None) for part in np.split(lanes, np.flatnonzero(np.diff(lanes) > 1) + 1)
        ]

    def whole_warps(self) -> bool:
        """No lane of its warps is elsewhere, those that have exited or never were aside."""
        if self.mask is True:
            return True
        there = self.mask | ~self.wave.exists[self.start : self.stop] | self.wave.exited[self.start : self.stop]
        in_warp = there.reshape(-1, WARP)
        return bool((in_warp.all(1) | ~self.mask.reshape(-1, WARP).any(1)).all())
