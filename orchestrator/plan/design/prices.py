"""Compares the prices of fabrics, from the program's price table or the user's own; the power of
what a plan uses.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import get_args

from optics import Infeasible
from optics.plan import Plan, WantedLink
from orchestrator.fabric.circuits import circuits
from orchestrator.inventory.lab import Lab, kind_of
from orchestrator.plan.avoid import choose_ports
from orchestrator.results import JsonReport
from planner.predict.cost import TIERS, Fabric, Prices, clos, rails


@dataclass(frozen=True, slots=True)
class FabricRow:
    """A host's share of one fabric. gbps: of all its links together; price_ratio: to the first
    row's.
    """

    fabric: str
    links: int
    gbps: float
    price: float
    watts: float
    price_ratio: float


@dataclass(frozen=True, slots=True)
class Fabrics(JsonReport):
    """Fabrics for the same hosts; `mark` names who verified the prices."""

    mark: str
    currency: str
    rows: tuple[FabricRow, ...]


def fabrics(prices: Prices, ports: int, gbps: float) -> Fabrics:
    """Optical fabrics with this many ports per host, electrical ones of the same total rate, and
    the fat-tree for a panel's price.

    Raises: Infeasible - a rate the table has no price for.
    """
    first = prices.host("panel", gbps, ports)
    rows = []
    whole = ports * gbps
    kinds: tuple[Fabric, ...] = get_args(Fabric)
    for kind in kinds:
        electrical = kind in TIERS
        links, rate = (1, whole) if electrical else (ports, gbps)
        try:
            cost = prices.host(kind, rate, links)
        except Infeasible:
            if not electrical:
                raise
            continue  # the table has no single link of this rate
        name = f"{'electrical' if electrical else 'optical'}, {kind}"
        rows.append(
            FabricRow(name, links, whole, cost, prices.host_watts(kind, links), cost / first)
        )
    try:
        equal = prices.equal_rate(first, "three tiers")
        rows.append(
            FabricRow(
                "electrical, three tiers, of a panel's price",
                1,
                equal,
                first,
                prices.host_watts("three tiers"),
                1.0,
            )
        )
    except Infeasible:
        pass
    return Fabrics(prices.mark, prices.currency, tuple(rows))


@dataclass(frozen=True, slots=True)
class ClusterRow:
    """A network of all GPUs. price, watts: of all; price_saved, watts_saved: shares of the first
    row's.
    """

    network: str
    tiers: int
    switches: int
    transceivers: int
    price: float
    watts: float
    price_saved: float
    watts_saved: float


@dataclass(frozen=True, slots=True)
class Clusters(JsonReport):
    """Networks for the same GPUs. least, most: what the second row saves, of price or power, if only
    switches or only transceivers had one: no table of prices gives less or more.
    """

    mark: str
    currency: str
    gpus: int
    radix: int
    domain: int
    gbps: float
    least: float
    most: float
    rows: tuple[ClusterRow, ...]


def clusters(prices: Prices, gpus: int, radix: int, domain: int, gbps: float) -> Clusters:
    """Full bisection between all GPUs, beside a network for each rail alone.

    Raises: Infeasible - more GPUs than three tiers take, domains that are not full, a rate the
    table has no price for.
    """
    networks = {
        "full bisection": clos(gpus, radix),
        "a network for each rail": rails(gpus, radix, domain),
        "rails that share switches": rails(gpus, radix, domain, shared=True),
    }
    whole, rail, _ = networks.values()
    price, watts = whole.price(prices, gbps), whole.watts(prices)
    saved = (1 - rail.switches / whole.switches, 1 - rail.transceivers / whole.transceivers)
    rows = tuple(
        ClusterRow(
            name,
            one.tiers,
            one.switches,
            one.transceivers,
            one.price(prices, gbps),
            one.watts(prices),
            1 - one.price(prices, gbps) / price,
            1 - one.watts(prices) / watts if watts else 0.0,
        )
        for name, one in networks.items()
    )
    return Clusters(
        prices.mark, prices.currency, gpus, radix, domain, gbps, min(saved), max(saved), rows
    )


def plan_watts(prices: Prices, lab: Lab, plan: Plan) -> float:
    """Power (W) of the network that a plan uses, NICs aside; of a schedule, in the slot that uses
    most. Raises: Infeasible - the lab has no such circuits.
    """
    if plan.schedule is None:
        return _links_watts(prices, lab, plan, plan.links)
    slots = [plan.slot(number).links for number in range(len(plan.schedule.slots))]
    return max(_links_watts(prices, lab, plan, links) for links in slots)


def _links_watts(prices: Prices, lab: Lab, plan: Plan, wanted: Iterable[WantedLink]) -> float:
    """A circuit takes a port of each optical device that it passes; a robotic panel draws none
    while nothing moves. A port of a packet switch has a transceiver at both ends of its cable.
    """
    links = choose_ports(tuple(wanted), lab, (), frozenset(), plan.avoid)
    lit = circuits(links, lab)
    hosts = {end for circuit in lit for end in (circuit.transmitter, circuit.receiver)}
    passed = (setting.ingress.device for circuit in lit for setting in circuit.path)
    ports = sum(kind_of(lab, device) != "robot" for device in passed)
    switched, watts = len(lab.switched(links)), prices.watts
    return (
        (len(hosts) + 2 * switched) * watts.transceiver
        + switched * watts.electrical_port
        + ports * watts.optical_port
    )
