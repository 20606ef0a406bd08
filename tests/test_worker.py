"""The parent's handle on a worker, against children that misbehave; the frames; what the child's module imports."""

from __future__ import annotations

import io
import os
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

import faperf.worker as worker
from faperf import frames
from faperf.errors import MeasuringError
from faperf.frames import Checked, Faulted, Landed, Launching, Ready, Timed, read_frame, write_frame
from faperf.job import Job, Task, blank_check
from faperf.worker import FaultError, Worker
from tests import facts
from tests.fake_gpu import timing

JOB = facts.job(facts.side("t1"), facts.side("t2"))
CHECK = blank_check(JOB, JOB.sides[0], JOB.workloads[0], "normal", 7)
TIMING = timing(JOB, JOB.tasks[0], lambda name: 1.25)
READY = Ready("a GPU", "card", "580.0", "9.0", [])

CHILD = """\
import os, subprocess, sys, time
import msgspec
from pathlib import Path
from faperf.bench import Bench
from faperf.frames import *
from faperf.job import Job
from faperf.record import Check, Timing

folder = Path({folder!r})
CHECK = msgspec.msgpack.decode((folder / "check").read_bytes(), type=Check)
TIMING = msgspec.msgpack.decode((folder / "timing").read_bytes(), type=Timing)
READY = Ready("a GPU", "card", "580.0", "9.0", [])
sink = os.fdopen(1, "wb", buffering=0)

def frame(message):
    content = msgspec.msgpack.encode(message)
    return len(content).to_bytes(4, "little") + content

def say(*messages):
    sink.write(b"".join(map(frame, messages)))

def ask():
    return read_frame(sys.stdin.buffer) or sys.exit(0)

def life():  # which of the job's children this is
    with (folder / "lives").open("a") as file:
        file.write(f"{{os.getpid()}}\\n")
    return len((folder / "lives").read_text().split())

number = life()
"""

Start = Callable[..., Worker]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """`start(body)`: a Worker whose child runs `body`, a few lines after CHILD, and that is stopped in the end."""
    (tmp_path / "check").write_bytes(msgspec.msgpack.encode(CHECK))
    (tmp_path / "timing").write_bytes(msgspec.msgpack.encode(TIMING))
    started: list[Worker] = []

    def make(body: str, job: Job = JOB) -> Worker:
        script = tmp_path / "child.py"
        script.write_text(CHILD.format(folder=str(tmp_path)) + body)
        started.append(Worker(job, [sys.executable, str(script)]))
        return started[-1]

    yield make
    for one in started:
        one.stop()


@pytest.fixture
def lives(tmp_path: Path) -> Callable[[], list[int]]:
    """The process ids of all children so far."""
    return lambda: [int(line) for line in (tmp_path / "lives").read_text().split()]


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> float:
    """A short SLACK_S, for the children that are to run into it."""
    monkeypatch.setattr(worker, "SLACK_S", 1.5)
    return 1.5


def alive(pid: int) -> bool:
    """Whether a process is there and not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def gone(pid: int, within_s: float = 10.0) -> bool:
    end = time.monotonic() + within_s
    while alive(pid):
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def check(one: Worker) -> None:
    assert one.verify("t1@sm_90a", "tiny", "normal", 7) == CHECK


def fault(one: Worker) -> FaultError:
    with pytest.raises(FaultError) as caught:
        one.verify("t1@sm_90a", "tiny", "normal", 7)
    return caught.value


# ── children that answer ──

SERVE = """\
while True:
    request = msgspec.msgpack.decode(ask(), type=Verify | Time)
    say(Launching(5.0), *([Landed(), Checked(CHECK)] if isinstance(request, Verify) else [Timed(TIMING)]))
