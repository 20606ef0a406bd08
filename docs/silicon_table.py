"""Writes what the emulator is apart from a card (tests/silicon) into docs/emulator.md: `python docs/silicon_table.py`."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
BEGIN, END = "<!-- silicon -->", "<!-- /silicon -->"


def main() -> None:
    sys.path.insert(0, str(ROOT))
    from faperf.emulator.ptx import parse
    from faperf.toolchain import find_toolchain
    from tests.silicon import suites
    from tests.silicon.compare import attention_table, findings, limits_table, summary, table

    toolchain, parts = find_toolchain(), [summary()]
    with tempfile.TemporaryDirectory() as scratch:
        for suite in suites.SUITES:
            results = suites.recorded(suite)[0]
            module = parse(suites.build(suite, Path(scratch), toolchain).ptx.read_text())
            parts.append(table(findings(suite, module, lambda probe, results=results: results[probe.name])))
        modules = {
            case.version: parse(suites.build_version(case.version, toolchain, Path(scratch)).ptx.read_text())
            for case in suites.recorded_attentions()
        }
    parts += [attention_table(modules), limits_table(suites.recorded("limits")[0])]
    page = ROOT / "docs" / "emulator.md"
    before, _, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    text = "\n\n".join(parts)
    page.write_text(f"{before}{BEGIN}\n{text}\n{END}{rest.partition(END)[2]}", encoding="utf-8")


if __name__ == "__main__":
    main()
