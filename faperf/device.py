"""The GPU: what is here, loading cubins, launching and stamping. The only user of cupy, cuda.bindings and NVML."""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import importlib.util
import math
import os
import random
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from statistics import fmean
from typing import Any
from uuid import UUID

import msgspec

from faperf.chips import chip_of
from faperf.errors import MeasuringError
from faperf.launch import ResolvedArgument, ResolvedLaunch

QUERY = ("name", "compute_cap", "power.limit", "memory.total", "uuid")


@dataclass(frozen=True)
class Gpu:
    """A card as the driver names it. Power limit in watts, memory in MiB. `card` is a hash of its UUID."""

    name: str
    capability: str
    power_limit_w: float | None
    memory_mib: int | None
    card: str

    @property
    def machine_class(self) -> str:
        """GPU name, power limit and memory: what makes figures of two machines comparable."""
        parts = [self.name.lower().replace(" ", "-")]
        if self.power_limit_w:
            parts.append(f"{self.power_limit_w:.0f}w")
        if self.memory_mib:
            parts.append(f"{round(self.memory_mib / 1024)}gib")
        return "-".join(parts)

    def runs(self, target: str) -> bool:
        """Whether a cubin for `target` runs here: the same capability; sm_80 code runs on 8.6 and 8.9 too."""
        chip = chip_of(target)
        if chip is None:
            return False
        if target[-1].isalpha():
            return chip.capability == self.capability
        major, minor = map(int, self.capability.split("."))
        chip_major, chip_minor = map(int, chip.capability.split("."))
        return (chip_major, chip_minor <= minor) == (major, True)


LIBRARIES = {"cupy": "cupy", "cuda.bindings": "cuda-bindings"}
"""Module and package of what loads and launches; cuda.bindings makes tensor maps and launches in clusters."""


def missing_libraries() -> list[str]:
    """The packages that measuring needs and that are not installed. Looks without importing, which takes a second."""
    return [package for module, package in LIBRARIES.items() if not _installed(module)]


def can_measure() -> bool:
    return not missing_libraries()


def _installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # the package that the module is in
        return False


def find_gpu() -> tuple[Gpu | None, str | None]:
    """The first GPU that CUDA_VISIBLE_DEVICES lets a process see, or why there is none."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return None, "no NVIDIA driver on this machine (nvidia-smi is not there)"
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "0").partition(",")[0].strip()
    if not visible or visible.startswith("-"):
        return None, "CUDA_VISIBLE_DEVICES hides every GPU"
    try:
        answer = subprocess.run(
            [tool, f"--id={visible}", f"--query-gpu={','.join(QUERY)}", "--format=csv,noheader,nounits"],
            capture_output=True, text=True, timeout=30, check=True,
        )  # fmt: skip
        name, capability, power, memory, uuid = [cell.strip() for cell in answer.stdout.splitlines()[0].split(",")]
    except (OSError, subprocess.SubprocessError, IndexError, ValueError) as error:
        return None, f"nvidia-smi does not answer ({error})"
    return Gpu(name, capability, _number(power), int(n) if (n := _number(memory)) else None, card_of(uuid)), None


def required_gpu(why: str) -> Gpu:
    """The GPU that is here, with what it takes to measure on it. Raises MeasuringError, which begins with `why`."""
    gpu, reason = find_gpu()
    missing = ", ".join(missing_libraries())
    if gpu is None or missing:
        raise MeasuringError(f"{why}: {reason or f'{missing} is not installed'}", remedy="faperf doctor")
    return gpu


def card_of(uuid: str) -> str:
    """What a record says of a card instead of its UUID ("GPU-<8>-<4>-<4>-<4>-<12 hex digits>")."""
    return hashlib.sha256(uuid.encode()).hexdigest()[:12]


def _number(cell: str) -> float | None:
    try:
        return float(cell)
    except ValueError:
        return None


# ── faults ───────────────────────────────────────────────────────────────────────────────────────────────────────────

FAULTS = {
    "ILLEGAL_ADDRESS": "illegal address",
    "IllegalAddress": "illegal address",
    "MISALIGNED_ADDRESS": "misaligned address",
    "MisalignedAddress": "misaligned address",
    "ILLEGAL_INSTRUCTION": "illegal instruction",
    "IllegalInstruction": "illegal instruction",
    "LAUNCH_FAILED": "trap",
    "LaunchFailure": "trap",
    "HARDWARE_STACK_ERROR": "stack error",
    "OUT_OF_RESOURCES": "too many resources",
    "LaunchOutOfResources": "too many resources",
    "OUT_OF_MEMORY": "out of memory",
    "MemoryAllocation": "out of memory",
    "INVALID_VALUE": "launch refused",
    "InvalidValue": "launch refused",
    "InvalidConfiguration": "launch refused",
    "INVALID_CLUSTER_SIZE": "launch refused",
    "InvalidClusterSize": "launch refused",
    "NO_BINARY_FOR_GPU": "cubin of another architecture",
    "INVALID_IMAGE": "cubin of another architecture",
    "NOT_FOUND": "no such kernel",
}
"""CUDA's error names (driver's and runtime's spelling) and what a reader is told."""

