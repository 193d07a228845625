"""Ranks that share a host share its lane addresses: they meet over them, train together, and turn
to other rings.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from optics.plan import Job, RingGroup, Traffic, Transfer
from optics.ranks import ranks_on
from orchestrator.hosts.launch import layout
from tests.hosts.two_hosts import small_lab
from tests.workloads.ranks import LANES, ranks

LAB = small_lab()
HOSTS = ("gpu01", "gpu02")


@pytest.mark.parametrize("each", (2, pytest.param(4, marks=pytest.mark.long)))
def test_ranks_of_two_hosts_hold_the_same_weights_over_a_turn(tmp_path: Path, each: int) -> None:
    names = tuple(name for host in HOSTS for name in ranks_on(host, each))
    before, after = (
        layout(Job("j", "train", names, (HOSTS, HOSTS[::-1]) * count), LAB)["rings"]
        for count in (1, 2)
    )
    ring_changes = json.dumps([{"after": 3, "rings": after}])

    def place(rank: int) -> dict[str, str]:
        lanes = [f"127.0.{rank // each + 1}.{lane + 1}" for lane in range(LANES)]
        return {
            "TESTBED_LANES": json.dumps(lanes),
            "LOCAL_RANK": str(rank % each),
            "TESTBED_RING_CHANGES": ring_changes,
        }

    command = (
        "-m",
        "workloads.programs.train",
        "--iterations",
        "6",
        "--hidden",
        "64",
        "--batch",
        "4",
    )
    with ranks(
        2 * each, *command, directory=tmp_path, rings=before, timeout_s=60.0, more=place
    ) as local:
        ended = local.finish(120)
    assert [code for code, _, _ in ended] == [0] * (2 * each), ended
    reply = json.loads((tmp_path / "0" / "summary.json").read_text())
    assert reply["weights_identical"] and reply["iterations"] == 6


def test_the_ranks_of_a_host_move_their_parts_of_a_replay(tmp_path: Path) -> None:
    names = tuple(name for host in HOSTS for name in ranks_on(host, 2))
    groups = (RingGroup("data", 40_002, (HOSTS, HOSTS[::-1])),)
    traffic = Traffic(
        groups, (Transfer("gpu01", "gpu02", 70_001, 1), Transfer("gpu02", "gpu01", 3))
    )
    given = json.dumps(layout(Job("j", "replay", names, traffic=traffic), LAB)["traffic"])

    def place(rank: int) -> dict[str, str]:
        lanes = [f"127.0.{rank // 2 + 1}.{lane + 1}" for lane in range(LANES)]
        return {"TESTBED_LANES": json.dumps(lanes), "TESTBED_TRAFFIC": given}

    command = ("-m", "workloads.programs.replay", "--iterations", "3", "--check", "1")
    with ranks(4, *command, directory=tmp_path, timeout_s=60.0, more=place) as local:
        ended = local.finish(120)
    assert [code for code, _, _ in ended] == [0] * 4, ended
    reply = json.loads((tmp_path / "0" / "summary.json").read_text())
    assert reply["wrong"] == 0 and reply["iterations"] == 3
