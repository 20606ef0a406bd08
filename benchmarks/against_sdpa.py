"""The repository's kernels against torch's scaled-dot-product attention (its flash backend, FA2, and its cuDNN backend),
interleaved in one process on the same buffers by faperf's own protocol. Needs a GPU and torch:
`python benchmarks/against_sdpa.py [VERSION…] [--workload NAME]…`.

torch's are replayed from CUDA graphs, so that what they cost the CPU (more than the cuDNN kernel takes) is not timed.
"""

from __future__ import annotations

import argparse
import math
import random
from pathlib import Path
from typing import Any

from faperf.building import Selection, Workshop
from faperf.device import Arena, Block, Card, Kernels
from faperf.harness import bundle_tree
from faperf.operations import BUILT_IN, tensors_of
from faperf.project import Project
from faperf.record import Protocol
from faperf.timing import measure

PEERS = {"FA2": "FLASH_ATTENTION", "cuDNN": "CUDNN_ATTENTION"}
"""What a peer is called here, and torch's name of its backend."""


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
        for name, backend in PEERS.items():
            self.bound[name] = [(self.captured(backend), None, None, None, 0)]
        self.card.wait()

    def captured(self, backend: str) -> Any:
        """torch's attention by one backend as a CUDA graph, called as cupy's functions are."""
        import torch
        from torch.nn.attention import SDPBackend, sdpa_kernel

        q, k, v = (torch.as_tensor(self.arena.tensors[name], device="cuda").transpose(1, 2) for name in "QKV")
        attend, graph = torch.nn.functional.scaled_dot_product_attention, torch.cuda.CUDAGraph()
        with sdpa_kernel(SDPBackend.__members__[backend]):
            attend(q, k, v)  # plans are made on the first call, which may not be captured
            torch.cuda.synchronize()
            with torch.cuda.graph(graph):
                attend(q, k, v)

        def launch(*_: Any, stream: Any, **__: Any) -> None:
            with torch.cuda.stream(torch.cuda.ExternalStream(stream.ptr)):
                graph.replay()

        return launch

    def block(self, side: str, launches: int) -> Block:
        return self.card.block(self.bound[side], launches)


def main() -> None:
    card = Card()
    target = f"sm_{card.capability.replace('.', '')}a"
    project = Project.find(Path(__file__).parent)
    parser = argparse.ArgumentParser()
    parser.add_argument("versions", nargs="*")
    parser.add_argument("--workload", action="append")
    given = parser.parse_args()
    wanted = tuple(given.workload or ("published", "lengths"))
    _, job = bundle_tree(Workshop.open(project), Selection(tuple(given.versions), (target,)), wanted)
    for workload in job.workloads:
        peers = Peers(card, job, workload.name)
        flops = peers.operation.flops(workload.shape)
        for side in peers.sides:
            found = measure(peers, [side.name, *PEERS], Protocol(), random.Random())
            speeds = [flops / series.ms.value / 1e9 for series in found.series]
            theirs = ", ".join(
                f"{name} {speed:.1f}: {math.exp(-ratio.time.value):.3f} of its speed "
                f"[{math.exp(-ratio.time.high):.3f}, {math.exp(-ratio.time.low):.3f}]"
                for name, speed, ratio in zip(PEERS, speeds[1:], found.ratios, strict=True)
            )
            print(f"{workload.name:18s} {side.name:12s} {speeds[0]:6.1f} TFLOPS; {theirs}", flush=True)


if __name__ == "__main__":
    main()
