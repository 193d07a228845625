"""What each verb found or did, as frozen values: the engine fills them in, the command line renders them, `--json` dumps them.

Durations are seconds in `*_s` and milliseconds in `*_ms`. `None` means not measured, never zero.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TypeAlias, cast

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"


def to_json(value: object) -> Json:
    """Turn values, nested dataclasses and collections into what `json.dumps` takes; sets come out sorted by their text."""
    if value is None or (isinstance(value, (bool, int, float, str)) and not isinstance(value, Enum)):
        return value
    if isinstance(value, Enum):
        return to_json(value.value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_json(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(k): to_json(v) for k, v in value.items()}
    if isinstance(value, Set):
        return [to_json(v) for v in sorted(value, key=str)]
    if isinstance(value, Sequence):
        return [to_json(v) for v in value]
    return str(value)


class JsonReport:
    """A result that knows its JSON; `to_json()` adds the derived numbers named in `derived`."""

    __slots__ = ()
    derived: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Json]:
        data = cast(dict[str, Json], to_json(self))
        return data | {name: to_json(getattr(self, name)) for name in self.derived}


@dataclass(frozen=True, slots=True)
class PhaseTime:
    """One phase of a run on the operator's clock. `begin_s` counts from the start of the run."""

    name: str
    seconds: float
    detail: str = ""
    begin_s: float = 0.0
    ok: bool = True


@dataclass(frozen=True, slots=True)
class PartTime:
    """What one device or host took inside a phase. `kind` is `device` or `host`; `begin_ms` counts from the start of the run.

    `time_scale` times `ms` is the time of a real device of its kind.
    """

    kind: str
    name: str
    phase: str
    ms: float
    detail: str = ""
    begin_ms: float = 0.0
    time_scale: float = 1.0


@dataclass(frozen=True, slots=True)
class DeviceDiff:
    """What changes on one device, settings as `ingress->egress` labels. `foreign` belong to others and stay.

    Times are those of this lab; times `time_scale` they are those of a real device of its kind (1: it is one).
    """

    device: str
    kept: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    made: tuple[str, ...] = ()
    foreign: tuple[str, ...] = ()
    dark_ms_expected: float | None = None
    time_scale: float = 1.0
    dark_port_s_expected: float | None = None
    """Of a device that moves one fibre at a time: seconds that lit ports are dark, summed over ports; None for others."""
    ahead_s_expected: float | None = None
    """How long such a device works before anything goes dark, unseen by hosts."""


class _Counts(JsonReport):
    """Totals over `diff`, for every report that has one."""

    __slots__ = ()
    diff: tuple[DeviceDiff, ...]

    @property
    def kept(self) -> int:
        return sum(len(d.kept) for d in self.diff)

    @property
    def removed(self) -> int:
        return sum(len(d.removed) for d in self.diff)

    @property
    def made(self) -> int:
        return sum(len(d.made) for d in self.diff)

    @property
    def foreign(self) -> int:
        return sum(len(d.foreign) for d in self.diff)


@dataclass(frozen=True, slots=True)
class JobStatus(JsonReport):
    """One job. `state`: none, starting, running, paused, stopped, finished, failed. `exit_codes`: by rank, once it has ended.

    iteration_ms: median of the latest iterations. busbw_mbps: nccl-tests' bus bandwidth, megabytes per second (1e6), next to what
    the plan's links should give. The expected ones are the plan's. time_scale: of times here to those of the designed workload.
    busy: fraction of the time that the processors of rank 0's host were busy. resumed_from: the iteration whose checkpoint it
    resumed from; 0: it started from scratch. damaged: that of the newest checkpoint passed over for it, as it was damaged. hosts:
    how many its ranks are on. late: which of them are slow or silent, in words. attached: figures of what it has beside its
    ranks, by kind; `lacks`: what is missing there. sent: as the measurement `collective`. saves: how long
    training stands for a checkpoint (`each_ms`), one in `every` iterations. bad_records: lines of its iterations that are no
    records, and are left out; bad_record: what is wrong with the latest, or with the file.
    """

    name: str
    state: str
    workload: str = ""
    backend: str = ""
    ranks: int = 0
    iterations: int = 0
    iteration_ms: float | None = None
    busbw_mbps: float | None = None
    busbw_expected_mbps: float | None = None
    exit_codes: Mapping[int, int] = dataclasses.field(default_factory=dict)
    detail: str = ""
    run: str = ""
    started: float | None = None
    """Wall time (s since the epoch)."""
    iteration_expected_ms: float | None = None
    time_scale: float = 1.0
    busy: float | None = None
    resumed_from: int = 0
    hosts: int = 0
    late: tuple[str, ...] = ()
    attached: Mapping[str, tuple[Mapping[str, int | float | str], ...]] = dataclasses.field(default_factory=dict)
    sent: Mapping[str, float] | None = None
    saves: Mapping[str, float] | None = None
    bad_records: int = 0
    bad_record: str = ""
    damaged: int = 0

    @property
    def limit(self) -> str:
        """As `held_up`."""
        known = self.iteration_ms is not None and self.iteration_expected_ms
        return held_up(self.iteration_ms / self.iteration_expected_ms - 1, self.busy) if known else ""  # type: ignore[operator]


