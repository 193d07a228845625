"""What is shown of a lab: circuits, devices, carriers, moves, news; from points and from the
store.
"""

from __future__ import annotations

import json
import re
import time
from contextlib import suppress
from io import StringIO
from pathlib import Path
from typing import Any, cast

import pytest
from rich.console import Console

from optics import CrossConnect, Port, Setting
from orchestrator.cli.watchscreen import screen
from orchestrator.fabric.up_state import UpState
from orchestrator.plan.reader import read_plan
from orchestrator.plan.target import target
from orchestrator.session import load_lab
from orchestrator.store.audit import Who
from orchestrator.store.keys import key_of
from orchestrator.store.locks import Locks
from orchestrator.store.records import Belonging, CurrentPlan
from orchestrator.store.scope import Scope
from orchestrator.telemetry import Point
from orchestrator.telemetry.progress import Silent
from orchestrator.telemetry.recorder import Recorder
from orchestrator.views.live import Picture, Watcher
from orchestrator.views.live.fabric import live_circuits
from orchestrator.views.live.lab_state import LabState, Moving, read_store
from orchestrator.views.live.sections import changed_sections, whole_picture
from tests.kit.jobs import spec
from tests.properties.switches import switched_lab
from tests.views.web.conftest import ROOT, LabWriter
from tests.views.web.test_training import drawn

MINE = Belonging("ann", "r")
NONE: frozenset[Setting] = frozenset()


def now_ms() -> float:
    return time.time() * 1e3


def text(watcher: Watcher) -> list[str]:
    return [e.message for e in watcher.picture.events.since(0)]


def point(measurement: str, tags: dict[str, str], fields: dict[str, object], at_ms: float) -> Point:
    return Point(measurement, {"testbed": "emulated", "run": "r", **tags}, fields, int(at_ms * 1e6))  # type: ignore[arg-type]


def test_before_the_first_run_there_is_nothing_and_it_is_said_so(lab_writer: LabWriter) -> None:
    with lab_writer.watcher() as watcher:
        entire = whole_picture(watcher.picture)
    assert (
        entire["run"] is None
        and entire["circuits"] == []
        and entire["plan"] == []
        and entire["move"] is None
    )
    assert {d["phase"] for d in entire["devices"].values()} == {"idle"}  # type: ignore[union-attr,index,call-overload]
    assert len(json.dumps(entire)) < 4000


def test_what_devices_did_before_anybody_looked_is_history(lab_writer: LabWriter) -> None:
    run = lab_writer.run()
    lab_writer.journal(run).point(
        "device_phase", {"device": "ocs1", "kind": "ocs"}, {"phase": "up"}
    )
    run.finish("ok")
    with lab_writer.watcher() as watcher:
        assert watcher.picture.devices["ocs1"].phase == "idle"


def test_a_plan_that_is_up_is_circuits_between_host_ports(lab_writer: LabWriter) -> None:
    lab_writer.up()
    with lab_writer.watcher() as watcher:
        picture = watcher.picture
        assert len(picture.light.circuits) == 48 and set(picture.light.states.values()) == {"lit"}
        assert picture.light.circuits["gpu01:p1->gpu02:p1"].path == ("ocs1:1->18",)
        assert {d.phase for d in picture.devices.values()} == {"up"}
        assert changed_sections(picture) == {} and picture.events.since(0) == [], (
            "what was is no news"
        )
        log = whole_picture(picture)["log"]
        assert isinstance(log, list) and [e["message"] for e in log] == [
            "run " + picture.state.runs[0].id + ": up topoopt-12 ok"
        ]  # type: ignore[index,call-overload]


