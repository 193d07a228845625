"""`testbed watch` and `testbed ui` as processes: lines, JSON, a terminal, Ctrl-C, and what they say
when something is wrong.
"""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import signal
import socket
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from optics.plain import printable
from orchestrator.cli import main
from orchestrator.cli.watchscreen import clock, curves
from orchestrator.views.web import listening
from orchestrator.views.web.access import Names
from tests.views.web.conftest import PLAN, LabWriter
from tests.views.web.test_training import scene

TESTBED = [sys.executable, "-m", "orchestrator.cli.main"]


@dataclass(frozen=True)
class Ended:
    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def ran(capsys: pytest.CaptureFixture[str]) -> Callable[..., Ended]:
    """A command in this very process."""

    def run(*argv: str) -> Ended:
        code = main.run(argv)
        return Ended(code, *capsys.readouterr())

    return run


def started(*argv: str, **more: object) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [*TESTBED, *argv], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **more
    )  # type: ignore[call-overload]
    assert isinstance(process, subprocess.Popen)
    return process


def lines_until(process: subprocess.Popen[str], wanted: Callable[[str], bool]) -> list[str]:
    assert process.stdout is not None
    found = []
    for line in process.stdout:
        found.append(line)
        if wanted(line):
            return found
    raise AssertionError(f"it ended before: {found}, {process.communicate()}")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_without_a_terminal_watch_prints_lines_and_an_interrupt_ends_it_with_0(
    lab_writer: LabWriter, number: int
) -> None:
    lab_writer.up()
    process = started("watch", "--passive")
    first = lines_until(process, lambda line: "circuits lit" in line)
    assert re.fullmatch(r"\d\d:\d\d:\d\d  48/48 circuits lit\n", first[-1]) and len(first) == 1
    run = lab_writer.run(plan="next\x1b[2J")
    lab_writer.move(run)
    found = "".join(lines_until(process, lambda line: "72 circuits moved" in line))
    assert "up next\\x1b[2J begins (ann)" in found and "stage      528 routes" in found
    assert "72 circuits moved: dark 64.0 ms, total 190.5 ms" in found
    process.send_signal(number)
    out, err = process.communicate(timeout=20)
    assert (process.returncode, err) == (0, "") and "Traceback" not in out


@pytest.mark.parametrize("argv", [(), ("--jsonl",), ("--json",)])
def test_watch_ends_when_nobody_reads_any_more_though_nothing_happens(
    lab_writer: LabWriter, argv: tuple[str, ...]
) -> None:
    lab_writer.up()
    process = started("watch", "--passive", *argv)
    assert process.stdout is not None and process.stderr is not None
    if "--json" not in argv:
        process.stdout.readline()
    process.stdout.close()
    try:
        assert process.wait(20) == 0
    finally:
        process.kill()
        process.wait()
        assert process.stderr.read() == ""
        process.stderr.close()


def test_jsonl_begins_with_the_picture_and_goes_on_with_events(lab_writer: LabWriter) -> None:
    lab_writer.up()
    process = started("watch", "--passive", "--jsonl", "--for", "60s")
    picture = json.loads(lines_until(process, lambda line: True)[0])
    assert picture["event"] == "picture" and len(picture["circuits"]) == 48
    journal = lab_writer.journal(lab_writer.run())
    journal.point("iteration", {"job": "ddp", "workload": "train"}, {"iter": 7, "iter_ms": 41.5})
    journal.flush()
    event = json.loads(lines_until(process, lambda line: '"iteration"' in line)[-1])
    assert (
        event["iter_ms"] == 41.5 and event["job"] == "ddp" and abs(event["at"] - time.time()) < 30
    )
    assert process.stdout is not None
    process.stdout.close()  # whoever read has seen enough
    journal.point("iteration", {"job": "ddp", "workload": "train"}, {"iter": 8, "iter_ms": 41.5})
    journal.flush()
    assert process.wait(20) == 0
    assert process.stderr is not None and process.stderr.read() == ""
    process.stderr.close()


