"""Static facts of small kernels (data/kernels), against numbers counted by hand and against tools that faperf does not use:
`cuobjdump`, the text of `nvdisasm -c`, the log of `ptxas -v`.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pytest

from faperf import sass
from faperf.build import Artifact, Builder
from faperf.errors import InspectionError
from faperf.record import KernelFacts
from faperf.sass import Inspection, inspect
from faperf.toolchain import Toolchain
from tests.compiling import KERNELS, Listing, elf_attributes, listings, resource_usage, script, version_of

REPOSITORY = Path(__file__).parents[1]
RESERVED_SMEM = 1024
"""What sm_90 and later take of a kernel's shared memory, in bytes; cuobjdump counts it."""

ALL = ("sm_80", "sm_90a", "sm_100a", "sm_103a")
COVERED = [
    *[("hmma.cu", target) for target in ALL],
    *[("resources.cu", target) for target in ALL],
    *[("spills.cu", target) for target in ALL],
    *[(name, target) for name in ("nested.cu", "noinline.cu", "switch.cu") for target in ("sm_80", "sm_103a")],
    *[("slowpath.cu", target) for target in ("sm_90a", "sm_100a")],
    ("local.cu", "sm_90a"),
    ("hgmma.cu", "sm_90a"),
    ("setmaxnreg.cu", "sm_90a"),
    ("tcgen05.cu", "sm_100a"),
    ("tcgen05.cu", "sm_103a"),
    ("ldred.cu", "sm_103a"),
]

pytestmark = pytest.mark.compile


@dataclass(frozen=True)
class Built:
    """A file of kernels, built for one target: faperf's facts of it and the other tools' view."""

    artifact: Artifact
    inspection: Inspection
    nvdisasm: Path
    cuobjdump: Path | None

    def __getitem__(self, entry: str) -> KernelFacts:
        return next(kernel for kernel in self.inspection.kernels if kernel.entry == entry)

    @property
    def log(self) -> str:
        return self.artifact.log.read_text(encoding="utf-8")

    @cached_property
    def listings(self) -> dict[str, Listing]:
        return listings(self.nvdisasm, self.artifact.cubin)

    @cached_property
    def usage(self) -> dict[str, dict[str, int]]:
        return resource_usage(self._cuobjdump(), self.artifact.cubin)

    @cached_property
    def attributes(self) -> dict[str, list[tuple[str, str]]]:
        return elf_attributes(self._cuobjdump(), self.artifact.cubin)

    def _cuobjdump(self) -> Path:
        if self.cuobjdump is None:
            pytest.skip("no cuobjdump: pip install nvidia-cuda-cuobjdump")
        return self.cuobjdump


Build = Callable[..., Built]


@pytest.fixture(scope="session")
def cuobjdump(toolchain: Toolchain) -> Path | None:
    """Beside nvdisasm or nvcc, in a wheel of this environment, or on PATH."""
    wheels = [directory for entry in sys.path for directory in Path(entry).glob("nvidia/cu*/bin")]
    for directory in (toolchain.nvdisasm.parent, toolchain.nvcc.parent, *wheels):
        if (directory / "cuobjdump").is_file():
            return directory / "cuobjdump"
    found = shutil.which("cuobjdump")
    return Path(found) if found else None


@pytest.fixture(scope="session")
def build(toolchain: Toolchain, cuobjdump: Path | None, tmp_path_factory: pytest.TempPathFactory) -> Build:
    """Build a file of data/kernels for a target, once a session, also where pytest-xdist splits it."""
    base = tmp_path_factory.getbasetemp()
    cache = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "kernels"
    kept: dict[tuple[str, ...], Built] = {}

    def call(source: str, target: str, *flags: str, root: Path = KERNELS) -> Built:
        name = (str(root), source, target, *flags)
        if name not in kept:
            artifact = Builder(root, cache, toolchain).build(version_of(source, *flags), target)
            kept[name] = Built(artifact, inspect(artifact.directory, toolchain.nvdisasm), toolchain.nvdisasm, cuobjdump)
        return kept[name]

    return call


