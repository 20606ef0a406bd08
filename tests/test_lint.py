"""`faperf check` without a compiler: each problem by one small change to a good project."""

from __future__ import annotations

from pathlib import Path

import pytest

from faperf.lint import lint
from faperf.manifest import load_manifests
from faperf.operations import load_operations
from tests.conftest import UserProject

T1, T2, WORKLOADS = "manifests/t1.yaml", "manifests/t2.yaml", "manifests/workloads.yaml"
BLOCK, GRID = "block: [64]", 'grid: ["S / 64", "B * H"]'


@pytest.fixture
def good(bare: UserProject) -> UserProject:
    """t1 and its child t2, with nothing wrong."""
    bare.version("t1")
    bare.version("t2", "t1")
    return bare


def problems(project: UserProject) -> list[str]:
    manifests = load_manifests(project.project)
    return [str(problem) for problem in lint(project.project, manifests, load_operations(project.project))]


def test_a_good_project_has_none(good: UserProject) -> None:
    assert problems(good) == []


def test_everything_that_is_allowed_at_once(good: UserProject) -> None:
    """At each limit, not over it: 1024 threads, 227 KiB, a cluster of 16, 255 registers."""
    good.edit(T1, BLOCK, "block: [512, 2]\n    smem: 227 * 1024\n    cluster: [2]")
    good.edit(T1, "tile:", "budgets: {registers: 255, spill_bytes: 0, smem_bytes: 232448, ctas_per_sm: 1}\ntile:")
    good.edit(T1, "tile:", "tolerance: {ratio_to_fp16: 2.0, bound: 0.01}\nflags: [-maxrregcount=128]\ntile:")
    assert problems(good) == []


