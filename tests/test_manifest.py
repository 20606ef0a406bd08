"""Manifests: strict decoding of bad files, and what a good one becomes."""

from __future__ import annotations

import datetime
import shutil
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from faperf.errors import ManifestError
from faperf.manifest import (
    FLAGS,
    Argument,
    Manifests,
    Notes,
    OperationUse,
    Tile,
    Version,
    Workload,
    in_ladder_order,
    ladder_key,
    load_manifests,
)
from tests.conftest import MANIFEST, UserProject

BAD = Path(__file__).parent / "data" / "bad_manifests"

# file → line (None: the file as a whole), words that the message must have
EXPECTED: dict[str, tuple[int | None, list[str]]] = {
    # keys
    "unknown-top": (3, ["unknown key 'titel'", "did you mean 'title'?", "known here: schema, id, parent"]),
    "unknown-nested": (13, ["unknown key 'launches[0].blok'", "did you mean 'block'?", "entry, grid, block, cluster"]),
    "unknown-argument": (16, ["unknown key 'launches[0].args[1].tensr'", "did you mean 'tensor'?", "tensor_map, box"]),
    "unknown-several": (
        6,
        [
            "line 6: unknown key 'flag' (did you mean 'flags'?)",
            "line 9: unknown key 'tile.k'",
            "line 12: unknown key 'launches[0].gird' (did you mean 'grid'?)",
        ],
    ),
    "unknown-far": (4, ["unknown key 'quux'", "known here: schema, id"]),
    "merge-key": (4, ["unknown key 'quux'"]),
    "list-as-key": (1, ["a key must be a word"]),
    "duplicate": (6, ["key 'targets' is written twice"]),
    "duplicate-nested": (9, ["key 'm' is written twice"]),
    "missing-key": (1, ["missing required field `title`"]),
    "missing-nested": (11, ["launches[0]: ", "missing required field `entry`"]),
    # not the YAML that is wanted
    "not-yaml": (6, ["not valid YAML", "','"]),
    "tabs": (12, ["not valid YAML", "tab"]),
    "alias-bomb": (2, ["aliases (*name) are not read"]),
    "alias-one": (13, ["aliases (*name) are not read"]),
    "empty": (1, ["Expected `object`, got `null`"]),
    "comments-only": (1, ["Expected `object`, got `null`"]),
    "scalar": (1, ["Expected `object`, got `str`"]),
    "list": (1, ["Expected `object`, got `array`"]),
    "two-documents": (18, ["not valid YAML", "another document"]),
    "python-object": (3, ["not valid YAML", "python/object/apply"]),
    "deep-nesting": (1, ["not valid YAML"]),
    "control-character": (None, ["not valid YAML", "control characters"]),
    "not-utf8": (None, ["cannot be read", "utf-8"]),
    "utf16": (None, ["cannot be read", "utf-8"]),
    # values
    "wrong-type": (9, ["tile.n: Expected `int`, got `str`"]),
    "wrong-type-nested": (13, ["launches[0].block[1]: Expected `int | str`, got `float`"]),
    "boolean-grid": (12, ["launches[0].grid[1]: ", "got `bool`"]),
    "four-axes": (13, ["launches[0].block: ", "length <= 3"]),
    "zero-tile": (9, ["tile.m: ", ">= 1"]),
    "no-launches": (10, ["launches: ", "length >= 1"]),
    "no-targets": (5, ["targets: ", "length >= 1"]),
    "null-title": (3, ["title: Expected `str`, got `null`"]),
    "date-title": (3, ["title: Expected `str`, got `date`"]),
    "bad-date": (None, ["not valid YAML", "month must be in 1..12"]),
    "negative-timeout": (18, ["timeout_s: ", "> 0"]),
    "bad-id": (2, ["id: "]),
    "bad-parent": (4, ["parent: "]),
    "other-id": (None, ["id 'v16' is not the file's stem", "name the file v16.yaml"]),
    "source-outside": (None, ["'../secret.cu'", "inside the project"]),
    "source-absolute": (None, ["'/etc/passwd'", "inside the project"]),
    # schemas
    "newer-schema": (None, ["schema 2; this faperf reads 1", "upgrade faperf"]),
    "older-schema": (None, ["schema 0; this faperf reads 1", "write schema: 1"]),
    "text-schema": (1, ["schema: Expected `int`, got `str`"]),
    # arguments
    "two-kinds": (16, ["launches[0].args[1]: an argument is one of {tensor: …}, {tensor_map: …} or {scalar: …}"]),
    "no-kind": (16, ["launches[0].args[1]: an argument is one of"]),
    "box-without-map": (16, ["launches[0].args[1]: box goes with tensor_map"]),
    "map-without-box": (15, ["launches[0].args[0]: ", "a tensor_map needs one"]),
    "bad-swizzle": (15, ["launches[0].args[0]: ", "0, 32, 64 or 128"]),
    "swizzle-without-map": (16, ["launches[0].args[1]: swizzle goes with tensor_map"]),
    "scalar-without-type": (17, ["launches[0].args[2]: a scalar needs a type"]),
    "type-without-scalar": (16, ["launches[0].args[1]: ", "only a scalar has one"]),
    "bad-scalar-type": (17, ["launches[0].args[2]: type 'float' is not one of i32, u32, i64, u64"]),
    # flags
    "flag-include": (None, [", flags: flag '-I/etc' is not on the allow-list", "allowed: -DNAME"]),
    "flag-second": (None, ["flag '-I/' is not on the allow-list"]),
    "flag-include-word": (None, ["flag '-include=/etc/passwd'"]),
    "flag-host": (None, ["flag '-Xcompiler=-fplugin=evil.so'"]),
    "flag-host-long": (None, ["flag '--compiler-options=-fplugin=evil.so'"]),
    "flag-plugin": (None, ["flag '-fplugin=evil.so'"]),
    "flag-output": (None, ["flag '-o x'"]),
    "flag-output-joined": (None, ["flag '-o=/tmp/x'"]),
    "flag-ccbin": (None, ["flag '-ccbin=./evil'"]),
    "flag-options-file": (None, ["flag '--options-file=x'"]),
    "flag-ptxas": (None, ["flag '-Xptxas=-v --def-load-cache=ca'"]),
    "flag-define-space": (None, ["flag '-DX=1 -I/'"]),
    "flag-define-newline": (None, ["flag '-DX=1\n-I/'"]),
    "flag-define-shell": (None, ["flag '-DX=$(id)'"]),
    "flag-define-quote": (None, ["flag '-DX='a''"]),
    "flag-run": (None, ["flag '--run'"]),
    "flag-linker": (None, ["flag '-Xlinker=-rpath=.'"]),
    "flag-dryrun": (None, ["flag '--dryrun'"]),
    "flag-empty": (None, ["flag ''"]),
}

