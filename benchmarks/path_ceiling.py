"""What each tensor path of this GPU does at most, per clock and SM: `python -m benchmarks.path_ceiling [--out FILE]`.

A probe kernel (path_ceiling.cu) issues nothing but MMAs and reads its SM's cycle counter around them, so neither the clock nor
the power limit enters. `chips.PATH_SHARE` holds what was measured; the run is kept beside this file.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from faperf.chips import CHIPS
from faperf.device import Card, Kernels
from faperf.launch import ResolvedArgument, ResolvedLaunch
from faperf.toolchain import find_toolchain

FLOPS = {"hmma": 2 * 16 * 8 * 16, "hgmma": 2 * 64 * 128 * 16}
"""Of one MMA: m16n8k16 a warp, m64n128k16 a warpgroup."""

ISSUERS = {"hmma": 32, "hgmma": 128}
"""Threads that issue one MMA together."""

INDEPENDENT = 8
ROUNDS = {"hmma": 4096, "hgmma": 2048}
THREADS = {"hmma": (128, 256, 512, 1024), "hgmma": (128, 256, 512)}
REPEATS = 5


def launch_of(path: str, threads: int, sms: int) -> ResolvedLaunch:
    smem = (128 + 64 * (threads // 128)) * 128 + 1024 if path == "hgmma" else 0
    arguments = [ResolvedArgument(tensor=name) for name in ("in", "out", "cycles")]
    arguments.append(ResolvedArgument(scalar=ROUNDS[path], type="i32"))
    return ResolvedLaunch(path, (sms, 1, 1), (threads, 1, 1), (1, 1, 1), smem, arguments)


def measured(card: Card, cubin: bytes, path: str, threads: int) -> float:
    """FLOPs per clock and SM: the median over SMs, of the best of some repetitions."""
    xp = card.xp
    tensors = {
        "in": xp.random.default_rng(7).integers(0, 2**32, 65_536, dtype=xp.uint32),
        "out": xp.zeros((card.sms * threads,), dtype=xp.float32),
        "cycles": xp.zeros((card.sms,), dtype=xp.uint64),
    }
    flops = FLOPS[path] * INDEPENDENT * ROUNDS[path] * threads // ISSUERS[path]
    bound = Kernels(cubin, [launch_of(path, threads, card.sms)]).bind(tensors)
    rates = []
    for _ in range(REPEATS):
        card.run_once(bound)
        rates.append(flops / statistics.median(tensors["cycles"].get().tolist()))
    return max(rates)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    card = Card()
    if card.capability != "9.0":
        raise SystemExit("the probes are Hopper's: mma.sync and wgmma")
    rate = CHIPS["90"].tensor_flops_per_clock or 0
    source = Path(__file__).with_suffix(".cu")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "probe.cubin"
        gencode = "-gencode=arch=compute_90a,code=sm_90a"
        subprocess.run([find_toolchain().nvcc, "-cubin", gencode, source, "-o", file], check=True)
        cubin = file.read_bytes()
    found: dict[str, Any] = {"gpu": card.name, "driver": card.driver, "chip": rate, "paths": {}}
    for path in FLOPS:
        rates = {threads: measured(card, cubin, path, threads) for threads in THREADS[path]}
        best = max(rates.values())
        found["paths"][path.upper()] = {"share": best / rate, "by_threads": rates}
        print(f"{path.upper():6s} {best:7.1f} FLOPs per clock and SM, {best / rate:.1%}: {rates}")
    if arguments.out:
        arguments.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