def test_circuits_go_dark_while_a_device_is_told_and_others_take_their_place(
    lab_writer: LabWriter,
) -> None:
    lab_writer.up()
    with lab_writer.watcher() as watcher:
        run = lab_writer.run(plan="next")
        ports = [Port("ocs1", label) for label in ("1", "18", "19")]
        old, new = CrossConnect(ports[0], ports[1]), CrossConnect(ports[0], ports[2])
        held = lab_writer.store.owned(lab_writer.tenancy)
        assert old in held
        step = run.plan("device", "ocs1", "-1 +1", {"remove": ["1->18"], "add": ["1->19"]})
        step.begin()
        lab_writer.store.own(lab_writer.tenancy, run.id, [new])
        watcher.refresh()
        states = watcher.picture.light.states
        assert states["gpu01:p1->gpu02:p1"] == "dark" and states["gpu01:p1->gpu03:p1"] == "making"
        assert (
            watcher.picture.devices["ocs1"].phase == "dark" and watcher.picture.running is not None
        )
        changed = changed_sections(watcher.picture)
        assert {"circuits", "devices", "run", "marks"} <= changed.keys()
        lab_writer.store.disown(lab_writer.tenancy, [old])
        step.end()
        watcher.refresh()
        assert "gpu01:p1->gpu02:p1" not in states and states["gpu01:p1->gpu03:p1"] == "lit"
        assert watcher.picture.devices["ocs1"].phase == "up"
        run.finish("failed", 5, "ocs2 does not answer\nmore")
        watcher.refresh()
    told_text = text(watcher)
    assert any("up next begins (ann)" in w for w in told_text)
    assert any(w == "ocs1: gpu01:p1->gpu02:p1 goes dark" for w in told_text)
    assert any(w == "ocs1: gpu01:p1->gpu03:p1 carries light" for w in told_text)
    assert told_text[-1] == f"run {run.id}: up next failed: ocs2 does not answer"


def test_a_step_that_failed_makes_its_device_a_fault_until_the_next_run(
    lab_writer: LabWriter,
) -> None:
    lab_writer.up()
    run = lab_writer.run(plan="next")
    step = run.plan("device", "ocs3", "-1 +1", {"remove": [], "add": []})
    step.begin()
    step.end("TimedOut: ocs3: no answer")
    run.finish("failed", 5, "x")
    with lab_writer.watcher() as watcher:
        assert watcher.picture.devices["ocs3"].phase == "fault"
        assert watcher.picture.devices["ocs3"].message == "TimedOut: ocs3: no answer"
        lab_writer.run().finish("ok")
        watcher.refresh()
        assert watcher.picture.devices["ocs3"].phase == "up"


def test_a_carrier_that_goes_outside_a_move_is_light_lost_and_comes_back(
    lab_writer: LabWriter,
) -> None:
    lab_writer.up()
    with lab_writer.watcher() as watcher:
        picture = watcher.picture
        changed_sections(picture)
        at = now_ms() + 1
        picture.carrier("gpu02:p1", at, False)
        assert changed_sections(picture)["states"]["gpu01:p1->gpu02:p1"] == "lost"  # type: ignore[index,call-overload]
        assert text(watcher) == ["ocs1: gpu01:p1->gpu02:p1 lost its light"]
        picture.carrier("gpu02:p1", at - 5, True)  # older news
        assert picture.light.states["gpu01:p1->gpu02:p1"] == "lost"
        picture.carrier("gpu02:p1", at + 1, True)
        assert picture.light.states["gpu01:p1->gpu02:p1"] == "lit"
        picture.carrier("gpu02:p1", at + 2, False)
        picture.tick(at + 20_000)
        assert picture.light.states["gpu01:p1->gpu02:p1"] == "lit", (
            "what nobody said for long is not known"
        )


def test_a_carrier_that_was_told_before_a_circuit_was_made_says_nothing_of_it(
    lab_writer: LabWriter,
) -> None:
    with lab_writer.watcher() as watcher:
        watcher.picture.carrier("gpu02:p1", now_ms(), False)
        lab_writer.up()
        watcher.refresh()
        assert set(watcher.picture.light.states.values()) == {"lit"}
        watcher.picture.carrier("gpu02:p1", now_ms() + 1, False)  # and still
        assert watcher.picture.light.states["gpu01:p1->gpu02:p1"] == "lost"


