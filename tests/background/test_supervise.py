"""The parent that starts the scheduler again: whatever signal kills the worker, but not one that
ends by itself or was asked to.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

from orchestrator.services.schedule.process import SCHEDULER
from orchestrator.settings import load

ROOT = Path(__file__).resolve().parents[2]
HEAD = "import os, signal, sys, time\nfrom orchestrator.background.supervise import supervised\nsupervised()\n"
LIFE = "open('lives', 'a').write('x')\nlives = os.path.getsize('lives')\n"


def run(folder: Path, body: str) -> int:
    command = [
        sys.executable,
        "-c",
        f"import sys; sys.path.insert(0, {str(ROOT)!r})\n" + HEAD + LIFE + body,
    ]
    return subprocess.run(command, cwd=folder, timeout=60).returncode


def test_a_worker_that_is_killed_is_started_again_until_it_ends_by_itself(tmp_path: Path) -> None:
    assert run(tmp_path, "os.kill(os.getpid(), signal.SIGKILL) if lives < 3 else sys.exit(8)") == 8
    assert (tmp_path / "lives").read_text() == "xxx"


def test_one_that_is_killed_again_and_again_is_given_up(tmp_path: Path) -> None:
    assert run(tmp_path, "os.kill(os.getpid(), signal.SIGKILL)") == 137
    assert (tmp_path / "lives").read_text() == "x" * 6


def test_sigterm_is_passed_on_and_nothing_is_started_after_it(tmp_path: Path) -> None:
    body = (
        "signal.signal(signal.SIGTERM, lambda *_: os._exit(5))\nopen('ready', 'w')\ntime.sleep(60)"
    )
    command = [
        sys.executable,
        "-c",
        f"import sys; sys.path.insert(0, {str(ROOT)!r})\n" + HEAD + LIFE + body,
    ]
    process = subprocess.Popen(command, cwd=tmp_path)
    while not (tmp_path / "ready").exists():
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 5 and (tmp_path / "lives").read_text() == "x"


def test_one_that_is_about_to_be_started_again_is_known_and_stopped(tmp_path: Path) -> None:
    settings = load(
        env={f"TESTBED_{n}_DIR": str(tmp_path / n) for n in ("DATA", "STATE", "LOCK")}, cwd=tmp_path
    )
    body = f"""
from pathlib import Path
from orchestrator.background.kind import StateFile
from orchestrator.services.schedule.process import SCHEDULER, ScheduleState
from orchestrator.processes import process_mark
import socket
if lives > 1:
    open('again', 'w')
    time.sleep(60)
state = ScheduleState(os.getpid(), host=socket.gethostname(), state='changing', keeper=os.getppid(), mark=process_mark(os.getppid()))
with StateFile(SCHEDULER, Path({str(SCHEDULER.path(settings, "lab@ann"))!r}), state):
    os.kill(os.getpid(), signal.SIGKILL)
"""
    command = [
        sys.executable,
        "-c",
        f"import sys; sys.path.insert(0, {str(ROOT)!r})\n" + HEAD + LIFE + body,
    ]
    process = subprocess.Popen(command, cwd=tmp_path)
    try:
        while not (tmp_path / "again").exists():
            time.sleep(0.01)
        assert SCHEDULER.stop(settings, "lab@ann") is not None
        process.wait(30)
        assert (
            SCHEDULER.running(settings, "lab@ann") is None
            and (tmp_path / "lives").read_text() == "xx"
        )
    finally:
        process.kill()
