"""What `nvbench --json` writes → records of their own kind: another tool's figures, by its protocol, never mixed with ours."""

from __future__ import annotations

import hashlib
import math
from typing import Any

import msgspec

from faperf import record
from faperf.errors import HistoryError
from faperf.record import External

COLD = "nv/cold/time/gpu/mean"
NOISE = "nv/cold/time/gpu/stdev/relative"
SAMPLES = "nv/cold/sample_size"
CLOCK = "nv/cold/sm_clock_rate/mean"
BATCH = "nv/batch/time/gpu/mean"


class _Datum(msgspec.Struct):
    name: str
    value: str | float | int


class _Summary(msgspec.Struct):
    tag: str
    data: list[_Datum] = []


class _AxisValue(msgspec.Struct):
    name: str
    value: str | float | int


class _State(msgspec.Struct):
    device: int | None = None
    axis_values: list[_AxisValue] | None = None
    is_skipped: bool = False
    skip_reason: str | None = None
    summaries: list[_Summary] | None = None

    def figure(self, tag: str) -> float | None:
        """A summary's value, where it is a number at all."""
        for summary in self.summaries or []:
            for datum in summary.data if summary.tag == tag else []:
                if datum.name == "value":
                    try:
                        number = float(datum.value)
                    except ValueError:
                        return None
                    return number if math.isfinite(number) else None
        return None


class _Benchmark(msgspec.Struct):
    name: str
    states: list[_State] = []


class _Device(msgspec.Struct):
    id: int
    name: str


class _File(msgspec.Struct):
    benchmarks: list[_Benchmark]
    devices: list[_Device]
    meta: dict[str, Any] = {}


def is_nvbench(content: bytes) -> bool:
    """Whether a file is one of nvbench's, by what is in it."""
    try:
        return set(msgspec.json.decode(content, type=dict[str, msgspec.Raw])) >= {"benchmarks", "devices", "meta"}
    except msgspec.DecodeError:
        return False


def figures_in(content: bytes, versions: dict[str, str], commit: str | None, when: str) -> list[External]:
    """Every state that was measured; `versions` maps a benchmark's name to the version it is of. Raises HistoryError."""
    file = _decoded(content)
    devices = {device.id: device.name for device in file.devices}
    tool = _tool(file)
    found = []
    for benchmark in file.benchmarks:
        for state in benchmark.states:
            cold = state.figure(COLD)
            if state.is_skipped or cold is None or cold <= 0 or benchmark.name not in versions:
                continue
            batch, clock = state.figure(BATCH), state.figure(CLOCK)
            found.append(
                External(
                    schema=record.SCHEMA,
                    id=hashlib.sha256(content).hexdigest()[:20],
                    when=when,
                    commit=commit,
                    tool=tool,
                    version=versions[benchmark.name],
                    benchmark=benchmark.name,
                    axes={axis.name: str(axis.value) for axis in state.axis_values or []},
                    gpu=devices.get(state.device if state.device is not None else -1, "unknown"),
                    ms=cold * 1e3,
                    batch_ms=None if batch is None else batch * 1e3,
                    noise=state.figure(NOISE),
                    samples=int(state.figure(SAMPLES) or 0),
                    clock_mhz=None if clock is None else clock / 1e6,
                )
            )
    return found


def _tool(file: _File) -> str:
    """nvbench has called itself 0.1.0 for years, so what git said of it when it was built is named too."""
    version = file.meta.get("version", {}).get("nvbench", {})
    if not isinstance(version, dict):
        return "nvbench"
    built = f"({version['git_version']})" if version.get("git_version") else ""
    return " ".join(["nvbench", *filter(None, [str(version.get("string", "")), built])])


def skipped_in(content: bytes) -> list[str]:
    """Why states were skipped, a reason a state. Raises HistoryError."""
    states = [state for benchmark in _decoded(content).benchmarks for state in benchmark.states]
    return [state.skip_reason or "no reason given" for state in states if state.is_skipped]


def benchmark_names(content: bytes) -> list[str]:
    """Of all benchmarks in a file. Raises HistoryError."""
    return [benchmark.name for benchmark in _decoded(content).benchmarks]


def _decoded(content: bytes) -> _File:
    try:
        return msgspec.json.decode(content, type=_File)
    except msgspec.DecodeError as error:
        raise HistoryError(f"not a file that nvbench --json wrote: {error}") from error
