"""Which compiler is found, by which rule, and what is said where something is missing. The tools are small shell scripts."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from faperf.errors import ToolchainError
from faperf.toolchain import Toolchain, find_toolchain, scrubbed_environment
from tests.compiling import script

NVCC = """\
case "$*" in
*--version*)
    echo 'nvcc: NVIDIA (R) Cuda compiler driver'
    echo 'Cuda compilation tools, release 13.{minor}, V13.{minor}.88'
    echo 'Build cuda_13.{minor}.r13.{minor}/compiler.1_0'
    ;;
*--dryrun*) echo '#$ INCLUDES="-I{home}/include"  ' ;;
esac"""

HOST = """\
case "$*" in
*-dumpfullversion*) echo 12.2.0 ;;
*)
    echo '#include "..." search starts here:'
    echo '#include <...> search starts here:'
    echo ' {home}/c++/12'
    echo ' {home}/include'
    echo 'End of search list.'
    ;;
esac"""


def toolkit(home: Path, minor: int, *, disassembler: bool = True) -> Path:
    """An nvcc 13.`minor` in home/bin, with its nvdisasm beside it. Returns the bin directory."""
    script(home / "bin" / "nvcc", NVCC.format(minor=minor, home=home))
    if disassembler:
        script(home / "bin" / "nvdisasm", "exit 0")
    return home / "bin"


@pytest.fixture(autouse=True)
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    """Five homes of a toolkit, all empty and all looked at, and a C++ compiler on a PATH with nothing else."""
    for name in ("FAPERF_NVCC", "CUDA_HOME"):
        monkeypatch.delenv(name, raising=False)
    script(tmp_path / "host" / "g++", HOST.format(home=tmp_path / "host"))
    site = tmp_path / "site-packages"
    monkeypatch.setattr(sys, "path", [str(site)])
    monkeypatch.setenv("PATH", f"{tmp_path / 'path' / 'bin'}:{tmp_path / 'host'}")
    return {
        "--nvcc": tmp_path / "explicit",
        "FAPERF_NVCC": tmp_path / "variable",
        "this environment's wheels": site / "nvidia" / "cu13",
        "CUDA_HOME": tmp_path / "cuda",
        "PATH": tmp_path / "path",
    }


def test_search_order(places: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """All five are there; taking the first away leaves the next one."""
    for minor, home in enumerate(places.values()):
        toolkit(home, minor)
    monkeypatch.setenv("FAPERF_NVCC", str(places["FAPERF_NVCC"] / "bin" / "nvcc"))
    monkeypatch.setenv("CUDA_HOME", str(places["CUDA_HOME"]))

    def found(nvcc: str | None = None) -> tuple[str, Path, str]:
        toolchain = find_toolchain(nvcc)
        assert toolchain.nvdisasm == toolchain.nvcc.parent / "nvdisasm"
        return toolchain.origin, toolchain.nvcc, toolchain.identity.nvcc

    def expected(origin: str) -> tuple[str, Path, str]:
        return origin, places[origin] / "bin" / "nvcc", f"13.{list(places).index(origin)}.88"

    assert found(str(places["--nvcc"] / "bin" / "nvcc")) == expected("--nvcc")
    assert found() == expected("FAPERF_NVCC")
    monkeypatch.delenv("FAPERF_NVCC")
    assert found() == expected("this environment's wheels")
    (places["this environment's wheels"] / "bin" / "nvcc").unlink()
    (places["this environment's wheels"] / "bin" / "nvdisasm").unlink()
    assert found() == expected("CUDA_HOME")
    monkeypatch.delenv("CUDA_HOME")
    assert found() == expected("PATH")


def test_the_newest_of_several_wheels(places: dict[str, Path]) -> None:
    wheels = places["this environment's wheels"]
    toolkit(wheels.with_name("cu12"), 2)
    toolkit(wheels, 3)
    assert find_toolchain().nvcc == wheels / "bin" / "nvcc"


def test_a_cuda_home_without_nvcc_is_passed_over(places: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_HOME", str(places["CUDA_HOME"]))
    toolkit(places["PATH"], 4)
    assert find_toolchain().origin == "PATH"


def test_what_is_known_of_the_tools(places: dict[str, Path], tmp_path: Path) -> None:
    toolkit(places["PATH"], 0)
    toolchain = find_toolchain()
    assert toolchain.identity.nvcc == "13.0.88"
    assert toolchain.identity.build == "cuda_13.0.r13.0/compiler.1_0"
    assert toolchain.identity.host == "g++ 12.2.0"
    assert toolchain.host == tmp_path / "host" / "g++"
    assert toolchain.includes == (places["PATH"] / "include",)
    assert toolchain.host_includes == (tmp_path / "host" / "c++" / "12", tmp_path / "host" / "include")


def test_a_relative_path_is_meant_from_where_faperf_is_called(
    places: dict[str, Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Builds run in the project's root."""
    toolkit(places["--nvcc"], 0)
    monkeypatch.chdir(tmp_path)
    assert find_toolchain("./explicit/bin/nvcc").nvcc == places["--nvcc"] / "bin" / "nvcc"


def test_no_nvcc_at_all() -> None:
    with pytest.raises(ToolchainError, match="no nvcc") as caught:
        find_toolchain()
    assert caught.value.remedy == "pip install 'faperf[toolchain]'"
    for place in ("--nvcc", "FAPERF_NVCC", "wheels", "CUDA_HOME", "PATH"):
        assert place in caught.value.what


