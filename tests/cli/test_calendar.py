"""`testbed lock reserve --from` and `lock calendar`: dates, conflicts, who had what, iCalendar."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.cli.render import SHOWN_BOOKED, status
from orchestrator.queue.verb import queue_view
from orchestrator.session import Command, load_lab
from orchestrator.settings import load
from orchestrator.store import clock
from orchestrator.store.audit import Who
from orchestrator.store.keys import key_of
from orchestrator.store.lock_queue import Lock
from orchestrator.store.locks import Locks
from orchestrator.store.scope import Scope
from orchestrator.store.store import Store
from orchestrator.telemetry.progress import Silent
from orchestrator.verbs.report import StatusReport
from orchestrator.views.icalendar import OCTETS, icalendar
from tests.house.repository import ROOT

NOW = 1_795_000_000.0
"""2026-11-18 12:06:40 in Berlin."""
DEMO = ("--hosts", "gpu01", "--from", "2026-12-01 09:00", "--for", "4h", "--reason", "demo")


@pytest.fixture
def lab(cli: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The command line on the project's lab, in Berlin at `NOW`."""
    monkeypatch.setenv("TESTBED_INVENTORY", str(ROOT / "inventory" / "emulated"))
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    monkeypatch.setattr(time, "time", lambda: NOW)
    yield cli
    monkeypatch.undo()
    time.tzset()


def data(result: Any) -> Any:
    assert result.code == 0, result.err
    return json.loads(result.out)["data"]


