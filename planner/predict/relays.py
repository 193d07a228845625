"""Transfers that another rank passes on: by which one, and what that adds to their time.

A rank of the sender's domain that is on the receiver's rail has a link with both. The fast link
comes first: what waits for the rail then waits where it leaves the domain.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import replace

from planner.model.demand import Infeasible
from planner.predict.iteration import PairFlow, fullest, pair_loads
from planner.predict.routing import Pair

CHUNK = 16384
"""Bytes of a message that a relay waits for before it sends (workloads/transport/relay.py)."""


def relays(pairs: Iterable[Pair], rates: Mapping[Pair, float]) -> dict[Pair, int]:
    """The rank that passes on for each pair without a link of its own: the one with the fastest
    link from the sender, the first of equals.

    rates: of the links from rank to rank. Raises: Infeasible - no rank has a link with both.
    """
    found: dict[Pair, int] = {}
    leaving: dict[int, list[int]] = {}
    for src, via in rates:
        leaving.setdefault(src, []).append(via)
    for src, dst in pairs:
        if (src, dst) in rates:
            continue
        between = [via for via in leaving.get(src, ()) if (via, dst) in rates]
        if not between:
            raise Infeasible(
                f"no rank has a link from rank {src} and one to rank {dst}, so none can pass on between them",
                "name packet switches of domains and of rails: --segment 'domain*' --segment 'rail*', or omit --relay",
            )
        found[src, dst] = min(between, key=lambda via: (-rates[src, via], via))
    return found


def relays_s(
    flows: Sequence[PairFlow],
    parts: Sequence[Sequence[float]],
    bytes_per_s: float,
    *,
    whole: bool = False,
) -> float:
    """What relays add to the time in which the fullest link carries its bytes.

    In chunks both stages go on together, but for the first chunk of each message. whole: what
    relays send begins when all else has ended, as rail-only's source reckons.
    """
    relayed = [(f, part) for f, part in zip(flows, parts, strict=True) if f.relayed_at]
    straight = [(f, part) for f, part in zip(flows, parts, strict=True) if not f.relayed_at]
    if not relayed:
        return 0.0

    def stage(begin: bool, most: float | None = None) -> Counter[Hashable]:
        cut = [
            replace(
                flow,
                bytes=flow.bytes if most is None else min(flow.bytes, most),
                paths=tuple(
                    path[: flow.relayed_at] if begin else path[flow.relayed_at :]
                    for path in flow.paths
                ),
            )
            for flow, _ in relayed
        ]
        return pair_loads(cut, [part for _, part in relayed])

    if not whole:
        return min(fullest(stage(True, CHUNK)), fullest(stage(False, CHUNK))) / bytes_per_s
    first = stage(True) + pair_loads([f for f, _ in straight], [part for _, part in straight])
    second = stage(False)
    return (fullest(first) + fullest(second) - fullest(first + second)) / bytes_per_s