ALIVE = ("starting", "running", "paused")
"""States of a job whose ranks are there."""

SLOW, BUSY = 0.10, 0.75
"""An iteration this much longer than predicted, with processors this busy on average, was not limited by links alone."""


def held_up(off: float | None, busy: float | None) -> str:
    """What other than the links made iterations longer than predicted, by the share `off`; empty: nothing measured."""
    if off is None or off <= SLOW or busy is None or busy < BUSY:
        return ""
    return f"the hosts' processors were busy {busy:.0%} of the time: they, and not the links, may have set the pace"


@dataclass(frozen=True, slots=True)
class JobLogs(JsonReport):
    """The last lines each rank wrote, by `rank 0 (gpu01)` and the like."""

    name: str
    lines: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CircuitRow:
    """One light path: `gpu01:p1->gpu02:p1`, the cross-connects it uses, expected loss (dB); state: keep, break, make or foreign."""

    circuit: str
    path: tuple[str, ...]
    loss_db: float
    state: str


@dataclass(frozen=True, slots=True)
class RelabelReport(JsonReport):
    """Which hosts take the places of which (`labels`: host of the plan file -> host on the lab), and what that saves.

    moves: settings made and removed; moves_as_written: without relabelling, None if that is impossible.
    """

    labels: Mapping[str, str]
    moves: int
    moves_as_written: int | None

    derived = ("moves_saved",)

    @property
    def moves_saved(self) -> int | None:
        return None if self.moves_as_written is None else self.moves_as_written - self.moves

    def __str__(self) -> str:
        """In words: `relabel: 30 of 36 moves saved: gpu02 is gpu07, gpu07 is gpu02`."""
        if not self.labels:
            return f"relabel: the plan as written moves the least ({self.moves})"
        many = f"{self.moves_saved} of {self.moves_as_written} moves saved"
        saved = "possible only so" if self.moves_as_written is None else many
        return f"relabel: {saved}: " + ", ".join(f"{old} is {new}" for old, new in self.labels.items())


@dataclass(frozen=True, slots=True)
class PlanReport(_Counts):
    """The diff a plan would make. `fingerprint` changes when the plan or anything observed on a device changes."""

    plan: str
    lab: str
    diff: tuple[DeviceDiff, ...] = ()
    circuits: tuple[CircuitRow, ...] = ()
    links: int = 0
    hosts: int = 0
    routes: int = 0
    dark_ms_expected: float | None = None
    jobs_affected: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    fingerprint: str = ""
    dark_time_scale: float = 1.0
    relabel: RelabelReport | None = None
    segments: tuple[str, ...] = ()
    """Packet switches that carry links of the plan, each as it prints."""
    job_change: str = ""
    """The consequence for the running job, in words; empty if none runs."""

    derived = ("kept", "removed", "made", "foreign", "nothing_to_do")

    @property
    def nothing_to_do(self) -> bool:
        return not self.removed and not self.made


@dataclass(frozen=True, slots=True)
class CircuitPower:
    """Power (dBm) where a circuit leaves its last device, deviation from the target (dB), and attenuation set on its path (dB)."""

    circuit: str
    out_dbm: float | None
    off_db: float | None
    attenuation_db: float


