"""slots that change, as live views show them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from io import StringIO
from typing import Any

from rich.console import Console

from orchestrator.background.kind import StateFile
from orchestrator.cli.watchscreen import screen, summary
from orchestrator.fabric.up_state import UpState
from orchestrator.services.schedule.process import SCHEDULER, ScheduleState
from orchestrator.store.run import Run
from orchestrator.telemetry import Journal
from orchestrator.views.live.picture import Picture
from orchestrator.views.live.sections import whole_picture
from orchestrator.views.live.slots import cycle_of
from tests.views.web.conftest import LabWriter

HOSTS = ["gpu01", "gpu02", "gpu03", "gpu04"]
PLAN = json.dumps(
    {
        "schema": "testbed.plan/1",
        "name": "slots",
        "links": [{"a": "gpu05:p1", "b": "gpu06:p1"}],
        "schedule": {"pattern": "round-robin", "ports": ["p1"], "hosts": HOSTS, "dwell_s": 0.45},
        "acceptance": {"all_pairs": False},
    }
)


@contextmanager
def scheduled(
    lab_writer: LabWriter,
) -> Iterator[tuple[Journal, StateFile[ScheduleState], ScheduleState]]:
    """A plan with three slots of two links, and one link that is always lit; its turner."""
    run: Run = lab_writer.run(plan="slots")
    lab_writer.store.set_current(
        lab_writer.tenancy,
        run.id,
        plan_name="slots",
        plan_sha="s",
        plan_text=PLAN,
        up=UpState(),
        generation=1,
    )
    current = lab_writer.store.current(lab_writer.tenancy)
    assert current is not None
    cycle = cycle_of(lab_writer.lab, {}, lab_writer.settings.owner, current)
    assert cycle is not None and len(cycle.settings) == 3
    lab_writer.store.own(lab_writer.tenancy, run.id, frozenset().union(*cycle.settings))
    run.finish("ok")
    state = replace(
        SCHEDULER.own(lab_writer.settings), plan="slots", run=run.id, slots=3, state="switching"
    )
    with (
        StateFile(
            SCHEDULER, SCHEDULER.path(lab_writer.settings, lab_writer.tenancy), state
        ) as file,
        lab_writer.journal(lab_writer.run("schedule")) as journal,
    ):
        yield journal, file, state


def begin(
    journal: Journal, slot: int, cycle: int = 0, lit_ms: float = 450.0, every_ms: float = 500.0
) -> None:
    """A slot of a schedule that began with the journal."""
    fields = {
        "slot": slot,
        "cycle": cycle,
        "dark_ms": 52.0,
        "late_ms": 1.5,
        "lit_ms": lit_ms,
        "duty": 0.89,
    }
    at = round((3 * cycle + slot) * every_ms * 1e6)
    journal.point("slot", {"plan": "slots", "device": "ocs1"}, fields, at)
    journal.point(
        "slot_host", {"plan": "slots", "host": "gpu03"}, {"slot": slot, "edge_error_ms": -2.5}, at
    )
    journal.flush()


def states(picture: Picture) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for id_, state in sorted(picture.light.states.items()):
        found.setdefault(state, []).append(id_)
    return found


def reported(picture: Picture) -> dict[str, Any]:
    slots = whole_picture(picture)["slots"]
    assert isinstance(slots, dict)
    return slots


def test_the_circuits_of_the_present_slot_are_lit_and_those_of_the_others_wait(
    lab_writer: LabWriter,
) -> None:
    with scheduled(lab_writer) as (journal, _, _), lab_writer.watcher() as watcher:
        picture = watcher.picture
        for slot in (0, 1, 2):
            begin(journal, slot)
            watcher.refresh()
            found = states(picture)
            assert (len(found["lit"]), len(found["waits"])) == (2 + 4, 8)
            assert "gpu05:p1->gpu06:p1" in found["lit"], (
                "a link outside of the schedule is always lit"
            )
            assert reported(picture)["slot"] == slot
        assert not [e for e in picture.events.log if e.event == "circuits"], (
            "slot changes are no news"
        )
        (lost,) = (
            w
            for w in picture.light.circuits.values()
            if w.id in found["lit"] and str(w.sender) == "gpu01:p1"
        )
        picture.carrier(str(lost.receiver), picture.slots._since + 500.0, False)
        picture.settle(picture.slots._since + 600.0)
        assert picture.light.states[lost.id] == "dark", "the end of its slot"
        picture.settle(picture.slots._since + 5000.0)
        assert picture.light.states[lost.id] == "lost"
        assert summary(picture).startswith("5/6 circuits lit")


def test_a_slot_that_lasted_another_period_is_marked_and_the_worst_host_named(
    lab_writer: LabWriter,
) -> None:
    with scheduled(lab_writer) as (journal, file, state), lab_writer.watcher() as watcher:
        file.emit(replace(state, late=1, planned_duty=0.91))
        watcher._due = 0.0
        begin(journal, 1, lit_ms=450.0)
        begin(journal, 2, lit_ms=970.0)
        watcher.refresh()
        slots = reported(watcher.picture)
        assert [row["longer"] for row in slots["slots"]] == [0, 1, 0] and slots["slots"][1][
            "lit_ms"
        ] == 970.0
        assert (
            slots["message"]
            == "slot 2 of 3, cycle 0, duty 0.890 (planned 0.910), 1 late, worst host gpu03 -2.5 ms"
        )
        console = Console(file=StringIO(), width=100, height=40)
        console.print(screen(watcher.picture, 100, 40))
        assert slots["message"] in console.file.getvalue() and "··■" in console.file.getvalue()  # type: ignore[attr-defined]


def test_slots_that_no_eye_can_follow_are_counted_and_do_not_flicker(lab_writer: LabWriter) -> None:
    with scheduled(lab_writer) as (journal, _, _), lab_writer.watcher() as watcher:
        for n in range(30):
            begin(journal, n % 3, n // 3, every_ms=20.0)
        watcher.refresh()
        assert (
            reported(watcher.picture)["fast"]
            and "3 slots, 50 a second" in reported(watcher.picture)["message"]
        )
        watcher.picture.settle(watcher.picture.slots._since)
        assert {state: len(ids) for state, ids in states(watcher.picture).items()} == {
            "lit": 2,
            "in turn": 12,
        }
        assert [row["seen"] for row in reported(watcher.picture)["slots"]] == [10, 10, 10]


def test_a_turner_that_died_or_was_stopped_is_told_with_what_to_do(lab_writer: LabWriter) -> None:
    with scheduled(lab_writer) as (journal, _, _), lab_writer.watcher() as watcher:
        begin(journal, 1)
        watcher.refresh()
        picture = watcher.picture
        cycle, state = picture.slots.cycle, picture.slots.state
        assert state is not None
        picture.slots.scheduled(cycle, replace(state, alive=False))
        assert (
            picture.slots.text()
            == "slot 1 of 3, cycle 0: the schedule service died; to go on: testbed service start schedule"
            and picture.slots.scheduled_now
        )
        picture.slots.scheduled(cycle, replace(state, alive=False, state="ended"))
        assert (
            picture.slots.text().startswith("slots do not change; slot 1 is there")
            and not picture.slots.scheduled_now
        )
        picture.slots.scheduled(None, None)
        assert picture.slots.json() is None and picture.slots.text() == ""
