"""The guard's loop against hosts that keep generations in memory: it stands back, takes back,
leaves alone, and meets again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import pytest

from optics import HostPort, Link, TestbedError, Unreachable
from orchestrator.background.kind import StateFile
from orchestrator.change.locking import holding
from orchestrator.fabric.circuits import circuits
from orchestrator.fabric.circuits import settings as settings_of
from orchestrator.fabric.rules import Macs, Rules
from orchestrator.fabric.up_state import UpState
from orchestrator.hosts import Committed, Hello, HostEvent, Probe
from orchestrator.processes import boot_clock_ns, boot_id
from orchestrator.services.guard import devices
from orchestrator.services.guard import guard as guarding
from orchestrator.services.guard.guard import Guard
from orchestrator.services.guard.process import GUARD, GuardOptions
from orchestrator.session import Command, Session
from orchestrator.settings import Settings, load
from orchestrator.store.confirmations import Awaited, Confirmations
from orchestrator.store.generations import generation_owners, next_generation
from orchestrator.store.keys import key_of, tenancy_of
from orchestrator.store.locks import hold, locks_of, who
from orchestrator.store.scope import Scope, reachable_scope
from orchestrator.store.store import Store
from orchestrator.telemetry.progress import Silent
from tests.change.fibrelab import FibrePlant
from tests.hosts.parts import OwnParts
from tests.properties.labs import lab, macs, name

HERE = lab(4, 4)
LINKS = tuple(
    Link(HostPort(name(k), 1 + k % 2), HostPort(name((k + 1) % 4), 1 + k % 2)) for k in range(4)
)
PLANNED = 7
TEXT = (
    '{"schema": "testbed.plan/1", "name": "ring", "links": ['
    + ",".join(f'{{"a": "{link.a}", "b": "{link.b}"}}' for link in LINKS)
    + "]}"
)


class Committers(OwnParts):
    """Hosts that keep generations and carriers."""

    def __init__(self) -> None:
        self.queue: asyncio.Queue[HostEvent] = asyncio.Queue()
        self.active: dict[str, int | None] = dict.fromkeys(HERE.hosts, PLANNED)
        self.before: dict[str, int | None] = {}
        self.staged: dict[str, dict[int, Rules]] = {
            host: {PLANNED: frozenset()} for host in HERE.hosts
        }
        self.up = {port: True for link in LINKS for port in (link.a, link.b)}
        self.lost: set[str] = set()
        self.deaf, self.greeted = False, False
        self.pending: set[str] = set()

    def light(self, link: Link, up: bool) -> None:
        """Light at both ends comes or goes."""
        for port in (link.a, link.b):
            self.up[port] = up
            if port.host not in self.lost:
                values = {"port": port.number, "carrier": up}
                self.queue.put_nowait(HostEvent(port.host, "link", time.monotonic_ns(), values))

    def lose(self, host: str) -> None:
        self.lost.add(host)
        self.queue.put_nowait(
            HostEvent(host, "lost", time.monotonic_ns(), {"error": "no route to host"})
        )

    def subscribe(self) -> asyncio.Queue[HostEvent]:
        self.queue = asyncio.Queue()
        return self.queue

    def unsubscribe(self, queue: object) -> None:
        assert queue is self.queue

    def hello(self, host: str) -> Hello:
        pending = 9.0 if host in self.pending else None
        return Hello(
            host, True, active=self.active[host], staged=tuple(self.staged[host]), pending_s=pending
        )

    async def connect(
        self, names: Collection[str], timeout_s: float = 1.0
    ) -> Mapping[str, Hello | TestbedError]:
        return {
            n: Unreachable(f"{n}: no route to host") if n in self.lost else self.hello(n)
            for n in names
        }

    async def greet(self, names: Collection[str]) -> Mapping[str, Hello]:
        self.greeted = True
        return {n: self.hello(n) for n in names}

    def attached(self) -> tuple[str, ...]:
        return tuple(n for n in self.active if n not in self.lost)

    def macs(self) -> Mapping[HostPort, Macs]:
        return {port: mac for port, mac in macs(HERE).items() if port.host not in self.lost}

    async def watch_links(self, names: Collection[str]) -> Mapping[HostPort, bool]:
        return {port: up for port, up in self.up.items() if port.host in names}

    async def fence(self, token: int, names: Collection[str]) -> None:
        assert token

    async def stage_warm(self, generations: Mapping[int, Mapping[str, Rules]]) -> None:
        for number, hosts in generations.items():
            for host, rules in hosts.items():
                self.staged[host][number] = rules

    async def commit(
        self, number: int, names: Collection[str], revert_after_s: float
    ) -> Mapping[str, Committed]:
        for host in names:
            assert number in self.staged[host] and host not in self.lost
            self.before[host], self.active[host] = self.active[host], number
            self.pending.add(host)
        return {host: Committed(host, number, None, time.monotonic_ns()) for host in names}

    async def confirm(self, number: int, names: Collection[str]) -> None:
        self.pending -= set(names)

    async def revert(self, names: Collection[str]) -> None:
        for host in names:
            self.active[host] = self.before[host]
        self.pending -= set(names)

    async def probe(
        self, targets: Mapping[str, Mapping[str, int | None]], timeout_s: float
    ) -> Mapping[str, Mapping[str, Probe]]:
        return {
            h: {a: Probe(h, a, not self.deaf, hops=n) for a, n in wanted.items()}
            for h, wanted in targets.items()
        }


class Bench:
    """A guard over those hosts, its store, and what it said."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        places = {f"TESTBED_{n}_DIR": str(folder / n.lower()) for n in ("DATA", "STATE", "LOCK")}
        self.settings: Settings = load(env=places, cwd=folder)
        self.store = Store(self.settings.store_path, durable=False)
        self.key, self.tenancy = key_of(HERE), tenancy_of(HERE, self.settings)
        self.hosts = Committers()
        self.reported: list[dict[str, Any]] = []
        light = FibrePlant(HERE)
        for device, held in settings_of(circuits(LINKS, HERE)).items():
            light.devices[device].held = held
        monkeypatch.setattr(devices, "open_driver", lambda lab, name: light.devices[name])
        self.run = self.store.new_run(
            "up", self.key, plan_name="ring", user=self.settings.user, owner=self.settings.owner
        )
        self.run.finish("ok")
        while next_generation(self.store, self.key, self.settings.owner, self.run.id) < PLANNED:
            pass
        self.bring_up()

    def bring_up(self, generation: int = PLANNED, links: tuple[Link, ...] = LINKS) -> None:
        listed = UpState(tuple(links))
        self.store.set_current(
            self.tenancy,
            self.run.id,
            plan_name="ring",
            plan_sha="x",
            plan_text=TEXT,
            up=listed,
            generation=generation,
        )

    def events(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in self.reported if event["event"] == kind]

    async def until(self, look: Callable[[], object], limit_s: float = 5.0) -> None:
        give_up = time.monotonic() + limit_s
        while not look():
            assert time.monotonic() < give_up, [event["message"] for event in self.reported]
            await asyncio.sleep(0.005)

    def watch(
        self, story: Callable[[], Awaitable[None]], options: GuardOptions | None = None
    ) -> None:
        """Let the guard watch while the story happens."""

        async def both() -> None:
            session = Session(HERE, Path("inventory"), {}, cast(Any, self.hosts))
            path = GUARD.path(self.settings, self.tenancy)
            with StateFile(GUARD, path, GUARD.own(self.settings)) as file:
                chosen = options or GuardOptions(look_s=0.05, hold_s=0.05)
                watcher = Guard(
                    session,
                    Command(Silent(), self.store, self.settings),
                    file,
                    lambda e: self.reported.append(dict(e)),
                    chosen,
                    1.0,
                )
                task = asyncio.create_task(watcher.watch())
                try:
                    await self.until(lambda: self.events("watching"))
                    await story()
                finally:
                    task.cancel()
                    with suppress(asyncio.CancelledError):
                        await task
                    await watcher.leave()

        try:
            asyncio.run(both())
        finally:
            self.store.close()


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(tmp_path, monkeypatch)


