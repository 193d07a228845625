"""The machine that operators type on: its processes, and what of its files a power loss leaves."""

from __future__ import annotations

import os
import random
import stat
from pathlib import Path

from tests.sim.loop import Actor, Machine, SimLoop

FIRST_PID, PIDS = 5_000_000, 16
"""Above any real process's. They are used again soon, as after a week on a busy machine."""


class Desk(Machine):
    """A machine with one folder of files. The store's are SQLite's own matter, as long as it syncs
    every commit.
    """

    def __init__(self, loop: SimLoop, folder: Path, seed: str) -> None:
        super().__init__("desk")
        self.loop, self.folder, self.rng = loop, folder, random.Random(f"desk/{seed}")
        self.processes: dict[int, Actor] = {}
        self.children: list[Actor] = []
        self.synced: dict[int, bytes] = {}
        self.last = 0

    def process(self, name: str) -> Actor:
        """A new process, with the next free number."""
        actor = self.loop.actor(name, self)
        self.last += 1
        while (
            found := self.processes.get(FIRST_PID + self.last % PIDS)
        ) is not None and not found.dead:
            self.last += 1
        actor.pid = FIRST_PID + self.last % PIDS
        self.processes[actor.pid] = actor
        return actor

    def proc(self, name: str) -> str:
        """A file of proc(5)."""
        if name.endswith("boot_id"):
            return self.boot
        actor = self.processes.get(int(name.partition("/")[0]))
        if actor is None or actor.dead:
            return ""
        return f"{actor.pid} (testbed) S {'0 ' * 18}{self.ticks(actor)} 0"

    def ticks(self, actor: Actor) -> int:
        """When a process began, in hundredths of a second since the machine started."""
        return int(100 * (actor.began - self.booted))

    def sync(self, fd: int) -> None:
        """As os.fsync."""
        found = os.fstat(fd)
        if stat.S_ISREG(found.st_mode):
            self.synced[found.st_ino] = os.pread(fd, found.st_size, 0)

    def keep(self, path: Path) -> None:
        """The disk has this file."""
        self.synced[path.stat().st_ino] = path.read_bytes()

    def lose_power(self) -> None:
        """Everything that runs dies at once; files that were not synced may be gone, empty or
        short.
        """
        self.loop.note("POWER of the operators' machine")
        for actor in [*self.processes.values(), *self.children]:
            if not actor.ended:
                self.loop.kill(actor)
        self.boots += 1
        self.booted = self.loop.now
        for path in sorted(self.folder.rglob("*")):
            if not path.is_file() or path.name.startswith("testbed.sqlite3"):
                continue
            data = path.read_bytes()
            if self.synced.get(path.stat().st_ino) == data:
                continue
            left = self.rng.choice((None, b"", data[: len(data) // 2], data))
            if left is None:
                path.unlink()
            else:
                path.write_bytes(left)
                self.keep(path)
