"""Tensors in emulated memory, and resolved launches over them."""

from __future__ import annotations

import math
import random
import struct
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np

from faperf.emulator import (
    LOCKSTEP,
    ops_arithmetic,
    ops_call,
    ops_cluster,
    ops_data,
    ops_sm80,
    ops_sm90,
    ops_sm100,
    ops_sm100_mma,
)
from faperf.emulator.decode import Program, decode
from faperf.emulator.fault import NotEmulatedError
from faperf.emulator.memory import Global
from faperf.emulator.ops_sm90 import MAP_MAGIC, TensorMap
from faperf.emulator.provenance import Origins
from faperf.emulator.ptx import Instruction, Kernel, Module
from faperf.emulator.schedule import Scheduler
from faperf.emulator.state import CLOCK_BITS, Path, Wave
from faperf.launch import ResolvedArgument, ResolvedLaunch

PACKS = (ops_arithmetic, ops_data, ops_call, ops_sm80, ops_sm90, ops_cluster, ops_sm100, ops_sm100_mma)
"""Importing a pack registers its opcodes."""
LANES = 8192
"""Lanes that run together, about: more make numpy's calls longer, fewer make more calls."""
SMEM_LIMIT = 227 * 1024
SCALARS = {"i32": "<i", "u32": "<I", "i64": "<q", "u64": "<Q", "f32": "<f", "f64": "<d"}


def cluster_of(kernel: Kernel, grid: tuple[int, int, int], cluster: tuple[int, int, int]) -> tuple[int, int, int]:
    """The clusters that a launch has: its own, or those that the kernel was compiled for. Raises NotEmulatedError."""
    if kernel.cluster != (1, 1, 1) and cluster not in ((1, 1, 1), kernel.cluster):
        raise NotEmulatedError(f"a launch in clusters of {cluster} of a kernel that was compiled for {kernel.cluster}")
    found = kernel.cluster if cluster == (1, 1, 1) else cluster
    if any(size % part for size, part in zip(grid, found, strict=True)):
        remedy = "" if cluster == found else " (a manifest that says cluster too gets workloads that they divide)"
        raise NotEmulatedError(f"a grid of {grid} in clusters of {found}, which do not divide it{remedy}")
    return found


