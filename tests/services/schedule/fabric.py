"""Devices and hosts in memory for the scheduler: light follows what the devices hold, and hosts run
the agent's own state machine.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from agent.shapes import Link as Interface
from agent.slots.clock import SlotClock
from agent.slots.machine import SlotMachine
from drivers.api import Ready, at_once
from optics import Change, HostPort, Outcome, Setting, TestbedError, Unreachable
from orchestrator.fabric.circuits import circuits
from orchestrator.fabric.circuits import settings as settings_of
from orchestrator.fabric.rules import Macs, Rules
from orchestrator.fabric.up_state import SlotsMade, UpState
from orchestrator.hosts import Hello, HostEvent
from orchestrator.plan.reader import read_plan
from orchestrator.plan.target import target
from orchestrator.services.schedule import verb
from orchestrator.services.schedule.process import ScheduleOptions
from orchestrator.session import Command, Observation, Session
from orchestrator.settings import Settings, load
from orchestrator.store.keys import key_of, tenancy_of
from orchestrator.store.store import Store
from orchestrator.telemetry.progress import Silent
from tests.change.fleet import Killed
from tests.hosts.parts import OwnParts
from tests.properties.labs import lab, macs

HERE = lab(4, 1)
SETTLE_S, DWELL_S = 0.02, 0.15
HERE = HERE.with_traits({d: replace(HERE.traits_of(d), settle_s=SETTLE_S) for d in HERE.devices})
PAIRS = (
    (("gpu01", "gpu04"), ("gpu02", "gpu03")),
    (("gpu01", "gpu03"), ("gpu02", "gpu04")),
    (("gpu01", "gpu02"), ("gpu03", "gpu04")),
)
"""The round robin of four hosts with one port each."""


def plan_text(job: object = None, **more: object) -> str:
    slots = [{"links": [{"a": f"{a}:p1", "b": f"{b}:p1"} for a, b in pairs]} for pairs in PAIRS]
    schedule = {"dwell_s": DWELL_S, "guard_s": 0.01, "slots": slots, **more}
    body = {"schema": "testbed.plan/1", "name": "round", "links": [], "schedule": schedule}
    return json.dumps(body if job is None else {**body, "job": job})


class Host:
    """One host: carriers, and the agent's machine over them."""

    def __init__(self, name: str, fabric: Fabric) -> None:
        self.name, self.fabric = name, fabric
        self.opt: Interface = {"carrier": False, "ups": 0, "downs": 0}
        self.staged: dict[int, Rules] = {}
        self.active: int | None = None
        self.held = False
        self.machine: SlotMachine | None = None
        self.request: Mapping[str, Any] = {}
        self.history: list[tuple[int, str]] = []
        self.alive = True
        self.handles: dict[int, asyncio.TimerHandle] = {}

    def now(self) -> int:
        return time.monotonic_ns()

    def link(self, interface: str) -> Interface:
        return self.opt

    def commit(self, slot: int) -> None:
        self.active, self.held = self.request["slots"][slot]["generation"], False
        self.history.append((time.monotonic_ns(), f"slot {slot}"))

    def hold(self, slot: int, lease_ns: int) -> None:
        self.active, self.held = self.request["slots"][slot]["hold"], True
        self.history.append((time.monotonic_ns(), f"hold {slot}"))

    def timer(self, at_ns: int, function: Callable[[], object]) -> int:
        number = len(self.handles)
        self.handles[number] = asyncio.get_running_loop().call_later(
            max(0.0, (at_ns - self.now()) / 1e9), function
        )
        return number

    def cancel(self, handle: int) -> None:
        self.handles[handle].cancel()

    def changed(self, **fields: object) -> None:
        if self.machine is not None and fields["why"] != "hold":
            values = {"slot": self.machine.slot, "count": self.machine.count, **fields}
            self.fabric.queue.put_nowait(HostEvent(self.name, "slot", self.now(), values))

    def load(self, request: Mapping[str, Any]) -> None:
        for slot in request["slots"]:
            assert slot["generation"] in self.staged and slot["hold"] in self.staged
        self.request = request
        times = {f"{k}_ns": int(request[f"{k}_s"] * 1e9) for k in ("guard", "dark_window", "late")}
        period = int((request["dwell_s"] + request["dark_window_s"]) * 1e9)
        more = {"follow": request["follow"], "kind": request["kind"]}
        self.machine = SlotMachine(
            self, request["slots"], {**times, **more}, SlotClock(period), request["count"]
        )

    def light(self, up: bool) -> None:
        if self.opt["carrier"] != up:
            self.opt["carrier"] = up
            self.opt["ups" if up else "downs"] += 1
            if self.machine is not None and self.alive:
                self.machine.carrier()


