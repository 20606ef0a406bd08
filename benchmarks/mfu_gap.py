"""The method of a published account of MFU and tensor-core activity, on this GPU: matrix products and attention, each run for
some time at its power limit, its MFU corrected by the clock that NVML reports and by the one that the SMs count, beside the
activity that ncu counts in one launch. Needs torch and ncu: `python -m benchmarks.mfu_gap [--out FILE]`. See docs/mfu.md.

Each work runs in two children of its own, one timed and one counted, each with a time limit; what one of them could not do is
said in its row, and the file is written anew behind every work.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from faperf.chips import CHIPS, path_share
from faperf.counters import TENSOR_ACTIVE, Ncu
from faperf.device import Card, find_gpu
from faperf.errors import MeasuringError
from faperf.metrics import corrected_in, mfu, padding
from faperf.peers import find_peer, locations
from faperf.report.tables import table

SECONDS = 0.6
LIMIT_S = 60.0
PER_GRAPH = 20
"""So many launches a CUDA graph: what lies between two graphs weighs little then."""
NVML_EVERY_S = 0.005  # 200 Hz, as the account sampled it
CHILD = [sys.executable, "-m", "benchmarks.mfu_gap"]


@dataclass(frozen=True)
class Work:
    """`make` gives a function that launches it. `extents` are what a tile has to cover, (M, N) of a matrix product."""

    make: Callable[[], Callable[[], Any]]
    flops: int
    path: str
    extents: tuple[int, int] | None = None


def matmul(m: int, n: int, k: int) -> Work:
    def make() -> Callable[[], Any]:
        import torch

        a, b = torch.randn(m, k, device="cuda").half(), torch.randn(k, n, device="cuda").half()
        out = torch.empty(m, n, device="cuda", dtype=torch.float16)
        return lambda: torch.matmul(a, b, out=out)

    return Work(make, 2 * m * n * k, "HGMMA", (m, n))


def attention(peer: str, path: str, b: int, s: int, h: int, d: int) -> Work:
    def make() -> Callable[[], Any]:
        import torch

        q, k, v = (torch.randn((b, s, h, d), device="cuda").half() for _ in range(3))
        function, _ = find_peer(locations({})[peer]).load()
        return lambda: function(q, k, v)

    return Work(make, 4 * b * h * s * s * d, path)


WORKS = {
    "matmul 4096³": matmul(4096, 4096, 4096),
    "matmul 16384×4096×16384": matmul(16384, 16384, 4096),
    "FA2 S=1024 D=128": attention("SDPA flash", "HMMA", 1, 1024, 64, 128),
    "cuDNN S=1024 D=128": attention("cuDNN", "HGMMA", 1, 1024, 64, 128),
}


# ── the children ──


def sustain(work: Work) -> dict[str, Any]:
    """Launched back to back from a CUDA graph: ms a launch, the clock that the SMs counted, what NVML said meanwhile."""
    import pynvml
    import torch

    card = Card()
    launch = work.make()
    torch.cuda.synchronize()
    stream = torch.cuda.ExternalStream(card.stream.ptr)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        for _ in range(3):
            launch()
    card.wait()
    with torch.cuda.graph(graph, stream=stream):
        for _ in range(PER_GRAPH):
            launch()
    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    clocks: list[int] = []
    watts: list[float] = []
    done = threading.Event()

    def sample() -> None:
        while not done.wait(NVML_EVERY_S):
            clocks.append(pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM))
            watts.append(pynvml.nvmlDeviceGetPowerUsage(handle) / 1000)

    def timed(replays: int) -> float:
        begin, end = card.xp.cuda.Event(), card.xp.cuda.Event()
        card._stamp_clocks(0)
        begin.record(card.stream)
        with torch.cuda.stream(stream):
            for _ in range(replays):
                graph.replay()
        end.record(card.stream)
        card._stamp_clocks(1)
        card.stream.synchronize()
        return float(card.xp.cuda.get_elapsed_time(begin, end)) / replays / PER_GRAPH

    timed(1)
    replays = max(2, round(SECONDS * 1000 / timed(2) / PER_GRAPH))
    timed(replays)  # into the steady state
    threading.Thread(target=sample, daemon=True).start()
    ms = timed(replays)
    done.set()
    return {
        "gpu": card.name,
        "driver": card.driver,
        "sms": card.sms,
        "ms": ms,
        "clock_mhz": card._clock_mhz(),
        "nvml_mhz": fmean(clocks),
        "watts": fmean(watts),
        "launches": replays * PER_GRAPH,
    }


def launch_once(work: Work) -> None:
    """Between cudaProfilerStart and Stop, warmed up before."""
    card = Card()
    launch = work.make()
    for _ in range(2):
        launch()
    card.wait()
    with card.profiled():
        launch()
        card.wait()


# ── their parent ──


def timed_apart(name: str, limit_s: float) -> dict[str, Any]:
    """What `sustain` found in a child. Raises MeasuringError."""
    try:
        answer = subprocess.run(
            [*CHILD, "--sustain", name], capture_output=True, text=True, errors="replace", timeout=limit_s
        )
    except subprocess.TimeoutExpired as error:
        raise MeasuringError(f"not done within {limit_s:.0f} s") from error
    if answer.returncode:
        raise MeasuringError(f"exit {answer.returncode}: {(answer.stderr.strip().splitlines() or ['no message'])[-1]}")
    found: dict[str, Any] = json.loads(answer.stdout.splitlines()[-1])
    return found


def counted_apart(name: str, limit_s: float, capability: str) -> dict[str, Any]:
    """What ncu counts in one launch in a child. Raises MeasuringError."""
    ncu = Ncu(capability, limit_s=limit_s)
    (seen,) = ncu.activities([*CHILD, "--launch", name], os.environ) or (None,)
    if seen is None or TENSOR_ACTIVE not in seen.shares:
        raise MeasuringError("ncu saw no kernel")
    return {
        "ncu": ncu.version,
        "kernel": seen.entry,
        "tca": seen.shares[TENSOR_ACTIVE],
        "cycles": seen.sm_cycles,
        "counted_sms": seen.sms,
    }


def tile_of(kernel: str) -> tuple[int, int] | None:
    """cuBLAS says its tile in the kernel's name: nvjet_sm90_hsh_256x128_64x4_…"""
    match = re.search(r"nvjet_\w*?_(\d+)x(\d+)_", kernel)
    return (int(match[1]), int(match[2])) if match else None


