"""Which programs of NVIDIA's CUTLASS (the PyPI package `nvidia-cutlass`: examples and headers) run, and how each is judged."""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import numpy as np

from faperf.emulator import LOCKSTEP
from faperf.toolchain import Toolchain
from tests.conftest import REPOSITORY

PACKAGE = "nvidia-cutlass"
KEPT = REPOSITORY / ".faperf" / "external"
"""Programs as they were built; compiling one takes half a minute."""
HERE = Path(__file__).parent


def cutlass() -> Path | None:
    """The package's examples and headers, or None where it is not installed."""
    found = importlib.util.find_spec("cutlass_library")
    if found is None or not found.submodule_search_locations:
        return None
    return Path(found.submodule_search_locations[0]) / "source"


def curand() -> Path | None:
    """The header that example 77 fills its inputs with: a wheel of its own."""
    found = importlib.util.find_spec("nvidia")
    places = [Path(place) for place in (found.submodule_search_locations or ())] if found else []
    return next((header.parent for place in places for header in place.glob("*/include/curand_kernel.h")), None)


@dataclass(frozen=True)
class Run:
    """What a program said and did. `sent` and `fetched` are its copies to the device and back, in their order."""

    code: int
    output: str
    sent: list[bytes]
    fetched: list[bytes]


@dataclass(frozen=True)
class Program:
    """`target` is what nvcc compiles for, `capability` what the device says it is. `right` judges a run."""

    name: str
    source: str
    target: str
    capability: str
    arguments: tuple[str, ...]
    right: Callable[[Run], bool]
    defines: tuple[str, ...] = ()

    def command(self, toolchain: Toolchain, where: Path) -> list[str | Path]:
        root = cutlass()
        assert root is not None
        folders = [root / "include", root / "tools/util/include", root / "examples/common", (root / self.source).parent]
        folders += filter(None, [curand()])
        architecture = f"compute_{self.target.removeprefix('sm_')}"
        return [
            *nvcc(toolchain), "-Xcompiler", "-O0,-w", "--expt-relaxed-constexpr", "-lineinfo",
            *(f"-I{folder}" for folder in folders),
            *(f"-D{name}" for name in self.defines), "-gencode", f"arch={architecture},code={architecture}",
            "--keep", "--keep-dir", where, "-o", where / "program.so", root / self.source, f"-L{KEPT}", "-lstandin",
            "-Xlinker", f"-rpath={KEPT}",
        ]  # fmt: skip

    def build(self, toolchain: Toolchain) -> tuple[Path, Path]:
        """(program, PTX), compiled once for each version of the compiler and the package. Raises CalledProcessError."""
        KEPT.mkdir(parents=True, exist_ok=True)
        with (KEPT / "lock").open("w") as lock:  # tests run side by side
            fcntl.flock(lock, fcntl.LOCK_EX)
            stand_in(toolchain)
            return self._build(toolchain)

    def _build(self, toolchain: Toolchain) -> tuple[Path, Path]:
        parts = (metadata.version(PACKAGE), toolchain.identity.nvcc, self.source, self.target, self.defines)
        where = KEPT / f"{Path(self.source).stem}-{hashlib.sha256(repr(parts).encode()).hexdigest()[:12]}"
        ptx = where / f"{Path(self.source).stem}.ptx"
        if not (where / "done").exists():
            where.mkdir(parents=True, exist_ok=True)
            subprocess.run(self.command(toolchain, where), check=True, timeout=1200, env=_plain())
            for part in where.iterdir():
                if part not in (ptx, where / "program.so"):
                    part.unlink()
            (where / "done").touch()
        return where / "program.so", ptx

    def run(
        self, toolchain: Toolchain, scratch: Path, broken: str = "", arguments: tuple[str, ...] = (),
        schedule: str = LOCKSTEP,
    ) -> Run:  # fmt: skip
        """`broken`: what the device gets wrong, as `host.py` knows it."""
        program, ptx = self.build(toolchain)
        options: list[str | Path] = ["--copies", scratch, "--schedule", schedule]
        options += ["--break", broken] if broken else []
        command = [sys.executable, "-m", "tests.external.host", *options, program, ptx, self.capability]
        done = subprocess.run(
            [*command, *(arguments or self.arguments)],
            capture_output=True,
            text=True,
            timeout=3600,
            cwd=REPOSITORY,
            check=False,
        )
        sent, fetched = (
            [path.read_bytes() for path in sorted(scratch.glob(f"*.{kind}"))] for kind in ("sent", "fetched")
        )
        return Run(done.returncode, done.stdout + done.stderr, sent, fetched)


def stand_in(toolchain: Toolchain) -> None:
    """The library that stands for libcudart."""
    source, made = HERE / "cudart.cpp", KEPT / "libstandin.so"
    if made.exists() and made.stat().st_mtime > source.stat().st_mtime:
        return
    subprocess.run([*nvcc(toolchain), "-o", made, source], check=True, timeout=300, env=_plain())


