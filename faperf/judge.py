"""Records → verdicts. The only place with thresholds.

*Static* findings are exact: they compare what the compiler made of two builds and have no noise. *Reported* figures come
without an interval, so a change below `reported_same` is not called.
"""

import datetime
import enum
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from faperf.chips import path_generation
from faperf.errors import ConfigError
from faperf.manifest import Accepted, Budgets
from faperf.ranksum import shift
from faperf.record import Build, Check, Entry, Interval, KernelFacts, Reported, Timing, replace


class Verdict(enum.StrEnum):
    """Of time; and of a version that is not on both sides."""

    FASTER = "FASTER"
    SLOWER = "SLOWER"
    SAME = "SAME"
    INCONCLUSIVE = "INCONCLUSIVE"
    NEW = "NEW"
    GONE = "GONE"
    BROKEN = "BROKEN"
    UNCHANGED = "UNCHANGED"
    UNMEASURED = "UNMEASURED"
    INCOMPARABLE = "INCOMPARABLE"


UNDECIDED = (Verdict.INCONCLUSIVE, Verdict.INCOMPARABLE)
"""The verdicts of a look at a pair that a second look may decide: nothing sure was seen, or the look was void."""


class Severity(enum.StrEnum):
    """REGRESSION fails a comparison; WARNING is a sign that often goes with one; GAIN is the other direction."""

    REGRESSION = "regression"
    WARNING = "warning"
    GAIN = "gain"


class Status(enum.IntEnum):
    """What a gate says, of one row or of all, as the exit code that says it."""

    FINE = 0
    ERROR = 1
    REGRESSION = 3
    INCONCLUSIVE = 4
    WRONG = 5


PRECEDENCE = (Status.WRONG, Status.ERROR, Status.REGRESSION, Status.INCONCLUSIVE, Status.FINE)
"""Which status stands for several."""


def worst(statuses: Iterable[Status]) -> Status:
    return min(statuses, key=PRECEDENCE.index, default=Status.FINE)


class Cause(enum.StrEnum):
    """To what a slowdown is due."""

    SOURCE = "the source"
    TOOLCHAIN = "the toolchain"
    BOTH = "the source and the toolchain"
    TOGETHER = "the source and the toolchain together, neither alone"
    MACHINE = "the driver or this machine"
    NOT_REPRODUCED = "not reproduced"


class Rule(enum.StrEnum):
    SPILLS = "spills"
    LOOP_LOCAL_MEMORY = "local memory in the main loop"
    CAP_REACHED = "register cap reached"
    OCCUPANCY = "CTAs per SM"
    TENSOR_PATH = "tensor path"
    MMA_SHAPE = "MMA shape"
    PTXAS = "ptxas message"
    REGISTERS = "registers"
    UNIFORMITY = "uniformity"
    DIVERGENCE = "divergence"
    SMEM = "shared memory"
    TENSOR_WORK = "tensor work"
    BUDGET = "budget"
    ACCURACY = "accuracy"


class Finding(msgspec.Struct, frozen=True):
    """One thing that a comparison found, with its evidence in `text`."""

    rule: Rule
    severity: Severity
    text: str
    amount: float = 0.0
    """By how much it got worse, in the rule's own unit (bytes, registers, CTAs); 0 where there is none."""


