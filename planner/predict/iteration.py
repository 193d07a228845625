"""The time of an iteration on links of known rate: computing, then transfers, then all-reduces,
each phase started together.

Bandwidth arithmetic: a phase lasts until the fullest link has carried its bytes, plus a fixed time
per step. Transfers are divided over their paths so that the fullest link carries least (a linear
program). The rates are of payload.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

FlowPath = tuple[Hashable, ...]
"""The links of a path, in order; any hashable value can name a link."""


@dataclass(frozen=True, slots=True)
class Shared:
    """A resource with another rate than a link, such as a rack's uplinks. speed: relative to a
    link's rate.

    counted: bytes here are bytes on a link; a path over a packet switch is one link, whatever
    limits it.
    """

    name: Hashable
    speed: float
    counted: bool = True


def fullest(loads: Mapping[Hashable, float]) -> float:
    """The bytes of the link that takes longest, converted to a link of the common rate."""
    return max(
        (size / (link.speed if isinstance(link, Shared) else 1.0) for link, size in loads.items()),
        default=0.0,
    )


def on_links(loads: Mapping[Hashable, float]) -> float:
    """Bytes on all links together."""
    return sum(size for link, size in loads.items() if is_link(link))


def is_link(link: Hashable) -> bool:
    """Whether bytes there count as bytes on a link."""
    return not isinstance(link, Shared) or link.counted


@dataclass(frozen=True, slots=True)
class RingFlow:
    """One order of a group: bytes of the buffer's part it carries, and the path of each step."""

    bytes: float
    steps: tuple[FlowPath, ...]

    @property
    def wire(self) -> float:
        """Bytes each member sends: 2 (k - 1) / k of the part."""
        return 2 * (len(self.steps) - 1) / len(self.steps) * self.bytes if self.steps else 0.0


@dataclass(frozen=True, slots=True)
class StepFlow:
    """A buffer that `members` ranks all-reduce by a schedule: for each send its step, its part of a
    member's piece, the links it takes."""

    bytes: float
    members: int
    sends: tuple[tuple[int, float, FlowPath], ...]

    def seconds(self, bytes_per_s: float, alpha_s: float = 0.0) -> float:
        """Reducing and gathering: each step lasts as its fullest link, and alpha_s."""
        steps: dict[int, Counter[Hashable]] = {}
        for step, part, path in self.sends:
            for link in path:
                steps.setdefault(step, Counter())[link] += part * self.bytes / self.members  # type: ignore[assignment]
        return 2 * sum(fullest(loads) / bytes_per_s + alpha_s for loads in steps.values())

    @property
    def loads(self) -> Counter[Hashable]:
        """Bytes on each link, both directions of the schedule; they are as many backwards on the
        links back.
        """
        found: Counter[Hashable] = Counter()
        for _, part, path in self.sends:
            for link in path:
                found[link] += 2 * part * self.bytes / self.members  # type: ignore[assignment]
        return found


@dataclass(frozen=True, slots=True)
class PairFlow:
    """Bytes from one rank to another, and the paths they may take. relayed_at: after so many links
    another rank passes them on; 0: none does.
    """

    bytes: float
    paths: tuple[FlowPath, ...]
    relayed_at: int = 0


@dataclass(frozen=True, slots=True)
class Prediction:
    """Seconds of one iteration's phases. busbw: bytes/s rank 0 sends for sums (another, where it
    has none). tax: bytes on all links per byte that is sent. hops: of an average byte of transfers.
    loads: bytes on each link, of both phases."""

    compute_s: float
    transfers_s: float
    allreduce_s: float
    busbw: float = 0.0
    tax: float = 1.0
    hops: float = 0.0
    loads: Mapping[Hashable, float] = field(default_factory=dict)

    @property
    def iteration_s(self) -> float:
        return self.compute_s + self.transfers_s + self.allreduce_s


def allreduce_s(rings: Iterable[RingFlow], bytes_per_s: float, alpha_s: float = 0.0) -> float:
    """Time until all rings, begun at once, have carried their parts; alpha_s: of each of a ring's 2
    (k - 1) steps.
    """
    rings = list(rings)
    steps = max((2 * (len(ring.steps) - 1) for ring in rings), default=0)
    return fullest(ring_loads(rings)) / bytes_per_s + steps * alpha_s


def ring_loads(rings: Iterable[RingFlow]) -> Counter[Hashable]:
    """Bytes on each link."""
    found: Counter[Hashable] = Counter()
    for ring in rings:
        for path in ring.steps:
            for link in path:
                found[link] += ring.wire  # type: ignore[assignment]
    return found


def pair_loads(flows: Sequence[PairFlow], parts: Sequence[Sequence[float]]) -> Counter[Hashable]:
    """Bytes on each link when each flow sends the given share of its bytes over each of its
    paths.
    """
    found: Counter[Hashable] = Counter()
    for flow, shares in zip(flows, parts, strict=True):
        for path, share in zip(flow.paths, shares, strict=True):
            for link in path:
                found[link] += share * flow.bytes  # type: ignore[assignment]
    return found


def transfers_s(
    loads: Mapping[Hashable, float], bytes_per_s: float, alpha_s: float = 0.0, hops: int = 0
) -> float:
    """Time until the fullest link has carried its bytes; alpha_s: of each of `hops` hops of the
    longest path.
    """
    return fullest(loads) / bytes_per_s + hops * alpha_s


def spread(flows: Sequence[PairFlow], least: float = 1 / 16) -> list[tuple[float, ...]]:
    """The share of each flow on each of its paths that minimises the fullest link; shares below
    `least` are dropped.
    """
    if all(len(flow.paths) == 1 for flow in flows):
        return [(1.0,) for _ in flows]
    from scipy.optimize import linprog
    from scipy.sparse import csr_array

    links = {
        link: row
        for row, link in enumerate(
            dict.fromkeys(link for flow in flows for path in flow.paths for link in path)
        )
    }
    first = np.cumsum([0, *(len(flow.paths) for flow in flows)])
    columns, unit = int(first[-1]) + 1, max((flow.bytes for flow in flows), default=1.0)
    rows: list[int] = []
    at: list[int] = []
    values: list[float] = []
    for flow, start in zip(flows, first, strict=False):
        for number, path in enumerate(flow.paths):
            for link in path:
                rows.append(links[link])
                at.append(int(start) + number)
                values.append(flow.bytes / unit / (link.speed if isinstance(link, Shared) else 1.0))
    rows += links.values()
    at += [columns - 1] * len(links)
    values += [-1.0] * len(links)
    whole = [
        (index, int(start) + k)
        for index, (flow, start) in enumerate(zip(flows, first, strict=False))
        for k in range(len(flow.paths))
    ]
    goal = np.zeros(columns)
    goal[-1] = 1.0
    found = linprog(
        goal,
        A_ub=csr_array((values, (rows, at)), shape=(len(links), columns)),
        b_ub=np.zeros(len(links)),
        A_eq=csr_array(
            (np.ones(len(whole)), tuple(zip(*whole, strict=True))), shape=(len(flows), columns)
        ),
        b_eq=np.ones(len(flows)),
        bounds=(0, None),
        method="highs",
    )
    shares = [
        tuple(found.x[start : start + len(flow.paths)])
        for flow, start in zip(flows, first, strict=False)
    ]
    return [_kept(part, least) for part in shares]


def _kept(shares: tuple[float, ...], least: float) -> tuple[float, ...]:
    kept = [share if share >= least else 0.0 for share in shares]
    total = sum(kept)
    return tuple(round(float(share / total), 6) for share in kept)
