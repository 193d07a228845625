"""All devices begin together or none does, and what they answer is kept whoever interrupts us."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from drivers.api import Ready, at_once
from optics import Change, ChangeFailed, CrossConnect, Outcome, Port, Setting, Traits, Unreachable
from orchestrator.change.apply import switch
from orchestrator.change.context import Context
from orchestrator.fabric.transition import Transition, transition
from orchestrator.session import Session
from orchestrator.store.run import Run
from orchestrator.store.store import Store
from orchestrator.telemetry.progress import Silent
from orchestrator.telemetry.recorder import Recorder

LAB = "lab"


def cross(device: str, ingress: int, egress: int) -> CrossConnect:
    return CrossConnect(Port(device, str(ingress)), Port(device, str(egress)))


class Switch:
    """A device of the engine's dreams, unless told otherwise. `log` is shared: it shows the order
    of all devices.
    """

    traits = Traits(settle_s=0.01)

    def __init__(self, name: str, log: list[str]) -> None:
        self.name, self.log = name, log
        self.held: frozenset[Setting] = frozenset()
        self.unreadable = False
        self.refuses: frozenset[Setting] = frozenset()
        self.settle_s = 0.0
        self.writing = asyncio.Event()

    async def read(self) -> frozenset[Setting]:
        await asyncio.sleep(0)
        if self.unreadable:
            raise Unreachable(f"{self.name}: gone")
        return self.held

    async def apply(self, change: Change, ready: Ready = at_once) -> Outcome:
        await self.read()
        self.log.append(f"{self.name} read")
        await ready()
        self.log.append(f"{self.name} wrote")
        self.writing.set()
        await asyncio.sleep(self.settle_s)
        self.held = (self.held - change.remove) | (change.add - self.refuses)
        failed = dict.fromkeys(change.add & self.refuses, f"{self.name} said no")
        return Outcome(
            self.name, self.held, 1, 1, 1, 1, len(change.add) + len(change.remove), failed
        )


class Bench:
    """Two switches, a store, and a change of both."""

    def __init__(self, store: Store) -> None:
        self.log: list[str] = []
        self.store = store
        self.switches = {name: Switch(name, self.log) for name in ("ocs1", "ocs2")}
        self.run: Run = store.new_run("up", LAB)
        session = cast(
            Session,
            SimpleNamespace(
                devices=self.switches, lab=SimpleNamespace(time_scale=lambda device: 1.0)
            ),
        )
        self.context = Context(session, store, self.run, LAB, Recorder(Silent()), Path(), 10.0)

    def change(self, wanted: Mapping[str, frozenset[Setting]]) -> Transition:
        return transition({n: s.held for n, s in self.switches.items()}, wanted, {})

    def states(self) -> dict[str, str]:
        return {s.subject: s.state for s in self.store.steps(self.run.id)}


WANTED: dict[str, frozenset[Any]] = {
    n: frozenset({cross(n, 1, 17), cross(n, 2, 18)}) for n in ("ocs1", "ocs2")
}


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with Store(tmp_path / "store.sqlite3", durable=False) as store:
        yield Bench(store)


async def test_every_device_has_read_before_any_writes(bench: Bench) -> None:
    outcomes = await switch(bench.context, bench.change(WANTED))
    assert set(outcomes) == {"ocs1", "ocs2"}
    assert {line.split()[1] for line in bench.log[:2]} == {"read"} and {
        line.split()[1] for line in bench.log[2:]
    } == {"wrote"}
    assert bench.store.owned(LAB) == WANTED["ocs1"] | WANTED["ocs2"]


async def test_one_that_cannot_be_read_keeps_all_from_beginning(bench: Bench) -> None:
    bench.switches["ocs2"].unreadable = True
    with pytest.raises(Unreachable, match=r"^ocs2: gone$"):
        await switch(bench.context, bench.change(WANTED))
    assert (
        not bench.context.written and bench.log == ["ocs1 read"] and not bench.switches["ocs1"].held
    )
    assert bench.states() == {"ocs1": "failed", "ocs2": "failed"}
    assert not bench.store.owned(LAB), (
        "what was not begun is not ours, nor what could not even be read"
    )


async def test_what_a_device_refused_is_not_ours_afterwards(bench: Bench) -> None:
    no = cross("ocs1", 1, 17)
    bench.switches["ocs1"].refuses = frozenset({no})
    with pytest.raises(ChangeFailed, match="ocs1: 1->17: ocs1 said no"):
        await switch(bench.context, bench.change(WANTED))
    assert bench.store.owned(LAB) == (WANTED["ocs1"] | WANTED["ocs2"]) - {no}


async def test_an_interruption_waits_for_the_devices_and_ends_every_step(bench: Bench) -> None:
    bench.switches["ocs1"].settle_s = 0.2
    work = asyncio.create_task(switch(bench.context, bench.change(WANTED)))
    await bench.switches["ocs1"].writing.wait()
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
    assert bench.states() == {"ocs1": "done", "ocs2": "done"}
    assert bench.switches["ocs1"].held == WANTED["ocs1"]
