"""Partitions of a host in private namespaces: an agent each, rules of their own lanes, shares of a
port, and what they leave alone.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from agent.host import partitions
from tests.agent.routes.test_generations import wait_for
from tests.agent.space import AGENT, Peer, Space, facts

pytestmark = pytest.mark.lab

MBPS = 40.0
PARTITIONS: dict[str, dict[str, Any]] = {
    "a": {
        "index": 0,
        "lanes": ["10.255.0.1"],
        "share": 0.5,
        "cpus": "0",
        "mig": ["MIG-1", "MIG-2"],
    },
    "b": {"index": 1, "lanes": ["10.255.1.1"], "share": 0.25},
}
# Sends from two lanes at once, as fast as it may, and tries to get from each lane into the other.
SENDER = """
import socket, time
flows = []
for source, target in (("10.255.0.1", "10.255.0.2"), ("10.255.1.1", "10.255.1.2")):
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.bind((source, 0))
    flows.append((s, target))
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 200000)
for (s, _), (_, target) in zip(flows, reversed(flows)):
    try:
        s.sendto(b"x", (target, 9))
        print("crossed", flush=True)
    except OSError as e:
        print(e.strerror, flush=True)
for s, _ in flows:
    s.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 60000)
    s.setblocking(False)
end = time.monotonic() + 2.5
while time.monotonic() < end:
    for s, target in flows:
        try:
            for _ in range(40):
                s.sendto(bytes(1200), (target, 9))
        except BlockingIOError:
            pass
    time.sleep(0.0005)
"""
# Counts what arrives by interface, source and destination: all, and what came in the middle second
# of it.
COUNTER = """
import json, socket, sys, time
s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x800))
s.setsockopt(socket.SOL_SOCKET, 33, 1 << 25)
s.settimeout(5)
print("ready", flush=True)
seen, middle, began = set(), {}, None
while True:
    try:
        data, (interface, _, kind, *_) = s.recvfrom(2048)
    except TimeoutError:
        break
    if kind == 4 or data[23] != 17:
        continue
    s.settimeout(0.5)
    began = began or time.monotonic()
    ends = socket.inet_ntoa(data[26:30]), socket.inet_ntoa(data[30:34])
    seen.add((interface, *ends))
    if 0.7 < time.monotonic() - began < 2.2:
        middle[ends[0]] = middle.get(ends[0], 0) + len(data)
print(json.dumps([sorted(seen), middle]))
"""


def partitioned(**host_partitions: dict[str, Any]) -> dict[str, Any]:
    """Facts of a host with these partitions."""
    found = facts("gpu01", 1, 2) | {"partitions": host_partitions}
    found["ports"] = [dict(port, mbps=MBPS) for port in found["ports"]]
    return found | {"echo": []}


def of(space: Space, name: str, command: str) -> list[str]:
    """The command line of the agent of a partition."""
    where = [
        f"TESTBED_RUN=/run/testbed/partitions/{name}",
        f"TESTBED_VAR=/run/var/partitions/{name}",
    ]
    return space.argv("env", *where, sys.executable, "-S", "-E", str(AGENT), command)


@pytest.fixture(scope="module")
def shared(spaces: Callable[[str], Space]) -> Space:
    """A host in two partitions, joined to a far end; the agents of all run."""
    here, other = spaces("gpu01"), spaces("far")
    for port in (1, 2):
        here.fibre(port, other, port)
    here.far = other  # type: ignore[attr-defined]
    done = here.agent("install", partitioned(**PARTITIONS))
    assert done[1]["started"] is True
    assert any("set by affinity" in note for note in done[0]["notes"]), "no cgroup is mounted there"
    other.ip("link", "set", "lo", "up")
    for lane in (0, 1):
        other.ip("address", "add", f"10.255.{lane}.2/32", "dev", "lo")
    return here


@pytest.fixture
def peers(shared: Space) -> Iterator[dict[str, Peer]]:
    """Channels to the agents of both partitions and of the whole host, all without a generation."""
    made = {name: Peer(of(shared, name, "attach")) for name in PARTITIONS} | {"": shared.attach()}
    for peer in made.values():
        assert peer.ask("clear")["ok"]
        peer.ask("watch")
    yield made
    for peer in made.values():
        peer.close()


def rules(host: Space, lane: int, generation: int, port: int, count: int = 2) -> dict[str, Any]:
    """A generation of the partition that has this lane: everything out of one port."""
    return {
        "generation": generation,
        "routes": [
            [f"10.255.{lane}.{h}/32", f"10.{port}.0.9", f"opt{port}", f"10.255.{lane}.1"]
            for h in range(2, 2 + count)
        ],
        "neighbours": [[f"10.{port}.0.9", host.far.mac(f"opt{port}"), f"opt{port}"]],  # type: ignore[attr-defined]
    }


def path(host: Space, lane: int, source: str = "") -> str:
    """The interface to the far end's address of a lane; empty where there is no route."""
    done = host.run(
        "ip", "-j", "route", "get", f"10.255.{lane}.2", *(["from", source] if source else [])
    )
    return str(json.loads(done.stdout)[0]["dev"]) if done.returncode == 0 else ""


