"""Tensor maps and clusters on a card: h14 as it is, in clusters, and with maps that the driver refuses."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY, WORKLOADS, UserProject, cli_in
from tests.gpu.test_gpu import SMALL, TARGET, Rogues, failures, pytestmark

__all__ = ["pytestmark"]

H14 = (REPOSITORY / "kernels/h14.cu").read_text(encoding="utf-8")
FIRST = "    if (threadIdx.x == 0) {\n        for (uint32_t barrier"
IN_PAIRS = f"""    uint32_t ctas, clusters;
    asm("mov.u32 %0, %cluster_nctarank;" : "=r"(ctas));
    asm("mov.u32 %0, %nclusterid.x;" : "=r"(clusters));
    if (ctas != 2 || clusters * 2 != gridDim.x) return;  // O stays unwritten
{FIRST}"""
Q_MAP = "{tensor_map: Q, box: [64, 1, 64, 1], swizzle: 128}"
CHANGES = {
    "a-good": (H14, "", ""),
    "b-pairs": (H14.replace(FIRST, IN_PAIRS), "    block: [128]", "    cluster: [2]\n    block: [128]"),
    "b-alone": (H14.replace(FIRST, IN_PAIRS), "", ""),
    "c-narrow-swizzle": (H14, Q_MAP, Q_MAP.replace("swizzle: 128", "swizzle: 64")),
    "c-three-dimensions": (H14, Q_MAP, Q_MAP.replace("[64, 1, 64, 1]", "[64, 1, 64]")),
    "c-too-large-cluster": (H14, "    block: [128]", "    cluster: [8, 6]\n    block: [128]"),
}
"""Source, and what becomes of h14's manifest: old, new."""


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Rogues:
    """All of them run once, on several batches and heads."""
    if TARGET != "sm_90a":
        pytest.skip("h14 is for sm_90a")
    user = UserProject(tmp_path_factory.mktemp("maps"))
    user.write("manifests/workloads.yaml", WORKLOADS.replace("{B: 1, H: 2, S: 128, D: 64}", SMALL))
    shutil.copytree(REPOSITORY / "kernels", user.root / "kernels")
    manifest = (REPOSITORY / "manifests/h14.yaml").read_text(encoding="utf-8").split("budgets:")[0]
    workloads = next(line for line in manifest.splitlines() if line.startswith("workloads:"))
    manifest = manifest.replace(workloads, "workloads: [tiny]").replace("parent: v13\n", "")
    for name, (source, old, new) in CHANGES.items():
        assert old in manifest
        user.write(f"kernels/{name}.cu", source)
        text = manifest.replace("id: h14", f"id: {name}").replace("kernels/h14.cu", f"kernels/{name}.cu")
        user.write(f"manifests/{name}.yaml", text.replace(old, new) if old else text)
    answer = cli_in(user.root)("run", "--target", TARGET, "--format", "json")
    return user, answer, {row["version"]: row for row in json.loads(answer.stdout)["rows"]}, 0.0


@pytest.mark.parametrize("name", ["a-good", "b-pairs"])
def test_maps_follow_the_buffers_from_instance_to_instance(ran: Rogues, name: str) -> None:
    row = ran[2][name]
    assert failures(row) == []
    assert len(row["measured"]["checks"]) == 5
    assert row["measured"]["timing"]["tflops"] > 0


def test_without_its_cluster_the_same_kernel_writes_nothing(ran: Rogues) -> None:
    assert "unwritten" in failures(ran[2]["b-alone"])[0]["failure"]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("c-narrow-swizzle", "no tensor map of Q (CUDA_ERROR_INVALID_VALUE): box [64, 1, 64, 1] of [128, 3, 512, 2]"),
        ("c-three-dimensions", "tensor map of Q: a box of 3 dimensions for a tensor of 4"),
        ("c-too-large-cluster", "CUDA_ERROR_INVALID_CLUSTER_SIZE"),
    ],
)
def test_what_the_driver_refuses_is_a_refused_launch(ran: Rogues, name: str, words: str) -> None:
    (check,) = failures(ran[2][name])
    assert (check["fault"], words in check["failure"]) == ("launch refused", True), check["failure"]


def test_a_version_with_tensor_maps_is_launched_alone(ran: Rogues) -> None:
    answer = cli_in(ran[0].root)("exec", "b-pairs", "--once")
    assert answer.exit_code == 0, answer.stderr


def test_a_bundle_of_tensor_maps_is_measured(ran: Rogues, tmp_path: Path) -> None:
    job = tmp_path / "job"
    assert cli_in(ran[0].root)("bundle", "a-good", "--target", TARGET, "--out", str(job)).exit_code == 0
    answer = cli_in(tmp_path)("run", "--bundle", "job")
    assert answer.exit_code == 0, answer.stderr
