"""Operands known by what they hold: in order, out of order, along k and across it."""

from __future__ import annotations

import numpy as np

from faperf.emulator.memory import Global
from faperf.emulator.provenance import Origins
from faperf.emulator.ptx import Instruction

INS = Instruction(("mma", "sync"), (), None, False, 7, "k.cu:3", 0)


def notes_of(*operands: np.ndarray) -> list[str]:
    """Of operands [row, k] in registers, over a tensor K[1, 64, 2, 128] that also holds zeros."""
    memory = Global()
    memory.add("K", K)
    memory.seal()
    origins = Origins(memory)
    for operand in operands:
        origins.look_at(np.ascontiguousarray(operand).view(np.uint16)[None], INS)
    return list(origins.notes.values())


K = np.random.default_rng(1).standard_normal((1, 64, 2, 128), np.float32).astype(np.float16)
K[0, 60:] = 0


def test_what_is_in_order_or_unknown_says_nothing() -> None:
    rows = K[0, 8:24, 1, 16:32]
    computed = np.random.default_rng(2).standard_normal((16, 16)).astype(np.float16)
    assert notes_of(rows, K[0, 8:24, 1, 40:48].T, computed, K[0, 56:64, 0, :16], rows[::-1]) == []


def test_what_is_not_is_named_with_the_place() -> None:
    rows = K[0, 8:24, 1, 16:32]
    (swapped,) = notes_of(np.concatenate([rows[:, 8:], rows[:, :8]], axis=1))
    assert "k.cu:3, PTX line 7" in swapped
    assert swapped.endswith("at row 0, k = 8 it finds K[0, 8, 1, 16] where those before ask for K[0, 8, 1, 32]")
    (moved,) = notes_of(np.concatenate([rows[:4], K[0, 13:25, 1, 16:32]]))
    assert moved.endswith("at row 4, k = 0 it finds K[0, 13, 1, 16] where those before ask for K[0, 12, 1, 16]")
    across = K[0, 8:24, 1, 40:48].copy()
    across[5] = K[0, 40, 0, 40:48]
    (line,) = notes_of(across.T)
    assert line.endswith("at k = 5, row 0 it finds K[0, 40, 0, 40] where those before ask for K[0, 13, 1, 40]")
