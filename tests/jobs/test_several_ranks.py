"""A job of several ranks per host, as a change sees it: by host where hosts count, by rank where
ranks do.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from optics import Missing
from optics.plan import Job, Plan
from optics.ranks import ranks_on
from orchestrator.change.locking import plan_hosts
from orchestrator.cli import render
from orchestrator.hosts.api import JobState
from orchestrator.jobs.decision import _pairs, decide_job
from orchestrator.jobs.record import hosts_of_job, launched, ranks_of, spec_of
from orchestrator.plan.interchangeable import labels_between, relabelled_text
from orchestrator.store.records import JobRecord
from orchestrator.store.store import Store
from tests.jobs.test_collected_ports import Kept, collected, line
from tests.jobs.test_jobs import FOUR, Bench

TWICE = tuple(rank for host in FOUR for rank in ranks_on(host, 2))
TRAIN = Job("mlp", "train", TWICE, (FOUR,), {"iterations": 0})


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with Store(tmp_path / "store.sqlite3") as store:
        yield Bench(store, tmp_path)


def record(bench: Bench, job: Job = TRAIN) -> JobRecord:
    bench.store.add_job("lab/ann", "r1", job.name, spec_of(job, bench.lab, "r1"), "running")
    found = bench.store.latest_job("lab/ann")
    assert found is not None
    return found


def test_the_record_knows_ranks_and_hosts(bench: Bench) -> None:
    kept = record(bench)
    assert ranks_of(kept, bench.lab) == TWICE and hosts_of_job(kept, bench.lab) == FOUR
    assert launched(kept, bench.lab) == TRAIN
    fewer = replace(
        bench.lab, hosts={name: host for name, host in bench.lab.hosts.items() if name != "gpu02"}
    )
    assert ranks_of(kept, fewer) == tuple(rank for rank in TWICE if not rank.startswith("gpu02"))
    with pytest.raises(Missing, match="job mlp ran on gpu02, not in the inventory any more"):
        launched(kept, fewer)


def test_a_change_locks_hosts_and_looks_for_paths_between_hosts(bench: Bench) -> None:
    assert plan_hosts(Plan("p", (), TRAIN)) == set(FOUR)
    assert (
        _pairs(TRAIN)
        == _pairs(replace(TRAIN, rings=()))
        == {(a, b) for a, b in zip(FOUR, FOUR[1:] + FOUR[:1], strict=True)}
    )


def test_other_rings_are_a_turn_other_ranks_a_restart(bench: Bench) -> None:
    kept = record(bench)
    assert decide_job(kept, TRAIN, "prefer").kind == "keep"
    assert decide_job(kept, replace(TRAIN, rings=(FOUR, FOUR[::-1])), "prefer").kind == "rings"
    one_each = decide_job(kept, replace(TRAIN, ranks=FOUR), "prefer")
    assert one_each.kind == "restart" and "job.ranks differ" in one_each.why


async def test_a_rank_that_died_is_named_with_its_number(bench: Bench) -> None:
    started = await bench.bring(TRAIN)
    assert started is not None and started.ranks == 8

    async def states(name: str, ranks: Any) -> dict[str, JobState]:
        return {
            rank: JobState("gpu02", "exited", 9)
            if rank == "gpu02/1"
            else JobState("gpu01", "running")
            for rank in ranks
        }

    bench.ranks.jobs.states = states
    found = bench.store.latest_job("lab/ann")
    assert found is not None
    status = await bench.jobs.status(found)
    assert "8 ranks on 4 hosts" in render.job(status)
    assert (status.state, status.detail, status.exit_codes) == (
        "failed",
        "gpu02/1: exit 9; 7 ranks still run: testbed job stop",
        {3: 9},
    )


async def test_ports_of_a_host_come_home_once_under_its_first_rank(tmp_path: Path) -> None:
    wall = 1_795_000_000 * 10**9
    hosts = Kept(
        {
            "gpu01/0": [line(n * 10**9, wall + n * 10**9, 1000 * n) for n in range(1, 4)],
            "gpu01/1": [],
        }
    )
    found = await collected(hosts, tmp_path / "r1", 0.0)
    assert {host for host, *_ in found} == {"gpu01"} and len(found) == 2 * 6


def test_relabelled_plans_keep_the_numbers_of_ranks() -> None:
    job = {"ranks": ["gpu01/0", "gpu01/1", "gpu02"], "rings": [["gpu01", "gpu02"]]}
    text = json.dumps({"links": [{"a": "gpu01", "b": "gpu02"}], "job": job})
    other = relabelled_text(text, {"gpu01": "gpu03"})
    assert '"gpu03/0"' in other and '"gpu03/1"' in other and "gpu01" not in other
    assert labels_between(text, other) == {"gpu01": "gpu03"}
