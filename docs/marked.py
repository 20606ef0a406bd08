"""What stands between two markers of a page, and is generated: `<!-- NAME: begin -->`, lines, `<!-- NAME: end -->`."""

from __future__ import annotations

from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
EMULATOR = REPOSITORY / "docs" / "emulator.md"


def block(page: Path, name: str) -> str:
    """The lines between the markers, newline included. Raises ValueError where a marker is missing."""
    return _parts(page, name)[1]


def write_block(page: Path, name: str, text: str) -> None:
    """Replace the lines between the markers. Raises ValueError where a marker is missing."""
    before, _, after = _parts(page, name)
    page.write_text(f"{before}{text.rstrip()}\n{after}", encoding="utf-8")


def _parts(page: Path, name: str) -> tuple[str, str, str]:
    """What precedes the block, its begin marker included; the block; what follows."""
    begin, end = (f"<!-- {name}: {which} -->\n" for which in ("begin", "end"))
    before, found, rest = page.read_text(encoding="utf-8").partition(begin)
    lines, also, after = rest.partition(end)
    if not (found and also):
        raise ValueError(f"{page.name} has no {begin.strip()} … {end.strip()}")
    return before + begin, lines, end + after