def test_a_circuit_that_is_just_being_made_has_not_lost_a_light_it_never_had(
    lab_writer: LabWriter,
) -> None:
    lab_writer.up()
    with lab_writer.watcher() as watcher:
        picture = watcher.picture
        run = lab_writer.run(plan="next")
        ports = [Port("ocs1", label) for label in ("1", "18", "19")]
        step = run.plan("device", "ocs1", "-1 +1", {"remove": ["1->18"], "add": ["1->19"]})
        step.begin()
        lab_writer.store.own(lab_writer.tenancy, run.id, [CrossConnect(ports[0], ports[2])])
        watcher.refresh()
        made, heard = "gpu01:p1->gpu03:p1", "gpu03:p1"
        picture.carrier(heard, now_ms(), False)
        assert picture.light.states[made] == "making"
        lab_writer.store.disown(lab_writer.tenancy, [CrossConnect(ports[0], ports[1])])
        step.end()
        watcher.refresh()
        picture.carrier(heard, now_ms() + 1, False)
        assert picture.light.states[made] == "making", (
            "the device is ready, its light is on the way"
        )
        lost = [
            e.fields["circuits"] for e in picture.events.since(0) if e.fields.get("state") == "lost"
        ]
        assert not any(made in circuits for circuits in lost)  # type: ignore[operator]
        picture.carrier(heard, now_ms() + 2, True)
        assert picture.light.states[made] == "lit"
        picture.carrier(heard, now_ms() + 3, False)
        watcher.refresh()
        assert picture.light.states[made] == "lost", "now it had some"


def test_hosts_that_hear_of_a_move_before_we_read_of_it_raise_no_alarm(
    lab_writer: LabWriter,
) -> None:
    lab_writer.up()
    with lab_writer.watcher() as watcher:
        run = lab_writer.run(plan="next")
        watcher.refresh()
        run.plan("device", "ocs1", "-1", {"remove": ["1->18"], "add": []}).begin()
        watcher.picture.carrier("gpu02:p1", now_ms(), False)
        watcher.refresh()
        assert watcher.picture.light.states["gpu01:p1->gpu02:p1"] == "dark"
        assert not any("lost" in w for w in text(watcher))


def test_a_circuit_that_stays_dark_has_lost_its_light_once_the_run_that_made_it_is_over(
    lab_writer: LabWriter,
) -> None:
    lab_writer.up()
    with lab_writer.watcher() as watcher:
        run = lab_writer.run(plan="next")
        step = run.plan("device", "ocs1", "+1", {"remove": ["1->18"], "add": ["1->19"]})
        step.begin()
        lab_writer.store.own(
            lab_writer.tenancy, run.id, [CrossConnect(Port("ocs1", "1"), Port("ocs1", "19"))]
        )
        watcher.refresh()
        lab_writer.store.disown(
            lab_writer.tenancy, [CrossConnect(Port("ocs1", "1"), Port("ocs1", "18"))]
        )
        step.end()
        watcher.refresh()
        watcher.picture.carrier("gpu03:p1", now_ms() + 1, False)
        watcher.refresh()
        assert watcher.picture.light.states["gpu01:p1->gpu03:p1"] == "making"
        run.finish("failed", 6, "no light")
        watcher.refresh()
        assert watcher.picture.light.states["gpu01:p1->gpu03:p1"] == "lost"


def test_a_guard_that_leads_round_a_link_says_that_it_is_dark(lab_writer: LabWriter) -> None:
    lab_writer.up()
    with lab_writer.watcher() as watcher:
        watcher.picture.around(["gpu01:p1--gpu02:p1"], now_ms())
        states = watcher.picture.light.states
        assert states["gpu01:p1->gpu02:p1"] == states["gpu02:p1->gpu01:p1"] == "lost"
        watcher.picture.around([], now_ms())
        assert set(states.values()) == {"lit"}


def test_points_of_circuits_and_devices_count_if_they_are_newer_than_the_store(
    lab_writer: LabWriter,
) -> None:
    lab_writer.up()
    with lab_writer.watcher() as watcher:
        picture, at = watcher.picture, now_ms() + 5
        picture.feed(point("circuit", {"ocs": "ocs1", "id": "1"}, {"state": "dark"}, 1000.0))
        picture.feed(
            point("device_phase", {"device": "ocs1", "kind": "ocs"}, {"phase": "settle"}, 1000.0)
        )
        assert (
            set(picture.light.states.values()) == {"lit"} and picture.devices["ocs1"].phase == "up"
        )
        picture.feed(point("circuit", {"ocs": "ocs1", "id": "1"}, {"state": "dark"}, at))
        picture.feed(
            point("device_phase", {"device": "ocs1", "kind": "ocs"}, {"phase": "dark"}, at)
        )
        assert (
            picture.light.states["gpu01:p1->gpu02:p1"] == "dark"
            and picture.devices["ocs1"].phase == "dark"
        )
        picture.feed(point("circuit", {"ocs": "ocs1", "id": "1"}, {"state": "up"}, at + 1))
        assert picture.light.states["gpu01:p1->gpu02:p1"] == "lit"


