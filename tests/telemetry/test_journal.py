"""The journal: what goes in comes back, in order, whatever happens to the process or the wall
clock.
"""

from __future__ import annotations

import gzip
import json
import resource
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optics.errors import StoreFailed
from orchestrator.telemetry import MEASUREMENTS, Journal, read_points
from orchestrator.telemetry.lineprotocol import (
    EMPTY_TAG,
    INT_MAX,
    INT_MIN,
    integer,
    number,
    parse,
    tag,
    text,
)
from orchestrator.telemetry.names import COMMON_TAGS
from orchestrator.telemetry.reader import part_files

PORT = {"host": "gpu01", "port": "p1", "layer": "nic"}


class SteppedClock:
    """Two clocks moved by hand."""

    def __init__(self) -> None:
        self.mono, self.wall = 5_000_000_000, 1_795_000_000_000_000_000

    def monotonic_ns(self) -> int:
        return self.mono

    def time_ns(self) -> int:
        return self.wall

    def pass_ns(self, ns: int) -> None:
        self.mono += ns
        self.wall += ns


def one(run_dir: Path) -> Any:
    (point,) = read_points(run_dir)
    return point


lines_free = st.text(
    st.characters(blacklist_categories=("Cs",), blacklist_characters="\n\r"), max_size=40
)


@given(
    host=lines_free.filter(lambda s: s and "\\" not in s),
    message=lines_free,
    whole=st.integers(INT_MIN, INT_MAX),
    real=st.floats(allow_nan=False, allow_infinity=False),
    at=st.integers(0, 2**62),
)
def test_every_value_comes_back_as_it_went_in(
    host: str, message: str, whole: int, real: float, at: int
) -> None:
    line = f"m,h={tag(host)},t=x a={text(message)},b={integer(whole)},c={number(real)} {at}"
    assert "\n" not in line
    point = parse(line)
    assert point.measurement == "m" and point.tags == {"h": host, "t": "x"} and point.time_ns == at
    assert point.fields == {"a": message, "b": whole, "c": real}
    assert isinstance(point.fields["b"], int) and isinstance(point.fields["c"], float)


@given(st.text(max_size=30), st.text(max_size=30))
def test_any_text_stays_on_one_line_and_parses(label: str, message: str) -> None:
    line = f"m,h={tag(label)} a={text(message)} 1".encode("utf-8", "replace").decode()
    assert line.count("\n") == 0
    point = parse(line)
    assert list(point.tags) == ["h"] and list(point.fields) == ["a"]


@given(st.text(max_size=60))
def test_a_line_that_is_not_ours_is_an_error_and_nothing_else(line: str) -> None:
    try:
        parse(line)
    except ValueError:
        pass


def test_an_empty_tag_keeps_its_place_in_the_tag_set() -> None:
    assert parse(f"m,h={tag('')} a=1i 5").tags == {"h": EMPTY_TAG}


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_number_the_protocol_has_no_word_for_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match="cannot be written"):
        number(value)


def test_a_reading_that_was_not_there_is_left_out(tmp_path: Path) -> None:
    with Journal(tmp_path, "r", "emulated") as journal:
        journal.point(
            "optical", {"device": "ocs1", "port": "1"}, {"rx_dbm": None, "tx_dbm": float("nan")}
        )
        journal.point(
            "optical", {"device": "ocs1", "port": "1"}, {"rx_dbm": float("nan"), "tx_dbm": 31}
        )
        journal.point("optical", {"device": "ocs1", "port": "2"}, {"rx_dbm": None})
        journal.point(
            "port", {"host": "gpu01", "port": "p1", "layer": "nic"}, {"rx_bytes": 1 << 63}
        )
    assert one(tmp_path).fields == {"tx_dbm": 31.0}


def test_a_point_at_a_time_that_64_bits_do_not_hold_is_left_out(tmp_path: Path) -> None:
    with Journal(tmp_path, "r", "emulated") as journal:
        for at in (10**9, 1 << 63, -(1 << 64)):
            journal.point(
                "optical", {"device": "ocs1", "port": "1"}, {"tx_dbm": 31}, at - journal.anchor_ns
            )
    assert one(tmp_path).time_ns == 10**9


def test_the_journal_adds_lab_and_run_and_keeps_the_declared_order_of_tags(tmp_path: Path) -> None:
    with Journal(tmp_path, "2026-11-21-0007", "emu lab") as journal:
        journal.point("port", {"layer": "nic", "port": "p1", "host": "gpu01"}, {"rx_bytes": 5})
    assert list(one(tmp_path).tags.items()) == [
        ("testbed", "emu lab"),
        ("run", "2026-11-21-0007"),
        *PORT.items(),
    ]


