"""Kernels made wrong on purpose, one edit each, and what the emulator must say of them.

`finds` is a diagnosis of `faperf.emulator.fault`, WRONG for a result that the comparison refuses, LAYOUT for one that also says
which operand lies otherwise than it is multiplied, WARNED for one that is right with a warning, MISSED for what passes although
it is an error on silicon, or REFUSED for what the emulator says that it cannot judge. The docs show this table; `tests/test_mutations.py` holds the emulator to it.
"""

# ruff: noqa: E501 (a mutation is a row of a table)
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from faperf.emulating import Verdict
from faperf.emulator.fault import (
    BAD_BARRIER,
    BAD_DESCRIPTOR,
    DEADLOCK,
    EXPECT_TX,
    LAYOUT,
    MISALIGNED,
    MISSING_WAIT,
    OUT_OF_BOUNDS,
    RACE,
    TMEM,
    UNINITIALISED,
)

WRONG = "wrong result"
MISSED = "missed"
WARNED = "a warning"
REFUSED = "not emulated"


@dataclass(frozen=True)
class Mutation:
    """In the source of `version` (`tcgen05` is the test kernel), `old` becomes `new` (its `nth` occurrence; 0 for all). `what` says it in words."""

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
    Mutation("v12", "lanes of K's ldmatrix in V's order", "lane / 16 * 8 + lane % 8, lane / 8 % 2", "lane % 16, lane / 16", LAYOUT),
    Mutation("v12", "the swizzle's step in chunks of 8 bytes", "((step & 3) << 5)", "((step & 3) << 4)", LAYOUT),
    Mutation("v12", "a swizzle that the reader does not have", "cp_async_16(tile + swizzle(loader / CHUNKS + i * ROWS, loader % CHUNKS)", "cp_async_16(tile + swizzle(loader / CHUNKS + i * ROWS, loader % CHUNKS ^ 1)", LAYOUT),
    Mutation("v12", "B's halves swapped in QK", "mma_m16n8k16(s[2 * n], q[k], b[0], b[1])", "mma_m16n8k16(s[2 * n], q[k], b[1], b[0])", LAYOUT),
    Mutation("v12", "V is not transposed", "ldmatrix_x4_trans(b,", "ldmatrix_x4(b,", LAYOUT),
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
    Mutation("v12", "no warp barrier before O is read back", "    __syncwarp();\n#pragma unroll\n    for (int i = 0; i < 16", "#pragma unroll\n    for (int i = 0; i < 16", RACE),
    Mutation("v13", "K's full barrier counts one arrival more", "mbarrier_init(k_full + i * 8, LOADERS)", "mbarrier_init(k_full + i * 8, LOADERS + 1)", DEADLOCK),
    Mutation("v13", "K's full barrier counts half of the arrivals", "mbarrier_init(k_full + i * 8, LOADERS)", "mbarrier_init(k_full + i * 8, LOADERS / 2)", DEADLOCK),
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
    Mutation("tcgen05", "K and V are not waited for", "            wait(kv_full, j & 1);\n", "", MISSING_WAIT),
    Mutation("tcgen05", "Q is not waited for", "            wait(q_full, 0);\n", "", MISSING_WAIT),
    Mutation("tcgen05", "the phase of K and V never turns", "wait(kv_full, j & 1)", "wait(kv_full, 0)", MISSING_WAIT),
    Mutation("tcgen05", "K's barrier expects too few bytes", "\"r\"(4 * KV_HALF)", "\"r\"(3 * KV_HALF)", EXPECT_TX),
    Mutation("tcgen05", "K's barrier expects too many bytes", "\"r\"(4 * KV_HALF)", "\"r\"(5 * KV_HALF)", EXPECT_TX),
    Mutation("tcgen05", "a box is loaded twice", "&v_map, 64 * half", "&k_map, 64 * half", WRONG),
    Mutation("tcgen05", "no commit after QK", "            commit(done);\n        }\n        wait(done, 0);", "        }\n        wait(done, 0);", DEADLOCK),
    Mutation("tcgen05", "S is not waited for", "        wait(done, 0);", "", MISSING_WAIT),
    Mutation("tcgen05", "PV is not waited for", "        wait(done, 1);", "", MISSING_WAIT),
    Mutation("tcgen05", "the phases of QK and PV exchanged", "wait(done, 0);", "wait(done, 1);", UNINITIALISED),
    Mutation("tcgen05", "every warp reads the window of the first", "mine = tmem + (warp * 32 << 16)", "mine = tmem", TMEM),
    Mutation("tcgen05", "a warp's window in columns", "(warp * 32 << 16)", "(warp * 32)", TMEM),
    Mutation("tcgen05", "half the columns of tensor memory", "COLUMNS = 256;", "COLUMNS = 128;", OUT_OF_BOUNDS),
    Mutation("tcgen05", "tensor memory is not freed", "    if (warp == 0) asm volatile(\"tcgen05.dealloc", "    if (warp == 9) asm volatile(\"tcgen05.dealloc", TMEM),
    Mutation("tcgen05", "other columns freed than allocated", "\"r\"(tmem), \"n\"(COLUMNS)", "\"r\"(tmem), \"n\"(COLUMNS / 2)", TMEM),
    Mutation("tcgen05", "every warp allocates", "    if (warp == 0)\n        asm volatile(\"tcgen05.alloc", "    asm volatile(\"tcgen05.alloc", RACE),
    Mutation("tcgen05", "stride of K's descriptor 512", "KV_HALF + within, 0, 1024)", "KV_HALF + within, 0, 512)", LAYOUT),
    Mutation("tcgen05", "the descriptor's version bits are 0", "1ull << 46", "0ull << 46", BAD_DESCRIPTOR),
    Mutation("tcgen05", "a swizzle of 64 bytes in the descriptor", "2ull << 61", "4ull << 61", OUT_OF_BOUNDS),
    Mutation("tcgen05", "no swizzle in the descriptor", "2ull << 61", "0ull << 61", OUT_OF_BOUNDS),
    Mutation("tcgen05", "V taken for K-major", "1 << 16 | (D / 8)", "(D / 8)", OUT_OF_BOUNDS),
    Mutation("tcgen05", "leading offset of V's descriptor", "v_tile + k * 2048, KV_HALF, 1024", "v_tile + k * 2048, 1024, 1024", LAYOUT),
    Mutation("tcgen05", "N of PV half as large", "(D / 8) << 17", "(D / 16) << 17", UNINITIALISED),
    Mutation("tcgen05", "M of QK half as large", "(BC / 8) << 17 | (BR / 16) << 24", "(BC / 8) << 17 | (BR / 32) << 24", WRONG),
    Mutation("tcgen05", "M of 96", "(BC / 8) << 17 | (BR / 16) << 24", "(BC / 8) << 17 | 6 << 24", BAD_DESCRIPTOR),
    Mutation("tcgen05", "QK adds to what was there", "QK_SHAPE, k > 0", "QK_SHAPE, 1", UNINITIALISED),
    Mutation("tcgen05", "PV adds to the tile before", "PV_SHAPE, k > 0", "PV_SHAPE, k > 0 || j > 0", WRONG),
    Mutation("tcgen05", "steps of 16 bytes along K", "k % 4 * 32", "k % 4 * 16", WRONG),
    Mutation("tcgen05", "steps of 8 keys along V", "v_tile + k * 2048", "v_tile + k * 1024", WRONG),
    Mutation("tcgen05", "the second half of Q is the first", "q_tile + k / 4 * Q_HALF", "q_tile", LAYOUT),
    Mutation("tcgen05", "P's next keys 4 columns further", "P_COLUMN + 8 * k", "P_COLUMN + 4 * k", WRONG),
    Mutation("tcgen05", "no barrier between P's stores and PV", "        __syncthreads();\n        if (threadIdx.x == 0) {\n            asm volatile(\"tcgen05.fence::after", "        if (threadIdx.x == 0) {\n            asm volatile(\"tcgen05.fence::after", RACE),
    Mutation("tcgen05", "head and row exchanged", "64 * half, h, row, b", "64 * half, row, h, b", WRONG),
    Mutation("tcgen05", "K's halves exchanged", "&k_map, 64 * half", "&k_map, 64 - 64 * half", LAYOUT),
    Mutation("tcgen05", "the barriers expect two arrivals", "mbarrier.init.shared::cta.b64 [%0], 1;", "mbarrier.init.shared::cta.b64 [%0], 2;", DEADLOCK),
    Mutation("tcgen05", "no barrier after initialisation", "    __syncthreads();\n    asm volatile(\"tcgen05.fence::after_thread_sync;\" ::: \"memory\");\n    const", "    const", RACE),
    Mutation("tcgen05", "O leaves as if there were one head", "* H + h) * (D / 2)", "+ h) * (D / 2)", WRONG),
    Mutation("tcgen05", "no wait for P's stores", "        asm volatile(\"tcgen05.wait::st.sync.aligned;\" ::: \"memory\");\n", "", WARNED),
    Mutation("tcgen05", "no fence after the wait for S", "        wait(done, 0);  // the even phase of this tile: QK\n        asm volatile(\"tcgen05.fence::after_thread_sync;\" ::: \"memory\");", "        wait(done, 0);", WARNED),
]  # fmt: skip


def found(verdict: Verdict) -> str:
    """What an emulation came to, in the words of `Mutation.finds`."""
    if verdict.check is None:
        return REFUSED
    if verdict.check.ok:
        return WARNED if verdict.check.warnings else MISSED
    if verdict.check.fault is None and f"; {LAYOUT}: " in str(verdict.check.failure):
        return LAYOUT
    return verdict.check.fault or WRONG


def table(mutations: Sequence[Mutation]) -> str:
    """Mutations in Markdown, as docs/emulator.md shows them between its markers."""
    rows = [f"| {m.version} | {m.what} | {'**missed**' if m.finds == MISSED else m.finds} |" for m in mutations]
    missed, refused = (sum(m.finds == kind for m in mutations) for kind in (MISSED, REFUSED))
    count = len(mutations) - missed - refused
    head = f"{len(mutations)} mutations: {count} found, {missed} missed, {refused} refused (the emulator says that it cannot judge)."
    return "\n".join([head, "", "| kernel | made wrong | found as |", "|---|---|---|", *rows])
