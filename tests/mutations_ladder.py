"""v16 and v21 made wrong on purpose, one edit each, and what the emulator must say of them. As `tests.mutations`."""

# ruff: noqa: E501 (a mutation is a row of a table)
from __future__ import annotations

from faperf.emulator.fault import DEADLOCK, EXPECT_TX, LAYOUT, MISSING_WAIT, OUT_OF_BOUNDS, RACE, TMEM, UNINITIALISED
from tests.mutations import REFUSED, WARNED, WRONG, Mutation

LADDER = [
    Mutation("v16", "V is not waited for", "mbarrier_wait(v_full, j & 1);", "", MISSING_WAIT),
    Mutation("v16", "PV is not waited for", "mbarrier_wait(pv_done, j & 1);", "", MISSING_WAIT),
    Mutation("v16", "the phase of K never turns", "mbarrier_wait(k_full, j & 1)", "mbarrier_wait(k_full, 0)", DEADLOCK),
    Mutation("v16", "the phase of PV runs ahead", "mbarrier_wait(pv_done, j & 1)", "mbarrier_wait(pv_done, ~j & 1)", DEADLOCK),
    Mutation("v16", "a tile's barrier expects half of its bytes", "expect_tx(barrier, TILE_BYTES)", "expect_tx(barrier, HALF_BYTES)", EXPECT_TX),
    Mutation("v16", "no commit after PV", "tcgen05_commit(pv_done);", "", DEADLOCK),
    Mutation("v16", "windows of 16 lanes", "(warp % 4 * 32 << 16)", "(warp % 4 * 16 << 16)", TMEM),
    Mutation("v16", "rows as with M = 128", "const int row = warp % 4 * ROWS + lane;", "const int row = warp % 4 * 32 + lane;", OUT_OF_BOUNDS),
    Mutation("v16", "another row's alpha", "ROWS + lane % ROWS]", "ROWS + lane % 8]", WRONG),
    Mutation("v16", "P's chunks without the swizzle", "(chunk % 8 ^ (row & 7))", "(chunk % 8)", LAYOUT),
    Mutation("v16", "V's halves as one atom", "tcgen05_operand(v_tile, HALF_BYTES, 1024)", "tcgen05_operand(v_tile, 1024, 1024)", LAYOUT),
    Mutation("v16", "no barrier between P and PV", "__syncthreads();  // P and alpha are there", "", RACE),
    Mutation("v16", "no barrier at the end of a tile", "__syncthreads();  // alpha,", "//", RACE),
    Mutation("v16", "the batch taken for a head", "static_cast<size_t>(b) * S + first + row) * H + h", "static_cast<size_t>(b) * S * H + first + row) * H + h", OUT_OF_BOUNDS),
    Mutation("v21", "Q's barrier expects one tile", "expect_tx(q_full, TILES_Q * Q_BYTES)", "expect_tx(q_full, Q_BYTES)", EXPECT_TX),
    Mutation("v21", "QK does not wait until S is read", "mbarrier_wait(smem_address(&shared.s_empty[t]), j & 1);", "", DEADLOCK),
    Mutation("v21", "PV does not wait for P", "mbarrier_wait(smem_address(&shared.p_full[t]), j & 1);", "", UNINITIALISED),
    Mutation("v21", "P is stored before PV has read the last", "mbarrier_wait(pv_done, (j - 1) & 1);", "", MISSING_WAIT),
    Mutation("v21", "O is read before the last PV is done", "mbarrier_wait(pv_done, (tiles - 1) & 1);", "", MISSING_WAIT),
    Mutation("v21", "the loader does not wait for room", "mbarrier_wait(smem_address(&shared.k_empty[turn.stage]), turn.parity ^ 1);", "", MISSING_WAIT),
    Mutation("v21", "the loader waits for the first emptying", "v_empty[turn.stage]), turn.parity ^ 1)", "v_empty[turn.stage]), turn.parity)", DEADLOCK),
    Mutation("v21", "K is given back after one of the query tiles", "if (t == TILES_Q - 1) tcgen05_commit(smem_address(&shared.k_empty", "if (t == 0) tcgen05_commit(smem_address(&shared.k_empty", MISSING_WAIT),
    Mutation("v21", "a ring's phase turns with every tile", "parity(j / STAGES & 1)", "parity(j & 1)", UNINITIALISED),
    Mutation("v21", "S is empty when both warpgroups have read it", "mbarrier_init(smem_address(&shared.s_empty[t]), 4);", "mbarrier_init(smem_address(&shared.s_empty[t]), 8);", DEADLOCK),
    Mutation("v21", "every lane arrives", "if (threadIdx.x % 32 == 0) mbarrier_arrive(barrier);", "mbarrier_arrive(barrier);", DEADLOCK),
    Mutation("v21", "both query tiles share P's columns", "tmem + P_COLUMN + t * P_COLUMNS + i * 8", "tmem + P_COLUMN + i * 8", MISSING_WAIT),
    Mutation("v21", "the first PV adds", "pv.stage, j > 0)", "pv.stage, true)", UNINITIALISED),
    Mutation("v21", "only lanes whose maximum has grown rescale", "if (__any_sync(~0u, grown))", "if (grown)", REFUSED),
    Mutation("v21", "a window for each of eight warps", "(warp % 4 * 32 << 16)", "(warp * 32 << 16)", TMEM),
    Mutation("v21", "no wait for P's stores", "tcgen05_wait_store();\n        warp_arrive(smem_address(&shared.p_full", "warp_arrive(smem_address(&shared.p_full", WARNED),
]  # fmt: skip
