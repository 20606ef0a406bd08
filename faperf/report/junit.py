"""A gate as JUnit's XML, which every CI reads: one test case a version × target × workload."""

from __future__ import annotations

from xml.etree import ElementTree

from faperf.comparison import GateReport, GateRow
from faperf.judge import Status, Verdict
from faperf.report.tables import plain
from faperf.report.terminal import change_text


def gate_junit(report: GateReport) -> str:
    """A regression or a wrong result is a failure; what does not build, or cannot be judged, an error."""
    suite = ElementTree.Element("testsuite", name="faperf gate")
    properties = ElementTree.SubElement(suite, "properties")
    for name, value in (
        ("baseline", report.baseline),
        ("head", report.head or ""),
        ("pinned", report.pinned or ""),
        ("dirty", ", ".join(report.dirty)),
        ("toolchains", ", ".join(report.toolchains)),
        ("command", report.command),
    ):
        ElementTree.SubElement(properties, "property", name=name, value=plain(value))
    cases = [_case(report, row) for row in report.rows]
    if report.status is not Status.FINE and all(row.status is not report.status for row in report.rows):
        cases.append(_whole(report))
    suite.extend(cases)
    counted = {
        "failures": "failure",
        "errors": "error",
        "skipped": "skipped",
    }  # nothing is: static facts are judged anyhow
    suite.set("tests", str(len(cases)))
    for attribute, tag in counted.items():
        suite.set(attribute, str(sum(case.find(tag) is not None for case in cases)))
    suites = ElementTree.Element("testsuites")
    suites.append(suite)
    ElementTree.indent(suites)
    text = ElementTree.tostring(suites, encoding="unicode").replace("##[", "#&#35;[")
    return f'<?xml version="1.0" encoding="utf-8"?>\n{text}'


def _case(report: GateReport, row: GateRow) -> ElementTree.Element:
    name = f"{row.version}[{row.target}{f', {row.workload}' if row.workload else ''}]"
    case = ElementTree.Element("testcase", classname=f"faperf.gate.{row.version}", name=plain(name), time="0")
    why = [*row.wrong, *([row.error] if row.error else [])]
    why += [r.text + (f" ({r.accepted.text})" if r.accepted else "") for r in row.regressions if r.counts]
    why += [f"cause: {row.cause}"] if row.cause else []
    facts = [f"verdict: {row.verdict}"]
    facts += [f"time against the baseline: {change_text(row.change)}"] if row.change else []
    facts += [f"TFLOPS: {row.tflops:.1f}{' (carried)' if row.carried else ''}"] if row.tflops else []
    facts += [f"accepted: {r.text} ({r.accepted.text})" for r in row.regressions if r.accepted and not r.counts]
    facts += [f"throughput unmeasured: {report.unmeasured}"] if row.verdict is Verdict.UNMEASURED else []
    facts += row.notes
    told = "\n".join([*why, *facts, f"baseline {report.baseline}", f"again: {report.command}"])
    if row.status in (Status.REGRESSION, Status.WRONG):
        _outcome(case, "failure", str(row.status.name).lower(), why, told)
    elif row.status in (Status.ERROR, Status.INCONCLUSIVE):
        _outcome(case, "error", str(row.status.name).lower(), why or [f"{row.verdict}"], told)
    ElementTree.SubElement(case, "system-out").text = plain("\n".join(facts))
    return case


def _whole(report: GateReport) -> ElementTree.Element:
    """What is wrong with no version: a disk that is full, a manifest that nobody can read."""
    case = ElementTree.Element("testcase", classname="faperf.gate", name="all", time="0")
    _outcome(case, "error", report.status.name.lower(), report.notes[:1], "\n".join(report.notes))
    return case


def _outcome(case: ElementTree.Element, tag: str, kind: str, why: list[str], text: str) -> None:
    message = plain("; ".join(why)) or kind
    ElementTree.SubElement(case, tag, type=kind, message=message).text = plain(text)
