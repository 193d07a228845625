"""Turns of the job and slow iterations, as `watch` and the page show them."""

from __future__ import annotations

import json
import re
import time
from io import StringIO
from typing import Any, cast
from unittest.mock import patch

import pytest
from rich.console import Console

from orchestrator.change.standstill import pause_parts
from orchestrator.cli.watchscreen import clock, screen, summary
from orchestrator.views.live import Event, Picture, Watcher
from orchestrator.views.live.sections import changed_sections, whole_picture
from orchestrator.views.ringtext import (
    Change,
    Span,
    is_slow_iteration,
    judged,
    pause_summary,
    ring_change_text,
    usual_iteration_ms,
)
from tests.views.web.conftest import LabWriter

PAUSED = "job lost 96 ms: 60 dark, 4 commit, 32 boundary"


def drawn(picture: Picture, width: int, *, unicode: bool = True, height: int = 60) -> str:
    console = Console(file=StringIO(), width=width, height=height, no_color=True)
    console.print(screen(picture, width, height, unicode=unicode))
    return cast(StringIO, console.file).getvalue()


def events(watcher: Watcher, name: str) -> list[Event]:
    return [e for e in watcher.picture.events.since(0) if e.event == name]


def scene(
    lab_writer: LabWriter,
    watcher: Watcher,
    *,
    now: float | None = None,
    launch: Any = None,
    job: bool = True,
) -> tuple[Any, Any]:
    """A job of 200 ms an iteration whose ranks changed after iteration 30, which took 310 ms: it
    met the dark.
    """
    end = now or time.time() * 1e3
    launch = launch or lab_writer.up()
    if job:
        lab_writer.launched(launch, end - 60_000)
    lab_writer.train(launch, until_ms=end, count=50, slow={30: 310.0, 31: 250.0})
    began = end - sum(200.0 + n % 3 for n in range(32, 50)) - 250.0 - 310.0
    with patch("orchestrator.store.store.time.time", return_value=began / 1e3):
        run = lab_writer.run(plan="next")
    watcher.refresh()
    lab_writer.change_rings(run, began + 100, after=30)
    watcher.refresh()
    assert not events(watcher, "slow"), "the run goes on: what it does to the job is not known yet"
    run.finish("ok")
    watcher.refresh()
    return run, began


def test_a_turn_is_a_mark_at_the_end_of_its_iteration_with_what_the_job_stood(
    lab_writer: LabWriter,
) -> None:
    with lab_writer.watcher() as watcher:
        run, began = scene(lab_writer, watcher)
        (ring_change,) = cast(list[dict[str, Any]], whole_picture(watcher.picture)["ring_changes"])
        assert ring_change["message"] == f"{PAUSED}; iteration 212 -> 172 ms"
        assert (
            ring_change["at"] == pytest.approx(began + 310, abs=1)
            and ring_change["run"] == run.id
            and ring_change["mode"] == "send"
            and ring_change["ok"]
        )
        assert (
            ring_change["paused_ms"],
            ring_change["worst_rank_ms"],
            ring_change["move"],
            ring_change["after"],
        ) == (
            96.0,
            71.0,
            3,
            30,
        )
        assert [e.message for e in events(watcher, "ring_change")] == [ring_change["message"]]
        json.dumps(changed_sections(watcher.picture))
    with lab_writer.watcher() as later:
        assert whole_picture(later.picture)["ring_changes"] == [ring_change] and not events(
            later, "ring_change"
        ), "history is no news"


def test_a_slow_iteration_is_blamed_on_what_it_overlaps(lab_writer: LabWriter) -> None:
    with lab_writer.watcher() as watcher:
        scene(lab_writer, watcher)
        (slow,) = events(watcher, "slow")
        assert (
            slow.message == "iteration 30 took 310 ms, usually 201: dark 60, commit 4, boundary 45"
        )
        assert slow.json()["causes"] == {"dark": 60.0, "commit": 4.0, "boundary": 45.0}
        assert slow in watcher.picture.events.log


def test_what_no_change_overlaps_is_a_straggler_and_no_rank_is_named(lab_writer: LabWriter) -> None:
    with lab_writer.watcher() as watcher:
        launch = lab_writer.up()
        watcher.refresh()
        end = time.time() * 1e3
        lab_writer.train(
            launch, until_ms=end - 20_000, count=12, slow={3: 900.0, 8: 280.0, 9: 330.0, 10: 340.0}
        )
        watcher.refresh()
        (slow,) = events(watcher, "slow")
        assert slow.message == (
            "iteration 9 took 330 ms, usually 201: straggler (no change overlaps it; the times of its ranks show which was late)"
        )
        assert slow.json()["causes"] == {"straggler": pytest.approx(128.5, abs=1)}
        lab_writer.train(launch, until_ms=end, first=12, count=20, slow={30: 400.0})
        watcher.refresh()
        assert events(watcher, "slow")[-1].message.endswith("; 1 more since the last such line")


