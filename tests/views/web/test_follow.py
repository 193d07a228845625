"""Journals followed together: nothing is missed, nothing is told twice, whatever becomes of the
files.
"""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from orchestrator.telemetry import Journal
from orchestrator.views.live import follow
from orchestrator.views.live.follow import Journals


def write(state: Path, run: str, first: int, count: int, **more: int) -> Journal:
    journal = Journal(state / "runs" / run, run, "lab", **more)  # type: ignore[arg-type]
    for n in range(first, first + count):
        journal.point("port", {"host": "gpu01", "port": "p1", "layer": "nic"}, {"rx_bytes": n})
    journal.flush()
    return journal


def taken(journals: Journals) -> list[int]:
    return [int(p.fields["rx_bytes"]) for p in journals.take() if p.measurement == "port"]


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow, "SLOW_S", 0.0)


def test_what_stands_there_comes_first_and_then_what_is_added(tmp_path: Path) -> None:
    journals = Journals(tmp_path, lambda run: True)
    assert taken(journals) == []
    with write(tmp_path, "2026-11-21-0001", 0, 3) as journal:
        assert taken(journals) == [0, 1, 2]
        journal.point("port", {"host": "gpu01", "port": "p1", "layer": "nic"}, {"rx_bytes": 3})
        journal.flush()
        assert taken(journals) == [3] and taken(journals) == []
    write(tmp_path, "2026-11-21-0002", 10, 2).close()
    assert taken(journals) == [10, 11]
    journals.close()


def test_a_line_without_an_end_waits_until_it_has_one(tmp_path: Path) -> None:
    write(tmp_path, "r", 0, 2).close()
    part = tmp_path / "runs" / "r" / "telemetry" / "000.lp"
    whole = part.read_bytes()
    line = whole.splitlines(keepends=True)[-1]
    part.write_bytes(whole + line[:-9])
    journals = Journals(tmp_path, lambda run: True)
    assert taken(journals) == [0, 1]
    with part.open("ab") as file:
        file.write(line[-9:])
    assert taken(journals) == [1]
    journals.close()


def test_the_next_part_follows_and_the_closed_one_may_be_packed(tmp_path: Path) -> None:
    journals = Journals(tmp_path, lambda run: True)
    found: list[int] = []
    with write(tmp_path, "r", 0, 1) as journal:
        found += taken(journals)
        journal._part_bytes = 2000
        for n in range(1, 200):
            journal.point("port", {"host": "gpu01", "port": "p1", "layer": "nic"}, {"rx_bytes": n})
            if n % 7 == 0:
                journal.flush()
                found += taken(journals)
    while more := taken(journals):
        found += more
    assert found == list(range(200))
    assert list((tmp_path / "runs" / "r" / "telemetry").glob("*.gz"))
    journals.close()


def test_of_old_parts_and_far_back_only_events_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow, "RECENT_BYTES", 1000)
    with write(tmp_path, "r", 0, 1) as journal:
        journal.point("device_phase", {"device": "ocs1", "kind": "ocs"}, {"phase": "dark"})
        for n in range(1, 300):
            journal.point("port", {"host": "gpu01", "port": "p1", "layer": "nic"}, {"rx_bytes": n})
    journals = Journals(tmp_path, lambda run: True)
    points = list(journals.take())
    assert points[0].measurement == "device_phase"
    last = [int(p.fields["rx_bytes"]) for p in points[1:]]
    assert 5 <= len(last) < 20 and last == list(range(300 - len(last), 300))
    journals.close()


def test_spoilt_lines_are_counted_and_the_others_shown(tmp_path: Path) -> None:
    write(tmp_path, "r", 0, 1).close()
    part = tmp_path / "runs" / "r" / "telemetry" / "000.lp"
    part.write_bytes(part.read_bytes() + b"port,te\xff\x00 =\n" + part.read_bytes())
    journals = Journals(tmp_path, lambda run: True)
    assert taken(journals) == [0, 0] and journals.unread == 1
    journals.close()


def test_a_spoilt_line_that_still_parses_ends_nothing(tmp_path: Path) -> None:
    with write(tmp_path, "r", 0, 2) as journal:
        journal.phase("switch", journal.start_ns, journal.start_ns + 1)
    part = tmp_path / "runs" / "r" / "telemetry" / "000.lp"
    part.write_text(part.read_text().replace("begin_ns", "begim_ns"))
    journals = Journals(tmp_path, lambda run: True)
    assert [p.measurement for p in journals.take()] == ["port", "port"] and journals.unread == 1
    journals.close()


def test_runs_of_other_labs_are_not_opened_and_old_ones_are_let_go(tmp_path: Path) -> None:
    for n in range(1, 20):
        write(tmp_path, f"2026-11-21-{n:04d}", n, 1).close()
    journals = Journals(tmp_path, lambda run: run != "2026-11-21-0019")
    assert taken(journals) == [16, 17, 18]  # samples of the newest three alone
    assert journals.followed == tuple(f"2026-11-21-{n:04d}" for n in range(7, 19))
    journals.keep = frozenset({"2026-11-21-0002"})
    assert taken(journals) == [2]
    journals.close()


def test_a_run_that_is_pruned_while_it_is_followed_ends_nothing(tmp_path: Path) -> None:
    journals = Journals(tmp_path, lambda run: True)
    write(tmp_path, "r", 0, 2).close()
    assert taken(journals) == [0, 1]
    for path in (tmp_path / "runs" / "r" / "telemetry").iterdir():
        path.unlink()
    assert taken(journals) == []
    (tmp_path / "runs" / "r" / "telemetry").rmdir()
    (tmp_path / "runs" / "r").rmdir()
    assert taken(journals) == [] and journals.followed == ()
    journals.close()


def test_a_packed_part_that_a_disk_cut_short_is_left_out(tmp_path: Path) -> None:
    write(tmp_path, "r", 0, 50).close()
    part = tmp_path / "runs" / "r" / "telemetry" / "000.lp"
    (part.parent / "000.lp.gz").write_bytes(gzip.compress(part.read_bytes())[:-20])
    part.rename(part.parent / "001.lp")
    journals = Journals(tmp_path, lambda run: True)
    assert taken(journals) == list(range(50))
    journals.close()


def test_a_part_that_is_packed_and_spoilt_while_it_is_followed_keeps_nobody_else_waiting(
    tmp_path: Path,
) -> None:
    journals = Journals(tmp_path, lambda run: True)
    write(tmp_path, "r", 0, 50).close()
    assert taken(journals) == list(range(50))
    part = tmp_path / "runs" / "r" / "telemetry" / "000.lp"
    (part.parent / "000.lp.gz").write_bytes(gzip.compress(part.read_bytes() * 2)[:-20])
    part.unlink()
    write(tmp_path, "s", 7, 1).close()
    assert taken(journals) == [7]
    journals.close()
