"""A plan whose circuits come and go: every pair of hosts in turn, the job that goes by it, and its
prediction. Pure.

Sums go pair by pair: in one step each host sends each other its part. In a slot hosts route as over
any links, over several where two have none between them; a pair without a path waits
(`planner.schedule.periodic.Turning`).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import permutations
from math import ceil
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from optics import HostName, Infeasible, Link
from optics.plain import natural
from optics.plan import Plan, WantedLink
from orchestrator.fabric.next_hops import follow, graph, lanes_of, next_hops
from orchestrator.inventory.lab import Lab
from orchestrator.plan.design.design import PAYLOAD, Design
from orchestrator.plan.design.flows import rate_mbps
from orchestrator.plan.design.scale import scaled
from orchestrator.plan.edges import MOST_SLOTS
from orchestrator.plan.ports import assign_ports
from orchestrator.plan.reader import read_plan
from orchestrator.plan.schedule import REACTION_S, SETTLINGS, auto_guard_s, slowest_between_slots
from orchestrator.plan.target import normal
from planner.model.demand import Demand, Group
from planner.schedule.decomposition import for_demand
from planner.schedule.periodic import RoutedSlots, mean_s, parts

Shares: TypeAlias = tuple[NDArray[np.float64], ...]
DUTY = 0.9
FOR_DEMAND = "demand"
PATTERNS = ("staggered", "round-robin", "opera", FOR_DEMAND)
"""Those of plan files, and for a demand: pairs as often as they have bytes."""


@dataclass(frozen=True)
class PeriodicDesign:
    """A schedule for a workload, beside the plan without one that it is compared with. Times (s)
    are of this lab.

    slots: of a cycle. lanes: that a transfer is divided over. dark_s: between two slots, of the
    slowest device by its data sheet and of hosts. moved: share of the links that are dark then, the
    mean of all slots. transfers_s, allreduce_s, compute_s: of an iteration. content: of the plan
    file.
    """

    static: Design
    pattern: str
    ports: tuple[str, ...]
    slots: int
    lanes: int
    dwell_s: float
    guard_s: float
    dark_s: float
    moved: float
    compute_s: float
    transfers_s: float
    allreduce_s: float
    content: Mapping[str, Any]

    @property
    def iteration_s(self) -> float:
        return self.compute_s + self.transfers_s + self.allreduce_s

    @property
    def duty(self) -> float:
        """Share of the time that hosts may send over a link, the mean of all links."""
        return 1 - self.moved * (self.dark_s + self.guard_s) / (self.dwell_s + self.dark_s)

    @property
    def cycle_s(self) -> float:
        return self.slots * (self.dwell_s + self.dark_s)


def periodic(
    static: Design,
    content: Mapping[str, Any],
    lab: Lab,
    *,
    pattern: str,
    dwell_s: float | None,
    guard_s: float | None,
    name: str = "",
) -> PeriodicDesign:
    """The schedule on the hosts and ports of a static design whose plan file has this content.

    dwell_s: None for the one with a duty of `DUTY`. guard_s: None for `auto` of plan files.

    Raises: Infeasible - hosts share no ports, or nothing to send in.
    """
    hosts = static.hosts
    if len(hosts) < 3:
        why = f"{' and '.join(hosts)} meet over any circuit between them, all the time: two hosts need no schedule"
        raise Infeasible(
            why, hint="testbed design topoopt, with the same workload, or more hosts with --hosts"
        )
    ports = common_ports(lab, hosts)[: static.lab.degree]
    if not ports:
        raise Infeasible(
            f"{len(hosts)} hosts have no port number in common",
            hint="name alike hosts with --hosts",
        )
    here = replace(static.lab, rate_gbps=static.link_mbps / 1e3 * PAYLOAD, degree=len(ports))
    demand = scaled(static.read.demand, static.scale, static.here.compute_s)
    text = _text(pattern, ports, hosts, demand)
    named = {"hosts": list(hosts)} if "pattern" in text else {}
    plan = {
        "schema": "testbed.plan/1",
        "name": "draft",
        "schedule": {**text, **named, "dwell_s": 3600.0},
    }
    found = read_plan(json.dumps(plan), "the schedule", lab).schedule
    assert found is not None
    auto, guard_s = guard_s is None, auto_guard_s(lab) if guard_s is None else guard_s
    moved = slowest_between_slots(found.slots, lab)
    settling_s = moved[1] if moved else 0.0
    dark_s = settling_s + REACTION_S
    rate = here.port_bytes_per_s
    over = Routes.of([slot.links for slot in found.slots], hosts, lab)
    if dwell_s is None:
        light_s = over.moved * (dark_s + guard_s) / (1 - DUTY) - dark_s
        dwell_s = max(float(f"{light_s:.3g}"), SETTLINGS * settling_s)
    if guard_s >= dwell_s:
        raise Infeasible(
            f"a guard of {guard_s:g} s leaves nothing of a dwell of {dwell_s:g} s",
            hint=f"--guard {dwell_s / 10:g}",
        )
    every, first = (
        over.routed(dwell_s, guard_s, dark_s),
        over.routed(dwell_s, guard_s, dark_s, lane=0),
    )
    transfers_s, each_s = mean_s(every, first, demand, rate)
    schedule = {**text, "dwell_s": dwell_s} | (
        {"guard_s": "auto" if auto else guard_s} if guard_s else {}
    )
    result = PeriodicDesign(
        static,
        pattern,
        ports,
        len(found.slots),
        lanes_of(lab),
        dwell_s,
        guard_s,
        dark_s,
        over.moved,
        demand.compute_s,
        transfers_s,
        each_s,
        {},
    )
    return replace(result, content=_content(result, content, schedule, name))


def _text(
    pattern: str, ports: Sequence[str], hosts: Sequence[HostName], demand: Demand
) -> dict[str, Any]:
    """The slots as a plan file has them: a pattern by its name, those for a demand written out."""
    if pattern != FOR_DEMAND:
        return {"pattern": pattern, "ports": list(ports)}
    count = min(MOST_SLOTS, ceil(2 * len(hosts) / len(ports)))
    found = for_demand(demand.mp + 2 * parts(demand), count * len(ports)).matchings
    each = [
        [(port, pair) for plane, port in enumerate(ports) for pair in found[plane * count + slot]]
        for slot in range(count)
    ]
    links = [
        [{"a": f"{hosts[a]}:{port}", "b": f"{hosts[b]}:{port}"} for port, (a, b) in slot]
        for slot in each
    ]
    return {"slots": [{"links": slot} for slot in links]}


@dataclass(frozen=True, eq=False)
class Routes:
    """Which links the bytes of each pair take, by lane: in each slot, and in the dark after it over
    the links that stay.

    days, dark_shares: an array (lanes, links, n, n) for each slot. moved: share of the links that
    do not stay, the mean of all slots.
    """

    days: Shares
    dark_shares: Shares
    moved: float

    @classmethod
    def of(
        cls, slots: Sequence[Sequence[WantedLink]], hosts: Sequence[HostName], lab: Lab
    ) -> Routes:
        """Those that hosts have in slots of these links."""
        lit = [tuple(map(normal, assign_ports(links, lab))) for links in slots]
        kept = [
            tuple(link for link in now if link in after)
            for now, after in zip(lit, [*lit[1:], lit[0]], strict=True)
        ]
        moved = [1 - len(stay) / len(now) for now, stay in zip(lit, kept, strict=True) if now]
        days, dark_shares = (
            tuple(_shares(links, hosts, lab) for links in each) for each in (lit, kept)
        )
        return cls(days, dark_shares, sum(moved) / max(1, len(moved)))

    def routed(
        self,
        dwell_s: float,
        guard_s: float,
        dark_s: float,
        *,
        lane: int | None = None,
        weights: NDArray[np.float64] | None = None,
    ) -> RoutedSlots:
        """Slots in turn. lane: of all bytes; weights: (lanes, n, n), the share of a pair's bytes on
        each lane; else all alike.
        """

        def over(shares: NDArray[np.float64]) -> NDArray[np.float64]:
            if weights is not None:
                found: NDArray[np.float64] = (shares * weights[:, None]).sum(axis=0)
            else:
                found = shares.mean(axis=0) if lane is None else shares[lane]
            return found

        dark_shares = self.dark_shares if any(shares.any() for shares in self.dark_shares) else ()
        return RoutedSlots(
            tuple(map(over, self.days)),
            dwell_s - guard_s,
            dark_s + guard_s,
            tuple(map(over, dark_shares)),
        )


def _shares(links: Sequence[Link], hosts: Sequence[HostName], lab: Lab) -> NDArray[np.float64]:
    lanes = lanes_of(lab)
    chosen = next_hops(links, lanes)
    number = {
        hop: index
        for index, hop in enumerate(hop for hops in graph(links).values() for hop in hops)
    }
    shares = np.zeros((lanes, len(number), len(hosts), len(hosts)))
    for (a, src), (b, dst) in permutations(enumerate(hosts), 2):
        for lane in range(lanes):
            for hop in follow(chosen, lab, src, dst, lane):
                shares[lane, number[hop], a, b] = 1.0
    return shares


def _slots_of(plan: Plan) -> list[tuple[WantedLink, ...]]:
    assert plan.schedule is not None
    return [plan.slot(index).links for index in range(len(plan.schedule.slots))]


def forecast(plan: Plan, lab: Lab) -> dict[str, float]:
    """What an iteration of the plan's job takes on its schedule, as `predicted` of a plan file has
    it; empty: no model applies.

    It does to a job that replays traffic over links, its sums over rings or from each member to
    each other; not to packet switches, and not to slots that change with the job's iterations.
    Rings are taken to be on lane 0. Raises: Infeasible - two never meet.
    """
    schedule, traffic = plan.schedule, plan.job.traffic if plan.job else None
    if (
        plan.job is None
        or schedule is None
        or traffic is None
        or plan.segments
        or schedule.kind != "clock"
    ):
        return {}
    if any(send.step != 1 for group in traffic.groups for send in group.schedule):
        return {}
    if any(transfer.via for transfer in traffic.transfers):
        return {}
    hosts = plan.job.hosts
    rank = {host: number for number, host in enumerate(hosts)}
    sent = np.zeros((lanes_of(lab), len(hosts), len(hosts)))
    for one in traffic.transfers:
        sent[one.lane, rank[one.src], rank[one.dst]] += one.bytes
    moved = sent.sum(axis=0)
    direct = [
        Group(one.id, tuple(rank[host] for host in one.rings[0]), one.bytes)
        for one in traffic.groups
        if one.schedule
    ]
    over = [(one, ring) for one in traffic.groups if not one.schedule for ring in one.rings]
    rings = [([rank[host] for host in ring], one.bytes / len(one.rings)) for one, ring in over]
    slowest_ = slowest_between_slots(schedule.slots, lab)
    times = (schedule.dwell_s, schedule.guard_s, (slowest_[1] if slowest_ else 0.0) + REACTION_S)
    routes, demand = (
        Routes.of(_slots_of(plan), hosts, lab),
        Demand(len(hosts), tuple(direct), moved, traffic.compute_s),
    )
    weights = np.divide(sent, moved, out=np.zeros_like(sent), where=moved > 0)
    rate = rate_mbps(lab, hosts) * 1e6 / 8 * PAYLOAD
    found = mean_s(
        routes.routed(*times, weights=weights),
        routes.routed(*times, lane=0),
        demand,
        rate,
        rings=rings,
    )
    seconds = {"compute": traffic.compute_s, "transfers": found[0], "allreduce": found[1]}
    seconds["iteration"] = sum(seconds.values())
    return {f"{name}_ms": round(each * 1e3, 3) for name, each in seconds.items()}


def common_ports(lab: Lab, hosts: tuple[HostName, ...]) -> tuple[str, ...]:
    """The ports with a fibre that all hosts have, by name."""
    each = [{f"p{port.number}" for port in lab.fibres if port.host == host} for host in hosts]
    return tuple(sorted(set.intersection(*each), key=natural))


def _content(
    found: PeriodicDesign, content: Mapping[str, Any], schedule: Mapping[str, Any], name: str
) -> dict[str, Any]:
    """The static plan's file with the schedule in place of its links, and sums by sends from each
    member to each other.
    """
    workload = found.static.read.workload.name
    job = dict(content["job"])
    traffic = dict(job["traffic"])
    pairs: Counter[tuple[str, str]] = Counter()
    for one in traffic["transfers"]:
        pairs[one["src"], one["dst"]] += one["bytes"]
    traffic["transfers"] = [
        {"src": src, "dst": dst, "bytes": max(1, round(size / found.lanes)), "lane": lane}
        for (src, dst), size in pairs.items()
        for lane in range(found.lanes)
    ]
    traffic["groups"] = [
        {
            "id": group["id"],
            "bytes": group["bytes"],
            "rings": group["rings"][:1],
            "schedule": _direct(group["rings"][0]),
        }
        for group in traffic["groups"]
    ]
    predicted = {"iteration_ms": found.iteration_s, "compute_ms": found.compute_s}
    predicted |= {"transfers_ms": found.transfers_s, "allreduce_ms": found.allreduce_s}
    own: dict[str, Any] = {"name": name or f"{workload}-periodic", "schedule": dict(schedule)}
    own["description"] = (
        f"{content['description'].partition(':')[0]}: {found.pattern}, every pair of hosts in turn"
    )
    own["producer"] = {**content["producer"], "method": "periodic"}
    own["job"] = {**job, "name": f"{workload}-periodic", "traffic": traffic}
    own["predicted"] = {key: round(seconds * 1e3, 3) for key, seconds in predicted.items()}
    own["predicted"]["link_mbps"] = content["predicted"]["link_mbps"]
    return {"schema": content["schema"], **own}


def _direct(members: list[HostName]) -> list[dict[str, Any]]:
    return [
        {"step": 1, "src": src, "dst": dst, "shard": src}
        for src in members
        for dst in members
        if src != dst
    ]
