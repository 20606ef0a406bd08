"""Basic blocks, and where the two sides of a branch meet again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from faperf.emulator.fault import NotEmulatedError
from faperf.emulator.ptx import Instruction, Kernel

ENDS = {"ret", "exit", "trap"}
JUMPS = {"bra", *ENDS}


@dataclass
class Block:
    """Instructions `first` … `stop`-1. `meet` is the block where threads that part at its end come together, if any."""

    first: int
    stop: int
    successors: list[int]
    meet: int | None = None


def blocks_of(kernel: Kernel, blocking: Callable[[Instruction], bool]) -> list[Block]:
    """The blocks of a kernel: one ends at a label, at a jump, and after an instruction that may have to wait.

    (Under a predicate such an instruction has a block of its own, so that the lanes that it concerns can come to it alone.)
    """
    code = kernel.instructions
    starts = {0, *kernel.labels.values()}
    starts |= {at + 1 for at, ins in enumerate(code) if ins.parts[0] in JUMPS or blocking(ins)}
    starts |= {at for at, ins in enumerate(code) if ins.guard and blocking(ins)}
    firsts = sorted(start for start in starts if start < len(code))
    number = {first: index for index, first in enumerate(firsts)}
    blocks = []
    for index, first in enumerate(firsts):
        stop = firsts[index + 1] if index + 1 < len(firsts) else len(code)
        last, successors = code[stop - 1], []
        if last.parts[0] == "bra":
            target = kernel.labels.get(last.operands[0])
            if target is None:
                raise NotEmulatedError(f"no label {last.operands[0]}", last.place)
            if target < len(code):
                successors.append(number[target])
        if (last.parts[0] not in JUMPS or last.guard) and index + 1 < len(firsts):
            successors.append(index + 1)
        blocks.append(Block(first, stop, successors))
    _find_meetings(blocks)
    return blocks


def _find_meetings(blocks: list[Block]) -> None:
    """Immediate post-dominators, by sets of blocks kept as the bits of an integer."""
    everything = (1 << len(blocks)) - 1
    after = [everything if block.successors else 1 << index for index, block in enumerate(blocks)]
    changed = True
    while changed:
        changed = False
        for index in range(len(blocks) - 1, -1, -1):
            if blocks[index].successors:
                common = everything
                for successor in blocks[index].successors:
                    common &= after[successor]
                common |= 1 << index
                if common != after[index]:
                    after[index], changed = common, True
    for index, block in enumerate(blocks):
        candidates = after[index] & ~(1 << index)
        nearest = [n for n in range(len(blocks)) if candidates >> n & 1]
        block.meet = max(nearest, key=lambda n: after[n].bit_count(), default=None)