"""
ECHO = "ask(); say(READY)\n" + SERVE


def test_answers_come_back_and_one_child_serves_all(start: Start, lives: Callable[[], list[int]]) -> None:
    one = start(ECHO)
    assert one.start() == READY
    check(one)
    assert one.time(Task("t1@sm_90a", "tiny", {"parent": "t2@sm_90a"})) == TIMING
    check(one)
    assert one.ready == READY
    assert (one.children, len(lives())) == (1, 1)


def test_the_child_gets_the_job_and_the_requests_as_they_were_made(start: Start, tmp_path: Path) -> None:
    one = start(
        'job = ask(); say(READY); request = ask(); (folder / "got").write_bytes(job)\n'
        '(folder / "asked").write_bytes(request); say(Checked(CHECK)); ask()\n'
    )
    one.verify("t2@sm_90a", "tiny", "growing", 7)
    assert msgspec.msgpack.decode((tmp_path / "got").read_bytes(), type=frames.Begin) == frames.Begin(JOB, {})
    asked = msgspec.msgpack.decode((tmp_path / "asked").read_bytes(), type=frames.Verify)
    assert asked == frames.Verify("t2@sm_90a", "tiny", "growing", 7)


def test_no_child_before_it_is_asked(start: Start) -> None:
    one = start(ECHO)
    assert (one.children, one.ready) == (0, None)
    one.stop()  # and stopping none is no error


@pytest.mark.parametrize("size", [1, 3, 4, 7])
def test_frames_in_many_writes(start: Start, size: int) -> None:
    one = start(
        "ask(); say(READY); ask()\n"
        "content = frame(Launching(20.0)) + frame(Landed()) + frame(Checked(CHECK))\n"
        f"for n in range(0, len(content), {size}):\n"
        f"    sink.write(content[n:n + {size}]); time.sleep(0.0005)\n"
        "ask()\n"
    )
    check(one)


def test_frames_in_one_write(start: Start, impatient: float) -> None:
    """What was read of the next frame with this one must not be waited for: a buffered pipe once hung here."""
    one = start(
        "ask(); say(READY); ask(); say(Launching(1.0), Landed(), Launching(1.0), Landed(), Checked(CHECK)); ask()\n"
    )
    check(one)


def test_a_big_job_and_a_big_answer(start: Start) -> None:
    """20 MB each way, through pipes of 64 KiB."""
    one = start(
        "assert len(ask()) > 20e6; say(READY); ask()\n"
        'say(Checked(msgspec.structs.replace(CHECK, failure="x" * 20_000_000))); ask()\n',
        facts.job(facts.side("t1", cubin=os.urandom(20_000_000))),
    )
    answer = one.verify("t1@sm_90a", "tiny", "normal", 7)
    assert answer.failure is not None
    assert len(answer.failure) == 20_000_000


# ── children that hang ──

HANG_ONCE = """\
ask(); say(READY); ask()
if number == 1:
    say(Launching(0.4)); time.sleep(600)
