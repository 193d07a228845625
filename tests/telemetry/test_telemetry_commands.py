"""`testbed telemetry` and the service `sink` as they are typed: what they report, and that nothing
of them stays behind.
"""

from __future__ import annotations

import csv
import json
import os
import re
import signal
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from orchestrator.background import kind
from orchestrator.cli import main
from orchestrator.settings import load
from orchestrator.telemetry import influxd, retention, sink, tables
from orchestrator.telemetry.influx_api import InfluxTarget
from orchestrator.telemetry.process import SINK, server_dir
from tests.disk import room_for
from tests.kit.waiting import until
from tests.telemetry.conftest import fill, held
from tests.telemetry.servers import needed


@dataclass
class Typed:
    capsys: pytest.CaptureFixture[str]
    home: Path

    def __call__(self, *argv: str, code: int = 0) -> str:
        got = main.run(["service", *argv] if "sink" in argv else ["telemetry", *argv])
        result = self.capsys.readouterr()
        assert got == code, result
        return result.out + result.err

    def json(self, *argv: str, code: int = 0) -> dict[str, Any]:
        return dict(json.loads(self(*argv, "--json", code=code))["data"])

    @property
    def runs(self) -> Path:
        return self.home / "state" / "runs"


@pytest.fixture
def typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Typed]:
    for name in ("DATA", "STATE", "LOCK"):
        monkeypatch.setenv(f"TESTBED_{name}_DIR", str(tmp_path / name.lower()))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("TESTBED_INFLUX_URL", raising=False)
    monkeypatch.chdir(tmp_path)
    yield Typed(capsys, tmp_path)
    settings = load()
    for target in (InfluxTarget("", private=True),):
        SINK.end(sink.state_path(settings.state_dir, target))
    influxd.stop_influxd(server_dir(settings.state_dir))


def test_without_an_influxdb_everything_that_needs_none_works(typed: Typed) -> None:
    fill(typed.runs / "r", 3)
    assert "1 run," in typed("status") and "none configured" in typed("status")
    for word in ("start", "run", "stop"):
        assert "no InfluxDB is configured" in typed(word, "sink", code=2)
    assert "--to URL" in typed("replay", "r", code=2)
    assert typed.json("query", "r", "SELECT SUM(rx_bytes) AS n FROM port")["rows"] == [{"n": 3}]


def test_auto_starts_a_private_server_and_a_sink_that_copies_and_stop_ends_both(
    typed: Typed, monkeypatch: pytest.MonkeyPatch
) -> None:
    needed("influxd", "influxdb")
    monkeypatch.setenv("TESTBED_INFLUX_URL", "auto")
    assert "private, not started yet" in typed("status")
    fill(typed.runs / "r", 500)
    url = typed.json("start", "sink")["state"]["url"]
    target = InfluxTarget(url, private=True)
    give_up = time.monotonic() + 100
    while (reply := typed.json("status"))["sent"] < 500:
        assert time.monotonic() < give_up, reply
        time.sleep(0.2)
    assert held(target) == (500, sum(range(500)))
    assert (
        reply["version"][:3],
        reply["behind"],
        reply["refused"],
        reply["sink"],
        reply["live_url"],
    ) == ("1.6", 0, 0, True, url)
    again = typed.json("start", "sink")
    assert (again["started"], again["state"]["url"], again["state"]["points"]) == (False, url, 500)
    assert re.fullmatch(
        r"The sink service was stopped \(pid \d+\); the private InfluxDB was stopped\n",
        typed("stop", "sink"),
    )
    assert not influxd.running_influxd(server_dir(load().state_dir))


