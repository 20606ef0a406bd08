"""The house rules of design.md, read off the source: who imports whom, and who may touch git, processes and YAML."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import faperf

PACKAGE = Path(faperf.__file__).parent

# Top floor first. A module imports only from floors below its own; rooms on one floor do not know each other.
# Some rooms are planned and not built yet.
FLOORS = [
    ["__main__"],
    ["cli", "pytest_plugin"],
    ["checking"],
    ["doctor"],
    ["site"],
    ["bisect", "calibrate", "explaining", "counting", "peering"],
    ["gate"],
    ["attribution"],
    ["judging"],
    ["evidence"],
    ["trees"],
    ["harness", "looks"],
    ["measuring"],
    ["locating"],
    ["building"],
    ["figures"],
    ["report"],
    ["diagnose"],
    ["comparison"],
    ["series"],
    ["changepoints"],
    ["scaffold", "lint", "garbage"],
    ["power"],
    ["judge", "metrics"],
    ["peers"],
    ["worker", "bench", "emulating"],
    ["timing", "verify", "frames"],
    ["emulator"],
    ["job", "resolve"],
    ["device"],
    ["listing", "counters"],
    ["build", "sass", "compilers"],
    ["toolchain"],
    ["gitinfo"],
    ["history", "nvbench"],
    ["index"],
    ["record"],
    ["operations", "manifest"],
    ["arithmetic", "project", "chips", "stats", "launch", "strict"],
    ["errors", "ranksum"],
    ["control"],  # data: the control kernel
    [""],  # faperf/__init__.py: the version number
]
FLOOR = {room: number for number, rooms in enumerate(FLOORS) for room in rooms}


def modules() -> dict[str, Path]:
    """Every module of the package by its dotted name below `faperf` ("" is the package itself)."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = modules()


def imports(module: str) -> Iterator[str]:
    """The dotted name of everything that a module imports, anywhere in it: late and type-checking imports too."""
    path = MODULES[module]
    package = ["faperf", *module.split(".")] if module else ["faperf"]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package if path.name == "__init__.py" else package[:-1]
                base = ".".join([*above[: len(above) - node.level + 1], *([base] if base else [])])
            for alias in node.names:
                name = f"{base}.{alias.name}"
                yield name if base == "faperf" and alias.name in MODULES else base


def room(module: str) -> str:
    return module.partition(".")[0]


def rooms_imported(module: str) -> set[str]:
    """The rooms of this package that a module imports, other than its own."""
    names = [name for name in imports(module) if name.partition(".")[0] == "faperf"]
    return {room(name.removeprefix("faperf").removeprefix(".")) for name in names} - {room(module)}


def importers(*packages: str) -> set[str]:
    return {room(module) for module in MODULES for name in imports(module) if name.partition(".")[0] in packages}


def calls(module: str) -> set[str]:
    """What a module calls, as it is written: `os.system`, `eval`."""
    tree = ast.parse(MODULES[module].read_text(encoding="utf-8"))
    return {ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}


def test_the_reader_of_imports_sees_them() -> None:
    """So that the tests below can fail."""
    assert len(MODULES) > 20
    assert {"faperf.judge", "faperf.manifest", "faperf.record", "msgspec"} <= set(imports("comparison"))
    assert {"judge", "manifest", "record"} <= rooms_imported("comparison")
    assert "gitinfo" in rooms_imported("figures")  # a late import
    assert "record" in rooms_imported("history")  # `from faperf import record`
    assert "subprocess.run" in calls("toolchain")


@pytest.mark.parametrize("module", MODULES)
def test_every_module_has_a_floor(module: str) -> None:
    assert room(module) in FLOOR, f"add {room(module)} to FLOORS, and to design.md"


@pytest.mark.parametrize("module", MODULES)
def test_imports_go_downwards(module: str) -> None:
    own = FLOOR[room(module)]
    wrong = {name for name in rooms_imported(module) if FLOOR[name] <= own}
    assert wrong == set(), f"{module} imports from its own floor or above: {wrong}"