def test_points_of_another_lab_and_of_unknown_devices_change_nothing(lab_writer: LabWriter) -> None:
    lab_writer.up()
    with lab_writer.watcher() as watcher:
        other = point("circuit", {"ocs": "ocs1", "id": "1"}, {"state": "dark"}, now_ms() + 5)
        watcher.picture.feed(
            Point(
                other.measurement, {**other.tags, "testbed": "other"}, other.fields, other.time_ns
            )
        )
        watcher.picture.feed(
            point(
                "device_phase", {"device": "ended", "kind": "ocs"}, {"phase": "dark"}, now_ms() + 5
            )
        )
        watcher.picture.feed(point("gpu", {"host": "gpu01", "gpu": "0"}, {"util": 1.0}, now_ms()))
        assert changed_sections(watcher.picture) == {}


def test_the_waterfall_is_that_of_the_run_at_work_else_of_the_last_that_moved_light(
    lab_writer: LabWriter,
) -> None:
    moved = lab_writer.run()
    lab_writer.move(moved)
    moved.finish("ok")
    with lab_writer.watcher() as watcher:
        later = lab_writer.run("down", "")
        journal = lab_writer.journal(later)
        watcher.refresh()
        assert watcher.picture.move is not None and watcher.picture.move.run == moved.id
        now = journal.now_ns()
        journal.phase("observe", now, now + 10**9)
        watcher.refresh()
        assert watcher.picture.move.run == later.id
        later.finish("ok")
        watcher.refresh()
        move = whole_picture(watcher.picture)["move"]
    assert isinstance(move, dict) and move["run"] == moved.id and move["figures"]["dark_ms"] == 64.0  # type: ignore[index,call-overload]
    assert [r["name"] for r in move["phases"]] == ["stage", "switch"]  # type: ignore[union-attr,index,call-overload]
    assert [r["name"] for r in move["parts"]] == ["ocs1 switch"]  # type: ignore[union-attr,index,call-overload]
    marks = whole_picture(watcher.picture)["marks"]
    assert isinstance(marks, list) and [m["dark_ms"] for m in marks] == [64.0]  # type: ignore[index,call-overload]


def iterations(
    picture: Picture, job: str, run: str, count: int, ms: float, begin_ms: float
) -> None:
    for n in range(count):
        picture.feed(
            point(
                "iteration",
                {"job": job, "workload": "train", "run": run},
                {"iter": n, "iter_ms": ms},
                begin_ms + n * ms,
            )
        )


def test_the_iteration_time_is_that_of_one_job(lab_writer: LabWriter) -> None:
    lab_writer.up()
    with lab_writer.watcher() as watcher:
        picture, now = watcher.picture, now_ms()
        iterations(picture, "a", "r1", 20, 2000.0, now)
        assert picture.job["iteration_ms"] == 2000.0
        iterations(picture, "b", "r2", 3, 1000.0, now + 60_000)
        assert (picture.job["of"], picture.job["iteration_ms"]) == ("b", 1000.0)
        iterations(picture, "b", "r3", 3, 500.0, now + 70_000)
        assert picture.job["iteration_ms"] == 500.0, "launched again it is another"
        iterations(picture, "a", "r1", 3, 2000.0, now)
        assert picture.job["of"] == "b", "what is read later may be older"


