"""TopoOpt's routing over a topology that TopologyFinder found."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from planner.predict.routing import Pair, Path, Routes, Weighted, every_pair, k_shortest, single
from planner.topology.topofinder import Finding


def planned(finding: Finding, demand: NDArray[np.float64], *, k: int = 4, seed: int = 0) -> Routes:
    """TopoOpt's routing: coins inside groups of strides without other traffic, else k shortest
    paths (artifact: one drawn).
    """
    shape, artifact = finding.shape, finding.rules == "artifact"
    by_coins: dict[Pair, Weighted] = {}
    for group in dict.fromkeys(ring.group for ring in shape.rings if ring.stride is not None):
        members = _members(finding, group)
        coins = finding.coins(group, seed if artifact else None)
        for a, src in enumerate(members):
            for b, dst in enumerate(members):
                if a != b and coins.hops[(b - a) % len(members)] > 0:
                    by_coins.setdefault(
                        (src, dst), ((tuple(members[i] for i in coins.path(a, b)), 1.0),)
                    )
    heavy = [pair for pair in every_pair(shape) if demand[pair] > 0 or pair not in by_coins]
    rest = single(shape, heavy, seed=seed) if artifact else k_shortest(shape, k, heavy)
    return Routes(shape.n, dict(sorted((by_coins | dict(rest.paths)).items())))


def _members(finding: Finding, group: str) -> Path:
    """The order in which strides count; one of them is always 1."""
    return next(
        ring.order for ring in finding.shape.rings if ring.group == group and ring.stride == 1
    )
