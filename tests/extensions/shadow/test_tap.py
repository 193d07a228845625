"""A tap copies what comes to a job's lanes to who knows the job's key, and is gone when either end
is.
"""

from __future__ import annotations

import ctypes
import json
import os
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from extensions.shadow.host.tap import TAPS, program
from tests.agent.space import Peer, Space
from tests.kit.waiting import until

pytestmark = pytest.mark.lab

KEY = "ab" * 32
ROOT = Path(__file__).parents[3]
SHADOW = """
import json, socket, sys, threading
from workloads.transport.peers import Listener
from extensions.shadow.rank.segments import segments
key, seen = bytes.fromhex(sys.argv[1]), []

def serve(address, port):
    listener = socket.create_server((address, port))
    while True:
        link = listener.accept()[0]
        while link.recv(1 << 20):
            pass

def exactly(link, count):
    found = b""
    while len(found) < count:
        piece = link.recv(count - len(found))
        if not piece:
            raise OSError
        found += piece
    return found

def taps(listener):
    while True:
        link = listener.accept()[0]
        threading.Thread(target=tap, args=(link,), daemon=True).start()

links = []

def tap(link):
    greeting = Listener(key)
    links.append(link)
    link.sendall(greeting.number)
    try:
        role, proof, _ = greeting.take(exactly(link, Listener.WHOLE))
    except OSError:
        link.close()
        return
    link.sendall(proof)
    seen.append(role)
    try:
        while True:
            size, port, lost = (int.from_bytes(exactly(link, 4), "big") for _ in range(3))
            for _, _, _, payload in segments(memoryview(exactly(link, size))):
                if len(payload):
                    seen.append([port, bytes(payload).decode()])
    except OSError:
        seen.append("closed")

for address in ("10.9.0.1", "10.9.0.3"):
    threading.Thread(target=serve, args=(address, 7000), daemon=True).start()
listener = socket.create_server(("127.0.0.1", 27400))
threading.Thread(target=taps, args=(listener,), daemon=True).start()
print("ready", flush=True)
for line in sys.stdin:
    if line == "close\\n":
        for link in links:
            link.shutdown(2)
    print(json.dumps(seen), flush=True)
"""
SEND = """
import socket, sys
for address, words in zip(sys.argv[1::2], sys.argv[2::2]):
    with socket.create_connection((address, 7000)) as link:
        link.sendall(words.encode())
"""


