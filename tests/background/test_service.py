"""A service from its start to its end, killed, refused, restarted; and files that others wrote in
place of its own.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from optics import Locked, Missing, NotVerified, TestbedError
from orchestrator.background import kind as kinds
from orchestrator.background import registry
from orchestrator.background.state import process_of
from orchestrator.background.work import Retries, serving
from orchestrator.processes import process_mark
from orchestrator.services.guard.process import GuardOptions
from orchestrator.services.schedule.process import ScheduleOptions
from orchestrator.settings import Settings
from orchestrator.store.verbs import MOVERS
from tests.background.toy import KEY, TOY, ToyState, settings
from tests.house.repository import ROOT
from tests.kit.waiting import until

NOBODY = 65534


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Settings]:
    """Toys start as services do, but by a command that there is."""

    def spawn(
        _: Settings, argv: Sequence[str], message: Path, *, lowly: bool
    ) -> subprocess.Popen[bytes]:
        message.parent.mkdir(parents=True, exist_ok=True)
        command = [
            sys.executable,
            "-m",
            "tests.background.toy",
            str(tmp_path),
            argv[argv.index("--log") + 1],
        ]
        with message.open("ab") as errors:
            return subprocess.Popen(command, cwd=ROOT, stderr=errors, start_new_session=True)

    monkeypatch.setattr(kinds, "spawn", spawn)
    yield settings(tmp_path)
    TOY.stop(settings(tmp_path), KEY)


@pytest.fixture
def bystander() -> Iterator[subprocess.Popen[bytes]]:
    """Somebody else's process."""
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process
        process.kill()


def now(here: Settings) -> ToyState:
    state = TOY.read(TOY.path(here, KEY))
    assert state is not None
    return state


def test_a_service_is_started_once_survives_a_kill_and_is_stopped(here: Settings) -> None:
    assert TOY.stop(here, KEY) is None
    first = TOY.start(here, KEY)
    assert (first.state, first.log, first.alive) == ("playing", str(TOY.log(here, KEY)), True)
    assert TOY.start(here, KEY).pid == first.pid, "one that runs is found"
    for _ in range(2):
        with (
            pytest.raises(
                Locked,
                match=f"another toy service runs for this plan .playing, pid {first.pid} of ",
            ) as refused,
            TOY.file(here, KEY, TOY.own(here)),
        ):
            pass
        assert refused.value.hint == "testbed service stop toy" and now(here).pid == first.pid, (
            "who is refused writes nothing"
        )
    os.kill(first.pid, signal.SIGKILL)
    until(lambda: now(here).pid != first.pid and now(here).state == "playing")
    again = now(here)
    assert again.keeper == first.keeper == os.getpgid(again.pid) and again.alive
    stopped = TOY.stop(here, KEY)
    assert stopped is not None and stopped.pid == again.pid
    left = now(here)
    assert (left.alive, left.state, left.error, left.halted) == (
        False,
        "ended",
        "",
        False,
    ) and process_mark(again.pid) == ""
    assert TOY.stop(here, KEY) is None


async def test_one_whose_keeper_is_killed_too_is_not_taken_for_running(here: Settings) -> None:
    other = await TOY.started(here, KEY)
    os.kill(other.keeper, signal.SIGKILL)
    os.kill(other.pid, signal.SIGKILL)
    until(lambda: not now(here).alive)
    assert now(here).halted and TOY.stop(here, KEY) is None
    assert (await TOY.started(here, KEY)).pid != other.pid


def test_one_that_gives_up_leaves_why_and_the_next_start_says_so(
    here: Settings, tmp_path: Path
) -> None:
    TOY.start(here, KEY)
    (tmp_path / "broken").touch()
    until(lambda: not now(here).alive)
    assert (now(here).state, now(here).error, now(here).halted) == ("ended", "it is broken", True)
    with pytest.raises(TestbedError, match="the toy service ended at once: "):
        TOY.start(here, KEY)


def test_one_that_leaves_is_waited_for_and_not_taken_for_one_that_works(
    here: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    naps: list[float] = []
    with TOY.file(here, KEY, replace(TOY.own(here), state="ended")) as file:

        def sleep(seconds: float) -> None:
            naps.append(seconds)
            if len(naps) == 3:
                file.leave()

        monkeypatch.setattr(kinds.time, "sleep", sleep)
        assert TOY.start(here, KEY).pid != os.getpid() and len(naps) > 3


@pytest.mark.parametrize(
    "text",
    [
        b"\x00\xff",
        b"[" * 60000,
        b'{"heartbeats": true}\n',
        b'{"heartbeats": "7"}\n',
        b'{"pid": 1e300}\n',
        b"{}",
    ],
)
def test_garbage_in_the_file_hides_no_service_and_is_mended_by_what_it_says_next(
    here: Settings, text: bytes
) -> None:
    other = TOY.start(here, KEY)
    os.kill(other.pid, signal.SIGSTOP)
    TOY.path(here, KEY).write_bytes(text)
    seen = TOY.running(here, KEY)
    assert (
        seen is not None
        and seen.alive
        and seen.pid in (0 if text == b"{}" else other.pid, other.pid)
    )
    os.kill(other.pid, signal.SIGCONT)
    until(lambda: now(here).pid == other.pid and now(here).state == "playing")


@pytest.mark.parametrize("keeper", [2**31, 2**70, -1, 0])
def test_a_keeper_that_is_no_process_is_none_and_no_child_of_the_reader_is_collected(
    here: Settings, keeper: int
) -> None:
    path = TOY.path(here, KEY)
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"pid": 7, "state": "playing", "keeper": keeper, "mark": "x"}))
    with subprocess.Popen(["false"]) as child:
        until(lambda: process_mark(child.pid) == "")
        assert now(here).halted and TOY.stop(here, KEY) is None
        assert child.wait() == 1


