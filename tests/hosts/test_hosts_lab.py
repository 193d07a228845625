"""The host side against the emulated lab: real sshd, Ansible, agents, light."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from drivers.registry import open_device
from optics import Change, HostPort, Link, Refused, Unreachable
from optics.plan import Job
from orchestrator.fabric.circuits import circuits, settings
from orchestrator.fabric.rules import Rules, hops, rules
from orchestrator.hosts import Committed, Hello, Hosts, job_name
from tests.kit.labs import lab_in

pytestmark = [pytest.mark.lab, pytest.mark.timeout(180)]

LINE = (
    Link(HostPort("gpu01", 1), HostPort("gpu02", 1)),
    Link(HostPort("gpu02", 2), HostPort("gpu03", 2)),
)
NAMES = ("gpu01", "gpu02", "gpu03")


class Emulated:
    """A running emulated lab of three hosts with two ports."""

    def __init__(self, folder: Path) -> None:
        self.inventory, self.state = folder / "inventory", folder / "state"
        argv = ["--hosts", "3", "--ports", "2", "--free-ports", "--settle-s", "0.02"]
        self._python(
            "emulators.generate", *argv, "--out", str(self.inventory), "--state", str(self.state)
        )
        self._python("emulators", str(self.inventory))
        self.lab = lab_in(self.inventory)

    @staticmethod
    def _python(*argv: str) -> None:
        subprocess.run([sys.executable, "-m", *argv], check=True, capture_output=True, timeout=60)

    def control(self, **request: Any) -> dict[str, Any]:
        with socket.socket(socket.AF_UNIX) as s:
            s.connect(str(self.state / "control.sock"))
            s.sendall(json.dumps(request).encode() + b"\n")
            answer = json.loads(s.makefile().readline())
        assert answer["ok"], answer
        return dict(answer)

    async def light(self, links: tuple[Link, ...]) -> None:
        """Make exactly these links of light."""
        wanted: Mapping[str, frozenset[Any]] = settings(circuits(links, self.lab))
        for name, config in self.lab.devices.items():
            device = open_device(config)
            observed = await device.read()
            want = wanted.get(name, frozenset())
            await device.apply(Change(name, observed - want, want - observed))
            await device.close()

    def end(self) -> None:
        pid = int((self.state / "lab.pid").read_text())
        os.kill(pid, signal.SIGTERM)
        end = time.monotonic() + 10
        while Path(f"/proc/{pid}").exists() and time.monotonic() < end:
            time.sleep(0.01)


@pytest.fixture(scope="module")
def emulated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulated]:
    if os.geteuid() != 0:
        pytest.skip("the emulated hosts need root")
    made = Emulated(tmp_path_factory.mktemp("lab"))
    yield made
    made.end()


@pytest.fixture
async def hosts(emulated: Emulated, tmp_path: Path) -> AsyncIterator[Hosts]:
    """Connected to three provisioned hosts without any generation."""
    async with Hosts(emulated.lab, emulated.inventory, tmp_path) as made:
        greeted = await made.channels.connect()
        assert all(isinstance(hello, Hello) for hello in greeted.values()), greeted
        if made.channels.unprovisioned():
            await made.provision(made.channels.unprovisioned())
        await made.routes.clear(
            list(made.channels.hellos),
            {number for hello in made.channels.hellos.values() for number in hello.staged},
        )
        yield made


def line_rules(hosts: Hosts) -> Mapping[str, Rules]:
    return rules(LINE, hosts.channels.lab, hosts.channels.macs())


async def test_hosts_are_provisioned_once_and_then_left_alone(
    emulated: Emulated, hosts: Hosts
) -> None:
    assert hosts.channels.unprovisioned() == ()
    again = await hosts.provision(["gpu01"])
    assert (again["gpu01"].changed, again["gpu01"].started) == ((), False)
    state = hosts.channels.hellos["gpu01"]
    assert state.installed and state.same_clock and state.ports[1].mtu == 9000
    assert len(hosts.channels.macs()) == 6


async def test_light_commits_what_was_armed_and_every_pair_is_reached_over_the_planned_links(
    emulated: Emulated, hosts: Hosts
) -> None:
    await emulated.light(())
    staged = await hosts.routes.stage({1: line_rules(hosts)})
    assert {name: s[1].routes for name, s in staged.items()} == dict.fromkeys(
        NAMES, 2 * emulated.lab.hosts["gpu01"].lanes
    )
    queue = hosts.channels.subscribe()
    ports = {"gpu01": [1], "gpu02": [1, 2], "gpu03": [2]}
    await hosts.routes.arm(1, ports, revert_after_s=30, deadline_s=10)
    await emulated.light(LINE)
    committed = await hosts.routes.wait_committed(1, NAMES, 5.0, queue)
    hosts.channels.unsubscribe(queue)
    for name in NAMES:
        outcome = committed[name]
        assert (
            isinstance(outcome, Committed)
            and outcome.link_ns is not None
            and outcome.commit_ns >= outcome.link_ns
        ), outcome
    planned = hops(LINE, emulated.lab)
    targets = {
        a: {
            emulated.lab.hosts[b].lane_address(lane): planned[a, b]
            for b in NAMES
            if b != a
            for lane in range(emulated.lab.hosts[b].lanes)
        }
        for a in NAMES
    }
    for source, answers in (await hosts.measure.probe(targets)).items():
        for address, answer in answers.items():
            assert (answer.ok, answer.hops) == (True, targets[source][address]), answer
    ends = await hosts.measure.neighbours(
        [HostPort("gpu02", 1), HostPort("gpu02", 2), HostPort("gpu01", 2), HostPort("gpu03", 2)]
    )
    assert (
        ends[HostPort("gpu02", 1)].sends_to
        == ends[HostPort("gpu02", 1)].receives
        == HostPort("gpu01", 1)
    )
    assert ends[HostPort("gpu02", 2)].sends_to == HostPort("gpu03", 2)
    assert (ends[HostPort("gpu01", 2)].carrier, ends[HostPort("gpu01", 2)].sends_to) == (
        False,
        None,
    )
    await hosts.routes.confirm(1)
    assert (await hosts.measure.counters(["gpu02"]))[HostPort("gpu02", 1)].tx_bytes > 0


async def test_routes_nobody_confirms_are_taken_back_and_management_never_noticed(
    emulated: Emulated, hosts: Hosts
) -> None:
    """S17: the channel that would have to confirm is on the management network, so losing the
    fabric never loses the host.
    """
    await hosts.routes.stage({1: line_rules(hosts)})
    queue = hosts.channels.subscribe()
    await hosts.routes.commit(1, revert_after_s=0.5)
    reverted = {}
    async with asyncio.timeout(5):
        while len(reverted) < 3:
            event = await queue.get()
            if event.kind == "reverted":
                reverted[event.host] = event.values["generation"]
            assert event.kind != "lost"
    hosts.channels.unsubscribe(queue)
    assert reverted == dict.fromkeys(NAMES)
    assert {
        name: hello.active
        for name, hello in (await hosts.channels.connect()).items()
        if isinstance(hello, Hello)
    } == dict.fromkeys(NAMES)


async def test_a_host_that_refuses_is_named_with_its_own_words_and_the_others_are_counted(
    hosts: Hosts,
) -> None:
    await hosts.routes.stage({5: {"gpu01": frozenset(), "gpu02": frozenset()}})
    with pytest.raises(Refused) as refused:
        await hosts.routes.commit(5)
    assert (
        str(refused.value)
        == "gpu03: generation 5 is not staged here (staged: none)\n(2 other hosts did it)"
    )


async def test_a_locale_that_this_machine_lacks_keeps_no_play_from_running(
    hosts: Hosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("LANG", "LC_ALL"):
        monkeypatch.setenv(name, "xx_YY.UTF-8")
    assert set(await hosts.routes.stage({9: {"gpu01": frozenset()}})) == {"gpu01"}


async def test_routes_that_were_staged_since_a_host_was_greeted_are_cleared_too(
    hosts: Hosts,
) -> None:
    await hosts.routes.stage({11: {"gpu01": frozenset()}})
    await hosts.routes.commit(11, ["gpu01"])
    await hosts.channels.greet(["gpu01"])
    await hosts.routes.stage({12: {"gpu01": frozenset()}, 13: {"gpu01": frozenset()}})
    await hosts.routes.commit(12, ["gpu01"])
    await hosts.routes.clear(["gpu01"], {11, 12})
    hello = (await hosts.channels.greet(["gpu01"]))["gpu01"]
    assert hello.active is None and hello.staged == (13,), "of somebody else"


async def test_a_rule_the_kernel_refuses_is_told_in_its_words_through_ansible(hosts: Hosts) -> None:
    made = dict(line_rules(hosts))
    made["gpu02"] = frozenset(
        replace(rule, interface="opt9") if hasattr(rule, "via") else rule for rule in made["gpu02"]
    )
    with pytest.raises(Refused) as refused:
        await hosts.routes.stage({6: made})
    assert str(refused.value).splitlines()[0].startswith(
        "gpu02: "
    ) and "no interface opt9 on this host" in str(refused.value)
    assert str(refused.value).endswith("(2 other hosts did it)")


async def test_a_host_whose_sshd_is_down_is_an_error_that_names_it_and_the_others_answer(
    emulated: Emulated, hosts: Hosts, tmp_path: Path
) -> None:
    emulated.control(op="host.sshd", host="gpu02", up=False)
    try:
        async with Hosts(emulated.lab, emulated.inventory, tmp_path) as fresh:
            greeted = await fresh.channels.connect()
            error = greeted["gpu02"]
            assert isinstance(error, Unreachable) and str(error).startswith(
                "gpu02: ssh root@127.0.0.1:"
            ), error
            assert error.hint == "is gpu02 up, and its sshd? nothing was changed there"
            assert isinstance(greeted["gpu01"], Hello) and isinstance(greeted["gpu03"], Hello)
            with pytest.raises(Unreachable, match="gpu02: no channel to its agent"):
                await fresh.routes.commit(1)
            with pytest.raises(Unreachable, match="gpu02: Ansible cannot reach it"):
                await fresh.routes.stage({9: {name: frozenset() for name in NAMES}})
    finally:
        emulated.control(op="host.sshd", host="gpu02", up=True)


async def test_a_host_key_that_is_not_the_known_one_is_refused(
    emulated: Emulated, tmp_path: Path
) -> None:
    known = tmp_path / "known_hosts"
    lines = (emulated.state / "known_hosts").read_text().splitlines()
    others = dict(line.split(" ", 1) for line in lines)
    here, elsewhere = (
        f"[127.0.0.1]:{emulated.lab.hosts[name].ssh.port}" for name in ("gpu01", "gpu02")
    )
    for text, message in (
        (f"{here} {others[elsewhere]}\n", "differs from the one in"),
        ("", "is not in"),
    ):
        known.write_text(text)
        host = emulated.lab.hosts["gpu01"]
        suspicious = replace(
            emulated.lab,
            hosts={"gpu01": replace(host, ssh=replace(host.ssh, known_hosts=str(known)))},
        )
        async with Hosts(suspicious, emulated.inventory, tmp_path) as fresh:
            error = (await fresh.channels.connect())["gpu01"]
        assert isinstance(error, Unreachable) and message in str(error) and error.hint, error


async def test_a_key_nobody_knows_does_not_get_in(emulated: Emulated, tmp_path: Path) -> None:
    shutil.copy(emulated.state / "host_keys" / "gpu01", tmp_path / "key")
    host = emulated.lab.hosts["gpu01"]
    stranger = replace(
        emulated.lab,
        hosts={"gpu01": replace(host, ssh=replace(host.ssh, key_file=str(tmp_path / "key")))},
    )
    async with Hosts(stranger, emulated.inventory, tmp_path) as fresh:
        error = (await fresh.channels.connect())["gpu01"]
    assert isinstance(
        error, Unreachable
    ) and f"no key was accepted for user root (tried {tmp_path / 'key'})" in str(error)


async def test_an_agent_that_is_gone_is_reported_and_provisioning_brings_it_back(
    emulated: Emulated, hosts: Hosts
) -> None:
    queue = hosts.channels.subscribe()
    port, key = emulated.lab.hosts["gpu01"].ssh.port, emulated.state / "id_ed25519"
    argv = [
        "-p",
        str(port),
        "-i",
        str(key),
        "-o",
        f"UserKnownHostsFile={emulated.state / 'known_hosts'}",
        "root@127.0.0.1",
    ]
    stop = await asyncio.create_subprocess_exec(
        "ssh",
        *argv,
        "python3 /var/lib/testbed/agent/__main__.py stop",
        stdout=asyncio.subprocess.DEVNULL,
    )
    assert await stop.wait() == 0
    async with asyncio.timeout(5):
        while (event := await queue.get()).kind != "lost":
            pass
    hosts.channels.unsubscribe(queue)
    assert event.host == "gpu01"
    with pytest.raises(Unreachable, match="gpu01: no channel to its agent"):
        await hosts.measure.counters()
    assert await hosts.channels.connect(["gpu01"]) == {"gpu01": Hello("gpu01")}
    assert hosts.channels.unprovisioned() == ("gpu01",)
    assert (await hosts.provision(["gpu01"]))["gpu01"].started is True
    assert len(await hosts.measure.counters()) == 6


async def test_a_job_is_launched_followed_stopped_and_brought_home(
    emulated: Emulated, hosts: Hosts, tmp_path: Path
) -> None:
    job = Job("wait", "train", ("gpu02", "gpu01"), args={"help": True})
    queue = hosts.channels.subscribe()
    assert {name: state.state for name, state in (await hosts.jobs.launch(job, "r1")).items()} == {
        "gpu01": "running",
        "gpu02": "running",
    }
    name = job_name("wait", "r1")
    ended = set()
    async with asyncio.timeout(30):
        while len(ended) < 2:
            event = await queue.get()
            ended |= {event.host} if event.kind == "job" else set()
    assert {s.code for s in (await hosts.jobs.states(name, job.ranks)).values()} == {0}
    assert "--iterations" in (await hosts.jobs.tail(name, "gpu01")).text
    folders = await hosts.jobs.collect(name, job.ranks)
    assert (
        "--iterations" in (folders["gpu02"] / "log").read_text()
        and folders["gpu02"] == tmp_path / "gpu02" / name
    )
    assert (await hosts.jobs.stop(name, 1.0, job.ranks))["gpu01"].state == "exited"
    with pytest.raises(Refused, match="gpu03"):
        await hosts.jobs.collect(name, ["gpu03"])


async def test_a_job_is_stopped_through_ansible_where_the_channel_is_lost(
    emulated: Emulated, hosts: Hosts, tmp_path: Path
) -> None:
    await hosts.jobs.launch(Job("stay", "train", ("gpu01", "gpu02"), args={"iterations": 0}), "r2")
    async with Hosts(emulated.lab, emulated.inventory, tmp_path / "other") as fresh:
        await fresh.channels.connect(["gpu01"])
        states = await fresh.jobs.stop(job_name("stay", "r2"), 0.2, ["gpu01", "gpu02"])
    assert {state.state for state in states.values()} <= {"killed", "exited"} and set(states) == {
        "gpu01",
        "gpu02",
    }


async def test_what_ansible_said_is_kept(hosts: Hosts, tmp_path: Path) -> None:
    await hosts.routes.stage({1: {"gpu01": frozenset()}})
    [output] = [
        p
        for p in tmp_path.glob("ansible/*-stage_rules/artifacts/*/stdout")
        if "gpu01" in p.read_text()
    ]
    assert "Stage route generations" in output.read_text()
