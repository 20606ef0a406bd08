"""A manifest's launches as plain numbers, their digest, and whether a cubin can take them."""

from __future__ import annotations

import hashlib

import pytest

from faperf.errors import ManifestError
from faperf.launch import ResolvedArgument, ResolvedLaunch, launch_digest
from faperf.manifest import SCALAR_BYTES, Argument, Launch, OperationUse, Tile, Version, Workload, load_manifests
from faperf.record import Build, KernelFacts, Toolchain
from faperf.resolve import kernel_for, resolve
from tests.conftest import UserProject

SHAPE = {"B": 2, "H": 3, "S": 256, "D": 64}
TINY = Workload("tiny", "tiny", "attention_forward", SHAPE)


def version(**changes: object) -> Version:
    """A version with one launch of 64 threads; `changes` replace what the launch has."""
    launch: dict[str, object] = {
        "entry": "copy",
        "grid": ["S / 64", "B * H"],
        "block": [64],
        "smem": "4 * D",
        "args": [
            Argument(tensor_map="Q", box=[64, 128], swizzle=128),
            Argument(tensor="O"),
            Argument(scalar="S", type="i32"),
        ],
    }
    return Version(
        schema=1,
        id="t1",
        title="t1",
        source="kernels/t1.cu",
        targets=["sm_90a"],
        operation=OperationUse(name="attention_forward", layout="BSHD"),
        workloads=["tiny"],
        tile=Tile(m=64, n=64),
        launches=[Launch(**(launch | changes))],  # type: ignore[arg-type]
    )


def digest(changed: Version, workload: Workload = TINY) -> str:
    return launch_digest(resolve(changed, workload))


def test_resolve() -> None:
    (launch,) = resolve(version(), TINY)
    assert launch == ResolvedLaunch(
        entry="copy",
        grid=(4, 6, 1),
        block=(64, 1, 1),
        cluster=(1, 1, 1),
        smem=256,
        args=[
            ResolvedArgument(tensor_map="Q", box=[64, 128], swizzle=128),
            ResolvedArgument(tensor="O"),
            ResolvedArgument(scalar=256, type="i32"),
        ],
    )
    assert launch.threads == 64


def test_threads_are_a_product() -> None:
    assert resolve(version(block=[32, 4, 2]), TINY)[0].threads == 256


@pytest.mark.parametrize(
    ("changes", "where", "words"),
    [
        ({"grid": ["S / 100"]}, "grid", "256 / 100 leaves 56"),
        ({"grid": [0]}, "grid", "'0' gives 0; the least is 1"),
        ({"block": ["D - 64"]}, "block", "'D - 64' gives 0; the least is 1"),
        ({"cluster": [0]}, "cluster", "the least is 1"),
        ({"smem": -4}, "smem", "'-4' gives -4; the least is 0"),
        ({"args": [Argument(scalar="T", type="i32")]}, "args", "names T, which the workload lacks"),
    ],
)
def test_arithmetic_that_does_not_work_out(changes: dict[str, object], where: str, words: str) -> None:
    with pytest.raises(ManifestError) as caught:
        resolve(version(**changes), TINY)
    assert caught.value.where == f"manifests/t1.yaml, {where}, workload tiny"
    assert words in caught.value.what


@pytest.mark.parametrize(
    ("type_", "value", "fits"),
    [
        ("i32", 2**31 - 1, True),
        ("i32", 2**31, False),
        ("i32", -(2**31), True),
        ("i32", -(2**31) - 1, False),
        ("u32", 2**32 - 1, True),
        ("u32", 2**32, False),
        ("u32", -1, False),
        ("i64", 2**63 - 1, True),
        ("u64", 2**63 - 1, True),
        ("u64", -1, False),
        ("i32", 0.5, False),
        ("f32", 0.5, True),
        ("f32", 3, True),
        ("f32", (2 - 2**-23) * 2.0**127, True),
        ("f32", 3.5e38, False),
        ("f64", 3.5e38, True),
    ],
)
def test_a_scalar_must_fit_its_type(type_: str, value: float, fits: bool) -> None:
    changed = version(args=[Argument(scalar=value, type=type_)])
    if fits:
        assert resolve(changed, TINY)[0].args[0].scalar == value
    else:
        with pytest.raises(ManifestError, match=f"which {type_} does not hold|0.5 is no integer"):
            resolve(changed, TINY)


# ── the digest of a launch ──

CHANGES: dict[str, dict[str, object]] = {
    "grid": {"grid": ["S / 32", "B * H"]},
    "grid transposed": {"grid": ["B * H", "S / 64"]},
    "block": {"block": [128]},
    "block of the same threads": {"block": [32, 2]},
    "cluster": {"cluster": [2]},
    "smem": {"smem": "8 * D"},
    "entry": {"entry": "other"},
    "swizzle": {
        "args": [
            Argument(tensor_map="Q", box=[64, 128], swizzle=64),
            Argument(tensor="O"),
            Argument(scalar="S", type="i32"),
        ]
    },
    "box": {
        "args": [
            Argument(tensor_map="Q", box=[64, 64], swizzle=128),
            Argument(tensor="O"),
            Argument(scalar="S", type="i32"),
        ]
    },
    "tensor": {
        "args": [
            Argument(tensor_map="Q", box=[64, 128], swizzle=128),
            Argument(tensor="K"),
            Argument(scalar="S", type="i32"),
        ]
    },
    "pointer for map": {"args": [Argument(tensor="Q"), Argument(tensor="O"), Argument(scalar="S", type="i32")]},
    "scalar": {
        "args": [
            Argument(tensor_map="Q", box=[64, 128], swizzle=128),
            Argument(tensor="O"),
            Argument(scalar="D", type="i32"),
        ]
    },
    "scalar type": {
        "args": [
            Argument(tensor_map="Q", box=[64, 128], swizzle=128),
            Argument(tensor="O"),
            Argument(scalar="S", type="i64"),
        ]
    },
    "order of arguments": {
        "args": [
            Argument(tensor="O"),
            Argument(tensor_map="Q", box=[64, 128], swizzle=128),
            Argument(scalar="S", type="i32"),
        ]
    },
}


