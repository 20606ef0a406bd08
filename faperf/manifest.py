"""YAML → `Version` and `Workload`. Strict: an error names the file, the line, the key and the nearest known key."""

import datetime
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Annotated, Literal, Protocol, TypeVar

import msgspec

from faperf.errors import ManifestError, SelectionError
from faperf.project import Project

SCHEMA = 1
WORKLOADS = "workloads.yaml"

Positive = Annotated[int, msgspec.Meta(gt=0)]
Identifier = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
Expression = int | str
T = TypeVar("T")

FLAGS = [
    r"-D[A-Za-z_]\w*(=[\w.+-]*)?",
    r"--?maxrregcount=\d+",
    r"--?use_fast_math",
    r"--?(fmad|ftz|prec-div|prec-sqrt)=(true|false)",
    r"--?std=c\+\+(17|20)",
    r"--?extra-device-vectorization",
    r"-Xptxas=-O[0-3]",
    r"-Xptxas=-d(lcm|scm)=(ca|cg|cs|cv|lu|wb|wt)",
    r"-Xptxas=--(allow-expensive-optimizations|disable-optimizer-constants|warn-on-spills)(=(true|false))?",
    r"-Xptxas=--register-usage-level=\d+",
]
"""The flags that a manifest may hand to nvcc, as whole-string patterns. Everything else is refused."""