CANNOT = "cannot run here"
"""A fault of another's implementation that refuses, or is not installed."""

HARMLESS = {
    CANNOT,
    "too many resources",
    "launch refused",
    "no such kernel",
    "cubin of another architecture",
    "out of memory",
}
"""Faults after which the context still works."""


class LaunchError(Exception):
    """A launch that CUDA refused or that ended in an error. `kind` is a value of FAULTS, or "CUDA error"."""

    def __init__(self, kind: str, detail: str) -> None:
        super().__init__(detail)
        self.kind = kind
        self.detail = detail

    @property
    def context_lost(self) -> bool:
        return self.kind not in HARMLESS

    @classmethod
    def of(cls, error: Exception) -> LaunchError:
        text = f"{type(error).__name__}: {error}"
        kind = next((kind for name, kind in FAULTS.items() if name in text), "CUDA error")
        return cls(kind, str(error))


class Block(msgspec.Struct, frozen=True):
    """A block of launches of one side: a launch's time, what the block took in all, and the mean SM clock. `ms` is the mean of
    the middle half: as robust as a median for our purpose, and finer than the 32 ns in which events count.

    `reasons` are the clock event reasons that the driver gave during the block, as NVML's bits.
    """

    ms: float
    elapsed_s: float
    clock_mhz: float | None = None
    reasons: int = 0


# ── the card ─────────────────────────────────────────────────────────────────────────────────────────────────────────

GUARD_BYTES = 64 * 1024
MAX_DYNAMIC_SHARED = 8
"""CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES"""
EVENT_REASONS = {
    0x1: "idle",
    0x2: "application clocks",
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake",
}
VOIDING_REASONS = 0x8 | 0x20 | 0x40 | 0x80
"""Thermal, hardware slowdown and power brake void a pair; a power cap is only noted."""


def reason_words(reasons: int) -> list[str]:
    return [word for bit, word in EVENT_REASONS.items() if reasons & bit and word != "idle"]


