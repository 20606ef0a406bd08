"""Other implementations beside ours, for people."""

from __future__ import annotations

import math
from collections.abc import Sequence

from faperf.chips import chip_of
from faperf.metrics import flat
from faperf.record import PeerResult
from faperf.report.tables import as_json, table
from faperf.report.worth import percent

HEADERS = ("", "TFLOPS", "ms", "MFU", "corrected MFU", "TCA", "TCA ÷ MFU", "peak MiB", "speed of ours", "error", "by")


def peers_text(results: Sequence[PeerResult], refused: Sequence[str], style: str) -> str:
    """A table for each workload, the fastest first; who could not run keeps a row that says why."""
    if style == "json":
        return as_json({"results": results, "refused": refused})
    parts = []
    for workload in dict.fromkeys(result.workload for result in results):
        rows = [result for result in results if result.workload == workload]
        shape = ", ".join(f"{axis}={size}" for axis, size in rows[0].shape.items())
        title = f"{workload} ({shape}) on {_gpu(rows)}"
        parts.append(f"### {title}" if style == "markdown" else title)
        parts.append(table(HEADERS, [peer_cells(row) for row in ranked(rows)], style, {"by": 40}))
    parts += _flat(results)
    parts += [
        f"void: {r.name} on {r.workload}: {', '.join(r.timing.void)}" for r in results if r.timing and r.timing.void
    ]
    parts += refused
    parts.append(
        "Same inputs, buffers and float64 reference, interleaved with ours, L2 flushed; peers are replayed from a CUDA graph "
        "unless they say eager. Speed of ours: its time into the peer's, with the 99 % interval. TCA ÷ MFU is of one launch. "
        "Peak: the four tensors and what a launch allocates. Error: the largest relative L2 of all distributions."
    )
    return "\n\n".join(parts)


def ranked(rows: Sequence[PeerResult]) -> list[PeerResult]:
    """The fastest first, by how they stand to ours when interleaved: each for itself, they meet the card at another clock."""

    def against_ours(row: PeerResult) -> float:
        pair = row.timing.pair("ours") if row.timing else None
        return math.exp(pair.time.value) if pair else 1.0 if row.timing else math.inf

    return sorted(rows, key=against_ours)


def _gpu(rows: Sequence[PeerResult]) -> str:
    return next((row.timing.gpu for row in rows if row.timing), rows[0].machine)


def peer_cells(row: PeerResult) -> list[object]:
    timing, ours = row.timing, row.name == row.ours
    name = f"{row.name} (ours)" if ours else row.name
    error = f"{max(row.relative_l2.values()):.1e}" if row.relative_l2 else None
    if timing is None:
        return [name, *[None] * 8, error, row.failure or "not timed"]
    chip = chip_of(row.target)
    rate = chip.tensor_flops_per_clock if chip else None
    corrected = timing.flops_per_clock_sm / rate if timing.flops_per_clock_sm and rate else None
    ratio = row.tensor_active / row.corrected_there if row.tensor_active and row.corrected_there else None
    pair = timing.pair("ours")
    speed = None
    if pair:
        value, low, high = (math.exp(n) for n in (pair.time.value, pair.time.low, pair.time.high))
        speed = f"{value:.3f} [{low:.3f}, {high:.3f}]"
    return [
        name,
        f"{timing.tflops:.1f}",
        f"{timing.ms.value:.4f}",
        percent(timing.share_of_peak),
        percent(corrected),
        percent(row.tensor_active),
        f"{ratio:.2f}" if ratio else None,
        f"{_peak_mib(row):.0f}",
        speed,
        error,
        timing.build.partition(": ")[2] if not ours else None,
    ]


def _peak_mib(row: PeerResult) -> float:
    """The operation's tensors once, and what a launch of a peer allocates beyond the output that it does not write in place."""
    timing = row.timing
    assert timing is not None
    tensors = timing.gib_s * timing.ms.value * 1e-3 * 1024
    return tensors if timing.peak_bytes is None else tensors * 3 / 4 + timing.peak_bytes / 2**20


def _flat(results: Sequence[PeerResult]) -> list[str]:
    """Peers whose time stays as it is while the work grows."""
    lines = []
    for name in dict.fromkeys(result.name for result in results):
        points = [
            (r.timing.tflops * r.timing.ms.value, r.timing.ms.value) for r in results if r.name == name and r.timing
        ]
        if found := flat(points):
            (small, before), (large, after) = found
            lines.append(
                f"warning: {name} takes {after / before:.2f} times as long for {large / small:.1f} times the work: the time of a "
                "launch, or of a GPU that is not full"
            )
    return lines
