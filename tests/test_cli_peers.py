"""`faperf peers` on a GPU host that is not there, and the adapters themselves. On a real card: tests/gpu/test_peers.py."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from faperf import record
from faperf.errors import ConfigError
from faperf.peers import RANK, Peer, find_peer, locations
from faperf.record import PeerResult
from faperf.report.peers import peers_text
from tests import fake_gpu
from tests.conftest import REPOSITORY, Cli, UserProject, cli_in
from tests.test_counters import fake_ncu

ABSENT = {"fault": "cannot run here"}


def peers_of(user: UserProject) -> list[dict[str, Any]]:
    (path,) = user.root.glob(".faperf/history/*/peers/*.jsonl")
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture
def faperf(user: UserProject) -> Cli:
    """A process of its own: the host's stand-ins come with it."""
    return cli_in(user.root)


@pytest.fixture
def gpu(tmp_path: Path) -> Path:
    return tmp_path / "gpu"


@pytest.mark.compile
def test_a_table_of_all_with_a_row_for_who_cannot_run(user: UserProject, faperf: Cli, gpu: Path) -> None:
    environment = fake_gpu.install(gpu)
    fake_ncu(gpu / "bin", 'case "$*" in *Efficient*) echo "an internal error of the profiler"; exit 9 ;; esac')
    sides: dict[str, Any] = {
        "t1": {"ms": 2.0},
        "peer:cuDNN": {"ms": 1.0},
        "peer:FA2 (Dao)": ABSENT,
        "peer:Math": {"wrong": "all wrong"},
    }
    fake_gpu.plan(gpu, **sides)
    answer = faperf("peers", "t1", env=environment)
    assert answer.exit_code == 0, answer.output
    rows = [line for line in answer.stdout.splitlines() if any(line.startswith(name) for name in (*RANK, "t1 (ours)"))]
    assert len(rows) == 8  # seven and ours
    cudnn = next(row for row in rows if row.startswith("cuDNN"))
    assert "0.500 [" in cudnn  # ours takes twice as long
    assert "51.2%" in cudnn
    efficient = next(row for row in rows if row.startswith("Efficient"))
    assert "51.2%" not in efficient  # timed, but not counted: the others' counts stand
    assert "TCA of Efficient: no counters: ncu ended with 9: an internal error of the profiler" in " ".join(
        answer.stdout.split()
    )
    assert "FA2 (Dao) meets cannot run here" in " ".join(answer.stdout.split())
    assert "WRONG on normal: all wrong" in " ".join(answer.stdout.split())
    assert "time peer:cuDNN ours=t1@sm_90a on tiny" in fake_gpu.log(gpu)
    assert "peer:Math" not in fake_gpu.timed(gpu)

    found = {result["name"]: result for result in peers_of(user)}
    assert found["cuDNN"]["timing"]["pairs"][0]["role"] == "ours"
    assert found["FA2 (Dao)"]["failure"] == "FA2 (Dao) meets cannot run here"
    assert "timing" not in found["Math"]
    assert found["t1"]["ours"] == "t1"
    assert found["cuDNN"]["tensor_active"] == 0.5117
    assert "tensor_active" not in found["Efficient"]


@pytest.mark.compile
def test_ours_is_the_fastest_that_was_measured(user: UserProject, faperf: Cli, gpu: Path) -> None:
    environment = fake_gpu.install(gpu)
    assert "nothing was measured here yet" in faperf("peers", env=environment).stderr
    user.version("t2", "t1", factor="3.0f")
    fake_gpu.plan(gpu, t1={"ms": 2.0}, t2={"ms": 1.0})
    faperf("run", env=environment)
    answer = faperf("peers", "--peer", "cuDNN", "--no-counters", "--format", "json", env=environment)
    results = json.loads(answer.stdout)["results"]
    assert [result["name"] for result in results] == ["t2", "cuDNN"]


@pytest.mark.compile
def test_a_projects_own_peer(user: UserProject, faperf: Cli, gpu: Path) -> None:
    user.write("pyproject.toml", '[tool.faperf]\nemulate = false\npeers = {mine = "my_peers:MINE"}\n')
    user.write("my_peers.py", 'from faperf.peers import Peer\n\nMINE = Peer("mine", lambda: (None, "mine 1.0"))\n')
    environment = fake_gpu.install(gpu)
    answer = faperf("peers", "t1", "--peer", "mine", "--no-counters", env=environment)
    assert answer.exit_code == 0, answer.output
    assert "check peer:mine normal tiny" in fake_gpu.log(gpu)
    answer = faperf("peers", "t1", "--peer", "nobody", env=environment)
    assert (answer.exit_code, "no peer 'nobody'" in answer.stderr) == (2, True)
    user.write("my_peers.py", "MINE = 1\n")
    assert "no peer at 'my_peers:MINE'" in faperf("peers", "t1", env=environment).stderr


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["t1"], 1, "peers needs a GPU"),
        (["t1", "--budget", "0"], 2, "--budget"),
    ],
)
def test_what_cannot_be(arguments: list[str], code: int, words: str, faperf: Cli) -> None:
    answer = faperf("peers", *arguments)
    assert answer.exit_code == code
    assert words in answer.stderr


def test_the_seven_are_there_in_order_and_import_nothing_heavy() -> None:
    assert tuple(locations({})) == RANK
    for location in locations({}).values():
        assert isinstance(find_peer(location), Peer)


def test_an_adapter_is_no_longer_than_twenty_lines() -> None:
    for path in (REPOSITORY / "faperf/peers").glob("[a-z]*.py"):
        assert len(path.read_text().splitlines()) <= 20, path.name


@pytest.mark.parametrize("location", ["nowhere:PEER", "faperf.peers:RANK", "faperf.peers:NOBODY", "faperf.peers"])
def test_what_is_no_peer(location: str) -> None:
    with pytest.raises(ConfigError, match="no peer at"):
        find_peer(location)


def test_the_docs_show_what_was_recorded() -> None:
    path = REPOSITORY / "history/nvidia-h200-700w-140gib/peers/20261130T120301540017Z83aa.jsonl"
    results = [record.decode(line) for line in path.read_bytes().splitlines()]
    text = peers_text([result for result in results if isinstance(result, PeerResult)], [], "markdown")
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert len(rows) == 2 + 8
    assert "\n".join(rows) in (REPOSITORY / "docs/mfu.md").read_text(encoding="utf-8")


def test_the_order_is_that_of_the_interleaved_figures_and_void_is_said() -> None:
    """At 8192 each ran at a clock of its own: h23 with more TFLOPS than FA4, which is the faster one side by side."""
    path = REPOSITORY / "history/nvidia-h200-700w-140gib/peers/20261130T120408509944Z86f1.jsonl"
    results = [record.decode(line) for line in path.read_bytes().splitlines()]
    text = peers_text([result for result in results if isinstance(result, PeerResult)], [], "markdown")
    longest = [line.split("|")[1].strip() for line in text.partition("lengths[S=8192]")[2].splitlines() if "| " in line]
    assert longest[1:5] == ["FA4 (CuTe-DSL)", "h23 (ours)", "cuDNN", "Flex (Triton)"]
    assert "void: Efficient on lengths[S=512]: the SM clock differs by 2.1% from h23@sm_90a's" in text
