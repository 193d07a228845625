"""What others did in the meantime, before a command had its lock, and what they do beside it on
other hosts.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from optics import ChangeFailed, Interlock, Locked, Missing, RolledBack, Unreachable
from orchestrator.change import run as changes
from orchestrator.jobs.jobs import Jobs
from orchestrator.session import Session
from orchestrator.store import ownership
from orchestrator.store.audit import audit
from orchestrator.store.generations import next_generation
from orchestrator.store.locks import locks_of
from orchestrator.store.ownership import adopt
from orchestrator.store.runs import latest_change
from orchestrator.store.scope import Scope
from orchestrator.telemetry.progress import Silent
from orchestrator.telemetry.recorder import Recorder
from orchestrator.verbs import change as engine
from orchestrator.verbs import status as survey
from tests.drills.bench import Bench, Killed, Process, opened, plan_text
from tests.kit.jobs import spec

ONE = [("gpu01:p1", "gpu02:p1")]
WIDE = [("gpu01:p1", "gpu02:p1"), ("gpu02:p2", "gpu03:p2")]
MOVED = [("gpu01:p3", "gpu02:p3")]
THEIRS = [("gpu03:p1", "gpu04:p1")]


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with opened(tmp_path, hosts=4) as made:
        yield made


def meanwhile(monkeypatch: pytest.MonkeyPatch, work: Callable[[], Awaitable[object]]) -> None:
    """Have `work` done after the next command has looked around, and before it has its lock."""
    real = changes.holding

    @asynccontextmanager
    async def late(*argv: Any, **more: Any) -> AsyncIterator[Any]:
        monkeypatch.setattr(changes, "holding", real)
        await work()
        async with real(*argv, **more) as lock:
            yield lock

    monkeypatch.setattr(changes, "holding", late)


def made_ready(bench: Bench, host: str) -> int:
    """Another owner is about to bring up his first plan: a host has his routes ready and waits for
    light.
    """
    with bench.store("bob") as store:
        number = next_generation(store, bench.key, "bob", "his run")
    bench.fleet.all[host].staged[number] = ()  # type: ignore[assignment]
    bench.fleet.all[host].armed = (number, {1: 99})
    return number


async def test_down_leaves_alone_what_another_owner_makes_ready_on_his_hosts(bench: Bench) -> None:
    await bench.up(plan_text("one", ONE))
    number = made_ready(bench, "gpu03")
    await bench.verb(engine.down)
    assert number in bench.fleet.all["gpu03"].staged and bench.fleet.all["gpu03"].armed, (
        "bob's change is on its way"
    )
    assert bench.fleet.all["gpu01"].active is None and bench.fleet.all["gpu03"].clears == 0


async def test_the_hosts_of_a_job_obey_the_run_that_stops_it_even_where_they_have_no_routes_any_more(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They were started again: one that lost the number of its newest run refuses all of a run that
    did not begin there.
    """
    await bench.up(plan_text("one", ONE))
    with bench.store() as store:
        store.add_job(bench.tenancy(), "0001", "mlp", spec("gpu01", "gpu04"), "running")
    for host in bench.fleet.all.values():
        host.active, host.staged = None, {}
    bench.fleet.ran["mlp.1"] = "running"
    obeying: set[str] = set()
    fence = bench.fleet.channels.fence

    async def fenced(token: int, names: Any) -> None:
        obeying.update(names)
        await fence(token, names)

    async def stopped(self: Jobs, recorder: Recorder) -> str:
        assert obeying == {"gpu01", "gpu04"}
        return "mlp"

    monkeypatch.setattr(bench.fleet.channels, "fence", fenced)
    monkeypatch.setattr(Jobs, "stop_if_running", stopped)
    assert not (await bench.verb(engine.down)).left and obeying