# Every key of design.md's example. `grid` and `scalar` are expressions, `until` a date.
EXAMPLE = """\
schema: 1
id: v16-i16
parent: v16
title: 16-wide readback
source: kernels/v16-i16.cu
targets: [sm_103a]
flags: ["-DBR=128"]                     # an allow-list
operation: {name: attention_forward, layout: BSHD}
workloads: [published]
tile: {m: 128, n: 64}
launches:
  - entry: attention_forward
    grid: ["S / 128", "B * H", 1]
    block: [256, 1, 1]
    cluster: [2]
    smem: "58 * 1024"
    args:
      - {tensor_map: Q, box: [64, 1, 1, 128], swizzle: 128}
      - {tensor: O}
      - {scalar: "S", type: i32}
tolerance: {ratio_to_fp16: 2.0}
budgets: {registers: 128, spill_bytes: 0}
timeout_s: 5
notes: {hypothesis: "h", change: "c", lesson: "l"}
accept:
  - {metric: time, from: aaaa, to: bbbb, max: 0.14, reason: "new path", until: 2027-06-01}
"""


def load_one(project: UserProject, name: str) -> ManifestError:
    """The error of a project whose only version is a bad manifest."""
    shutil.copyfile(BAD / f"{name}.yaml", project.root / "manifests" / f"{name}.yaml")
    manifests = load_manifests(project.project)
    assert not manifests.versions
    assert len(manifests.broken) == 1
    return manifests.broken[0]


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_bad_manifest(name: str, bare: UserProject) -> None:
    line, words = EXPECTED[name]
    error = load_one(bare, name)
    place = f"manifests/{name}.yaml"
    assert error.where is not None
    where = error.where.removesuffix(", flags")
    assert where == (f"{place}:{line}" if line else place)
    assert all(word in str(error) for word in words), str(error)
    assert error.exit_code == 1