class Shadow:
    """A shadow that only looks, in the namespace of a host."""

    def __init__(self, host: Space, key: str = KEY) -> None:
        self.process = subprocess.Popen(
            host.argv(sys.executable, "-c", SHADOW, key),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        assert self.line() == "ready"

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def seen(self, word: str = "look") -> list[Any]:
        assert self.process.stdin is not None
        self.process.stdin.write(word + "\n")
        self.process.stdin.flush()
        found: list[Any] = json.loads(self.line())
        return found

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def shadow(host: Space) -> Iterator[Shadow]:
    for space, addresses in ((host, ("10.9.0.1", "10.9.0.3")), (host.far, ("10.9.0.2",))):  # type: ignore[attr-defined]
        for address in addresses:
            space.ip("address", "replace", f"{address}/24", "dev", "opt1")
    made = Shadow(host)
    yield made
    made.end()


def tap(peer: Peer, **more: Any) -> dict[str, Any]:
    about = {
        "name": "j",
        "ports": [1, 2],
        "lanes": ["10.9.0.1"],
        "shadow": "127.0.0.1",
        "port": 27400,
        "key": KEY,
    }
    return peer.ask("tap", **{**about, **more})


def send(host: Space, *argv: str) -> None:
    done = host.far.run(sys.executable, "-c", SEND, *argv)  # type: ignore[attr-defined]
    assert done.returncode == 0, done.stderr


def test_what_comes_to_the_lanes_is_copied_and_nothing_else(
    host: Space, peer: Peer, shadow: Shadow
) -> None:
    assert tap(peer)["error"] == ""
    assert list(peer.ask("taps")["taps"]) == ["j"]
    send(host, "10.9.0.3", "not a lane", "10.9.0.1", "first", "10.9.0.1", "second")
    until(lambda: [1, "second"] in shadow.seen())
    assert shadow.seen() == ["tap", [1, "first"], [1, "second"]]
    assert "tap" not in host.ip("link"), "no device was made"
    assert "ingress" not in host.run("tc", "qdisc", "show").stdout, "nor a queue"
    pid = peer.ask("taps")["taps"]["j"]
    assert tap(peer)["error"] == "" and peer.ask("taps")["taps"]["j"] != pid, (
        "a new tap takes the place of the job's old one"
    )
    until(lambda: shadow.seen().count("closed") == 1)
    assert peer.ask("tap.stop", name="j")["ended"] and not peer.ask("tap.stop", name="j")["ended"]
    until(lambda: shadow.seen().count("closed") == 2)
    assert peer.ask("taps")["taps"] == {}


def test_a_tap_ends_with_its_shadow(peer: Peer, shadow: Shadow) -> None:
    assert tap(peer)["error"] == ""
    shadow.seen("close")
    until(lambda: peer.ask("taps")["taps"] == {})


def successor(host: Space, daemon: int) -> Peer:
    """A channel to the daemon that follows a killed one."""
    deadline = time.monotonic() + 10
    while True:
        with suppress(AssertionError, BrokenPipeError):  # there is none yet
            if (found := host.attach()).ask("hello")["pid"] != daemon:
                return found
        assert time.monotonic() < deadline, "no other daemon came"
        time.sleep(0.02)


def test_a_tap_outlives_the_daemon_and_the_next_one_has_it(
    host: Space, peer: Peer, shadow: Shadow
) -> None:
    assert tap(peer)["error"] == ""
    was, daemon = peer.ask("taps")["taps"], peer.ask("hello")["pid"]
    host.run("kill", "-9", str(daemon))
    again = successor(host, daemon)
    assert again.ask("taps")["taps"] == was
    send(host, "10.9.0.1", "after")
    until(lambda: [1, "after"] in shadow.seen())
    assert again.ask("tap.stop", name="j")["ended"]
    until(lambda: "closed" in shadow.seen())
    assert tap(again)["error"] == "" and again.ask("taps")["taps"] != was
    shadow.seen("close")
    until(lambda: again.ask("taps")["taps"] == {})


def test_who_does_not_know_the_key_gets_nothing(host: Space, peer: Peer) -> None:
    other = Shadow(host, "cd" * 32)
    try:
        assert "closed" in tap(peer)["error"]
        assert other.seen() == []
        until(lambda: peer.ask("taps")["taps"] == {})
    finally:
        other.end()


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"ports": [3]}, "3 is not a port of this host"),
        ({"ports": []}, "ports: a list of 1 to"),
        ({"ports": [True]}, "ports: a list of 1 to"),
        ({"lanes": ["x"]}, "not all of them are IPv4 addresses"),
        ({"lanes": [5]}, "not all of them are IPv4 addresses"),
        ({"lanes": []}, "lanes: a list of 1 to"),
        ({"lanes": ["10.9.0.1"] * 65}, "lanes: a list of 1 to"),
        ({"key": "ab"}, "key: 64 hexadecimal digits"),
        ({"name": "../j"}, "name: letters"),
        ({"port": 0}, "port: a whole number"),
        ({"shadow": None}, "shadow: the address"),
    ],
)
def test_a_request_for_what_is_not_the_jobs_is_refused(
    peer: Peer, wrong: dict[str, Any], text: str
) -> None:
    answer = tap(peer, **wrong)
    assert not answer["ok"] and text in answer["error"]


