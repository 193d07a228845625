"""A congestion control whose window grows with a job's progress: in the kernel, and set by the
agent on a job's sockets.
"""

from __future__ import annotations

import os
import signal
import socket
import struct
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from agent.basics import Failure
from agent.daemon import Server
from extensions.congestion.host import jobs as congestion
from extensions.congestion.host import structops
from tests.agent.space import Peer, Space
from tests.extensions.congestion import loopback
from tests.kit.waiting import until

AVAILABLE = Path("/proc/sys/net/ipv4/tcp_available_congestion_control")
ROUND = 400_000  # bytes of an iteration
CANNOT = os.geteuid() != 0 or bool(structops.unsupported())
needs_kernel = pytest.mark.skipif(
    CANNOT, reason="needs root, libbpf1, and Linux 6.4 or newer with BTF"
)


def own_name(suffix: str = "") -> str:
    return f"itert{suffix}_{os.getpid()}"


@pytest.fixture
def registered() -> Iterator[congestion.Registered]:
    made = congestion.Registered(own_name())
    made.renew(60)
    yield made
    made.close()


@pytest.fixture
def joined(registered: congestion.Registered) -> Iterator[tuple[socket.socket, socket.socket]]:
    with loopback.joined(registered.name, 4 * ROUND) as ends:
        yield ends


def pass_through(near: socket.socket, far: socket.socket, size: int) -> None:
    near.sendall(bytes(size))
    while size:
        size -= len(far.recv(size))


def wanted(**given: Any) -> dict[str, Any]:
    return congestion.checked({"control": "mltcp", "parameters": given})


def acked(near: socket.socket, total: int) -> bool:
    """Of TCP_INFO (linux/tcp.h): tcpi_bytes_acked."""
    info = near.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 128)
    return int(struct.unpack_from("=Q", info, 120)[0]) >= total