# ── every kernel, by other tools ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("source", "target"), COVERED)
def test_resources_are_those_of_cuobjdump(build: Build, source: str, target: str) -> None:
    built = build(source, target)
    facts = {kernel.entry: kernel for kernel in built.inspection.kernels}
    assert list(facts) == sorted(built.usage)
    for entry, usage in built.usage.items():
        kernel, attributes = facts[entry], dict(built.attributes[entry])
        assert kernel.registers == usage["REG"]
        assert kernel.stack == usage["STACK"]
        reserved = RESERVED_SMEM if target != "sm_80" and usage["SHARED"] else 0
        assert kernel.static_smem == usage["SHARED"] - reserved
        assert kernel.register_cap == int(attributes["MAXREG_COUNT"], 16)
        assert kernel.barriers == int(attributes.get("NUM_BARRIERS", "0"), 16)
        threads = attributes.get("MAX_THREADS")
        assert kernel.max_threads == (int(threads.split()[0], 16) if threads else None)
        parameters = re.findall(
            r"Ordinal : (\w+).*Size\s*: (\w+)",
            "\n".join(v for name, v in built.attributes[entry] if name == "KPARAM_INFO"),
        )
        sizes = {int(ordinal, 16): int(size, 16) for ordinal, size in parameters}
        assert kernel.parameter_bytes == [sizes[ordinal] for ordinal in range(len(sizes))]


@pytest.mark.parametrize(("source", "target"), COVERED)
def test_registers_and_spills_are_those_of_ptxas(build: Build, source: str, target: str) -> None:
    built = build(source, target)
    for kernel in built.inspection.kernels:
        said = built.log.partition(f"Compiling entry function '{kernel.entry}'")[2].partition("Compiling entry")[0]
        assert re.findall(r"Used (\d+) registers", said) == [str(kernel.registers)]
        assert kernel.spill_stores == sum(map(int, re.findall(r"(\d+) bytes spill stores", said)))
        assert kernel.spill_loads == sum(map(int, re.findall(r"(\d+) bytes spill loads", said)))


@pytest.mark.parametrize(("source", "target"), COVERED)
def test_opcodes_are_those_of_the_listing(build: Build, source: str, target: str) -> None:
    """Loop analysis loses no instruction and invents none."""
    built = build(source, target)
    for kernel in built.inspection.kernels:
        counted = built.listings[kernel.entry].count()
        merged: Counter[str] = Counter()
        for name, at_depth in kernel.opcodes.items():
            merged[name.split(".")[0]] += sum(at_depth)
        assert merged == counted
        assert kernel.instructions == counted.total()
        for name, count in kernel.main_loop.items():
            assert count <= sum(kernel.opcodes[name])


# ── registers and spills ─────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("target", ALL)
def test_a_kernel_within_its_cap_and_one_that_spills(build: Build, target: str) -> None:
    built = build("spills.cu", target)
    fits, spills = built["fits"], built["spills"]
    assert (fits.register_cap, fits.max_threads) == (255, 64)
    assert 96 < fits.registers < 128  # 96 values are alive
    assert (fits.spill_stores, fits.spill_loads, fits.stack) == (0, 0, 0)
    assert "LDL" not in fits.opcodes
    assert "STL" not in fits.opcodes
    assert (spills.register_cap, spills.max_threads) == (32, 1024)  # 65536 / (2 · 1024)
    assert spills.registers == 32
    assert min(spills.spill_stores, spills.spill_loads) > 4 * (96 - 32)
    assert spills.spill_bytes == spills.spill_stores + spills.spill_loads
    assert min(spills.main_loop["LDL"], spills.main_loop["STL"]) >= 96 - 32
    assert spills.main_loop["FFMA"] == fits.main_loop["FFMA"] == 96


@pytest.mark.parametrize("flag", ["-maxrregcount=40", "--maxrregcount=40"])
def test_the_flag_caps_registers_where_no_launch_bound_does(build: Build, flag: str) -> None:
    built = build("bounds.cu", "sm_90a", flag)
    assert (built["unbound"].register_cap, built["unbound"].max_threads) == (40, None)
    assert (built["bound"].register_cap, built["bound"].max_threads) == (128, 256)  # 65536 / (2 · 256)
    overriding = [message for message in built.inspection.messages if "Overriding" in message]
    assert any("Overriding global maxrregcount 40 with entry-specific value 128" in message for message in overriding)


def test_local_memory_in_the_main_loop_is_told_from_local_memory_outside(build: Build) -> None:
    built = build("local.cu", "sm_90a")
    inside, outside = built["inside"], built["outside"]
    assert inside.stack == outside.stack == 4 * 64
    assert inside.spill_bytes == outside.spill_bytes == 0
    assert (inside.main_loop["STL"], inside.main_loop["LDL"]) == (1, 1)
    assert (inside.opcodes["STL"], inside.opcodes["LDL"]) == ([0, 1], [0, 1])
    assert "STL" not in outside.main_loop
    assert "LDL" not in outside.main_loop
    assert (outside.opcodes["STL"], outside.opcodes["LDL"]) == ([2], [1])


