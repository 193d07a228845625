"""The process of a packet switch's functions, over real sockets on loopback."""

from __future__ import annotations

import json
import os
import select
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any, BinaryIO, cast

import pytest

from emulators.functions import process
from emulators.functions.control import LINE_BYTES, Control, Place
from emulators.functions.process import Process
from emulators.functions.switch import Switch
from tests.emulators.functions.workers import ADD, SUM, packet, read

POOL = {"aggregate": {"slots": 8, "slot_bytes": 64, "jobs": 2}}
WAIT_S = 20.0


class Running:
    """A process in a thread, and the ends to talk to it."""

    def __init__(self) -> None:
        data = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        data.bind(("127.0.0.1", 0))
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.orders, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.orders.settimeout(WAIT_S)
        self.at = data.getsockname()
        made = Process(
            POOL,
            Place("ideal", *self.at, "02:0a:fd:00:00:01", "F0001"),
            data,
            self.listener,
            theirs,
        )
        self._held = [data, self.listener, theirs]
        self.thread = threading.Thread(target=made.serve, daemon=True)
        self.thread.start()

    def connect(self) -> BinaryIO:
        talk = socket.create_connection(self.listener.getsockname(), WAIT_S)
        file = talk.makefile("rwb", buffering=0)
        talk.close()
        return cast("BinaryIO", file)

    def order(self, **texts: object) -> dict[str, Any]:
        self.orders.send(json.dumps(texts).encode())
        return dict(json.loads(self.orders.recv(65_536)))

    def stop(self) -> None:
        self.orders.close()
        self.thread.join(WAIT_S)
        assert not self.thread.is_alive()
        for each in self._held:
            each.close()


@pytest.fixture
def running() -> Iterator[Running]:
    made = Running()
    yield made
    made.stop()


def ask(talk: BinaryIO, **request: object) -> dict[str, Any]:
    talk.write(json.dumps(request).encode() + b"\n")
    return dict(json.loads(talk.readline()))


def allocate(talk: BinaryIO, workers: int, job: str = "a") -> dict[str, Any]:
    own = ["127.0.0.1"] * workers
    return ask(talk, op="allocate", function="aggregate", job=job, workers=own, slots=4, lease_s=60)


def worker(at: tuple[str, int]) -> socket.socket:
    own = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    own.connect(at)
    own.settimeout(WAIT_S)
    return own


def test_two_ranks_of_a_host_get_their_sum(running: Running) -> None:
    with running.connect() as talk, worker(running.at) as one, worker(running.at) as two:
        made = allocate(talk, 2)
        for number, own in enumerate((one, two)):
            own.send(packet(made, number, ADD, 0, b"\1\0\0\0"))
        assert [read(own.recv(9000)) for own in (one, two)] == [
            (SUM, n, 0, b"\2\0\0\0") for n in (0, 1)
        ]
        assert ask(talk, op="counters")["allocations"][0]["sums"] == 1


def test_requests_arrive_in_any_pieces(running: Running) -> None:
    with running.connect() as talk:
        for byte in b'{"op": "counters", "id": 1}\n{"op": "':
            talk.write(bytes([byte]))
        assert json.loads(talk.readline())["id"] == 1
        talk.write(
            b'counters", "id": 2}\n'
            + b"".join(b'{"op": "counters", "id": %d}\n' % n for n in range(3, 60))
        )
        assert [json.loads(talk.readline())["id"] for _ in range(58)] == list(range(2, 60))


@pytest.mark.parametrize("line", [b"x" * 40_000, b'{"op": "counters"}' + b" " * 16_384 + b"\n"])
def test_a_line_too_long_ends_the_connection(running: Running, line: bytes) -> None:
    with running.connect() as talk, running.connect() as other:
        try:
            talk.write(line)
            assert talk.readline() == b""
        except ConnectionError:
            pass
        assert ask(other, op="capabilities")["ok"]


def test_a_client_that_takes_no_answers_holds_up_nobody_and_holds_no_memory(
    running: Running,
) -> None:
    with running.connect() as greedy, running.connect() as talk, worker(running.at) as own:
        made = allocate(talk, 1)
        os.set_blocking(greedy.fileno(), False)
        line, sent, deadline = b'{"op": "counters"}\n' * 500, 0, time.monotonic() + WAIT_S
        # until nobody reads any more
        while select.select([], [greedy], [], 0.2)[1] and time.monotonic() < deadline:
            sent += greedy.write(line) or 0
        assert ask(talk, op="capabilities")["ok"]
        own.send(packet(made, 0, ADD, 0, b"\1\0\0\0"))
        assert read(own.recv(9000))[0] == SUM
    assert sent > 0 and running.order(do="state")["totals"]["packets_in"] == 1


def test_a_client_that_asks_faster_than_it_is_answered_is_not_read_ahead() -> None:
    ours, theirs = socket.socketpair()
    control = Control(
        Switch(POOL, lambda *_: True), Place("ideal", "10.253.0.1", 7470, "", "F0001")
    )
    with ours, theirs:
        ours.setblocking(False)
        client, line = process._Client(ours, 0.0), b'{"op": "counters"}\n'
        theirs.sendall(line * 4000)
        for _ in range(100):
            assert client.advance(control, 0.0, True) and len(client.unread) <= LINE_BYTES
            assert theirs.recv(1 << 20).endswith(b"}\n")


def test_one_connection_too_many_is_closed_and_the_others_live(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "MOST_CONNECTIONS", 3)
    talks = [running.connect() for _ in range(3)]
    assert all(ask(talk, op="capabilities")["ok"] for talk in talks)
    with running.connect() as fourth:
        assert fourth.readline() == b""
    talks.pop().close()
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:  # until the switch has noticed
        with running.connect() as again:
            try:
                again.write(b'{"op": "capabilities"}\n')
                if again.readline():
                    break
            except ConnectionError:
                pass
    else:
        raise AssertionError("the place of a connection that ended is not free")
    for talk in talks:
        assert ask(talk, op="capabilities")["ok"]
        talk.close()


def test_a_silent_connection_is_closed_and_its_allocation_stays(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    talk = running.connect()
    allocate(talk, 1)
    monkeypatch.setattr(process, "SILENT_S", 0.0)
    assert talk.readline() == b""
    talk.close()
    assert [each["job"] for each in running.order(do="state")["allocations"]] == ["a"]


def test_the_labs_faults_lose_packets_and_forget_allocations(running: Running) -> None:
    talk = running.connect()
    made = allocate(talk, 1)
    with worker(running.at) as own:
        assert running.order(do="loss", share=1.0)["loss"] == 1.0
        own.send(packet(made, 0, ADD, 0, b"\1\0\0\0"))
        deadline = time.monotonic() + WAIT_S
        while (
            not (totals := running.order(do="state")["totals"])["lost"]
            and time.monotonic() < deadline
        ):
            pass
        assert totals["lost"] == 1
        running.order(do="loss", share=0.0)
        own.send(packet(made, 0, ADD, 0, b"\1\0\0\0"))
        assert read(own.recv(9000))[3] == b"\1\0\0\0"
    assert running.order(do="restart")["allocations"] == [] and talk.readline() == b""
    talk.close()
