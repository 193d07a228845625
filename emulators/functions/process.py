"""The process of a packet switch's functions: its sockets, and who gets how much of its
attention.
"""

from __future__ import annotations

import json
import select
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from emulators.functions.control import LINE_BYTES, Control, Place
from emulators.functions.switch import Peer, Switch

MOST_CONNECTIONS = 32
SILENT_S = 600.0
TICK_S = 0.5  # leases end no later than this after their time
# datagrams, and requests of a connection, before the others have their turn
BURST, REQUESTS = 256, 8
ORDER_BYTES = 65_536
DATAGRAM_BYTES = 65_536


class _Client:
    """A control connection. It is not read while it does not take its answers, so it holds a line
    and an answer at most.
    """

    def __init__(self, connection: socket.socket, now: float) -> None:
        self.connection, self.heard_s = connection, now
        self.unread, self.unsent = b"", b""
        self.ended = False

    def advance(self, control: Control, now: float, readable: bool) -> bool:
        """Send, read and answer a little; False: the conversation is over. The last answer is left
        to the next turn.
        """
        try:
            if readable and not self.unsent:
                data = self.connection.recv(LINE_BYTES)
                self.ended = not data
                self.unread += data
                self.heard_s = now
            for _ in range(REQUESTS):
                if self.unsent:
                    self.unsent = self.unsent[self.connection.send(self.unsent) :]
                line, found, rest = self.unread.partition(b"\n")
                if self.unsent or (not found and len(line) < LINE_BYTES):
                    break
                if len(line) >= LINE_BYTES:
                    return False
                self.unread = rest
                self.unsent = control.answer(line, now)
        except BlockingIOError:
            pass
        except OSError:
            return False
        return not (self.ended and not self.unsent) and now - self.heard_s < SILENT_S


class Process:
    """Serves one switch until the lab's end of `orders` closes."""

    def __init__(
        self,
        functions: Mapping[str, Mapping[str, int]],
        place: Place,
        data: socket.socket,
        listener: socket.socket,
        orders: socket.socket,
    ) -> None:
        self._data, self._listener, self._orders = data, listener, orders
        for each in (data, listener):
            each.setblocking(False)
        self.switch = Switch(functions, self._send)
        self.control = Control(self.switch, place)
        self._clients: dict[int, _Client] = {}
        self._poll = select.poll()
        for each in (data, listener, orders):
            self._poll.register(each, select.POLLIN)
        self._buffer = memoryview(bytearray(DATAGRAM_BYTES))

    def serve(self) -> None:
        """Work until the lab ends."""
        while True:
            ready = dict(self._poll.poll(TICK_S * 1000))
            now = time.monotonic()
            self.switch.expire(now)
            if self._orders.fileno() in ready and not self._obey(now):
                self._hang_up(list(self._clients))
                return
            if self._data.fileno() in ready:
                self._receive()
            if self._listener.fileno() in ready:
                self._accept(now)
            for number, client in list(self._clients.items()):
                if client.advance(self.control, now, bool(ready.get(number, 0) & ~select.POLLOUT)):
                    self._poll.modify(number, select.POLLOUT if client.unsent else select.POLLIN)
                else:
                    self._hang_up([number])

    def _receive(self) -> None:
        buffer, receive = self._buffer, self.switch.receive
        with suppress(OSError):
            for _ in range(BURST):
                length, source = self._data.recvfrom_into(buffer)
                receive(buffer[:length], source)

    def _send(self, packet: memoryview, peer: Peer) -> bool:
        try:
            self._data.sendto(packet, peer)
        except OSError:
            return False
        return True

    def _accept(self, now: float) -> None:
        with suppress(OSError):
            connection, _ = self._listener.accept()
            if len(self._clients) >= MOST_CONNECTIONS:
                connection.close()
                return
            connection.setblocking(False)
            self._clients[connection.fileno()] = _Client(connection, now)
            self._poll.register(connection, select.POLLIN)

    def _hang_up(self, numbers: list[int]) -> None:
        for number in numbers:
            self._poll.unregister(number)
            self._clients.pop(number).connection.close()

    def _obey(self, now: float) -> bool:
        """Carry out an order of the lab: `state`, `loss`, `restart`. False: the lab is gone."""
        text = self._orders.recv(ORDER_BYTES)
        if not text:
            return False
        order: dict[str, Any] = json.loads(text)
        match order["do"]:
            case "loss":
                self.switch.loss = float(order["share"])
            case "restart":
                self.switch.restart()
                self._hang_up(list(self._clients))
        self._orders.send(json.dumps(self.control.state(now)).encode())
        return True
