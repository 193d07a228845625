"""A topology as the edge list of ns-3's RDMA simulation, as SimAI and ASTRA-sim read it.

After the numbers of nodes, switches and links come the numbers of the switches, then a line for each
link: its ends, rate, delay and share of lost packets. SimAI's first line also has GPUs per server,
NVSwitches and the kind of GPU (aliyun/SimAI, astra-sim-alibabacloud/inputs/topo; read by
astra_ns3/common.h, ASTRA-sim's by scratch/common.h).

The simulator keeps one link of a pair, so parallel ones are one of their summed rate, and its hosts
pass nothing on: host k is node k, and node n + k is a switch that has its links and forwards for it.
Written by the format; not run there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from planner.model.demand import Infeasible
from planner.model.shape import Shape

DELAY_MS = 0.0005
"""Of every link; what SimAI's own topologies have."""


@dataclass(frozen=True)
class Edges:
    """Nodes 0 to hosts - 1, then the switches; the rate (Gb/s) of the link of each pair."""

    hosts: int
    switches: int
    links: Mapping[tuple[int, int], float]

    def simai(self) -> str:
        return self._text(f"{self.nodes} 1 0 {self.switches} {len(self.links)} NONE")

    def astra(self) -> str:
        return self._text(f"{self.nodes} {self.switches} {len(self.links)}")

    @property
    def nodes(self) -> int:
        return self.hosts + self.switches

    def _text(self, first: str) -> str:
        lines = [first, " ".join(map(str, range(self.hosts, self.nodes)))]
        lines += [f"{a} {b} {rate:g}Gbps {DELAY_MS}ms 0" for (a, b), rate in self.links.items()]
        return "\n".join([*lines, ""])


def light(shape: Shape, rate_gbps: float) -> Edges:
    """The links of a topology of light, of this rate each. Raises: Infeasible - they are one-way."""
    if not shape.duplex:
        raise Infeasible("links of ns-3 have two directions", "design without --simplex")
    joined = Counter((min(pair), max(pair)) for pair in shape.cables.tolist())
    return forwarding(shape.n, {pair: count * rate_gbps for pair, count in sorted(joined.items())})


def forwarding(hosts: int, links: Mapping[tuple[int, int], float]) -> Edges:
    """These links, numbers from `hosts` on being packet switches, with a switch in each host."""
    inside = {(rank, hosts + rank): 0.0 for rank in range(hosts)}
    for (a, b), rate in links.items():
        for end in {a, b} & set(range(hosts)):
            inside[end, hosts + end] += rate
    between = {(hosts + a, hosts + b): rate for (a, b), rate in links.items()}
    boxes = {end for pair in links for end in pair if end >= hosts}
    return Edges(hosts, hosts + len(boxes), inside | between)
