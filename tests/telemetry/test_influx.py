"""The sink on a real InfluxDB 1.6.7: everything arrives, once, whatever dies meanwhile; and what
other servers are asked.
"""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from optics.errors import Locked
from orchestrator.telemetry import Journal, influxd, sink, tail
from orchestrator.telemetry.influx import Influx
from orchestrator.telemetry.influx_api import Denied, InfluxTarget, Later, Written
from orchestrator.telemetry.process import SINK
from orchestrator.telemetry.reader import Recorded
from orchestrator.telemetry.sink import Sink
from orchestrator.telemetry.tables import query
from orchestrator.telemetry.tail import JournalTail, Mark
from tests.kit.waiting import until
from tests.telemetry.conftest import fill, held
from tests.telemetry.servers import black_hole, influx, stub, victoria

pytestmark = pytest.mark.filterwarnings("error")


def drained(target: InfluxTarget, state: Path) -> Sink:
    """Send what there is and end."""
    copier = Sink(target, state, idle_s=0.0)
    copier.run()
    return copier


# --- everything arrives


def test_what_is_in_the_journals_is_in_influxdb_afterwards(
    tmp_path: Path, target: InfluxTarget
) -> None:
    for run, points in (("2026-11-21-0001", 12_000), ("2026-11-21-0002", 7)):
        fill(tmp_path / "runs" / run, points)
    copier = drained(target, tmp_path)
    assert held(target) == (12_007, sum(range(12_000)) + sum(range(7)))
    assert (copier.state.points, copier.state.refused, copier.state.trouble) == (12_007, 0, "")
    assert copier.state.version.startswith("1.6") and copier.state.api == "v1"


def test_times_types_and_words_come_back_to_the_nanosecond(
    tmp_path: Path, target: InfluxTarget
) -> None:
    with Journal(tmp_path / "runs" / "r", "r", "la b,=") as journal:
        at = journal.now_ns()
        journal.phase("switch", at, at + 12_345, detail='a "b" \\ c, ö')
    drained(target, tmp_path)
    ((series,),) = [
        Influx(target).query("SELECT detail, duration_ns, duration_ms FROM phase GROUP BY *")
    ]
    assert series["tags"]["testbed"] == "la b,="
    assert series["values"] == [[at + journal.anchor_ns, 'a "b" \\ c, ö', 12345, 0.012345]]


def test_percentiles_of_the_server_are_those_of_the_journal(
    tmp_path: Path, target: InfluxTarget
) -> None:
    with Journal(tmp_path / "runs" / "r", "r", "lab") as journal:
        tags = {"job": "j", "trigger": "up", "policy": "p", "ok": "1"}
        for n in range(37):
            journal.point("reconfig", tags, {"dark_ms": (n * 7919) % 101 / 3, "value": 1})
    drained(target, tmp_path)
    for share in (1, 50, 90, 99, 100):
        (series,) = Influx(target).query(f"SELECT PERCENTILE(dark_ms, {share}) FROM reconfig") or [
            {"values": [[0, None]]}
        ]
        _, ((ours,),) = query(
            [Recorded(tmp_path / "runs" / "r")],
            f"SELECT percentile(dark_ms, {share}) FROM reconfig",
        )
        assert series["values"][0][1] == ours


def test_a_second_round_sends_only_what_is_new(tmp_path: Path, target: InfluxTarget) -> None:
    run = tmp_path / "runs" / "r"
    fill(run, 100)
    assert drained(target, tmp_path).state.points == 100
    assert drained(target, tmp_path).state.points == 0
    fill(run, 50, first=100)
    assert drained(target, tmp_path).state.points == 50
    assert held(target) == (150, sum(range(150)))


