"""Softmax over the rows of a matrix, a thread block a row, timed by nvbench through cuda-bench."""

import sys

import cuda.bench as bench
import cupy as cp
import numpy as np

SOURCE = r"""
extern "C" __global__ void softmax(const float* in, float* out, int columns) {
    __shared__ float part[256];
    const float* x = in + (size_t)blockIdx.x * columns;
    float* y = out + (size_t)blockIdx.x * columns;
    float top = -3.0e38f, sum = 0.0f;
    for (int c = threadIdx.x; c < columns; c += blockDim.x) top = fmaxf(top, x[c]);
    part[threadIdx.x] = top; __syncthreads();
    for (int n = 128; n; n >>= 1) {
        if (threadIdx.x < n) part[threadIdx.x] = fmaxf(part[threadIdx.x], part[threadIdx.x + n]);
        __syncthreads();
    }
    top = part[0]; __syncthreads();
    for (int c = threadIdx.x; c < columns; c += blockDim.x) sum += expf(x[c] - top);
    part[threadIdx.x] = sum; __syncthreads();
    for (int n = 128; n; n >>= 1) {
        if (threadIdx.x < n) part[threadIdx.x] += part[threadIdx.x + n];
        __syncthreads();
    }
    for (int c = threadIdx.x; c < columns; c += blockDim.x) y[c] = expf(x[c] - top) / part[0];
}
"""
kernel = None


def prepare(state):
    global kernel
    kernel = kernel or cp.RawKernel(SOURCE, "softmax")
    rows, columns = state.get_int64("Rows"), state.get_int64("Columns")
    x = cp.asarray(np.random.default_rng(1).standard_normal((rows, columns), dtype=np.float32))
    y = cp.empty_like(x)
    kernel((rows,), (256,), (x, y, cp.int32(columns)))
    ref = cp.exp(x.astype(cp.float64))
    ref /= ref.sum(1, keepdims=True)
    assert float(cp.abs(y - ref).max()) < 1e-6
    state.add_element_count(rows * columns)
    state.add_global_memory_reads(x.nbytes)
    state.add_global_memory_writes(y.nbytes)

    def launch(on):
        with cp.cuda.ExternalStream(on.get_stream().addressof()):
            kernel((rows,), (256,), (x, y, cp.int32(columns)))

    return launch


def softmax(state):
    if state.get_int64("Rows") == 128:
        state.skip("too few rows to fill the chip")
        return
    state.exec(prepare(state))


def softmax_once(state):
    state.exec(prepare(state), batched=False)


b = bench.register(softmax)
b.add_int64_power_of_two_axis("Rows", [7, 12])
b.add_int64_axis("Columns", [4096, 8192])
b.set_min_samples(20)
c = bench.register(softmax_once)
c.set_name("softmax_once")
c.add_int64_axis("Rows", [4096])
c.add_int64_axis("Columns", [4096])
c.add_string_axis("Input", ["normal"])
c.set_min_samples(20)
bench.run_all_benchmarks(sys.argv)
