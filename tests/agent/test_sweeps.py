"""What jobs left behind is looked for a little at a time: the daemon has one thread, and slots
change meanwhile.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from agent import fence
from agent.basics import Failure
from agent.fence import Fence
from agent.jobs import processes as jobs
from agent.jobs.processes import Jobs
from agent.jobs.remains import MARK

US = 1000


class Daemon:
    """The timers of a daemon, which the test calls; `reported` are the answers to requests."""

    def __init__(self) -> None:
        self.timers: list[Callable[[], object]] = []
        self.reported: list[Any] = []
        self.handoff = SimpleNamespace(clean=lambda: None)
        self.slots = SimpleNamespace(notices=SimpleNamespace(clean=lambda: None))
        self.mechanisms: list[Any] = []
        self.facts: dict[str, Any] = {}
        self.fence = Fence(lambda: None)

    def timer(self, at_ns: int, function: Callable[[], object]) -> int:
        self.timers.append(function)
        return 0

    def guard(self, function: Callable[[], object]) -> None:
        function()

    def attempt(self, act: Callable[[], Any]) -> None:
        try:
            self.reported.append(act())
        except Failure as failure:
            self.reported.append(str(failure))

    def go_on(self) -> int:
        """Call timers until there are none; return how many."""
        count = 0
        while self.timers:
            self.timers.pop(0)()
            count += 1
        return count


@pytest.fixture
def daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Daemon:
    for module in (jobs, fence):
        monkeypatch.setattr(module, "VAR", str(tmp_path))
    monkeypatch.setattr(fence, "FILE", str(tmp_path / "fence.json"))
    (tmp_path / "jobs").mkdir()
    return Daemon()


def test_a_long_search_gives_way_and_the_next_begins_after_it(daemon: Daemon) -> None:
    here, order = Jobs(daemon), list[str]()  # type: ignore[arg-type]

    def slow(name: str, steps: int) -> Iterator[None]:
        for _ in range(steps):
            time.sleep(100 * US / 1e9)
            order.append(name)
            yield

    here.swept(lambda: order.append("first done"), slow("first", 30), slow("first", 1))
    here.swept(lambda: order.append("second done"), slow("second", 1))
    assert not order, "who asked waits for nothing"
    assert daemon.go_on() > 3
    assert order == ["first"] * 31 + ["first done", "second", "second done"]


@pytest.mark.parametrize(
    "error", [OSError("no descriptor is left"), AttributeError("this Python has no pidfd_open")]
)
def test_a_search_that_fails_ends_and_what_waits_for_it_goes_on(
    daemon: Daemon, error: Exception
) -> None:
    here, done = Jobs(daemon), list[str]()  # type: ignore[arg-type]

    def failing() -> Iterator[None]:
        yield
        raise error

    here.swept(lambda: done.append("first"), failing())
    here.swept(lambda: done.append("second"), iter(()))
    daemon.go_on()
    assert done == ["first", "second"]


def test_what_a_job_left_is_killed_before_the_next_of_its_name_starts_and_that_one_lives(
    daemon: Daemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = tmp_path / "jobs" / "mine"
    where.mkdir()
    left = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(60)"], env={**os.environ, MARK: str(where)}
    )
    here = Jobs(daemon)  # type: ignore[arg-type]
    started: list[int | None] = []
    monkeypatch.setattr(Jobs, "launch", lambda *_: started.append(left.wait(10)))
    try:
        here.start({"name": "mine", "argv": ["true"]}, daemon.attempt)
        assert not started
        daemon.go_on()
        assert started == [-9]
        running = {"pid": os.getpid(), "born": jobs.start_time(os.getpid())}
        monkeypatch.setattr(Jobs, "state", lambda *_: {"state": "running", **running})
        monkeypatch.setattr(jobs, "kill_left", lambda _: pytest.fail("it runs"))
        here.swept(lambda: None, here.left(str(where)))
        daemon.go_on()
    finally:
        left.kill()
        left.wait()


def test_a_job_that_started_as_the_daemon_died_is_ended_by_the_next_daemon(
    daemon: Daemon, tmp_path: Path
) -> None:
    where = tmp_path / "jobs" / "mine"
    where.mkdir()
    unseen = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(60)"], env={**os.environ, MARK: str(where)}
    )
    try:
        Jobs(daemon)  # type: ignore[arg-type]
        daemon.go_on()
        assert unseen.wait(10) == -9
    finally:
        unseen.kill()
        unseen.wait()


def test_a_job_that_waited_for_a_search_is_not_started_once_a_newer_run_has_the_host(
    daemon: Daemon,
) -> None:
    here = Jobs(daemon)  # type: ignore[arg-type]
    daemon.fence.check("fence", {"token": 4})
    here.start({"name": "mine", "argv": ["true"], "token": 4}, daemon.attempt)
    daemon.fence.check("fence", {"token": 5})
    daemon.go_on()
    assert daemon.reported == [
        "job.start of a run with token 4: a newer run, with token 5, holds this host"
    ]
