"""Records made by hand, for the tests of what is made of them."""

from __future__ import annotations

from typing import Any

from faperf.job import Job, JobWorkload, Side, Task
from faperf.launch import ResolvedLaunch
from faperf.record import Build, Entry, Interval, KernelFacts, Protocol, Run, Timing, Toolchain


def kernel(entry: str = "k", **facts: Any) -> KernelFacts:
    plain: dict[str, Any] = {"entry": entry, "registers": 96, "register_cap": 128}
    return KernelFacts(**(plain | facts))


def build(*kernels: KernelFacts, key: str = "key", code: str = "code", **facts: Any) -> Build:
    plain: dict[str, Any] = {
        "schema": 1,
        "key": key,
        "version": "t1",
        "target": "sm_103a",
        "source": "kernels/t1.cu",
        "toolchain": Toolchain(nvcc="13.0.88", build="", host="g++ 12.2.0"),
        "kernels": list(kernels) or [kernel()],
        "code": code,
    }
    return Build(**(plain | facts))


def entry(version: str = "t1", build: str | None = "key", **facts: Any) -> Entry:
    plain: dict[str, Any] = {
        "version": version,
        "target": "sm_103a",
        "build": build,
        "threads": 512,
        "smem": 59392,
        "ctas_per_sm": 1,
        "limiter": "registers",
        "launches": {"published": "launch"},
    }
    return Entry(**(plain | facts))


def run(*entries: Entry, **facts: Any) -> Run:
    plain: dict[str, Any] = {
        "schema": 1,
        "id": "20261130T024100Z000001",
        "commit": "e0d042f0" * 5,
        "when": "2026-11-30T02:41:00+00:00",
        "faperf": "0.1.0",
        "machine": "no-gpu",
        "entries": list(entries),
    }
    return Run(**(plain | facts))


def timing(ms: float = 0.1, **facts: Any) -> Timing:
    plain: dict[str, Any] = {
        "schema": 1,
        "build": "key",
        "launch": "launch",
        "workload": "published",
        "shape": {"B": 1, "H": 2, "S": 128, "D": 64},
        "machine": "h200",
        "gpu": "NVIDIA H200",
        "card": "a1b2",
        "driver": "580.95",
        "regime": "burst",
        "protocol": 2,
        "ms": Interval(value=ms, low=0.99 * ms, high=1.01 * ms),
        "tflops": 34.36 / ms,
        "gib_s": 62.5 / ms,
        "launches": 100,
    }
    return Timing(**(plain | facts))


def side(version: str = "t1", **facts: Any) -> Side:
    target = facts.get("target", "sm_90a")
    plain: dict[str, Any] = {
        "name": f"{version}@{target}",
        "version": version,
        "target": target,
        "build": f"build-{version}",
        "code": f"code-{version}",
        "cubin": b"cubin",
        "launches": {"tiny": [launch()]},
        "operation": "attention_forward",
        "operation_version": 1,
        "layout": "BSHD",
    }
    return Side(**(plain | facts))


def launch(**facts: Any) -> ResolvedLaunch:
    plain: dict[str, Any] = {
        "entry": "copy",
        "grid": (2, 2, 1),
        "block": (64, 1, 1),
        "cluster": (1, 1, 1),
        "smem": 0,
        "args": [],
    }
    return ResolvedLaunch(**(plain | facts))


def job(*sides: Side, tasks: list[Task] | None = None, **facts: Any) -> Job:
    """A job over the workload tiny; a task for each side, against nobody, by default."""
    chosen = list(sides) or [side()]
    plain: dict[str, Any] = {
        "schema": 1,
        "faperf": "0.1.0",
        "commit": None,
        "dirty": [],
        "seeds": [7],
        "protocol": Protocol(),
        "sides": chosen,
        "workloads": [JobWorkload("tiny", "digest", {"B": 1, "H": 2, "S": 128, "D": 64})],
        "tasks": tasks if tasks is not None else [Task(one.name, "tiny", {}) for one in chosen],
        "run": run(machine="a-class"),
    }
    return Job(**(plain | facts))
