"""Source → PTX and cubin, in a content-addressed cache. The only user of nvcc.

A build key is the digest of the source and of every file it includes (by content), the flags, the target, and the
versions of nvcc and of the host compiler. As the included files are known only once a build was made, the cache is asked in
two steps: a *request* (what can be known beforehand) lists the sets of files that earlier builds of it read; the set whose
contents are still the same gives the key.

    .faperf/cache/requests/<request>.json    [[file, …], …]
    .faperf/cache/builds/<key>/              kernel.ptx, kernel.cubin, build.log (ptxas -v), and what `sass` adds
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import re
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from faperf.errors import CompileError, HistoryError
from faperf.history import write_atomically
from faperf.manifest import Version
from faperf.toolchain import Toolchain, scrubbed_environment

COMPILE_LIMIT_S = 900
FORMAT = 1
"""Part of every key: raise it when faperf's own command line changes what nvcc writes."""


@dataclass(frozen=True)
class Artifact:
    """One build: its key and its files. `inputs` are the files of the project that it read, relative to the root."""

    key: str
    directory: Path
    inputs: tuple[str, ...]
    cached: bool

    @property
    def cubin(self) -> Path:
        return self.directory / "kernel.cubin"

    @property
    def ptx(self) -> Path:
        return self.directory / "kernel.ptx"

    @property
    def log(self) -> Path:
        return self.directory / "build.log"