def test_routes_move_off_a_dead_link_and_back_and_both_moves_are_runs_with_their_steps(
    bench: Bench,
) -> None:
    async def story() -> None:
        bench.hosts.light(LINKS[2], False)
        await bench.until(lambda: bench.events("rerouted"))
        assert set(bench.hosts.active.values()) == {PLANNED + 1} and not bench.hosts.pending
        bench.hosts.light(LINKS[2], True)
        await bench.until(lambda: bench.events("restored"))
        assert set(bench.hosts.active.values()) == {PLANNED}
        runs = bench.store.history(limit=2)
        assert [(r.verb, r.status, r.summary["around"]) for r in runs] == [
            ("guard", "ok", []),
            ("guard", "ok", ["gpu03:p1--gpu04:p1"]),
        ]
        assert [(s.what, s.state) for s in bench.store.steps(runs[1].id)] == [
            (what, "done") for what in ("stage", "commit", "confirm")
        ]
        assert generation_owners(bench.store, bench.key)[PLANNED + 1].run == runs[1].id

    bench.watch(story)


def test_while_another_run_holds_the_lab_the_guard_stands_back_and_then_takes_up_its_plan(
    bench: Bench,
) -> None:
    async def story() -> None:
        scope = reachable_scope(HERE, HERE.hosts)
        async with holding(
            HERE, Command(Silent(), bench.store, bench.settings), scope, "up", "other"
        ):
            newest = bench.store.history(limit=1)[0].id
            bench.hosts.light(LINKS[2], False)
            # the lock is this process's, as the guard's own would be: another process's stands in
            # the same table
            with bench.store.transaction() as db:
                db.execute("UPDATE locks SET pid=1, process='', host='elsewhere'")
            await bench.until(lambda: bench.events("standing back"))
            assert "up other" in bench.events("standing back")[0]["message"]
            await asyncio.sleep(0.3)
            assert not bench.events("dark") and bench.store.history(limit=1)[0].id == newest
            bench.store.set_current(
                bench.tenancy,
                bench.run.id,
                plan_name="less",
                plan_sha="x",
                plan_text=TEXT,
                up=UpState(tuple(LINKS[:2])),
                generation=PLANNED + 1,
            )
            bench.hosts.active = dict.fromkeys(bench.hosts.active, PLANNED + 1)
            next_generation(bench.store, bench.key, bench.settings.owner, bench.run.id)
        await bench.until(lambda: len(bench.events("watching")) == 2)
        await asyncio.sleep(0.1)
        assert not bench.events("dark") and not bench.events("rerouted"), (
            "that link is none of the new plan's"
        )

    bench.watch(story)


