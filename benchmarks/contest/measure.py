"""A run of the contest on this machine's GPU."""

from __future__ import annotations

import datetime
import importlib.metadata
import random
import shlex
import sys
import time
from collections.abc import Collection
from pathlib import Path

import msgspec

from benchmarks.contest.kernels import Loaded, attention, known_work
from benchmarks.contest.nvbench import NVBench
from benchmarks.contest.plan import Decision, Pair, Tool, play
from benchmarks.contest.tools import Faperf, Weather, by_cupyx, by_do_bench, one_figure
from benchmarks.contest.trials import Results, Run, Trial
from faperf import __version__
from faperf.bench import Bench
from faperf.building import Workshop
from faperf.device import Card, find_gpu
from faperf.frames import Verify
from faperf.operations import BUILT_IN
from faperf.project import Project
from faperf.record import PROTOCOL_VERSION

PACKAGES = ("torch", "triton", "cupy-cuda13x", "cuda-bench")


def measure(path: Path, *, seconds: float, rounds: int | None, only: Collection[str]) -> bool:
    """Play and add the trials to a file, as they come. Returns whether every method could."""
    gpu, reason = find_gpu()
    if gpu is None:
        raise SystemExit(f"the contest needs a GPU: {reason}")
    workshop, target = Workshop.open(Project.find(Path(__file__).parent)), f"sm_{gpu.capability.replace('.', '')}a"
    version, against_itself, job = attention(workshop, target)
    bench = Bench(job, BUILT_IN, lambda _: None)
    check = bench.verify(Verify(job.sides[0].name, job.workloads[0].name, "normal", job.seeds[0]))
    if check.failure:
        raise SystemExit(f"{version.name} is wrong, so it is not timed: {check.failure}")
    work, pairs = known_work(workshop.toolchain.nvcc, target, bench.card.sms)
    kernels = {kernel.name: kernel for kernel in [*work, version]}
    loaded = {name: Loaded(kernel) for name, kernel in kernels.items()}
    weather = Weather()
    record = _Record(path, bench.card)
    end = time.monotonic() + seconds
    with NVBench(kernels, weather) as nvbench:
        play(
            [pair for pair in [*pairs, against_itself] if not only or pair.name in only],
            [
                one_figure("triton do_bench", loaded, weather, by_do_bench),
                one_figure("cupyx benchmark", loaded, weather, by_cupyx),
                nvbench.tool(),
                Faperf(kernels, bench.card, weather),
            ],
            note=record.note,
            failed=record.failed,
            over=lambda done: time.monotonic() > end or done == rounds,
            order=random.Random(record.number),
        )
    return not record.missing


class _Record:
    """What this run adds to the file, which is written anew after each trial."""

    def __init__(self, path: Path, card: Card) -> None:
        self._path = path
        self._before = Results.load(path) if path.exists() else Results([], [])
        self._run = Run(
            when=f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d}",
            command=shlex.join(["python", "-m", "benchmarks.contest", "run", path.name, *sys.argv[3:]]),
            gpu=card.name,
            card=card.card,
            driver=card.driver,
            versions={"faperf": f"{__version__} (protocol {PROTOCOL_VERSION})"}
            | {name: _version(name) for name in PACKAGES},
        )
        self._trials: list[Trial] = []
        self.number = len(self._before.runs)
        self.missing: dict[str, str] = {}

    def note(self, pair: Pair, decision: Decision) -> None:
        trial = Trial(run=self.number, pair=pair.name, true=pair.true, **decision._asdict())
        self._trials.append(trial)
        self._save()
        words = f"{trial.change:+8.2%} {trial.verdict:13s} {trial.seconds:5.1f} s  {' → '.join(trial.states)}"
        print(f"{trial.pair:18s} {trial.method:24s} {words}", flush=True)

    def failed(self, tool: Tool, error: Exception) -> None:
        self.missing |= dict.fromkeys(tool.methods, f"{type(error).__name__}: {error}")
        self._save()
        print(f"{', '.join(tool.methods)} failed: {error}", flush=True)

    def _save(self) -> None:
        run = msgspec.structs.replace(self._run, missing=self.missing)
        Results([*self._before.runs, run], [*self._before.trials, *self._trials]).save(self._path)


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "(none)"