say(Launching(0.4), Landed(), Checked(CHECK)); ask()
"""


def test_a_hang_is_ended_at_the_launchs_own_limit_and_the_next_request_gets_a_new_child(
    start: Start, lives: Callable[[], list[int]]
) -> None:
    one = start(HANG_ONCE)
    one.start()
    begun = time.monotonic()
    found = fault(one)
    assert 0.4 <= time.monotonic() - begun < 5.0  # not SLACK_S
    assert found.kind == worker.HANG
    assert "time limit" in found.detail
    assert gone(lives()[0])
    check(one)
    assert one.children == 2


def test_a_child_may_be_up_before_its_job_is_known(start: Start) -> None:
    one = start("ask(); say(READY); ask(); say(Checked(CHECK)); ask()\n")
    job, one.job = one.job, None
    one.spawn()
    one.job = job
    one.start()
    check(one)
    assert one.children == 1


def test_the_launchs_limit_ends_with_the_launch(start: Start) -> None:
    """What comes after it, a comparison with the reference, has SLACK_S again."""
    one = start("ask(); say(READY); ask(); say(Launching(0.3), Landed()); time.sleep(1); say(Checked(CHECK)); ask()\n")
    check(one)


@pytest.mark.parametrize(
    "body",
    [
        "ask(); say(READY); ask(); time.sleep(600)\n",
        "ask(); say(READY); ask(); sink.write(frame(Checked(CHECK))[:40]); time.sleep(600)\n",
        "ask(); say(READY); ask(); sink.write(b'\\x05'); time.sleep(600)\n",
    ],
    ids=["silent", "half a frame", "half a length"],
)
def test_a_child_that_falls_silent_is_a_hang(start: Start, impatient: float, body: str) -> None:
    one = start(body)
    begun = time.monotonic()
    assert fault(one).kind == worker.HANG
    assert time.monotonic() - begun < impatient + 5


def test_a_child_that_reads_nothing_is_a_hang(start: Start, impatient: float) -> None:
    """Its job does not fit into the pipe."""
    one = start("time.sleep(600)\n", facts.job(facts.side("t1", cubin=bytes(1_000_000))))
    begun = time.monotonic()
    with pytest.raises(MeasuringError, match="the worker does not start: hang"):
        one.start()
    assert time.monotonic() - begun < 2 * impatient + 5


# ── children that fault ──


def test_a_fault_that_leaves_the_context_keeps_the_child(start: Start) -> None:
    one = start('ask(); say(READY); ask(); say(Launching(5.0), Faulted("launch refused", "grid", False))\n' + SERVE)
    found = fault(one)
    assert (found.kind, found.detail) == ("launch refused", "grid")
    check(one)
    assert one.children == 1


def test_a_fault_that_loses_the_context_gets_a_new_child(start: Start, lives: Callable[[], list[int]]) -> None:
    one = start(
        'if number == 1:\n    ask(); say(READY); ask(); say(Faulted("trap", "at 0x7", True)); time.sleep(600)\n' + ECHO
    )
    assert fault(one).kind == "trap"
    assert gone(lives()[0])  # though it did not end by itself
    check(one)
    assert one.children == 2


def test_a_traceback_is_told_by_its_last_line(start: Start) -> None:
    one = start('if number == 1:\n    ask(); say(READY); ask(); raise ValueError("no such thing")\n' + ECHO)
    found = fault(one)
    assert (found.kind, found.detail) == (worker.DIED, "exit 1: ValueError: no such thing")
    check(one)


def test_a_child_that_dies_by_a_signal(start: Start) -> None:
    one = start("ask(); say(READY); ask(); os.kill(os.getpid(), 11)\n")
    assert fault(one).detail == "exit -11: no message"


def test_a_child_that_takes_a_moment_to_die_is_told_by_its_own_exit_code(start: Start) -> None:
    one = start(
        'ask(); say(READY); ask(); sys.stderr.write("core dumped\\n"); os.close(1); time.sleep(0.4); os._exit(7)\n'
    )
    assert fault(one).detail == "exit 7: core dumped"


def test_a_child_that_closes_its_pipe_and_lives_on_is_ended(
    start: Start, lives: Callable[[], list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "DYING_S", 0.2)
    assert fault(start("ask(); say(READY); ask(); os.close(1); time.sleep(600)\n")).kind == worker.DIED
    assert gone(lives()[0])


def test_a_child_that_dies_in_the_middle_of_a_frame(start: Start) -> None:
    one = start("ask(); say(READY); ask(); sink.write(frame(Checked(CHECK))[:30]); os._exit(3)\n")
    assert fault(one).detail.startswith("exit 3")


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ('sys.exit("no CUDA-capable device is detected")\n', "worker died: exit 1: no CUDA-capable device is detected"),
        ('ask(); raise ImportError("no cupy")\n', "worker died: exit 1: ImportError: no cupy"),
        ("ask(); os._exit(0)\n", "worker died: exit 0: no message"),
        ('ask(); say(Faulted("out of memory", "none left", True))\n', "out of memory: none left"),
    ],
    ids=["at once", "after the job", "quietly", "by a fault"],
)
def test_a_child_that_does_not_come_up_is_an_error_of_the_machine(start: Start, body: str, words: str) -> None:
    one = start(body)
    for _ in range(2):  # asked again, it is tried again
        with pytest.raises(MeasuringError) as caught:
            one.start()
        assert words in caught.value.what
        assert caught.value.remedy == "faperf doctor"
    assert one.children == 2


def test_a_second_child_that_does_not_come_up_is_not_the_kernels_fault(start: Start) -> None:
    one = start('if number > 1:\n    sys.exit("GPU has fallen off the bus")\n' + HANG_ONCE)
    assert fault(one).kind == worker.HANG
    with pytest.raises(MeasuringError, match="GPU has fallen off the bus"):
        one.verify("t2@sm_90a", "tiny", "normal", 7)


# ── children that chatter ──


@pytest.mark.parametrize("place", ["before it is ready", "before an answer", "before it dies"])
def test_a_chatty_stderr_blocks_nobody(start: Start, impatient: float, place: str) -> None:
    """More than a pipe holds, which nobody reads while the answer is waited for."""
    chatter = 'sys.stderr.write("warning: nothing to see here\\n" * 40_000); sys.stderr.flush()\n'
    body = {
        "before it is ready": chatter + ECHO,
        "before an answer": "ask(); say(READY); ask()\n" + chatter + "say(Checked(CHECK)); ask()\n",
        "before it dies": "ask(); say(READY); ask()\n" + chatter + 'sys.exit("the end")\n',
    }[place]
    one = start(body)
    if place == "before it dies":
        assert fault(one).detail == "exit 1: the end"
    else:
        check(one)


@pytest.mark.parametrize(
    "junk", [b"Loading library...\n" * 10, b"\x01\x00\x00\x00\xc1", b"\x02\x00\x00\x00{}", b"\x00\x00\x00\x00"]
)
def test_junk_among_the_frames_is_a_dead_worker_and_no_traceback(start: Start, impatient: float, junk: bytes) -> None:
    one = start(f"if number == 1:\n    ask(); say(READY); ask(); sink.write({junk!r}); time.sleep(600)\n" + ECHO)
    found = fault(one)
    assert found.kind == worker.DIED
    assert "garbled" in found.detail
    check(one)


def test_what_a_library_prints_in_the_child_lands_on_stderr(tmp_path: Path) -> None:
    """The real child's main, with a Bench that prints by every way there is."""
    script = tmp_path / "child.py"
    script.write_text(
        "import os, sys\nfrom faperf import bench, frames\n\n"
        "class Bench:\n"
        "    def __init__(self, job, operations, tell): print('hello', flush=True)\n"
        "    def ready(self): os.write(1, b'junk'); return frames.Ready('a GPU', 'card', '580.0', '9.0', [])\n"
        "    def verify(self, request):\n"
        "        os.system('echo a child process'); print('more', flush=True)\n"
        "        raise bench.LaunchError('trap', 'on purpose')\n\n"
        "bench.main(Bench)\n"
    )
    one = Worker(JOB, [sys.executable, str(script)])
    assert one.start() == READY
    found = fault(one)
    assert (found.kind, found.detail) == ("trap", "on purpose")
    assert one.start() == READY  # the first child ended itself: a trap loses the context
    assert one.children == 2
    one.stop()


