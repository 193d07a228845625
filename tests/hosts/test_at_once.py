"""How many hosts are worked with at the same moment, and that one that is dead keeps no other
waiting.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import ansible_runner
import pytest

from optics import Unreachable
from orchestrator.hosts import Hello
from orchestrator.hosts.at_once import AtOnce
from orchestrator.hosts.channel import Channel
from orchestrator.hosts.fleet import Hosts
from orchestrator.hosts.runner import Ansible
from tests.properties.labs import lab

LONG_S = 60.0


class Busy:
    """Counts what goes on at the same moment."""

    def __init__(self) -> None:
        self.now = self.most = self.done = 0

    async def work(self) -> None:
        self.now += 1
        self.most = max(self.most, self.now)
        await asyncio.sleep(0)
        self.now -= 1
        self.done += 1


async def test_so_many_go_on_at_once_and_all_are_done_though_some_fail() -> None:
    busy, rooms = Busy(), AtOnce(3, LONG_S)

    async def one(number: int) -> None:
        async with rooms.room():
            await busy.work()
            if number % 2:
                raise Unreachable("dark")

    await asyncio.gather(*map(one, range(20)), return_exceptions=True)
    assert (busy.most, busy.done) == (3, 20)


async def test_one_that_waits_for_its_host_makes_room_once_and_only_once() -> None:
    busy, rooms, answers = Busy(), AtOnce(1, 0.01), asyncio.Event()

    async def silent() -> None:
        async with rooms.room():
            await answers.wait()

    async def other() -> None:
        async with rooms.room():
            await busy.work()

    waiting = [asyncio.create_task(silent()) for _ in range(3)]
    await asyncio.gather(*(other() for _ in range(5)))
    assert busy.done == 5
    answers.set()
    await asyncio.gather(*waiting)
    await asyncio.gather(*(other() for _ in range(5)))
    assert busy.most == 1, (
        "the silent ones made room when they began to wait, not again when they ended"
    )


async def test_a_cancelled_one_makes_room() -> None:
    rooms = AtOnce(1, LONG_S)

    async def silent() -> None:
        async with rooms.room():
            await asyncio.Event().wait()

    task = asyncio.create_task(silent())
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    async with asyncio.timeout(LONG_S), rooms.room():
        pass


async def test_hosts_are_logged_in_to_a_few_at_a_time_and_dead_ones_do_not_delay_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    busy, up = Busy(), asyncio.Event()

    async def connect(self: Channel, timeout_s: float) -> Hello:
        if self.host.name in ("gpu01", "gpu02", "gpu03"):
            await up.wait()
            raise Unreachable(f"{self.host.name}: no answer")
        await busy.work()
        if busy.done == 37:
            up.set()  # the dead ones are only given up when all others have been asked
        return Hello(self.host.name, True)

    monkeypatch.setattr(Channel, "connect", connect)
    monkeypatch.setattr("orchestrator.hosts.channels.PATIENCE_S", 0.01)
    async with Hosts(lab(40), tmp_path, tmp_path, 2) as hosts:
        answers = await hosts.channels.connect()
    assert [name for name, answer in answers.items() if isinstance(answer, Unreachable)] == [
        "gpu01",
        "gpu02",
        "gpu03",
    ]
    assert busy.done == 37 and busy.most <= 2


def test_ansible_has_as_many_processes_as_hosts_are_worked_with_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: dict[str, Any] = {}

    def began(**texts: Any) -> None:
        given.update(texts)
        raise KeyboardInterrupt

    monkeypatch.setattr(ansible_runner.interface, "init_runner", began)
    with pytest.raises(KeyboardInterrupt):
        Ansible(tmp_path, tmp_path, (), 5).play("stage_rules.yml", ["gpu01"], {})
    assert given["envvars"]["ANSIBLE_FORKS"] == "5"
