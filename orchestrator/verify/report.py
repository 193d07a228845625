"""Results of verification and of the power meters: what `verify` and `power` return."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from orchestrator.results import JsonReport
from orchestrator.store.records import StallPoint
from orchestrator.telemetry.phases import PhaseTime


@dataclass(frozen=True, slots=True)
class CircuitLight:
    """Power along one circuit, from where it enters its first device to where it leaves its last
    one (dBm, dB).

    expected_db counts passes, trunks and deliberate attenuation; difference_db: measured minus
    expected. margin_db: above the loss-of-signal threshold. meter_db: the meters' specified
    accuracy, +-. lost: where the light is lost.
    """

    circuit: str
    path: tuple[str, ...]
    in_dbm: float | None
    out_dbm: float | None
    loss_db: float | None
    expected_db: float
    difference_db: float | None
    attenuation_db: float
    margin_db: float | None
    meter_db: float
    lost: str = ""


@dataclass(frozen=True, slots=True)
class LossChange:
    """How one circuit's loss changed over runs (dB), without attenuation. beyond: more than
    repeatability explains; certain: more than the meters' specified accuracy allows too. Wall times
    in seconds."""

    circuit: str
    path: str
    since: float
    until: float
    measurements: int
    first_db: float
    latest_db: float
    change_db: float
    repeatability_db: float
    meter_db: float
    beyond: bool
    certain: bool
    losses: tuple[tuple[float, float], ...] = ()
    """(wall s, dB), oldest first."""


@dataclass(frozen=True, slots=True)
class PowerReport(JsonReport):
    """Light on every circuit, and with `--history` how it changed."""

    lab: str
    circuits: tuple[CircuitLight, ...] = ()
    history: tuple[LossChange, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LinkQuality:
    """Measured traffic of one direction of one link.

    mbps: rate of a received burst (megabits per second), None if nothing arrived. share: of the
    reference rate. loss: share of the datagrams of steady traffic that did not arrive, None if none
    could be sent; offered_mbps: at that rate.
    """

    link: str
    mbps: float | None
    share: float | None
    loss: float | None
    offered_mbps: float | None = None
    sent: int = 0
    arrived: int = 0


@dataclass(frozen=True, slots=True)
class CollectiveFigures:
    """A short all-reduce against what the links allow; bus bandwidths in megabytes (1e6) per
    second, as nccl-tests counts them.
    """

    ranks: int
    rings: int
    bytes: int
    busbw_mbps: float
    expected_mbps: float
    link_mbps: float
    """Rate of the slowest link the rings use, megabits per second."""
    slowest: str = ""

    @property
    def share(self) -> float:
        return self.busbw_mbps / self.expected_mbps if self.expected_mbps else 0.0


@dataclass(frozen=True, slots=True)
class PairSample:
    """Ordered pairs of hosts that were asked, of how many, and what drew them."""

    asked: int
    of: int
    seed: str


@dataclass(frozen=True, slots=True)
class LevelResult:
    """One rung of the verification ladder; `evidence` are the lines that show why and where it
    failed.

    code: `OK`, or the rung's own (`E-LIGHT`). notes: remarks that are not failures. timeout_s: the
    time limit. pairs: set where not all pairs of hosts were asked.
    """

    name: str
    ok: bool
    detail: str = ""
    seconds: float = 0.0
    evidence: tuple[str, ...] = ()
    code: str = "OK"
    notes: tuple[str, ...] = ()
    timeout_s: float | None = None
    links: tuple[LinkQuality, ...] = ()
    collective: CollectiveFigures | None = None
    pairs: PairSample | None = None


@dataclass(frozen=True, slots=True)
class VerifyReport(JsonReport):
    """The ladder, bottom first; every rung is climbed regardless of the results below, because
    together they localise a fault.

    silent: devices and hosts of the plan that do not answer, with their errors.
    """

    lab: str
    plan: str
    levels: tuple[LevelResult, ...] = ()
    notes: tuple[str, ...] = ()
    silent: Mapping[str, str] = field(default_factory=dict)

    derived = ("ok",)

    @property
    def ok(self) -> bool:
        return all(r.ok for r in self.levels)


@dataclass(frozen=True, slots=True)
class StallReport(JsonReport):
    """The stall curve: what was measured by this run, and with `--history` every earlier
    measurement on the lab (`earlier`).

    link: that went dark, by its circuits on `devices`. run, link, devices: empty if nothing was
    measured.
    """

    lab: str
    plan: str = ""
    run: str = ""
    link: str = ""
    devices: tuple[str, ...] = ()
    points: tuple[StallPoint, ...] = ()
    earlier: tuple[StallPoint, ...] = ()
    phases: tuple[PhaseTime, ...] = ()
    notes: tuple[str, ...] = ()
    journal: str = ""