def test_parts_that_are_closed_and_compressed_meanwhile_are_sent_once(
    tmp_path: Path, target: InfluxTarget
) -> None:
    run = tmp_path / "runs" / "r"
    fill(run, 3000, part_bytes=20_000)
    assert len(list((run / "telemetry").glob("*.lp.gz"))) >= 3
    drained(target, tmp_path)
    fill(run, 3000, first=3000, part_bytes=20_000)
    drained(target, tmp_path)
    assert held(target) == (6000, sum(range(6000)))


def test_the_database_is_made_with_its_retention(tmp_path: Path, target: InfluxTarget) -> None:
    kept = replace(target, retention_s=7200.0)
    fill(tmp_path / "runs" / "r", 3)
    drained(kept, tmp_path)
    (series,) = Influx(kept).query(f'SHOW RETENTION POLICIES ON "{kept.db}"')
    assert [row[:2] for row in series["values"]] == [["autogen", "2h0m0s"]]
    named = replace(target, db=f"{target.db}/week", retention_s=604800.0)
    drained(named, tmp_path)
    (series,) = Influx(named).query(f'SHOW RETENTION POLICIES ON "{target.db}"')
    assert ["week", "168h0m0s"] in [row[:2] for row in series["values"]]
    (series,) = Influx(named).query('SELECT COUNT(rx_bytes) FROM "week".port')
    assert series["values"][0][1] == 3


def test_compressed_requests_arrive_as_well(tmp_path: Path, target: InfluxTarget) -> None:
    fill(tmp_path / "runs" / "r", 6000)
    drained(replace(target, gzip=True), tmp_path)
    assert held(target) == (6000, sum(range(6000)))


# --- what dies meanwhile


def test_a_server_that_is_killed_and_comes_back_misses_nothing_and_has_nothing_twice(
    tmp_path: Path,
) -> None:
    folder, run = tmp_path / "influx", tmp_path / "runs" / "r"
    with influx(folder) as server:
        copier = Sink(InfluxTarget(server.url, "db"), tmp_path, idle_s=float("inf"))
        thread = threading.Thread(target=copier.run)
        thread.start()
        try:
            with Journal(run, "r", "lab") as journal:
                for n in range(20_000):
                    journal.point(
                        "port", {"host": "h", "port": "p1", "layer": "nic"}, {"rx_bytes": n}
                    )
                    if n == 6000:
                        until(lambda: copier.state.points > 0, why="nothing went out")
                        os.kill(server.pid, signal.SIGKILL)
                        until(
                            lambda: influxd.running_influxd(folder) is None,
                            why="the server does not die",
                        )
                    if n == 15_000:
                        journal.flush()
                        until(
                            lambda: "does not answer" in copier.state.trouble, why="nobody noticed"
                        )
                        assert influxd.start_influxd(folder, port=server.port).port == server.port
            until(lambda: copier.state.points >= 20_000, why="not everything went out")
        finally:
            copier.stopping.set()
            thread.join()
        assert copier.state.trouble == "" and held(InfluxTarget(server.url, "db")) == (
            20_000,
            sum(range(20_000)),
        )


def test_a_sink_that_is_killed_is_followed_by_one_that_goes_on(
    tmp_path: Path, target: InfluxTarget
) -> None:
    fill(tmp_path / "runs" / "r", 60_000)
    program = f"""
from pathlib import Path
from orchestrator.telemetry.sink import InfluxTarget, Sink
Sink(InfluxTarget({target.url!r}, {target.db!r}), Path({str(tmp_path)!r})).run()
"""
    command = [sys.executable, "-c", program]
    run = tmp_path / "runs" / "r"
    size = (run / "telemetry" / "000.lp").stat().st_size

    def noted() -> int:
        return tail.stored_mark(run, target.key, target.name).offset

    for _ in range(3):
        with subprocess.Popen(command) as process:
            try:
                before = noted()
                until(
                    lambda least=before: noted() > least or noted() == size, why="it does not go on"
                )
            finally:
                process.kill()
    # as if it had died between the write and the note
    tail.store_mark(
        run, target.key, replace(tail.stored_mark(run, target.key, target.name), offset=0)
    )
    drained(target, tmp_path)
    assert held(target) == (60_000, sum(range(60_000)))


