"""What knows a job's traffic, as live views show it: shadow, functions of packet switches, what is
sent, lost and saved.
"""

from __future__ import annotations

from io import StringIO
from typing import Any

from rich.console import Console

from orchestrator.cli.watchscreen import carried_lines, screen
from orchestrator.telemetry import Journal
from orchestrator.telemetry.lineprotocol import Point
from orchestrator.views.live.carrying import Carrying
from orchestrator.views.live.sections import whole_picture
from tests.views.web.conftest import LabWriter
from tests.views.web.test_picture import point

JOB = {"job": "ddp"}
SUMMED = {**JOB, "op": "all_reduce", "algo": "ring"}


def carry(
    journal: Journal,
    count: int = 30,
    flagged: tuple[int, ...] = (12,),
    fetched: tuple[int, ...] = (14,),
) -> None:
    """A job with a shadow, both functions of a switch, sums that lose and compress, and a
    checkpoint every ten iterations.
    """
    now = journal.now_ns() - count * 200_000_000
    for n in range(1, count + 1):
        at, checkpoint = now + n * 200_000_000, n - 1 if n in flagged else n
        seen: dict[str, Any] = {
            "iter": n,
            "equal": int(n not in (*flagged, *fetched)),
            "fetched": int(n in fetched),
            "missing": 0,
            "lost": 0,
        }
        seen |= {
            "lag_ms": 4.0 + n % 3,
            "checkpoint": checkpoint,
            "host": "gpu07",
            "taps": "gpu01 gpu02",
        }
        journal.point("shadow", JOB, seen, at)
        summed = {
            "size_bytes": 4_000_000,
            "iter": n,
            "iter_ms": 60.0,
            "wire_bytes": 600_000,
            "whole_bytes": 6_000_000,
        }
        lost = {"resent_bytes": 6_000, "lost_share": 0.008, "loss_bound": 0.02}
        journal.point("collective", SUMMED, {**summed, **lost}, at)
        save = {"save_ms": 12.0} if n % 10 == 1 and n > 1 else {}
        journal.point(
            "iteration",
            {**JOB, "workload": "train"},
            {"iter": n, "iter_ms": 180.0, "comm_ms": 60.0, **save},
            at,
        )
    had = {
        "total": 64,
        "size": 15,
        "packets_in": 12_000,
        "packets_out": 12_000,
        "sums": 3000,
        "duplicates": 96,
        "lease_left_s": 52.0,
    }
    journal.point("function", {**JOB, "segment": "ideal", "function": "aggregate"}, had)
    had = {
        "total": 1024,
        "size": 512,
        "gets": 9000,
        "hits": 6400,
        "stored": 480,
        "lease_left_s": 48.0,
    }
    journal.point("function", {**JOB, "segment": "tree", "function": "cache"}, had)
    journal.flush()


TEXTS = {
    "shadow": "on gpu07: 28 of 30 iterations equal, checkpoint of iteration 30, 5.0 ms behind; 1 state fetched, 0 packets lost;"
    " taps on gpu01, gpu02",
    "aggregate": "at ideal: 15 of 64 slots, 12000 packets in, 3000 sums, 0.8 % sent again, lease 52 s",
    "cache": "at tree: 512 of 1024 entries, 71 % of 9000 questions answered, 480 in use, lease 48 s",
    "sends": "10 % of what whole sums would take",
    "datagrams": "sums lack 0.8 % (0.8 % at most, 2.0 % allowed), 1.0 % sent again",
    "saves": "checkpoints stop training for 12 ms every 10 iterations, 1.2 ms an iteration",
}


def test_each_has_a_line_and_a_mark_until_the_job_has_ended(lab_writer: LabWriter) -> None:
    carry(lab_writer.journal(lab_writer.up()))
    with lab_writer.watcher() as watcher:
        picture = watcher.picture
        reply: Any = whole_picture(picture)["carried"]
        assert {mark["name"]: mark["message"] for mark in reply["marks"]} == TEXTS
        assert reply["copied"] == {"to": "gpu07", "from": ["gpu01", "gpu02"]}
        shares = {mark["name"]: mark["share"] for mark in reply["marks"]}
        assert shares == {
            "shadow": None,
            "aggregate": 0.2344,
            "cache": 0.7111,
            "sends": 0.1,
            "datagrams": 0.4,
            "saves": 0.0066,
        }
        cells = next(mark["cells"] for mark in reply["marks"] if mark["name"] == "shadow")
        assert cells[11:14] == ["flagged", "equal", "fetched"] and not any(
            mark["bad"] for mark in reply["marks"]
        )
        console = Console(file=StringIO(), width=150, height=60)
        console.print(screen(picture, 150, 60))
        for name, text in TEXTS.items():
            assert f"{name:<10}{text}" in console.file.getvalue()  # type: ignore[attr-defined]
        picture.job["ended"] = True
        assert [line.plain[:6] for line in carried_lines(picture)] == ["shadow"], (
            "of an ended job one goes on from its shadow"
        )


def at(measurement: str, tags: dict[str, str], run: str, **fields: object) -> Point:
    return point(measurement, {**JOB, **tags, "run": run}, fields, 1.0)


def test_a_shadow_that_falls_behind_and_a_loss_beyond_its_bound_are_trouble() -> None:
    carrying = Carrying()
    for n in range(1, 8):
        carrying.point(at("shadow", {}, "b", iter=n, equal=int(n < 2), checkpoint=1, host="gpu07"))
    assert [mark[2] for mark in carrying.text(ended=False)] == [True]
    lost = {"wire_bytes": 100, "whole_bytes": 100, "lost_share": 0.03, "loss_bound": 0.02}
    carrying.point(at("collective", {"op": "all_reduce", "algo": "ring"}, "b", **lost))
    assert [(name, bad) for name, _, bad in carrying.text(ended=False)] == [
        ("shadow", True),
        ("datagrams", True),
    ]


def test_a_newer_job_takes_the_marks_away_and_an_older_one_says_nothing() -> None:
    carrying = Carrying()
    carrying.point(at("shadow", {}, "b", iter=1, equal=1, checkpoint=1, host="gpu07"))
    assert carrying.taken() and not carrying.taken()
    carrying.point(at("shadow", {}, "a", iter=9, equal=1, checkpoint=9, host="gpu08"))
    assert not carrying.taken()
    carrying.point(at("iteration", {"workload": "train"}, "c", iter=1, iter_ms=5.0))
    assert carrying.taken() and carrying.text(ended=False) == []


def test_whole_sums_without_loss_make_no_mark() -> None:
    carrying = Carrying()
    carrying.point(
        at(
            "collective",
            {"op": "all_reduce", "algo": "ring"},
            "b",
            wire_bytes=6_010_000,
            whole_bytes=6_000_000,
        )
    )
    assert carrying.text(ended=False) == []
