"""The links between hosts before and after a run, and those it made, kept and broke."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from orchestrator.store.records import CurrentPlan
from orchestrator.views.report.gather import Source
from orchestrator.views.report.ledger import Answer
from orchestrator.views.report.texts import was_up

SWITCH = "@"
Link = tuple[str, str]
"""Two ends (`gpu01:p1`, or a host alone where the plan left the port open), in order; one may be a
packet switch: `@ideal`.
"""


@dataclass(frozen=True, slots=True)
class Topology:
    """Links by their fate. `asked`: the links of the plan, if the run did not complete it; then
    `after` is empty.

    known: whether the links before are known.
    """

    before: frozenset[Link] = frozenset()
    after: frozenset[Link] = frozenset()
    asked: frozenset[Link] = frozenset()
    known: bool = True

    @property
    def hosts(self) -> tuple[str, ...]:
        """Every host that appears, in natural order."""
        return tuple(name for name in self._names if not name.startswith(SWITCH))

    @property
    def switches(self) -> tuple[str, ...]:
        """Every packet switch that appears, as named in its links."""
        return tuple(name for name in self._names if name.startswith(SWITCH))

    @property
    def _names(self) -> list[str]:
        names = {host_of(end) for link in (*self.before, *self.after, *self.asked) for end in link}
        return sorted(
            names, key=lambda name: [int(w) if w.isdigit() else w for w in re.split(r"(\d+)", name)]
        )

    @property
    def kept(self) -> frozenset[Link]:
        return self.before & self.after

    @property
    def made(self) -> frozenset[Link]:
        return self.after - self.before

    @property
    def broken(self) -> frozenset[Link]:
        return self.before - self.after if self.after or not self.asked else frozenset()


def host_of(end: str) -> str:
    return end.partition(":")[0]


def link(a: str, b: str) -> Link:
    return (a, b) if a <= b else (b, a)


def topology(source: Source, circuits: Answer) -> Topology:
    """The topology: before from the store, after from the journal, asked from the plan.

    No circuit shows links over packet switches: a plan over them is up if its run succeeded.
    """
    before = _stored(source)
    after = frozenset(link(*str(row[0]).split("->", 1)) for row in circuits.rows)
    ok = was_up(source.record)
    if source.record.verb == "down" and ok:
        return Topology(before, frozenset(), known=source.before is not None)
    planned, spokes = _planned(source.plan), _spokes(source)
    if ok and (after or not planned):
        after |= spokes
    asked = frozenset() if after else planned | spokes
    return Topology(before, after, asked, source.before is not None)


def planned_switches(source: Source) -> tuple[str, ...]:
    """The packet switches that the plan names."""
    return tuple(str(x["name"]) for x in _dicts(source.plan.get("segments")) if "name" in x)


def _stored(source: Source) -> frozenset[Link]:
    """The links that were up. To routing every two ports of a packet switch are linked: here each
    is to the switch.
    """
    before = source.before
    current = before.get("current") if isinstance(before, dict) else None
    links = CurrentPlan.of_json(current).up.links if isinstance(current, dict) else ()
    at = {port: SWITCH + name for name, ports in source.segments.items() for port in ports}
    found: set[Link] = set()
    for a, b in ((str(each.a), str(each.b)) for each in links):
        found |= {link(a, at[a]), link(b, at[b])} if a in at and b in at else {link(a, b)}
    return frozenset(found)


def _planned(plan: Mapping[str, Any]) -> frozenset[Link]:
    return frozenset(
        link(str(x["a"]), str(x["b"])) for x in _dicts(plan.get("links")) if "a" in x and "b" in x
    )


def _spokes(source: Source) -> frozenset[Link]:
    """From each host of the plan's packet switches to the switch; of one whose ports were not
    recorded, as in the plan.
    """
    found: set[Link] = set()
    for x in _dicts(source.plan.get("segments")):
        name, hosts = str(x.get("name", "")), x.get("hosts")
        ends: Iterable[str] = source.segments.get(name, ()) or (
            map(str, hosts) if isinstance(hosts, list) else ()
        )
        found |= {
            link(end, SWITCH + name)
            for end in ends
            if not isinstance(hosts, list) or host_of(end) in hosts
        }
    return frozenset(found)


def _dicts(listed: Any) -> Iterable[Mapping[str, Any]]:
    return [x for x in listed if isinstance(x, dict)] if isinstance(listed, list) else []
