"""Routes to many destinations as fewer routes to prefixes, which send every address the same way.
Pure.

The smallest table for a longest-prefix match: R. Draves et al., "Constructing optimal IP routing
tables", INFOCOM 1999 (ORTC).
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import attrgetter
from typing import TypeAlias

from orchestrator.fabric.rules import Route

FEW = 100
"""A host with at most so many routes gets one for each destination: that is easier to read there,
and takes it 2 ms.
"""
Row: TypeAlias = tuple[str, str, str, str]
"""Prefix, next hop, interface, source; the last three are empty for addresses without a route
within a prefix that has one.
"""
NONE = 1  # the way of addresses without a route, as a bit


def rows(routes: Iterable[Route], *, single: bool = False) -> list[Row]:
    """The rows for a host's routing table, sorted: every address has the route that `routes`, each
    to a /32, give it, or none.

    single: a row for each route, however many.
    """
    found = sorted(map(_row, routes))
    return found if single or len(found) <= FEW else aggregated(found)


_row = attrgetter("destination", "via", "interface", "source")


def aggregated(single: Iterable[Row]) -> list[Row]:
    """The fewest rows that send every address as `single`, rows of /32, does; sorted. No prefix is
    shorter than /24.
    """
    blocks: dict[str, dict[int, tuple[str, str, str]]] = {}
    for destination, *path in single:
        block, _, last = destination.removesuffix("/32").rpartition(".")
        blocks.setdefault(block, {})[int(last)] = (path[0], path[1], path[2])
    return sorted(
        row for block, directions in blocks.items() for row in _of_block(block, directions)
    )


def _of_block(block: str, directions: dict[int, tuple[str, str, str]]) -> list[Row]:
    """The rows of the /24 `block`, whose addresses have these ways by their last octet."""
    by_bit = {NONE << 1 + n: path for n, path in enumerate(sorted({*directions.values()}))} | {
        NONE: ("", "", "")
    }
    bits = {path: bit for bit, path in by_bit.items()}
    level = [bits[directions[last]] if last in directions else NONE for last in range(256)]
    # From single addresses to the whole block: the ways that serve most of what is below, and the
    # one way of all of it, or 0.
    best, same = [level], [level]
    while len(level) > 1:
        level = [(a & b) or (a | b) for a, b in zip(level[::2], level[1::2], strict=True)]
        one = [a if a == b else 0 for a, b in zip(same[-1][::2], same[-1][1::2], strict=True)]
        best.append(level)
        same.append(one)
    found: list[Row] = []
    # how many bits of the address are left, which prefix, the way of the shorter prefix
    open_ = [(len(best) - 1, 0, NONE)]
    while open_:
        left, at, path = open_.pop()
        if same[left][at] == path:
            continue
        if not best[left][at] & path:
            path = best[left][at] & -best[left][at]
            found.append((f"{block}.{at << left}/{32 - left}", *by_bit[path]))
        if left:
            open_ += [(left - 1, 2 * at, path), (left - 1, 2 * at + 1, path)]
    return found
