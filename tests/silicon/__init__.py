"""The emulator held to a card: one small kernel for each form of an instruction, run on both with the same inputs.

    probe         a kernel with its inputs and its launch, and how its results are compared
    elementwise   conversions, arithmetic, approximate functions, shuffles and votes
    fragments     ldmatrix, stmatrix, mma.sync
    copies        cp.async, bulk and tensor copies, clusters
    warpgroup     wgmma
    card          a probe on the card
    record        `python -m tests.silicon.record`: what this machine's card gives becomes tests/data/silicon/*.npz

`tests/test_silicon.py` holds the emulator to those files where there is no GPU; `tests/gpu/test_silicon.py` runs the probes on
the GPU that is here and holds the files, and the emulator, to it.
"""
