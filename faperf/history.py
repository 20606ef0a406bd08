"""Where records live. Shared through git under `history/` on an enrolled machine, under `.faperf/history/` otherwise.

    builds/<build key>.json                  one build, the same bytes on any machine: merges never conflict
    <class>/<commit12>-<run id>.jsonl        one run, written whole when it is finished
    <class>/calibrations/<run id>.jsonl      one calibration of the gate on that machine
    <class>/counters/<id>.jsonl              what one run's launches counted
    <class>/peers/<id>.jsonl                 other implementations beside ours
    external/nvbench/<digest>.jsonl          what an imported file of nvbench's holds
    reported/*.yaml                          what others published

A run that is under way keeps a journal in `.faperf/pending/`; when it is killed, the journal stays and `run --resume` goes
on with it. Every file appears by a rename, so no reader ever sees half of one.
"""

from __future__ import annotations

import contextlib
import datetime
import fcntl
import os
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import BinaryIO

import msgspec

from faperf import __version__, record
from faperf.errors import ConfigError, HistoryError, ManifestError
from faperf.index import Contents, Index, RunFile, StoredTiming
from faperf.manifest import decode_yaml
from faperf.project import Project
from faperf.record import Build, Calibration, Counters, External, PeerResult, Reported, ReportedLadder, Run

NO_GIT = "nogit"
NO_GPU_CLASS = "no-gpu"


class Machine(msgspec.Struct, frozen=True):
    """What `faperf machine add` wrote: the class under which this machine's records are shared."""

    machine_class: str
    added: str


