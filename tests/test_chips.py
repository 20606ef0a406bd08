"""Occupancy: by hand, and against NVIDIA's own calculator (cuda_occupancy.h). Targets and tensor paths."""

from __future__ import annotations

import itertools
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from faperf.chips import CHIPS, KIB, chip_of, occupancy, path_generation, targets_known, tensor_path

SOURCE = Path(__file__).parent / "data" / "occupancy.cpp"


def ctas(
    number: str, threads: int, registers: int, smem: int = 0, *, barriers: int = 0, tmem: int = 0
) -> tuple[int, str]:
    found = occupancy(
        CHIPS[number], threads=threads, registers=registers, smem=smem, barriers=barriers, tmem_columns=tmem
    )
    return found.ctas_per_sm, found.limiter


# ── by hand ──


@pytest.mark.parametrize("number", ["80", "90", "103"])
def test_seed_003(number: str) -> None:
    """255 · 32 = 8160 registers a warp → 8192; 65536 / 8192 = 8 warps; 128 threads are 4 → 2 CTAs."""
    assert ctas(number, 128, 255) == (2, "registers")


@pytest.mark.parametrize(
    ("number", "threads", "registers", "smem", "expected"),
    [
        # 168 · 32 = 5376 = 21 · 256 a warp. A quarter of the file is 16384 → 3 warps, 12 an SM, 3 CTAs of 4 warps.
        # (65536 / 5376 is 12.19, so the quarters make no difference here.)
        ("90", 128, 168, 0, (3, "registers")),
        # 88 · 32 = 2816 = 11 · 256. A quarter: 16384 / 2816 = 5.8 → 5 warps, 20 an SM: 5 CTAs of 4 warps.
        # Without the quarters it would be 65536 / 2816 = 23.3 warps, also 5 CTAs; for 1 warp a CTA 20, not 23:
        ("90", 32, 88, 0, (20, "registers")),
        # 97 registers are 3104 → 3328 = 13 · 256 a warp: 4 warps a quarter, 16 an SM, 1 CTA of 16 warps;
        ("90", 512, 97, 0, (1, "registers")),
        # 128 registers are 4096 exactly: 4 a quarter as well. One more register and a CTA of 512 does not start.
        ("90", 512, 128, 0, (1, "registers")),
        ("90", 512, 129, 0, (0, "registers")),
        ("90", 1024, 64, 0, (1, "registers")),
        ("90", 1024, 65, 0, (0, "registers")),
        # 64 warps: 2 CTAs of 32 warps; with 32 registers (1024 a warp) the file holds 64 warps as well.
        ("90", 1024, 32, 0, (2, "registers and threads")),
        ("90", 1024, 16, 0, (2, "threads")),
        # 33 threads are two warps: 32 CTAs of 2 warps are 64.
        ("90", 33, 16, 0, (32, "threads and blocks")),
        ("90", 65, 16, 0, (21, "threads")),
        ("90", 32, 16, 0, (32, "blocks")),
        # 8.9: 48 warps, 24 blocks
        ("89", 32, 16, 0, (24, "blocks")),
        ("89", 1024, 16, 0, (1, "threads")),
        ("86", 32, 16, 0, (16, "blocks")),
        # 228 KiB an SM, 1 KiB of it a CTA for the system: 227 → 1; 113 + 1 = 114 → 2; 113 KiB + 1 B → 114 KiB + 128 B → 1
        ("90", 128, 32, 227 * KIB, (1, "shared memory")),
        ("90", 128, 32, 113 * KIB, (2, "shared memory")),
        ("90", 128, 32, 113 * KIB + 1, (1, "shared memory")),
        # 58 KiB of the published v16: 59 → 3 of 228 (177; a fourth would be 236)
        ("103", 128, 32, 58 * KIB, (3, "shared memory")),
        # 130 KiB of the published v17: one CTA
        ("103", 128, 32, 130 * KIB, (1, "shared memory")),
        # 75 + 1 = 76 · 3 = 228
        ("100", 128, 32, 75 * KIB, (3, "shared memory")),
        ("100", 128, 32, 75 * KIB + 128, (2, "shared memory")),
        # 8.0: 164 KiB: 81 + 1 = 82 → 2
        ("80", 128, 32, 81 * KIB, (2, "shared memory")),
        ("80", 128, 32, 81 * KIB + 1, (1, "shared memory")),
        ("80", 128, 32, 163 * KIB, (1, "shared memory")),
        # both at once: 128 registers → 16 warps → 4 CTAs of 128; 56 + 1 = 57 · 4 = 228
        ("90", 128, 128, 56 * KIB, (4, "registers and shared memory")),
        # the published v16 on B300: 512 threads at 96 registers are 3072 a warp, 5 a quarter, 20 an SM: one CTA of 16
        ("103", 512, 96, 58 * KIB, (1, "registers")),
    ],
)
def test_by_hand(number: str, threads: int, registers: int, smem: int, expected: tuple[int, str]) -> None:
    assert ctas(number, threads, registers, smem) == expected


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        (512, (1, "TMEM")),
        (256, (2, "TMEM")),
        (128, (4, "TMEM")),
        (32, (16, "registers and threads")),  # 16 by TMEM too, see below
        (0, (16, "registers and threads")),
    ],
)
def test_tmem(columns: int, expected: tuple[int, str]) -> None:
    """512 columns an SM. 128 threads at 32 registers: 64 warps / 4 = 16 CTAs by threads and by registers."""
    count, limiter = ctas("103", 128, 32, tmem=columns)
    assert count == expected[0]
    assert limiter == (expected[1] + " and TMEM" if columns == 32 else expected[1])