def test_two_sinks_never_write_to_one_server(tmp_path: Path, target: InfluxTarget) -> None:
    first = Sink(target, tmp_path, idle_s=float("inf"))
    thread = threading.Thread(target=first.run)
    thread.start()
    try:
        until(lambda: sink.sink_status(tmp_path, target).alive, why="it does not hold its lock")
        with pytest.raises(Locked, match="another sink service"):
            Sink(target, tmp_path).run()
    finally:
        first.stopping.set()
        thread.join()
    assert not sink.sink_status(tmp_path, target).alive


def test_a_torn_last_line_is_not_sent_until_it_is_whole(
    tmp_path: Path, target: InfluxTarget
) -> None:
    run = tmp_path / "runs" / "r"
    fill(run, 10)
    part = run / "telemetry" / "000.lp"
    whole = part.read_bytes()
    last = whole.splitlines(keepends=True)[-1]
    part.write_bytes(whole[: -len(last)] + last[:-4])  # with half a timestamp it would be taken
    assert drained(target, tmp_path).state.points == 9
    fill(run, 5, first=9)  # opening it again cuts the torn line off
    drained(target, tmp_path)
    assert held(target) == (14, sum(range(14)))


def test_a_black_holed_server_holds_up_neither_the_journal_nor_the_end_of_the_sink(
    tmp_path: Path,
) -> None:
    with black_hole() as url:
        copier = Sink(InfluxTarget(url), tmp_path, idle_s=0.0)
        thread = threading.Thread(target=copier.run, daemon=True)
        thread.start()
        fill(tmp_path / "runs" / "r", 10_000)
        assert copier.state.points == 0
        copier.stopping.set()
    thread.join(60.0)
    assert not thread.is_alive() and copier.state.points == 0


def test_a_sink_that_has_just_begun_to_wait_for_a_silent_server_can_be_stopped(
    tmp_path: Path,
) -> None:
    fill(tmp_path / "runs" / "r", 10)
    with black_hole() as url:
        target = InfluxTarget(url)
        program = f"""
import time
from orchestrator.settings import load
from orchestrator.telemetry import influx, sink
from orchestrator.telemetry.process import SinkOptions
begun = influx.Influx.ping
influx.Influx.ping = lambda self: (time.sleep(0.3), begun(self))
settings = load(env={{"TESTBED_STATE_DIR": {str(tmp_path)!r}, "TESTBED_INFLUX_URL": {url!r}}})
sink.run_sink(settings, notify=lambda _: None, options=SinkOptions())
"""
        with subprocess.Popen([sys.executable, "-c", program]) as process:
            until(lambda: sink.sink_status(tmp_path, target).alive, why="it does not hold its lock")
            assert SINK.end(sink.state_path(tmp_path, target)) is not None
            assert process.wait(30) == 0
    state = sink.sink_status(tmp_path, target)
    assert not state.alive and "told to stop" not in state.trouble


# --- what a server will not have


def test_a_point_of_another_type_is_refused_by_name_and_all_others_arrive(
    tmp_path: Path, target: InfluxTarget
) -> None:
    at = time.time_ns()
    assert Influx(target).write(f"port,host=x rx_bytes=1.5 {at}\n".encode()) == Written()
    fill(tmp_path / "runs" / "r", 4)
    with Journal(tmp_path / "runs" / "r", "r", "lab") as journal:
        journal.phase("switch", journal.now_ns(), journal.now_ns() + 1)
    copier = drained(target, tmp_path)
    assert (
        copier.state.refused == 4
        and "field type conflict" in copier.state.refusal
        and '"rx_bytes"' in copier.state.refusal
    )
    assert Influx(target).query("SELECT COUNT(duration_ns) FROM phase")[0]["values"][0][1] == 1
    mark = tail.stored_mark(tmp_path / "runs" / "r", target.key, target.name)
    assert (mark.points, mark.refused) == (5, 4) and "type float" in mark.message
    assert drained(target, tmp_path).state.points == 0  # it is not tried for ever


