"""Partitions of hosts: lanes, processors, a share of the ports. Each is a host of the lab,
`gpu01/a`, beside the whole one. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field

from optics import HostName
from orchestrator.inventory.positions import Path, Problems
from orchestrator.inventory.schema import CPUS, MIG, Edge

MOST = 8
"""Partitions of a host: as many preferences lie between the rule of a whole host and the fence
(agent/host/partitions.py).
"""


class PartitionEdge(Edge):
    """A part of a host that carries a plan of its own."""

    lanes: Annotated[list[Annotated[int, Field(ge=0, le=63)]], Field(min_length=1)]
    cpus: Annotated[str, Field(pattern=CPUS, description="processors, such as 0-7,16-23")] = ""
    share: (
        Annotated[float, Field(gt=0, le=1, description="of each port at a packet switch")] | None
    ) = None
    mig: list[Annotated[str, Field(pattern=MIG)]] = Field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Partition:
    """A part of a host. index: its place among the host's partitions, by name; lanes: those of the
    host that are its own.

    cpus: processors as the kernel lists them, empty for all; share: of each port at a packet
    switch, None: not limited; mig: ids of MIG devices, which its jobs get as CUDA_VISIBLE_DEVICES
    (not verified on a GPU).
    """

    name: str
    index: int
    lanes: tuple[int, ...]
    cpus: str = ""
    share: float | None = None
    mig: tuple[str, ...] = ()


def compatible_hosts(hosts: Iterable[HostName], used: Collection[HostName]) -> frozenset[HostName]:
    """Those of the hosts that can be used beside `used`: a host is used whole, or in partitions.

    >>> sorted(compatible_hosts(["gpu01", "gpu01/a", "gpu01/b", "gpu02", "gpu02/a"], {"gpu01/a", "gpu02"}))
    ['gpu01/b']
    """
    taken = {*used, *(name.partition("/")[0] for name in used)}
    return frozenset(
        name for name in hosts if name not in taken and name.partition("/")[0] not in used
    )


def processors(text: str) -> list[int]:
    """
    >>> processors("0-2,7")
    [0, 1, 2, 7]
    """
    ends = [part.partition("-") for part in text.split(",") if part]
    return [n for first, _, last in ends for n in range(int(first), int(last or first) + 1)]


def read_partitions(
    host: str,
    edges: Mapping[str, PartitionEdge],
    lanes: int,
    forwarding: str,
    path: Path,
    problems: Problems,
) -> dict[str, Partition]:
    """The partitions of one host, by name; everything wrong with them is added to `problems`.
    lanes: of the whole host.
    """
    if not edges:
        return {}
    if forwarding != "kernel":
        problems.add(
            path,
            f"{host} forwards by {forwarding}: RDMA passes no route and no queue of the kernel, so it has no partitions",
            key=True,
        )
    if len(edges) > MOST:
        problems.add(path, f"{host} has {len(edges)} partitions; wanted {MOST} at most", key=True)
    found = {
        name: Partition(
            name,
            index,
            tuple(edges[name].lanes),
            edges[name].cpus,
            edges[name].share,
            tuple(edges[name].mig),
        )
        for index, name in enumerate(sorted(edges))
    }
    taken: dict[tuple[str, Any], str] = {}
    for name in edges:
        kinds: list[tuple[str, str, list[Any], Callable[[int], Path]]] = [
            ("lanes", "lane", [*found[name].lanes], lambda at: (at,)),
            ("cpus", "processor", processors(found[name].cpus), lambda _: ()),
            ("mig", "MIG device", [*found[name].mig], lambda at: (at,)),
        ]
        for key, word, values, inner in kinds:
            for at, value in enumerate(values):
                place: Path = (*path, name, key, *inner(at))
                if (key, value) in taken:
                    whose = taken[key, value]
                    problems.add(
                        place,
                        f"{word} {value} is {'named twice' if whose == name else f'already of partition {whose}'}",
                    )
                elif key == "lanes" and value >= lanes:
                    problems.add(
                        place, f"lane {value}: {host} has lanes 0..{lanes - 1} (testbed_lanes)"
                    )
                taken.setdefault((key, value), name)
    for name, part in found.items():
        for each in part.cpus.split(","):
            first, _, last = each.partition("-")
            if last and int(first) > int(last):
                problems.add(
                    (*path, name, "cpus"), f"processors {each}: the first is greater than the last"
                )
    shares = {name: edge.share for name, edge in edges.items() if edge.share is not None}
    if (total := sum(shares.values())) > 1 + 1e-9:
        last = list(shares)[-1]
        problems.add(
            (*path, last, "share"),
            f"the shares of {host} come to {total:g}, more than the whole port",
        )
    for name in edges.keys() - shares.keys() if shares else ():
        text = f"partition {name} has no share, and would take that of {', '.join(shares)}; give every partition one, or none"
        problems.add((*path, name), text, key=True)
    return found
