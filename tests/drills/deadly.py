"""`python -m tests.drills.deadly ARGUMENTS OF testbed`: the real command, and something happens at
one point of its way.

A point is before or after what cannot be taken back by forgetting it: a commit of the store, bytes
that change a device, a request that changes a host, a play. The program knows nothing of it: its
functions are wrapped here, from outside. Environment: DRILL_POINTS, a file that gets the name of
every point passed; DRILL_AT, the point, or DRILL_LIKE, a regular expression for its name without
its number, and DRILL_NTH, the how manieth of those it is; DRILL_DO, what happens there: `kill`
(this process), `wait FILE` (write the point's name to it and wait until it is removed), or a
request to the lab's control socket as JSON, with the socket's path in DRILL_SOCKET.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

WRITES = re.compile(rb"conn:(add|sub)|(CANC|DLT|ENT|ACT)-CRS", re.IGNORECASE)
"""What changes a device of the default lab (Polatis SCPI, Calient TL1)."""
WAIT_S = 150.0
"""The longest wait (s) at a point."""


class Points:
    """Counts the points passed and lets happen what is to happen at one of them."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self.file, self.at = env.get("DRILL_POINTS", ""), env.get("DRILL_AT", "")
        self.like, self.left = env.get("DRILL_LIKE", ""), int(env.get("DRILL_NTH", "1"))
        self.what, self.socket = env.get("DRILL_DO", "kill"), env.get("DRILL_SOCKET", "")
        self.passed: Counter[str] = Counter()
        self.lock = threading.Lock()

    def __call__(self, when: str, what: str) -> None:
        with self.lock:
            self.passed[f"{when} {what}"] += 1
            name = f"{when} {what} {self.passed[f'{when} {what}']}"
            if self.file:
                with Path(self.file).open("a") as file:
                    file.write(name + "\n")
            if self.like and re.fullmatch(self.like, f"{when} {what}"):
                self.left -= 1
            if name == self.at or (self.like and not self.left):
                self.like = ""
                self.happen(name)

    def happen(self, name: str) -> None:
        if self.what == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.what.startswith("wait "):
            file, give_up = Path(self.what.removeprefix("wait ")), time.monotonic() + WAIT_S
            file.write_text(name)
            while file.exists() and time.monotonic() < give_up:
                time.sleep(0.01)
            return
        with socket.socket(socket.AF_UNIX) as link:
            link.settimeout(10)
            link.connect(self.socket)
            link.sendall(self.what.encode() + b"\n")
            heard = b""
            while not heard.endswith(b"\n"):
                heard += link.recv(1 << 16)


def _who_commits() -> str:
    """The function of the program that asked for the commit."""
    frame = sys._getframe(1)
    while frame.f_code.co_filename == __file__ or frame.f_code.co_name in (
        "write",
        "_write",
        "__enter__",
        "__exit__",
    ):
        assert frame.f_back is not None
        frame = frame.f_back
    return frame.f_code.co_qualname if sys.version_info >= (3, 11) else frame.f_code.co_name


def wrap(points: Points) -> None:
    """Wrap the store, the links and the channels of this process."""
    from agent.daemon import FENCED
    from drivers.link.base import Link
    from drivers.link.tcp import TcpLink
    from orchestrator.hosts import runner
    from orchestrator.hosts.channel import Channel
    from orchestrator.store.store import Store

    transaction, write, send, play = (
        Store.transaction,
        TcpLink._write,
        Channel.send,
        runner.Ansible.play,
    )

    @contextmanager
    def committed(self: Store) -> Iterator[Any]:
        who = _who_commits()
        with transaction(self) as db:
            was = db.total_changes
            yield db
            if changed := db.total_changes != was:
                points("before", f"commit of {who}")
        if changed:
            points("after", f"commit of {who}")

    async def written(self: Link, data: bytes) -> None:
        found = WRITES.search(data)
        what = f"{self.who} {found[0].decode().lower()}" if found else ""
        if what:
            points("before", what)
        await write(self, data)  # type: ignore[arg-type]
        if what:
            points("after", what)

    def sent(self: Channel, op: str, **fields: Any) -> Any:
        what = f"{self.host.name} {op}"
        if op in FENCED:
            points("before", what)
        future = send(self, op, **fields)
        if op in FENCED:
            points("after", what)
        return future

    def played(self: runner.Ansible, playbook: str, *arguments: Any, **more: Any) -> Any:
        hear = runner._hear

        def heard(event: Mapping[str, Any], found: runner.Play) -> None:
            if event.get("event") == "runner_on_ok":
                points("inside", f"play {playbook}")
            hear(event, found)

        points("before", f"play {playbook}")
        with patch.object(runner, "_hear", heard):
            result = play(self, playbook, *arguments, **more)
        points("after", f"play {playbook}")
        return result

    Store.transaction = committed  # type: ignore[method-assign]
    TcpLink._write = written  # type: ignore[method-assign, assignment]
    Channel.send = sent  # type: ignore[method-assign]
    runner.Ansible.play = played  # type: ignore[method-assign]


if __name__ == "__main__":
    from orchestrator.cli.main import main

    # a drill in the background hands down one that is ignored
    signal.signal(signal.SIGINT, signal.default_int_handler)
    wrap(Points(os.environ))
    main()
