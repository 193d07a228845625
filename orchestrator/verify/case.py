"""The signals of a diagnosis while it is judged, and what all judges share. Pure."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field

from optics import HostName, HostPort
from optics.ranks import RankName, host_of_rank
from orchestrator.hosts.api import RankLoad
from orchestrator.verify.pace import Pace, pace, stalled_ranks
from orchestrator.verify.signals import PlannedLink, Signals

CABLES = "testbed verify --rung link --rung identity"
"""What to type next about cables to packet switches."""
LINES = 6
"""Lines of why a launch failed that are evidence, after the first; faults of a host's ports."""
SURE, LIKELY, WEAK = 0.95, 0.8, 0.6
"""Confidence: the component itself shows it; it is what remains of several; only its effect is
seen.
"""


@dataclass
class Case:
    """The signals, and which hosts and ports earlier verdicts explain."""

    signals: Signals
    pace: Pace = field(init=False)
    state: tuple[RankName, ...] = field(init=False)
    ended: set[HostName] = field(default_factory=set)
    cut: set[HostPort] = field(default_factory=set)
    explained: bool = False
    """Whether a fault was found that makes ranks stand still or end."""

    def __post_init__(self) -> None:
        s = self.signals
        self.pace = pace(s.heartbeats, s.usual_ms)
        self.state = stalled_ranks(s.heartbeats, self.pace.usual_ms) if s.state == "running" else ()

    @property
    def waits(self) -> bool:
        """Whether the whole job stands still."""
        alive = [
            rank
            for rank, heartbeat in self.signals.heartbeats.items()
            if heartbeat.state == "running"
        ]
        return bool(alive) and len(self.state) == len(alive)

    @property
    def slowing(self) -> bool:
        """Whether the latest iteration took longer than usual, or the present one's exchange alone
        has by now.
        """
        usual_ms, alive = (
            self.pace.usual_ms,
            [b for b in self.signals.heartbeats.values() if b.state == "running"],
        )
        exchange = bool(alive) and all(
            b.phase == "exchange" and usual_ms and b.age_s * 1e3 > usual_ms for b in alive
        )
        return self.pace.slowing or exchange

    def number(self, rank: RankName) -> int:
        """A rank's number in its job; -1 if it is none of its ranks."""
        return self.signals.ranks.index(rank) if rank in self.signals.ranks else -1

    def load_of(self, rank: RankName) -> RankLoad | None:
        """What a rank's processes do, by its host."""
        load = self.signals.loads.get(host_of_rank(rank))
        return load.ranks.get(rank) if load is not None else None

    @property
    def troubled(self) -> bool:
        """Whether the job is slow, or ranks stand."""
        return bool(self.state) or (self.signals.state == "running" and self.pace.slow)


def dead(port: HostPort, signals: Signals) -> bool:
    """Whether nothing arrives at a port: no carrier, or no frame."""
    return signals.carriers.get(port) is False or port in (signals.deaf or ())


def wire_text(wire: PlannedLink) -> str:
    return f"{wire.link.a} - {wire.link.b}"


def move(wire: PlannedLink, port: HostPort, s: Signals) -> str:
    """The command that moves a link to spare ports; a port at a packet switch has none."""
    if wire.segment:
        return CABLES
    text = "".join(f" --avoid {shlex.quote(word)}" for word in dict.fromkeys((*s.avoid, str(port))))
    return f"testbed up --topology {s.plan_file or 'PLAN'}{text}"


def top(host: HostName) -> str:
    return f"testbed host exec {host} -- top -b -n 1"
