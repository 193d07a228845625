"""The jobs that run on a lab, of all owners, and their phases: from their ranks' records and from
samples of their hosts' ports.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

import numpy as np

from extensions.pacing.links import Use, use
from extensions.pacing.options import SAMPLED_S
from extensions.pacing.phases import Array, Phases, SharedLink, of_records, of_samples
from optics import HostName, HostPort, Infeasible, Missing, TestbedError
from optics.ranks import RankName, hosts_of
from orchestrator.hosts import Heartbeat, HostEvent
from orchestrator.hosts.counters import counter_samples
from orchestrator.inventory.lab import Lab
from orchestrator.jobs.record import ranks_of
from orchestrator.plan.stored import stored_plan
from orchestrator.session import Session
from orchestrator.store.keys import key_of, tenancy_key
from orchestrator.store.store import Store

STEP_MS = 1.0
LATEST = 20
"""A job's times are medians over so many iterations."""
LONGER = 5
MOST_S = 60.0
USABLE = 0.95
"""The share of a link's rate that is reckoned with: bursts need room for what TCP sends again."""


@dataclass(frozen=True, slots=True)
class Tenant:
    """One owner's running job. key: of the owner's tenancy; on_hosts: the job's name there; record:
    its number; paceable: whether its ranks take part."""

    owner: str
    key: str
    job: str
    on_hosts: str
    record: int
    ranks: tuple[RankName, ...]
    use: Use
    paceable: bool

    @property
    def name(self) -> str:
        """The job's name; with its owner's, as two owners' jobs may have the same."""
        return f"{self.owner}:{self.job}"


def tenants(store: Store, lab: Lab) -> list[Tenant]:
    """The jobs that run, according to the store, by owner; without paused ones, and those whose
    plan cannot be read any more.
    """
    found = []
    for owner, current in store.currents(key_of(lab)).items():
        key = tenancy_key(key_of(lab), owner)
        record = store.latest_job(key)
        if record is None or record.ended is not None or record.state == "paused":
            continue
        with suppress(TestbedError):
            plan = stored_plan(current.plan_text, current.plan_name, current.up.slots, lab)
            used = use(plan, current.up.links, lab)
            spec = record.spec
            if used is not None:
                paceable = spec.wanted.workload != "program"
                found.append(
                    Tenant(
                        owner,
                        key,
                        record.name,
                        spec.on_hosts,
                        record.id,
                        ranks_of(record, lab),
                        used,
                        paceable,
                    )
                )
    return found


def none_runs(store: Store, lab: Lab) -> Missing:
    """The error for a lab on which no job runs; it says what became of the latest ones."""
    latest = {
        owner: store.latest_job(tenancy_key(key_of(lab), owner))
        for owner in store.currents(key_of(lab))
    }
    text = ", ".join(
        f"{owner}:{record.name} {record.state}"
        for owner, record in latest.items()
        if record is not None
    )
    runs = any(record is not None and record.ended is None for record in latest.values())
    none = "no job runs on this lab whose phases can be seen" if runs else "no job runs on this lab"
    return Missing(
        f"{none}{f': {text}' if text else ''}",
        hint="testbed up with a plan that has a job, and no schedule",
    )


@dataclass(frozen=True, slots=True)
class Seen:
    """What was found of one job. phases: as if it had its links to itself, empty with `error`;
    source: records or samples.

    bytes: of an iteration over each limit. now_ms: from one iteration's begin to the next as it is
    now. between_ms: what is between two. spread_ms: how much longer than usual its longest computing
    took. ended: it does not run any more, or not yet, as `error` says.
    """

    tenant: Tenant
    phases: Phases | None
    source: str = ""
    bytes: Mapping[str, float] | None = None
    now_ms: float = 0.0
    between_ms: float = 0.0
    spread_ms: float = 0.0
    error: str = ""
    hint: str = ""
    ended: bool = False

    def on(self, limit: str) -> Phases:
        """Its phases on one limit: what it sends there, while it sends."""
        assert self.phases is not None and self.bytes is not None
        rate = self.bytes[limit] * 8 / 1e3 / self.phases.busy_ms if self.phases.busy_ms else 0.0
        return Phases(
            self.phases.period_ms,
            tuple((a, b, rate) for a, b, _ in self.phases.bursts),
            self.phases.confidence,
        )


