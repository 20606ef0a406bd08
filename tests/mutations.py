"""Kernels made wrong on purpose, one edit each, and what the emulator must say of them.

`finds` is a diagnosis of `faperf.emulator.fault`, WRONG for a result that the comparison refuses, or MISSED for what passes
although it is an error on silicon. The docs show this table; `tests/test_mutations.py` holds the emulator to it.
"""

# ruff: noqa: E501 (a mutation is a row of a table)
from __future__ import annotations

from dataclasses import dataclass

from faperf.emulator.fault import (
    BAD_BARRIER,
    DEADLOCK,
    MISALIGNED,
    MISSING_WAIT,
    OUT_OF_BOUNDS,
    RACE,
    UNINITIALISED,
)

WRONG = "wrong result"
MISSED = "missed"


@dataclass(frozen=True)
class Mutation:
    """In the source of `version`, `old` becomes `new` (its `nth` occurrence; 0 for all). `what` says it in words."""

    version: str
    what: str
    old: str
    new: str
    finds: str
    nth: int = 1

    @property
    def name(self) -> str:
        return f"{self.version}: {self.what}"

    def applied(self, source: str) -> str:
        assert self.old in source, f"{self.name}: {self.old!r} is not there"
        if not self.nth:
            return source.replace(self.old, self.new)
        parts = source.split(self.old)
        return self.old.join(parts[: self.nth]) + self.new + self.old.join(parts[self.nth :])


