"""Attention against a naive float64 implementation, and each distribution against what its description promises."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from faperf.errors import ConfigError
from faperf.operations import BUILT_IN, Place, attention_forward, find_operation, load_operations, tensors_of
from faperf.operations.attention_forward import KEY_TILE, AttentionForward
from faperf.project import Config, Project

ATTENTION = AttentionForward()
SMALL = {"B": 2, "H": 3, "S": 192, "D": 32}
HEAD = {"B": 1, "H": 1, "S": 1024, "D": 128}
"""A head of the published workload."""

PUBLISHED = {"B": 1, "H": 64, "S": 1024, "D": 128}
EVERY = pytest.mark.parametrize("distribution", AttentionForward.distributions)

Arrays = dict[str, Any]


def inputs(shape: dict[str, int], layout: str = "BSHD", distribution: str = "normal", seed: int = 1) -> Arrays:
    return ATTENTION.inputs(np, shape, layout, distribution, seed)


def naive(q: Any, k: Any, v: Any, layout: str) -> Any:
    """Attention as it is written on paper, in float64."""
    here, there = layout, layout.replace("S", "T")
    q, k, v = (tensor.astype(np.float64) for tensor in (q, k, v))
    logits = np.einsum(f"{here},{there}->BHST", q, k) / math.sqrt(q.shape[-1])
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    return np.einsum(f"BHST,{there}->{here}", weights / weights.sum(-1, keepdims=True), v)


def logits(made: Arrays) -> Any:
    """Of the first head, BSHD."""
    q, k = (made[name][0, :, 0].astype(np.float64) for name in "QK")
    return q @ k.T / math.sqrt(q.shape[-1])


def relative_l2(output: Any, reference: Any) -> float:
    return float(np.linalg.norm((output - reference).ravel()) / np.linalg.norm(reference.ravel()))


# ── the reference ──


@EVERY
@pytest.mark.parametrize("layout", ["BSHD", "BHSD"])
def test_reference(layout: str, distribution: str) -> None:
    made = inputs(SMALL, layout, distribution)
    found = ATTENTION.reference(np, made, SMALL, layout)["O"]
    assert found.dtype == np.float64
    assert found.shape == tuple(ATTENTION.dimensions("O", SMALL, layout).values())
    np.testing.assert_allclose(found, naive(made["Q"], made["K"], made["V"], layout), rtol=1e-9, atol=1e-9)


def test_reference_by_hand() -> None:
    """Two keys whose scaled logits are ln 3 apart: weights ¾ and ¼."""
    shape = {"B": 1, "H": 1, "S": 2, "D": 4}
    q, k, v = (np.zeros((1, 2, 1, 4)) for _ in range(3))
    q[0, :, 0, 0], k[0, 0, 0, 0] = 2 * math.log(3), 1
    v[0, 0], v[0, 1] = 8, 4
    found = ATTENTION.reference(np, {"Q": q, "K": k, "V": v}, shape, "BSHD")["O"]
    np.testing.assert_allclose(found, np.full((1, 2, 1, 4), 7), rtol=1e-12)


@pytest.mark.parametrize("method", [ATTENTION.reference, ATTENTION.plain])
def test_layouts_agree(method: Any) -> None:
    made = inputs(SMALL, "BSHD")
    other = {name: tensor.transpose(0, 2, 1, 3) for name, tensor in made.items()}
    one, two = method(np, made, SMALL, "BSHD")["O"], method(np, other, SMALL, "BHSD")["O"]
    np.testing.assert_array_equal(one, two.transpose(0, 2, 1, 3))


@pytest.mark.parametrize("method", [ATTENTION.reference, ATTENTION.plain])
@pytest.mark.parametrize("layout", ["BSHD", "BHSD"])
def test_some_rows_are_those_of_all_rows(layout: str, method: Any) -> None:
    made, rows = inputs(SMALL, layout), np.array([0, 5, 63, 64, 191])
    some, every = (method(np, made, SMALL, layout, picked)["O"] for picked in (rows, None))
    assert some.shape[layout.index("S")] == len(rows)
    np.testing.assert_allclose(some, every.take(rows, axis=layout.index("S")), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("rows_at_a_time", [1, 7, 192, 1000])
def test_rows_are_taken_some_at_a_time(rows_at_a_time: int, monkeypatch: pytest.MonkeyPatch) -> None:
    made = inputs(SMALL)
    whole = ATTENTION.reference(np, made, SMALL, "BSHD")["O"]
    sizes = []

    def head(xp: Any, q: Any, k: Any, v: Any) -> Any:
        sizes.append(len(q))
        return exact(xp, q, k, v)

    exact = attention_forward._exact_head
    monkeypatch.setattr(attention_forward, "_exact_head", head)
    monkeypatch.setattr(attention_forward, "SCORE_BYTES", rows_at_a_time * SMALL["S"] * 8)
    parts = ATTENTION.reference(np, made, SMALL, "BSHD")["O"]
    np.testing.assert_allclose(parts, whole, rtol=1e-12, atol=1e-12)
    assert max(sizes) == min(rows_at_a_time, SMALL["S"])
    assert sum(sizes) == SMALL["B"] * SMALL["H"] * SMALL["S"]


def test_a_row_that_does_not_fit_is_still_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    made = inputs(SMALL)
    whole = ATTENTION.reference(np, made, SMALL, "BSHD")["O"]
    monkeypatch.setattr(attention_forward, "SCORE_BYTES", 1)
    np.testing.assert_allclose(ATTENTION.reference(np, made, SMALL, "BSHD")["O"], whole, rtol=1e-12, atol=1e-12)


# ── the unit of tolerances ──


def test_error_of_a_plain_implementation() -> None:
    made = inputs(HEAD)
    error = relative_l2(ATTENTION.plain(np, made, HEAD, "BSHD")["O"], naive(made["Q"], made["K"], made["V"], "BSHD"))
    assert 2e-4 < error < 4e-4


@EVERY
def test_a_plain_implementation_is_right_on_every_distribution(distribution: str) -> None:
    """Also with scores near the end of fp16's range: nothing overflows, and what it gives are halves."""
    made = inputs(HEAD, distribution=distribution)
    found = ATTENTION.plain(np, made, HEAD, "BSHD")["O"]
    assert np.isfinite(found).all()
    np.testing.assert_array_equal(found, found.astype(np.float16))
    assert relative_l2(found, naive(made["Q"], made["K"], made["V"], "BSHD")) < 0.01


