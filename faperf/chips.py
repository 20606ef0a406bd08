"""What each chip can hold and do: limits, occupancy arithmetic, tensor paths.

Limits are those of the CUDA programming guide's table of compute capabilities; the ones that `cudaDeviceProp` also
tells are the same there. A target is an architecture string as nvcc takes it (`sm_103a`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

KIB = 1024
WARP = 32
MAX_REGISTERS_PER_THREAD = 255
MAX_THREADS_PER_BLOCK = 1024


@dataclass(frozen=True)
class Chip:
    """One compute capability. Shared memory in bytes; registers (32-bit), warps, blocks, barriers are counted per SM.

    `barriers` 0: they do not limit what is resident (before Hopper, says cuda_occupancy.h). `peak_tflops` is the vendor's dense
    fp16 figure, which the tensor cores reach at `peak_mhz`: SMs × `tensor_flops_per_clock` × that clock. `ex2_per_clock` is of
    the special-function units of an SM.
    """

    capability: str
    gpus: str
    smem_per_sm: int
    smem_per_block: int
    reserved_smem: int
    warps: int
    blocks: int
    max_cluster: int
    tmem_columns: int = 0
    registers: int = 65_536
    register_unit: int = 256
    smem_unit: int = 128
    barriers: int = 64
    peak_tflops: float | None = None
    peak_mhz: float | None = None
    tensor_flops_per_clock: int | None = None
    ex2_per_clock: int | None = None

    @property
    def max_threads(self) -> int:
        return self.warps * WARP


CHIPS = {
    "80": Chip(
        "8.0", "A100", 164 * KIB, 163 * KIB, KIB, 64, 32, 1, barriers=0,
        peak_tflops=312, peak_mhz=1410, tensor_flops_per_clock=2048, ex2_per_clock=16,
    ),
    "86": Chip("8.6", "A10, RTX 30", 100 * KIB, 99 * KIB, KIB, 48, 16, 1, barriers=0),
    "89": Chip("8.9", "L4, L40, RTX 40", 100 * KIB, 99 * KIB, KIB, 48, 24, 1, barriers=0),
    "90": Chip(
        "9.0", "H100, H200", 228 * KIB, 227 * KIB, KIB, 64, 32, 16,
        peak_tflops=989, peak_mhz=1830, tensor_flops_per_clock=4096, ex2_per_clock=16,
    ),
    "100": Chip(
        "10.0", "B200", 228 * KIB, 227 * KIB, KIB, 64, 32, 16, tmem_columns=512,
        peak_tflops=2250, peak_mhz=1856, tensor_flops_per_clock=8192, ex2_per_clock=16,
    ),
    "103": Chip(  # rates per clock are inferred from what is published of its clock and of its exp unit
        "10.3", "B300", 228 * KIB, 227 * KIB, KIB, 64, 32, 16, tmem_columns=512,
        tensor_flops_per_clock=8192, ex2_per_clock=32,
    ),
    "120": Chip("12.0", "RTX 50", 100 * KIB, 99 * KIB, KIB, 48, 24, 8, barriers=24),
}  # fmt: skip

MEMORY_TB_S = {"A100": 2.0, "H100": 3.35, "H200": 4.8, "B200": 7.7, "B300": 7.7}
"""Datasheet bandwidth in 10¹² bytes a second of the SXM parts, which one compute capability does not tell apart."""


def memory_tb_s(gpu: str) -> float | None:
    """The bandwidth of a GPU by the name that its driver gives it ("NVIDIA H200"); None for one that is not known."""
    return next((rate for name, rate in MEMORY_TB_S.items() if name in gpu.split()), None)


TARGET = re.compile(r"sm_(\d+)([af]?)")


def chip_of(target: str) -> Chip | None:
    """The chip that a target such as `sm_103a` names, or None where faperf does not know it."""
    match = TARGET.fullmatch(target)
    return CHIPS.get(match[1]) if match else None


def targets_known() -> list[str]:
    """Every target that faperf knows, for messages."""
    special = {"90", "100", "103", "120"}
    return [f"sm_{number}{'a' if number in special else ''}" for number in CHIPS]


@dataclass(frozen=True)
class Occupancy:
    """How many CTAs fit on one SM at once, and what stops one more (`registers`, `registers and threads`, …)."""

    ctas_per_sm: int
    limiter: str


def occupancy(
    chip: Chip, *, threads: int, registers: int, smem: int, barriers: int = 0, tmem_columns: int = 0
) -> Occupancy:
    """CTAs per SM for a CTA of `threads` threads, `registers` a thread and `smem` bytes of static and dynamic shared memory.

    Registers are given to warps in units of 256, shared memory in units of 128 B, and each CTA takes 1 KiB more of
    shared memory for the system; the SM's hardware barriers are shared out too. Checked against NVIDIA's cuda_occupancy.h,
    and against seed 003: 255 registers × 128 threads → 2 CTAs.
    """
    warps = -(-threads // WARP)
    registers_per_warp = _round_up(max(registers, 1) * WARP, chip.register_unit)
    # Warps are spread over four schedulers, each with its own quarter of the register file.
    warps_by_registers = 4 * (chip.registers // 4 // registers_per_warp)
    limits = {
        "registers": warps_by_registers // warps,
        "shared memory": chip.smem_per_sm // _round_up(smem + chip.reserved_smem, chip.smem_unit),
        "threads": chip.warps // warps,
        "blocks": chip.blocks,
    }
    if barriers and chip.barriers:
        limits["barriers"] = chip.barriers // barriers
    if tmem_columns and chip.tmem_columns:
        limits["TMEM"] = chip.tmem_columns // tmem_columns
    fewest = min(limits.values())
    return Occupancy(fewest, " and ".join(name for name, limit in limits.items() if limit == fewest))


def _round_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit


TENSOR_PATHS = {"HMMA": 1, "HGMMA": 2, "UTCHMMA": 3}
"""SASS opcodes of the fp16 tensor paths and their generation: mma.sync, wgmma, tcgen05.mma."""


PATH_SHARE = {
    ("HMMA", "8.0"): 1.0,
    ("HMMA", "9.0"): 0.660,
    ("HGMMA", "9.0"): 1.0,
    ("HMMA", "10.0"): 0.25,
    ("HMMA", "10.3"): 0.25,
    ("UTCHMMA", "10.0"): 1.0,
    ("UTCHMMA", "10.3"): 1.0,
}
"""What share of a chip's tensor rate a path reaches. On Hopper as benchmarks/path_ceiling.py measured it on an H200 (2702 and
4096 FLOPs per clock and SM). HMMA on Blackwell by counters that others read there: 512 FLOPs per active cycle of a tensor core
where UTCHMMA does 2048. See docs/mfu.md."""


def path_share(path: str, capability: str) -> float | None:
    """The ceiling of a path such as `HMMA+UTCHMMA`, as a share of the peak; None where one is not known.

    Of several, each is taken to do an equal part of the FLOPs, as QK and PV of an attention kernel are.
    """
    shares = [PATH_SHARE.get((name, capability)) for name in path.split("+") if name]
    known = [share for share in shares if share]
    return len(known) / sum(1 / share for share in known) if known and len(known) == len(shares) else None


def tensor_path(opcodes: dict[str, int]) -> str:
    """The tensor paths among opcode counts, oldest first and joined by `+` (`HMMA+UTCHMMA`); empty when there is none."""
    return "+".join(path for path in TENSOR_PATHS if opcodes.get(path))


def path_generation(path: str) -> int:
    """The oldest generation in a path such as `HMMA+UTCHMMA`: what part of the work is slowest. 0 for none."""
    return min((TENSOR_PATHS[name] for name in path.split("+") if name), default=0)