def up(host: Space, peers: dict[str, Peer], **ports: int) -> None:
    """Generation 1 of each named partition, confirmed, out of this port."""
    for lane, name in enumerate("ab"):
        if name in ports:
            assert peers[name].ask("stage", **rules(host, lane, 1, ports[name]))["ok"]
            assert peers[name].ask("commit", generation=1)["ok"]
            peers[name].ask("confirm", generation=1)


def test_packets_of_a_slice_take_its_own_routes_and_no_others_and_get_its_share(
    shared: Space, peers: dict[str, Peer]
) -> None:
    up(shared, peers, a=1, b=1)
    counter = subprocess.Popen(
        shared.far.argv(sys.executable, "-c", COUNTER), stdout=subprocess.PIPE, text=True
    )  # type: ignore[attr-defined]
    assert counter.stdout is not None and counter.stdout.readline() == "ready\n"
    result = shared.run(sys.executable, "-c", SENDER)
    seen, middle = json.loads(counter.communicate(timeout=20)[0])
    assert result.stdout.split("\n")[:2] == ["Network is unreachable"] * 2 and not result.stderr
    assert seen == [["opt1", "10.255.0.1", "10.255.0.2"], ["opt1", "10.255.1.1", "10.255.1.2"]]
    assert middle["10.255.0.1"] / middle["10.255.1.1"] == pytest.approx(2.0, rel=0.2)


def test_a_commit_and_a_revert_of_one_slice_leave_the_others_routes(
    shared: Space, peers: dict[str, Peer]
) -> None:
    up(shared, peers, a=1, b=1)
    peers["a"].ask("stage", **rules(shared, 0, 2, 2))
    before = shared.ip("rule", "show", "pref", "7002"), shared.ip("route", "show", "table", "7501")
    peers["a"].ask("commit", generation=2, revert_after_s=0.5)
    assert (path(shared, 0), path(shared, 1)) == ("opt2", "opt1")
    assert peers["a"].event("reverted")["generation"] == 1
    assert (path(shared, 0), path(shared, 1)) == ("opt1", "opt1")
    assert before == (
        shared.ip("rule", "show", "pref", "7002"),
        shared.ip("route", "show", "table", "7501"),
    )
    peers["a"].ask("clear")
    assert (path(shared, 0), path(shared, 1)) == ("", "opt1")
    assert peers["b"].ask("hello")["active"] == 1 and "reverted" not in [
        e["event"] for e in peers["b"].events
    ]


def test_a_slice_routes_what_passes_through_in_its_lanes_and_nothing_between_lanes(
    shared: Space, peers: dict[str, Peer]
) -> None:
    up(shared, peers, a=1, b=2)
    assert (path(shared, 0, "10.255.0.1"), path(shared, 1, "10.255.1.1")) == ("opt1", "opt2")
    assert (path(shared, 1, "10.255.0.1"), path(shared, 0, "10.255.1.1")) == ("", "")
    through = shared.run(
        "ip", "-j", "route", "get", "10.255.0.2", "from", "10.255.0.7", "iif", "opt2"
    )
    assert through.returncode == 0 and '"opt1"' in through.stdout
    assert (
        shared.run(
            "ip", "route", "get", "10.255.1.2", "from", "10.255.0.7", "iif", "opt2"
        ).returncode
        != 0
    )