def test_every_bad_manifest_is_expected() -> None:
    assert {path.stem for path in BAD.glob("*.yaml")} == set(EXPECTED)


def test_an_alias_bomb_is_refused_at_once(bare: UserProject) -> None:
    started = time.perf_counter()
    load_one(bare, "alias-bomb")
    assert time.perf_counter() - started < 1


def test_no_code_of_a_manifest_runs(bare: UserProject) -> None:
    ran = Path("/tmp/faperf-ran")
    assert not ran.exists()
    load_one(bare, "python-object")
    assert not ran.exists()


def test_a_directory_is_no_manifest(bare: UserProject) -> None:
    (bare.root / "manifests" / "v1.yaml").mkdir()
    bare.version("t1")
    manifests = load_manifests(bare.project)
    assert list(manifests.versions) == ["t1"]
    assert "cannot be read" in str(manifests.broken[0])


@pytest.mark.parametrize(
    "flag",
    [
        "-DBR=128",
        "-DNAME",
        "-DX=",
        "-DX=-1.5e+3",
        "-maxrregcount=128",
        "--maxrregcount=64",
        "--use_fast_math",
        "-use_fast_math",
        "--fmad=false",
        "--ftz=true",
        "--prec-div=false",
        "--prec-sqrt=true",
        "--std=c++17",
        "-std=c++20",
        "--extra-device-vectorization",
        "-Xptxas=-O1",
        "-Xptxas=-dlcm=cg",
        "-Xptxas=-dscm=wt",
        "-Xptxas=--register-usage-level=5",
        "-Xptxas=--allow-expensive-optimizations=true",
        "-Xptxas=--warn-on-spills",
    ],
)
def test_allowed_flag(flag: str, bare: UserProject) -> None:
    bare.version("t1")
    bare.edit("manifests/t1.yaml", "targets:", f"flags: ['{flag}']\ntargets:")
    manifests = load_manifests(bare.project)
    assert not manifests.broken
    assert manifests.versions["t1"].flags == [flag]


def test_no_allowed_flag_names_a_file() -> None:
    assert not [pattern for pattern in FLAGS if "/" in pattern]


# ── good ones ──


def read_example(project: UserProject) -> Version:
    project.write("manifests/v16-i16.yaml", EXAMPLE)
    manifests = load_manifests(project.project)
    assert manifests.broken == []
    return manifests.versions["v16-i16"]


def test_every_key_of_the_example(bare: UserProject) -> None:
    version = read_example(bare)
    assert version.schema == 1
    assert (version.id, version.parent, version.title) == ("v16-i16", "v16", "16-wide readback")
    assert version.source == "kernels/v16-i16.cu"
    assert version.targets == ["sm_103a"]
    assert version.flags == ["-DBR=128"]
    assert version.operation == OperationUse(name="attention_forward", layout="BSHD")
    assert version.workloads == ["published"]
    assert version.tile == Tile(m=128, n=64)
    (launch,) = version.launches
    assert launch.entry == "attention_forward"
    assert launch.grid == ["S / 128", "B * H", 1]
    assert launch.block == [256, 1, 1]
    assert launch.cluster == [2]
    assert launch.smem == "58 * 1024"
    assert launch.args == [
        Argument(tensor_map="Q", box=[64, 1, 1, 128], swizzle=128),
        Argument(tensor="O"),
        Argument(scalar="S", type="i32"),
    ]
    assert (version.tolerance.ratio_to_fp16, version.tolerance.bound) == (2.0, None)
    assert (version.budgets.registers, version.budgets.spill_bytes) == (128, 0)
    assert version.timeout_s == 5
    assert version.notes == Notes(hypothesis="h", change="c", lesson="l")
    (accepted,) = version.accept
    assert (accepted.metric, accepted.from_, accepted.to, accepted.max) == ("time", "aaaa", "bbbb", 0.14)
    assert (accepted.reason, accepted.until) == ("new path", datetime.date(2027, 6, 1))