def test_integers_stay_integers_and_floats_floats(tmp_path: Path) -> None:
    with Journal(tmp_path, "r", "emulated") as journal:
        journal.point(
            "collective", {"job": "j", "op": "allreduce", "algo": "ring"}, {"iter": 3, "iter_ms": 4}
        )
    assert b" iter=3i,iter_ms=4.0 " in part_files(tmp_path)[0].read_bytes()


def test_samples_written_at_once_are_the_points_written_one_by_one(tmp_path: Path) -> None:
    names, rows = ("rx_bytes", "oper"), [(5, 1, 10**9), (6, 1, 10**9), (7, 0, 2 * 10**9)]
    found = []
    for run in ("once", "each"):
        with Journal(tmp_path / run, "r", "100 % lab", clock=SteppedClock()) as journal:
            if run == "once":
                journal.samples("port", PORT, names, rows)
            for *values, at in rows if run == "each" else ():
                journal.point("port", PORT, dict(zip(names, values, strict=True)), at)
            assert journal.points == 3
        found.append([(p.time_ns, p.tags, p.fields) for p in read_points(tmp_path / run)])
    assert found[0] == found[1] and [fields["rx_bytes"] for _, _, fields in found[0]] == [5, 6, 7]
    assert len({at for at, _, _ in found[0]}) == 3, (
        "two of one nanosecond would overwrite each other"
    )
    with (
        Journal(tmp_path / "wrong", "r", "lab") as journal,
        pytest.raises(ValueError, match="rx_byte: not declared integers"),
    ):
        journal.samples("port", PORT, ("rx_byte",), [])


@pytest.mark.parametrize(
    ("name", "tags", "fields", "message"),
    [
        ("ports", PORT, {"rx_bytes": 1}, "measurement 'ports' is not declared"),
        ("port", PORT, {"rx_byte": 1}, "field 'rx_byte' is not declared"),
        (
            "port",
            {"host": "gpu01"},
            {"rx_bytes": 1},
            "exactly \\['host', 'layer', 'port'\\] declared",
        ),
        ("port", {**PORT, "lane": "1"}, {"rx_bytes": 1}, "exactly"),
        ("port", PORT, {"rx_bytes": 1.5}, "port.rx_bytes: 1.5 is not int"),
        (
            "device_phase",
            {"device": "ocs1", "kind": "ocs"},
            {"phase": 5},
            "device_phase.phase: 5 is not str",
        ),
    ],
)
def test_a_point_that_is_not_as_declared_is_refused(
    tmp_path: Path, name: str, tags: dict[str, str], fields: dict[str, Any], message: str
) -> None:
    with Journal(tmp_path, "r", "emulated") as journal, pytest.raises(ValueError, match=message):
        journal.point(name, tags, fields)
    assert list(read_points(tmp_path)) == []


def test_two_points_of_one_series_never_share_a_nanosecond(tmp_path: Path) -> None:
    clock = SteppedClock()
    other = {**PORT, "port": "p2"}
    with Journal(tmp_path, "r", "emulated", clock=clock) as journal:
        for at in (1000, 1000, 1001, 999, 1000):
            journal.point("port", PORT, {"rx_bytes": at}, at)
        journal.point("port", other, {"rx_bytes": 1}, 1000)
    times = [p.time_ns - journal.anchor_ns for p in read_points(tmp_path)]
    assert times[:5] == [1000, 1001, 1002, 999, 1003]
    assert times[5] == 1000


@given(st.lists(st.integers(0, 40), max_size=60))
def test_no_two_points_of_a_series_ever_share_a_time(times: list[int]) -> None:
    from orchestrator.telemetry.journal import _Series

    series = _Series("")
    taken = [series.free(at) for at in times]
    assert len(set(taken)) == len(taken)
    assert all(got >= asked for got, asked in zip(taken, times, strict=True))


def test_a_stepped_wall_clock_bends_neither_durations_nor_order(tmp_path: Path) -> None:
    clock = SteppedClock()
    with Journal(tmp_path, "r", "emulated", clock=clock) as journal:
        began = journal.now_ns()
        clock.pass_ns(31_000_000)
        clock.wall -= 3600 * 10**9
        journal.phase("switch", began, journal.now_ns())
        clock.pass_ns(4_000_000)
        journal.phase("link", began + 31_000_000, journal.now_ns())
    switch, link = read_points(tmp_path)
    assert switch.fields["duration_ns"] == 31_000_000 and switch.fields["duration_ms"] == 31.0
    assert link.fields["duration_ns"] == 4_000_000
    assert link.time_ns - switch.time_ns == 31_000_000


