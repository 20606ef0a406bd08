"""torch's own backends on a real card."""

from __future__ import annotations

import json

import pytest

from tests.conftest import Cli, UserProject

pytestmark = [pytest.mark.gpu, pytest.mark.compile]


def test_math_and_flash_are_right_and_timed(user: UserProject, faperf: Cli) -> None:
    pytest.importorskip("torch")
    answer = faperf(
        "peers", "t1", "--peer", "Math", "--peer", "SDPA flash", "--budget", "0.2", "--no-counters", "--format", "json"
    )
    found = {result["name"]: result for result in json.loads(answer.stdout)["results"]}
    assert found["SDPA flash"]["timing"]["peak_bytes"] > 0
    assert found["Math"]["timing"]["ms"]["value"] > found["SDPA flash"]["timing"]["ms"]["value"]
    assert found["t1"]["failure"]  # the stand-in copies Q, which is no attention
