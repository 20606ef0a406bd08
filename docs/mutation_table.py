"""Writes the table of mutations (tests/mutations*.py) into docs/emulator.md: `python docs/mutation_table.py`."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
BEGIN, END = "<!-- mutations -->", "<!-- /mutations -->"


def main() -> None:
    sys.path.insert(0, str(ROOT))
    from tests.mutations import MUTATIONS, table
    from tests.mutations_cluster import CLUSTER
    from tests.mutations_hopper import HOPPER
    from tests.mutations_ladder import LADDER

    page = ROOT / "docs" / "emulator.md"
    before, _, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    text = table([*MUTATIONS, *LADDER, *HOPPER, *CLUSTER])
    page.write_text(f"{before}{BEGIN}\n{text}\n{END}{rest.partition(END)[2]}", encoding="utf-8")


if __name__ == "__main__":
    main()
