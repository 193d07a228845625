"""A change and the ranks that join the job that runs: they are launched once there is light, and
if they do not get there the job goes on as it was.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from optics import Missing, Refused, TestbedError, Unreachable
from optics.plan import Job
from orchestrator.change.up import Up
from orchestrator.hosts.api import JobState
from orchestrator.hosts.launch import job_name
from orchestrator.store.store import Store
from tests.change.fleet import plan_text, ring
from tests.change.living import FOUR, ONE, Living

JOINED = ONE | {"joined": ["gpu04"]}
"""The plan's job: the first three hosts run it."""


class Started:
    """The rank of gpu04: when it was started, and ended. ends: as soon as it starts. late: at so many
    looks it has not yet said that it joined. others: the state of the ranks that it is to join.
    """

    def __init__(self, bench: Living) -> None:
        self.bench, self.asked, self.ends = bench, list[tuple[str, Any]](), False
        self.state, self.others, self.late = "absent", "running", 0

    async def launch(
        self, job: Job, run: str, *, only: Collection[str], extra: Any, resume: bool = False
    ) -> None:
        self.asked.append(("launch", (tuple(only), extra("gpu04"), job_name(job.name, run))))
        self.state = "exited" if self.ends else "running"

    async def states(self, job: str, names: Collection[str]) -> Mapping[str, JobState]:
        return {
            name: JobState(name, self.state if name == "gpu04" else self.others) for name in names
        }

    async def stop(self, job: str, grace_s: float, names: Any) -> Mapping[str, JobState]:
        self.asked.append(("stop", tuple(names)))
        self.state = "exited"
        return await self.states(job, names)


@pytest.fixture
async def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    with Store(tmp_path / "store.sqlite3", durable=False) as store:
        living = await Living.begun(store, tmp_path, monkeypatch)
        spec = living.job.spec
        three = replace(spec.wanted, ranks=FOUR[:3], rings=(FOUR[:3],))
        store.set_job_spec(living.job.id, replace(spec, wanted=three))
        yield living


@pytest.fixture
def new(bench: Living, monkeypatch: pytest.MonkeyPatch) -> Started:
    found, looks = Started(bench), bench.ranks.ring_changes.states
    for name in ("launch", "states", "stop"):
        monkeypatch.setattr(bench.ranks, name, getattr(found, name))

    async def present(job: str, names: Collection[str]) -> Any:
        """It is there once it runs."""
        return [s for s in await looks(job, names) if s.host != "gpu04" or found.state == "running"]

    async def of_these(job: str, names: Collection[str]) -> Any:
        seen = [s for s in await present(job, names) if s.host in names]
        if found.late and "gpu04" in names:
            found.late -= 1
            return [replace(s, state="prepared", iteration=0) for s in seen]
        return seen

    monkeypatch.setattr(bench.ranks.ring_changes, "states", of_these)
    return found


def text(**more: Any) -> str:
    return plan_text("four", *ring(3, 2), job=JOINED, **more)


def as_before(bench: Living, first: Any) -> bool:
    return bool(bench.job.spec == first.spec and bench.job.id == first.id)


async def test_a_rank_is_launched_and_joins_once_there_is_light(
    bench: Living, new: Started
) -> None:
    first = bench.job
    report = await bench.change(text(), "live")
    assert new.asked == [
        ("launch", (("gpu04",), ({"TESTBED_JOINING": "1"}, {}), first.spec.on_hosts))
    ]
    assert bench.job.id == first.id and not bench.job.spec.changing
    assert bench.job.spec.wanted.ranks == FOUR and bench.job.spec.wanted.joined == ("gpu04",)
    names = [p.name for p in report.phases]
    assert names.index("verify") < names.index("launch") < names.index("prepare")
    assert report.ring_change.after == 10 and report.job.run == first.run
    assert report.notes == ("gpu04 joined mlp after iteration 10",)


