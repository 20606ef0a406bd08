"""Commits, dirty state and the files of another commit. The only user of git.

What every command asks is asked of git itself; GitPython, which takes as long to import as a ladder to print, is for what
reads commits as objects.
"""

from __future__ import annotations

import datetime
import os
import re
import subprocess
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from faperf.errors import GitError

if TYPE_CHECKING:
    import git

HASH = re.compile("[0-9a-f]{40}|[0-9a-f]{64}")


class Repository:
    """The git repository around a project. Paths given and returned are relative to the project's root."""

    def __init__(self, root: Path, top: Path, own: Path, common: Path) -> None:
        self.root = root
        self._top = top
        self._own = own  # this worktree's HEAD lies here
        self._common = common  # and the branches of all worktrees here
        self._prefix = root.relative_to(self._top).as_posix() if root != self._top else ""

    @cached_property
    def _repo(self) -> git.Repo:
        import git

        return git.Repo(self.root, search_parent_directories=True)

    @classmethod
    def find(cls, root: Path) -> Repository | None:
        """The repository that holds `root`, or None where there is none (then records carry no commit)."""
        root = root.resolve()
        if not root.is_dir():
            return None
        try:
            asked = _run(
                ["rev-parse", "--path-format=absolute", "--show-toplevel", "--git-dir", "--git-common-dir"], root
            )
        except FileNotFoundError:
            return None  # there is no git
        if asked.returncode == 0:
            top, own, common = os.fsdecode(asked.stdout).splitlines()
            return cls(root, Path(top).resolve(), Path(own), Path(common))
        said = os.fsdecode(asked.stderr).strip()
        if "not a git repository" in said or "must be run in a work tree" in said:
            return None
        raise GitError(said, where=str(root))

    @property
    def folder(self) -> str:
        """The project's folder in the repository; "" where it is its root."""
        return self._prefix

    def head(self) -> str | None:
        """HEAD's commit, detached or not; None before the first commit. Read as git keeps it, or asked of git."""
        with suppress(OSError, UnicodeDecodeError):
            content = (self._own / "HEAD").read_text(encoding="ascii").strip()
            if content.startswith("ref: refs/heads/"):
                content = (self._common / content.removeprefix("ref: ")).read_text(encoding="ascii").strip()
            if HASH.fullmatch(content):
                return content
        asked = _run(["rev-parse", "--verify", "--quiet", "HEAD^{commit}"], self.root)
        return os.fsdecode(asked.stdout).strip() if asked.returncode == 0 else None

    def resolve(self, ref: str) -> str:
        """The commit that a branch, tag, `HEAD~3` or hash names. Raises GitError."""
        if ref == "HEAD" and (head := self.head()):
            return head
        try:
            return self._git("rev-parse", "--verify", "--end-of-options", f"{ref}^{{commit}}").strip()
        except (GitError, ValueError) as error:  # ValueError: a NUL in it
            raise GitError(f"no commit '{ref}' here{self._shallow()}", remedy="see git log --oneline") from error

    def commits(self, span: str) -> list[str]:
        """The first-parent commits of `A..B`, oldest first. Raises GitError."""
        start, dots, end = span.partition("..")
        if not dots or not start or end.startswith("."):
            raise GitError(f"'{span}' is not a range", remedy="write it as A..B")
        start, end = self.resolve(start), self.resolve(end or "HEAD")
        listing = self._git("rev-list", "--first-parent", "--reverse", f"{start}..{end}")
        return listing.split()

    def first_parents(self, commit: str = "HEAD") -> Iterator[str]:
        """A commit and its first-parent ancestors, newest first; none before the first commit. Walks no further than is asked."""
        return self._walk(commit, "--first-parent")

    def ancestors(self, commit: str = "HEAD") -> Iterator[str]:
        """A commit and all its ancestors, those of merged branches too, newest first."""
        return self._walk(commit)

    def merged(self) -> dict[str, str]:
        """Of each ancestor of HEAD that came by a merge: the first-parent commit that brought it."""
        lines = [line.split() for line in self._git("rev-list", "--parents", "HEAD").splitlines()]
        parents = {commit: own for commit, *own in lines}
        along = [commit for commit in self.first_parents() if commit in parents]
        brought = {}
        met = set(along)
        for merge in reversed(along):
            waiting = parents[merge][1:]
            while waiting:
                commit = waiting.pop()
                if commit not in met and commit in parents:
                    met.add(commit)
                    brought[commit] = merge
                    waiting += parents[commit]
        return brought

    def _walk(self, commit: str, *options: str) -> Iterator[str]:
        start = self.head() if commit == "HEAD" else commit
        if start is None:
            return
        known = bool(HASH.fullmatch(start))
        if known:
            yield start  # many ask for no more
        with subprocess.Popen(
            ["git", "rev-list", *options, f"--skip={int(known)}", "--end-of-options", start],
            cwd=self.root,
            env=_plain(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        ) as walk:
            assert walk.stdout is not None
            assert walk.stderr is not None
            try:
                rest = b""
                while chunk := walk.stdout.read(1 << 12):
                    *lines, rest = (rest + chunk).split(b"\n")
                    yield from map(bytes.decode, lines)
                if walk.wait():
                    said = os.fsdecode(walk.stderr.read()).strip()
                    raise GitError(f"git rev-list failed: {said}{self._shallow()}")
            finally:
                walk.kill()

    def baseline(self, default_branch: str, dirty: Callable[[], bool]) -> str:
        """Where HEAD left the default branch. When it is on it: HEAD where the tree is `dirty`, else its first parent.

        Raises GitError.
        """
        head = self.head()
        if head is None:
            raise GitError("there is no commit yet, so there is nothing to compare with", remedy="git commit")
        default = next((ref for ref in (f"origin/{default_branch}", default_branch) if self._knows(ref)), None)
        if default is None:
            raise GitError(
                f"no branch '{default_branch}' here, neither origin's nor this clone's",
                remedy=f"{self._fetch(default_branch)}; or set default-branch in [tool.faperf], or give --baseline",
            )
        try:
            base = self._git("merge-base", default, head).strip()
        except GitError as error:
            if not self.is_shallow:
                raise GitError(f"HEAD and {default} share no commit", remedy="give --baseline") from error
            raise GitError(
                f"this clone is too shallow to tell where HEAD left {default}",
                remedy=self._fetch(default_branch),
            ) from error
        if base != head or dirty():
            return base
        if self._knows(f"{head}^"):
            return self.resolve(f"{head}^")
        if self.is_shallow:
            raise GitError("this clone has HEAD alone", remedy="git fetch --depth=2 (actions/checkout: fetch-depth: 2)")
        raise GitError("HEAD is the first commit: there is nothing to compare with", remedy="give --baseline")

    def committed(self, commit: str) -> datetime.date:
        """The committer's date of a commit."""
        return self._repo.commit(commit).committed_datetime.date()

    def authored(self, commit: str) -> datetime.datetime:
        """The author's time of a commit."""
        return self._repo.commit(commit).authored_datetime

    def commits_between(self, good: str, bad: str) -> list[str]:
        """The first-parent commits from `good` to `bad`, both included, oldest first. Raises GitError."""
        if not self._repo.is_ancestor(self._repo.commit(good), self._repo.commit(bad)):
            raise GitError(f"{good[:12]} is no ancestor of {bad[:12]}", remedy="give --good an ancestor of --bad")
        return [good, *self._git("rev-list", "--first-parent", "--reverse", f"{good}..{bad}").split()]

    def _fetch(self, branch: str) -> str:
        """How to get a branch of origin as origin/…, and all of the history where this clone is shallow."""
        refspec = f"{branch}:refs/remotes/origin/{branch}"  # a clone of one branch would fetch it to FETCH_HEAD alone
        if not self.is_shallow:
            return f"git fetch origin {refspec}"
        return f"git fetch --unshallow origin HEAD {refspec} (actions/checkout: fetch-depth: 0)"

    @property
    def is_shallow(self) -> bool:
        return (self._common / "shallow").exists()

    def _knows(self, ref: str) -> bool:
        try:
            self.resolve(ref)
        except GitError:
            return False
        return True

    def dirty(self, paths: Iterable[str], *patterns: str) -> list[str]:
        """The files that differ from HEAD: changed, staged, deleted, never added, or ignored (so in no commit either).

        Of `paths`, which are taken literally, and of those that match a glob of `patterns`.
        """
        specs = sorted({f":(literal){path}" for path in paths} | {f":(glob){pattern}" for pattern in patterns})
        if not specs:
            return []
        options = ("--porcelain=v1", "-z", "--untracked-files=all", "--no-renames", "--ignored=matching")
        listing = self._git("status", *options, "--", *specs)
        prefix = f"{self._prefix}/" if self._prefix else ""
        return sorted({entry[3:].removeprefix(prefix) for entry in listing.split("\0") if len(entry) > 3})

    def described(self, commits: Sequence[str]) -> dict[str, tuple[str, str]]:
        """The author's date (ISO 8601) and the subject of each commit."""
        if not commits:
            return {}
        listing = self._git(
            "log", "--no-walk=unsorted", "--stdin", "--format=%H%x00%aI%x00%s", "-z", text="\n".join(commits) + "\n"
        )
        parts = listing.split("\0")
        return {parts[n]: (parts[n + 1], parts[n + 2]) for n in range(0, len(parts) - 2, 3)}

    def subject(self, commit: str) -> str:
        return str(self._repo.commit(commit).summary)

    def export(self, commit: str, into: Path) -> Path:
        """The project as it stood at `commit`, without `history/`, as plain files under `into/<tree>`. No checkout is touched.

        Kept by the tree's hash, so that a second look costs nothing.
        """
        import tempfile

        tree = self._repo.commit(commit).tree.hexsha
        target = into / tree
        if not target.is_dir():
            try:
                into.mkdir(parents=True, exist_ok=True)
                with tempfile.TemporaryDirectory(prefix=".tmp-", dir=into) as scratch:
                    staged = Path(scratch) / "files"
                    staged.mkdir()
                    self._check_out(commit, staged, Path(scratch))
                    if not target.exists():
                        staged.rename(target)
            except OSError as error:
                raise GitError(f"cannot write the files of {commit[:12]}: {error.strerror}", where=str(into)) from error
        return target

    def _check_out(self, commit: str, staged: Path, scratch: Path) -> None:
        """Write a commit's files to `staged`, as a checkout would, through an index of our own."""
        if self._prefix and not self._git("ls-tree", "-d", commit, "--", f":(top,literal){self._prefix}"):
            return  # the project was not there yet
        own_index = {"GIT_INDEX_FILE": str(scratch / "index")}
        # The colon form makes the project's folder the root.
        self._git("read-tree", f"{commit}:{self._prefix}" if self._prefix else commit, env=own_index)
        names = self._git("ls-files", "--full-name", "-z", env=own_index, cwd=self._top).split("\0")
        wanted = scratch / "wanted"
        wanted.write_text("\0".join(name for name in names if name and not name.startswith("history/")))
        with wanted.open("rb") as stream:
            self._git(
                "checkout-index", "-z", "--stdin", f"--prefix={staged}/", env=own_index, cwd=self._top, istream=stream
            )
        for path in staged.rglob("*"):
            if path.is_symlink() and not path.resolve().is_relative_to(staged.resolve()):
                path.unlink()  # leads out of the tree; whatever needs it then says that it is not there

    def _shallow(self) -> str:
        return "; this clone is shallow: git fetch --unshallow (or --deepen=N)" if self.is_shallow else ""

    def _git(
        self,
        *arguments: str,
        env: dict[str, str] | None = None,
        cwd: Path | None = None,
        istream: BinaryIO | None = None,
        text: str | None = None,
    ) -> str:
        asked = _run(arguments, cwd or self.root, env, istream, text)
        if asked.returncode:
            said = os.fsdecode(asked.stderr).strip()
            raise GitError(f"git {arguments[0]} failed: {said}{self._shallow()}")
        return os.fsdecode(asked.stdout)


def _plain() -> dict[str, str]:
    """The environment in which git's words are those that are read here."""
    return {**os.environ, "LC_ALL": "C", "LANGUAGE": "C"}


def _run(
    arguments: Sequence[str],
    cwd: Path,
    env: dict[str, str] | None = None,
    istream: BinaryIO | None = None,
    text: str | None = None,
) -> subprocess.CompletedProcess[bytes]:
    given = text.encode() if text is not None else None
    stdin = None if text is not None else istream or subprocess.DEVNULL
    environment = {**_plain(), **(env or {})}
    return subprocess.run(["git", *arguments], cwd=cwd, env=environment, input=given, stdin=stdin, capture_output=True)
