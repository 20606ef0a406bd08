"""A probe on the card: its cubin loaded, its tensors copied, its tensor maps encoded, one launch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from faperf.launch import ResolvedArgument, ResolvedLaunch

SWIZZLES = {0: "NONE", 32: "32B", 64: "64B", 128: "128B"}
MAX_DYNAMIC_SHARED = 8


class Card:
    """One cubin on the first GPU. Raises cupy's errors."""

    def __init__(self, cubin: Path) -> None:
        import cupy

        self._cupy = cupy
        self._module = cupy.cuda.function.Module()
        self._module.load(cubin.read_bytes())

    def run(self, launches: list[ResolvedLaunch], given: Mapping[str, Any], out: str) -> Any:
        """What `out` holds after the launches. Clusters are those that the kernel was compiled with."""
        cupy = self._cupy
        arrays = {name: cupy.asarray(content.reshape(-1).view(np.uint8)) for name, content in given.items()}
        for launch in launches:
            function = self._module.get_function(launch.entry)
            if launch.smem > 48 * 1024:
                cupy.cuda.driver.funcSetAttribute(function.ptr, MAX_DYNAMIC_SHARED, launch.smem)
            args = tuple(self._argument(argument, arrays, given) for argument in launch.args)
            function(launch.grid, launch.block, args, shared_mem=launch.smem)
        cupy.cuda.Device().synchronize()
        raw = cupy.asnumpy(arrays[out])
        return raw.view(given[out].dtype).reshape(given[out].shape)

    def scan(self, entry: str) -> Any:
        """What a kernel of `limits.cu` finds."""
        found = self._cupy.zeros(3, np.uint64)
        self._module.get_function(entry)((132 * 8, 1, 1), (256, 1, 1), (found,))
        return self._cupy.asnumpy(found)

    def _argument(self, argument: ResolvedArgument, arrays: Mapping[str, Any], given: Mapping[str, Any]) -> Any:
        if argument.tensor is not None:
            return arrays[argument.tensor]
        if argument.scalar is not None:
            return {"i32": np.int32, "u32": np.uint32, "i64": np.int64, "u64": np.uint64}[str(argument.type)](
                argument.scalar
            )
        assert argument.tensor_map is not None
        assert argument.box is not None
        return tensor_map(
            arrays[argument.tensor_map].data.ptr, given[argument.tensor_map], argument.box, argument.swizzle
        )


def tensor_map(address: int, content: Any, box: list[int], swizzle: int) -> Any:
    """A CUtensorMap over an array of f16 or f32, by value ("cuTensorMapEncodeTiled")."""
    from cuda.bindings import driver

    sizes = list(reversed(content.shape))
    strides = [content.itemsize * int(np.prod(sizes[: i + 1])) for i in range(len(sizes) - 1)]
    error, made = driver.cuTensorMapEncodeTiled(
        getattr(driver.CUtensorMapDataType, f"CU_TENSOR_MAP_DATA_TYPE_FLOAT{8 * content.itemsize}"),
        len(sizes),
        address,
        [driver.cuuint64_t(size) for size in sizes],
        [driver.cuuint64_t(stride) for stride in strides] or [driver.cuuint64_t(0)],  # a null pointer is refused
        [driver.cuuint32_t(size) for size in box],
        [driver.cuuint32_t(1) for _ in sizes],
        driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
        getattr(driver.CUtensorMapSwizzle, f"CU_TENSOR_MAP_SWIZZLE_{SWIZZLES[swizzle]}"),
        driver.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_NONE,
        driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
    )
    assert error == driver.CUresult.CUDA_SUCCESS, error
    content = np.empty((), np.dtype({"names": ["words"], "formats": [(np.uint64, 16)]}))
    content["words"] = [int(word) for word in made.opaque]
    return content
