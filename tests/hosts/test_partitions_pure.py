"""Plays and channels of partitions: to the machine of their host, for the agent of the
partition.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, cast

import pytest

from orchestrator.hosts.channel import ATTACH
from orchestrator.hosts.facts import own_agent
from orchestrator.hosts.plays import Plays
from orchestrator.hosts.runner import Ansible, Play
from orchestrator.inventory.lab import Lab, read_lab

HOSTS = """
all:
  vars: {ansible_user: root, testbed_lanes: 2, testbed_partitions: {a: {lanes: [0]}, b: {lanes: [1]}}}
  hosts:
    gpu01: {testbed_host_id: 1, testbed_ports: {1: {interface: opt1}}}
    gpu02: {testbed_host_id: 2, testbed_ports: {1: {interface: opt1}}}
"""
DEVICES = "{lab: l, devices: {ocs1: {driver: polatis_scpi, address: 'tcp://127.0.0.1:5025'}}}"
FIBRES = "{fibres: [], segments: [{name: s, ports: ['gpu01:p1', 'gpu02:p1'], link_mbps: 100}]}"


class Recorder:
    """Stands for Ansible: every host prints its own variables."""

    def __init__(self) -> None:
        self.asked: list[list[str]] = []

    def play(self, playbook: str, names: Collection[str], variables: Mapping[str, Any]) -> Play:
        self.asked.append(list(names))
        return Play(
            {
                name: {
                    "x": f"{variables['testbed_agent'][name]}|{variables['testbed_rules'][name]}"
                }
                for name in names
            }
        )

    def close(self) -> None:
        pass


@pytest.fixture
def lab() -> Lab:
    return read_lab(HOSTS, DEVICES, FIBRES)


def test_a_play_reaches_the_agent_of_each_slice_on_the_machine_of_its_host(
    lab: Lab, tmp_path: Path
) -> None:
    names = ["gpu01/a", "gpu02", "gpu01/b", "gpu01"]

    async def shown() -> tuple[Play, list[list[str]]]:
        plays, recorder = Plays(lab, tmp_path, tmp_path, 1), Recorder()
        plays._ansible = cast(Ansible, recorder)
        try:
            variables = {
                "testbed_agent": plays.agents(names),
                "testbed_rules": {name: f"rules of {name}" for name in names},
            }
            return await plays.play("stage_rules.yml", names, variables), recorder.asked
        finally:
            await plays.close()

    play, asked = asyncio.run(shown())
    assert asked == [["gpu01", "gpu02"], ["gpu01"], ["gpu01"]], "a machine is in a play once"
    assert play.reported == {
        name: {"x": f"{own_agent(lab.hosts[name])}|rules of {name}"} for name in names
    }
    assert play.reported["gpu02"]["x"] == "|rules of gpu02"


async def test_who_was_cancelled_during_a_play_goes_on_only_once_it_has_ended(
    lab: Lab, tmp_path: Path
) -> None:
    asked, may_end = threading.Event(), threading.Event()

    class Slow(Recorder):
        def play(self, playbook: str, names: Collection[str], variables: Mapping[str, Any]) -> Play:
            asked.set()
            may_end.wait()
            return super().play(playbook, names, variables)

    plays = Plays(lab, tmp_path, tmp_path, 1)
    plays._ansible = cast(Ansible, Slow())
    variables = {"testbed_agent": plays.agents(["gpu01"]), "testbed_rules": {"gpu01": "rules"}}
    play = asyncio.ensure_future(plays.play("stage_rules.yml", ["gpu01"], variables))
    await asyncio.to_thread(asked.wait)
    play.cancel()
    for _ in range(10):
        await asyncio.sleep(0)
    waits = not play.done()
    may_end.set()
    await asyncio.wait([play])
    await plays.close()
    assert waits and play.cancelled()


def test_the_channel_to_a_whole_host_is_what_it_was_and_that_of_a_slice_is_to_its_agent(
    lab: Lab,
) -> None:
    assert (
        ATTACH.format(own_agent(lab.hosts["gpu01"]))
        == "exec python3 -S -E /var/lib/testbed/agent/__main__.py attach"
    )
    tokens = ATTACH.format(own_agent(lab.hosts["gpu01/b"])).split()
    assert tokens[:2] == ["exec", "env"] and "TESTBED_RUN=/run/testbed/partitions/b" in tokens