def test_new_routes_that_carry_nothing_are_taken_back_and_tried_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guarding, "FIRST_RETRY_S", 0.1)
    bench.hosts.deaf = True

    async def story() -> None:
        bench.hosts.light(LINKS[2], False)
        await bench.until(lambda: bench.events("failed"))
        assert set(bench.hosts.active.values()) == {PLANNED} and not bench.hosts.pending
        assert "pairs do not answer" in bench.events("failed")[0]["message"]
        assert bench.store.history(limit=1)[0].status == "failed"
        assert not bench.store.unfinished(bench.key, bench.settings.owner), (
            "there is nothing for an operator to continue"
        )
        bench.hosts.deaf = False
        await bench.until(lambda: bench.events("rerouted"))

    bench.watch(story)


@pytest.mark.parametrize("event", ["expired", "reverted"])
def test_routes_that_a_killed_change_left_are_said_when_its_hosts_give_it_up(
    bench: Bench, event: str
) -> None:
    drained = next_generation(bench.store, bench.key, bench.settings.owner, bench.run.id)

    async def story() -> None:
        await bench.until(lambda: bench.hosts.greeted)  # it found the routes of the plan
        bench.hosts.active |= dict.fromkeys(bench.hosts.active, drained)
        values = {"generation": drained + 1, "missing": []}
        bench.hosts.queue.put_nowait(HostEvent("gpu02", event, time.monotonic_ns(), values))
        await bench.until(lambda: bench.events("failed"))
        assert f"runs generation {drained} of" in bench.events("failed")[0]["message"]

    bench.watch(story)


