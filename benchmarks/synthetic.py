"""A made-up history of any size: a git repository of real commits, and the records of a run for each.

Every commit changes one version, whose build is verified on five distributions and timed against its parent and the control; all
other figures are carried forward. So a commit leaves eight records: a build, five checks, a timing and a run. Times drift
by a walk of steps that is known, so that change points can be held against it.
"""

from __future__ import annotations

import random
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from faperf import record
from faperf.record import Build, Check, Entry, Interval, KernelFacts, Pair, Run, Timing, Toolchain

CLASS = "nvidia-h200-700w-140gib"
TARGET = "sm_90a"
WORKLOAD = "tiny"
SHAPE = {"B": 1, "H": 2, "S": 128, "D": 64}
DISTRIBUTIONS = ("normal", "growing", "peaked", "shifted", "tiny")
FIRST_MS = 0.2
CONTROL = "control"
RECORDS_A_COMMIT = 8

MANIFEST = """\
schema: 1
id: {id}
{parent}title: "{title}"
source: kernels/{id}.cu
targets: [sm_90a]
operation: {{name: attention_forward, layout: BSHD}}
workloads: [tiny]
tile: {{m: 64, n: 64}}
launches:
  - entry: copy
    grid: ["S / 64", "B * H"]
    block: [64]
    args:
      - {{tensor: Q}}
      - {{tensor: O}}
      - {{scalar: S, type: i32}}
notes: {{hypothesis: "Fewer registers let a second CTA in.", lesson: "They did."}}
"""


@dataclass
class Synthetic:
    """What was made. `steps`: for each version the commits that changed its speed, with the change in log time."""

    root: Path
    commits: list[str]
    steps: dict[str, list[tuple[str, float]]] = field(default_factory=dict)


def make(root: Path, commits: int, versions: int, *, seed: int = 1, step_every: int = 50) -> Synthetic:
    """A project of `versions` kernels v1 … at `root`, with so many commits and their records. Every `step_every`-th change of a
    version makes it faster or slower by 1 to 5 %; between instances there is noise of 0.2 %, between runs of 0.05 %.
    """
    luck = random.Random(seed)
    names = [f"v{n}" for n in range(1, versions + 1)]
    changed = [names[n % versions] for n in range(commits)]
    hashes = _commits(root, names, changed)
    made = Synthetic(root, hashes, {name: [] for name in names})
    level = dict.fromkeys(names, 0.0)
    touched = dict.fromkeys(names, 0)
    entries: dict[str, Entry] = {}
    folder = root / "history" / CLASS
    folder.mkdir(parents=True)
    (root / "history/builds").mkdir()
    for number, (commit, name) in enumerate(zip(hashes, changed, strict=True)):
        touched[name] += 1
        if touched[name] > 1 and touched[name] % step_every == 0:
            step = luck.choice((-1, 1)) * luck.uniform(0.01, 0.05)
            level[name] += step
            made.steps[name].append((commit, step))
        run_id = f"20260101T{number:06d}000000Z0000"
        at = names.index(name)
        parent = entries.get(names[at - 1]) if at else None
        build = _build(name, number)
        _write(root / "history/builds" / f"{build.key}.json", build)
        entry = Entry(
            version=name, target=TARGET, parent=names[at - 1] if at else None, build=build.key, threads=64, smem=1024,
            ctas_per_sm=2, limiter="registers", launches={WORKLOAD: "launch"}, measured={WORKLOAD: run_id},
        )  # fmt: skip
        entries[name] = entry
        gap = level[name] - (level[names[at - 1]] if at else 0.0)
        timing = _timing(luck, build, level[name], gap, parent)
        run = Run(
            schema=record.SCHEMA, id=run_id, commit=commit, when="2026-01-01T00:00:00+00:00", faperf="0.1.0",
            machine=CLASS, entries=[entries[n] for n in names if n in entries],
        )  # fmt: skip
        lines: list[record.Record] = [
            *(_check(luck, build, distribution) for distribution in DISTRIBUTIONS),
            timing,
            run,
        ]
        _write(folder / f"{commit[:12]}-{run_id}.jsonl", *lines)
    return made


def _write(path: Path, *records: record.Record) -> None:
    path.write_bytes(b"".join(map(record.encode, records)))