def test_a_date_is_local_and_shown_to_everybody_until_it_comes(
    lab: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = data(lab("lock", "reserve", *DEMO, "--as", "ann", "--json"))["lock"]
    assert (made["state"], made["since"], made["expires"]) == ("booked", 1796112000.0, 1796126400.0)
    shown = lab("lock", "calendar", "--as", "bob").out
    assert "Tue 2026-12-01 09:00 CET  Tue 2026-12-01 13:00 CET" in shown and "demo" in shown
    assert "booked" in lab("lock", "list").out
    monkeypatch.setattr(time, "time", lambda: 1796112001.0)
    assert data(lab("lock", "list", "--json"))["locks"][0]["state"] == "active"


def test_what_others_have_booked_is_refused_with_who_and_when_and_nothing_is_written(
    lab: Any,
) -> None:
    made = data(lab("lock", "reserve", *DEMO, "--as", "ann", "--json"))["lock"]["id"]
    later = ("--hosts", "gpu01,gpu02", "--from", "2026-12-01T12:59", "--for", "1h")
    refused = lab("lock", "reserve", *later, "--reason", "x", "--as", "bob")
    assert (
        refused.code == 4
        and f"for ann from 2026-12-01 09:00 until 2026-12-01 13:00: demo [lock {made}]"
        in refused.err
    )
    assert "testbed --as bob lock calendar" in refused.err
    long = lab(
        "lock", "reserve", "--hosts", "gpu01", "--for", "20d", "--reason", "x", "--as", "bob"
    )
    assert long.code == 4 and "from 2026-12-01 09:00" in long.err
    assert [one["id"] for one in data(lab("lock", "calendar", "--json"))["locks"]] == [made]
    beside = ("--hosts", "gpu01", "--from", "2026-12-01 13:00+01:00", "--for", "1h")
    assert lab("lock", "reserve", *beside, "--reason", "x", "--as", "bob").code == 0
    foreign = lab("lock", "release", made, "--as", "bob")
    assert foreign.code == 4 and "owned by ann" in foreign.err
    assert lab("lock", "release", made, "--as", "ann").code == 0


@pytest.mark.parametrize(
    ("date", "why"),
    [
        ("next week", "is not a time such as"),
        ("2026-02-30 09:00", "is not a time such as"),
        ("99999-01-01", "is not a time such as"),
        ("0001-01-01", "is"),
        ("2026-11-18 12:06", "is past"),
        ("2028-11-18", "more than a year away"),
        (
            "2027-03-28 02:30",
            'does not exist: clocks are set forward then\nnext: --from "2027-03-28 01:30+01:00" or "2027-03-28 03:30+02:00"',
        ),
        (
            "2027-10-31 02:30",
            'is twice: clocks are set back then\nnext: --from "2027-10-31 02:30+02:00" or "2027-10-31 02:30+01:00"',
        ),
    ],
)
def test_a_date_that_is_none_is_refused_with_what_could_be_meant(
    lab: Any, date: str, why: str
) -> None:
    result = lab("lock", "reserve", "--from", date, "--for", "1h", "--reason", "x")
    assert result.code == 2 and why in result.err and "Traceback" not in result.err
    assert data(lab("lock", "calendar", "--json"))["locks"] == []


def test_an_hour_that_is_twice_can_be_booked_by_its_offset(lab: Any) -> None:
    argv = ("lock", "reserve", "--for", "30m", "--reason", "x", "--json", "--from")
    late = data(lab(*argv, "2027-10-31 02:30+01:00"))["lock"]["since"]
    assert late - data(lab(*argv, "2027-10-31 02:30+02:00"))["lock"]["since"] == 3600.0


def test_a_date_goes_with_no_queue(lab: Any) -> None:
    result = lab("lock", "reserve", *DEMO, "--queue")
    assert result.code == 2 and "neither --queue nor --after" in result.err


def test_who_had_what_last_week_is_told_and_what_was_released_before_its_date_is_not(
    lab: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    data(lab("lock", "reserve", "--hosts", "gpu03", "--for", "2h", "--reason", "test", "--json"))
    gone = data(lab("lock", "reserve", *DEMO, "--json"))["lock"]["id"]
    lab("lock", "release", gone)
    boot = clock.boot_clock_ns()
    monkeypatch.setattr(clock, "boot_clock_ns", lambda: boot + 5 * 86_400 * 10**9)
    monkeypatch.setattr(time, "time", lambda: NOW + 5 * 86_400)
    assert "No reservations" in lab("lock", "calendar").out
    [one] = data(lab("lock", "calendar", "--last", "7d", "--json"))["locks"]
    assert (one["state"], one["reason"], one["ended"]) == ("expired", "test", NOW + 7200)
    assert data(lab("lock", "calendar", "--last", "2d", "--json"))["locks"] == []
    lab("lock", "calendar", "--last", "7d", "--ical", str(tmp_path / "lab.ics"))
    text = (tmp_path / "lab.ics").read_bytes().decode()
    assert text.count("BEGIN:VEVENT\r\n") == 2 and f"UID:{gone}" in text
    assert "DTSTART:20261201T080000Z\r\nDTEND:20261201T120000Z\r\n" in text
    assert "STATUS:CANCELLED\r\n" in text and "STATUS:CONFIRMED\r\n" in text


def test_a_job_of_the_queue_begins_only_where_it_is_over_before_a_date(lab: Any) -> None:
    workload = str(ROOT / "examples" / "workloads" / "vgg16.yaml")
    settings = load()
    command = Command(Silent(), Store(settings.store_path, durable=False), settings)
    with command.store as store:
        key = key_of(load_lab(settings.inventory))
        Locks(store, key, Who("ann", "ann")).take(
            "reservation", Scope(frozenset({"gpu01"})), "demo", for_s=600.0, at=NOW + 3600
        )
        from orchestrator.queue.verb import queue_add

        text = Path(workload).read_text()
        for for_s in (1800.0, 7200.0):
            queue_add(command, text, workload, hosts=12, for_s=for_s, method="ring")
        short, long = queue_view(command).rows
        assert len(short.starts) == 12
        store.write("UPDATE queue SET state='done' WHERE number=1")
        [long] = queue_view(command).rows
        assert long.why.startswith("needs 12 hosts of 12, 11 are free")
        assert (
            "enough in 1 h 10 min at the latest; booked before it could be over: gpu01" in long.why
        )


RESERVATION = Lock(
    *("3f9a1c", "reservation", "ann", "ann", "labhost", 1, ""),
    reason="Grüße, alle; " + "ä" * 70 + "\\",
    scope=Scope(frozenset({"gpu01"})),
    state="booked",
    seq=1,
    asked=NOW,
    since=NOW + 3600,
    expires=NOW + 7200,
)


def test_status_shows_the_next_dates_and_how_many_more_there_are() -> None:
    dates = tuple(f"gpu{n:02}: ann" for n in range(1, SHOWN_BOOKED + 3))
    shown = status(StatusReport("lab", "x", booked=dates), False).splitlines()
    found = [line for line in shown if line.startswith("booked")]
    assert found[:-1] == [f"booked   {date}" for date in dates[:SHOWN_BOOKED]]
    assert found[-1] == "booked   2 more: testbed lock calendar"


def test_icalendar_folds_lines_between_characters_and_escapes_text() -> None:
    raw = icalendar("lab, 2", [RESERVATION]).encode()
    lines = raw.split(b"\r\n")
    assert lines[-1] == b"" and b"\n" not in raw.replace(b"\r\n", b"")
    assert max(map(len, lines)) <= OCTETS and all(line.decode() for line in lines[:-1])
    unfolded = raw.replace(b"\r\n ", b"").decode().split("\r\n")
    assert "SUMMARY:ann: Grüße\\, alle\\; " + "ä" * 70 + "\\\\" in unfolded
    assert "X-WR-CALNAME:lab\\, 2" in unfolded
    assert unfolded[0] == "BEGIN:VCALENDAR" and unfolded[-2] == "END:VCALENDAR"


def test_a_reservation_without_an_end_has_one_in_icalendar() -> None:
    waits = replace(RESERVATION, state="waiting", expires=None, since=NOW)
    text = icalendar("lab", [waits])
    assert "STATUS:TENTATIVE" in text and "DTEND:20261119T110640Z" in text
