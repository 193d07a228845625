"""A congestion control with a window for each of two networks: in the kernel, and as the agent's
operations.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from agent.basics import Failure
from extensions.congestion.host import networks, structops
from tests.agent.space import Peer, Space
from tests.extensions.congestion import loopback
from tests.kit.waiting import until

AVAILABLE = Path("/proc/sys/net/ipv4/tcp_available_congestion_control")
LITTLE, MUCH = 20_000, 200_000
CANNOT = os.geteuid() != 0 or bool(structops.unsupported())
pytestmark = pytest.mark.skipif(
    CANNOT, reason="needs root, libbpf1, and Linux 6.4 or newer with BTF"
)


def own_name() -> str:
    return f"net2t_{os.getpid()}"


@pytest.fixture
def registered() -> Iterator[networks.Registered]:
    made = networks.Registered(own_name())
    yield made
    made.close()


@pytest.fixture
def joined(registered: networks.Registered) -> Iterator[tuple[socket.socket, socket.socket]]:
    with loopback.joined(registered.name, 2 * MUCH) as ends:
        yield ends


def window(near: socket.socket) -> int:
    """Of TCP_INFO (linux/tcp.h): tcpi_snd_cwnd, in segments."""
    info = near.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104)
    return int(struct.unpack_from("=I", info, 80)[0])


def pass_through(near: socket.socket, far: socket.socket, size: int, times: int = 1) -> None:
    """Send `size` bytes so many times, each time until all has arrived. More than the window holds
    lets it grow.
    """
    for _ in range(times):
        near.sendall(bytes(size))
        left = size
        while left:
            left -= len(far.recv(left))


def test_a_connection_has_a_window_for_each_network_and_one_when_there_is_one_state(
    registered: networks.Registered, joined: tuple[socket.socket, socket.socket]
) -> None:
    registered.emit(0, 2, 60)
    pass_through(*joined, LITTLE, 8)
    first = window(joined[0])
    registered.emit(1, 2, 60)
    pass_through(*joined, MUCH, 20)
    second = window(joined[0])
    assert second > first
    registered.emit(0, 2, 60)
    pass_through(*joined, LITTLE)
    back = window(joined[0])
    assert back < second
    registered.emit(1, 2, 60)
    pass_through(*joined, LITTLE)
    assert window(joined[0]) >= second
    registered.emit(0, 1, 60)  # one state: it is that of network 0, whatever the network
    pass_through(*joined, LITTLE)
    alone = window(joined[0])
    registered.emit(1, 1, 60)
    pass_through(*joined, LITTLE)
    assert back <= alone <= window(joined[0]) < second


def test_a_network_is_a_lease_after_which_the_first_window_counts(
    registered: networks.Registered, joined: tuple[socket.socket, socket.socket]
) -> None:
    registered.emit(0, 2, 60)
    pass_through(*joined, LITTLE, 8)
    registered.emit(1, 2, 60)
    pass_through(*joined, MUCH, 20)
    second = window(joined[0])
    registered.emit(1, 2, 0)
    pass_through(*joined, LITTLE)
    assert window(joined[0]) < second


def test_it_is_gone_when_who_holds_it_is_killed_and_open_connections_go_on() -> None:
    name, (here, second) = own_name(), os.pipe()
    child = os.fork()
    if child == 0:
        try:
            networks.Registered(name).emit(1, 2, 60)
            os.write(second, b"up")
            signal.pause()
        finally:
            os._exit(1)
    os.close(second)
    with os.fdopen(here, "rb") as reported:
        assert reported.read(2) == b"up"
    with socket.create_server(("127.0.0.1", 0)) as listener:
        near = socket.create_connection(listener.getsockname())
        far = listener.accept()[0]
    with near, far:
        near.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, name.encode())
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        pass_through(near, far, LITTLE, 20)
        with socket.socket() as other, pytest.raises(FileNotFoundError):
            assert until(lambda: name not in AVAILABLE.read_text())
            other.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, name.encode())
        near.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"cubic")
        pass_through(near, far, LITTLE)


def test_what_is_missing_is_named_with_where_to_get_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(structops, "FOLDER", str(tmp_path))
    with pytest.raises(
        Failure, match=r"bpf/networks.bpf.o: No such file or directory; provision this host again"
    ):
        networks.Registered("net2t")
    (tmp_path / "bpf").mkdir()
    (tmp_path / "bpf/networks.bpf.o").write_bytes(structops.PLACE + b"no object")
    with pytest.raises(Failure, match="net2t: the object cannot be read"):
        networks.Registered("net2t")
    monkeypatch.setattr(
        structops.os, "uname", lambda: os.uname_result(("Linux", "", "5.15.0-91", "", "x86_64"))
    )
    with pytest.raises(
        Failure, match=r"Linux 5.15.0-91 has no links for struct_ops: boot 6.4 or newer"
    ):
        networks.Registered("net2t")


def test_the_agent_tells_it_the_network_of_the_generation_that_is_committed(
    host: Space, peer: Peer
) -> None:
    mac = "02:00:00:00:00:01"
    found = peer.ask("networks.load", networks={"71": 0, "72": 1})
    name = found["congctl"]
    assert name in host.run("cat", str(AVAILABLE)).stdout.split() and len(name) < 16
    networks_seen = []
    for generation in (71, 72, 73):
        routes = [["10.255.9.9/32", "10.1.0.9", "opt1", ""]]
        made = peer.ask(
            "stage",
            generation=generation,
            routes=routes,
            neighbours=[["10.1.0.9", mac, "opt1"]],
            congctl=networks.PER_NETWORK,
        )
        assert made["congctl"] == name
        assert f"congctl {name}" in host.ip("route", "show", "table", str(7000 + generation))
        peer.ask("commit", generation=generation)
        networks_seen.append(peer.ask("networks")["network"])
    assert networks_seen == [0, 1, 0]
    peer.ask("commit", generation=72)
    assert peer.ask("networks")["network"] == 1
    peer.ask("revert")
    assert peer.ask("networks")["network"] == 0
    assert peer.ask("networks.drop")["congctl"] is None
    assert until(lambda: name not in host.run("cat", str(AVAILABLE)).stdout)


@pytest.mark.parametrize(
    "wanted",
    [
        {"networks": {"7": 2}},
        {"networks": [7]},
        {"networks": {"x": 1}},
        {"networks": {}, "states": 3},
    ],
)
def test_networks_that_are_none_are_refused(peer: Peer, wanted: dict[str, object]) -> None:
    assert peer.ask("networks.load", **wanted)["code"] == "bad-request"
    assert peer.ask("networks")["congctl"] is None


def test_a_killed_agent_takes_it_up_again(host: Space, peer: Peer) -> None:
    peer.ask("networks.load", networks={"71": 1}, states=1)
    host.run("kill", "-9", str(host.daemon_pids()[-1]))
    assert until(lambda: host.agent("call", {"op": "networks"})[0].get("states") == 1)
    host.agent("call", {"op": "networks.drop"})


class Call:
    """A function of a library, as ctypes has them: attributes may be set."""

    restype: Any = None

    def __init__(self, function: Callable[..., int]) -> None:
        self.function = function

    def __call__(self, *arguments: Any) -> int:
        return self.function(*arguments)


def test_a_libbpf_that_makes_the_link_itself_keeps_none_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = ctypes.CDLL("libbpf.so.1", use_errno=True)
    made: list[int] = []

    def attach(operations: Any) -> int:
        attached = int(real.bpf_map__attach_struct_ops(operations))
        if real.libbpf_minor_version() < 2:  # do what newer ones do
            number = struct.pack("=IIII", real.bpf_map__fd(operations), 0, structops.STRUCT_OPS, 0)
            made.append(structops.bpf(structops.LINK_CREATE, number))
        else:
            made.append(real.bpf_link__fd(ctypes.c_void_p(attached)))
        return attached

    class Newer:
        libbpf_minor_version = Call(lambda: 5)
        bpf_map__attach_struct_ops = Call(attach)
        bpf_link__fd = Call(lambda _: made[0])

        def __getattr__(self, name: str) -> Any:
            return getattr(real, name)

    real.bpf_map__attach_struct_ops.restype = ctypes.c_void_p
    monkeypatch.setattr(
        "extensions.congestion.host.structops.ctypes.CDLL", lambda *_, **__: Newer()
    )
    name = f"net2_new{os.getpid() % 1_000_000}"
    registered = networks.Registered(name)
    assert name in AVAILABLE.read_text().split()
    registered.close()
    assert until(lambda: name not in AVAILABLE.read_text().split())