@pytest.mark.parametrize("kind", ["absent", "a directory", "not executable"])
@pytest.mark.parametrize("origin", ["--nvcc", "FAPERF_NVCC"])
def test_a_named_nvcc_is_not_replaced_by_another_one(
    places: dict[str, Path], monkeypatch: pytest.MonkeyPatch, origin: str, kind: str
) -> None:
    toolkit(places["PATH"], 0)
    named = places[origin] / "bin" / "nvcc"
    if kind == "a directory":
        named.mkdir(parents=True)
    elif kind == "not executable":
        toolkit(places[origin], 1)
        named.chmod(0o644)
    if origin == "FAPERF_NVCC":
        monkeypatch.setenv("FAPERF_NVCC", str(named))
    with pytest.raises(ToolchainError, match="is no program") as caught:
        find_toolchain(str(named) if origin == "--nvcc" else None)
    assert caught.value.where == origin
    assert str(named) in caught.value.what
    assert caught.value.remedy


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("echo gcc 12.2.0", "does not answer as nvcc does"),
        ("exit 0", "does not answer as nvcc does"),
        ("printf '\\377\\376'", "does not answer as nvcc does"),
        ("exit 3", "does not run"),
    ],
)
def test_an_nvcc_that_is_none(places: dict[str, Path], body: str, said: str) -> None:
    nvcc = script(places["--nvcc"] / "nvcc", body)
    with pytest.raises(ToolchainError, match=said) as caught:
        find_toolchain(str(nvcc))
    assert caught.value.where == str(nvcc)
    assert caught.value.remedy == "pip install 'faperf[toolchain]'"


def test_an_nvcc_of_another_kind_of_machine(places: dict[str, Path]) -> None:
    nvcc = places["--nvcc"]
    nvcc.write_bytes(b"\x7fELF not for this machine")
    nvcc.chmod(0o755)
    with pytest.raises(ToolchainError, match="does not run"):
        find_toolchain(str(nvcc))


# ── the disassembler ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_no_nvdisasm(places: dict[str, Path]) -> None:
    toolkit(places["PATH"], 0, disassembler=False)
    with pytest.raises(ToolchainError, match="no nvdisasm") as caught:
        find_toolchain()
    assert caught.value.remedy == "pip install 'faperf[disassembler]'"
    assert str(places["PATH"] / "bin" / "nvcc") in caught.value.what


@pytest.mark.parametrize("where", ["this environment's wheels", "CUDA_HOME", "PATH"])
def test_an_nvdisasm_elsewhere(places: dict[str, Path], monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    nvcc = toolkit(places["--nvcc"], 0, disassembler=False) / "nvcc"
    expected = script(places[where] / "bin" / "nvdisasm", "exit 0")
    monkeypatch.setenv("CUDA_HOME", str(places["CUDA_HOME"]))
    assert find_toolchain(str(nvcc)).nvdisasm == expected


def test_the_nvdisasm_beside_nvcc_comes_first(places: dict[str, Path]) -> None:
    """Also where nvcc is a link into its toolkit."""
    script(places["this environment's wheels"] / "bin" / "nvdisasm", "exit 0")
    home = toolkit(places["CUDA_HOME"], 0)
    link = places["PATH"] / "bin" / "nvcc"
    link.parent.mkdir(parents=True)
    link.symlink_to(home / "nvcc")
    assert find_toolchain().nvdisasm == home / "nvdisasm"


# ── the host compiler ────────────────────────────────────────────────────────────────────────────────────────────────


def test_no_host_compiler(places: dict[str, Path], tmp_path: Path) -> None:
    toolkit(places["PATH"], 0)
    (tmp_path / "host" / "g++").unlink()
    with pytest.raises(ToolchainError, match=r"no C\+\+ compiler on PATH") as caught:
        find_toolchain()
    assert "g++" in str(caught.value.remedy)


def test_another_host_compiler(places: dict[str, Path], tmp_path: Path) -> None:
    toolkit(places["PATH"], 0)
    (tmp_path / "host" / "g++").rename(tmp_path / "host" / "clang++")
    assert find_toolchain().identity.host == "clang++ 12.2.0"


# ── the environment ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_environment_is_scrubbed(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (
        "NVCC_APPEND_FLAGS",
        "NVCC_PREPEND_FLAGS",
        "NVCC_CCBIN",
        "CPATH",
        "CPLUS_INCLUDE_PATH",
        "GCC_EXEC_PREFIX",
    ):
        monkeypatch.setenv(name, "/somewhere")
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    monkeypatch.setenv("TMPDIR", "/elsewhere")
    environment = scrubbed_environment()
    assert set(environment) <= {"PATH", "HOME", "TMPDIR", "TEMP", "TMP", "SYSTEMROOT", "LC_ALL"}
    assert environment["LC_ALL"] == "C"  # messages are read
    assert environment["TMPDIR"] == "/elsewhere"
    assert environment["PATH"] == os.environ["PATH"]


def test_a_tool_is_asked_in_that_environment(
    places: dict[str, Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("NVCC_APPEND_FLAGS", "-DX")
    script(places["PATH"] / "bin" / "nvcc", f'echo "[$NVCC_APPEND_FLAGS]" > {tmp_path}/seen\necho V13.0.88')
    script(places["PATH"] / "bin" / "nvdisasm", "exit 0")
    find_toolchain()
    assert (tmp_path / "seen").read_text() == "[]\n"


@pytest.mark.compile
def test_the_real_one(toolchain: Toolchain) -> None:
    assert toolchain.identity.nvcc.count(".") == 2
    assert any((directory / "cuda_runtime.h").is_file() for directory in toolchain.includes)
    assert any((directory / "stdlib.h").is_file() for directory in toolchain.host_includes)
