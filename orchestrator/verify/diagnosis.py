"""From signals to verdicts: which component is at fault, and what shows it. Pure: the same signals
give the same verdict.

Causes are looked for from below: what is dead or dark explains ranks that stand still or lost a
peer, and those explain slow iterations. A verdict needs an effect and a cause: slow iterations
alone name nobody, and neither does a busy processor under a job that goes at its usual pace.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping

from optics import HostName, HostPort
from optics.plain import counted, natural, summary
from optics.ranks import LOST_PEER, RankName, host_of_rank, signal_of
from orchestrator.hosts.api import ClockReading, Load, RankLoad
from orchestrator.verify.badlinks import CONTROL, LOSS, bad
from orchestrator.verify.case import LIKELY, SURE, WEAK, Case, dead, top
from orchestrator.verify.linkfaults import (
    bad_links,
    carried_links,
    crossed_fibres,
    dark_planned_links,
    dead_cables,
    dead_segments,
)
from orchestrator.verify.pace import LateHost, hang_text, late, late_now
from orchestrator.verify.signals import PlannedLink, Signals, Verdict

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
AGAIN = 4
"""Segments that a host sends again while it is looked at before its links are suspected: test
traffic then decides.
"""
LINES = 6
"""Lines of why a launch failed that are evidence, after the first; faults of a host's ports."""
CRASHES = frozenset((4, 6, 7, 8, 9, 11))
"""SIGILL, SIGABRT, SIGBUS, SIGFPE, SIGKILL, SIGSEGV. With others, such as SIGTERM, launchers end
the peers of a rank that ended.
"""


def main_fault(signals: Signals) -> Verdict:
    """The fault that explains the most; `none` or `unknown` if there is none."""
    return verdicts(signals)[0]


def verdicts(signals: Signals) -> tuple[Verdict, ...]:
    """All faults, causes before effects, what an earlier one explains left out; never empty."""
    if signals.moving:
        return (
            _unknown(
                (f"{signals.moving}: what stands or is dark now may be meant to",),
                "testbed job diagnose",
            ),
        )
    case = Case(signals)
    found: list[Verdict] = []
    for judge in _JUDGES:
        found += judge(case)
    return tuple(found) if found else (_nothing(case),)


def is_explained(signals: Signals) -> bool:
    """Whether a fault is known that explains how the job goes; a wrong clock does not."""
    return any(verdict.wrong and verdict.kind != "clock" for verdict in verdicts(signals))


def fault_is_known(signals: Signals) -> bool:
    """Whether a fault is known, other than by who uses processors in a short look."""
    case = Case(signals)
    by_times = _tardy(case) is not None or _starved(case) is not None
    return any(
        v.wrong and v.kind != "clock" and (by_times or v.kind != "busy-host")
        for v in verdicts(signals)
    )


def at_usual_pace(signals: Signals) -> bool:
    """Whether a job goes at its usual pace, and what its hosts sent again in the seconds before is
    known.
    """
    return signals.state == "running" and not Case(signals).troubled and bool(signals.past)


def open_question(signals: Signals) -> bool:
    """Whether a closer look is wanted: ranks stand, end or are slow and nothing explains it, or no
    job runs that would show.
    """
    if signals.moving or is_explained(signals):
        return False
    if (
        signals.state not in ("starting", "running", "paused")
        or verdicts(signals)[-1].kind == "unknown"
    ):
        return True
    return Case(signals).troubled or bool(resending(signals.loads))


def resending(loads: Mapping[HostName, Load]) -> tuple[HostName, ...]:
    """The hosts whose TCP sends a larger share of its segments again than a good link loses, and
    than the other hosts'.
    """
    shares = {host: load.again / load.sent for host, load in loads.items() if load.sent}
    usual = statistics.median(shares.values()) if shares else 0.0
    return tuple(
        host
        for host, share in shares.items()
        if share > max(LOSS, CONTROL * usual) and loads[host].again >= AGAIN
    )