def test_lines_the_server_cannot_read_cost_only_themselves(
    tmp_path: Path, target: InfluxTarget
) -> None:
    lines = [f"port,host=h rx_bytes={n}i {1795 * 10**15 + n}\n".encode() for n in range(100)]
    lines[41] = b"rbage\n"
    written = Influx(target).write(b"".join(lines))
    assert written.refused == 1 and "unable to parse" in written.message
    assert held(target) == (99, sum(range(100)) - 41)


def test_a_wrong_token_is_said_at_once_and_costs_nothing(tmp_path: Path) -> None:
    with influx(tmp_path / "influx", auth=True) as server:
        admin = Influx(InfluxTarget(server.url))
        admin.ask("POST", "/query?q=CREATE+USER+ann+WITH+PASSWORD+%27right%27+WITH+ALL+PRIVILEGES")
        fill(tmp_path / "runs" / "r", 5)
        for token in ("", "ann:wrong", "some-token-of-v2"):
            with pytest.raises(Denied, match="refuses") as caught:
                drained(InfluxTarget(server.url, token=token), tmp_path)
            assert "TESTBED_INFLUX_TOKEN" in caught.value.hint and "wrong" not in str(caught.value)
        assert "refuses" in sink.sink_status(tmp_path, InfluxTarget(server.url)).trouble
        right = InfluxTarget(server.url, token="ann:right")
        drained(right, tmp_path)
        assert held(right) == (5, 10)
    assert "right" not in repr(right)


@pytest.mark.parametrize(
    ("status", "body", "text"),
    [
        (500, b'{"error":"write failed: no space left on device"}', "no space left on device"),
        (503, b"", "answers 503"),
        (429, b'{"message":"too many"}', "too many"),
        (408, b"timeout", "timeout"),
    ],
)
def test_a_server_in_trouble_is_tried_again_until_it_takes_the_points(
    tmp_path: Path, status: int, body: bytes, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sink, "BACKOFF_S", (0.01, 0.02))
    lines: list[str] = []
    monkeypatch.setattr(
        Sink, "_emit", lambda self, **news: lines.append(str(news.get("trouble", "")))
    )
    fill(tmp_path / "runs" / "r", 5)
    answers = [(status, {"Retry-After": "0"}, body)] * 2 + [(204, {}, b"")]
    with stub(**{"POST /api/v2/write": answers}) as server:
        drained(InfluxTarget(server.url), tmp_path)
        assert len(server.of("/api/v2/write")) == 3
        assert {request.body for request in server.of("/api/v2/write")} == {
            (tmp_path / "runs/r/telemetry/000.lp").read_bytes()
        }
    assert sum(text in line for line in lines) == 2


def test_something_that_is_no_influxdb_is_named(tmp_path: Path) -> None:
    fill(tmp_path / "runs" / "r", 1)
    with (
        stub(**{"GET /ping": [(404, {}, b"nothing here")]}) as server,
        pytest.raises(Denied, match="answers 404 to /ping: nothing"),
    ):
        drained(InfluxTarget(server.url), tmp_path)
    moved = {"POST /api/v2/write": [(301, {"Location": "/elsewhere"}, b"")]}
    with stub(**moved) as server, pytest.raises(Denied, match="301"):
        drained(InfluxTarget(server.url), tmp_path)


def test_a_silent_server_is_given_up_and_the_next_sink_sends_everything(
    tmp_path: Path, target: InfluxTarget
) -> None:
    fill(tmp_path / "runs" / "r", 5)
    with pytest.raises(Later, match="Connection refused"):
        Sink(replace(target, url="http://127.0.0.1:1"), tmp_path, give_up_s=0.0).run()
    drained(target, tmp_path)
    assert held(target) == (5, 10)


