"""Commits, dirty state and the files of another commit, in every state a repository can be in."""

from __future__ import annotations

import contextlib
import os
import subprocess
from pathlib import Path

import pytest

from faperf.errors import GitError
from faperf.gitinfo import Repository
from tests.conftest import UserProject

INPUTS = ["kernels/t1.cu", "kernels/common.cuh"]
MANIFESTS = "manifests/*.yaml"


@pytest.fixture
def project(bare: UserProject) -> UserProject:
    """A repository of one commit: t1, and a header that it includes."""
    bare.version("t1")
    bare.write("kernels/common.cuh", "#pragma once\n")
    bare.git("init", "--quiet")
    bare.commit("first")
    return bare


@pytest.fixture
def inner(tmp_path: Path) -> UserProject:
    """A project in a subdirectory of its repository, beside another directory of the same names."""
    outer = UserProject(tmp_path / "repository")
    outer.write("kernels/t1.cu", "not ours\n")
    inner = UserProject(tmp_path / "repository" / "gpu" / "attention")
    inner.version("t1")
    inner.write("kernels/common.cuh", "#pragma once\n")
    inner.write("history/no-gpu/a.jsonl", "{}\n")
    outer.git("init", "--quiet")
    outer.commit("first")
    return inner


def repository(project: UserProject) -> Repository:
    found = Repository.find(project.root)
    assert found is not None
    return found


def dirty(project: UserProject) -> list[str]:
    return repository(project).dirty(INPUTS, MANIFESTS)


def files(directory: Path) -> set[str]:
    return {path.relative_to(directory).as_posix() for path in directory.rglob("*") if not path.is_dir()}


# ── dirty ──


@pytest.fixture(params=["project", "inner"])
def anywhere(request: pytest.FixtureRequest) -> UserProject:
    """A project at the root of its repository, and one in a subdirectory."""
    found = request.getfixturevalue(request.param)
    assert isinstance(found, UserProject)
    return found


def test_clean(anywhere: UserProject) -> None:
    assert dirty(anywhere) == []


def test_modified(anywhere: UserProject) -> None:
    anywhere.write("kernels/common.cuh", "#pragma once\n#define A\n")
    assert dirty(anywhere) == ["kernels/common.cuh"]


def test_staged(anywhere: UserProject) -> None:
    anywhere.write("kernels/t1.cu", "changed\n")
    anywhere.git("add", "kernels/t1.cu")
    assert dirty(anywhere) == ["kernels/t1.cu"]


def test_staged_and_changed_back_in_the_tree(anywhere: UserProject) -> None:
    before = (anywhere.root / "kernels/t1.cu").read_text()
    anywhere.write("kernels/t1.cu", "changed\n")
    anywhere.git("add", "kernels/t1.cu")
    anywhere.write("kernels/t1.cu", before)
    assert dirty(anywhere) == ["kernels/t1.cu"]


def test_deleted(anywhere: UserProject) -> None:
    (anywhere.root / "kernels/common.cuh").unlink()
    anywhere.git("rm", "--quiet", "manifests/t1.yaml")
    assert dirty(anywhere) == ["kernels/common.cuh", "manifests/t1.yaml"]


def test_untracked(anywhere: UserProject) -> None:
    anywhere.write("kernels/new.cuh", "\n")
    anywhere.write("manifests/t2.yaml", "\n")
    assert repository(anywhere).dirty([*INPUTS, "kernels/new.cuh"], MANIFESTS) == [
        "kernels/new.cuh",
        "manifests/t2.yaml",
    ]


def test_untracked_in_an_untracked_directory(anywhere: UserProject) -> None:
    anywhere.write("kernels/generated/deep/a.cuh", "\n")
    assert repository(anywhere).dirty(["kernels/generated/deep/a.cuh"]) == ["kernels/generated/deep/a.cuh"]