def shared(seen: Sequence[Seen]) -> list[SharedLink]:
    """The limits that several of these jobs send over."""
    known = [one for one in seen if one.phases is not None]
    limits = {name: rate for one in known for name, rate in one.tenant.use.mbps.items()}
    users = {name: [one for one in known if name in one.tenant.use.over] for name in limits}
    return [
        SharedLink(name, USABLE * limits[name], {one.tenant.name: one.on(name) for one in jobs})
        for name, jobs in sorted(users.items())
        if len(jobs) > 1
    ]


async def connect(session: Session, found: Sequence[Tenant]) -> None:
    """Connect to the hosts of these jobs. Raises: as the first host that does not answer."""
    for answer in (await session.hosts.channels.connect(_hosts(found))).values():
        if isinstance(answer, TestbedError):
            raise answer


def _hosts(found: Sequence[Tenant]) -> list[HostName]:
    return sorted(
        {port.host for tenant in found for port in tenant.use.sent}
        | {h for t in found for h in _rank_hosts(t)}
    )


def _rank_hosts(tenant: Tenant) -> set[HostName]:
    return set(hosts_of(tenant.ranks))


async def measured(
    session: Session, found: Sequence[Tenant], seconds: float = SAMPLED_S, *, paced: bool = False
) -> list[Seen]:
    """Sample the jobs' ports for `seconds` (s; for slow jobs longer), ask their ranks, and say what
    was found of each.

    paced: their iterations begin when they are notified, so what is between two is no time of their
    own.
    """
    notices = [await session.hosts.measure.heartbeats(t.on_hosts, t.ranks) for t in found]
    slow = max(
        (now for heartbeats in notices if (now := _between(heartbeats.values())[0])), default=0.0
    )
    seconds = min(MOST_S, max(seconds, LONGER * slow / 1e3))
    curves = await _sampled(session, _hosts(found), seconds)
    since = [
        {
            rank: heartbeat.times[-1].iteration
            for rank, heartbeat in heartbeats.items()
            if heartbeat.times
        }
        for heartbeats in notices
    ]
    notices = [
        await session.hosts.measure.heartbeats(t.on_hosts, t.ranks, after)
        for t, after in zip(found, since, strict=True)
    ]
    return [
        _seen(tenant, list(heartbeats.values()), curves, paced)
        for tenant, heartbeats in zip(found, notices, strict=True)
    ]


async def _sampled(
    session: Session, names: Collection[HostName], seconds: float
) -> dict[HostPort, Array]:
    """What each port sent, in steps of STEP_MS over the same time."""
    hosts = session.hosts
    queue = hosts.channels.subscribe()
    events: list[HostEvent] = []
    try:
        await hosts.measure.stream_counters(STEP_MS / 1e3, names)
        await asyncio.sleep(seconds)
        await hosts.measure.stream_counters(None, names)
        while not queue.empty():
            events.append(queue.get_nowait())
    finally:
        hosts.channels.unsubscribe(queue)
    rows: dict[HostPort, list[tuple[int, int]]] = {}
    for event in events:
        if event.kind == "counters":
            for port, lines in counter_samples(event).items():
                rows.setdefault(port, []).extend((line[-1], line[1]) for line in lines)
    return stepped(rows)


def stepped(rows: Mapping[HostPort, Sequence[tuple[int, int]]]) -> dict[HostPort, Array]:
    """Bytes in each step of the time that all ports have in common. rows: of each port, (monotonic
    ns, bytes sent so far).
    """
    rows = {port: lines for port, lines in rows.items() if len(lines) > 1}
    if not rows:
        return {}
    begin = max(lines[0][0] for lines in rows.values())
    end = min(lines[-1][0] for lines in rows.values())
    edges = np.arange(begin, max(end, begin + 1), STEP_MS * 1e6)
    found = {}
    for port, lines in rows.items():
        at, sent = (np.array(column, float) for column in zip(*lines, strict=True))
        found[port] = np.diff(np.interp(edges, at, sent))
    return found


