"""What lines and functions of packet switches make of a rate and of a time. Closed formulas."""

from __future__ import annotations

from functools import lru_cache
from math import sqrt

import numpy as np

SEGMENT_BYTES = 8948
"""Payload of a packet of MTU 9000, TCP with timestamps."""
CHUNK_HEADERS = 74
"""Of a packet to a switch that adds: Ethernet, IP, UDP and its own
(docs/reference/functions-dialect.md).
"""
MOST_WINDOW = 128 * 1024
"""Bytes of a job that may be on the way to such a switch: they fit a socket of an unprivileged
process.
"""


def tcp_mbps(link_mbps: float, delay_s: float, loss: float) -> float:
    """What one TCP connection carries over a line that loses packets at random, `delay_s` one way:
    a segment per round trip times sqrt(3/2 / loss) (Mathis and others, CCR 27(3), 1997), which
    CUBIC keeps to where round trips are short (RFC 9438, section 4.3).
    """
    if not loss or not delay_s:
        return link_mbps * (1 - loss)
    return min(link_mbps, SEGMENT_BYTES * 8 / 1e6 / (2 * delay_s) * sqrt(1.5 / loss))


def added_s(size: float, slots: int, slot_bytes: int, bytes_per_s: float, delay_s: float) -> float:
    """Time in which a switch adds buffers of `size` bytes: each rank sends them once, and no more
    than its slots at a time. bytes_per_s: of its port, headers included.
    """
    window = min(slots * slot_bytes, MOST_WINDOW)
    able = min(bytes_per_s, window / (2 * delay_s)) if delay_s else bytes_per_s
    return size * (1 + CHUNK_HEADERS / slot_bytes) / able


@lru_cache(maxsize=64)  # tables of millions of keys, asked for each candidate
def lookups(count: int, ranks: int, keys: int, skew: float, cached: int = 0) -> float:
    """Values that the busiest owner finds in an iteration when each rank requests `count` of them,
    key k with a weight of (k + 1) ^ -skew from rank k modulo `ranks`. cached: so many of the most
    popular are answered by a switch.
    """
    weights = np.arange(1, keys + 1, dtype=np.float64) ** -skew
    shares = weights / weights.sum()
    shares[:cached] = 0.0
    return float(count * ranks * np.bincount(np.arange(keys) % ranks, weights=shares).max())
