"""A contest between ways of deciding "did this kernel get slower?", on the same pairs of kernels on one GPU.

`python -m benchmarks.contest run FILE --seconds 250` measures and adds its trials to FILE; `table FILE` prints what they
come to; `docs` writes that of `nvidia-h200.json` into docs/measuring.md.
"""