class Builder:
    """Builds versions of the tree at `root` into `cache`. Safe to call from several threads and processes."""

    def __init__(self, root: Path, cache: Path, toolchain: Toolchain) -> None:
        self.root = root.resolve()
        self.cache = cache
        self.toolchain = toolchain
        self._digests: dict[str, str | None] = {}
        self._lock = threading.Lock()
        self._running: set[subprocess.Popen[str]] = set()
        self._stopped = False

    def build(self, version: Version, target: str) -> Artifact:
        """PTX and cubin of `version` for `target`, from the cache where nothing changed. Raises CompileError."""
        return self.find(version, target) or self._compile(version, target)

    def find(self, version: Version, target: str) -> Artifact | None:
        """The cached build of what lies in the tree now, or None. Runs no compiler."""
        request = self._request(version, target)
        for files in self._known_files(request):
            key = self._key(request, files)
            if key and (self.cache / "builds" / key / "kernel.cubin").is_file():
                with contextlib.suppress(OSError):  # only gc looks at it
                    os.utime(self.cache / "builds" / key)
                return Artifact(key, self.cache / "builds" / key, _inputs(files), cached=True)
        return None

    def stop(self) -> None:
        """End every compiler that is running, and start no more; their builds raise CompileError."""
        with self._lock:
            self._stopped = True
            for process in self._running:
                _kill(process)

    # ── keys ──

    def _request(self, version: Version, target: str) -> str:
        tools = self.toolchain.identity
        parts = [str(FORMAT), tools.nvcc, tools.build, tools.host, target, version.source, *version.flags]
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:20]

    def _known_files(self, request: str) -> list[list[str]]:
        try:
            return msgspec.json.decode((self.cache / "requests" / f"{request}.json").read_bytes(), type=list[list[str]])
        except (OSError, msgspec.DecodeError):
            return []

    def _key(self, request: str, files: list[str]) -> str | None:
        digest = hashlib.sha256(request.encode())
        for name in files:
            content = self._digest(name)
            if content is None:
                return None
            digest.update(f"\0{name.partition('=')[0]}\0{content}".encode())
        return "b" + digest.hexdigest()[:19]  # a letter first: YAML must never take a key for a number

    def _digest(self, name: str) -> str | None:
        """The digest of a file as `_name` names it, read once a Builder; None when it is gone."""
        if name not in self._digests:
            kind, _, rest = name.partition(":")
            path = self.root / rest if kind == "project" else Path(rest.partition("=")[2])
            try:
                self._digests[name] = hashlib.sha256(path.read_bytes()).hexdigest()
            except OSError:
                self._digests[name] = None
        return self._digests[name]

    def _name(self, file: Path) -> str | None:
        """A file's name in keys and file lists: `project:kernels/v12.cu`, `toolkit:cuda_fp16.h=/…`; None for a stranger."""
        for directory in self.toolchain.includes:  # before the project: its own .venv may hold the toolkit
            if file.is_relative_to(directory):
                return f"toolkit:{file.relative_to(directory).as_posix()}={file}"
        if file.is_relative_to(self.root):
            return f"project:{file.relative_to(self.root).as_posix()}"
        if any(file.is_relative_to(directory) for directory in self.toolchain.host_includes):
            return f"host:{file}={file}"
        return None

    # ── compiling ──

    def _compile(self, version: Version, target: str) -> Artifact:
        where = f"{version.id} for {target}"
        source = (self.root / version.source).resolve()
        if not source.is_relative_to(self.root):
            raise CompileError(f"source '{version.source}' lies outside the project", where=where)
        if not source.is_file():
            raise CompileError(f"source '{version.source}' does not exist", where=where)
        scratch = self._scratch(where)
        started = time.time_ns()
        try:
            log = self._nvcc(version, target, scratch, where)
            files = self._included(scratch / "deps", where)
            self._refresh(files, started, where)
            request = self._request(version, target)
            key = self._key(request, files)
            if key is None:
                raise CompileError("a source file vanished during the build", where=where, remedy="run again")
            return Artifact(
                key,
                self._keep(scratch, Path(version.source).stem, log, request, files, key),
                _inputs(files),
                cached=False,
            )
        finally:
            shutil.rmtree(scratch, ignore_errors=True)

    def _refresh(self, files: list[str], started: int, where: str) -> None:
        """Digest the project's files anew: one that was saved while nvcc ran must not stand for what nvcc read.

        By the time of its last change (ctime), which no tool sets back or forward as it does with mtime.
        """
        for name in _inputs(files):
            self._digests.pop(f"project:{name}", None)
            try:
                changed = (self.root / name).stat().st_ctime_ns >= started
            except OSError as error:
                raise CompileError(f"{name} vanished during the build", where=where, remedy="run again") from error
            if changed:
                raise CompileError(f"{name} changed during the build", where=where, remedy="run again")

    def _scratch(self, where: str) -> Path:
        try:
            (self.cache / "builds").mkdir(parents=True, exist_ok=True)
            return Path(tempfile.mkdtemp(prefix=".tmp-", dir=self.cache))
        except OSError as error:
            raise CompileError(
                f"cannot write the cache: {error.strerror}", where=where, remedy="free some space"
            ) from error

    def _nvcc(self, version: Version, target: str, scratch: Path, where: str) -> str:
        """One nvcc run: PTX (kept), cubin, list of included files, and what ptxas -v says, which is returned.

        ptxas 13.0 numbers some registers of v18 by where its own data lie in memory: so they always lie at the same addresses,
        and its files' names are as short in every project.
        """
        number = target.removeprefix("sm_")
        kept = os.path.relpath(scratch, self.root)
        command = [
            str(self.toolchain.nvcc),
            "--cubin",
            f"-gencode=arch=compute_{number},code={target}",
            "-lineinfo",
            "-Xptxas=-v",
            f"-ccbin={self.toolchain.host}",
            "--keep",
            f"--keep-dir={kept}",
            "-MD",
            f"-MF={kept}/deps",
            *version.flags,
            version.source,
            "-o",
            f"{kept}/kernel.cubin",
        ]
        with self._lock, _fixed_addresses():
            if self._stopped:
                raise CompileError("was stopped", where=where)
            process = subprocess.Popen(
                command,
                cwd=self.root,
                env=scrubbed_environment(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                start_new_session=True,  # nvcc starts others; `stop` ends them together
            )
            self._running.add(process)
        try:
            output, _ = process.communicate(timeout=COMPILE_LIMIT_S)
        except subprocess.TimeoutExpired as error:
            _kill(process)
            process.communicate()
            raise CompileError(f"nvcc ran past {COMPILE_LIMIT_S} s and was stopped", where=where) from error
        finally:
            with self._lock:
                self._running.discard(process)
        if process.returncode != 0:
            self._refuse_strangers(output, where)
            raise CompileError(f"does not compile\n{output.strip()}", where=where)
        return output

    def _refuse_strangers(self, output: str, where: str) -> None:
        """A compiler quotes the lines it complains of: those of a file that is none of our business are not shown."""
        for place in set(re.findall(r"^(\S[^\n(:]*)(?:\(\d+\)|:\d+(?::\d+)?):", output, re.MULTILINE)):
            self._required_name((self.root / place).resolve(), where)

    def _required_name(self, file: Path, where: str) -> str:
        name = self._name(file)
        if name is None:
            raise CompileError(
                f"includes {file}, which lies neither in the project nor in the toolkit",
                where=where,
                remedy="include only files of the project, of CUDA and of the C++ library",
            )
        return name

    def _included(self, dependencies: Path, where: str) -> list[str]:
        """The files that nvcc read, by name, in a fixed order. Raises CompileError when one is none of our business."""
        rule = dependencies.read_text(encoding="utf-8").replace("\\\n", " ").partition(":")[2]
        paths = [Path(part.replace("\\ ", " ")) for part in re.split(r"(?<!\\)\s+", rule) if part]
        files = [(self.root / path).resolve() for path in paths]
        return sorted({self._required_name(file, where) for file in files})

    def _keep(self, scratch: Path, stem: str, log: str, request: str, files: list[str], key: str) -> Path:
        """Move what a build gave into the cache. Whoever is second finds the directory there and drops its own."""
        directory = self.cache / "builds" / key
        staged = scratch / "staged"
        try:
            staged.mkdir()
            (scratch / "kernel.cubin").rename(staged / "kernel.cubin")
            (scratch / f"{stem}.ptx").rename(staged / "kernel.ptx")
            (staged / "build.log").write_text(log, encoding="utf-8")
            if directory.exists() and not (directory / "kernel.cubin").is_file():
                shutil.rmtree(directory)  # what an interrupted cleaning left
            if not directory.exists():
                staged.rename(directory)
            with self._lock:
                known = [known for known in self._known_files(request) if known != files]
                write_atomically(self.cache / "requests" / f"{request}.json", msgspec.json.encode([files, *known[:7]]))
        except OSError as error:
            if not directory.is_dir():
                raise HistoryError(
                    f"cannot write the cache: {error.strerror}",
                    where=str(directory),
                    remedy="free some space or fix the permissions; run again",
                ) from error
        return directory


@contextlib.contextmanager
def _fixed_addresses() -> Iterator[None]:
    """Programs that this thread starts are not loaded at random addresses (personality(2); some sandboxes refuse it)."""
    ask, no_randomize = 0xFFFFFFFF, 0x0040000
    try:
        personality = ctypes.CDLL(None).personality
    except (OSError, AttributeError):  # not Linux
        yield
        return
    before = personality(ask)
    personality(before | no_randomize)
    try:
        yield
    finally:
        personality(before)


def _kill(process: subprocess.Popen[str]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _inputs(files: list[str]) -> tuple[str, ...]:
    return tuple(name.removeprefix("project:") for name in files if name.startswith("project:"))
