"""The child that runs peers beside our kernels: `python -m faperf.peers MODULES` talks as a worker's child does.

With `--once BUNDLE SIDE WORKLOAD` it launches a side of a bundle once, for a profiler.
"""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

from faperf.device import LaunchError
from faperf.job import Job
from faperf.operations import Operations
from faperf.peers._bench import PeerBench
from faperf.worker import main


def once(bundle: Path, side: str, workload: str) -> None:
    job = msgspec.msgpack.decode(bundle.read_bytes(), type=Job)
    chosen, shape = job.side(side), job.workload(workload)
    operations = Operations({})
    bench = PeerBench(job, operations, lambda answer: None)
    try:
        bench.launch(chosen, shape, operations[chosen.operation].distributions[0], job.seeds[0], profiled=True)
    except LaunchError as fault:
        raise SystemExit(f"{side}: {fault.kind}: {fault.detail}") from fault


if __name__ == "__main__":
    _, modules, *rest = sys.argv
    if modules not in sys.path:
        sys.path.insert(0, modules)
    if rest:
        once(Path(rest[1]), rest[2], rest[3])
    else:
        main(PeerBench)
