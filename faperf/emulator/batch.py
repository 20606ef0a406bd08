"""Instructions of a block that can run in one call, and the order in which they then run.

Unrolled kernels repeat an instruction many times over other registers: 32 ex2 in a row, 16 mma whose accumulators differ. A
list scheduler over the block's dependences (through registers, and of memory in program order) collects them; what was
collected gets neighbouring rows of the register file, so that one call of numpy computes all of it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from faperf.emulator.ptx import Instruction

PURE, READ, WRITE, ORDERED = "pure", "read", "write", "ordered"
"""What an instruction does to memory: nothing; it reads; it writes, and like ones may run with it; anything else."""
LARGEST = 64
"""Instructions in a batch."""
_REGISTER = re.compile(r"[%$A-Za-z_][\w$]*")
_BY_CONSTANT = ("shl", "shr", "shf", "lop3", "prmt", "bfe", "bfi", "cp")
"""Opcodes whose constant operands must agree in a batch."""


def registers_of(text: str, known: dict[str, int]) -> list[str]:
    return [name for name in _REGISTER.findall(text) if name in known]


def key_of(ins: Instruction) -> Hashable:
    """Instructions of equal keys may run in one call."""
    constants: tuple[str, ...] = ()
    if ins.parts[0] in _BY_CONSTANT:
        constants = tuple(text for text in ins.operands if text[:1].isdigit() or text[:1] == "-")
    return (ins.parts, len(ins.operands), constants)


@dataclass
class _Node:
    ins: Instruction
    kind: str
    key: Hashable
    missing: int = 0
    after: list[int] = field(default_factory=list)


def batches(
    body: Sequence[Instruction], known: dict[str, int], kind_of: Callable[[Instruction], str]
) -> list[list[Instruction]]:
    """The instructions of a block in the order and the groups in which they run."""
    nodes = [_Node(ins, kind_of(ins), key_of(ins)) for ins in body]
    _depend(nodes, known)
    ready: dict[Hashable, list[int]] = {}
    waiting: list[int] = []
    chain = [number for number, node in enumerate(nodes) if node.kind in (WRITE, ORDERED)]
    follows = dict(pairwise(chain))

    def offer(number: int) -> None:
        node = nodes[number]
        if node.kind in (WRITE, ORDERED):
            waiting.append(number)
        else:
            alone = number if node.ins.guard is not None else -1
            ready.setdefault((node.kind, node.key, alone), []).append(number)

    def done(number: int) -> None:
        for other in nodes[number].after:
            nodes[other].missing -= 1
            if nodes[other].missing == 0:
                offer(other)

    for number, node in enumerate(nodes):
        if node.missing == 0:
            offer(number)
    order = []
    while ready or waiting:
        if ready:  # what does not touch memory first, the most that there is of one kind
            best = max(ready, key=lambda key: (key[0] == PURE, len(ready[key]), -ready[key][0]))  # type: ignore[index]
            group = sorted(ready.pop(best))
            rest = group[:LARGEST]
            if group[LARGEST:]:
                ready[best] = group[LARGEST:]
        else:
            number = waiting.pop()
            rest, last = [number], number
            while nodes[number].kind == WRITE and nodes[number].ins.guard is None and len(rest) < LARGEST:
                last = follows.get(last, -1)
                if last < 0 or nodes[last].key != nodes[number].key or nodes[last].ins.guard is not None:
                    break
                if nodes[last].missing > 1:  # not only for the one before it
                    break
                rest.append(last)
        for number in rest:
            done(number)
        for number in rest[1:]:
            if number in waiting:
                waiting.remove(number)
        order.append([nodes[number].ins for number in rest])
    return order


def _depend(nodes: list[_Node], known: dict[str, int]) -> None:
    """Edges from each instruction to those that must come after it."""
    writer: dict[str, int] = {}
    readers: dict[str, list[int]] = {}
    last, reads = -1, []  # the last instruction that memory was in order with, and the reads since
    for number, node in enumerate(nodes):
        ins = node.ins
        befores = set()
        sources = [name for text in ins.operands for name in registers_of(text, known)]
        targets = []
        if ins.operands and not ins.operands[0].startswith("["):
            targets = registers_of(ins.operands[0], known)
            if len(ins.operands) > 1 and "red" in ins.parts[1:]:  # tcgen05.ld.red has two
                targets += registers_of(ins.operands[1], known)
        if ins.guard is not None:
            sources.append(ins.guard)
        if node.kind == PURE and ins.guard is None:
            sources = [name for text in ins.operands[1:] for name in registers_of(text, known)]
        for name in sources:
            if name in writer:
                befores.add(writer[name])
        for name in targets:
            befores.update(readers.get(name, ()))
            if name in writer:
                befores.add(writer[name])
        if node.kind == READ:
            befores.add(last)
            reads.append(number)
        elif node.kind != PURE:
            befores.update(reads)
            befores.add(last)
            last, reads = number, []
        for name in sources:
            readers.setdefault(name, []).append(number)
        for name in targets:
            writer[name], readers[name] = number, []
        befores.discard(-1)
        befores.discard(number)
        node.missing = len(befores)
        for before in befores:
            nodes[before].after.append(number)
