"""When planned links lose their light: which are dead, how traffic is rerouted, which hosts are cut
off. Pure.

Times are monotonic seconds, passed in by the caller.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from optics import Circuit, HostName, HostPort, Link, LinkKind
from optics.plan import FixedRoute, Ring, ring_steps
from orchestrator.fabric.circuits import receivers
from orchestrator.fabric.next_hops import distances, follow, graph, hops, lanes_of, next_hops
from orchestrator.fabric.rules import Macs, Rules, drain_rules, rules
from orchestrator.inventory.lab import Lab

HOLD_S = 3.0
"""Light that returns must stay this long (s) before traffic uses it again; doubled with every
further loss of the same link.
"""
LONGEST_HOLD_S = 300.0
FORGET_S = 900.0
"""After this long without a loss (s), a link starts with the short hold again."""


def link_text(link: Link) -> str:
    """`gpu03:p1--gpu04:p1`, a simplex link `gpu03:p1->gpu04:p1`."""
    return f"{link.a}{'--' if link.kind is LinkKind.DUPLEX else '->'}{link.b}"


def dead_links(links: Iterable[Link], carriers: Mapping[HostPort, bool]) -> frozenset[Link]:
    """The links that carry nothing now. A port without a known carrier state counts as lit.

    A network card without receive light sends nothing either, so a port that should receive light
    and does not is dead both ways.
    """
    links = tuple(links)
    dark = {port for port in receivers(links) if carriers.get(port) is False}
    return frozenset(link for link in links if link.a in dark or link.b in dark)


def dark_circuits(
    circuits: Iterable[Circuit], carriers: Mapping[HostPort, bool]
) -> tuple[Circuit, ...]:
    """The circuits whose receiver has no light."""
    return tuple(circuit for circuit in circuits if carriers.get(circuit.receiver) is False)


@dataclass(frozen=True, slots=True)
class Detour:
    """How traffic is routed while `dead` links are dark.

    groups: hosts that reach each other, the largest first; more than one means that hosts are cut
    off. pairs: ordered pairs the plan connects, `lost` of them without a path now. rings: steps of
    the job's rings that are rerouted. dropped: fixed routes over a dead link, not used meanwhile;
    kept_routes: the others.
    """

    dead: frozenset[Link]
    alive: tuple[Link, ...]
    rules: Mapping[HostName, Rules]
    groups: tuple[tuple[HostName, ...], ...]
    pairs: int
    lost: int
    rings: tuple[str, ...]
    dropped: tuple[FixedRoute, ...]
    kept_routes: tuple[FixedRoute, ...]

    def text(self) -> list[str]:
        """Remarks for the operator, one line each."""
        found = []
        if len(self.groups) > 1:
            main, *others = self.groups
            if len(main) > 1:
                found += [
                    f"cut off: {', '.join(group)}; {len(main)} hosts stay joined"
                    for group in others
                ]
            else:
                found.append(f"{self.lost} of {self.pairs} pairs of hosts have no path left")
        if self.rings:
            found.append(f"rerouted ring steps: {', '.join(self.rings)}")
        found += [
            f"fixed route {'-'.join(route.path)} is not used meanwhile" for route in self.dropped
        ]
        return found


def detour(
    links: Sequence[Link],
    dead: Collection[Link],
    lab: Lab,
    macs: Mapping[HostPort, Macs],
    fixed: Iterable[FixedRoute] = (),
    rings: Sequence[Ring] = (),
) -> Detour:
    """The rules that leave `dead` links out; a pair without another path keeps its old one. With no
    dead links, the plan's own rules.

    Raises: Infeasible - a MAC is not known.
    """
    links, fixed = tuple(links), tuple(fixed)
    alive = tuple(link for link in links if link not in dead)
    steps = _steps(alive)
    kept = _possible(fixed, steps)
    planned, left = reaching(links), reaching(alive)
    return Detour(
        dead=frozenset(dead),
        alive=alive,
        rules=drain_rules(links, alive, lab, macs, fixed, rings)
        if dead
        else rules(links, lab, macs, fixed, rings),
        groups=_groups(graph(links), left),
        pairs=len(planned),
        lost=len(planned - left),
        rings=tuple(
            f"{a}->{b}"
            for a, b in dict.fromkeys(step for order in rings for step in ring_steps(order))
            if (a, b) not in steps
        ),
        dropped=tuple(route for route in fixed if route not in kept),
        kept_routes=kept,
    )


def _steps(links: Iterable[Link]) -> frozenset[tuple[HostName, HostName]]:
    """The ordered pairs of hosts that a link joins."""
    return frozenset(
        (hop.out.host, hop.into.host) for hops in graph(links).values() for hop in hops
    )


def _possible(
    fixed: Iterable[FixedRoute], steps: Collection[tuple[HostName, HostName]]
) -> tuple[FixedRoute, ...]:
    return tuple(route for route in fixed if all(step in steps for step in pairwise(route.path)))


def reaching(links: Iterable[Link]) -> frozenset[tuple[HostName, HostName]]:
    """The ordered pairs of hosts that these links connect, over other hosts too."""
    leaving = graph(links)
    return frozenset(
        (host, target)
        for target in leaving
        for host in distances(leaving, target)
        if host != target
    )


def _groups(
    hosts: Iterable[HostName], left: Collection[tuple[HostName, HostName]]
) -> tuple[tuple[HostName, ...], ...]:
    """Hosts that reach each other in both directions, the largest group first."""
    found: list[list[HostName]] = []
    for host in hosts:
        group = next((g for g in found if (host, g[0]) in left and (g[0], host) in left), None)
        if group is None:
            found.append([host])
        else:
            group.append(host)
    return tuple(tuple(group) for group in sorted(found, key=len, reverse=True))


def questions(
    detour: Detour, lab: Lab, answering: Collection[HostName]
) -> list[Mapping[HostName, Mapping[str, int | None]]]:
    """What to probe to verify the detour: per lane, the addresses each host probes, with their
    distance in hops.
    """
    found: list[Mapping[HostName, Mapping[str, int | None]]] = []
    for lane in range(lanes_of(lab, detour.alive)):
        asked: dict[HostName, dict[str, int | None]] = {}
        for (source, target), count in hops(
            detour.alive, lab, detour.kept_routes, lane=lane
        ).items():
            if source in answering and target in answering:
                asked.setdefault(source, {})[lab.hosts[target].lane_address(lane)] = count
        found.append(asked)
    return found


def broken(
    before: Iterable[Link],
    dead: Collection[Link],
    lab: Lab,
    fixed: Iterable[FixedRoute] = (),
    rings: Sequence[Ring] = (),
) -> int:
    """How many pairs of hosts, counted per lane, lose their path if `dead` links go dark under the
    routes over `before`.
    """
    before = tuple(before)
    chosen = next_hops(before, lanes_of(lab, before), _possible(fixed, _steps(before)), rings)
    ends = {port for link in dead for port in (link.a, link.b)}
    return sum(
        any(hop.out in ends or hop.into in ends for hop in follow(chosen, lab, *key))
        for key in chosen
    )


@dataclass
class FlapDamping:
    """Which links traffic may use: one that loses its light is out at once, and back once the light
    has stayed for its hold time.

    However a link flaps, it moves routes at most twice per hold time, and the hold time doubles
    with each loss up to `longest_s`.
    """

    hold_s: float = HOLD_S
    longest_s: float = LONGEST_HOLD_S
    forget_s: float = FORGET_S
    losses: dict[Link, int] = field(default_factory=dict)
    _lost_at: dict[Link, float] = field(default_factory=dict)
    _lit_at: dict[Link, float] = field(default_factory=dict)
    _dark: frozenset[Link] = frozenset()

    def see(self, dark: Collection[Link], now: float) -> None:
        """Record which links are dark at `now`."""
        for link in set(dark) - self._dark:
            calm = now - self._lost_at.get(link, now) > self.forget_s
            self.losses[link] = 1 if calm else self.losses.get(link, 0) + 1
            self._lost_at[link] = now
            self._lit_at.pop(link, None)
        for link in self._dark - set(dark):
            self._lit_at[link] = now
        self._dark = frozenset(dark)

    def hold(self, link: Link) -> float:
        """How long (s) the link's light must stay before traffic uses it."""
        return float(
            min(self.hold_s * 2.0 ** min(self.losses.get(link, 1) - 1, 30), self.longest_s)
        )

    def out(self, now: float) -> frozenset[Link]:
        """The links that traffic must not use at `now`."""
        for link in [link for link, at in self._lit_at.items() if now - at >= self.hold(link)]:
            del self._lit_at[link]
        return self._dark | self._lit_at.keys()

    def due(self) -> float | None:
        """When the next link that is lit again may be used, None if none is waiting."""
        return min((at + self.hold(link) for link, at in self._lit_at.items()), default=None)

    def forget(self) -> None:
        """Clear all history: another plan is up."""
        self.losses.clear()
        self._lost_at.clear()
        self._lit_at.clear()
        self._dark = frozenset()
