"""The gate's formats: valid by other people's schemas, and harmless whatever a stranger's pull request says."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import jsonschema
import msgspec
import pytest
import xmlschema

from faperf.comparison import Annotation, GateReport, GateRow, Regression
from faperf.judge import Acceptance, Cause, Status, Verdict
from faperf.record import Interval
from faperf.report.actions import MOST_OF_A_LEVEL, harmless, step_commands
from faperf.report.gate import FORMATS, LONGEST_COMMENT, MARKER, escaped, fenced, gate_text
from tests.conftest import REPOSITORY

SCHEMAS = REPOSITORY / "tests/data/schemas"
SCHEMA_OF_JSON = REPOSITORY / "docs/gate.schema.json"

NASTY = (
    "::error file=x::owned\n::set-output name=a::b\n##[add-mask]x\x1b[31m\x00\x07 | </details><img src=x onerror=alert(1)> "
    "]]> <![CDATA[ &amp; @everyone #1 `code` ``` ~~~ [a](http://evil) ![i](http://evil/p.png) **b** $x$ www.evil.com"
    "\n# heading\n\N{RIGHT-TO-LEFT OVERRIDE}" + "%0A"
)
"""What a stranger may write into a title, a reason, a source line that the compiler quotes."""


def row(**fields: Any) -> GateRow:
    plain: dict[str, Any] = {
        "version": "v1",
        "target": "sm_90a",
        "workload": "tiny",
        "status": Status.FINE,
        "verdict": Verdict.SAME,
    }
    return GateRow(**plain | fields)


def report(*rows: GateRow, **fields: Any) -> GateReport:
    plain: dict[str, Any] = {
        "schema": 1,
        "baseline": "b" * 40,
        "head": "a" * 40,
        "dirty": [],
        "pinned": None,
        "toolchains": ["nvcc 13.0.88"],
        "unmeasured": None,
        "status": min((r.status for r in rows), default=Status.FINE),
        "rows": list(rows),
        "command": "faperf gate --baseline bbbbbbbbbbbb",
    }
    return GateReport(**plain | fields)


SLOWER = row(
    status=Status.REGRESSION,
    verdict=Verdict.SLOWER,
    change=Interval(value=0.0168, low=0.0158, high=0.0176),
    tflops=308.4,
    cause=Cause.SOURCE,
    regressions=[Regression(metric="time", text="slower than the baseline", amount=0.0169, limit=0.0177)],
    annotations=[
        Annotation(level="error", rule="time", text="slower than the baseline", file="kernels/v1.cu", line=7),
        Annotation(level="warning", rule="spills", text="spills 8 bytes", file="kernels/v1.cu", line=9, new=False),
    ],
)
NASTY_ROWS = [
    row(
        version="v2",
        status=Status.WRONG,
        verdict=Verdict.BROKEN,
        error=NASTY,
        annotations=[Annotation(level="error", rule="compile", text=NASTY, file="kernels/a b,:%.cu", line=3)],
    ),
    row(version="v3", status=Status.WRONG, wrong=[NASTY], notes=[NASTY]),
    row(
        version="v4",
        regressions=[
            Regression(metric="spills", text=NASTY, amount=1, limit=1, accepted=Acceptance(True, f"accepted: {NASTY}"))
        ],
    ),
]
REPORTS = {
    "fine": report(row(verdict=Verdict.UNCHANGED)),
    "empty": report(),
    "slower": report(SLOWER, row(version="v2", verdict=Verdict.UNCHANGED), status=Status.REGRESSION),
    "unmeasured": report(row(verdict=Verdict.UNMEASURED), unmeasured=NASTY),
    "nasty": report(*NASTY_ROWS, status=Status.WRONG, notes=[NASTY], dirty=[NASTY], folder="a project/é"),
    "error of no version": report(row(), status=Status.ERROR, notes=[NASTY]),
    "no commit": report(row(), head=None),
}


# ── other people's schemas ──


@pytest.mark.parametrize("name", REPORTS)
def test_sarif_is_sarif(name: str) -> None:
    schema = json.loads((SCHEMAS / "sarif-2.1.0-rtm.5.json").read_text())
    content = json.loads(gate_text(REPORTS[name], "sarif"))
    jsonschema.Draft4Validator(schema).validate(content)
    for result in content["runs"][0]["results"]:
        place = result["locations"][0]["physicalLocation"]["artifactLocation"]
        assert place["uriBaseId"] == "%SRCROOT%"
        assert not place["uri"].startswith("/")
        assert re.fullmatch(r"[\w./%~-]+", place["uri"])
        assert content["runs"][0]["tool"]["driver"]["rules"][result["ruleIndex"]]["id"] == result["ruleId"]


@pytest.mark.parametrize("name", REPORTS)
def test_junit_is_junit(name: str) -> None:
    text = gate_text(REPORTS[name], "junit")
    xmlschema.XMLSchema(SCHEMAS / "junit-10.xsd").validate(text)
    suite = ElementTree.fromstring(text)[0]
    cases = suite.findall("testcase")
    assert suite.get("tests") == str(len(cases))
    assert len(cases) == len(REPORTS[name].rows) + (name == "error of no version")
    bad = sum(row.status is not Status.FINE for row in REPORTS[name].rows) + (name == "error of no version")
    assert int(suite.get("failures", "")) + int(suite.get("errors", "")) == bad


@pytest.mark.parametrize("name", REPORTS)
def test_json_is_as_documented(name: str) -> None:
    """docs/gate.schema.json, which is made of the structs themselves."""
    jsonschema.validate(json.loads(gate_text(REPORTS[name], "json")), json.loads(SCHEMA_OF_JSON.read_text()))


def test_the_documented_schema_is_that_of_the_code() -> None:
    written = json.loads(SCHEMA_OF_JSON.read_text())
    assert written == json.loads(json.dumps(msgspec.json.schema(GateReport))), "python -m docs.gate_schema"
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"schema": 1, "rows": []}, written)


# ── what they say ──


def test_junit_tells_failures_from_errors() -> None:
    suite = ElementTree.fromstring(gate_text(REPORTS["slower"], "junit"))[0]
    (failure,) = suite.iter("failure")
    assert failure.get("type") == "regression"
    assert failure.get("message") == "slower than the baseline; cause: the source"
    assert "+1.69% [+1.59, +1.78]" in str(failure.text)
    assert [case.get("name") for case in suite.iter("testcase")] == ["v1[sm_90a, tiny]", "v2[sm_90a, tiny]"]


def test_the_comment_has_the_verdict_first_and_the_whole_table_folded() -> None:
    lines = gate_text(REPORTS["slower"], "markdown").splitlines()
    assert lines[0] == f"### REGRESSION: {'a' * 12} against {'b' * 12}"
    text = "\n".join(lines)
    before, _, folded = text.partition("<details>")
    assert "| v1 " in before
    assert "| v2 " not in before
    assert "| v2 " in folded
    assert "git switch --detach aaaaaaaaaaaa\nfaperf gate --baseline bbbbbbbbbbbb" in folded
    assert 'faperf accept v1 --reason "…"' in folded
    assert text.count("<details>") == text.count("</details>") == 3
    assert "- kernels/v1.cu:7: v1 for sm_90a: slower than the baseline" in folded
    assert "spills 8 bytes" not in text  # it was there before
    assert "since pinned" not in text  # nothing stands in that column
    assert lines[-1] == MARKER


def test_a_comment_always_fits() -> None:
    several = [row(version=f"v{n}", verdict=Verdict.UNCHANGED, notes=["x" * 50]) for n in range(2000)]
    text = gate_text(report(SLOWER, *several, status=Status.REGRESSION), "markdown")
    assert len(text) <= LONGEST_COMMENT
    assert "too long for a comment" in text
    all_bad = [row(version=f"v{n}", status=Status.WRONG, wrong=["x" * 200]) for n in range(2000)]
    text = gate_text(report(*all_bad, status=Status.WRONG), "markdown")
    assert len(text) <= LONGEST_COMMENT
    assert text.startswith("### WRONG")


# ── a stranger's words ──


def rendered(markdown: str) -> str:
    from markdown_it import MarkdownIt  # rich brings it

    return str(MarkdownIt("gfm-like", {"linkify": False}).render(markdown))


def test_a_strangers_words_are_no_markup() -> None:
    html = rendered(gate_text(REPORTS["nasty"], "markdown"))
    outside = re.sub(r"<code.*?</code>", "", html, flags=re.DOTALL)
    assert "<img" not in outside
    assert "<a " not in outside
    assert "<strong>" not in outside
    assert "<h1>" not in outside
    assert outside.count("<h3>") == 1
    assert outside.count("</details>") == html.count("<details>") == 3
    assert not re.search(r"@\w|#\w|\bwww\.|://", outside.replace("<!--", ""))


def test_escaping_keeps_the_words() -> None:
    assert rendered(escaped("a*b*c <d> [e](f) `g` & \\h | ~i~ _j_ k_l __m")) == (
        "<p>a*b*c &lt;d&gt; [e](f) `g` &amp; \\h | ~i~ _j_ k_l __m</p>\n"
    )
    assert fenced("a\n```\nb") == "````\na\n```\nb\n````"


@pytest.mark.parametrize("style", FORMATS)
def test_a_strangers_words_are_no_command_and_no_escape_sequence(style: str) -> None:
    """`##[` is one anywhere in a line, `::` at its beginning; both must be gone by when the text is printed."""
    text = harmless(gate_text(REPORTS["nasty"], style))
    assert "##[" not in text
    assert not re.search(r"^\s*::", text, re.MULTILINE)
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f]", text)
    if style in ("json", "sarif"):
        assert json.loads(text) == json.loads(gate_text(REPORTS["nasty"], style))


def test_annotations_are_one_line_each_with_their_own_properties() -> None:
    commands = list(step_commands(REPORTS["nasty"]))
    assert len(commands) == 1
    head, _, data = commands[0][2:].partition("::")
    assert head == "error file=a project/é/kernels/a b%2C%3A%25.cu,line=3,title=compile"
    assert data.startswith("v2 for sm_90a: ::error file=x::owned%0A::set-output")
    assert data.endswith("%250A")
    assert "\n" not in commands[0]


def test_what_was_there_before_is_not_annotated_again() -> None:
    commands = list(step_commands(REPORTS["slower"]))
    assert commands == [
        "::error file=kernels/v1.cu,line=7,title=time::v1 for sm_90a: slower than the baseline",
    ]
    states = [r["baselineState"] for r in json.loads(gate_text(REPORTS["slower"], "sarif"))["runs"][0]["results"]]
    assert states == ["new", "unchanged"]


def test_so_many_annotations_as_github_shows() -> None:
    notes = [Annotation(level="error", rule="time", text=f"{n}", file="a.cu") for n in range(15)]
    commands = list(step_commands(report(row(annotations=notes))))
    assert len(commands) == MOST_OF_A_LEVEL + 1
    assert "5 more" in commands[-1]


def test_a_workloads_row_more_does_not_annotate_twice(tmp_path: Path) -> None:
    both = [record for name in ("one", "two") for record in [msgspec.structs.replace(SLOWER, workload=name)]]
    assert len(list(step_commands(report(*both)))) == 1