class History:
    """The records of a project: shared ones and this machine's own, read together."""

    def __init__(self, project: Project) -> None:
        self.project = project
        self.warnings: list[str] = []
        self._damaged_lines = 0
        self._journal: BinaryIO | None = None
        self._index: Index | None = None

    # ── the machine ──

    @property
    def _machine_file(self) -> Path:
        return self.project.state / "machine.json"

    def machine(self) -> Machine | None:
        """This machine's enrolment, or None."""
        try:
            return msgspec.json.decode(self._machine_file.read_bytes(), type=Machine)
        except FileNotFoundError:
            return None
        except msgspec.DecodeError as error:
            raise HistoryError(
                str(error), where=self.project.relative(self._machine_file), remedy="run faperf machine add again"
            ) from error

    def enrol(self, machine_class: str) -> Machine:
        """Share this machine's records through git from now on, under `history/<machine_class>/`."""
        machine = Machine(machine_class, now())
        self.project.make_state()
        write_atomically(self._machine_file, msgspec.json.encode(machine) + b"\n")
        return machine

    def class_here(self, of_gpu: str) -> str:
        """Under which class this machine's records stand: as it was enrolled, else as its GPU says."""
        machine = self.machine()
        return machine.machine_class if machine else of_gpu

    @property
    def root(self) -> Path:
        """Where this machine writes."""
        return self.project.history if self.machine() else self.project.state / "history"

    @cached_property
    def _roots(self) -> list[Path]:
        return [self.project.history, self.project.state / "history"]

    # ── builds ──

    def build(self, key: str) -> Build | None:
        """The build record of a build key, or None. A damaged file is a warning and counts as absent."""
        for root in self._roots:
            for found in self._records(f"{root}/builds/{key}.json"):
                if isinstance(found, Build) and found.key == key:
                    return found
        return None

    def same_code(self, first: str | None, second: str | None) -> bool:
        """Whether two builds run the same code. Each is named by its build key, or by its code itself.

        True for equal names, False where a record that would tell is missing.
        """
        if first is None or second is None or first == second:
            return first == second
        one, other = (build.code if (build := self.build(name)) else name for name in (first, second))
        return one == other

    def save_build(self, build: Build) -> bool:
        """Store a build record where none of its key is stored yet. True when it was new.

        A damaged one is replaced; raises HistoryError for one of a newer schema.
        """
        if self.build(build.key) is not None:
            return False
        path = self.root / "builds" / f"{build.key}.json"
        with contextlib.suppress(FileNotFoundError, msgspec.DecodeError):
            there = msgspec.json.decode(path.read_bytes(), type=record.Schema)
            record.refuse_newer(there.schema, self.project.relative(path))
        write_atomically(path, record.encode(build))
        return True

    # ── runs ──

    @property
    def index(self) -> Index:
        """What tells of the run files without reading them all."""
        if self._index is None:
            if any(root.is_dir() for root in self._roots):
                with contextlib.suppress(ConfigError):  # where nothing can be written, it is in memory
                    self.project.make_state()
            self._index = Index(self.project.state / "index.sqlite", self._roots, self._contents)
        return self._index

    def run_files(self, commit: str | None = None) -> list[RunFile]:
        """Every finished run, or those of a commit, oldest first, by file name alone."""
        return self.index.files(commit12=commit[:12] if commit else None)

    def timings(self, version: str | None = None, target: str | None = None) -> list[StoredTiming]:
        """The timings of finished runs in the order of the runs: all, those of a version, those of a version for a target."""
        return self.index.timings(version, target)

    def load_run(self, run_file: RunFile, *, glance: bool = False) -> Run | None:
        """The run record of a file, or None (with a warning) when it is damaged. At a glance, the file's other lines are not
        looked at, so nothing is said of them.
        """
        if glance and (run := _last_record(f"{run_file.directory}/{run_file.name}")) is not None:
            return run
        runs = [found for found in self._records(run_file.path) if isinstance(found, Run)]
        if not runs:
            self._warn(run_file.path, "holds no run record; ignored")
            return None
        return runs[-1]

    def newest_run(self, commit: str | None, *, dirty: bool | None = None) -> Run | None:
        """The newest readable run of a commit (None: outside git); `dirty` filters, None takes either."""
        for run_file in reversed(self.run_files(commit or NO_GIT)):
            if dirty in (None, run_file.dirty):
                run = self.load_run(run_file)
                if run is not None and run.commit == commit:
                    return run
        return None

    def _records(self, path: Path | str) -> Iterator[record.Record]:
        """A text where there are many: a Path takes as long to make as a record to read."""
        try:
            with open(path, "rb") as file:
                lines = file.read().splitlines()
        except FileNotFoundError:
            return
        except OSError as error:
            raise HistoryError(str(error), where=self.project.relative(Path(path))) from error
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                yield record.decode(line)
            except HistoryError as error:
                self._damaged_lines += 1
                self._warn(Path(path), f"{error.what}; line ignored ({error.remedy})", number)

    def _contents(self, path: Path) -> Contents:
        before = self._damaged_lines
        return Contents(list(self._records(path)), sound=self._damaged_lines == before)

    def _warn(self, path: Path, what: str, line: int | None = None) -> None:
        place = self.project.relative(path) + (f":{line}" if line else "")
        message = f"{place}: {what}"
        if message not in self.warnings:
            self.warnings.append(message)

    # ── a run under way ──

    @property
    def _pending(self) -> Path:
        return self.project.state / "pending"

    def pending(self) -> list[Run]:
        """The headers of runs that were not finished and that nobody is working on, oldest first."""
        headers = []
        for path in sorted(self._pending.glob("*.jsonl")):
            if not in_use(path):
                headers.extend([found for found in self._records(path) if isinstance(found, Run)][:1])
        return headers

    def begin(self, header: Run) -> None:
        """Start a run's journal, or go on with the one of the same id. It is ours until `finish`, `abandon` or our end."""
        self.project.make_state()
        journal = self._pending / f"{header.id}.jsonl"
        if not journal.exists():
            write_atomically(journal, record.encode(header))
        cut_off = not journal.read_bytes().endswith(b"\n")
        self._journal = journal.open("ab")
        try:
            fcntl.flock(self._journal, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self._journal.close()
            self._journal = None
            raise HistoryError(f"run {header.id} is under way in another process", remedy="wait for it") from error
        if cut_off:  # by a kill or a full disk; what comes next begins on a line of its own
            self._journal.write(b"\n")

    def append(self, found: record.Record) -> None:
        """Keep a record of the run under way: it is there for `run --resume` whatever happens next."""
        assert self._journal is not None
        self._journal.write(record.encode(found))
        self._journal.flush()
        os.fsync(self._journal.fileno())

    def kept(self, run_id: str) -> list[record.Record]:
        """What was appended to a run's journal so far."""
        journal = self._pending / f"{run_id}.jsonl"
        return [found for found in self._records(journal) if not isinstance(found, Run)]

    def records_of(self, run_id: str) -> list[record.Record]:
        """The checks and timings of a finished run; none (with a warning) when it is not in this history."""
        for run_file in self.index.files(run_id=run_id):
            return list(self._records(run_file.path))
        return []

    def finish(self, run: Run) -> Path:
        """Publish the run under way with what was appended to its journal. Returns the file's path."""
        path = self.publish(run, self.kept(run.id))
        self.abandon(run.id)
        return path

    def publish(self, run: Run, records: Sequence[record.Record]) -> Path:
        """A run and its records in one file, which appears at once. Returns its path."""
        commit12 = run.commit[:12] if run.commit else NO_GIT
        name = "-".join([commit12, *(["dirty"] if run.dirty else []), run.id])
        path = self.root / run.machine / f"{name}.jsonl"
        write_atomically(path, b"".join(record.encode(found) for found in [*records, run]))
        return path

    def abandon(self, run_id: str) -> None:
        """Drop a run's journal: it is finished, or there was nothing new to record."""
        (self._pending / f"{run_id}.jsonl").unlink(missing_ok=True)
        if self._journal is not None:
            self._journal.close()
            self._journal = None

    # ── calibrations ──

    def calibrations(self, machine_class: str | None = None) -> list[Calibration]:
        """Those of a machine class (None: of all), oldest first."""
        return sorted(
            (
                found
                for root in self._roots
                for path in root.glob(f"{machine_class or '*'}/calibrations/*.jsonl")
                for found in self._records(path)
                if isinstance(found, Calibration)
            ),
            key=lambda found: found.id,
        )

    def file_calibrations(self, found: Sequence[Calibration]) -> Path:
        """One run's calibrations in one file. Returns its path."""
        path = self.root / found[0].machine / "calibrations" / f"{found[0].id}.jsonl"
        write_atomically(path, b"".join(record.encode(calibration) for calibration in found))
        return path

    # ── counters ──

    def counters(self) -> list[Counters]:
        """Those of all machines, oldest first."""
        files = [path for root in self._roots for path in root.glob("*/counters/*.jsonl")]
        return [
            f for path in sorted(files, key=lambda p: p.name) for f in self._records(path) if isinstance(f, Counters)
        ]

    def file_counters(self, found: Sequence[Counters]) -> Path:
        """What one run counted, in one file. Returns its path."""
        path = self.root / found[0].machine / "counters" / f"{new_run_id()}.jsonl"
        write_atomically(path, b"".join(record.encode(counted) for counted in found))
        return path

    # ── peers ──

    def file_peers(self, found: Sequence[PeerResult]) -> Path:
        """Other implementations' figures of one `faperf peers`, in one file. Returns its path."""
        path = self.root / found[0].machine / "peers" / f"{found[0].id}.jsonl"
        write_atomically(path, b"".join(record.encode(result) for result in found))
        return path

    def peers(self) -> list[PeerResult]:
        """Other implementations' figures, oldest first."""
        found = [
            result
            for root in self._roots
            for path in root.glob("*/peers/*.jsonl")
            for result in self._records(path)
            if isinstance(result, PeerResult)
        ]
        return sorted(found, key=lambda result: result.id)

    # ── other tools' figures ──

    def external(self, version: str | None = None) -> list[External]:
        """Those of a version (None: of all), in the order in which they were imported."""
        found = [
            figure
            for root in self._roots
            for path in root.glob("external/nvbench/*.jsonl")
            for figure in self._records(path)
            if isinstance(figure, External) and version in (None, figure.version)
        ]
        return sorted(found, key=lambda figure: figure.when)

    def file_external(self, found: Sequence[External]) -> Path:
        """One file's figures in one file: importing it again changes nothing, unless for other versions. Returns its path."""
        path = self.root / "external" / "nvbench" / f"{found[0].id}.jsonl"
        known = [figure.version for figure in self._records(path) if isinstance(figure, External)]
        if known != [figure.version for figure in found]:
            write_atomically(path, b"".join(record.encode(figure) for figure in found))
        return path

    # ── reported ──

    def reported(self) -> list[ReportedLadder]:
        """The publications of `history/reported/`. A broken file is a warning: the others are still shown."""
        ladders = []
        for path in sorted((self.project.history / "reported").glob("*.yaml")):
            try:
                ladders.append(decode_yaml(path, self.project.relative(path), ReportedLadder, self.index))
            except ManifestError as error:
                message = f"{error}; not shown"
                if message not in self.warnings:
                    self.warnings.append(message)
        return ladders

    def reported_row(self, version: str) -> tuple[ReportedLadder, Reported] | None:
        return next(((file, row) for file in self.reported() for row in file.rows if row.version == version), None)


def _last_record(path: str) -> Run | None:
    """The run of a file that ends with it, as a file that was written whole does. Its other lines are not looked at."""
    try:
        with open(path, "rb") as file:
            found = record.decode(file.read().rstrip().rpartition(b"\n")[2])
    except (OSError, HistoryError):
        return None
    return found if isinstance(found, Run) else None


def in_use(journal: Path) -> bool:
    """Whether a living process holds a run's journal. The lock goes with the process, however it ends."""
    try:
        with journal.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def new_run(commit: str | None, machine: str) -> Run:
    """A run that begins now, with nothing in it yet. `machine` is its class."""
    return Run(
        schema=record.SCHEMA,
        id=new_run_id(),
        commit=commit,
        when=now(),
        faperf=__version__,
        machine=machine,
        entries=[],
    )


def new_run_id() -> str:
    """Sorts by time; two runs that start in the same microsecond differ in the tail."""
    return f"{datetime.datetime.now(datetime.UTC):%Y%m%dT%H%M%S%fZ}{os.urandom(2).hex()}"


def now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def write_atomically(path: Path, content: bytes) -> None:
    """Write a whole file that appears by a rename. Raises HistoryError when the disk refuses."""
    import tempfile  # for those who write

    temporary = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".tmp-", delete=False) as file:
            temporary = Path(file.name)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except OSError as error:
        if temporary is not None:
            temporary.unlink(missing_ok=True)
        raise HistoryError(
            f"cannot write: {error.strerror}",
            where=str(path),
            remedy="free some space or fix the permissions; run again",
        ) from error
