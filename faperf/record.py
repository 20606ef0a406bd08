"""The record kinds, as they stand in history: frozen, one JSON object a line, with a schema integer in each.

Schema history
  1  2026-11  first: `build`, `check`, `timing`, `run`, `reported`; `calibration`, `external`, `counters` and `peer` came to it

A field that is added gets a default; a field that is renamed or changes meaning raises SCHEMA and gets an upgrade in
UPGRADES, so that old lines stay readable. A line of a newer schema is refused with "upgrade faperf".
"""

import datetime
import enum
from collections.abc import Callable
from typing import Any

import msgspec

from faperf.errors import HistoryError

SCHEMA = 1
UPGRADES: dict[int, Callable[[dict[str, Any]], dict[str, Any]]] = {}
"""From each old schema to the next one."""


Place = tuple[str, str]
"""(version, target)."""


class _Frozen(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    pass


class Toolchain(_Frozen, frozen=True, kw_only=True):
    """`nvcc` and `host` as versions ("13.0.88", "g++ 12.2.0"); `build` is NVIDIA's own build string."""

    nvcc: str
    build: str
    host: str


class KernelFacts(_Frozen, frozen=True, kw_only=True):
    """What a cubin and ptxas say of one kernel. Registers are a thread's, memory is in bytes.

    `opcodes` counts SASS opcodes by loop depth: `{"HMMA": [0, 128]}` has 128 at depth 1. `main_loop` counts those of the
    outermost loop that holds the most tensor-core work (the most instructions where there is none), inner loops included.
    """

    entry: str
    registers: int
    register_cap: int
    max_threads: int | None = None
    spill_stores: int = 0
    spill_loads: int = 0
    stack: int = 0
    static_smem: int = 0
    barriers: int = 0
    instructions: int = 0
    opcodes: dict[str, list[int]] = {}
    main_loop: dict[str, int] = {}
    mma_shapes: dict[str, int] = {}
    path: str = ""
    tmem_columns: int | None = None
    parameter_bytes: list[int] = []

    @property
    def spill_bytes(self) -> int:
        return self.spill_stores + self.spill_loads


class Build(_Frozen, frozen=True, kw_only=True, tag="build", tag_field="kind"):
    """Once per build key. Has no time in it: the same build key gives the same line on any machine."""

    schema: int
    key: str
    version: str
    target: str
    source: str
    flags: list[str] = []
    toolchain: Toolchain
    kernels: list[KernelFacts]
    code: str
    messages: list[str] = []

    def kernel(self, entry: str) -> KernelFacts | None:
        return next((kernel for kernel in self.kernels if kernel.entry == entry), None)


class EmulatorVerdict(enum.StrEnum):
    """Each is what the emulator's words begin with, as they stand in an entry."""

    RIGHT = "right"
    WRONG = "WRONG"
    REFUSED = "not emulated"


class Emulated(msgspec.Struct, frozen=True):
    """What the emulator says of a version, and `why` it is wrong or was not emulated. `str` of it is what stands in an entry."""

    verdict: EmulatorVerdict
    why: str = ""

    @classmethod
    def read(cls, words: str) -> "Emulated":
        """From an entry's words; what none of the verdicts begins is wrong."""
        for verdict in EmulatorVerdict:
            if words.startswith(verdict):
                return cls(verdict, words.removeprefix(verdict).lstrip(": "))
        return cls(EmulatorVerdict.WRONG, words)

    def __str__(self) -> str:
        between = ": " if self.verdict is EmulatorVerdict.REFUSED else " "
        return f"{self.verdict}{between}{self.why}" if self.why else self.verdict


class Entry(_Frozen, frozen=True, kw_only=True):
    """Where one version × target stood in a run: at a build key, or not built and why.

    Occupancy is the run's, not the build's: it depends on the block and the dynamic shared memory of the manifest. It is
    that of the launch with the fewest CTAs per SM. `launches` maps each workload to the digest of its resolved launch.
    `measured` maps a workload to the id of the run that verified and timed this build and launch: this one, or an earlier
    one whose figures are carried forward. `emulated` is what the emulator says where no GPU ran it, in a record as words.
    `emulated_errors` are the relative L2 errors that it found, by distribution and workload.
    """

    version: str
    target: str
    parent: str | None = None
    build: str | None = None
    threads: int = 0
    smem: int = 0
    ctas_per_sm: int | None = None
    limiter: str | None = None
    launches: dict[str, str] = {}
    measured: dict[str, str] = {}
    emulated_words: str | None = msgspec.field(default=None, name="emulated")
    emulated_errors: dict[str, float] = {}
    error: str | None = None

    @property
    def place(self) -> Place:
        return self.version, self.target

    @property
    def emulated(self) -> Emulated | None:
        return None if self.emulated_words is None else Emulated.read(self.emulated_words)


class Run(_Frozen, frozen=True, kw_only=True, tag="run", tag_field="kind"):
    """What ties records to a commit. `commit` is None outside git; `dirty` names the build inputs that differ from it.

    `partial`: some version × target of the tree has no entry, because it was not asked for.
    """

    schema: int
    id: str
    commit: str | None
    dirty: list[str] = []
    when: str
    faperf: str
    machine: str
    unmeasured: str | None = None
    partial: bool = False
    entries: list[Entry]

    def entry(self, version: str, target: str) -> Entry | None:
        return next((e for e in self.entries if e.version == version and e.target == target), None)


class Check(_Frozen, frozen=True, kw_only=True, tag="check", tag_field="kind"):
    """One verification of a build and launch on one distribution, against float64.

    `fault` classifies a launch that gave no output (illegal address, hang, …); `failure` says in words what is wrong.
    `schedule` is the emulator's, and so are `warnings`: what is often harmless and never makes a check fail.
    """

    schema: int
    build: str
    launch: str
    workload: str
    shape: dict[str, int]
    operation: str
    operation_version: int
    by: str
    distribution: str
    seed: int
    relative_l2: float | None = None
    max_abs: float | None = None
    baseline_l2: float | None = None
    bound: float | None = None
    fault: str | None = None
    failure: str | None = None
    schedule: str | None = None
    warnings: list[str] = []

    @property
    def ok(self) -> bool:
        return self.failure is None


class Interval(_Frozen, frozen=True, kw_only=True):
    """A Hodges–Lehmann estimate with its signed-rank interval, in the unit of the field that holds it."""

    value: float
    low: float
    high: float


class Pair(_Frozen, frozen=True, kw_only=True):
    """How a build stood to a partner interleaved with it: log(time / partner's time), above 0 is slower.

    `role` is parent, baseline or control; `instances` has one value for each fresh load and placement.
    """

    role: str
    build: str
    version: str
    time: Interval
    cycles: Interval | None = None
    instances: list[float]
    clock_gap: float | None = None


class _OnSilicon(_Frozen, frozen=True, kw_only=True):
    """What was measured: a build and launch on a workload; and where: a machine's class, its GPU's name, card and driver."""

    schema: int
    build: str
    launch: str
    workload: str
    shape: dict[str, int]
    machine: str
    gpu: str
    card: str
    driver: str


class Timing(_OnSilicon, frozen=True, kw_only=True, tag="timing", tag_field="kind"):
    """Measured figures of a build and launch on a workload, by silicon.

    `ms` a launch, L2 flushed; `tflops` counts the operation's FLOPs; `flops_per_clock_sm` by the SM clock as stamped around
    the blocks; `share_of_peak` of the chip's dense fp16 peak.
    `peak_bytes` is what a peer allocates at most. `events` are the driver's clock event reasons in words.
    """

    regime: str
    protocol: int
    ms: Interval
    tflops: float
    gib_s: float
    clock_mhz: float | None = None
    flops_per_clock_sm: float | None = None
    share_of_peak: float | None = None
    power_w: float | None = None
    peak_bytes: int | None = None
    launches: int
    events: list[str] = []
    void: list[str] = []
    pairs: list[Pair] = []

    def pair(self, role: str) -> Pair | None:
        return next((pair for pair in self.pairs if pair.role == role), None)


class Hot(_Frozen, frozen=True, kw_only=True):
    """An instruction at which warps were found waiting: bytes into its kernel, samples, and the reason of most of them."""

    offset: int
    samples: int
    reason: str


class Counters(_OnSilicon, frozen=True, kw_only=True, tag="counters", tag_field="kind"):
    """What the hardware counted in one launch of a build on a workload, the clock not locked. Shares are of 1.

    `tensor_active` is of the SM cycles that passed (`sm_cycles`, on `sms` SMs); `path_flops` maps a tensor path to the FLOPs that
    it did; `stalls` a reason to the warps that waited for it, per issued instruction; `occupancy` is achieved, of the SM's warps
    while it was busy; `l2`, `dram` and `shared_pipe` are shares of those units' throughput; `local_bytes` went to and came from
    local memory. `hot` are the instructions of `entry` at which most warps waited, the most first.
    """

    ncu: str
    ms: float
    sms: int
    sm_cycles: float
    tensor_active: float | None = None
    path_flops: dict[str, float] = {}
    stalls: dict[str, float] = {}
    occupancy: float | None = None
    l2: float | None = None
    dram: float | None = None
    shared_pipe: float | None = None
    local_bytes: float | None = None
    entry: str = ""
    hot: list[Hot] = []


class PeerResult(_Frozen, frozen=True, kw_only=True, tag="peer", tag_field="kind"):
    """Another implementation on a workload, or ours among them (`name` is then `ours`). `failure` says why it was not timed.

    `relative_l2` is by distribution. `timing` has the pair "ours"; its `build` names the libraries. `tensor_active` and
    `corrected_there`, the clock-corrected MFU, are of one counted launch.
    """

    schema: int
    id: str
    when: str
    commit: str | None
    machine: str
    name: str
    ours: str
    target: str
    workload: str
    shape: dict[str, int]
    failure: str | None = None
    relative_l2: dict[str, float] = {}
    timing: Timing | None = None
    tensor_active: float | None = None
    corrected_there: float | None = None


class Calibration(_Frozen, frozen=True, kw_only=True, tag="calibration", tag_field="kind"):
    """Gates of a build against itself, of one regime: what is called slower or faster here is a false alarm.

    `instances` a look and `budget_s` of GPU time for it; `second_looks` gates took another. `load_luck` is the standard
    deviation of an instance, `estimate_sd` that of a look's estimate, both log ratios and from the true value, 0. `detects` is
    the smallest slowdown that the budget catches with 99 % power (None: none up to 5 %), `needed_s` the budget that catches
    `time_detect` so surely (None: none up to 10 s).
    """

    schema: int
    id: str
    when: str
    build: str
    launch: str
    version: str
    target: str
    workload: str
    shape: dict[str, int]
    machine: str
    gpu: str
    card: str
    driver: str
    regime: str
    protocol: int
    budget_s: float
    instances: int
    gates: int
    false_alarms: int = 0
    inconclusive: int = 0
    void: int = 0
    second_looks: int = 0
    load_luck: float
    estimate_sd: float
    time_detect: float
    detects: float | None = None
    needed_s: float | None = None


class External(_Frozen, frozen=True, kw_only=True, tag="external", tag_field="kind"):
    """What another tool measured of a version: one figure, by that tool's protocol, which is not ours.

    `id` is the digest of its file, `commit` HEAD when that was imported. `ms` is a launch on its own (nvbench's cold GPU time),
    `batch_ms` one of many back to back, `noise` the relative standard deviation of `samples`, `clock_mhz` the SMs' mean clock.
    """

    schema: int
    id: str
    when: str
    commit: str | None
    tool: str
    version: str
    benchmark: str
    axes: dict[str, str] = {}
    gpu: str
    ms: float
    batch_ms: float | None = None
    noise: float | None = None
    samples: int = 0
    clock_mhz: float | None = None


PROTOCOL_VERSION = 2
"""Part of every timing: figures of different protocols do not compare.

  1  2026-11  a block's figure is the median of its launches
  2  2026-11  it is the mean of the middle half, finer than the step in which events count
"""


class Protocol(_Frozen, frozen=True, kw_only=True):
    """How to measure. `budget_s` is GPU time for one version with its partners, flushing included."""

    instances: int = 10
    quads: int = 4
    budget_s: float = 2.0
    confidence: float = 0.99
    warm_window_s: float = 0.05
    warm_tolerance: float = 0.01
    most_warm_s: float = 3.0


class Reported(_Frozen, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A figure that somebody else published. Never mixed with measured ones; a row's own figures, in its own words.

    `ms` a launch, `gib_s` in GiB/s, `derived` says how a figure was worked out where it was not printed. `verdict` and
    `cause` are the publisher's.
    """

    version: str
    parent: str | None
    change: str
    tflops: float | None = None
    ms: float | None = None
    gib_s: float | None = None
    derived: str | None = None
    registers: int | None = None
    spills: str | None = None
    smem_kib: int | None = None
    accuracy: str | None = None
    accepted: str | None = None
    verdict: str | None = None
    cause: str | None = None


class ReportedLadder(_Frozen, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A file of `history/reported/`: one publication, its workload, and what it leaves unsaid."""

    schema: int
    title: str
    url: str
    published: datetime.date
    gpu: str
    target: str
    operation: str
    layout: str
    shape: dict[str, int]
    workload_inferred: str
    unknown: list[str]
    rows: list[Reported]


Record = Build | Run | Check | Timing | Counters | PeerResult | Calibration | External
replace = msgspec.structs.replace
_decoder = msgspec.json.Decoder(Record)


def encode(record: Record) -> bytes:
    """One line, newline included."""
    return msgspec.json.encode(record) + b"\n"


def decode(line: bytes) -> Record:
    """A line of history as its record, upgraded to this schema. Raises HistoryError without a place."""
    try:
        record = _decoder.decode(line)
    except (msgspec.DecodeError, RecursionError) as error:
        return _decode_other(line, error)
    return record if record.schema == SCHEMA else _decode_other(line, None)


class Schema(msgspec.Struct):
    """What every schema of every file has."""

    schema: int


def refuse_newer(schema: int, where: str | None = None) -> None:
    """Raises HistoryError where a newer faperf wrote it."""
    if schema > SCHEMA:
        raise HistoryError(f"schema {schema}; this faperf reads up to {SCHEMA}", where=where, remedy="upgrade faperf")


def _decode_other(line: bytes, error: Exception | None) -> Record:
    """The slow path: an old schema, a newer one, or damage."""
    try:
        content = msgspec.json.decode(line)
        schema = content["schema"]
    except (msgspec.DecodeError, KeyError, TypeError, RecursionError):
        raise HistoryError(f"not a record: {error}", remedy="restore the line from git, or delete it") from error
    if isinstance(schema, int):
        refuse_newer(schema)
    try:
        while isinstance(schema, int) and schema in UPGRADES:
            content = UPGRADES[schema](content)
            schema = content["schema"]
        upgraded: Record = msgspec.convert(content, Record)
    except (msgspec.ValidationError, LookupError, TypeError, ValueError) as invalid:
        raise HistoryError(f"not a record: {invalid}", remedy="restore the line from git, or delete it") from invalid
    if upgraded.schema != SCHEMA:
        raise HistoryError(
            f"not a record: there was no schema {schema}", remedy="restore the line from git, or delete it"
        )
    return upgraded