async def test_a_job_is_launched_only_with_the_hosts_of_the_one_that_it_ends(bench: Bench) -> None:
    """A newer run that stops ranks on a host overtakes whatever another owner's run is doing
    there.
    """
    plan = json.loads(plan_text("one", ONE)) | {
        "job": {"name": "mlp", "workload": "train", "ranks": ["gpu01", "gpu02"]}
    }
    await bench.up(json.dumps(plan))
    bench.fleet.ran["mlp.1"] = "running"
    bench.living.add("the drill")  # which holds the lock
    with bench.store("bob") as store:
        store.add_job(bench.tenancy(), "0001", "mlp", spec("gpu01", "gpu04"), "running")
        locks = locks_of(bench.lab, bench.settings("bob"), store)
        held = locks.take("run", Scope(frozenset({"gpu04"})), "up bob")
        with pytest.raises(Locked, match="gpu04 is locked by bob"):
            await bench.verb(engine.job_launch)
        locks.release(held.id)
    assert bench.fleet.ran["mlp.1"] == "running"


async def test_a_change_that_stops_without_rollback_disarms_nobody_else(bench: Bench) -> None:
    await bench.up(plan_text("one", ONE))
    made_ready(bench, "gpu03")
    bench.fleet.dark = {port for port in bench.lab.fibres if str(port) == "gpu01:p3"}
    with pytest.raises(ChangeFailed):
        await bench.up(plan_text("moved", MOVED), rollback=False)
    assert bench.fleet.all["gpu03"].armed, "bob's change is on its way"
    assert bench.fleet.all["gpu01"].armed is None


