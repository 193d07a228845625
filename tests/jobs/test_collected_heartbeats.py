"""What the ranks of a job say of themselves comes home once, and a long job's journal stays
short.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from optics import Unreachable
from orchestrator.hosts import ClockReading, Heartbeat, RankTimes
from orchestrator.jobs import heartbeats as job_heartbeats
from orchestrator.jobs.heartbeats import collect_heartbeats, kept
from orchestrator.session import Session
from orchestrator.telemetry import read_points
from tests.hosts.parts import OwnParts

RANKS = ("gpu01/0", "gpu01/1", "gpu02")


class Ranks(OwnParts):
    """Each has done the iterations up to `done`, 100 ms each; gpu02 computes longer, gpu01/1 does
    not say what it computes.
    """

    def __init__(self, ahead_ns: int = 0) -> None:
        self.done, self.ahead_ns, self.asked = 3, ahead_ns, list[int]()
        self.state = "running"

    async def heartbeats(
        self, job: str, ranks: tuple[str, ...], after: dict[str, int]
    ) -> dict[str, Heartbeat]:
        self.asked.append(after["gpu02"])
        return {rank: self._beat(rank, after[rank]) for rank in ranks}

    def _beat(self, rank: str, after: int) -> Heartbeat:
        compute = {"gpu02": 90.0, "gpu01/0": 30.0, "gpu01/1": 0.0}[rank]
        exposed = 100 - compute if compute else 0.0
        times = (
            RankTimes(n, n * 10**9, 100.0, compute, exposed, exposed / 2)
            for n in range(max(1, after + 1), self.done + 1)
        )
        return Heartbeat(rank, self.state, None, self.done + 1, "compute", 0.1, tuple(times))

    async def clocks(self, names: tuple[str, ...]) -> dict[str, ClockReading]:
        if self.ahead_ns < 0:
            raise Unreachable("gpu02: it is gone")
        return dict.fromkeys(names, ClockReading(self.ahead_ns, 1000))


async def collected(hosts: Ranks, run_dir: Path) -> list[Heartbeat]:
    session = cast(Session, SimpleNamespace(hosts=hosts, lab=SimpleNamespace(name="lab")))
    return await collect_heartbeats(session, "mlp.1", "mlp", "2026-11-21-0001", run_dir, RANKS)


def points(run_dir: Path) -> list[tuple[str, int]]:
    return [(p.tags["rank"], int(p.fields["iter"])) for p in read_points(run_dir, only=["rank"])]


async def test_each_iteration_of_each_rank_stands_in_the_journal_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts = Ranks()
    assert [heartbeat.rank for heartbeat in await collected(hosts, tmp_path)] == list(RANKS)
    first = points(tmp_path)
    assert first == [(rank, n) for rank in RANKS for n in (1, 2, 3)]
    hosts.done = 5
    assert (await collected(hosts, tmp_path))[0].iteration == 6, (
        "what they do now is known at any time"
    )
    assert points(tmp_path) == first, "and their iterations are written down once a second"
    monkeypatch.setattr(job_heartbeats, "AGAIN_S", 0.0)
    await collected(hosts, tmp_path)
    await collected(hosts, tmp_path)
    assert points(tmp_path) == first + [(rank, n) for rank in RANKS for n in (4, 5)]
    assert hosts.asked == [-1, job_heartbeats.NONE_AFTER, 3, 5]


async def test_the_last_iterations_of_a_job_that_ends_come_home_at_once(tmp_path: Path) -> None:
    hosts = Ranks()
    await collected(hosts, tmp_path)
    hosts.done, hosts.state = 5, "exited"
    await collected(hosts, tmp_path)
    assert points(tmp_path)[9:] == [(rank, n) for rank in RANKS for n in (4, 5)]


async def test_what_is_not_known_of_an_iteration_is_not_in_the_journal(tmp_path: Path) -> None:
    await collected(Ranks(ahead_ns=7_000_000), tmp_path)
    found = {p.tags["rank"]: p for p in read_points(tmp_path, only=["rank"])}
    assert set(found["gpu01/1"].fields) == {"iter", "iter_ms"}
    assert found["gpu02"].fields == {
        "iter": 3,
        "iter_ms": 100.0,
        "compute_ms": 90.0,
        "exposed_ms": 10.0,
        "wait_ms": 5.0,
    }
    assert found["gpu02"].time_ns == 3 * 10**9 - 7_000_000, (
        "at our time, though the host's clock is ahead"
    )


async def test_what_slowed_a_rank_down_stands_beside_its_times(tmp_path: Path) -> None:
    class Slowed(Ranks):
        def _beat(self, rank: str, after: int) -> Heartbeat:
            found = super()._beat(rank, after)
            return replace(
                found,
                times=tuple(replace(t, processor_ms=7.5, retransmitted=2) for t in found.times),
            )

    await collected(Slowed(), tmp_path)
    (fields, *_) = [
        p.fields for p in read_points(tmp_path, only=["rank"]) if p.tags["rank"] == "gpu02"
    ]
    assert (fields["processor_ms"], fields["retransmitted"]) == (7.5, 2) and "refused" not in fields


@pytest.mark.parametrize(
    "noted", ["", "{}", "null", '{"at": 1, "clocks_at": 1, "after": [], "ahead": 3}', '{"at": "x"}']
)
async def test_a_note_that_cannot_be_read_and_a_clock_that_does_not_answer_lose_nothing(
    tmp_path: Path, noted: str
) -> None:
    (tmp_path / "mlp.1.beats.json").write_text(noted)
    await collected(Ranks(ahead_ns=-1), tmp_path)
    assert len(points(tmp_path)) == 9


def test_a_long_job_has_ever_fewer_iterations_in_its_journal() -> None:
    assert all(map(kept, range(1 << 12)))
    assert sum(map(kept, range(1 << 16))) == 4096 + 4 * 2048
