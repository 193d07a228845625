"""The lab lock: one writer, named, gone with its process."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from optics import Locked
from orchestrator.lablock import LabLock, holder, process_mark

HOLD = """
import sys, pathlib, time
from orchestrator.lablock import LabLock
with LabLock(pathlib.Path(sys.argv[1]), user="ann", reason="up ring-12"):
    print("held", flush=True)
    time.sleep(60)
"""


def hold(path: Path) -> subprocess.Popen[str]:
    other = subprocess.Popen([sys.executable, "-c", HOLD, str(path)], stdout=subprocess.PIPE, text=True)
    assert other.stdout is not None and other.stdout.readline() == "held\n"
    return other


def end(other: subprocess.Popen[str], number: int = signal.SIGKILL) -> None:
    other.send_signal(number)
    other.wait()
    assert other.stdout is not None
    other.stdout.close()


def test_the_second_writer_is_told_who_holds_the_lock_and_why(tmp_path: Path) -> None:
    path = tmp_path / "locks" / "emulated.lock"
    other = hold(path)
    try:
        with pytest.raises(Locked, match=rf"ann on .* \(pid {other.pid}\) since .*: up ring-12") as caught:
            LabLock(path, user="bob", reason="up torus").acquire()
        assert caught.value.exit_code == 4 and str(other.pid) in caught.value.hint
        held = holder(path)
        assert held is not None and (held.user, held.pid, held.reason) == ("ann", other.pid, "up ring-12")
    finally:
        end(other)


def test_a_killed_holder_frees_the_lock(tmp_path: Path) -> None:
    path = tmp_path / "emulated.lock"
    end(hold(path))
    assert holder(path) is None
    with LabLock(path, user="bob", reason="up torus") as lock:
        held = holder(path)
        assert held == lock.holder and held is not None and held.pid == os.getpid()
    assert holder(path) is None


def test_a_waiting_writer_gets_the_lock_when_it_is_freed(tmp_path: Path) -> None:
    path = tmp_path / "emulated.lock"
    other = hold(path)
    began = time.monotonic()
    with pytest.raises(Locked):
        LabLock(path, user="bob", reason="x", wait_s=0.15).acquire()
    assert time.monotonic() - began >= 0.15
    end(other)
    with LabLock(path, user="bob", reason="x", wait_s=5.0):
        pass


def test_two_locks_of_one_process_exclude_each_other(tmp_path: Path) -> None:
    path = tmp_path / "emulated.lock"
    with LabLock(path, user="ann", reason="x"), pytest.raises(Locked):
        LabLock(path, user="ann", reason="y").acquire()


def test_a_lock_file_can_be_used_by_every_user_of_the_machine(tmp_path: Path) -> None:
    path = tmp_path / "locks" / "emulated.lock"
    with LabLock(path, user="ann", reason="x"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o666
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o1777


def test_nobody_holds_a_lock_that_was_never_taken(tmp_path: Path) -> None:
    assert holder(tmp_path / "none.lock") is None


def test_a_process_is_told_from_its_successor_with_the_same_id() -> None:
    assert process_mark(os.getpid()) == process_mark(os.getpid()) != ""
    assert process_mark(1) != process_mark(os.getpid())
    assert process_mark(2**22 + 1) == ""