def test_tmem_counts_only_where_there_is_some() -> None:
    assert ctas("90", 128, 32, tmem=512) == ctas("90", 128, 32)


@pytest.mark.parametrize(("barriers", "expected"), [(0, 32), (1, 32), (2, 32), (3, 21), (8, 8), (16, 4)])
def test_barriers(barriers: int, expected: int) -> None:
    """64 an SM. 1, 8 and 16 were measured on an H200 (580.159): 32, 8 and 4 CTAs of one warp were resident at once."""
    count, limiter = ctas("90", 32, 14, barriers=barriers)
    assert count == expected
    assert ("barriers" in limiter) == (barriers > 1)


def test_barriers_do_not_count_before_hopper() -> None:
    assert ctas("80", 32, 14, barriers=16) == (32, "blocks")


def test_a_kernel_that_does_not_fit_has_none() -> None:
    assert ctas("90", 1024, 255) == (0, "registers")
    assert ctas("90", 128, 32, 228 * KIB) == (0, "shared memory")


# ── by NVIDIA's calculator ──


def include_directory() -> Path | None:
    """Where cuda_occupancy.h is: with the nvcc on PATH, in a wheel, or in the usual place."""
    nvcc = shutil.which("nvcc")
    candidates = [
        *([Path(nvcc).resolve().parents[1] / "include"] if nvcc else []),
        *(found for entry in sys.path for found in Path(entry).glob("nvidia/cu*/include")),
        *sorted(Path("/usr/local").glob("cuda*/include"), reverse=True),
    ]
    return next((path for path in candidates if (path / "cuda_occupancy.h").is_file()), None)


@pytest.fixture(scope="module")
def calculator(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The compiled calculator; skips where the header or a C++ compiler is missing."""
    include, compiler = include_directory(), shutil.which("g++") or shutil.which("clang++")
    if include is None:
        pytest.skip(
            "cuda_occupancy.h is not here: no CUDA toolkit with headers beside nvcc, in a wheel or in /usr/local"
        )
    if compiler is None:
        pytest.skip("no g++ or clang++ to compile cuda_occupancy.h with")
    program = tmp_path_factory.mktemp("occupancy") / "occupancy"
    subprocess.run([compiler, "-O1", "-w", f"-I{include}", SOURCE, "-o", program], check=True)
    return program


THREADS = (1, 32, 33, 96, 128, 160, 192, 256, 288, 384, 512, 640, 800, 1024)
REGISTERS = (16, 32, 40, 48, 64, 65, 72, 88, 96, 97, 104, 128, 129, 152, 168, 200, 224, 232, 255)
SMEM_KIB = (0, 1, 7, 24, 44.6, 58, 75, 81, 99, 113, 113.001, 130, 163, 200, 227)


@pytest.mark.parametrize("number", ["80", "86", "89", "90", "100", "103", "120"])
def test_against_nvidia(number: str, calculator: Path) -> None:
    chip = CHIPS[number]
    major, _, minor = chip.capability.partition(".")
    device = f"{major} {minor} {chip.max_threads} {chip.smem_per_sm} {chip.smem_per_block} {chip.reserved_smem}"
    cases = [
        (threads, registers, round(smem * KIB), barriers)
        for threads, registers, smem in itertools.product(THREADS, REGISTERS, SMEM_KIB)
        for barriers in (1, 7)
        if round(smem * KIB) <= chip.smem_per_block
    ]
    questions = "".join(f"{device} {' '.join(map(str, case))}\n" for case in cases)
    answer = subprocess.run([calculator], input=questions, capture_output=True, text=True, check=True)
    theirs = [int(line) for line in answer.stdout.split()]
    assert len(theirs) == len(cases) > 4_000
    ours = [
        occupancy(chip, threads=threads, registers=registers, smem=smem, barriers=barriers).ctas_per_sm
        for threads, registers, smem, barriers in cases
    ]
    different = [(case, a, b) for case, a, b in zip(cases, ours, theirs, strict=True) if a != b]
    assert different == []
    assert len(set(theirs)) > 8  # the grid of cases reaches many outcomes


# ── targets and tensor paths ──


@pytest.mark.parametrize(
    ("target", "capability"),
    [
        ("sm_90a", "9.0"),
        ("sm_90", "9.0"),
        ("sm_103a", "10.3"),
        ("sm_103f", "10.3"),
        ("sm_100a", "10.0"),
        ("sm_80", "8.0"),
    ],
)
def test_chip_of(target: str, capability: str) -> None:
    chip = chip_of(target)
    assert chip is not None
    assert chip.capability == capability


@pytest.mark.parametrize("target", ["sm_91", "sm_90x", "compute_90", "90", "sm_", "", "SM_90", "sm_90a ", "sm_90aa"])
def test_no_chip(target: str) -> None:
    assert chip_of(target) is None


def test_every_known_target_has_a_chip() -> None:
    assert [chip_of(target) for target in targets_known()] == list(CHIPS.values())
    assert "sm_90a" in targets_known()


@pytest.mark.parametrize(
    ("opcodes", "path", "generation"),
    [
        ({}, "", 0),
        ({"FFMA": 100}, "", 0),
        ({"HMMA": 128, "FFMA": 9}, "HMMA", 1),
        ({"HMMA": 0, "HGMMA": 4}, "HGMMA", 2),
        ({"UTCHMMA": 8}, "UTCHMMA", 3),
        ({"UTCHMMA": 8, "HMMA": 64}, "HMMA+UTCHMMA", 1),  # v14: the slower half counts
    ],
)
def test_tensor_path(opcodes: dict[str, int], path: str, generation: int) -> None:
    assert tensor_path(opcodes) == path
    assert path_generation(path) == generation