# One change each: file, old, new → the one problem.
CHANGES = {
    "unknown parent": (T2, "parent: t1", "parent: t9", f"{T2}, parent: there is no version 't9'"),
    "its own parent": (T2, "parent: t1", "parent: t2", f"{T2}, parent: is its own ancestor: t2 → t2"),
    "unknown target": (T1, "[sm_90a]", "[sm_91a]", f"{T1}, targets: unknown target 'sm_91a' (known: sm_80, sm_86"),
    "target that is no target": (T1, "[sm_90a]", "[compute_90]", f"{T1}, targets: unknown target 'compute_90'"),
    "unknown workload": (
        T1, "[tiny]", "[tinny]", f"{T1}, workloads: workloads.yaml has no 'tinny' (it has: tiny)",
    ),
    "unknown operation": (
        T1, "name: attention_forward", "name: attention", f"{T1}, operation: unknown operation 'attention'",
    ),
    "unknown layout": (T1, "BSHD", "BDSH", f"{T1}, operation: unknown layout 'BDSH' (known: BSHD, BHSD)"),
    "unknown tensor": (
        T1, "{tensor: O}", "{tensor: P}", f"{T1}, args: attention_forward has no tensor 'P' (it has: Q, K, V, O)",
    ),
    "a map of too few dimensions": (
        T1, "{tensor: O}", "{tensor_map: Q, box: [64, 64]}",
        f"{T1}, args: tensor map of Q: a box of 2 dimensions; the tensor has D, H, S, B (workload tiny)",
    ),
    "a box that is too long": (
        T1, "{tensor: O}", "{tensor_map: Q, box: [64, 1, 257, 1]}",
        f"{T1}, args: tensor map of Q: 257 elements along a dimension of the box; at most 256 (workload tiny)",
    ),
    "a box with odd lines": (
        T1, "{tensor: O}", "{tensor_map: Q, box: [12, 1, 64, 1]}",
        f"{T1}, args: tensor map of Q: lines of 24 bytes; they must be multiples of 16 (workload tiny)",
    ),
    "a box wider than its swizzle": (
        T1, "{tensor: O}", "{tensor_map: Q, box: [64, 1, 64, 1], swizzle: 64}",
        f"{T1}, args: tensor map of Q: lines of 128 bytes are longer than the swizzle of 64 (workload tiny)",
    ),
    "unknown tensor in a map": (
        T1, "{tensor: O}", "{tensor_map: P, box: [64]}", f"{T1}, args: attention_forward has no tensor 'P'",
    ),
    "grid that does not divide": (T1, "S / 64", "S / 48", f"{T1}, grid, workload tiny: 'S / 48': 128 / 48 leaves 32"),
    "grid of nothing": (T1, "S / 64", "S // 256", f"{T1}, grid, workload tiny: 'S // 256' gives 0; the least is 1"),
    "name that the workload lacks": (T1, "B * H", "B * HQ", f"{T1}, grid, workload tiny: 'B * HQ' names HQ"),
    "code for a grid": (T1, "B * H", "exit()", f"{T1}, grid, workload tiny: 'exit()': only + - *"),
    "number that is no number": (
        T1, BLOCK, f"{BLOCK}\n    smem: 99999999999999999999999", f"{T1}, smem, workload tiny: a number of 77 bits",
    ),
    "too many threads": (T1, BLOCK, "block: [512, 3]", f"{T1}, block: 1536 threads; a CTA has at most 1024"),
    "one thread too many": (T1, BLOCK, "block: [1025]", f"{T1}, block: 1025 threads; a CTA has at most 1024"),
    "block too deep": (T1, BLOCK, "block: [1, 1, 65]", f"{T1}, block: block.z is 65; at most 64"),
    "grid.y too large": (T1, "B * H", "B * 65536", f"{T1}, grid: grid.y is 65536; at most 65535"),
    "too much shared memory": (
        T1, BLOCK, f"{BLOCK}\n    smem: 227 * 1024 + 1",
        f"{T1}, smem: 232449 bytes; a CTA on sm_90a gets at most 232448 (workload tiny)",
    ),
    "negative shared memory": (
        T1, BLOCK, f"{BLOCK}\n    smem: -1", f"{T1}, smem, workload tiny: '-1' gives -1; the least is 0",
    ),
    "cluster too large": (
        T1, f"{GRID}\n    {BLOCK}", f"grid: [32]\n    {BLOCK}\n    cluster: [32]",
        f"{T1}, cluster: 32 CTAs; sm_90a takes at most 16",
    ),
    "cluster that does not divide": (
        T1, BLOCK, f"{BLOCK}\n    cluster: [1, 3]", f"{T1}, cluster: 3 does not divide grid.y = 2",
    ),
    "scalar too large for its type": (
        T1, "{scalar: S, type: i32}", '{scalar: "S * 16777216", type: i32}',
        f"{T1}, args, workload tiny: 'S * 16777216' gives 2147483648, which i32 does not hold",
    ),
    "negative scalar for an unsigned type": (
        T1, "{scalar: S, type: i32}", '{scalar: "-S", type: u32}', "'-S' gives -128, which u32 does not hold",
    ),
    "register budget": (T1, "tile:", "budgets: {registers: 256}\ntile:", f"{T1}, budgets.registers: 256; a thread has"),
    "no registers": (T1, "tile:", "budgets: {registers: 0}\ntile:", f"{T1}, budgets.registers: 0; a thread has 16 to"),
    "odd spill budget": (
        T1, "tile:", "budgets: {spill_bytes: 6}\ntile:", f"{T1}, budgets.spill_bytes: 6; registers spill by 4 bytes",
    ),
    "negative spill budget": (T1, "tile:", "budgets: {spill_bytes: -4}\ntile:", f"{T1}, budgets.spill_bytes: -4"),
    "shared memory budget": (
        T1, "tile:", "budgets: {smem_bytes: 232449}\ntile:", f"{T1}, budgets.smem_bytes: 232449 bytes; no target",
    ),
    "CTA budget": (T1, "tile:", "budgets: {ctas_per_sm: 0}\ntile:", f"{T1}, budgets.ctas_per_sm: 0; a kernel"),
    "tolerance of nothing": (T1, "tile:", "tolerance: {bound: 0}\ntile:", f"{T1}, tolerance.bound: 0"),
    "negative tolerance": (
        T1, "tile:", "tolerance: {ratio_to_fp16: -2}\ntile:", f"{T1}, tolerance.ratio_to_fp16: -2",
    ),
    "tolerance that is no number": (T1, "tile:", "tolerance: {bound: .nan}\ntile:", f"{T1}, tolerance.bound: nan"),
    "tolerance without end": (T1, "tile:", "tolerance: {bound: .inf}\ntile:", f"{T1}, tolerance.bound: inf"),
    "source of another version": (
        T1, "kernels/t1.cu", "kernels/t2.cu", f"{T1}, source: 'kernels/t2.cu' should have the manifest's stem: t1.cu",
    ),
    "missing source": (T1, "kernels/t1.cu", "kernels/t0.cu", f"{T1}, source: 'kernels/t0.cu' does not exist"),
    "source that is a directory": (T1, "kernels/t1.cu", "kernels", f"{T1}, source: 'kernels' does not exist"),
    "source outside": (T1, "kernels/t1.cu", "../t1.cu", f"{T1}: source '../t1.cu' is not a plain path inside"),
}  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_change(change: str, good: UserProject) -> None:
    file, old, new, problem = CHANGES[change]
    good.edit(file, old, new)
    found = [text for text in problems(good) if T1 in text or file == T2]
    assert len(found) == 1, found
    assert problem in found[0]


