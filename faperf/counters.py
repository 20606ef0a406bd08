"""What the hardware counts during a launch. The only user of ncu, which runs a command of ours in a child and profiles it.

Names of metrics differ between chips: TABLE has them, and what `ncu --query-metrics` does not know on this machine is left out.
The clock is not locked (`--clock-control none`): faperf changes nothing on a card, and shares of cycles do not need it.
"""

from __future__ import annotations

import contextlib
import csv
import io
import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from faperf.errors import ForbiddenError, MeasuringError
from faperf.record import Hot

MARKER = "stamp"
"""A kernel of the control's that is launched behind each of several works, so that their kernels can be told apart."""

LIMIT_S = 600
MOST_HOT = 24

TENSOR_ACTIVE, OCCUPANCY, L2, DRAM, SHARED_PIPE = "tensor_active", "occupancy", "l2", "dram", "shared_pipe"
MS, SM_CYCLES, SMS = "ns", "sm_cycles", "sms"
SHARES = (TENSOR_ACTIVE, OCCUPANCY, L2, DRAM, SHARED_PIPE)

EVERYWHERE = {
    MS: ["gpu__time_duration.sum"],
    SM_CYCLES: ["sm__cycles_elapsed.avg"],
    OCCUPANCY: ["sm__warps_active.avg.pct_of_peak_sustained_active"],
    L2: ["lts__throughput.avg.pct_of_peak_sustained_elapsed"],
    DRAM: ["dram__throughput.avg.pct_of_peak_sustained_elapsed"],
    SHARED_PIPE: ["l1tex__data_pipe_lsu_wavefronts.avg.pct_of_peak_sustained_elapsed"],
    "local": ["l1tex__t_bytes_pipe_lsu_mem_local_op_ld.sum", "l1tex__t_bytes_pipe_lsu_mem_local_op_st.sum"],
}
_OPS = "sm__ops_path_tensor_op"
_BEFORE_BLACKWELL = {TENSOR_ACTIVE: ["sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed"]}
_BLACKWELL = {
    TENSOR_ACTIVE: ["sm__pipe_tensor_subpipe_hmma_cycles_active.avg.pct_of_peak_sustained_elapsed"],
    "HMMA": [f"{_OPS}_hmma_src_{kind}.sum" for kind in ("fp16_dst_fp16", "fp16_dst_fp32", "bf16_dst_fp32")],
    "UTCHMMA": [f"{_OPS}_utchmma_src_{kind}.sum" for kind in ("fp16_dst_fp16", "fp16_dst_fp32", "bf16_dst_fp32")],
}
TABLE: dict[str, dict[str, list[str]]] = {
    "8.0": EVERYWHERE | _BEFORE_BLACKWELL,
    "9.0": EVERYWHERE
    | _BEFORE_BLACKWELL
    | {
        "HMMA": [f"{_OPS}_hmma_src_fp16.sum", f"{_OPS}_hmma_src_bf16_dst_fp32.sum"],
        "HGMMA": [f"{_OPS}_hgmma_src_fp16.sum", f"{_OPS}_hgmma_src_bf16_dst_fp32.sum"],
    },
    "10.0": EVERYWHERE | _BLACKWELL,
    "10.3": EVERYWHERE | _BLACKWELL,
}
"""Capability → what is counted → ncu's names, whose values are added up. HMMA, HGMMA, UTCHMMA: FLOPs by tensor path."""

STALLS = {
    "barrier": "barrier", "branch_resolving": "branch_resolving", "dispatch_stall": "dispatch", "drain": "drain",
    "gmma": "gmma", "imc_miss": "imc", "lg_throttle": "lg", "long_scoreboard": "long_sb", "math_pipe_throttle": "math",
    "membar": "membar", "mio_throttle": "mio", "misc": "misc", "no_instruction": "no_inst", "not_selected": "not_selected",
    "selected": "selected", "short_scoreboard": "short_sb", "sleeping": "sleep", "tex_throttle": "tex", "wait": "wait",
}  # fmt: skip
"""Why a warp does not issue: as the metrics name it, and as the columns of ncu's source page do."""

PERMISSION = (
    "this user may not read hardware counters (ERR_NVGPUCTRPERM). As root: write "
    "'options nvidia NVreg_RestrictProfilingToAdminUsers=0' to /etc/modprobe.d/nvidia.conf and reboot; or run faperf as root, or "
    "in a container with --cap-add SYS_ADMIN"
)


