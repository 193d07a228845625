"""Targets: the functions of an emulated packet switch, by their control conversation and by packets
from a segment.
"""

from __future__ import annotations

import json
from typing import Any, cast

from drivers.functions import _Answer
from emulators.functions.control import LINE_BYTES, Control, Place
from emulators.functions.packets import HEADER_BYTES
from emulators.functions.switch import Peer, Switch
from optics import Garbled
from tests.fuzz.targets import pieces, target
from workloads.collectives.aggregate import Aggregate, Part
from workloads.host.grants import Grant

FUNCTIONS = {
    "aggregate": {"slots": 4, "slot_bytes": 64, "jobs": 2},
    "cache": {"entries": 4, "entry_bytes": 16},
}
ADDRESS, TOKEN = "10.0.0.1", b"fuzzfuzz"


def _switch(sent: list[int]) -> Switch:
    def send(packet: memoryview, peer: Peer) -> bool:
        sent.append(len(packet))
        return peer[0] == ADDRESS

    return Switch(FUNCTIONS, send)


@target("function-control")
def control(data: bytes) -> None:
    """Every line has an answer of one line; what is allocated is never more than there is."""
    switch = _switch([])
    control = Control(switch, Place("ideal", ADDRESS, 7470, "02:0a:fd:00:00:01", "F0001"))
    for number, line in enumerate(pieces(data)):
        answer = control.answer(line[:LINE_BYTES] + b"\n", float(number))
        assert answer.endswith(b"\n") and answer.count(b"\n") == 1 and len(answer) < 1 << 17
        assert isinstance(json.loads(answer)["ok"], bool)
        assert all(left >= 0 for name in FUNCTIONS for left in switch.free(name).values())


@target("function-answers")
def answers(data: bytes) -> None:
    """The client finds the same answer in the same bytes however they are cut, or says that they
    are none.
    """
    found: list[object] = []
    for cut in (len(data) or 1, 1, 7):
        answer = _Answer(1)
        try:
            for at in range(0, len(data), cut):
                if answer.feed(data[at : at + cut]):
                    break
            found.append(answer.values)
        except Garbled:
            found.append(None)
    assert found.count(found[0]) == len(found) or None in found


@target("function-data")
def packets(data: bytes) -> None:
    """Packets have an answer for each worker at most, no longer than the function's, and the memory
    stays as it is.
    """
    sent: list[int] = []
    switch = _switch(sent)
    for job, function in enumerate(FUNCTIONS):
        switch.allocate(function, f"j{job}", (ADDRESS, ADDRESS), 2, 10.0, 0.0).token = TOKEN
    for packet in pieces(data):
        before = len(sent)
        switch.receive(memoryview(packet), (ADDRESS, 5000))
        assert len(sent) - before <= 2 and all(size <= HEADER_BYTES + 64 for size in sent[before:])
    assert all(len(each.peers) <= 2 for each in switch.allocations.values())


@target("function-sums")
def sums(data: bytes) -> None:
    """A rank takes no more from a packet switch than the sums of parts that are under way, each
    into its own place.
    """
    inbox = [packet for packet in pieces(data) if len(packet) <= HEADER_BYTES + 64]

    class Link:
        def recvmsg_into(
            self, rooms: tuple[bytearray, memoryview]
        ) -> tuple[int, list[object], int, None]:
            packet = inbox.pop(0)
            head, rest = packet[:HEADER_BYTES], packet[HEADER_BYTES:]
            rooms[0][: len(head)], rooms[1][: len(rest)] = head, rest
            return len(packet), [], 0, None

    rank = object.__new__(Aggregate)  # no socket, no thread
    rank._grant, rank._rank, rank._epoch = Grant(1, TOKEN, ADDRESS, 7470, "", 4, 64), 0, 0
    rank._link, rank._heard, rank._head = (
        cast(Any, Link()),
        memoryview(bytearray(64)),
        bytearray(HEADER_BYTES),
    )
    memory, in_progress = (
        memoryview(bytearray(68)),
        {chunk: Part(chunk, 0.0, begun=True) for chunk in (0, 1)},
    )
    while inbox:
        before = bytes(memory)
        chunk = rank._receive(memory, 0, in_progress)
        places = {-1: (0, 0), 0: (0, 64), 1: (64, 68)}[chunk]
        assert all(
            a == b or places[0] <= at < places[1]
            for at, (a, b) in enumerate(zip(before, memory, strict=True))
        )
        in_progress.pop(chunk, None)
