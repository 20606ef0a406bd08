"""What is known of a version, and what a cause is made of."""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence

import msgspec

from faperf.chips import TENSOR_PATHS
from faperf.judge import Verdict
from faperf.listing import Line, Place
from faperf.metrics import Metrics
from faperf.record import Build, Check, Counters, Entry, Interval, KernelFacts, Reported, Timing

MOST_PLACES = 5


class Effect(enum.StrEnum):
    """What a cause does: COST and GAIN are between two sides, LIMIT is the version's own."""

    COST = "cost"
    GAIN = "gain"
    LIMIT = "limit"


class Where(msgspec.Struct, frozen=True):
    """A line of the source, its text where it is known, and what of the cause belongs to it."""

    place: Place
    what: str
    text: str = ""


class Cause(msgspec.Struct, frozen=True, kw_only=True):
    """One reason, in words, with the facts that show it. `weight` ranks those of one effect."""

    name: str
    effect: Effect
    weight: float
    claim: str
    evidence: list[str]
    advice: str = ""
    places: list[Where] = []


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """All that is known of one version for one target. `timings` are of every workload, `timing` of the one that is looked at.

    `checks` are of silicon, or of the emulator where no GPU ran it. `published` is what others say of it.
    `inputs` is a digest of all that the compiler read of the project, where it was built here; `lines` is the listing of
    `kernel`, `text` the version's source by lines.
    """

    build: Build
    entry: Entry
    source: str
    tile: tuple[int, int] | None = None
    inputs: str | None = None
    checks: list[Check] = []
    timing: Timing | None = None
    timings: list[Timing] = []
    metrics: Metrics | None = None
    counters: Counters | None = None
    counted_flops: int = 0
    published: Reported | None = None
    lines: list[Line] = []
    text: list[str] = []

    @property
    def name(self) -> str:
        return self.entry.version

    @property
    def kernel(self) -> KernelFacts:
        return main_kernel(self.build)

    @property
    def spill_bytes(self) -> int:
        return sum(kernel.spill_bytes for kernel in self.build.kernels)

    def where(self, lines: Sequence[Line], what: Callable[[int], str]) -> list[Where]:
        """The statements of `lines`, those with the most of them first; `what(n)` says what n instructions are."""
        count: dict[Place, int] = {}
        for line in lines:
            if place := line.place_in(self.source):
                count[place] = count.get(place, 0) + 1
        ordered = sorted(count.items(), key=lambda item: (-item[1], item[0]))[:MOST_PLACES]
        return [Where(place, what(number), self.words(place)) for place, number in ordered]

    def words(self, place: Place) -> str:
        known = place.file == self.source and 0 < place.line <= len(self.text)
        return self.text[place.line - 1].strip() if known else ""


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """What `faperf explain` found. `verdict` is of time, measured here, or as others `reported` it; `unknown` says what no rule
    accounts for.
    """

    version: str
    against: str | None
    target: str
    verdict: Verdict
    change: Interval | None = None
    reported: float | None = None
    causes: list[Cause] = []
    unknown: str | None = None
    notes: list[str] = []


def main_kernel(build: Build) -> KernelFacts:
    """The kernel of a build with the most tensor instructions; the longest one where there are none."""
    return max(
        build.kernels, key=lambda k: (sum(sum(k.opcodes.get(path, [])) for path in TENSOR_PATHS), k.instructions)
    )
