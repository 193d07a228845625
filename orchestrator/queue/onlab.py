"""What the queue does on a lab: starts as `up --as` does, stops as `job stop` and `down` do, each
job under an owner of its own.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass, field, replace
from typing import Any

from optics import (
    HandsNeeded,
    HostName,
    HostPort,
    Infeasible,
    Interrupted,
    Port,
    TestbedError,
    Unreachable,
)
from optics.plain import counted, natural
from orchestrator.hosts import HostEvent
from orchestrator.inventory.lab import Lab
from orchestrator.jobs.jobs import Jobs
from orchestrator.jobs.record import hosts_of_job
from orchestrator.jobs.report import ALIVE, JobStatus
from orchestrator.plan.design.design import design
from orchestrator.plan.design.document import checked, document
from orchestrator.plan.design.match import BASE, MATCH, match
from orchestrator.plan.design.placement import occupied_hosts
from orchestrator.plan.design.workload import read_text
from orchestrator.plan.reader import read_plan
from orchestrator.session import Command, PlanText, Session, open_session
from orchestrator.store.keys import key_of
from orchestrator.store.locks import locks_of
from orchestrator.store.queue import HOLDING, QueuedJob
from orchestrator.store.records import JobRecord
from orchestrator.store.scope import Scope
from orchestrator.store.tagouts import Tagouts, place_of
from orchestrator.telemetry.progress import Silent
from orchestrator.verbs import change as verbs
from orchestrator.verbs.design_files import read_prices
from orchestrator.verbs.invoke import copy_journals
from planner.model.needs import Needs
from planner.topology.methods import Wanted
from workloads.programs.options import OPTIONS

LOOK_S = 20.0
"""Interval (s) at which a running job is asked for its state; its end is reported by the hosts'
agents at once.
"""
SILENT_S = 60.0
"""A host that did not answer at a start is left out for this long (s)."""
RECONNECT_S = 5.0
PATIENCE_S = 30.0
"""How long (s) a start or a stop waits for another run that holds a part of what it needs, if the
settings allow no longer.
"""


@dataclass
class OnLab:
    """The acts on a real or emulated lab. command: of the user whose jobs these are. silent: hosts,
    until when (monotonic s).
    """

    lab: Lab
    command: Command
    silent: dict[HostName, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.hosts: tuple[HostName, ...] = tuple(sorted(self.lab.hosts, key=natural))
        self.store, self.key = self.command.store, key_of(self.lab)
        self._able: dict[int, tuple[HostName, ...]] = {}

    def able(self, job: QueuedJob) -> tuple[HostName, ...]:
        """As `Acts.able`: of a plan its hosts; of a workload the whole ones with ports that hold as
        many ranks.
        """
        if job.number not in self._able:
            with suppress(TestbedError):  # the inventory has changed since: there is none
                self._able[job.number] = able(self.lab, job.text, job.method)
        return self._able.get(job.number, ())

    def out(self, jobs: Collection[QueuedJob]) -> Mapping[HostName, str]:
        """As `Acts.out`: hosts of other plans, circuits and locks, tagged out, or silent."""
        ours = {job.tenancy for job in jobs if job.state in HOLDING}
        found: dict[HostName, str] = {}

        def add(hosts: Iterable[HostName], why: str) -> None:
            for host in hosts:
                found.setdefault(host, why)

        for owner, current in self.store.currents(self.key).items():
            if owner not in ours:
                hosts = {port.host for link in current.up.links for port in (link.a, link.b)}
                add(hosts, f"held by {owner} ({current.plan_name})")
        for setting, whose in self.store.owners(self.key).items():
            if whose.owner not in ours:
                add(
                    self._at({setting.ingress, setting.egress}),
                    f"a circuit of {whose.owner} is there",
                )
        locks = locks_of(self.lab, self.command.settings, self.store)
        for lock in locks.listed():
            if lock.owner not in ours and lock.state != "booked":
                verb = "reserved" if lock.kind == "reservation" else "locked"
                add(self._of(lock.scope), f"{verb} by {lock.owner}: {lock.reason}")
        for tag in Tagouts(self.store, self.key, locks.who).listed():
            with suppress(TestbedError):  # of a subject that the inventory no longer has
                place = place_of(tag.subject, self.lab)
                add(
                    self._of(Scope(ports=place.ports, devices=place.devices)),
                    f"{tag.subject} is tagged out by {tag.user}",
                )
                add(
                    (port.host for port in place.host_ports),
                    f"{tag.subject} is tagged out by {tag.user}",
                )
        add(
            (host for host, until in self.silent.items() if until > time.monotonic()),
            "does not answer",
        )
        return found

    def booked(self) -> Mapping[HostName, list[tuple[float, float]]]:
        """As `Acts.booked`: by anybody, as a job has an owner of its own."""
        found: dict[HostName, list[tuple[float, float]]] = {}
        now = time.time()
        locks = locks_of(self.lab, self.command.settings, self.store).listed()
        for lock in sorted(locks, key=lambda lock: lock.since):
            if lock.state == "booked" and lock.expires is not None:
                for host in self._of(lock.scope):
                    found.setdefault(host, []).append((lock.since - now, lock.expires - now))
        return found

    def _of(self, scope: Scope) -> set[HostName]:
        if scope.everything:
            return set(self.hosts)
        fibres = self.lab.fibres.items()
        existing = {p.host for p, f in fibres if {f.enters.device, f.leaves.device} & scope.devices}
        return (
            {host for host in scope.hosts if host in self.lab.hosts}
            | existing
            | self._at(scope.ports)
        )

    def _at(self, ports: Collection[Port]) -> set[HostName]:
        return {
            p.host
            for p, fibre in self.lab.fibres.items()
            if fibre.enters in ports or fibre.leaves in ports
        }

    def plan(self, job: QueuedJob, hosts: tuple[HostName, ...]) -> str:
        """As `Acts.plan`: designed beside what runs; the job of a workload does the iterations that
        are left.
        """
        if not job.method:
            return job.text
        left = max(job.iterations - job.done, 1) if job.iterations else 0
        return designed(
            self.lab, job.text, job.method, hosts, left, f"{job.name[:50]}-{job.number}"
        )

    def is_up(self, job: QueuedJob) -> bool:
        """As `Acts.is_up`."""
        return self.store.current(job.key) is not None

    def _as(self, job: QueuedJob) -> Command:
        settings = self.command.settings
        return Command(
            Silent(),
            self.store,
            replace(settings, owner=job.tenancy, wait_s=max(settings.wait_s, PATIENCE_S)),
        )

    async def start(self, job: QueuedJob) -> str:
        """As `Acts.start`, by `up`. Raises: as that."""
        name = f"job {job.number} of the queue"
        # by a start that died: what that launched may have ended since, and `up` might launch it
        # again
        if self.is_up(job):
            with suppress(TestbedError):  # as where none was launched; `up` says what is wrong
                if (status := await verbs.job_status(self._as(job))).state == "finished":
                    return _ended(status)
        try:
            report = await verbs.up(self._as(job), PlanText(job.plan_text, name))
        except Unreachable:
            await self._find_silent(job.hosts)
            raise
        copy_journals(self.command.settings)
        speed = (
            f", iteration {report.job.iteration_ms:.0f} ms"
            if report.job and report.job.iteration_ms is not None
            else ""
        )
        return f"{report.plan}{speed}"

    async def left(self, job: QueuedJob) -> Collection[HostName]:
        """As `Acts.left`: all while it has light, then those that do not answer and may have its
        routes.
        """
        if self.store.owned(job.key) or self.is_up(job):
            return job.hosts
        return await self._find_silent(job.hosts)

    def _opened(self) -> AbstractAsyncContextManager[Session]:
        settings = self.command.settings
        return open_session(
            self.lab, self.command.inventory, settings.cache_dir / "ansible", settings.bounds
        )

    async def _find_silent(self, hosts: Collection[HostName]) -> list[HostName]:
        """The hosts that do not answer; they are left out for a while."""
        async with self._opened() as session:
            answers = await session.hosts.channels.connect(hosts)
        until = time.monotonic() + SILENT_S
        silent = [host for host, answer in answers.items() if isinstance(answer, TestbedError)]
        self.silent |= dict.fromkeys(silent, until)
        return silent

    async def ended(self, job: QueuedJob) -> tuple[bool, str]:
        """As `Acts.ended`: over channels that stay open, by the agents' events and a look from time
        to time.
        """
        while True:
            with suppress(TestbedError):
                async with self._opened() as session:
                    jobs = Jobs(session, self.store, job.key, self.command.settings.runs_dir)
                    if (record := self.store.latest_job(job.key)) is not None:
                        await session.hosts.channels.connect(hosts_of_job(record, self.lab))
                    events = session.hosts.channels.subscribe()
                    while (record := self.store.latest_job(job.key)) is not None:
                        status = await jobs.status(record)
                        if status.state not in ALIVE:
                            return status.state != "failed", _ended(status)
                        await _event(events)
            await asyncio.sleep(RECONNECT_S)  # a host does not answer, or the plan has no job

    async def stop(self, job: QueuedJob) -> tuple[int, str]:
        """As `Acts.stop`, by `job stop` and `down`. Raises: as those; HandsNeeded - something could
        not be taken down.
        """
        command, done, finished = self._as(job), 0, ""
        current = self.store.current(job.key)
        try:
            status = await verbs.job_stop(command)
            if (
                current is not None
                and status.started is not None
                and status.started >= current.since
            ):
                done = status.iterations  # of this time: an earlier one's job had another plan up
            if status.state == "finished" or _complete(self.store.latest_job(job.key), status):
                finished = _ended(replace(status, state="finished", detail=""))
        except Interrupted:
            raise
        # none was launched; or a host does not answer: `down` does what it can, and says what it
        # cannot
        except TestbedError:
            pass
        report = await verbs.down(command)
        copy_journals(self.command.settings)
        if report.left:
            raise HandsNeeded(
                f"{job.tenancy} is not all taken down",
                report.left,
                hint=f"testbed down --as {job.tenancy}",
            )
        return done, finished


def _ended(status: JobStatus) -> str:
    """How a job ended, in words."""
    text = f"{status.state} after {counted(status.iterations, 'iteration')}"
    return text + (f": {status.detail}" if status.detail else "")


def _complete(record: JobRecord | None, status: JobStatus) -> bool:
    """Whether a job has done all its iterations, though its ranks were asked to stop: they were in
    the last one.
    """
    if record is None or record.spec.wanted.program or status.state != "stopped":
        return False
    job = record.spec.wanted
    usual = next(
        (option.default for option in OPTIONS.get(job.workload, ()) if option.name == "iterations"),
        None,
    )
    most: Any = job.args.get("iterations", usual or 0)
    return bool(0 < most <= status.resumed_from + status.iterations)


async def _event(events: asyncio.Queue[HostEvent]) -> None:
    """Wait until an agent reports that a rank has ended, `LOOK_S` at most."""
    with suppress(TimeoutError):
        async with asyncio.timeout(LOOK_S):
            while (await events.get()).kind != "job":
                pass


def able(lab: Lab, text: str, method: str) -> tuple[HostName, ...]:
    """The hosts of a lab that could hold a workload, or without method a plan. Raises: BadFile,
    Infeasible.
    """
    if not method:
        wanted = occupied_hosts(read_plan(text, "plan", lab))
        return tuple(sorted(wanted, key=natural))
    each = read_text(text, "workload").workload.ranks_per_host
    cabled = {port.host for port in (*lab.fibres, *lab.segment_at) if isinstance(port, HostPort)}
    whole = {host for host in cabled if lab.hosts[host].partition is None}  # designs are for these
    return tuple(sorted((h for h in whole if lab.hosts[h].max_ranks >= each), key=natural))


def designed(
    lab: Lab, text: str, method: str, hosts: tuple[HostName, ...], iterations: int, name: str
) -> str:
    """A plan for a workload on these hosts; iterations of its job, 0 until stopped. Raises:
    Infeasible - also where a clause of its needs is not met; BadFile, BadPlugin.
    """
    if method == MATCH:
        read = read_text(text, name)
        if read.workload.needs.train is not None:
            raise Infeasible(
                "needs.train: a training that is stopped goes on from checkpoints only if its plan stays the same",
                hint="testbed design match --workload FILE --out plan.json, then testbed job queue add plan.json",
            )
        best = match(
            read,
            lab,
            hosts=hosts,
            prices=read_prices(),
            iterations=iterations,
            name=name,
            schedules=False,
            shared=False,
        ).best
        if best.unmet:
            why = "; ".join(f"needs.{clause}: {text}" for clause, text in best.unmet.items())
            raise Infeasible(why, hint="change the needs of the workload")
        return best.text
    found = design(read_text(text, name), lab, Wanted(method, hosts=hosts, iterations=iterations))
    plan = document(found, name)
    plan["job"]["name"] = name
    return checked(found, plan, name, lab)


def holdable(lab: Lab, text: str, method: str, count: int) -> None:
    """Check that some hosts of the lab could hold a workload. Raises: Infeasible - none can, and
    why not the first ones.
    """
    hosts = able(lab, text, method)
    if len(hosts) < count:
        raise Infeasible(
            f"no hosts of {lab.name} can hold it: it needs {counted(count, 'host')}, {len(hosts)} of {len(lab.hosts)} are able",
            hint=f"--hosts {len(hosts)}" if len(hosts) > 1 else "testbed status lists the hosts",
        )
    if method == MATCH and read_text(text, "workload").workload.needs == Needs():
        with suppress(Infeasible):  # one of its candidates, a hundred times as fast
            holdable(lab, text, BASE, count)
            return
    refused: Infeasible | None = None
    around = hosts + hosts[: count - 1]
    for begin in range(len(hosts) if count < len(hosts) else 1):
        try:
            designed(lab, text, method, around[begin : begin + count], 0, "queue")
        except Infeasible as error:
            refused = refused or error
        else:
            return
    assert refused is not None
    raise Infeasible(
        f"no {count} hosts of {lab.name} can hold it: {refused}", hint=refused.hint
    ) from refused
