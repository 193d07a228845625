"""The guard's file: one guard per plan, what it says, and what is left of one that died."""

from __future__ import annotations

import fcntl
import json
import multiprocessing
import os
import signal
import socket
import threading
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from extensions.adapt.service import KIND as ADAPTER
from extensions.pacing.service import KIND as COORDINATOR
from optics import Locked, TestbedError
from orchestrator.background.kind import StateFile
from orchestrator.queue.process import QUEUE
from orchestrator.services.guard.process import GUARD, GuardState, recovers_as
from orchestrator.services.schedule.process import SCHEDULER


def state(**more: object) -> GuardState:
    return replace(
        GuardState(
            os.getpid(), "ann", socket.gethostname(), 1.0, "ring", "2026-11-21-0007", "watching"
        ),
        **more,
    )  # type: ignore[arg-type]


def test_what_a_guard_says_is_read_by_others_and_what_it_left_when_it_is_gone(
    tmp_path: Path,
) -> None:
    path = tmp_path / "guard" / "lab@ann.json"
    assert GUARD.read(path) is None
    with StateFile(GUARD, path, state()) as file:
        file.emit(state(around=("gpu01:p1--gpu02:p1", "gpu02:p2--gpu03:p2"), generation=9))
        file.emit(state(around=("gpu01:p1--gpu02:p1",), generation=10, silent=("gpu04",)))
        seen = GUARD.read(path)
        assert (
            seen is not None and seen.alive and (seen.generation, seen.silent) == (10, ("gpu04",))
        )
        assert "traffic is rerouted around gpu01:p1--gpu02:p1 (generation 10)" in str(seen)
    left = GUARD.read(path)
    assert left is not None and not left.alive and left.around == ("gpu01:p1--gpu02:p1",)
    assert path.stat().st_mode & 0o077 == 0


def test_a_second_guard_is_refused_and_told_who_the_first_is(tmp_path: Path) -> None:
    path = tmp_path / "lab.json"
    with (
        StateFile(GUARD, path, state()),
        pytest.raises(
            Locked,
            match=f"another guard service runs for this plan .watching, pid {os.getpid()} of ann",
        ),
    ):
        StateFile(GUARD, path, state()).__enter__()
    with StateFile(GUARD, path, state(pid=1)) as second:
        assert second.before is not None and second.before.pid == os.getpid()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"pid": 1, "colour": "red"}'])
def test_a_torn_file_or_one_of_another_version_stops_nobody(tmp_path: Path, text: str) -> None:
    path = tmp_path / "lab.json"
    path.write_text(text)
    seen = GUARD.read(path)
    assert seen is None or seen.pid == 1
    with StateFile(GUARD, path, state()):
        assert json.loads(path.read_text())["plan"] == "ring"


class Places:
    """Settings, as far as the guard's file asks."""

    def __init__(self, folder: Path) -> None:
        self.data_dir, self.user, self.owner = folder, "ann", "ann"


KINDS: list[Any] = [GUARD, SCHEDULER, ADAPTER, COORDINATOR, QUEUE]


def hold(folder: Path, ready: Connection, kind: Any = GUARD) -> None:
    own = kind.state(
        os.getpid(), "ann", socket.gethostname(), 1.0, "ring", "2026-11-21-0007", "working"
    )
    with StateFile(kind, kind.path(Places(folder), "lab/ann"), own):
        ready.send("held")
        signal.sigwait({signal.SIGTERM})


