"""Peers as sides of a job, with a torch and a card that are not there. On a real card: tests/gpu/test_peers.py."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from faperf import record
from faperf.device import CANNOT, LaunchError
from faperf.errors import ConfigError, MeasuringError
from faperf.job import Control, Side, blank_check
from faperf.measuring import _verify_control
from faperf.operations import Operations
from faperf.peers import Peer, controlled, peer_side
from faperf.peers._bench import Loaded, PeerBench
from faperf.project import Project
from tests import facts


class Tensor:
    """As much of torch's as the bench uses, over NumPy."""

    def __init__(self, values: Any) -> None:
        self.values = values

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return np.asarray(self.values, dtype=dtype)

    def permute(self, order: list[int]) -> Tensor:
        return Tensor(self.values.transpose(order))

    def detach(self) -> Tensor:
        return self

    def contiguous(self) -> Tensor:
        return Tensor(np.ascontiguousarray(self.values))


class Torch(ModuleType):
    """`capturable`: whether a CUDA graph takes what is called within; `allocated` counts bytes."""

    def __init__(self) -> None:
        super().__init__("torch")
        self.capturable = True
        self.allocated = 100
        self.replays = 0
        self.cuda = SimpleNamespace(
            ExternalStream=lambda pointer: ("stream", pointer),
            stream=lambda stream: nullcontext(),
            CUDAGraph=lambda: SimpleNamespace(replay=self._replay),
            graph=self._graph,
            synchronize=lambda: None,
            reset_peak_memory_stats=lambda: None,
            memory_allocated=lambda: 100,
            max_memory_allocated=lambda: self.allocated,
        )

    def as_tensor(self, values: Any, device: str) -> Tensor:
        assert device == "cuda"
        return Tensor(values)

    def _replay(self) -> None:
        self.replays += 1

    @contextmanager
    def _graph(self, graph: object, stream: object) -> Iterator[None]:
        if not self.capturable:
            raise RuntimeError("operation not permitted when stream is capturing")
        yield


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> Torch:
    module = Torch()
    monkeypatch.setitem(sys.modules, "torch", module)
    return module


CARD: Any = SimpleNamespace(stream=SimpleNamespace(ptr=7), wait=lambda: None, xp=np)
Q = np.arange(24, dtype=np.float16).reshape(1, 2, 3, 4)


def peer_of(function: Any, layout: str = "BSHD") -> Peer:
    return Peer("mine", lambda: (function, "mine 1.0"), layout=layout)


def test_a_launch_is_replayed_from_a_graph(torch: Torch) -> None:
    calls: list[int] = []
    loaded = Loaded(peer_of(lambda Q: calls.append(1)), CARD)
    ((launch, *_),) = loaded.bind(loaded.arguments({"Q": Q}, ("Q",), "BSHD"))
    assert len(calls) == 3  # twice to warm up, once captured
    launch((1,), (1,), (), shared_mem=0, stream=None)
    assert (torch.replays, len(calls), loaded.eager) == (1, 3, False)


def test_what_cannot_be_captured_runs_eagerly_and_says_so(torch: Torch) -> None:
    torch.capturable = False
    calls: list[int] = []
    loaded = Loaded(peer_of(lambda Q: calls.append(1)), CARD)
    ((launch, *_),) = loaded.bind(loaded.arguments({"Q": Q}, ("Q",), "BSHD"))
    launch()
    assert (torch.replays, len(calls), loaded.eager) == (0, 3, True)


