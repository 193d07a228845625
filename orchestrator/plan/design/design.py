"""Designs a plan for a workload on a lab: a topology by one of the planner's methods, the job that
uses it, and a prediction.

The prediction follows the routes that the hosts will really have: ports as they would be assigned
on an empty lab, next hops as `next_hops` chooses them. Nothing here touches a lab.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from optics import Db, HostName, Infeasible, Link, LinkKind
from optics.plan import WantedLink
from orchestrator.fabric.circuits import circuits
from orchestrator.fabric.next_hops import NextHops, lanes_of, next_hops
from orchestrator.inventory.lab import Lab
from orchestrator.plan.design import electrical, wavelengths
from orchestrator.plan.design.flows import (
    link_rates,
    pair_flows,
    predicted_iteration,
    rate_mbps,
    ring_flows,
    step_flow,
)
from orchestrator.plan.design.placement import chosen_hosts
from orchestrator.plan.design.scale import LEAST_BYTES, check_scale, scaled, usual_scale
from orchestrator.plan.ports import assign_ports
from planner.model.backend import orders
from planner.model.demand import Demand, Group
from planner.model.shape import Lab as PlannerLab
from planner.model.shape import Shape
from planner.model.workload import Workload
from planner.predict.iteration import (
    FlowPath,
    PairFlow,
    Prediction,
    RingFlow,
    allreduce_s,
    spread,
)
from planner.predict.relays import relays
from planner.registry import method
from planner.registry import schedule as named_schedule
from planner.schedule.bfb import Send
from planner.topology.alternating import Watch
from planner.topology.methods import Found, Wanted

PAYLOAD = 8948 / 9014
"""Share of a link's rate that is payload: TCP with timestamps in frames of MTU 9000 with their
Ethernet headers.
"""


@dataclass(frozen=True)
class Read:
    """A workload file, read. demand: between its hosts. `sha256`: of its text."""

    workload: Workload
    demand: Demand
    sha256: str


@dataclass(frozen=True)
class Transferred:
    """Bytes of one transfer on one lane, and the links they take. via: the rank that passes them
    on, which `relayed_at` of the links lead to.
    """

    src: int
    dst: int
    bytes: int
    lane: int
    path: FlowPath
    via: int | None = None
    relayed_at: int = 0


@dataclass(frozen=True)
class Design:
    """A topology on hosts of a lab, the job on it and its prediction.

    orders: of each group, cut over in equal parts. scale: bytes of the job here per byte of the
    workload; time_scale: of times. own: the same at the workload's own rate and bytes. others:
    other topologies that were evaluated, with their iteration (s). stopped: the search for a
    strategy was ended early; this is the best found until then. loss_db: the most that is expected
    of a circuit, where the method chose ports.
    """

    wanted: Wanted
    read: Read
    hosts: tuple[HostName, ...]
    lab: PlannerLab
    found: Found
    orders: Mapping[str, tuple[tuple[int, ...], ...]]
    links: tuple[Link, ...]
    transfers: tuple[Transferred, ...]
    schedules: Mapping[str, tuple[Send, ...]]
    link_mbps: float
    scale: float
    time_scale: float
    here: Prediction
    own: Prediction
    others: tuple[tuple[str, float], ...] = ()
    stopped: bool = False
    loss_db: Db = 0.0

    @property
    def shape(self) -> Shape:
        return self.found.shape

    @property
    def raised(self) -> tuple[str, ...]:
        """Groups whose scaled buffer would be smaller than one number, and was raised to it."""
        return tuple(
            group.id
            for group in self.read.demand.groups
            if 0 < group.bytes * self.scale < LEAST_BYTES
        )


def offered(lab: Lab, hosts: Sequence[HostName], wanted: Wanted) -> PlannerLab:
    """What these hosts have in common: ports with fibres, and whether each port number has a switch
    of its own.

    Raises: Infeasible - more ports are wanted than there are.
    """
    devices = {
        host: {p.number: lab.fibres[p].device for p in lab.fibres if p.host == host}
        for host in hosts
    }
    fewest = min(hosts, key=lambda host: len(devices[host]))
    # the reference for rates and scales
    ports = len(devices[fewest]) or (1 if wanted.method in electrical.KINDS else 0)
    if wanted.ports is not None and not 1 <= wanted.ports <= ports:
        raise Infeasible(
            f"{wanted.ports} ports per host are wanted, {fewest} has {ports} with a fibre",
            hint=f"--ports {ports}",
        )
    alike = all(found == devices[hosts[0]] for found in devices.values())
    apart = len(set(devices[hosts[0]].values())) == len(devices[hosts[0]])
    joined = any(trunk.start.device != trunk.end.device for trunk in lab.trunks)
    return PlannerLab(
        len(hosts),
        wanted.ports or ports,
        rate_mbps(lab, hosts) / 1e3 * PAYLOAD,
        duplex=not wanted.simplex,
        planes=alike and apart and not joined and ports > 1,
        alpha_s=wanted.alpha_s,
    )


def design(read: Read, lab: Lab, wanted: Wanted, watch: Watch | None = None) -> Design:
    """Find a topology and predict the job on it. watch: is notified of the progress of a search and
    may end it.

    Raises: Infeasible - naming the condition that is not met and the nearest number of ports that
    would do.
    """
    hosts = chosen_hosts(
        lab, read.demand.n, wanted.hosts, wanted.taken, read.workload.ranks_per_host
    )
    if wanted.scale is not None:
        ratio = read.workload.rate_gbps * 1e3 / rate_mbps(lab, hosts)
        check_scale(read.demand, wanted.scale, ratio)
    degree = offered(lab, hosts, wanted).degree
    try:
        return _designed(read, lab, hosts, wanted, watch)
    except Infeasible as error:
        # its ports are wavelengths, of which it says how many would do
        if wanted.method == wavelengths.METHOD:
            raise
        most = offered(lab, hosts, replace(wanted, ports=None)).degree
        for ports in sorted(
            {*range(1, most + 1)} - {degree}, key=lambda ports: (abs(ports - degree), -ports)
        ):
            try:
                _designed(read, lab, hosts, replace(wanted, ports=ports, search=0))
            except Infeasible:
                continue
            raise Infeasible(
                str(error), hint=f"--ports {ports}" + (f"; or {error.hint}" if error.hint else "")
            ) from error
        raise


def _designed(
    read: Read, lab: Lab, hosts: tuple[HostName, ...], wanted: Wanted, watch: Watch | None = None
) -> Design:
    planner_lab = offered(lab, hosts, wanted)
    read, searched, stopped = (
        _searched(read, planner_lab, wanted, watch) if wanted.search else (read, (), False)
    )
    designs: list[Design] = []
    refused: Infeasible | None = None
    for found in _answers(read, lab, hosts, planner_lab, wanted):
        placed = tuple(hosts[number] for number in found.order) or hosts
        try:
            designs.append(_on_hosts(found, read, lab, placed, planner_lab, wanted))
        except Infeasible as error:
            refused = refused or error
    if refused is not None and not designs:
        raise refused
    best = min(designs, key=lambda found: found.own.iteration_s)
    others = tuple((d.found.name, d.own.iteration_s) for d in designs if d is not best)
    return replace(
        best,
        found=replace(best.found, why=(*searched, *best.found.why)),
        others=others,
        stopped=stopped,
    )


def _answers(
    read: Read, lab: Lab, hosts: tuple[HostName, ...], offer: PlannerLab, wanted: Wanted
) -> list[Found]:
    if wanted.method in electrical.KINDS:
        return electrical.find_electrical(lab, hosts, wanted)
    if wanted.method == wavelengths.METHOD:
        return wavelengths.find_wavelengths(read.demand, lab, hosts, wanted)
    return list(method(wanted.method)(read.demand, offer, wanted))


def _searched(
    read: Read, lab: PlannerLab, wanted: Wanted, watch: Watch | None
) -> tuple[Read, tuple[str, ...], bool]:
    """The demand of the best parallelism found, a description of the search, and whether it was
    stopped.
    """
    from planner.topology.alternating import alternate
    from planner.topology.strategies import parts

    at_own_rate = replace(lab, rate_gbps=read.workload.rate_gbps * PAYLOAD)
    paths = parts(read.workload)
    found = alternate(
        paths,
        at_own_rate,
        lab.n,
        rules=wanted.rules,
        seed=wanted.seed,
        budget=wanted.search,
        patience=wanted.patience,
        watch=watch,
        chains=wanted.chains,
        workers=wanted.workers,
    )
    spread_so = "; ".join(
        f"{part.name}: {name}" for part, name in zip(paths, found.strategy, strict=True)
    )
    rounds = ", ".join(
        f"{r.before_s * 1e3:.4g} -> {r.after_s * 1e3:.4g} ms ({r.taken} of {r.tried} taken)"
        for r in found.rounds
    )
    if wanted.chains > 1:
        rounds = f"chain {found.chain + 1} of {wanted.chains}: {rounds}"
    last = found.rounds[-1].tried
    if found.stopped:
        end = "stopped there"
    elif 0 < last < wanted.search:
        end = f"{wanted.patience} in a row brought nothing better"
    else:
        end = f"all {last} were tried" if last else "there is only one strategy"
    lines = (f"strategy: {spread_so}", f"strategies and topologies in turn: {rounds}; {end}")
    return replace(read, demand=found.demand), lines, found.stopped


def _on_hosts(
    found: Found,
    read: Read,
    lab: Lab,
    hosts: tuple[HostName, ...],
    offer: PlannerLab,
    wanted: Wanted,
) -> Design:
    shape, demand = found.shape, read.demand
    if not shape.connected:
        src, dst = next(
            (s, d) for s in range(shape.n) for d in range(shape.n) if shape.hops[s, d] < 0
        )
        raise Infeasible(
            f"no path leads from rank {src} to rank {dst}",
            hint="give the topology a ring through all ranks",
        )
    rows = [(hosts[a], hosts[b]) for a, b in shape.cables.tolist()]
    kind = LinkKind.DUPLEX if shape.duplex else LinkKind.SIMPLEX
    if found.segments:
        links = tuple(
            link for name, members in found.segments for link in lab.segments[name].links(members)
        )
        # whose rate speeds are by
        lab = replace(lab, hosts={host: lab.hosts[host] for host in hosts})
    else:
        links = assign_ports([WantedLink(a, b, kind) for a, b in found.ports or rows], lab)
    loss_db = max(circuit.loss_db for circuit in circuits(links, lab)) if found.ports else 0.0
    paths = orders(demand, shape, wanted.backend)
    rings = {
        name: [tuple(hosts[rank] for rank in order) for order in each]
        for name, each in paths.items()
    }
    chosen = next_hops(links, lanes_of(lab), (), [*chain.from_iterable(rings.values())])
    link_mbps = rate_mbps(lab, hosts)
    own_rate = read.workload.rate_gbps * 1e9 / 8 * PAYLOAD
    groups = {group.id: group for group in demand.groups}
    named = ring_flows({name: group.bytes for name, group in groups.items()}, rings, chosen, lab)
    schedules = _schedules(found, wanted, named, groups, hosts, chosen, lab, own_rate)
    stepped = [
        step_flow(groups[name], sends, hosts, chosen, lab) for name, sends in schedules.items()
    ]
    flows = [flow for name, flow in named if name not in schedules]
    paths |= {name: (groups[name].members,) for name in schedules}
    ends = [(int(src), int(dst)) for src, dst in zip(*demand.mp.nonzero(), strict=True)]
    vias = relays(ends, link_rates(links, hosts, lab)) if wanted.relay else {}
    pairs, lanes = pair_flows(demand, hosts, chosen, lab, vias)
    shares = spread(pairs)
    ratio = read.workload.rate_gbps * 1e3 / link_mbps
    own = predicted_iteration(
        demand,
        flows,
        pairs,
        shares,
        own_rate,
        wanted.alpha_s,
        stepped,
        whole=wanted.relay == "whole",
    )
    scale = wanted.scale
    if scale is None:
        scale = usual_scale(demand, offer.degree, own_rate, ratio)
    moved = tuple(
        Transferred(
            src,
            dst,
            max(1, round(demand.mp[src, dst] * scale * share)),
            lane,
            path,
            vias.get((src, dst)),
            pair.relayed_at,
        )
        for (src, dst, used), pair, parts in zip(lanes, pairs, shares, strict=True)
        for lane, path, share in zip(used, pair.paths, parts, strict=True)
        if share > 0
    )
    least = [PairFlow(t.bytes, (t.path,), t.relayed_at) for t in moved]
    rate = link_mbps * 1e6 / 8 * PAYLOAD
    here = predicted_iteration(
        scaled(demand, scale, demand.compute_s * scale * ratio),
        [replace(flow, bytes=flow.bytes * scale) for flow in flows],
        least,
        [(1.0,)] * len(least),
        rate,
        wanted.alpha_s,
        [replace(flow, bytes=flow.bytes * scale) for flow in stepped],
        whole=wanted.relay == "whole",
    )
    if vias:
        how = {"chunks": "while they come in", "whole": "once all of them have come in"}
        why = f"{len(vias)} transfers have no link of their own: a rank passes each on, {how[wanted.relay]}"
        found = replace(found, why=(*found.why, why))
    if wanted.schedule:
        found = replace(found, why=(*found.why, f"all-reduce by the schedule {wanted.schedule}"))
    return Design(
        wanted,
        read,
        hosts,
        offer,
        found,
        paths,
        links,
        moved,
        schedules,
        link_mbps,
        scale,
        scale * ratio,
        here,
        own,
        loss_db=loss_db,
    )


def _schedules(
    found: Found,
    wanted: Wanted,
    named: Sequence[tuple[str, RingFlow]],
    groups: Mapping[str, Group],
    hosts: Sequence[HostName],
    chosen: NextHops,
    lab: Lab,
    bytes_per_s: float,
) -> dict[str, tuple[Send, ...]]:
    """Schedules for groups of all ranks: the one asked for; else breadth-first, if the back-end
    supports them and they are faster than rings. Raises: Infeasible - the one asked for has no use
    here."""
    whole = [group for group in groups.values() if len(group.members) == found.shape.n]
    if wanted.schedule:
        if wanted.backend != "msccl":
            raise Infeasible(
                f"schedule {wanted.schedule}: the back-end {wanted.backend} has rings only",
                hint="--backend msccl",
            )
        if not whole:
            raise Infeasible(
                f"schedule {wanted.schedule}: no group of the workload has all ranks",
                hint="leave --schedule out",
            )
        return dict.fromkeys(
            (group.id for group in whole), named_schedule(wanted.schedule, found.shape)
        )
    if wanted.backend != "msccl" or not whole:
        return {}
    from planner.schedule.bfb import schedule

    sends, taken = schedule(found.shape), {}
    for group in whole:
        by_rings = allreduce_s(
            [flow for name, flow in named if name == group.id], bytes_per_s, wanted.alpha_s
        )
        by_steps = step_flow(group, sends, hosts, chosen, lab).seconds(bytes_per_s, wanted.alpha_s)
        if wanted.method == "direct" or by_steps < by_rings * 0.999:
            taken[group.id] = sends
    return taken
