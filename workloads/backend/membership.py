"""A rank's part in one group: who belongs to it, and the thread that carries its ring
collectives.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import torch.distributed as dist

from .channel import LEAVE_S, Channel
from .following import Following
from .world import World, client


class Membership:
    """Ranks are those of the group; `members` are theirs in the job."""

    def __init__(
        self,
        world: World,
        members: Sequence[int],
        channel: Channel,
        name: str,
        close: Callable[[float], None],
    ) -> None:
        self.world, self.members, self.channel, self._close = world, tuple(members), channel, close
        self.rank, self.size = self.members.index(world.rank), len(self.members)
        self.mark = hashlib.sha256(f"{name} {self.members}".encode()).digest()[:8]
        """The group in messages from one rank to another."""

    @classmethod
    def of(cls, options: Any) -> Membership:
        """The group that torch describes.

        Raises: RuntimeError - a rank does not come. ValueError - the environment is wrong, or the
        group cannot be.
        """
        members = list(options.global_ranks_in_group)
        if not members or (World.current is None and len(members) == dist.get_world_size()):
            world = World(options.store, options.group_rank, options.group_size, options.timeout)
            World.current = world
            return cls(
                world,
                range(world.size),
                world.channel,
                "default",
                lambda within_s: _leave(world, within_s),
            )
        if World.current is None:
            raise ValueError(
                "testbed: a group of some of the ranks, but the default group has another back-end"
            )
        return cls._part(World.current, members, options)

    @classmethod
    def _part(cls, world: World, members: Sequence[int], options: Any) -> Membership:
        births = options.store.add(f"testbed/born/{world.rank}", 1)
        rings = Following(
            world, members, dist.PrefixStore(f"testbed/{births}", client(options.store))
        )
        name = str(options.group_id)
        channel = Channel(
            name, rings.laps, rings, world.place.timeout_s, world.heartbeat, lost=rings.disconnect
        )

        def close(within_s: float) -> None:
            channel.close(within_s)
            rings.disconnect()
            if close in world.leaving:
                world.leaving.remove(close)

        world.leaving.append(close)
        return cls(world, members, channel, name, close)

    def close(self, within_s: float = LEAVE_S) -> None:
        """Leave, once what was issued is done, or fails after this time (s)."""
        self._close(within_s)


def _leave(world: World, within_s: float) -> None:
    if World.current is world:
        World.current = None
    world.close(within_s)
