"""`python -m tests.silicon.record [SUITE…]`: run the probes on this machine's GPU and write tests/data/silicon/*.npz.

Each suite has a process of its own: a fault in one leaves the others alone. What had run before a fault is written.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from faperf.build import Builder
from faperf.device import find_gpu
from faperf.toolchain import find_toolchain
from tests.compiling import version_of
from tests.silicon import suites
from tests.silicon.card import Card

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
    results: dict[str, Any] = {}
    about: dict[str, Any] = {**machine(), "digests": {}}
    with tempfile.TemporaryDirectory() as scratch:
        card = Card(suites.build(suite, Path(scratch), find_toolchain()).cubin)
        try:
            for probe in suites.probes_of(suite):
                results[probe.name] = card.run([probe.launch], probe.tensors, probe.out)
                about["digests"][probe.name] = probe.digest
        finally:
            suites.save(suite, results, about)
    print(f"{suite}: {len(results)} probes")


def record_attention() -> None:
    results: dict[str, Any] = {}
    about: dict[str, Any] = {**machine(), "digests": {}}
    with tempfile.TemporaryDirectory() as kept:
        for case in suites.attentions():
            card = Card(suites.build_version(case.version, find_toolchain(), Path(kept)).cubin)
            results[case.name] = card.run(case.launches, case.tensors, "O")
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
