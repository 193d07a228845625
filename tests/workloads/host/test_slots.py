"""The library by which a program learns whom it reaches: lines in pieces, hostile lines, an agent
that ends, the gate.
"""

from __future__ import annotations

import fcntl
import json
import math
import resource
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.workloads.transport.test_wires import Store, place
from workloads.host.slots import Slots
from workloads.transport.loop import Loop, Stall, Wire
from workloads.transport.tasks import ReceiveTask, SendTask
from workloads.transport.wires import Wires

PEER = "10.255.0.2"


class Agent:
    """The other end of the socket."""

    def __init__(self, folder: Path) -> None:
        self.path = str(folder / "slots")
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(self.path)
        self.listener.listen(8)
        self.slots = Slots(self.path)
        self.link = self.listener.accept()[0]
        self.wires: list[Wire] = []
        """Both ends of a connection to a rank."""

    def emit(
        self, reach: dict[str, int | None] | None, slot: int | None = 1, until_ns: int | None = None
    ) -> None:
        self.send(
            json.dumps({"slot": slot, "cycle": 0, "until_ns": until_ns, "reach": reach}).encode()
            + b"\n"
        )

    def notify(self, reach: dict[str, int | None], until_s: float | None) -> None:
        """As `emit`, and what is told has come."""
        self.emit(reach, until_ns=None if until_s is None else in_ns(until_s))
        while self.slots.reach != reach or self.slots.ends == (until_s is None):
            self.slots.read()

    def send(self, data: bytes) -> None:
        self.link.sendall(data)

    def close(self) -> None:
        self.slots.close()
        for each in (self.link, self.listener, *self.wires):
            each.close()


@pytest.fixture
def agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Agent]:
    monkeypatch.setattr("workloads.host.slots.FIRST_S", 0.01)
    made = Agent(tmp_path)
    yield made
    made.close()


def in_ns(seconds: float) -> int:
    return time.monotonic_ns() + int(seconds * 1e9)


def test_without_an_agent_or_a_schedule_every_peer_is_reached(agent: Agent, tmp_path: Path) -> None:
    assert Slots.of({}).until(PEER) == math.inf and Slots(str(tmp_path / "none")).wait(PEER, 0)
    agent.send(b'{"slot": null}\n')
    assert agent.slots.until(PEER) == math.inf and agent.slots.slot is None


def test_a_peer_is_reached_until_its_path_ends_and_others_are_not(agent: Agent) -> None:
    end = in_ns(60)
    agent.emit({PEER: end, "10.255.0.3": None, "10.255.0.4": in_ns(-1)})
    assert agent.slots.until(PEER) == end / 1e9 and agent.slots.slot == 1
    assert agent.slots.until("10.255.0.3") == math.inf, "no end is known"
    assert agent.slots.until("10.255.0.4") == 0.0 == agent.slots.until("10.255.0.5")


def test_only_the_newest_line_counts_and_it_may_come_in_pieces(agent: Agent) -> None:
    for slot in range(50):
        agent.emit({}, slot)
    line = json.dumps({"slot": 50, "reach": {PEER: None}}).encode() + b"\n"
    for at in range(len(line)):
        agent.send(line[at : at + 1])
        agent.slots.read()
    assert agent.slots.slot == 50 and agent.slots.until(PEER) == math.inf


def test_waiting_ends_with_the_slot_that_reaches_the_peer_or_with_its_time(agent: Agent) -> None:
    agent.emit({})
    assert not agent.slots.wait(PEER, 0.05)
    threading.Timer(0.05, agent.emit, [{PEER: None}]).start()
    assert agent.slots.wait(PEER, 30)


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"x",
        b"[]",
        b"{}",
        b'{"slot": 1, "reach": 3}',
        b'{"slot": 1, "reach": {"a": "b"}}',
        b'{"slot": [], "reach": {}}',
        b"\xff",
    ],
)
def test_a_line_that_says_nothing_keeps_no_peer_from_being_reached(
    agent: Agent, line: bytes
) -> None:
    agent.send(line + b"\n")
    assert agent.slots.until(PEER) == math.inf


def test_an_agent_that_ends_or_sends_without_end_leaves_every_peer_reached(agent: Agent) -> None:
    agent.emit({})
    assert agent.slots.until(PEER) == 0.0
    sender = threading.Thread(target=lambda: _flood(agent))
    sender.start()
    while agent.slots.until(PEER) != math.inf:
        time.sleep(0.001)
    agent.link.close()
    sender.join()


def _flood(agent: Agent) -> None:
    try:
        for _ in range(64):
            agent.send(b"x" * (1 << 16))
    except OSError:
        pass


def test_an_agent_that_is_started_again_is_connected_to_again(agent: Agent) -> None:
    agent.link.close()
    agent.slots.read()
    assert agent.slots.number == -1
    agent.slots._retry_s = 0.0
    agent.slots.read()
    agent.link = agent.listener.accept()[0]
    agent.emit({})
    assert agent.slots.until(PEER) == 0.0


def test_an_agent_that_hangs_is_waited_for_once(agent: Agent) -> None:
    agent.emit({})
    assert agent.slots.until(PEER) == 0.0
    agent.link.close()
    agent.listener.listen(0)
    full = [socket.socket(socket.AF_UNIX) for _ in range(3)]
    for each in full:  # what nobody accepts
        each.setblocking(False)
        each.connect_ex(agent.path)
    asked: list[float | None] = []

    class Watched(socket.socket):
        def settimeout(self, value: float | None, /) -> None:
            asked.append(value)
            super().settimeout(value)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("workloads.host.slots.socket.socket", Watched)
        for _ in range(3):
            agent.slots._retry_s = 0.0
            assert agent.slots.until(PEER) == math.inf
    assert asked and not any(asked), (
        "a program that sends must not wait for an agent that does not answer"
    )
    for each in full:
        each.close()


