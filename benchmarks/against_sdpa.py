"""The repository's kernels against torch's scaled-dot-product attention (its flash backend, FA2), interleaved in one process
on the same buffers by faperf's own protocol. Needs a GPU and torch: `python benchmarks/against_sdpa.py [VERSION…]`.
"""

from __future__ import annotations

import math
import random
import sys
from pathlib import Path
from typing import Any

from faperf.building import Selection, Workshop
from faperf.device import Arena, Block, Card, Kernels
from faperf.harness import bundle_tree
from faperf.operations import BUILT_IN, tensors_of
from faperf.project import Project
from faperf.record import Protocol
from faperf.timing import measure

FA2 = "torch SDPA flash"


class Peers:
    """Our versions and torch's as the protocol's device."""

    def __init__(self, card: Card, job: Any, workload: str) -> None:
        self.card, self.workload = card, job.workload(workload)
        self.sides = [side for side in job.sides if workload in side.launches]
        self.spread = random.Random(1)
        self.operation = BUILT_IN[job.sides[0].operation]
        self.inputs = self.operation.inputs(card.xp, self.workload.shape, "BSHD", "normal", 1)
        self.bound: dict[str, Any] = {}

    def renew(self) -> None:
        self.arena = Arena(tensors_of(self.operation, self.workload.shape, "BSHD"), spread=self.spread)
        for name, values in self.inputs.items():
            self.arena.tensors[name][...] = values
        self.kernels = [Kernels(side.cubin, side.launches[self.workload.name]) for side in self.sides]
        for side, kernels in zip(self.sides, self.kernels, strict=True):
            self.bound[side.name] = kernels.bind(self.arena.tensors)
        self.bound[FA2] = [(self.torch_flash(), None, None, None, 0)]
        self.card.wait()

    def torch_flash(self) -> Any:
        import torch
        from torch.nn.attention import SDPBackend, sdpa_kernel

        q, k, v = (torch.as_tensor(self.arena.tensors[name], device="cuda").transpose(1, 2) for name in "QKV")
        attend = torch.nn.functional.scaled_dot_product_attention

        def launch(*_: Any, stream: Any, **__: Any) -> None:
            with torch.cuda.stream(torch.cuda.ExternalStream(stream.ptr)), sdpa_kernel(SDPBackend.FLASH_ATTENTION):
                attend(q, k, v)

        return launch

    def block(self, side: str, launches: int) -> Block:
        return self.card.block(self.bound[side], launches)


def main() -> None:
    card = Card()
    target = f"sm_{card.capability.replace('.', '')}a"
    project = Project.find(Path(__file__).parent)
    versions = tuple(sys.argv[1:])
    _, job = bundle_tree(Workshop.open(project), Selection(versions, (target,)), ("published", "lengths"))
    for workload in job.workloads:
        peers = Peers(card, job, workload.name)
        flops = peers.operation.flops(workload.shape)
        for side in peers.sides:
            found = measure(peers, [side.name, FA2], Protocol(), random.Random())
            ours, theirs = (series.ms.value for series in found.series)
            ratio = found.ratios[0].time
            print(
                f"{workload.name:16s} {side.name:12s} {flops / ours / 1e9:6.1f} TFLOPS, {FA2} {flops / theirs / 1e9:6.1f}; "
                f"speed {math.exp(-ratio.value):.3f} of it [{math.exp(-ratio.high):.3f}, {math.exp(-ratio.low):.3f}]",
                flush=True,
            )


if __name__ == "__main__":
    main()
