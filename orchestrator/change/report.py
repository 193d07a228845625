"""What a change did, as frozen values."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.jobs.report import JobStatus
from orchestrator.plan.report import DeviceDiff, DiffCounts, RelabelReport
from orchestrator.results import JsonReport
from orchestrator.store.confirmations import Awaiting
from orchestrator.telemetry.phases import PartTime, PhaseTime


@dataclass(frozen=True, slots=True)
class CircuitPower:
    """Power (dBm) where a circuit leaves its last device, deviation from the target (dB), and
    attenuation set on its path (dB).
    """

    circuit: str
    out_dbm: float | None
    off_db: float | None
    attenuation_db: float


@dataclass(frozen=True, slots=True)
class EqualiseReport:
    """What equalisation measured at its end. rounds: adjustments made; writes: commands that could
    change a device.
    """

    target_dbm: float
    tolerance_db: float
    rounds: int = 0
    writes: int = 0
    circuits: tuple[CircuitPower, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def within(self) -> int:
        """How many circuits are within tolerance of the target."""
        return sum(
            c.off_db is not None and abs(c.off_db) <= self.tolerance_db for c in self.circuits
        )


@dataclass(frozen=True, slots=True)
class PrewireReport(DiffCounts):
    """What prewiring did. diff: what slow devices made and removed in the dark; waiting: what they
    can do only with the change.

    flips: settings that `up` then still changes on other devices.
    """

    run: str
    plan: str
    lab: str
    phases: tuple[PhaseTime, ...] = ()
    parts: tuple[PartTime, ...] = ()
    diff: tuple[DeviceDiff, ...] = ()
    writes: int = 0
    waiting: int = 0
    flips: int = 0
    dark_ms_expected: float | None = None
    dark_time_scale: float = 1.0
    journal: str = ""
    notes: tuple[str, ...] = ()
    relabel: RelabelReport | None = None

    derived = ("made", "removed", "nothing_to_do")

    @property
    def nothing_to_do(self) -> bool:
        return not self.made and not self.removed


@dataclass(frozen=True, slots=True)
class ConfirmReport(JsonReport):
    """What `confirm` made permanent: run `of`. hosts: those that keep its routes; already: it had
    been confirmed before.
    """

    run: str
    of: str
    plan: str
    lab: str
    hosts: int = 0
    already: bool = False
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class WatchReport(JsonReport):
    """How waiting for run `of` to be confirmed ended: confirmed, reverted, hands-needed,
    superseded. tries: of the rollback.
    """

    of: str
    state: str
    tries: int = 0


@dataclass(frozen=True, slots=True)
class JobChange(JsonReport):
    """How a running job came through a change. mode: `hold`, it paused in the dark; `drain`, its
    traffic took other paths meanwhile; `ride`, neither. after: the last iteration on the earlier
    rings, or before the pause.

    paused_ms: time lost beyond the usual iteration time, from the first command to the end of the
    first iteration after the change; boundary_ms is what dark_ms and commit_ms leave of it
    (change/standstill.py). before_ms, after_ms: a usual iteration (telemetry/names.py).
    worst_rank_ms: the longest time that any rank moved no byte although some were due. prepare_ms:
    until all ranks were prepared. note: why the job was not changed over, empty if it was.
    """

    move: int
    mode: str
    after: int | None = None
    paused_ms: float | None = None
    dark_ms: float | None = None
    commit_ms: float | None = None
    boundary_ms: float | None = None
    before_ms: float | None = None
    after_ms: float | None = None
    worst_rank_ms: float | None = None
    prepare_ms: float | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class UpReport(DiffCounts):
    """What `up` did. `dark_ms`: longest dark time by the devices' own reports; `writes`: commands
    that could change a device.

    Times are those of this lab; `dark_time_scale` times `dark_ms` is the time of a real device of
    its kind (1: it is one). pairs_unasked: of a large lab. undo: the command that rolls this change
    back.
    """

    run: str
    plan: str
    lab: str
    nothing_to_do: bool = False
    dry_run: bool = False
    phases: tuple[PhaseTime, ...] = ()
    parts: tuple[PartTime, ...] = ()
    diff: tuple[DeviceDiff, ...] = ()
    writes: int = 0
    dark_ms_expected: float | None = None
    dark_ms: float | None = None
    link_ms: float | None = None
    commit_ms: float | None = None
    pairs_ok: int = 0
    pairs_total: int = 0
    pairs_unasked: int = 0
    job: JobStatus | None = None
    journal: str = ""
    notes: tuple[str, ...] = ()
    undo: str = ""
    dark_time_scale: float = 1.0
    equalise: EqualiseReport | None = None
    relabel: RelabelReport | None = None
    confirm: Awaiting | None = None
    """Set while the change is only temporary, until `confirm` makes it permanent."""
    verb: str = "up"
    of: str = ""
    """`up`, or the verb that restored a state (`rollback`, `restore`), and the run that was rolled
    back or restored.
    """
    segments: tuple[str, ...] = ()
    """As in `PlanReport`."""
    ring_change: JobChange | None = None
    """How the job that went on came through it; None if none did, or if it was not involved."""
    pause_ms: float | None = None
    """The longest time between the ends of two iterations of the job, from the first command until
    it had continued.
    """
    job_change: str = ""
    """Of a dry run: what becomes of the job that runs, in words; empty if none does."""

    derived = ("kept", "removed", "made", "foreign", "total_s")

    @property
    def total_s(self) -> float:
        return max((p.begin_s + p.seconds for p in self.phases), default=0.0)


@dataclass(frozen=True, slots=True)
class DownReport(DiffCounts):
    """What `down` removed; `left`: things it should have restored and could not, one line each."""

    run: str
    lab: str
    nothing_to_do: bool = False
    phases: tuple[PhaseTime, ...] = ()
    diff: tuple[DeviceDiff, ...] = ()
    writes: int = 0
    hosts_restored: int = 0
    hosts_total: int = 0
    job_stopped: str = ""
    left: tuple[str, ...] = ()
    journal: str = ""
    notes: tuple[str, ...] = ()
    verb: str = "down"
    """`down`, or `rollback` to a lab without a plan."""
    of: str = ""
    """The run that was rolled back."""

    derived = ("kept", "removed", "made", "foreign")
