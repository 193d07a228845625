"""Which link traffic takes: shortest paths over the plan's links, spread over equals, one choice
per host, destination and lane.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

from optics import HostName, HostPort, Infeasible, Link, LinkKind
from optics.plain import natural
from optics.plan import FixedRoute, Ring, ring_steps
from orchestrator.inventory.lab import Lab


@dataclass(frozen=True, slots=True, order=True)
class Hop:
    """One link in one direction: out of the port `out`, into the port `into`."""

    out: HostPort
    into: HostPort

    def __str__(self) -> str:
        return f"{self.out}->{self.into}"


Key: TypeAlias = tuple[HostName, HostName, int]
"""Host, destination, lane."""
NextHops: TypeAlias = Mapping[Key, Hop]


def graph(links: Iterable[Link]) -> dict[HostName, list[Hop]]:
    """The hops that leave each host; parallel links are in the same order at both ends. Hosts in
    natural order.
    """
    hops: list[tuple[tuple[HostPort, HostPort], Hop]] = []
    hosts: set[HostName] = set()
    for link in links:
        ends = (min(link.a, link.b), max(link.a, link.b))
        hops.append((ends, Hop(link.a, link.b)))
        if link.kind is LinkKind.DUPLEX:
            hops.append((ends, Hop(link.b, link.a)))
        hosts |= {link.a.host, link.b.host}
    found: dict[HostName, list[Hop]] = {host: [] for host in sorted(hosts, key=natural)}
    for _, hop in sorted(hops):
        found[hop.out.host].append(hop)
    return found


def distances(leaving: Mapping[HostName, Sequence[Hop]], target: HostName) -> dict[HostName, int]:
    """Hops from each host that can reach `target`."""
    return _far(_arriving(leaving), target)


def _arriving(leaving: Mapping[HostName, Sequence[Hop]]) -> dict[HostName, list[HostName]]:
    """The hosts that each host has links from, each once."""
    found: dict[HostName, dict[HostName, None]] = {}
    for host, hops in leaving.items():
        for hop in hops:
            found.setdefault(hop.into.host, {})[host] = None
    return {host: list(others) for host, others in found.items()}


def _far(arriving: Mapping[HostName, Sequence[HostName]], target: HostName) -> dict[HostName, int]:
    far = {target: 0}
    wave, steps = [target], 0
    while wave:
        steps += 1
        further = []
        for here in wave:
            for host in arriving.get(here, ()):
                if host not in far:
                    far[host] = steps
                    further.append(host)
        wave = further
    return far


def next_hops(
    links: Iterable[Link], lanes: int, fixed: Iterable[FixedRoute] = (), rings: Sequence[Ring] = ()
) -> NextHops:
    """The hop for every host, destination and lane; pairs without a path are absent.

    Among equal shortest hops: ring `r` uses lane `r mod lanes`, and rings that step between the
    same hosts take different parallel links as far as there are any; otherwise lane `l` takes the
    l-th candidate, counted from a start that levels the number of destinations per link of the
    host. Fixed routes override; the rest of the host's traffic is not moved. Raises: Infeasible - a
    fixed route steps where there is no link.
    """
    leaving = graph(links)
    arriving = _arriving(leaving)
    by_ring = _ring_hops(leaving, lanes, rings)
    ordered = {host: _interleaved(hops) for host, hops in leaving.items()}
    towards = {
        host: [(place, hop.into.host) for place, hop in enumerate(hops)]
        for host, hops in ordered.items()
    }
    chosen: dict[Key, Hop] = {}
    load = {host: [0] * len(hops) for host, hops in ordered.items()}  # of each hop, by its place

    def choose(host: HostName, target: HostName, places: Iterable[int]) -> None:
        hops, mine = ordered[host], load[host]
        for lane, place in enumerate(places):
            key = (host, target, lane)
            if hop := by_ring.get(key):
                place = hops.index(hop)
            chosen[key] = hops[place]
            mine[place] += 1

    open_: list[tuple[HostName, HostName, list[int]]] = []
    for target in leaving:
        far = _far(arriving, target)
        for host, hops in towards.items():
            if host == target or host not in far:
                continue
            nearer = far[host] - 1
            candidates = [place for place, neighbour in hops if far.get(neighbour) == nearer]
            if nearer and len(candidates) > 1:
                open_.append((host, target, candidates))
            else:  # no choice comes first
                choose(host, target, _rotation(candidates, lanes, 0))
    for host, target, candidates in open_:
        choose(host, target, _levelling(candidates, lanes, load[host]))
    for route in fixed:
        for lane in range(lanes) if route.lane is None else (route.lane,):
            for host, follower in pairwise(route.path):
                steps = [hop for hop in leaving.get(host, ()) if hop.into.host == follower]
                if not steps:
                    raise Infeasible(
                        f"the route from {route.source} to {route.target} steps from {host} to {follower}: no link"
                    )
                planned = chosen.get((host, route.target, lane))
                if planned is None or planned.into.host != follower:
                    chosen[host, route.target, lane] = steps[lane % len(steps)]
    return chosen


def _interleaved(hops: Sequence[Hop]) -> list[Hop]:
    """Neighbours in turn, the first parallel link of each, then the second of each."""
    nth: Counter[HostName] = Counter()
    keyed = []
    for hop in hops:
        keyed.append((nth[hop.into.host], natural(hop.into.host), hop))
        nth[hop.into.host] += 1
    return [hop for _, _, hop in sorted(keyed)]


def _rotation(candidates: Sequence[int], lanes: int, start: int) -> list[int]:
    """One candidate per lane, in turn."""
    return [candidates[(start + lane) % len(candidates)] for lane in range(lanes)]


def _levelling(candidates: Sequence[int], lanes: int, load: Sequence[int]) -> list[int]:
    """The rotation whose start levels the load of a host's links."""
    often, once_more = divmod(lanes, len(candidates))
    if not once_more:  # all starts load the links alike
        return _rotation(candidates, lanes, 0)
    loads = [load[place] + often for place in candidates]

    def unevenness(start: int) -> tuple[int, int]:
        # squares of all loads, less what every start has in common
        return sum(2 * loads[(start + k) % len(loads)] + 1 for k in range(once_more)), start

    return _rotation(candidates, lanes, min(range(len(candidates)), key=unevenness))