class Kernels:
    """One loaded cubin and the launches of one workload."""

    def __init__(self, cubin: bytes, launches: Sequence[ResolvedLaunch]) -> None:
        import cupy

        self._module = cupy.cuda.function.Module()
        try:
            self._module.load(cubin)
            self._prepared = [(self._function(launch), launch) for launch in launches]
        except Exception as error:
            raise LaunchError.of(error) from error

    def _function(self, launch: ResolvedLaunch) -> Any:
        import cupy

        function = self._module.get_function(launch.entry)
        if launch.smem > 48 * 1024:
            cupy.cuda.driver.funcSetAttribute(function.ptr, MAX_DYNAMIC_SHARED, launch.smem)
        return function if launch.cluster == (1, 1, 1) else _Clustered(function, launch.cluster)

    def bind(self, tensors: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        """What `launch` takes: each launch with its arguments as CUDA wants them, tensor maps made for where `tensors` lie."""
        return [
            (function, launch.grid, launch.block, tuple(_argument(a, tensors) for a in launch.args), launch.smem)
            for function, launch in self._prepared
        ]


def _argument(argument: ResolvedArgument, tensors: Mapping[str, Any]) -> Any:
    import numpy as np

    if argument.tensor:
        return tensors[argument.tensor]
    if argument.tensor_map:
        return tensor_map(tensors[argument.tensor_map], argument)
    kinds: dict[str | None, Any] = {
        "i32": np.int32, "u32": np.uint32, "i64": np.int64, "u64": np.uint64, "f32": np.float32, "f64": np.float64
    }  # fmt: skip
    return kinds[argument.type](argument.scalar or 0)


def tensor_map(tensor: Any, argument: ResolvedArgument) -> Any:
    """A CUtensorMap over a contiguous tensor, as a numpy scalar of 128 bytes that a launch passes by value.

    The driver's "Tensor Map Object Management": tiled, no interleave, lines of 256 bytes into L2, zeros for what lies outside.
    It holds the tensor's address: other buffers need other maps. Raises LaunchError.
    """
    import numpy as np
    from cuda.bindings import driver

    sizes, strides, box = tensor.shape[::-1], tensor.strides[::-1][1:], argument.box or []  # innermost first
    if len(box) != len(sizes):
        what = f"tensor map of {argument.tensor_map}: a box of {len(box)} dimensions for a tensor of {len(sizes)}"
        raise LaunchError("launch refused", what)
    kinds, modes = driver.CUtensorMapDataType, driver.CUtensorMapSwizzle
    kind = f"CU_TENSOR_MAP_DATA_TYPE_{str(tensor.dtype).upper()}"  # it has FLOAT16, FLOAT32, INT32, … of NumPy's names
    if not hasattr(kinds, kind):
        raise LaunchError("launch refused", f"there are no tensor maps of {tensor.dtype}, as {argument.tensor_map} is")
    error, made = driver.cuTensorMapEncodeTiled(
        getattr(kinds, kind),
        len(sizes),
        int(tensor.data.ptr),
        [driver.cuuint64_t(size) for size in sizes],
        [driver.cuuint64_t(stride) for stride in strides],
        [driver.cuuint32_t(size) for size in box],
        [driver.cuuint32_t(1)] * len(box),
        driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
        getattr(modes, f"CU_TENSOR_MAP_SWIZZLE_{f'{argument.swizzle}B' if argument.swizzle else 'NONE'}"),
        driver.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
        driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
    )
    if error:
        what = f"the driver makes no tensor map of {argument.tensor_map} ({error.name}): box {box} of {list(sizes)}"
        raise LaunchError("launch refused", f"{what}, swizzle {argument.swizzle}")
    content = np.array([int(word) for word in made.opaque], np.uint64)
    return content.view(np.dtype([("opaque", np.uint64, (len(content),))])).reshape(())


class _Clustered:
    """A kernel that is launched in clusters of CTAs; called as cupy's functions are, which have no such launch."""

    PORTABLE = 8
    """So many CTAs a cluster every card takes; more has to be allowed for each kernel."""

    def __init__(self, function: Any, cluster: tuple[int, int, int]) -> None:
        import cupy
        from cuda.bindings import driver

        self._function, self._driver = function, driver
        if math.prod(cluster) > self.PORTABLE:
            allowed = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED
            cupy.cuda.driver.funcSetAttribute(function.ptr, int(allowed), 1)
        size = driver.CUlaunchAttributeValue()
        size.clusterDim.x, size.clusterDim.y, size.clusterDim.z = cluster
        self._attribute = driver.CUlaunchAttribute()
        self._attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
        self._attribute.value = size

    def __call__(
        self, grid: tuple[int, ...], block: tuple[int, ...], arguments: Sequence[Any], *, shared_mem: int, stream: Any
    ) -> None:
        import numpy as np

        config = self._driver.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = grid
        config.blockDimX, config.blockDimY, config.blockDimZ = block
        config.sharedMemBytes, config.hStream = shared_mem, stream.ptr
        config.attrs, config.numAttrs = [self._attribute], 1
        held = [np.asarray(np.uint64(a.data.ptr) if hasattr(a.data, "ptr") else a) for a in arguments]
        parameters = (ctypes.c_void_p * len(held))(*(each.ctypes.data for each in held))
        (error,) = self._driver.cuLaunchKernelEx(config, self._function.ptr, ctypes.addressof(parameters), 0)
        if error:
            raise RuntimeError(error.name)


class Arena:
    """One placement of a set of tensors (dimensions and type), each with guard bands on both sides, in plain device allocations.

    `spread` allocations of random size go before them, so that every arena lies somewhere else.
    """

    def __init__(
        self, tensors: Mapping[str, tuple[tuple[int, ...], str]], *, spread: random.Random | None = None
    ) -> None:
        import cupy

        self._spacers = [cupy.cuda.memory.Memory(spread.randrange(1, 64) * 2**20) for _ in range(3)] if spread else []
        self._memory: list[Any] = []
        self.tensors: dict[str, Any] = {}
        self._guarded: dict[str, Any] = {}
        for name, (shape, dtype) in tensors.items():
            count = math.prod(shape) * cupy.dtype(dtype).itemsize
            offset = (spread.randrange(0, 64) * 4096) if spread else 0
            memory = cupy.cuda.memory.Memory(offset + count + 2 * GUARD_BYTES)
            pointer = cupy.cuda.MemoryPointer(memory, offset)
            whole = cupy.ndarray((count + 2 * GUARD_BYTES,), dtype=cupy.uint8, memptr=pointer)
            self._memory.append(memory)
            self._guarded[name] = whole
            self.tensors[name] = whole[GUARD_BYTES : GUARD_BYTES + count].view(dtype).reshape(shape)

    def poison(self, name: str, pattern: int) -> None:
        """Fill a tensor and its guard bands with a bit pattern of 16 bits."""
        import cupy

        self._guarded[name].view(cupy.uint16)[...] = pattern

    def overwritten(self, name: str, pattern: int) -> int:
        """How many 16-bit words of a tensor's guard bands no longer hold the pattern."""
        import cupy

        bits, edge = self._guarded[name].view(cupy.uint16), GUARD_BYTES // 2
        return int((bits[:edge] != pattern).sum()) + int((bits[-edge:] != pattern).sum())

    def addresses(self) -> dict[str, int]:
        return {name: int(tensor.data.ptr) for name, tensor in self.tensors.items()}


class Card:
    """The GPU of this process: its context, its counters, its control kernel."""

    CONTROL_ROUNDS = 1600

    def __init__(self) -> None:
        import cupy

        properties = cupy.cuda.runtime.getDeviceProperties(0)
        self.xp: Any = cupy
        self.sms = int(properties["multiProcessorCount"])
        self.l2_bytes = int(properties["l2CacheSize"])
        self.capability = f"{properties['major']}.{properties['minor']}"
        uuid = f"GPU-{UUID(bytes=bytes(properties['uuid'])[:16])}"
        self.card = card_of(uuid)
        self.name = properties["name"].decode()
        self._nvml = _Nvml(uuid)
        self.driver = self._nvml.driver
        self.stream = cupy.cuda.Stream(non_blocking=True)
        self._flush = cupy.cuda.memory.Memory(2 * max(self.l2_bytes, 2**20))
        self._events: list[tuple[Any, Any]] = []
        self._stamps = cupy.zeros((2, self.sms * 2), dtype=cupy.uint64)
        cubin = control_cubin(self.capability)
        self._control_module = cupy.cuda.function.Module()
        self._control_module.load(cubin)
        self._stamp = self._control_module.get_function("stamp")

    def wait(self) -> None:
        """Until all that was started on any stream is done."""
        self.xp.cuda.runtime.deviceSynchronize()

    def power_w(self) -> float | None:
        return self._nvml.power_w()

    def others(self) -> list[int]:
        """Process ids of other programs that compute on the card."""
        return self._nvml.others()

    def control(self) -> list[tuple[Any, ...]]:
        """The control kernel, loaded anew, bound to buffers of its own."""
        import cupy
        import numpy as np

        module = cupy.cuda.function.Module()
        module.load(control_cubin(self.capability))
        bits = cupy.random.default_rng(7).integers(0, 2**32, 65_536, dtype=cupy.uint32)
        out = cupy.zeros((65_536,), dtype=cupy.float32)
        arguments = (bits, out, np.int32(self.CONTROL_ROUNDS))
        return [(module.get_function("control"), (2 * self.sms, 1, 1), (256, 1, 1), arguments, 0)]

    def run_once(self, bound: Sequence[tuple[Any, ...]]) -> None:
        """Launch and wait. Raises LaunchError."""
        try:
            self._launch(bound)
            self.stream.synchronize()
        except Exception as error:
            raise LaunchError.of(error) from error

    @contextlib.contextmanager
    def profiled(self) -> Iterator[None]:
        """What is launched within is what `ncu --profile-from-start off` sees."""
        self.xp.cuda.runtime.profilerStart()
        yield
        self.xp.cuda.runtime.profilerStop()

    def mark(self) -> None:
        """A kernel that a profiler sees behind the work before it (counters.MARKER)."""
        with self.profiled():
            self._stamp_clocks(0)
            self.wait()

    def block(self, bound: Sequence[tuple[Any, ...]], launches: int) -> Block:
        """Launch so many times, L2 flushed before each outside of what is timed; clocks stamped around it all."""
        import cupy

        while len(self._events) < launches:
            self._events.append((cupy.cuda.Event(), cupy.cuda.Event()))
        events = self._events[:launches]
        try:
            self._stamp_clocks(0)
            for begin, end in events:
                cupy.cuda.runtime.memsetAsync(self._flush.ptr, 0, self._flush.size, self.stream.ptr)
                begin.record(self.stream)
                self._launch(bound)
                end.record(self.stream)
            self._stamp_clocks(1)
            reasons = self._nvml.reasons()
            self.stream.synchronize()
            times = sorted(cupy.cuda.get_elapsed_time(begin, end) for begin, end in events)
            elapsed = cupy.cuda.get_elapsed_time(events[0][0], events[-1][1]) / 1000
        except Exception as error:
            raise LaunchError.of(error) from error
        return Block(_middle_mean(times), elapsed, self._clock_mhz(), reasons)

    def _launch(self, bound: Sequence[tuple[Any, ...]]) -> None:
        for function, grid, block, arguments, smem in bound:
            function(grid, block, arguments, shared_mem=smem, stream=self.stream)

    def _stamp_clocks(self, slot: int) -> None:
        self._stamp((8 * self.sms, 1, 1), (32, 1, 1), (self._stamps[slot],), stream=self.stream)

    def _clock_mhz(self) -> float | None:
        """Cycles over nanoseconds between the two stamps of the same SM; the median over SMs."""
        import numpy as np

        before, after = self._stamps.get().astype(np.int64).reshape(2, -1, 2)
        cycles, nanoseconds = (after - before).T
        seen = (before[:, 1] > 0) & (nanoseconds > 0)
        return float(np.median(cycles[seen] / nanoseconds[seen]) * 1000) if seen.any() else None


def _middle_mean(ordered: Sequence[float]) -> float:
    """The mean of the values between the quartiles, ends included."""
    outside = (len(ordered) + 1) // 4
    return fmean(ordered[outside : len(ordered) - outside])


def preload() -> None:
    """Import what a card needs, which takes most of a second, without touching the card."""
    with contextlib.suppress(ImportError):
        import cupy
        import pynvml  # noqa: F401
        from cuda.bindings import driver  # noqa: F401

        cupy.random.default_rng  # noqa: B018 (loads what is imported on first use)


def control_cubin(capability: str) -> bytes:
    """The control kernel's cubin for a capability; that of the same major version where there is no closer one."""
    major, minor = capability.split(".")
    folder = resources.files("faperf") / "control"
    for number in (f"{major}{minor}", f"{major}0"):
        file = folder / f"control.sm_{number}.cubin"
        if file.is_file():
            return file.read_bytes()
    raise LaunchError(
        "cubin of another architecture", f"the control kernel has no build for compute capability {capability}"
    )


def control_identity(capability: str) -> str:
    """The build key of the control: frozen, so the digest of its cubin."""
    return "b" + hashlib.sha256(control_cubin(capability)).hexdigest()[:19]


class _Nvml:
    """Clock event reasons, power and other processes, where NVML can be asked; silence where not."""

    def __init__(self, uuid: str) -> None:
        self._handle: Any = None
        self.driver = ""
        try:
            import pynvml

            pynvml.nvmlInit()
            self._nvml: Any = pynvml
            self._handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
            self.driver = str(pynvml.nvmlSystemGetDriverVersion())
        except Exception:  # without NVML there is no library, no permission or no device: all the same to us
            self._handle = None

    def reasons(self) -> int:
        return int(self._ask("nvmlDeviceGetCurrentClocksEventReasons") or 0)

    def power_w(self) -> float | None:
        milliwatts = self._ask("nvmlDeviceGetPowerUsage")
        return milliwatts / 1000 if milliwatts else None

    def others(self) -> list[int]:
        processes: Iterator[Any] = iter(self._ask("nvmlDeviceGetComputeRunningProcesses") or ())
        return [int(process.pid) for process in processes if process.pid != os.getpid()]

    def _ask(self, function: str) -> Any:
        if self._handle is None:
            return None
        try:
            return getattr(self._nvml, function)(self._handle)
        except self._nvml.NVMLError:
            return None
