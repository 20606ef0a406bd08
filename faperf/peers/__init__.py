"""Other people's implementations on the same workloads: one small module a backend, and the worker that runs them.

A backend is a module in this folder with a `PEER`, or a project's own, named in pyproject.toml: `[tool.faperf] peers = {mine =
"my_peers:MINE"}`. Twenty lines:

    def load():
        import torch
        from my_kernels import attention

        return attention, f"my_kernels on torch {torch.__version__}"

    MINE = Peer("mine", load)

`load` imports what it needs and gives a function of the operation's inputs, by name and as torch tensors in the workload's
layout, that returns the output, and words for the libraries that it stands on. What it raises is shown in its row.
"""

from __future__ import annotations

import importlib
import pkgutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from faperf import record
from faperf.errors import ConfigError
from faperf.job import Control, Job, Side
from faperf.project import Project

CHILD = (sys.executable, "-P", "-m", "faperf.peers")
"""The worker's child where some side is a peer; what follows is where a project's own modules lie."""
PEER = "PEER"
MARK = "peer:"
"""How the name and the build of a side that is a peer begin; its `code` is where the peer is found."""

TIMEOUT_S = 300.0
"""A peer may compile when it is first called."""

RANK = ("cuDNN", "FA4 (CuTe-DSL)", "FA2 (Dao)", "SDPA flash", "Flex (Triton)", "Efficient", "Math")
"""Built-in ones in the order of tables; a new one comes behind."""


@dataclass(frozen=True)
class Peer:
    """A backend. `load` gives the function and the libraries' words; see above. `layout` is that of the tensors it takes."""

    name: str
    load: Callable[[], tuple[Callable[..., Any], str]]
    operation: str = "attention_forward"
    layout: str = "BSHD"


def sdpa(backend: str) -> Callable[[], tuple[Callable[..., Any], str]]:
    """`load` for a backend of torch's scaled_dot_product_attention, by its name in torch.nn.attention.SDPBackend."""

    def load() -> tuple[Callable[..., Any], str]:
        import torch
        from torch.nn.attention import SDPBackend, sdpa_kernel

        attend, chosen = torch.nn.functional.scaled_dot_product_attention, getattr(SDPBackend, backend)

        def attention(Q: Any, K: Any, V: Any) -> Any:
            with sdpa_kernel(chosen):
                return attend(Q.transpose(1, 2), K.transpose(1, 2), V.transpose(1, 2)).transpose(1, 2)

        return attention, f"torch {torch.__version__}"

    return load


def locations(own: Mapping[str, str]) -> dict[str, str]:
    """Name → "module:ATTRIBUTE" of the built-in backends and of a project's `own`."""
    found = {}
    for module in pkgutil.iter_modules(__path__):
        if not module.name.startswith("_"):
            location = f"{__name__}.{module.name}:{PEER}"
            found[find_peer(location).name] = location
    ranked = sorted(found, key=lambda name: RANK.index(name) if name in RANK else len(RANK))
    return {name: found[name] for name in ranked} | dict(own)


def find_peer(location: str, modules: str | None = None) -> Peer:
    """The backend at "module:ATTRIBUTE"; `modules` is where a project's own ones lie. Raises ConfigError."""
    if modules and modules not in sys.path:
        sys.path.insert(0, modules)
    module, _, attribute = location.partition(":")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except Exception as error:  # importing runs the user's own code, which may raise anything
        found = error
    if not isinstance(found, Peer):
        raise ConfigError(
            f"no peer at '{location}'" + (f": {found}" if isinstance(found, Exception) else ""),
            where="pyproject.toml, [tool.faperf] peers",
            remedy="write it as module:ATTRIBUTE; the attribute is a faperf.peers.Peer",
        )
    return found


def peer_side(name: str, location: str, like: Side) -> Side:
    """A peer as a side of a job, with the workloads, layout and target of `like`."""
    return Side(
        name=f"{MARK}{name}",
        version=name,
        target=like.target,
        build=f"{MARK}{name}",
        code=location,
        cubin=b"",
        operation=like.operation,
        operation_version=like.operation_version,
        launches={workload: [] for workload in like.launches},
        layout=like.layout,
        timeout_s=TIMEOUT_S,
    )


def controlled(job: Job, project: Project) -> Job:
    """`job`, with the peer that `[tool.faperf] control` names beside the versions of its operation. Raises ConfigError."""
    wanted = project.config.control
    if wanted is None:
        return job
    known, modules = locations(project.config.peers), str(project.modules)
    name = next((name for name in known if f"{MARK}{name}".lower() == wanted.lower()), None)
    if name is None:
        raise ConfigError(
            f"control: there is no '{wanted}'",
            where="pyproject.toml, [tool.faperf]",
            remedy="it is one of: " + ", ".join(f"{MARK}{name}" for name in known),
        )
    operation = find_peer(known[name], modules).operation
    like = next((side for side in job.sides if side.operation == operation), None)
    if like is None:
        return job
    side = peer_side(name, known[name], like)
    side = record.replace(side, launches={workload.name: [] for workload in job.workloads})
    return record.replace(job, control=Control(side, modules))
