"""Assigns interchangeable hosts to the places of a plan so that as many live links as possible
stay. Pure.

To a job it makes no difference which of several equal hosts is its rank 3, but a link that stays
need not be switched, and on a robot each move takes minutes. The best assignment is a quadratic
assignment problem. Up to `EXACT` labellings it is solved by branch and bound. Beyond, labellings
are grown from a first pair of hosts along links that stay, guided by similar neighbourhoods, and
improved by exchanging labels; effort is counted, not timed, so that the answer is the same
everywhere.

scipy's `quadratic_assignment` was measured and rejected: of a ring, two rings and a torus of 128
hosts under other names it kept 99 of 128, 161 of 256 and 7 of 256 links (faq), 74, 115 and 115 in
14 to 18 s (2opt); the search here finds all of them in 0.2 s.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from hashlib import sha256
from heapq import heappop, heappush
from math import factorial, prod
from typing import TypeAlias

from optics import HostName, HostPort, Link, LinkKind
from optics.plan import LinkEnd, WantedLink, host_of
from orchestrator.plan.dice import Dice
from orchestrator.plan.interchangeable import Labels

EXACT = 40_320
"""Most labellings searched exactly: those of eight hosts."""
SEEDS = 32
EXCHANGES = 20_000
"""Most exchanges of two labels evaluated, less than a second; 128 hosts have 8128."""

Ends: TypeAlias = tuple[int | None, int | None, int]
"""Ports at the two hosts of a pair, None for any port; 0 for a duplex link, 1 and -1 for the
directions of a simplex link.
"""


def labels(
    links: Sequence[WantedLink],
    groups: Iterable[Sequence[HostName]],
    live: Collection[Link],
    start: Labels | None = None,
) -> dict[HostName, HostName]:
    """The best labelling found: it keeps at least as many of `live` as no relabelling and as
    `start`.

    Hosts in no group keep their names; only hosts that get another name are in the result.
    """
    search = _Search(links, groups, live)
    tries = [search.whole(start or {}), search.whole({})]
    best = max(tries, key=search.kept)  # the first of equals
    if search.kept(best) < search.most:
        best = search.exact(best) if search.count <= EXACT else search.ascend(best)
    return {old: new for old, new in best.items() if old != new}


class _Search:
    def __init__(
        self,
        links: Sequence[WantedLink],
        groups: Iterable[Sequence[HostName]],
        live: Collection[Link],
    ) -> None:
        self.groups = [tuple(dict.fromkeys(group)) for group in groups]
        self.group = {host: index for index, group in enumerate(self.groups) for host in group}
        wanted: dict[tuple[HostName, HostName], list[Ends]] = {}
        for link in links:
            _file(wanted, link.a, link.b, link.kind)
        existing: dict[tuple[HostName, HostName], list[Ends]] = {}
        for lit in live:
            _file(existing, lit.a, lit.b, lit.kind)
        self.hosts = list(dict.fromkeys([*(h for link in links for h in link.hosts), *self.group]))
        self.shared: dict[HostName, list[tuple[HostName, tuple[Ends, ...]]]] = {
            host: [] for host in self.hosts
        }
        for (a, b), ends in wanted.items():
            self.shared[a].append((b, tuple(ends)))
            self.shared[b].append((a, _rotated(ends)))
        self.live = {pair: tuple(ends) for pair, ends in existing.items()}
        self.live |= {(b, a): _rotated(ends) for (a, b), ends in existing.items()}
        self.lit: dict[HostName, list[HostName]] = {}
        for a, b in self.live:
            self.lit.setdefault(a, []).append(b)
        self.count = prod(factorial(len(group)) for group in self.groups)
        self.most = min(len(links), len(live))
        self._known: dict[tuple[tuple[Ends, ...], HostName, HostName], int] = {}
        self.dice = Dice()

    def whole(self, some: Labels) -> dict[HostName, HostName]:
        """A label for every host; given ones are kept if they fit their groups."""
        taken: dict[HostName, HostName] = {}
        for old, new in some.items():
            if (
                old in self.group
                and self.group[old] == self.group.get(new)
                and new not in taken.values()
            ):
                taken[old] = new
        for group in self.groups:
            free = [host for host in group if host not in taken.values()]
            for host in [host for host in group if host not in taken]:
                taken[host] = host if host in free else free[0]
                free.remove(taken[host])
        return {host: taken.get(host, host) for host in self.hosts}

    def pair(self, ends: tuple[Ends, ...], a: HostName, b: HostName) -> int:
        """How many of the links `ends` exist between `a` and `b`."""
        existing = self.live.get((a, b))
        if existing is None:
            return 0
        key = (ends, a, b)
        if key not in self._known:
            self._known[key] = _matched(ends, existing)
        return self._known[key]

    def at(self, host: HostName, place: HostName, by: Labels) -> int:
        """How many links of `host` to labelled hosts would stay if it had the label `place`."""
        return sum(
            self.pair(ends, place, by[other]) for other, ends in self.shared[host] if other in by
        )

    def kept(self, by: Labels) -> int:
        return sum(self.at(host, by[host], by) for host in by) // 2

    # all labellings, if there are few

    def exact(self, first: dict[HostName, HostName]) -> dict[HostName, HostName]:
        """Depth first, hosts with many placed neighbours first; a branch that cannot beat the best
        is abandoned.
        """
        order = self._order()
        ahead = [0] * (len(order) + 1)  # links decided from this position on
        for at in range(len(order) - 1, -1, -1):
            before = {*order[:at]}
            ahead[at] = ahead[at + 1] + sum(
                len(ends) for other, ends in self.shared[order[at]] if other in before
            )
        best, most = first, self.kept(first)
        by: dict[HostName, HostName] = {}
        used: set[HostName] = set()

        def place(at: int, score: int) -> None:
            nonlocal best, most
            if score + ahead[at] <= most:
                return
            if at == len(order):
                best, most = dict(by), score
                return
            host = order[at]
            for choice in self.groups[self.group[host]] if host in self.group else (host,):
                if choice not in used:
                    gain = self.at(host, choice, by)
                    by[host] = choice
                    used.add(choice)
                    place(at + 1, score + gain)
                    used.remove(choice)
                    del by[host]

        place(0, 0)
        return best

    def _order(self) -> list[HostName]:
        """Fixed hosts first, then always the one with the most links to those before."""
        order = [host for host in self.hosts if host not in self.group]
        left = [host for host in self.hosts if host in self.group]
        while left:
            done = {*order}
            following = max(
                left,
                key=lambda host: (
                    sum(len(e) for o, e in self.shared[host] if o in done),
                    len(self.shared[host]),
                ),
            )
            order.append(following)
            left.remove(following)
        return order

    # good labellings, if there are many

    def ascend(self, first: dict[HostName, HostName]) -> dict[HostName, HostName]:
        """Grow labellings, improve the best few by exchanges, perturb the best one until the effort
        is spent.
        """
        grown = sorted(self._grown(), key=lambda by: -self.kept(by))[:3]
        self.effort = EXCHANGES
        best = max((self.uphill(by) for by in (first, *grown)), key=self.kept)
        most = self.kept(best)
        while self.effort > 0 and most < self.most:
            shaken = self.uphill(self.shake(best))
            if self.kept(shaken) >= most:
                best, most = shaken, self.kept(shaken)
        return best if most > self.kept(first) else first

    def _grown(self) -> Iterable[dict[HostName, HostName]]:
        fingerprints, existing = (
            self._fingerprints(self.neighbour_hosts()),
            self._fingerprints(self.lit),
        )
        movable = [host for host in self.hosts if host in self.group and self.shared[host]]
        if not movable:
            return
        rare = Counter(fingerprints[host] for host in movable)
        seed = min(movable, key=lambda host: (rare[fingerprints[host]], -len(self.shared[host])))
        places = sorted(
            self.groups[self.group[seed]],
            key=lambda place: existing.get(place) != fingerprints[seed],
        )
        for place in places[:SEEDS]:
            yield self.grow(seed, place, fingerprints, existing)

    def neighbour_hosts(self) -> dict[HostName, list[HostName]]:
        return {host: [other for other, _ in near] for host, near in self.shared.items()}

    @staticmethod
    def _fingerprints(near: Mapping[HostName, Sequence[HostName]]) -> dict[HostName, str]:
        """A fingerprint of each host's neighbourhood within three hops; equal neighbourhoods have
        equal fingerprints.
        """
        fingerprint = dict.fromkeys(near, "")
        for _ in range(3):
            around = {
                host: repr(sorted(fingerprint.get(other, "") for other in others))
                for host, others in near.items()
            }
            fingerprint = {host: sha256(text.encode()).hexdigest() for host, text in around.items()}
        return fingerprint

    def grow(
        self,
        seed: HostName,
        place: HostName,
        fingerprints: Mapping[HostName, str],
        existing: Mapping[HostName, str],
    ) -> dict[HostName, HostName]:
        """Put `seed` at `place`, then always the host with the most staying links to hosts already
        placed.
        """
        by = {host: host for host in self.hosts if host not in self.group}
        taken: set[HostName] = set(by.values())
        heap: list[tuple[int, bool, int, HostName, HostName]] = [(0, False, 0, seed, place)]
        for host in list(by):
            self._offer(host, by, taken, heap, fingerprints, existing)
        while heap:
            gain, _, _, host, at = heappop(heap)
            if host in by or at in taken:
                continue
            if (now := self.at(host, at, by)) != -gain and host != seed:
                heappush(heap, (-now, fingerprints[host] != existing.get(at), len(by), host, at))
                continue
            by[host] = at
            taken.add(at)
            self._offer(host, by, taken, heap, fingerprints, existing)
        return self.whole(by)

    def _offer(
        self,
        host: HostName,
        by: Labels,
        taken: Collection[HostName],
        heap: list[tuple[int, bool, int, HostName, HostName]],
        fingerprints: Mapping[HostName, str],
        existing: Mapping[HostName, str],
    ) -> None:
        for other, _ in self.shared[host]:
            if other in by or other not in self.group:
                continue
            for place in self.lit.get(by[host], ()):
                if (
                    place not in taken
                    and self.group.get(place) == self.group[other]
                    and (gain := self.at(other, place, by))
                ):
                    heappush(
                        heap,
                        (-gain, fingerprints[other] != existing.get(place), len(by), other, place),
                    )

    def uphill(self, by: dict[HostName, HostName]) -> dict[HostName, HostName]:
        """Exchange two labels as long as that keeps more links."""
        by = dict(by)
        better = True
        while better and self.effort > 0:
            better = False
            for group in self.groups:
                wanting = [
                    host for host in group if self.at(host, by[host], by) < self._links(host)
                ]
                for index, one in enumerate(wanting):
                    for other in (
                        *wanting[index + 1 :],
                        *(host for host in group if not self.shared[host]),
                    ):
                        self.effort -= 1
                        if self._gain(one, other, by) > 0:
                            by[one], by[other] = by[other], by[one]
                            better = True
                    if self.effort <= 0:
                        return by
        return by

    def _links(self, host: HostName) -> int:
        return sum(len(ends) for _, ends in self.shared[host])

    def _gain(self, one: HostName, other: HostName, by: dict[HostName, HostName]) -> int:
        before = self.at(one, by[one], by) + self.at(other, by[other], by)
        by[one], by[other] = by[other], by[one]
        after = self.at(one, by[one], by) + self.at(other, by[other], by)
        by[one], by[other] = by[other], by[one]
        return after - before  # a link between the two is counted twice, before and after

    def shake(self, by: dict[HostName, HostName]) -> dict[HostName, HostName]:
        """Exchange the labels of a few hosts that lose links, pseudo-randomly and the same in every
        run.
        """
        by = dict(by)
        for group in self.groups:
            wanting = [
                host for host in group if self.at(host, by[host], by) < self._links(host)
            ] or list(group)
            for _ in range(3):
                one, other = (
                    wanting[self.dice.pick(len(wanting))],
                    group[self.dice.pick(len(group))],
                )
                by[one], by[other] = by[other], by[one]
        self.effort -= 1
        return by


def _file(
    found: dict[tuple[HostName, HostName], list[Ends]], a: LinkEnd, b: LinkEnd, kind: LinkKind
) -> None:
    """Sort a link under its pair of hosts, the smaller name first."""
    ports = [end.number if isinstance(end, HostPort) else None for end in (a, b)]
    hosts, direction = (host_of(a), host_of(b)), 1 if kind is LinkKind.SIMPLEX else 0
    if hosts[0] > hosts[1]:
        hosts, ports, direction = hosts[::-1], ports[::-1], -direction
    found.setdefault(hosts, []).append((ports[0], ports[1], direction))


def _rotated(ends: Iterable[Ends]) -> tuple[Ends, ...]:
    return tuple((b, a, -direction) for a, b, direction in ends)


def _matched(ends: tuple[Ends, ...], existing: tuple[Ends, ...]) -> int:
    """How many wanted links match a live one each, links that name ports first."""
    left, count = list(existing), 0
    for a, b, direction in sorted(ends, key=lambda end: (end[0] is None) + (end[1] is None)):
        found = next(
            (x for x in left if x[2] == direction and a in (None, x[0]) and b in (None, x[1])), None
        )
        if found is not None:
            left.remove(found)
            count += 1
    return count
