"""Peers as sides of a job: verified into the same buffers and timed by the same protocol as our kernels.

A launch of a peer is replayed from a CUDA graph, as far as the peer can be captured: what its Python costs the CPU, which is more
than many a kernel takes, is then not timed. Where it cannot, the side's build says *eager*.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from faperf import record
from faperf.bench import Bench
from faperf.device import CANNOT, Arena, Card, LaunchError
from faperf.job import JobWorkload, Side, Task
from faperf.peers import MARK, Peer, find_peer
from faperf.record import Timing

Bound = list[tuple[Any, ...]]


class Loaded:
    """A peer in this process: its function, found once, on the card's stream. Raises LaunchError where it is not there."""

    def __init__(self, peer: Peer, card: Card) -> None:
        self.card, self.peer = card, peer
        try:
            import torch

            self.function, self.words = peer.load()
        except Exception as error:
            raise _refused(error) from error
        self.torch = torch
        self.stream = torch.cuda.ExternalStream(card.stream.ptr)
        self.eager = False
        self.output: Any = None

    def arguments(self, tensors: Mapping[str, Any], inputs: tuple[str, ...], layout: str) -> dict[str, Any]:
        """The inputs as torch's tensors, their axes in the peer's order."""
        order = [layout.index(axis) for axis in self.peer.layout]
        return {name: self.torch.as_tensor(tensors[name], device="cuda").permute(order) for name in inputs}

    def delivered(self, output: Any, layout: str) -> Any:
        """An output with its axes in the order of `layout`, one after the other in memory."""
        return output.detach().permute([self.peer.layout.index(axis) for axis in layout]).contiguous()

    def call(self, arguments: Mapping[str, Any]) -> Any:
        """On the card's stream. Raises LaunchError."""
        try:
            with self.torch.cuda.stream(self.stream):
                return self.function(**arguments)
        except Exception as error:
            raise _refused(error) from error

    def bind(self, arguments: Mapping[str, Any]) -> Bound:
        """One launch as the card takes it, replayed from a graph where the peer can be captured."""
        for _ in range(2):  # compiles, and fills caches and workspaces
            self.output = self.call(arguments)
        self.card.wait()
        return [(self._replayed(arguments), None, None, None, 0)]

    def _replayed(self, arguments: Mapping[str, Any]) -> Callable[..., None]:
        torch = self.torch
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, stream=self.stream):
                self.output = self.function(**arguments)
        except Exception:
            torch.cuda.synchronize()
            self.eager = True
            return lambda *_, **__: self.call(arguments)

        def replay(*_: Any, **__: Any) -> None:
            with torch.cuda.stream(self.stream):
                graph.replay()

        return replay

    def peak_bytes(self, arguments: Mapping[str, Any]) -> int:
        """What a launch allocates at most, its output included."""
        cuda = self.torch.cuda
        self.output = None
        cuda.synchronize()
        cuda.reset_peak_memory_stats()
        before = cuda.memory_allocated()
        self.output = self.call(arguments)
        cuda.synchronize()
        return int(cuda.max_memory_allocated() - before)


def _refused(error: Exception) -> LaunchError:
    """What a backend raises is a reason why it does not run here, unless CUDA itself failed."""
    fault = LaunchError.of(error)
    if fault.kind != "CUDA error":
        return fault
    words = " ".join(str(error).split()) or type(error).__name__
    return LaunchError(CANNOT, f"{type(error).__name__}: {words[:400]}")


class PeerBench(Bench):
    """The child's state where some sides are peers."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._loaded: dict[str, Loaded] = {}
        self._peak: dict[tuple[str, str], int] = {}

    def bind(self, side: Side, workload: JobWorkload, tensors: Mapping[str, Any]) -> Bound:
        if not side.build.startswith(MARK):
            return super().bind(side, workload, tensors)
        return self._peer(side).bind(self._arguments(side, tensors))

    def launch(
        self, side: Side, workload: JobWorkload, distribution: str, seed: int, *, profiled: bool = False
    ) -> Arena:
        if not side.build.startswith(MARK):
            return super().launch(side, workload, distribution, seed, profiled=profiled)
        peer = self._peer(side)
        arena = self.placed(side, workload, distribution, seed)
        arguments = self._arguments(side, arena.tensors)
        if (side.name, workload.name) not in self._peak:
            peer.call(arguments)  # compiles, and fills caches
            self._peak[side.name, workload.name] = peer.peak_bytes(arguments)
        with self.launching(side.timeout_s), self.profiled(profiled):
            output = peer.call(arguments)
            self.card.wait()
        (name,) = self.operations[side.operation].outputs
        arena.tensors[name][...] = self.card.xp.asarray(peer.delivered(output, side.layout))
        return arena

    def time(self, task: Task) -> Timing:
        timing, side = super().time(task), self.job.side(task.side)
        return record.replace(timing, peak_bytes=self._peak.get((side.name, task.workload)))

    def build_of(self, side: Side) -> str:
        if not side.build.startswith(MARK):
            return super().build_of(side)
        peer = self._peer(side)
        return f"{MARK}{side.version}: {peer.words}" + (", eager" if peer.eager else "")

    def _peer(self, side: Side) -> Loaded:
        if side.name not in self._loaded:
            self._loaded[side.name] = Loaded(find_peer(side.code), self.card)
        return self._loaded[side.name]

    def _arguments(self, side: Side, tensors: Mapping[str, Any]) -> dict[str, Any]:
        operation = self.operations[side.operation]
        inputs = tuple(name for name in operation.tensors if name not in operation.outputs)
        return self._peer(side).arguments(tensors, inputs, side.layout)
