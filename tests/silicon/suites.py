"""All probes, by the file that holds them; their kernels compiled; and what a card gave for them."""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from faperf.build import Artifact, Builder
from faperf.emulator import LOCKSTEP
from faperf.emulator.emulate import Device
from faperf.emulator.ptx import Module
from faperf.launch import ResolvedLaunch
from faperf.manifest import Workload, load_manifests
from faperf.operations import BUILT_IN
from faperf.project import Project
from faperf.resolve import resolve
from faperf.toolchain import Toolchain
from tests.compiling import version_of
from tests.conftest import REPOSITORY
from tests.silicon import clusters, copies, elementwise, fragments, warpgroup
from tests.silicon.probe import Probe, file_of

DATA = REPOSITORY / "tests" / "data" / "silicon"
TARGET = "sm_90a"
SUITES = {
    "elementwise": elementwise,
    "fragments": fragments,
    "copies": copies,
    "clusters": clusters,
    "warpgroup": warpgroup,
}
ATTENTION = BUILT_IN["attention_forward"]
SHAPE = {"B": 1, "H": 1, "S": 192, "D": 128}
WIDE_SHAPE = {**SHAPE, "S": 256}
"""Of kernels whose tiles do not divide the other."""
SEED = 5
DISTRIBUTIONS = {"v": ("normal", "growing"), "h": ("normal",)}
ROWS = {"v": 1, "h": 7}
"""By the ladder: every so many rows of O are kept, so that the file stays small."""


@cache
def probes_of(suite: str) -> list[Probe]:
    return SUITES[suite].probes()


def build(suite: str, scratch: Path, toolchain: Toolchain) -> Artifact:
    """One cubin, and one PTX file, of all kernels of a suite."""
    (scratch / f"{suite}.cu").write_text(file_of(probes_of(suite)), encoding="utf-8")
    return Builder(scratch, scratch / "cache", toolchain).build(version_of(f"{suite}.cu"), TARGET)


def emulated(module: Module, probe: Probe, exact_sums: bool = False) -> Any:
    """What the emulator gives. Raises NotEmulatedError."""
    device = Device(module, probe.tensors, exact_sums)
    device.launch(probe.launch)
    return device.memory.content(probe.out)


@dataclass(frozen=True)
class Attention:
    """A version of this repository on one of the shapes: its launches and inputs, by its own manifest."""

    version: str
    distribution: str
    launches: list[ResolvedLaunch]
    tensors: dict[str, Any]

    @property
    def name(self) -> str:
        return f"{self.version} {self.distribution}"

    @property
    def digest(self) -> str:
        """Of the inputs: a recorded result stands for these alone. The kernel may change, if it stays right."""
        return hashlib.sha256(b"".join(self.tensors[name].tobytes() for name in "QKV")).hexdigest()[:16]

    def kept(self, output: Any) -> Any:
        """The rows of O that are recorded."""
        return output[:, :: ROWS[self.version[0]]]

    def emulated(self, module: Module, schedule: str = LOCKSTEP, exact_sums: bool = False) -> Any:
        device = Device(module, self.tensors, exact_sums)
        for launch in self.launches:
            device.launch(launch, schedule)
        return self.kept(device.memory.content("O"))


def attentions() -> list[Attention]:
    manifests = load_manifests(Project(REPOSITORY)).versions
    found = []
    for name, version in manifests.items():
        if TARGET not in version.targets or name.endswith("-d64"):
            continue
        shape = WIDE_SHAPE if SHAPE["S"] % math.lcm(version.tile.m, version.tile.n) else SHAPE
        launches = resolve(version, Workload("silicon", "silicon", "attention_forward", shape))
        for distribution in DISTRIBUTIONS[name[0]]:
            inputs = ATTENTION.inputs(np, shape, "BSHD", distribution, SEED)
            output = np.full(tuple(ATTENTION.dimensions("O", shape, "BSHD").values()), np.nan, np.float16)
            found.append(Attention(name, distribution, launches, {**inputs, "O": output}))
    return found


def recorded_attentions() -> list[Attention]:
    return [case for case in attentions() if case.name in recorded("attention")[0]]


def build_version(name: str, toolchain: Toolchain, kept: Path) -> Artifact:
    return Builder(REPOSITORY, kept, toolchain).build(load_manifests(Project(REPOSITORY)).versions[name], TARGET)


# ── what a card gave ─────────────────────────────────────────────────────────────────────────────────────────────────


def save(name: str, results: dict[str, Any], about: dict[str, Any]) -> None:
    """One compressed file: an array for each probe, and in `about` the card and each probe's digest."""
    DATA.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(DATA / f"{name}.npz", **results, about=np.array(json.dumps(about)))


@cache
def recorded(name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """(results, about)."""
    with np.load(DATA / f"{name}.npz", allow_pickle=False) as content:
        results = {key: content[key] for key in content.files if key != "about"}
        return results, json.loads(str(content["about"]))