MUTATIONS = [
    Mutation("v12", "Q is not waited for", "cp_async_wait<2>();", "cp_async_wait<3>();", MISSING_WAIT),
    Mutation("v12", "K is not waited for", "cp_async_wait<1>();  // K(j)", "cp_async_wait<2>();  // K(j)", MISSING_WAIT),
    Mutation("v12", "V is not waited for", "cp_async_wait<1>();  // V(j)", "cp_async_wait<2>();  // V(j)", MISSING_WAIT),
    Mutation("v12", "no barrier after Q's wait", "be in flight\n    __syncthreads();\n    uint32_t", "be in flight\n    uint32_t", RACE),
    Mutation("v12", "no barrier after K's wait", "__syncthreads();     // for all warps, and all are past QK", "//", RACE),
    Mutation("v12", "no barrier after V's wait", "__syncthreads();     // for all warps, and all are past PV", "//", RACE),
    Mutation("v12", "no commit after Q's copies", "threadIdx.x);\n    cp_async_commit();", "threadIdx.x);", MISSING_WAIT),
    Mutation("v12", "no empty commit on the last tile", "cp_async_commit();   //", "if (j + 1 < tiles) cp_async_commit();   //", MISSING_WAIT),
    Mutation("v12", "the next K overwrites this one", "load_tile(k_ring + next_stage", "load_tile(k_ring + stage", MISSING_WAIT),
    Mutation("v12", "the next V overwrites this one", "load_tile(v_ring + next_stage", "load_tile(v_ring + stage", MISSING_WAIT),
    Mutation("v12", "lanes of K's ldmatrix in V's order", "lane / 16 * 8 + lane % 8, lane / 8 % 2", "lane % 16, lane / 16", WRONG),
    Mutation("v12", "the swizzle's step in chunks of 8 bytes", "((step & 3) << 5)", "((step & 3) << 4)", WRONG),
    Mutation("v12", "a swizzle that the reader does not have", "cp_async_16(tile + swizzle(loader / CHUNKS + i * ROWS, loader % CHUNKS)", "cp_async_16(tile + swizzle(loader / CHUNKS + i * ROWS, loader % CHUNKS ^ 1)", WRONG),
    Mutation("v12", "B's halves swapped in QK", "mma_m16n8k16(s[2 * n], q[k], b[0], b[1])", "mma_m16n8k16(s[2 * n], q[k], b[1], b[0])", WRONG),
    Mutation("v12", "V is not transposed", "ldmatrix_x4_trans(b,", "ldmatrix_x4(b,", WRONG),
    Mutation("v12", "rows as if there were one head", "row_stride = H * ROW_BYTES", "row_stride = ROW_BYTES", WRONG),
    Mutation("v12", "the batch taken for a head", "(static_cast<size_t>(blockIdx.y / H) * S * H", "(static_cast<size_t>(blockIdx.y) * S * H", OUT_OF_BOUNDS),
    Mutation("v12", "every second key tile", "offset += BC * row_stride", "offset += 2 * BC * row_stride", OUT_OF_BOUNDS),
    Mutation("v12", "a tile too many in shared memory", "constexpr int STAGES = 2; ", "constexpr int STAGES = 3; ", OUT_OF_BOUNDS),
    Mutation("v12", "O is not rescaled", "o[n][2 * r] *= alpha", "o[n][2 * r] *= 1.0f", WRONG),
    Mutation("v12", "the row maximum of two lanes of four", "row_max = fmaxf(row_max, __shfl_xor_sync(~0u, row_max, 2));", "", WRONG),
    Mutation("v12", "a row sum of two lanes of four", "row_sum += __shfl_xor_sync(~0u, row_sum, 2);", "", WRONG),
    Mutation("v12", "P's registers in C's order of columns", "&s[2 * k + i / 2][i % 2 * 2]", "&s[2 * k + i % 2][i / 2 * 2]", WRONG),
    Mutation("v12", "O leaves in chunks of 8 bytes", "(row * row_stride + chunk * 16)", "(row * row_stride + chunk * 8)", MISALIGNED),
    Mutation("v12", "O leaves into the next head's rows", "(row * row_stride + chunk * 16)", "(row * row_stride + chunk * 16 + 256)", OUT_OF_BOUNDS),
    Mutation("v12", "no warp barrier before O is read back", "    __syncwarp();\n#pragma unroll\n    for (int i = 0; i < 16", "#pragma unroll\n    for (int i = 0; i < 16", MISSED),
    Mutation("v13", "K's full barrier expects one more", "mbarrier_init(k_full + i * 8, LOADERS)", "mbarrier_init(k_full + i * 8, LOADERS + 1)", DEADLOCK),
    Mutation("v13", "K's full barrier expects half", "mbarrier_init(k_full + i * 8, LOADERS)", "mbarrier_init(k_full + i * 8, LOADERS / 2)", DEADLOCK),
    Mutation("v13", "the empty barrier counts threads", "mbarrier_init(k_empty + i * 8, CONSUMERS / 32)", "mbarrier_init(k_empty + i * 8, CONSUMERS)", DEADLOCK),
    Mutation("v13", "every lane arrives on the empty barrier", "if (lane == 0) mbarrier_arrive(k_empty", "mbarrier_arrive(k_empty", DEADLOCK),
    Mutation("v13", "the producer waits for the first emptying", "phase ^ 1);  // on the first round", "phase);  // on", DEADLOCK),
    Mutation("v13", "the phase of K never turns", "mbarrier_wait(k_full + stage * 8, phase)", "mbarrier_wait(k_full + stage * 8, 0)", MISSING_WAIT),
    Mutation("v13", "Q is not waited for", "mbarrier_wait(q_full, 0);\n", "", UNINITIALISED),
    Mutation("v13", "V is not waited for", "mbarrier_wait(v_full + stage * 8, phase);\n", "", MISSING_WAIT),
    Mutation("v13", "the producer does not wait for room", "mbarrier_wait(empty + stage * 8, phase ^ 1);", "", MISSING_WAIT),
    Mutation("v13", "K is never given back", "if (lane == 0) mbarrier_arrive(k_empty + stage * 8);", "", DEADLOCK),
    Mutation("v13", "K is given back before it is read", "float s[BC / 8][4] = {};\n        compute_qk", "float s[BC / 8][4] = {};\n        if (lane == 0) mbarrier_arrive(k_empty + stage * 8);\n        compute_qk", RACE),
    Mutation("v13", "no barrier after the mbarriers' initialisation", "    __syncthreads();\n\n    if (threadIdx.x >= CONSUMERS)", "    if (threadIdx.x >= CONSUMERS)", RACE),
    Mutation("v13", "the barrier of Q is not initialised", "mbarrier_init(q_full, LOADERS);", "", BAD_BARRIER),
    Mutation("v13", "V fills K's ring", "loads_k ? k_ring : v_ring", "loads_k ? k_ring : k_ring", MISSING_WAIT),
    Mutation("v13", "a consumer returns early", "mbarrier_wait(q_full, 0);", "if (warp == 3) return; mbarrier_wait(q_full, 0);", DEADLOCK),
]  # fmt: skip


def table() -> str:
    """The mutations in Markdown, as docs/emulator.md shows them between its markers."""
    rows = [f"| {m.version} | {m.what} | {'**missed**' if m.finds == MISSED else m.finds} |" for m in MUTATIONS]
    missed = sum(m.finds == MISSED for m in MUTATIONS)
    head = f"{len(MUTATIONS)} mutations, {len(MUTATIONS) - missed} found, {missed} missed."
    return "\n".join([head, "", "| kernel | made wrong | found as |", "|---|---|---|", *rows])
