"""Real-time priority for the programs of jobs: who has it, what stays above it, and everything that
ends it.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from emulators.fabric.hosts import JOB_UID
from emulators.fabric.priority import LAB, SHARE, WINDOW_S, Priority
from tests.emulators.fabric.emulated import EmulatedLab, eventually

pytestmark = pytest.mark.lab

QUIET = "import threading, time; threading.Thread(target=time.sleep, args=(600,), daemon=True).start(); time.sleep(600)"
ASKED_FOR = "import threading, time; input(); threading.Thread(target=time.sleep, args=(600,), daemon=True).start(); time.sleep(600)"
SPINNING = "while True: pass"
ROUND_ROBIN = {(os.SCHED_RR, 1)}
ORDINARY = {(os.SCHED_OTHER, 0)}


@contextmanager
def program(
    lab: EmulatedLab, host: str, text: str, uid: int = JOB_UID
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a program in the PID namespace of a host; it runs its own text when this begins, whatever
    starts Python there.
    """
    enter = [
        "nsenter",
        "-t",
        str(lab.host_pid(host)),
        "-p",
        "setpriv",
        f"--reuid={uid}",
        f"--regid={uid}",
        "--clear-groups",
    ]
    command = [*enter, "/usr/bin/env", "python3", "-c", f"print(flush=True)\n{text}"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd="/") as child:
        try:
            assert child.stdout is not None and child.stdout.readline() == b"\n"
            yield child
        finally:
            for pid in pids(child):
                os.kill(pid, 9)
            child.kill()


def pids(child: subprocess.Popen[bytes]) -> list[int]:
    """The program behind nsenter, which forks to enter a PID namespace."""
    try:
        return [
            int(pid)
            for pid in Path(f"/proc/{child.pid}/task/{child.pid}/children").read_text().split()
        ]
    except OSError:
        return []


def policies(pid: int) -> set[tuple[int, int]]:
    """Policy and level of every thread."""
    threads = [int(thread.name) for thread in Path(f"/proc/{pid}/task").iterdir()]
    return {
        (os.sched_getscheduler(thread), os.sched_getparam(thread).sched_priority)
        for thread in threads
    }


def of(child: subprocess.Popen[bytes]) -> set[tuple[int, int]]:
    return policies(pids(child)[0])


class Asker:
    """A connection to the control socket that stays."""

    def __init__(self, lab: EmulatedLab) -> None:
        self.link = socket.socket(socket.AF_UNIX)
        self.link.settimeout(20)
        self.link.connect(str(lab.state / "control.sock"))
        self.file = self.link.makefile()

    def __call__(self, for_s: float) -> dict[str, Any]:
        self.link.sendall(json.dumps({"op": "priority", "for_s": for_s}).encode() + b"\n")
        return dict(json.loads(self.file.readline()))

    def close(self) -> None:
        self.file.close()
        self.link.close()


def test_ranks_get_their_turn_and_nothing_else_does(lab: EmulatedLab) -> None:
    with (
        program(lab, "gpu01", QUIET) as rank,
        program(lab, "gpu01", QUIET, uid=0) as root,
        closing(Asker(lab)) as ask,
    ):
        # on the machine
        stranger = subprocess.Popen(
            ["/bin/sleep", "600"], user=JOB_UID, group=JOB_UID, extra_groups=[], cwd="/"
        )
        try:
            assert eventually(
                lambda: len(list(Path(f"/proc/{pids(rank)[0]}/task").iterdir())) == 2, 10
            )
            reply = ask(60)
            assert reply["ok"] and reply["programs"] == {"gpu01": 1, "gpu02": 0, "gpu03": 0}
            assert of(rank) == ROUND_ROBIN
            assert of(root) == policies(stranger.pid) == policies(os.getpid()) == ORDINARY
            devices = {
                os.sched_getparam(pid).sched_priority for pid in (int(lab.ask("status")["pid"]),)
            }
            assert devices == {0} or min(devices) >= LAB
            assert ask(0) == {"ok": True, "lost": {}} and of(rank) == ORDINARY
        finally:
            stranger.kill()
            stranger.wait()


