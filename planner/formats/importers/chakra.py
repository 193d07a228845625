"""Reads the traffic of one iteration from Chakra execution traces, one for each rank.

Sends and collectives become bytes over a plan's circuits. An all-reduce sums in its process group;
an all-gather or reduce-scatter counts as the all-reduce that sends as many bytes around a ring
(ASTRA-sim's meaning of comm_size: system/collective/Ring.cc of astra-sim/astra-sim); an all-to-all
is a transfer for each pair. Ranks whose traces name a process group are its members; without a name
it is everybody. The k-th send of a source, destination and tag belongs to the k-th receive.

What waits for what decides how long an iteration computes: the longest way through all traces, or
the busiest processor, if that takes longer (one operation of the GPU and one of the CPU at a time,
as workload/HardwareResource.cc of ASTRA-sim).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import permutations

import numpy as np

from planner.formats import chakra
from planner.formats.chakra import AGAIN, Node
from planner.model.demand import Demand, Group, Infeasible

MOST_RANKS = 1024
_MOST_BYTES = 2**53
_MOST_MICROS = 86_400_000_000
"""A day: what a job may compute in an iteration."""
_HALVES = (chakra.REDUCE_SCATTER, chakra.REDUCE_SCATTER_BLOCK)
_ROOTED = {1: "reduce", 3: "gather", 4: "scatter", 5: "broadcast"}


def demand(traces: Sequence[bytes]) -> Demand:
    """The demand of the traces of ranks 0, 1, ... Raises: Infeasible - no traces, or ones that do
    not fit each other, with rank and node; Missing - the package protobuf is not installed.
    """
    if not 2 <= len(traces) <= MOST_RANKS:
        raise Infeasible(
            f"traces of {len(traces)} ranks; 2 to {MOST_RANKS} are read", "give one for each rank"
        )
    left, ranks = chakra.MOST_NODES, []
    for rank, data in enumerate(traces):
        ranks.append(chakra.read(data, rank, left))
        left -= len(ranks[-1])
    return _Traces(ranks).demand()


class _Traces:
    """The nodes of all ranks. A collective is one event of all its ranks; events are numbered."""

    def __init__(self, ranks: Sequence[Sequence[Node]]) -> None:
        self.ranks = ranks
        self.n = len(ranks)
        self.mp = np.zeros((self.n, self.n))
        self.sums: dict[tuple[int, ...], float] = defaultdict(float)
        self.event: list[dict[int, int]] = []
        self.first: list[tuple[int, Node]] = []
        """Of each event: a rank and node it is."""
        for rank, nodes in enumerate(ranks):
            numbers: dict[int, int] = {}
            for node in nodes:
                if node.id in numbers:
                    raise _wrong(rank, node, "is there twice", "number the nodes of a rank once")
                numbers[node.id] = len(self.first)
                self.first.append((rank, node))
            self.event.append(numbers)

    def demand(self) -> Demand:
        sent = self._transfers()
        self._collectives()
        computing = self._longest(sent)
        groups = [
            Group(f"group{number}", members, round(size))
            for number, (members, size) in enumerate(sorted(self.sums.items()))
        ]
        return Demand(self.n, tuple(groups), self.mp, computing / 1e6)

    def _transfers(self) -> list[tuple[int, int]]:
        """Count what is sent; return the event of each receive behind that of its send."""
        ends: dict[int, dict[tuple[int, int, int], list[tuple[Node, int]]]] = {
            chakra.SEND: defaultdict(list),
            chakra.RECEIVE: defaultdict(list),
        }
        for rank, nodes in enumerate(self.ranks):
            for node in nodes:
                if node.kind in ends:
                    here, there = ("src", "dst") if node.kind == chakra.SEND else ("dst", "src")
                    if _number(rank, node, f"comm_{here}", self.n, rank) != rank:
                        raise _wrong(rank, node, "belongs to another rank", AGAIN)
                    other = _number(rank, node, f"comm_{there}", self.n)
                    if other == rank:
                        raise _wrong(rank, node, "sends to its own rank", AGAIN)
                    tag = _number(rank, node, "comm_tag", 2**64, 0)
                    pair = (rank, other) if node.kind == chakra.SEND else (other, rank)
                    ends[node.kind][(*pair, tag)].append((node, self.event[rank][node.id]))
        found = []
        for key in ends[chakra.SEND].keys() | ends[chakra.RECEIVE].keys():
            src, dst, tag = key
            sends, receives = ends[chakra.SEND][key], ends[chakra.RECEIVE][key]
            if len(sends) != len(receives):
                raise Infeasible(
                    f"rank {src} sends {len(sends)} times to rank {dst} with tag {tag}, "
                    f"which receives {len(receives)} times",
                    "give the traces of one run, whole iterations of all ranks",
                )
            for (send, begin), (receive, end) in zip(sends, receives, strict=True):
                size = _number(src, send, "comm_size", _MOST_BYTES)
                if (got := _number(dst, receive, "comm_size", _MOST_BYTES)) != size:
                    raise _wrong(
                        dst, receive, f"receives {got} bytes where rank {src} sends {size}", AGAIN
                    )
                self.mp[src, dst] += size
                found.append((begin, end))
        return found

    def _collectives(self) -> None:
        """Count what collectives move, and make each one event."""
        groups: dict[str, dict[int, list[Node]]] = defaultdict(lambda: defaultdict(list))
        for rank, nodes in enumerate(self.ranks):
            for node in nodes:
                if node.kind == chakra.COLLECTIVE:
                    groups[str(node.attributes.get("pg_name", ""))][rank].append(node)
        for name, members in groups.items():
            title = f"process group {name}" if name else "the group of all ranks"
            least, most = (pick(members, key=lambda r: len(members[r])) for pick in (min, max))
            if not name and len(members) < self.n:
                least = next(rank for rank in range(self.n) if rank not in members)
            few = len(members[least]) if least in members else 0
            if few != len(members[most]):
                raise Infeasible(
                    f"{title}: rank {most} has {len(members[most])} collectives, rank {least} {few}",
                    "give the traces of one run, whole iterations of all ranks",
                )
            ranks = sorted(members)
            for together in zip(*(members[rank] for rank in ranks), strict=True):
                self._collective(ranks, together)

    def _collective(self, ranks: Sequence[int], together: Sequence[Node]) -> None:
        kinds = []
        for rank, node in zip(ranks, together, strict=True):
            kind = _number(rank, node, "comm_type", 10)
            none = 0 if kind == chakra.BARRIER else None
            kinds.append((kind, _number(rank, node, "comm_size", _MOST_BYTES, none)))
        kind, size = kinds[0]
        for rank, node, other in zip(ranks, together, kinds, strict=True):
            if other != (kind, size):
                raise _wrong(
                    rank,
                    node,
                    f"is a collective of type {other[0]} and {other[1]} bytes, at rank {ranks[0]} "
                    f"of type {kind} and {size} bytes",
                    AGAIN,
                )
            self.event[rank][node.id] = self.event[ranks[0]][together[0].id]
        if kind in _ROOTED:
            raise _wrong(
                ranks[0],
                together[0],
                f"is a {_ROOTED[kind]}: its trace does not say which rank is the root",
                "leave it out, or write it as sends and receives",
            )
        share = {chakra.ALL_REDUCE: 1.0, chakra.ALL_GATHER: len(ranks) / 2}
        share |= dict.fromkeys(_HALVES, 0.5)
        if kind in share and len(ranks) > 1:
            self.sums[tuple(ranks)] += size * share[kind]
        if kind == chakra.ALL_TO_ALL:
            for a, b in permutations(ranks, 2):
                self.mp[a, b] += size / len(ranks)

    def _longest(self, sent: Sequence[tuple[int, int]]) -> int:
        """Microseconds of computing in an iteration. Raises: Infeasible - a node waits for one that
        is not there, or for itself.
        """
        follow: list[list[int]] = [[] for _ in self.first]
        waits, takes, busy = [0] * len(self.first), [0] * len(self.first), Counter[object]()
        edges = list(sent)
        for rank, nodes in enumerate(self.ranks):
            for node in nodes:
                here = self.event[rank][node.id]
                if node.kind not in (chakra.SEND, chakra.RECEIVE, chakra.COLLECTIVE):
                    takes[here] = node.micros
                    busy[rank, bool(node.attributes.get("is_cpu_op"))] += node.micros
                for other in node.after:
                    if other not in self.event[rank]:
                        raise _wrong(
                            rank, node, f"waits for node {other}, which is not there", AGAIN
                        )
                    edges.append((self.event[rank][other], here))
        for a, b in edges:
            follow[a].append(b)
            waits[b] += 1
        ends = [0] * len(self.first)
        ready = [event for event, count in enumerate(waits) if not count]
        for event in ready:
            ends[event] += takes[event]
            for other in follow[event]:
                ends[other] = max(ends[other], ends[event])
                waits[other] -= 1
                if not waits[other]:
                    ready.append(other)
        if len(ready) < len(self.first):
            stuck = next(event for event, count in enumerate(waits) if count)
            raise _wrong(*self.first[stuck], "waits for itself, over other nodes", AGAIN)
        longest = max((*ends, *busy.values()), default=0)
        if longest > _MOST_MICROS:
            raise Infeasible(
                f"the traces compute for {longest / 1e6:g} s, more than a day",
                "give the traces of one iteration, durations in microseconds",
            )
        return longest


def _number(rank: int, node: Node, name: str, most: int, default: int | None = None) -> int:
    """A whole number from 0 to below `most`. Raises: Infeasible."""
    value = node.attributes.get(name, default)
    if value is None:
        raise _wrong(rank, node, f"has no {name}", AGAIN)
    if isinstance(value, str) or value != value or not 0 <= value < most or value != int(value):
        raise _wrong(rank, node, f"has {name} {value!r}, wanted a number below {most}", AGAIN)
    return int(value)


def _wrong(rank: int, node: Node, what: str, hint: str) -> Infeasible:
    return Infeasible(f"rank {rank}, node {node.id} ({node.name[:60]!r}): it {what}", hint)