def test_a_hold_of_one_slice_ends_by_itself_while_the_other_sends(
    shared: Space, peers: dict[str, Peer]
) -> None:
    up(shared, peers, a=1, b=1)
    peers["a"].ask("stage", generation=3)
    assert peers["a"].ask("commit", generation=3, hold=True, revert_after_s=0.5)["ok"]
    assert (path(shared, 0), path(shared, 1)) == ("", "opt1")
    assert peers["a"].event("reverted")["generation"] == 1
    assert (path(shared, 0), path(shared, 1)) == ("opt1", "opt1")


def test_a_killed_agent_of_one_slice_ends_nothing_of_the_other_and_its_revert_still_comes(
    shared: Space, peers: dict[str, Peer]
) -> None:
    up(shared, peers, a=1, b=1)
    peers["a"].ask("stage", **rules(shared, 0, 2, 2))
    peers["a"].ask("commit", generation=2, revert_after_s=1.5)
    peers["b"].ask("stage", **rules(shared, 1, 2, 2))
    peers["b"].ask("arm", generation=2, when_up=["opt1"], deadline_s=60)
    shared.run("kill", "-9", str(peers["a"].ask("hello")["pid"]))
    # as if it had died between the messages of an exchange: a rule of a table that nobody selects
    shared.ip(
        "rule",
        "add",
        "from",
        "10.255.0.0/24",
        "to",
        "10.255.0.0/24",
        "table",
        "7299",
        "pref",
        "7001",
        "protocol",
        "183",
    )
    assert peers["b"].ask("hello")["armed"] == 2 and path(shared, 1) == "opt1"
    assert wait_for(lambda: path(shared, 0) == "opt1", 8.0)
    assert wait_for(lambda: "7299" not in shared.ip("rule", "show", "pref", "7001"))
    assert shared.ip("rule", "show", "pref", "7001").count("lookup") == 2
    assert peers["b"].ask("hello")["armed"] == 2
    again = Peer(of(shared, "a", "attach"))
    assert again.ask("hello")["active"] == 1
    again.close()
    peers["a"].close()


def test_a_host_is_used_whole_or_in_slices(shared: Space, peers: dict[str, Peer]) -> None:
    up(shared, peers, a=1)
    assert peers[""].ask("stage", **rules(shared, 1, 1, 2))["ok"]
    answer = peers[""].ask("commit", generation=1)
    assert (
        answer["code"] == "refused"
        and "used in partitions (rules with preference 7001)" in answer["error"]
    )
    assert peers[""].ask("hello")["active"] is None and path(shared, 1) == ""
    peers["a"].ask("clear")
    assert peers[""].ask("commit", generation=1)["ok"]
    peers["b"].ask("stage", **rules(shared, 1, 1, 1))
    answer = peers["b"].ask("commit", generation=1)
    assert answer["code"] == "refused" and "used whole" in answer["error"]
    assert path(shared, 1) == "opt2" and peers["b"].ask("hello")["active"] is None


def test_a_neighbour_that_two_slices_use_stays_until_both_have_dropped_it(
    shared: Space, peers: dict[str, Peer]
) -> None:
    up(shared, peers, a=1, b=1)
    assert "10.1.0.9 lladdr" in shared.ip("neigh", "show", "dev", "opt1")
    peers["a"].ask("clear")
    assert "10.1.0.9 lladdr" in shared.ip("neigh", "show", "dev", "opt1")
    peers["b"].ask("clear")
    assert "10.1.0.9" not in shared.ip("neigh", "show", "dev", "opt1")


