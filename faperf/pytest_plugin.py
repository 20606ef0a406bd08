"""`pytest --faperf`: the manifests as tests. Without the option this module costs its own import and nothing more.

manifests/v13.yaml::compile[sm_90a]   it compiles, and its launch fits the kernel
manifests/v13.yaml::budgets[sm_90a]   it keeps the budgets of its manifest, where there are any
manifests/v13.yaml::verify[sm_90a]    it is right: on the GPU that is here, else by the emulator
manifests/v13.yaml::gate[sm_90a]      it is no worse than at the baseline
manifests/v13.yaml::time[v13-sm_90a-published]   its time on the GPU that is here, for pytest-benchmark
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from faperf.building import Step
    from faperf.checking import Checker

DAY_S = 86_400


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("faperf", "CUDA kernels: manifests as tests")
    group.addoption(
        "--faperf", action="store_true", help="Collect the manifests: compile, budgets, verify, gate, time."
    )
    group.addoption(
        "--faperf-target", action="append", default=[], metavar="SM", help="Only this target (sm_90a); may be repeated."
    )
    group.addoption("--faperf-baseline", metavar="REF", help="The gate's baseline, as in `faperf gate --baseline`.")
    group.addoption("--faperf-no-gpu", action="store_true", help="Verify by the emulator and time nothing.")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "faperf: a fact of a CUDA kernel's version, from its manifest (pytest --faperf)")
    if config.getoption("--faperf"):
        config.pluginmanager.register(Manifests(config), "faperf-manifests")


class FactError(Exception):
    """A fact that is not so, in words that need no traceback."""


class Manifests:
    """The plugin proper: one checker a project, and a folder that all processes of this session share."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.checkers: dict[Path, Checker] = {}
        self.session = getattr(config, "workerinput", {}).get("faperf_session") or f"{os.getpid()}-{time.time_ns()}"
        self.own = not hasattr(config, "workerinput")
        self.folders: set[str] = set()
        manifests = config.rootpath / "manifests"
        if config.args_source is pytest.Config.ArgsSource.TESTPATHS and manifests.is_dir():
            config.args.append(str(manifests))  # `testpaths` are those of the user's own tests

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """xdist: a worker of this session."""
        node.workerinput["faperf_session"] = self.session

    def pytest_collect_file(self, file_path: Path, parent: pytest.Collector) -> ManifestFile | None:
        if file_path.suffix != ".yaml" or file_path.parent.name != "manifests" or file_path.name == "workloads.yaml":
            return None
        file: ManifestFile = ManifestFile.from_parent(parent, path=file_path)
        file.checker = self._checker(file_path.parent.parent)
        return file

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """What was selected: one gate judges all of it."""
        for checker in self.checkers.values():
            items = [item for item in session.items if getattr(item, "checker", None) is checker]
            checker.steps = _steps(item for item in items if isinstance(item, Fact) and item.what == "gate")
            checker.timed = _steps(item for item in items if isinstance(item, Time))

    def pytest_sessionfinish(self) -> None:
        folders = [str(checker.shared) for checker in self.checkers.values()]
        if self.own:
            self.folders.update(folders)
        else:
            self.config.workeroutput["faperf_folders"] = folders  # type: ignore[attr-defined]

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """xdist: a worker has ended."""
        self.folders.update(getattr(node, "workeroutput", {}).get("faperf_folders", []))

    def pytest_unconfigure(self) -> None:
        """Folders of sessions that were killed go after a day."""
        for own in map(Path, sorted(self.folders)):
            for folder in own.parent.glob("*"):
                if folder == own or time.time() - folder.stat().st_mtime > DAY_S:
                    shutil.rmtree(folder, ignore_errors=True)

    def _checker(self, root: Path) -> Checker:
        if root not in self.checkers:
            from faperf.checking import Checker
            from faperf.project import Project

            project = Project(root)
            self.checkers[root] = Checker(
                project,
                project.state / "pytest" / self.session,
                baseline=self.config.getoption("--faperf-baseline"),
                gpu_wanted=not self.config.getoption("--faperf-no-gpu"),
            )
        return self.checkers[root]


def _steps(items: Iterable[Any]) -> list[Step]:
    return [item.step for item in items]


class ManifestFile(pytest.File):
    """A manifest. One that cannot be read is one test that fails."""

    checker: Checker

    def collect(self) -> Iterator[pytest.Item]:
        version = self.checker.manifests.versions.get(self.path.stem)
        if version is None:
            yield Broken.from_parent(self, name="manifest")
            return
        wanted = self.config.getoption("--faperf-target")
        for target in version.targets:
            if wanted and target not in wanted:
                continue
            step = (version, target)
            for what in ("compile", "budgets", "verify", "gate"):
                if what != "budgets" or any(
                    getattr(version.budgets, n) is not None for n in version.budgets.__struct_fields__
                ):
                    yield Fact.of(self, what, step)
            workloads = self.checker.manifests.workloads_of(version)
            if workloads and self.config.pluginmanager.hasplugin("benchmark"):
                yield Time.of(self, step, workloads[0].name)


