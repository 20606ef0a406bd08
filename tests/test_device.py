"""What can be told of a card without one: which it is, and how a block's figure is made."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from faperf.device import Gpu, _middle_mean, card_of, find_gpu
from tests.compiling import script

CARDS = {"0": "A Card, 9.0, 700.00, 143771, GPU-0", "1": "A Card, 9.0, 600.00, 143771, GPU-1"}


@pytest.fixture
def two_cards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An nvidia-smi that knows two cards, by number and by UUID, and no third one."""
    cases = "".join(f"--id={n}|--id=GPU-{n}) echo '{line}';;\n" for n, line in CARDS.items())
    script(tmp_path / "nvidia-smi", f"case $1 in\n{cases}*) echo 'No devices were found'; exit 6;;\nesac")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


@pytest.mark.parametrize(("visible", "watts"), [(None, 700), ("0", 700), ("1", 600), ("1,0", 600), ("GPU-1", 600)])
def test_the_first_card_that_cuda_sees_is_the_one(
    two_cards: None, visible: str | None, watts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if visible:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    gpu, reason = find_gpu()
    assert reason is None
    assert gpu == Gpu("A Card", "9.0", watts, 143771, card_of("GPU-0" if watts == 700 else "GPU-1"))


@pytest.mark.parametrize(
    ("visible", "words"), [("", "hides every GPU"), ("-1", "hides every GPU"), ("2", "does not answer")]
)
def test_a_card_that_cuda_does_not_see_is_not_there(
    two_cards: None, visible: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    gpu, reason = find_gpu()
    assert gpu is None
    assert words in str(reason)


def test_two_cards_have_two_names_that_do_not_tell_their_uuid() -> None:
    assert card_of("GPU-0") != card_of("GPU-1")
    assert "GPU-0" not in card_of("GPU-0")


@pytest.mark.parametrize(
    ("times", "mean"),
    [
        ([3.0], 3.0),
        ([1.0, 2.0], 1.5),
        ([1.0, 2.0, 30.0], 2.0),
        ([0.0, 1.0, 2.0, 99.0], 1.5),
        ([0.0, 0.0, 1.0, 1.0, 2.0, 3.0, 99.0, 99.0], 1.75),
    ],
)
def test_a_blocks_figure_is_the_mean_of_its_middle_half(times: list[float], mean: float) -> None:
    assert _middle_mean(times) == pytest.approx(mean)
