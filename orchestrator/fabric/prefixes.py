"""Routes to many destinations as fewer routes to prefixes, which send every address the same way. Pure.

The smallest table for a longest-prefix match: R. Draves et al., "Constructing optimal IP routing tables", INFOCOM 1999 (ORTC).
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import attrgetter
from typing import TypeAlias

from orchestrator.fabric.rules import Route

FEW = 100
"""A host with at most so many routes gets one for each destination: that is easier to read there, and takes it 2 ms."""
Row: TypeAlias = tuple[str, str, str, str]
"""Prefix, next hop, interface, source; the last three are empty for addresses without a route within a prefix that has one."""
NONE = 1  # the way of addresses without a route, as a bit


def rows(routes: Iterable[Route], *, single: bool = False) -> list[Row]:
    """The rows for a host's routing table, sorted: every address has the route that `routes`, each to a /32, give it, or none.

    single: a row for each route, however many.
    """
    found = sorted(map(_row, routes))
    return found if single or len(found) <= FEW else aggregated(found)


_row = attrgetter("destination", "via", "interface", "source")


def aggregated(single: Iterable[Row]) -> list[Row]:
    """The fewest rows that send every address as `single`, rows of /32, does; sorted. No prefix is shorter than /24."""
    blocks: dict[str, dict[int, tuple[str, str, str]]] = {}
    for destination, *way in single:
        block, _, last = destination.removesuffix("/32").rpartition(".")
        blocks.setdefault(block, {})[int(last)] = (way[0], way[1], way[2])
    return sorted(row for block, ways in blocks.items() for row in _of_block(block, ways))


def _of_block(block: str, ways: dict[int, tuple[str, str, str]]) -> list[Row]:
    """The rows of the /24 `block`, whose addresses have these ways by their last octet."""
    by_bit = {NONE << 1 + n: way for n, way in enumerate(sorted({*ways.values()}))} | {NONE: ("", "", "")}
    bits = {way: bit for bit, way in by_bit.items()}
    level = [bits[ways[last]] if last in ways else NONE for last in range(256)]
    # From single addresses to the whole block: the ways that serve most of what is below, and the one way of all of it, or 0.
    best, same = [level], [level]
    while len(level) > 1:
        level = [(a & b) or (a | b) for a, b in zip(level[::2], level[1::2], strict=True)]
        one = [a if a == b else 0 for a, b in zip(same[-1][::2], same[-1][1::2], strict=True)]
        best.append(level)
        same.append(one)
    found: list[Row] = []
    open_ = [(len(best) - 1, 0, NONE)]  # how many bits of the address are left, which prefix, the way of the shorter prefix
    while open_:
        left, at, way = open_.pop()
        if same[left][at] == way:
            continue
        if not best[left][at] & way:
            way = best[left][at] & -best[left][at]
            found.append((f"{block}.{at << left}/{32 - left}", *by_bit[way]))
        if left:
            open_ += [(left - 1, 2 * at, way), (left - 1, 2 * at + 1, way)]
    return found
