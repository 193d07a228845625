"""The hand-off socket: over it the host's agent asks this rank to prepare, hold, go or drop a move,
in lines of JSON. It also says when iterations are to begin (pace.py).

    agent -> rank   {"do": "prepare", "move": N, "lease_s": S, "rings": [...]?, "traffic": {...}?}
                    {"do": "hold", "move": N, "lease_s": S}
                    {"do": "go", "move": N, "decide": true | false}
                    {"do": "drop", "move": N}
    rank -> agent   first {"rank": r, "world": n, "move": the last or 0, "state": ..., "iteration": K}, then with each change of
                    state {"rank": r, "move": N, "state": ..., "iteration": K, "t_ns": monotonic,
                    ...}

State: idle before the first move, then preparing, prepared, held, changed, void or cannot. `held_ms`
is how long the rank held, `took_ms` how long connecting took, `stall_ms` the longest time in which
no byte moved though something was to be carried. Nobody waits for this socket: without it, or with
an agent that ends, moves end with their lease (see ring_changes.py).
"""

from __future__ import annotations

import json
import socket
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any

RETRY_S = 1.0
"""An agent that is not there is tried again after this time (s)."""
LONGEST_LINE = 1 << 20
"""Bytes; a longer line ends the connection."""


class Handoff:
    """A thread that listens to the agent for as long as the job lives."""

    def __init__(
        self,
        path: str,
        greeting: Callable[[], Mapping[str, Any]],
        receive: Callable[[Mapping[str, Any]], None],
    ) -> None:
        self._path, self._greeting, self._receive = path, greeting, receive
        self._closed = threading.Event()
        self._lock = threading.Lock()
        self._link: socket.socket | None = None
        self._thread = threading.Thread(target=self._run, name="hand-off", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def send(self, message: Mapping[str, Any]) -> None:
        """Send a line if the agent is there; it never waits. A later greeting repeats the last
        state.
        """
        with self._lock:
            self._send(message)

    def close(self) -> None:
        """End the thread."""
        self._closed.set()
        with self._lock:
            self._drop()
        self._thread.join()

    def _run(self) -> None:
        while not self._closed.is_set():
            try:
                self._listen()
            # whatever came: without this thread the rank would take part in nothing more
            except Exception as error:
                if not isinstance(error, OSError):
                    print(f"# hand-off: {type(error).__name__}: {error}", file=sys.stderr)
            with self._lock:
                self._drop()
                self._link = None
            self._closed.wait(RETRY_S)

    def _listen(self) -> None:
        """Serve one connection until it ends. Raises: OSError, ValueError - it was lost, or what
        came is no line of JSON.
        """
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as link:
            link.connect(self._path)
            with self._lock:
                if self._closed.is_set():
                    return
                self._link = link
                self._send(self._greeting())
            received = b""
            while piece := link.recv(65536):
                *lines, received = (received + piece).split(b"\n")
                if len(received) > LONGEST_LINE:
                    raise ValueError("a line without end")
                for line in lines:
                    message = json.loads(line)
                    if not isinstance(message, dict):
                        raise ValueError("not an object")
                    self._receive(message)

    def _send(self, message: Mapping[str, Any]) -> None:
        if self._link is None:
            return
        line = json.dumps(message).encode() + b"\n"
        try:
            sent = self._link.send(line, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
        except OSError:
            sent = 0
        if sent < len(line):  # gone, or so far behind that it must connect again
            self._drop()

    def _drop(self) -> None:
        if self._link is not None:
            try:
                self._link.shutdown(socket.SHUT_RDWR)  # the thread closes it
            except OSError:
                pass
