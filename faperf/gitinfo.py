"""Commits, dirty state and the files of another commit. The only user of GitPython."""

from __future__ import annotations

import io
import shutil
import tarfile
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import git

from faperf.errors import GitError


class Repository:
    """The git repository around a project. Paths given and returned are relative to the project's root."""

    def __init__(self, root: Path, repo: git.Repo) -> None:
        self.root = root
        self._repo = repo
        top = Path(repo.working_dir).resolve()
        self._prefix = root.relative_to(top).as_posix() if root != top else ""

    @classmethod
    def find(cls, root: Path) -> Repository | None:
        """The repository that holds `root`, or None where there is none (then records carry no commit)."""
        try:
            repo = git.Repo(root, search_parent_directories=True)
        except (git.InvalidGitRepositoryError, git.NoSuchPathError):
            return None
        except git.GitError as error:
            raise GitError(str(error), where=str(root)) from error
        return None if repo.bare else cls(root.resolve(), repo)

    def head(self) -> str | None:
        """HEAD's commit, detached or not; None before the first commit."""
        try:
            return self._repo.head.commit.hexsha
        except ValueError:
            return None

    def resolve(self, ref: str) -> str:
        """The commit that a branch, tag, `HEAD~3` or hash names. Raises GitError."""
        try:  # git itself: GitPython takes any 40 digits for a commit, whether it is here or not
            found = git.Git(self.root).execute(
                ["git", "rev-parse", "--verify", "--end-of-options", f"{ref}^{{commit}}"]
            )
            return str(found)
        except (git.GitError, ValueError) as error:
            raise GitError(f"no commit '{ref}' here{self._shallow()}", remedy="see git log --oneline") from error

    def commits(self, span: str) -> list[str]:
        """The first-parent commits of `A..B`, oldest first. Raises GitError."""
        start, dots, end = span.partition("..")
        if not dots or not start or end.startswith("."):
            raise GitError(f"'{span}' is not a range", remedy="write it as A..B")
        start, end = self.resolve(start), self.resolve(end or "HEAD")
        listing = self._git("rev-list", "--first-parent", "--reverse", f"{start}..{end}")
        return listing.split()

    def first_parents(self) -> Iterator[str]:
        """HEAD and its first-parent ancestors, newest first; none before the first commit."""
        if self.head() is not None:
            yield from self._git("rev-list", "--first-parent", "HEAD").split()

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

    def subject(self, commit: str) -> str:
        return str(self._repo.commit(commit).summary)

    def export(self, commit: str, into: Path) -> Path:
        """The project as it stood at `commit`, without `history/`, as plain files under `into/<tree>`. No checkout is touched.

        Kept by the tree's hash, so that a second look costs nothing.
        """
        tree = self._repo.commit(commit).tree.hexsha
        target = into / tree
        if not target.is_dir():
            archive = io.BytesIO()
            # The colon form takes the project's folder as the root of the archive.
            treeish = f"{commit}:{self._prefix}" if self._prefix else commit
            try:
                self._repo.archive(archive, treeish)
                into.mkdir(parents=True, exist_ok=True)
                staged = Path(tempfile.mkdtemp(prefix=".tmp-", dir=into))
                with tarfile.open(fileobj=io.BytesIO(archive.getvalue())) as tar:
                    members = [m for m in tar.getmembers() if m.name != "history" and not m.name.startswith("history/")]
                    tar.extractall(staged, members=members, filter=_inside)
            except (git.GitError, OSError, tarfile.TarError) as error:
                raise GitError(f"cannot take the files of {commit[:12]} from git: {error}{self._shallow()}") from error
            if not target.exists():
                staged.rename(target)
            else:
                shutil.rmtree(staged, ignore_errors=True)
        return target

    def _shallow(self) -> str:
        shallow = Path(self._repo.git_dir) / "shallow"
        return "; this clone is shallow: git fetch --unshallow (or --deepen=N)" if shallow.exists() else ""

    def _git(self, *arguments: str) -> str:
        try:
            return str(git.Git(self.root).execute(["git", *arguments], strip_newline_in_stdout=False))
        except git.GitError as error:
            raise GitError(f"git {arguments[0]} failed: {error}{self._shallow()}") from error


def _inside(member: tarfile.TarInfo, path: str) -> tarfile.TarInfo | None:
    """A symlink that leads out of the tree is left out; whatever needs it then says that it is not there."""
    try:
        return tarfile.data_filter(member, path)
    except tarfile.FilterError:
        return None
