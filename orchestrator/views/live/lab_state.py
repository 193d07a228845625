"""The state of a lab in the run store: runs, circuits that are held, devices that are being
changed, the job.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from optics import DeviceName, Setting
from orchestrator.inventory.lab import Lab
from orchestrator.store.audit import Who
from orchestrator.store.keys import key_of, tenancy_key
from orchestrator.store.lock_queue import holder_text
from orchestrator.store.locks import Locks
from orchestrator.store.records import Belonging, CurrentPlan, JobRecord, RunRecord, StepRecord
from orchestrator.store.store import Store

RUNS = 12
RESERVED = 4
"""Reservations that are shown, the first ones."""


@dataclass(frozen=True, slots=True)
class Moving:
    """A device that a run changes now. remove, add: settings as they print (`ocs1:4->17`); began in
    wall seconds.
    """

    device: DeviceName
    remove: frozenset[str]
    add: frozenset[str]
    began: float
    run: str


@dataclass(frozen=True, slots=True)
class LabState:
    """A snapshot of the store. runs: newest first; doing: present step of the newest; failed:
    devices whose last step failed; reserved: what is, or is booked, by whom.
    """

    runs: tuple[RunRecord, ...] = ()
    held: Mapping[Setting, Belonging] | None = None
    plans: Mapping[str, CurrentPlan] | None = None
    moving: tuple[Moving, ...] = ()
    doing: str = ""
    failed: Mapping[DeviceName, str] | None = None
    job: JobRecord | None = None
    reserved: tuple[str, ...] = ()

    @property
    def running_job(self) -> JobRecord | None:
        """The job of the plan that is up, unless it has ended."""
        return self.job if self.job is not None and self.job.ended is None and self.plans else None

    @property
    def job_ended(self) -> str:
        """That the job of the plan that is up has ended, in words; empty while it goes on, and
        where none is up.
        """
        return (
            f"job {self.job.name} {self.job.state}"
            if self.job is not None and self.job.ended is not None and self.plans
            else ""
        )

    def is_of_another_owner(self, run: str) -> bool:
        """Whether a run belongs to another owner while the viewer's own job is running."""
        record = next((r for r in self.runs if r.id == run), None)
        if self.job is None or self.job.ended is not None or record is None:
            return False
        return tenancy_key(record.lab, record.owner) != self.job.lab


def read_store(store: Store, lab: Lab, owner: str) -> LabState:
    """Read the store. The statements are not one transaction; the next read after a change makes
    the result consistent.
    """
    key = key_of(lab)
    runs = tuple(store.history(key, limit=RUNS))
    moving: list[Moving] = []
    doing = ""
    failed: dict[DeviceName, str] = {}
    for n, run in enumerate(runs):
        if run.status != "running" and n:
            continue
        steps = store.steps(run.id)
        if run.status == "running":
            now = [s for s in steps if s.state == "doing"]
            moving += [_moving(s) for s in now if s.kind == "device"]
            doing = doing or ", ".join(
                dict.fromkeys(s.what if s.kind != "device" else f"switch {s.subject}" for s in now)
            )
        failed |= {s.subject: s.error for s in steps if s.kind == "device" and s.state == "failed"}
    locks = Locks(store, key, Who(owner, owner)).seen()
    kept = sorted((one for one in locks if one.kind == "reservation"), key=lambda one: one.since)
    return LabState(
        runs,
        store.owners(key),
        store.currents(key),
        tuple(moving),
        doing,
        failed,
        store.latest_job(tenancy_key(key, owner)),
        tuple(holder_text(one, one.scope) for one in kept[:RESERVED]),
    )


def _moving(step: StepRecord) -> Moving:
    reply = step.intent if isinstance(step.intent, dict) else {}
    remove, add = (
        frozenset(f"{step.subject}:{s}" for s in listed)
        if isinstance(listed := reply.get(name), list)
        else frozenset()
        for name in ("remove", "add")
    )
    return Moving(step.subject, remove, add, step.began or step.planned, step.run)