def test_one_picture_tells_what_there_is_and_what_there_is_not(
    lab_writer: LabWriter,
    tmp_path: Path,
    ran: Callable[..., Ended],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    empty = ran("watch", "--once", "--passive")
    assert (
        empty.returncode == 0
        and "no plan is up: testbed up --topology PLAN" in empty.stdout
        and "no run yet" in empty.stdout
    )
    lab_writer.up()
    run = lab_writer.run(plan="next")
    lab_writer.move(run)
    run.finish("ok")
    shown = ran("watch", "--once", "--passive").stdout
    assert (
        re.search(r"gpu01 ● gpu02:p1", shown)
        and "the last change" in shown
        and "ocs1 switch" in shown
        and "\x1b" not in shown
    )
    with monkeypatch.context() as patched:
        patched.setenv("COLUMNS", "70")
        narrow = ran("watch", "--once", "--passive")
    assert max(map(len, narrow.stdout.splitlines())) <= 70 and "gpu12" in narrow.stdout
    svg = tmp_path / "watch.svg"
    assert ran("watch", "--once", "--passive", "--svg", str(svg)).returncode == 0
    assert "gpu12" in svg.read_text() and "@font-face" not in svg.read_text()
    data = json.loads(ran("watch", "--once", "--passive", "--json").stdout)["data"]
    assert data["run"]["plan"] == "next" and data["move"]["figures"]["dark_ms"] == 64.0


def test_of_a_lab_at_rest_the_curves_say_until_when_they_are(lab_writer: LabWriter) -> None:
    with lab_writer.watcher() as watcher:
        now = time.time() * 1e3
        for age in (60_000.0, 0.0):
            watcher.picture.iterations.set(now - age, 40.0)
            (curve,) = curves(watcher.picture, unicode=True)
            assert curve.plain.endswith(f"40 ms  at {clock(now - age)}" if age else "  40 ms"), (
                curve.plain
            )


@pytest.mark.parametrize(("encoding", "marks"), [("utf-8", "●▆▼"), ("ascii", "*v")])
def test_on_a_terminal_watch_paints_one_screen_that_fits_and_leaves_it_as_it_was(
    lab_writer: LabWriter, encoding: str, marks: str
) -> None:
    launch = lab_writer.up()
    with lab_writer.watcher() as watcher:
        scene(lab_writer, watcher, launch=launch)
    ours, theirs = pty.openpty()
    try:
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        environment = os.environ | {
            "TERM": "xterm-256color",
            "COLUMNS": "80",
            "LINES": "24",
            "PYTHONIOENCODING": encoding,
        }
        process = subprocess.Popen(
            [*TESTBED, "watch", "--passive"],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=environment,
        )
        os.close(theirs)
        shown = _read(ours, lambda text: "ocs4" in text and all(mark in text for mark in marks))
        assert shown.isascii() == (encoding == "ascii")
        assert (
            shown.startswith("\x1b[?1049h") and "gpu01" in shown and "48/48 circuits lit" in shown
        )
        frames = re.split(r"\x1b\[H", shown)
        plain = [re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", frame) for frame in frames]
        assert all(len(line.rstrip()) <= 80 for frame in plain for line in frame.splitlines())
        assert all(frame.count("\n") <= 24 for frame in plain)
        process.send_signal(signal.SIGINT)
        rest = _read(ours, lambda text: "\x1b[?1049l" in text)
        assert "\x1b[?25h" in rest, "the cursor is there again"
        assert process.wait(20) == 0
    finally:
        os.close(ours)


def _read(terminal: int, enough: Callable[[str], bool]) -> str:
    text, deadline = "", time.monotonic() + 30
    while not enough(text) and time.monotonic() < deadline:
        if select.select([terminal], [], [], 0.2)[0]:
            try:
                text += os.read(terminal, 65536).decode(errors="replace")
            except OSError:
                break
    assert enough(text), printable(text[-2000:])
    return text


def test_ui_prints_its_address_serves_and_ends_with_0(lab_writer: LabWriter) -> None:
    process = started("ui", "--port", "0", "--passive", "--safe-plan", str(PLAN))
    lines = lines_until(process, lambda line: "Ctrl-C" in line)
    url = re.search(r"http://127\.0\.0\.1:\d+/", lines[0])
    key = re.search(r"#key=([\w-]{43})$", lines[1].strip())
    assert url and key and "topoopt-12" in lines[1]
    picture = httpx.get(f"{url[0]}picture").json()
    assert (
        picture["safe"]["plan"] == "topoopt-12"
        and picture["safe"]["state"] == "ready"
        and key[1] not in json.dumps(picture)
    )
    entered = httpx.post(
        f"{url[0]}enter", json={"key": key[1]}, headers={"origin": url[0].rstrip("/")}
    )
    assert entered.status_code == 200
    assert "Key for another browser" in lines_until(process, lambda line: True)[0]
    with httpx.stream("GET", f"{url[0]}events") as answer:  # an open stream does not keep it
        next(answer.iter_lines())
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=20)
    assert (process.returncode, err) == (0, "") and out == "Ended\n"


def addresses() -> list[tuple[str, str | None]]:
    """What to listen on and what is printed for it; of IPv6 where this machine has it."""
    found: list[tuple[str, str | None]] = [
        ("127.0.0.1", "127.0.0.1"),
        ("0.0.0.0", "127.0.0.1"),
        ("localhost", None),
    ]
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return found
    return [*found, ("::1", "[::1]"), ("::", "[::1]")]


@pytest.mark.parametrize(("listen", "url"), addresses())
def test_the_address_that_is_printed_can_be_opened_here(listen: str, url: str | None) -> None:
    with listening.listener_on("ui", listen, 0) as listener:
        found, port = listening.url_of(listener, listen)
        assert found == f"http://{url}:{port}/" or url is None
        host = found.removeprefix("http://").rstrip("/")
        assert Names(listen, port).allow(host)
        socket.create_connection((host.rpartition(":")[0].strip("[]"), port), 5).close()


def test_the_safe_plan_may_stand_in_the_settings(
    lab_writer: LabWriter, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "testbed.toml").write_text(f'safe_plan = "{os.path.relpath(PLAN, tmp_path)}"\n')
    process = started(
        "ui",
        "--port",
        "0",
        "--passive",
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(PLAN.parents[1])},
    )
    assert "topoopt-12" in lines_until(process, lambda line: "#key=" in line)[-1]
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=20)
    assert process.returncode == 0