class Switch:
    """A device whose light is gone while it settles. broken: raised instead of a change, so
    often.
    """

    def __init__(self, name: str, fabric: Fabric) -> None:
        self.name, self.fabric, self.traits = name, fabric, HERE.traits_of(name)
        self.held: frozenset[Setting] = frozenset()
        self.broken: list[Exception] = []
        self.changes: list[int] = []
        self.slow_s = 0.0

    async def read(self) -> frozenset[Setting]:
        self.fabric.alive()
        await asyncio.sleep(self.slow_s)
        return self.held

    async def apply(self, change: Change, ready: Ready = at_once) -> Outcome:
        await asyncio.sleep(self.slow_s)
        await ready()
        self.fabric.point()
        self.fabric.alive()
        sent = time.monotonic_ns()
        self.changes.append(sent)
        if self.broken:
            error = self.broken.pop()
            self.held -= change.remove  # half of it happened
            self.fabric.shine()
            raise error
        self.held -= change.remove
        self.fabric.shine()
        self.fabric.point()
        await asyncio.sleep(SETTLE_S)
        self.fabric.alive()
        self.held |= change.add
        self.fabric.shine()
        self.fabric.point()
        self.fabric.alive()
        return Outcome(
            self.name,
            self.held,
            sent,
            sent,
            sent,
            time.monotonic_ns(),
            len(change.remove) + len(change.add),
            {},
        )


class Fabric(OwnParts):
    """All of it, with the part of `Hosts` that the scheduler uses."""

    def __init__(self) -> None:
        self.queue: asyncio.Queue[HostEvent] = asyncio.Queue()
        self.hosts = {name: Host(name, self) for name in HERE.hosts}
        self.devices = {name: Switch(name, self) for name in HERE.devices}
        self.token, self.slots = 0, self
        self.lost: set[str] = set()
        self.light_s = 0.0  # carriers come so much later than the device says
        self.networks: Mapping[str, Mapping[str, Any]] = {}
        self.points, self.kill, self.dead = 0, 0, False
        # of what was staged, and of how many hosts networks were loaded before
        self.congctl: list[tuple[str, int]] = []

    def point(self) -> None:
        """The scheduler is about to do something, or did it; at the point `kill` it is killed, and
        from then on does nothing.
        """
        self.points += 1
        self.dead = self.dead or self.points == self.kill

    def alive(self) -> None:
        if self.dead:
            raise Killed

    def shine(self) -> None:
        """Give every port the carrier that what the devices hold gives it."""
        held = frozenset(s for device in self.devices.values() for s in device.held)
        for number, host in enumerate(self.hosts.values()):
            leaves = HERE.fibres[HostPort(host.name, 1)].leaves
            del number
            lit = any(s.egress == leaves for s in held)
            if lit and self.light_s:
                asyncio.get_running_loop().call_later(self.light_s, host.light, True)
            else:
                host.light(lit)

    def subscribe(self) -> asyncio.Queue[HostEvent]:
        self.queue = asyncio.Queue()
        return self.queue

    def unsubscribe(self, queue: object) -> None:
        pass

    def macs(self) -> Mapping[HostPort, Macs]:
        return macs(HERE)

    def unprovisioned(self) -> tuple[str, ...]:
        return ()

    def attached(self) -> tuple[str, ...]:
        return tuple(name for name in self.hosts if name not in self.lost)

    async def fence(self, token: int, names: Collection[str]) -> None:
        assert token

    async def load_networks(self, requests: Mapping[str, Mapping[str, Any]]) -> None:
        self.networks = dict(requests)

    async def stage_warm(
        self,
        generations: Mapping[int, Mapping[str, Rules]],
        timeout_s: float = 5.0,
        *,
        congctl: str = "cubic",
    ) -> None:
        self.congctl.append((congctl, len(self.networks)))
        self.point()
        self.alive()
        for number, hosts in generations.items():
            for host, rules in hosts.items():
                self.hosts[host].staged[number] = rules

    async def load(self, requests: Mapping[str, Mapping[str, Any]]) -> None:
        for name, request in requests.items():
            self.point()
            self.alive()
            self.hosts[name].load(request)

    async def tick(
        self,
        names: Collection[str],
        count: int,
        ends_s: float | None,
        lease_s: float,
        timeout_s: float,
    ) -> Mapping[str, TestbedError]:
        failed: dict[str, TestbedError] = {}
        for name in names:
            machine, now = self.hosts[name].machine, time.monotonic_ns()
            self.point()
            if self.dead:
                return failed
            if name in self.lost or machine is None:
                failed[name] = Unreachable(f"{name}: gone")
                continue
            machine.tick(
                count, None if ends_s is None else now + int(ends_s * 1e9), now + int(lease_s * 1e9)
            )
        return failed

    async def change_slot(
        self, names: Collection[str], count: int, timeout_s: float
    ) -> Mapping[str, TestbedError]:
        for name in names:
            machine = self.hosts[name].machine
            assert machine is not None and machine.count == count
            machine.change_slot()
        return {}

    def ended(self, iteration: int) -> None:
        """The job's ranks on all hosts end an iteration."""
        for name in self.hosts:
            self.queue.put_nowait(
                HostEvent(name, "boundary", time.monotonic_ns(), {"iteration": iteration})
            )

    async def stop(
        self, names: Collection[str], timeout_s: float = 5.0
    ) -> Mapping[str, TestbedError]:
        self.alive()
        for name in names:
            machine, self.hosts[name].machine = self.hosts[name].machine, None
            if machine is not None:
                machine.stop()
        return {}

    async def connect(
        self, names: Collection[str], timeout_s: float = 1.0
    ) -> Mapping[str, Hello | TestbedError]:
        return {n: Unreachable(f"{n}: gone") if n in self.lost else Hello(n, True) for n in names}

    async def states(self, names: Collection[str]) -> Mapping[str, Mapping[str, Any]]:
        found: dict[str, Mapping[str, Any]] = {}
        for name in names:
            machine = self.hosts[name].machine
            at = {} if machine is None else {"count": machine.count, "state": machine.state}
            found[name] = {"loaded": machine is not None, **at}
        return found