# ── the distributions ──


@EVERY
@pytest.mark.parametrize("layout", ["BSHD", "BHSD"])
def test_inputs_are_finite_halves_of_the_layout(layout: str, distribution: str) -> None:
    made = inputs(SMALL, layout, distribution)
    assert list(made) == ["Q", "K", "V"]
    for tensor in made.values():
        assert tensor.dtype == np.float16
        assert tensor.shape == tuple(SMALL[axis] for axis in layout)
        assert tensor.flags.c_contiguous
        assert np.isfinite(tensor).all()


@EVERY
def test_the_seed_decides(distribution: str) -> None:
    one, again, other = (inputs(SMALL, distribution=distribution, seed=seed) for seed in (1, 1, 2))
    for name, tensor in one.items():
        np.testing.assert_array_equal(tensor, again[name])
        if (distribution, name) != ("ones", "V"):
            assert (tensor != other[name]).mean() > 0.5


def test_no_two_tensors_or_distributions_share_their_numbers() -> None:
    """Correlation does not see a factor: 8 × the same numbers would be found."""
    tensors = [
        tensor.astype(np.float64).ravel()
        for distribution in ("normal", "peaked", "large")
        for tensor in inputs(SMALL, distribution=distribution).values()
    ]
    correlation = np.abs(np.corrcoef(tensors) - np.eye(len(tensors)))
    assert correlation.max() < 0.05


def test_normal() -> None:
    for tensor in inputs(HEAD).values():
        assert float(tensor.astype(np.float64).mean()) == pytest.approx(0, abs=0.01)
        assert float(tensor.astype(np.float64).std()) == pytest.approx(1, abs=0.01)


@pytest.mark.parametrize("depth", [64, 128])
@pytest.mark.parametrize("layout", ["BSHD", "BHSD"])
def test_growing(layout: str, depth: int) -> None:
    """The maximum of a row grows by about 1 with each tile of keys, in every row: each tile must rescale."""
    shape = {"B": 1, "H": 2, "S": 1024, "D": depth}
    made = inputs(shape, layout, "growing")
    if layout == "BHSD":
        made = {name: tensor.transpose(0, 2, 1, 3) for name, tensor in made.items()}
    tiles = logits(made).reshape(1024, -1, KEY_TILE).max(-1)
    grown = np.diff(tiles, axis=1)
    assert grown.mean() == pytest.approx(1, abs=0.05)
    assert (grown > 0.25).all()
    assert (grown < 2).all()


def test_peaked() -> None:
    scores = logits(inputs(HEAD, distribution="peaked"))
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    largest = (weights / weights.sum(-1, keepdims=True)).max(-1)
    assert (largest > 0.9).mean() > 0.75
    normal = logits(inputs(HEAD))
    assert (np.exp(normal).max(-1) / np.exp(normal).sum(-1)).max() < 0.9


