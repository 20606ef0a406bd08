"""What needs an NVIDIA GPU: `make gpu-test`. One run over many bad versions; then each is looked at."""

from __future__ import annotations

import json
import re
import shutil
import time
from pathlib import Path

import pytest

from faperf.device import can_measure, find_gpu
from tests.conftest import REPOSITORY, WORKLOADS, Answer, UserProject, cli_in
from tests.own_operation import add_matrix_product

GPU, REASON = find_gpu()
if GPU is not None and not can_measure():
    GPU, REASON = None, "cupy is not installed"
TARGET = f"sm_{GPU.capability.replace('.', '')}{'a' if GPU.capability >= '9' else ''}" if GPU else ""
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(GPU is None, reason=f"no GPU: {REASON}")]

SMALL = "{B: 2, H: 3, S: 512, D: 128}"
V12 = (REPOSITORY / "kernels/v12.cu").read_text(encoding="utf-8")
PAST_QK = "// Every warp is past its last QK"

WRONG = {
    "no-rescale": ("o[n][2 * r] *= alpha;", ";"),
    "one-tile-short": ("j < tiles; ++j", "j < tiles - 1; ++j"),
    "unwritten-tail": ("// Every warp is past its last QK", "if (blockIdx.x + 1 == gridDim.x) return;\n    //"),
    "neighbour": (
        "// Every warp is past its last QK",
        "if (threadIdx.x == 0) reinterpret_cast<uint16_t*>(O)[-1] = 1;\n    //",
    ),
    "overflow": (
        "pair[0] = ex2(pair[0] * SCALE_LOG2 - m[i % 2]);",
        """{ uint16_t h; float f = pair[0] * 8;
              asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(f)); asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(h));
              pair[0] = ex2(f / 8 * SCALE_LOG2 - m[i % 2]); }""",
    ),
}
"""What each does to v12."""

FAULTS = {
    "illegal-address": ("*reinterpret_cast<volatile int*>(16) = 1;", "illegal address"),
    "trap": ("__trap();", "trap"),
    "misaligned": ("*reinterpret_cast<volatile int*>(reinterpret_cast<char*>(O) + 1) = 1;", "misaligned address"),
    "hang": ("while (*reinterpret_cast<volatile short*>(O) != 1) ;", "hang"),
}

FAULTY = """\
struct __half;
extern "C" __global__ void attention_forward(const __half* Q, const __half* K, const __half* V, __half* O, int S, int H) {{
    {body}
}}
"""


LATE_HANG = V12.replace('extern "C" __global__', '__device__ int launches;\nextern "C" __global__').replace(
    PAST_QK,
    f"""if (blockIdx.x + blockIdx.y + threadIdx.x == 0 && atomicAdd(&launches, 1) > 20)
        while (*reinterpret_cast<volatile int*>(&launches) > 0) ;
    {PAST_QK}""",
)
"""Right, and the launches after a module's twentieth never end."""


def version(user: UserProject, name: str, source: str, parent: str | None = None, **changes: str) -> None:
    manifest = (REPOSITORY / "manifests/v12.yaml").read_text(encoding="utf-8")
    manifest = manifest.replace("id: v12", f"id: {name}" + (f"\nparent: {parent}" if parent else ""))
    manifest = manifest.replace("kernels/v12.cu", f"kernels/{name}.cu").replace("[sm_103a, sm_90a]", f"[{TARGET}]")
    manifest = manifest.replace("[published, lengths]", changes.pop("workloads", "[tiny]")) + "timeout_s: 3\n"
    for old, new in changes.items():
        assert old in manifest
        manifest = manifest.replace(old, new)
    user.write(f"kernels/{name}.cu", source)
    user.write(f"manifests/{name}.yaml", manifest)


Rogues = tuple[UserProject, Answer, dict[str, dict], float]