@dataclass(frozen=True, slots=True)
class EqualiseReport:
    """What equalisation measured at its end. rounds: adjustments made; writes: commands that could change a device."""

    target_dbm: float
    tolerance_db: float
    rounds: int = 0
    writes: int = 0
    circuits: tuple[CircuitPower, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def within(self) -> int:
        """How many circuits are within tolerance of the target."""
        return sum(c.off_db is not None and abs(c.off_db) <= self.tolerance_db for c in self.circuits)


@dataclass(frozen=True, slots=True)
class PrewireReport(_Counts):
    """What `prewire` did. diff: what slow devices made and removed in the dark; waiting: what they can do only with the change.

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
class Awaiting:
    """A change that waits to be confirmed. back: the plan to restore otherwise, empty for none; due: wall s, for people; left_s:
    below zero once it is overdue. watched: a process of this machine rolls it back then; if none does, the next command will.
    """

    run: str
    plan: str
    back: str
    due: float
    left_s: float
    watched: bool = True

    @property
    def to(self) -> str:
        """The state to restore, in words."""
        return self.back or "no plan"


@dataclass(frozen=True, slots=True)
class ConfirmReport(JsonReport):
    """What `confirm` made permanent: run `of`. hosts: those that keep its routes; already: it had been confirmed before."""

    run: str
    of: str
    plan: str
    lab: str
    hosts: int = 0
    already: bool = False
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class WatchReport(JsonReport):
    """How waiting for run `of` to be confirmed ended: confirmed, reverted, hands-needed, superseded. tries: of the rollback."""

    of: str
    state: str
    tries: int = 0


@dataclass(frozen=True, slots=True)
class TurnReport(JsonReport):
    """How a running job came through a change. mode: `hold`, it paused in the dark; `drain`, its traffic took other paths
    meanwhile; `ride`, neither. after: the last iteration on the earlier rings, or before the pause.

    stood_ms: time lost beyond the usual iteration time, from the first command to the end of the first iteration after the
    change; boundary_ms is what dark_ms and commit_ms leave of it (change/standstill.py). before_ms, after_ms: a usual
    iteration (telemetry/names.py). worst_rank_ms: the longest time that any rank moved no byte although some were due.
    prepare_ms: until all ranks were prepared.
    note: why the job was not changed over, empty if it was.
    """

    move: int
    mode: str
    after: int | None = None
    stood_ms: float | None = None
    dark_ms: float | None = None
    commit_ms: float | None = None
    boundary_ms: float | None = None
    before_ms: float | None = None
    after_ms: float | None = None
    worst_rank_ms: float | None = None
    prepare_ms: float | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class UpReport(_Counts):
    """What `up` did. `dark_ms`: longest dark time by the devices' own reports; `writes`: commands that could change a device.

    Times are those of this lab; `dark_time_scale` times `dark_ms` is the time of a real device of its kind (1: it is one).
    pairs_unasked: of a large lab. undo: the command that rolls this change back.
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
    """`up`, or the verb that restored a state (`rollback`, `restore`), and the run that was rolled back or restored."""
    segments: tuple[str, ...] = ()
    """As in `PlanReport`."""
    turn: TurnReport | None = None
    """How the job that went on came through it; None if none did, or if it was not involved."""
    pause_ms: float | None = None
    """The longest time between the ends of two iterations of the job, from the first command until it had continued."""
    job_change: str = ""
    """Of a dry run: what becomes of the job that runs, in words; empty if none does."""

    derived = ("kept", "removed", "made", "foreign", "total_s")

    @property
    def total_s(self) -> float:
        return max((p.begin_s + p.seconds for p in self.phases), default=0.0)


@dataclass(frozen=True, slots=True)
class DownReport(_Counts):
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


def path_text(path: Path | str) -> str:
    """A path as the operator would type it: relative to the working directory if below it, `~` for the home directory."""
    full = Path(path).expanduser().absolute()
    if full.is_relative_to(Path.cwd()):
        return str(full.relative_to(Path.cwd()))
    return f"~/{full.relative_to(Path.home())}" if full.is_relative_to(Path.home()) else str(full)
