"""What needs an NVIDIA GPU: `make gpu-test`."""

from __future__ import annotations

import pytest

from faperf.device import find_gpu
from tests.conftest import Cli, UserProject

GPU, REASON = find_gpu()
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(GPU is None, reason=f"no GPU: {REASON}")]


def test_the_machine_class_names_card_power_and_memory() -> None:
    assert GPU is not None
    assert GPU.machine_class.startswith(GPU.name.lower().split()[0])
    assert GPU.machine_class.endswith("gib")


def test_a_run_beside_a_gpu_says_that_it_does_not_time_yet(faperf: Cli, user: UserProject) -> None:
    assert GPU is not None
    answer = faperf("run")
    assert answer.exit_code == 0, answer.output
    assert f"it does not time kernels yet (found {GPU.name})" in answer.stdout
