"""Several ranks on a host: their names, places, rings and parts of a replay's traffic; one rank per
host is as it always was.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from optics import Infeasible, Refused
from optics.plan import Job, RingGroup, Traffic, Transfer
from optics.ranks import host_of_rank, ranks_on
from orchestrator.hosts import Hosts, launch
from orchestrator.hosts.facts import workload_digest
from tests.hosts.one_rank import cases
from tests.hosts.two_hosts import small_lab

LAB = small_lab()
HOSTS = ("gpu02", "gpu01")
RINGS = tuple(HOSTS[k % 2 :] + HOSTS[: k % 2] for k in range(4))
GOLDEN = Path(__file__).parent / "golden" / "one_rank.json"


def job(count: int, **more: object) -> Job:
    ranks = tuple(rank for host in HOSTS for rank in ranks_on(host, count))
    return replace(Job("ddp", "train", ranks, RINGS), **more)  # type: ignore[arg-type]


def test_one_rank_per_host_gets_the_same_bytes_as_ever() -> None:
    made = {
        name: list(launch.requests(each, lab, "r7", resume=True).values())
        for name, (each, lab) in cases().items()
    }
    assert json.dumps(made, indent=1).replace(
        workload_digest(), "DIGEST"
    ) + "\n" == GOLDEN.read_text(encoding="utf-8")


def test_each_rank_is_a_job_of_its_own_on_its_host() -> None:
    made = launch.requests(job(2), LAB, "r7")
    assert list(made) == ["gpu02/0", "gpu02/1", "gpu01/0", "gpu01/1"]
    assert [request["name"] for request in made.values()] == [
        "ddp.r7.0",
        "ddp.r7.1",
        "ddp.r7.0",
        "ddp.r7.1",
    ]
    # files there carry the number of the rank
    assert len({request["checkpoints"] for request in made.values()}) == 1
    env = [request["env"] for request in made.values()]
    assert [e["RANK"] for e in env] == ["0", "1", "2", "3"]
    assert [e["LOCAL_RANK"] for e in env] == ["0", "1", "0", "1"]
    assert {(e["WORLD_SIZE"], e["LOCAL_WORLD_SIZE"], e["MASTER_ADDR"]) for e in env} == {
        ("4", "2", "10.254.0.2")
    }
    assert env[0]["TESTBED_LANES"] == env[1]["TESTBED_LANES"] != env[2]["TESTBED_LANES"]


def test_the_number_of_a_rank_survives_a_name_that_is_cut() -> None:
    assert launch.on_host("x" * 100, "gpu01/12").endswith(".12")
    assert len(launch.on_host("x" * 100, "gpu01/12")) <= 100
    assert launch.on_host("x" * 100, "gpu01") == "x" * 100


@pytest.mark.parametrize("count", (1, 2, 3, 4, 8))
def test_a_ring_is_one_ring_of_all_ranks_and_enters_and_leaves_each_host_once(count: int) -> None:
    it = job(count)
    rings = launch.layout(it, LAB)["rings"]
    host = [host_of_rank(rank) for rank in it.ranks]
    for ring, order in zip(rings, RINGS, strict=True):
        assert sorted(ring) == list(range(2 * count))
        entered = [b for a, b in pairwise((*ring, ring[0])) if host[a] != host[b]]
        assert sorted(host[rank] for rank in entered) == sorted(HOSTS)
        assert tuple(dict.fromkeys(host[rank] for rank in ring)) == order


@pytest.mark.parametrize("count", (2, 3, 4))
def test_the_ranks_of_a_host_take_turns_in_sending_to_other_hosts(count: int) -> None:
    it = job(count)
    host = [host_of_rank(rank) for rank in it.ranks]
    senders = [
        {a for a, b in pairwise((*ring, ring[0])) if host[a] != host[b] and host[a] == "gpu01"}
        for ring in launch.layout(it, LAB)["rings"]
    ]
    assert all(len(each) == 1 for each in senders)
    assert len(set.union(*senders)) == min(count, len(RINGS))


def test_hosts_may_hold_different_numbers_of_ranks() -> None:
    it = replace(job(2), ranks=("gpu02", "gpu01/0", "gpu01/1"))
    assert launch.layout(it, LAB)["rings"] == [[0, 1, 2], [2, 1, 0], [0, 1, 2], [2, 1, 0]]
    assert "LOCAL_WORLD_SIZE" not in launch.requests(it, LAB, "r7")["gpu02"]["env"]


def test_without_rings_the_ranks_follow_each_other() -> None:
    assert launch.layout(job(2, rings=()), LAB)["rings"] == [[0, 1, 2, 3]]


def test_the_ranks_of_a_host_share_its_part_of_a_replay() -> None:
    traffic = Traffic(
        (RingGroup("data", 4002, RINGS[:2]),),
        (Transfer("gpu01", "gpu02", 1001, 1), Transfer("gpu02", "gpu01", 3)),
    )
    one, two = (
        launch.layout(job(count, workload="replay", rings=(), traffic=traffic), LAB)["traffic"]
        for count in (1, 2)
    )
    assert [(g["id"], g["bytes"], g["rings"]) for g in one["groups"]] == [
        ("data", 4002, [[0, 1], [1, 0]])
    ]
    assert [(g["id"], g["bytes"], g["rings"], g["lanes"]) for g in two["groups"]] == [
        ("data.0", 2000, [[0, 2], [2, 0]], [0, 1]),
        ("data.1", 2002, [[1, 3], [3, 1]], [0, 1]),
    ]
    assert two["transfers"] == [[2, 0, 500, 1], [3, 1, 501, 1], [1, 3, 3, 0]]


class Line:
    """A channel that answers at once, and what it was asked."""

    attached = True

    def __init__(self, host: str) -> None:
        self.host = host
        self.asked: list[dict[str, Any]] = []

    def send(self, op: str, **fields: Any) -> asyncio.Future[dict[str, Any]]:
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self.asked.append({"op": op, **fields})
        name = fields.get("name", "")
        number = int(name.rpartition(".")[2]) if name.count(".") > 1 else 0
        if self.host == "gpu01" and op == "job.hold":
            answer.set_exception(Refused("gpu01: no such job"))
        else:
            answer.set_result(
                {
                    "state": "running",
                    "pid": 7,
                    "ranks": [{"rank": number, "state": "prepared", "move": 3}],
                }
            )
        return answer


async def test_every_rank_is_asked_under_the_name_that_it_has_on_its_host(tmp_path: Path) -> None:
    async with Hosts(LAB, tmp_path, tmp_path) as hosts:
        lines = {name: Line(name) for name in LAB.hosts}
        hosts.channels._channels = lines  # type: ignore[assignment]
        try:
            ranks = job(2).ranks
            states = await hosts.jobs.states("ddp.r7", ranks)
            assert list(states) == list(ranks) and [state.host for state in states.values()] == [
                *["gpu02"] * 2,
                *["gpu01"] * 2,
            ]
            found = await hosts.ring_changes.prepare(
                "ddp.r7", 3, ranks, {"rings": [[0, 1, 2, 3]]}, lease_s=5.0, within_s=1.0
            )
            assert sorted((s.host, s.rank) for s in found) == [
                ("gpu01", 0),
                ("gpu01", 1),
                ("gpu02", 0),
                ("gpu02", 1),
            ]
            for line in lines.values():
                assert (
                    sorted(each["name"] for each in line.asked)
                    == ["ddp.r7.0"] * 2 + ["ddp.r7.1"] * 2
                )
            with pytest.raises(Refused) as refused:
                await hosts.ring_changes.hold("ddp.r7", 3, ranks, lease_s=5.0, within_s=1.0)
            assert str(refused.value) == "gpu01: no such job\n(1 other host did it)", (
                "once for both of its ranks"
            )
        finally:
            hosts.channels._channels = {}


async def test_every_request_has_the_token_of_its_run_so_that_agents_alone_say_what_needs_it(
    tmp_path: Path,
) -> None:
    async with Hosts(LAB, tmp_path, tmp_path) as hosts:
        line = Line("gpu02")
        hosts.channels._channels = {"gpu02": line}  # type: ignore[dict-item]
        try:
            for token in (None, 9):
                hosts.channels.token = token
                await hosts.channels.ask({"gpu02": {"name": "j"}}, "tap.stop")
                await hosts.measure.traffic({"gpu02": {"do": "heard", "token": "a stream"}}, 1.0)
            plain = [
                {"op": "tap.stop", "name": "j"},
                {"op": "traffic", "do": "heard", "token": "a stream"},
            ]
            assert line.asked == [*plain, plain[0] | {"token": 9}, plain[1]]
        finally:
            hosts.channels._channels = {}


def test_nccl_needs_a_gpu_for_each_rank() -> None:
    lab = replace(LAB, hosts={n: replace(h, gpus=2) for n, h in LAB.hosts.items()})
    assert launch.requests(job(2), lab, "r7")["gpu01/1"]["env"]["TESTBED_BACKEND"] == "nccl"
    with pytest.raises(Infeasible, match="3 ranks on gpu02 and 2 GPUs"):
        launch.requests(job(3), lab, "r7")