# ── nobody is left behind ──


def test_stop_leaves_no_child(start: Start, lives: Callable[[], list[int]]) -> None:
    one = start(ECHO)
    check(one)
    (pid,) = lives()
    assert alive(pid)
    one.stop()
    assert not Path(f"/proc/{pid}").exists()  # reaped as well
    one.stop()
    check(one)  # a stopped worker starts again
    assert one.children == 2


GRANDCHILD = (
    'grandchild = subprocess.Popen(["sleep", "600"]); (folder / "grandchild").write_text(str(grandchild.pid))\n'
)


@pytest.mark.parametrize("end", ["stop", "hang", "death"])
def test_grandchildren_go_with_their_parent(start: Start, tmp_path: Path, end: str) -> None:
    """They hold the pipes open, too: nobody may wait for those to close."""
    one = start(
        "ask()\n" + GRANDCHILD + "say(READY); ask()\n" + ("os._exit(4)\n" if end == "death" else "time.sleep(600)\n")
    )
    if end == "death":  # stdout stays open in the grandchild, so only a limit ends the waiting
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(worker, "SLACK_S", 2.0)
            fault(one)
    else:
        one.start()
    pid = int((tmp_path / "grandchild").read_text())
    one.stop()
    assert gone(pid)


def test_a_grandchild_of_its_own_session_does_not_hold_up_stop(start: Start, tmp_path: Path) -> None:
    one = start("ask()\n" + GRANDCHILD.replace('"600"]', '"600"], start_new_session=True') + "say(READY); ask()\n")
    one.start()
    begun = time.monotonic()
    one.stop()
    assert time.monotonic() - begun < 5
    os.kill(int((tmp_path / "grandchild").read_text()), signal.SIGKILL)