def test_what_is_wrong_with_a_page_is_said_before_it_is_served(
    lab_writer: LabWriter, tmp_path: Path, ran: Callable[..., Ended]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        refused = ran("ui", "--port", str(taken.getsockname()[1]), "--passive")
    assert (
        refused.returncode == 2
        and "cannot listen" in refused.stderr
        and "testbed ui --port 0" in refused.stderr
    )
    nowhere = ran("ui", "--listen", "192.0.2.7", "--passive")
    assert (
        nowhere.returncode == 2
        and "192.0.2.7" in nowhere.stderr
        and "another one" not in nowhere.stderr
    )
    (tmp_path / "bad.json").write_text(
        '{"schema": "testbed.plan/1", "name": "bad", "links": [{"a": "gpu99:p1", "b": "gpu01:p1"}]}'
    )
    bad = ran("ui", "--port", "0", "--passive", "--safe-plan", str(tmp_path / "bad.json"))
    assert bad.returncode == 3 and "gpu99" in bad.stderr
    for argv in (("--for", "soon"), ("--svg", "x.svg")):
        wrong = ran("watch", *argv)
        assert wrong.returncode == 2 and argv[0] in wrong.stderr
    no_lab = ran("watch", "--once", "--inventory", str(tmp_path / "none"))
    assert no_lab.returncode == 3 and "hosts.yml" in no_lab.stderr


def test_hosts_that_do_not_answer_are_told_and_the_rest_is_shown(
    lab_writer: LabWriter, ran: Callable[..., Ended]
) -> None:
    lab_writer.up()
    shown = ran("watch", "--once", "--for", "2s").stdout
    assert "48/48 circuits lit" in shown and re.search(
        r"! 12 of 12 hosts do not answer: gpu01", shown
    )
    (lab_writer.settings.inventory / "emulator.yml").write_text("hosts: true\n")
    assert (
        "! the emulated lab does not run: testbed lab start"
        in ran("watch", "--once", "--for", "2s").stdout
    )
