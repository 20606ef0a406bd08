"""Tables that fit where they are read, and JSON.

Both print what strangers wrote (manifests, compilers' messages), without what a terminal or a CI would act on.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

import msgspec

NOTHING = "–"
GAP = 2
HEADER_PADDING = 2
"""tabulate gives a column that much more than its header."""
LONGEST_WORD = 24
"""A longer word is broken rather than given a column of its width."""

Cells = list[list[str]]


def as_json(content: Any) -> str:
    """Any record, row or plain value as indented JSON. `##[` is written so that no CI takes it for a command."""
    return msgspec.json.format(msgspec.json.encode(content), indent=2).decode().replace("##[", "#\\u0023[")


def plain(text: str) -> str:
    """`text` without control characters, which a terminal, a log or XML would act on or refuse; lines and tabs stay."""
    return re.sub(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]", "", text)


def screen_width() -> int | None:
    """Columns to fit into: COLUMNS, or the terminal's; None where the output goes to a file or a program."""
    if os.environ.get("COLUMNS", "").isdigit():
        return int(os.environ["COLUMNS"]) or None
    with suppress(OSError, ValueError):  # a stream without a descriptor
        return os.get_terminal_size(sys.stdout.fileno()).columns or None
    return None


def table(
    headers: Sequence[str],
    rows: Iterable[Sequence[object]],
    style: str,
    wrap: dict[str, int] | None = None,
    keys: int = 1,
) -> str:
    """`style` is table or markdown. `wrap` gives the width at which a column of the terminal's table breaks.

    Where the terminal is too narrow, words wrap; where that is not enough, the columns go below each other in several tables,
    each with the first `keys` columns.
    """
    content = [[NOTHING if cell is None or cell == "" else plain(str(cell)) for cell in row] for row in rows]
    if style == "markdown":
        escaped = [[cell.replace("|", "\\|").replace("\n", " ") for cell in row] for row in content]
        return _laid_out(headers, escaped, style)
    screen = screen_width()
    limits = [(wrap or {}).get(header) for header in headers]
    widest = [
        max(min(_width(cells, "\n"), limit or 10_000), len(header) + HEADER_PADDING)
        for header, cells, limit in zip(headers, _columns(headers, content), limits, strict=True)
    ]
    fits = screen is None or sum(widest) + GAP * (len(widest) - 1) <= screen
    if fits and not any(
        "\n" in cell or len(cell) > (limits[n] or len(cell)) for row in content for n, cell in enumerate(row)
    ):
        return _laid_out(headers, content, style)
    from tabulate import tabulate  # for who has cells to break: it takes 25 ms to import

    if fits or screen is None:
        return tabulate(content, headers, tablefmt="simple", disable_numparse=True, maxcolwidths=limits)
    parts = []
    for block in _blocks(headers, content, screen, keys):
        own = [[row[column] for column in block] for row in content]
        least = [_least(headers, content)[column] for column in block]
        widths = _shrunk([widest[column] for column in block], least, screen)
        names, heads = [headers[column] for column in block], [width - HEADER_PADDING for width in widths]
        parts.append(
            tabulate(
                own, names, tablefmt="simple", disable_numparse=True, maxcolwidths=widths, maxheadercolwidths=heads
            )
        )
    return "\n\n".join(parts)


def _laid_out(headers: Sequence[str], content: Cells, style: str) -> str:
    """Cells of one line each, as tabulate's `github` and `simple` lay them out."""
    rows = [[cell.strip() for cell in row] for row in content]
    columns = zip(headers, _columns(headers, rows), strict=True)
    widths = [max([len(header) + HEADER_PADDING, *map(len, cells)]) for header, cells in columns]
    lines = [list(map(str.ljust, row, widths)) for row in ([*headers], *rows)]
    if style == "markdown":
        rule = "|" + "|".join("-" * (width + 2) for width in widths) + "|"
        head, *body = (f"| {' | '.join(line)} |" for line in lines)
    else:
        rule = (" " * GAP).join("-" * width for width in widths)
        head, *body = ((" " * GAP).join(line).rstrip() for line in lines)
    return "\n".join([head, rule, *body])


def _columns(headers: Sequence[str], content: Cells) -> list[list[str]]:
    return [[row[n] for row in content] for n in range(len(headers))]


def _width(cells: Iterable[str], separators: str) -> int:
    """Of the longest part between separators."""
    return max((len(part) for cell in cells for part in re.split(f"[{separators}]", cell)), default=0)


def _least(headers: Sequence[str], content: Cells) -> list[int]:
    """How narrow each column may become: its longest word."""
    return [
        max(min(_width(cells, r"\s"), LONGEST_WORD), _width([header], r"\s") + HEADER_PADDING)
        for header, cells in zip(headers, _columns(headers, content), strict=True)
    ]


def _blocks(headers: Sequence[str], content: Cells, screen: int, keys: int) -> list[list[int]]:
    """The columns of each table, by number."""
    least = _least(headers, content)
    blocks = [list(range(keys))]
    for column in range(keys, len(headers)):
        taken = [*blocks[-1], column]
        if len(blocks[-1]) > keys and sum(least[c] for c in taken) + GAP * (len(taken) - 1) > screen:
            taken = [*range(keys), column]
            blocks.append(taken)
        blocks[-1] = taken
    return blocks


def _shrunk(widths: list[int], least: list[int], screen: int) -> list[int]:
    """`widths`, of which the widest gave way until they fit."""
    widths = list(widths)
    while sum(widths) + GAP * (len(widths) - 1) > screen:
        spare = [width if width > low else 0 for width, low in zip(widths, least, strict=True)]
        if not any(spare):
            break
        widths[spare.index(max(spare))] -= 1
    return widths
