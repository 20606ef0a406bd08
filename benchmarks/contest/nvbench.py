"""NVBench (`cuda-bench`) as a tool of the contest. It runs once a process, so each reading is a process of its own, started
beforehand: `python -m benchmarks.contest.nvbench KERNELS` loads all kernels, says "ready", and measures one when told which.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import select
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import IO, Any, NamedTuple

import msgspec

from benchmarks.contest.kernels import Kernel, Loaded
from benchmarks.contest.plan import Reading, Stopwatch
from benchmarks.contest.tools import Weather
from faperf.judge import Verdict

METHODS = ("NVBench, compare-legacy", "NVBench, compare-robust")
TIMEOUT_S = 5
"""NVBench's own default is 15 s, for a measurement that stays noisier than it wants."""
AT_ONCE = 8
"""So many processes are started together: none may start while something is measured."""
LIMIT_S = 60
"""How long a process may take to its next word."""

WORDS = {
    "SLOW": Verdict.SLOWER,
    "FAST": Verdict.FASTER,
    "SAME": Verdict.SAME,
    "AMBG": Verdict.INCONCLUSIVE,
    "????": Verdict.INCONCLUSIVE,
}


def verdict_in(report: str) -> Verdict:
    """The status that NVBench's comparison prints in the one row of its table. Raises ValueError where there is no such."""
    found = re.findall(r"^\|.*(SLOW|FAST|SAME|AMBG|\?\?\?\?)\s*\|$", report, re.MULTILINE)
    if len(found) != 1:
        raise ValueError(f"NVBench's comparison has {len(found)} rows: {report.strip()[-200:]!r}")
    return WORDS[found[0]]


class Figures(NamedTuple):
    """What one process measured: milliseconds, and the file that the comparisons read."""

    mean: float
    median: float
    path: Path


class NVBench:
    """The processes and what they write. Use as a context: they end with it."""

    def __init__(self, kernels: dict[str, Kernel], weather: Weather) -> None:
        self._weather = weather
        self._folder = tempfile.TemporaryDirectory()
        self._kernels = Path(self._folder.name) / "kernels.msgpack"
        self._kernels.write_bytes(msgspec.msgpack.encode(list(kernels.values())))
        self._waiting: list[_Process] = []
        self._done: list[_Process] = []
        self._count = 0

    def __enter__(self) -> NVBench:
        return self

    def __exit__(self, *_: object) -> None:
        self._end(self._waiting + self._done)
        self._folder.cleanup()

    def tool(self) -> Stopwatch:
        return Stopwatch(METHODS, self._weather.hold, self._read, self._compare, self._get_ready)

    def _get_ready(self) -> None:
        if self._waiting:
            return
        self._end(self._done)
        self._done = []
        self._waiting = [_Process(self._kernels) for _ in range(AT_ONCE)]
        for process in self._waiting:
            process.expect("ready")

    def _read(self, kernel: str) -> Reading:
        process = self._waiting.pop()
        self._done.append(process)
        self._count += 1
        path = Path(self._folder.name) / f"{self._count}.json"
        begin = time.perf_counter()
        process.say(f"{kernel} {path}")
        process.expect("done")
        seconds = time.perf_counter() - begin
        return Reading(seconds, _figures(path))

    @staticmethod
    def _compare(a: Figures, b: Figures) -> list[tuple[str, float, Verdict, dict[str, Any]]]:
        from cuda.bench.scripts import nvbench_compare, nvbench_compare_robust

        raw = {"a_ms": a.mean, "b_ms": b.mean, "a_median_ms": a.median, "b_median_ms": b.median}
        return [
            (METHODS[0], b.mean / a.mean - 1, _compared_by(nvbench_compare, a.path, b.path), raw),
            (METHODS[1], b.median / a.median - 1, _compared_by(nvbench_compare_robust, a.path, b.path), raw),
        ]

    @staticmethod
    def _end(processes: list[_Process]) -> None:
        for process in processes:
            process.end()


class _Process:
    """One NVBench process and the lines that it is told and says."""

    def __init__(self, kernels: Path) -> None:
        self._errors: IO[str] = tempfile.TemporaryFile("w+")  # noqa: SIM115 (a pipe that nobody reads would fill up)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.contest.nvbench", kernels],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )

    def say(self, line: str) -> None:
        assert self._process.stdin is not None
        print(line, file=self._process.stdin, flush=True)

    def expect(self, word: str) -> None:
        assert self._process.stdout is not None
        answered, _, _ = select.select([self._process.stdout], [], [], LIMIT_S)
        if not answered or self._process.stdout.readline().strip() != word:
            self._process.kill()
            self._errors.seek(0)
            last = self._errors.read().strip().splitlines()[-1:] or ["no message"]
            raise RuntimeError(f"NVBench's process ended: {last[0]}")

    def end(self) -> None:
        with self._process as process:
            process.kill()
        self._errors.close()


def _figures(path: Path) -> Figures:
    from cuda.bench.results import BenchmarkResult

    (state,) = next(iter(BenchmarkResult.from_json(path).values()))
    mean = float(state.summaries["nv/cold/time/gpu/mean"].value)
    return Figures(1000 * mean, 1000 * statistics.median(state.samples), path)


def _compared_by(script: Any, a: Path, b: Path) -> Verdict:
    """What one of NVBench's comparisons (a console script) prints."""
    said, before = io.StringIO(), sys.argv
    sys.argv = ["nvbench-compare", "--no-color", str(a), str(b)]
    try:
        with contextlib.redirect_stdout(said):
            script.main()
    finally:
        sys.argv = before
    return verdict_in(said.getvalue())


def main(kernels: Path) -> None:
    """The process: load everything, wait for the word, measure one kernel by NVBench's defaults."""
    import cupy
    from cuda import bench

    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # NVBench prints to what is then the error stream
    known = msgspec.msgpack.decode(kernels.read_bytes(), type=list[Kernel])
    loaded = {kernel.name: Loaded(kernel) for kernel in known}
    for each in loaded.values():
        each.launch()
    cupy.cuda.runtime.deviceSynchronize()
    print("ready", file=answers, flush=True)
    name, path = sys.stdin.readline().split()
    launch = loaded[name].launch

    def kernel(state: Any) -> None:
        state.exec(
            lambda launched: launch(cupy.cuda.ExternalStream(launched.get_stream().addressof())),
            batched=False,  # its second measurement, which no comparison reads
        )

    bench.register(kernel)
    bench.run_all_benchmarks(["contest", "--jsonbin", path, "--timeout", str(TIMEOUT_S)])
    print("done", file=answers, flush=True)
    sys.stdin.read()  # ends with its parent: ending would disturb what is measured now


if __name__ == "__main__":
    main(Path(sys.argv[1]))