def test_one_that_is_starting_is_waited_for(
    here: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    naps: list[float] = []
    with TOY.file(here, KEY, TOY.own(here)) as file:

        def sleep(seconds: float) -> None:
            naps.append(seconds)
            if len(naps) == 3:
                file.now(state="playing")

        monkeypatch.setattr(kinds.time, "sleep", sleep)
        assert TOY.start(here, KEY).state == "playing" and len(naps) == 3


def test_what_the_one_before_left_in_the_file_is_not_taken_for_the_new_one(here: Settings) -> None:
    with TOY.file(here, KEY, replace(TOY.own(here), state="playing", since=7.0)) as file:
        before = TOY.read(file.path)
        assert TOY._working(file.path, before) is None and TOY._working(file.path, None) == before
        file.now(since=8.0)
        assert TOY._working(file.path, before) is not None


def test_where_the_disk_is_full_what_was_said_before_stays(
    here: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    with TOY.file(here, KEY, TOY.own(here)) as file:
        file.now(state="playing")
        with monkeypatch.context() as full:
            full.setattr(kinds.os, "pwrite", lambda *_: os.open("/dev/full/x", os.O_WRONLY))
            file.now(state="tired")
        assert now(here).state == "playing"


def test_one_that_a_keeper_starts_again_is_ended_by_its_keeper(here: Settings) -> None:
    """Ended itself by a signal, it would come back."""
    other = TOY.start(here, KEY)
    os.kill(other.pid, signal.SIGSTOP)
    assert process_of(TOY.path(here, KEY), other).pid == other.keeper
    os.kill(other.pid, signal.SIGCONT)


def test_who_moves_light_is_said_alike_by_kinds_and_verbs() -> None:
    assert (
        {each.name for each in registry.kinds() if each.moves_light}
        == MOVERS
        == {"schedule", "adapt"}
    )


def test_whoever_the_file_names_only_who_holds_it_is_ended(
    here: Settings, bystander: subprocess.Popen[bytes]
) -> None:
    other = replace(
        TOY.own(here),
        pid=bystander.pid,
        keeper=bystander.pid,
        mark=process_mark(bystander.pid),
        state="playing",
    )
    program = f"""
import signal
from pathlib import Path
from orchestrator.background.kind import StateFile
from tests.background.toy import TOY, ToyState
with StateFile(TOY, Path({str(TOY.path(here, KEY))!r}), {other!r}):
    signal.pause()
"""
    with subprocess.Popen([sys.executable, "-c", program], cwd=ROOT) as holder:
        until(lambda: (seen := TOY.running(here, KEY)) is not None and seen.state == "playing")
        assert TOY.stop(here, KEY) is not None
        assert process_mark(holder.pid) == "" and bystander.poll() is None


def test_a_number_that_is_somebody_elses_by_now_is_not_ended(
    here: Settings, bystander: subprocess.Popen[bytes]
) -> None:
    path, host = TOY.path(here, KEY), socket.gethostname()
    path.parent.mkdir(parents=True)
    for more in ({}, {"keeper": bystander.pid, "mark": "another boot/1"}):
        path.write_text(
            json.dumps({"pid": bystander.pid, "host": host, "state": "playing", **more})
        )
        assert TOY.stop(here, KEY) is None and TOY.read(path).halted  # type: ignore[union-attr]
    assert TOY.start(here, KEY).alive and bystander.poll() is None


@pytest.mark.skipif(os.geteuid() != 0, reason="acts as another user, which root alone can")
def test_a_file_that_another_user_wrote_ends_nobody_and_is_not_written(
    here: Settings, bystander: subprocess.Popen[bytes]
) -> None:
    path = TOY.path(here, KEY)
    path.parent.mkdir(parents=True)
    texts = {"pid": 1, "host": socket.gethostname(), "user": "\x1b[2J", "state": "playing"}
    forged = json.dumps({**texts, "keeper": bystander.pid, "mark": process_mark(bystander.pid)})
    path.write_text(forged)
    os.chown(path, NOBODY, NOBODY)
    with pytest.raises(TestbedError, match=r"the toy service is .*'s \(pid 1\)"):
        TOY.stop(here, KEY)
    assert bystander.poll() is None
    bystander.kill()
    bystander.wait()
    with (
        pytest.raises(TestbedError, match="is no file, or of nobody"),
        TOY.file(here, KEY, TOY.own(here)),
    ):
        pass
    with pytest.raises(TestbedError, match=r"ended at once: .*is no file, or of nobody"):
        TOY.start(here, KEY)
    assert path.read_text() == forged


@pytest.mark.parametrize("what", ["pipe", "folder", "link"])
def test_what_is_no_file_is_refused_and_not_waited_for(
    here: Settings, tmp_path: Path, what: str
) -> None:
    path = TOY.path(here, KEY)
    path.parent.mkdir(parents=True)
    {
        "pipe": os.mkfifo,
        "folder": os.mkdir,
        "link": lambda at: at.symlink_to(tmp_path / "treasure"),
    }[what](path)
    assert TOY.read(path) is None and TOY.stop(here, KEY) is None
    with pytest.raises(TestbedError), TOY.file(here, KEY, TOY.own(here)):
        pass
    assert not (tmp_path / "treasure").exists()


def test_who_lets_go_of_the_file_writes_nothing_until_it_has_it_again(here: Settings) -> None:
    with TOY.file(here, KEY, TOY.own(here)) as file:
        file.leave()
        with TOY.file(here, KEY, replace(TOY.own(here), state="other")):
            file.emit(replace(file.state, state="mine"))
            assert not file.take() and now(here).state == "other"
        assert file.take()
        file.emit(replace(file.state, state="mine"))
        assert now(here).state == "mine"
    file.emit(replace(file.state, state="closed"))  # its number may be another file's by now
    assert now(here).state == "mine"


def test_how_a_service_ended_is_in_its_file_unless_it_was_asked_to(here: Settings) -> None:
    for error, why in (
        (Missing("no plan"), "no plan"),
        (asyncio.CancelledError(), ""),
        (MemoryError(), "MemoryError"),
        (None, ""),
    ):
        try:
            with serving(TOY.file(here, KEY, TOY.own(here))):
                if error is not None:
                    raise error
        except BaseException as raised:
            assert raised is error
        assert (now(here).state, now(here).error) == ("ended", why)


def test_pauses_double_up_to_a_limit_however_often_it_fails_and_begin_again_after_a_success() -> (
    None
):
    retries = Retries(0.5, 3.0)
    assert [retries.failed() for _ in range(5)] == [0.5, 1.0, 2.0, 3.0, 3.0]
    assert {retries.failed() for _ in range(5000)} == {3.0}
    retries.worked()
    assert retries.failed() == 0.5


def test_one_failure_too_many_in_a_row_ends_a_service_and_says_which_was_the_last() -> None:
    retries, last = Retries(1.0, 1.0, most=3), Missing("no light")
    for _ in range(2):
        retries.failed("look", last)
    retries.worked()
    for _ in range(2):
        retries.failed("look", last)
    with pytest.raises(
        NotVerified, match="3 looks in a row failed, the last one: no light"
    ) as ended:
        retries.failed("look", last, "testbed doctor")
    assert ended.value.hint == "testbed doctor"


@pytest.mark.parametrize("name", [each.name for each in registry.kinds()])
def test_the_registry_has_every_kind_under_its_own_name(name: str) -> None:
    found = registry.kind(name)
    assert found.name == name and "pid 7 of ann@here" in str(found.state(7, "ann", "here"))


def test_options_are_typed_as_they_were_declared_and_defaults_are_left_out() -> None:
    assert GuardOptions().text() == [] and ScheduleOptions(stop=True).text() == [], (
        "what is not declared is not typed"
    )
    given = GuardOptions(look_s=0.5, stay=True, jobs=True, restarts="10/d", log="x", kept=True)
    assert given.text() == ["--look", "0.5s", "--stay", "--jobs", "--restarts", "10/d"]


def test_one_of_each_state_is_shown_as_it_is(here: Settings) -> None:
    def shown() -> list[str]:
        return [
            f"{one.service} {one.state}; {one.trouble}"
            for one in registry.statuses(here, KEY, "lab")
        ]

    kind, path = registry.kind("guard"), registry.kind("guard").path(here, KEY)
    assert "guard not started; " in shown() and "sink not started; " in shown(), (
        "no server is configured"
    )
    with kind.file(here, KEY, kind.own(here)) as file:
        file.now(state="watching", trouble="ocs1 does not answer")
        assert "guard watching; ocs1 does not answer" in shown()
    assert "guard ended; killed while watching" in shown()
    path.write_text(json.dumps({"pid": 7, "state": "ended", "error": "no plan"}))
    assert "guard ended; no plan" in shown()
    path.write_text(json.dumps({"pid": 7, "state": "ended"}))
    assert "guard ended; " in shown()