def figures(row: dict[str, Any], work: Work, capability: str) -> dict[str, Any]:
    """What follows from what was timed and counted, as far as it was. Shares are of 1.

    `accounted` is the activity for which the corrected MFU by the SMs' clock stands, once padding and the path's share are in;
    `left` what that leaves of the activity, and `left_there` what is left within the counted launch.
    """
    chip = CHIPS[capability.replace(".", "")]
    rate, peak = chip.tensor_flops_per_clock or 0, chip.peak_tflops or 0.0
    tile = tile_of(row.get("kernel", ""))
    padded = padding(work.extents, tile) if tile and work.extents else 1.0
    done = padded / (path_share(work.path, capability) or 1.0)
    found: dict[str, Any] = {"padding": padded}
    if "ms" in row:
        own, nvml = (
            corrected_in(work.flops, row["ms"] * row[clock] * 1e3, row["sms"], rate) or 0.0
            for clock in ("clock_mhz", "nvml_mhz")
        )
        found |= {
            "tflops": work.flops / row["ms"] / 1e9,
            "mfu": mfu(work.flops, row["ms"], peak),
            "nvml_high": row["nvml_mhz"] / row["clock_mhz"] - 1,
            "corrected": own,
            "corrected_by_nvml": nvml,
            "accounted": own * done,
        }
    if "tca" in row:
        there = corrected_in(work.flops, row["cycles"], row["counted_sms"], rate) or 0.0
        found["left_there"] = row["tca"] - there * done
    if "ms" in row and "tca" in row:
        found["left"] = row["tca"] - found["accounted"]
    return found


HEADERS = (
    "", "TFLOPS", "W", "MFU", "NVML MHz", "clock64 MHz", "NVML high by", "corrected by NVML", "by clock64",
    "× padding ÷ path", "TCA", "left over", "left over in one launch",
)  # fmt: skip
FORMS = {
    "tflops": ".1f", "watts": ".0f", "mfu": ".2%", "nvml_mhz": ".0f", "clock_mhz": ".0f", "nvml_high": ".1%",
    "corrected_by_nvml": ".2%", "corrected": ".2%", "accounted": ".2%", "tca": ".2%", "left": ".2%", "left_there": ".2%",
}  # fmt: skip


def cells(row: dict[str, Any]) -> list[object]:
    """A row under HEADERS."""
    return [row["name"], *(format(row[key], form) if key in row else None for key, form in FORMS.items())]


def measured(name: str, limit_s: float, capability: str) -> dict[str, Any]:
    """A work's row; `failed` says of each part that did not come off why."""
    work = WORKS[name]
    row: dict[str, Any] = {"name": name, "flops": work.flops, "path": work.path}
    failed: dict[str, str] = {}
    parts: dict[str, Callable[[], dict[str, Any]]] = {
        "timed": lambda: timed_apart(name, limit_s),
        "counted": lambda: counted_apart(name, limit_s, capability),
    }
    for part, do in parts.items():
        try:
            row |= do()
        except MeasuringError as error:
            failed[part] = str(error)
    return row | figures(row, work, capability) | ({"failed": failed} if failed else {})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--only", action="append", choices=WORKS, help="this work alone; may be repeated")
    parser.add_argument("--limit", type=float, default=LIMIT_S, metavar="SECONDS", help="of each child")
    parser.add_argument("--sustain", choices=WORKS, help=argparse.SUPPRESS)
    parser.add_argument("--launch", choices=WORKS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.sustain:
        print(json.dumps(sustain(WORKS[arguments.sustain])))
    elif arguments.launch:
        launch_once(WORKS[arguments.launch])
    else:
        compare(arguments.only or list(WORKS), arguments.limit, arguments.out)


def compare(names: list[str], limit_s: float, out: Path | None) -> None:
    gpu, reason = find_gpu()
    if gpu is None:
        sys.exit(f"no GPU: {reason}")
    rows: list[dict[str, Any]] = []
    for name in names:
        began = time.monotonic()
        rows.append(measured(name, limit_s, gpu.capability))
        print(f"{name}: {time.monotonic() - began:.1f} s", *rows[-1].get("failed", {}).items(), file=sys.stderr)
        if out:
            out.write_text(json.dumps({"rows": rows}, indent=1, ensure_ascii=False) + "\n")
    print(table(HEADERS, [cells(row) for row in rows], "markdown"))


if __name__ == "__main__":
    main()
