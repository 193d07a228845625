"""The orders that a collective library really uses on a topology.

single-order: stock NCCL; on every channel node n sends to node n + 1 in rank order (NVIDIA/nccl,
src/graph/connect.cc), so only parallel links along one order help. ring-groups: several
communicators with orders of their own (workloads/collectives/rings.py). msccl: any schedule of
rings, as MSCCL XML. A ring's two directions count as two orders where links carry both directions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, get_args

from planner.model.demand import Demand, Group
from planner.model.shape import Ring, Shape

Backend = Literal["single-order", "ring-groups", "msccl"]
BACKENDS: tuple[Backend, ...] = get_args(Backend)

Order = tuple[int, ...]


def orders(demand: Demand, shape: Shape, backend: Backend) -> dict[str, tuple[Order, ...]]:
    """The orders each group's buffer is cut over, in equal parts, by group."""
    found = {}
    for group in demand.groups:
        own = [ring.order for ring in rings_of(group, shape)] or [_along(group, shape)]
        orders = tuple(
            one
            for order in own
            for one in ((order, order[::-1]) if _both(order, shape) else (order,))
        )
        found[group.id] = _one_order(orders) if backend == "single-order" else orders
    return found


def rings_of(group: Group, shape: Shape) -> list[Ring]:
    """The shape's rings that go through exactly the members of a group, whatever group they were
    made for.
    """
    return [ring for ring in shape.rings if set(ring.order) == set(group.members)]


def single_order(shape: Shape) -> Shape:
    """The same numbers of rings, all of a set of ranks along the first one's order: parallel links,
    which one order can fill.
    """
    first: dict[frozenset[int], Ring] = {}
    rings = []
    for ring in shape.rings:
        kept = first.setdefault(frozenset(ring.order), ring)
        rings.append(replace(ring, order=kept.order, stride=kept.stride))
    return replace(shape, rings=tuple(rings))


def _both(order: Order, shape: Shape) -> bool:
    """Whether the reverse is another order: not for two ranks, whose one link carries both
    directions already.
    """
    return shape.duplex and len(order) > 2


def _one_order(own: Sequence[Order]) -> tuple[Order, ...]:
    """The order with the most parallel links along it, as often as there are."""
    alike = Counter(_from_least(order) for order in own)
    order, count = max(alike.items(), key=lambda item: (item[1], [-rank for rank in item[0]]))
    return (order,) * count


def _from_least(order: Order) -> Order:
    at = order.index(min(order))
    return order[at:] + order[:at]


def _along(group: Group, shape: Shape) -> Order:
    """An order for a group without rings of its own: as a ring through all ranks passes its
    members, else as they are named.
    """
    whole = next(
        (ring.order for ring in shape.rings if len(ring.order) == shape.n), tuple(range(shape.n))
    )
    return tuple(rank for rank in whole if rank in set(group.members))
