"""The Hopper kernels made wrong, as `tests/mutations.py` does with the others: TMA, wgmma, rings and turns."""

# ruff: noqa: E501 (a mutation is a row of a table)
from __future__ import annotations

from faperf.emulator.fault import DEADLOCK, DIVERGENT, EXPECT_TX, LAYOUT, MISSING_WAIT, RACE
from tests.mutations import MISSED, Mutation

HOPPER = [
    Mutation("h14", "K is not waited for", "mbarrier_wait(k_full, j % 2);", "", MISSING_WAIT),
    Mutation("h14", "the phase of V never turns", "mbarrier_wait(v_full, j % 2)", "mbarrier_wait(v_full, 0)", MISSING_WAIT),
    Mutation("h14", "a tile's barrier expects half of its bytes", "expect_tx(barrier, TILE_BYTES)", "expect_tx(barrier, HALF_BYTES)", EXPECT_TX),
    Mutation("h14", "a tile's barrier expects no bytes", "mbarrier_arrive_expect_tx(barrier, TILE_BYTES)", "mbarrier_arrive(barrier)", EXPECT_TX),
    Mutation("h14", "no barrier between a tile and the next", "__syncthreads();  // all are past", "//", RACE),
    Mutation("h14", "Q's descriptor with rows of 256 bytes", "wgmma_operand(q_tile + step, 0, 1024)", "wgmma_operand(q_tile + step, 0, 2048)", LAYOUT),
    Mutation("h16", "V taken for K-major", "wgmma_rs<1>", "wgmma_rs<0>", LAYOUT),
    Mutation("h16", "PV is not waited for before V is overwritten", "wgmma_wait<0>();\n    keep_in_place(o);", "keep_in_place(o);", MISSING_WAIT),
    Mutation("h18", "no warp barrier after the leader's wait", "    __syncwarp();\n}\n", "}\n", MISSED),
    Mutation("h21", "the empty barrier of K counts both warpgroups", "mbarrier_init(k_empty + i * 8, 4)", "mbarrier_init(k_empty + i * 8, 8)", DEADLOCK),
    Mutation("h21", "the producer does not wait for room for K", "mbarrier_wait(k_empty + stage * 8, phase ^ 1);", "", MISSING_WAIT),
    Mutation("h21", "no barrier before O goes into Q's tile", "named_barrier_sync(1, 128);", "", MISSED),
    Mutation("h22", "nobody has the first turn", "if (group == 1) named_barrier_arrive(other_turn, 256);", "", DEADLOCK),
    Mutation("h22", "a turn for one warpgroup's threads", "named_barrier_sync(own_turn, 256)", "named_barrier_sync(own_turn, 128)", DIVERGENT),
    Mutation("h22", "PV of the tile that QK has", "start_pv(o, p, v_ring + before * KV_BYTES);", "start_pv(o, p, v_ring + stage * KV_BYTES);", MISSING_WAIT),
]  # fmt: skip