def test_errors_imports_nothing() -> None:
    assert set(imports("errors")) == {"__future__"}


@pytest.mark.parametrize("name", ["chips", "arithmetic"])
def test_arithmetic_needs_the_standard_library_alone(name: str) -> None:
    assert {imported.partition(".")[0] for imported in imports(name)} <= sys.stdlib_module_names


@pytest.mark.parametrize(
    ("packages", "allowed"),
    [
        (["git"], {"gitinfo"}),
        (["yaml"], {"strict"}),
        (["ruamel"], {"scaffold"}),
        (["elftools"], {"sass"}),
        (["networkx"], {"sass"}),
        (["click"], {"cli"}),
        (["pytest"], {"pytest_plugin"}),
        (["rich"], {"cli", "report"}),
        (["tabulate"], {"report"}),
        (["cupy", "cuda", "pynvml"], {"device"}),
        (["sqlite3"], {"index"}),
        (["ruptures"], {"changepoints"}),
        (["jinja2", "plotly"], {"report"}),
        (["subprocess"], {"build", "compilers", "counters", "gitinfo", "toolchain", "sass", "device", "worker"}),
        (["multiprocessing"], {"worker", "emulating"}),
        (["ast"], {"arithmetic"}),
        (["importlib"], {"cli", "operations", "device", "peers"}),
        (["torch", "triton", "flash_attn"], {"peers"}),
        (["pickle", "marshal", "shelve", "dill", "pty", "socket", "urllib", "requests", "http"], set()),
    ],
)
def test_only_one_place_knows(packages: list[str], allowed: set[str]) -> None:
    assert importers(*packages) <= allowed


def test_the_places_that_know_are_there() -> None:
    assert importers("git") == {"gitinfo"}
    assert importers("yaml") == {"strict"}
    assert importers("ruamel") == {"scaffold"}
    assert importers("subprocess") >= {"build", "toolchain", "sass", "device"}


@pytest.mark.parametrize("module", MODULES)
def test_no_code_from_text_and_no_shell(module: str) -> None:
    forbidden = {
        "eval",
        "exec",
        "compile",
        "__import__",
        "os.system",
        "os.popen",
    }
    made = calls(module)
    assert not made & forbidden
    assert not {name for name in made if name.startswith(("os.exec", "os.spawn", "os.posix_spawn"))}
    tree = ast.parse(MODULES[module].read_text(encoding="utf-8"))
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.keyword) and node.arg == "shell"]


def test_yaml_is_read_by_the_safe_loader_alone() -> None:
    """Through `_Loader`, which is one; PyYAML's other loaders and its own `load` functions are not named."""
    tree = ast.parse(MODULES["strict"].read_text(encoding="utf-8"))
    (loader,) = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "_Loader"]
    assert [ast.unparse(base) for base in loader.bases] == ["yaml.CSafeLoader"]
    named = {
        node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "yaml"
    }
    assert not {name for name in named if "load" in name.lower()} - {"CSafeLoader"}


def test_every_error_is_in_the_drawing() -> None:
    text = MODULES["errors"].read_text(encoding="utf-8")
    drawing = ast.get_docstring(ast.parse(text)) or ""
    for node in ast.parse(text).body:
        if isinstance(node, ast.ClassDef):
            assert node.name in drawing, f"{node.name} is missing in the drawing at the head of errors.py"


def test_asking_for_help_loads_nothing_heavy() -> None:
    """Each heavy import waits for the command that needs it."""
    program = "import faperf.cli, sys; print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    loaded = set(answer.stdout.split())
    assert "click" in loaded
    assert not loaded & {
        "git",
        "yaml",
        "msgspec",
        "networkx",
        "elftools",
        "rich",
        "ruamel",
        "tabulate",
        "numpy",
        "scipy",
        "cupy",
    }