def nvcc(toolchain: Toolchain) -> list[str | Path]:
    """What builds a shared library without libcudart."""
    folders = [f"-I{folder}" for folder in toolchain.includes]
    options = ["-std=c++17", "-cudart", "none", "-shared", "-Xcompiler", "-fPIC"]
    return [toolchain.nvcc, "-ccbin", toolchain.host, *options, *folders]


def _plain() -> dict[str, str]:
    """Without options that someone's environment adds to every nvcc."""
    return {
        name: value for name, value in os.environ.items() if name not in ("NVCC_APPEND_FLAGS", "NVCC_PREPEND_FLAGS")
    }


# ── judges ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def says(text: str) -> Callable[[Run], bool]:
    """The program's own verdict."""
    return lambda run: run.code == 0 and text in run.output


def product(m: int, n: int, k: int, transposed: str, bound: float) -> Callable[[Run], bool]:
    """The tutorials that print only a time: the matrices that they sent, multiplied here, against what they fetched.

    BLAS's words: A is column-major m x k, B column-major k x n, with T row-major; C is column-major. All are f16. `bound` is on
    the relative L2 error.
    """

    def right(run: Run) -> bool:
        if run.code != 0 or len(run.sent) < 2 or not run.fetched:
            return False
        a, b, c = (np.frombuffer(part, np.float16).astype(np.float64) for part in (*run.sent[:2], run.fetched[0]))
        left = a.reshape(m, k) if transposed[0] == "T" else a.reshape(k, m).T
        other = b.reshape(k, n) if transposed[1] == "T" else b.reshape(n, k).T
        wanted = left @ other
        return bool(np.linalg.norm(c.reshape(n, m).T - wanted) <= bound * np.linalg.norm(wanted))

    return right


# ── the programs ─────────────────────────────────────────────────────────────────────────────────────────────────────

TUTORIAL = "examples/cute/tutorial"
SUCCESS = says("Execution is successful.")


def _gemm(name: str, source: str, target: str, capability: str, transposed: str, bound: float) -> Program:
    m, n, k = 256, 128, 256
    arguments = (str(m), str(n), str(k), *transposed)
    return Program(name, f"{TUTORIAL}/{source}", target, capability, arguments, product(m, n, k, transposed, bound))


def _blackwell(number: str, source: str, m: int = 256, n: int = 256) -> Program:
    """Those in clusters of 4 x 4 CTAs need four tiles of 128 x 256 each way."""
    arguments = (str(m), str(n), "128")
    return Program(f"blackwell {number}", f"{TUTORIAL}/blackwell/{source}", "sm_103a", "10.0", arguments, SUCCESS)


PROGRAMS = {
    program.name: program
    for program in (
        _gemm("sgemm_sm80", "sgemm_sm80.cu", "sm_80", "8.0", "TN", 2e-3),
        _gemm("wgmma_sm90 NT", "hopper/wgmma_sm90.cu", "sm_90a", "9.0", "NT", 0),
        _gemm("wgmma_sm90 TN", "hopper/wgmma_sm90.cu", "sm_90a", "9.0", "TN", 0),
        _gemm("wgmma_tma_sm90 NT", "hopper/wgmma_tma_sm90.cu", "sm_90a", "9.0", "NT", 0),
        _gemm("wgmma_tma_sm90 TN", "hopper/wgmma_tma_sm90.cu", "sm_90a", "9.0", "TN", 0),
        _blackwell("01", "01_mma_sm100.cu"),
        _blackwell("02", "02_mma_tma_sm100.cu"),
        _blackwell("03", "03_mma_tma_multicast_sm100.cu", 512, 1024),
        _blackwell("04", "04_mma_tma_2sm_sm100.cu", 512, 1024),
        _blackwell("05", "05_mma_tma_epi_sm100.cu", 512, 1024),
        Program(
            "77_blackwell_fmha", "examples/77_blackwell_fmha/77_blackwell_fmha.cu", "sm_100a", "10.0",
            ("--b=1", "--h=1", "--q=256", "--k=256", "--d=128", "--verify", "--iterations=1", "--warmup_iterations=0"),
            says("[OK]"), ("FP16",),
        ),
    )
}  # fmt: skip


def controls_of(program: Program) -> list[str]:
    """What a device may get wrong for this program to notice: matrices that it sends, and swizzles of its tensor maps."""
    scaled = not program.name.startswith("77")  # it makes its inputs on the device
    swizzled = not program.name.startswith(("sgemm", "wgmma_sm90", "blackwell 01"))
    return [what for what, on in (("scale", scaled), ("swizzle", swizzled)) if on]
