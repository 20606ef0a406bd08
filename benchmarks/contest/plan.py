"""Who is compared with what, and in which order: rounds of all pairs and all tools, until the time is up."""

from __future__ import annotations

import enum
import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from faperf.judge import Verdict


class State(enum.StrEnum):
    """The card's, before a measurement."""

    IDLE = "idle"
    HOT = "hot"
    COOLING = "cooling"


CHANGES = list(itertools.permutations(State, 2))
"""From the state before A to that before B: another of these each round."""


class Pair(NamedTuple):
    """Two kernels by name; B does `true` more work than A."""

    name: str
    true: float
    a: str
    b: str


class Decision(NamedTuple):
    """What a method says of a pair. A tool with two rules decides twice on the same figures."""

    method: str
    change: float
    verdict: Verdict
    states: list[State]
    seconds: float
    raw: dict[str, Any]


class Tool(Protocol):
    methods: tuple[str, ...]

    def trial(self, pair: Pair, number: int) -> list[Decision]:
        """Measure and decide, in round `number`."""


class Reading(NamedTuple):
    """One kernel measured alone."""

    seconds: float
    figures: Any


@dataclass
class Stopwatch:
    """A tool that measures one kernel at a time: A in one state of the card, B in another, as two CI runs would.

    A is read once a round and serves all of that round's pairs.
    """

    methods: tuple[str, ...]
    hold: Callable[[State], None]
    read: Callable[[str], Reading]
    compare: Callable[[Any, Any], list[tuple[str, float, Verdict, dict[str, Any]]]]
    get_ready: Callable[[], object] = lambda: None
    _known: dict[tuple[int, str], Reading] = field(default_factory=dict)

    def trial(self, pair: Pair, number: int) -> list[Decision]:
        before, after = CHANGES[number % len(CHANGES)]
        key = (number, pair.a)
        if key not in self._known:
            self._known = {k: v for k, v in self._known.items() if k[0] == number} | {key: self._read(pair.a, before)}
        a, b = self._known[key], self._read(pair.b, after)
        return [
            Decision(method, change, verdict, [before, after], a.seconds + b.seconds, raw)
            for method, change, verdict, raw in self.compare(a.figures, b.figures)
        ]

    def _read(self, kernel: str, state: State) -> Reading:
        self.get_ready()
        self.hold(state)
        return self.read(kernel)


def play(
    pairs: Sequence[Pair],
    tools: Sequence[Tool],
    *,
    note: Callable[[Pair, Decision], None],
    failed: Callable[[Tool, Exception], None],
    over: Callable[[int], bool],
    order: random.Random,
) -> None:
    """Rounds, each of all pairs by all tools in a drawn order, until `over(rounds done)` or no tool is left.

    A tool that fails is told and plays no more.
    """
    left = list(tools)
    for number in itertools.count():
        for pair in order.sample(pairs, len(pairs)):
            for tool in order.sample(left, len(left)):
                if over(number):
                    return
                try:
                    decisions = tool.trial(pair, number)
                except Exception as error:  # whatever is wrong with one tool, the others go on
                    failed(tool, error)
                    left.remove(tool)
                    continue
                for decision in decisions:
                    note(pair, decision)
        if not left:
            return