def test_the_child_ends_with_a_parent_that_was_killed(tmp_path: Path) -> None:
    """In the middle of a launch that hangs, where it would never read the end of its pipe."""
    child, parent = tmp_path / "child.py", tmp_path / "parent.py"
    child.write_text(
        "import os, time\nfrom pathlib import Path\nfrom faperf import bench, frames\n\n"
        "class Bench:\n"
        "    def __init__(self, job, operations, tell): pass\n"
        "    def ready(self): return frames.Ready('a GPU', 'card', '580.0', '9.0', [])\n"
        f"    def verify(self, request): Path({str(tmp_path / 'pid')!r}).write_text(f'{{os.getpid()}}.'); time.sleep(60)\n\n"
        "bench.main(Bench)\n"
    )
    (tmp_path / "job").write_bytes(msgspec.msgpack.encode(JOB))
    parent.write_text(
        "import sys, msgspec\nfrom pathlib import Path\nfrom faperf.job import Job\nfrom faperf.worker import Worker\n\n"
        f"job = msgspec.msgpack.decode(Path({str(tmp_path / 'job')!r}).read_bytes(), type=Job)\n"
        f"Worker(job, [sys.executable, {str(child)!r}]).verify('t1@sm_90a', 'tiny', 'normal', 7)\n"
    )
    process = subprocess.Popen([sys.executable, str(parent)])
    end = time.monotonic() + 20
    pid = tmp_path / "pid"
    while not (pid.exists() and pid.read_text().endswith(".")):
        assert time.monotonic() < end
        time.sleep(0.02)
    process.kill()
    process.wait()
    assert gone(int(pid.read_text().rstrip(".")))


# ── frames ──

MESSAGES: list[frames.Answer] = [
    READY,
    Launching(0.5),
    Landed(),
    Checked(CHECK),
    Timed(TIMING),
    Faulted("trap", "ä → ö", True),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_a_frame_comes_back_as_it_was(message: frames.Answer) -> None:
    stream = io.BytesIO()
    write_frame(stream, message)
    write_frame(stream, Landed())
    stream.seek(0)
    content = read_frame(stream)
    assert content is not None
    assert msgspec.msgpack.decode(content, type=frames.Answer) == message
    assert read_frame(stream) is not None
    assert read_frame(stream) is None


@pytest.mark.parametrize("count", [0, 1, 3, 4, 5, 20])
def test_a_truncated_frame_is_the_end(count: int) -> None:
    stream = io.BytesIO()
    write_frame(stream, Checked(CHECK))
    assert read_frame(io.BytesIO(stream.getvalue()[:count])) is None


def test_an_empty_frame_is_empty_and_not_the_end() -> None:
    assert read_frame(io.BytesIO(struct.pack("<I", 0) + b"next")) == b""


def test_text_is_no_frame() -> None:
    with pytest.raises(msgspec.DecodeError, match=r"no frame begins with b'Load'"):
        read_frame(io.BytesIO(b"Loading library"))


def test_a_big_frame_is_read_from_a_stream_that_gives_a_little_at_a_time() -> None:
    class Dribble(io.BytesIO):
        def read(self, count: int | None = -1, /) -> bytes:
            return super().read(min(count or 0, 65_536))

    stream = Dribble()
    write_frame(stream, Faulted("trap", "x" * 20_000_000, False))
    stream.seek(0)
    content = read_frame(stream)
    assert content is not None
    assert msgspec.msgpack.decode(content, type=Faulted).detail == "x" * 20_000_000


def test_a_frame_is_written_to_a_stream_that_takes_a_little_at_a_time() -> None:
    class Narrow(io.BytesIO):
        def write(self, content: memoryview, /) -> int:  # type: ignore[override]
            return super().write(content[:1000])

    stream = Narrow()
    write_frame(stream, Faulted("trap", "x" * 10_000, False))
    stream.seek(0)
    assert len(read_frame(stream) or b"") > 10_000


# ── what the child's module needs ──


def test_the_worker_imports_what_a_gpu_host_has_and_nothing_else() -> None:
    """With everything else blocked it comes up, verifies launches' frames included; cupy is first missed by the card."""
    program = """
import sys

class Block:
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        if top not in sys.stdlib_module_names | {"numpy", "msgspec", "faperf"}:
            raise ImportError(f"{name} is blocked")

sys.meta_path.insert(0, Block())
import faperf.bench, faperf.timing, faperf.verify
print(*sorted(name for name in sys.modules if name.startswith("faperf.")))
try:
    import yaml
except ImportError as error:
    print(error)
try:
    faperf.bench.Bench(None, None, print)
except ImportError as error:
    print(error)
"""
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert answer.returncode == 0, answer.stderr
    rooms, *blocked = answer.stdout.splitlines()
    assert blocked == ["yaml is blocked", "cupy is blocked"]
    assert {name.split(".")[1] for name in rooms.split()} == {
        "bench",
        "chips",
        "device",
        "errors",
        "frames",
        "job",
        "launch",
        "operations",
        "project",
        "ranksum",
        "record",
        "stats",
        "timing",
        "verify",
    }