def test_a_sink_that_is_killed_is_started_again_and_what_it_meets_is_in_its_log(
    typed: Typed, target: InfluxTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TESTBED_INFLUX_URL", target.url)
    monkeypatch.setenv("TESTBED_INFLUX_DB", target.db)
    fill(typed.runs / "a", 20)
    first = typed.json("start", "sink", "--stay")["state"]
    path = sink.state_path(load().state_dir, target)

    def sent(points: int) -> bool:
        return (place := SINK.read(path)) is not None and place.alive and place.points == points

    try:
        until(lambda: sent(20), why="nothing was sent")
        os.kill(first["pid"], signal.SIGKILL)
        fill(typed.runs / "b", 5, first=20)
        until(lambda: sent(5), why="nobody goes on")
        assert held(target) == (25, sum(range(25)))
        (shown,) = typed.json("status", "sink")["services"]
        assert (shown["state"], shown["alive"]) == ("following", True) and shown["pid"] != first[
            "pid"
        ]
        assert [
            json.loads(line)["event"] for line in Path(shown["log"]).read_text().splitlines()
        ] == ["connected"] * 2
    finally:
        stopped = typed.json("stop", "sink")
    assert stopped["stopped"] and not typed.json("stop", "sink")["stopped"]


def test_stop_ends_what_belongs_to_its_own_setting_and_tells_of_the_rest(
    typed: Typed, monkeypatch: pytest.MonkeyPatch
) -> None:
    needed("influxd", "influxdb")
    folder = server_dir(load().state_dir)
    other = influxd.start_influxd(folder)
    for url in ("http://127.0.0.1:1", "none"):
        monkeypatch.setenv("TESTBED_INFLUX_URL", url)
        result = typed("stop", "sink", code=2 if url == "none" else 0)
        assert influxd.running_influxd(folder) == other
        assert (
            f"a private InfluxDB runs at {other.url}; to stop it: TESTBED_INFLUX_URL=auto testbed service stop sink"
            in result
        )
    monkeypatch.setenv("TESTBED_INFLUX_URL", "auto")
    assert (
        typed("stop", "sink") == "No sink service was running; the private InfluxDB was stopped\n"
    )
    assert influxd.running_influxd(folder) is None


def test_replay_sends_a_run_again_and_says_what_was_refused(
    typed: Typed, target: InfluxTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TESTBED_INFLUX_DB", target.db)
    fill(typed.runs / "2026-11-21-0001", 20)
    for _ in range(2):
        assert f"20 points of 1 run written to {target.url}" in typed(
            "replay", "2026-11-21-0001", "--to", target.url
        )
    assert typed.json("replay", "all", "--to", target.url)["points"] == 20
    assert held(target) == (20, sum(range(20)))
    with (typed.runs / "2026-11-21-0001" / "telemetry" / "000.lp").open("a") as journal:
        journal.write(f"port,host=h rx_bytes=1.5 {time.time_ns()}\n")
    result = typed("replay", "2026-11-21-0001", "--to", target.url, code=7)
    assert (
        "1 point refused, it stays in the journal only" in result
        and "field type conflict" in result
    )


def test_replay_to_a_server_that_is_not_there_names_it(typed: Typed) -> None:
    fill(typed.runs / "r", 1)
    result = typed("replay", "r", "--to", "http://127.0.0.1:1", "--timeout", "1s", code=5)
    assert "InfluxDB at http://127.0.0.1:1 does not answer: Connection refused" in result
    assert (
        "next: start it, or correct --to or telemetry.influx.url; the journals are complete without"
        in result
    )
    assert "--to: wanted none, auto or http" in typed("replay", "r", "--to", "localhost", code=2)
    assert "s3cret" not in typed("replay", "r", "--to", "http://me:s3cret@localhost:8086", code=2)
    assert "there is no run 'x'" in typed("replay", "x", "--to", "http://127.0.0.1:1", code=2)


def test_query_answers_in_sql_and_only_reads(typed: Typed) -> None:
    fill(typed.runs / "r", 100)
    result = typed(
        "query",
        "r",
        "SELECT host, COUNT(*) AS n, percentile(rx_bytes, 99) AS p99 FROM port GROUP BY host LIMIT 1",
    )
    assert result.split() == ["host", "n", "p99", "gpu0", "15", "98"]
    assert typed.json("query", "r", "SELECT median(rx_bytes) AS m FROM port")["rows"] == [
        {"m": 49.5}
    ]
    for text in (
        "DELETE FROM port",
        "ATTACH 'x.db' AS x",
        "PRAGMA table_info(port)",
        "SELECT nothing FROM port",
        "x",
        "SELECT 1; SELECT 2",
    ):
        assert "the SQL" in typed("query", "r", text, code=2)
    assert not (typed.home / "x.db").exists()


ENDLESS = "WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n+1 FROM t) SELECT count(*) FROM t"


@pytest.mark.timeout(60, method="thread")  # the command needs the timer of signals
def test_a_query_that_does_not_end_is_ended_by_the_timeout(typed: Typed) -> None:
    fill(typed.runs / "r", 1)
    result = typed("query", "r", ENDLESS, "--timeout", "0.2s", code=5)
    assert "E-TIMED-OUT telemetry query: not finished after 0.2 s" in result
    assert typed.json("query", "r", "SELECT count(*) AS n FROM port", "--timeout", "1m")[
        "rows"
    ] == [{"n": 1}]


def test_a_query_that_does_not_end_is_ended_by_ctrl_c(typed: Typed) -> None:
    fill(typed.runs / "r", 1)
    begun, before = threading.Event(), signal.signal(signal.SIGINT, signal.default_int_handler)

    def strike() -> None:
        begun.wait(20)
        os.kill(os.getpid(), signal.SIGINT)

    def seen(at: int) -> int:
        begun.set()
        return at

    thread = threading.Thread(target=strike)
    thread.start()
    try:
        with pytest.raises(KeyboardInterrupt), tables.open_tables([], []) as database:
            database.create_function("seen", 1, seen)
            tables.answer(database, ENDLESS.replace("n+1", "seen(n)+1"))
    finally:
        signal.signal(signal.SIGINT, before)
    thread.join()


def test_a_query_is_ended_when_ctrl_c_comes_while_its_thread_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun = threading.Event()

    class Struck(threading.Thread):
        def start(self) -> None:
            super().start()
            begun.wait()
            raise KeyboardInterrupt

    monkeypatch.setattr(tables, "Thread", Struck)
    with pytest.raises(KeyboardInterrupt), tables.open_tables([], []) as database:
        database.create_function("seen", 1, lambda at: begun.set() or at)
        tables.answer(database, ENDLESS.replace("n+1", "seen(n)+1"))


def test_a_database_is_closed_while_a_statement_still_runs() -> None:
    begun = threading.Event()
    with tables.open_tables([], []) as database:
        database.create_function("seen", 1, lambda at: begun.set() or at)

        def endless() -> None:
            # which of them depends on where it is interrupted
            with suppress(sqlite3.Error, MemoryError):
                database.execute(ENDLESS.replace("n+1", "seen(n)+1")).fetchall()

        thread = threading.Thread(target=endless, daemon=True)
        thread.start()
        begun.wait()
    thread.join()


def test_a_torn_journal_is_read_as_far_as_it_is_whole(typed: Typed) -> None:
    fill(typed.runs / "r", 10)
    part = typed.runs / "r" / "telemetry" / "000.lp"
    os.truncate(part, part.stat().st_size - 5)
    result = typed("query", "r", "SELECT COUNT(*) FROM port")
    assert "9" in result.split() and "not read: 000.lp:10: torn last line" in result


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_export_writes_a_file_per_measurement_with_every_value(typed: Typed, kind: str) -> None:
    fill(typed.runs / "r", 50)
    made = typed.json("export", "r", "--out", "out", "--format", kind)["files"]
    assert made == {f"out/port.{kind}": 50}
    assert [p.name for p in Path("out").iterdir()] == [f"port.{kind}"]
    if kind == "csv":
        with Path("out/port.csv").open(newline="") as file:
            rows = [
                (row["run"], row["host"], int(row["rx_bytes"]), row["drops"])
                for row in csv.DictReader(file)
            ]
    else:
        import duckdb

        with duckdb.connect() as database:
            rows = database.execute(
                "SELECT run, host, rx_bytes, drops FROM 'out/port.parquet' ORDER BY rx_bytes"
            ).fetchall()
    assert [row[:3] for row in rows] == [("r", f"gpu{n % 7}", n) for n in range(50)]
    assert {row[3] for row in rows} == {"" if kind == "csv" else None}


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_a_disk_that_fills_leaves_the_old_export_whole(
    typed: Typed, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    fill(typed.runs / "r", 3000)
    typed("export", "r", "--out", "out", "--format", kind)
    (file,) = Path("out").iterdir()
    before, write, size = file.read_bytes(), tables.export_tables, [0]

    def cramped(*args: Any) -> dict[Path, int]:
        with room_for(size[0]):
            return write(*args)

    monkeypatch.setattr(tables, "export_tables", cramped)
    for size[0] in (100, len(before) - 1):
        result = typed("export", "r", "--out", "out", "--format", kind, code=2)
        assert (
            "choose another --out" in result
            and file.read_bytes() == before
            and list(Path("out").iterdir()) == [file]
        )


def test_a_disk_that_fills_under_parquet_leaves_nothing_torn(
    typed: Typed, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(typed.runs / "r", 50)
    convert = tables._parquet()

    def cramped(*args: Any) -> None:
        with room_for(50):
            convert(*args)

    monkeypatch.setattr(tables, "_parquet", lambda: cramped)
    result = typed("export", "r", "--out", "out", "--format", "parquet", code=2)
    assert (
        "choose another --out" in result
        and "File too large" in result
        and list(Path("out").iterdir()) == []
    )


def test_export_says_where_it_cannot_write(typed: Typed) -> None:
    fill(typed.runs / "r", 1)
    Path("taken").write_text("a file")
    assert "taken" in typed("export", "r", "--out", "taken", code=2)


def test_prune_removes_only_what_is_old_and_in_influxdb(
    typed: Typed, target: InfluxTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    for run, days in (("a", 100), ("b", 100), ("c", 1)):
        fill(typed.runs / run, 10)
        then = time.time() - days * 86400
        os.utime(typed.runs / run / "telemetry" / "000.lp", (then, then))
    monkeypatch.setenv("TESTBED_INFLUX_URL", target.url)
    monkeypatch.setenv("TESTBED_INFLUX_DB", target.db)
    result = typed("prune", "--older", "90d", "--yes")
    assert (
        "a  kept" in result
        and "not in InfluxDB yet" in result
        and (typed.runs / "a" / "telemetry").exists()
    )
    sink.Sink(InfluxTarget(target.url, target.db), typed.home / "state", idle_s=0.0).run()
    assert "Would remove 2 journals, a to b" in typed("prune", "--older", "90d", "--dry-run")
    assert "asks for confirmation" in typed("prune", "--older", "90d", code=2)
    assert "Removed 2 journals, a to b" in typed("prune", "--older", "90d", "--yes")
    assert [p.name for p in sorted(typed.runs.iterdir()) if (p / "telemetry").exists()] == ["c"]
    assert "No journal older" in typed("prune", "--older", "90d", "--yes")
    assert "--older: 'soon'" in typed("prune", "--older", "soon", code=2)


def test_a_run_that_still_runs_is_never_pruned(tmp_path: Path) -> None:
    fill(tmp_path / "r", 1)
    (kept,) = retention.old(tmp_path, 1e-9, {"r"}, None)
    assert kept.why and retention.prune([kept]) == 0 and (tmp_path / "r" / "telemetry").exists()


def test_commands_start_the_sink_only_where_one_is_wanted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TESTBED_STATE_DIR", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    started: list[tuple[str, ...]] = []

    class Process:
        pid, returncode = 0, None

    def spawn(_: object, argv: list[str], *__: object, **___: object) -> Process:
        started.append(tuple(argv))
        return Process()

    monkeypatch.setattr(kind, "spawn", spawn)
    monkeypatch.delenv("TESTBED_INFLUX_URL", raising=False)
    sink.ensure(load())
    assert not started
    monkeypatch.setenv("TESTBED_INFLUX_URL", "auto")
    monkeypatch.setattr(influxd, "program", lambda: None)
    sink.ensure(load())
    assert not started  # not installed: the journal is enough
    monkeypatch.setenv("TESTBED_INFLUX_URL", "http://127.0.0.1:1")
    sink.ensure(load())
    (argv,) = started
    assert argv[:3] == ("service", "run", "sink") and argv[-1] == "--kept"
