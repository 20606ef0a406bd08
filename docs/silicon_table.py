"""Writes what the emulator is apart from a card (tests/silicon) into docs/emulator.md: `python -m docs.silicon_table`."""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from docs.marked import EMULATOR, write_block
from faperf.emulator.ptx import parse
from faperf.toolchain import find_toolchain
from tests.silicon import suites
from tests.silicon.compare import attention_table, findings, limits_table, summary, table
from tests.silicon.probe import Probe


def _recorded(suite: str, probe: Probe) -> Any:
    return suites.recorded(suite)[0][probe.name]


def main() -> None:
    toolchain, parts = find_toolchain(), [summary()]
    with tempfile.TemporaryDirectory() as scratch:
        for suite in suites.SUITES:
            module = parse(suites.build(suite, Path(scratch), toolchain).ptx.read_text())
            parts.append(table(findings(suite, module, partial(_recorded, suite))))
        modules = {
            case.version: parse(suites.build_version(case.version, toolchain, Path(scratch)).ptx.read_text())
            for case in suites.recorded_attentions()
        }
    parts += [attention_table(modules), limits_table(suites.recorded("limits")[0])]
    write_block(EMULATOR, "silicon", "\n\n".join(parts))


if __name__ == "__main__":
    main()
