"""Records as they stand in history: old lines decode for ever, a newer schema says so, damage is named."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest

from faperf import record
from faperf.errors import HistoryError
from faperf.record import (
    Build,
    Calibration,
    Check,
    Counters,
    Emulated,
    EmulatorVerdict,
    Entry,
    External,
    Hot,
    Interval,
    KernelFacts,
    Pair,
    PeerResult,
    Record,
    Run,
    Timing,
    Toolchain,
)

RECORDS = Path(__file__).parent / "data" / "records"

# The committed lines are what releases wrote. Never change one: add a new file when the schema grows.
DECODED: dict[str, Record] = {
    "build-1": Build(
        schema=1,
        key="0123456789abcdef0123",
        version="v16",
        target="sm_103a",
        source="kernels/v16.cu",
        flags=["-DBR=128"],
        toolchain=Toolchain(nvcc="13.0.88", build="cuda_13.0.r13.0/compiler.36424714_0", host="g++ 12.2.0"),
        kernels=[
            KernelFacts(
                entry="attention_forward",
                registers=96,
                register_cap=128,
                max_threads=512,
                spill_stores=4,
                spill_loads=8,
                stack=16,
                static_smem=1024,
                barriers=2,
                instructions=2048,
                opcodes={"UTCHMMA": [0, 8], "LDTM": [1, 16, 32]},
                main_loop={"UTCHMMA": 8, "BSSY": 3},
                mma_shapes={"f16 64x64x16": 8},
                path="UTCHMMA",
                tmem_columns=256,
                parameter_bytes=[128, 128, 128, 8, 4],
            )
        ],
        code="fedcba9876543210",
        messages=["ptxas: setmaxnreg ignored"],
    ),
    "build-1-least": Build(
        schema=1,
        key="k",
        version="t1",
        target="sm_90a",
        source="kernels/t1.cu",
        toolchain=Toolchain(nvcc="13.0.88", build="", host="g++ 12.2.0"),
        kernels=[KernelFacts(entry="copy", registers=8, register_cap=255)],
        code="c",
    ),
    "run-1": Run(
        schema=1,
        id="20261130T024100Zabcdef",
        commit="e0d042f0" * 5,
        dirty=["kernels/v16.cu"],
        when="2026-11-30T02:41:00+00:00",
        faperf="0.1.0",
        machine="nvidia-h200-700w-140gib",
        unmeasured="--no-gpu was given",
        partial=True,
        entries=[
            Entry(
                version="v16",
                target="sm_103a",
                parent="v15",
                build="0123456789abcdef0123",
                threads=512,
                smem=59392,
                ctas_per_sm=1,
                limiter="registers",
                launches={"published": "00112233aabbccdd"},
                measured={"published": "20261129T024100Zabcdef"},
                emulated_words="right",
                emulated_errors={"normal, emulated[S=64]": 0.00026},
            ),
            Entry(version="v17", target="sm_103a", parent="v16", error="does not compile"),
        ],
    ),
    "check-1": Check(
        schema=1,
        build="0123456789abcdef0123",
        launch="00112233aabbccdd",
        workload="published",
        shape={"B": 1, "H": 64, "S": 1024, "D": 128},
        operation="attention_forward",
        operation_version=1,
        by="silicon",
        distribution="normal",
        seed=7,
        relative_l2=0.0004,
        max_abs=0.001,
        baseline_l2=0.0003,
        bound=0.0006,
        fault="illegal address",
        failure="O[0, 3, 5, 7] is nan, should be 0.25",
        schedule="lazy",
        warnings=["k.cu:7"],
    ),
    "timing-1": Timing(
        schema=1,
        build="0123456789abcdef0123",
        launch="00112233aabbccdd",
        workload="published",
        shape={"B": 1, "H": 64, "S": 1024, "D": 128},
        machine="nvidia-h200-700w-140gib",
        gpu="NVIDIA H200",
        card="a1b2c3",
        driver="580.159.04",
        regime="burst",
        protocol=1,
        ms=Interval(value=0.171, low=0.17, high=0.172),
        tflops=201.0,
        gib_s=365.5,
        clock_mhz=1830.0,
        flops_per_clock_sm=832.5,
        share_of_peak=0.2,
        power_w=512.5,
        launches=320,
        events=["power cap"],
        void=["clock gap"],
        pairs=[
            Pair(
                role="parent",
                build="fedcba98765432100123",
                version="v15",
                time=Interval(value=-0.1, low=-0.11, high=-0.09),
                cycles=Interval(value=-0.1, low=-0.12, high=-0.08),
                instances=[-0.1, -0.11],
                clock_gap=0.001,
            )
        ],
    ),
    "calibration-1": Calibration(
        schema=1,
        id="20261130T070000Zabcdef",
        when="2026-11-30T07:00:00+00:00",
        build="0123456789abcdef0123",
        launch="00112233aabbccdd",
        version="v13",
        target="sm_90a",
        workload="published",
        shape={"B": 1, "H": 64, "S": 1024, "D": 128},
        machine="nvidia-h200-700w-140gib",
        gpu="NVIDIA H200",
        card="a1b2c3",
        driver="580.159.04",
        regime="burst",
        protocol=2,
        budget_s=2.0,
        instances=10,
        gates=20,
        false_alarms=1,
        inconclusive=2,
        void=3,
        second_looks=4,
        load_luck=0.0009,
        estimate_sd=0.0003,
        time_detect=0.005,
        detects=0.0038,
        needed_s=1.6,
    ),
    "external-1": External(
        schema=1,
        id="7eafd0e024ac6daf22d1",
        when="2026-11-30T00:00:00+00:00",
        commit="c" * 40,
        tool="nvbench 0.1.0",
        version="v1",
        benchmark="copy_sweep_grid_shape",
        axes={"BlockSize": "64", "NumBlocks": "64"},
        gpu="Quadro GV100",
        ms=6.485689823444072,
        batch_ms=6.4796067226080245,
        noise=0.001177496193520018,
        samples=78,
    ),
    "external-1-clock": External(
        schema=1,
        id="111df4a04ecb37fc25aa",
        when="2026-11-30T00:00:00+00:00",
        commit="c" * 40,
        tool="nvbench 0.1.0 (python-0.3.0)",
        version="v1",
        benchmark="softmax",
        axes={"Rows": "4096", "Columns": "4096"},
        gpu="NVIDIA H200",
        ms=0.07397594796515683,
        batch_ms=0.07288640955151286,
        noise=0.007756302854998502,
        samples=6768,
        clock_mhz=1973.061786855792,
    ),
    "run-1-least": Run(
        schema=1,
        id="20261130T024100Z000000",
        commit=None,
        when="2026-11-30T02:41:00+00:00",
        faperf="0.1.0",
        machine="no-gpu",
        entries=[],
    ),
    # A later release of the same schema may have added fields; this one reads what it knows.
    "run-1-unknown-field": Run(
        schema=1,
        id="20261130T024100Z000000",
        commit=None,
        when="2026-11-30T02:41:00+00:00",
        faperf="0.9.0",
        machine="no-gpu",
        entries=[Entry(version="t1", target="sm_90a")],
    ),
}

# What came to schema 1 later.
TIMED = DECODED["timing-1"]
assert isinstance(TIMED, Timing)
PEER_TIMED = record.replace(TIMED, peak_bytes=16_777_216)
DECODED["timing-1-peer"] = PEER_TIMED
DECODED["counters-1"] = Counters(
    schema=1,
    build="0123456789abcdef0123",
    launch="00112233aabbccdd",
    workload="published",
    shape={"B": 1, "H": 64, "S": 1024, "D": 128},
    machine="nvidia-h200-700w-140gib",
    gpu="NVIDIA H200",
    card="a1b2c3",
    driver="580.159.04",
    ncu="2025.3.1",
    ms=0.109088,
    sms=132,
    sm_cycles=186305.55,
    tensor_active=0.5117,
    path_flops={"HMMA": 34359738368.0},
    stalls={"long_scoreboard": 1.9, "wait": 1.75},
    occupancy=0.1731,
    l2=0.3293,
    dram=0.1114,
    shared_pipe=0.7302,
    local_bytes=4096.0,
    entry="attention_forward",
    hot=[Hot(offset=4096, samples=120, reason="long_scoreboard")],
)
DECODED["peer-1"] = PeerResult(
    schema=1,
    id="20261130T100000Zabcdef",
    when="2026-11-30T10:00:00+00:00",
    commit="e0d042f0e0d042f0e0d042f0e0d042f0e0d042f0",
    machine="nvidia-h200-700w-140gib",
    name="cuDNN",
    ours="v13",
    target="sm_90a",
    workload="published",
    shape={"B": 1, "H": 64, "S": 1024, "D": 128},
    failure="WRONG on large",
    relative_l2={"normal": 0.00028},
    timing=PEER_TIMED,
    tensor_active=0.6187,
    corrected_there=0.618,
)


def line(name: str) -> bytes:
    return (RECORDS / f"{name}.jsonl").read_bytes()


@pytest.mark.parametrize("name", DECODED)
def test_a_committed_line_decodes(name: str) -> None:
    assert record.decode(line(name)) == DECODED[name]


def test_every_committed_line_is_expected() -> None:
    assert {path.stem for path in RECORDS.glob("*.jsonl")} == set(DECODED)


COVERED: dict[str, tuple[type[msgspec.Struct], ...]] = {
    "build-1": (Build, KernelFacts, Toolchain),
    "check-1": (Check,),
    "timing-1-peer": (Timing, Interval, Pair),
    "counters-1": (Counters, Hot),
    "peer-1": (PeerResult,),
    "run-1": (Run, Entry),
    "calibration-1": (Calibration,),
    "external-1-clock": (External,),
}


@pytest.mark.parametrize("name", COVERED)
def test_every_field_of_every_kind_is_in_a_committed_line(name: str) -> None:
    """A new field needs a line that has it, so that the test above covers it."""
    text = line(name).decode()
    lacking = [
        f"{kind.__name__}.{field.name}"
        for kind in COVERED[name]
        for field in msgspec.structs.fields(kind)
        if f'"{field.encode_name}":' not in text
    ]
    assert lacking == []


def test_every_kind_is_covered() -> None:
    assert set(get_args(Record)) <= {kind for kinds in COVERED.values() for kind in kinds}


@pytest.mark.parametrize("name", [name for name in DECODED if "unknown" not in name])
def test_encoding_gives_the_committed_line_again(name: str) -> None:
    """Byte for byte: the same build on two machines must merge without a conflict."""
    assert record.encode(record.decode(line(name))) == line(name)


def test_a_record_is_one_line() -> None:
    run = DECODED["run-1-least"]
    assert isinstance(run, Run)
    run = record.replace(run, entries=[Entry(version="t1", target="x", error="a\nb\r\n\x85\u2028c")])
    encoded = record.encode(run)
    assert encoded.endswith(b"\n")
    assert encoded.splitlines() == [encoded[:-1]]
    assert record.decode(encoded) == run


def test_what_a_record_tells() -> None:
    build, run = DECODED["build-1"], DECODED["run-1"]
    assert isinstance(build, Build)
    assert isinstance(run, Run)
    assert build.kernels[0].spill_bytes == 12
    assert build.kernel("attention_forward") is build.kernels[0]
    assert build.kernel("attention") is None
    assert run.entry("v17", "sm_103a") is run.entries[1]
    assert run.entry("v17", "sm_90a") is None


def test_records_do_not_change() -> None:
    with pytest.raises(AttributeError):
        DECODED["build-1"].schema = 2  # type: ignore[misc]


# ── what is no record of this schema ──


@pytest.mark.parametrize("schema", ["2", "3", "99", "99999999999999999999999"])
@pytest.mark.parametrize("kind", ["run", "build", "timing"])
def test_a_newer_schema(schema: str, kind: str) -> None:
    with pytest.raises(HistoryError) as caught:
        record.decode(f'{{"kind":"{kind}","schema":{schema},"who":"knows"}}'.encode())
    assert caught.value.what == f"schema {schema}; this faperf reads up to 1"
    assert caught.value.remedy == "upgrade faperf"


def test_a_newer_schema_that_looks_the_same_is_refused_too() -> None:
    with pytest.raises(HistoryError, match="upgrade faperf"):
        record.decode(line("run-1").replace(b'"schema":1', b'"schema":2'))


RUN = (RECORDS / "run-1.jsonl").read_bytes()


@pytest.mark.parametrize(
    "damaged",
    [
        RUN[: len(RUN) // 2],
        RUN[:-3],
        b"null",
        b"7",
        b'"text"',
        b"[]",
        b"{}",
        b'{"kind":"run"}',
        b'{"schema":1}',
        b'{"kind":"run","schema":1}',
        b'{"kind":"reported","schema":1}',
        b'{"kind":"run","schema":"1"}',
        b'{"kind":"run","schema":null}',
        b'{"kind":"run","schema":1.5}',
        b'{"kind":"run","schema":1e400}',
        b"\xff\xfe\x00\x01",
        b"\x00" * 64,
        b"<<<<<<< HEAD",
        RUN.replace(b"kernels/v16.cu", b"caf\xe9"),
        RUN.replace(b'"threads":512', b'"threads":"many"'),
        RUN.replace(b'"version":"v16",', b""),
        RUN.replace(b'"entries":[', b'"entries":{'),
        b"[" * 200_000,
        b'{"a":' * 200_000,
    ],
)
def test_damage(damaged: bytes) -> None:
    with pytest.raises(HistoryError) as caught:
        record.decode(damaged)
    assert caught.value.what.startswith("not a record: ")
    assert caught.value.remedy == "restore the line from git, or delete it"


def test_damage_inside_a_record_is_named() -> None:
    with pytest.raises(HistoryError, match=r"Expected `int`, got `str` - at `\$\.entries\[0\]\.threads`"):
        record.decode(RUN.replace(b'"threads":512', b'"threads":"many"'))


# ── upgrades ──


@pytest.fixture
def schema_0(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if a run's `when` had once been its `date`."""

    def upgrade(content: dict[str, Any]) -> dict[str, Any]:
        content = content | {"schema": 1}
        if content["kind"] == "run":
            content["when"] = content.pop("date")
        return content

    monkeypatch.setattr(record, "UPGRADES", {0: upgrade})