def test_ignored(anywhere: UserProject) -> None:
    """A build input that git ignores is in no commit, so the commit alone would not build the same."""
    anywhere.write(".gitignore", "*.gen.cuh\n")
    anywhere.commit()
    anywhere.write("kernels/a.gen.cuh", "\n")
    assert repository(anywhere).dirty([*INPUTS, "kernels/a.gen.cuh"]) == ["kernels/a.gen.cuh"]


def test_in_an_ignored_directory(anywhere: UserProject) -> None:
    anywhere.write(".gitignore", "generated/\n")
    anywhere.commit()
    anywhere.write("kernels/generated/a.cuh", "\n")
    found = repository(anywhere).dirty([*INPUTS, "kernels/generated/a.cuh"])
    assert len(found) == 1
    assert "kernels/generated/a.cuh".startswith(found[0])


def test_renamed(anywhere: UserProject) -> None:
    anywhere.git("mv", "kernels/common.cuh", "kernels/other.cuh")
    assert repository(anywhere).dirty(["kernels/common.cuh", "kernels/other.cuh"]) == [
        "kernels/common.cuh",
        "kernels/other.cuh",
    ]


def test_what_is_no_build_input_does_not_count(anywhere: UserProject) -> None:
    anywhere.write("history/no-gpu/b.jsonl", "{}\n")
    anywhere.write("README.md", "text\n")
    anywhere.write("kernels/unused.cu", "text\n")
    anywhere.write("manifests/notes.txt", "text\n")
    anywhere.write("manifests/old/t0.yaml", "text\n")
    assert anywhere.git("status", "--porcelain") != ""
    assert dirty(anywhere) == []


def test_a_file_of_the_same_name_elsewhere_does_not_count(inner: UserProject) -> None:
    (inner.root.parents[1] / "kernels/t1.cu").write_text("changed\n")
    assert dirty(inner) == []


@pytest.mark.parametrize(
    "name", ["kernels/a b.cu", "kernels/[x].cu", "kernels/*.cu", "kernels/ü.cu", ":(top)x.cu", '"q".cu']
)
def test_names_are_taken_literally(name: str, anywhere: UserProject) -> None:
    anywhere.write("kernels/x.cu", "\n")
    assert repository(anywhere).dirty([name]) == []
    anywhere.write(name, "\n")
    assert repository(anywhere).dirty([name]) == [name]


def test_nothing_to_look_at(project: UserProject) -> None:
    project.write("kernels/t1.cu", "changed\n")
    assert repository(project).dirty([]) == []


def test_the_users_status_settings_do_not_matter(project: UserProject) -> None:
    for setting in (
        "status.showUntrackedFiles no",
        "status.relativePaths true",
        "core.quotePath true",
        "status.branch true",
    ):
        project.git("config", *setting.split())
    project.write("manifests/t2.yaml", "\n")
    project.write("kernels/t1.cu", "changed\n")
    assert dirty(project) == ["kernels/t1.cu", "manifests/t2.yaml"]


# ── where HEAD is ──


def test_head(project: UserProject) -> None:
    assert repository(project).head() == project.git("rev-parse", "HEAD")


def test_detached_head(project: UserProject) -> None:
    first = project.git("rev-parse", "HEAD")
    project.commit("second")
    project.git("checkout", "--quiet", first)
    assert repository(project).head() == first
    assert list(repository(project).first_parents()) == [first]
    assert dirty(project) == []


def test_head_of_a_packed_branch_and_of_a_symbolic_one(project: UserProject) -> None:
    """What is not one plain file behind HEAD is asked of git."""
    head = repository(project).head()
    project.git("pack-refs", "--all")
    assert not (project.root / ".git/refs/heads/main").exists()
    assert repository(project).head() == head
    project.git("symbolic-ref", "refs/heads/alias", "refs/heads/main")
    project.git("symbolic-ref", "HEAD", "refs/heads/alias")
    assert repository(project).head() == head