@pytest.mark.parametrize("target", ["sm_80", "sm_103a"])
def test_a_function_that_is_not_inlined_belongs_to_its_kernel(build: Build, target: str) -> None:
    """ptxas names its spills apart, and nvdisasm its instructions; loop depth is the function's own."""
    built = build("noinline.cu", target)
    caller, borrower = built["caller"], built["borrower"]
    assert caller.opcodes["MUFU"] == [0, 2]
    assert caller.main_loop["CALL"] == 1
    assert "MUFU" not in caller.main_loop
    assert borrower.opcodes["FFMA"] == [0, 64]
    assert borrower.spill_loads > 4 * (64 - 32)
    assert caller.spill_bytes == 0


def test_a_helper_of_the_compiler_is_not_the_kernels_code(build: Build) -> None:
    """tcgen05.alloc brings traps that end in RET."""
    assert "RET" not in build("tcgen05.cu", "sm_103a")["whole"].opcodes


# ── loops ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("target", ["sm_80", "sm_103a"])
def test_nested_loops(build: Build, target: str) -> None:
    kernel = build("nested.cu", target)["nested"]
    assert kernel.opcodes["POPC"] == [1]
    assert kernel.opcodes["FLO"] == [0, 1]
    assert kernel.opcodes["MUFU"] == [0, 0, 2]
    assert kernel.opcodes["BREV"] == [0, 0, 0, 1]
    assert {name: kernel.main_loop.get(name) for name in ("POPC", "FLO", "MUFU", "BREV")} == {
        "POPC": None, "FLO": 1, "MUFU": 2, "BREV": 1,
    }  # fmt: skip


@pytest.mark.parametrize("target", ["sm_90a", "sm_100a"])
def test_a_spin_that_is_placed_out_of_line_is_within_the_loop_that_it_serves(build: Build, target: str) -> None:
    built = build("slowpath.cu", target)
    kernel, listing = built["spins"], built.listings["spins"]
    # One try before each of the two waits, and one that is tried again: in the loop it is one loop deeper.
    assert kernel.opcodes["SYNCS.PHASECHK"] == [1, 2, 1]
    assert kernel.opcodes["MUFU"] == [0, 5]
    assert (kernel.main_loop["MUFU"], kernel.main_loop["SYNCS.PHASECHK"]) == (5, 2)
    # What makes it a test: both spins stand behind the kernel's EXIT.
    end = next(line.address for line in listing.lines if line.opcode == "EXIT")
    assert listing.count(end)["SYNCS"] == 2


@pytest.mark.parametrize("target", ["sm_90a", "sm_100a"])
def test_the_slow_path_of_sine_is_not_the_main_loop(build: Build, target: str) -> None:
    kernel = build("slowpath.cu", target)["sines"]
    assert kernel.opcodes["MUFU"] == [0, 1]
    assert kernel.main_loop["MUFU"] == 1
    assert len(kernel.opcodes["LDG"]) == 3  # the table for large arguments is read in a loop of its own, one deeper
    assert kernel.opcodes["LDG"][2] == kernel.main_loop["LDG"] == 1


@pytest.mark.parametrize("target", ["sm_80", "sm_103a"])
def test_the_cases_of_a_switch_are_in_the_loop(build: Build, target: str) -> None:
    built = build("switch.cu", target)
    assert built["cases"].opcodes["BRX"][1] > 0  # what makes it a test
    assert built["cases"].opcodes["MUFU"] == [0, 8]
    assert built["cases"].main_loop["MUFU"] == 8


def test_a_far_jump_written_as_a_call_is_a_jump(build: Build) -> None:
    """For sm_80 ptxas leaves a loop by `@P0 CALL.REL.NOINC`; what lies behind the loop is reached, at depth 0."""
    built = build("spills.cu", "sm_80")
    assert built["spills"].opcodes["CALL"] == [0, 1]  # what makes it a test
    assert built["spills"].opcodes["STG"] == [96]