class Device:
    """Tensors in emulated memory, and the launches that run over them.

    `tensors` maps each name to its array; they are copied in. With `exact_sums` matrix products are summed bit for bit
    as an H200 sums them (`tensor_core`), which is slow.
    """

    def __init__(self, module: Module, tensors: Mapping[str, Any], exact_sums: bool = False) -> None:
        self.module, self.exact_sums = module, exact_sums
        self.memory = Global()
        self.addresses = {name: self.memory.add(name, content) for name, content in tensors.items()}
        self.shapes = {name: content.shape for name, content in tensors.items()}
        self.units = {name: content.itemsize for name, content in tensors.items()}
        self.executed = 0
        """Warp-instructions, over all launches."""
        self.warnings: dict[str, None] = {}
        """What is often harmless, over all launches."""
        self.follows_origins = False
        self.notes: dict[str, None] = {}
        """What `provenance` found out of order, where origins are followed."""
        self.trace: Callable[[Path, Instruction], None] | None = None
        self._maps: list[TensorMap] = []
        self._variables: dict[str, int] = {}
        for variable in [*module.variables, *(v for k in module.kernels.values() for v in k.variables)]:
            if variable.space in ("global", "const"):
                content = np.zeros(variable.size, np.uint8)
                content[: len(variable.content)] = np.frombuffer(variable.content, np.uint8)
                self._variables[variable.name] = self.memory.add(variable.name, content)
        self.memory.seal()

    def program(self, entry: str) -> Program:
        """Raises NotEmulatedError."""
        if entry not in self.module.kernels:
            raise NotEmulatedError(f"the PTX has no kernel {entry}")
        return decode(self.module, entry)

    def launch(
        self, launch: ResolvedLaunch, schedule: str = LOCKSTEP, seed: int = 0, sample: int | None = None
    ) -> None:
        """Run every CTA, or `sample` of them drawn by the seed. Raises DiagnosisError and NotEmulatedError.

        What a sample has stored `memory.stored` tells.
        """
        content = [self._argument(argument) for argument in launch.args]
        self.run(launch.entry, launch.grid, launch.block, launch.cluster, launch.smem, content, schedule, seed, sample)

    def run(
        self, entry: str, grid: tuple[int, int, int], block: tuple[int, int, int], cluster: tuple[int, int, int], smem: int,
        arguments: Sequence[bytes], schedule: str = LOCKSTEP, seed: int = 0, sample: int | None = None,
    ) -> None:  # fmt: skip
        """A launch as the driver takes it: the bytes of each parameter, and shapes in CTAs and threads."""
        program = self.program(entry)
        cluster = cluster_of(program.kernel, grid, cluster)
        parameters = bytearray()
        for content, (_, size, align) in zip(arguments, program.kernel.parameters, strict=True):
            parameters += bytes(-len(parameters) % align) + content + bytes(size - len(content))
        (x, y, z), (cx, cy, cz), size = grid, cluster, math.prod(cluster)
        ctas = [(i, j, k) for k, j, i in product(range(0, z, cz), range(0, y, cy), range(0, x, cx))]
        if sample is not None and sample < len(ctas) * size:
            ctas = [ctas[n] for n in sorted(random.Random(seed).sample(range(len(ctas)), max(1, sample // size)))]
        together = max(1, LANES // (-(-block[0] * block[1] * block[2] // 32) * 32 * size))
        kept = Origins(self.memory) if self.follows_origins else None
        wave: Wave | None = None
        for first in range(0, len(ctas), together):
            wave = Wave(program, ctas[first : first + together], grid, block, self.memory, smem, wave, cluster)
            wave.extra["parameters"], wave.extra["maps"] = bytes(parameters), self._maps
            wave.extra["exact_sums"], wave.extra["origins"] = self.exact_sums, kept
            for row, name in program.global_rows:
                wave.registers[64][row] = self._variables[name]
            scheduler = Scheduler(wave, schedule, seed + first)
            scheduler.traced = self.trace
            try:
                scheduler.run()
                wave.barriers.finish()
                if "tmem" in wave.extra:
                    wave.extra["tmem"].finish()
                if int(wave.clocks.max()) >> CLOCK_BITS:
                    raise NotEmulatedError(f"a warp that comes to barriers more than {1 << CLOCK_BITS:,} times")
            finally:
                self.executed += wave.executed
                self.warnings |= wave.warnings
                self.notes |= dict.fromkeys(kept.notes.values()) if kept is not None else {}

    def _argument(self, argument: ResolvedArgument) -> bytes:
        if argument.tensor is not None:
            return struct.pack("<Q", self.addresses[argument.tensor])
        if argument.scalar is not None and argument.type is not None:
            return struct.pack(SCALARS[argument.type], argument.scalar)
        assert argument.tensor_map is not None
        assert argument.box is not None
        shape, box = self.shapes[argument.tensor_map], tuple(argument.box)
        if len(shape) != len(box):
            raise NotEmulatedError(f"a tensor map of {len(box)} dimensions over a tensor of {len(shape)}")
        unit = self.units[argument.tensor_map]
        if argument.swizzle and box[0] * unit > argument.swizzle:
            raise NotEmulatedError(f"a tensor map with rows of {box[0] * unit} bytes and swizzle {argument.swizzle}")
        sizes = tuple(reversed(shape))
        strides = [unit]
        for size in sizes[:-1]:
            strides.append(strides[-1] * size)
        address = self.addresses[argument.tensor_map]
        return self.encode(TensorMap(address, sizes, tuple(strides), box, argument.swizzle, unit))

    def encode(self, tensor: TensorMap) -> bytes:
        """128 bytes that kernels of this device know as the tensor map."""
        if tensor not in self._maps:
            self._maps.append(tensor)
        return (MAP_MAGIC + struct.pack("<I", self._maps.index(tensor))).ljust(128, b"\0")