def test_no_commits_yet(bare: UserProject) -> None:
    bare.version("t1")
    bare.git("init", "--quiet")
    found = repository(bare)
    assert found.head() is None
    assert list(found.first_parents()) == []
    assert found.dirty(["kernels/t1.cu"], MANIFESTS) == [
        "kernels/t1.cu",
        "manifests/t1.yaml",
        "manifests/workloads.yaml",
    ]
    with pytest.raises(GitError, match="no commit 'HEAD' here"):
        found.resolve("HEAD")


def test_no_git(bare: UserProject) -> None:
    assert Repository.find(bare.root) is None


def test_a_directory_that_is_not_there(tmp_path: Path) -> None:
    assert Repository.find(tmp_path / "missing") is None


def test_a_bare_repository_is_none(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "--quiet", "--bare", tmp_path / "bare.git"], check=True)
    assert Repository.find(tmp_path / "bare.git") is None


def test_a_broken_repository_is_none_or_an_error_of_ours(bare: UserProject) -> None:
    bare.write(".git", "gitdir: /nowhere\n")
    with contextlib.suppress(GitError):
        assert Repository.find(bare.root) is None


def test_a_worktree(project: UserProject, tmp_path: Path) -> None:
    project.git("worktree", "add", "--quiet", "--detach", str(tmp_path / "other"))
    other = UserProject(tmp_path / "other")
    other.write("kernels/t1.cu", "changed\n")
    assert dirty(other) == ["kernels/t1.cu"]
    assert dirty(project) == []
    assert repository(other).head() == repository(project).head()