def test_large() -> None:
    made = inputs(HEAD, distribution="large")
    raw = np.abs(logits(made) * math.sqrt(HEAD["D"]))
    assert 65504 / 4 < raw.max() < 65504
    values = np.abs(made["V"].astype(np.float64))
    assert values.std() == pytest.approx(600, abs=100)  # of |N(0, 1000)|: √(1 − 2/π) · 1000
    assert 3000 < values.max() < 65504


def test_ones() -> None:
    made = inputs(SMALL, distribution="ones")
    assert (made["V"] == 1).all()
    assert made["Q"].std() == pytest.approx(1, abs=0.02)
    np.testing.assert_allclose(ATTENTION.reference(np, made, SMALL, "BSHD")["O"], 1, rtol=1e-12)


# ── the counts ──


def test_counts_of_the_published_workload() -> None:
    assert ATTENTION.flops(PUBLISHED) == 2**35
    assert ATTENTION.bytes(PUBLISHED) == 64 * 2**20


def test_counts_grow_as_they_should() -> None:
    twice_s = SMALL | {"S": 2 * SMALL["S"]}
    assert ATTENTION.flops(twice_s) == 4 * ATTENTION.flops(SMALL)
    assert ATTENTION.bytes(twice_s) == 2 * ATTENTION.bytes(SMALL)
    for axis in "BHD":
        twice = SMALL | {axis: 2 * SMALL[axis]}
        assert ATTENTION.flops(twice) == 2 * ATTENTION.flops(SMALL)
        assert ATTENTION.bytes(twice) == 2 * ATTENTION.bytes(SMALL)


# ── a user's own ──

OWN = (
    "from faperf.operations.attention_forward import AttentionForward\n\n"
    "class Scale(AttentionForward):\n    name = 'scale'\n\nSCALE = Scale()\n"
)


def configured(root: Path, operations: dict[str, str]) -> Project:
    project = Project(root)
    vars(project)["config"] = Config(operations=operations)
    return project


@pytest.fixture(autouse=True)
def _path_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])


def test_a_users_own_operation(tmp_path: Path) -> None:
    (tmp_path / "faperf_test_own.py").write_text(OWN)
    operations = load_operations(configured(tmp_path, {"scale": "faperf_test_own:SCALE"}))
    assert list(operations) == ["attention_forward", "scale"]
    assert operations["scale"].name == "scale"
    assert "scale" not in BUILT_IN
    assert operations.places_of(["scale", "attention_forward"]) == {
        "scale": Place("faperf_test_own:SCALE", str(tmp_path))
    }


def test_another_process_finds_it_at_its_place(tmp_path: Path) -> None:
    (tmp_path / "faperf_test_there.py").write_text(OWN)
    assert find_operation("scale", Place("faperf_test_there:SCALE", str(tmp_path))).name == "scale"
    assert find_operation("attention_forward", None) is BUILT_IN["attention_forward"]


def test_an_operation_that_lacks_something(tmp_path: Path) -> None:
    (tmp_path / "faperf_test_half.py").write_text(
        "class Half:\n    name = 'half'\n    def flops(self, shape): return 1\n"
    )
    with pytest.raises(ConfigError, match=r"has no version, parameters, .*, plain\n") as caught:
        load_operations(configured(tmp_path, {"half": "faperf_test_half:Half"}))
    assert "faperf.operations.Operation" in (caught.value.remedy or "")


def test_nothing_configured(tmp_path: Path) -> None:
    assert load_operations(Project(tmp_path)) == BUILT_IN


def test_the_tensors_of_an_operation() -> None:
    assert tensors_of(ATTENTION, SMALL, "BHSD")["Q"] == (tuple(SMALL[axis] for axis in "BHSD"), "float16")


@pytest.mark.parametrize(
    "location",
    [
        "faperf_no_such_module:X",
        "faperf.operations:NOPE",
        "faperf.operations",
        "faperf.operations:",
        ":X",
        "",
        ".relative:X",
        "faperf_test_broken:X",
        "faperf_test_raising:X",
    ],
)
def test_a_bad_location(location: str, tmp_path: Path) -> None:
    (tmp_path / "faperf_test_broken.py").write_text("def (:\n")
    (tmp_path / "faperf_test_raising.py").write_text("1 / 0\n")
    with pytest.raises(ConfigError) as caught:
        load_operations(configured(tmp_path, {"mine": location}))
    assert f"operation mine: cannot load '{location}'" in caught.value.what
    assert caught.value.where == "pyproject.toml, [tool.faperf] operations"
    assert "module:ATTRIBUTE" in (caught.value.remedy or "")