def _build(name: str, number: int) -> Build:
    opcodes = {"HMMA": [0, 128], "LDSM": [4, 60], "MUFU": [0, 32], "FFMA": [10, 400], "IADD3": [20, 40], "BAR": [1, 2]}
    kernel = KernelFacts(
        entry="copy", registers=90 + number % 40, register_cap=255, instructions=900, opcodes=opcodes,
        main_loop={"HMMA": 128, "LDSM": 60, "MUFU": 32, "FFMA": 400}, mma_shapes={"HMMA 16x8x16": 128}, path="HMMA",
    )  # fmt: skip
    return Build(
        schema=record.SCHEMA, key=f"b{number:019d}", version=name, target=TARGET, source=f"kernels/{name}.cu",
        toolchain=Toolchain(nvcc="13.0.88", build="", host="g++ 12.2.0"), kernels=[kernel], code=f"c{number}",
    )  # fmt: skip


def _check(luck: random.Random, build: Build, distribution: str) -> Check:
    return Check(
        schema=record.SCHEMA, build=build.key, launch="launch", workload=WORKLOAD, shape=SHAPE, operation="attention_forward",
        operation_version=1, by="silicon", distribution=distribution, seed=1, relative_l2=2.7e-4 * luck.uniform(0.99, 1.01),
        max_abs=2e-4, baseline_l2=2.9e-4, bound=9.7e-4,
    )  # fmt: skip


def _timing(luck: random.Random, build: Build, level: float, gap: float, parent: Entry | None) -> Timing:
    session = luck.gauss(0, 0.0005)
    ms = FIRST_MS * (1 + level + session)
    pairs = [_pair(luck, "control", CONTROL, CONTROL, level + session)]
    if parent and parent.build:
        pairs.append(_pair(luck, "parent", parent.build, parent.version, gap + session))
    return Timing(
        schema=record.SCHEMA, build=build.key, launch="launch", workload=WORKLOAD, shape=SHAPE, machine=CLASS, gpu="NVIDIA H200",
        card="a1b2c3d4", driver="580.95", regime="burst", protocol=2,
        ms=Interval(value=ms, low=ms * 0.998, high=ms * 1.002), tflops=34.36 / ms, gib_s=62.5 / ms, clock_mhz=1980.0,
        flops_per_clock_sm=900.0, share_of_peak=0.2, power_w=400.0, launches=800, pairs=pairs,
    )  # fmt: skip


def _pair(luck: random.Random, role: str, build: str, version: str, value: float) -> Pair:
    instances = [value + luck.gauss(0, 0.002) for _ in range(10)]
    middle = sorted(instances)
    time = Interval(value=sum(middle[4:6]) / 2, low=middle[0], high=middle[-1])
    return Pair(role=role, build=build, version=version, time=time, instances=instances)


def _commits(root: Path, names: list[str], changed: list[str]) -> list[str]:
    """A repository whose first commit has the manifests and all kernels; each commit edits one kernel. Their hashes."""
    root.mkdir(parents=True)
    git = ["git", "-C", str(root)]
    subprocess.run([*git, "init", "--quiet", "--initial-branch=main"], check=True)
    workloads = f"schema: 1\nworkloads:\n  {WORKLOAD}:\n    operation: attention_forward\n    shape: {SHAPE}\n".replace(
        "'", ""
    )
    files = {"manifests/workloads.yaml": workloads}
    for at, name in enumerate(names):
        parent = f"parent: {names[at - 1]}\n" if at else ""
        files[f"manifests/{name}.yaml"] = MANIFEST.format(id=name, parent=parent, title=f"change number {at}")
        files[f"kernels/{name}.cu"] = _kernel(name, 0)
    stream = []
    for number, name in enumerate(changed):
        message = f"{name}: edit {number}"
        stream.append(
            f"commit refs/heads/main\ncommitter Test <test@example.invalid> {1767225600 + 3600 * number} +0000\n"
            f"data {len(message)}\n{message}\n"
        )
        files[f"kernels/{name}.cu"] = _kernel(name, number)
        stream += [f"M 100644 inline {path}\ndata {len(text.encode())}\n{text}\n" for path, text in files.items()]
        files = {}
    subprocess.run([*git, "fast-import", "--quiet"], input="".join(stream), text=True, check=True)
    subprocess.run([*git, "reset", "--quiet", "--hard"], check=True)
    listed = subprocess.run([*git, "rev-list", "--reverse", "HEAD"], check=True, capture_output=True, text=True)
    return listed.stdout.split()


def _kernel(name: str, number: int) -> str:
    return f'// {name}\nextern "C" __global__ void copy(const float* Q, float* O, int S) {{\n    // edit {number}\n}}\n'