def test_hosts_that_run_somebody_elses_routes_are_left_alone(bench: Bench) -> None:
    other = next_generation(bench.store, bench.key, "bob", bench.run.id)
    bench.hosts.active["gpu02"] = other

    async def story() -> None:
        bench.hosts.light(LINKS[2], False)
        await bench.until(lambda: bench.events("failed"))
        assert f"gpu02 runs generation {other} of bob" in bench.events("failed")[0]["message"]
        assert bench.hosts.active["gpu02"] == other and bench.hosts.active["gpu01"] == PLANNED

    bench.watch(story)


def test_a_lost_host_is_said_the_others_are_told_and_it_follows_when_it_is_back(
    bench: Bench,
) -> None:
    async def story() -> None:
        bench.hosts.lose("gpu04")
        await bench.until(lambda: bench.events("host lost"))
        bench.hosts.light(LINKS[0], False)
        await bench.until(lambda: bench.events("rerouted"))
        assert (
            bench.hosts.active["gpu04"] == PLANNED
            and "gpu04 does not answer" in bench.events("rerouted")[0]["message"]
        )
        bench.hosts.lost.clear()
        await bench.until(lambda: bench.events("host back"))
        await bench.until(lambda: bench.hosts.active["gpu04"] not in (None, PLANNED))
        assert len(set(bench.hosts.active.values())) == 1

    bench.watch(story)


