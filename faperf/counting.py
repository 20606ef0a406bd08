"""`faperf run --counters`: what the hardware counts in one launch of each version that was measured."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from faperf import record
from faperf.building import Outcome, Selection, Workshop
from faperf.chips import chip_of
from faperf.counters import DRAM, L2, OCCUPANCY, SHARED_PIPE, TENSOR_ACTIVE, Counted, Ncu
from faperf.device import Gpu
from faperf.errors import ForbiddenError, MeasuringError
from faperf.figures import path_of, silicon_of
from faperf.manifest import load_manifests
from faperf.measuring import the_card, workloads_to_measure
from faperf.metrics import activity_meaning, corrected_in, padding
from faperf.operations import load_operations, tiled_by
from faperf.record import Counters, Entry, Timing


class Row(msgspec.Struct, frozen=True):
    """A version's counters on a workload, with the clock-corrected MFU of that very launch and what activity over it means."""

    version: str
    counters: Counters
    corrected_mfu: float | None
    ratio: float | None
    meaning: str | None


class Counting(msgspec.Struct, frozen=True):
    """What `--counters` gave: `refused` says in a line why there are none, `notes` what was left out."""

    rows: list[Row]
    refused: str | None = None
    notes: list[str] = []
    recorded: Path | None = None


def count_versions(
    workshop: Workshop, selection: Selection, outcome: Outcome, wanted: Sequence[str], gpu: Gpu | None, nvcc: str | None
) -> Counting:
    """Profile each version of `selection` that `gpu` has run right, on the workloads that are wanted; record what was counted."""
    if gpu is None:
        return Counting([], "no counters: there is no GPU here")
    try:
        ncu = Ncu(gpu.capability)
    except MeasuringError as error:
        return Counting([], str(error))
    notes = [f"not known to this ncu: {', '.join(ncu.missing)}"] if ncu.missing else []
    found: list[Counters] = []
    refused = None
    for version, target, timing in _measured(workshop, selection, outcome, wanted, gpu):
        workshop.progress.say(f"counting a launch of {version} for {target} on {timing.workload}")
        command = [sys.executable, "-m", "faperf", "-C", str(workshop.project.root), "exec", version, "--once"]
        command += ["--target", target, "--workload", timing.workload, *(["--nvcc", nvcc] if nvcc else [])]
        try:
            with the_card(gpu.card, workshop.progress.say):
                seen = ncu.count(command, os.environ)
        except ForbiddenError as error:
            refused = str(error)
            break
        except MeasuringError as error:
            notes.append(f"{version} for {target} on {timing.workload}: {error}")
            continue
        entry = outcome.run.entry(version, target)
        if seen and seen[0] and entry:
            found.append(_record(seen[0], entry, timing, gpu, workshop))
    return Counting(_rows(workshop, outcome, found), refused, notes, _filed(workshop, found))


def _measured(
    workshop: Workshop, selection: Selection, outcome: Outcome, wanted: Sequence[str], gpu: Gpu
) -> list[tuple[str, str, Timing]]:
    """(version, target, timing) of what ran right."""
    manifests = load_manifests(workshop.project)
    found: list[tuple[str, str, Timing]] = []
    for version, target in selection.steps(manifests):
        if not gpu.runs(target):
            continue
        for workload in workloads_to_measure(version, manifests, wanted):
            measured = silicon_of(workshop.history, outcome.run, workload.name).get((version.id, target))
            if measured and measured.timing and not measured.failures:
                found.append((version.id, target, measured.timing))
    return found


def _filed(workshop: Workshop, found: Sequence[Counters]) -> Path | None:
    return workshop.history.file_counters(found) if found else None


def _record(counted: Counted, entry: Entry, timing: Timing, gpu: Gpu, workshop: Workshop) -> Counters:
    return Counters(
        schema=record.SCHEMA,
        build=entry.build or "",
        launch=entry.launches[timing.workload],
        workload=timing.workload,
        shape=timing.shape,
        machine=workshop.history.class_here(gpu.machine_class),
        gpu=gpu.name,
        card=gpu.card,
        driver=timing.driver,
        ncu=counted.ncu,
        ms=counted.ms,
        sms=counted.sms,
        sm_cycles=counted.sm_cycles,
        tensor_active=counted.shares.get(TENSOR_ACTIVE),
        path_flops=counted.path_flops,
        stalls=counted.stalls,
        occupancy=counted.shares.get(OCCUPANCY),
        l2=counted.shares.get(L2),
        dram=counted.shares.get(DRAM),
        shared_pipe=counted.shares.get(SHARED_PIPE),
        local_bytes=counted.local_bytes,
        entry=counted.entry,
        hot=counted.hot,
    )


def _rows(workshop: Workshop, outcome: Outcome, found: Sequence[Counters]) -> list[Row]:
    """With what the activity means for each version's path and tile."""
    manifests, operations = load_manifests(workshop.project), load_operations(workshop.project)
    rows = []
    for counters in found:
        entry = next(e for e in outcome.run.entries if e.build == counters.build)
        version, chip = manifests.versions[entry.version], chip_of(entry.target)
        operation = operations[version.operation.name]
        extents = tiled_by(operation, counters.shape)
        padded = padding(extents, (version.tile.m, version.tile.n)) if extents else 1.0
        rate = chip.tensor_flops_per_clock if chip else None
        own = corrected_in(operation.flops(counters.shape), counters.sm_cycles, counters.sms, rate)
        ratio = counters.tensor_active / own if own and counters.tensor_active else None
        path = path_of(outcome.builds[counters.build])
        meaning = activity_meaning(ratio, path, chip.capability, padded) if ratio and chip else None
        rows.append(Row(entry.version, counters, own, ratio, meaning))
    return rows
