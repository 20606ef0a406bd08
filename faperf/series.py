"""Series: the timings of one version, target, workload, machine class, regime and protocol, along first-parent commits.

A build that did not change is not measured again, so a point stands where something was measured. Points compare through the
control, which every timing was interleaved with, where all of a series have the same one; else by their times as measured.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from faperf.changepoints import METHOD, Change, Level, change_points
from faperf.gitinfo import Repository
from faperf.history import History
from faperf.index import StoredTiming
from faperf.record import Build, Entry, Run, Timing


class Place(msgspec.Struct, frozen=True, order=True):
    """What all points of a series have in common."""

    version: str
    target: str
    workload: str
    machine: str
    regime: str
    protocol: int


class Point(msgspec.Struct, frozen=True):
    """A timing at a commit. `position` counts first-parent commits from the oldest, from 0; that of a merged branch's commit is
    its merge's.
    """

    commit: str
    position: int
    timing: Timing
    level: Level


class Series(msgspec.Struct, frozen=True):
    """`points` oldest first. `by` says what the levels are: "control" (log ratio to it) or "time" (log ms).

    `void` are timings that must not be judged, at their commits; they are no points.
    """

    place: Place
    points: list[Point]
    by: str
    void: list[Point] = []


def series_of(stored: Iterable[StoredTiming], positions: Mapping[str, tuple[int, str]]) -> list[Series]:
    """The series that `stored` timings make, in the order of their places. `positions`: commit12 → (position, commit).

    Timings of working trees that were dirty, and of commits that are not among `positions`, are left out.
    """
    places: dict[Place, list[tuple[int, str, Timing]]] = {}
    for one in stored:
        if not one.file.dirty and one.file.commit12 in positions:
            t = one.timing
            place = Place(one.version, one.target, t.workload, t.machine, t.regime, t.protocol)
            places.setdefault(place, []).append((*positions[one.file.commit12], t))
    return [_series(place, sorted(places[place], key=lambda found: found[0])) for place in sorted(places)]


def ancestry(history: History, repository: Repository) -> list[str]:
    """HEAD and its first-parent ancestors, newest first. A commit's ancestors stay what they are, so the index remembers
    them and only newer commits are walked; in a shallow clone, whose end moves, all are.
    """
    if repository.is_shallow:
        return list(repository.first_parents())
    known = (history.index.remembered("ancestry") or b"").decode().split()
    if known and repository.head() == known[0]:
        return known
    newer = []
    for commit in repository.first_parents():
        if known and commit == known[0]:
            break
        newer.append(commit)
    else:
        known = []
    history.index.remember("ancestry", "\n".join([*newer, *known]).encode())
    return newer + known


def runs_along(history: History, first_parents: Sequence[str]) -> Iterator[tuple[str, Run]]:
    """Of each of these commits, newest first, that has one: the newest run of its clean tree, oldest first."""
    newest = {file.commit12: file for file in history.run_files() if not file.dirty}
    for commit in reversed(first_parents):
        file = newest.get(commit[:12])
        run = history.load_run(file, glance=True) if file else None
        if run is not None:
            yield commit, run


class Stand(msgspec.Struct, frozen=True):
    """Where a version × target stood from a commit on. `build` is None where it did not build, or its record is lost."""

    commit: str
    entry: Entry
    build: Build | None


def stands_of(history: History, first_parents: Sequence[str], version: str) -> dict[str, list[Stand]]:
    """By target, oldest first: the commits at which a version's code, occupancy or correctness became another. Reads a line of
    every run.
    """
    found: dict[str, list[Stand]] = {}
    for commit, run in runs_along(history, first_parents):
        for entry in run.entries:
            own = found.setdefault(entry.target, []) if entry.version == version else None
            if own is None or (own and _stands_as(own[-1].entry, entry) and own[-1].entry.build == entry.build):
                continue
            build = history.build(entry.build) if entry.build else None
            code = build.code if build else None
            if (
                not own
                or not _stands_as(own[-1].entry, entry)
                or (own[-1].build.code if own[-1].build else None) != code
            ):
                own.append(Stand(commit, entry, build))
    return found


def _stands_as(old: Entry, new: Entry) -> bool:
    names = ("smem", "ctas_per_sm", "limiter", "emulated", "error")
    return all(getattr(old, name) == getattr(new, name) for name in names)


def positions_of(
    first_parents: Sequence[str], stored: Iterable[StoredTiming], repository: Repository | None
) -> dict[str, tuple[int, str]]:
    """What `series_of` takes, of first-parent commits, newest first. Where some of `stored` were measured on a branch that was
    merged, its commits stand at the merge.
    """
    wanted = {one.file.commit12 for one in stored if not one.file.dirty}
    last = len(first_parents) - 1
    along = enumerate(first_parents)
    positions = {short: (last - number, commit) for number, commit in along if (short := commit[:12]) in wanted}
    if repository and wanted - positions.keys():
        places = {commit: last - number for number, commit in enumerate(first_parents)}
        merged = repository.merged().items()
        positions |= {commit[:12]: (places[merge], commit) for commit, merge in merged if commit[:12] in wanted}
    return positions


def described(
    history: History, repository: Repository, commits: Sequence[str], what: str
) -> dict[str, tuple[str, str]]:
    """Date and subject of each commit. What was told of `what` the last time is remembered, as commits stay what they are."""
    key = f"described {what}"
    known: dict[str, tuple[str, str]] = msgspec.json.decode(history.index.remembered(key) or b"{}")
    if not known.keys() >= set(commits):
        known = repository.described(list(dict.fromkeys(commits)))
        history.index.remember(key, msgspec.json.encode(known))
    return known


def _series(place: Place, found: Sequence[tuple[int, str, Timing]]) -> Series:
    controls = {pair.build if (pair := timing.pair("control")) else None for *_, timing in found if not timing.void}
    by = "control" if len(controls) == 1 and None not in controls else "time"
    points = [Point(commit, position, timing, _level(timing, by)) for position, commit, timing in found]
    good, void = ([p for p in points if bool(p.timing.void) == wanted] for wanted in (False, True))
    return Series(place, good, by, void)


def _level(timing: Timing, by: str) -> Level:
    pair = timing.pair("control")
    if by == "control" and pair is not None:
        return Level(pair.time.value, pair.instances)
    return Level(math.log(timing.ms.value), [])


def changes_of(history: History, series: Series, least: float) -> list[Change]:
    """The series' change points. Searched for once: the index remembers what was found for the same levels."""
    levels = [point.level for point in series.points]
    if len(levels) < 2:
        return []
    asked = msgspec.json.encode((METHOD, least, levels))
    key = f"changes {msgspec.json.encode(series.place).decode()}"
    found, _, of = (history.index.remembered(key) or b"").partition(b"\n")
    if of == asked:
        return msgspec.json.decode(found, type=list[Change])
    changes = change_points(levels, least)
    history.index.remember(key, msgspec.json.encode(changes) + b"\n" + asked)
    return changes
