"""`faperf explain` and `faperf diff --sass` on kernels that nvcc compiles here, and on the records of this repository."""

from __future__ import annotations

import json
from typing import Any

import pytest

from faperf.listing import written
from faperf.sass import Instruction
from tests.compiling import KERNELS
from tests.conftest import Cli, UserProject

SOURCE = (KERNELS / "ldred_spill.cu").read_text(encoding="utf-8")
MANIFEST = """\
schema: 1
id: {id}
{more}title: {id}
source: kernels/ldred.cu
targets: [sm_103a]
operation: {{name: attention_forward, layout: BSHD}}
workloads: [tiny]
tile: {{m: 64, n: 64}}
launches:
  - entry: ldred_spill
    grid: [1]
    block: [512]
    args: [{{scalar: S, type: u32}}, {{tensor: Q}}, {{tensor: O}}, {{scalar: S, type: i32}}]
"""


@pytest.fixture
def spilling(user: UserProject) -> UserProject:
    """`plain` reads 8 columns at a time, `red` is its child by tcgen05.ld.red."""
    user.write("kernels/ldred.cu", SOURCE)
    user.write("manifests/plain.yaml", MANIFEST.format(id="plain", more='flags: ["-DPLAIN"]\n'))
    user.write("manifests/red.yaml", MANIFEST.format(id="red", more="parent: plain\n"))
    user.commit("second")
    return user


def line_of(text: str) -> int:
    """The first line of the kernel with a text in it."""
    return 1 + next(n for n, line in enumerate(SOURCE.splitlines()) if text in line)


@pytest.mark.compile
def test_the_block_of_ld_red_with_its_lines(spilling: UserProject, faperf: Cli) -> None:
    answer = faperf("explain", "red", "--format", "json")
    assert answer.exit_code == 0, answer.output
    found = json.loads(answer.stdout)
    first: dict[str, Any] = found["diagnosis"]["causes"][0]
    assert first["name"] == "ld.red's register block"
    assert any(text.startswith("LDTM.STAT (tcgen05.ld.red) 0 → 1, 32 registers each") for text in first["evidence"])
    assert any("of 128, the cap" in text for text in first["evidence"])
    (load,) = [w for w in first["places"] if w["what"] == "1 LDTM.STAT"]
    assert line_of('asm volatile("{ .reg .b32 d<32>') <= load["place"]["line"] < line_of("tcgen05.wait::ld")
    assert load["text"] == SOURCE.splitlines()[load["place"]["line"] - 1].strip()
    lines = [(w["place"]["line"], w["what"]) for w in first["places"]]
    assert line_of("acc[k] = acc[k] * m + in[i]") in [n for n, what in lines if "LDL/STL in the main loop" in what]
    assert line_of("acc[k] = in[threadIdx.x * 96 + k]") in [
        n for n, what in lines if "computed here are spilled" in what
    ]
    assert any("registers are alive, the most" in what for _, what in lines)
    assert found["sass"]["part"] == "main loop"
    assert found["sass"]["counts"]["LDTM.STAT"] == [0, 1]

    text = faperf("explain", "red", "--sass").stdout
    assert text.startswith("red against plain for sm_103a: time unmeasured")
    assert "+ LDTM.STAT.x32" in text
    assert not list((spilling.root / ".faperf").glob("history/*/*.jsonl"))  # it records no run
    assert "no rule finds anything" in faperf("explain", "plain", "--against", "plain").stdout


@pytest.mark.compile
def test_diff_folds_the_sass_to_the_loop(spilling: UserProject, faperf: Cli) -> None:
    spilling.edit("kernels/ldred.cu", "acc[k] * m + in[i]", "acc[k] * m - in[i]")
    answer = faperf("diff", "HEAD", "--sass", "plain")
    assert answer.exit_code == 0, answer.output
    assert "sm_103a: SASS, main loop:" in answer.stdout
    assert f"@@ kernels/ldred.cu:{line_of('acc[k] = acc[k] * m + in[i]')}" in answer.stdout
    assert "STG" not in answer.stdout.partition("SASS")[2]  # what stands behind the loop did not change
    assert faperf("diff", "HEAD", "--sass", "nobody").exit_code == 2


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nobody"], "no version 'nobody'"),
        (["t1", "--target", "sm_80"], "t1 is not for sm_80"),
        (["t1", "--against", "t1", "--against-nvcc", "13.5"], "--against-nvcc compares a version with itself"),
        (["t1", "--against-nvcc", "99.1"], "99.1"),
    ],
)
def test_what_cannot_be_explained(arguments: list[str], words: str, faperf: Cli) -> None:
    answer = faperf("explain", *arguments)
    assert answer.exit_code in (1, 2)
    assert words in answer.stderr


@pytest.mark.parametrize(
    ("opcode", "operands", "registers"),
    [
        ("LDTM.STAT.x32.MAX.F32", "R4,R3,tmem[UR5]", range(4, 36)),
        ("LDTM.x16", "R16,tmem[UR5]", range(16, 32)),
        ("FFMA.FTZ", "R7,R1,R2,R3", range(7, 8)),
        ("LDS.128", "R8,[R2]", range(8, 12)),
        ("IMAD.WIDE.U32", "R8,R2,R3,R4", range(8, 10)),
        ("HMMA.16816.F32", "R12,R4,R8,R12", range(12, 16)),
        ("HGMMA.64x128x16.F32", "R24,gdesc[UR4],R24", range(24, 88)),
        ("STL", "[R1+0x8],R3", range(0)),
        ("STG.E", "[R1],R3", range(0)),
        ("ISETP.GT.AND", "P0,PT,R4,0xf,PT", range(0)),
        ("R2UR", "UR5,R78", range(0)),
    ],
)
def test_which_registers_an_instruction_writes(opcode: str, operands: str, registers: range) -> None:
    assert written(Instruction(opcode, operands)) == registers