def test_a_far_jump_is_the_only_way_out_of_a_loop() -> None:
    """The same, where nothing else leads behind the loop."""
    code = [
        ("MOV", "R0,R1", ""),
        ("CALL.REL.NOINC", "0x30", "@P0"),
        ("BRA", "0x0", ""),
        ("STG.E", "[R2],R0", ""),
        ("EXIT", "", ""),
    ]
    loops = sass.Loops([sass.Instruction(*instruction) for instruction in code])
    assert loops.opcodes_by_depth() == {"BRA": [0, 1], "CALL": [0, 1], "EXIT": [1], "MOV": [0, 1], "STG": [1]}


# ── listings ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("instruction", "line"),
    [
        (("FFMA", "R147,R64.reuse,0.127517,-R146", ""), "FFMA R,R,0.127517,-R"),
        (("BRA", "0x380", "@!P0"), "@!P BRA …"),
        (("BRA.U", "UP0,0x380", ""), "BRA.U UP,…"),
        (("BSSY.RECONVERGENT", "B0,0x390", ""), "BSSY.RECONVERGENT B,…"),
        (("LOP3.LUT", "P2,RZ,R7,RZ,0x33,!PT", ""), "LOP3.LUT P,RZ,R,RZ,0x33,!PT"),
        (("LDG.E.64", "R2,desc[UR8][R2.64+0x10]", ""), "LDG.E.64 R,desc[UR][R.64+0x10]"),
        (("LDC", "R1,c[0x0][0x28]", ""), "LDC R,c[0x0][0x28]"),
        (("DEPBAR.LE", "SB0,0x2", ""), "DEPBAR.LE SB0,0x2"),
        (("EXIT", "", ""), "EXIT"),
    ],
)
def test_a_line_has_neither_register_numbers_nor_targets(instruction: tuple[str, str, str], line: str) -> None:
    assert sass.Instruction(*instruction).normalised == line


def test_a_listing_has_every_instruction_but_padding(build: Build) -> None:
    built = build("nested.cu", "sm_103a")
    for entry in built.listings:
        lines = sass.listing(built.artifact.cubin, built.nvdisasm, entry)
        counted = Counter(line.removeprefix("@P ").removeprefix("@!P ").split()[0].split(".")[0] for line in lines)
        assert counted.keys() - {"@UP", "@!UP"} >= built[entry].main_loop.keys()
        assert "NOP" not in counted
        assert len(lines) >= built[entry].instructions > 0
    with pytest.raises(InspectionError, match="no kernel nope"):
        sass.listing(built.artifact.cubin, built.nvdisasm, "nope")


# ── tensor paths ─────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("target", ALL)
def test_mma_sync(build: Build, target: str) -> None:
    """The main loop is the one with the tensor instructions, though another one is longer."""
    built = build("hmma.cu", target)
    kernel, listing = built["hmma"], built.listings["hmma"]
    assert kernel.opcodes["HMMA"] == [1, 4]
    assert kernel.main_loop == dict(listing.count(*listing.innermost("HMMA")))
    assert kernel.main_loop["HMMA"] == 4
    assert "MUFU" not in kernel.main_loop
    assert kernel.mma_shapes == {"HMMA m16n8k16": 5}
    assert kernel.path == "HMMA"


def test_wgmma(build: Build) -> None:
    built = build("hgmma.cu", "sm_90a")
    kernel = built["hgmma"]
    assert kernel.opcodes["HGMMA"] == [0, 2]
    assert kernel.main_loop["HGMMA"] == 2
    assert kernel.mma_shapes == {"HGMMA m64n128k16": 2}
    assert kernel.path == "HGMMA"
    assert not [message for message in built.inspection.messages if "'hgmma'" in message]


def test_wgmma_that_ptxas_serialises_is_said(build: Build) -> None:
    messages = [m for m in build("hgmma.cu", "sm_90a").inspection.messages if "'serialised'" in m]
    assert any("wgmma.mma_async instructions are serialized" in message for message in messages)
    assert any("warpgroup.wait is injected" in message for message in messages)


@pytest.mark.parametrize("target", ["sm_100a", "sm_103a"])
def test_tcgen05(build: Build, target: str) -> None:
    built = build("tcgen05.cu", target)
    whole, half, literal = built["whole"], built["half_height"], built["literal"]
    assert whole.main_loop["UTCHMMA"] == 4
    assert {name: kernel.mma_shapes for name, kernel in (("128", whole), ("64", half), ("32", literal))} == {
        "128": {"UTCHMMA m128n128k16": 4},
        "64": {"UTCHMMA m64n128k16": 1},
        "32": {"UTCHMMA m32n128k16": 1},
    }
    assert {whole.path, half.path, literal.path} == {"UTCHMMA"}
    assert (whole.tmem_columns, half.tmem_columns, literal.tmem_columns) == (256, 256, 64)


