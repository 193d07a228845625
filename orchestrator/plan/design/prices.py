"""Compares the prices of fabrics, from the program's price table or the user's own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args

from optics import Infeasible
from orchestrator.results import JsonReport
from planner.predict.cost import TIERS, Fabric, Prices


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
