"""PTX on the CPU: the device of those who have none.

    ptx        text → kernels: instructions with their registers, labels and source lines
    flow       basic blocks, and where diverged threads meet again
    decode     an instruction → a Python closure over the lanes of a path; by the op packs `ops_*`
    state      registers of a wave of CTAs, and the paths (lanes at one program counter) that run through them
    memory     global and shared memory with what is known of each byte: in bounds, written, by whom, seen by whom
    cluster    what CTAs do in each other's shared memory
    barrier    mbarriers, and the barriers of a CTA and of a cluster
    transactions  the bytes that mbarriers expect, and those that are copied to them
    overrun    mbarriers' phases that may end before a warp has seen the last one
    moments    lanes of one warp, which need not be in step
    pending    what a warp has not waited for, in program order
    provenance  where the operands of a wrong product come from
    schedule   which path runs next, when a transfer lands, what stands still
    matrix     matrices in shared memory, as descriptors name them
    emulate    tensors in emulated memory, and resolved launches over them

Needs numpy; this module does not, so that a command may ask for VERSION and SCHEDULES alone.
"""

VERSION = 12
"""Part of every kept verdict: raise it when a result or a diagnosis may change."""

LOCKSTEP = "lockstep"
LAZY = "lazy"
RANDOM = "random"
SCHEDULES = (LOCKSTEP, LAZY, RANDOM)
"""All warps together and transfers at once; warp by warp and transfers as late as can be; warp by warp in drawn order."""
