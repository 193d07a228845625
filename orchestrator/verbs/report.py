"""The lab as devices and hosts report it now: what `status` and `devices` return."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from orchestrator.change.unfinished import Unfinished
from orchestrator.jobs.report import JobStatus
from orchestrator.results import JsonReport
from orchestrator.store.confirmations import Awaiting


@dataclass(frozen=True, slots=True)
class DeviceStatus:
    """One device as it answers now. `missing`: what the current plan wants and it does not hold;
    `error`: why it did not answer.
    """

    name: str
    driver: str
    address: str
    ok: bool
    identity: str = ""
    ours: int = 0
    foreign: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    error: str = ""
    code: str = ""
    """Code of the error: E-MISSING if the device was not asked because its password is missing."""
    time_scale: float = 1.0
    """How much faster than a real device it runs; 1: real hardware, or as slow."""
    prewired: tuple[str, ...] = ()
    """Owned settings that carry no light: prewired for another plan, or kept for a rollback."""
    holders: Mapping[str, str] = field(default_factory=dict)
    """What holds ports without carrying light (reserved, in fault), as the device reports; no
    cross-connects.
    """


@dataclass(frozen=True, slots=True)
class HostStatus:
    """One host as it answers now. `generation`: its active set of routes; `up`, `planned`: ports
    with carrier, and wanted.

    up: None if the ports were not read. committer: whether the agent answers; without it routes and
    ports are not known. site: empty where the inventory does not say.
    """

    name: str
    address: str
    ok: bool
    generation: int | None = None
    up: int | None = None
    planned: int = 0
    committer: bool = False
    error: str = ""
    site: str = ""


@dataclass(frozen=True, slots=True)
class StatusReport(JsonReport):
    """The lab as it is, read now. `plan` is what this machine last verified there, empty if nothing
    is up.
    """

    lab: str
    inventory: str
    plan: str = ""
    run: str = ""
    since: float | None = None
    """Wall time (s since the epoch) the plan came up."""
    generation: int | None = None
    links: int = 0
    devices: tuple[DeviceStatus, ...] = ()
    hosts: tuple[HostStatus, ...] = ()
    job: JobStatus | None = None
    locked_by: str = ""
    booked: tuple[str, ...] = ()
    tagged: tuple[str, ...] = ()
    drift: tuple[str, ...] = ()
    dark: tuple[str, ...] = ()
    """Planned links without light: at which ends, and where the meters show it lost. They are in
    `drift` too.
    """
    slots: str = ""
    """What changes this plan's slots, or that they do not change and what to type; empty without a
    schedule, or if it died.
    """
    services: Mapping[str, str] = field(default_factory=dict)
    """What else runs in the background for this plan or lab, and what each says."""
    guard: str = ""
    """The guard that watches this plan, or what one left behind."""
    confirm: Awaiting | None = None
    """The owner's change that is waiting for confirmation."""
    unfinished: tuple[Unfinished, ...] = ()
    """Runs of the owner that stopped before their end and were neither resumed nor rolled back."""
    segments: tuple[str, ...] = ()
    """As in `PlanReport`, for the plan that is up."""
    recoveries: tuple[str, ...] = ()
    """Recoveries of the job in the last day, the newest first: when, what, how it ended, and
    why.
    """
    loose: tuple[str, ...] = ()
    """Files and directories of the inventory that every user of this machine may write."""
    elsewhere: tuple[str, ...] = ()
    """What other jobs' attachments have of the lab, in words."""

    derived = ("ok",)

    @property
    def ok(self) -> bool:
        return (
            not self.drift
            and not self.unfinished
            and all(d.ok for d in self.devices)
            and all(h.ok for h in self.hosts)
        )


@dataclass(frozen=True, slots=True)
class DeviceView:
    """One device as it answers now: its identity, ports, abilities, and the light it measures.

    settle_s: of this lab; times `time_scale` it is that of a real device of its kind. lit: ports
    with light, of `metered` ones.
    """

    name: str
    driver: str
    address: str
    ok: bool
    identity: str = ""
    ingress: tuple[str, ...] = ()
    egress: tuple[str, ...] = ()
    settings: int = 0
    abilities: tuple[str, ...] = ()
    settle_s: float = 0.0
    time_scale: float = 1.0
    metered: int = 0
    lit: int = 0
    min_dbm: float | None = None
    max_dbm: float | None = None
    error: str = ""
    code: str = ""


@dataclass(frozen=True, slots=True)
class DevicesReport(JsonReport):
    """All devices of the lab."""

    lab: str
    devices: tuple[DeviceView, ...] = ()

    derived = ("ok",)

    @property
    def ok(self) -> bool:
        return all(d.ok for d in self.devices)