@pytest.mark.usefixtures("schema_0")
def test_an_old_line_is_upgraded() -> None:
    old = RUN.replace(b'"schema":1', b'"schema":0').replace(b'"when"', b'"date"')
    assert record.decode(old) == DECODED["run-1"]


@pytest.mark.usefixtures("schema_0")
def test_an_old_line_that_fits_the_new_schema_is_upgraded_too() -> None:
    old = line("build-1").replace(b'"schema":1', b'"schema":0')
    assert record.decode(old) == DECODED["build-1"]


@pytest.mark.usefixtures("schema_0")
def test_lines_of_this_schema_are_not_upgraded() -> None:
    assert record.decode(RUN) == DECODED["run-1"]


@pytest.mark.usefixtures("schema_0")
def test_an_upgrade_of_a_damaged_line_says_so() -> None:
    old = RUN.replace(b'"schema":1', b'"schema":0').replace(b'"when"', b'"date"').replace(b'"id"', b'"di"')
    with pytest.raises(HistoryError, match="missing required field `id`"):
        record.decode(old)


@pytest.mark.usefixtures("schema_0")
def test_an_old_line_that_lacks_what_the_upgrade_needs() -> None:
    old = RUN.replace(b'"schema":1', b'"schema":0').replace(b'"when"', b'"whenever"')
    with pytest.raises(HistoryError, match="not a record: 'date'"):
        record.decode(old)