@pytest.mark.parametrize("op", ["prepare", "go"])
async def test_a_rank_that_does_not_get_there_is_ended_and_the_job_is_as_it_was(
    bench: Living, new: Started, op: str
) -> None:
    first = bench.job
    bench.ranks.wrong[op] = "silent"
    with pytest.raises(TestbedError, match="gpu04 cannot join mlp while it runs") as failed:
        await bench.change(text(transition={"boundary_s": 1}), "live")
    assert "four is up and stays up" in str(failed.value)
    assert str(failed.value.hint).endswith("to take the light back: testbed rollback")
    assert new.asked[-1] == ("stop", ("gpu04",)) and as_before(bench, first)


async def test_a_rank_that_ends_as_it_starts_is_said_to(bench: Living, new: Started) -> None:
    first, new.ends = bench.job, True
    with pytest.raises(Refused, match="rank gpu04 ended before it joined"):
        await bench.change(text(), "live")
    assert as_before(bench, first) and "prepare" not in bench.ranks.asked


async def test_a_rank_that_joined_an_earlier_run_that_died_is_found(
    bench: Living, new: Started
) -> None:
    bench.store.set_job_spec(bench.job.id, replace(bench.job.spec, changing=3))
    new.state = "running"
    await bench.change(text(), "live")
    assert not new.asked and bench.job.spec.wanted.ranks == FOUR and not bench.job.spec.changing


async def test_a_rank_that_has_yet_to_say_that_it_joined_is_waited_for(
    bench: Living, new: Started
) -> None:
    bench.store.set_job_spec(bench.job.id, replace(bench.job.spec, changing=3))
    new.state, new.late = "running", 3
    await bench.change(text(), "live")
    assert not new.asked and bench.job.spec.wanted.ranks == FOUR and not new.late


async def test_a_rank_joins_once_where_no_light_has_to_move(bench: Living, new: Started) -> None:
    await bench.up(plan_text("before", *ring(3, 2)))
    await bench.change(text(), "live")
    assert [what for what, _ in new.asked] == ["launch"]
    assert bench.ranks.asked.count("prepare") == 1 and bench.job.spec.wanted.ranks == FOUR


async def test_a_job_pauses_in_the_dark_before_ranks_join_it(bench: Living, new: Started) -> None:
    report = await bench.change(text(transition={"hold": "always"}), "live")
    names = [p.name for p in report.phases]
    assert names.index("hold") < names.index("verify") < names.index("launch")
    did = [op for op in bench.ranks.asked if op in ("prepare", "go")]
    assert did == ["prepare", "go"] * 2
    assert bench.job.spec.wanted.ranks == FOUR and not bench.job.spec.changing


async def test_a_job_that_cannot_pause_in_the_dark_gets_no_ranks(
    bench: Living, new: Started
) -> None:
    first = bench.job
    bench.ranks.wrong["hold"] = Refused("no")
    with pytest.raises(TestbedError, match="cannot pause while the light of its new ranks is made"):
        await bench.change(text(transition={"hold": "always"}), "live")
    assert as_before(bench, first) and not new.asked


async def test_a_job_that_has_ended_is_not_launched_for_a_rank_to_join(
    bench: Living, new: Started
) -> None:
    first, new.others = bench.job, "exited"
    with pytest.raises(Missing, match="the job that gpu04 was to join has ended"):
        await bench.change(text(), "live", joins="gpu04")
    assert as_before(bench, first) and not new.asked and not bench.ranks.launched


async def test_a_job_that_ends_while_light_moves_is_not_launched_for_a_rank_to_join(
    bench: Living, new: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, verify = bench.job, Up._verify

    async def ends(self: Any, *some: Any) -> Any:
        new.others = "exited"
        return await verify(self, *some)

    monkeypatch.setattr(Up, "_verify", ends)
    with pytest.raises(TestbedError, match="gpu04 cannot join mlp while it runs: mlp has ended"):
        await bench.change(text(), "live", joins="gpu04")
    assert as_before(bench, first) and not bench.ranks.launched
    assert "launch" not in [what for what, _ in new.asked]


async def test_who_has_a_host_join_is_advised_of_no_option_of_up(
    bench: Living, new: Started
) -> None:
    bench.ranks.wrong["look"] = Unreachable("no")
    with pytest.raises(TestbedError) as failed:
        await bench.change(text(), "live", joins="gpu04")
    assert "--job" not in str(failed.value.hint) and "restarts it" in str(failed.value.hint)
