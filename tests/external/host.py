"""Runs a program that was linked with `cudart.cpp`: memory, tensor maps and launches are the emulator's.

    python -m tests.external.host [--copies DIR] [--break WHAT] [--schedule S] PROGRAM.so KERNELS.ptx CAPABILITY [ARGUMENT…]

Ends with the program's own exit code. `--copies` writes what goes to the device (N.sent) and comes back (N.fetched). `--break` is
for negative controls: `scale` doubles the first matrix on the device, `swizzle` drops the swizzle of every tensor map. A launch
that repeats an earlier one over the same memory is not emulated again: timing loops launch a hundred times.
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import os
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import numpy as np

from faperf.emulator import LOCKSTEP, SCHEDULES
from faperf.emulator.emulate import Device
from faperf.emulator.fault import DiagnosisError, NotEmulatedError
from faperf.emulator.memory import GLOBAL_BASE
from faperf.emulator.ops_sm90 import TensorMap
from faperf.emulator.ptx import parse

PROCESSORS = 8
"""Multiprocessors that the device says it has: kernels that stay on them start as many CTAs."""
TO_DEVICE, TO_HOST, ON_DEVICE = 1, 2, 3
UNIT = {0: 1, 1: 2, 2: 4, 3: 4, 4: 8, 5: 8, 6: 2, 7: 4, 8: 8, 9: 2, 10: 4, 11: 4, 12: 4}
"""CUtensorMapDataType → bytes of an element."""
SWIZZLE = {0: 0, 1: 32, 2: 64, 3: 128}
NUMBER, POINTER = ctypes.c_uint64, ctypes.c_void_p

ALLOCATE = ctypes.CFUNCTYPE(NUMBER, NUMBER)
RELEASE = ctypes.CFUNCTYPE(ctypes.c_int, NUMBER)
COPY = ctypes.CFUNCTYPE(ctypes.c_int, NUMBER, NUMBER, NUMBER, ctypes.c_int)
FILL = ctypes.CFUNCTYPE(ctypes.c_int, NUMBER, ctypes.c_int, NUMBER)
LAUNCH = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_char_p, ctypes.POINTER(ctypes.c_uint), NUMBER, ctypes.POINTER(POINTER))
ENCODE = ctypes.CFUNCTYPE(
    ctypes.c_int, POINTER, ctypes.c_int, ctypes.c_uint, NUMBER, ctypes.POINTER(NUMBER), ctypes.POINTER(NUMBER),
    ctypes.POINTER(ctypes.c_uint), ctypes.POINTER(ctypes.c_uint), ctypes.c_int, ctypes.c_int,
)  # fmt: skip


class Callbacks(ctypes.Structure):
    """`struct Host` of cudart.cpp."""

    _fields_ = [
        ("allocate", ALLOCATE), ("release", RELEASE), ("copy", COPY), ("fill", FILL), ("launch", LAUNCH), ("encode", ENCODE),
        ("major", ctypes.c_int), ("minor", ctypes.c_int), ("processors", ctypes.c_int),
    ]  # fmt: skip


class Host:
    """The device of one program."""

    def __init__(self, ptx: str, capability: tuple[int, int], copies: Path | None = None, broken: str = "",
                 schedule: str = LOCKSTEP) -> None:  # fmt: skip
        self.device = Device(parse(ptx), {})
        self.copies, self.broken, self.count, self.schedule = copies, broken, 0, schedule
        self._known: dict[bytes, bytes] = {}
        """Memory and launch → memory afterwards, by their hashes."""
        self.callbacks = Callbacks(
            ALLOCATE(self.allocate), RELEASE(self.release), COPY(self.copy), FILL(self.fill), LAUNCH(self.launch),
            ENCODE(self.encode), *capability, PROCESSORS,
        )  # fmt: skip

    def allocate(self, size: int) -> int:
        return self.device.memory.allocate(f"allocation of {size} bytes", np.zeros(size, np.uint8))

    def release(self, address: int) -> int:
        if address:
            self.device.memory.release(address)
        return 0

    def copy(self, to: int, source: int, size: int, kind: int) -> int:
        memory = self.device.memory.bytes
        base = memory.ctypes.data - GLOBAL_BASE
        if kind not in (TO_DEVICE, TO_HOST, ON_DEVICE):
            kind = (
                TO_DEVICE if 0 <= to - GLOBAL_BASE < len(memory) else TO_HOST
            )  # cudaMemcpyDefault: where it points to
        ctypes.memmove(to + (0 if kind == TO_HOST else base), source + (0 if kind == TO_DEVICE else base), size)
        if self.copies is not None and kind != ON_DEVICE:
            content = ctypes.string_at(source if kind == TO_DEVICE else to, size)
            name = f"{self.count:04}.{'sent' if kind == TO_DEVICE else 'fetched'}"
            (self.copies / name).write_bytes(content)
        if self.broken == "scale" and self.count == 0:
            start = to - GLOBAL_BASE
            memory[start : start + size].view(np.float16)[:] *= np.float16(2)
        self.count += 1
        return 0

    def fill(self, to: int, value: int, size: int) -> int:
        start = to - GLOBAL_BASE
        self.device.memory.bytes[start : start + size] = value & 255
        return 0

    def encode(
        self, to: int, kind: int, rank: int, address: int, sizes: Any, strides: Any, box: Any, steps: Any,
        interleave: int, swizzle: int,
    ) -> int:  # fmt: skip
        if interleave or any(steps[i] != 1 for i in range(rank)) or swizzle not in SWIZZLE:
            return _say(f"a tensor map with interleave {interleave}, swizzle {swizzle} or steps is not emulated")
        unit, bytes_of = UNIT[kind], 0 if self.broken == "swizzle" else SWIZZLE[swizzle]
        tensor = TensorMap(
            address, tuple(sizes[:rank]), (unit, *strides[: rank - 1]), tuple(box[:rank]), bytes_of, unit
        )
        ctypes.memmove(to, self.device.encode(tensor), 128)
        return 0

    def launch(self, name: bytes, shape: Any, smem: int, args: Any) -> int:
        entry, device = name.decode(), self.device
        grid, block, cluster = (tuple(shape[i : i + 3]) for i in (0, 3, 6))
        try:
            parameters = device.program(entry).kernel.parameters
            content = [ctypes.string_at(args[i], size) for i, (_, size, _) in enumerate(parameters)]
            what = hashlib.sha256(repr((name, grid, block, cluster, smem, content)).encode())
            what.update(device.memory.bytes.data)
            after = self._known.get(what.digest())
            if after is not None:
                device.memory.bytes[:] = np.frombuffer(after, np.uint8)
                return 0
            began, before, warned = time.perf_counter(), device.executed, set(device.warnings)
            device.run(entry, grid, block, cluster, smem, content, self.schedule)
            self._known[what.digest()] = device.memory.bytes.tobytes()
            count, took = device.executed - before, time.perf_counter() - began
            _say(
                f"emulated {entry[:60]} {grid} x {block}, cluster {cluster}: {count:,} warp-instructions in {took:.2f} s"
            )
            for warning in device.warnings.keys() - warned:
                _say(f"warning: {warning}")
        except DiagnosisError as error:
            _say(f"{error.kind}: {error}")
            return 1
        except NotEmulatedError as error:
            _say(f"not emulated: {error}")
            return 1
        except BaseException:  # the program would go on without it
            traceback.print_exc()
            os._exit(70)
        return 0


def _say(text: str) -> int:
    print(f"[emulator] {text}", file=sys.stderr, flush=True)
    return 1


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--copies", type=Path)
    parser.add_argument("--break", dest="broken", choices=["scale", "swizzle"], default="")
    parser.add_argument("--schedule", choices=SCHEDULES, default=LOCKSTEP)
    parser.add_argument("program")
    parser.add_argument("ptx", type=Path)
    parser.add_argument("capability")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    given = parser.parse_args()
    program, arguments = given.program, given.arguments
    major, minor = (int(part) for part in given.capability.split("."))
    host = Host(given.ptx.read_text(encoding="utf-8"), (major, minor), given.copies, given.broken, given.schedule)
    library = ctypes.CDLL(program, mode=os.RTLD_GLOBAL | os.RTLD_NOW)
    library.stand_in(ctypes.byref(host.callbacks))
    words = [program.encode(), *(argument.encode() for argument in arguments)]
    code: int = library.main(len(words), (ctypes.c_char_p * (len(words) + 1))(*words, None))
    return code


if __name__ == "__main__":
    sys.exit(main())