def test_a_host_that_comes_back_while_the_others_are_rerouted_follows_them(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.services.guard.carriers.RECONNECT_S", (0.01,))
    probe = bench.hosts.probe

    async def meanwhile(*argv: Any, **more: Any) -> Any:
        bench.hosts.lost.clear()
        await bench.until(lambda: bench.events("host back"))
        return await probe(*argv, **more)

    async def story() -> None:
        bench.hosts.lose("gpu04")
        await bench.until(lambda: bench.events("host lost"))
        monkeypatch.setattr(bench.hosts, "probe", meanwhile)
        bench.hosts.light(LINKS[0], False)
        await bench.until(lambda: bench.events("rerouted"))
        assert bench.hosts.active["gpu04"] == PLANNED
        await bench.until(lambda: len(set(bench.hosts.active.values())) == 1)

    bench.watch(story)


def test_a_link_that_flaps_is_said_to_flap_once_and_not_used(bench: Bench) -> None:
    async def story() -> None:
        for _ in range(7):
            bench.hosts.light(LINKS[2], False)
            await asyncio.sleep(0.04)
            bench.hosts.light(LINKS[2], True)
            await asyncio.sleep(0.04)
        assert len(bench.events("flapping")) == 1 and len(bench.events("dark")) == 3
        assert len(bench.events("rerouted")) == 1 and not bench.events("restored")

    bench.watch(story, GuardOptions(look_s=5.0, hold_s=1.0))


def test_a_guard_that_comes_back_finds_its_detour_in_place_and_only_undoes_it(bench: Bench) -> None:
    async def first() -> None:
        bench.hosts.light(LINKS[2], False)
        await bench.until(lambda: bench.events("rerouted"))

    again = bench.settings.store_path
    bench.watch(first)
    bench.store = Store(again, durable=False)
    bench.reported.clear()
    runs = len(bench.store.history(limit=0))

    async def second() -> None:
        await bench.until(lambda: bench.events("dark"))
        await asyncio.sleep(0.1)
        assert len(bench.store.history(limit=0)) == runs, "the hosts are in line already"
        bench.hosts.light(LINKS[2], True)
        await bench.until(lambda: bench.events("restored"))
        assert set(bench.hosts.active.values()) == {PLANNED}

    bench.watch(second)


def test_when_the_plan_is_taken_down_the_guard_ends(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guarding, "TICK_S", 0.02)

    async def story() -> None:
        bench.store.clear_current(bench.tenancy)
        await bench.until(lambda: bench.events("down"))

    bench.watch(story)


def test_while_a_change_waits_to_be_confirmed_the_hosts_are_left_to_count_down(
    bench: Bench,
) -> None:
    """Routes that the guard would confirm would make them forget that they owe to go back."""
    kept = Confirmations(bench.store, bench.tenancy, who(bench.settings))
    bench.hosts.pending = set(HERE.hosts)
    run, hosts, due_ns = bench.run.id, tuple(HERE.hosts), boot_clock_ns() + 60 * 10**9
    waits = Awaited(
        run,
        bench.tenancy,
        run,
        "ring",
        "",
        PLANNED,
        hosts,
        (),
        60.0,
        "here",
        boot_id(),
        due_ns,
        time.time() + 60,
    )
    kept.begin(waits, reachable_scope(HERE, HERE.hosts))

    async def story() -> None:
        await bench.until(lambda: bench.events("standing back"))
        assert (
            f"run {bench.run.id} (ring) waits to be confirmed"
            in bench.events("standing back")[0]["message"]
        )
        bench.hosts.light(LINKS[2], False)
        await asyncio.sleep(0.3)
        assert bench.hosts.pending == set(HERE.hosts) and set(bench.hosts.active.values()) == {
            PLANNED
        }
        kept.close(waits, "confirmed", bench.run.id)
        bench.hosts.pending.clear()
        await bench.until(lambda: bench.events("rerouted"))

    bench.watch(story)


def test_a_guard_that_knows_no_other_host_of_its_plan_says_so_and_goes_on(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others have not answered since it began, so nobody knows their MAC addresses."""
    monkeypatch.setattr(guarding, "FIRST_RETRY_S", 0.05)
    bench.hosts.lost = {"gpu02", "gpu03", "gpu04"}

    async def story() -> None:
        for port in [port for port in bench.hosts.up if port.host == "gpu01"]:
            bench.hosts.queue.put_nowait(
                HostEvent("gpu01", "link", 0, {"port": port.number, "carrier": False})
            )
        await bench.until(lambda: bench.events("failed"))
        assert (
            "no host of ring that answers has a link to another"
            in bench.events("failed")[0]["message"]
        )
        bench.hosts.lost.clear()
        await bench.until(lambda: bench.events("rerouted"))

    bench.watch(story)


def test_a_command_that_waits_goes_before_the_guard(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guarding, "FIRST_RETRY_S", 0.05)
    bench.hosts.deaf = True
    waiting = counted_waits(monkeypatch)

    async def story() -> None:
        bench.hosts.light(LINKS[2], False)
        await bench.until(lambda: bench.events("failed"))
        locks, theirs = (
            locks_of(HERE, bench.settings, bench.store),
            Scope(owners=frozenset({"bob"})),
        )
        async with hold(locks, theirs, "up theirs"):
            waits = locks.take(
                "run", reachable_scope(HERE, HERE.hosts) | theirs, "up mine", queue=True
            )
            assert waits.state == "waiting"
            with bench.store.transaction() as db:  # both are of other processes
                db.execute("UPDATE locks SET pid=1, process='', host='elsewhere'")
            await bench.until(lambda: bench.events("standing back"))
            waiting.clear()
            await asyncio.sleep(0.5)
            assert len(waiting) < 20 and not bench.events("on again")
            with bench.store.transaction() as db:
                db.execute("UPDATE locks SET state='released'")
        bench.hosts.deaf = False
        await bench.until(lambda: bench.events("rerouted"))

    bench.watch(story)


def test_a_guard_waits_for_the_next_event_once_what_failed_is_not_wanted_any_more(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guarding, "FIRST_RETRY_S", 0.3)
    bench.hosts.deaf = True
    waits = counted_waits(monkeypatch)

    async def story() -> None:
        bench.hosts.light(LINKS[2], False)
        await bench.until(lambda: bench.events("failed"))
        bench.hosts.light(LINKS[2], True)
        await asyncio.sleep(0.5)
        waits.clear()
        await asyncio.sleep(0.5)
        assert len(waits) < 20 and len(bench.events("failed")) == 1

    bench.watch(story)


def counted_waits(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """How often the guard looks for something to do: a few times a second."""
    waiting: list[None] = []
    waits = Guard._wait_for_others

    async def counted(self: Guard) -> bool:
        waiting.append(None)
        return await waits(self)

    monkeypatch.setattr(Guard, "_wait_for_others", counted)
    return waiting