@pytest.mark.parametrize("schema", [b"0", b"-1"])
def test_a_schema_that_never_was(schema: bytes) -> None:
    with pytest.raises(HistoryError, match=f"not a record: there was no schema {schema.decode()}"):
        record.decode(RUN.replace(b'"schema":1', b'"schema":' + schema))


def test_upgrades_are_chained(monkeypatch: pytest.MonkeyPatch) -> None:
    steps: dict[int, Any] = {
        -1: lambda content: content | {"schema": 0, "machine": content["class"]},
        0: lambda content: content | {"schema": 1, "machine": content["machine"].lower()},
    }
    monkeypatch.setattr(record, "UPGRADES", steps)
    old = line("run-1-least").replace(b'"schema":1', b'"schema":-1').replace(b'"machine":"no-gpu"', b'"class":"NO-GPU"')
    assert record.decode(old) == DECODED["run-1-least"]


def test_there_is_an_upgrade_from_every_old_schema() -> None:
    assert set(record.UPGRADES) == set(range(1, record.SCHEMA))


@pytest.mark.parametrize(
    ("words", "emulated"),
    [
        ("right", Emulated(EmulatorVerdict.RIGHT)),
        (
            "WRONG on normal, emulated[S=64]: O[0] is nan",
            Emulated(EmulatorVerdict.WRONG, "on normal, emulated[S=64]: O[0] is nan"),
        ),
        ("not emulated: clock() differs", Emulated(EmulatorVerdict.REFUSED, "clock() differs")),
    ],
)
def test_what_the_emulator_said_is_words_in_a_record(words: str, emulated: Emulated) -> None:
    entry = Entry(version="v16", target="sm_103a", emulated_words=words)
    assert entry.emulated == emulated
    assert str(emulated) == words
    assert msgspec.to_builtins(entry)["emulated"] == words


def test_words_of_the_emulator_that_nobody_knows_are_not_right() -> None:
    entry = Entry(version="v16", target="sm_103a", emulated_words="quite good")
    assert entry.emulated == Emulated(EmulatorVerdict.WRONG, "quite good")
    assert Entry(version="v16", target="sm_103a").emulated is None
