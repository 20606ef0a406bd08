"""`ladder`, `diff`, `show`, `list`, `check`, `new`, `doctor`, `gc` end to end, with exact exit codes."""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY, SPILLING_KERNEL, Cli, UserProject, cli_in

pytestmark = pytest.mark.compile


# ── the ladder ──


def test_the_published_ladder_flags_what_was_published(user: UserProject, faperf: Cli) -> None:
    """v17, v18 and v19 against v16-i16, by the published TFLOPS: 175.88, 152.96 and 178.71 of 204.04; v20 by precision."""
    shutil.copytree(REPOSITORY / "history" / "reported", user.root / "history" / "reported")
    answer = faperf("ladder", "--target", "sm_103a", "--format", "json")
    assert answer.exit_code == 0
    rows = {row["version"]: row for row in json.loads(answer.stdout)["rows"]}
    slower = {
        name: row["reported_verdict"]["change"]
        for name, row in rows.items()
        if row["reported_verdict"]["verdict"] == "SLOWER"
    }
    assert {name: round(100 * change, 1) for name, change in slower.items()} == {
        "v14": -20.7,
        "v17": -13.8,
        "v18": -25.0,
        "v19": -12.4,
    }
    assert [rows[name]["parent"] for name in ("v17", "v18", "v19")] == ["v16-i16"] * 3
    assert rows["v14"]["reported_verdict"]["accepted"] == "new path"
    assert rows["v20"]["reported_verdict"]["verdict"] == "FASTER"
    assert [name for name, row in rows.items() if row["reported_verdict"]["less_accurate"]] == ["v20"]

    table = faperf("ladder", "--target", "sm_103a").stdout
    flagged = table.partition("Flagged:")[2]
    for words in (
        "v17: SLOWER than v16-i16, throughput -13.8% (reported)",
        "v18: SLOWER than v16-i16, throughput -25.0% (reported)",
        "v19: SLOWER than v16-i16, throughput -12.4% (reported)",
        "v20: FASTER than v19, throughput +23.4% (reported); LESS ACCURATE (reported)",
    ):
        assert words in flagged
    assert "- v15" not in flagged
    assert "Reported, not measured here" in table
    assert "whether L2 was flushed" in table


def test_the_ladder_flags_a_spill_against_the_parent(user: UserProject, faperf: Cli) -> None:
    user.version("t2", "t1", kernel=SPILLING_KERNEL)
    answer = faperf("run")
    assert answer.exit_code == 0  # a ladder with known failures in it is no error
    flagged = answer.stdout.partition("Flagged:")[2]
    assert "- t2: spills appear: 0 → " in flagged
    assert "LDL/STL in the main loop" in flagged
    assert "registers at their cap: 10 → 32 of 32" in flagged
    assert "- t1" not in flagged


def test_the_ladder_says_what_it_stands_on(user: UserProject, faperf: Cli) -> None:
    assert "nothing was built here yet (faperf run)" in faperf("ladder").stdout
    faperf("run")
    first = user.git("rev-parse", "HEAD")
    user.write("readme.txt", "no build input")
    user.commit("later")
    assert f"commit {first[:12]}." in faperf("ladder").stdout  # the nearest ancestor with a record
    by_ref = faperf("ladder", "--commit", "HEAD")
    assert by_ref.exit_code == 2
    assert "faperf run --commits" in by_ref.stderr
    assert faperf("ladder", "--commit", "HEAD~1").exit_code == 0


def test_the_ladder_builds_nothing_and_needs_no_compiler(user: UserProject, faperf: Cli) -> None:
    faperf("run")
    git = Path(shutil.which("git") or "").parent
    answer = faperf("ladder", env={"PATH": str(git), "FAPERF_NVCC": "/nowhere"})
    assert answer.exit_code == 0, answer.stderr


@pytest.mark.parametrize("command", [("ladder",), ("list",), ("show", "t1"), ("run",), ("doctor",), ("check",)])
def test_formats(user: UserProject, faperf: Cli, command: tuple[str, ...]) -> None:
    faperf("run")
    json.loads(faperf(*command, "--format", "json").stdout)
    markdown = faperf(*command, "--format", "markdown").stdout
    assert "|---" in markdown or "| " in markdown
    assert faperf(*command, "--format", "xml").exit_code == 2