def test_jobs_of_others_stay_out_of_ones_own_figure_and_curve(lab_writer: LabWriter) -> None:
    run = lab_writer.up()
    other = lab_writer.store.new_run(
        "up", lab_writer.key, plan_name="next", user="bob", owner="bob"
    )
    other.finish("ok")
    number = lab_writer.store.add_job(lab_writer.tenancy, run.id, "a", spec())
    with lab_writer.watcher() as watcher:
        picture, now = watcher.picture, now_ms()
        iterations(picture, "b", other.id, 3, 1000.0, now)
        assert "iteration_ms" not in picture.job and not picture.iterations.values, (
            "a has not come so far yet"
        )
        iterations(picture, "a", run.id, 3, 2000.0, now)
        iterations(picture, "b", other.id, 3, 1000.0, now + 10_000)
        assert (picture.job["of"], picture.job["iteration_ms"], picture.iterations.values) == (
            "a",
            2000.0,
            [2000.0] * 3,
        )
        assert len([e for e in picture.events.since(0) if e.event == "iteration"]) == 9, (
            "they are notified all the same"
        )
        lab_writer.store.set_job(number, "finished", ended=True)
        second = lab_writer.up()
        lab_writer.store.add_job(lab_writer.tenancy, second.id, "c", spec())
        watcher.refresh()
        assert picture.job["name"] == "c" and "iteration_ms" not in picture.job, (
            "what a took is not told as of c"
        )


def test_news_come_once_and_memory_has_a_bound(lab_writer: LabWriter) -> None:
    lab_writer.up()
    with lab_writer.watcher() as watcher:
        picture = watcher.picture
        changed_sections(picture)
        for n in range(3000):
            picture.carrier("gpu02:p1", now_ms() + n, bool(n % 2))
            picture.feed(
                point(
                    "iteration",
                    {"job": "ddp", "workload": "train"},
                    {"iter": n, "iter_ms": 40.0},
                    now_ms() + 40 * n,
                )
            )
        assert {e.event for e in picture.events.log} == {"circuits"}, (
            "iterations do not push out what happened"
        )
        assert {e.event for e in picture.events.since(0)} == {"circuits", "iteration"} and len(
            picture.events.since(0)
        ) == 400
        first, second = changed_sections(picture), changed_sections(picture)
        assert len(picture.events.log) == 200 and "log" in first and second == {}
        assert len(first["iterations"]) == 3000 and picture.job["iteration_ms"] == 40.0  # type: ignore[arg-type]
        for n in range(40):
            picture.feed(
                point(
                    "phase",
                    {"phase": "stage", "kind": "run", "subject": "none", "run": f"r{n:02}"},
                    {"begin_ns": 0, "duration_ns": 1},
                    1.0,
                )
            )
        assert len(picture.runs) <= 12


def test_light_that_ends_nowhere_is_no_circuit(lab_writer: LabWriter) -> None:
    assert (
        live_circuits(lab_writer.lab, {CrossConnect(Port("ocs1", "1"), Port("ocs1", "30")): MINE})
        == {}
    )


@pytest.mark.parametrize(
    ("lab", "plan"),
    [
        ("emulated", "torus-3x4"),
        ("emulated-wss", "wss-ring-8"),
        ("emulated-wss", "wss-fold-8"),
        ("emulated-lookahead", "six-ring"),
    ],
)
def test_every_kind_of_lab_is_drawn_circuit_by_circuit(lab: str, plan: str) -> None:
    """Over trunks, over wavelengths: what a plan makes is what is drawn."""
    other = load_lab(ROOT / "inventory" / lab)
    goal = target(
        read_plan((ROOT / "examples" / f"{plan}.json").read_text(), plan, other),
        other,
        dict.fromkeys(other.devices, NONE),
        (),
    )
    held = {setting: MINE for settings in goal.wanted.values() for setting in settings}
    drawn = live_circuits(other, held)
    assert drawn.keys() == {str(c) for c in goal.circuits}
    assert {w.path for w in drawn.values()} == {tuple(map(str, c.path)) for c in goal.circuits}
    some = goal.circuits[0].path[-1]
    moved = live_circuits(other, held, remove={str(some)})
    dark = {i for i, path in moved.items() if path.state == "dark"}
    assert (
        dark == {str(c) for c in goal.circuits if some in c.path} and moved.keys() == drawn.keys()
    )


