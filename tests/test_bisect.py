"""The search of a bisection, over histories that are made up: which commits it looks at, and what it concludes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable, Iterable, Sequence

import pytest

from faperf.bisect import halvings, search
from faperf.comparison import Fate

LENGTHS = range(1, 12)
"""How many commits stand after the good one: histories of two to twelve."""
HISTORIES = [(last, bad) for last in LENGTHS for bad in range(1, last + 1)]


class History:
    """Commits 0 … `last`, worse from `bad` on. Notes what is built and tested."""

    def __init__(
        self,
        last: int,
        bad: int,
        *,
        codes: Sequence[Hashable] | None = None,
        broken: Iterable[int] = (),
        unclear: Iterable[int] = (),
    ) -> None:
        self.last, self.bad = last, bad
        self.codes = codes or range(last + 1)
        self.broken, self.unclear = set(broken), set(unclear)
        self.built: list[int] = []
        self.tested: list[int] = []
        self.told: list[tuple[int, Fate, int]] = []

    def code(self, number: int) -> Hashable | None:
        if number not in self.built:
            self.built.append(number)
        return None if number in self.broken else self.codes[number]

    def test(self, number: int) -> Fate:
        assert number not in self.broken
        self.tested.append(number)
        if number in self.unclear:
            return Fate.SKIPPED
        return Fate.WORSE if number >= self.bad else Fate.FINE

    def search(self) -> tuple[int, int]:
        return search(self.last, self.code, self.test, lambda *step: self.told.append(step))


@pytest.mark.parametrize(("last", "bad"), HISTORIES)
def test_every_position_is_found_in_as_many_tests_as_halving_takes(last: int, bad: int) -> None:
    history = History(last, bad)
    assert history.search() == (bad - 1, bad)
    assert len(history.tested) <= math.ceil(math.log2(last))
    assert len(history.built) <= math.ceil(math.log2(last)) + 2  # the ends are built too


@pytest.mark.parametrize(("last", "bad"), [(last, bad) for last, bad in HISTORIES if last <= 8])
def test_equal_code_is_tested_once_however_it_is_spread(last: int, bad: int) -> None:
    """Every way to cut the history into runs of equal code in which the bad commit starts one."""
    for changes in itertools.product([False, True], repeat=last):
        if not changes[bad - 1]:
            continue
        codes = list(itertools.accumulate(changes, lambda code, changed: code + changed, initial=0))
        history = History(last, bad, codes=codes)
        assert history.search() == (bad - 1, bad)
        tested = [codes[number] for number in history.tested]
        assert len(tested) == len(set(tested))
        assert not {codes[0], codes[last]} & set(tested)  # what the ends run is known already
        assert len(tested) <= math.ceil(math.log2(last))


def test_a_history_of_comments_and_one_change_needs_no_test() -> None:
    history = History(11, 7, codes=[0] * 7 + [1] * 5)
    assert history.search() == (6, 7)
    assert history.tested == []


def test_code_that_comes_back_keeps_its_verdict() -> None:
    """A change and its revert, then the bad one."""
    history = History(6, 5, codes=["a", "b", "a", "a", "c", "d", "d"])
    assert history.search() == (4, 5)
    assert history.tested == [4]


@pytest.mark.parametrize("kind", ["broken", "unclear"])
@pytest.mark.parametrize(("last", "bad"), [(last, bad) for last, bad in HISTORIES if last <= 7])
def test_skipped_commits_are_passed_and_only_they_remain(last: int, bad: int, kind: str) -> None:
    """Every set of commits between the ends that cannot be judged."""
    inside = range(1, last)
    for count in range(last):
        for skipped in itertools.combinations(inside, count):
            history = History(last, bad, broken=skipped) if kind == "broken" else History(last, bad, unclear=skipped)
            fine, worse = history.search()
            assert fine < bad <= worse
            assert set(range(fine + 1, worse)) <= set(skipped)
            assert not {fine, worse} & set(skipped)
            decided = [number for number in history.tested if number not in skipped]
            assert len(decided) <= math.ceil(math.log2(last)) + 2
            assert len(history.tested) == len(set(history.tested))


def test_a_skip_chooses_the_neighbour() -> None:
    history = History(8, 6, broken=[4])
    assert history.search() == (5, 6)
    assert [number for number, _, _ in history.told] == [4, 5, 7, 6]
    assert history.told[0] == (4, Fate.SKIPPED, 6)


def test_unclear_code_is_not_tested_again() -> None:
    history = History(6, 5, codes=["a", "b", "b", "b", "b", "c", "c"], unclear=[1, 2, 3, 4])
    assert history.search() == (0, 5)
    assert len(history.tested) == 1


def test_what_is_left_falls_to_nothing_and_gives_the_steps_to_come() -> None:
    history = History(11, 4)
    history.search()
    left = [10, *(remaining for _, _, remaining in history.told)]
    assert left == sorted(left, reverse=True)
    assert left[-1] == 0
    for number, remaining in enumerate(left):
        assert len(history.told) - number <= halvings(remaining)


@pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 7, 8, 100])
def test_halvings(count: int) -> None:
    assert halvings(count) == math.ceil(math.log2(count + 1))
