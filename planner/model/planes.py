"""The switch of each link where port k of every host ends on switch k: an edge colouring, no colour
twice at a host.

Simplex links colour transmitters against receivers, which always works within the degree (König).
Duplex links may need one switch more than a host has links (Vizing), and d switches carry at most d
* floor(n/2) of them.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from planner.model.demand import Infeasible
from planner.model.shape import Lab, Ring, Shape

TRIES = 200
"""Recoloured links, per link of the topology, before the search gives up."""


def check(shape: Shape, lab: Lab) -> tuple[int, ...]:
    """The switch of each of `shape.cables` in a lab of planes, 0 for all of them where one switch
    has all ports.

    Raises: Infeasible - a host has more links than ports, or no assignment to planes is possible or
    was found.
    """
    within(shape, lab)
    return assign(shape, lab.degree) if lab.planes else (0,) * len(shape.cables)


def within(shape: Shape, lab: Lab) -> None:
    """Check that the lab has the hosts, the ports and the kind of link. Raises: Infeasible."""
    if shape.n > lab.n:
        raise Infeasible(f"{shape.n} ranks on {lab.n} hosts", f"give the job at most {lab.n} ranks")
    if shape.duplex != lab.duplex:
        kinds = ("simplex", "duplex")
        raise Infeasible(
            f"a topology of {kinds[shape.duplex]} links in a lab of {kinds[lab.duplex]} links",
            f"plan for {kinds[lab.duplex]} links",
        )
    used = np.bincount(_ends(shape).reshape(-1), minlength=1)
    if used.max(initial=0) > lab.degree:
        host = int(used.argmax()) % shape.n
        raise Infeasible(
            f"host {host} would have {used.max()} links on {lab.degree} ports",
            f"give hosts {used.max()} ports",
        )


def most_links(n: int, planes: int) -> int:
    """Duplex links that many switches with one port of each of n hosts can carry."""
    return planes * (n // 2)


def assign(shape: Shape, planes: int, tries: int = TRIES) -> tuple[int, ...]:
    """A switch, 0 to planes - 1, for each of `shape.cables`, in their order. Raises: Infeasible."""
    count = len(shape.cables)
    if shape.duplex and count > most_links(shape.n, planes):
        raise Infeasible(
            f"{count} duplex links among {shape.n} hosts; {planes} planes carry at most {planes} * floor({shape.n}/2) = "
            f"{most_links(shape.n, planes)}",
            f"join all ports to one switch, or take simplex links, or {shape.n + 1 if shape.n % 2 else shape.n - 1} hosts, "
            f"or {most_links(shape.n, planes) // max(1, shape.n)} ring(s) instead of {len(shape.rings)}",
        )
    colouring = _Colouring(_ends(shape), planes)
    first = len(shape.matched)
    for ring in shape.rings:
        last = first + _length(ring, shape.duplex)
        colouring.whole(np.arange(first, last), 2 if shape.duplex and last - first > 1 else 1)
        first = last
    if not colouring.rest(tries):
        raise Infeasible(
            f"found no assignment of {count} links to {planes} planes with no host twice on a plane",
            "join all ports to one switch, or take rings of even length",
        )
    return tuple(colouring.colour.tolist())


def _ends(shape: Shape) -> NDArray[np.int64]:
    """Two nodes for each link; transmitters and receivers are different nodes where links are
    simplex.
    """
    return shape.cables if shape.duplex else shape.cables + np.array([0, shape.n])


def _length(ring: Ring, duplex: bool) -> int:
    size = len(ring.order)
    return size // 2 if duplex and size == 2 else size if size > 1 else 0


class _Colouring:
    def __init__(self, ends: NDArray[np.int64], colours: int) -> None:
        self.ends = ends
        self.at = np.full((int(ends.max(initial=0)) + 1, colours), -1, dtype=np.int64)
        self.colour = np.full(len(ends), -1, dtype=np.int64)
        self.rng = np.random.default_rng(0)

    def whole(self, links: NDArray[np.int64], colours: int) -> None:
        """Colour a ring at once, with one or two colours that are free at all its hosts, if there
        are any.
        """
        if len(links) % colours:
            return
        free = np.flatnonzero((self.at[self.ends[links].reshape(-1)] < 0).all(axis=0))
        if len(free) >= colours:
            for step in range(colours):
                mine = links[step::colours]
                self.colour[mine] = free[step]
                self.at[self.ends[mine, 0], free[step]] = mine
                self.at[self.ends[mine, 1], free[step]] = mine

    def rest(self, tries: int) -> bool:
        """Colour what is left, link by link, along Kempe chains; recolour others where no chain
        helps.
        """
        open_ = np.flatnonzero(self.colour < 0).tolist()[::-1]
        for _ in range(tries * max(1, len(open_))):
            if not open_:
                return True
            link = open_.pop()
            if not self.place(link):
                a, b = self.ends[link].tolist()
                colour = int(self.rng.integers(self.at.shape[1]))
                lost = {int(self.at[node, colour]) for node in (a, b)} - {-1}
                for other in lost:
                    self.put(other, -1)
                self.put(link, colour)
                open_ = [*sorted(lost), *open_]
        return not open_

    def place(self, link: int) -> bool:
        a, b = self.ends[link].tolist()
        free_a, free_b = (np.flatnonzero(self.at[node] < 0).tolist() for node in (a, b))
        common = sorted({*free_a} & {*free_b})
        if common:
            self.put(link, common[0])
            return True
        for first in free_a:
            for second in free_b:
                if self.flip(b, first, second, a):
                    self.put(link, first)
                    return True
        return False

    def flip(self, start: int, first: int, second: int, avoid: int) -> bool:
        """Exchange two colours along the chain from `start`, which has `first`; not if it ends at
        `avoid`.
        """
        chain, node, colour = [], start, first
        while (link := int(self.at[node, colour])) >= 0:
            chain.append(link)
            x, y = self.ends[link].tolist()
            node = y if node == x else x
            colour = second if colour == first else first
        if node == avoid:
            return False
        rotated = [(link, second if self.colour[link] == first else first) for link in chain]
        for link, _ in rotated:
            self.put(link, -1)
        for link, colour in rotated:
            self.put(link, colour)
        return True

    def put(self, link: int, colour: int) -> None:
        a, b = self.ends[link].tolist()
        old = int(self.colour[link])
        if old >= 0:
            self.at[a, old] = self.at[b, old] = -1
        if colour >= 0:
            self.at[a, colour] = self.at[b, colour] = link
        self.colour[link] = colour
