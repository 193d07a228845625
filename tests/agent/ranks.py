"""Ranks for tests of the hand-off socket: clients of a real job that write down all that they
receive.

Environment: RANKS, how many; MODE: `prompt`, `cannot` (all but rank 0) or `mute`; EXTRA: code that
the job runs as well.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.agent.space import Peer, Space
from tests.kit.waiting import until

RANK = """
import json, os, socket, sys, threading, time

folder = os.environ["TESTBED_JOB_DIR"]
mode = os.environ.get("MODE", "prompt")

def note(rank, line):
    with open(f"{folder}/received.{rank}", "a") as file:
        file.write(json.dumps(dict(line, received_ns=time.monotonic_ns())) + "\\n")

def serve(rank, world):
    state, move = "idle", 0
    def say(**more):
        message = {"rank": rank, "move": move, "state": state, "iteration": 7, "t_ns": time.monotonic_ns(), **more}
        link.sendall(json.dumps(message).encode() + b"\\n")
    while True:
        link = socket.socket(socket.AF_UNIX)
        try:
            link.connect(os.environ["TESTBED_HANDOFF"])
            say(world=world)
            for line in link.makefile("rb"):
                asked = json.loads(line)
                note(rank, asked)
                if asked["do"] == "prepare":
                    move, state = asked["move"], "preparing"
                    say()
                    if mode == "mute":
                        continue
                    state = "cannot" if mode == "cannot" and rank else "prepared"
                    say(**({"error": "no such host"} if state == "cannot" else {"took_ms": 1.5}), surprise=1)
                elif asked["do"] == "hold" and mode != "mute":
                    move, state = asked["move"], "held"
                    say()
                elif asked["do"] == "go" and asked["move"] == move and mode != "mute":
                    state = "changed"
                    say(after=7, held_ms=2, stall_ms=0.5)
                elif asked["do"] == "drop" and asked["move"] == move and state != "changed":
                    state = "void"
                    say()
        except OSError:
            pass
        note(rank, {"do": "disconnected"})
        time.sleep(0.05)

count = int(os.environ.get("RANKS", "2"))
for rank in range(count):
    threading.Thread(target=serve, args=(rank, int(os.environ.get("WORLD", count))), daemon=True).start()
exec(os.environ.get("EXTRA", ""))
while not os.path.exists(folder + "/end"):
    time.sleep(0.02)
"""
PROGRAM = ["/usr/bin/env", "python3", "-S", "-E", "-c", RANK]


class Job:
    """A job whose ranks are tests' own."""

    def __init__(
        self, host: Space, peer: Peer, name: str, argv: list[str] = PROGRAM, **env: str
    ) -> None:
        self.host, self.peer, self.name = host, peer, name
        started = peer.ask("job.start", name=name, argv=argv, env=env)
        assert started["ok"], started
        self.pid: int = started["pid"]
        self.folder = Path(f"/proc/{host.pid}/root{started['directory']}")

    def ask(self, op: str, **fields: Any) -> dict[str, Any]:
        return self.peer.ask(f"job.{op}", name=self.name, **fields)

    def rows(self) -> list[dict[str, Any]]:
        return list(self.ask("ring_changes")["ranks"])

    def connected(self, count: int = 2) -> Job:
        until(lambda: len(self.rows()) == count)
        return self

    def received(self, rank: int = 0) -> list[dict[str, Any]]:
        file = self.folder / f"received.{rank}"
        lines = file.read_text().splitlines(keepends=True) if file.exists() else []
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def asked(self, rank: int = 0) -> list[tuple[str, int]]:
        """What the rank was asked for so far, and for which move."""
        return [(line["do"], line["move"]) for line in self.received(rank) if "move" in line]

    def gets(self, do: str, move: int, rank: int = 0) -> dict[str, Any]:
        """The request that a rank receives now, or has received."""
        until(lambda: (do, move) in self.asked(rank))
        return next(
            line for line in self.received(rank) if (line["do"], line.get("move")) == (do, move)
        )

    def end(self) -> None:
        self.peer.ask("job.stop", name=self.name, grace_s=0)