def test_round_trip(bare: UserProject) -> None:
    version = read_example(bare)
    plain: dict[str, Any] = msgspec.to_builtins(version)
    assert plain["accept"][0]["from"] == "aaaa"
    assert msgspec.convert(plain, Version) == version


def test_what_a_manifest_may_leave_out(bare: UserProject) -> None:
    bare.version("t1")
    version = load_manifests(bare.project).versions["t1"]
    assert (version.parent, version.flags, version.accept) == (None, [], [])
    assert version.launches[0].smem == 0
    assert version.launches[0].cluster == []
    assert version.timeout_s == 5
    assert version.budgets.registers is None


def test_a_byte_order_mark_does_no_harm(bare: UserProject) -> None:
    bare.write("manifests/t1.yaml", "\ufeff" + MANIFEST.format(id="t1", parent="", title="Br 32→64"))
    assert load_manifests(bare.project).versions["t1"].title == "Br 32→64"


def test_what_was_parsed_is_remembered_by_its_text(bare: UserProject) -> None:
    """The plain values are, so the types judge them anew; what is broken is parsed, and told of, each time."""
    bare.write("manifests/v16-i16.yaml", EXAMPLE)
    bare.write("manifests/bad.yaml", "schema: 1\n")
    known: dict[str, bytes] = {}
    memory = SimpleNamespace(remembered=known.get, remember=known.__setitem__)
    fresh = load_manifests(bare.project)
    for _ in range(2):
        again = load_manifests(bare.project, memory)
        assert (again.versions, again.workloads) == (fresh.versions, fresh.workloads)
        assert [str(error) for error in again.broken] == [str(error) for error in fresh.broken]
    (key,) = (key for key in known if "v16-i16" in key)
    known[key] = known[key].replace(b'"schema"', b'"scheme"')
    assert load_manifests(bare.project, memory).versions == fresh.versions
    bare.edit("manifests/v16-i16.yaml", "title: ", "title: another ")
    assert load_manifests(bare.project, memory).versions["v16-i16"].title.startswith("another ")


def test_a_broken_file_does_not_hide_the_others(bare: UserProject) -> None:
    bare.version("t1")
    bare.version("t2", "t1")
    for name in ("empty", "not-utf8", "alias-bomb"):
        shutil.copyfile(BAD / f"{name}.yaml", bare.root / "manifests" / f"{name}.yaml")
    (bare.root / "manifests/t3.yml").write_text(
        (bare.root / "manifests/t1.yaml").read_text().replace("id: t1", "id: t3")
    )
    manifests = load_manifests(bare.project)
    assert list(manifests.versions) == ["t1", "t2"]
    assert str(manifests.broken[-1]) == "manifests/t3.yml: not read: it ends in .yml\n  → name it t3.yaml"
    assert [str(error.where).partition(":")[0] for error in manifests.broken[:-1]] == [
        "manifests/alias-bomb.yaml",
        "manifests/empty.yaml",
        "manifests/not-utf8.yaml",
    ]


def test_broken_workloads_do_not_hide_the_versions(bare: UserProject) -> None:
    bare.version("t1")
    bare.write(
        "manifests/workloads.yaml", "schema: 1\nworkloads:\n  tiny: {operation: attention_forward, shap: {S: 1}}\n"
    )
    manifests = load_manifests(bare.project)
    assert list(manifests.versions) == ["t1"]
    assert manifests.workloads == {}
    assert manifests.broken[0].where == "manifests/workloads.yaml:3"
    assert "unknown key 'workloads.tiny.shap' (did you mean 'shape'?)" in str(manifests.broken[0])


# ── workloads ──


def workloads(project: UserProject, text: str) -> Manifests:
    project.write("manifests/workloads.yaml", "schema: 1\nworkloads:\n" + text)
    manifests = load_manifests(project.project)
    assert manifests.broken == []
    return manifests