def _between(heartbeats: Collection[Heartbeat]) -> tuple[float, float]:
    """From one iteration's begin to the next, and of that not in the iteration (ms, medians); 0, 0
    where it is not known.
    """
    whole, rest = [], []
    for heartbeat in heartbeats:
        times = heartbeat.times[-LATEST - 1 :]
        for one, two in pairwise(times):
            if two.iteration == one.iteration + 1:
                whole.append((two.t_wall_ns - one.t_wall_ns) / 1e6)
                rest.append(whole[-1] - one.iter_ms)
    return (median(whole), max(0.0, median(rest))) if whole else (0.0, 0.0)


def iterations(heartbeats: Sequence[Heartbeat]) -> list[tuple[float, float, float]]:
    """Of the latest iterations that all ranks have reported: ms whole, computing (of the slowest
    rank), exchange after that.
    """
    notices = [{times.iteration: times for times in heartbeat.times} for heartbeat in heartbeats]
    common = sorted(set.intersection(*map(set, notices)))[-LATEST:] if notices else []
    found = []
    for number in common:
        rows = [times[number] for times in notices]
        if any(not row.compute_ms and not row.exposed_ms for row in rows):
            continue
        whole, exposed = max(row.iter_ms for row in rows), min(row.exposed_ms for row in rows)
        found.append((whole, max(0.0, whole - exposed), exposed))
    return found


def _seen(
    tenant: Tenant, heartbeats: Sequence[Heartbeat], curves: Mapping[HostPort, Array], paced: bool
) -> Seen:
    if heartbeats and not any(heartbeat.state == "running" for heartbeat in heartbeats):
        absent = all(heartbeat.state == "absent" for heartbeat in heartbeats)
        fine = all(heartbeat.state == "exited" and heartbeat.code == 0 for heartbeat in heartbeats)
        text = (
            "its ranks are not there: it is being launched, or they are lost"
            if absent
            else "finished"
            if fine
            else "failed"
        )
        return Seen(tenant, None, error=text, hint="testbed job status", ended=True)
    own = {port: curves[port] for port in tenant.use.sent if port in curves}
    total = np.sum(list(own.values()), axis=0) if own else np.zeros(0)
    now_ms, between_ms = _between(heartbeats)
    between_ms = 0.0 if paced else between_ms
    rows = iterations(heartbeats)
    try:
        shown = of_samples(total, STEP_MS, now_ms or None) if len(rows) < 3 or not now_ms else None
        period = now_ms or (shown.period_ms if shown else 0.0)
        count = int(len(total) * STEP_MS / period) if period else 0
        if not count:
            text = f"{len(total) * STEP_MS:.0f} ms of samples, less than an iteration"
            raise Infeasible(text, hint="sample for longer: --for 30s")
        each = {
            port: float(curve[-round(count * period / STEP_MS) :].sum()) / count
            for port, curve in own.items()
        }
        if tenant.use.declared:
            each = dict(tenant.use.sent)
        sizes = {limit: tenant.use.bytes_over(limit, each) for limit in tenant.use.over}
        if shown is not None:
            return Seen(tenant, shown, "samples", sizes, period)
        slowest = max(sizes, key=lambda limit: sizes[limit] / tenant.use.mbps[limit], default=None)
        if slowest is None:
            raise Infeasible(
                "no packet switch on its way, so it shares no link",
                hint="nothing needs to be shifted for it",
            )
        times = [
            (whole + between_ms, compute + between_ms, exposed) for whole, compute, exposed in rows
        ]
        phases = of_records(times, sizes[slowest], USABLE * tenant.use.mbps[slowest])
        computing = [row[1] for row in rows]
        spread_ms = max(computing) - median(computing)
        return Seen(
            tenant,
            phases,
            "records",
            sizes,
            now_ms,
            between_ms,
            spread_ms,
        )
    except Infeasible as error:
        return Seen(tenant, None, now_ms=now_ms, error=str(error), hint=error.hint)


def several(found: Sequence[Tenant]) -> None:
    """Raises: Missing - fewer than two jobs run."""
    if len(found) < 2:
        text = f"{found[0].name} runs alone" if found else "none runs"
        raise Missing(
            f"jobs are shifted against each other, and {text}",
            hint="start another: testbed --as OWNER up -t PLAN",
        )