def test_threads_that_a_rank_starts_later_have_it_too_and_lose_it_with_the_rest(
    lab: EmulatedLab,
) -> None:
    with program(lab, "gpu02", ASKED_FOR) as rank, closing(Asker(lab)) as ask:
        assert ask(60)["ok"] and rank.stdin is not None
        rank.stdin.write(b"\n")
        rank.stdin.flush()
        assert eventually(lambda: len(list(Path(f"/proc/{pids(rank)[0]}/task").iterdir())) == 2, 10)
        assert of(rank) == ROUND_ROBIN
        ask(0)
        assert of(rank) == ORDINARY


def test_the_end_of_the_connection_ends_it(lab: EmulatedLab) -> None:
    with program(lab, "gpu01", QUIET) as rank:
        asker = subprocess.Popen(
            [
                sys.executable,
                "-c",
                "import socket, sys, time; s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]);"
                's.sendall(b\'{"op": "priority", "for_s": 600}\\n\'); time.sleep(600)',
                str(lab.state / "control.sock"),
            ]
        )
        try:
            assert eventually(lambda: of(rank) == ROUND_ROBIN, 20)
            with closing(Asker(lab)) as other:
                assert other(60)["error"] == "priority: another measurement on this lab has it"
            assert of(rank) == ROUND_ROBIN
        finally:
            asker.kill()
            asker.wait()
        assert eventually(lambda: of(rank) == ORDINARY, 20)


def test_it_ends_by_itself_although_the_connection_stays(lab: EmulatedLab) -> None:
    with program(lab, "gpu03", QUIET) as rank, closing(Asker(lab)) as ask:
        assert ask(0.5)["ok"]
        assert eventually(lambda: of(rank) == ORDINARY, 20)
        assert ask(60)["ok"] and of(rank) == ROUND_ROBIN


def test_a_program_that_spins_loses_it_and_is_named_while_another_keeps_it(
    lab: EmulatedLab,
) -> None:
    with (
        program(lab, "gpu01", SPINNING) as spinning,
        program(lab, "gpu01", QUIET) as rank,
        closing(Asker(lab)) as ask,
    ):
        assert ask(60)["ok"] and of(spinning) == ROUND_ROBIN
        assert eventually(lambda: of(spinning) == ORDINARY, 10 * WINDOW_S)
        assert of(rank) == ROUND_ROBIN
        assert ask(60)["ok"] and of(spinning) == ORDINARY, (
            "and does not get it again in this measurement"
        )
        (why,) = ask(0)["lost"]["gpu01"]
        assert "(python3) used" in why and float(why.split()[4]) > SHARE


@pytest.mark.parametrize("for_s", [-1, 1e9, "x", None, []])
def test_what_is_no_time_is_refused(lab: EmulatedLab, for_s: object) -> None:
    with program(lab, "gpu01", QUIET) as rank, closing(Asker(lab)) as ask:
        assert not ask(for_s)["ok"]  # type: ignore[arg-type]
        assert of(rank) == ORDINARY


def test_a_host_whose_jobs_run_as_root_gives_none() -> None:
    priority = Priority()
    with pytest.raises(OSError, match="jobs run as root here"):
        priority.give("root", 10)
    with pytest.raises(OSError, match="no user testbed-nobody-at-all here"):
        priority.give("testbed-nobody-at-all", 10)
    assert priority.due_s is None


def test_the_end_of_the_lab_leaves_no_program(tmp_path: Path) -> None:
    from tests.emulators.fabric.emulated import write_inventory

    lab = EmulatedLab(write_inventory(tmp_path, hosts=1))
    with program(lab, "gpu01", QUIET) as rank, closing(Asker(lab)) as ask:
        assert ask(60)["ok"] and of(rank) == ROUND_ROBIN
        (pid,) = pids(rank)
        os.kill(int(lab.ask("status")["pid"]), 9)
        assert eventually(lambda: not Path(f"/proc/{pid}").exists() or rank.poll() is not None, 20)
    lab.keeper.kill()
    lab.keeper.wait()
