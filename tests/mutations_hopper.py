"""The Hopper kernels made wrong, as `tests/mutations.py` does with the others: TMA, wgmma, rings and turns."""

# ruff: noqa: E501 (a mutation is a row of a table)
from __future__ import annotations

from faperf.emulator.fault import DEADLOCK, DIVERGENT, EXPECT_TX, LAYOUT, MISSING_WAIT, RACE
from tests.mutations import WRONG, Mutation

HOPPER = [
    Mutation("h14", "K is not waited for", "mbarrier_wait(k_full, j % 2);", "", MISSING_WAIT),
    Mutation("h14", "the phase of V never turns", "mbarrier_wait(v_full, j % 2)", "mbarrier_wait(v_full, 0)", MISSING_WAIT),
    Mutation("h14", "a tile's barrier expects half of its bytes", "expect_tx(barrier, TILE_BYTES)", "expect_tx(barrier, HALF_BYTES)", EXPECT_TX),
    Mutation("h14", "a tile's barrier expects no bytes", "mbarrier_arrive_expect_tx(barrier, TILE_BYTES)", "mbarrier_arrive(barrier)", EXPECT_TX),
    Mutation("h14", "no barrier between a tile and the next", "__syncthreads();  // all are past", "//", RACE),
    Mutation("h14", "Q's descriptor with rows of 256 bytes", "wgmma_operand(q_tile + step, 0, 1024)", "wgmma_operand(q_tile + step, 0, 2048)", LAYOUT),
    Mutation("h15", "S is used before QK is over", "wgmma_wait<0>();", "", MISSING_WAIT),
    Mutation("h16", "V taken for K-major", "wgmma_rs<1>", "wgmma_rs<0>", LAYOUT),
    Mutation("h16", "PV is not waited for before V is overwritten", "wgmma_wait<0>();\n    keep_in_place(o);", "keep_in_place(o);", MISSING_WAIT),
    Mutation("h16", "V's boxes as one atom", "wgmma_operand(v_tile + k * 16 * 128, KV_HALF, 1024)", "wgmma_operand(v_tile + k * 16 * 128, 1024, 1024)", LAYOUT),
    Mutation("h16", "the second box of K is the first", "k_tile + k / 4 * KV_HALF + k % 4 * 32", "k_tile + k % 4 * 32", LAYOUT),
    Mutation("h17", "V is not waited for", "if (block == 0) mbarrier_wait(v_full, j % 2);", "", MISSING_WAIT),
    Mutation("h18", "no warp barrier before O is read back", "    __syncwarp();\n#pragma unroll\n    for (int i = 0; i < 16", "#pragma unroll\n    for (int i = 0; i < 16", RACE),
    Mutation("h20", "O's blocks overlap", "O_BLOCK = D / 16 * THREADS", "O_BLOCK = D / 32 * THREADS", WRONG),
    Mutation("h21", "the empty barrier of K counts both warpgroups", "mbarrier_init(k_empty + i * 8, 4)", "mbarrier_init(k_empty + i * 8, 8)", DEADLOCK),
    Mutation("h21", "the producer does not wait for room for K", "mbarrier_wait(k_empty + stage * 8, phase ^ 1);", "", MISSING_WAIT),
    Mutation("h21", "K is given back after one of the blocks", "if (block == BLOCKS - 1 && lane == 0) mbarrier_arrive(k_empty", "if (block == 0 && lane == 0) mbarrier_arrive(k_empty", MISSING_WAIT),
    Mutation("h22", "nobody has the first turn", "if (group == 1) named_barrier_arrive(other_turn, 256);", "", DEADLOCK),
    Mutation("h22", "a turn for one warpgroup's threads", "named_barrier_sync(own_turn, 256)", "named_barrier_sync(own_turn, 128)", DIVERGENT),
    Mutation("h22", "PV of the tile that QK has", "start_pv(o, p, v_ring + before * KV_BYTES);", "start_pv(o, p, v_ring + stage * KV_BYTES);", MISSING_WAIT),
    Mutation("h22", "K's barrier expects one of two boxes", "expect_tx(k_full + stage * 8, KV_BYTES)", "expect_tx(k_full + stage * 8, KV_BYTES / 2)", EXPECT_TX),
    Mutation("h23", "S is used while QK runs", "wgmma_wait<1>();", "wgmma_wait<2>();", MISSING_WAIT),
]  # fmt: skip