class Bench:
    """A plan with a schedule that is up in its first slot, and the scheduler's surroundings."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, text: str = "") -> None:
        places = {f"TESTBED_{n}_DIR": str(folder / n.lower()) for n in ("DATA", "STATE", "LOCK")}
        self.settings: Settings = load(env=places, cwd=folder)
        self.store = Store(self.settings.store_path, durable=False)
        self.key, self.tenancy = key_of(HERE), tenancy_of(HERE, self.settings)
        self.fabric, self.reported, self.at = Fabric(), list[dict[str, Any]](), 0
        self.text = text or plan_text()
        self.plan = read_plan(self.text, "round", HERE)
        run = self.store.new_run(
            "up", self.key, plan_name="round", user=self.settings.user, owner=self.settings.owner
        )
        goal = target(self.plan.slot(0), HERE, {d: frozenset() for d in HERE.devices}, ())
        held = settings_of(circuits(goal.links, HERE))
        for device, of in held.items():
            self.fabric.devices[device].held = of
        self.fabric.shine()
        self.store.own(self.tenancy, run.id, [s for of in held.values() for s in of])
        run.finish("ok")
        up = UpState(goal.links, slots=SlotsMade(0, (0, 1, 2)))
        more = {"plan_name": "round", "plan_sha": self.plan.sha256, "plan_text": self.text}
        self.store.set_current(self.tenancy, run.id, **more, up=up, generation=1)

        @asynccontextmanager
        async def opened(*_: object) -> Any:
            session = Session(
                HERE, Path("inventory"), cast(Any, self.fabric.devices), cast(Any, self.fabric)
            )

            async def observe(*, hosts: bool = True) -> Observation:
                return Observation({d: s.held for d, s in self.fabric.devices.items()}, {}, {})

            session.observe = observe  # type: ignore[method-assign]
            yield session

        monkeypatch.setattr(verb, "open_session", opened)
        monkeypatch.setattr(verb, "load_lab", lambda _: HERE)

    async def change_slot(self, options: ScheduleOptions | None = None) -> Any:
        command = Command(Silent(), self.store, self.settings)
        return await verb.run_schedule(
            command,
            notify=lambda e: self.reported.append(dict(e)),
            options=options or ScheduleOptions(),
        )

    def pairs(self) -> set[tuple[str, str]]:
        """The hosts that light joins now."""
        ends = {(f.leaves, f.enters): p.host for p, f in HERE.fibres.items()}
        by_enter = {f.enters: p.host for p, f in HERE.fibres.items()}
        by_leave = {f.leaves: p.host for p, f in HERE.fibres.items()}
        del ends
        held = [s for device in self.fabric.devices.values() for s in device.held]
        return {
            (min(a, b), max(a, b))
            for s in held
            for a, b in [(by_enter[s.ingress], by_leave[s.egress])]
        }

    async def until(self, look: Callable[[], object], limit_s: float = 10.0) -> None:
        give_up = time.monotonic() + limit_s
        while not look():
            assert time.monotonic() < give_up, [event["message"] for event in self.reported]
            await asyncio.sleep(0.005)