class _Strict(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    pass


class OperationUse(_Strict, frozen=True, kw_only=True):
    name: str
    layout: str


class Tile(_Strict, frozen=True, kw_only=True):
    """Rows of Q (`m`) and of K and V (`n`) that one CTA handles at a time."""

    m: Positive
    n: Positive


class Argument(_Strict, frozen=True, kw_only=True):
    """One kernel argument: a `tensor` pointer, a `tensor_map` passed by value, or a `scalar` with its C type."""

    tensor: str | None = None
    tensor_map: str | None = None
    box: list[Positive] | None = None
    swizzle: int | None = None
    scalar: Expression | float | None = None
    type: str | None = None

    def __post_init__(self) -> None:
        if sum(kind is not None for kind in (self.tensor, self.tensor_map, self.scalar)) != 1:
            raise ValueError("an argument is one of {tensor: …}, {tensor_map: …} or {scalar: …}")
        if (self.tensor_map is not None) != (self.box is not None):
            raise ValueError("box goes with tensor_map, and a tensor_map needs one")
        if self.swizzle is not None and (self.tensor_map is None or self.swizzle not in (0, 32, 64, 128)):
            raise ValueError("swizzle goes with tensor_map and is 0, 32, 64 or 128 bytes")
        if (self.scalar is not None) != (self.type is not None):
            raise ValueError(f"a scalar needs a type ({', '.join(SCALAR_BYTES)}), and only a scalar has one")
        if self.type is not None and self.type not in SCALAR_BYTES:
            raise ValueError(f"type '{self.type}' is not one of {', '.join(SCALAR_BYTES)}")


SCALAR_BYTES = {"i32": 4, "u32": 4, "i64": 8, "u64": 8, "f32": 4, "f64": 8}


class Launch(_Strict, frozen=True, kw_only=True):
    entry: str
    grid: Annotated[list[Expression], msgspec.Meta(min_length=1, max_length=3)]
    block: Annotated[list[Expression], msgspec.Meta(min_length=1, max_length=3)]
    cluster: Annotated[list[Expression], msgspec.Meta(min_length=1, max_length=3)] = []
    smem: Expression = 0
    args: list[Argument]


class Tolerance(_Strict, frozen=True, kw_only=True):
    """How wrong an output may be: `ratio_to_fp16` times the error of a plain fp16 implementation, or `bound`."""

    ratio_to_fp16: float | None = None
    bound: float | None = None


class Budgets(_Strict, frozen=True, kw_only=True):
    registers: int | None = None
    spill_bytes: int | None = None
    smem_bytes: int | None = None
    ctas_per_sm: int | None = None


RuleName = Literal[
    "spills",
    "loop_local_memory",
    "cap_reached",
    "occupancy",
    "tensor_path",
    "mma_shape",
    "ptxas",
    "registers",
    "uniformity",
    "divergence",
    "smem",
    "tensor_work",
    "budget",
    "accuracy",
]
"""The rules of `judge`, by the names of its enum."""


class Notes(_Strict, frozen=True, kw_only=True):
    hypothesis: str = ""
    change: str = ""
    lesson: str = ""


class Accepted(_Strict, frozen=True, kw_only=True, rename={"from_": "from"}):
    """A regression that a reviewer has accepted, from one build key to another, until a date."""

    metric: str
    from_: str
    to: str
    max: float
    reason: str
    until: datetime.date


class Version(_Strict, frozen=True, kw_only=True):
    """One version of a kernel, as its manifest says."""

    schema: int
    id: Identifier
    parent: Identifier | None = None
    title: str
    source: str
    targets: Annotated[list[str], msgspec.Meta(min_length=1)]
    flags: list[str] = []
    operation: OperationUse
    workloads: Annotated[list[str], msgspec.Meta(min_length=1)]
    tile: Tile
    launches: Annotated[list[Launch], msgspec.Meta(min_length=1)]
    tolerance: Tolerance = Tolerance()
    budgets: Budgets = Budgets()
    rules: dict[RuleName, Literal["ignore", "warning", "regression"]] = {}
    timeout_s: Annotated[float, msgspec.Meta(gt=0)] = 5.0
    notes: Notes = Notes()
    accept: list[Accepted] = []


class _Workload(_Strict, frozen=True, kw_only=True):
    operation: str
    shape: dict[str, Positive | Annotated[list[Positive], msgspec.Meta(min_length=1)]]


class _Workloads(_Strict, frozen=True, kw_only=True):
    schema: int
    workloads: dict[Identifier, _Workload]


@dataclass(frozen=True)
class Workload:
    """A named shape of an operation. `lengths[S=512]` is one point of a workload with an axis."""

    name: str
    family: str
    operation: str
    shape: dict[str, int]

    @cached_property
    def digest(self) -> str:
        """Its identity: the operation and the numbers, whatever the name."""
        import hashlib  # OpenSSL takes 3 ms, which a table of records need not wait for

        numbers = ",".join(f"{name}={value}" for name, value in sorted(self.shape.items()))
        return hashlib.sha256(f"{self.operation}:{numbers}".encode()).hexdigest()[:16]


def family_of(workload: str) -> str:
    """`lengths` for `lengths[S=512]`; a workload without an axis is its own family."""
    return workload.partition("[")[0]


@dataclass(frozen=True)
class Manifests:
    """All that `manifests/` says: versions by id in ladder order, workloads by name, and the files that are broken."""

    versions: dict[str, Version]
    workloads: dict[str, Workload]
    broken: list[ManifestError] = field(default_factory=list)

    def workloads_of(self, version: Version) -> list[Workload]:
        """The workloads that a version names, axes expanded. Names that do not exist are `lint`'s to report."""
        return [w for w in self.workloads.values() if w.family in version.workloads or w.name in version.workloads]


class Memory(Protocol):
    """What keeps answers by what they were worked out from, or its digest."""

    def remembered(self, key: str) -> bytes | None: ...
    def remember(self, key: str, answer: bytes) -> None: ...


def load_manifests(project: Project, memory: Memory | None = None) -> Manifests:
    """Every `manifests/*.yaml`. A broken file is kept as an error in `broken`, and so is a `.yml`; the others go on.

    With `memory`, a file is parsed once. What builds, verifies or gates gives none: `.faperf/` may be a stranger's.
    """
    versions: dict[str, Version] = {}
    workloads: dict[str, Workload] = {}
    broken: list[ManifestError] = []
    for path in sorted([*project.manifests.glob("*.yaml"), *project.manifests.glob("*.yml")]):
        where = project.relative(path)
        try:
            if path.suffix == ".yml":
                raise ManifestError("not read: it ends in .yml", where=where, remedy=f"name it {path.stem}.yaml")
            if path.name == WORKLOADS:
                workloads = {w.name: w for w in _expand(decode_yaml(path, where, _Workloads, memory))}
                continue
            version = decode_yaml(path, where, Version, memory)
            _check_version(version, path, where)
            versions[version.id] = version
        except ManifestError as error:
            broken.append(error)
    order = in_ladder_order({name: version.parent for name, version in versions.items()})
    return Manifests({name: versions[name] for name in order}, workloads, broken)


def in_ladder_order(parents: Mapping[str, str | None]) -> list[str]:
    """Versions, given with their parents, by the numbers in their ids (`v9` before `v12`, `v16` before `v16-i16`), but none
    before its parent.
    """
    ordered: list[str] = []
    waiting = sorted(parents, key=ladder_key)
    while waiting:
        name = next((name for name in waiting if parents[name] not in waiting), waiting[0])  # a circle has no first
        waiting.remove(name)
        ordered.append(name)
    return ordered


def ladder_key(version_id: str) -> list[tuple[int, int, str]]:
    """A sort key that compares runs of digits as numbers."""
    parts = re.findall(r"\d+|\D+", version_id)
    return [(0, int(part), "") if part.isdigit() else (1, 0, part) for part in parts]


def check_workloads(wanted: Sequence[str], there: Iterable[str]) -> None:
    """Raises SelectionError for one of `wanted` that is neither a workload that is `there` nor a family of them."""
    known = list(dict.fromkeys(part for name in there for part in (family_of(name), name)))
    for name in wanted:
        if name not in known:
            raise SelectionError(f"no workload '{name}'", remedy=f"there are: {', '.join(known) or 'none'}")


def _expand(file: _Workloads) -> Iterator[Workload]:
    for name, workload in file.workloads.items():
        axes = {key: value for key, value in workload.shape.items() if isinstance(value, list)}
        for point in itertools.product(*axes.values()):
            chosen = dict(zip(axes, point, strict=True))
            label = ",".join(f"{key}={value}" for key, value in chosen.items())
            shape = {key: chosen.get(key, value) for key, value in workload.shape.items()}
            yield Workload(f"{name}[{label}]" if label else name, name, workload.operation, shape)  # type: ignore[arg-type]


def _check_version(version: Version, path: Path, where: str) -> None:
    if version.id != path.stem:
        raise ManifestError(
            f"id '{version.id}' is not the file's stem", where=where, remedy=f"name the file {version.id}.yaml"
        )
    source = PurePosixPath(version.source)
    if source.is_absolute() or ".." in source.parts or not re.fullmatch(r"[\w.+/-]+", version.source):
        raise ManifestError(
            f"source '{version.source}' is not a plain path inside the project", where=where, remedy="kernels/NAME.cu"
        )
    for flag in version.flags:
        if not any(re.fullmatch(pattern, flag) for pattern in FLAGS):
            raise ManifestError(
                f"flag '{flag}' is not on the allow-list",
                where=f"{where}, flags",
                remedy="allowed: -DNAME[=VALUE], -maxrregcount=N, --use_fast_math, --fmad/ftz/prec-div/prec-sqrt=…, "
                "--std=c++17|20, --extra-device-vectorization, -Xptxas=-O…, -dlcm, -dscm, "
                "--register-usage-level, --allow-expensive-optimizations, --disable-optimizer-constants",
            )


def decode_yaml(path: Path, where: str, kind: type[T], memory: Memory | None = None) -> T:
    """A YAML file as the msgspec type `kind`; errors name line and key. Raises ManifestError.

    Where `memory` has its plain values, the text is not parsed again; the types are the same judges of them.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ManifestError(f"cannot be read: {error}", where=where) from error
    key = f"{kind.__name__}\n{text}"
    if memory and (known := memory.remembered(key)) is not None:
        with suppress(msgspec.DecodeError):
            return msgspec.json.decode(known, type=kind)
    from faperf.strict import parse  # for who has not read it yet

    value, plain = parse(text, where, kind, SCHEMA)
    if memory:
        memory.remember(key, msgspec.json.encode(plain))
    return value
