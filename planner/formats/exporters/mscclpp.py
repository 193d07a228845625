"""All-reduce over rings as an execution plan (JSON) of MSCCL++, in place, over port channels.

On each ring the chunks go the way of `msccl.ring_steps`: a thread block reduces, one gathers. What
is to be reduced is put into a place of its own in the next rank's scratch buffer, so that nothing is
written over; what is reduced is put where it belongs, after all have read what was there. A channel
joins one thread block of a rank to the same one of the next; the k-th channel of two ranks to each
other is the same at both. Names and limits are those of microsoft/mscclpp,
src/core/executor/execution_plan.cc and src/core/include/execution_common.hpp.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from planner.formats.exporters.msccl import checked, ring_steps
from planner.model.backend import Order
from planner.model.demand import Infeasible

MOST_OPERATIONS, MOST_SEMAPHORES, ALIGNED = 64, 16, 16
"""Operations of a thread block, semaphores of a rank, bytes that a chunk is a multiple of."""
_NOP = {"name": "nop"}
Json = dict[str, Any]


def plan(name: str, orders: Sequence[Order]) -> str:
    """The plan that sums over rings, for a communicator of the orders' ranks (`msccl.ranks_of`).
    Raises: Infeasible - as `msccl.xml`, or more than MSCCL++ takes.
    """
    ranks = checked(orders)
    n, rings = len(ranks), len(orders)
    if n < 2:
        raise Infeasible("one rank has nothing to sum", "take a group of several ranks")
    if rings > MOST_SEMAPHORES:
        raise Infeasible(
            f"{rings} rings take {rings} semaphores, MSCCL++ {MOST_SEMAPHORES} at most",
            "take fewer rings",
        )
    places = [[ranks.index(rank) for rank in order] for order in orders]
    ends: list[list[tuple[int, int]]] = [[] for _ in ranks]
    """Of each rank: the link of each of its channels, and the rank at the other end."""
    for link in range(2 * rings):
        for at, rank in enumerate(places[link // 2]):
            to = places[link // 2][(at + 1) % n]
            ends[rank].append((link * n + at, to))
            ends[to].append((link * n + at, rank))
    gpus = [_gpu(rank, places, ends[rank]) for rank in range(n)]
    longest = max(len(block["ops"]) for gpu in gpus for block in gpu["threadblocks"])
    if longest > MOST_OPERATIONS:
        raise Infeasible(
            f"{n} ranks take {longest} operations in a thread block, MSCCL++ {MOST_OPERATIONS} at most",
            "take a group of fewer ranks",
        )
    found = {
        "name": name,
        "collective": "allreduce",
        "protocol": "Simple",
        "inplace": True,
        "reuse_resources": False,
        "gpus": gpus,
        "num_threads_per_block": 1024,
        "use_double_scratch_buffer": False,
        "buffer_alignment": ALIGNED,
        "min_message_size": ALIGNED * n * rings,
        "max_message_size": 2**64 - 1,
    }
    return json.dumps(found, indent=1) + "\n"


def _gpu(rank: int, places: Sequence[Sequence[int]], ends: Sequence[tuple[int, int]]) -> Json:
    n, rings = len(places[0]), len(places)
    channel = {link: number for number, (link, _) in enumerate(ends)}
    remote: dict[tuple[int, str], int] = {}
    blocks = []
    for ring, order in enumerate(places):
        at = order.index(rank)
        to = order[(at + 1) % n]
        steps = [chunk for _, chunk in ring_steps(n, at, ring * n)]
        scratch = ring * (n - 1)
        for gathers, ops in (
            (False, _reduce(steps[:n], scratch, ring)),
            (True, _gather(steps[n - 1 :], ring)),
        ):
            link = (2 * ring + gathers) * n
            buffer = remote.setdefault((to, "i" if gathers else "s"), len(remote))
            blocks.append(
                {
                    "id": 2 * ring + gathers,
                    "ops": ops,
                    "channels": [
                        {
                            "channel_type": "port",
                            "channel_ids": [channel[link + at], channel[link + (at - 1) % n]],
                        }
                    ],
                    "remote_buffer_refs": [
                        {"access_channel_type": "port", "remote_buffer_ids": [buffer]}
                    ],
                }
            )
    return {
        "id": rank,
        "input_chunks": n * rings,
        "output_chunks": n * rings,
        "scratch_chunks": (n - 1) * rings,
        "threadblocks": blocks,
        "channels": [{"channel_type": "port", "connected_to": [other for _, other in ends]}],
        "remote_buffers": [
            {"rank": other, "type": kind, "access_channel_types": ["port"]}
            for other, kind in remote
        ],
        "semaphores": [{"init_value": 0}] * rings,
    }


def _reduce(chunks: Sequence[int], scratch: int, semaphore: int) -> list[Json]:
    """Put the first chunk to the next rank; add each of the others to what comes, and put it, but
    for the last.
    """
    ops = []
    for step, chunk in enumerate(chunks[:-1]):
        own = chunks[step + 1]
        ops += [_put(chunk, scratch + step), _on(1, "wait"), _NOP]
        ops.append(
            {
                "name": "re",
                "src_buff": [_at("i", own), _at("s", scratch + step)],
                "dst_buff": [_at("i", own)],
                "reduce_op": "sum",
            }
        )
        ops.append(_NOP)
    return [*ops, {"name": "sem_release", "semaphore_ids": [semaphore]}]


def _gather(chunks: Sequence[int], semaphore: int) -> list[Json]:
    """Put what is reduced to the next rank, then what comes."""
    ops: list[Json] = [{"name": "sem_acquire", "semaphore_ids": [semaphore]}, _NOP]
    for chunk in chunks[:-1]:
        ops += [_put(chunk, chunk), _on(1, "wait"), _NOP]
    return [*ops, _on(0, "flush")]


def _on(channel: int, name: str) -> Json:
    """channel: 0 to the next rank, 1 from the one before."""
    return {"name": name, "channel_ids": [channel], "channel_type": "port"}


def _at(buffer: str, index: int) -> Json:
    return {"type": buffer, "index": index, "size": 1}


def _put(chunk: int, there: int) -> Json:
    """Put a chunk to a place of the next rank's buffer, and signal it."""
    return {
        **_on(0, "pws"),
        "src_buff": [_at("i", chunk)],
        "dst_buff": [{"buffer_id": 0, "index": there, "size": 1}],
    }
