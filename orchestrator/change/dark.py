"""The dark time of a change, for pairs of hosts that have no other path meanwhile: their packets
wait in the sockets for the light.

Without it TCP sends into the dark, loses, and tries again only when its backed-off timer expires, a
third of the darkness too late on average. A hold (docs/reference/agent.md) leaves such pairs
without a route, and the commit that follows pushes their sockets.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence

from optics import HostName, HostPort, Infeasible, Link, TestbedError
from optics.plain import counted
from optics.plan import FixedRoute, Ring, TransitionPolicy
from orchestrator.change.port_counters import quiet
from orchestrator.fabric.rules import Macs, Route, Rules, drain_rules, rules
from orchestrator.hosts import Held, Hosts
from orchestrator.inventory.edges import RTO_MIN_MS
from orchestrator.inventory.lab import Lab
from orchestrator.jobs.decision import LEAST_DARK_S
from orchestrator.plan.target import SLOW_S
from orchestrator.telemetry.recorder import Recorder

SHORTEST_S = 2 * RTO_MIN_MS / 1e3
"""In less darkness (s) a hold gains nothing: TCP's first two tries come that soon."""
EMPTY_S = 0.02
"""The light waits at most so long (s) for what the hosts had sent before they held. Without a wait
the pause was often 10 ms shorter, but in four of nine moves of one run packets were lost in the
dark, their timer backed off, and the push did not help."""
EXCESS_S = 5.0
"""Hosts give up a hold this long (s) after the light was expected: their routes are then what they
were before it.
"""


def worthwhile(policy: TransitionPolicy, dark_s: float) -> bool:
    """Whether to hold during `dark_s` of expected darkness. Never for robots: no pair is cut off
    for minutes on purpose.

    With `auto` from the same darkness on as a job pauses. At 0.05 s a training job of twelve ranks,
    which computes meanwhile, lost 135 ms with a hold and 45 ms without (benchmark job_pause); a
    connection that only sends gains from 0.05 s on (hold_flush).
    """
    least_s = {"auto": LEAST_DARK_S, "always": SHORTEST_S, "never": float("inf")}[policy.hold]
    return least_s <= dark_s <= SLOW_S


def routes_meanwhile(
    old_links: Sequence[Link],
    kept: Sequence[Link],
    lab: Lab,
    macs: Mapping[HostPort, Macs],
    fixed: Sequence[FixedRoute],
    rings: Sequence[Ring],
) -> Mapping[HostName, Rules]:
    """The routes, while all but `kept` is dark, of the hosts that cannot reach some host then;
    empty if all reach all.
    """
    try:
        before = rules(old_links, lab, macs, fixed, rings)
        meanwhile = drain_rules(old_links, kept, lab, macs, fixed, rings, hold=True)
    except Infeasible:  # the old plan's fixed routes do not fit what is lit now
        before, meanwhile = (
            rules(old_links, lab, macs),
            drain_rules(old_links, kept, lab, macs, hold=True),
        )
    return {
        host: found
        for host, found in meanwhile.items()
        if _destinations(found) < _destinations(before[host])
    }


def _destinations(found: Rules) -> set[str]:
    return {rule.destination for rule in found if isinstance(rule, Route)}


class Hold:
    """The hold of one change. routes: of the hosts that hold, by the number `generation`."""

    def __init__(self, generation: int, routes: Mapping[HostName, Rules], dark_s: float) -> None:
        self.generation, self.routes = generation, routes
        self._revert_after_s = dark_s + EXCESS_S
        self._begin_ns = self._end_ns = 0
        self._detail = ""

    async def begin(self, hosts: Hosts, darkening: Collection[HostPort]) -> None:
        """Hold, then wait for what was sent before to arrive at the ports `darkening`.

        Raises nothing: a host that does not hold loses what it would have lost anyway.
        """
        self._begin_ns = time.monotonic_ns()
        try:
            held = await hosts.routes.hold(
                self.generation, sorted(self.routes), self._revert_after_s
            )
            self._detail = _text(held)
            waited = await quiet(hosts, darkening, EMPTY_S)
            self._detail += f"; quiet after {waited * 1e3:.0f} ms"
        except TestbedError as error:
            self._detail = f"not all hosts hold: {error.line}"
        self._end_ns = time.monotonic_ns()

    def record(self, recorder: Recorder) -> None:
        """Add the phase, which is part of the switching, to the run's phases."""
        if self._end_ns:
            recorder.add("hold", self._begin_ns, self._end_ns, self._detail)


def _text(held: Mapping[HostName, Held]) -> str:
    connections = counted(sum(each.sockets for each in held.values()), "connection")
    skipped = next(
        (
            f", not pushed by {name}: {each.skipped}"
            for name, each in sorted(held.items())
            if each.skipped
        ),
        "",
    )
    return f"{counted(len(held), 'host')} without another path, {connections} waiting{skipped}"