def test_an_axis_expands(bare: UserProject) -> None:
    bare.version("t1")
    bare.edit("manifests/t1.yaml", "workloads: [tiny]", "workloads: [lengths]")
    manifests = workloads(
        bare,
        "  one: {operation: attention_forward, shape: {B: 1, H: 2, S: 64, D: 64}}\n"
        "  lengths: {operation: attention_forward, shape: {B: 1, H: 2, S: [512, 2048], D: 128}}\n",
    )
    assert list(manifests.workloads) == ["one", "lengths[S=512]", "lengths[S=2048]"]
    point = manifests.workloads["lengths[S=512]"]
    assert (point.family, point.shape) == ("lengths", {"B": 1, "H": 2, "S": 512, "D": 128})
    chosen = manifests.workloads_of(manifests.versions["t1"])
    assert [workload.name for workload in chosen] == ["lengths[S=512]", "lengths[S=2048]"]


def test_two_axes_multiply(bare: UserProject) -> None:
    manifests = workloads(bare, "  w: {operation: attention_forward, shape: {B: [1, 2], H: 2, S: [64, 128], D: 64}}\n")
    assert list(manifests.workloads) == ["w[B=1,S=64]", "w[B=1,S=128]", "w[B=2,S=64]", "w[B=2,S=128]"]
    assert manifests.workloads["w[B=2,S=64]"].shape == {"B": 2, "H": 2, "S": 64, "D": 64}


def test_one_point_of_an_axis_can_be_named(bare: UserProject) -> None:
    bare.version("t1")
    bare.edit("manifests/t1.yaml", "workloads: [tiny]", 'workloads: ["lengths[S=64]"]')
    manifests = workloads(bare, "  lengths: {operation: attention_forward, shape: {B: 1, H: 2, S: [64, 128], D: 64}}\n")
    assert [w.name for w in manifests.workloads_of(manifests.versions["t1"])] == ["lengths[S=64]"]


@pytest.mark.parametrize("size", ["0", "-1", "1.5", '"64"', "[]", "[64, 0]", "true"])
def test_a_shape_is_of_positive_integers(size: str, bare: UserProject) -> None:
    bare.write(
        "manifests/workloads.yaml",
        f"schema: 1\nworkloads:\n  w: {{operation: attention_forward, shape: {{S: {size}}}}}\n",
    )
    (error,) = load_manifests(bare.project).broken
    assert "workloads[...].shape[...]" in str(error)


def test_workload_digest() -> None:
    shape = {"B": 1, "H": 64, "S": 1024, "D": 128}
    digest = Workload("published", "published", "attention_forward", shape).digest
    assert Workload("other", "family", "attention_forward", shape).digest == digest
    assert Workload("w", "w", "attention_forward", dict(reversed(list(shape.items())))).digest == digest
    assert Workload("w", "w", "attention_backward", shape).digest != digest
    for name in shape:
        assert Workload("w", "w", "attention_forward", shape | {name: 7}).digest != digest
    # B and H swapped is another shape though it holds the same numbers
    assert Workload("w", "w", "attention_forward", shape | {"B": 64, "H": 1}).digest != digest


# ── the order of the ladder ──


def test_ladder_order(bare: UserProject) -> None:
    for name in ("v16-i16", "v9", "v16", "v12", "v16-i8", "v100", "h14", "v17-t64", "v17"):
        bare.version(name)
    order = ["h14", "v9", "v12", "v16", "v16-i8", "v16-i16", "v17", "v17-t64", "v100"]
    manifests = load_manifests(bare.project)
    assert list(manifests.versions) == order
    assert in_ladder_order(dict.fromkeys(sorted(order, key=lambda name: name[::-1]))) == order


@pytest.mark.parametrize(
    ("parents", "order"),
    [
        ({"h14": "v13", "h15": "h14", "v12": None, "v13": "v12", "v14": "v13"}, ["v12", "v13", "h14", "h15", "v14"]),
        ({"a": "gone", "b": None}, ["a", "b"]),
        ({"a": "b", "b": "a", "c": "b"}, ["a", "b", "c"]),  # a circle is for `faperf check` to report
    ],
)
def test_no_version_comes_before_its_parent(parents: dict[str, str | None], order: list[str]) -> None:
    assert in_ladder_order(parents) == order


@pytest.mark.parametrize(
    ("earlier", "later"), [("v9", "v12"), ("v12", "v16"), ("v16", "v16-i16"), ("9", "v1"), ("v1.2", "v1.10")]
)
def test_ladder_key(earlier: str, later: str) -> None:
    assert ladder_key(earlier) < ladder_key(later)
