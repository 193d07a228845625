"""Messages that a rank between passes on: whatever the traffic every byte arrives once and in order,
a relay holds no more than its room, and a length that is not due is refused.
"""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.workloads.transport.test_wires import Store, place, together
from workloads.transport.relay import (
    HEADER,
    PIECE,
    ROOM,
    Receiving,
    Relay,
    Way,
    ends,
    relay_of,
    stages,
)
from workloads.transport.wires import Wires


class Fake:
    """A connection that has `data` to receive, and takes `space` bytes."""

    peer, number, address, closed = 3, 0, "", False

    def __init__(self, data: bytes = b"", space: int = 0) -> None:
        self.data, self.space, self.taken = data, space, b""

    def receive(self, room: memoryview) -> int:
        count = min(len(room), len(self.data))
        room[:count], self.data = self.data[:count], self.data[count:]
        return count

    def send(self, what: memoryview) -> int:
        count = min(len(what), self.space)
        self.taken += bytes(what[:count])
        self.space -= count
        return count

    def wake_at(self, count: int) -> None:
        assert count > 0


def message(data: bytes) -> bytes:
    return HEADER.pack(len(data)) + data


def test_a_relay_holds_its_room_and_no_more_and_goes_on_where_it_stopped() -> None:
    data = random.Random(1).randbytes(5 * ROOM + 77)
    into, out = Fake(message(data)), Fake()
    relay = Relay(into, out, range(len(data) + 1))  # type: ignore[arg-type]
    relay.begin()
    while not relay.take():
        pass
    assert len(message(data)) - len(into.data) == ROOM
    assert relay.push() and not relay.waits, "nothing can be sent, so there is no room"
    rounds = 0
    while len(out.taken) < len(message(data)):
        out.space += 10_001
        relay.push()
        while relay.waits:
            relay.begin()
            while into.data and not relay.take():
                pass
        assert len(message(data)) - len(into.data) - len(out.taken) <= ROOM
        rounds += 1
        assert rounds < 100
    assert out.taken == message(data) and not relay.waits
    into.data, out.space, out.taken = message(b"next"), 100, b""
    relay.begin()
    assert not relay.take() and relay.take() and not relay.push()
    assert out.taken == message(b"next")


def test_a_message_of_nothing_is_passed_on() -> None:
    into, out = Fake(message(b"")), Fake(space=8)
    relay = Relay(into, out, range(1))  # type: ignore[arg-type]
    relay.begin()
    assert relay.take() and not relay.push() and not relay.waits
    assert out.taken == message(b"")


@pytest.mark.parametrize(("sizes", "due"), [(range(8, 9), "8 are due"), (range(9), "at most 8")])
def test_a_length_that_is_not_due_is_refused_and_not_passed_on(sizes: range, due: str) -> None:
    into, out = Fake(message(b"x" * 12)), Fake(space=100)
    relay = Relay(into, out, sizes)  # type: ignore[arg-type]
    relay.begin()
    with pytest.raises(RuntimeError, match=f"rank 3 announces a message of 12 bytes, {due}"):
        relay.take()
    relay.push()
    assert out.taken == b""


@pytest.mark.parametrize("size", [0, 4, 12])
def test_a_receiver_refuses_a_length_before_any_byte_of_the_message(size: int) -> None:
    room = bytearray(8)
    task = Receiving(Fake(message(b"x" * size)), memoryview(room), 4)  # type: ignore[arg-type]
    task.begin()
    with pytest.raises(RuntimeError, match=f"a message of {size} bytes, 8 are due"):
        task.take()
    assert room == bytes(8)


def test_only_a_message_that_is_passed_on_announces_its_length() -> None:
    for via, sent in ((None, b"abc"), (2, message(b"abc"))):
        way, out = Way("0", 0, 1, via=via), Fake(space=100)
        ((task,),) = stages([way], 0, {"0": out}, {}, {"0": memoryview(b"abc")}, {}, 4)  # type: ignore[dict-item]
        task.begin()
        task.push()
        assert out.taken == sent


TRAFFIC = st.tuples(
    st.sampled_from([(4, 2), (6, 2), (6, 3), (8, 4)]),
    st.lists(st.sampled_from([0, 1, PIECE, 3 * ROOM + 5]), min_size=1, max_size=12),
    st.integers(0, 1 << 30),
    st.booleans(),
)


@settings(max_examples=12, deadline=None)
@given(TRAFFIC)
def test_every_byte_arrives_once_whatever_the_traffic(
    drawn: tuple[tuple[int, int], list[int], int, bool],
) -> None:
    (world, domain), sizes, seed, whole = drawn
    draw, store = random.Random(seed), Store()
    ways, rounds = [], []
    for number in range(len(sizes)):
        source, target = draw.sample(range(world), 2)
        via = relay_of(source, target, domain)
        ways.append(Way(f"{number}", source, target, number % 2, via))
    for _ in range(2):
        rounds.append({way.name: draw.randbytes(s) for way, s in zip(ways, sizes, strict=True)})
    exactly = {way.name: range(s, s + 1) for way, s in zip(ways, sizes, strict=True)}

    def rank(me: int) -> list[dict[str, bytes]]:
        out, into = ends(ways, me)
        wires = Wires(place(me, world), store, out, into)
        mine = {w.name: bytearray(exactly[w.name][0]) for w in ways if me in (w.source, w.target)}
        views = {name: memoryview(room) for name, room in mine.items()}
        each = stages(ways, me, wires.out, wires.into, views, exactly, PIECE, whole=whole)
        seen = []
        for sent in rounds:
            for way in ways:
                if way.source == me:
                    views[way.name][:] = sent[way.name]
                elif way.target == me:
                    views[way.name][:] = bytes(len(views[way.name]))
            for tasks in each:
                wires.carry(tasks)
            seen.append({way.name: bytes(mine[way.name]) for way in ways if way.target == me})
        wires.close()
        return seen

    for me, seen in enumerate(together(world, rank)):
        for found, sent in zip(seen, rounds, strict=True):
            assert found == {way.name: sent[way.name] for way in ways if way.target == me}