def test_a_reopened_run_keeps_its_one_anchor(tmp_path: Path) -> None:
    clock = SteppedClock()
    with Journal(tmp_path, "r", "emulated", clock=clock) as journal:
        first = journal.anchor_ns
    clock.wall += 10**12
    with Journal(tmp_path, "r", "emulated", clock=clock) as again:
        assert again.anchor_ns == first and again.start_ns == journal.start_ns


def test_an_anchor_of_another_boot_is_not_used(tmp_path: Path) -> None:
    clock = SteppedClock()
    with Journal(tmp_path, "r", "emulated", clock=clock) as journal:
        pass
    stored = json.loads((tmp_path / "telemetry" / "anchor.json").read_text())
    (tmp_path / "telemetry" / "anchor.json").write_text(
        json.dumps(stored | {"boot_id": "an earlier one"})
    )
    clock.wall += 7
    with Journal(tmp_path, "r", "emulated", clock=clock) as again:
        assert again.anchor_ns == journal.anchor_ns + 7


@pytest.mark.parametrize("keep", range(1, 30, 4))
def test_a_torn_last_line_is_skipped_then_cut_off(tmp_path: Path, keep: int) -> None:
    with Journal(tmp_path, "r", "emulated") as journal:
        for n in range(3):
            journal.point("port", PORT, {"rx_bytes": n})
    path = part_files(tmp_path)[0]
    whole = path.read_bytes()
    path.write_bytes(whole[:-keep])
    trouble: list[str] = []
    assert [p.fields["rx_bytes"] for p in read_points(tmp_path, trouble=trouble)] == [0, 1]
    assert trouble == ["000.lp:3: torn last line"]
    with Journal(tmp_path, "r", "emulated") as journal:
        journal.point("port", PORT, {"rx_bytes": 9})
    assert [p.fields["rx_bytes"] for p in read_points(tmp_path)] == [0, 1, 9]


def test_garbage_inside_a_part_is_named_and_skipped(tmp_path: Path) -> None:
    with Journal(tmp_path, "r", "emulated") as journal:
        journal.point("port", PORT, {"rx_bytes": 1})
    path = part_files(tmp_path)[0]
    path.write_bytes(b"\xff\xfe nonsense\n" + path.read_bytes())
    trouble: list[str] = []
    assert len(list(read_points(tmp_path, trouble=trouble))) == 1
    assert trouble[0].startswith("000.lp:1: ")


@pytest.mark.parametrize(
    ("spoilt", "why"),
    [
        ("begin_ns=0i", "begim_ns=0i"),
        ("begin_ns=0i", 'begin_ns="0"'),
        ("begin_ns=0i", "begin_ns=0.5"),
        ("begin_ns=0i", "begin_ns=99999999999999999999i"),
        ("duration_ms=1.0", "duration_ms=1e999"),
        (",kind=run", ",kine=run"),
    ],
)
def test_a_line_that_a_disk_spoilt_and_that_still_parses_is_named_and_skipped(
    tmp_path: Path, spoilt: str, why: str
) -> None:
    with Journal(tmp_path, "r", "emulated") as journal:
        for n in range(2):
            journal.phase(
                "switch", journal.start_ns, journal.start_ns + 1_000_000, subject=f"ocs{n}"
            )
    path = part_files(tmp_path)[0]
    assert spoilt in path.read_text()
    path.write_text(path.read_text().replace(spoilt, why, 1))
    trouble: list[str] = []
    assert [p.tags["subject"] for p in read_points(tmp_path, trouble=trouble)] == ["ocs1"]
    assert len(trouble) == 1 and trouble[0].startswith("000.lp:1: ")


def test_full_parts_are_compressed_and_read_in_order(tmp_path: Path) -> None:
    with Journal(tmp_path, "r", "emulated", part_bytes=100_000) as journal:
        for n in range(5000):
            journal.point("port", PORT, {"rx_bytes": n})
    names = [p.name for p in part_files(tmp_path)]
    assert len(names) > 2 and names[0] == "000.lp.gz" and names[-1].endswith(".lp")
    assert [p.fields["rx_bytes"] for p in read_points(tmp_path)] == list(range(5000))
    with Journal(tmp_path, "r", "emulated") as journal:
        journal.point("port", PORT, {"rx_bytes": 5000})
    assert [p.fields["rx_bytes"] for p in read_points(tmp_path)] == list(range(5001))


def test_a_part_caught_between_compressing_and_removing_counts_once(tmp_path: Path) -> None:
    with Journal(tmp_path, "r", "emulated") as journal:
        journal.point("port", PORT, {"rx_bytes": 1})
    (part,) = part_files(tmp_path)
    part.with_name("000.lp.gz").write_bytes(gzip.compress(part.read_bytes()))
    part.with_name("001.lp.tmp").write_bytes(b"half of a part being compressed")
    assert len(list(read_points(tmp_path))) == 1


