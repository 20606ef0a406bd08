"""What can be told of a card without one: which it is, and how a block's figure is made."""

from __future__ import annotations

import ctypes
import os
import sys
from enum import IntEnum
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from faperf.device import Gpu, LaunchError, _Clustered, _middle_mean, card_of, find_gpu, missing_libraries, tensor_map
from faperf.launch import ResolvedArgument
from tests.compiling import script

CARDS = {"0": "A Card, 9.0, 700.00, 143771, GPU-0", "1": "A Card, 9.0, 600.00, 143771, GPU-1"}


@pytest.fixture
def two_cards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An nvidia-smi that knows two cards, by number and by UUID, and no third one."""
    cases = "".join(f"--id={n}|--id=GPU-{n}) echo '{line}';;\n" for n, line in CARDS.items())
    script(tmp_path / "nvidia-smi", f"case $1 in\n{cases}*) echo 'No devices were found'; exit 6;;\nesac")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


@pytest.mark.parametrize(("visible", "watts"), [(None, 700), ("0", 700), ("1", 600), ("1,0", 600), ("GPU-1", 600)])
def test_the_first_card_that_cuda_sees_is_the_one(
    two_cards: None, visible: str | None, watts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if visible:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    gpu, reason = find_gpu()
    assert reason is None
    assert gpu == Gpu("A Card", "9.0", watts, 143771, card_of("GPU-0" if watts == 700 else "GPU-1"))


@pytest.mark.parametrize(
    ("visible", "words"), [("", "hides every GPU"), ("-1", "hides every GPU"), ("2", "does not answer")]
)
def test_a_card_that_cuda_does_not_see_is_not_there(
    two_cards: None, visible: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    gpu, reason = find_gpu()
    assert gpu is None
    assert words in str(reason)


def test_two_cards_have_two_names_that_do_not_tell_their_uuid() -> None:
    assert card_of("GPU-0") != card_of("GPU-1")
    assert "GPU-0" not in card_of("GPU-0")


@pytest.mark.parametrize(
    ("times", "mean"),
    [
        ([3.0], 3.0),
        ([1.0, 2.0], 1.5),
        ([1.0, 2.0, 30.0], 2.0),
        ([0.0, 1.0, 2.0, 99.0], 1.5),
        ([0.0, 0.0, 1.0, 1.0, 2.0, 3.0, 99.0, 99.0], 1.75),
    ],
)
def test_a_blocks_figure_is_the_mean_of_its_middle_half(times: list[float], mean: float) -> None:
    assert _middle_mean(times) == pytest.approx(mean)


# ── tensor maps and clusters, by a driver that only notes what it is asked ──


class _Result(IntEnum):
    CUDA_SUCCESS = 0
    CUDA_ERROR_INVALID_VALUE = 1


class Driver(SimpleNamespace):
    """What `device` uses of cuda.bindings.driver: numbers are numbers, enumerators their names, calls are kept."""

    def __init__(self, result: _Result = _Result.CUDA_SUCCESS) -> None:
        def enumeration(*names: str) -> Any:
            return SimpleNamespace(**{name: name for name in names})

        super().__init__(
            cuuint64_t=int,
            cuuint32_t=int,
            CUtensorMapDataType=enumeration("CU_TENSOR_MAP_DATA_TYPE_FLOAT16", "CU_TENSOR_MAP_DATA_TYPE_FLOAT32"),
            CUtensorMapSwizzle=enumeration("CU_TENSOR_MAP_SWIZZLE_NONE", "CU_TENSOR_MAP_SWIZZLE_128B"),
            CUtensorMapInterleave=enumeration("CU_TENSOR_MAP_INTERLEAVE_NONE"),
            CUtensorMapL2promotion=enumeration("CU_TENSOR_MAP_L2_PROMOTION_L2_256B"),
            CUtensorMapFloatOOBfill=enumeration("CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE"),
            CUfunction_attribute=SimpleNamespace(CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED=14),
            CUlaunchAttributeID=enumeration("CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION"),
            CUlaunchAttributeValue=lambda: SimpleNamespace(clusterDim=SimpleNamespace()),
            CUlaunchAttribute=SimpleNamespace,
            CUlaunchConfig=SimpleNamespace,
        )
        self.result = result
        self.asked: list[Any] = []

    def cuTensorMapEncodeTiled(self, *arguments: Any) -> tuple[_Result, Any]:  # noqa: N802 (CUDA's name)
        self.asked.append(arguments)
        return self.result, SimpleNamespace(opaque=list(range(16)))

    def cuLaunchKernelEx(self, config: Any, function: int, parameters: int, extra: int) -> tuple[_Result]:  # noqa: N802
        pointers = (ctypes.c_void_p * 3).from_address(parameters)
        contents = [ctypes.string_at(pointer, size) for pointer, size in zip(pointers, (8, 128, 4), strict=True)]
        self.asked.append((config, function, contents, extra))
        return (self.result,)


def driver(monkeypatch: pytest.MonkeyPatch, **changes: Any) -> Driver:
    made = Driver(**changes)
    monkeypatch.setitem(sys.modules, "cuda.bindings", SimpleNamespace(driver=made))
    return made


def device_array(shape: tuple[int, ...], dtype: str = "float16", address: int = 0x7F00_0000_0000) -> Any:
    """What cupy has for a contiguous array: numpy's figures, and an address."""
    like = np.empty(shape, dtype)
    return SimpleNamespace(shape=shape, strides=like.strides, dtype=like.dtype, data=SimpleNamespace(ptr=address))


