"""A job has what packet switches gave it from before its ranks start until it has ended, and no
longer than somebody keeps it.
"""

from __future__ import annotations

import asyncio
import json
import signal
import socket
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast
from unittest import mock

import pytest

from drivers.functions import FunctionSwitch
from extensions.switch_functions import leases
from extensions.switch_functions import operator as functions
from extensions.switch_functions.operator import keeper_of, leases_of, wanted
from extensions.switch_functions.plan import PLANNED, Function
from extensions.switch_functions.view import VIEW
from optics import HostPort, Infeasible, Interlock, Missing, Refused, Unreachable
from optics.plan import Job
from orchestrator.hosts.launch import requests
from orchestrator.inventory.lab import Lab
from orchestrator.inventory.segments import Segment
from orchestrator.jobs.attachments import check_attachments, elsewhere
from orchestrator.jobs.attempt import MOST_S
from orchestrator.jobs.jobs import Jobs
from orchestrator.processes import Daemon
from orchestrator.session import Session
from orchestrator.store.records import JobRecord
from orchestrator.store.store import Store
from orchestrator.telemetry import read_points
from tests.jobs.test_jobs import KEY, Bench, Ranks
from tests.kit.jobs import spec
from tests.workloads.packetswitch import Switch, switch

FOUR = tuple(f"gpu0{n}" for n in range(1, 5))
ADDS = Job(
    "mlp",
    "train",
    FOUR,
    (),
    {"exchange": "aggregate"},
    attached={"functions": (Function("ideal", "aggregate"),)},
)

NOBODY = Daemon(0, "")


def given(record: JobRecord) -> Any:
    return record.spec.given["functions"]


class Keeping(Ranks):
    """Hosts that remember what their ranks were told of packet switches."""

    shown: dict[str, dict[str, Any]]
    refuse = False

    async def launch(self, job: Job, run: str, *, resume: bool = False, extra: Any = None) -> None:
        env = {
            rank: request["env"]
            for rank, request in requests(job, self.lab, run, extra=extra).items()
        }
        self.shown = {rank: json.loads(each["TESTBED_FUNCTIONS"]) for rank, each in env.items()}
        if self.refuse:
            raise Refused("gpu04: no user")
        await super().launch(job, run, resume=resume)


def with_switch(lab: Lab, address: str) -> Lab:
    """The lab with a segment of all hosts' ports whose packet switch adds, controlled there."""
    offer = {"aggregate": {"slots": 16, "slot_bytes": 1024, "jobs": 2}}
    ports = {host: HostPort(host, 1) for host in FOUR}
    return replace(
        lab, segments={"ideal": Segment("ideal", ports, 100.0, functions=offer, address=address)}
    )


class Place(Bench):
    def __init__(self, store: Store, folder: Path, at: Switch) -> None:
        super().__init__(store, folder)
        self.folder = folder
        self.at, self.lab = at, with_switch(self.lab, at.address)
        self.ranks = Keeping(self.lab)
        self.jobs = Jobs(Session(self.lab, folder, {}, cast(Any, self.ranks)), store, KEY, folder)

    @property
    def left_s(self) -> list[float]:
        return [each["lease_left_s"] for each in self.at.ask(op="counters")["allocations"]]


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with (
        switch({"aggregate": {"slots": 16, "slot_bytes": 1024, "jobs": 2}}) as at,
        Store(tmp_path / "store.sqlite3") as store,
    ):
        yield Place(store, tmp_path, at)


async def until(true: Callable[[], bool], within_s: float = 20.0) -> bool:
    for _ in range(int(within_s / 0.05)):
        if true():
            return True
        await asyncio.sleep(0.05)
    return False


async def test_a_job_has_its_slots_while_it_runs_and_a_process_renews_them(place: Place) -> None:
    await place.bring(ADDS)
    grant = cast(Keeping, place.ranks).shown["gpu02"]["aggregate"]
    assert (grant["device"], grant["size"], grant["each_bytes"]) == (
        place.lab.hosts["gpu02"].ports[1].interface,
        8,
        1024,
    )
    assert await until(lambda: place.left_s[0] > 30)
    record = place.store.latest_job(KEY)
    assert (
        record is not None
        and record.spec.wanted == ADDS
        and leases_of(given(record))[0].token == grant["token"]
    )
    keeper = keeper_of(given(record))
    assert keeper is not None and keeper.alive
    await place.jobs.stop(record, "stopped")
    assert place.left_s == [] and not keeper.alive


