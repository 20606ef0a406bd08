"""The docs say what is true: commands have help with an example, keys and rules are listed, README's ladder is the tool's."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import click
import msgspec
import pytest

from docs.marked import block
from docs.readme_ladder import RECORDED, shown
from faperf import judge, manifest, record
from faperf.cli import cli
from tests.conftest import REPOSITORY

README = (REPOSITORY / "README.md").read_text(encoding="utf-8")


def doc(name: str) -> str:
    return (REPOSITORY / "docs" / name).read_text(encoding="utf-8")


def commands(group: click.Group = cli, prefix: str = "") -> dict[str, click.Command]:
    found: dict[str, click.Command] = {}
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        found[prefix + name] = command
        if isinstance(command, click.Group):
            found |= commands(command, f"{prefix}{name} ")
    return found


@pytest.mark.parametrize("name", commands())
def test_every_command_has_help_with_an_example_of_itself(name: str) -> None:
    help_text = commands()[name].help or ""
    example = help_text.partition("Example:")[2]
    assert f"faperf {name.split()[0]}" in example


@pytest.mark.parametrize("name", commands())
def test_every_option_has_help(name: str) -> None:
    for parameter in commands()[name].params:
        if isinstance(parameter, click.Option) and parameter.name != "days":
            assert parameter.help, f"faperf {name} {parameter.opts[0]}"


@pytest.mark.parametrize("name", [name for name in commands() if " " not in name])
def test_the_readme_names_every_command(name: str) -> None:
    assert f"`faperf {name}" in README


def test_the_readme_names_no_option_that_is_not_there() -> None:
    known = {option for command in [cli, *commands().values()] for p in command.params for option in p.opts}
    own = re.sub(r"pip install .*|pytest --faperf", "", README)
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", own)) - {"--help"} <= known


@pytest.mark.parametrize(
    "kind",
    [
        manifest.Version,
        manifest.Launch,
        manifest.Argument,
        manifest.Budgets,
        manifest.Notes,
        manifest.Tolerance,
        manifest.Tile,
        manifest.Accepted,
    ],
)
def test_every_manifest_key_is_documented(kind: type[msgspec.Struct]) -> None:
    text = doc("manifest.md")
    for field in msgspec.structs.fields(kind):
        assert re.search(rf"\b{field.encode_name}:?", text), f"{kind.__name__}.{field.encode_name}"


def test_the_manifest_of_the_docs_is_one(tmp_path: Path) -> None:
    example = doc("manifest.md").partition("```yaml\n")[2].partition("```")[0]
    path = tmp_path / "v16-i16.yaml"
    path.write_text(example.replace("<build key>", "b0123"), encoding="utf-8")
    assert manifest.decode_yaml(path, path.name, manifest.Version).id == "v16-i16"


@pytest.mark.parametrize(
    "kind",
    [
        record.Build,
        record.KernelFacts,
        record.Run,
        record.Entry,
        record.Check,
        record.Timing,
        record.Calibration,
        record.Counters,
        record.PeerResult,
        record.Hot,
        record.External,
        record.Pair,
        record.Interval,
        record.Reported,
        record.ReportedLadder,
    ],
)
def test_every_record_field_is_documented(kind: type[msgspec.Struct]) -> None:
    text = doc("records.md")
    for field in kind.__struct_encode_fields__:
        assert f"`{field}`" in text, f"{kind.__name__}.{field}"


def test_every_rule_and_threshold_is_documented() -> None:
    text = doc("static-facts.md")
    for rule in judge.Rule:
        assert f"| {rule} |" in text
    for field in msgspec.structs.fields(judge.Thresholds):
        assert f"{field.name} = {field.default}" in text


def test_links_in_the_docs_lead_somewhere() -> None:
    for page in [REPOSITORY / "README.md", REPOSITORY / "CONTRIBUTING.md", *(REPOSITORY / "docs").glob("*.md")]:
        for link in re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8")):
            assert (page.parent / link).exists(), f"{page.name}: {link}"


@pytest.mark.parametrize("name", RECORDED)
def test_the_ladders_of_the_readme_are_what_the_records_say(name: str) -> None:
    _, commit = RECORDED[name]
    there = ["git", "cat-file", "-e", f"{commit}^{{commit}}"]
    if subprocess.run(there, cwd=REPOSITORY, capture_output=True).returncode:
        pytest.skip("the commit that was recorded is not in this clone")
    assert block(REPOSITORY / "README.md", name) == shown(name), "make readme"
