"""Verdicts on hosts: dead, without an agent, busy, wrongly set up, or with a wrong clock. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from optics import HostName
from optics.plain import counted, natural, summary
from optics.ranks import LOST_PEER, host_of_rank
from orchestrator.hosts.api import ClockReading, Load
from orchestrator.verify.badlinks import bad
from orchestrator.verify.case import LIKELY, LINES, SURE, WEAK, Case, dead, top
from orchestrator.verify.pace import LateHost, hang_text, late, late_now
from orchestrator.verify.signals import Verdict

FOREIGN_CORES = 0.5
"""Processes that are no ranks matter from this use of processors on (cores): agents and logins use
less than a tenth.
"""
FOREIGN_RATIO = 3.0
"""Without a host that is late, they must use this many times what those of any other host do."""
ALONE = 2.0
"""A host that alone computes is held up if that has taken this many times as long as it used to."""
CLOCK_S = 0.128
"""A clock that is wrong by more (s) is stepped and no longer slewed (STEPT of RFC 5905): nothing
keeps it any more.
"""


def dead_hosts(case: Case) -> Iterator[Verdict]:
    """A host that does not answer, and whose links or ranks are gone as well: else only its
    management access may be broken.
    """
    s = case.signals
    hosts = {port.host for wire in s.wires for port in wire.ports} | {*map(host_of_rank, s.ranks)}
    for host in sorted(hosts & set(s.silent)):
        far = [
            port
            for wire in s.wires
            if not wire.segment and any(end.host == host for end in wire.ports)
            for port in wire.receivers
            if port.host != host and port in s.carriers and port not in case.cut
        ]
        dark = [port for port in far if dead(port, s)]
        unlit = bool(far) and len(dark) == len(far)
        mine = [rank for rank in s.ranks if host_of_rank(rank) == host]
        peers = [
            heartbeat for rank, heartbeat in s.heartbeats.items() if host_of_rank(rank) != host
        ]
        left = [heartbeat for heartbeat in peers if heartbeat.code == LOST_PEER]
        stuck = bool(mine and peers) and (case.waits or bool(left))
        evidence = [f"{host} does not answer: {s.silent[host].splitlines()[0]}"]
        if far:
            evidence.append(
                f"at the other ends of its links, {len(dark)} of {len(far)} ports receive nothing"
            )
        if left:
            evidence.append(
                f"{counted(len(left), 'rank')} on other hosts lost a peer (exit {LOST_PEER})"
            )
        if stuck and not left:
            evidence.append(hang_text(s.heartbeats, case.state))
        if unlit or stuck:
            case.ended.add(host)
            case.explained = case.explained or bool(mine)
            sure = SURE if unlit and (stuck or not mine or len(far) > 1) else LIKELY
            evict = f"testbed job evict {host}"
            yield Verdict(f"host {host}", "dead-host", tuple(evidence), sure, evict)


def bare_hosts(case: Case) -> Iterator[Verdict]:
    """Hosts that answer and run no agent, in one verdict: they have started again together, or were
    installed again.
    """
    s = case.signals
    if not s.bare:
        return
    names = summary(s.bare, "host")
    evidence = [
        f"no agent runs on {names}: started or installed again, without routes and ranks, or the agent was stopped"
    ]
    if mine := [rank for rank in s.ranks if host_of_rank(rank) in s.bare]:
        case.explained = True
        evidence.append(f"{counted(len(mine), 'rank')} of {len(s.ranks)} of job {s.job} ran there")
    case.ended |= s.bare
    yield Verdict(
        f"host {', '.join(sorted(s.bare, key=natural))}",
        "dead-host",
        tuple(evidence),
        LIKELY,
        "testbed restore",
    )


def rdma_ports(case: Case) -> Iterator[Verdict]:
    """Hosts where NCCL is told of interfaces, devices or GIDs that are elsewhere, if the job failed
    or stands: what is set up already goes on.
    """
    s = case.signals
    if case.explained or not (s.state == "failed" or s.unlaunched or case.state):
        return
    for host in sorted((host for host, texts in s.rdma.items() if texts), key=natural):
        case.explained = True
        most = s.rdma[host][:LINES]
        yield Verdict(f"host {host}", "rdma-ports", most, LIKELY, "testbed doctor")


def foreign(loads: Mapping[HostName, Load]) -> dict[HostName, float]:
    """Per host, how many cores processes use that are no ranks of the job."""
    return {host: sum(process.cores for process in load.others) for host, load in loads.items()}


def busy_hosts(case: Case) -> Iterator[Verdict]:
    """A slow job whose ranks wait for one host that computes longer, or one of whose hosts other
    processes keep busy.
    """
    s = case.signals
    if case.explained or s.state != "running":
        return
    theirs, tardy = foreign(s.loads), late_host(case)
    if tardy is not None:
        use = theirs.get(tardy.host, 0.0)
        evidence = [case.pace.message, tardy.message]
        if use >= FOREIGN_CORES:
            evidence.append(foreign_text(s.loads[tardy.host]))
        elif tardy.host in s.loads:
            evidence.append(
                f"processes other than ranks use {use:.1f} cores there: look for throttling, memory, or the rank itself"
            )
        case.explained = True
        sure = SURE if use >= FOREIGN_CORES else LIKELY if tardy.last == tardy.of else WEAK
        yield _busy(tardy.host, evidence, sure)
        return
    if (host := starved(case)) is not None:
        age_s = max(b.age_s for r, b in s.heartbeats.items() if host_of_rank(r) == host)
        before = case.pace.before.get(host, case.pace.compute[host])
        alone = f"{host} has computed for {age_s:.1f} s, before it was {before / 1e3:.1f} s; all others wait in an exchange"
        case.explained = True
        yield _busy(host, (alone, foreign_text(s.loads[host])), LIKELY)
        return
    if not theirs or not case.pace.slow:
        return
    host = max(theirs, key=lambda name: theirs[name])
    rest = max((use for name, use in theirs.items() if name != host), default=0.0)
    if theirs[host] >= FOREIGN_CORES and theirs[host] >= FOREIGN_RATIO * rest:
        case.explained = True
        evidence = [
            case.pace.message,
            foreign_text(s.loads[host]),
            f"no other host has more than {rest:.1f} cores in use so",
        ]
        yield _busy(host, evidence, WEAK if bad(s) else LIKELY)


def _busy(host: HostName, evidence: Iterable[str], sure: float) -> Verdict:
    return Verdict(f"host {host}", "busy-host", tuple(evidence), sure, top(host))


def late_host(case: Case) -> LateHost | None:
    """The host that the others wait for, if that makes the job slow, or it was not so before."""
    s, usual_ms = case.signals, case.pace.usual_ms
    tardy = late(s.heartbeats, usual_ms)
    return (
        tardy
        if tardy is not None and (case.pace.slow or tardy.changed)
        else late_now(s.heartbeats, usual_ms)
    )


def starved(case: Case) -> HostName | None:
    """The host that alone computes, ALONE times as long as before, while other processes use its
    processors and no other host's.
    """
    s, theirs = case.signals, foreign(case.signals.loads)
    working = {
        host_of_rank(r): b
        for r, b in s.heartbeats.items()
        if b.state == "running" and b.phase != "exchange"
    }
    if len(working) != 1 or len({host_of_rank(r) for r in s.heartbeats}) < 3:
        return None
    ((host, heartbeat),) = working.items()
    usual_ms = case.pace.before.get(host, case.pace.compute.get(host))
    rest = max((use for name, use in theirs.items() if name != host), default=0.0)
    if usual_ms is None or heartbeat.phase != "compute" or heartbeat.age_s * 1e3 < ALONE * usual_ms:
        return None
    return host if theirs.get(host, 0.0) >= max(FOREIGN_CORES, FOREIGN_RATIO * rest) else None


def foreign_text(load: Load) -> str:
    most = ", ".join(f"{p.command} (pid {p.pid}) {p.cores:.1f}" for p in load.others[:3])
    return f"processes other than ranks use {sum(p.cores for p in load.others):.1f} of {load.cpus} cores of {load.host}: {most}"


def slow_collectives(case: Case) -> Iterator[Verdict]:
    """Where no job runs: hosts whose all-reduce is slow although their links carry what they
    should.
    """
    s = case.signals
    if not s.collective or case.explained:
        return
    for hosts, text in s.collective.items():
        if len(hosts) == 1:
            case.explained = True
            yield _busy(hosts[0], (text, "its links carry what they should"), WEAK)


def wrong_clocks(case: Case) -> Iterator[Verdict]:
    """Hosts whose clock is wrong by more than the reading is accurate to, or whose ranks' clock is
    ahead of the host's.
    """
    for rank in case.signals.ranks:
        own, host = case.load_of(rank), host_of_rank(rank)
        if own is not None and "yet to come" in own.heartbeat and host not in case.ended:
            text = f"rank {case.number(rank)} on {host} runs, and its heartbeat has a time that is yet to come on that host"
            yield Verdict(f"host {host}", "clock", (text,), LIKELY, "testbed doctor")
    off = {host: reading for host, reading in case.signals.clocks.items() if is_off(reading)}
    if len(off) > 1 and len(off) == len(case.signals.clocks):
        return  # this machine's clock is the one that differs: `diagnosis` says so
    for host, reading in sorted(off.items()):
        accurate = f"accurate to {reading.round_trip_ns / 2e6:.1f} ms"
        text = f"the clock of {host} differs from this machine's by {reading.offset_ns / 1e9:+.3f} s ({accurate})"
        rest = [abs(r.offset_ns) / 1e6 for h, r in case.signals.clocks.items() if h not in off]
        evidence = [text]
        if rest:
            others = f"the clocks of {len(rest)} other hosts are within {max(rest):.0f} ms"
            evidence.append(others)
        sure = SURE if rest else WEAK
        yield Verdict(f"host {host}", "clock", tuple(evidence), sure, "testbed doctor")


def is_off(reading: ClockReading) -> bool:
    return abs(reading.offset_ns) - reading.round_trip_ns / 2 > CLOCK_S * 1e9