def test_a_pause_between_two_iterations_is_no_straggler(lab_writer: LabWriter) -> None:
    with lab_writer.watcher() as watcher:
        launch, end = lab_writer.up(), time.time() * 1e3
        watcher.refresh()
        lab_writer.train(launch, until_ms=end - 5_000, count=10)
        lab_writer.train(launch, until_ms=end, first=10, count=10)
        watcher.refresh()
        (slow,) = events(watcher, "slow")
        assert (
            "pause (the time passed before it began" in slow.message
            and "pause" in slow.json()["causes"]
        )  # type: ignore[operator]


def test_an_iteration_is_compared_with_those_on_its_own_rings(lab_writer: LabWriter) -> None:
    """After a turn to slower rings each iteration is longer than before: that is no straggler."""
    with lab_writer.watcher() as watcher:
        end = time.time() * 1e3
        launch = lab_writer.up()
        lab_writer.train(
            launch, until_ms=end, count=50, slow=dict.fromkeys(range(31, 50), 400.0) | {45: 900.0}
        )
        run = lab_writer.run(plan="next")
        lab_writer.change_rings(run, end - 18 * 400 - 900 - 100, after=30, dark_ms=10.0)
        run.finish("ok")
        watcher.refresh()
        assert [e.json()["iter"] for e in events(watcher, "slow")] == [31, 45]
        assert (
            "boundary" in events(watcher, "slow")[0].message
            and "straggler" in events(watcher, "slow")[1].message
        )


def test_a_turn_that_did_not_happen_says_so_and_is_no_mark_on_the_curve(
    lab_writer: LabWriter,
) -> None:
    with lab_writer.watcher() as watcher:
        run = lab_writer.run(plan="next")
        lab_writer.change_rings(run, time.time() * 1e3, after=0, ok=False)
        run.finish("failed", 6, "void")
        watcher.refresh()
        (event,) = events(watcher, "ring_change")
        assert event.message == "the ring change did not happen"
        assert "the ring change did not happen" in drawn(watcher.picture, 100)


def test_a_turn_whose_iterations_arrive_later_is_placed_then(lab_writer: LabWriter) -> None:
    with lab_writer.watcher() as watcher:
        launch, run, end = lab_writer.up(), lab_writer.run(plan="next"), time.time() * 1e3
        lab_writer.change_rings(run, end - 250, after=8, light=False)
        run.finish("ok")
        watcher.refresh()
        changed_sections(watcher.picture)
        (ring_change,) = cast(list[dict[str, Any]], whole_picture(watcher.picture)["ring_changes"])
        assert ring_change["at"] == pytest.approx(end - 250, abs=1)
        lab_writer.train(launch, until_ms=end, count=10)
        watcher.refresh()
        assert "ring_changes" in changed_sections(watcher.picture)
        (ring_change,) = cast(list[dict[str, Any]], whole_picture(watcher.picture)["ring_changes"])
        assert ring_change["at"] == pytest.approx(end - 200, abs=1)


@pytest.mark.parametrize("width", [80, 110, 150])
def test_the_screen_marks_the_turn_on_the_curve_and_says_what_the_job_stood(
    lab_writer: LabWriter, width: int
) -> None:
    with lab_writer.watcher() as watcher:
        scene(lab_writer, watcher)
        lines = drawn(watcher.picture, width).splitlines()
        (curve,) = (line for line in lines if line.startswith("iteration "))
        (ring_change,) = (line for line in lines if line.startswith("rings "))
        assert (
            "▼" in curve
            and PAUSED in ring_change
            and "▼" in ring_change
            and "212 -> 172 ms" in ring_change
        )
        assert (
            clock(cast(float, watcher.picture.ring_change and watcher.picture.ring_change["at"]))
            in ring_change
        ), "also where there is little room"
        assert "send" not in ring_change and all(len(line) <= width for line in lines)
        plain = drawn(watcher.picture, width, unicode=False)
        assert re.search(rf"v \d\d:\d\d:\d\d {PAUSED}", plain) and plain.isascii()


