"""Compilers beside the one at hand. pip is the real one, its index a directory of wheels whose tools are small scripts."""

from __future__ import annotations

import base64
import hashlib
import os
import signal
import subprocess
import sys
import time
import venv
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from faperf.building import Workshop
from faperf.compilers import add, added, default, remove
from faperf.errors import SelectionError, ToolchainError
from faperf.toolchain import Toolchain, added_toolchains, find_toolchain
from tests.compiling import script, version_of
from tests.conftest import KERNEL, Answer, UserProject, cli_in

NVCC = """\
#!/bin/sh
case "$*" in
*--version*) echo 'Cuda compilation tools, release {release}, V{version}' ;;
*--dryrun*) echo '#$ INCLUDES="-I'"$(dirname "$0")/../include"'"  ' ;;
*) {compile} ;;
esac
"""
COMPILE = "for last; do :; done; echo 'a cubin' > \"$last\""  # the last argument is what -o names
NVDISASM = "#!/bin/sh\necho '.global empty'\n"
HOME = "nvidia/cu13"
PARTS = [  # what the wheel of nvcc itself does not ask for in every release
    ("cccl", "nvidia_cuda_cccl", "include/cccl/nv/target"),
    ("crt", "nvidia_cuda_crt", "include/crt/host_config.h"),
    ("cudart", "nvidia_cuda_runtime", "include/cuda_runtime.h"),
    ("nvvm", "nvidia_nvvm", "nvvm/bin/cicc"),
]


class Index:
    """A directory of wheels that pip takes for PyPI."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.mkdir()

    def wheel(self, name: str, version: str, files: dict[str, str], metadata: str = "") -> None:
        """One wheel; what lies in a bin/ is executable."""
        stem = f"{name}-{version}"
        facts = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{metadata}"
        tags = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        content = {**files, f"{stem}.dist-info/METADATA": facts, f"{stem}.dist-info/WHEEL": tags}
        digests = [
            f"{path},sha256={base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b'=').decode()},"
            for path, text in content.items()
        ]
        record = f"{stem}.dist-info/RECORD"
        with zipfile.ZipFile(self.directory / f"{stem}-py3-none-any.whl", "w") as wheel:
            for path, text in {**content, record: "\n".join([*digests, f"{record},,"]) + "\n"}.items():
                entry = zipfile.ZipInfo(path)
                entry.external_attr = (0o100755 if "/bin/" in path else 0o100644) << 16
                wheel.writestr(entry, text)

    def release(self, version: str, toolkit: str, *, nvcc: str | None = None, disassembler: bool = True) -> None:
        """The wheels of one CUDA release: NVIDIA's cuda-toolkit pins the parts, which have numbers of their own."""
        release = version.rpartition(".")[0]
        program = nvcc or NVCC.format(release=release, version=version, compile=COMPILE)
        self.wheel("nvidia_cuda_nvcc", version, {f"{HOME}/bin/nvcc": program})
        pins = {"nvcc": f"nvidia-cuda-nvcc=={version}.*"}
        for extra, part, file in PARTS:
            self.wheel(part, f"13.3.{version}", {f"{HOME}/{file}": ""})
            pins[extra] = f"{part}==13.3.{version}.*"
        if disassembler:
            self.wheel("nvidia_cuda_nvdisasm", version, {f"{HOME}/bin/nvdisasm": NVDISASM})
            pins["nvdisasm"] = f"nvidia-cuda-nvdisasm=={version}.*"
        extras = [f"Provides-Extra: {extra}\nRequires-Dist: {pin}; extra == '{extra}'\n" for extra, pin in pins.items()]
        self.wheel("cuda_toolkit", toolkit, {}, "".join(extras))


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Index:
    """CUDA 13.0 (two of them, without a disassembler), 13.4 and 13.5, and a pip that sees nothing else."""
    pytest.importorskip("pip")
    index = Index(tmp_path / "index")
    index.release("13.0.48", "13.0.0", disassembler=False)
    index.release("13.0.88", "13.0.2", disassembler=False)
    index.release("13.4.59", "13.4.1.0")
    index.release("13.5.37", "13.5.0")
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index.directory))
    return index


