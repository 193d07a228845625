"""Messages with keys and values behind them, over a socket that takes and gives pieces."""

from __future__ import annotations

import socket

import pytest

from workloads.serving.posts import PAGES, ROOM, Inbox, Message, Outbox
from workloads.transport.loop import Wire

PIECE = 6_000_000
"""Bytes; a socket takes fewer at once."""


def test_messages_and_pages_arrive_whole_and_in_order_however_they_are_cut() -> None:
    with socket.create_server(("127.0.0.1", 0)) as near:
        near.settimeout(20)
        sender = socket.create_connection(near.getsockname(), 20)
        far, _ = near.accept()
    out, room = Outbox(Wire(sender, 1)), memoryview(bytearray(3 * PIECE))
    inbox = Inbox(Wire(far, 0), lambda message: [room[:PIECE], room[PIECE:]], 65536)
    data = memoryview(bytes(n % 251 for n in range(PIECE)) * 3)
    out.put(Message(ROOM, 7, 1, 2))
    out.put(Message(PAGES, 9, 0, 3), [data[:PIECE], data[PIECE:]], ends=9)
    out.put(Message(ROOM, 8))
    ended, found = out.push(), list[Message]()
    assert out.waits and not ended, "more than a socket takes at once"
    for _ in range(100_000):
        found += inbox.take()
        ended += out.push()
        if len(found) == 3:
            break
    assert found == [Message(ROOM, 7, 1, 2), Message(PAGES, 9, 0, 3), Message(ROOM, 8)]
    assert ended == [9] and not out.waits and room == data
    out.wire.close()
    with pytest.raises(RuntimeError, match="connection from rank 0: closed by peer"):
        inbox.take()
    inbox.wire.close()