async def test_what_the_switch_counted_is_in_the_status_and_the_journal_while_it_is_leased(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(functions, "keep", lambda found: NOBODY)
    await place.bring(ADDS)
    record = place.store.latest_job(KEY)
    assert record is not None
    [leased] = (await place.jobs.status(record)).attached["functions"]
    assert {
        "segment": "ideal",
        "state": "leased",
        "size": 8,
        "total": 16,
        "packets_in": 0,
    }.items() <= leased.items()
    points = [
        each for each in read_points(place.folder / record.run) if each.measurement == "function"
    ]
    assert points and points[-1].tags["function"] == "aggregate" and points[-1].fields["size"] == 8
    lease = leases_of(given(record))[0]
    place.at.ask(op="release", allocation=lease.allocation, token=lease.token)
    [leased] = (await place.jobs.status(record)).attached["functions"]
    assert leased["state"] == "ended" and "the switch has it no more" in VIEW.text(leased)
    await place.jobs.stop(record, "stopped")
    record = place.store.latest_job(KEY)
    assert record is not None and "functions" not in (await place.jobs.status(record)).attached


async def test_a_packet_switch_is_asked_once_for_a_job_and_for_everybody_who_uses_it(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(functions, "keep", lambda found: NOBODY)
    await place.bring(ADDS)
    record, counters, questions = place.store.latest_job(KEY), FunctionSwitch.counters, list[str]()

    async def counted(at: FunctionSwitch) -> Any:
        questions.append(at.name)
        return await counters(at)

    monkeypatch.setattr(FunctionSwitch, "counters", counted)
    asked: dict[object, Any] = {}
    assert record is not None
    attached = (await place.jobs.status(record, asked=asked)).attached
    assert await elsewhere(place.lab, attached, asked) == [] and questions == ["ideal"]
    (others,) = await elsewhere(place.lab, {}, asked)
    assert others.startswith(
        "function aggregate of segment ideal: 8 slots for mlp.r1, lease "
    ) and questions == ["ideal"]
    await place.jobs.status(record)
    assert questions == ["ideal"] * 2, "the next look asks anew"


@pytest.mark.parametrize("how", ["0", "75", "refused"])
async def test_slots_are_given_back_however_a_job_ends(
    place: Place, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr(functions, "keep", lambda found: NOBODY)
    if how == "refused":
        cast(Keeping, place.ranks).refuse = True
        with pytest.raises(Refused, match="no user"):
            await place.bring(ADDS)
    else:
        await place.bring(ADDS)
        assert len(place.left_s) == 1
        place.end(how)
        record = place.store.latest_job(KEY)
        assert record is not None
        await place.jobs.status(record)
    assert place.left_s == []


async def test_a_switch_without_room_or_of_another_segment_refuses_before_anything_moves(
    place: Place,
) -> None:
    await check_attachments(None, place.lab, None)
    await check_attachments(ADDS, place.lab, None)
    taken = await functions.take(ADDS.attached[PLANNED.key], ADDS, place.lab, "r1")
    place.store.add_job(KEY, "r1", "mlp", spec(given={"functions": functions._given(taken)}))
    place.at.ask(
        op="allocate", function="aggregate", job="b", workers=["10.0.0.1"], slots=1, lease_s=60
    )
    with pytest.raises(
        Infeasible,
        match="segment ideal: aggregate for mlp needs 8 slots; 7 are free, and no job more",
    ) as refused:
        await check_attachments(ADDS, place.lab, None)
    assert refused.value.hint == "they are with mlp.r1 (8), b (1), until these jobs end"
    # which gives back its own
    await check_attachments(ADDS, place.lab, place.store.latest_job(KEY))
    other_function = (replace(taken[0], function="cache"),)
    cached = place.store.add_job(
        KEY,
        "r2",
        "store",
        spec(name="store", given={"functions": functions._given(other_function)}),
    )
    with pytest.raises(Infeasible, match="7 are free"):  # entries given back make no slots
        await check_attachments(ADDS, place.lab, place.store.job(cached))
    await functions.give_back(taken)
    other = replace(
        place.lab, segments={"rail1": replace(place.lab.segments["ideal"], name="rail1")}
    )
    with pytest.raises(
        Interlock, match=r"segment rail1: what answers at .* is the packet switch of segment ideal"
    ):
        await check_attachments(
            replace(ADDS, attached={"functions": (Function("rail1", "aggregate"),)}), other, None
        )
    with socket.create_server(("127.0.0.1", 0)) as ended:
        away = with_switch(place.lab, f"127.0.0.1:{ended.getsockname()[1]}")
    with pytest.raises(Unreachable, match="functions of ideal"):
        await check_attachments(ADDS, away, None)


async def test_a_relaunch_by_an_inventory_without_its_switch_is_refused_and_nothing_is_kept(
    place: Place,
) -> None:
    segment = place.lab.segments["ideal"]
    ports = {host: port for host, port in segment.ports.items() if host != "gpu02"}
    for segments, reported in (
        ({}, "segment ideal: no such segment is in fibres.yml"),
        (
            {"ideal": replace(segment, functions={})},
            "segment ideal: its switch cannot aggregate, by what is in fibres.yml",
        ),
        (
            {"ideal": replace(segment, ports=ports)},
            "segment ideal: gpu02 of job mlp is not at it, by what is in fibres.yml",
        ),
    ):
        with pytest.raises(Missing) as refused:
            await functions.take(
                ADDS.attached[PLANNED.key], ADDS, replace(place.lab, segments=segments), "r1"
            )
        assert str(refused.value) == reported and place.left_s == []


def test_a_job_asks_for_its_part_and_for_no_more_than_a_buffer_holds(place: Place) -> None:
    def of(name: str, **offer: int) -> int:
        segment = replace(place.lab.segments["ideal"], functions={name: offer})
        return wanted(
            Function("ideal", cast(Any, name)), replace(place.lab, segments={"ideal": segment})
        )

    assert of("aggregate", slots=64, slot_bytes=1024, jobs=2) == 32
    assert of("aggregate", slots=64, slot_bytes=8192, jobs=2) == 15
    assert of("aggregate", slots=1, slot_bytes=64, jobs=64) == 1
    assert of("cache", entries=1, entry_bytes=64) == 1


async def test_nobody_renews_a_lease_that_a_silent_switch_could_not_take_back(place: Place) -> None:
    (taken,) = await functions.take(ADDS.attached[PLANNED.key], ADDS, place.lab, "r1")
    keeper = functions.keep([taken])
    assert keeper.alive
    with socket.create_server(("127.0.0.1", 0)) as ended:
        away = f"127.0.0.1:{ended.getsockname()[1]}"
    await functions.give_back([replace(taken, control=away)], keeper)
    assert not keeper.alive
    await functions.give_back([taken])
    assert place.left_s == []


def test_a_paused_job_keeps_its_lease() -> None:
    assert leases.IDLE_S > MOST_S + leases.LEASE_S


async def test_a_lease_is_renewed_until_it_is_over(place: Place) -> None:
    async def ended(work: Awaitable[Any] | None, **times: float) -> str:
        (taken,) = await functions.take(ADDS.attached[PLANNED.key], ADDS, place.lab, "r1")
        renewing = asyncio.ensure_future(leases.renew(taken, every_s=0.01, **times))
        await asyncio.sleep(0.05)
        if work is not None:
            await work
        try:
            return await asyncio.wait_for(renewing, 20)
        finally:
            await functions.give_back([taken])

    async def restart() -> None:
        place.at.order(do="restart")

    with mock.patch.object(functions, "keep", return_value=NOBODY):
        assert await ended(restart()) == "given back"
        assert await ended(None, begin_s=0.2) == "idle", (
            "whoever took it was killed before a rank began"
        )


async def test_slots_that_were_taken_and_not_recorded_are_kept_by_nobody(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(place.store, "add_job", mock.Mock(side_effect=KeyboardInterrupt))
    started = mock.Mock(return_value=NOBODY)
    monkeypatch.setattr(functions, "keep", started)
    with pytest.raises(KeyboardInterrupt):
        await place.bring(ADDS)
    assert not started.called and 0 < place.left_s[0] <= functions.FIRST_LEASE_S


async def test_who_looks_at_a_job_that_nobody_renews_for_has_it_renewed(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    await place.bring(ADDS)
    record = place.store.latest_job(KEY)
    assert record is not None
    first = keeper_of(given(record))
    assert first is not None
    assert await until(lambda: place.left_s[0] > 30)
    first.end(5, signal.SIGKILL)
    (use,) = (await place.jobs.status(record)).attached["functions"]
    assert {
        "segment": "ideal",
        "function": "aggregate",
        "size": 8,
        "state": "leased",
    }.items() <= use.items()
    now = place.store.latest_job(KEY)
    assert now is not None and keeper_of(given(now)) == first, (
        "its lease is long enough to be another's"
    )
    taken = leases_of(given(record))[0]
    place.at.ask(op="renew", allocation=taken.allocation, token=taken.token, lease_s=10)
    await place.jobs.status(record)
    now = place.store.latest_job(KEY)
    assert now is not None and keeper_of(given(now)) is not None
    second = keeper_of(given(now))
    assert second != first and second.alive and await until(lambda: place.left_s[0] > 30)
    place.at.order(do="restart")
    (use,) = (await place.jobs.status(record)).attached["functions"]
    assert use["state"] == "ended"
    place.end("75")
    failed = await place.jobs.status(record)
    ended = "aggregate of segment ideal: its lease has ended, or the packet switch restarted"
    assert failed.state == "failed" and ended in failed.detail and not failed.attached
    assert not second.alive