def test_a_full_disk_where_the_notes_are_costs_a_repetition_and_no_point(
    tmp_path: Path, target: InfluxTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    fill(tmp_path / "runs" / "r", 5)
    with monkeypatch.context() as patch:
        patch.setattr(tail, "store_mark", full)
        assert drained(target, tmp_path).state.points == 5
    assert drained(target, tmp_path).state.points == 5  # again, onto themselves
    assert held(target) == (5, 10)


# --- the other API


def test_the_request_of_the_v2_api_is_as_its_contract_says(tmp_path: Path) -> None:
    with stub(**{"POST /api/v2/write": [(204, {}, b"")]}) as server:
        fill(tmp_path / "runs" / "r", 3)
        drained(InfluxTarget(server.url, "lab", "acme", token="s3cret", gzip=True), tmp_path)
        (request,) = server.of("/api/v2/write")
    assert request.query == {"org": "acme", "bucket": "lab", "precision": "ns"}
    assert (
        request.headers["authorization"] == "Token s3cret"
        and request.headers["content-encoding"] == "gzip"
    )
    assert request.headers["content-type"].startswith("text/plain")
    assert gzip.decompress(request.body) == (tmp_path / "runs/r/telemetry/000.lp").read_bytes()


@pytest.mark.parametrize(
    ("version", "api"),
    [
        ("1.6.7~rc0", "v1"),
        ("1.7.10", "v1"),
        ("1.8.10", "v2"),
        ("1.11.7", "v2"),
        ("v2.7.1", "v2"),
        ("3.1.0", "v2"),
        ("", "v2"),
    ],
)
def test_the_api_follows_the_version(version: str, api: str) -> None:
    with stub(version) as server:
        seen = Influx(InfluxTarget(server.url))
        assert seen.ping() == version and seen.api == api
        forced = Influx(InfluxTarget(server.url, api="v1"))
        forced.ping()
        assert forced.api == "v1"


def test_a_bucket_that_is_missing_is_made_and_what_forbids_it_is_said(tmp_path: Path) -> None:
    fill(tmp_path / "runs" / "r", 3)
    missing, fine = (
        (404, {}, b'{"code":"not found","message":"bucket \\"lab\\" not found"}'),
        (204, {}, b""),
    )
    kind = {"Content-Type": "application/json"}
    orgs = (200, kind, b'{"orgs":[{"id":"0a","name":"acme"}]}')
    made = (201, kind, b'{"id":"0b","name":"lab","orgID":"0a","retentionRules":[]}')
    answers = {
        "POST /api/v2/write": [missing, fine],
        "GET /api/v2/orgs": [orgs],
        "POST /api/v2/buckets": [made],
    }
    with stub(**answers) as server:
        drained(InfluxTarget(server.url, "lab", "acme", retention_s=86400.0), tmp_path)
        (request,) = server.of("/api/v2/buckets")
    asked = json.loads(request.body)
    assert (asked["name"], asked["orgID"], asked["retentionRules"][0]["everySeconds"]) == (
        "lab",
        "0a",
        86400,
    )
    fill(tmp_path / "runs" / "r", 1)
    with stub(**{"POST /api/v2/write": [missing]}) as server:
        with pytest.raises(
            Denied,
            match=r"no bucket 'lab', and it cannot be created: telemetry\.influx\.org is not set",
        ):
            drained(InfluxTarget(server.url, "lab"), tmp_path)
        answered = {
            "GET /api/v2/orgs": [orgs],
            "POST /api/v2/buckets": [(403, kind, b'{"message":"no right to"}')],
        }
        server.answers |= answered
        with pytest.raises(Denied, match="it cannot be created: no right to"):
            drained(InfluxTarget(server.url, "lab", "acme"), tmp_path)


def test_victoriametrics_takes_the_points_through_the_v2_api(tmp_path: Path) -> None:
    (tmp_path / "vm").mkdir()
    with victoria(tmp_path / "vm") as url:
        fill(tmp_path / "runs" / "r", 200)
        target = InfluxTarget(url)
        copier = drained(target, tmp_path)
        assert copier.state.api == "v2" and copier.state.points == 200 and copier.state.refused == 0

        def exported() -> list[float]:
            _, _, body = Influx(target).ask("GET", "/api/v1/export?match[]=port_rx_bytes")
            return sorted(
                value for line in body.splitlines() for value in json.loads(line)["values"]
            )

        until(lambda: len(exported()) == 200, why="the points do not appear")
        assert exported() == list(range(200))


# --- following a file


def test_a_tail_gives_whole_lines_in_bounded_batches_whatever_the_pieces(tmp_path: Path) -> None:
    part = tmp_path / "telemetry" / "000.lp"
    part.parent.mkdir()
    follower, seen = JournalTail(tmp_path, Mark()), b""
    text = b"".join(b"m v=%di %d\n" % (n, n) for n in range(1000))
    with part.open("ab", buffering=0) as file:
        for at in range(0, len(text), 997):
            file.write(text[at : at + 997])
            while data := follower.take(100):
                assert data.endswith(b"\n") and data.count(b"\n") <= 100
                follower.taken(data, data.count(b"\n"))
                seen += data
    assert seen == text and follower.mark.points == 1000 and follower.behind() == 0


def test_a_line_longer_than_a_piece_is_taken_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tail, "_PIECE", 64)
    (tmp_path / "telemetry").mkdir()
    text = b"m a=" + b"x" * 1000 + b" 1\nm b=1 2\n"
    for name, write in (
        ("000.lp", Path.write_bytes),
        ("000.lp.gz", lambda p, t: p.write_bytes(gzip.compress(t))),
    ):
        (tmp_path / "telemetry" / name).unlink(missing_ok=True)
        write(tmp_path / "telemetry" / name, text)
        follower, seen = JournalTail(tmp_path, Mark()), b""
        while data := follower.take():
            follower.taken(data, 1)
            seen += data
        follower.close()
        assert seen == text
        (tmp_path / "telemetry" / name).unlink()