class Thresholds(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Defaults; `[tool.faperf.thresholds]` overrides them.

    `registers_up`: more registers a thread than this are worth a word, and shared memory, or tensor work a score, grown by
    `smem_factor` or `work_factor`. `uniformity_factor` and `_least`: R2UR or BSSY in
    the main loop grown by this factor and at least this many. `reported_same`: published times closer than this are SAME.
    `time_detect` and `time_cut`: relative changes in time, used as `judge_time` says. `accuracy_factor`: a version is less
    accurate when on some distribution its error exceeds its parent's so many times, and is above `accuracy_floor`.
    `false_alarms`: the most that one gate may be wrong in calling anything slower or faster, by signs alone, whatever the
    number of its comparisons and with its second look. `drift`: the control's own time may change so much between two runs
    before the machine is blamed.
    """

    registers_up: int = 16
    uniformity_factor: float = 2.0
    uniformity_least: int = 4
    smem_factor: float = 1.5
    work_factor: float = 1.2
    reported_same: float = 0.01
    time_detect: float = 0.005
    time_cut: float = 0.003
    accuracy_factor: float = 1.25
    accuracy_floor: float = 2.0**-13
    false_alarms: float = 0.008
    drift: float = 0.005


def thresholds_from(table: Mapping[str, Any]) -> Thresholds:
    try:
        return msgspec.convert(dict(table), Thresholds)
    except msgspec.ValidationError as error:
        raise ConfigError(
            str(error),
            where="pyproject.toml, [tool.faperf.thresholds]",
            remedy="known keys: " + ", ".join(Thresholds.__struct_fields__),
        ) from error


# ── static ───────────────────────────────────────────────────────────────────────────────────────────────────────────


PERFORMANCE_LOSS = re.compile(r"setmaxnreg.*ignored|wgmma.*serializ|performance loss", re.IGNORECASE)
"""The messages of ptxas that tell of lost speed: by their text, for their numbers differ between releases."""


def overridden(findings: Iterable[Finding], rules: Mapping[str, str]) -> list[Finding]:
    """`findings`, as a manifest's `rules` have them: without those to ignore, with the severity that it gives the others.

    A gain stays one.
    """
    kept = []
    for finding in findings:
        wish = rules.get(finding.rule.name.lower())
        if wish is not None and finding.severity is not Severity.GAIN:
            if wish == "ignore":
                continue
            finding = msgspec.structs.replace(finding, severity=Severity(wish))
        kept.append(finding)
    return kept


def compare_static(
    old: Build, old_entry: Entry, new: Build, new_entry: Entry, thresholds: Thresholds, *, same_version: bool
) -> list[Finding]:
    """What got worse or better from `old` to `new`, worst first. Kernels are matched by entry, or by order.

    Between two commits of one version (`same_version`) less occupancy or a smaller MMA shape is a regression; between a
    version and its parent it may be the experiment itself, and is then a warning.
    """
    if old.code == new.code and old_entry.ctas_per_sm == new_entry.ctas_per_sm:
        return []
    by_design = Severity.REGRESSION if same_version else Severity.WARNING
    findings: list[Finding] = []
    for index, kernel in enumerate(new.kernels):
        before = old.kernel(kernel.entry) or (old.kernels[index] if index < len(old.kernels) else None)
        if before is not None:
            findings += _compare_kernels(before, kernel, thresholds, by_design)
    findings += _compare_occupancy(old_entry, new_entry, by_design)
    if old_entry.smem and new_entry.smem >= thresholds.smem_factor * old_entry.smem:
        text = f"shared memory {old_entry.smem / 1024:.1f} → {new_entry.smem / 1024:.1f} KiB"
        findings.append(Finding(Rule.SMEM, Severity.WARNING, text, new_entry.smem - old_entry.smem))
    findings += [
        Finding(Rule.PTXAS, by_design if PERFORMANCE_LOSS.search(message) else Severity.WARNING, f"new: {message}")
        for message in new.messages
        if _without_lines(message) not in {_without_lines(known) for known in old.messages}
    ]
    order = list(Severity)
    return sorted(findings, key=lambda finding: order.index(finding.severity))


def _compare_kernels(old: KernelFacts, new: KernelFacts, limits: Thresholds, by_design: Severity) -> list[Finding]:
    findings = []

    def found(rule: Rule, severity: Severity, text: str, amount: float = 0.0) -> None:
        findings.append(Finding(rule, severity, text, amount))

    if new.spill_bytes > old.spill_bytes:
        word = "grow" if old.spill_bytes else "appear"
        text = f"spills {word}: {old.spill_bytes} → {new.spill_bytes} bytes"
        found(Rule.SPILLS, Severity.REGRESSION, text, new.spill_bytes - old.spill_bytes)
    elif new.spill_bytes < old.spill_bytes:
        found(Rule.SPILLS, Severity.GAIN, f"spills shrink: {old.spill_bytes} → {new.spill_bytes} bytes")

    local_before, local_now = _local_memory(old), _local_memory(new)
    if local_now > local_before:
        found(
            Rule.LOOP_LOCAL_MEMORY,
            Severity.REGRESSION,
            f"{local_before} → {local_now} LDL/STL in the main loop",
            local_now - local_before,
        )

    if new.registers >= new.register_cap and old.registers < old.register_cap:
        found(
            Rule.CAP_REACHED,
            Severity.WARNING,
            f"registers at their cap: {old.registers} → {new.registers} of {new.register_cap}",
        )
    if new.registers - old.registers >= limits.registers_up:
        found(Rule.REGISTERS, Severity.WARNING, f"registers {old.registers} → {new.registers}")
    elif old.registers - new.registers >= limits.registers_up:
        found(Rule.REGISTERS, Severity.GAIN, f"registers {old.registers} → {new.registers}")

    before, now = path_generation(old.path), path_generation(new.path)
    if now < before:
        found(Rule.TENSOR_PATH, Severity.REGRESSION, f"tensor path steps down: {old.path} → {new.path or 'none'}")
    elif now > before > 0:
        found(Rule.TENSOR_PATH, Severity.GAIN, f"tensor path steps up: {old.path} → {new.path}")
    elif now == before and _largest_mma(new) < _largest_mma(old):
        found(Rule.MMA_SHAPE, by_design, f"MMA shapes shrink: {_shapes(old)} → {_shapes(new)}")

    for opcode, rule, meaning in (
        ("R2UR", Rule.UNIFORMITY, "values that were uniform to the warp no longer are"),
        ("BSSY", Rule.DIVERGENCE, "the warp splits and meets again more often"),
    ):
        was, is_now = old.main_loop.get(opcode, 0), new.main_loop.get(opcode, 0)
        if is_now >= limits.uniformity_factor * was and is_now - was >= limits.uniformity_least:
            found(rule, Severity.WARNING, f"{opcode} in the main loop {was} → {is_now}: {meaning}")
    return findings


def _compare_occupancy(old: Entry, new: Entry, by_design: Severity) -> list[Finding]:
    before, now = old.ctas_per_sm, new.ctas_per_sm
    if before is None or now is None or before == now:
        return []
    # A CTA twice as large that halves the count keeps as many threads resident: no loss.
    if now < before and now * new.threads < before * old.threads:
        text = f"CTAs per SM {before} → {now} (limited by {new.limiter})"
        return [Finding(Rule.OCCUPANCY, by_design, text, before - now)]
    if now > before and now * new.threads > before * old.threads:
        return [Finding(Rule.OCCUPANCY, Severity.GAIN, f"CTAs per SM {before} → {now}")]
    return []


def compare_tensor_work(old: Build, old_tile: int, new: Build, new_tile: int, thresholds: Thresholds) -> list[Finding]:
    """Whether more multiplications are issued for each score than before. A tile is that many scores (M·N).

    Only of code that is UTCHMMA alone: its shapes are of a CTA, those of HMMA and HGMMA of warps that do the same or not.
    """
    before, now = _multiplications(old), _multiplications(new)
    if not before or not now or now / new_tile < thresholds.work_factor * before / old_tile:
        return []
    counts = (sum(kernel.mma_shapes.values()) for build in (old, new) for kernel in build.kernels)
    text = (
        f"tensor work {before / old_tile:.0f} → {now / new_tile:.0f} multiplications a score "
        f"({' → '.join(str(count) for count in counts)} UTCHMMA)"
    )
    return [Finding(Rule.TENSOR_WORK, Severity.WARNING, text, now / new_tile - before / old_tile)]


def _multiplications(build: Build) -> int | None:
    """M·N·K over all MMAs of a build with one kernel, where they are UTCHMMA alone."""
    if len(build.kernels) != 1 or build.kernels[0].path != "UTCHMMA":
        return None
    sizes = [(_mma_size(shape), count) for shape, count in build.kernels[0].mma_shapes.items()]
    return sum(size * count for size, count in sizes) if all(size for size, _ in sizes) else None


def over_budget(budgets: Budgets, build: Build, entry: Entry) -> list[Finding]:
    """Where a build breaks the budget of its own manifest."""
    registers = max((kernel.registers for kernel in build.kernels), default=0)
    spills = sum(kernel.spill_bytes for kernel in build.kernels)
    findings = []
    for name, value, limit in (
        ("registers", registers, budgets.registers),
        ("spill bytes", spills, budgets.spill_bytes),
        ("bytes of shared memory", entry.smem, budgets.smem_bytes),
    ):
        if limit is not None and value > limit:
            text = f"{value} {name}, over the budget of {limit}"
            findings.append(Finding(Rule.BUDGET, Severity.REGRESSION, text, value - limit))
    if budgets.ctas_per_sm is not None and entry.ctas_per_sm is not None and entry.ctas_per_sm < budgets.ctas_per_sm:
        text = f"{entry.ctas_per_sm} CTAs per SM, under the budget of {budgets.ctas_per_sm}"
        findings.append(Finding(Rule.BUDGET, Severity.REGRESSION, text, budgets.ctas_per_sm - entry.ctas_per_sm))
    return findings


def _without_lines(message: str) -> str:
    """A ptxas message without its line numbers, which move with every edit above them."""
    return re.sub(r"\(\d+\)|\blines? \d+", "", message)


def _local_memory(kernel: KernelFacts) -> int:
    return kernel.main_loop.get("LDL", 0) + kernel.main_loop.get("STL", 0)


def _largest_mma(kernel: KernelFacts) -> int:
    """M·N·K of the largest MMA; 0 where no shape is known."""
    return max(map(_mma_size, kernel.mma_shapes), default=0)


def _mma_size(shape: str) -> int:
    """M·N·K of `UTCHMMA m64n128k16`; 0 where it is not known."""
    numbers = "".join(c if c.isdigit() else " " for c in shape.split()[-1]).split()
    return math.prod(map(int, numbers)) if len(numbers) == 3 else 0


def _shapes(kernel: KernelFacts) -> str:
    return ", ".join(kernel.mma_shapes) or "none"


# ── time ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def judge_time(
    time: Interval, instances: Sequence[float] | None, thresholds: Thresholds, comparisons: int = 1
) -> Verdict:
    """SLOWER when the estimate is at least `time_cut`, the interval's near end over half of it, and the instances agree in
    sign; FASTER mirrors it; SAME when the estimate is inside ±`time_cut` and the interval inside ±`time_detect`; else
    INCONCLUSIVE. `time` is a log ratio: above 0 is slower.

    The sign test shares the gate's `false_alarms` among its `comparisons`, with two looks at each: with one comparison all of
    eight to eleven instances must agree, or 17 of twenty. `instances` is None where they are not paired, and signs say nothing.
    """
    cut, detect = thresholds.time_cut, thresholds.time_detect
    if time.value >= cut and time.low > cut / 2 and _agree(instances, 1, thresholds, comparisons):
        return Verdict.SLOWER
    if time.value <= -cut and time.high < -cut / 2 and _agree(instances, -1, thresholds, comparisons):
        return Verdict.FASTER
    if abs(time.value) < cut and max(-time.low, time.high) < detect:
        return Verdict.SAME
    return Verdict.INCONCLUSIVE


def _agree(instances: Sequence[float] | None, sign: int, thresholds: Thresholds, comparisons: int) -> bool:
    """Whether so many instances have `sign` by chance alone no more often than the budget allows (the exact sign test)."""
    if instances is None:
        return True
    count = len(instances)
    agreeing = sum(value * sign > 0 for value in instances)
    by_chance: float = sum(math.comb(count, k) for k in range(agreeing, count + 1)) / 2**count
    return by_chance <= thresholds.false_alarms / (2 * comparisons)


def instances_needed(comparisons: int, thresholds: Thresholds, least: int) -> int:
    """How many instances a measurement needs for all of them agreeing in sign to satisfy `judge_time`; `least` at least."""
    return max(least, math.ceil(math.log2(2 * comparisons / thresholds.false_alarms)))


def judge_pair(
    timing: Timing, role: str, thresholds: Thresholds, comparisons: int = 1, allowed: float = 0.0
) -> Verdict:
    """A timing's verdict against its partner in `role`; UNMEASURED without one, INCOMPARABLE when the timing is void.

    `allowed` is a slowdown that is not counted (0.02: two per cent).
    """
    pair = timing.pair(role)
    if pair is None:
        return Verdict.UNMEASURED
    if timing.void:
        return Verdict.INCOMPARABLE
    shift = math.log1p(allowed)
    time = Interval(value=pair.time.value - shift, low=pair.time.low - shift, high=pair.time.high - shift)
    return judge_time(time, [value - shift for value in pair.instances], thresholds, comparisons)


CLOCK_GAP = 0.02
"""A share: sides whose SM clocks differ by more were not timed alike."""


def voided(timing: Timing) -> Timing:
    """A timing as it was measured, void where a partner's clock was another. The control's tells nothing: it is another kernel.

    At the power cap a side that draws more runs slower: a cause, not a doubt.
    """
    if timing.regime != "burst":
        return timing
    apart = [pair for pair in timing.pairs if (pair.clock_gap or 0.0) > CLOCK_GAP and pair.role != "control"]
    why = {f"the SM clock differs by {pair.clock_gap:.1%} from the {pair.role}'s ({pair.version})" for pair in apart}
    return replace(timing, void=sorted({*timing.void, *why}))


def stored_change(old: Timing, new: Timing, thresholds: Thresholds) -> tuple[Verdict, Interval | None, str]:
    """Two stored timings compared through a partner that both were interleaved with: the control, or a parent that did not
    change, whichever sees finer. Returns the verdict, the change in log time with its rank-sum interval, and the partner.

    INCOMPARABLE across machine classes, protocols, workloads, or without a common partner. `diff --rerun` is the better
    evidence: it interleaves the two themselves.
    """
    if (
        old.void
        or new.void
        or any(getattr(old, f) != getattr(new, f) for f in ("machine", "protocol", "regime", "shape"))
    ):
        return Verdict.INCOMPARABLE, None, ""
    partners = {(pair.role, pair.build): pair for pair in old.pairs}
    changes = []
    for pair in new.pairs:
        if before := partners.get((pair.role, pair.build)):
            change = shift(before.instances, pair.instances)
            changes.append((change.high - change.low, pair.version, change))
    if not changes:
        return Verdict.INCOMPARABLE, None, ""
    _, partner, change = min(changes, key=lambda found: found[0])
    interval = Interval(value=change.value, low=change.low, high=change.high)
    return judge_time(interval, None, thresholds), interval, partner


def less_accurate(old: Sequence[Check], new: Sequence[Check], thresholds: Thresholds) -> list[Finding]:
    """The distributions on which the smallest error of `new` over its seeds exceeds the largest of `old` by the factor."""
    return _larger_errors(_errors(old), _errors(new), thresholds)


def less_accurate_emulated(old: Entry, new: Entry, thresholds: Thresholds) -> list[Finding]:
    """The same from what the emulator found, on the distributions and workloads that both have."""
    before, now = ({place: [error] for place, error in e.emulated_errors.items()} for e in (old, new))
    return _larger_errors(before, now, thresholds)


def _errors(checks: Sequence[Check]) -> dict[str, list[float]]:
    """By distribution, an error a seed."""
    errors: dict[str, list[float]] = {}
    for check in checks:
        if check.relative_l2 is not None:
            errors.setdefault(check.distribution, []).append(check.relative_l2)
    return errors


def _larger_errors(
    old: Mapping[str, Sequence[float]], new: Mapping[str, Sequence[float]], thresholds: Thresholds
) -> list[Finding]:
    worse = []
    for place, now in new.items():
        before = old.get(place, [])
        if before and min(now) > max(thresholds.accuracy_factor * max(before), thresholds.accuracy_floor):
            text = f"{place}: relative L2 error {max(before):.2e} → {min(now):.2e}"
            factor = min(now) / (max(before) or thresholds.accuracy_floor or min(now))
            worse.append(Finding(Rule.ACCURACY, Severity.REGRESSION, text, factor))
    return worse


# ── causes ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def attribute(total: Verdict, source: Verdict | None, toolchain: Verdict | None, *, machine_moved: bool) -> Cause:
    """To what a slowdown is due. `total`: new source with the new toolchain against old source with the old one, interleaved;
    `source`: both sources with the old toolchain; `toolchain`: the old source with both toolchains; None where not tried.

    One toolchain built both sides where no second one was given: then what got slower is the source. Where nothing is slower
    side by side, a slowdown that stored figures show is the machine's if the control moved with it.
    """
    if total is not Verdict.SLOWER:
        return Cause.MACHINE if machine_moved else Cause.NOT_REPRODUCED
    if toolchain is None:
        return Cause.SOURCE
    guilty = (source is Verdict.SLOWER, toolchain is Verdict.SLOWER)
    return {
        (True, False): Cause.SOURCE,
        (False, True): Cause.TOOLCHAIN,
        (True, True): Cause.BOTH,
        (False, False): Cause.TOGETHER,
    }[guilty]


# ── accepted regressions ─────────────────────────────────────────────────────────────────────────────────────────────

TIME = "time"
METRICS = (TIME, *(rule.name.lower() for rule in Rule))
"""What an accepted regression may be of: time (a share: 0.02 is 2 %), accuracy (a factor), or a static rule (its unit)."""


class Acceptance(msgspec.Struct, frozen=True):
    """How an entry of `accept` stands to a regression: it covers it, or `text` says why not."""

    covers: bool
    text: str


def acceptance(
    entries: Sequence[Accepted],
    metric: str,
    amount: float,
    builds: tuple[str, str],
    same_code: Callable[[str | None, str | None], bool],
    today: datetime.date,
    over: Callable[[float], bool] | None = None,
) -> Acceptance | None:
    """The newest entry about this regression, between builds of the code that it names; None without one.

    `over` says whether the regression is more than so much, where that takes more than a comparison of `amount` with it.
    """
    old, new = builds
    for entry in reversed(entries):
        if entry.metric != metric or not (same_code(entry.from_, old) and same_code(entry.to, new)):
            continue
        if today > entry.until:
            return Acceptance(False, f"{metric} was accepted until {entry.until}, which has passed")
        if over(entry.max) if over else amount > entry.max:
            return Acceptance(False, f"{metric}: {amount:.4g} is over the accepted {entry.max:.4g}")
        return Acceptance(True, f"{metric} accepted until {entry.until}: {entry.reason}")
    return None


# ── reported ─────────────────────────────────────────────────────────────────────────────────────────────────────────


class ReportedVerdict(msgspec.Struct, frozen=True):
    """A published figure against its published parent. `change` is the relative change in throughput (−0.25: a quarter less).

    Time decides: `verdict` is by how the time of a launch changed. `less_accurate` and `accepted` are the publisher's words.
    """

    verdict: Verdict
    change: float | None
    less_accurate: bool
    accepted: str | None

    @property
    def regression(self) -> bool:
        return self.verdict is Verdict.SLOWER


def compare_reported(row: Reported, parent: Reported | None, thresholds: Thresholds) -> ReportedVerdict:
    """Throughput is printed with more digits than time, and the work is the same, so its inverse stands for time."""
    less_accurate = row.accuracy is not None
    if parent is None or row.tflops is None or parent.tflops is None:
        return ReportedVerdict(Verdict.INCOMPARABLE, None, less_accurate, row.accepted)
    slowdown = parent.tflops / row.tflops - 1
    verdict = Verdict.SAME
    if slowdown > thresholds.reported_same:
        verdict = Verdict.SLOWER
    elif slowdown < -thresholds.reported_same:
        verdict = Verdict.FASTER
    return ReportedVerdict(verdict, row.tflops / parent.tflops - 1, less_accurate, row.accepted)