def test_a_problem_names_every_workload_it_has(good: UserProject) -> None:
    good.edit(WORKLOADS, "S: 128", "S: [128, 192, 200]")
    assert [text.partition(": ")[0] for text in problems(good) if T1 in text] == [
        f"{T1}, grid, workload tiny[S=200]",  # 128 and 192 are multiples of 64
    ]


def test_the_tightest_target_counts(good: UserProject) -> None:
    good.edit(T1, "[sm_90a]", "[sm_80, sm_90a]")
    good.edit(T1, BLOCK, f"{BLOCK}\n    smem: 200 * 1024\n    cluster: [2]")
    assert problems(good) == [
        f"{T1}, smem: 204800 bytes; a CTA on sm_80 gets at most 166912 (workload tiny)",  # 163 KiB
        f"{T1}, cluster: 2 CTAs; sm_80 takes at most 1 (workload tiny)",
    ]


def test_a_source_that_leaves_by_a_symlink(good: UserProject, tmp_path: Path) -> None:
    outside = tmp_path / "outside.cu"
    outside.write_text("secret")
    (good.root / "kernels/t1.cu").unlink()
    (good.root / "kernels/t1.cu").symlink_to(outside)
    assert problems(good) == [f"{T1}, source: 'kernels/t1.cu' lies outside the project"]


def test_a_source_behind_a_linked_directory(good: UserProject, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "t1.cu").write_text("secret")
    (good.root / "linked").symlink_to(tmp_path / "elsewhere")
    good.edit(T1, "kernels/t1.cu", "linked/t1.cu")
    assert problems(good) == [f"{T1}, source: 'linked/t1.cu' lies outside the project"]


def test_a_cycle_of_two(good: UserProject) -> None:
    good.edit(T1, "title:", "parent: t2\ntitle:")
    assert problems(good) == [
        f"{T1}, parent: is its own ancestor: t1 → t2 → t1",
        f"{T2}, parent: is its own ancestor: t2 → t1 → t2",
    ]


def test_a_version_below_a_cycle_is_not_blamed(good: UserProject) -> None:
    good.edit(T1, "title:", "parent: t2\ntitle:")
    good.version("t3", "t2")
    assert not [text for text in problems(good) if "t3.yaml" in text]


def test_a_workload_of_another_operation(good: UserProject) -> None:
    good.edit(WORKLOADS, "operation: attention_forward", "operation: attention_backward")
    assert f"{T1}, workloads: tiny is of operation attention_backward, the version of attention_forward" in problems(
        good
    )


@pytest.mark.parametrize("shape", ["{B: 1, H: 2, S: 128}", "{B: 1, H: 2, S: 128, D: 64, E: 1}"])
def test_a_workload_must_give_the_operations_parameters(shape: str, good: UserProject) -> None:
    good.edit(WORKLOADS, "{B: 1, H: 2, S: 128, D: 64}", shape)
    assert f"{T1}, workloads: tiny must give B, H, S, D" in problems(good)


