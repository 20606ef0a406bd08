"""GitHub Actions: workflow commands that put annotations on a pull request, and output that cannot be taken for one.

The runner reads commands from whatever a step prints (actions/runner, ActionCommand): a line that begins with `::`, and `##[`
anywhere in a line. A compiler's message quotes a stranger's source, so both are broken up in all else that is printed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from faperf.comparison import Annotation, GateReport
from faperf.record import replace
from faperf.report.tables import plain

MOST_OF_A_LEVEL = 10
"""GitHub shows so many errors, and so many warnings, of a step."""
COMMANDS = {"error": "error", "warning": "warning", "note": "notice"}
BREAK = "\N{ZERO WIDTH SPACE}"


def harmless(text: str) -> str:
    """`text` without anything that the runner takes for a command."""
    return re.sub(r"##(?=\[)", f"##{BREAK}", re.sub(r"^(\s*):(?=:)", rf"\1:{BREAK}", text, flags=re.MULTILINE))


def step_commands(report: GateReport) -> Iterator[str]:
    """One command an annotation, the worst first; what was so at the baseline already is left out."""
    annotations = annotations_of(report)
    for level, command in COMMANDS.items():
        own = [annotation for annotation in annotations if annotation.level == level and annotation.new]
        for annotation in own[:MOST_OF_A_LEVEL]:
            place = {"file": in_repository(report, annotation.file), "line": annotation.line, "title": annotation.rule}
            properties = ",".join(f"{key}={_property(str(value))}" for key, value in place.items() if value is not None)
            yield f"::{command} {properties}::{_data(annotation.text)}"
        if len(own) > MOST_OF_A_LEVEL:
            yield f"::{command} title=faperf gate::{len(own) - MOST_OF_A_LEVEL} more; the step's summary has all"


def error_command(text: str) -> str:
    """An error that stands in no file."""
    return f"::error title=faperf::{_data(text)}"


def annotations_of(report: GateReport) -> list[Annotation]:
    """Those of all rows, each once: a version has the same ones on each of its workloads."""
    said = [_of_version(row.version, row.target, a) for row in report.rows for a in row.annotations]
    return list({(a.file, a.line, a.rule, a.text): a for a in said}.values())


def _of_version(version: str, target: str, annotation: Annotation) -> Annotation:
    return replace(annotation, text=f"{version} for {target}: {annotation.text}")


def in_repository(report: GateReport, file: str) -> str:
    """A file's path from the repository's root, where a project may lie deeper."""
    return f"{report.folder}/{file}" if report.folder else file


def _data(text: str) -> str:
    return plain(text).replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
