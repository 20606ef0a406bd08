"""A build on the CPU: the same launch, inputs, reference and comparison as on silicon, by `emulator` instead of a card."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import numpy as np

from faperf import record
from faperf.emulator import LOCKSTEP
from faperf.emulator.emulate import Device
from faperf.emulator.fault import DiagnosisError
from faperf.emulator.ptx import Module, parse
from faperf.launch import ResolvedLaunch, launch_digest
from faperf.operations import Operation
from faperf.record import Check
from faperf.verify import POISON, compare

SEED = 20_261_130
BY = "emulator"


class Subject(msgspec.Struct, frozen=True, kw_only=True):
    """What is emulated: a build's PTX with its launches for one workload, and how wrong it may be."""

    build: str
    ptx: str
    launches: list[ResolvedLaunch]
    workload: str
    shape: dict[str, int]
    layout: str
    ratio_to_fp16: float | None = None
    bound: float | None = None


class Emulation:
    """Checks of one operation's kernels. Parsed PTX, inputs and references are kept."""

    def __init__(self, operation: Operation, seed: int = SEED) -> None:
        self.operation, self.seed = operation, seed
        self.executed = 0
        """Warp-instructions, over all checks."""
        self._modules: dict[str, Module] = {}
        self._truth: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {}

    def check(self, subject: Subject, distribution: str, schedule: str = LOCKSTEP, trace: Any = None) -> Check:
        """Emulate and compare. A diagnosis is a failed check. Raises NotEmulatedError."""
        inputs, reference, baseline = self._inputs(subject, distribution)
        size = self.operation.dimensions(subject.shape, subject.layout)
        tensors = {}
        for name in self.operation.tensors:
            tensors[name] = inputs[name] if name in inputs else np.full(size, POISON, np.uint16).view(np.float16)
        check = Check(
            schema=record.SCHEMA,
            build=subject.build,
            launch=launch_digest(subject.launches),
            workload=subject.workload,
            shape=subject.shape,
            operation=self.operation.name,
            operation_version=self.operation.version,
            by=BY,
            distribution=distribution,
            seed=self.seed,
            schedule=schedule,
        )
        if subject.build not in self._modules:
            self._modules[subject.build] = parse(subject.ptx)
        device = Device(self._modules[subject.build], tensors)
        device.trace = trace
        try:
            for launch in subject.launches:
                device.launch(launch, schedule, self.seed)
        except DiagnosisError as diagnosis:
            return record.replace(check, fault=diagnosis.kind, failure=f"{diagnosis.kind}: {diagnosis}")
        finally:
            self.executed += device.executed
        (output,) = self.operation.outputs
        accuracy = compare(
            np,
            device.memory.content(output),
            reference[output],
            baseline[output],
            subject.layout,
            ratio=subject.ratio_to_fp16,
            bound=subject.bound,
        )
        return record.replace(
            check,
            relative_l2=accuracy.relative_l2,
            max_abs=accuracy.max_abs if math.isfinite(accuracy.max_abs) else None,
            baseline_l2=accuracy.baseline_l2,
            bound=accuracy.bound,
            failure=accuracy.failure,
        )

    def _inputs(self, subject: Subject, distribution: str) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        """(inputs, float64 reference, plain fp16 result), worked out once."""
        key = f"{subject.layout} {sorted(subject.shape.items())} {distribution}"
        if key not in self._truth:
            inputs = self.operation.inputs(np, subject.shape, subject.layout, distribution, self.seed)
            arguments = (np, inputs, subject.shape, subject.layout)
            self._truth[key] = (inputs, self.operation.reference(*arguments), self.operation.plain_fp16(*arguments))
        return self._truth[key]