@pytest.fixture(autouse=True)
def at_hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The nvcc that is used without a name: a 13.2."""
    home = tmp_path / "cuda"
    nvcc = script(home / "bin" / "nvcc", NVCC.format(release="13.2", version="13.2.78", compile=COMPILE))
    script(home / "bin" / "nvdisasm", NVDISASM)
    monkeypatch.setenv("FAPERF_NVCC", str(nvcc))
    return nvcc


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    return tmp_path / "toolchains"


def left_in(installed: Path) -> list[str]:
    return sorted(path.name for path in installed.glob("*"))


# ── add ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_add(index: Index, installed: Path) -> None:
    compiler = add(installed, "13.5")
    assert compiler.nvcc == "13.5.37"
    assert Path(compiler.path) == installed / "13.5.37" / HOME / "bin" / "nvcc"
    assert left_in(installed) == ["13.5.37"]
    toolchain = find_toolchain(compiler.path)
    assert toolchain.identity.nvcc == "13.5.37"
    assert toolchain.nvdisasm == installed / "13.5.37" / HOME / "bin" / "nvdisasm"
    assert toolchain.includes == ((installed / "13.5.37" / HOME / "include").resolve(),)
    for _, _, file in PARTS:
        assert (installed / "13.5.37" / HOME / file).is_file()
    files = subprocess.run(["find", installed / "13.5.37", "-type", "f", "-printf", "%s\n"], capture_output=True)
    assert compiler.size == sum(int(size) for size in files.stdout.split())


def test_the_newest_of_a_release_with_a_newer_disassembler_where_it_has_none(index: Index, installed: Path) -> None:
    assert add(installed, "13.0").nvcc == "13.0.88"
    assert (installed / "13.0.88" / HOME / "bin" / "nvdisasm").is_file()
    assert list((installed / "13.0.88").glob("nvidia_cuda_nvdisasm-13.5.37.dist-info"))


def test_an_exact_nvcc_with_the_parts_of_its_own_toolkit(index: Index, installed: Path) -> None:
    assert add(installed, "13.0.48").nvcc == "13.0.48"
    assert list((installed / "13.0.48").glob("nvidia_cuda_cccl-13.3.13.0.48.dist-info"))
    assert add(installed, "13.0.88").nvcc == "13.0.88"
    assert left_in(installed) == ["13.0.48", "13.0.88"]


def test_what_is_there_is_not_downloaded_again(
    index: Index, installed: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    first = add(installed, "13.5")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "nowhere"))
    assert add(installed, "13.5") == first == add(installed, "13.5.37")
    with pytest.raises(ToolchainError):
        add(installed, "13.4")


def test_what_someone_left_without_an_nvcc_is_replaced(index: Index, installed: Path) -> None:
    nvcc = Path(add(installed, "13.5").path)
    nvcc.unlink()
    assert added(installed) == []
    add(installed, "13.5")
    assert nvcc.is_file()


@pytest.mark.parametrize("release", ["13.9", "13.0.49", "12.9"])
def test_a_release_that_does_not_exist(index: Index, installed: Path, release: str) -> None:
    with pytest.raises(ToolchainError, match=f"PyPI has no nvcc {release}") as caught:
        add(installed, release)
    assert caught.value.remedy == "there are: 13.0.48, 13.0.88, 13.4.59, 13.5.37"
    assert left_in(installed) == []


@pytest.mark.parametrize("release", ["13", "13.x", "13.5.37.1", "", "13.5 --index-url=x", "../13.5", "13.5\n"])
def test_what_is_no_release(index: Index, installed: Path, release: str) -> None:
    with pytest.raises(SelectionError, match="is no release of CUDA"):
        add(installed, release)
    assert not installed.exists()


def test_offline(index: Index, installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.delenv("PIP_FIND_LINKS")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:1/simple")
    monkeypatch.setenv("PIP_RETRIES", "0")
    with pytest.raises(ToolchainError, match=r"cannot install CUDA 13\.5: No matching distribution") as caught:
        add(installed, "13.5")
    assert "connection to PyPI" in str(caught.value.remedy)
    assert left_in(installed) == []


def test_a_part_that_is_missing_is_named_by_pip(index: Index, installed: Path) -> None:
    next(index.directory.glob("nvidia_cuda_cccl-13.3.13.5.37-*")).unlink()
    with pytest.raises(ToolchainError, match=r"cannot install CUDA 13\.5: No matching .*cccl"):
        add(installed, "13.5")
    assert left_in(installed) == []


def test_no_source_package_is_built(index: Index, installed: Path, tmp_path: Path) -> None:
    """An older PyPI package of nvcc's name is one: to build it is to run its code."""
    marker = tmp_path / "ran"
    source = tmp_path / "nvidia-cuda-nvcc-13.7.1"
    source.mkdir()
    (source / "setup.py").write_text(f"open({str(marker)!r}, 'w')\nimport setuptools\nsetuptools.setup()\n")
    subprocess.run(["tar", "czf", f"{index.directory / source.name}.tar.gz", source.name], cwd=tmp_path, check=True)
    with pytest.raises(ToolchainError, match=r"PyPI has no nvcc 13\.7"):
        add(installed, "13.7")
    assert not marker.exists()