def test_stopping_waits_until_the_guard_is_gone_and_none_running_is_no_error(
    tmp_path: Path,
) -> None:
    places = Places(tmp_path)
    assert GUARD.stop(places, "lab/ann") is None  # type: ignore[arg-type]
    here, other = multiprocessing.Pipe()
    process = multiprocessing.get_context("fork").Process(target=hold, args=(tmp_path, other))
    process.start()
    assert here.recv() == "held"
    stopped = GUARD.stop(places, "lab/ann")  # type: ignore[arg-type]
    assert stopped is not None and stopped.pid == process.pid
    process.join(5)
    assert GUARD.stop(places, "lab/ann") is None  # type: ignore[arg-type]
    here.close()
    other.close()


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
@pytest.mark.parametrize(
    "text",
    [b"\xff\xfe no JSON", b"[1]\n", b'{"pid": "12", "state": "watching"}\n', b'{"log": 7}\n'],
)
def test_a_process_whose_file_is_damaged_is_still_seen_and_stopped(
    tmp_path: Path, kind: Any, text: bytes
) -> None:
    places = Places(tmp_path)
    here, other = multiprocessing.Pipe()
    process = multiprocessing.get_context("fork").Process(target=hold, args=(tmp_path, other, kind))
    process.start()
    try:
        assert here.recv() == "held"
        kind.path(places, "lab/ann").write_bytes(text)
        seen = kind.running(places, "lab/ann")
        assert seen is not None and seen.alive and seen.unreadable and seen.pid == process.pid
        assert str(seen).startswith(f"runs, but its file cannot be read, pid {process.pid} of ")
        assert str(kind.start(places, "lab/ann", tmp_path / "log")) == str(seen), (
            "no second one is started"
        )
        stopped = kind.stop(places, "lab/ann")
        assert stopped is not None and stopped.pid == process.pid
        process.join(5)
        assert kind.running(places, "lab/ann") is None
    finally:
        process.kill()
        process.join()
        here.close()
        other.close()


def test_a_process_whose_file_is_damaged_and_whose_lock_tells_nothing_is_not_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    places = Places(tmp_path)
    path = GUARD.path(places, "lab/ann")  # type: ignore[arg-type]
    monkeypatch.setattr("orchestrator.background.state.lock_holder", lambda fd: None)
    with StateFile(GUARD, path, state()):
        path.write_text("x")
        assert (
            str(GUARD.running(places, "lab/ann"))
            == "runs, but its file cannot be read, its process is not known"
        )  # type: ignore[arg-type]
        with pytest.raises(
            TestbedError, match="its process is another user's, or on another machine"
        ):
            GUARD.stop(places, "lab/ann")  # type: ignore[arg-type]
        with pytest.raises(
            Locked, match="a guard watches this plan already: it runs, but its file cannot be read"
        ):
            recovers_as(places, "lab/ann", "3/h")  # type: ignore[arg-type]


def test_a_process_that_has_the_lock_and_has_not_written_yet_is_starting(tmp_path: Path) -> None:
    path = tmp_path / "guard.json"
    path.touch()
    with path.open() as writer:
        fcntl.flock(writer, fcntl.LOCK_EX)
        seen = GUARD.read(path)
    assert seen is not None and (seen.state, seen.pid, seen.alive) == (
        "starting",
        os.getpid(),
        True,
    )


def test_a_guard_of_another_machine_is_to_be_stopped_there(tmp_path: Path) -> None:
    places = Places(tmp_path)
    path = GUARD.path(places, "lab/ann")  # type: ignore[arg-type]
    with (
        StateFile(GUARD, path, state(host="elsewhere")),
        pytest.raises(TestbedError, match="the guard service runs on elsewhere") as refused,
    ):
        GUARD.stop(places, "lab/ann")  # type: ignore[arg-type]
    assert refused.value.hint == "stop it there"


def test_who_reads_the_state_for_a_moment_keeps_nobody_from_starting(tmp_path: Path) -> None:
    path = tmp_path / "guard.json"
    path.touch()
    with path.open() as reader:
        fcntl.flock(reader, fcntl.LOCK_SH)
        threading.Timer(0.05, lambda: fcntl.flock(reader, fcntl.LOCK_UN)).start()
        with StateFile(GUARD, path, state()) as file:
            assert file.kind.read(path) is not None
