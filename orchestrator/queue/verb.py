"""The job queue: a job is added after it is known that the lab could hold it; what waits, and why;
the process that serves.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

from optics import BadFile, Infeasible, Locked
from optics.plain import counted
from orchestrator.background.options import ServiceOptions
from orchestrator.background.work import Notify, ServiceNote, emit, ready, serving
from orchestrator.hosts.launch import check_launch
from orchestrator.inventory.lab import Lab
from orchestrator.inventory.yaml_reader import read_yaml
from orchestrator.plan.design.match import MATCH
from orchestrator.plan.design.placement import occupied_hosts
from orchestrator.plan.design.workload import on_hosts
from orchestrator.plan.reader import read_plan
from orchestrator.queue.acts import decided
from orchestrator.queue.onlab import OnLab, holdable
from orchestrator.queue.process import QUEUE, QueueReport, QueueState
from orchestrator.queue.serving import Serving
from orchestrator.results import Json, JsonReport
from orchestrator.session import Command, load_lab
from orchestrator.store.keys import key_of
from orchestrator.store.locks import who
from orchestrator.store.queue import (
    QueuedJob,
    add,
    given_up,
    queued,
    serve,
    served,
    serves,
    unserve,
)
from orchestrator.verbs.invoke import start_lab

TRIED = 16
"""Numbers of hosts that are tried to find one that can hold a workload; each takes some hundredths
of a second.
"""


@dataclass(frozen=True, slots=True)
class QueueRow:
    """One job, for people and `--json`. why: what it waits for, or what became of it. left_s: how
    much longer it may run (s).

    starts: the hosts on which it would start now.
    """

    number: int
    name: str
    owner: str
    tenancy: str
    state: str
    hosts: tuple[str, ...]
    count: int
    for_s: float
    left_s: float
    preemptible: bool
    added: float
    since: float
    why: str = ""
    starts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class QueueView(JsonReport):
    """The queue of a lab. process: that serves the jobs of the user who asks, None if none runs."""

    lab: str
    rows: tuple[QueueRow, ...]
    process: QueueState | None = None
    mine: bool = False


def prepared(
    lab: Lab, text: str, name: str, hosts: int | None, method: str
) -> tuple[str, str, str, int]:
    """A file for the queue, checked: name of the job, text, method (none for a plan), number of
    hosts.

    Raises: BadFile - everything wrong with it. Infeasible - no hosts of the lab can hold it, or a
    plan is for another number.
    """
    value = read_yaml(text, name).value
    if not (
        isinstance(value, Mapping) and str(value.get("schema", "")).startswith("testbed.plan/")
    ):
        own, _ = on_hosts(text, name, None)
        try:
            return _workload(lab, text, name, hosts, method)
        except Infeasible as error:
            raise Infeasible(
                str(error), hint=_nearest(lab, text, name, hosts or own.workload.hosts, method)
            ) from error
    plan = read_plan(text, name, lab)
    if plan.schedule is not None:
        raise Infeasible(
            f"{name}: slots of a schedule are not changed by the queue",
            hint=f"testbed up --topology {name}",
        )
    if plan.job is None:
        raise BadFile(
            [f"{name}: the plan has no job, so there is nothing to run"], hint="add one to the plan"
        )
    check_launch(plan.job, lab)
    needs = occupied_hosts(plan)
    if hosts not in (None, len(needs)):
        raise Infeasible(
            f"{name}: the plan is for {counted(len(needs), 'host')}, not {hosts}",
            hint="leave --hosts out",
        )
    return plan.name, text, "", len(needs)


def _workload(
    lab: Lab, text: str, name: str, hosts: int | None, method: str
) -> tuple[str, str, str, int]:
    read, text = on_hosts(text, name, hosts)
    holdable(lab, text, method, read.workload.hosts)
    return read.workload.name, text, method, read.workload.hosts


def _nearest(lab: Lab, text: str, name: str, hosts: int, method: str) -> str:
    """What to do where this number of hosts cannot hold a workload: the nearest that can."""
    for count in sorted(range(2, len(lab.hosts) + 1), key=lambda count: abs(count - hosts))[:TRIED]:
        try:
            _workload(lab, text, name, count, method)
        except Infeasible:
            continue
        return f"--hosts {count}"
    return f"queue a plan instead; what is needed is said by: testbed design {method} --workload {name} --out plan.json"


def queue_add(
    command: Command,
    text: str,
    name: str,
    *,
    hosts: int | None,
    for_s: float,
    preemptible: bool = False,
    method: str = MATCH,
    iterations: int = 0,
) -> QueuedJob:
    """Append a job. Raises: as `prepared`."""
    lab, settings = load_lab(command.inventory), command.settings
    called, text, method, count = prepared(lab, text, name, hosts, method)
    more = {"preemptible": preemptible, "iterations": iterations if method else 0}
    return add(
        command.store,
        key_of(lab),
        who(settings),
        name=called,
        text=text,
        method=method,
        count=count,
        for_s=for_s,
        **more,  # type: ignore[arg-type]
    )


def queue_view(command: Command, *, ended: int = 0) -> QueueView:
    """The queue now, with the reasons that the process that serves it would act on. ended: so many
    of those that have ended.
    """
    lab, store, settings = load_lab(command.inventory), command.store, command.settings
    key = key_of(lab)
    jobs = queued(store, key, ended=ended)
    found = decided(OnLab(lab, command), jobs, served(store, key) | {settings.user})
    rows = []
    for job in jobs:
        why = "; ".join(filter(None, (found.why.get(job.number, ""), job.detail)))
        starts = found.starts.get(job.number, ())
        rows.append(
            QueueRow(
                job.number,
                job.name,
                job.owner,
                job.tenancy,
                job.state,
                job.hosts,
                job.count,
                job.for_s,
                round(job.left_s, 1),
                job.preemptible,
                job.added,
                job.since,
                why,
                starts,
            )
        )
    live = any(job.user == settings.user and job.state not in ("done", "failed") for job in jobs)
    return QueueView(lab.name, tuple(rows), QUEUE.running(settings, key), live)


async def begin_queue(command: Command, options: ServiceOptions) -> ServiceNote | None:
    """What is done before it is served in the background: the emulated lab is started. Without a
    job there is nothing to serve.
    """
    if not any(
        job.user == command.settings.user
        for job in queued(command.store, key_of(load_lab(command.inventory)))
    ):
        return ServiceNote("No job of yours is in the queue, so there is nothing to serve")
    start_lab(command.settings, command.progress)
    return None


async def given_up_after(command: Command, stopped: QueueState | None) -> ServiceNote:
    """Where none runs here: one that serves the queue from another machine does so no more."""
    place = (
        given_up(command.store, key_of(load_lab(command.inventory)), who(command.settings))
        if stopped is None
        else ""
    )
    if not place:
        return ServiceNote(hint="testbed service start queue" if stopped is not None else "")
    text = f"the queue is not served any more from {place}; jobs that run go on"
    return ServiceNote(text, {"host": place}, "testbed service start queue", done=True)


async def queue_serve(command: Command, *, notify: Notify, options: ServiceOptions) -> QueueReport:
    """Serve the user's jobs until none is left, or until cancelled. Raises: Locked - another
    process does.
    """
    lab, settings = load_lab(command.inventory), command.settings
    key = key_of(lab)
    with serving(QUEUE.file(settings, key, QUEUE.own(settings, options))) as file:

        def shown(event: Mapping[str, Json]) -> None:
            file.now(last=str(event["message"]))
            notify(event)

        me = who(settings)

        def state(word: str) -> None:
            if not serves(command.store, key, me):
                raise Locked(
                    "the queue is not served from here any more: it was stopped on another machine",
                    hint="testbed job queue",
                )
            if file.state.state != word:
                file.now(state=word)
                if word == "serving":
                    ready()

        serve(command.store, key, me)
        work = Serving(OnLab(lab, command), command.store, key, me, shown)
        try:
            await work.serve(state)
        except asyncio.CancelledError:
            emit(notify, "ended", "stopped on request; jobs that run go on")
        finally:
            unserve(command.store, key, me)
        return QueueReport(lab.name, work.started, work.stopped, work.failures, last=work.last)
