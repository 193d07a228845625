"""From signals to verdicts: which component is at fault, and what shows it. Pure: the same signals
give the same verdict.

Causes are looked for from below: what is dead or dark explains ranks that stand still or lost a
peer, and those explain slow iterations. A verdict needs an effect and a cause: slow iterations
alone name nobody, and neither does a busy processor under a job that goes at its usual pace.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping

from optics import HostName
from optics.ranks import LOST_PEER, RankName, host_of_rank, signal_of
from orchestrator.hosts.api import Load
from orchestrator.verify import hostfaults, linkfaults
from orchestrator.verify.badlinks import CONTROL, LOSS
from orchestrator.verify.case import LIKELY, LINES, SURE, WEAK, Case
from orchestrator.verify.pace import hang_text
from orchestrator.verify.signals import Signals, Verdict

AGAIN = 4
"""Segments that a host sends again while it is looked at before its links are suspected: test
traffic then decides.
"""
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
        text = f"{signals.moving}: what stands or is dark now may be meant to"
        return (_unknown((text,), "testbed job diagnose"),)
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
    by_times = hostfaults.late_host(case) is not None or hostfaults.starved(case) is not None
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


def launches(case: Case) -> Iterator[Verdict]:
    """A job whose launch failed: its ranks are not there because they never were."""
    s = case.signals
    if s.unlaunched and not any(
        heartbeat.state == "running" for heartbeat in s.heartbeats.values()
    ):
        case.explained = True
        first, *rest = s.why.splitlines()
        evidence = (f"its launch failed: {first}", *rest[:LINES])
        yield Verdict(f"job {s.job}", "not-launched", evidence, SURE, "testbed up")


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
        hows = {"exited": f"exited with {heartbeat.code}", "killed": "was killed"}
        how = hows.get(heartbeat.state, "is gone")
        rest = f"of {len(s.heartbeats) - len(first)} others {alive} run and {victims} ended because they lost a peer (exit {LOST_PEER})"
        evidence = (
            f"rank {case.number(rank)} on {host_of_rank(rank)} {how} in iteration {heartbeat.iteration}",
            rest,
        )
        sure = SURE if heartbeat.state != "absent" else LIKELY
        yield Verdict(f"rank {rank}", "dead-rank", evidence, sure, _logs(rank, case))


def _logs(rank: RankName, case: Case) -> str:
    number = case.number(rank)
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
        if (own := case.load_of(rank)) is not None and own.state == "T" and rank in case.state
    ]
    text = hang_text(s.heartbeats, case.state)
    if case.explained and not stopped:
        return
    for rank in stopped:
        case.explained = True
        why = f"every process of rank {case.number(rank)} on {host_of_rank(rank)} is stopped (state T)"
        yield Verdict(f"rank {rank}", "hung-rank", (why, text), SURE, _logs(rank, case))
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
    if hostfaults.starved(case) == host_of_rank(rank):
        return  # `busy_hosts` says so
    heartbeat = s.heartbeats[rank]
    why = f"is in phase {heartbeat.phase} of iteration {heartbeat.iteration} since {heartbeat.age_s:.1f} s"
    others = f"{waiting if busy else len(case.state) - 1} others wait for it in an exchange"
    evidence = [f"rank {case.number(rank)} on {host_of_rank(rank)} {why}", others, text]
    if (own := case.load_of(rank)) is not None:
        evidence.append(f"its processes use {own.cores:.2f} cores (state {own.state})")
    case.explained = True
    yield Verdict(
        f"rank {rank}", "hung-rank", tuple(evidence), 0.9 if busy else LIKELY, _logs(rank, case)
    )


_JUDGES: tuple[Callable[[Case], Iterator[Verdict]], ...] = (
    linkfaults.dead_segments,
    hostfaults.dead_hosts,
    hostfaults.bare_hosts,
    linkfaults.dead_cables,
    linkfaults.dark_planned_links,
    hostfaults.rdma_ports,
    launches,
    dead_ranks,
    linkfaults.crossed_fibres,
    hung_ranks,
    linkfaults.carried_links,
    linkfaults.bad_links,
    hostfaults.busy_hosts,
    hostfaults.slow_collectives,
    hostfaults.wrong_clocks,
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
    if s.clocks and all(hostfaults.is_off(reading) for reading in s.clocks.values()):
        text = f"the clocks of all {len(s.clocks)} hosts differ from this machine's by more than {hostfaults.CLOCK_S * 1e3:.0f} ms"
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
            hostfaults.foreign_text(s.loads[host])
            for host, cores in hostfaults.foreign(s.loads).items()
            if cores >= hostfaults.FOREIGN_CORES
        ]
    elif s.job:
        fine.append(f"the job is {s.state}")
    sure = SURE if case.pace.iterations or s.state != "running" else WEAK
    return Verdict("", "none", (*fine, *s.unread), sure)


def _unknown(evidence: tuple[str, ...], next_command: str) -> Verdict:
    return Verdict("", "unknown", evidence, 0.0, next_command)
