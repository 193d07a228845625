"""What a plan would change, as frozen values: device by device, circuit by circuit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from orchestrator.results import JsonReport


@dataclass(frozen=True, slots=True)
class DeviceDiff:
    """What changes on one device, settings as `ingress->egress` labels. `foreign` belong to others
    and stay.

    Times are those of this lab; times `time_scale` they are those of a real device of its kind (1:
    it is one).
    """

    device: str
    kept: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    made: tuple[str, ...] = ()
    foreign: tuple[str, ...] = ()
    dark_ms_expected: float | None = None
    time_scale: float = 1.0
    dark_port_s_expected: float | None = None
    """Of a device that moves one fibre at a time: seconds that lit ports are dark, summed over
    ports; None for others.
    """
    ahead_s_expected: float | None = None
    """How long such a device works before anything goes dark, unseen by hosts."""


class DiffCounts(JsonReport):
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
class CircuitRow:
    """One light path: `gpu01:p1->gpu02:p1`, the cross-connects it uses, expected loss (dB); state:
    keep, break, make or foreign.
    """

    circuit: str
    path: tuple[str, ...]
    loss_db: float
    state: str


@dataclass(frozen=True, slots=True)
class RelabelReport(JsonReport):
    """Which hosts take the places of which (`labels`: host of the plan file -> host on the lab),
    and what that saves.

    moves: settings made and removed; moves_as_written: without relabelling, None if that is
    impossible.
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
        return f"relabel: {saved}: " + ", ".join(
            f"{old} is {new}" for old, new in self.labels.items()
        )


@dataclass(frozen=True, slots=True)
class PlanReport(DiffCounts):
    """The diff a plan would make. `fingerprint` changes when the plan or anything observed on a
    device changes.
    """

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
