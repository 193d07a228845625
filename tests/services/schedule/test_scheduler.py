"""The scheduler over devices in memory and hosts that run the agent's own machine: whole slots,
whatever fails or is late.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from optics import Infeasible, Locked, Missing, Outcome, Refused, Setting, TimedOut
from optics.plan import Job
from orchestrator.jobs.jobs import Jobs
from orchestrator.jobs.report import JobStatus
from orchestrator.services.guard.recover import rewritten
from orchestrator.services.schedule import verb
from orchestrator.services.schedule.making import up_slots
from orchestrator.services.schedule.process import SCHEDULER, ScheduleOptions
from orchestrator.session import Command
from orchestrator.store.locks import locks_of
from orchestrator.store.options import RunOptions, UpOptions
from orchestrator.store.records import JobRecord
from orchestrator.store.scope import Scope
from orchestrator.telemetry.progress import Silent
from orchestrator.verbs import job as job_verbs
from orchestrator.verbs.change import launched_again
from orchestrator.verbs.status import _halted
from tests.change.fleet import Killed
from tests.kit.jobs import spec
from tests.services.schedule.fabric import HERE, PAIRS, Bench, plan_text


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(tmp_path, monkeypatch)


def story(bench: Bench, what: Callable[[asyncio.Task[object]], Awaitable[None]]) -> object:
    """Turn while `what` happens, then stop it as SIGTERM does; return the report, or the error that
    ended it.
    """

    async def both() -> object:
        task: asyncio.Task[object] = asyncio.create_task(bench.change_slot())
        try:
            await what(task)
        finally:
            task.cancel()
            [found] = await asyncio.gather(task, return_exceptions=True)
        return found

    return asyncio.run(both())


def whole(bench: Bench) -> int:
    """The slot that the devices hold and every host is in, confirmed."""
    slot = PAIRS.index(tuple(sorted(bench.pairs())))
    for host in bench.fabric.hosts.values():
        assert not host.held and host.active == host.request["slots"][slot]["generation"], (
            host.history[-4:]
        )
    return slot


def counts(bench: Bench) -> list[int]:
    return [host.machine.count if host.machine else -1 for host in bench.fabric.hosts.values()]


def test_one_cycle_brings_every_slot_in_order_and_ends_where_it_began(bench: Bench) -> None:
    report = asyncio.run(bench.change_slot(ScheduleOptions(once=True)))
    assert (report.slot_changes, report.slot, report.slots) == (3, 0, 3) and whole(bench) == 0
    for host in bench.fabric.hosts.values():
        slots = [what for _, what in host.history if what.startswith("slot")]
        assert [s for i, s in enumerate(slots) if not i or s != slots[i - 1]] == [
            "slot 0",
            "slot 1",
            "slot 2",
            "slot 0",
        ]
    current = bench.store.current(bench.tenancy)
    assert current is not None and current.up.slots is not None and current.up.slots.slot == 0
    assert current.generation == bench.fabric.hosts["gpu01"].active
    assert len(bench.store.owned(bench.tenancy)) == 4, (
        "only the last slot's circuits stay the owner's"
    )


def test_while_slots_turn_no_other_run_changes_the_plan_of_their_owner(bench: Bench) -> None:
    async def cycle(_: object) -> None:
        await bench.until(lambda: min(counts(bench)) >= 1)
        locks = locks_of(HERE, bench.settings, bench.store)
        with pytest.raises(Locked, match="'s plan is locked by") as refused:
            locks.take("run", Scope(owners=frozenset({bench.settings.owner})), "up elsewhere")
        assert refused.value.hint == "first: testbed service stop schedule"
        locks.release(locks.take("run", Scope(owners=frozenset({"bob"})), "up his").id)

    story(bench, cycle)


def test_hosts_hold_before_the_light_goes_and_are_in_the_slot_after_it_came(bench: Bench) -> None:
    async def cycle(_: object) -> None:
        await bench.until(lambda: min(counts(bench)) >= 4)

    story(bench, cycle)
    [switch] = bench.fabric.devices.values()
    for host in bench.fabric.hosts.values():
        for sent in switch.changes[1:4]:
            before = [what for at, what in host.history if at < sent]
            assert before[-1].startswith("hold"), host.history


def test_stopping_leaves_a_whole_slot_that_the_store_knows(bench: Bench) -> None:
    async def some(_: object) -> None:
        await bench.until(lambda: min(counts(bench)) >= 2)

    report = story(bench, some)
    slot = whole(bench)
    current = bench.store.current(bench.tenancy)
    assert (
        current is not None
        and current.up.slots is not None
        and current.up.slots.slot == slot == report.slot
    )  # type: ignore[attr-defined]
    state = SCHEDULER.read(SCHEDULER.path(bench.settings, bench.tenancy))
    assert state is not None and (state.state, state.slot, state.slots, state.alive) == (
        "ended",
        slot,
        3,
        False,
    )
    assert bench.store.history(bench.key, 1)[-1].status == "ok"


def test_stopping_while_the_light_of_a_slot_is_on_its_way_waits_for_the_hosts(bench: Bench) -> None:
    [switch] = bench.fabric.devices.values()

    async def slot_changed(_: object) -> None:
        await bench.until(lambda: min(counts(bench)) >= 1)
        bench.fabric.light_s = 0.06
        at = len(switch.changes)
        await bench.until(lambda: len(switch.changes) > at)

    report = story(bench, slot_changed)
    assert whole(bench) == report.slot  # type: ignore[attr-defined]


def test_a_turner_that_is_stopped_while_it_starts_has_not_died(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    loading = asyncio.Event()

    async def slow(*_: object, **__: object) -> None:
        loading.set()
        await asyncio.sleep(60)

    monkeypatch.setattr(bench.fabric.slots, "load", slow)

    async def starts(_: object) -> None:
        await loading.wait()

    story(bench, starts)
    state = SCHEDULER.read(SCHEDULER.path(bench.settings, bench.tenancy))
    assert state is not None and (state.state, state.error) == ("ended", "")


def test_a_device_that_fails_in_the_midst_of_a_turn_is_brought_to_the_slot(bench: Bench) -> None:
    [switch] = bench.fabric.devices.values()

    async def breaks(_: object) -> None:
        await bench.until(lambda: min(counts(bench)) >= 1)
        switch.broken = [
            Refused("ocs1: the connection was closed"),
            Refused("ocs1: still restarting"),
        ]
        await bench.until(lambda: not switch.broken)
        at = max(counts(bench))
        await bench.until(lambda: min(counts(bench)) >= at + 3)

    report = story(bench, breaks)
    assert report.late >= 1 and whole(bench) == report.slot  # type: ignore[attr-defined]
    assert any(event["event"] == "repairing" for event in bench.reported)


def test_stopping_while_a_device_does_not_come_back_tries_it_no_more(bench: Bench) -> None:
    [switch] = bench.fabric.devices.values()

    async def broken(_: object) -> None:
        await bench.until(lambda: min(counts(bench)) >= 1)
        switch.broken = [Refused("ocs1: still restarting")] * 1000
        await bench.until(lambda: any(event["event"] == "repairing" for event in bench.reported))

    story(bench, broken)
    assert len(switch.broken) > 990
    state = SCHEDULER.read(SCHEDULER.path(bench.settings, bench.tenancy))
    assert state is not None and state.state == "ended"


@pytest.mark.parametrize("repairing", [False, True])
def test_light_whose_turn_was_not_answered_keeps_its_owner_when_the_turner_is_stopped(
    bench: Bench, repairing: bool
) -> None:
    [switch] = bench.fabric.devices.values()
    apply, asked = switch.apply, list[None]()

    async def answers_no_more() -> frozenset[Setting]:
        raise TimedOut("ocs1: no answer")

    async def unanswered(*argv: Any) -> Outcome:
        asked.append(None)
        if repairing and len(asked) == 1:
            raise Refused("ocs1: the connection was closed")
        await apply(*argv)
        switch.read = answers_no_more  # type: ignore[method-assign]
        raise TimedOut("ocs1: no answer")

    async def breaks(_: object) -> None:
        await bench.until(lambda: min(counts(bench)) >= 1)
        switch.apply = unanswered  # type: ignore[method-assign]
        await bench.until(lambda: len(asked) > repairing)
        await bench.until(lambda: len(switch.held) == 4)
        await asyncio.sleep(0.3)  # what was sent has come about by then

    story(bench, breaks)
    assert switch.held <= bench.store.owned(bench.tenancy)


@pytest.mark.parametrize("repairing", [False, True])
def test_a_turner_whose_lock_was_taken_moves_no_light_any_more(
    bench: Bench, repairing: bool
) -> None:
    [switch] = bench.fabric.devices.values()
    held = []

    async def robbed(task: asyncio.Task[object]) -> None:
        await bench.until(lambda: min(counts(bench)) >= 1)
        if repairing:
            switch.broken = [Refused("ocs1: still restarting")] * 1000
            await bench.until(
                lambda: any(event["event"] == "repairing" for event in bench.reported)
            )
        locks = locks_of(HERE, bench.settings, bench.store)
        [lock] = locks.listed()
        locks.steal(lock.id, "because")
        switch.broken.clear()
        held.append(switch.held)
        await asyncio.wait([task], timeout=10.0)

    assert isinstance(story(bench, robbed), Locked)
    assert switch.held == held[0]
    state = SCHEDULER.read(SCHEDULER.path(bench.settings, bench.tenancy))
    assert state is not None and state.state == "ended" and "no longer holds the lab" in state.error


def test_a_late_turn_is_left_out_and_nothing_of_it_happens(bench: Bench) -> None:
    [switch] = bench.fabric.devices.values()

    async def slow(_: object) -> None:
        await bench.until(lambda: min(counts(bench)) >= 1)
        switch.slow_s = 0.3
        await bench.until(lambda: any(event["event"] == "late" for event in bench.reported))
        switch.slow_s = 0.0
        at = max(counts(bench))
        await bench.until(lambda: min(counts(bench)) >= at + 2)

    report = story(bench, slow)
    assert report.late >= 1 and whole(bench) == report.slot  # type: ignore[attr-defined]


def test_late_stop_ends_the_schedule_and_says_what_was_late(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(tmp_path, monkeypatch, plan_text(late="stop"))
    [switch] = bench.fabric.devices.values()

    async def slow(task: asyncio.Task[object]) -> None:
        await bench.until(lambda: min(counts(bench)) >= 1)
        switch.slow_s = 0.3
        await bench.until(task.done)

    error = story(bench, slow)
    assert isinstance(error, TimedOut) and "late: stop was reached: slot 1: ocs1 was ready " in str(
        error
    )
    whole(bench)
    state = SCHEDULER.read(SCHEDULER.path(bench.settings, bench.tenancy))
    assert state is not None and state.state == "ended" and "late: stop was reached" in state.error
    assert (
        "the schedule service gave up in slot 1 of 3: late: stop was reached" in _halted(state)[0]
    )
    assert bench.store.history(bench.key, 1)[-1].status == "failed"


def test_a_turner_that_starts_on_half_a_slot_completes_it(bench: Bench) -> None:
    [switch] = bench.fabric.devices.values()
    switch.held = frozenset(sorted(switch.held, key=str)[:3])
    bench.fabric.shine()

    async def begun(_: object) -> None:
        await bench.until(lambda: bench.reported)

    story(bench, begun)
    whole(bench)


@pytest.mark.parametrize(
    "kill", [pytest.param(k, marks=[] if k % 11 == 1 else [pytest.mark.long]) for k in range(1, 48)]
)
def test_a_turner_killed_at_any_point_is_followed_by_one_that_has_a_whole_slot_within_two(
    bench: Bench, kill: int
) -> None:
    """Points: requests to hosts and devices, before and after each."""
    found: list[int] = []

    def look() -> bool:
        with suppress(AssertionError, ValueError):
            found.append(whole(bench))
        return bool(found) or max(counts(bench)) > bench.at + 2

    async def killed(task: asyncio.Task[object]) -> None:
        bench.fabric.kill = kill
        with pytest.raises(Killed):
            await task
        bench.fabric.dead = False
        bench.reported.clear()
        again: asyncio.Task[object] = asyncio.create_task(bench.change_slot())
        try:
            await bench.until(lambda: bench.reported)
            bench.at = max(counts(bench))
            await bench.until(look)
        finally:
            again.cancel()
            await asyncio.gather(again, return_exceptions=True)

    story(bench, killed)
    assert found
    whole(bench)


def test_a_host_that_is_gone_for_a_while_is_brought_back_into_the_slot(bench: Bench) -> None:
    async def lost(_: object) -> None:
        await bench.until(lambda: min(counts(bench)) >= 1)
        bench.fabric.lost.add("gpu02")
        bench.fabric.hosts["gpu02"].machine = None
        await bench.until(
            lambda: (
                any(event["event"] == "switching" for event in bench.reported)
                and counts(bench)[0] >= 3
            )
        )
        bench.fabric.lost.clear()
        await bench.until(lambda: counts(bench)[1] == counts(bench)[0] >= 5)

    story(bench, lost)
    whole(bench)


def test_by_phases_a_slot_lasts_until_every_host_ended_an_iteration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = {"name": "sums", "workload": "allreduce", "ranks": ["gpu01", "gpu02", "gpu03", "gpu04"]}
    bench = Bench(
        tmp_path,
        monkeypatch,
        plan_text(job={"rings": [job["ranks"]], **job}, kind="phase", guard_s=0.0),
    )

    async def phases(_: object) -> None:
        await bench.until(lambda: any(event["event"] == "switching" for event in bench.reported))
        await asyncio.sleep(0.3)
        assert counts(bench) == [0, 0, 0, 0]
        iteration = 0
        while min(counts(bench)) < 3:
            bench.fabric.ended(iteration := iteration + 1)
            await asyncio.sleep(0.05)

    report = story(bench, phases)
    assert report.slot_changes >= 3 and whole(bench) == report.slot  # type: ignore[attr-defined]


def test_a_job_is_launched_and_stopped_while_slots_turn_and_the_hosts_stay_the_turners(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = {"name": "sums", "workload": "allreduce", "ranks": ["gpu01", "gpu02", "gpu03", "gpu04"]}
    bench = Bench(tmp_path, monkeypatch, plan_text(job={"rings": [job["ranks"]], **job}))
    status = JobStatus("sums", "running", "allreduce", "gloo", 4, 4, 10.0, None, None)
    did: list[tuple[str, int]] = []

    async def start(jobs: Jobs, run: str, wanted: Job, *_: object, **__: object) -> JobStatus:
        number = jobs.store.add_job(
            jobs.tenancy, run, wanted.name, spec(name="sums", on_hosts="sums")
        )
        jobs.store.set_job(number, "running")
        did.append(("launched", bench.fabric.token))
        return status

    async def stop(jobs: Jobs, record: JobRecord, why: str) -> JobStatus:
        did.append((why, bench.fabric.token))
        return status

    async def asked(*_: object) -> JobStatus:
        return (
            replace(status, state="failed")
            if did and did[-1][0] == "stopped by the operator"
            else status
        )

    async def ensure(jobs: Jobs, *_: object, **__: object) -> JobStatus:
        did.append(("launched by up", bench.fabric.token))
        return status

    for name, what in (("start", start), ("stop", stop), ("status", asked), ("ensure", ensure)):
        monkeypatch.setattr(Jobs, name, what)
    monkeypatch.setattr(job_verbs, "load_lab", lambda _: HERE)
    monkeypatch.setattr(Command, "opened", lambda *_: verb.open_session())  # type: ignore[call-arg]
    command = Command(Silent(), bench.store, bench.settings)

    async def launched(_: object) -> None:
        await bench.until(lambda: min(counts(bench)) >= 1)
        bench.fabric.token = 0
        await job_verbs.job_launch(command)
        await job_verbs.job_launch(command)
        assert bench.plan.job is not None and await launched_again(command, bench.plan.job) is None
        await job_verbs.job_stop(command)
        assert await launched_again(command, bench.plan.job) is not None
        at = min(counts(bench))
        await bench.until(lambda: min(counts(bench)) >= at + 2)

    report = story(bench, launched)
    scheduling = next(run for run in bench.store.history(bench.key, 0) if run.verb == "schedule")
    argv = ["launched", "launched again", "launched", "stopped by the operator", "launched by up"]
    assert did == [(what, scheduling.token) for what in argv]
    assert whole(bench) == report.slot  # type: ignore[attr-defined]


def test_a_plan_without_a_schedule_does_not_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = '{"schema": "testbed.plan/1", "name": "pair", "links": [{"a": "gpu01:p1", "b": "gpu02:p1"}]}'
    bench = Bench(tmp_path, monkeypatch)
    current = bench.store.current(bench.tenancy)
    assert current is not None
    more = {"plan_name": "pair", "plan_sha": "x", "plan_text": text}
    bench.store.set_current(bench.tenancy, current.run, **more, up=current.up, generation=1)
    with pytest.raises(Missing, match="pair has no schedule, so there is no slot to change"):
        asyncio.run(bench.change_slot())


@pytest.mark.parametrize("option", ["--confirm-within", "--avoid", "--relabel", "--job"])
def test_what_needs_a_fabric_that_stays_as_it_is_is_refused(bench: Bench, option: str) -> None:
    command = Command(Silent(), bench.store, bench.settings)
    given: dict[str, Any] = {option.removeprefix("--").replace("confirm-within", "confirm_s"): 1}
    with pytest.raises(
        Infeasible, match=f"{option} cannot be used with a plan whose circuits move by a schedule"
    ):
        asyncio.run(up_slots(command, HERE, bench.plan, bench.text, RunOptions(UpOptions(**given))))


def test_no_host_is_moved_out_of_a_plan_whose_slots_turn(bench: Bench) -> None:
    current = bench.store.current(bench.tenancy)
    assert current is not None
    with pytest.raises(
        Infeasible,
        match="gpu02: no host can be moved out of round while its circuits move by a schedule",
    ):
        rewritten(current, HERE, {"gpu02": ""}, bench.store)


def test_hosts_know_the_network_of_each_slot_before_routes_name_its_congestion_control(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notified = Bench(tmp_path, monkeypatch, plan_text(tcp="per-network"))
    asyncio.run(notified.change_slot(ScheduleOptions(once=True)))
    count = len(notified.fabric.hosts)
    assert (
        set(notified.fabric.congctl) == {("per-network", count)}
        and len(notified.fabric.networks) == count
    )
    for name, request in notified.fabric.networks.items():
        assert request["networks"] == {
            str(slot["generation"]): 1 for slot in notified.fabric.hosts[name].request["slots"]
        }