async def test_rollback_takes_back_nothing_else_than_what_was_the_latest_change(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bench.up(plan_text("one", ONE))
    meanwhile(monkeypatch, lambda: bench.up(plan_text("moved", MOVED)))
    with pytest.raises(Locked, match=r"run \S+ \(up moved\) changed the lab meanwhile"):
        await bench.verb(engine.rollback, None)
    assert bench.held() == bench.wanted(MOVED) and (await bench.status()).plan == "moved"
    assert not bench.locked()


async def test_restore_brings_back_the_plan_that_is_up_by_then(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bench.up(plan_text("one", ONE))
    meanwhile(monkeypatch, lambda: bench.up(plan_text("moved", MOVED)))
    assert (await bench.verb(engine.restore)).plan == "moved"
    assert bench.held() == bench.wanted(MOVED)
    meanwhile(monkeypatch, lambda: bench.verb(engine.down))
    with pytest.raises(Missing, match="taken down meanwhile"):
        await bench.verb(engine.restore)
    assert bench.held() == bench.wanted([])


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("direction", ["resume", "up"])
async def test_a_rollback_of_what_was_finished_later_goes_back_to_before_its_first_begin(
    bench: Bench, direction: str, times: int
) -> None:
    """Half done is no state that anybody wants back."""
    await bench.up(plan_text("one", ONE))
    moved = plan_text("moved", MOVED)

    def going_on(run: str, process: Process) -> Awaitable[Any]:
        if direction == "up" or not run:
            return bench.up(moved, process=process)
        return bench.verb(engine.resume, run, process=process)

    died = ""
    for _ in range(times):
        process = Process("")

        def die(
            name: str,
            process: Process = process,
            before: object = bench.held(),
            at_once: bool = bool(died),
        ) -> None:
            process.kill_at = len(process.points) if bench.held() != before or at_once else 0

        process.act = die
        with pytest.raises(Killed):
            await going_on(died, process)
        (left,) = (await bench.status()).unfinished[:1]
        died = left.run
    await going_on(died, Process(""))
    assert bench.held() == bench.wanted(MOVED)
    await bench.verb(engine.rollback, None)
    assert bench.held() == bench.wanted(ONE) and (await bench.status()).plan == "one"


async def test_of_two_who_resume_the_second_finds_it_done(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = Process("")

    def die(name: str) -> None:
        process.kill_at = len(process.points) if name == "after hosts arm" else 0

    process.act = die
    with pytest.raises(Killed):
        await bench.up(plan_text("wide", WIDE), process=process)
    (left,) = (await bench.status()).unfinished

    async def others() -> None:
        await bench.verb(engine.resume, left.run)
        await bench.up(plan_text("moved", MOVED))

    meanwhile(monkeypatch, others)
    with pytest.raises(Missing, match="left nothing unfinished"):
        await bench.verb(engine.resume, left.run)
    assert bench.held() == bench.wanted(MOVED)


async def test_a_command_that_waited_holds_the_hosts_of_what_came_up_meanwhile(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    meanwhile(monkeypatch, lambda: bench.up(plan_text("wide", WIDE)))
    held: list[str] = []
    clear = bench.fleet.routes.clear
    with bench.store() as store:
        locks = locks_of(bench.lab, bench.settings(), store)

        async def looking(*argv: Any) -> None:
            held.extend(host for lock in locks.listed() for host in lock.scope.hosts)
            await clear(*argv)

        monkeypatch.setattr(bench.fleet.routes, "clear", looking)
        await bench.up(plan_text("one", ONE))
    assert "gpu03" in held, "it is cleared by whoever holds it"


async def test_another_plan_over_the_same_light_is_up_and_can_be_taken_back(bench: Bench) -> None:
    await bench.up(plan_text("one", ONE))
    was = bench.routes()
    report = await bench.up(plan_text("same-light", ONE))
    assert report.nothing_to_do and report.writes == 0
    assert (await bench.status()).plan == "same-light"
    assert (await bench.up(plan_text("same-light", ONE))).nothing_to_do
    back = await bench.verb(engine.rollback, None)
    assert back.plan == "one" and (await bench.status()).plan == "one"
    assert bench.held() == bench.wanted(ONE) and bench.routes() == was


async def test_a_circuit_has_one_owner_whoever_lost_it_before(bench: Bench) -> None:
    """After a power cut somebody else makes the same circuit: to the owner before it is a
    stranger's.
    """
    await bench.up(plan_text("one", ONE))
    for device in bench.servers:
        for pair in bench.held()[device] - {bench.foreign(device)}:
            bench.take_down(device, pair)
    for host in bench.fleet.all.values():
        host.active, host.staged = None, {}
    await bench.up(plan_text("his", ONE), owner="bob")
    await bench.verb(engine.down)
    assert bench.held() == bench.wanted(ONE), "bob's circuits stay"
    with pytest.raises(Interlock, match="bob"):
        await bench.up(plan_text("one", ONE))


async def test_a_run_whose_lock_was_stolen_is_left_half_done_and_is_the_latest_change(
    bench: Bench,
) -> None:
    """S11: its process may hang for ever; whoever took the lab goes on or back from there, and
    takes back nothing older.
    """
    await bench.up(plan_text("one", ONE))
    process, found = Process(""), list[str]()

    def steal(name: str) -> None:
        if name == "after hosts arm" and not found:
            with bench.store() as store:
                locks = locks_of(bench.lab, bench.settings(), store)
                (lock,) = locks.listed()
                locks.steal(lock.id, "it hangs")
                found.extend(run.id for run in store.unfinished(bench.key, "ann"))
                found.append(latest_change(store, bench.key, "ann").id)

    process.act = steal
    with pytest.raises(Locked):
        await bench.up(plan_text("moved", MOVED), process=process)
    (left,) = (await bench.status()).unfinished
    assert found == [left.run, left.run]
    await bench.verb(engine.rollback, None)
    assert bench.held() == bench.wanted(ONE) and not bench.owing() and (await bench.status()).ok


async def test_a_job_that_finished_is_not_launched_again(bench: Bench) -> None:
    with bench.store() as store:
        number = store.add_job(bench.tenancy(), "run", "mlp", spec(), "running")
        store.set_job(number, "finished", ended=True)
        recorder = Recorder(Silent())
        session = Session(bench.lab, bench.inventory, {}, cast(Any, bench.fleet))
        assert (
            await Jobs(session, store, bench.tenancy(), bench.folder).resume_previous(
                "run", number, None, recorder
            )
            is None
        )


async def test_hosts_of_a_job_that_has_ended_need_not_answer(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def nobody(*argv: object) -> dict[str, object]:
        raise Unreachable("gpu04: no channel to its committer")

    monkeypatch.setattr(bench.fleet.jobs, "states", nobody)
    with bench.store() as store:
        number = store.add_job(bench.tenancy(), "run", "mlp", spec("gpu03", "gpu04"), "running")
        recorder = Recorder(Silent())
        session = Session(bench.lab, bench.inventory, {}, cast(Any, bench.fleet))

        async def bring() -> object:
            return await Jobs(session, store, bench.tenancy(), bench.folder).ensure(
                "run", None, recorder, changed=True, launch=True
            )

        with pytest.raises(Unreachable):
            await bring()
        store.set_job(number, "finished", ended=True)
        assert await bring() is None


async def test_adoption_is_whole_or_not_at_all(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bench.up(plan_text("his", THEIRS), owner="bob")
    with bench.store() as store:
        his, who = (
            store.owned(bench.tenancy("bob")),
            locks_of(bench.lab, bench.settings(), store).who,
        )
        assert len(his) == 2

        def full(*argv: object) -> None:
            raise OSError("no space left")

        monkeypatch.setattr(ownership, "add_audit", full)
        with pytest.raises(OSError, match="no space"):
            adopt(store, bench.key, who, "run", his, ["owner:bob"])
        assert store.owned(bench.tenancy("bob")) == his and not store.owned(bench.tenancy())
        assert store.current(bench.tenancy("bob")) is not None


async def test_who_loads_the_links_holds_them(bench: Bench) -> None:
    await bench.up(plan_text("one", ONE))
    with bench.store("bob") as store:
        lock = locks_of(bench.lab, bench.settings("bob"), store).take(
            "reservation", Scope(frozenset({"gpu02"})), "mine"
        )
    with pytest.raises(Locked, match=lock.id):
        await bench.verb(survey.verify, qualify=True)
    assert (await bench.verb(survey.verify)).ok, "who only looks asks nobody"


async def test_links_of_a_plan_are_not_loaded_while_the_job_before_runs(bench: Bench) -> None:
    with bench.store() as store:
        store.add_job(bench.tenancy(), "run", "mlp", spec(), "running")
    text = plan_text("one", ONE).replace('"max_loss_db"', '"min_link_share": 0.5, "max_loss_db"')
    await bench.up(text)
    assert bench.held() == bench.wanted(ONE)


async def test_nobody_is_led_back_to_what_a_dead_rollback_found(bench: Bench) -> None:
    await bench.up(plan_text("one", ONE))
    await bench.up(plan_text("moved", MOVED))
    process = Process("")

    def die(name: str) -> None:
        process.kill_at = len(process.points) if name == "after hosts arm" else 0

    process.act = die
    with pytest.raises(Killed):
        await bench.verb(engine.rollback, None, process=process)
    (left,) = (await bench.status()).unfinished
    assert (
        left.what == "rollback one"
        and left.resume == f"testbed resume {left.run}"
        and left.undo == ""
    )
    assert (
        "roll back:" not in "\n".join(left.lines()) and "before it changed" not in left.lines()[0]
    )
    await bench.verb(engine.resume, left.run)
    assert bench.held() == bench.wanted(ONE) and not (await bench.status()).unfinished


async def test_a_change_that_fails_keeps_what_it_adopted_and_says_so(bench: Bench) -> None:
    await bench.up(plan_text("his", THEIRS), owner="bob")
    bench.fleet.dark = {port for port in bench.lab.fibres if str(port) == "gpu01:p3"}
    with pytest.raises(RolledBack) as failed:
        await bench.up(plan_text("moved", MOVED), adopt=("owner:bob",))
    with bench.store() as store:
        assert len(store.owned(bench.tenancy())) == 2
    assert str(failed.value).count("adopted circuits stay yours: ocs1:3->20, of bob") == 1


async def fails_to_arm(bench: Bench, owner: str) -> None:
    """A change of two hosts that goes wrong once its routes are staged."""
    bench.requests.names.clear()
    bench.requests.fail = {2: "refused"}
    with pytest.raises(RolledBack):
        await bench.up(plan_text(owner, ONE), owner=owner)
    bench.requests.fail = {}


async def test_what_two_owners_staged_on_a_host_is_cleared_by_each_of_them(bench: Bench) -> None:
    for owner in ("ann", "bob"):
        await fails_to_arm(bench, owner)
    both = {name: len(host.staged) for name, host in bench.fleet.all.items() if host.staged}
    assert both == {"gpu01": 2, "gpu02": 2}
    assert not (await bench.verb(engine.down, owner="ann")).left
    assert [len(host.staged) for host in bench.fleet.all.values()] == [1, 1, 0, 0]
    assert not (await bench.verb(engine.down, owner="bob")).left
    assert not any(host.staged for host in bench.fleet.all.values())


async def test_a_down_leaves_what_it_staged_where_another_run_holds_the_host(bench: Bench) -> None:
    await fails_to_arm(bench, "ann")
    bench.living.add("the drill")  # which holds the lock
    with bench.store("bob") as store:
        locks = locks_of(bench.lab, bench.settings("bob"), store)
        held = locks.take("run", Scope(frozenset({"gpu01"})), "up bob")
        number = made_ready(bench, "gpu01")
        report = await bench.verb(engine.down, owner="ann")
        assert (
            any("stay on gpu01" in note and "bob" in note for note in report.notes)
            and not report.left
        )
        assert (
            bench.fleet.all["gpu01"].armed == (number, {1: 99})
            and len(bench.fleet.all["gpu01"].staged) == 2
        )
        assert not bench.fleet.all["gpu02"].staged
        locks.release(held.id)
    assert not (await bench.verb(engine.down, owner="ann")).left
    assert list(bench.fleet.all["gpu01"].staged) == [number]


@pytest.mark.parametrize("verb", ["up", "down"])
async def test_routes_of_an_earlier_plan_are_cleared_only_on_a_host_that_is_locked(
    bench: Bench, verb: str
) -> None:
    """A change that took up what a killed one had left, and succeeded, may have left a host behind
    that did not answer.
    """

    async def change(links: list[tuple[str, str]]) -> list[str]:
        if verb == "down":
            return list((await bench.verb(engine.down)).left)
        return list((await bench.up(plan_text("moved", links))).notes)

    await bench.up(plan_text("one", ONE))
    behind, number = bench.fleet.all["gpu03"], bench.fleet.all["gpu01"].active
    assert number is not None
    behind.active, behind.staged[number] = number, bench.fleet.all["gpu01"].staged[number]
    bench.living.add("the drill")  # which holds the lock
    with bench.store("bob") as store:
        locks = locks_of(bench.lab, bench.settings("bob"), store)
        held = locks.take("run", Scope(frozenset({"gpu03"})), "up bob")
        (text,) = (line for line in await change(MOVED) if "gpu03" in line)
        assert "stay on gpu03: " in text and "bob" in text and behind.active == number
        locks.release(held.id)
    assert not any("stay on" in line for line in await change(ONE)) and behind.active is None
    with bench.store() as store:
        extended = [
            line
            for line in audit(store, bench.key, 99)
            if line.what == "extended" and "gpu03" in line.why
        ]
    assert extended


async def test_a_host_that_went_back_before_it_knew_the_run_counts_as_it_was_then(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a command stands still between its look at the hosts and its fence, and an
    unconfirmed commit ends meanwhile.
    """
    await bench.up(plan_text("one", ONE))
    host, fence = bench.fleet.all["gpu01"], bench.fleet.fence
    first = host.active
    await bench.up(plan_text("moved", MOVED))
    host.pending, host.pending_to = True, first

    async def goes_back(*argv: Any) -> None:
        host.active, host.pending = first, False
        await fence(*argv)

    monkeypatch.setattr(bench.fleet, "fence", goes_back)
    report = await bench.up(plan_text("one", ONE))
    with bench.store() as store:
        before, _ = store.journalled(report.run)
    assert first is not None and before["generations"]["gpu01"] == first
