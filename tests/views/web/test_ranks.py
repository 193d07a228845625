"""The ranks of a job as live views show them: the slowest, and those that say nothing any more."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from io import StringIO

from rich.console import Console

from orchestrator.cli.watchscreen import screen
from orchestrator.hosts import Heartbeat, late
from orchestrator.views.live.ranks import Ranks
from orchestrator.views.live.sections import changed_sections, whole_picture
from tests.views.web.conftest import LabWriter
from tests.views.web.test_picture import point


def heartbeat(
    rank: str,
    phase: str = "compute",
    age_s: float = 0.1,
    iteration: int = 57,
    state: str = "running",
) -> Heartbeat:
    return Heartbeat(rank, state, None, iteration, phase, age_s, ())


def test_a_rank_that_stands_still_is_named_and_those_that_wait_for_it_are_counted() -> None:
    waiting = [heartbeat(f"gpu{n:02}", "exchange", 6.0) for n in range(1, 12)]
    assert (
        late.silent_text([*waiting, heartbeat("gpu12", age_s=6.2)], 200.0)
        == "gpu12 silent for 6.2 s in iteration 57, 11 ranks waiting"
    )
    assert (
        late.silent_text(waiting, 200.0)
        == "11 ranks waiting for an exchange for 6.0 s in iteration 57"
    )
    assert late.silent_text([*waiting, heartbeat("gpu12", age_s=6.2)], 3000.0) == "", (
        "three usual iterations take longer"
    )
    stopped, alive = (replace(heartbeat("gpu12", "exchange", 6.2), alive_s=at) for at in (5.0, 0.4))
    assert (
        late.silent_text([*waiting, stopped], 200.0)
        == "gpu12 silent for 6.2 s in iteration 57, 11 ranks waiting"
    )
    assert late.silent_text([*waiting, alive], 200.0).startswith("12 ranks waiting for an exchange")
    late_one = heartbeat("gpu12", "end", 6.2)
    assert (
        late.silent_text([*waiting, late_one], 200.0)
        == "gpu12 silent for 6.2 s in iteration 57, 11 ranks waiting"
    )
    for busy in ("start", "save"):
        assert late.silent_text([*waiting, replace(late_one, phase=busy)], 200.0).startswith(
            "11 ranks waiting for an exchange"
        )
    for well in (
        heartbeat("a"),
        heartbeat("a", "hold", 60.0),
        heartbeat("a", "start", 60.0),
        heartbeat("a", "end", 60.0),
    ):
        assert late.silent_text([well], 200.0) == ""
    assert (
        late.silent_text(
            [heartbeat("a", "", math.inf), heartbeat("b", state="killed", age_s=9)], 200.0
        )
        == ""
    )


def test_a_slow_rank_computes_much_longer_than_the_others() -> None:
    times = {"gpu01": 20.0, "gpu02": 21.0, "gpu03": 30.0}
    assert late.slow_text(times) == "" and late.slow_text(times, always=True).startswith(
        "slowest gpu03: computes 30 ms"
    )
    assert (
        late.slow_text(times | {"gpu02": 80.0})
        == "slowest gpu02: computes 80 ms of an iteration, the others 25 ms"
    )
    assert (
        late.slow_text({"gpu01": 5.0})
        == late.slow_text({"gpu01": 5.0, "gpu02": 0.0}, always=True)
        == ""
    )


def test_ranks_are_those_of_the_latest_job() -> None:
    ranks, tags = Ranks(), {"job": "ddp", "rank": "gpu01", "run": "2026-1"}
    ranks.point(point("rank", tags, {"iter": 1, "iter_ms": 9.0}, 1.0))
    ranks.point(
        point("rank", tags | {"run": "2026-2", "rank": "gpu02"}, {"iter": 1, "iter_ms": 7.0}, 2.0)
    )
    ranks.point(point("rank", tags, {"iter": 2, "iter_ms": 9.0}, 3.0))
    ranks.heard("2026-1", [heartbeat("gpu01")], 4.0)
    assert [row["rank"] for row in ranks.json()["ranks"]] == ["gpu02"]  # type: ignore[union-attr,index,call-overload]
    assert ranks.taken() and not ranks.taken()


def test_a_view_has_the_times_of_every_rank_and_says_which_is_late(lab_writer: LabWriter) -> None:
    run = lab_writer.run()
    with lab_writer.watcher() as watcher:
        picture, journal = watcher.picture, lab_writer.journal(run)
        for rank, ms in (("gpu01", 20.0), ("gpu02", 90.0)):
            journal.point(
                "rank",
                {"job": "ddp", "rank": rank},
                {"iter": 1, "iter_ms": 100.0, "compute_ms": ms, "wait_ms": 1.0},
            )
        journal.flush()
        while "ranks" not in (shown_now := changed_sections(picture)):
            watcher.refresh()
        assert (
            shown_now["ranks"]["message"].startswith("slowest gpu02")
            and shown_now["ranks"]["trouble"]
        )  # type: ignore[call-overload,index,union-attr]
        picture.ranks.heard(
            run.id,
            [heartbeat("gpu01", "exchange", 7.0), heartbeat("gpu02", age_s=7.0)],
            time.time() * 1e3,
        )
        console = Console(file=StringIO(), width=100, height=40)
        console.print(screen(picture, 100, 40))
        assert "gpu02 silent for 7.0 s in iteration 57, 1 rank waiting" in console.file.getvalue()  # type: ignore[attr-defined]
        assert [row["silent"] for row in whole_picture(picture)["ranks"]["ranks"]] == [False, True]  # type: ignore[call-overload,index,union-attr]