def test_the_reader_picks_measurements_by_name(tmp_path: Path) -> None:
    with Journal(tmp_path, "r", "emulated") as journal:
        journal.point("port", PORT, {"rx_bytes": 1})
        journal.phase("switch", 1, 2)
    assert [p.measurement for p in read_points(tmp_path, ("phase",))] == ["phase"]


def test_every_event_told_before_a_kill_is_in_the_file(tmp_path: Path) -> None:
    program = """
import sys, pathlib
from orchestrator.telemetry import Journal
journal = Journal(pathlib.Path(sys.argv[1]), "r", "emulated")
n = 0
while True:
    journal.phase("switch", n, n + 5)
    n += 1
    print(n, flush=True)
"""
    writer = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert writer.stdout is not None
    notified = 0
    for line in writer.stdout:
        notified = int(line)
        if notified == 300:
            writer.send_signal(signal.SIGKILL)
    writer.stdout.close()
    writer.wait()
    assert len(list(read_points(tmp_path))) >= notified >= 300


def test_a_journal_may_be_closed_twice(tmp_path: Path) -> None:
    journal = Journal(tmp_path, "r", "emulated")
    journal.close()
    journal.close()


def test_no_tag_is_named_like_a_field_and_every_point_says_lab_and_run() -> None:
    for measurement in MEASUREMENTS.values():
        assert not set(measurement.tags) & set(measurement.fields), measurement.name
        assert measurement.tags[:2] == COMMON_TAGS


def test_no_tag_is_unbounded() -> None:
    unbounded = {"reconfig_id", "iter", "seq", "circuit", "error", "detail"}
    for measurement in MEASUREMENTS.values():
        assert not set(measurement.tags) & unbounded, measurement.name


def test_every_name_says_its_unit() -> None:
    suffixes = {
        "_ms": "ms",
        "_ns": "ns",
        "_bytes": "bytes",
        "_dbm": "dBm",
        "_db": "dB",
        "_gbps": "Gb/s",
        "_w": "W",
        "_c": "°C",
    }
    for measurement in MEASUREMENTS.values():
        for name, field in measurement.fields.items():
            assert field.what, f"{measurement.name}.{name}"
            for suffix, unit in suffixes.items():
                if name.endswith(suffix):
                    assert field.unit == unit, f"{measurement.name}.{name}"


def test_a_full_disk_stops_no_run_and_loses_no_point_when_there_is_room_again(
    tmp_path: Path,
) -> None:
    lines: list[str] = []
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    with Journal(tmp_path, "r", "lab") as journal:
        journal.notify = lines.append
        try:
            # the kernel's own refusal, in the middle of a line
            resource.setrlimit(resource.RLIMIT_FSIZE, (2000, before[1]))
            for n in range(100):
                journal.point("port", PORT, {"rx_bytes": n}, n)
                journal.flush()
            assert (tmp_path / "telemetry" / "000.lp").stat().st_size == 2000
            assert (
                "File too large" in journal.trouble
                and len(lines) == 1
                and "wait in memory" in lines[0]
            )
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        journal.flush()
        assert journal.trouble == "" and "nothing was lost" in lines[1]
    trouble: list[str] = []
    assert [p.fields["rx_bytes"] for p in read_points(tmp_path, trouble=trouble)] == list(
        range(100)
    ) and not trouble


def test_a_journal_that_cannot_be_begun_says_where_and_why_before_anything_is_changed(
    tmp_path: Path,
) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
        with pytest.raises(
            StoreFailed, match=r"cannot be created: .*telemetry: File too large"
        ) as caught:
            Journal(tmp_path, "r", "lab")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert "TESTBED_STATE_DIR" in caught.value.hint
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(StoreFailed, match="Not a directory"):
        Journal(tmp_path / "file", "r", "lab")


def test_a_disk_that_stays_full_is_told_with_how_many_points_it_cost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.telemetry.journal._MOST_WAITING", 1000)
    lines: list[str] = []
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        with Journal(tmp_path, "r", "lab") as journal:
            journal.notify = lines.append
            resource.setrlimit(resource.RLIMIT_FSIZE, (2000, before[1]))
            for n in range(100):
                journal.point("port", PORT, {"rx_bytes": n}, n)
                journal.flush()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    kept = [p.fields["rx_bytes"] for p in read_points(tmp_path)]
    assert kept == list(range(len(kept))) and 0 < len(kept) < 100
    assert (
        lines[-1].endswith(f"{100 - len(kept)} points of the journal are lost: File too large")
        and journal.trouble == lines[-1]
    )
