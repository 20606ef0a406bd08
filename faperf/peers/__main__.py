"""The child that runs peers beside our kernels: `python -m faperf.peers MODULES` talks as a worker's child does.

With `--each BUNDLE SIDE WORKLOAD …` it launches sides of a bundle once each, for a profiler.
"""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

from faperf.bench import main
from faperf.device import LaunchError
from faperf.job import Job
from faperf.operations import Operations
from faperf.peers._bench import PeerBench


def each(bundle: Path, *works: str) -> None:
    """Launch works (side, workload, side, workload, …) once each, a marker behind each, for a profiler."""
    job = msgspec.msgpack.decode(bundle.read_bytes(), type=Job)
    operations = Operations({})
    bench = PeerBench(job, operations, lambda answer: None)
    for name, workload in zip(works[::2], works[1::2], strict=True):
        side = job.side(name)
        distribution = operations[side.operation].distributions[0]
        try:
            bench.launch(side, job.workload(workload), distribution, job.seeds[0], profiled=True)
        except LaunchError as fault:
            print(f"{name}: {fault.kind}: {fault.detail}", file=sys.stderr)
        bench.card.mark()


if __name__ == "__main__":
    _, modules, *rest = sys.argv
    if modules not in sys.path:
        sys.path.insert(0, modules)
    if rest:
        each(Path(rest[1]), *rest[2:])
    else:
        main(PeerBench)