@pytest.fixture(scope="module")
def rogues(tmp_path_factory: pytest.TempPathFactory) -> Rogues:
    """A project of bad versions with good ones among them, run once; the ladder's rows by version; the seconds it took."""
    user = UserProject(tmp_path_factory.mktemp("rogues"))
    shapes = WORKLOADS.replace("{B: 1, H: 2, S: 128, D: 64}", SMALL)
    user.write("manifests/workloads.yaml", shapes)
    (user.root / "kernels").mkdir()
    shutil.copy(REPOSITORY / "kernels/ptx.cuh", user.root / "kernels/ptx.cuh")
    version(user, "a0-good", V12)
    for name, (old, new) in WRONG.items():
        assert old in V12
        version(user, f"b-{name}", V12.replace(old, new), "a0-good")
    for name, (body, _) in FAULTS.items():
        version(user, f"c-{name}", FAULTY.format(body=body), "a0-good", **{"4 * 64 * 256": "0"})
    version(user, "c-late-hang", LATE_HANG, "a0-good")
    version(user, "d-smem", V12, "a0-good", **{"4 * 64 * 256": "1024 * 1024"})
    version(user, "d-grid", V12, "a0-good", **{'"B * H"': '"B * H * 100000"'})
    version(user, "d-arguments", V12, "a0-good", **{"      - {scalar: H, type: i32}\n": ""})
    version(user, "e-good", V12, "a0-good")
    begun = time.monotonic()
    answer = cli_in(user.root)("run", "--target", TARGET, "--format", "json")
    took = time.monotonic() - begun
    return user, answer, {row["version"]: row for row in json.loads(answer.stdout)["rows"]}, took


def failures(row: dict) -> list[dict]:
    return [check for check in row["measured"]["checks"] if check.get("failure")]


def test_a_wrong_result_is_exit_code_5(rogues: Rogues) -> None:
    assert rogues[1].exit_code == 5, rogues[1].stderr


@pytest.mark.parametrize(
    ("name", "distributions", "words"),
    [
        ("no-rescale", {"normal", "growing"}, "relative L2 error"),
        ("one-tile-short", {"normal", "growing", "peaked", "large"}, "relative L2 error"),
        (
            "unwritten-tail",
            {"normal", "growing", "peaked", "large", "ones"},
            "of 393216 elements unwritten, the first at [B=0, S=448",
        ),
        ("neighbour", {"normal", "growing", "peaked", "large", "ones"}, "outside of its output"),
        ("overflow", {"large"}, "relative L2 error"),
    ],
)
def test_verification_catches(rogues: Rogues, name: str, distributions: set[str], words: str) -> None:
    row = rogues[2][f"b-{name}"]
    found = {check["distribution"]: check["failure"] for check in failures(row)}
    assert distributions <= set(found), found
    assert all(words in found[distribution] for distribution in distributions), found
    assert row["measured"]["timing"] is None  # what is wrong is not timed


def test_a_failure_names_the_worst_element_and_both_values(rogues: Rogues) -> None:
    found = failures(rogues[2]["b-one-tile-short"])[0]["failure"]
    assert "worst at [B=" in found
    assert "should be" in found


@pytest.mark.parametrize("name", FAULTS)
def test_faults_are_classified_and_survived(rogues: Rogues, name: str) -> None:
    (check,) = failures(rogues[2][f"c-{name}"])
    assert check["fault"] == FAULTS[name][1], check["failure"]


def test_a_hang_while_timing_is_ended_at_the_launchs_own_limit(rogues: Rogues) -> None:
    assert LATE_HANG.count("launches") == 3
    row = rogues[2]["c-late-hang"]
    (check,) = failures(row)
    assert (check["distribution"], check["fault"]) == ("timing", "hang")
    assert rogues[3] < 180  # seconds for it all; SLACK_S alone is 120


@pytest.mark.parametrize("name", ["smem", "grid"])
def test_a_refused_launch_is_classified(rogues: Rogues, name: str) -> None:
    (check,) = failures(rogues[2][f"d-{name}"])
    assert check["fault"] == "launch refused", check["failure"]


def test_wrong_arguments_are_found_before_launching(rogues: Rogues) -> None:
    assert "takes arguments of [8, 8, 8, 8, 4, 4] bytes" in rogues[1].stderr
    assert rogues[2]["d-arguments"]["measured"] is None


@pytest.mark.parametrize("name", ["a0-good", "e-good"])
def test_good_versions_are_measured_as_if_nothing_had_happened(rogues: Rogues, name: str) -> None:
    row = rogues[2][name]
    assert failures(row) == []
    assert len(row["measured"]["checks"]) == 5
    assert row["measured"]["timing"]["tflops"] > 0


def test_the_card_is_usable_after_a_hang(rogues: Rogues) -> None:
    user = rogues[0]
    assert cli_in(user.root)("exec", "a0-good", "--once").exit_code == 0


