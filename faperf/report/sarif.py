"""A gate as SARIF 2.1.0: what its findings are about, at lines of the sources, for code scanning and editors."""

from __future__ import annotations

import hashlib
from collections import Counter
from pathlib import PurePosixPath
from typing import Any

from faperf import __version__
from faperf.comparison import GateReport
from faperf.judge import METRICS, Rule
from faperf.report.actions import annotations_of, in_repository
from faperf.report.tables import as_json, plain

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
WORDS = {
    "time": "The kernel takes longer than at the baseline.",
    "compile": "The version does not compile.",
    "manifest": "The manifest cannot be read.",
    "wrong result": "The kernel gives a wrong result.",
    **{rule.name.lower(): f"A finding of the rule '{rule}'." for rule in Rule},
}
NAMES = (*METRICS, "compile", "manifest", "wrong result")


def gate_sarif(report: GateReport) -> str:
    """One result an annotation. Its fingerprint has neither line nor figures in it: it stays the same one when code moves."""
    results = []
    ordinals: Counter[str] = Counter()
    for annotation in annotations_of(report):
        place: dict[str, Any] = {
            "artifactLocation": {"uri": _uri(in_repository(report, annotation.file)), "uriBaseId": "%SRCROOT%"}
        }
        if annotation.line:
            place["region"] = {"startLine": annotation.line}
        subject = f"{annotation.rule}\0{annotation.file}\0{annotation.text.partition(':')[0]}"
        identity = f"{subject}\0{ordinals[subject]}"
        ordinals[subject] += 1
        results.append(
            {
                "ruleId": _id(annotation.rule),
                "ruleIndex": NAMES.index(annotation.rule),
                "level": annotation.level,
                "message": {"text": plain(annotation.text)},
                "locations": [{"physicalLocation": place}],
                "partialFingerprints": {"faperfFinding/v1": hashlib.sha256(identity.encode()).hexdigest()[:32]},
                "baselineState": "new" if annotation.new else "unchanged",
            }
        )
    rules = [{"id": _id(name), "shortDescription": {"text": WORDS[name]}} for name in NAMES]
    driver = {"name": "faperf", "version": __version__, "rules": rules}
    run = {
        "tool": {"driver": driver},
        "results": results,
        "columnKind": "unicodeCodePoints",
        "properties": {"baseline": report.baseline, "head": report.head, "command": report.command},
    }
    return as_json({"$schema": SCHEMA, "version": "2.1.0", "runs": [run]})


def _uri(path: str) -> str:
    """A relative path as a URI reference."""
    return PurePosixPath("/", path).as_uri().removeprefix("file:///")


def _id(rule: str) -> str:
    return f"faperf/{rule.replace(' ', '-').replace('_', '-')}"
