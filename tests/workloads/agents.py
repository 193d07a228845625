"""A host's agent as ranks see it: a Unix socket for each rank, on which a test asks for moves and
reads what they answer.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


class Agent:
    """One rank's agent. A rank connects to it again when it was closed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(path))
        self._listener.listen()
        self._link: socket.socket | None = None
        self._received = b""
        self.seen: list[dict[str, Any]] = []

    def connect(self, within_s: float = 60.0) -> dict[str, Any]:
        """Wait for the rank; return its greeting."""
        self._listener.settimeout(within_s)
        self._link = self._listener.accept()[0]
        self._received = b""
        return self.read(within_s)

    def hang_up(self) -> None:
        assert self._link is not None
        self._link.close()

    def ask(self, do: str, move: int, **more: object) -> None:
        assert self._link is not None
        self._link.sendall(json.dumps({"do": do, "move": move, **more}).encode() + b"\n")

    def read(self, within_s: float = 60.0) -> dict[str, Any]:
        """The next message."""
        assert self._link is not None
        deadline_s = time.monotonic() + within_s
        while b"\n" not in self._received:
            self._link.settimeout(max(0.001, deadline_s - time.monotonic()))
            piece = self._link.recv(65536)
            assert piece, "the rank hung up"
            self._received += piece
        line, _, self._received = self._received.partition(b"\n")
        message: dict[str, Any] = json.loads(line)
        self.seen.append(message)
        return message

    def until(self, *states: str, move: int, within_s: float = 60.0) -> dict[str, Any]:
        """The first message from now on that names one of these states of this move."""
        while True:
            message = self.read(within_s)
            if message["move"] == move and message["state"] in states:
                return message

    def close(self) -> None:
        if self._link is not None:
            self._link.close()
        self._listener.close()


class Agents(list[Agent]):
    """The agents of all ranks, by rank."""

    def connect(self) -> list[dict[str, Any]]:
        return [agent.connect() for agent in self]

    def ask(self, do: str, move: int, **more: object) -> None:
        for agent in self:
            agent.ask(do, move, **more)

    def until(self, *states: str, move: int) -> list[dict[str, Any]]:
        return [agent.until(*states, move=move) for agent in self]


@contextmanager
def agents(world: int, directory: Path) -> Iterator[tuple[Agents, Callable[[int], dict[str, str]]]]:
    """The agents of so many ranks, and the environment by which each rank finds its own."""
    found = Agents(Agent(directory / f"agent{rank}") for rank in range(world))
    try:
        yield found, lambda rank: {"TESTBED_HANDOFF": str(found[rank].path)}
    finally:
        for agent in found:
            agent.close()