def test_a_version_against_itself_is_the_same(tmp_path: Path) -> None:
    user = UserProject(tmp_path / "twins")
    shutil.copytree(REPOSITORY / "manifests", user.root / "manifests")
    shutil.copytree(REPOSITORY / "kernels", user.root / "kernels")
    for name in ("v12", "v13"):
        (user.root / f"manifests/{name}.yaml").unlink()
    version(user, "w1", V12, workloads="[published]")
    version(user, "w2", V12, "w1", workloads="[published]")
    answer = cli_in(user.root)("run", "--target", TARGET, "--format", "json")
    assert answer.exit_code == 0, answer.stderr
    rows = {row["version"]: row for row in json.loads(answer.stdout)["rows"]}
    pair = next(pair for pair in rows["w2"]["measured"]["timing"]["pairs"] if pair["role"] == "parent")
    assert rows["w2"]["time_verdict"] == "SAME", pair
    assert abs(pair["time"]["value"]) < 0.002
    assert len(pair["instances"]) == 10


def test_every_distribution_at_every_length(tmp_path: Path) -> None:
    """All are right but h20, whose sums in halves leave the bound where S is 8192 (docs/hopper.md)."""
    user = UserProject(tmp_path / "lengths")
    shutil.copytree(REPOSITORY / "manifests", user.root / "manifests")
    shutil.copytree(REPOSITORY / "kernels", user.root / "kernels")
    answer = cli_in(user.root)("run", "--target", TARGET, "--workload", "lengths", "--format", "json", timeout=500)
    rows = json.loads(answer.stdout)["rows"]
    names = {row["version"] for row in rows} - {"h22-d64"}  # for D = 64 alone
    assert {"v12", "v13", "h16", "h20", "h23"} <= names
    measured = re.findall(r"(\S+)@\S+ on (lengths\[S=\d+\]): .* TFLOPS", answer.stderr)
    every = {(name, f"lengths[S={s}]") for name in names for s in (512, 2048, 8192)}
    assert every - set(measured) == {("h20", "lengths[S=8192]")}, answer.stderr
    assert answer.exit_code == 5
    assert "h20@sm_90a on lengths[S=8192]: WRONG on normal: relative L2 error" in answer.stderr


def test_a_projects_own_operation(tmp_path: Path) -> None:
    """A matrix product with a float32 output beside v12, in one run; then one that leaves out the last step."""
    user = UserProject(tmp_path)
    user.write("manifests/workloads.yaml", WORKLOADS.replace("{B: 1, H: 2, S: 128, D: 64}", SMALL))
    (user.root / "kernels").mkdir()
    shutil.copy(REPOSITORY / "kernels/ptx.cuh", user.root / "kernels/ptx.cuh")
    version(user, "a0-good", V12)
    add_matrix_product(user)
    user.edit("manifests/m1.yaml", "[sm_90a]", f"[{TARGET}]")
    answer = cli_in(user.root)("run", "--target", TARGET, "--format", "json")
    assert answer.exit_code == 0, answer.output
    rows = {row["version"]: row["measured"] for row in json.loads(answer.stdout)["rows"]}
    assert [check["distribution"] for check in rows["m1"]["checks"]] == ["uniform", "integers"]
    timing = rows["m1"]["timing"]
    assert timing["tflops"] == pytest.approx(2 * 8 * 128 * 48 / timing["ms"]["value"] / 1e9)
    assert rows["a0-good"]["timing"]
    user.edit("kernels/m1.cu", "k < K", "k < K - 1")
    answer = cli_in(user.root)("run", "m1", "--target", TARGET)
    assert answer.exit_code == 5
    assert "relative L2 error" in answer.stderr


def test_a_bundle_is_measured_without_git_or_sources(tmp_path: Path) -> None:
    home = UserProject(tmp_path / "home")
    shutil.copytree(REPOSITORY / "manifests", home.root / "manifests")
    shutil.copytree(REPOSITORY / "kernels", home.root / "kernels")
    away = tmp_path / "away"
    away.mkdir()
    job = away / "job.faperf"
    assert cli_in(home.root)("bundle", "v12", "--target", TARGET, "--out", str(job)).exit_code == 0
    answer = cli_in(away)("run", "--bundle", str(job), env={"PATH": _without_nvcc()})
    assert answer.exit_code == 0, answer.output
    assert "5 checks" in answer.stdout or "6 records" in answer.stdout
    assert cli_in(home.root)("import", f"{job}.results").exit_code == 0
    ladder = json.loads(cli_in(home.root)("ladder", "--target", TARGET, "--format", "json").stdout)
    rows = {row["version"]: row for row in ladder["rows"]}
    assert rows["v12"]["measured"]["timing"]["tflops"] > 0


def _without_nvcc() -> str:
    return ":".join(str(Path(shutil.which(tool) or "").parent) for tool in ("nvidia-smi",))