def test_a_project_reached_by_a_symlink(inner: UserProject, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(inner.root)
    linked = UserProject(tmp_path / "link")
    linked.write("kernels/t1.cu", "changed\n")
    assert dirty(linked) == ["kernels/t1.cu"]


# ── names of commits ──


def test_resolve(project: UserProject) -> None:
    first = project.git("rev-parse", "HEAD")
    second = project.commit("second")
    project.git("tag", "light", first)
    project.git("tag", "-a", "-m", "message", "annotated", first)
    project.git("branch", "feature/x", first)
    found = repository(project)
    for name in ("HEAD~1", "HEAD^", "main~1", "light", "annotated", "feature/x", first, first[:10], "HEAD@{1}", "@^"):
        assert found.resolve(name) == first
    assert found.resolve("HEAD") == found.resolve("main") == second


@pytest.mark.parametrize(
    "name",
    [
        "nope", "HEAD~7", "HEAD^2", "0" * 40, "f" * 12, "", " ", "--help", "--all", "-", "HEAD:kernels/t1.cu", "HEAD^{tree}",
        "HEAD@{upstream}", "HEAD@{77}", "HEAD^{", "main..HEAD", "HEAD HEAD", "HEAD\nHEAD", "../x", "ü", ":/nothing",
    ],
)  # fmt: skip
def test_no_such_commit(name: str, project: UserProject) -> None:
    with pytest.raises(GitError) as caught:
        repository(project).resolve(name)
    assert caught.value.what == f"no commit '{name}' here"


def test_resolve_does_not_ask_where_it_runs(
    project: UserProject, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    assert repository(project).resolve("HEAD") == project.git("rev-parse", "HEAD")


def test_authored(project: UserProject, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_AUTHOR_DATE", "2026-10-05T12:30:00+02:00")
    assert repository(project).authored(project.commit()).isoformat() == "2026-10-05T12:30:00+02:00"


def test_subject(project: UserProject) -> None:
    commit = project.commit("v16: 16-wide readback\n\nMore text.")
    assert repository(project).subject(commit) == "v16: 16-wide readback"


def test_first_parents_over_a_merge(project: UserProject) -> None:
    """main: first — m1 — merge — m2, with f1 and f2 on a branch that was merged."""
    first = project.git("rev-parse", "HEAD")
    project.git("checkout", "--quiet", "-b", "feature")
    project.commit("f1")
    f2 = project.commit("f2")
    project.git("checkout", "--quiet", "main")
    m1 = project.commit("m1")
    project.git("merge", "--quiet", "--no-ff", "-m", "merge", "feature")
    merge = project.git("rev-parse", "HEAD")
    m2 = project.commit("m2")
    found = repository(project)
    assert list(found.first_parents()) == [m2, merge, m1, first]
    side = set(found.ancestors()) - {m2, merge, m1, first}
    assert len(side) == 2
    assert f2 in side
    assert found.merged() == {commit: merge for commit in side}
    assert found.commits("HEAD~3..HEAD") == [m1, merge, m2]
    assert found.commits(f"{first}..main") == [m1, merge, m2]
    assert found.commits("feature..main") == [m1, merge, m2]
    assert found.commits(f"{first}..feature")[-1] == f2


def test_ranges(project: UserProject) -> None:
    second = project.commit("second")
    third = project.commit("third")
    found = repository(project)
    assert found.commits("HEAD~2..HEAD") == [second, third]
    assert found.commits("HEAD~1..") == [third]
    assert found.commits("HEAD..HEAD") == []
    assert found.commits("HEAD..HEAD~1") == []


@pytest.mark.parametrize("span", ["HEAD", "", "..", "..HEAD", "HEAD~1...HEAD", "HEAD~1:HEAD"])
def test_what_is_no_range(span: str, project: UserProject) -> None:
    with pytest.raises(GitError) as caught:
        repository(project).commits(span)
    assert f"'{span}' is not a range" in str(caught.value)
    assert "write it as A..B" in str(caught.value)


@pytest.mark.parametrize("span", ["nope..HEAD", "HEAD..nope", "--all..HEAD", "HEAD~9..HEAD"])
def test_a_range_of_commits_that_are_not_here(span: str, project: UserProject) -> None:
    with pytest.raises(GitError, match=r"no commit '(nope|--all|HEAD~9)' here"):
        repository(project).commits(span)


# ── shallow ──


@pytest.fixture
def shallow(project: UserProject, tmp_path: Path) -> UserProject:
    """A clone of the last commit alone, as CI makes it."""
    project.commit("second")
    url = f"file://{project.root}"
    subprocess.run(["git", "clone", "--quiet", "--depth=1", url, tmp_path / "clone"], check=True, capture_output=True)
    return UserProject(tmp_path / "clone")


@pytest.mark.parametrize("name", ["HEAD~1", "full hash"])
def test_a_shallow_clone_says_that_it_is_one(name: str, shallow: UserProject, project: UserProject) -> None:
    name = project.git("rev-parse", "HEAD~1") if name == "full hash" else name
    with pytest.raises(GitError) as caught:
        repository(shallow).resolve(name)
    assert "this clone is shallow: git fetch --unshallow" in str(caught.value)


def test_what_a_shallow_clone_has_works(shallow: UserProject, project: UserProject, tmp_path: Path) -> None:
    found = repository(shallow)
    assert found.head() == project.git("rev-parse", "HEAD")
    assert list(found.first_parents()) == [found.head()]
    assert dirty(shallow) == []
    assert (found.export("HEAD", tmp_path / "trees") / "kernels/t1.cu").is_file()


def test_a_whole_clone_does_not_speak_of_shallow(project: UserProject) -> None:
    with pytest.raises(GitError) as caught:
        repository(project).resolve("nope")
    assert "shallow" not in str(caught.value)


# ── export ──


def test_export(project: UserProject, tmp_path: Path) -> None:
    project.write("history/no-gpu/a.jsonl", "{}\n")
    project.write("history-of-ideas.txt", "kept\n")
    project.write("kernels/history/x.cuh", "kept\n")
    old = project.commit("second")
    wanted = (project.root / "kernels/t1.cu").read_text()
    project.write("kernels/t1.cu", "third\n")
    project.version("t2", "t1")
    project.commit("third")
    project.write("kernels/t1.cu", "not committed\n")
    status = project.git("status", "--porcelain=v2", "--branch")

    tree = repository(project).export(old, tmp_path / "trees")

    assert files(tree) == {
        "kernels/t1.cu", "kernels/common.cuh", "kernels/history/x.cuh", "manifests/t1.yaml", "manifests/workloads.yaml",
        "history-of-ideas.txt", "pyproject.toml",
    }  # fmt: skip
    assert (tree / "kernels/t1.cu").read_text() == wanted
    assert (project.root / "kernels/t1.cu").read_text() == "not committed\n"
    assert project.git("status", "--porcelain=v2", "--branch") == status
    assert project.git("stash", "list") == ""
    assert not (tree / ".git").exists()


def test_export_is_kept(project: UserProject, tmp_path: Path) -> None:
    found = repository(project)
    tree = found.export("HEAD", tmp_path / "trees")
    marker = tree / "marker"
    marker.touch()
    assert found.export(project.commit("the same files again"), tmp_path / "trees") == tree
    assert marker.exists()
    assert [path for path in (tmp_path / "trees").iterdir() if path != tree] == []
    project.write("kernels/t1.cu", "changed\n")
    assert found.export(project.commit(), tmp_path / "trees") != tree


def test_export_of_a_project_in_a_subdirectory(inner: UserProject, tmp_path: Path) -> None:
    tree = repository(inner).export("HEAD", tmp_path / "trees")
    assert files(tree) == {"kernels/t1.cu", "kernels/common.cuh", "manifests/t1.yaml"}
    assert (tree / "kernels/t1.cu").read_text() == (inner.root / "kernels/t1.cu").read_text()


def test_export_of_a_commit_that_lacks_the_subdirectory(inner: UserProject, tmp_path: Path) -> None:
    before = inner.git("rev-parse", "HEAD")
    inner.git("rm", "-r", "--quiet", ".")
    inner.root.mkdir(parents=True, exist_ok=True)
    gone = inner.commit("gone")
    inner.git("checkout", "--quiet", before, "--", ".")
    tree = repository(inner).export(gone, tmp_path / "trees")
    assert list(tree.iterdir()) == []  # the project was not there: it has no versions


def test_export_of_symlinks_stays_inside(project: UserProject, tmp_path: Path) -> None:
    """A link to the outside, as for a data set, is left out; it must neither be followed nor stop the export."""
    (project.root / "kernels/inside.cuh").symlink_to("common.cuh")
    (project.root / "data").symlink_to("/etc")
    (project.root / "kernels/up.cuh").symlink_to("../../../outside.cuh")
    commit = project.commit("links")
    tree = repository(project).export(commit, tmp_path / "trees")
    assert (tree / "kernels/inside.cuh").read_text() == "#pragma once\n"
    assert not (tree / "data").exists()
    assert not os.path.lexists(tree / "kernels/up.cuh")
    assert (tree / "kernels/t1.cu").is_file()


def test_export_of_an_executable_and_an_empty_file(project: UserProject, tmp_path: Path) -> None:
    project.write("empty", "")
    project.write("tool.sh", "#!/bin/sh\n").chmod(0o755)
    tree = repository(project).export(project.commit(), tmp_path / "trees")
    assert (tree / "empty").read_bytes() == b""
    assert os.access(tree / "tool.sh", os.X_OK)


def test_export_is_the_commits_own_bytes(project: UserProject, tmp_path: Path) -> None:
    project.write(".gitattributes", "kernels/common.cuh export-ignore\nkernels/t1.cu export-subst\n")
    project.write("kernels/t1.cu", "// $Format:%H$\n")
    tree = repository(project).export(project.commit(), tmp_path / "trees")
    assert (tree / "kernels/common.cuh").is_file()
    assert (tree / "kernels/t1.cu").read_text() == "// $Format:%H$\n"


def test_a_full_disk_is_an_error(project: UserProject, tmp_path: Path) -> None:
    (tmp_path / "trees").write_text("in the way")
    with pytest.raises(GitError, match="cannot write the files of"):
        repository(project).export(project.git("rev-parse", "HEAD"), tmp_path / "trees")