def test_tcgen05_ld_red_is_told_from_a_plain_load(build: Build) -> None:
    built = build("ldred.cu", "sm_103a")
    assert built["ldred"].opcodes["LDTM.STAT"] == [1]
    assert built["ldred"].opcodes["LDTM"] == [1]
    assert built["ldred"].path == ""
    assert built["ldred"].tmem_columns is None


@pytest.mark.parametrize("target", ["sm_90a", "sm_103a"])
@pytest.mark.parametrize("version", ["v12", "v13"])
def test_main_loop_of_the_ladders_kernels(build: Build, version: str, target: str) -> None:
    """A warp's 16 rows × 64 keys × D = 128, in m16n8k16: 8·8 HMMA for QK and 4·16 for PV; 32 + 2 exponentials a thread."""
    if not (REPOSITORY / "kernels" / f"{version}.cu").is_file():
        pytest.skip(f"this checkout has no kernels/{version}.cu")
    built = build(f"kernels/{version}.cu", target, root=REPOSITORY)
    kernel, listing = built["attention_forward"], built.listings["attention_forward"]
    counted = listing.count(*listing.innermost("HMMA"))
    assert kernel.main_loop["HMMA"] == counted["HMMA"] == 8 * 8 + 4 * 16
    assert kernel.main_loop["MUFU"] == counted["MUFU"] == 32 + 2
    assert kernel.main_loop["LDSM"] == counted["LDSM"] == 8 * 4 + 4 * 8
    assert kernel.opcodes["HMMA"][1:] == [128]
    assert kernel.path == "HMMA"


# ── resources ────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("target", ALL)
def test_shared_memory_barriers_and_parameters(build: Build, target: str) -> None:
    built = build("resources.cu", target)
    assert [kernel.entry for kernel in built.inspection.kernels] == [
        "nothing", "parameters", "static_and_dynamic", "three_barriers",
    ]  # fmt: skip
    assert {k.entry: (k.static_smem, k.barriers, k.parameter_bytes) for k in built.inspection.kernels} == {
        "nothing": (0, 0, []),
        "parameters": (0, 0, [128, 1, 8, 8, 2]),
        "static_and_dynamic": (4096, 1, [8]),
        "three_barriers": (0, 3, []),
    }
    assert built["nothing"].main_loop == {}


def test_setmaxnreg_that_ptxas_ignores_is_said_once(build: Build) -> None:
    """And the kernel's name, which is `ignored`, makes no message of the lines that only name it."""
    built = build("setmaxnreg.cu", "sm_90a")
    (message,) = built.inspection.messages
    assert "'setmaxnreg' ignored" in message
    assert built["heeded"].opcodes["USETMAXREG"] == [1]
    assert "USETMAXREG" not in built["ignored"].opcodes


# ── the digest of the code ───────────────────────────────────────────────────────────────────────────────────────────

PLAIN = """\
__constant__ float scale[2] = {1.5f, 2.5f};
extern "C" __global__ void __launch_bounds__(128) k(float* out, int n) {
    __shared__ float tile[128];
    float value = out[threadIdx.x] * scale[n & 1] + 3.0f;
    tile[threadIdx.x] = value;
    __syncthreads();
    out[threadIdx.x] = tile[n & 127];
}
"""

INLINED = ("out[threadIdx.x] * scale[n & 1] + 3.0f", "plus(out[threadIdx.x] * scale[n & 1])")
"""Debug information has more to say then, and the symbols of the cubin other numbers."""


@pytest.fixture
def code(build: Build, toolchain: Toolchain, tmp_path: Path) -> Callable[[str], str]:
    """The digest of PLAIN after an edit. Each in a directory of its own; nvdisasm, which has no part in it, is left out."""
    blind = script(tmp_path / "nvdisasm", "echo '[{}, []]'")
    builds = 0

    def call(source: str) -> str:
        nonlocal builds
        builds += 1
        root = tmp_path / f"tree-{builds}"
        root.mkdir()
        (root / "k.cu").write_text(source, encoding="utf-8")
        artifact = Builder(root, tmp_path / "cache", toolchain).build(version_of("k.cu"), "sm_90a")
        return inspect(artifact.directory, blind).code

    return call


def edited(old: str, new: str) -> str:
    assert old in PLAIN
    return PLAIN.replace(old, new)