class Counted(msgspec.Struct, frozen=True, kw_only=True):
    """One command's kernels: shares of 1 by duration, sums over all; `entry` and `hot` are of the longest kernel."""

    ncu: str
    ms: float
    sms: int
    sm_cycles: float
    shares: dict[str, float]
    path_flops: dict[str, float]
    stalls: dict[str, float]
    local_bytes: float | None
    entry: str
    hot: list[Hot]


class Ncu:
    """The profiler of this machine; a command that it profiles may take `limit_s`. Raises MeasuringError where there is none."""

    def __init__(self, capability: str, program: str = "ncu", *, limit_s: float = LIMIT_S) -> None:
        found = shutil.which(program)
        if found is None:
            raise MeasuringError(
                "no counters: ncu (Nsight Compute) is not on PATH", remedy="install the CUDA toolkit's nsight-compute"
            )
        self.program, self.limit_s = found, limit_s
        known = set(re.findall(r"^(\w+__\w+)", self._say("--query-metrics"), re.MULTILINE))
        table = TABLE.get(capability, EVERYWHERE | _BEFORE_BLACKWELL)
        wanted = table | {
            reason: [f"smsp__average_warps_issue_stalled_{reason}_per_issue_active.ratio"] for reason in STALLS
        }
        self.metrics = {what: [n for n in names if n.partition(".")[0] in known] for what, names in wanted.items()}
        expected = [name for what, names in table.items() for name in names]
        self.missing = [name for name in expected if name.partition(".")[0] not in known]
        version = re.search(r"Version (\d+\.\d+(?:\.\d+)?)", self._say("--version"))
        self.version = version[1] if version else ""

    def count(self, command: Sequence[str], environment: Mapping[str, str]) -> list[Counted | None]:
        """Run `command` under ncu and count what it launches between cudaProfilerStart and Stop, work by work: MARKER stands
        behind each where there are several. None for one that launched nothing. Where warps waited is known of a kernel that
        was launched once. Raises MeasuringError.
        """
        with tempfile.TemporaryDirectory() as folder:
            report = self._report(
                Path(folder), command, environment, list(self.metrics), ["--section", "SourceCounters"]
            )
            raw = self._say("--import", str(report), "--page", "raw", "--csv", "--print-units", "base")
            source = self._say("--import", str(report), "--page", "source", "--csv", "--print-source", "sass")
        return by_work(raw, source, self.metrics, self.version)

    def activities(self, command: Sequence[str], environment: Mapping[str, str]) -> list[Counted | None]:
        """The same of tensor-core activity, cycles and time alone, which is quicker."""
        with tempfile.TemporaryDirectory() as folder:
            report = self._report(Path(folder), command, environment, [MS, SM_CYCLES, TENSOR_ACTIVE], [])
            raw = self._say("--import", str(report), "--page", "raw", "--csv", "--print-units", "base")
        return by_work(raw, "", self.metrics, self.version)

    def _report(
        self,
        folder: Path,
        command: Sequence[str],
        environment: Mapping[str, str],
        wanted: Sequence[str],
        more: list[str],
    ) -> Path:
        report = folder / "report.ncu-rep"
        names = sorted({name for what in wanted for name in self.metrics[what]})
        options = ["--clock-control", "none", "--profile-from-start", "off", "--target-processes", "all"]
        options += [*more, "--metrics", ",".join(names), "--force-overwrite"]
        said = self._say(*options, "--export", str(report), *command, environment=environment)
        if not report.is_file():
            raise MeasuringError(f"no counters: ncu wrote no report: {said.strip()[-500:]}")
        return report

    def _say(self, *arguments: str, environment: Mapping[str, str] | None = None) -> str:
        try:
            code, out, err = self._finished([self.program, *arguments], environment)
        except OSError as error:
            raise MeasuringError(f"no counters: ncu does not run: {error}") from error
        except subprocess.TimeoutExpired as error:
            raise MeasuringError(f"no counters: ncu was not done within {self.limit_s:.0f} s, and was ended") from error
        said = out + err
        if "ERR_NVGPUCTRPERM" in said:
            raise ForbiddenError(f"no counters: {PERMISSION}")
        if code:
            raise MeasuringError(f"no counters: ncu ended with {code}: {said.strip()[-500:]}")
        return out

    def _finished(self, command: list[str], environment: Mapping[str, str] | None) -> tuple[int, str, str]:
        """Exit code, output and errors. What ncu started ends with it, however that comes."""
        with subprocess.Popen(
            command,
            env=dict(environment) if environment is not None else None,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
        ) as process:
            try:
                out, err = process.communicate(timeout=self.limit_s)
            except BaseException:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                raise
        return process.returncode, out, err


