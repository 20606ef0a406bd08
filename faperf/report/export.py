"""Recorded figures in the formats of other tools. What was measured is exported, and nothing else: no reported figures."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Sequence
from typing import Any

from faperf import __version__
from faperf.comparison import Figure
from faperf.record import Timing
from faperf.report.tables import as_json, plain

CSV_HEADERS = (
    "version", "target", "workload", "commit", "dirty", "when", "machine", "gpu", "driver", "regime", "protocol", "carried",
    "ms", "ms_low", "ms_high", "tflops", "gib_s", "clock_mhz", "against_parent", "against_parent_low", "against_parent_high",
    "registers", "spill_bytes", "smem_bytes", "ctas_per_sm", "path", "build", "code", "void",
)  # fmt: skip


def benchmark_name(version: str, target: str, workload: str) -> str:
    """The name of a time among pytest's tests, in pytest-benchmark's files and in the charts of github-action-benchmark."""
    return f"time[{version}-{target}-{workload}]"


def extra_info(version: str, target: str, timing: Timing) -> dict[str, Any]:
    """What pytest-benchmark keeps beside a time."""
    return {
        "version": version,
        "target": target,
        "workload": timing.workload,
        "shape": timing.shape,
        "ms": timing.ms.value,
        "ms_low": timing.ms.low,
        "ms_high": timing.ms.high,
        "tflops": timing.tflops,
        "gpu": timing.gpu,
        "driver": timing.driver,
        "regime": timing.regime,
        "protocol": timing.protocol,
        "launches": timing.launches,
        "build": timing.build,
    }


def _timed(figures: Sequence[Figure]) -> list[tuple[Figure, Timing]]:
    return [(figure, figure.timing) for figure in figures if figure.timing is not None]


def to_pytest_benchmark(figures: Sequence[Figure]) -> str:
    """A file that `pytest-benchmark compare` reads, as `pytest --faperf` writes it. A time is one round: its estimate is the best
    that is known, and its 99 % interval stands in extra_info.
    """
    benchmarks = []
    for figure, timing in _timed(figures):
        seconds = timing.ms.value / 1e3
        name = benchmark_name(figure.version, figure.target, timing.workload)
        same = dict.fromkeys(("min", "max", "mean", "median", "q1", "q3", "ld15iqr", "hd15iqr", "total"), seconds)
        none = dict.fromkeys(("stddev", "iqr"), 0.0) | dict.fromkeys(("iqr_outliers", "stddev_outliers"), 0)
        benchmarks.append(
            {
                "group": f"faperf {figure.target}",
                "name": name,
                "fullname": f"manifests/{figure.version}.yaml::{name}",
                "params": None,
                "param": None,
                "extra_info": extra_info(figure.version, figure.target, timing),
                "options": {
                    "disable_gc": False,
                    "timer": "faperf",
                    "min_rounds": 1,
                    "max_time": 0.0,
                    "min_time": 0.0,
                    "warmup": False,
                },
                "stats": {
                    **same,
                    **none,
                    "rounds": 1,
                    "iterations": 1,
                    "outliers": "0;0",
                    "ops": 1 / seconds,
                    "data": [seconds],
                },
            }
        )
    run = figures[0].run if figures else None
    gpus = list(dict.fromkeys(timing.gpu for _, timing in _timed(figures)))
    machine = {
        "node": run.machine if run else "",
        "processor": "",
        "machine": "",
        "python_implementation": "faperf",
        "python_version": __version__,
        "cpu": {"brand_raw": ", ".join(gpus)},
    }
    commit = {
        "id": run.commit if run else None,
        "time": None,
        "dirty": bool(run and run.dirty),
        "project": "",
        "branch": "",
    }
    return as_json(
        {
            "machine_info": machine,
            "commit_info": commit,
            "benchmarks": benchmarks,
            "datetime": run.when if run else "",
            "version": __version__,
        }
    )


def to_github_action_benchmark(figures: Sequence[Figure]) -> str:
    """The list that github-action-benchmark takes as `customSmallerIsBetter`."""
    entries = []
    for figure, timing in _timed(figures):
        half = max(timing.ms.high - timing.ms.value, timing.ms.value - timing.ms.low)
        entries.append(
            {
                "name": f"{figure.version} {figure.target} {timing.workload}",
                "unit": "ms",
                "value": timing.ms.value,
                "range": f"± {half:.2g}",
                "extra": "\n".join(
                    [
                        f"{timing.tflops:.1f} TFLOPS",
                        f"{timing.gpu}, driver {timing.driver}, {timing.regime}",
                        f"build {timing.build}",
                    ]
                ),
            }
        )
    return as_json(entries)


def to_csv(figures: Sequence[Figure]) -> str:
    """One row a version × target × workload, measured or not; SI units by the column's name, ratios as log(time / time)."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(CSV_HEADERS)
    writer.writerows([_cell(value) for value in _row(figure)] for figure in figures)
    return text.getvalue().removesuffix("\n")


def _row(figure: Figure) -> list[object]:
    run, entry, build, timing = figure.run, figure.entry, figure.build, figure.timing
    kernels = build.kernels if build else []
    pair = timing.pair("parent") if timing else None
    time = (
        [timing.ms.value, timing.ms.low, timing.ms.high, timing.tflops, timing.gib_s, timing.clock_mhz]
        if timing
        else [None] * 6
    )
    return [
        *(figure.version, figure.target, timing.workload if timing else figure.workload),
        *(run.commit, bool(run.dirty), run.when, timing.machine if timing else run.machine),
        *((timing.gpu, timing.driver, timing.regime, timing.protocol, figure.carried) if timing else [None] * 5),
        *time,
        *((pair.time.value, pair.time.low, pair.time.high) if pair else [None] * 3),
        max((kernel.registers for kernel in kernels), default=None),
        sum(kernel.spill_bytes for kernel in kernels) if build else None,
        *((entry.smem, entry.ctas_per_sm) if build else (None, None)),
        "+".join(dict.fromkeys(kernel.path for kernel in kernels if kernel.path)),
        *(entry.build, build.code if build else None, "; ".join(timing.void) if timing else None),
    ]


def _cell(value: object) -> object:
    """A spreadsheet takes text that begins like a formula for one."""
    if not isinstance(value, str):
        return value
    return f"'{plain(value)}" if re.match(r"[=+\-@\t\r]", value) else plain(value)


EXPORTS: dict[str, Callable[[Sequence[Figure]], str]] = {
    "csv": to_csv,
    "pytest-benchmark": to_pytest_benchmark,
    "github-action-benchmark": to_github_action_benchmark,
}
"""By their names on the command line."""