@needs_kernel
def test_the_factor_grows_with_the_share_of_an_iterations_bytes_and_begins_again_after_a_gap(
    registered: congestion.Registered, joined: tuple[socket.socket, socket.socket]
) -> None:
    near = joined[0]
    registered.give(near.fileno(), wanted(slope=1.5, intercept=0.5, bytes=ROUND, gap_ms=300))
    time.sleep(0.35)
    pass_through(*joined, ROUND // 2)
    assert until(lambda: acked(near, ROUND // 2))
    half = registered.seen(near.fileno())
    assert 1.2 <= half["factor"] <= 1.3, (
        "0.5 + 1.5 / 2, less what the acknowledgement that ended the gap covered"
    )
    pass_through(*joined, ROUND)
    assert until(lambda: acked(near, ROUND * 3 // 2))
    assert registered.seen(near.fileno())["factor"] == 2.0, (
        "an iteration that sends more than it should has sent all"
    )
    time.sleep(0.35)
    pass_through(*joined, ROUND // 100)
    assert until(lambda: acked(near, ROUND * 3 // 2 + ROUND // 100))
    again = registered.seen(near.fileno())
    assert again["factor"] < 0.6
    assert again["iterations"] == half["iterations"] + 1


@needs_kernel
def test_bytes_and_gap_are_learned_from_the_connection_itself(
    registered: congestion.Registered, joined: tuple[socket.socket, socket.socket]
) -> None:
    near = joined[0]
    registered.give(near.fileno(), wanted())
    for _ in range(12):
        time.sleep(0.1)
        pass_through(*joined, ROUND)
    assert until(lambda: registered.seen(near.fileno())["factor"] > 1.5)
    found = registered.seen(near.fileno())
    assert 0.8 * ROUND <= found["bytes"] <= 1.2 * ROUND
    assert found["gap_ms"] >= 20


@needs_kernel
def test_without_parameters_or_after_the_lease_it_grows_as_any_other_does(
    registered: congestion.Registered, joined: tuple[socket.socket, socket.socket]
) -> None:
    near = joined[0]
    pass_through(*joined, ROUND)
    assert registered.seen(near.fileno())["factor"] == 1.0
    registered.give(near.fileno(), wanted(intercept=0.25, slope=0, bytes=ROUND))
    pass_through(*joined, ROUND)
    assert until(lambda: registered.seen(near.fileno())["factor"] == 0.25)
    registered.renew(0)
    pass_through(*joined, ROUND)
    assert until(lambda: registered.seen(near.fileno())["factor"] == 1.0)


@needs_kernel
def test_the_death_of_who_holds_it_takes_it_away_and_open_connections_go_on() -> None:
    name, (here, other) = own_name("d"), os.pipe()
    child = os.fork()
    if child == 0:
        try:
            congestion.Registered(name).renew(60)
            os.write(other, b"up")
            signal.pause()
        finally:
            os._exit(1)
    os.close(other)
    with os.fdopen(here, "rb") as reported:
        assert reported.read(2) == b"up"
    with socket.create_server(("127.0.0.1", 0)) as listener:
        near = socket.create_connection(listener.getsockname())
        far = listener.accept()[0]
    with near, far:
        near.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, name.encode())
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        pass_through(near, far, ROUND)
        assert until(lambda: name not in AVAILABLE.read_text().split())
        pass_through(near, far, ROUND)
        near.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"reno")


GROWS = """
import select, socket, struct, subprocess, sys, time
sys.path.insert(0, sys.argv[1])
from extensions.congestion.host import jobs as congestion

def info(s):
    raw = s.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 128)  # linux/tcp.h: state, ssthresh, window, bytes acknowledged
    return raw[1], *struct.unpack_from("=II", raw, 76), struct.unpack_from("=Q", raw, 120)[0]

def pump(near, far, holds):
    near.setblocking(False)
    while not holds(info(near)):
        readable, writable, _ = select.select([far], [near], [], 0.01)
        near.send(bytes(20_000)) if writable else None
        far.recv(1 << 20) if readable else None

made = congestion.Registered("grow_" + sys.argv[2])
made.renew(600)
door = socket.create_server(("127.0.0.1", 0))
door.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_000_000)
for factor in (4.0, 0.25):
    near = socket.socket()
    near.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, 500)
    near.connect(door.getsockname())
    far = door.accept()[0]
    wanted = congestion.checked({"control": "mltcp", "parameters": {"slope": 0, "intercept": factor, "bytes": 1}})
    made.give(near.fileno(), wanted)
    near.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, made.name.encode())
    queue = "tc qdisc replace dev lo parent 1:1 handle 10: bfifo limit "
    subprocess.run((queue + "20000").split(), check=True)
    pump(near, far, lambda now: now[1] < 1 << 30)
    subprocess.run((queue + "100000000").split(), check=True)
    pump(near, far, lambda now: now[0] == 0 and now[1] <= now[2])
    before = info(near)
    pump(near, far, lambda now: now[3] - before[3] > 3_000_000)
    after = info(near)
    segments = (after[3] - before[3]) / 500
    print(factor, (after[2] ** 2 - before[2] ** 2) / (2 * segments))
"""


@needs_kernel
def test_a_window_grows_by_the_factor_in_a_round_trip_once_something_was_lost(
    spaces: Callable[[str], Space],
) -> None:
    """A window c that grows by F segments for c that are acknowledged has grown so that c * c / 2
    is larger by F for each.
    """
    alone = spaces("alone")
    for text in (
        "qdisc add dev lo root handle 1: htb default 1",
        "class add dev lo parent 1: classid 1:1 htb rate 50mbit",
    ):
        assert alone.run("tc", *text.split()).returncode == 0
    done = alone.run(
        "/usr/bin/env", "python3", "-c", GROWS, str(Path(__file__).parents[3]), str(os.getpid())
    )
    assert not done.stderr
    for line in done.stdout.splitlines():
        factor, found = map(float, line.split())
        assert 0.7 * factor <= found <= 1.3 * factor, done.stdout
    assert len(done.stdout.splitlines()) == 2


@pytest.mark.parametrize(
    ("request_", "text"),
    [
        ({"control": "vegas"}, "control: one of cubic, reno, bbr, mltcp is needed"),
        (
            {"control": "cubic", "parameters": {"slope": 1}},
            "parameters: a mapping, of control mltcp only",
        ),
        ({"control": "mltcp", "parameters": {"slop": 1}}, "parameters: slop is unknown"),
        ({"control": "mltcp", "parameters": {"slope": -1}}, "slope: a number from 0 to 64"),
        ({"control": "mltcp", "parameters": {"intercept": 0}}, "intercept: at least"),
        ({"control": "mltcp", "parameters": {"intercept": float("nan")}}, "intercept: a number"),
        ({"control": "mltcp", "parameters": {"bytes": "many"}}, "bytes: a number"),
        ({"control": "mltcp", "parameters": {"gap_ms": 1e12}}, "gap_ms: a number"),
    ],
)
def test_a_control_that_is_none_is_refused(request_: dict[str, Any], text: str) -> None:
    with pytest.raises(Failure, match=text):
        congestion.checked(request_)


def test_what_a_host_lacks_is_said_before_anything_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        structops.os, "uname", lambda: os.uname_result(("Linux", "", "5.15.0-91", "", "x86_64"))
    )
    assert "boot 6.4 or newer" in congestion.unsupported("mltcp")
    monkeypatch.setattr(congestion, "available", lambda: ["cubic"])
    assert congestion.unsupported("bbr") == "the kernel of this host has cubic: modprobe tcp_bbr"
    assert not congestion.unsupported("cubic")


PROGRAM = ["/usr/bin/env", "python3", "-S", "-E", "-c"]
SENDS = """
import os, socket, sys, time
there = sys.argv[1]
near = socket.create_connection((there, 5017), source_address=("10.255.0.1", 0))
while True:
    near.sendall(bytes(100_000))
    time.sleep(0.1)
"""
ACCEPTS = """
import os, socket, sys, threading
door = socket.create_server(("10.255.9.9", 5017))
print("ready", flush=True)
def serve():
    while True:
        s = door.accept()[0]
        while s.recv(1 << 20):
            pass
        s.close()
threading.Thread(target=serve).start()
sys.stdin.read()
os._exit(0)
"""


@pytest.fixture
def far(host: Space, peer: Peer) -> Iterator[str]:
    """An address at the far end of the first fibre, where connections are accepted; a route to it
    names another control.
    """
    other = host.far  # type: ignore[attr-defined]
    other.ip("addr", "replace", "10.255.9.9/32", "dev", "lo")
    other.ip("addr", "replace", "10.1.0.9/24", "dev", "opt1")
    other.ip("route", "replace", "10.255.0.0/16", "via", "10.1.0.1", "dev", "opt1", "onlink")
    neighbours, routes = (
        [["10.1.0.9", other.mac("opt1"), "opt1"]],
        [["10.255.9.9/32", "10.1.0.9", "opt1", ""]],
    )
    assert (
        peer.ask("stage", generation=71, routes=routes, neighbours=neighbours, congctl="reno")[
            "congctl"
        ]
        == "reno"
    )
    assert peer.ask("commit", generation=71)["ok"]
    listener = subprocess.Popen(
        other.argv("/usr/bin/env", "python3", "-c", ACCEPTS),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert listener.stdin is not None
    assert listener.stdout is not None
    assert listener.stdout.readline() == b"ready\n"
    yield "10.255.9.9"
    listener.stdin.close()
    listener.wait()
    listener.stdout.close()


@pytest.fixture
def job(peer: Peer, far: str) -> Iterator[str]:
    """A job with a connection over a lane, and nothing said of congestion control."""
    assert peer.ask("job.start", name="sender", argv=[*PROGRAM, SENDS, far])["ok"]
    yield "sender"
    peer.ask("job.stop", name="sender", grace_s=0.1)


def controls(peer: Peer) -> list[str]:
    rows = peer.ask("congestions")["jobs"]
    return [s["control"] for row in rows.values() for s in row["sockets"]]


@needs_kernel
def test_a_running_jobs_connections_get_it_and_lose_it(peer: Peer, job: str) -> None:
    assert peer.ask("congestion", job=job, control="cubic", back=True)["jobs"] == {}, (
        "it was given none that could be taken back"
    )
    assert peer.ask("congestion", job=job, control="mltcp", parameters={"slope": 4})["ok"]
    [name] = until(lambda: controls(peer))
    assert name.startswith("iter_")
    assert name in AVAILABLE.read_text().split()
    [row] = peer.ask("congestions", job=job)["jobs"].values()
    assert row["wanted"] == {
        "control": "mltcp",
        "slope": 4,
        "intercept": 0.25,
        "bytes": 0,
        "gap_ms": 0.0,
    }
    assert until(lambda: peer.ask("congestions")["jobs"][job]["sockets"][0]["iterations"] > 1), (
        "it follows the job's iterations"
    )
    assert peer.ask("congestion", job=job, control="cubic", back=True)["ok"]
    assert until(lambda: controls(peer) == ["cubic"])
    assert until(lambda: name not in AVAILABLE.read_text().split())


@needs_kernel
def test_a_job_that_starts_with_one_has_it_until_it_ends_also_over_a_killed_agent(
    host: Space, peer: Peer, far: str
) -> None:
    made = peer.ask(
        "job.start", name="sender", argv=[*PROGRAM, SENDS, far], congestion={"control": "mltcp"}
    )
    assert made["ok"], made
    assert until(lambda: controls(peer))
    host.run("kill", "-9", str(host.daemon_pids()[-1]))

    def again() -> bool:
        found = host.agent("call", {"op": "congestions"})[0].get("jobs", {}).get("sender")
        return bool(
            found and found["sockets"] and found["sockets"][0]["control"].startswith("iter_")
        )

    assert until(again)
    host.agent("call", {"op": "job.stop", "name": "sender", "grace_s": 0.1})
    assert until(lambda: host.agent("call", {"op": "congestions"})[0]["jobs"] == {})


def test_only_a_job_that_runs_here_and_the_newest_run_can_set_it(peer: Peer) -> None:
    refused = peer.ask("congestion", job="nobody", control="reno")
    assert (refused["code"], refused["error"]) == ("refused", "no job nobody runs on this host")
    assert peer.ask("congestion", job="../x", control="reno")["code"] == "bad-request"
    assert (
        peer.ask("job.start", name="odd", argv=["true"], congestion="reno")["code"] == "bad-request"
    )
    assert peer.ask("fence", token=9)["ok"]
    assert peer.ask("congestion", job="nobody", control="reno", token=8)["code"] == "overtaken"


def test_agents_of_the_slices_of_a_host_register_names_of_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names: list[str] = []

    class Taken:
        def __init__(self, name: str) -> None:
            assert len(name) <= 15
            assert name not in names, "the kernel has it already"
            names.append(name)

        def close(self) -> None:
            names.pop()

    monkeypatch.setattr(congestion, "Registered", Taken)
    monkeypatch.setattr(congestion, "unsupported", lambda control: "")
    for facts in ({}, {"partition": {"index": 0}}, {"partition": {"index": 7}}):
        made = congestion.Congestions(cast(Server, SimpleNamespace(facts=facts)))
        made.ready({"control": "mltcp"})
        made.able("mltcp")
    assert names[0] == structops.name_here("iter"), "of a whole host as ever"
