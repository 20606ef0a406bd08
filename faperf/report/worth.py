"""What a timing is worth, in words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from faperf.metrics import Metrics, flat
from faperf.record import Counters, Timing
from faperf.report.tables import as_json, table


def metrics_facts(metrics: Metrics) -> list[tuple[str, str | None]]:
    """The rows that `faperf show` adds to a timing."""
    per_clock = f" ({metrics.flops_per_clock_sm:.0f} FLOPs per clock and SM)" if metrics.flops_per_clock_sm else ""
    ceiling = None
    if metrics.path_share and metrics.of_path:
        rate = f"{metrics.path} reaches {metrics.path_share:.0%} of the tensor cores' rate"
        ceiling = f"{rate}; this is {metrics.of_path:.1%} of that"
    bounds = ", ".join(f"{bound.what} {bound.ms:.4f} ms ({bound.share:.0%} of the time)" for bound in metrics.bounds)
    return [
        ("MFU", percent(metrics.mfu)),
        ("clock-corrected MFU", percent(metrics.corrected_mfu) + per_clock if metrics.corrected_mfu else None),
        ("path ceiling", ceiling),
        ("padding", f"{metrics.padding:.4f} × the counted FLOPs are done" if metrics.padding > 1 else None),
        ("no faster than", bounds or None),
    ]


def percent(share: float | None) -> str:
    return "" if share is None else f"{share:.1%}"


def flat_line(timings: Sequence[Timing]) -> str | None:
    """Where time stays as it is while work grows; None where it does not."""
    points = {(timing.tflops * timing.ms.value, timing.ms.value): timing.workload for timing in timings}
    found = flat(points)
    if found is None:
        return None
    (small, ms), (large, later) = found
    return (
        f"{points[large, later]} has {large / small:.1f} times the work of {points[small, ms]} and takes "
        f"{later / ms:.2f} times as long: this is the time of a launch, or of a GPU that is not full"
    )


class Counted(Protocol):
    """A version's counters with what they mean."""

    @property
    def version(self) -> str: ...
    @property
    def counters(self) -> Counters: ...
    @property
    def corrected_mfu(self) -> float | None: ...
    @property
    def ratio(self) -> float | None: ...
    @property
    def meaning(self) -> str | None: ...


COUNTER_HEADERS = (
    "version", "workload", "TCA", "corrected MFU", "TCA ÷ MFU", "done by", "occupancy", "L2", "DRAM", "smem pipe",
    "local MiB", "stalls",
)  # fmt: skip


def counters_text(rows: Sequence[Counted], style: str) -> str:
    """What was counted in one launch of each version, and what tensor activity over corrected MFU means."""
    if style == "json":
        return as_json({"counters": rows})
    body = [
        (
            row.version,
            seen.workload,
            percent(seen.tensor_active),
            percent(row.corrected_mfu),
            f"{row.ratio:.2f}" if row.ratio else None,
            "\n".join(f"{path} {flops / 1e9:.1f} GFLOP" for path, flops in seen.path_flops.items()),
            *(percent(share) for share in (seen.occupancy, seen.l2, seen.dram, seen.shared_pipe)),
            f"{seen.local_bytes / 2**20:.1f}" if seen.local_bytes is not None else None,
            "\n".join(stalls(seen)),
        )
        for row in rows
        for seen in [row.counters]
    ]
    meanings = [
        f"{row.version}, {row.counters.workload}: TCA ÷ corrected MFU {row.ratio:.2f}: {row.meaning}"
        for row in rows
        if row.ratio
    ]
    title = "Counted in one launch (ncu, clocks not locked); shares of the units' peaks"
    return "\n\n".join([title, table(COUNTER_HEADERS, body, style), "\n".join(meanings)])


def counter_facts(seen: Counters) -> list[tuple[str, str]]:
    """The rows of `faperf show` for one counted launch."""
    facts = [
        ("tensor-core activity (TCA)", percent(seen.tensor_active)),
        ("FLOPs by path", ", ".join(f"{path} {flops / 1e9:.2f} GFLOP" for path, flops in seen.path_flops.items())),
        ("warps resident (achieved occupancy)", percent(seen.occupancy)),
        (
            "throughput of L2, DRAM, shared memory",
            ", ".join(percent(s) or "–" for s in (seen.l2, seen.dram, seen.shared_pipe)),
        ),
        ("local memory", f"{seen.local_bytes / 2**20:.2f} MiB" if seen.local_bytes else ""),
        ("warps waiting per issued instruction", ", ".join(stalls(seen))),
        ("by", f"ncu {seen.ncu}, {seen.workload}, {seen.ms:.4f} ms in that launch"),
    ]
    return [(name, value) for name, value in facts if value]


def stalls(seen: Counters, most: int = 3) -> list[str]:
    """The commonest reasons for which warps waited, in warps per issued instruction."""
    waits = {name: n for name, n in seen.stalls.items() if name not in ("selected", "not_selected")}
    ordered = sorted(waits.items(), key=lambda item: -item[1])[:most]
    return [f"{name.replace('_', ' ')} {n:.2f}" for name, n in ordered]
