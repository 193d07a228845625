"""What a diagnosis knows: values read from the lab, and what it concludes from them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from optics import HostName, HostPort, Link, LinkKind
from optics.ranks import RankName
from orchestrator.hosts.api import ClockReading, Flow, Heartbeat, Load
from orchestrator.results import JsonReport
from orchestrator.verify.qualification import Direction
from orchestrator.verify.report import LinkQuality

KINDS = (
    "slow-link", "lossy-link", "busy-host", "hung-rank", "dead-rank", "dead-host", "dark-circuit", "crossed-fibres", "dead-segment",
    "rdma-ports", "clock", "not-launched", "none", "unknown",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Verdict:
    """Which component is at fault. kind: one of KINDS; `none`: nothing is wrong, `unknown`: it
    cannot be determined.

    component: `host gpu05`, `job mlp`, `link gpu05:p2 - gpu06:p1`, `rank gpu05/0`,
    `circuit ocs1:3->4`, `segment plane1`, or a switch of it: `segment rack 1 of plane1`,
    `cable gpu05:p3 - plane1`, `links A and B` where two are exchanged; empty for `none` and
    `unknown`. evidence: sentences with numbers. confidence: 0 to 1, how sure the kind of evidence
    makes it. next_command: what to type next, empty if nothing is to be done.
    """

    component: str
    kind: str
    evidence: tuple[str, ...] = ()
    confidence: float = 0.0
    next_command: str = ""

    @property
    def wrong(self) -> bool:
        """Whether it names a fault."""
        return self.kind not in ("none", "unknown")


@dataclass(frozen=True, slots=True)
class PlannedLink:
    """A planned link, and what it leads over: a segment of packet switches, or circuits (`a->b`),
    each with its settings.

    switches: the packet switch at each end, as `Segment.switches` names it; empty: the segment is
    one switch.
    """

    link: Link
    segment: str = ""
    circuits: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    switches: tuple[str, str] = ("", "")

    @property
    def ports(self) -> tuple[HostPort, HostPort]:
        return self.link.a, self.link.b

    @property
    def receivers(self) -> tuple[HostPort, ...]:
        """The ports that should have light, or a packet switch's signal."""
        return (self.link.b,) if self.link.kind is LinkKind.SIMPLEX else self.ports


@dataclass(frozen=True, slots=True)
class Signals:
    """What was read. Whatever was not read is empty or None, and supports no verdict.

    job: the name of the latest job, empty if none was launched; state: as `JobStatus.state`.
    usual_ms: its usual iteration (ms), from before the iterations in `heartbeats`. why: what is
    known of its end; unlaunched: it is why no rank was begun. moving: a change of the lab or of the
    job that is under way, in words. plan_file: where the plan that is up is kept, as to be typed;
    avoid: the words of the `--avoid` that it is up with. silent: hosts and devices that do not
    answer, with their errors. bare: hosts of the plan or job that answer and run no agent.
    carriers: of the planned ports. lost: where the light of a circuit (`a->b`) is lost, by the
    meters. missing: the settings of a circuit that the devices do not hold. deaf: ports with
    carrier that no signed frame reached, None: not asked. strangers: who is received at ports that
    should receive another. loads: of the job's hosts. carried: what the job's TCP carried over a
    link in about a second; past: in ten at most. clocks: of the hosts, compared with this machine.
    quality: measured traffic per direction. shared: it was measured beside a running job.
    rdma: of hosts whose RDMA tables were read, what NCCL will not find at their ports of planned
    links; empty: nothing.
    collective: hosts whose all-reduce alone is slow, with sentences; None: not run. others:
    evidence of failed rungs of the ladder that no signal above stands for. unread: what could not
    be read, in words.
    """

    job: str = ""
    state: str = "none"
    ranks: tuple[RankName, ...] = ()
    heartbeats: Mapping[RankName, Heartbeat] = field(default_factory=dict)
    usual_ms: float | None = None
    moving: str = ""
    plan_file: str = ""
    avoid: tuple[str, ...] = ()
    why: str = ""
    unlaunched: bool = False
    silent: Mapping[str, str] = field(default_factory=dict)
    bare: frozenset[HostName] = frozenset()
    wires: tuple[PlannedLink, ...] = ()
    carriers: Mapping[HostPort, bool] = field(default_factory=dict)
    lost: Mapping[str, str] = field(default_factory=dict)
    missing: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    deaf: frozenset[HostPort] | None = None
    strangers: Mapping[HostPort, HostPort] = field(default_factory=dict)
    loads: Mapping[HostName, Load] = field(default_factory=dict)
    carried: Mapping[Direction, Flow] = field(default_factory=dict)
    past: Mapping[Direction, Flow] = field(default_factory=dict)
    clocks: Mapping[HostName, ClockReading] = field(default_factory=dict)
    quality: Mapping[Direction, LinkQuality] | None = None
    shared: bool = False
    rdma: Mapping[HostName, tuple[str, ...]] = field(default_factory=dict)
    collective: Mapping[tuple[HostName, ...], str] | None = None
    others: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DiagnosisReport(JsonReport):
    """What `job diagnose` found: the verdict, and further faults that the first does not explain
    (`also`).
    """

    lab: str
    job: str
    state: str
    verdict: Verdict
    also: tuple[Verdict, ...] = ()
    read: tuple[str, ...] = ()
    """What was read and measured, a line each."""
