"""Which hosts were linked before a run and after it, and which of these links it made, kept and broke."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from orchestrator.report.gather import Source
from orchestrator.report.ledger import Answer

Link = tuple[str, str]
"""Two ends (`gpu01:p1`, or a host alone where the plan left the port open), in order."""


@dataclass(frozen=True, slots=True)
class Topology:
    """Links by what became of them. `asked`: what the plan wanted, where the run did not get there; then `after` is empty.

    known: whether anything is known of what was before.
    """

    before: frozenset[Link] = frozenset()
    after: frozenset[Link] = frozenset()
    asked: frozenset[Link] = frozenset()
    known: bool = True

    @property
    def hosts(self) -> tuple[str, ...]:
        """Everybody who appears, in the order people count."""
        names = {host_of(end) for link in (*self.before, *self.after, *self.asked) for end in link}
        return tuple(sorted(names, key=lambda name: [int(w) if w.isdigit() else w for w in re.split(r"(\d+)", name)]))

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
    """What is known of it: before from the store, after from the journal, asked from the plan."""
    before = _stored(source.before)
    after = frozenset(link(*str(row[0]).split("->", 1)) for row in circuits.rows)
    if source.record.verb == "down" and source.record.status == "ok":
        return Topology(before, frozenset(), known=source.before is not None)
    asked = frozenset() if after else _planned(source.plan)
    return Topology(before, after, asked, source.before is not None)


def _stored(before: Any) -> frozenset[Link]:
    current = before.get("current") if isinstance(before, dict) else None
    kept = current.get("links") if isinstance(current, dict) else None
    listed = kept.get("links") if isinstance(kept, dict) else None
    return frozenset(link(f"{x['a']}:p{x['a_port']}", f"{x['b']}:p{x['b_port']}") for x in _dicts(listed))


def _planned(plan: Mapping[str, Any]) -> frozenset[Link]:
    return frozenset(link(str(x["a"]), str(x["b"])) for x in _dicts(plan.get("links")) if "a" in x and "b" in x)


def _dicts(listed: Any) -> Iterable[Mapping[str, Any]]:
    return [x for x in listed if isinstance(x, dict)] if isinstance(listed, list) else []