def by_work(raw: str, source: str, metrics: Mapping[str, Sequence[str]], version: str = "") -> list[Counted | None]:
    """What ncu's `raw` and `source` pages (CSV) say of `metrics` (what → the names that are added up), work by work."""
    works: list[list[Mapping[str, str]]] = [[]]
    for row in _rows(raw):
        if row.get("Kernel Name") == MARKER:
            works.append([])
        else:
            works[-1].append(row)
    if not works[-1]:
        works.pop()
    parts = _parts(source)
    return [_counted(work, metrics, version, parts) if work else None for work in works]


Part = list[list[str]]
"""One kernel's rows of a source page, behind a row of columns."""


def _counted(
    kernels: Sequence[Mapping[str, str]],
    metrics: Mapping[str, Sequence[str]],
    version: str,
    parts: Mapping[str, Sequence[Part]],
) -> Counted:

    def value(row: Mapping[str, str], what: str) -> float | None:
        found = [number for name in metrics.get(what, ()) if (number := _number(row.get(name, ""))) is not None]
        return sum(found) if found else None

    times = [value(row, MS) or 0.0 for row in kernels]
    weight = sum(times) or 1.0

    def share(what: str) -> float | None:
        values = [value(row, what) for row in kernels]
        if any(v is None for v in values):
            return None
        return sum(time * (v or 0.0) for time, v in zip(times, values, strict=True)) / weight

    def total(what: str) -> float | None:
        values = [v for row in kernels if (v := value(row, what)) is not None]
        return sum(values) if values else None

    longest = kernels[times.index(max(times))]
    own = parts.get(longest.get("Kernel Name", ""), ())
    return Counted(
        ncu=version,
        ms=sum(times) / 1e6,
        sms=int(_number(longest.get("device__attribute_multiprocessor_count", "")) or 0),
        sm_cycles=total(SM_CYCLES) or 0.0,
        shares={what: found / 100 for what in SHARES if (found := share(what)) is not None},
        path_flops={path: done for path in ("HMMA", "HGMMA", "UTCHMMA") if (done := total(path))},
        stalls={reason: found for reason in STALLS if (found := share(reason))},
        local_bytes=total("local"),
        entry=longest.get("Kernel Name", ""),
        hot=_hot(own[0]) if len(own) == 1 else [],
    )


def _rows(raw: str) -> list[dict[str, str]]:
    """The kernels of a raw page: a line of names, one of units, one for each kernel. What else was printed is left out."""
    lines = [line for line in raw.splitlines() if line.startswith('"')]
    names, _, *rows = csv.reader(io.StringIO("\n".join(lines))) if len(lines) > 2 else ([], [])
    return [dict(zip(names, row, strict=False)) for row in rows]


def _parts(source: str) -> dict[str, list[Part]]:
    """A source page's parts by the kernel that each names in its first row. Of several launches of one name nothing says which
    part is whose: on an H200 they did not come in the order of the launches.
    """
    parts: dict[str, list[Part]] = {}
    part: Part = []
    for row in csv.reader(io.StringIO("\n".join(line for line in source.splitlines() if line.startswith('"')))):
        if row[0] == "Kernel Name":
            part = []
            parts.setdefault(row[1], []).append(part)
        else:
            part.append(row)
    return parts


def _hot(part: Part) -> list[Hot]:
    """Where most warps of a kernel waited."""
    found = []
    columns, *rows = part or [[]]
    for row in rows:
        cells = dict(zip(columns, row, strict=False))
        waits = {
            r: int(_number(cells.get(f"stall_{short}", "")) or 0) for r, short in STALLS.items() if r != "selected"
        }
        samples = Counter({reason: n for reason, n in waits.items() if n})
        if samples:
            offset = int(cells["Address"], 16) - int(rows[0][columns.index("Address")], 16)
            found.append(Hot(offset=offset, samples=samples.total(), reason=samples.most_common(1)[0][0]))
    return sorted(found, key=lambda hot: -hot.samples)[:MOST_HOT]


def _number(cell: str) -> float | None:
    """ncu writes 1,234.5; "no data" and the like are None."""
    try:
        return float(cell.replace(",", ""))
    except ValueError:
        return None
