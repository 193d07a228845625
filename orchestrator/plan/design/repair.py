"""The repaired plan after a failure, as a plan file: a ring is closed with borrowed matched links,
or closed round a failed host.

Borrowing is the repair of TopoOpt (NSDI '23, section 7, "Handling failures"): links of matched
pairs carry less than a ring's.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from optics import HostName, HostPort, Infeasible, Missing
from optics.plan import Plan, RingGroup, Traffic, ring_steps
from orchestrator.inventory.lab import Lab
from orchestrator.plan.design.replan import demand_of, planner_lab, reckon, shape_of
from orchestrator.plan.evict import plan_without_host
from orchestrator.plan.ports import assign_ports
from orchestrator.plan.reader import read_plan
from planner.model.planes import check
from planner.model.shape import Shape
from planner.operate.repair import borrow


@dataclass(frozen=True, slots=True)
class Repaired:
    """A plan without what has failed. message: what was done. ports: of the failed links, None
    where the plan leaves them open.
    """

    text: str
    message: tuple[str, ...]
    ports: tuple[HostPort, ...]
    open: bool = False


def repaired(
    plan: Plan,
    text: str,
    lab: Lab,
    links: Sequence[tuple[HostName, HostName]],
    hosts: Sequence[HostName],
) -> Repaired:
    """The plan after links or hosts have failed. Raises: Infeasible - a link is not there, or a
    ring cannot be closed; Missing.
    """
    tokens: list[str] = []
    ports: list[HostPort] = []
    unsaid = False
    for host in hosts:
        text = plan_without_host(text, plan, lab, host)
        plan = read_plan(text, plan.name, lab)
        tokens.append(f"{host} is left out; its neighbours close the rings")
    for a, b in links:
        text, reported, dead = _closed(plan, text, lab, a, b)
        plan = read_plan(text, plan.name, lab)
        tokens.append(reported)
        ports += dead
        unsaid |= not dead
    return Repaired(_predicted(text, plan, lab), tuple(tokens), tuple(ports), unsaid)


def _closed(
    plan: Plan, text: str, lab: Lab, a: HostName, b: HostName
) -> tuple[str, str, list[HostPort]]:
    """The text without one link, what was done, and the ports of that link."""
    if plan.job is None or not plan.rings:
        raise Missing(
            f"{plan.name} has no rings to close",
            hint="to move the link to spare ports: testbed up --avoid PORT",
        )
    shape, mp = _shape(plan)
    rank = {host: number for number, host in enumerate(plan.job.hosts)}
    body = json.loads(text)
    entries = [{**link, "count": 1} for link in body["links"] for _ in range(link.get("count", 1))]
    pairs = [(rank[_host(link["a"])], rank[_host(link["b"])]) for link in entries]
    failed = (rank.get(a, -1), rank.get(b, -1))
    found = _entry(entries, pairs, failed, shape.duplex, mp=False)
    if found is None:
        near = sorted(plan.links, key=lambda link: not {a, b} & {*link.hosts})[:1]
        hint = "".join(f"one of its links, as --link {':'.join(link.hosts)}" for link in near)
        raise Infeasible(
            f"{plan.name} has no such link from {a} to {b}",
            hint=hint or "--host, for a host that has failed",
        )
    removed = [entries[found]]
    dead = [port for end in ("a", "b") if (port := _port(removed[0][end])) is not None]
    matched = list(shape.matched)
    if failed in matched or (shape.duplex and failed[::-1] in matched):  # the ring uses another one
        entries.remove(removed[0])
        message = (
            f"{a}--{b} is left out: the other link between them carries the ring"
            if _in_ring(plan, a, b)
            else ""
        )
        return _written(body, entries), message or f"{a}--{b} is left out: no ring uses it", dead
    leased = borrow(shape, failed, mp, _planes(shape, entries, pairs, plan, lab))
    places = [found]
    for pair in leased.removed:
        at = _entry(entries, pairs, pair, shape.duplex, mp=True, but=places)
        assert at is not None
        places.append(at)
    first, second = (entries[at] for at in places[1:])
    src, dst = _end(first, a), _end(second, b)
    kind = {"kind": removed[0]["kind"]} if "kind" in removed[0] else {}
    made = [{"a": first[src], "b": second[dst], **kind, "x_purpose": "allreduce"}]
    if len(leased.added) > 1:
        ends = first["b" if src == "a" else "a"], second["b" if dst == "a" else "a"]
        # of a simplex link the second's transmitter and the first's receiver
        one, other = ends if shape.duplex else ends[::-1]
        made.append({"a": one, "b": other, **kind, "x_purpose": "mp"})
    entries = [link for at, link in enumerate(entries) if at not in places] + made
    borrowed = " and ".join(f"{_host(one['a'])}--{_host(one['b'])}" for one in (first, second))
    left = (
        f"; {_host(made[1]['a'])}--{_host(made[1]['b'])} joins their other ends"
        if len(made) > 1
        else ""
    )
    lost = (
        f"; {leased.lost_bytes:.3g} bytes an iteration lose their own link"
        if leased.lost_bytes > 0
        else ""
    )
    return (
        _written(body, entries),
        f"{a}--{b} is closed with the ports of {borrowed}{left}{lost}",
        dead,
    )


def _shape(plan: Plan) -> tuple[Shape, NDArray[np.float64]]:
    """The topology by ranks, and the model-parallel bytes between them: none in a plan that does
    not say what its job moves.
    """
    assert plan.job is not None
    if plan.job.traffic is None:
        group = RingGroup("job", 1, plan.job.rings)
        return shape_of(replace(plan, job=replace(plan.job, traffic=Traffic((group,))))), np.zeros(
            (len(plan.job.hosts),) * 2
        )
    return shape_of(plan), demand_of(plan).mp


def _planes(
    shape: Shape,
    entries: Sequence[Mapping[str, Any]],
    pairs: Sequence[tuple[int, int]],
    plan: Plan,
    lab: Lab,
) -> tuple[int, ...] | None:
    """The switch of each matched link, by its ports where the plan gives them; None where all ports
    are on one.
    """
    if len(lab.devices) == 1:
        return None
    names = list(lab.devices)
    used: list[int] = []
    found = []
    for pair in shape.matched:
        at = _entry(entries, pairs, pair, shape.duplex, mp=True, but=used)
        port = None if at is None else _port(entries[at]["a"])
        if at is None or port is None:
            offer = replace(planner_lab(plan, lab), degree=shape.degree)
            return check(shape, offer) if offer.planes else None
        used.append(at)
        found.append(names.index(lab.fibres[port].device))
    return tuple(found)


def _entry(
    entries: Sequence[Mapping[str, Any]],
    pairs: Sequence[tuple[int, int]],
    pair: tuple[int, int],
    duplex: bool,
    *,
    mp: bool,
    but: Sequence[int] = (),
) -> int | None:
    """The place of a link between two ranks, of a matched pair (mp) or of a ring where there are
    both.
    """
    existing = [
        at
        for at, ends in enumerate(pairs)
        if at not in but and (ends == pair or (duplex and ends[::-1] == pair))
    ]
    return min(
        existing, key=lambda at: (entries[at].get("x_purpose") == "mp") is not mp, default=None
    )


def _in_ring(plan: Plan, a: HostName, b: HostName) -> bool:
    return any({a, b} == set(step) for order in plan.rings for step in ring_steps(order))


def _host(end: str) -> HostName:
    return end.partition(":")[0]


def _port(end: str) -> HostPort | None:
    host, present, number = end.partition(":p")
    return HostPort(host, int(number)) if present else None


def _end(link: Mapping[str, Any], host: HostName) -> str:
    return "a" if _host(link["a"]) == host else "b"


def _written(body: dict[str, Any], entries: Sequence[Mapping[str, Any]]) -> str:
    links = [{key: value for key, value in link.items() if key != "count"} for link in entries]
    return json.dumps({**body, "links": links}, indent=1, ensure_ascii=False) + "\n"


def _predicted(text: str, plan: Plan, lab: Lab) -> str:
    """The text with the prediction for the new links; without one where the plan does not say what
    its job moves.
    """
    body = json.loads(text)
    before = body.pop("predicted", None)
    links = assign_ports(plan.links, lab)
    if before and plan.job is not None and plan.job.traffic is not None:
        now = reckon(plan, links, lab)
        times = {
            "iteration": now.iteration_s,
            "compute": now.compute_s,
            "transfers": now.transfers_s,
            "allreduce": now.allreduce_s,
        }
        body["predicted"] = {
            f"{name}_ms": round(seconds * 1e3, 3) for name, seconds in times.items()
        }
        body["predicted"] |= {key: before[key] for key in ("link_mbps",) if key in before}
    return json.dumps(body, indent=1, ensure_ascii=False) + "\n"
