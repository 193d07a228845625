"""Reads the signals of a diagnosis from an open lab: first what costs nobody anything, then, where
that explains nothing, more.

Nothing is changed: no light, no route, no job. Test traffic loads links, and is sent only if the
caller allows it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from optics import Circuit, HostName, HostPort, Link, TestbedError
from optics.plain import counted
from optics.plan import Plan
from optics.ranks import RankName, host_of_rank
from orchestrator.fabric.cabling import senders
from orchestrator.fabric.detour import dark_circuits as without_light
from orchestrator.fabric.lightpath import Held, among
from orchestrator.hosts.api import Heartbeat, Load
from orchestrator.session import Observation, Session
from orchestrator.telemetry.progress import Progress
from orchestrator.verify import carried, rdma_reach
from orchestrator.verify.badlinks import bad
from orchestrator.verify.bisect import bisected
from orchestrator.verify.degraded import carriers_of, sides
from orchestrator.verify.diagnosis import (
    at_usual_pace,
    fault_is_known,
    is_explained,
    main_fault,
    resending,
)
from orchestrator.verify.forwarding import check_forwarding
from orchestrator.verify.ladder import PROBE_S
from orchestrator.verify.level import check_level
from orchestrator.verify.pace import pace, suspects
from orchestrator.verify.qualification import (
    LOAD,
    Direction,
    batches,
    better,
    directions,
    measure_under_load,
)
from orchestrator.verify.report import LinkQuality
from orchestrator.verify.signals import PlannedLink, Signals

LOAD_S = 3.0
"""How long (s) hosts are looked at for what uses their processors, and for segments sent again: a
link that loses 1 % of 64 kB packets under a job that sends 5 MB/s loses one a second."""
GLANCE_S = 0.5
"""How long (s) they are looked at before: enough to see that a rank is stopped, too short to blame
anything else.
"""
AGAIN_S = 1.0
"""How long (s) they are looked at again where only segments sent again are in question, and what
was before is known.
"""
GENTLY, GENTLY_S = 0.3, 4.0
"""Steady traffic beside a job: its share of the link's rate, so that the queues which the job fills
lose little of it, and its duration (s): at 250 Mb/s and 9000 bytes 4000 datagrams, of which a loss
of 1 % takes 40."""
ALONE_S = 1.0
FIRST, MOST = 8, 32
"""Links measured first, the most suspect ones, and at most: one batch beside a job takes five
seconds.
"""


@dataclass(frozen=True, slots=True)
class DiagnosedJob:
    """What is diagnosed. name, on_hosts: of the latest job, also on its hosts; empty if there is
    none. state: as `JobStatus.state`, the store's where its ranks do not say more. usual_ms: of an
    iteration. moving: a change under way, in words. plan_file, avoid, why, unlaunched: as in
    Signals. nccl_env: what a job with NCCL sets in its environment, None for others."""

    plan: Plan
    links: tuple[Link, ...]
    circuits: tuple[Circuit, ...]
    name: str = ""
    on_hosts: str = ""
    state: str = "none"
    ranks: tuple[RankName, ...] = ()
    usual_ms: float | None = None
    moving: str = ""
    plan_file: str = ""
    avoid: tuple[str, ...] = ()
    why: str = ""
    unlaunched: bool = False
    nccl_env: Mapping[str, str] | None = None


def wires(subject: DiagnosedJob, session: Session) -> tuple[PlannedLink, ...]:
    """The planned links, and what each leads over."""
    found = []
    for link in subject.links:
        segment = session.lab.segment_at.get(link.a) if session.lab.electrical(link) else None
        ends = {link.a, link.b}
        circuits = {
            str(c): tuple(map(str, c.path))
            for c in subject.circuits
            if {c.transmitter, c.receiver} == ends
        }
        if segment is None:
            found.append(PlannedLink(link, "", circuits))
            continue
        at = {port: switch for switch, ports in segment.switches.items() for port in ports}
        found.append(PlannedLink(link, segment.name, circuits, (at[link.a], at[link.b])))
    return tuple(found)


def missing(circuits: Sequence[Circuit], held: Held) -> dict[str, tuple[str, ...]]:
    """The settings of each circuit that the devices, as far as they were read, do not hold."""
    found = {}
    for circuit in circuits:
        read = [setting for setting in circuit.path if setting.ingress.device in held]
        existing = {s for setting in read for s in among({setting}, held[setting.ingress.device])}
        if removed := tuple(str(setting) for setting in read if setting not in existing):
            found[str(circuit)] = removed
    return found


def job_state(stored: str, heartbeats: Mapping[RankName, Heartbeat]) -> str:
    """The state of a job whose record says `stored`, by its ranks that can be asked."""
    if stored not in ("starting", "running") or not heartbeats:
        return stored
    if any(heartbeat.state == "running" for heartbeat in heartbeats.values()):
        return "running"
    return (
        "finished"
        if all(
            heartbeat.state == "exited" and heartbeat.code == 0 for heartbeat in heartbeats.values()
        )
        else "failed"
    )


async def look(session: Session, subject: DiagnosedJob, seen: Observation) -> Signals:
    """What can be read without loading anything: takes GLANCE_S, LOAD_S more where nothing is dark,
    dead or stopped, and more where devices have meters to ask.
    """
    hosts, unread = session.hosts, []
    answering = [name for name, hello in seen.hellos.items() if hello.installed]
    ranks = (
        [rank for rank in subject.ranks if host_of_rank(rank) in answering]
        if subject.on_hosts
        else []
    )
    planned = wires(subject, session)
    ports = {port for wire in planned for port in wire.receivers}
    carriers = {port: up for port, up in carriers_of(seen.hellos).items() if port in ports}
    dark = without_light(subject.circuits, carriers)
    used = {port.host for wire in planned for port in wire.ports} | {
        host_of_rank(rank) for rank in subject.ranks
    }
    signals = Signals(
        job=subject.name,
        state=subject.state,
        ranks=subject.ranks,
        usual_ms=subject.usual_ms,
        moving=subject.moving,
        plan_file=subject.plan_file,
        avoid=subject.avoid,
        why=subject.why,
        unlaunched=subject.unlaunched,
        silent={str(name): str(error) for name, error in seen.errors.items()},
        bare=frozenset(used & seen.hellos.keys() - set(answering)),
        wires=planned,
        carriers=carriers,
        missing=missing(subject.circuits, seen.settings),
    )
    mine = sorted({host_of_rank(rank) for rank in ranks}) if subject.nccl_env is not None else []
    loads, (lost, trouble), strangers, (rdma, untold) = await asyncio.gather(
        hosts.measure.load(subject.on_hosts, ranks, GLANCE_S),
        sides(session.devices, session.lab, dark),
        crossed(session, subject, signals, answering),
        rdma_reach.rdma_faults(
            [session.lab.hosts[host] for host in mine],
            subject.nccl_env or {},
            {port for wire in planned for port in wire.ports},
        ),
    )
    heartbeats = await hosts.measure.heartbeats(subject.on_hosts, ranks)
    try:
        clocks = await hosts.measure.clocks(answering)
    except TestbedError as error:
        clocks = {}
        unread.append(f"clocks: {error.line}")
    if trouble:
        unread.append(trouble)
    if without := [rank for rank in ranks if rank not in heartbeats]:
        unread.append(f"no heartbeat of {counted(len(without), 'rank')}: {', '.join(without[:3])}")
    signals = replace(
        with_loads(signals, loads, session),
        heartbeats=heartbeats,
        state=job_state(subject.state, heartbeats),
        strangers=strangers,
        lost={str(circuit): text for circuit, text in lost.items()},
        clocks=clocks,
        rdma=rdma,
        unread=(*unread, *untold),
    )
    known = min(
        (flow.seconds for flow in signals.past.values()), default=0.0
    ) >= LOAD_S and at_usual_pace(signals)
    if not ranks or fault_is_known(signals) or (known and not resending(loads)):
        return signals
    loads = await hosts.measure.load(subject.on_hosts, ranks, AGAIN_S if known else LOAD_S)
    heartbeats = await hosts.measure.heartbeats(subject.on_hosts, ranks)
    return replace(
        with_loads(signals, loads, session),
        heartbeats=heartbeats,
        state=job_state(subject.state, heartbeats),
    )


def with_loads(signals: Signals, loads: Mapping[HostName, Load], session: Session) -> Signals:
    """With what hosts report of their processors and connections."""
    recent, past = (
        carried.carried(carried.flows(loads, past=past), signals.wires, session.lab)
        for past in (False, True)
    )
    return replace(signals, loads=loads, carried=recent, past=past)


async def ends(
    session: Session,
    subject: DiagnosedJob,
    signals: Signals,
    answering: Sequence[HostName],
    rounds: int = 2,
) -> tuple[dict[HostPort, HostPort | None], dict[HostPort, HostPort]]:
    """Whose signed frames arrive at each lit port, None: nobody's in so many rounds; and who should
    be received there.
    """
    planned = senders(link for link in subject.links if not session.lab.electrical(link))
    switched = {port for wire in signals.wires if wire.segment for port in wire.ports}
    lit = [port for port, up in signals.carriers.items() if up and port.host in answering]
    wanted = [p for p in lit if p in switched or (p in planned and planned[p].host in answering)]
    asked = {*wanted, *(planned[p] for p in wanted if p in planned)}
    received: dict[HostPort, HostPort | None] = {}
    for _ in range(rounds):  # a busy host may be late once
        rest = [port for port in wanted if received.get(port) is None]
        if rest:
            found = await session.hosts.measure.neighbours(asked, PROBE_S, expecting=rest)
            received |= {port: found[port].receives for port in rest if port in found}
    return received, planned


async def crossed(
    session: Session, subject: DiagnosedJob, signals: Signals, answering: Sequence[HostName]
) -> dict[HostPort, HostPort]:
    """Who is received at ports that should receive another; nothing where that cannot be asked."""
    try:
        received, planned = await ends(session, subject, signals, answering, rounds=1)
    except TestbedError:
        return {}
    return {
        p: other
        for p, other in received.items()
        if other is not None and p in planned and other != planned[p]
    }


async def ask_ends(
    session: Session, subject: DiagnosedJob, signals: Signals, answering: Sequence[HostName]
) -> Signals:
    """With what arrives at each lit port: signed frames of the host that is planned at its other
    end, or not.
    """
    received, planned = await ends(session, subject, signals, answering)
    strangers = {
        p: other
        for p, other in received.items()
        if other is not None and p in planned and other != planned[p]
    }
    return replace(
        signals,
        deaf=frozenset(p for p, other in received.items() if other is None),
        strangers=strangers,
    )


async def measure_links(
    session: Session,
    signals: Signals,
    links: Sequence[Link],
    shared: bool,
    known: Mapping[Direction, LinkQuality],
) -> dict[Direction, LinkQuality]:
    """`known`, and the traffic of these links; those that are bad are measured again, alone, and
    their better result counts.
    """
    share, seconds = (GENTLY, GENTLY_S) if shared else (LOAD, ALONE_S)
    hosts, lab = session.hosts, session.lab

    async def burst(groups: Sequence[Sequence[Link]]) -> dict[Direction, LinkQuality]:
        found = await measure_under_load(hosts, lab, groups, share, seconds)
        for link in (link for group in groups for link in group if lab.electrical(link)):
            own = lab.segment_at[link.a].alone_mbps(link.a.host, link.b.host)
            for d in directions(link):
                found[d] = replace(found[d], share=round((found[d].mbps or 0.0) / own, 3))
        return found

    found = {**known, **await burst(batches(links))}
    doubtful = [
        one.wire.link
        for one in bad(replace(signals, quality=found, shared=shared))
        if one.wire.link in links
    ]
    for direction, quality in (
        (await burst([[link] for link in doubtful[:FIRST]])).items() if doubtful else ()
    ):
        found[direction] = better(found[direction], quality)
    return found


async def look_closer(
    session: Session,
    subject: DiagnosedJob,
    signals: Signals,
    answering: Sequence[HostName],
    progress: Progress,
    *,
    traffic: bool,
) -> Signals:
    """What explains ranks that stand or are slow: frames on every fibre, then traffic on suspect
    links, then all pairs of hosts.

    traffic: links may be loaded. Without a running job all links are measured, and an all-reduce is
    bisected.
    """
    shared, hosts, lab = (
        signals.state in ("starting", "running", "paused"),
        session.hosts,
        session.lab,
    )
    try:
        signals = await ask_ends(session, subject, signals, answering)
    except TestbedError as error:
        signals = replace(
            signals, unread=(*signals.unread, f"the ends of the fibres: {error.line}")
        )
    if is_explained(signals):
        return signals
    links = [wire.link for wire in signals.wires if {p.host for p in wire.ports} <= set(answering)]
    order = suspects(
        pace(signals.heartbeats, signals.usual_ms), [(link.a.host, link.b.host) for link in links]
    )
    again = resending(signals.loads)
    chosen = sorted(
        (links[at] for at in order), key=lambda link: not {link.a.host, link.b.host} & set(again)
    )[:MOST]
    first = (
        max(FIRST, sum(bool({link.a.host, link.b.host} & set(again)) for link in chosen))
        if len(again) <= 2
        else FIRST
    )
    if traffic:
        found: dict[Direction, LinkQuality] = {}
        for part in (chosen[:first], chosen[first:]):
            if not part or bad(replace(signals, quality=found, shared=shared)):
                continue
            progress.update("traffic", len(found), 2 * len(chosen), "directions")
            try:
                found = await measure_links(session, signals, part, shared, found)
            except TestbedError as error:
                signals = replace(signals, unread=(*signals.unread, f"test traffic: {error.line}"))
                break
        signals = replace(signals, quality=found, shared=shared)
        if (
            not shared
            and len(answering) == len({p.host for wire in signals.wires for p in wire.ports})
            and not main_fault(signals).wrong
        ):
            rates = {d: q.mbps for d, q in found.items()}
            signals = replace(
                signals,
                collective=await bisected(hosts, lab, subject.plan, subject.links, rates, progress),
            )
    if main_fault(signals).kind == "unknown":
        mute = [name for name in lab.hosts if name not in answering]
        pairs = await check_level(
            "forwarding", lambda: check_forwarding(hosts, subject.plan, subject.links, lab, mute)
        )
        if not pairs.ok:
            more = (
                f"{pairs.detail}: {'; '.join(pairs.evidence[:3])}"
                if pairs.evidence
                else pairs.detail
            )
            signals = replace(signals, others=(*signals.others, more))
    return signals


def reading_text(signals: Signals) -> tuple[str, ...]:
    """What was read and measured, a line each."""
    found = []
    if signals.carriers:
        found.append(f"carriers of {counted(len(signals.carriers), 'port')}, maps of the devices")
    if signals.ranks:
        found.append(
            f"heartbeats of {len(signals.heartbeats)} of {counted(len(signals.ranks), 'rank')}"
        )
    if signals.loads:
        found.append(f"processors of {counted(len(signals.loads), 'host')}")
    if signals.clocks:
        worst = max(abs(reading.offset_ns) for reading in signals.clocks.values()) / 1e6
        found.append(
            f"clocks of {counted(len(signals.clocks), 'host')}, at most {worst:.1f} ms off"
        )
    if signals.rdma:
        found.append(f"RDMA ports and GIDs of {counted(len(signals.rdma), 'host')}")
    if signals.deaf is not None:
        found.append(
            "signed frames on every lit fibre"
            + (f", {len(signals.deaf)} ports got none" if signals.deaf else "")
        )
    if signals.quality:
        rates = [q.mbps for q in signals.quality.values() if q.mbps]
        where = " beside the job" if signals.shared else ""
        span = f"{min(rates, default=0):.0f} to {max(rates, default=0):.0f} Mb/s"
        found.append(f"traffic in {counted(len(signals.quality), 'direction')}{where}, {span}")
    if signals.collective is not None:
        found.append(
            "an all-reduce, bisected"
            if signals.collective
            else "an all-reduce: as fast as the links allow"
        )
    return tuple(found)
