"""Ctrl-C, a pipe that closes, a terminal: the command line as a process."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest

# An engine that waits, and says what it does when it is asked to stop.
WAITING = """
import asyncio, sys
from types import SimpleNamespace
async def status(command):
    print("working", file=sys.stderr, flush=True)
    try:
        await asyncio.sleep(30)
    except asyncio.CancelledError:
        print("taking back the step in hand", file=sys.stderr, flush=True)
        raise
sys.modules["orchestrator.verbs.change"] = SimpleNamespace(status=status)
from orchestrator.cli.main import main
main()
"""


def environment(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "lab").mkdir()
    places = {f"TESTBED_{n}_DIR": str(tmp_path / n) for n in ("DATA", "STATE", "LOCK")}
    return os.environ | places | {"TESTBED_INVENTORY": str(tmp_path / "lab"), "TERM": "xterm"}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_lets_the_engine_take_back_and_ends_with_130(
    tmp_path: Path, number: int
) -> None:
    command = [sys.executable, "-c", WAITING, "status", "--json"]
    process = subprocess.Popen(
        command,
        env=environment(tmp_path),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    assert process.stderr.readline() == "working\n"
    process.send_signal(number)
    out, err = process.communicate(timeout=10)
    assert process.returncode == 130 and err == "taking back the step in hand\n"
    assert '"code": "E-INTERRUPTED"' in out


def test_the_deadline_is_kept_from_outside_too(tmp_path: Path) -> None:
    program = "import orchestrator.cli.call as c; c.GRACE_S = 0.1\n" + WAITING
    command = [sys.executable, "-c", program, "status", "--timeout", "100ms"]
    ended = subprocess.run(
        command, env=environment(tmp_path), capture_output=True, text=True, timeout=10, check=False
    )
    assert ended.returncode == 5 and "E-TIMED-OUT status: not finished after 0 s" in ended.stderr


def test_a_reader_that_has_seen_enough_causes_no_traceback(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "orchestrator.cli.main", "--help"],
        env=environment(tmp_path),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    err = process.stderr.read()
    process.stderr.close()
    process.wait(timeout=10)
    assert "Traceback" not in err


def on_a_terminal(tmp_path: Path, *argv: str, typed: str = "", **extra: str) -> str:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "orchestrator.cli.main", *argv],
        env=environment(tmp_path) | extra,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    if typed:
        os.write(ours, typed.encode())
    shown = b""
    while True:
        try:
            piece = os.read(ours, 4096)
        except OSError:  # EIO: the other side is closed
            break
        if not piece:
            break
        shown += piece
    os.close(ours)
    return f"{shown.decode()}exit {process.wait(timeout=10)}"


def test_on_a_terminal_down_asks_and_no_means_no(tmp_path: Path) -> None:
    shown = on_a_terminal(tmp_path, "down", typed="n\n")
    assert "Stop the job and take down your circuits on lab? [y/N]" in shown and shown.endswith(
        "exit 130"
    )


def test_a_terminal_gets_colours_unless_no_color_is_set(tmp_path: Path) -> None:
    first, second, third = (tmp_path / n for n in "abc")
    for folder in (first, second, third):
        folder.mkdir()
    assert "\033[3" in on_a_terminal(first, "doctor")
    assert "\033[3" not in on_a_terminal(second, "doctor", NO_COLOR="1")
    assert "\033[3" not in on_a_terminal(third, "doctor", "--no-color")