def test_the_turn_that_is_told_is_one_of_the_job_that_runs(lab_writer: LabWriter) -> None:
    with lab_writer.watcher() as watcher:
        launch = lab_writer.up()
        scene(lab_writer, watcher, launch=launch)
        lab_writer.store.set_job(1, "finished", ended=True)
        watcher.refresh()
        assert watcher.picture.ring_change is None and "turn " not in drawn(watcher.picture, 100), (
            "it has ended"
        )
        assert "job ddp finished" in drawn(watcher.picture, 100)
        assert (
            cast(dict[str, Any], whole_picture(watcher.picture)["job"])["message"]
            == "job ddp finished"
        )
        assert not [
            ring_change
            for ring_change in cast(
                list[dict[str, Any]], whole_picture(watcher.picture)["ring_changes"]
            )
            if ring_change["last"]
        ]
        lab_writer.launched(lab_writer.run(plan="again"), time.time() * 1e3)
        watcher.refresh()
        assert watcher.picture.ring_change is None, (
            "another job of the same name has not turned yet"
        )
        assert "finished" not in summary(watcher.picture)
        lab_writer.store.clear_current(lab_writer.tenancy, launch.id)
        watcher.refresh()
        assert watcher.picture.state.running_job is None, (
            "no plan is up: nobody has said that the job of a stopped lab ended"
        )


def test_figures_that_have_no_room_are_left_out_whole(lab_writer: LabWriter) -> None:
    with lab_writer.watcher() as watcher:
        scene(lab_writer, watcher)
        for n in range(48):
            for k in range(2):
                watcher.picture.count(
                    f"h{n}:p1", time.time() * 1e3 - 1000 + 1000 * k, 20_000_000 * k, 0
                )
        whole_line = summary(watcher.picture)
        assert whole_line.endswith("iteration 202 ms (ddp)") or re.search(
            r"iteration \d+ ms \(ddp\)$", whole_line
        )
        for width in range(30, len(whole_line) + 1):
            line = summary(watcher.picture, width)
            assert len(line) <= width and (
                line == whole_line or f"{whole_line} ".startswith((f"{line},", f"{line} ("))
            )


def test_a_small_screen_keeps_the_turn_and_stays_small(lab_writer: LabWriter) -> None:
    with lab_writer.watcher() as watcher:
        scene(lab_writer, watcher)
        lines = drawn(watcher.picture, 60, height=24).splitlines()
        assert any(PAUSED in line for line in lines) and len(lines) <= 24


def test_rules_of_slow() -> None:
    assert (
        not is_slow_iteration(29, 10)
        and is_slow_iteration(30, 10)
        and not is_slow_iteration(150, 100)
        and is_slow_iteration(151, 100)
    )
    assert (
        usual_iteration_ms([1.0] * 4) is None and usual_iteration_ms([9.0] * 5 + [1.0] * 20) == 1.0
    )
    change = Change({"dark": (0.0, 10.0)})
    assert (
        judged(Span(1, 5, 205, 200), 100, [change]).message
        == "iteration 1 took 200 ms, usually 100: dark 5, other 95"
    )
    assert judged(Span(1, 5, 205, 200), 198, [change]).parts == {"dark": 2.0}, (
        "no more than there is to explain"
    )
    assert judged(Span(1, 50, 255, 205), 100, [change]).causes == ("straggler",)
    assert judged(Span(1, 50, 255, 90), 100, [change]).causes == ("pause",)
    assert pause_summary({}) == "job went on; for how long it paused is not recorded"
    assert ring_change_text({"paused_ms": 5.0, "before_ms": 1.0}) == "job lost 5 ms"


def test_the_parts_of_the_time_that_a_job_stood_add_up() -> None:
    assert pause_parts(96.0, 60.0, 4.0) == {"dark": 60, "commit": 4, "boundary": 32}
    assert pause_parts(30.0, 60.0, 4.0) == {"dark": 30, "commit": 0, "boundary": 0}
    assert pause_parts(62.0, 60.0, 4.0) == {"dark": 60, "commit": 2, "boundary": 0}
    assert pause_parts(5.0, None, None) == {"boundary": 5}
    fields = {
        "paused_ms": 10.4,
        "dark_ms": 3.4,
        "commit_ms": 3.4,
        "boundary_ms": 3.6,
        "mode": "drain",
    }
    assert (
        pause_summary(fields)
        == "job lost 10 ms: 3 dark, 3 commit, 4 boundary; traffic had other paths"
    )
