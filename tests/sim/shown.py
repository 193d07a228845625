"""What a rank leaves on its host beside its records: the memory that it shares with the agent, and
its checkpoints.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from tests.sim.kernel import Disk
from tests.sim.seams import KEPT, Demand, Heartbeat, Unknown, demanded, heartbeat


def option(argv: Sequence[str], name: str, default: int) -> int:
    """The value of an option of a command line."""
    return int(argv[argv.index(name) + 1]) if name in argv else default


def beating(pid: int, rank: int) -> Any:
    """The program's own beat, in memory; its file is `heartbeat_file`."""
    made = Heartbeat(None, rank, Unknown())  # what this process waits for is no part of the story
    heartbeat.HEAD.pack_into(made._memory, 0, heartbeat.MAGIC, pid, rank)
    return made


class Gate:
    """What a rank of a mixture of experts sends, in the program's own file: most to one, another
    every few iterations.
    """

    def __init__(self, rank: int, world: int, seed: str, drift: int) -> None:
        self.rank, self.world, self.seed, self.drift = rank, world, seed, drift
        self.file = Demand(None, rank, world)
        demanded.HEAD.pack_into(self.file._memory, 0, demanded.MAGIC, rank, world)

    def decides(self, iteration: int) -> None:
        """The gate of an iteration has decided."""
        draw = random.Random(f"{self.seed}/{iteration // self.drift if self.drift else 0}")
        order = draw.sample(range(self.world), self.world)
        favourite = (
            order[order.index(self.rank) ^ 1]
            if order.index(self.rank) ^ 1 < self.world
            else self.rank
        )
        self.file.gate([900_000 if other == favourite else 10_000 for other in range(self.world)])


class Checkpoints:
    """Those of one rank, as `workloads.training.checkpoint`: they outlive a power loss, and the
    newest few are kept.
    """

    def __init__(self, disk: Disk, where: str, rank: int) -> None:
        self.disk, self.where, self.rank = disk, where, rank

    def kept(self) -> set[int]:
        """The iterations that the host has a checkpoint of, of whichever rank."""
        return iterations(self.disk, self.where)

    def forget(self) -> None:
        for name in [name for name in self.disk.names if name.startswith(self.where + "/")]:
            self.disk.names.pop(name)
            self.disk.synced.pop(name, None)

    def write(self, iteration: int) -> None:
        self.disk.put(f"{self.where}/checkpoint-{self.rank}-{iteration}.pt", str(iteration))
        for old in sorted(self.kept())[:-KEPT]:
            for names in (self.disk.names, self.disk.synced):
                names.pop(f"{self.where}/checkpoint-{self.rank}-{old}.pt", None)


def iterations(disk: Disk, where: str) -> set[int]:
    """The iterations that a host has a checkpoint of in this folder."""
    names = (name for name in disk.names if name.startswith(where + "/checkpoint-"))
    return {int(name.rpartition("-")[2].removesuffix(".pt")) for name in names}