def test_a_newer_run_of_one_slice_does_not_fence_off_the_other(peers: dict[str, Peer]) -> None:
    assert peers["a"].ask("fence", token=900)["token"] == 900
    assert peers["b"].ask("fence", token=5)["ok"]
    assert peers["a"].ask("disarm", token=899)["code"] == "overtaken"


def test_a_job_of_a_slice_keeps_to_its_processors_and_sees_its_mig_devices(
    shared: Space, peers: dict[str, Peer]
) -> None:
    shared.run("mkdir", "-p", "/run/cpuset")
    if shared.run("mount", "-t", "cgroup", "-o", "cpuset", "none", "/run/cpuset").returncode:
        pytest.skip("cpuset of version 1 is not installed in this kernel")
    script = "import os; os.sched_setaffinity(0, range(64)); print(os.environ['CUDA_VISIBLE_DEVICES'], os.sched_getaffinity(0))"
    peers["a"].ask(
        "job.start", name="j", argv=["sh", "-c", f'sleep 0.3; {sys.executable} -c "{script}"']
    )
    try:
        assert wait_for(lambda: peers["a"].ask("job.status", name="j")["state"] == "exited", 10.0)
        assert peers["a"].ask("job.tail", name="j")["data"].strip() == "MIG-1,MIG-2 {0}"
        assert peers["b"].ask("job.status", name="j")["state"] == "absent"
    finally:
        shared.run("rmdir", "/run/cpuset/testbed-a")
        shared.run("umount", "/run/cpuset")


def test_a_slice_with_a_plan_up_is_not_taken_away_and_provisioning_twice_changes_nothing(
    shared: Space, peers: dict[str, Peer]
) -> None:
    up(shared, peers, b=1)
    [answer] = shared.agent("provision", partitioned(a=PARTITIONS["a"]))
    assert (
        answer["error"]
        == "partition b of this host has a plan up; take it down before the inventory changes it"
    )
    assert path(shared, 1) == "opt1"
    assert shared.agent("provision", partitioned(**PARTITIONS))[0]["changed"] == []


def test_somebody_elses_queueing_discipline_is_not_replaced_and_ours_goes_with_the_slices(
    spaces: Callable[[str], Space],
) -> None:
    here, other = spaces("gpu02"), spaces("far2")
    for port in (1, 2):
        here.fibre(port, other, port)
    assert (
        here.run("tc", "qdisc", "add", "dev", "opt2", "root", "handle", "5:", "htb").returncode == 0
    )
    [answer] = here.agent("provision", partitioned(**PARTITIONS))
    assert "opt2 has a queueing discipline of somebody else's (htb 5:)" in answer["error"]
    here.run("tc", "qdisc", "del", "dev", "opt2", "root")
    assert "shares of opt2" in here.agent("provision", partitioned(**PARTITIONS))[0]["changed"]
    plain = here.agent("provision", facts("gpu02", 1, 2))[0]["changed"]
    assert "partition a removed" in plain and "no shares of opt1" in plain
    assert "htb" not in here.run("tc", "qdisc", "show", "dev", "opt1").stdout


def test_nobody_begins_to_use_a_host_otherwise_between_the_look_and_the_rule(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[str] = []

    @contextlib.contextmanager
    def shared(self: object) -> Iterator[None]:
        seen.append("alone")
        yield
        seen.append("others")

    class Kernel:
        def send(self, messages: list[Any]) -> list[Any]:
            seen.append("rules")
            return []

    monkeypatch.setattr(partitions.Neighbourly, "shared", shared)
    monkeypatch.setattr(partitions, "selectors", lambda nl: seen.append("look") or [])
    monkeypatch.setattr(partitions, "rule_tables", lambda nl: seen.append("look") or [])
    partitions.Neighbourly().exchange(Kernel(), lambda generation: generation, None, 1)
    assert seen == ["alone", "look", "rules", "others"]
    seen.clear()
    partitions.Partition(0, ["10.255.0.1"]).exchange(
        Kernel(), lambda generation: generation, None, 1
    )
    assert seen[:2] == ["alone", "look"] and seen[-1] == "others"
