"""A project with an operation of its own: C = A · B, halves in and float32 out, whose tensors differ in shape and type."""

from __future__ import annotations

from tests.conftest import UserProject

OPERATION = """\
class MatrixProduct:
    name = "matrix_product"
    version = 3
    parameters = ("M", "N", "K")
    layouts = ("MKN",)
    tensors = {"A": "float16", "B": "float16", "C": "float32"}
    outputs = ("C",)
    distributions = ("uniform", "integers")

    def flops(self, shape):
        return 2 * shape["M"] * shape["N"] * shape["K"]

    def bytes(self, shape):
        return 2 * shape["K"] * (shape["M"] + shape["N"]) + 4 * shape["M"] * shape["N"]

    def exponentials(self, shape):
        return 0

    def tiled(self, shape):
        return shape["M"], shape["N"]

    def dimensions(self, tensor, shape, layout):
        return {axis: shape[axis] for axis in {"A": "MK", "B": "KN", "C": "MN"}[tensor]}

    def inputs(self, xp, shape, layout, distribution, seed):
        random = xp.random.default_rng(seed)
        a, b = (random.random((shape[i], shape[j]), dtype=xp.float32) for i, j in ("MK", "KN"))
        if distribution == "integers":
            a, b = xp.floor(8 * a), xp.floor(8 * b)
        return {"A": a.astype(xp.float16), "B": b.astype(xp.float16)}

    def reference(self, xp, inputs, shape, layout):
        return {"C": inputs["A"].astype(xp.float64) @ inputs["B"].astype(xp.float64)}

    def plain(self, xp, inputs, shape, layout):
        return {"C": inputs["A"].astype(xp.float32) @ inputs["B"].astype(xp.float32)}


MATRIX_PRODUCT = MatrixProduct()
"""

KERNEL = """\
#include <cuda_fp16.h>

extern "C" __global__ void matrix_product(const __half* A, const __half* B, float* C, int N, int K, float mean) {
    int m = blockIdx.y, n = blockIdx.x * blockDim.x + threadIdx.x;
    float sum = 0;
    for (int k = 0; k < K; ++k) sum += __half2float(A[m * K + k]) * __half2float(B[k * N + n]);
    C[m * N + n] = sum * mean * K;
}
"""

MANIFEST = """\
schema: 1
id: m1
title: one thread an element
source: kernels/m1.cu
targets: [sm_90a]
operation: {name: matrix_product, layout: MKN}
workloads: [small]
tile: {m: 1, n: 64}
tolerance: {bound: 1.0e-6}
launches:
  - entry: matrix_product
    grid: ["N / 64", "M"]
    block: [64]
    args: [{tensor: A}, {tensor: B}, {tensor: C}, {scalar: N, type: i32}, {scalar: K, type: i32}, {scalar: "1 / K", type: f32}]
"""

WORKLOADS = """\
  small:
    operation: matrix_product
    shape: {M: 8, N: 128, K: 48}
"""

CONFIG = '[tool.faperf]\noperations = {matrix_product = "own.product:MATRIX_PRODUCT"}\n'


def add_matrix_product(user: UserProject) -> None:
    """The version m1 and its operation, in a package of the project's own; what is there already stays."""
    user.write("own/__init__.py", "")
    user.write("own/product.py", OPERATION)
    user.write("kernels/m1.cu", KERNEL)
    user.write("manifests/m1.yaml", MANIFEST)
    workloads = user.root / "manifests/workloads.yaml"
    workloads.write_text(workloads.read_text() + WORKLOADS)
    user.write("pyproject.toml", CONFIG)