# ── history that is damaged or newer ──


def test_damaged_and_newer_records_are_named_and_the_rest_is_used(user: UserProject, faperf: Cli) -> None:
    faperf("run")
    folder = next((user.root / ".faperf/history").glob("*/*.jsonl")).parent
    commit = user.git("rev-parse", "--short=12", "HEAD")
    whole = next(folder.glob("*.jsonl")).read_bytes()
    (folder / f"{commit}-20990101T000000Zaaaaaa.jsonl").write_bytes(whole[: len(whole) // 2])
    (folder / f"{commit}-20990101T000000Zbbbbbb.jsonl").write_bytes(whole.replace(b'"schema":1', b'"schema":99'))
    (folder / f"{commit}-20990101T000000Zcccccc.jsonl").write_bytes(b"edited by hand\n")
    answer = faperf("ladder")
    assert answer.exit_code == 0
    assert "10/255" in answer.stdout
    assert "aaaaaa.jsonl:1: not a record" in answer.stderr
    assert "schema 99; this faperf reads up to 1" in answer.stderr
    assert "upgrade faperf" in answer.stderr
    assert "cccccc.jsonl:1: not a record" in answer.stderr


def test_a_damaged_build_record_is_written_again(user: UserProject, faperf: Cli) -> None:
    faperf("run")
    (record,) = (user.root / ".faperf/history/builds").iterdir()
    whole = record.read_bytes()
    record.write_bytes(whole[:100])
    answer = faperf("run")
    assert answer.exit_code == 0
    assert record.read_bytes() == whole


# ── diff ──


def rows_of(faperf: Cli, *arguments: str) -> dict[str, dict]:
    answer = faperf("diff", *arguments, "--format", "json")
    assert answer.exit_code == 0, answer.output
    return {row["version"]: row for row in json.loads(answer.stdout)["rows"]}


def test_diff_of_equal_commits(user: UserProject, faperf: Cli) -> None:
    user.edit("kernels/t1.cu", "// t1", "// a comment\n\n// t1")
    user.commit("a comment")
    rows = rows_of(faperf, "HEAD~1", "HEAD")
    assert rows["t1"]["verdict"] == "UNCHANGED"
    assert rows["t1"]["old"]["build"] != rows["t1"]["new"]["build"]
    answer = faperf("diff", "HEAD~1", "HEAD", "--exit-code")
    assert answer.exit_code == 0
    assert "1 unchanged (same code, same launch)" in answer.stdout
    assert "t1" in faperf("diff", "HEAD~1", "HEAD", "--all").stdout


def test_diff_says_new_gone_changed_and_relaunched(user: UserProject, faperf: Cli) -> None:
    user.version("t2", "t1")
    user.version("t3", "t1")
    user.commit()
    (user.root / "manifests/t2.yaml").unlink()
    user.edit("kernels/t1.cu", "2.0f", "3.0f")
    user.edit("manifests/t3.yaml", '"S / 64"', '"S / 32"')
    user.version("t4", "t1")
    user.commit()
    verdicts = {name: row["verdict"] for name, row in rows_of(faperf, "HEAD~1", "HEAD").items()}
    assert verdicts == {"t1": "UNMEASURED", "t2": "GONE", "t3": "UNMEASURED", "t4": "NEW"}


def test_diff_exit_codes(user: UserProject, faperf: Cli) -> None:
    user.write("kernels/t1.cu", SPILLING_KERNEL.format(id="t1", factor="1.0f"))
    user.commit("spills")
    answer = faperf("diff", "HEAD~1", "HEAD", "--exit-code")
    assert answer.exit_code == 3
    assert "spills appear" in answer.stdout
    assert faperf("diff", "HEAD~1", "HEAD").exit_code == 0
    assert faperf("diff", "HEAD", "HEAD~1", "--exit-code").exit_code == 0  # the way back is a gain
    user.edit("kernels/t1.cu", "float v[96]", "flout v[96]")
    user.version("t0")
    user.commit("broken")
    answer = faperf("diff", "HEAD~1", "HEAD", "--exit-code")
    assert answer.exit_code == 5
    assert "BROKEN" in answer.stdout
    assert "kernels/t1.cu(3): error" in answer.stdout
    assert faperf("diff", "nope", "HEAD").exit_code == 1


def test_diff_against_the_working_tree_touches_nothing(user: UserProject, faperf: Cli) -> None:
    user.edit("kernels/t1.cu", "2.0f", "4.0f")
    user.write("half.txt", "being written")
    before = user.git("status", "--porcelain")
    answer = faperf("diff", "HEAD")
    assert answer.exit_code == 0
    assert "dirty" in answer.stdout
    assert user.git("status", "--porcelain") == before
    assert user.git("worktree", "list").count("\n") == 0


def test_diff_uses_records_where_they_are(user: UserProject, faperf: Cli) -> None:
    user.edit("kernels/t1.cu", "2.0f", "3.0f")
    user.commit()
    assert rows_of(faperf, "HEAD~1", "HEAD")
    (user.root / ".faperf/cache").unlink()
    assert rows_of(faperf, "HEAD~1", "HEAD")["t1"]["verdict"] == "UNMEASURED"
    assert not (user.root / ".faperf/cache").exists()  # nothing was built for it


def test_diff_in_a_shallow_clone_says_how_to_deepen_it(user: UserProject, tmp_path: Path) -> None:
    user.edit("kernels/t1.cu", "2.0f", "3.0f")
    user.commit()
    user.git("clone", "--quiet", "--depth", "1", f"file://{user.root}", str(tmp_path / "shallow"))
    answer = cli_in(tmp_path / "shallow")("diff", "HEAD~1")
    assert answer.exit_code == 1
    assert "git fetch --unshallow" in answer.stderr


def test_diff_without_git(bare: UserProject) -> None:
    bare.version("t1")
    answer = cli_in(bare.root)("diff", "HEAD", env={"GIT_CEILING_DIRECTORIES": str(bare.root.parent)})
    assert answer.exit_code == 2
    assert "no git repository here" in answer.stderr


# ── versions ──


def test_show(user: UserProject, faperf: Cli) -> None:
    before = faperf("show", "t1")
    assert before.exit_code == 0
    assert "Not built here yet: faperf run t1" in before.stdout
    faperf("run")
    answer = faperf("show", "t1")
    for words in ("kernels/t1.cu", "sm_90a (build ", "10 of 255", "0 B stored, 0 B loaded", "tiny"):
        assert words in answer.stdout
    shutil.copytree(REPOSITORY / "history" / "reported", user.root / "history" / "reported")
    published = faperf("show", "v18")
    assert published.exit_code == 0
    assert "published only; no kernel here" in published.stdout
    assert "152.96" in published.stdout


def test_check_finds_what_is_wrong(user: UserProject, faperf: Cli) -> None:
    answer = faperf("check")
    assert answer.exit_code == 0
    assert "1 manifest, no problems" in answer.stdout
    user.edit("manifests/t1.yaml", "S / 64", "S / 48")
    user.version("t2", "t9")
    user.edit("manifests/t2.yaml", "launches:", "launchs:")
    answer = faperf("check")
    assert answer.exit_code == 1
    assert "manifests/t1.yaml, grid, workload tiny: 'S / 48': 128 / 48 leaves 32" in answer.stdout
    assert "did you mean 'launches'?" in answer.stdout
    assert {
        problem["where"].partition(",")[0].partition(":")[0]
        for problem in json.loads(faperf("check", "--format", "json").stdout)
    } == {
        "manifests/t1.yaml",
        "manifests/t2.yaml",
    }


def test_a_new_version_is_two_files_that_check_and_run(user: UserProject, faperf: Cli) -> None:
    user.edit("manifests/t1.yaml", "tile:", "# a remark that stays\ntile:")
    answer = faperf("new", "t2", "--from", "t1", "--title", "twice as much")
    assert answer.exit_code == 0, answer.output
    assert answer.stdout.splitlines()[:2] == ["kernels/t2.cu", "manifests/t2.yaml"]
    manifest = (user.root / "manifests/t2.yaml").read_text()
    assert "# a remark that stays" in manifest
    assert "parent: t1" in manifest
    assert 'grid: ["S / 64", "B * H"]' in manifest
    assert faperf("check").exit_code == 0
    assert faperf("run", "t2").exit_code == 0
    rows = json.loads(faperf("list", "--format", "json").stdout)["versions"]
    assert [(row["id"], row["parent"]) for row in rows] == [("t1", None), ("t2", "t1")]


def test_new_overwrites_nothing(user: UserProject, faperf: Cli) -> None:
    user.write("kernels/t2.cu", "// mine\n")
    answer = faperf("new", "t2", "--from", "t1")
    assert answer.exit_code == 1
    assert "kernels/t2.cu: is there already" in answer.stderr
    assert (user.root / "kernels/t2.cu").read_text() == "// mine\n"
    assert not (user.root / "manifests/t2.yaml").exists()
    assert faperf("new", "t3", "--from", "t9").exit_code == 2


def test_the_first_version_is_a_kernel_to_fill_in(tmp_path: Path) -> None:
    """In an empty directory, for a project's own operation: what it writes is checked; a run then says what is missing."""
    faperf = cli_in(tmp_path)
    assert faperf("run").exit_code == 1
    (tmp_path / "pyproject.toml").write_text(
        '[tool.faperf]\ndefault-target = "sm_90a"\noperations = {mix = "mix:MIX"}\n'
    )
    (tmp_path / "mix.py").write_text(
        "from faperf.operations.attention_forward import AttentionForward\n"
        "class Mix(AttentionForward):\n    name = 'mix'\nMIX = Mix()\n"
    )
    answer = faperf("new", "a1", "--title", 'the "first": one')
    assert answer.exit_code == 0, answer.output
    assert answer.stdout.splitlines()[:3] == ["kernels/a1.cu", "manifests/a1.yaml", "manifests/workloads.yaml"]
    assert (
        "void mix(const __half* Q, const __half* K, const __half* V, __half* O, int B"
        in (tmp_path / "kernels/a1.cu").read_text()
    )
    assert "1 manifest, no problems" in faperf("check").stdout
    (row,) = json.loads(faperf("list", "--format", "json").stdout)["versions"]
    assert (row["title"], row["operation"]["name"]) == ('the "first": one', "mix")
    assert faperf("new", "a1").exit_code == 1
    other = faperf("new", "a2", "--operation", "attention_forward")
    assert "has no workload of attention_forward" in other.stderr
    assert "there are: mix, attention_forward" in faperf("new", "a2", "--operation", "nope").stderr
    assert not (tmp_path / "kernels/a2.cu").exists()
    (tmp_path / "manifests/a1.yaml").unlink()
    assert "faperf new NAME" in faperf("run").stderr


# ── the machine ──


def test_doctor(user: UserProject, faperf: Cli, tmp_path: Path) -> None:
    answer = faperf("doctor")
    assert answer.exit_code == 0
    for words in ("nvcc", "nvdisasm", "g++", "HEAD", "faperf machine add"):
        assert words in answer.stdout
    missing = faperf("doctor", "--nvcc", str(tmp_path / "nvcc"))
    assert missing.exit_code == 1
    assert "MISSING" in missing.stdout


def test_gc_removes_old_builds_and_never_records(user: UserProject, faperf: Cli) -> None:
    (user.root / ".faperf/cache").unlink()
    faperf("run")
    builds = user.root / ".faperf/cache/builds"
    (build,) = builds.iterdir()
    assert "removed 0 things" in faperf("gc").stdout
    old = time.time() - 40 * 86_400
    os.utime(build, (old, old))
    assert "would remove 1 things" in faperf("gc", "--dry-run").stdout
    assert build.exists()
    assert "removed 1 things" in faperf("gc").stdout
    assert not build.exists()
    faperf("run")
    assert faperf("gc", "--all").exit_code == 0
    assert list(builds.iterdir()) == []
    assert list((user.root / ".faperf/history").glob("*/*.jsonl"))
    assert "10/255" in faperf("ladder").stdout


def test_a_build_that_is_used_is_not_old(user: UserProject, faperf: Cli) -> None:
    (user.root / ".faperf/cache").unlink()
    faperf("run")
    (build,) = (user.root / ".faperf/cache/builds").iterdir()
    old = time.time() - 40 * 86_400
    os.utime(build, (old, old))
    faperf("run")
    faperf("gc")
    assert build.exists()