def _ring_hops(
    leaving: Mapping[HostName, Sequence[Hop]], lanes: int, rings: Sequence[Ring]
) -> dict[Key, Hop]:
    """Direct hops for ring steps: the k-th lane whose ring steps from a host to another takes the
    k-th parallel link.
    """
    users: dict[tuple[HostName, HostName], list[int]] = {}
    for index, order in enumerate(rings):
        for step in ring_steps(order):
            taken = users.setdefault(step, [])
            if index % lanes not in taken:
                taken.append(index % lanes)
    found: dict[Key, Hop] = {}
    for (host, follower), taken in users.items():
        parallel = [hop for hop in leaving.get(host, ()) if hop.into.host == follower]
        if not parallel:
            continue  # the link is dark for now: the lane is routed like any other traffic
        rest = [lane for lane in range(lanes) if lane not in taken]
        for place, lane in enumerate([*sorted(taken), *rest]):
            found[host, follower, lane] = parallel[place % len(parallel)]
    return found


def lanes_of(lab: Lab, links: Iterable[Link] = ()) -> int:
    """The number of lanes of the hosts at these links, which is the same for all; without links
    that of the lab's whole hosts.
    """
    at = {end.host for link in links for end in (link.a, link.b)}
    return min(
        (
            host.lanes
            for name, host in lab.hosts.items()
            if (name in at if at else host.partition is None)
        ),
        default=1,
    )