def test_code_is_equal_where_nothing_that_runs_has_changed(code: Callable[[str], str]) -> None:
    plain = code(PLAIN)
    assert {
        "moved": code("// a comment\n\n\n" + PLAIN),
        "comment within": code(edited("    tile[threadIdx.x]", "\n    /* here */\n    tile[threadIdx.x]")),
        "renamed local": code(edited("value", "x")),
        "helper": code("__device__ float plus(float x) { return x + 3.0f; }\n" + edited(*INLINED)),
    } == dict.fromkeys(("moved", "comment within", "renamed local", "helper"), plain)


def test_code_differs_where_what_runs_has_changed(code: Callable[[str], str]) -> None:
    digests = {
        "plain": code(PLAIN),
        "immediate": code(edited("3.0f", "4.0f")),
        "constant's initialiser": code(edited("2.5f", "3.5f")),
        "launch bound": code(edited("(128) k", "(64) k")),
        "blocks per SM": code(edited("(128) k", "(128, 8) k")),
        "shared array": code(edited("tile[128]", "tile[256]")),
        "parameter": code(edited("int n)", "int n, int unused)")),
    }
    assert len(set(digests.values())) == len(digests), digests


# ── the facts that are kept, and what cannot be read ─────────────────────────────────────────────────────────────────


@pytest.fixture
def copied(build: Build, tmp_path: Path) -> Path:
    """A build's files, to be damaged; without its facts."""
    directory = tmp_path / "build"
    shutil.copytree(build("resources.cu", "sm_80").artifact.directory, directory)
    (directory / "facts.json").unlink()
    return directory


def test_facts_are_kept(copied: Path, toolchain: Toolchain, tmp_path: Path) -> None:
    first = inspect(copied, toolchain.nvdisasm)
    assert (copied / "facts.json").is_file()
    assert inspect(copied, tmp_path / "no disassembler is needed") == first


def test_facts_are_taken_anew_by_a_newer_inspector(
    copied: Path, toolchain: Toolchain, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = inspect(copied, toolchain.nvdisasm)
    text = (copied / "facts.json").read_text(encoding="utf-8").replace('"registers":10', '"registers":77')
    (copied / "facts.json").write_text(text, encoding="utf-8")
    assert inspect(copied, toolchain.nvdisasm) != kept  # what is kept is believed
    monkeypatch.setattr(sass, "INSPECTOR", sass.INSPECTOR + 1)
    anew = inspect(copied, toolchain.nvdisasm)
    assert anew.inspector == sass.INSPECTOR
    assert (anew.kernels, anew.code) == (kept.kernels, kept.code)


@pytest.mark.parametrize("damage", ["", "{", '{"inspector":1}', "[]"])
def test_facts_that_cannot_be_read_are_taken_anew(copied: Path, toolchain: Toolchain, damage: str) -> None:
    (copied / "facts.json").write_text(damage, encoding="utf-8")
    assert inspect(copied, toolchain.nvdisasm).kernels[0].entry == "nothing"


@pytest.mark.parametrize("size", [0, 3, 100, 2000, -64])
def test_a_truncated_cubin(copied: Path, toolchain: Toolchain, size: int) -> None:
    cubin = copied / "kernel.cubin"
    cubin.write_bytes(cubin.read_bytes()[:size])
    with pytest.raises(InspectionError) as caught:
        inspect(copied, toolchain.nvdisasm)
    assert caught.value.remedy
    assert not (copied / "facts.json").exists()


@pytest.mark.parametrize(
    "body",
    ["echo 'nvdisasm fatal   : no such architecture' >&2; exit 1", "echo no json", "echo '[{}]'", "exit 0"],
)
def test_an_nvdisasm_that_fails(copied: Path, tmp_path: Path, body: str) -> None:
    with pytest.raises(InspectionError) as caught:
        inspect(copied, script(tmp_path / "nvdisasm", body))
    assert "faperf[disassembler]" in str(caught.value.remedy)
    if "fatal" in body:
        assert "no such architecture" in caught.value.what
    assert not (copied / "facts.json").exists()


@pytest.mark.parametrize("name", ["kernel.ptx", "build.log"])
def test_a_build_with_a_file_missing(copied: Path, toolchain: Toolchain, name: str) -> None:
    (copied / name).unlink()
    with pytest.raises(InspectionError) as caught:
        inspect(copied, toolchain.nvdisasm)
    assert caught.value.remedy