def test_a_module_of_the_current_directory_is_not_pip(
    index: Index, installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pip.py").write_text("raise SystemExit('a stranger')")
    monkeypatch.chdir(tmp_path)
    assert add(installed, "13.5").nvcc == "13.5.37"


def test_a_python_without_pip(installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    venv.create(tmp_path / "bare", symlinks=True)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bare" / "bin" / "python"))
    with pytest.raises(ToolchainError, match="this Python has no pip") as caught:
        add(installed, "13.5")
    assert caught.value.remedy == f"{tmp_path}/bare/bin/python -m ensurepip, then again"
    assert left_in(installed) == []


@pytest.mark.parametrize(
    ("nvcc", "said"),
    [
        (NVCC.format(release="13.6", version="13.6.1", compile="echo 'no such host'; exit 2"), "nvcc does not run: .*host"),
        (NVCC.format(release="13.6", version="13.6.1", compile=COMPILE).replace("V13", "W13"), "does not answer as nvcc"),
        (NVCC.format(release="13.6", version="13.6.1", compile=COMPILE).replace('"$(', '"/usr$('), "not its own: /usr/"),
    ],
    ids=["does not compile", "is no nvcc", "takes others' headers"],
)  # fmt: skip
def test_a_compiler_that_does_not_work_is_not_kept(index: Index, installed: Path, nvcc: str, said: str) -> None:
    index.release("13.6.1", "13.6.0", nvcc=nvcc)
    with pytest.raises(ToolchainError, match=f"(?s)CUDA 13.6 .*{said}"):
        add(installed, "13.6")
    assert left_in(installed) == []


def test_a_disassembler_that_reads_nothing(index: Index, installed: Path) -> None:
    index.release("13.6.1", "13.6.0")
    index.wheel("nvidia_cuda_nvdisasm", "13.6.1", {f"{HOME}/bin/nvdisasm": "#!/bin/sh\n"})
    with pytest.raises(ToolchainError, match="nvdisasm does not read"):
        add(installed, "13.6")
    assert left_in(installed) == []


def test_a_disassembler_of_another_toolkit_does_not_do(
    index: Index, installed: Path, at_hand: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_HOME", str(at_hand.parents[1]))
    index.release("13.6.1", "13.6.0")
    index.wheel("nvidia_cuda_nvdisasm", "13.6.1", {})
    with pytest.raises(ToolchainError, match=r"not its own: .*nvdisasm"):
        add(installed, "13.6")


def test_wheels_without_an_nvcc(index: Index, installed: Path) -> None:
    index.release("13.6.1", "13.6.0")
    index.wheel("nvidia_cuda_nvcc", "13.6.1", {})
    with pytest.raises(ToolchainError, match="lay down no nvcc"):
        add(installed, "13.6")


# ── interrupted ──────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("ended_by", "left"), [(signal.SIGINT, []), (signal.SIGKILL, [".tmp-"])])
def test_an_interrupted_install_leaves_nothing_that_is_found(
    index: Index, bare: UserProject, tmp_path: Path, ended_by: signal.Signals, left: list[str]
) -> None:
    """At the worst moment: all is laid down, and being tried. What a kill leaves, gc takes."""
    marker = tmp_path / "trying"
    slow = NVCC.format(release="13.6", version="13.6.1", compile=f"touch {marker}; sleep 60")
    index.release("13.6.1", "13.6.0", nvcc=slow)
    command = [sys.executable, "-m", "faperf", "toolchain", "add", "13.6"]
    process = subprocess.Popen(command, cwd=bare.root, stderr=subprocess.PIPE, text=True, start_new_session=True)
    end = time.monotonic() + 60
    while not marker.exists():
        assert time.monotonic() < end, "was not tried"
        time.sleep(0.02)
    os.killpg(process.pid, ended_by)
    process.communicate(timeout=60)
    assert process.returncode == {signal.SIGINT: 130, signal.SIGKILL: -signal.SIGKILL}[ended_by]
    installed = bare.project.toolchains
    assert [name[:5] for name in left_in(installed)] == left
    assert added_toolchains(installed) == {}
    for path in installed.glob(".tmp-*"):
        os.utime(path, (0, 0))
    cli_in(bare.root)("gc")
    assert left_in(installed) == []


# ── by name ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def lay(installed: Path) -> Callable[[str], Path]:
    """Lay down an added compiler without pip."""

    def call(version: str) -> Path:
        home = installed / version / HOME
        program = NVCC.format(release=version.rpartition(".")[0], version=version, compile=COMPILE)
        script(home / "bin" / "nvdisasm", NVDISASM)
        return script(home / "bin" / "nvcc", program)

    return call


@pytest.mark.parametrize(
    ("name", "version"),
    [("13.5", "13.5.37"), ("13.5.37", "13.5.37"), ("13.0", "13.0.88"), ("13.0.9", "13.0.9"), ("13.1", "13.1.115")],
)
def test_the_newest_of_a_name(lay: Callable[[str], Path], installed: Path, name: str, version: str) -> None:
    nvccs = {v: lay(v) for v in ("13.0.88", "13.0.9", "13.1.80", "13.1.115", "13.5.37", "13.50.1")}
    found = find_toolchain(name, installed=installed)
    assert (found.nvcc, found.identity.nvcc) == (nvccs[version], version)
    assert found.origin == "faperf toolchain add"
    assert found.nvdisasm == found.nvcc.parent / "nvdisasm"
    assert found.includes == ((nvccs[version].parents[1] / "include").resolve(),)


@pytest.mark.parametrize("name", ["13.5", "13.5.38", "1.5", "3.5"])
def test_an_unknown_name_says_how_to_add_it(lay: Callable[[str], Path], installed: Path, name: str) -> None:
    lay("13.50.1")
    with pytest.raises(ToolchainError, match=rf"no CUDA {name} is at hand \(added: 13\.50\.1\)") as caught:
        find_toolchain(name, installed=installed)
    assert caught.value.remedy == f"faperf toolchain add {name}"


def test_a_name_without_a_project(at_hand: Path) -> None:
    with pytest.raises(ToolchainError, match=r"no CUDA 13\.5 is at hand \(added: none\)"):
        find_toolchain("13.5")


def test_the_compiler_at_hand_has_a_name_too(lay: Callable[[str], Path], installed: Path, at_hand: Path) -> None:
    """`gate --toolchain 13.2 --toolchain 13.5` needs no second 13.2; one that was added goes first."""
    assert find_toolchain("13.2", installed=installed).nvcc == at_hand
    assert find_toolchain("13.2", installed=installed).origin == "FAPERF_NVCC"
    theirs = lay("13.2.51")
    assert find_toolchain("13.2", installed=installed).nvcc == theirs
    assert find_toolchain("13.2.78", installed=installed).nvcc == at_hand


def test_a_name_in_the_variable(
    lay: Callable[[str], Path], installed: Path, at_hand: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nvcc = lay("13.5.37")
    monkeypatch.setenv("FAPERF_NVCC", "13.5")
    assert find_toolchain(installed=installed).nvcc == nvcc
    assert find_toolchain(str(at_hand), installed=installed).nvcc == at_hand
    with pytest.raises(ToolchainError, match=r"no CUDA 13\.4 "):
        find_toolchain("13.4", installed=installed)
    monkeypatch.setenv("FAPERF_NVCC", "13.4")
    with pytest.raises(ToolchainError, match=r"no CUDA 13\.4 ") as caught:
        find_toolchain(installed=installed)
    assert caught.value.where == "FAPERF_NVCC"


def test_a_file_of_such_a_name(at_hand: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "13.5").symlink_to(at_hand)
    monkeypatch.chdir(tmp_path)
    assert find_toolchain("./13.5").nvcc == tmp_path / "13.5"


def test_what_is_no_compiler_is_not_listed(lay: Callable[[str], Path], installed: Path) -> None:
    lay("13.5.37")
    lay("13.4.59").unlink()
    script(installed / ".tmp-x" / HOME / "bin" / "nvcc", "exit 0")
    script(installed / "mine" / HOME / "bin" / "nvcc", "exit 0")
    assert list(added_toolchains(installed)) == ["13.5.37"]
    assert added_toolchains(installed / "none") == {}


# ── list and remove ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_list(lay: Callable[[str], Path], installed: Path, at_hand: Path) -> None:
    nvccs = [lay("13.1.115"), lay("13.1.80")]
    assert [(c.nvcc, c.path) for c in added(installed)] == [("13.1.80", str(nvccs[1])), ("13.1.115", str(nvccs[0]))]
    there = default(installed)
    assert (there.nvcc, there.origin, there.path, there.size) == (
        "13.2.78",
        "FAPERF_NVCC (default)",
        str(at_hand),
        None,
    )


def test_remove(lay: Callable[[str], Path], installed: Path) -> None:
    for version in ("13.4.59", "13.4.92", "13.5.37"):
        lay(version)
    assert remove(installed, "13.5").nvcc == "13.5.37"
    assert left_in(installed) == ["13.4.59", "13.4.92"]
    with pytest.raises(SelectionError, match=r"13\.4 is more than one") as caught:
        remove(installed, "13.4")
    assert caught.value.remedy == "name one of 13.4.59, 13.4.92"
    assert remove(installed, "13.4.92").nvcc == "13.4.92"
    assert left_in(installed) == ["13.4.59"]


@pytest.mark.parametrize("release", ["13.5", "..", "", "13.4.59/.."])
def test_only_what_was_added_is_removed(lay: Callable[[str], Path], installed: Path, release: str) -> None:
    lay("13.4.59")
    with pytest.raises(SelectionError, match="was added") as caught:
        remove(installed, release)
    assert caught.value.remedy == "name one of 13.4.59"
    assert left_in(installed) == ["13.4.59"]


# ── the commands ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_commands(index: Index, bare: UserProject, at_hand: Path) -> None:
    def faperf(*arguments: str) -> Answer:
        return cli_in(bare.root)(*arguments)

    unknown = faperf("doctor", "--nvcc", "13.5")
    assert unknown.exit_code == 1
    assert "faperf toolchain add 13.5" in unknown.stdout
    answer = faperf("toolchain", "add", "13.5")
    assert answer.exit_code == 0, answer.stderr
    assert answer.stdout.startswith("nvcc 13.5.37, 0 MB: .faperf/toolchains/13.5.37/nvidia/cu13/bin/nvcc\n")
    assert (bare.root / ".faperf/.gitignore").exists()
    assert faperf("doctor", "--nvcc", "13.5").exit_code == 0
    assert Workshop.open(bare.project, nvcc="13.5").toolchain.identity.nvcc == "13.5.37"
    listed = [line.split("  ") for line in faperf("toolchain", "list").stdout.splitlines()[2:]]
    assert [(row[0], row[1].strip()) for row in listed] == [
        ("13.2.78", "FAPERF_NVCC (default)"),
        ("13.5.37", "faperf toolchain add"),
    ]
    assert faperf("gc", "--all").exit_code == 0
    assert '"nvcc": "13.5.37"' in faperf("toolchain", "list", "--format", "json").stdout
    assert faperf("toolchain", "add", "13.9").exit_code == 1
    assert faperf("toolchain", "add", "newest").exit_code == 2
    assert faperf("toolchain", "remove", "13.5").stdout == "removed nvcc 13.5.37, 0 MB\n"
    assert faperf("toolchain", "remove", "13.5").exit_code == 2
    at_hand.write_text("#!/bin/sh\nexit 1\n")
    broken = faperf("toolchain", "list")
    assert broken.exit_code == 0
    assert "without --nvcc: " in broken.stderr


# ── the real ones ────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.network
@pytest.mark.compile
@pytest.mark.skipif(
    not os.environ.get("FAPERF_NETWORK_TESTS"), reason="downloads a compiler (140 MB); FAPERF_NETWORK_TESTS=1 runs it"
)
def test_a_real_one_builds_beside_the_one_at_hand(
    toolchain: Toolchain, bare: UserProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own headers, its own key, and cubins that its own disassembler reads."""
    from faperf.build import Builder
    from faperf.sass import inspect

    compiler = add(bare.project.toolchains, "13.5")
    second = Workshop.open(bare.project, nvcc="13.5").toolchain
    home = bare.project.toolchains / compiler.nvcc / HOME
    assert second.identity.nvcc == compiler.nvcc != toolchain.identity.nvcc
    assert second.nvdisasm == home / "bin" / "nvdisasm"
    assert second.includes == ((home / "include").resolve(), (home / "include" / "cccl").resolve())
    bare.write("kernels/k.cu", "#include <cuda_fp16.h>\n" + KERNEL.format(id="k", factor="2.0f"))
    cache = bare.project.state / "cache"
    builds = [
        Builder(bare.root, cache, tools).build(version_of("kernels/k.cu"), "sm_103a") for tools in (toolchain, second)
    ]
    assert builds[0].key != builds[1].key
    for built, tools in zip(builds, (toolchain, second), strict=True):
        assert inspect(built.directory, tools.nvdisasm).kernels[0].entry == "copy"
    read = [line.read_text() for line in (cache / "requests").iterdir()]
    assert sorted(str(home / "include" / "cuda_fp16.h") in files for files in read) == [False, True]
