"""A rehearsal of light alone: a lab without hosts, whose losses its twin has too, and what is said
of all that does not show.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from conformance.lab import Lab as Private
from conformance.lab import generate, running
from optics import Change, CrossConnect, Port, Setting
from orchestrator.experiments.rehearsal import verb
from orchestrator.experiments.rehearsal.losses import at_ports
from orchestrator.experiments.rehearsal.report import RehearsalReport
from orchestrator.inventory.lab import Lab
from orchestrator.session import Command, PlanText, load_lab, open_session
from orchestrator.store.keys import key_of, tenancy_of
from orchestrator.store.store import Store
from orchestrator.telemetry.progress import Silent
from tests.experiments.rehearsal.test_twin import settings_of

EXCESS_DB = 6.0
JOB = {
    "name": "gpt",
    "workload": "allreduce",
    "ranks": ["gpu01", "gpu02"],
    "rings": [["gpu01", "gpu02"]],
}


@dataclass
class Devices:
    """A running lab of one switch and four hosts that are not there."""

    private: Private
    command: Command
    lab: Lab

    @property
    def writes(self) -> int:
        return self.private.truth("ocs1").writes

    async def make(self, plan: PlanText) -> None:
        """Make the circuits of the plan, as its owner's."""
        found = (await self.rehearse(plan)).diff
        made = [setting(text) for row in found for text in row.made]
        async with open_session(self.lab, self.private.inventory, self.private.state) as session:
            assert not (
                await session.devices["ocs1"].apply(Change("ocs1", add=frozenset(made)))
            ).failed
        run = self.command.store.new_run("up", key_of(self.lab), owner=self.command.settings.owner)
        self.command.store.own(tenancy_of(self.lab, self.command.settings), run.id, made)
        run.finish("ok")

    async def rehearse(self, plan: PlanText) -> RehearsalReport:
        return await verb.rehearse(self.command, plan, devices_only=True)


@pytest.fixture
def devices(tmp_path: Path) -> Iterator[Devices]:
    with _running(tmp_path) as private:
        settings = settings_of(private.inventory, tmp_path)
        (tmp_path / "data").mkdir(exist_ok=True)
        with Store(tmp_path / "store.sqlite3", durable=False) as store:
            yield Devices(private, Command(Silent(), store, settings), load_lab(private.inventory))


@contextmanager
def _running(folder: Path) -> Iterator[Private]:
    generate(folder / "lab", folder / "lab-state", ["polatis-scpi"], 4)
    with running(folder / "lab", "--devices-only"):
        yield Private(folder / "lab", folder / "lab-state")


def plan(*pairs: tuple[int, int], **more: Any) -> PlanText:
    links = [{"a": f"gpu{a:02d}:p1", "b": f"gpu{b:02d}:p1"} for a, b in pairs]
    return PlanText(json.dumps({"schema": "testbed.plan/1", "name": "two", "links": links, **more}))


def setting(text: str) -> CrossConnect:
    a, _, b = text.partition("->")
    return CrossConnect(Port("ocs1", a), Port("ocs1", b))


async def test_light_alone_is_rehearsed_without_hosts_and_a_path_that_loses_too_much_on_the_lab_fails_there_too(
    devices: Devices,
) -> None:
    first, second = plan((1, 2), (3, 4), job=JOB), plan((1, 3), (2, 4))
    await devices.make(first)
    before = devices.writes
    good = await devices.rehearse(second)
    assert (
        good.devices_alone
        and good.dark_ms
        and good.back is not None
        and not good.back.failed
        and not good.failed
    )
    assert (
        [p.name for p in good.phases] == ["switch", "light"]
        and good.notes == ()
        and good.stall is None
    )
    (output,) = good.missing
    assert output.startswith("hosts (as asked): ") and "forwarding" in output
    port = devices.lab.fibres[next(p for p in devices.lab.fibres if p.host == "gpu01")].enters.label
    devices.private.truth("ocs1").ask(
        "faults.add", device="ocs1", kind="extra-loss", port=port, db=EXCESS_DB
    )
    bad = await devices.rehearse(second)
    assert "outside the loss window" in bad.failed and "gpu01:p1->gpu03:p1: loses" in bad.failed
    assert (
        len(bad.notes) == 1
        and f"ocs1:{port}->" in bad.notes[0]
        and "more than its twin did" in bad.notes[0]
    )
    assert "outside the loss window" in (await devices.rehearse(first)).failed, (
        "it stays where it is, and is lossy there"
    )
    assert devices.writes == before, "the lab was only read"


def test_a_port_loses_no_more_than_the_best_pass_over_it_and_doubt_falls_on_the_port_where_light_enters() -> (
    None
):
    def lost(**passes: float) -> dict[str, float]:
        known: dict[Setting, float] = {
            setting("->".join(name[1:].split("_"))): db for name, db in passes.items()
        }
        return {f"{port.label}/{which}": db for (port, which), db in at_ports(known).items()}

    assert lost(p1_9=6.0) == {"1/in": 6.0}
    assert lost(p1_9=6.0, p1_10=0.0) == {"9/out": 6.0}, "light from 1 arrives elsewhere"
    assert lost(p1_9=6.0, p2_9=0.0) == {"1/in": 6.0}
    assert lost(p1_9=6.0, p1_10=2.0) == {"1/in": 2.0, "9/out": 4.0}
    assert lost(p1_9=0.05, p2_10=-1.0) == {}