# --- the private server


def test_a_private_server_is_started_once_found_again_and_keeps_its_port_and_data(
    tmp_path: Path,
) -> None:
    with influx(tmp_path) as server:
        assert influxd.start_influxd(tmp_path) == server == influxd.running_influxd(tmp_path)
        Influx(InfluxTarget(server.url)).write(b"m v=1i 1795000000000000000\n")
        assert (
            influxd.stop_influxd(tmp_path)
            and influxd.running_influxd(tmp_path) is None
            and not influxd.stop_influxd(tmp_path)
        )
        again = influxd.start_influxd(tmp_path)
        assert again.port == server.port and again.pid != server.pid
        assert Influx(InfluxTarget(again.url)).query("SELECT v FROM m")[0]["values"][0][1] == 1


def test_a_private_server_whose_port_is_taken_finds_another(tmp_path: Path) -> None:
    with influx(tmp_path / "a") as first, influx(tmp_path / "b") as second:
        influxd.stop_influxd(tmp_path / "b")
        note = tmp_path / "b" / "influxd.json"
        note.write_text(note.read_text().replace(str(second.port), str(first.port)))
        assert influxd.start_influxd(tmp_path / "b").port not in (first.port, 0)


def test_a_private_server_that_cannot_start_says_why(tmp_path: Path) -> None:
    with influx(tmp_path):
        influxd.stop_influxd(tmp_path)
        (tmp_path / "meta" / "meta.db").write_bytes(b"spoilt")
        with pytest.raises(Exception, match="influxd exited immediately"):
            influxd.start_influxd(tmp_path)