def hops(
    links: Iterable[Link], lab: Lab, fixed: Iterable[FixedRoute] = (), *, lane: int = 0
) -> Mapping[tuple[HostName, HostName], int]:
    """The planned number of hops of every ordered pair of linked hosts that can reach each other.

    Lanes differ only by fixed routes. On npar-rdma hosts `lane` counts the target's ports that are
    reached (`landings`).
    """
    links, fixed = tuple(links), tuple(fixed)
    counted: dict[tuple[HostName, HostName], int] = {}
    leaving = graph(links)
    # every hop is one nearer
    if not fixed and all(lab.hosts[host].forwarding == "kernel" for host in leaving):
        arriving = _arriving(leaving)
        for target in leaving if lane < lanes_of(lab, links) else ():
            counted |= {
                (host, target): steps for host, steps in _far(arriving, target).items() if steps
            }
        return counted
    chosen = next_hops(links, lanes_of(lab, links), fixed)
    for host, target, at in chosen:
        if lab.hosts[host].forwarding == "kernel":
            if at == lane:
                counted[host, target] = len(follow(chosen, lab, host, target, lane))
        elif (host, target) not in counted:
            reached = landings(chosen, lab, host, target)
            counted[host, target] = len(reached[sorted(reached)[lane % len(reached)]])
    return counted


def joined(links: Iterable[Link], lab: Lab, fixed: Iterable[FixedRoute] = ()) -> int:
    """How many ordered pairs of linked hosts can reach each other: the number of `hops`."""
    links, fixed = tuple(links), tuple(fixed)
    leaving = graph(links)
    kernel = all(lab.hosts[host].forwarding == "kernel" for host in leaving)
    if fixed or not kernel or any(link.kind is LinkKind.SIMPLEX for link in links):
        return len(hops(links, lab, fixed))
    arriving, left, found = _arriving(leaving), set(leaving), 0
    while left:
        together = _far(arriving, left.pop())
        left -= together.keys()
        found += len(together) * (len(together) - 1)
    return found


def follow(
    chosen: NextHops, lab: Lab, host: HostName, target: HostName, lane: int
) -> tuple[Hop, ...]:
    """The hops from `host` to `target`; none if there is no path.

    A kernel relay goes by the packet's lane. An npar-rdma relay knows only the port a packet came
    in by and the target host: it takes the choice of the lane with that port's number.
    """
    path: list[Hop] = []
    hop = chosen.get((host, target, lane))
    while hop is not None and len(path) <= len(lab.hosts):
        path.append(hop)
        relay = hop.into.host
        if relay == target:
            return tuple(path)
        at = (
            lane
            if lab.hosts[relay].forwarding == "kernel"
            else (hop.into.number - 1) % lanes_of(lab)
        )
        hop = chosen.get((relay, target, at))
    return ()


def landings(
    chosen: NextHops, lab: Lab, host: HostName, target: HostName
) -> dict[int, tuple[Hop, ...]]:
    """Which ports of `target` the paths of all lanes from `host` end at, and the path to each, the
    lowest lane's if several do.
    """
    found: dict[int, tuple[Hop, ...]] = {}
    for lane in range(lanes_of(lab)):
        path = follow(chosen, lab, host, target, lane)
        if path:
            found.setdefault(path[-1].into.number, path)
    return found


def drained(old: NextHops, kept: NextHops) -> NextHops:
    """Next hops while links are dark: over the surviving links where a pair has a path there, else
    the old hop.

    Free of loops: a host without a surviving path hands on along the old path, which gets shorter
    with each hop, and a host that has one forwards only to hosts that have one too.
    """
    return {key: kept.get(key, hop) for key, hop in old.items()}


def held(old: NextHops, kept: NextHops, holding: Collection[HostName]) -> NextHops:
    """As `drained`, but a pair without a surviving path has no hop at the hosts `holding`.

    Free of loops: only hops of `drained` are left, and some are missing.
    """
    return {
        key: hop for key, hop in drained(old, kept).items() if key in kept or key[0] not in holding
    }