def dead_hosts(case: Case) -> Iterator[Verdict]:
    """A host that does not answer, and whose links or ranks are gone as well: else only its
    management access may be broken.
    """
    s = case.signals
    hosts = {port.host for wire in s.wires for port in wire.ports} | {
        host_of_rank(rank) for rank in s.ranks
    }
    for host in sorted(hosts & set(s.silent)):
        far = [
            port
            for wire in s.wires
            if not wire.segment
            for port in _far(wire, host)
            if port in s.carriers and port not in case.cut
        ]
        dark = [port for port in far if dead(port, s)]
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
        if (far and len(dark) == len(far)) or stuck:
            case.ended.add(host)
            case.explained = case.explained or bool(mine)
            sure = bool(far) and len(dark) == len(far) and (stuck or not mine or len(far) > 1)
            yield Verdict(
                f"host {host}",
                "dead-host",
                tuple(evidence),
                SURE if sure else LIKELY,
                f"testbed job evict {host}",
            )


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


def _far(wire: PlannedLink, host: HostName) -> tuple[HostPort, ...]:
    """The ports at the other end of a link of this host that receive from it."""
    return tuple(
        port
        for port in wire.receivers
        if host in {p.host for p in wire.ports} and port.host != host
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


def launches(case: Case) -> Iterator[Verdict]:
    """A job whose launch failed: its ranks are not there because they never were."""
    s = case.signals
    if s.unlaunched and not any(
        heartbeat.state == "running" for heartbeat in s.heartbeats.values()
    ):
        case.explained = True
        first, *rest = s.why.splitlines()
        yield Verdict(
            f"job {s.job}",
            "not-launched",
            (f"its launch failed: {first}", *rest[:LINES]),
            SURE,
            "testbed up",
        )


def dead_ranks(case: Case) -> Iterator[Verdict]:
    """Ranks that ended without having lost a peer, while the job should run."""
    s = case.signals
    if s.state not in ("running", "starting", "failed"):
        return
    ended = {
        r: b
        for r, b in s.heartbeats.items()
        if b.state in ("exited", "killed", "absent") and host_of_rank(r) not in case.ended
    }
    first = {r: b for r, b in ended.items() if b.state != "exited" or b.code not in (0, LOST_PEER)}
    victims = sum(b.code == LOST_PEER for b in ended.values())
    alive = sum(b.state == "running" for b in s.heartbeats.values())
    most = max(1, len(s.heartbeats) // 2)
    # programs that end otherwise than with LOST_PEER when they lose a peer: what a signal ended was
    # first
    if len(first) > most:
        first = {
            r: b for r, b in first.items() if b.state == "killed" or signal_of(b.code) in CRASHES
        }
    if not first or len(first) > most:  # more than half of them did not fail by themselves
        return
    case.explained = True
    for rank, heartbeat in sorted(first.items()):
        how = (
            f"exited with {heartbeat.code}"
            if heartbeat.state == "exited"
            else "was killed"
            if heartbeat.state == "killed"
            else "is gone"
        )
        rest = f"of {len(s.heartbeats) - len(first)} others {alive} run and {victims} ended because they lost a peer (exit {LOST_PEER})"
        evidence = (
            f"rank {_number(rank, s)} on {host_of_rank(rank)} {how} in iteration {heartbeat.iteration}",
            rest,
        )
        yield Verdict(
            f"rank {rank}",
            "dead-rank",
            evidence,
            SURE if heartbeat.state != "absent" else LIKELY,
            _logs(rank, s),
        )


def _number(rank: RankName, s: Signals) -> int:
    return s.ranks.index(rank) if rank in s.ranks else -1


def _logs(rank: RankName, s: Signals) -> str:
    number = _number(rank, s)
    return f"testbed job logs --rank {number}" if number >= 0 else "testbed job logs"


def hung_ranks(case: Case) -> Iterator[Verdict]:
    """A rank that lives and does not go on: stopped, or the only one that does not wait for
    another.
    """
    s = case.signals
    if not case.state:
        return
    stopped = [
        rank
        for rank in s.ranks
        if (own := _own(s, rank)) is not None and own.state == "T" and rank in case.state
    ]
    text = hang_text(s.heartbeats, case.state)
    if case.explained and not stopped:
        return
    for rank in stopped:
        case.explained = True
        why = (
            f"every process of rank {_number(rank, s)} on {host_of_rank(rank)} is stopped (state T)"
        )
        yield Verdict(f"rank {rank}", "hung-rank", (why, text), SURE, _logs(rank, s))
    if stopped:
        return
    # A rank that computes, or is an iteration behind, waits for nobody; all others wait in an
    # exchange.
    busy = [r for r in case.state if s.heartbeats[r].phase != "exchange"]
    least = min(s.heartbeats[r].iteration for r in case.state)
    behind = [r for r in case.state if s.heartbeats[r].iteration == least]
    waiting = len(case.state) - len(busy)
    named = busy if busy and waiting else behind if len(behind) < len(case.state) else []
    if len(named) != 1 or len(case.state) < 2:
        return
    (rank,) = named
    if _starved(case) == host_of_rank(rank):
        return  # `busy_hosts` says so
    heartbeat = s.heartbeats[rank]
    why = f"is in phase {heartbeat.phase} of iteration {heartbeat.iteration} since {heartbeat.age_s:.1f} s"
    others = f"{waiting if busy else len(case.state) - 1} others wait for it in an exchange"
    evidence = [f"rank {_number(rank, s)} on {host_of_rank(rank)} {why}", others, text]
    if (own := _own(s, rank)) is not None:
        evidence.append(f"its processes use {own.cores:.2f} cores (state {own.state})")
    case.explained = True
    yield Verdict(
        f"rank {rank}", "hung-rank", tuple(evidence), 0.9 if busy else LIKELY, _logs(rank, s)
    )


def _own(s: Signals, rank: RankName) -> RankLoad | None:
    load = s.loads.get(host_of_rank(rank))
    return load.ranks.get(rank) if load is not None else None


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
    theirs, tardy = foreign(s.loads), _tardy(case)
    if tardy is not None:
        use = theirs.get(tardy.host, 0.0)
        evidence = [case.pace.message, tardy.message]
        if use >= FOREIGN_CORES:
            evidence.append(_foreign(s.loads[tardy.host]))
        elif tardy.host in s.loads:
            evidence.append(
                f"processes other than ranks use {use:.1f} cores there: look for throttling, memory, or the rank itself"
            )
        case.explained = True
        sure = SURE if use >= FOREIGN_CORES else LIKELY if tardy.last == tardy.of else WEAK
        yield Verdict(f"host {tardy.host}", "busy-host", tuple(evidence), sure, top(tardy.host))
        return
    if (host := _starved(case)) is not None:
        age_s = max(b.age_s for r, b in s.heartbeats.items() if host_of_rank(r) == host)
        before = case.pace.before.get(host, case.pace.compute[host])
        alone = f"{host} has computed for {age_s:.1f} s, before it was {before / 1e3:.1f} s; all others wait in an exchange"
        case.explained = True
        yield Verdict(
            f"host {host}", "busy-host", (alone, _foreign(s.loads[host])), LIKELY, top(host)
        )
        return
    if not theirs or not case.pace.slow:
        return
    host = max(theirs, key=lambda name: theirs[name])
    rest = max((use for name, use in theirs.items() if name != host), default=0.0)
    if theirs[host] >= FOREIGN_CORES and theirs[host] >= FOREIGN_RATIO * rest:
        case.explained = True
        evidence = [
            case.pace.message,
            _foreign(s.loads[host]),
            f"no other host has more than {rest:.1f} cores in use so",
        ]
        yield Verdict(
            f"host {host}", "busy-host", tuple(evidence), LIKELY if not bad(s) else WEAK, top(host)
        )


def _tardy(case: Case) -> LateHost | None:
    """The host that the others wait for, if that makes the job slow, or it was not so before."""
    s, usual_ms = case.signals, case.pace.usual_ms
    tardy = late(s.heartbeats, usual_ms)
    return (
        tardy
        if tardy is not None and (case.pace.slow or tardy.changed)
        else late_now(s.heartbeats, usual_ms)
    )


def _starved(case: Case) -> HostName | None:
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


def _foreign(load: Load) -> str:
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
            yield Verdict(
                f"host {hosts[0]}",
                "busy-host",
                (text, "its links carry what they should"),
                WEAK,
                top(hosts[0]),
            )


def wrong_clocks(case: Case) -> Iterator[Verdict]:
    """Hosts whose clock is wrong by more than the reading is accurate to, or whose ranks' clock is
    ahead of the host's.
    """
    for rank in case.signals.ranks:
        own = _own(case.signals, rank)
        if (
            own is not None
            and "yet to come" in own.heartbeat
            and host_of_rank(rank) not in case.ended
        ):
            host = host_of_rank(rank)
            text = f"rank {_number(rank, case.signals)} on {host} runs, and its heartbeat has a time that is yet to come on that host"
            yield Verdict(f"host {host}", "clock", (text,), LIKELY, "testbed doctor")
    off = {host: reading for host, reading in case.signals.clocks.items() if _off(reading)}
    if len(off) > 1 and len(off) == len(case.signals.clocks):
        return  # this machine's clock is the one that differs: `_nothing` says so
    for host, reading in sorted(off.items()):
        accurate = f"accurate to {reading.round_trip_ns / 2e6:.1f} ms"
        text = f"the clock of {host} differs from this machine's by {reading.offset_ns / 1e9:+.3f} s ({accurate})"
        rest = [abs(r.offset_ns) / 1e6 for h, r in case.signals.clocks.items() if h not in off]
        more = (
            (f"the clocks of {len(rest)} other hosts are within {max(rest):.0f} ms",)
            if rest
            else ()
        )
        yield Verdict(
            f"host {host}", "clock", (text, *more), SURE if rest else WEAK, "testbed doctor"
        )


def _off(reading: ClockReading) -> bool:
    return abs(reading.offset_ns) - reading.round_trip_ns / 2 > CLOCK_S * 1e9


_JUDGES: tuple[Callable[[Case], Iterator[Verdict]], ...] = (
    dead_segments,
    dead_hosts,
    bare_hosts,
    dead_cables,
    dark_planned_links,
    rdma_ports,
    launches,
    dead_ranks,
    crossed_fibres,
    hung_ranks,
    carried_links,
    bad_links,
    busy_hosts,
    slow_collectives,
    wrong_clocks,
)


def _nothing(case: Case) -> Verdict:
    """Nothing is wrong; or something is, and it cannot be determined what."""
    s = case.signals
    silent = [
        f"{name} does not answer: {text.splitlines()[0]}" for name, text in sorted(s.silent.items())
    ]
    lost = sum(b.code == LOST_PEER for b in s.heartbeats.values())
    ended = sum(
        b.state in ("exited", "killed", "absent") and b.code != 0 for b in s.heartbeats.values()
    )
    hints: list[str] = []
    if case.state:
        hints.append(
            f"{hang_text(s.heartbeats, case.state)}, and no signal says for whom they wait"
        )
    if s.state == "running" and case.pace.slow:
        hints.append(f"{case.pace.message}, and no host is late and no link was measured to be bad")
    if s.state in ("running", "failed") and ended:
        victims = f"{lost} of them because they lost a peer (exit {LOST_PEER})"
        hints.append(
            f"{ended} of {len(s.heartbeats)} ranks ended, {victims}; which was first is not known"
        )
    if s.state == "failed" and not hints:
        hints.append(
            f"the job failed: {s.why.partition(chr(10))[0]}" if s.why else "the job failed"
        )
    if s.clocks and all(_off(reading) for reading in s.clocks.values()):
        text = f"the clocks of all {len(s.clocks)} hosts differ from this machine's by more than {CLOCK_S * 1e3:.0f} ms"
        hints.append(f"{text}: it is this one's, or all of theirs")
    hints += [
        *s.others,
        *(text for hosts, text in (s.collective or {}).items() if len(hosts) > 1),
        *silent,
    ]
    if hints:
        return _unknown((*hints, *s.unread), "testbed doctor" if silent else "testbed verify")
    if s.unread and s.state == "running" and not case.pace.iterations:
        return _unknown(s.unread, "testbed doctor")
    fine = (
        [f"{sum(s.carriers.values())} of {len(s.carriers)} ports have carrier"]
        if s.carriers
        else []
    )
    if s.state == "running":
        fine.append(case.pace.message)
        fine += [
            _foreign(s.loads[host])
            for host, cores in foreign(s.loads).items()
            if cores >= FOREIGN_CORES
        ]
    elif s.job:
        fine.append(f"the job is {s.state}")
    return Verdict(
        "",
        "none",
        (*fine, *s.unread),
        SURE if case.pace.iterations or s.state != "running" else WEAK,
    )


def _unknown(evidence: tuple[str, ...], next_command: str) -> Verdict:
    return Verdict("", "unknown", evidence, 0.0, next_command)
