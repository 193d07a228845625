"""Lines with delay, as `lines` of emulator.yml describes them. fabric/line.py is one;
fabric/relay.py carries the packets.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

LINE_KEYS = frozenset({"ports", "delay_ms", "queue_packets", "rate_mbps", "loss"})
MOST_PACKETS, MOST_DELAY_MS = 10_000, 10_000
LINE_PACKETS_S, RELAY_PACKETS_S = 2_000, 8_000
"""Largest packets a second that one port's line, and all of them, may carry: a program moves them,
beside a lab on two cores.
"""


@dataclass(frozen=True, slots=True)
class LineConfig:
    """What the traffic of `ports` (host, number) passes on its way out: a queue of packets, a rate,
    a time in one direction (s).

    loss: the share (0 to 1) that is lost at random.
    """

    ports: tuple[tuple[str, int], ...]
    rate_bps: float
    delay_s: float
    queue_packets: int
    loss: float = 0.0


def read_line(entry: Any, rates: Mapping[tuple[str, int], int]) -> LineConfig:
    """One entry of `lines`. rates: bits per second of each port that has a cable, 0 for no limit.

    Raises: KeyError, TypeError, ValueError, with what is wrong.
    """
    if not isinstance(entry, Mapping):
        raise TypeError("wanted {ports, delay_ms, queue_packets}")
    if unknown := sorted(set(entry) - LINE_KEYS):
        raise ValueError(f"{unknown[0]}: unknown; known are {', '.join(sorted(LINE_KEYS))}")
    ports = tuple(
        (host, int(number))
        for host, _, number in (str(port).rpartition(":p") for port in entry["ports"])
    )
    for host, number in ports:
        if (host, number) not in rates:
            raise ValueError(f"no cable at port {number} of a host {host}")
    if not ports:
        raise ValueError("ports: at least one is needed")
    given = entry.get("rate_mbps")
    rate_bps = (
        min(rates[port] for port in ports)
        if given is None
        else _number(entry, "rate_mbps", 0.001, 100_000) * 1e6
    )
    if not rate_bps:
        raise ValueError("rate_mbps is missing, and the ports have no limit of their own")
    return LineConfig(
        ports=ports,
        rate_bps=rate_bps,
        delay_s=_number(entry, "delay_ms", 0, MOST_DELAY_MS) / 1e3,
        queue_packets=int(_number(entry, "queue_packets", 1, MOST_PACKETS)),
        loss=_number(entry, "loss", 0, 1) if "loss" in entry else 0.0,
    )


def overloaded(lines: Sequence[LineConfig], mtu: int) -> Iterator[str]:
    """Say which ports have two lines, and which lines are too fast for the program that moves their
    packets.
    """
    for (host, number), count in Counter(port for line in lines for port in line.ports).items():
        if count > 1:
            yield f"{host}:p{number} has {count} lines"
    for line in lines:
        if line.rate_bps / 8 / mtu > LINE_PACKETS_S:
            most = LINE_PACKETS_S * 8 * mtu / 1e6
            yield f"{line.rate_bps / 1e6:g} Mb/s: {LINE_PACKETS_S} packets of {mtu} bytes a second are the most: rate_mbps {most:g}"
    total = sum(len(line.ports) * line.rate_bps for line in lines) / 8 / mtu
    if total > RELAY_PACKETS_S:
        yield f"{total:.0f} packets of {mtu} bytes a second in all, {RELAY_PACKETS_S} are the most: fewer ports, or less rate_mbps"


def _number(entry: Mapping[str, Any], key: str, least: float, most: float) -> float:
    value = entry[key]
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value <= most:
        raise ValueError(f"{key} {value}: wanted {least:g} to {most:g}")
    return float(value)
