"""A GPU host without a GPU: a child that talks like `python -m faperf.bench` but has canned answers, a card for
`nvidia-smi` to name, and an importable `cupy` and `cuda.bindings`.

The child is started as `python fake_gpu.py FOLDER`. `FOLDER/plan.json` maps a side's name, its build key, or its version's
name to what happens to it: `ms` a launch, `noise` (what instances differ by, as a log ratio), `wrong` (the words of a failed
check), `relative_l2`, `void` (the reasons), `again` (what is otherwise from its second timing on), `fault` (a kind), `sleep_s` (a
launch that takes so long), `until` (nothing is launched before that file is
in FOLDER). `FOLDER/log` gets one line a request:
"check t1@sm_90a normal tiny", "time t1@sm_90a parent=t0@sm_90a on tiny".
"""

from __future__ import annotations

import json
import math
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from faperf import bench, frames, record
from faperf.device import LaunchError
from faperf.job import Job, Task, blank_check, launch_of
from faperf.operations import BUILT_IN
from faperf.record import Check, Interval, Pair, Timing
from tests.compiling import script

NAME = "Fake H200"
CLASS = "fake-h200-700w-140gib"
UUID = "01234567-89ab-cdef-0123-456789abcdef"
CONTROL_MS = 1.0


def install(folder: Path) -> dict[str, str]:
    """Make a fake GPU host in `folder`. Returns the environment for a `faperf` that is to run on it."""
    python = folder / "python"
    for library in ("cupy", "cuda/bindings"):
        (python / library).mkdir(parents=True)
        (python / library / "__init__.py").write_text("raise ImportError('the stand-in is not to be used')\n")
    command = [sys.executable, str(Path(__file__)), str(folder)]
    (python / "sitecustomize.py").write_text(
        "import sys\n\n"
        "if {'run', 'diff', 'gate', 'bisect', 'calibrate', 'peers'} & set(sys.orig_argv):\n"
        "    import faperf.peers\n"
        "    import faperf.worker\n\n"
        f"    faperf.worker.Worker.__init__.__defaults__ = (None, {command!r})\n"
        f"    faperf.peers.CHILD = tuple({command!r})\n"
    )
    script(folder / "bin/nvidia-smi", f"echo '{NAME}, 9.0, 700.00, 143771, GPU-{UUID}'")
    (folder / "tmp").mkdir()
    root = str(Path(__file__).parents[1])
    return {
        "PATH": f"{folder / 'bin'}:{os.environ['PATH']}",
        "PYTHONPATH": f"{python}:{root}",
        "TMPDIR": str(folder / "tmp"),  # a card of its own, and so a lock of its own
    }


@contextmanager
def seen_here(folder: Path) -> Iterator[None]:
    """That host for a program that runs in this process (`conftest.cli_here`), with what `install` gave as its environment."""
    import pytest  # which the child does without

    from faperf import measuring, peering, worker

    command = [sys.executable, str(Path(__file__)), str(folder)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(worker.Worker.__init__, "__defaults__", (None, command))
        for room in (measuring, peering):
            patch.setattr(room, "CHILD", tuple(command))
        patch.setattr(sys, "path", [str(folder / "python"), *sys.path])  # where cupy is found, not imported
        patch.delitem(sys.modules, "cuda", raising=False)
        patch.setattr(tempfile, "tempdir", str(folder / "tmp"))
        yield
    sys.modules.pop("cuda", None)


def plan(folder: Path, **sides: dict[str, Any]) -> None:
    (folder / "plan.json").write_text(json.dumps(sides))


def log(folder: Path) -> list[str]:
    path = folder / "log"
    return path.read_text().splitlines() if path.exists() else []


def timed(folder: Path) -> list[str]:
    """The names of the sides that were timed, in order."""
    return [line.split()[1] for line in log(folder) if line.startswith("time ")]


def timing(job: Job, task: Task, ms: Callable[[str], float], noise: float = 1e-4) -> Timing:
    """A task's canned figures: `ms` of each side, and the control's."""
    side, workload = job.side(task.side), job.workload(task.workload)
    own = ms(task.side)

    def pair(role: str, build: str, version: str, theirs: float) -> Pair:
        ratio = math.log(own / theirs)
        count = job.protocol.instances
        spread = [ratio + noise * (n - (count - 1) / 2) for n in range(count)]
        time = Interval(value=ratio, low=spread[0], high=spread[-1])
        return Pair(role=role, build=build, version=version, time=time, instances=spread)

    pairs = [pair(role, job.side(name).build, job.side(name).version, ms(name)) for role, name in task.partners.items()]
    flops = 1  # of an operation that is not built in, which is not known here
    if side.operation in BUILT_IN:
        flops = BUILT_IN[side.operation].flops(workload.shape)
    return Timing(
        schema=record.SCHEMA,
        build=side.build,
        launch=launch_of(side, workload),
        workload=workload.name,
        shape=workload.shape,
        machine=job.run.machine,
        gpu=NAME,
        card="0123456789ab",
        driver="580.0",
        regime="burst",
        protocol=record.PROTOCOL_VERSION,
        ms=Interval(value=own, low=own * 0.999, high=own * 1.001),
        tflops=flops / own / 1e9,
        gib_s=1.0,
        launches=100,
        pairs=[
            *pairs,
            pair("control", f"{job.control.side.build}: 1.0" if job.control else "bcontrol", "control", CONTROL_MS),
        ],
    )


class FakeBench:
    """Stands in for `bench.Bench`."""

    def __init__(self, folder: Path, job: Job, tell: Callable[[frames.Answer], None]) -> None:
        self.folder, self.job, self.tell = folder, job, tell

    def ready(self) -> frames.Ready:
        return frames.Ready(NAME, "0123456789ab", "580.0", "9.0", [])

    def verify(self, request: frames.Verify) -> Check:
        side, workload = self.job.side(request.side), self.job.workload(request.workload)
        self._note(f"check {side.name} {request.distribution} {workload.name}")
        fate = self._fate(side.name)
        while "until" in fate and not (self.folder / fate["until"]).exists():
            time.sleep(0.02)
        self.tell(frames.Launching(side.timeout_s))
        time.sleep(fate.get("sleep_s", 0))
        if fault := fate.get("fault"):
            raise LaunchError(fault, f"{side.version} meets {fault}")
        self.tell(frames.Landed())
        blank = blank_check(self.job, side, workload, request.distribution, request.seed)
        return record.replace(
            blank, relative_l2=fate.get("relative_l2", 1e-4), max_abs=1e-3, bound=1e-3, failure=fate.get("wrong")
        )

    def time(self, task: Task) -> Timing:
        partners = " ".join(f"{role}={name}" for role, name in task.partners.items())
        self._note(f"time {task.side} {partners} on {task.workload}")
        noise = self._fate(task.side).get("noise", 1e-4)
        found = timing(self.job, task, lambda name: self._fate(name).get("ms", 1.0), noise)
        return record.replace(found, void=self._fate(task.side).get("void", []))

    def _fate(self, name: str) -> dict[str, Any]:
        path = self.folder / "plan.json"
        fates = json.loads(path.read_text()) if path.exists() else {}
        names = (name, self.job.side(name).build, name.partition("@")[0])
        fate: dict[str, Any] = next((fates[known] for known in names if known in fates), {})
        return fate | fate.get("again", {}) if timed(self.folder).count(name) > 1 else fate

    def _note(self, line: str) -> None:
        with (self.folder / "log").open("a") as file:
            file.write(f"{line}\n")


def main(folder: Path) -> None:
    bench.main(cast("Any", lambda job, operations, tell: FakeBench(folder, job, tell)))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