def test_axes_come_and_go_in_the_peers_order(torch: Torch) -> None:
    """Ours is [B, S, H, D]; a peer that wants [B, H, S, D] gets that, and what it returns is put back."""
    loaded = Loaded(peer_of(lambda Q: Q, "BHSD"), CARD)
    arguments = loaded.arguments({"Q": Q}, ("Q",), "BSHD")
    assert arguments["Q"].values.shape == (1, 3, 2, 4)
    delivered = loaded.delivered(loaded.call(arguments), "BSHD").values
    assert np.array_equal(delivered, Q)
    assert delivered.flags.c_contiguous


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ModuleNotFoundError("No module named 'flash_attn'"), CANNOT),
        (RuntimeError("No available kernel.\n Aborting execution."), CANNOT),
        (RuntimeError("CUDA error: an illegal memory access (cudaErrorIllegalAddress)"), "illegal address"),
    ],
)
def test_a_peer_that_refuses_says_why_and_one_that_faults_ends_the_child(
    torch: Torch, error: Exception, kind: str
) -> None:
    def fail(**_: Any) -> Any:
        raise error

    loaded = Loaded(peer_of(fail), CARD)
    with pytest.raises(LaunchError) as caught:
        loaded.call({})
    assert caught.value.kind == kind
    assert caught.value.context_lost == (kind != CANNOT)
    assert "\n" not in caught.value.detail or kind != CANNOT

    def load() -> Any:
        raise error

    with pytest.raises(LaunchError):
        Loaded(Peer("mine", load), CARD)


def test_no_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(LaunchError) as caught:
        Loaded(peer_of(lambda Q: Q), CARD)
    assert caught.value.kind == CANNOT


def test_a_peer_stands_for_the_control_beside_its_own_operation(torch: Torch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("faperf.peers._bench.find_peer", lambda location: peer_of(lambda Q: Q))
    ours = facts.side("v1")
    bench = PeerBench.__new__(PeerBench)
    bench.card, bench._loaded = CARD, {}
    bench.job = record.replace(facts.job(ours), control=Control(peer_side("mine", "somewhere:MINE", ours), ""))
    control = bench.control_of(ours)
    assert control is not None
    assert bench.build_of(control) == "peer:mine: mine 1.0"  # figures compare through the same libraries alone
    assert bench.build_of(ours) == ours.build
    assert bench.control_of(record.replace(ours, operation="softmax")) is None


def test_a_control_that_is_wrong_is_not_timed() -> None:
    job = facts.job(facts.side("v1"))
    wrong = record.replace(blank_check(job, job.sides[0], job.workloads[0], "normal", 1), failure="all of it")
    worker: Any = SimpleNamespace(verify=lambda *_: wrong)
    with pytest.raises(MeasuringError, match="peer:mine cannot be the control on tiny: all of it"):
        _verify_control(job, peer_side("mine", "somewhere:MINE", job.sides[0]), worker, Operations({}))


@pytest.mark.parametrize(("wanted", "name"), [("peer:cudnn", "peer:cuDNN"), ("peer:SDPA flash", "peer:SDPA flash")])
def test_the_control_is_named_in_the_projects_configuration(tmp_path: Path, wanted: str, name: str) -> None:
    (tmp_path / "pyproject.toml").write_text(f'[tool.faperf]\ncontrol = "{wanted}"\n')
    job = facts.job(facts.side("v1"))
    found = controlled(job, Project(tmp_path)).control
    assert found is not None
    assert (found.side.name, set(found.side.launches)) == (name, {"tiny"})
    assert controlled(job, Project(tmp_path / "none")).control is None
    (tmp_path / "pyproject.toml").write_text('[tool.faperf]\ncontrol = "cublas"\n')
    with pytest.raises(ConfigError, match="there is no 'cublas'") as caught:
        controlled(job, Project(tmp_path))
    assert "peer:cuDNN, peer:FA4 (CuTe-DSL)" in str(caught.value)


def test_a_check_delivers_the_peers_output_and_notes_its_memory(torch: Torch, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.allocated = 148
    monkeypatch.setattr(
        "faperf.peers._bench.find_peer", lambda location: peer_of(lambda Q, K, V: Tensor(Q.values + V.values))
    )
    tensors = {name: np.full((1, 2, 3, 4), n, dtype=np.float16) for n, name in enumerate("QKVO")}
    bench = PeerBench.__new__(PeerBench)
    bench.card, bench.operations, bench.tell = CARD, Operations({}), lambda answer: None
    bench._loaded, bench._peak = {}, {}
    monkeypatch.setattr(PeerBench, "placed", lambda *_: SimpleNamespace(tensors=tensors))
    side: Side = facts.side("mine", name="peer:mine", build="peer:mine", code="somewhere:MINE")
    bench.launch(side, facts.job().workload("tiny"), "normal", 1)
    assert (tensors["O"] == 2).all()  # Q + V = 0 + 2
    assert bench._peak == {("peer:mine", "tiny"): 48}