def test_the_store_is_read_again_only_when_somebody_wrote(lab_writer: LabWriter) -> None:
    lab_writer.up()
    first = read_store(lab_writer.store, lab_writer.lab, lab_writer.settings.owner)
    assert read_store(lab_writer.store, lab_writer.lab, lab_writer.settings.owner) == first
    assert LabState() != first and Moving("a", frozenset(), frozenset(), 0.0, "r") != first
    picture = Picture(lab_writer.lab)
    picture.update(first, 0.0)
    assert len(picture.light.circuits) == 48


def test_who_has_reserved_or_booked_what_is_shown(lab_writer: LabWriter) -> None:
    key, now = key_of(lab_writer.lab), time.time()
    locks = Locks(lab_writer.store, key, Who("ann", "ann"))
    locks.take("reservation", Scope(frozenset({"gpu02"})), "demo", for_s=60.0, at=now + 7200)
    locks.take("reservation", Scope(frozenset({"gpu01"})), "test", for_s=60.0)
    picture = Picture(lab_writer.lab)
    picture.update(read_store(lab_writer.store, lab_writer.lab, "bob"), now_ms())
    held, booked = cast(list[str], changed_sections(picture)["reserved"])
    assert held.startswith("gpu01 is reserved by ann") and " since " in held
    assert booked.startswith("gpu02 is reserved by ann") and " from " in booked
    assert "gpu01 is reserved by ann" in painted(picture)


def test_ports_at_packet_switches_show_them_and_their_rates(tmp_path: Path) -> None:
    lab = switched_lab(tmp_path)
    picture, now = Picture(lab), now_ms()
    assert "p3" not in painted(picture), "no fibre and no plan is there"
    segment = lab.segments["oversubscribed"]
    number = next(iter(segment.ports.values())).number
    up = UpState(tuple(segment.links(list(segment.ports))))
    plan = CurrentPlan("r", "over-tree", "x", "", up, 1, now / 1e3)
    picture.update(LabState(plans={"ann": plan}), now)
    for at, sent in ((0, 0), (500, 2_875_000)):
        picture.count(f"gpu01:p{number}", now + at, sent, 0)
    lines = painted(picture).splitlines()
    row = next(line for line in lines if line.startswith("gpu01"))
    assert (
        "oversub… 46" in row
        and f"p{number}, Mb/s" in "".join(lines)
        and f"p{number + 1}, Mb/s" not in "".join(lines)
    )
    assert (
        "over packet switches: oversubscribed, traffic 46 Mb/s" in lines[1]
        and "circuits lit" not in lines[1]
    )
    entire = whole_picture(picture)["plan"]
    assert isinstance(entire, list) and entire[0]["segments"] == ["oversubscribed"]  # type: ignore[index,call-overload]


def painted(picture: Picture) -> str:
    console = Console(width=70, record=True, file=StringIO())
    console.print(screen(picture, 70, 30))
    return console.export_text()


def test_the_phase_at_work_has_its_name_and_a_bar_from_its_begin_until_now(
    lab_writer: LabWriter,
) -> None:
    with lab_writer.watcher() as watcher:
        lab_writer.up()
        run = lab_writer.run(plan="next")
        recorder = Recorder(Silent(), lab_writer.journal(run))
        with recorder.phase("stage"):
            pass
        with recorder.phase("launch", "train"):
            watcher.refresh()
            move = watcher.picture.move
            assert (
                watcher.picture.doing == "launch"
                and move is not None
                and list(move.working) == ["launch"]
            )
            (bar,) = move.at_work(time.time() * 1e3 + 5000)
            assert bar.phase == "launch" and 5000 <= bar.ms < 65_000
            assert "launch: up next" in drawn(watcher.picture, 80)
            assert re.search(
                r"launch +\d+\.\d +█* *[▏▎▍▌▋▊▉█]? +so far", drawn(watcher.picture, 110, height=50)
            )
            assert cast(dict[str, Any], whole_picture(watcher.picture)["run"])["doing"] == "launch"
        watcher.refresh()
        assert (
            watcher.picture.doing == ""
            and move.working == {}
            and "so far" not in drawn(watcher.picture, 110)
        )
        with suppress(KeyboardInterrupt), recorder.phase("job"):
            raise KeyboardInterrupt
        watcher.refresh()
        assert watcher.picture.doing == "", "one that failed is not at work"