def test_another_threads_line_in_between_raises_nothing(agent: Agent) -> None:
    class Torn(Slots):
        ring_changes = 0

        @property
        def reach(self) -> dict[str, int | None] | None:
            self.ring_changes += 1
            return {} if self.ring_changes % 2 else None

        @reach.setter
        def reach(self, _: object) -> None: ...

    torn = Torn()
    assert {torn.until(PEER) for _ in range(8)} <= {0.0, math.inf} and torn.wait(PEER, 1)


def test_a_program_with_many_descriptors_waits_all_the_same(agent: Agent) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 4096)), hard))
    agent.emit({})
    agent.slots.read()
    old = agent.slots._link
    assert old is not None
    number = fcntl.fcntl(old.fileno(), fcntl.F_DUPFD_CLOEXEC, 1500)
    agent.slots._link = socket.socket(fileno=number)
    old.close()
    assert not agent.slots.wait(PEER, 0.06)


def test_what_is_for_a_peer_that_is_not_reached_waits_and_the_rest_goes_on(agent: Agent) -> None:
    pairs = []
    for _ in range(2):
        listener = socket.create_server(("127.0.0.1", 0))
        pairs.append(
            (
                Wire(socket.create_connection(listener.getsockname()), 1),
                Wire(listener.accept()[0], 0),
            )
        )
        listener.close()
    (out, into), (free, far) = pairs
    free.address = ""
    agent.emit({})
    loop, got = Loop(30.0, Stall(), agent.slots), [bytearray(1 << 20), bytearray(8)]
    agent.slots.read()
    loop.add(SendTask(out, [memoryview(bytes(1 << 20))]))
    loop.add(ReceiveTask(into, [memoryview(got[0])]))
    receive = ReceiveTask(far, [memoryview(got[1])])
    loop.add(receive)
    loop.add(SendTask(free, [memoryview(b"12345678")]))
    while receive._left:
        loop.step()
    assert got[1] == b"12345678" and out.number in loop._gated
    got[0][:] = b"x" * len(got[0])
    agent.emit({"127.0.0.1": None})
    while loop.busy:
        loop.step()
    assert not any(got[0])
    loop.close()
    for wire in (out, into, free, far):
        wire.close()


def test_ranks_meet_in_the_order_of_the_slots_not_of_their_numbers(
    agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workloads.transport.wires.shared", lambda: agent.slots)
    agent.notify({"127.0.3.1": None}, None)
    store, met = Store(), dict[int, socket.socket]()
    peers = {rank: socket.create_server((f"127.0.{rank + 1}.1", 0)) for rank in (1, 2)}
    for rank, listener in peers.items():
        listener.settimeout(10)
        store.set(f"wires/{rank}", json.dumps({"0": listener.getsockname()}))

    def turn() -> None:
        met[2] = peers[2].accept()[0]
        agent.emit({"127.0.2.1": None})
        met[1] = peers[1].accept()[0]

    turning = threading.Thread(target=turn)
    turning.start()
    try:
        Wires(place(0, 3), store, {"a": (1, 0), "b": (2, 0)}, {}).close()
        turning.join()
    finally:
        for each in (*peers.values(), *met.values()):
            each.close()
    assert list(met) == [2, 1]


def silent(agent: Agent, timeout_s: float = 0.2) -> Loop:
    """A loop that waits for a rank which says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        agent.wires = [
            Wire(socket.create_connection(listener.getsockname()), 1),
            Wire(listener.accept()[0], 0),
        ]
    loop = Loop(timeout_s, Stall(), agent.slots)
    loop.add(ReceiveTask(agent.wires[0], [memoryview(bytearray(8))]))
    return loop


def run_for(loop: Loop, seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until and loop.busy:
        loop.step()


@pytest.mark.parametrize(
    ("reach", "until_s"),
    [({}, 60.0), ({"127.0.0.1": None}, None)],
    ids=["a slot without a path to it", "a schedule that stands, so that it may wait for others"],
)
def test_time_for_which_the_schedule_is_the_reason_is_no_silence_of_a_peer(
    agent: Agent, reach: dict[str, int | None], until_s: float | None
) -> None:
    loop = silent(agent)
    agent.notify(reach, until_s)
    run_for(loop, 0.6)
    agent.notify({"127.0.0.1": None}, 60.0)
    agent.wires[1].send(memoryview(b"12345678"))
    run_for(loop, 10.0)
    assert not loop.busy, "what comes when the schedule turns again is taken"


def test_a_peer_that_is_silent_with_a_path_in_a_slot_that_ends_is_lost_as_ever(
    agent: Agent,
) -> None:
    loop = silent(agent)
    agent.notify({"127.0.0.1": None}, 60.0)
    with pytest.raises(RuntimeError, match=r"timed out: nothing from or to rank 1$"):
        run_for(loop, 10.0)


def test_a_schedule_that_never_turns_again_ends_the_waiting_and_is_named(
    agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workloads.transport.loop.WAITS_S", 0.3)
    loop = silent(agent)
    agent.notify({}, None)
    with pytest.raises(
        RuntimeError, match=r"rank 1 in \d+ s, 0 s of them in a slot without a path.*testbed status"
    ):
        run_for(loop, 10.0)
