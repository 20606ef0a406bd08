"""The method of a published account of MFU and tensor-core activity, on this GPU: matrix products and attention, each run for
some time at its power limit, its MFU corrected by the clock that NVML reports and by the one that the SMs count, beside the
activity that ncu counts in one launch. Needs torch and ncu: `python -m benchmarks.mfu_gap [--out FILE]`. See docs/mfu.md.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from typing import Any

from faperf.chips import CHIPS, path_share
from faperf.counters import TENSOR_ACTIVE, Ncu
from faperf.device import Card
from faperf.metrics import corrected_in, mfu, padding
from faperf.peers import find_peer, locations

SECONDS = 0.6
NVML_EVERY_S = 0.005  # 200 Hz, as the account sampled it
MATMULS = {"4096³": (4096, 4096, 4096), "16384×4096×16384": (16384, 16384, 4096)}  # M, N, K
SHAPES = {"B=1 H=64 S=1024 D=128": (1, 1024, 64, 128)}  # B, S, H, D
ATTENTION = {"FA2": "SDPA flash", "cuDNN": "cuDNN"}


def works() -> dict[str, tuple[Callable[[], Callable[[], Any]], int, str]]:
    """Name → what makes the work and gives a function that launches it, its FLOPs, its tensor path."""
    import torch

    def matmul(m: int, n: int, k: int) -> Callable[[], Any]:
        a, b = torch.randn(m, k, device="cuda").half(), torch.randn(k, n, device="cuda").half()
        out = torch.empty(m, n, device="cuda", dtype=torch.float16)
        return lambda: torch.matmul(a, b, out=out)

    def attention(peer: str, shape: tuple[int, ...]) -> Callable[[], Any]:
        q, k, v = (torch.randn(shape, device="cuda").half() for _ in range(3))
        function, _ = find_peer(locations({})[peer]).load()
        return lambda: function(q, k, v)

    found: dict[str, tuple[Callable[[], Callable[[], Any]], int, str]] = {}
    for name, (m, n, k) in MATMULS.items():
        found[f"matmul {name}"] = (lambda m=m, n=n, k=k: matmul(m, n, k)), 2 * m * n * k, "HGMMA"  # type: ignore[misc]
    for shape_name, shape in SHAPES.items():
        b, s, h, d = shape
        for name, peer in ATTENTION.items():
            path = "HMMA" if name == "FA2" else "HGMMA"
            make = lambda peer=peer, shape=shape: attention(peer, shape)  # noqa: E731
            found[f"{name} {shape_name}"] = make, 4 * b * h * s * s * d, path
    return found


def sustained(card: Card, launch: Callable[[], Any]) -> dict[str, float]:
    """Launched back to back from a CUDA graph: ms a launch, the clock that the SMs counted, what NVML said meanwhile."""
    import pynvml
    import torch

    stream = torch.cuda.ExternalStream(card.stream.ptr)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        for _ in range(3):
            launch()
    card.wait()
    with torch.cuda.graph(graph, stream=stream):
        launch()
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    clocks: list[int] = []
    watts: list[float] = []
    going = threading.Event()

    def sample() -> None:
        while going.is_set():
            clocks.append(pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM))
            watts.append(pynvml.nvmlDeviceGetPowerUsage(handle) / 1000)
            time.sleep(NVML_EVERY_S)

    def timed(launches: int) -> float:
        begin, end = card.xp.cuda.Event(), card.xp.cuda.Event()
        card._stamp_clocks(0)
        begin.record(card.stream)
        with torch.cuda.stream(stream):
            for _ in range(launches):
                graph.replay()
        end.record(card.stream)
        card._stamp_clocks(1)
        card.stream.synchronize()
        return float(card.xp.cuda.get_elapsed_time(begin, end)) / launches

    ms = timed(10)
    launches = max(10, round(SECONDS * 1000 / ms))
    timed(launches)  # into the steady state
    going.set()
    thread = threading.Thread(target=sample)
    thread.start()
    ms = timed(launches)
    clock = card._clock_mhz()
    going.clear()
    thread.join()
    assert clock is not None
    return {"ms": ms, "clock_mhz": clock, "nvml_mhz": fmean(clocks), "watts": fmean(watts), "launches": launches}


def each() -> None:
    """Every work once between cudaProfilerStart and Stop, warmed up before, a marker behind each."""
    card = Card()
    for make, _, _ in works().values():
        launch = make()
        for _ in range(2):
            launch()
        card.wait()
        with card.profiled():
            launch()
            card.wait()
        card.mark()


def tile_of(kernel: str) -> tuple[int, int] | None:
    """cuBLAS says its tile in the kernel's name: nvjet_sm90_hsh_256x128_64x4_…"""
    match = re.search(r"nvjet_\w*?_(\d+)x(\d+)_", kernel)
    return (int(match[1]), int(match[2])) if match else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--each", action="store_true", help="what ncu runs")
    arguments = parser.parse_args()
    if arguments.each:
        each()
        return
    card = Card()
    chip = CHIPS[card.capability.replace(".", "")]
    rate, peak = chip.tensor_flops_per_clock or 0, chip.peak_tflops or 0.0
    ncu = Ncu(card.capability)
    activities = ncu.activities([sys.executable, "-m", "benchmarks.mfu_gap", "--each"], os.environ)
    rows = []
    for (name, (make, flops, path)), counted in zip(works().items(), activities, strict=True):
        assert counted is not None
        launch = make()
        seen = sustained(card, launch)
        del launch
        card.xp.get_default_memory_pool().free_all_blocks()
        tile = tile_of(counted.entry)
        sizes = MATMULS.get(name.removeprefix("matmul "))
        padded = padding(sizes[:2], tile) if tile and sizes else 1.0
        share = path_share(path, card.capability) or 1.0
        own = flops / (seen["ms"] * 1e-3) / (seen["clock_mhz"] * 1e6) / card.sms / rate
        there = corrected_in(flops, counted.sm_cycles, counted.sms, rate) or 0.0
        rows.append(
            seen
            | {
                "name": name,
                "tflops": flops / seen["ms"] / 1e9,
                "mfu": mfu(flops, seen["ms"], peak),
                "tca": counted.shares[TENSOR_ACTIVE],
                "corrected_by_nvml": own * seen["clock_mhz"] / seen["nvml_mhz"],
                "corrected": own,
                "corrected_there": there,
                "padding": padded,
                "path": path,
                "explained": there * padded / share,
                "kernel": counted.entry,
                "flops": flops,
            }
        )
        row = rows[-1]
        print(
            f"{name:28s} {row['tflops']:6.1f} TFLOPS MFU {row['mfu']:.2%} TCA {row['tca']:.2%} NVML {row['nvml_mhz']:.0f} "
            f"clock64 {row['clock_mhz']:.0f} corrected {row['corrected']:.2%} there {row['corrected_there']:.2%} "
            f"padding {padded:.5f} explained {row['explained']:.2%} {row['watts']:.0f} W {counted.entry[:50]}",
            flush=True,
        )
    if arguments.out:
        arguments.out.write_text(
            json.dumps({"gpu": card.name, "driver": card.driver, "ncu": ncu.version, "rows": rows}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
