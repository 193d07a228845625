"""How many bytes a job has here for each byte of its workload, and how many a plan can hold. Pure."""

from __future__ import annotations

from dataclasses import replace

from optics import Infeasible
from planner.model.demand import Demand

AIM_S = 1.0
"""On labs much slower than the workload's own network an iteration is scaled down to about this
time.
"""
MUCH_SLOWER = 10.0
LEAST_BYTES, MOST_BYTES, MOST_S = 4.0, 2.0**50, 3600.0
"""Limits of the largest buffer or transfer once it is scaled (bytes: one number; what a plan can
hold), and of computing (s).
"""


def bytes_here(size: float, scale: float) -> int:
    """Bytes of a group's scaled buffer: at least one number, unless the buffer is empty."""
    return max(round(size * scale), int(LEAST_BYTES)) if size else 0


def check_scale(given: Demand, scale: float, ratio: float) -> None:
    """Raises: Infeasible - scaled bytes are too few or too many for a plan, or the scaled time to
    compute is too long.

    ratio: how many times slower the lab is than the workload's own network.
    """
    largest = max([float(given.mp.max()), *(group.bytes for group in given.groups)])
    least, most = LEAST_BYTES / max(largest, LEAST_BYTES), MOST_BYTES / max(largest, LEAST_BYTES)
    if given.compute_s:
        most = min(most, MOST_S / (given.compute_s * ratio))
    if not least <= scale <= most:
        raise Infeasible(
            f"{scale:g} of the bytes: the largest buffer or transfer has {largest:.4g}, computing takes "
            f"{given.compute_s * ratio:.3g} s on links of this rate",
            hint=f"--scale {1.1 * least if scale < least else 0.9 * most:.2g}, or leave it out",
        )


def usual_scale(given: Demand, ports: int, bytes_per_s: float, ratio: float) -> float:
    """1 where the lab is about as fast as the workload's own network, else by the time of an
    iteration with every port of every rank full: all methods get the same scale.

    bytes_per_s: of one of the `ports` of a rank, at the workload's own rate.
    """
    sent = given.mp.sum(axis=1)
    for group in given.groups:
        sent[list(group.members)] += 2 * (len(group.members) - 1) / len(group.members) * group.bytes
    own_s = float(given.compute_s + sent.max() / (ports * bytes_per_s))
    if ratio <= MUCH_SLOWER or not own_s or own_s * ratio <= AIM_S:
        return 1.0
    return float(f"{AIM_S / (own_s * ratio):.2g}")


def scaled(given: Demand, scale: float, compute_s: float) -> Demand:
    """The demand with the bytes, and the time to compute, that it has here."""
    groups = tuple(replace(group, bytes=bytes_here(group.bytes, scale)) for group in given.groups)
    return Demand(given.n, groups, given.mp * scale, compute_s)
