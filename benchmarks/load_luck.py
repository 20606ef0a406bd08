"""Load luck: does the same cubin on the same data run at another speed when its buffers lie elsewhere? Which part of the
address matters? Needs a GPU: `python benchmarks/load_luck.py`; the findings stand in docs/measuring.md.

Every placement is compared with one fixed placement of the same kernel by ABBA quads, twice, so that what is luck (repeats)
and what is noise (does not) can be told apart:
  nothing      the fixed placement against itself
  module       the module loaded anew, same buffers
  offset       buffers shifted by so many bytes within one allocation, all by the same or one alone
  allocation   every buffer in a new allocation, at the same offset
"""

from __future__ import annotations

import functools
import random
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from faperf.building import Selection, Workshop
from faperf.device import Card, Kernels
from faperf.harness import bundle_tree
from faperf.operations import BUILT_IN
from faperf.project import Project
from faperf.stats import hodges_lehmann

QUADS = 6
BLOCK_S = 0.012


class Placement:
    """The four tensors at given byte offsets of allocations of their own, or of new ones."""

    def __init__(
        self, card: Card, inputs: dict[str, Any], offsets: dict[str, int], memory: dict[str, Any] | None = None
    ) -> None:
        xp = card.xp
        size = inputs["Q"].size
        self.memory = memory or {name: xp.cuda.memory.Memory(size * 2 + 64 * 2**20) for name in "QKVO"}
        self.tensors = {}
        for name in "QKVO":
            pointer = xp.cuda.MemoryPointer(self.memory[name], offsets.get(name, 0))
            self.tensors[name] = xp.ndarray(inputs["Q"].shape, dtype=xp.float16, memptr=pointer)
            if name in inputs:
                self.tensors[name][...] = inputs[name]


def ratio(card: Card, a: list[Any], b: list[Any], launches: int) -> float:
    """log(time of a / time of b), in per cent."""
    import math

    values = []
    for _ in range(QUADS):
        times = [math.log(card.block(bound, launches).ms) for bound in (a, b, b, a)]
        values.append((times[0] + times[3] - times[1] - times[2]) / 2)
    return 100 * hodges_lehmann(values)


class Triad:
    """O = Q + K + V, halves: nothing but memory traffic. Loads as `Kernels` does."""

    SOURCE = """
    extern "C" __global__ void triad(const uint4* q, const uint4* k, const uint4* v, uint4* o, int n) {
        for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
            uint4 a = q[i], b = k[i], c = v[i];
            o[i] = make_uint4(a.x + b.x + c.x, a.y + b.y + c.y, a.z + b.z + c.z, a.w + b.w + c.w);
        }
    }"""

    def __init__(self, card: Card) -> None:
        self._card, self._function = card, card.xp.RawKernel(self.SOURCE, "triad").kernel

    def bind(self, tensors: dict[str, Any]) -> list[Any]:
        count = np.int32(tensors["Q"].nbytes // 16)
        return [(self._function, (8 * self._card.sms, 1, 1), (256, 1, 1), (*tensors.values(), count), 0)]


def study(card: Card, name: str, load: Callable[[], Any], shape: dict[str, int], layout: str) -> None:
    inputs = BUILT_IN["attention_forward"].inputs(card.xp, shape, layout, "normal", 1)
    fixed = Placement(card, inputs, {})
    kernels = load()
    home = kernels.bind(fixed.tensors)
    for _ in range(20):
        seconds = card.block(home, 50).elapsed_s / 50
    launches = max(5, round(BLOCK_S / seconds))
    print(f"\n{name}, {shape}: {card.block(home, launches).ms * 1000:.2f} us, {launches} launches a block")
    rng = random.Random(3)

    def report(what: str, make: Any, count: int) -> None:
        first, second, notes = [], [], []
        for n in range(count):
            bound, note, keep = make(n)
            first.append(ratio(card, bound, home, launches))
            second.append(ratio(card, bound, home, launches))
            notes.append(note)
            del keep
        both = [(x + y) / 2 for x, y in zip(first, second, strict=True)]
        noise = statistics.pstdev([(x - y) / 2 for x, y in zip(first, second, strict=True)])
        agree = statistics.correlation(first, second) if statistics.pstdev(first) and statistics.pstdev(second) else 0.0
        print(
            f"{what:34s} mean {statistics.mean(both):+.3f} %  sd {statistics.pstdev(both):.3f} %  "
            f"max {max(map(abs, both)):.3f} %  noise {noise:.3f} %  repeats {agree:+.2f}"
        )
        if what.startswith("offset") or max(map(abs, both)) > 0.25:
            print("   " + "  ".join(f"{note}:{value:+.2f}" for note, value in zip(notes, both, strict=True)))

    def again(n: int) -> Any:
        return home, str(n), None

    def module(n: int) -> Any:
        fresh = load()
        return fresh.bind(fixed.tensors), str(n), fresh

    def shifted(names: str, step: int) -> Any:
        def make(n: int) -> Any:
            place = Placement(card, inputs, dict.fromkeys(names, (n + 1) * step), fresh_memory)
            return kernels.bind(place.tensors), str((n + 1) * step), place

        return make

    def allocation(n: int) -> Any:
        spacer = card.xp.cuda.memory.Memory(rng.randrange(1, 96) * 2**20)
        place = Placement(card, inputs, {})
        where = "/".join(f"{place.tensors[name].data.ptr >> 21 & 0xFFF:03x}" for name in "QKVO")
        return kernels.bind(place.tensors), where, (spacer, place)

    report("nothing", again, 8)
    report("module", module, 8)
    fresh_memory = Placement(card, inputs, {}).memory
    for step in (256, 4096, 65536, 2**20, 2 * 2**20, 4 * 2**20):
        report(f"offset, all by n x {step}", shifted("QKVO", step), 6)
    for name in "QKVO":
        report(f"offset, {name} by n x 1 MiB", shifted(name, 2**20), 4)
    report("allocation", allocation, 16)


def main() -> None:
    project = Project.find(Path(__file__).parent)
    card = Card()
    target = f"sm_{card.capability.replace('.', '')}a"
    versions = tuple(sys.argv[1:]) or ("v13",)
    _, job = bundle_tree(Workshop.open(project), Selection(versions, (target,)), ())
    for task in job.tasks:
        side, workload = job.side(task.side), job.workload(task.workload)
        load = functools.partial(Kernels, side.cubin, side.launches[workload.name])
        study(card, side.name, load, workload.shape, side.layout)
    big = {"B": 4, "H": 64, "S": 2048, "D": 128}  # 134 MB a tensor: none of it fits into L2
    study(card, "triad", lambda: Triad(card), big, "BSHD")


if __name__ == "__main__":
    main()