class _Told:
    """How a test of a manifest says what is wrong: in its own words."""

    path: Path
    name: str

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        from faperf.errors import FaperfError

        if isinstance(excinfo.value, FactError | FaperfError):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)  # type: ignore[misc]

    def reportinfo(self) -> tuple[Path, int, str]:
        return self.path, 0, f"{self.path.stem}: {self.name}"


class Broken(_Told, pytest.Item):
    """A manifest that cannot be read."""

    def runtest(self) -> None:
        checker = self.parent.checker  # type: ignore[union-attr]
        said = [str(error) for error in checker.manifests.broken if self.path.name in str(error.where)]
        raise FactError("\n".join(said) or f"{self.path.name} is no manifest that can be used: faperf check")


class Fact(_Told, pytest.Item):
    """One fact of a version for a target."""

    what: str
    step: Step
    checker: Checker

    @classmethod
    def of(cls, parent: ManifestFile, what: str, step: Step) -> Fact:
        item: Fact = cls.from_parent(parent, name=f"{what}[{step[1]}]")
        item.what, item.step, item.checker = what, step, parent.checker
        _mark(item, "faperf-gate" if what == "gate" else f"{step[0].id}@{step[1]}")
        return item

    def runtest(self) -> None:
        {"compile": self._compile, "budgets": self._budgets, "verify": self._verify, "gate": self._gate}[self.what]()

    def _compile(self) -> None:
        self.checker.build(self.step)

    def _budgets(self) -> None:
        over = self.checker.over_budget(self.step)
        if over:
            where = f"manifests/{self.step[0].id}.yaml, budgets"
            raise FactError("\n".join(f"{where}: {finding.text}" for finding in over))

    def _verify(self) -> None:
        found = self.checker.verify(self.step)
        wrong = [check for check in found.checks if not check.ok]
        if wrong:
            raise FactError("\n".join(_wrong(check, self.step) for check in wrong))
        if found.refused:
            pytest.skip(found.refused)

    def _gate(self) -> None:
        from faperf.errors import SelectionError
        from faperf.judge import Status
        from faperf.report.gate import row_text

        try:
            rows = self.checker.gate(self.step)
        except SelectionError as error:
            pytest.skip(str(error))
        bad = [row for row in rows if row.status is not Status.FINE]
        if bad:
            raise FactError("\n\n".join(row_text(row) for row in bad))


def _wrong(check: Any, step: Step) -> str:
    version, target = step
    asked = ["--target", target, "--distribution", check.distribution]
    asked += ["--schedule", check.schedule, "--seed", str(check.seed)] if check.schedule else []
    closer = f"\n  → faperf emulate {version.id} {' '.join(asked)}" if check.by == "emulator" else ""
    shape = ", ".join(f"{key}={value}" for key, value in check.shape.items())
    return (
        f"{version.id} for {target} is wrong by {check.by} on {check.distribution} ({shape}): {check.failure}{closer}"
    )


class Time(_Told, pytest.Function):
    """A time by faperf's own protocol, handed to pytest-benchmark: it is a GPU's, so no clock of this process measures it."""

    step: Step
    checker: Checker

    @classmethod
    def of(cls, parent: ManifestFile, step: Step, workload: str) -> Time:
        from faperf.report.export import benchmark_name

        clock = Clock()

        def fact(benchmark: Any) -> None:
            _hand_over(parent.checker, step, clock, benchmark)

        item: Time = cls.from_parent(parent, name=benchmark_name(step[0].id, step[1], workload), callobj=fact)
        item.step, item.checker = step, parent.checker
        item.add_marker(pytest.mark.benchmark(timer=clock, group=f"faperf {step[1]}"))
        _mark(item, f"{step[0].id}@{step[1]}")
        return item


class Clock:
    """Seconds that pass when told so."""

    now = 0.0

    def __call__(self) -> float:
        return self.now

    def pass_by(self, seconds: float) -> None:
        self.now += seconds


def _hand_over(checker: Checker, step: Step, clock: Clock, benchmark: Any) -> None:
    if benchmark.disabled:
        pytest.skip("pytest-benchmark is disabled, as it is under xdist")
    found = checker.timing(step)
    if found.refused:
        pytest.skip(found.refused)
    if any(not check.ok for check in found.checks) or found.timing is None:
        raise FactError("what is wrong is not timed:\n" + "\n".join(_wrong(c, step) for c in found.checks if not c.ok))
    timing = found.timing
    if timing.void:
        raise FactError(f"the timing is void: {'; '.join(timing.void)}")
    from faperf.report.export import extra_info

    benchmark.pedantic(clock.pass_by, args=(timing.ms.value / 1e3,), rounds=1)
    benchmark.extra_info.update(extra_info(step[0].id, step[1], timing))


def _mark(item: pytest.Item, group: str) -> None:
    item.add_marker("faperf")
    if item.config.pluginmanager.hasplugin("xdist"):
        item.add_marker(pytest.mark.xdist_group(group))  # with --dist loadgroup: what shares work shares a worker
