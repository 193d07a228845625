"""How the ranks of a set find the ends of their lanes to each other, and agree on how large a
datagram may be.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Collection
from typing import Any

from ..host.place import Place
from .accord import appears
from .datagrams import HEADER, LARGEST, Lane
from .neighbours import End, Neighbour
from .wires import CHECK_S


def met(
    place: Place,
    store: Any,
    name: str,
    others: Collection[int],
    ends: list[End],
    until_s: float,
    given_up: Callable[[], bool] | None,
) -> tuple[dict[int, Neighbour], int]:
    """Return the ranks `others` with the ends that lead to them, and how many bytes a block has,
    the same on all ranks.

    ends: gets every end that is made, for whoever closes them; until_s: monotonic. Raises: OSError,
    RuntimeError - one cannot be reached, or does not come in time; no block fits a datagram.
    """

    def shown(topic: str, rank: int) -> Any:
        key = f"{name}/{topic}/{rank}"
        while not appears(store, key, min(CHECK_S, max(until_s - time.monotonic(), 0.001))):
            if time.monotonic() >= until_s or (given_up is not None and given_up()):
                raise TimeoutError(f"timed out while waiting for rank {rank}")
        return json.loads(store.get(key))

    peers: dict[int, list[End]] = {}
    for peer in sorted(others):
        peers[peer] = []
        for lane in dict.fromkeys(place.lanes):
            ends.append(End(lane))
            peers[peer].append(ends[-1])
    mine = {
        peer: [(*end.socket.getsockname(), end.token, end.room) for end in theirs]
        for peer, theirs in peers.items()
    }
    store.set(f"{name}/ends/{place.rank}", json.dumps(mine))
    largest, connected = LARGEST, []
    for peer, to_it in peers.items():
        for end, (address, port, token, room) in zip(
            to_it, shown("ends", peer)[str(place.rank)], strict=False
        ):
            largest = min(largest, end.connect(address, port))
            connected.append(
                (
                    end,
                    token,
                    min(room, end.socket.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) // 3),
                )
            )
    if ends:  # blocks are the same on all ranks
        store.set(f"{name}/largest/{place.rank}", json.dumps(largest))
        largest = min(shown("largest", rank) for rank in range(place.world))
    unit = (largest - HEADER.size) // 8 * 8
    if unit < 8:
        raise RuntimeError(f"connecting to peers: a datagram of {largest} bytes holds no block")
    for end, token, room in connected:
        end.lane = Lane(token, largest, room)
    known = {id(end) for end, _, _ in connected}
    return {
        peer: Neighbour(peer, [end for end in to_it if id(end) in known])
        for peer, to_it in peers.items()
    }, unit
