"""What the trials come to, in Markdown."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import median

from tabulate import tabulate

from benchmarks.contest.trials import Results, Trial
from faperf.judge import Verdict

DIFFERS = (Verdict.SLOWER, Verdict.FASTER)
OVERALL = ("method", "trials", "error p95", "max", "false alarms")
DETAIL = (
    "pair",
    "method",
    "trials",
    "error p95",
    "max",
    "false alarms",
    "caught",
    "called faster",
    "undecided",
    "s a trial",
)


def error(trial: Trial) -> float:
    return abs(trial.change - trial.true)


def p95(values: Sequence[float]) -> float:
    """By nearest rank: the smallest value with 95 % of all at or below it. Of fewer than 20 that is the largest."""
    return sorted(values)[math.ceil(0.95 * len(values)) - 1]


def false_alarms(trials: Iterable[Trial]) -> str:
    """Called slower or faster, of those that are equal."""
    equal = [trial for trial in trials if trial.true == 0]
    return f"{sum(trial.verdict in DIFFERS for trial in equal)} of {len(equal)}" if equal else ""


def caught(trials: Iterable[Trial]) -> str:
    """Called slower, of those that are."""
    slower = [trial for trial in trials if trial.true > 0]
    return f"{sum(trial.verdict is Verdict.SLOWER for trial in slower)} of {len(slower)}" if slower else ""


def called_faster(trials: Iterable[Trial]) -> str:
    """Called faster though slower."""
    slower = [trial for trial in trials if trial.true > 0]
    return f"{sum(trial.verdict is Verdict.FASTER for trial in slower)} of {len(slower)}" if slower else ""


def undecided(trials: Sequence[Trial]) -> str:
    return f"{sum(trial.verdict is Verdict.INCONCLUSIVE for trial in trials)} of {len(trials)}" if trials else ""


def summary(results: Results) -> str:
    """Methods, over all pairs."""
    sizes = sorted({trial.true for trial in results.trials if trial.true > 0})
    rows = []
    for method in _methods(results):
        own = [trial for trial in results.trials if trial.method == method]
        sized = [caught(trial for trial in own if trial.true == size) for size in sizes]
        rows.append([method, *_errors(own), false_alarms(own), *sized, undecided(own), _seconds(own)])
    return _markdown(rows, (*OVERALL, *(f"caught +{100 * size:g} %" for size in sizes), "undecided", "s a trial"))


def detail(results: Results) -> str:
    """Pair × method."""
    rows = []
    pairs = sorted({(not trial.pair.endswith("A/A"), trial.true, trial.pair) for trial in results.trials})
    for _, _, pair in pairs:
        for method in _methods(results):
            own = [trial for trial in results.trials if (trial.method, trial.pair) == (method, pair)]
            verdicts = (false_alarms(own), caught(own), called_faster(own), undecided(own))
            rows.append([pair, method, *_errors(own), *verdicts, _seconds(own)])
    return _markdown(rows, DETAIL)


def report(results: Results) -> str:
    """Where and by what command it was measured, what is missing, and both tables."""
    lines = []
    for run in results.runs:
        versions = ", ".join(f"{name} {version}" for name, version in run.versions.items())
        lines.append(f"- `{run.command}`: {run.gpu} (card {run.card}, driver {run.driver}), {run.when}; {versions}")
        lines += [f"- {method} failed in that run: {why}" for method, why in run.missing.items()]
    return "\n".join([*lines, "", summary(results), "", detail(results), ""])


def _methods(results: Results) -> list[str]:
    """Those that played and those that could not, faperf last."""
    names = {trial.method for trial in results.trials} | {name for run in results.runs for name in run.missing}
    return sorted(names, key=lambda name: (name == "faperf", name))


def _errors(trials: Sequence[Trial]) -> list[str]:
    if not trials:
        return ["0", "", ""]
    errors = [error(trial) for trial in trials]
    return [str(len(errors)), f"{100 * p95(errors):.2f} %", f"{100 * max(errors):.2f} %"]


def _seconds(trials: Sequence[Trial]) -> str:
    return f"{median(trial.seconds for trial in trials):.1f}" if trials else ""


def _markdown(rows: Sequence[Sequence[str]], headers: Sequence[str]) -> str:
    return tabulate(rows, headers, tablefmt="github", disable_numparse=True)
