"""How a worker and its parent talk: the messages, in frames over pipes: four bytes of length, then msgpack. Never pickle."""

from __future__ import annotations

import struct
from typing import Protocol

import msgspec

from faperf.job import Job, Task
from faperf.operations import Place
from faperf.record import Check, Timing

SLACK_S = 120.0
"""How long the child may take for anything but a launch of the measured kernel: importing, references, warming up."""
MOST_BYTES = 2**28
"""No frame is longer. Four letters of text, read as a length, are."""


class Begin(msgspec.Struct, frozen=True, tag=True):
    """The first frame: what is to be measured, and where a project's own operations are found."""

    job: Job
    places: dict[str, Place]


class Verify(msgspec.Struct, frozen=True, tag=True):
    """Verify a side on a workload and one distribution's inputs of a seed; answered by Checked."""

    side: str
    workload: str
    distribution: str
    seed: int


class Time(msgspec.Struct, frozen=True, tag=True):
    """Time a task's side against its partners; answered by Timed."""

    task: Task


class Ready(msgspec.Struct, frozen=True, tag=True):
    """The child is up. `others`: process ids that compute on the card too."""

    gpu: str
    card: str
    driver: str
    capability: str
    others: list[int]


class Launching(msgspec.Struct, frozen=True, tag=True):
    """From now on the kernel runs; it has `limit_s` seconds."""

    limit_s: float


class Landed(msgspec.Struct, frozen=True, tag=True):
    """The launch is over."""


class Checked(msgspec.Struct, frozen=True, tag=True):
    check: Check


class Timed(msgspec.Struct, frozen=True, tag=True):
    timing: Timing


class Faulted(msgspec.Struct, frozen=True, tag=True):
    """A launch failed. `lost`: the child ends with it."""

    kind: str
    detail: str
    lost: bool


Request = Begin | Verify | Time
Answer = Ready | Launching | Landed | Checked | Timed | Faulted


class Readable(Protocol):
    def read(self, count: int, /) -> bytes: ...


class Writable(Protocol):
    def write(self, content: memoryview, /) -> int: ...

    def flush(self) -> None: ...


def write_frame(stream: Writable, message: Request | Answer) -> None:
    content = msgspec.msgpack.encode(message)
    frame = memoryview(struct.pack("<I", len(content)) + content)
    while frame:
        frame = frame[stream.write(frame) :]
    stream.flush()


def read_frame(stream: Readable) -> bytes | None:
    """The next frame, or None at the end of the stream. Raises DecodeError where something else than a frame begins."""
    header = _read_exactly(stream, 4)
    if header is None:
        return None
    (length,) = struct.unpack("<I", header)
    if length > MOST_BYTES:
        raise msgspec.DecodeError(f"no frame begins with {header!r}")
    return _read_exactly(stream, length)


def _read_exactly(stream: Readable, count: int) -> bytes | None:
    content = bytearray()
    while len(content) < count:
        part = stream.read(count - len(content))
        if not part:
            return None
        content += part
    return bytes(content)
