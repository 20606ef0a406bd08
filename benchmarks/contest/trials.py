"""What a contest writes down: raw trials and the runs that they are from, one record a line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from faperf.history import write_atomically
from faperf.judge import Verdict


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """Where and with what trials were made. `missing` says of a method that failed why it has no (more) trials."""

    when: str
    command: str
    gpu: str
    card: str
    driver: str
    versions: dict[str, str]
    missing: dict[str, str] = {}


class Trial(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One decision of one method about one pair. `change` is B / A − 1 as it was measured, `true` as it is.

    `run` is an index into the runs, `states` are the card's before A and before B (for an interleaved pair there is one),
    `seconds` the time that measuring both took; `raw` has the method's own figures.
    """

    run: int
    method: str
    pair: str
    true: float
    states: list[str]
    change: float
    verdict: Verdict
    seconds: float
    raw: dict[str, Any] = {}


class Results(msgspec.Struct, frozen=True):
    runs: list[Run]
    trials: list[Trial]

    @classmethod
    def load(cls, path: Path) -> Results:
        return msgspec.json.decode(path.read_bytes(), type=cls)

    def save(self, path: Path) -> None:
        def lines(records: list[Run] | list[Trial]) -> bytes:
            return b",\n".join(msgspec.json.encode(record) for record in records)

        write_atomically(path, b'{"runs": [\n%b\n], "trials": [\n%b\n]}\n' % (lines(self.runs), lines(self.trials)))


CUSTOMARY = 0.01


def customary(change: float) -> Verdict:
    """The rule of those whose tool gives one figure and no interval: over 1 % is a difference."""
    if change > CUSTOMARY:
        return Verdict.SLOWER
    return Verdict.FASTER if change < -CUSTOMARY else Verdict.SAME
