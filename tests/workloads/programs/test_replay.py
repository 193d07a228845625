"""A designed job's traffic between local processes: what arrives, how long phases last, what is
refused.
"""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.workloads.ranks import ranks, records
from workloads.programs.replay import Grouped, wire_bytes
from workloads.programs.traffic import Group, Traffic, Transfer, read_traffic

TRAFFIC = {
    "compute_s": 0.05,
    "groups": [
        {"id": "all", "bytes": 400_004, "rings": [[0, 1, 2, 3], [3, 2, 1, 0]], "lanes": [0, 1]},
        {"id": "two", "bytes": 4000, "rings": [[1, 3]], "lanes": [2]},
        {
            # on the cycle 0 1 2 3: the piece from across comes in halves, by both neighbours
            "id": "steps",
            "bytes": 80_012,
            "rings": [[0, 1, 2, 3]],
            "lanes": [0],
            "schedule": [
                *([1, k, (k + path) % 4, k, 0.0, 1.0] for k in range(4) for path in (1, 3)),
                *(
                    [2, (k + path) % 4, (k + 2) % 4, k, 0.5 * half, 0.5 + 0.5 * half]
                    for k in range(4)
                    for half, path in ((0, 1), (1, 3))
                ),
            ],
        },
    ],
    "transfers": [[0, 1, 1001, 0], [1, 0, 5, 3], [3, 0, 70_000, 0], [0, 3, 8, 1]],
}


@pytest.mark.parametrize("credits", ["0", "16K"])
def test_a_designed_job_moves_what_its_traffic_says_and_every_byte_is_right(
    tmp_path: Path, credits: str
) -> None:
    run = RUN.replace('"3"', f'"3", "--credits", "{credits}"')
    command = (
        "-c",
        f"import os; os.environ['TESTBED_TRAFFIC'] = {json.dumps(json.dumps(TRAFFIC))}\n{run}",
    )
    with ranks(4, *command, directory=tmp_path) as job:
        ended = job.finish()
    assert [(code, err) for code, _, err in ended] == [(0, "")] * 4
    summary = json.loads((tmp_path / "0" / "summary.json").read_text())
    assert (summary["iterations"], summary["wrong"], summary["ok"]) == (3, 0, True)
    for record in records(tmp_path):
        assert float(str(record["iter_ms"])) >= 50
        parts = float(str(record["transfers_ms"])) + float(str(record["allreduce_ms"]))
        assert parts == pytest.approx(float(str(record["comm_ms"])), abs=0.01)
        assert record["bytes"] == 400_004 + 80_012, "rank 0 is not in the group of two"
        assert 0 <= float(str(record["busy"])) <= 1
        assert int(str(record["wire_bytes"])) >= 4 * (2 * 3 * 400_004 + 2 * 4000 + 71_014), (
            "all ranks count the one loopback"
        )


RUN = """
import sys
sys.argv = ["replay", "--iterations", "3"]
from workloads.programs.replay import main
main()
"""


@pytest.mark.parametrize("relay", ["chunks", "whole"])
def test_transfers_that_a_rank_passes_on_arrive_right(tmp_path: Path, relay: str) -> None:
    far = [[a, b, 300_007 + a, 0, a // 2 * 2 + b % 2] for a in range(4) for b in (3 - a,)]
    given = {"compute_s": 0.0, "groups": [], "transfers": [*far, [0, 1, 5, 0], [0, 2, 7, 1]]}
    run = RUN.replace('"3"', f'"3", "--relay", "{relay}"')
    command = (
        "-c",
        f"import os; os.environ['TESTBED_TRAFFIC'] = {json.dumps(json.dumps(given))}\n{run}",
    )
    with ranks(4, *command, directory=tmp_path) as job:
        ended = job.finish()
    assert [(code, err) for code, _, err in ended] == [(0, "")] * 4
    summary = json.loads((tmp_path / "0" / "summary.json").read_text())
    assert (summary["iterations"], summary["wrong"], summary["ok"]) == (3, 0, True)


def test_ranks_whose_peer_is_killed_say_so_and_ask_to_be_started_again(tmp_path: Path) -> None:
    run = RUN.replace('"3"', '"0"')
    command = (
        "-c",
        f"import os; os.environ['TESTBED_TRAFFIC'] = {json.dumps(json.dumps(TRAFFIC))}\n{run}",
    )
    with ranks(4, *command, directory=tmp_path, timeout_s=10) as job:
        deadline_s = time.monotonic() + 30
        while len(records(tmp_path)) < 2 and time.monotonic() < deadline_s:
            time.sleep(0.05)
        job.signal(signal.SIGKILL, only=[2])
        ended = job.finish()
    assert [code for code, _, _ in ended] == [75, 75, -signal.SIGKILL, 75]
    assert all("lost a peer" in err for rank, (_, _, err) in enumerate(ended) if rank != 2)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (
            {"groups": [{"id": "g", "bytes": 8, "rings": [[0, 1], [0, 2]], "lanes": [0, 1]}]},
            "do not name the same ranks",
        ),
        ({"groups": [{"id": "g", "bytes": 8, "rings": [[0, 4]], "lanes": [0]}]}, "ranks of 0..3"),
        (
            {"groups": [{"id": "g", "bytes": 8, "rings": [[0, 1]], "lanes": []}]},
            "a lane for each ring",
        ),
        (
            {
                "groups": [
                    {
                        "id": "g",
                        "bytes": 8,
                        "rings": [[0, 1]],
                        "lanes": [0],
                        "schedule": [[1, 0, 2, 0, 0, 1]],
                    }
                ]
            },
            "its schedule names ranks that are no members",
        ),
        ({"transfers": [[0, 0, 1, 0]]}, "needs two ranks"),
        ({"transfers": [[0, 1, 0, 0]]}, "a byte or more"),
        ({"transfers": [[0, 1]]}, "not as it should be"),
        ({"transfers": [[0, 1, 8, 0, 1]]}, "another where one passes it on"),
        ({"transfers": [[0, 1, 8, 0, 4]]}, "two ranks of 0..3"),
    ],
)
def test_traffic_that_makes_no_sense_is_refused(change: dict[str, object], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        read_traffic({"TESTBED_TRAFFIC": json.dumps(TRAFFIC | change)}, 4)


def test_transfers_that_a_rank_passes_on_are_refused_where_nccl_carries_them() -> None:
    load: Any = SimpleNamespace(traffic=Traffic(0.0, (), (Transfer(0, 3, 8, 0, 1),)), mine=[])
    with pytest.raises(ValueError, match="NCCL sends from rank to rank"):
        Grouped(cast(Any, None), load)


def test_traffic_must_be_there() -> None:
    with pytest.raises(ValueError, match="TESTBED_TRAFFIC: missing"):
        read_traffic({}, 4)


def test_a_member_sends_a_ring_s_share_of_each_of_its_buffers() -> None:
    assert (
        wire_bytes([Group("a", 1200, (tuple(range(12)),), (0,)), Group("b", 10, ((0, 1),), (0,))])
        == 2200 + 10
    )
