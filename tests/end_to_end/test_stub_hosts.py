"""A lab whose hosts one process answers for is planned and observed as any other: the program
cannot tell.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import large_lab
from conformance.lab import running


def test_hosts_that_a_stub_answers_for_are_planned_and_observed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(large_lab, "GROUP", 8)
    large_lab.write(tmp_path, 16)
    with (
        running(tmp_path / "switches", "--devices-only") as switches,
        large_lab.hosts_of(tmp_path) as stub,
    ):
        _, plan = large_lab.timed(
            tmp_path, stub, switches, "plan", "--topology", str(tmp_path / "plan.json")
        )
        spent, status = large_lab.timed(tmp_path, stub, switches, "status")
    assert (plan["made"], plan["links"]) == (48, 24)
    assert [host["committer"] for host in status["hosts"]] == [True] * 16
    assert sum(len(device["foreign"]) for device in status["devices"]) == 16
    assert spent["stub s"] > 0