def test_no_workloads_file(good: UserProject) -> None:
    (good.root / WORKLOADS).unlink()
    assert problems(good)[0] == f"{T1}, workloads: workloads.yaml has no 'tiny' (it has: none)"


def test_broken_files_come_first_with_their_place(good: UserProject) -> None:
    good.edit(T1, "block: [64]", "block: [2048]")
    good.write("manifests/zz.yaml", "schema: [\n")
    first, second = problems(good)
    assert first.startswith("manifests/zz.yaml:2: not valid YAML")
    assert second.startswith(f"{T1}, block: 2048 threads")


# ── -maxrregcount and __launch_bounds__ ──

PARAMETERS = "(const float* Q, float* O, int S)"
NO_EFFECT = f"{T1}, flags: -maxrregcount=64 has no effect: copy has __launch_bounds__ in kernels/t1.cu"


@pytest.mark.parametrize(
    ("code", "warns"),
    [
        (f"__global__ void __launch_bounds__(64) copy{PARAMETERS} {{}}", True),
        (f'extern "C" __global__ void __launch_bounds__(64, 2) copy{PARAMETERS} {{}}', True),
        (f"__global__ void\n__launch_bounds__(THREADS + 32,\n 1)\ncopy{PARAMETERS}\n{{}}", True),
        (f"__global__ __launch_bounds__ (64) void copy{PARAMETERS} {{}}", True),
        (f"__launch_bounds__(64) __global__ void copy{PARAMETERS} {{}}", True),
        (f"__global__ void __launch_bounds__(64) copy{PARAMETERS};\n__global__ void copy{PARAMETERS} {{}}", True),
        (
            "__global__ void __launch_bounds__(64) copy(const __grid_constant__ CUtensorMap Q, float* __restrict__ O) {}",
            True,
        ),
        (f"__global__ void copy{PARAMETERS} {{}}", False),
        (f"__global__ void /* __launch_bounds__(64) */ copy{PARAMETERS} {{}}", False),
        (f"__global__ void // __launch_bounds__(64)\ncopy{PARAMETERS} {{}}", False),
        (
            f"// __global__ void __launch_bounds__(64) copy{PARAMETERS} {{}}\n__global__ void copy{PARAMETERS} {{}}",
            False,
        ),
        (
            f"/*\n__global__ void __launch_bounds__(64) copy{PARAMETERS} {{}}\n*/\n__global__ void copy{PARAMETERS} {{}}",
            False,
        ),
        (f"__global__ void __launch_bounds__(64) other() {{}}\n__global__ void copy{PARAMETERS} {{}}", False),
        (f"__global__ void copy{PARAMETERS} {{}}\n__global__ void __launch_bounds__(64) other() {{}}", False),
        (f"#define UNUSED \\\n  __launch_bounds__(64)\n__global__ void copy{PARAMETERS} {{}}", False),
        (
            f"__global__ void __launch_bounds__(64) copy_all{PARAMETERS} {{}}\n__global__ void copy{PARAMETERS} {{}}",
            False,
        ),
    ],
)
def test_a_register_flag_that_launch_bounds_override(code: str, warns: bool, good: UserProject) -> None:
    good.edit(T1, "tile:", "flags: [-maxrregcount=64]\ntile:")
    good.write("kernels/t1.cu", code)
    found = problems(good)
    assert len(found) == warns
    assert all(NO_EFFECT in text for text in found)


def test_launch_bounds_without_the_flag_are_fine(good: UserProject) -> None:
    good.write("kernels/t1.cu", f"__global__ void __launch_bounds__(64) copy{PARAMETERS} {{}}")
    assert problems(good) == []


def test_a_source_that_is_not_text(good: UserProject) -> None:
    good.edit(T1, "tile:", "flags: [-maxrregcount=64]\ntile:")
    (good.root / "kernels/t1.cu").write_bytes(b"\xff\xfe\x00 __global__ void copy() {}")
    assert problems(good) == []