MAP = ResolvedArgument(tensor_map="K", box=[64, 1, 128, 1], swizzle=128)


def test_a_tensor_map_has_the_innermost_dimension_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """[B, S, H, D] = [2, 512, 3, 128] halves: a row of D is 256 bytes, H rows 768, S of them 393,216."""
    asked = driver(monkeypatch).asked
    content = tensor_map(device_array((2, 512, 3, 128)), MAP)
    assert asked == [
        (
            "CU_TENSOR_MAP_DATA_TYPE_FLOAT16", 4, 0x7F00_0000_0000, [128, 3, 512, 2], [256, 768, 393_216], [64, 1, 128, 1],
            [1, 1, 1, 1], "CU_TENSOR_MAP_INTERLEAVE_NONE", "CU_TENSOR_MAP_SWIZZLE_128B", "CU_TENSOR_MAP_L2_PROMOTION_L2_256B",
            "CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE",
        )
    ]  # fmt: skip
    assert (content.shape, content.nbytes) == ((), 128)
    assert content.tobytes() == np.arange(16, dtype=np.uint64).tobytes()


def test_a_tensor_map_without_a_swizzle_of_another_type(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = driver(monkeypatch).asked
    tensor_map(device_array((8, 32), "float32"), ResolvedArgument(tensor_map="K", box=[16, 8]))
    assert asked[0][0] == "CU_TENSOR_MAP_DATA_TYPE_FLOAT32"
    assert asked[0][4] == [128]
    assert asked[0][8] == "CU_TENSOR_MAP_SWIZZLE_NONE"


@pytest.mark.parametrize(
    ("tensor", "result", "words"),
    [
        (device_array((4, 4, 64)), _Result.CUDA_SUCCESS, "K: a box of 4 dimensions for a tensor of 3"),
        (device_array((1, 4, 4, 64), "bool"), _Result.CUDA_SUCCESS, "there are no tensor maps of bool, as K is"),
        (
            device_array((1, 4, 4, 64)), _Result.CUDA_ERROR_INVALID_VALUE,
            r"no tensor map of K \(CUDA_ERROR_INVALID_VALUE\): box \[64, 1, 128, 1\] of \[64, 4, 4, 1\], swizzle 128",
        ),
    ],
)  # fmt: skip
def test_a_tensor_map_that_cannot_be_is_refused_as_a_launch_is(
    tensor: Any, result: _Result, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver(monkeypatch, result=result)
    with pytest.raises(LaunchError, match=words) as refused:
        tensor_map(tensor, MAP)
    assert refused.value.kind == "launch refused"
    assert not refused.value.context_lost


@pytest.mark.parametrize(("cluster", "allowed"), [((2, 1, 1), []), ((4, 2, 2), [(99, 14, 1)])])
def test_a_launch_in_clusters(
    cluster: tuple[int, int, int], allowed: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Arguments go by the addresses of their bytes; over eight CTAs a cluster has to be allowed."""
    made, attributes = driver(monkeypatch), list[Any]()
    cupy = SimpleNamespace(
        cuda=SimpleNamespace(driver=SimpleNamespace(funcSetAttribute=lambda *a: attributes.append(a)))
    )
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    launch = _Clustered(SimpleNamespace(ptr=99), cluster)
    array = device_array((1, 4, 4, 64), address=0x1234)
    tensor = tensor_map(array, MAP)
    launch((8, 6, 1), (128, 1, 1), (array, tensor, np.int32(-5)), shared_mem=4096, stream=SimpleNamespace(ptr=77))
    assert attributes == allowed
    config, function, contents, extra = made.asked[-1]
    assert (config.gridDimX, config.gridDimY, config.gridDimZ) == (8, 6, 1)
    assert (config.blockDimX, config.blockDimY, config.blockDimZ) == (128, 1, 1)
    assert (config.sharedMemBytes, config.hStream, config.numAttrs, function, extra) == (4096, 77, 1, 99, 0)
    (attribute,) = config.attrs
    size = attribute.value.clusterDim
    assert (attribute.id, size.x, size.y, size.z) == ("CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION", *cluster)
    assert contents == [(0x1234).to_bytes(8, "little"), tensor.tobytes(), (-5).to_bytes(4, "little", signed=True)]
    made.result = _Result.CUDA_ERROR_INVALID_VALUE
    with pytest.raises(RuntimeError, match="CUDA_ERROR_INVALID_VALUE"):
        launch((8, 6, 1), (128, 1, 1), (array, tensor, np.int32(1)), shared_mem=0, stream=SimpleNamespace(ptr=77))


def test_what_measuring_lacks_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    for name in [name for name in sys.modules if name.split(".")[0] in ("cupy", "cuda")]:
        monkeypatch.delitem(sys.modules, name)
    assert missing_libraries() == ["cupy", "cuda-bindings"]
    for package in ("cupy", "cuda/bindings"):
        (tmp_path / package).mkdir(parents=True)
        (tmp_path / package / "__init__.py").touch()
    assert missing_libraries() == []