@pytest.mark.parametrize("change", CHANGES)
def test_digest_changes_with(change: str) -> None:
    assert digest(version(**CHANGES[change])) != digest(version())


def test_all_changes_differ_from_each_other() -> None:
    assert len({digest(version(**change)) for change in CHANGES.values()}) == len(CHANGES)


def test_digest_does_not_change_with_the_workloads_name_or_how_a_number_is_written() -> None:
    assert digest(version(), Workload("other", "family", "attention_forward", dict(SHAPE))) == digest(version())
    assert digest(version(grid=["cdiv(S, 64)", 6, 1], block=[64, 1, 1], smem=256, cluster=[1])) == digest(version())


def test_digest_changes_with_the_numbers_that_the_launch_takes_from_the_workload() -> None:
    assert digest(version(), Workload("tiny", "tiny", "attention_forward", SHAPE | {"S": 512})) != digest(version())


def test_digest_is_what_history_holds() -> None:
    """Stored in every run, so it must not move: the first 16 digits of the SHA-256 of this text."""
    text = (
        '[{"entry":"copy","grid":[4,6,1],"block":[64,1,1],"cluster":[1,1,1],"smem":256,"args":['
        '{"tensor_map":"Q","box":[64,128],"swizzle":128},{"tensor":"O"},{"scalar":256,"type":"i32"}]}]'
    )
    assert digest(version()) == hashlib.sha256(text.encode()).hexdigest()[:16]


def test_a_split_in_two_launches_is_another_launch() -> None:
    (launch,) = resolve(version(), TINY)
    assert launch_digest([launch]) != launch_digest([launch, launch])


def test_manifest_to_launch(bare: UserProject) -> None:
    bare.version("t1")
    manifests = load_manifests(bare.project)
    (launch,) = resolve(manifests.versions["t1"], manifests.workloads["tiny"])
    assert (launch.grid, launch.block, launch.smem) == ((2, 2, 1), (64, 1, 1), 0)
    assert launch.args[2] == ResolvedArgument(scalar=128, type="i32")


# ── what the cubin has ──


def build(*kernels: KernelFacts) -> Build:
    return Build(
        schema=1,
        key="k",
        version="t1",
        target="sm_90a",
        source="kernels/t1.cu",
        toolchain=Toolchain(nvcc="13.0.88", build="b", host="g++ 12"),
        kernels=list(kernels),
        code="c",
    )


def kernel(entry: str = "copy", parameters: list[int] | None = None, max_threads: int | None = None) -> KernelFacts:
    return KernelFacts(
        entry=entry,
        registers=32,
        register_cap=255,
        max_threads=max_threads,
        parameter_bytes=[128, 8, 4] if parameters is None else parameters,
    )


@pytest.fixture
def launch() -> ResolvedLaunch:
    return resolve(version(), TINY)[0]


def test_kernel_for(launch: ResolvedLaunch) -> None:
    wanted = kernel(max_threads=64)
    assert kernel_for(version(), launch, build(kernel("other"), wanted)) is wanted


def test_all_scalar_types_and_pointers_have_their_size() -> None:
    arguments = [Argument(scalar=1, type=name) for name in SCALAR_BYTES] + [Argument(tensor="Q")]
    (launch,) = resolve(version(args=arguments), TINY)
    kernel_for(version(), launch, build(kernel(parameters=[4, 4, 8, 8, 4, 8, 8])))


@pytest.mark.parametrize(
    ("kernels", "words"),
    [
        ([kernel("_Z4copyPKf")], ["the cubin has no kernel 'copy'", "it has: _Z4copyPKf", 'extern "C"']),
        ([], ["the cubin has no kernel 'copy'", "it has: none"]),
        ([kernel(parameters=[128, 8])], ["copy takes arguments of [128, 8] bytes; the manifest gives [128, 8, 4]"]),
        ([kernel(parameters=[128, 8, 4, 4])], ["[128, 8, 4, 4] bytes; the manifest gives [128, 8, 4]"]),
        ([kernel(parameters=[128, 8, 8])], ["[128, 8, 8] bytes", "a scalar as its type says"]),
        ([kernel(parameters=[8, 128, 4])], ["[8, 128, 4] bytes"]),
        ([kernel(parameters=[])], ["copy takes arguments of [] bytes"]),
        ([kernel(max_threads=63)], ["block has 64 threads; __launch_bounds__ of copy allows 63"]),
    ],
)
def test_a_cubin_that_cannot_be_launched_so(
    kernels: list[KernelFacts], words: list[str], launch: ResolvedLaunch
) -> None:
    with pytest.raises(ManifestError) as caught:
        kernel_for(version(), launch, build(*kernels))
    assert caught.value.where == "manifests/t1.yaml, launches"
    assert all(word in str(caught.value) for word in words), str(caught.value)
