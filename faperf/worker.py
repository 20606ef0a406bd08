"""The parent's handle on a child process that owns the CUDA context (`bench`).

Whatever a kernel does happens in the child: a fault ends the child, a hang is ended by the parent at the launch's own time
limit, and the next task starts in a new child as if nothing had happened.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import IO, Any, Self

import msgspec

from faperf.device import Gpu, find_gpu, missing_libraries
from faperf.errors import MeasuringError
from faperf.frames import (
    SLACK_S,
    Answer,
    Begin,
    Checked,
    Faulted,
    Landed,
    Launching,
    Ready,
    Request,
    Time,
    Timed,
    Verify,
    read_frame,
    write_frame,
)
from faperf.job import Job, Task
from faperf.operations import Place
from faperf.record import Check, Timing

DYING_S = 5.0
"""How long a child that has closed its pipe may take to end by itself."""
TAIL_BYTES = 4096
HANG = "hang"
DIED = "worker died"
CHILD = (sys.executable, "-P", "-m", "faperf.bench")
"""`-P`: no module of the directory it is started in stands for a library, be that a stranger's checkout."""
ENVIRONMENT = {
    "CUDA_DEVICE_ORDER": "PCI_BUS_ID",  # as nvidia-smi counts
    "CUPY_ACCELERATORS": "",  # the first sum through CUB takes half a second, and five where cupy has not compiled it yet
}


class FaultError(Exception):
    """A request ended in a classified fault; the handle is ready for the next one."""

    def __init__(self, kind: str, detail: str) -> None:
        super().__init__(detail)
        self.kind = kind
        self.detail = detail


class _Limited:
    """The parent's end of an unbuffered pipe, for `limit_s` seconds in all. Raises TimeoutError."""

    def __init__(self, pipe: IO[bytes] | None, limit_s: float) -> None:
        assert pipe is not None
        self._pipe, self._end = pipe, time.monotonic() + limit_s

    def read(self, count: int) -> bytes:
        self._wait(select.select([self._pipe], [], [], self._left())[0])
        return self._pipe.read(count)

    def write(self, content: memoryview) -> int:
        self._wait(select.select([], [self._pipe], [], self._left())[1])
        return self._pipe.write(content[: select.PIPE_BUF])  # so much never blocks where select found room

    def flush(self) -> None:
        """Nothing is buffered."""

    def _left(self) -> float:
        return max(0.0, self._end - time.monotonic())

    def _wait(self, ready: list[Any]) -> None:
        if not ready:
            raise TimeoutError


class Worker:
    """One job's worker. Starts a child when it is first asked, and a new one after each fault or hang.

    `spawn` may come long before the job is known: the child then imports its libraries, and leaves the card alone.
    """

    def __init__(self, job: Job | None = None, command: Sequence[str] = CHILD) -> None:
        self.job = job
        self.places: dict[str, Place] = {}
        self.command = command
        self.ready: Ready | None = None
        self.children = 0
        self._child: subprocess.Popen[bytes] | None = None
        self._errors: IO[bytes] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def use(self, command: Sequence[str]) -> None:
        """Have `command` be the child from now on."""
        if tuple(command) != tuple(self.command):
            self.stop()
            self.command = command

    def spawn(self) -> None:
        """Start a child where there is none; it waits for the job."""
        if self._child is None:
            self.children += 1
            self.ready = None
            self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (a pipe that nobody reads would fill up)
            self._child = subprocess.Popen(
                self.command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                bufsize=0,  # `select` must see all that was not read yet
                start_new_session=True,
                env=os.environ | ENVIRONMENT,
            )

    def start(self) -> Ready:
        """Make sure that a child has the job. Raises MeasuringError when none comes up: that is no kernel's fault."""
        self.spawn()
        if self.ready is None:
            assert self.job is not None
            self._send(Begin(self.job, self.places))
            answer = self._receive(SLACK_S)
            if not isinstance(answer, Ready):
                fault = self._fault(answer)
                raise MeasuringError(
                    f"the worker does not start: {fault.kind}: {fault.detail}", remedy="faperf doctor"
                ) from fault
            self.ready = answer
        return self.ready

    def verify(self, side: str, workload: str, distribution: str, seed: int) -> Check:
        """Raises FaultError."""
        answer = self._ask(Verify(side, workload, distribution, seed))
        assert isinstance(answer, Checked)
        return answer.check

    def time(self, task: Task) -> Timing:
        """Raises FaultError."""
        answer = self._ask(Time(task))
        assert isinstance(answer, Timed)
        return answer.timing

    def stop(self) -> None:
        """End the child and all that it started."""
        if self._child is not None:
            with self._child as child, contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            self._child = None
        if self._errors is not None:
            self._errors.close()
            self._errors = None

    def _ask(self, request: Verify | Time) -> Checked | Timed:
        self.start()
        self._send(request)
        limit = SLACK_S
        while True:
            answer = self._receive(limit)
            limit = SLACK_S
            if isinstance(answer, Launching):
                limit = answer.limit_s
            elif isinstance(answer, Checked | Timed):
                return answer
            elif not isinstance(answer, Landed):
                raise self._fault(answer)

    def _send(self, message: Request) -> None:
        assert self._child is not None
        with contextlib.suppress(BrokenPipeError, TimeoutError):  # either shows when the answer is waited for
            write_frame(_Limited(self._child.stdin, SLACK_S), message)

    def _receive(self, limit_s: float) -> Answer | str | None:
        """The next answer; the word HANG when none came in time, or what is wrong with it; None when the child ended."""
        assert self._child is not None
        try:
            content = read_frame(_Limited(self._child.stdout, limit_s))
            return msgspec.msgpack.decode(content, type=Answer) if content is not None else None
        except TimeoutError:
            return HANG
        except msgspec.DecodeError as error:
            return f"garbled answer: {error}"

    def _fault(self, answer: Answer | str | None) -> FaultError:
        """What went wrong, in one exception; a child that cannot go on is ended."""
        if isinstance(answer, Faulted):
            if answer.lost:
                self.stop()
            return FaultError(answer.kind, answer.detail)
        if answer == HANG:
            self.stop()
            return FaultError(HANG, "did not finish within its time limit and was killed")
        if isinstance(answer, str):
            self.stop()
            return FaultError(DIED, answer)
        child, errors = self._child, self._errors
        assert child is not None
        assert errors is not None
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(DYING_S)  # its pipe closes a moment before it ends
        errors.seek(max(0, errors.seek(0, os.SEEK_END) - TAIL_BYTES))
        last = errors.read().decode(errors="replace").strip().splitlines()[-1:] or ["no message"]
        self.stop()
        return FaultError(DIED, f"exit {child.returncode}: {last[0]}")


@dataclass(frozen=True)
class Here:
    """The GPU of this machine, or why nothing is measured on one; and a worker for it, whose child may be coming up."""

    gpu: Gpu | None = None
    reason: str | None = "--no-gpu was given"
    worker: Worker | None = None

    @classmethod
    @contextlib.contextmanager
    def find(cls) -> Iterator[Here]:
        """Look for a GPU, and have a child load its libraries while the compiler works."""
        gpu, reason = find_gpu()
        with Worker() as worker:
            missing = missing_libraries()
            if gpu is not None and not missing:
                worker.spawn()
            elif gpu is not None:
                reason = f"there is a {gpu.name}, but {', '.join(missing)} is not installed (pip install 'faperf[gpu]')"
            yield cls(gpu, reason, worker)
