"""`python -m tests.silicon.record [SUITE…]`: run the probes on this machine's GPU and write tests/data/silicon/*.npz.

A probe that faults is recorded as one that does, and the others run on.
"""

from __future__ import annotations

import multiprocessing
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from faperf.build import Builder
from faperf.device import LaunchError, find_gpu
from faperf.toolchain import find_toolchain
from tests.compiling import version_of
from tests.silicon import suites
from tests.silicon.card import Card

PROCESSES = 4
LIMITS = (
    "ex2", "ex2_ftz", "lg2", "lg2_ftz", "rcp", "rcp_ftz", "sqrt_", "sqrt_ftz", "rsqrt_", "rsqrt_ftz", "tanh_",
)  # fmt: skip


def machine() -> dict[str, Any]:
    gpu, reason = find_gpu()
    if gpu is None:
        raise SystemExit(f"no GPU: {reason}")
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    driver = subprocess.run(query, capture_output=True, text=True, check=True).stdout.split()[0]
    return {
        "card": gpu.name,
        "driver": driver,
        "nvcc": find_toolchain().identity.nvcc,
        "date": time.strftime("%Y-%m-%d"),
    }


def record_probes(suite: str) -> None:
    """A kernel that faults takes its context with it: what comes after it has a new process."""
    results: dict[str, Any] = {}
    faults: dict[str, str] = {}
    probes = suites.probes_of(suite)
    with tempfile.TemporaryDirectory() as scratch:
        cubin = suites.build(suite, Path(scratch), find_toolchain()).cubin
        entries = sorted({probe.entry for probe in probes if probe.family != "cluster"})
        waiting = [[n for n, p in enumerate(probes) if p.entry in entries[k::PROCESSES]] for k in range(PROCESSES)]
        waiting += [[n] for n, p in enumerate(probes) if p.family == "cluster"]
        pool = ProcessPoolExecutor(PROCESSES, multiprocessing.get_context("spawn"), max_tasks_per_child=1)
        while waiting := [numbers for numbers in waiting if numbers]:
            answers = list(pool.map(run_some, [suite] * len(waiting), [cubin] * len(waiting), waiting))
            for numbers, (found, fault) in zip(waiting, answers, strict=True):
                results |= found
                done = len(found)
                if fault:
                    faults[probes[numbers[done]].name] = fault
                    done += 1
                del numbers[:done]
    digests = {probe.name: probe.digest for probe in probes}
    suites.save(suite, results, {**machine(), "digests": digests, "faults": faults})
    print(f"{suite}: {len(results)} probes; faults: {faults}")


def run_some(suite: str, cubin: Path, numbers: list[int]) -> tuple[dict[str, Any], str | None]:
    """The results of these probes up to the first that faults, and its fault."""
    card, results = Card(cubin), {}
    for number in numbers:
        probe = suites.probes_of(suite)[number]
        try:
            results[probe.name] = card.run([probe.launch], probe.tensors, probe.out)
        except Exception as error:
            return results, LaunchError.of(error).kind
    return results, None


def record_attention() -> None:
    results: dict[str, Any] = {}
    about: dict[str, Any] = {**machine(), "digests": {}}
    with tempfile.TemporaryDirectory() as kept, ThreadPoolExecutor() as pool:
        cases, toolchain = suites.attentions(), find_toolchain()
        versions = sorted({case.version for case in cases})
        built = pool.map(lambda version: suites.build_version(version, toolchain, Path(kept)), versions)
        cubins = {version: artifact.cubin for version, artifact in zip(versions, built, strict=True)}
        for case in cases:
            card = Card(cubins[case.version])
            results[case.name] = case.kept(card.run(case.launches, case.tensors, "O"))
            about["digests"][case.name] = case.digest
    suites.save("attention", results, about)
    print(f"attention: {', '.join(results)}")


def record_limits() -> None:
    here = Path(__file__).parent
    with tempfile.TemporaryDirectory() as kept:
        card = Card(Builder(here, Path(kept), find_toolchain()).build(version_of("limits.cu"), suites.TARGET).cubin)
        results = {name: card.scan(name) for name in LIMITS}
    suites.save("limits", results, machine())
    for name, (worst, most, strange) in results.items():
        print(f"{name}: {int(worst) >> 32} ulp, {most.view(np.float64):.3g}, {int(strange)} strange")


if __name__ == "__main__":
    asked = sys.argv[1:]
    if len(asked) == 1:
        doing = {"attention": record_attention, "limits": record_limits}
        doing.get(asked[0], lambda: record_probes(asked[0]))()
    else:
        running = [
            subprocess.Popen(["timeout", "100", sys.executable, "-m", "tests.silicon.record", name])
            for name in asked or [*suites.SUITES, "attention", "limits"]
        ]
        sys.exit(max(process.wait() for process in running))
