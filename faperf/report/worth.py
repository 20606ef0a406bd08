"""What a timing is worth, in words."""

from __future__ import annotations

from collections.abc import Sequence

from faperf.metrics import Metrics, flat
from faperf.record import Timing


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


def flat_warning(timings: Sequence[Timing]) -> list[str]:
    """A line where time stays as it is while work grows; none else."""
    points = {(timing.tflops * timing.ms.value, timing.ms.value): timing.workload for timing in timings}
    found = flat(points)
    if found is None:
        return []
    (small, ms), (large, later) = found
    return [
        f"warning: {points[large, later]} has {large / small:.1f} times the work of {points[small, ms]} and takes "
        f"{later / ms:.2f} times as long: this is the time of a launch, or of a GPU that is not full"
    ]