def test_taps_are_few_and_fenced(host: Space, peer: Peer, shadow: Shadow) -> None:
    for n in range(TAPS):
        assert tap(peer, name=f"j{n}")["error"] == ""
    assert "as many as it can" in tap(peer)["error"]
    for n in range(TAPS):
        peer.ask("tap.stop", name=f"j{n}")
    peer.ask("fence", token=50)
    assert [
        peer.ask(op, name="j", token=49)["code"] for op in ("tap", "tap.stop", "job.secret")
    ] == ["overtaken"] * 3


def test_a_secret_reaches_the_next_start_of_its_job_alone(peer: Peer) -> None:
    def shown(name: str) -> str:
        script = "import os; print(os.environ.get('WORD'), flush=True)"
        peer.ask(
            "job.start", name=name, argv=[sys.executable, "-S", "-c", script], env={"WORD": "none"}
        )
        until(lambda: peer.ask("job.status", name=name)["state"] == "exited")
        return str(peer.ask("job.tail", name=name)["data"]).strip()

    assert peer.ask("job.secret", name="s", env={"WORD": "secret"})["ok"]
    assert (shown("other"), shown("s"), shown("s")) == ("none", "secret", "none")
    for env in ({"WORD": "first"}, {"OTHER": "of another extension"}):
        assert peer.ask("job.secret", name="s", env=env)["ok"]
    assert shown("s") == "first"
    assert peer.ask("job.secret", name="s", env={"WORD": 5})["code"] == "bad-request"
    assert peer.ask("job.secret", name="s", env={"WORD": "x" * 5000})["code"] == "bad-request"


def test_the_filter_lets_through_what_is_wanted_of_every_kind_of_packet() -> None:
    def passes(
        *lanes: str,
        to: str,
        protocol: int = 6,
        fragment: int = 0x4000,
        flags: int = 16,
        payload: int = 9,
        words: int = 0,
    ) -> bool:
        tcp = struct.pack("!HHIIBBHHH", 1, 2, 3, 4, (5 + words) << 4, flags, 0, 0, 0) + bytes(
            4 * words
        )
        size = 20 + len(tcp) + payload
        ip = (
            struct.pack("!BBHHHBBH", 0x45, 0, size, 0, fragment, 64, protocol, 0)
            + bytes(4)
            + socket.inet_aton(to)
        )
        code = program(lanes)
        held = ctypes.create_string_buffer(code)
        near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        with near, far:
            far.setsockopt(
                socket.SOL_SOCKET, 26, struct.pack("@HP", len(code) // 8, ctypes.addressof(held))
            )
            far.setblocking(False)
            near.send(ip + tcp + bytes(payload) + bytes(6))
            try:
                return bool(far.recv(1 << 16))
            except BlockingIOError:
                return False

    one, many = ("10.9.0.1",), tuple(f"10.9.{n}.1" for n in range(64))
    assert (
        passes(*one, to="10.9.0.1")
        and passes(*many, to="10.9.63.1")
        and passes(*many, to="10.9.0.1")
    )
    assert not passes(*one, to="10.9.0.2") and not passes(*many, to="10.9.64.1")
    assert not passes(*one, to="10.9.0.1", protocol=17)
    assert not passes(*one, to="10.9.0.1", fragment=0x2000) and not passes(
        *one, to="10.9.0.1", fragment=1
    )
    assert not passes(*one, to="10.9.0.1", payload=0) and not passes(
        *many, to="10.9.5.1", payload=0, words=3
    ), "an acknowledgement"
    assert passes(*one, to="10.9.0.1", payload=0, flags=2, words=10), "a connection begins"
    assert passes(*one, to="10.9.0.1", payload=1, words=10)


def test_a_tap_waits_for_its_shadow_as_long_as_it_is_told(peer: Peer) -> None:
    assert "refused" in tap(peer, port=27999, within_s=0.2)["error"]
    assert [tap(peer, within_s=wrong)["code"] for wrong in (0, 3601, "x")] == ["bad-request"] * 3
