"""Credits from a receiver: all arrives whatever goes where, no more is on its way than was given
out, and who is lost or does not keep to it is named.
"""

from __future__ import annotations

import select
import socket
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workloads.transport.admission import (
    CREDIT,
    TURN,
    Admission,
    AdmittedReceive,
    AdmittedSend,
    BeyondCredit,
)
from workloads.transport.loop import Loop, Stall, Task, Wire


def joined(stack: ExitStack, sender: int, receiver: int) -> tuple[Wire, Wire]:
    """A connection: its end at the sender, and that at the receiver."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        out = socket.create_connection(listener.getsockname())
        into = listener.accept()[0]
    wires = Wire(out, receiver), Wire(into, sender)
    for wire in wires:
        stack.callback(wire.close)
    return wires


def transfer(
    stack: ExitStack, source: int, target: int, what: bytes, admission: Admission
) -> tuple[AdmittedSend, AdmittedReceive, bytearray]:
    (out, into), (back, credits) = joined(stack, source, target), joined(stack, target, source)
    room = bytearray(len(what))
    send = AdmittedSend(out, credits, [memoryview(what)])
    return send, AdmittedReceive(into, back, [memoryview(room)], admission), room


def carry(
    tasks: Sequence[Task], admissions: Iterable[Admission], look: Callable[[], None] = lambda: None
) -> None:
    """As Wires.carry, of all ranks at once."""
    loop = Loop(5.0, Stall())
    try:
        for task in tasks:
            loop.add(task)
        while loop.busy:
            for admission in admissions:
                for task in admission.give():
                    loop.add(task)
            loop.step()
            look()
    finally:
        loop.close()


@settings(deadline=None, max_examples=40)
@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(1, 4), st.integers(1, 90_000)), max_size=9),
    st.integers(600, 70_000),
)
def test_whatever_goes_where_all_of_it_arrives_and_no_more_is_under_way_than_was_admitted(
    pattern: list[tuple[int, int, int]], most: int
) -> None:
    admissions = {rank: Admission(most) for rank in range(5)}
    with ExitStack() as stack:
        each, tasks = [], list[Task]()
        for number, (source, further, size) in enumerate(pattern):
            target, what = (source + further) % 5, bytes([number + 1]) * size
            send, receive, room = transfer(stack, source, target, what, admissions[target])
            each.append((target, what, send, receive, room))
            tasks += [send, receive]
        before = [0] * len(each)

        def look() -> None:
            flying = dict.fromkeys(admissions, 0)
            for (target, what, send, receive, _), sent in zip(each, before, strict=True):
                arrived = len(what) - receive.ungranted - receive.flying
                flying[target] += send.wire.sent - sent - arrived
            for rank, admission in admissions.items():
                assert flying[rank] <= admission.flying <= most

        for _ in range(2):
            carry(tasks, admissions.values(), look)
            before = [send.wire.sent for _, _, send, _, _ in each]
            for _, what, _, _, room in each:
                assert room == what
                room[:] = bytes(len(room))
        for admission in admissions.values():
            admission.check()
            assert not admission.flying


def test_senders_take_turns() -> None:
    given: list[int] = []

    def sender(number: int, turns: int) -> Any:
        one = SimpleNamespace(ungranted=turns * TURN, credits=number)

        def grant(size: int) -> None:
            one.ungranted -= size
            given.append(number)

        one.grant = grant
        return one

    admission = Admission(2 * TURN)
    for number, turns in ((0, 3), (1, 1), (2, 2)):
        admission.enter(sender(number, turns))
    while list(admission.give()):
        admission.arrived(TURN)
    assert given == [0, 1, 2, 0, 2, 0]


def test_a_sender_that_is_lost_gives_its_credit_back_and_is_named_when_the_rest_is_there() -> None:
    admission = Admission(TURN)
    with ExitStack() as stack:
        lost, of_lost, _ = transfer(stack, 1, 0, bytes(3 * TURN), admission)
        send, receive, room = transfer(stack, 2, 0, b"x" * (3 * TURN), admission)
        lost.wire.close()
        lost.credits.close()
        carry([of_lost, receive, send], [admission])
        assert room == b"x" * (3 * TURN) and not admission.flying
        with pytest.raises(RuntimeError, match="connection from rank 1: "):
            admission.check()


def test_a_sender_that_sends_beyond_its_credit_is_refused_by_name() -> None:
    admission = Admission(50)
    with ExitStack() as stack:
        send, receive, _ = transfer(stack, 3, 0, bytes(200), admission)
        send.wire.send(memoryview(bytes(60)))
        with pytest.raises(BeyondCredit, match="rank 3 sent 60 bytes and had credit for 50: all"):
            carry([receive], [admission])


def test_only_a_sender_that_has_credit_is_late() -> None:
    admission = Admission(TURN)
    with ExitStack() as stack:
        first, second = (transfer(stack, n, 0, bytes(TURN), admission)[1] for n in (1, 2))
        for one in (first, second):
            one.begin()
        list(admission.give())
        assert first.late and not second.late


def test_a_credit_that_comes_in_pieces_counts_once_it_is_whole() -> None:
    with ExitStack() as stack:
        (out, _), (back, credits) = joined(stack, 1, 0), joined(stack, 0, 1)
        send = AdmittedSend(out, credits, [memoryview(bytes(9))])
        send.begin()
        credit = CREDIT.pack(5)
        for part, sent in ((credit[:3], 0), (credit[3:], 5)):
            back.send(memoryview(part))
            assert select.select([credits.number], [], [], 5)[0]
            assert not send.take(), "four bytes wait for another"
            assert not send.push() and out.sent == sent
