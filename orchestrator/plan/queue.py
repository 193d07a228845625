"""Which jobs of a lab's queue start now, on which hosts, and why the others wait. Pure: times are
seconds from now.

First come, first served; jobs that may be stopped (`preemptible`) come after all that may not.
Behind the first that cannot start, a job starts only if that does not delay the first (Lifka, The
ANL/IBM SP scheduling system, 1995: EASY backfilling): it leaves the hosts alone that the first will
get, or ends before, or will be stopped for it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

from optics import HostName
from optics.plain import counted, hours_text, natural
from orchestrator.inventory.partitions import compatible_hosts

TURNOVER_S = 30.0
"""What starting a job and ending it with a checkpoint take (s): light, routes and launch about 10,
and a rank gets 15 to write.
"""
NAMED = 4
"""Hosts that are named in a reason."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """A job that waits. able: the hosts that could hold it, in the lab's order; it needs `count` of
    them.

    left_s: how long (s) it may run. later: of those that somebody has booked before it could be over,
    after how long (s) it could begin there. refused: sets of hosts on which it was found impossible.
    """

    number: int
    count: int
    able: tuple[HostName, ...]
    left_s: float
    preemptible: bool = False
    refused: frozenset[frozenset[HostName]] = frozenset()
    later: Mapping[HostName, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Running:
    """A job that has hosts. ends_s: when its time is over at the latest. stopping: it is being
    stopped.
    """

    number: int
    hosts: frozenset[HostName]
    ends_s: float
    preemptible: bool = False
    stopping: bool = False


@dataclass(slots=True)
class Decision:
    """What to do now. starts: hosts of each job that starts. stops: the running jobs to stop, each
    with the job that it is for.

    why: of each job that goes on waiting, in words. begins_s: when the first of these can start at
    the latest, None without one, infinite if that is unknown.
    """

    starts: dict[int, tuple[HostName, ...]] = field(default_factory=dict)
    stops: dict[int, int] = field(default_factory=dict)
    why: dict[int, str] = field(default_factory=dict)
    begins_s: float | None = None


def place(job: Waiting, free: Collection[HostName], after_s: float = 0.0) -> tuple[HostName, ...]:
    """The hosts that the job would get of these after this time (s): the first `count` that follow
    each other; none if there are not enough.
    """
    able = [host for host in job.able if host in free and job.later.get(host, 0.0) <= after_s]
    if len(able) < job.count:
        return ()
    around = able + able[: job.count - 1]
    for begin in range(len(able)):
        found = tuple(around[begin : begin + job.count])
        if frozenset(found) not in job.refused:
            return found
    return ()


def decide_queue(
    waiting: Iterable[Waiting],
    running: Iterable[Running],
    free: Collection[HostName],
    out: Mapping[HostName, str] | None = None,
    *,
    turnover_s: float = TURNOVER_S,
) -> Decision:
    """Decide about all jobs. free: the hosts that nobody has. out: hosts that the queue cannot use
    now, and why.
    """
    found, existing, going = Decision(), frozenset(free), list(running)
    line = sorted(waiting, key=lambda job: (job.preemptible, job.number))
    while line and (hosts := place(line[0], existing)):
        job = line.pop(0)
        found.starts[job.number] = hosts
        existing = compatible_hosts(existing, hosts)
        going.append(
            Running(job.number, frozenset(hosts), job.left_s + turnover_s, job.preemptible)
        )
    if not line:
        return found
    first, behind = line[0], line[1:]
    for victim in _victims(first, existing, going, found.starts):
        found.stops[victim.number] = first.number
    found.begins_s, later = _begins(first, existing, going, found.stops)
    reserved = frozenset(place(first, later, found.begins_s))
    found.why[first.number] = _why_first(first, existing, going, found, out or {})
    for job in behind:
        hosts = place(job, compatible_hosts(existing, reserved)) or place(job, existing)
        if not hosts:
            found.why[job.number] = f"{_needs(job, existing)}; comes after {first.number}"
            continue
        ends = job.left_s + turnover_s <= found.begins_s
        # its hosts, in time
        back = ends or (job.preemptible and not first.preemptible and found.begins_s > turnover_s)
        if (
            not back
            and compatible_hosts(hosts, reserved) != {*hosts}
            and not place(first, compatible_hosts(later, hosts), found.begins_s)
        ):
            found.why[job.number] = _why_behind(job, first, found.begins_s)
            continue
        found.starts[job.number] = hosts
        existing = compatible_hosts(existing, hosts)
        if not back:
            later = compatible_hosts(later, hosts)
            reserved = frozenset(place(first, later, found.begins_s))
    return found


def _victims(
    first: Waiting, free: Collection[HostName], going: Sequence[Running], started: Collection[int]
) -> list[Running]:
    """The running jobs to stop for the first: the fewest of the latest; none if it may stop none,
    need not, or gains nothing.
    """
    coming = set(free).union(*(job.hosts for job in going if job.stopping))
    if first.preemptible or place(first, coming):
        return []
    chosen: list[Running] = []
    may = [
        job for job in going if job.preemptible and not job.stopping and job.number not in started
    ]
    for job in sorted(may, key=lambda job: -job.number):
        chosen.append(job)
        coming |= job.hosts
        if place(first, coming):
            break
    else:
        return []
    for job in list(chosen):
        if place(first, coming - job.hosts):
            chosen.remove(job)
            coming -= job.hosts
    return chosen


def _begins(
    first: Waiting, free: Collection[HostName], going: Sequence[Running], stops: Collection[int]
) -> tuple[float, frozenset[HostName]]:
    """When the first can start at the latest (s), and the hosts that are free for it then."""
    now = [job for job in going if job.stopping or job.number in stops]
    existing = frozenset(free).union(*(job.hosts for job in now))
    if place(first, existing):
        return 0.0, existing
    now += [job for job in going if job not in now and job.preemptible and not first.preemptible]
    existing = existing.union(*(job.hosts for job in now))
    ends = [(job.ends_s, job.hosts) for job in going if job not in now]
    ends += [(end_s, frozenset()) for end_s in {*first.later.values()}]
    for end_s, hosts in sorted(ends, key=lambda item: item[0]):
        existing |= hosts
        if end_s < inf and place(first, existing, end_s):
            return max(end_s, 0.0), existing
    return inf, frozenset()


def _needs(job: Waiting, free: Collection[HostName]) -> str:
    able = [host for host in job.able if host in free and host not in job.later]
    if len(able) >= job.count:
        return f"needs {counted(job.count, 'host')}; no set of those that are free can hold it"
    some = f" ({', '.join(able[:NAMED])}{' ...' if len(able) > NAMED else ''})" if able else ""
    return f"needs {counted(job.count, 'host')} of {len(job.able)}, {len(able)} {'is' if len(able) == 1 else 'are'} free{some}"


def _why_first(
    first: Waiting,
    free: Collection[HostName],
    going: Sequence[Running],
    found: Decision,
    out: Mapping[HostName, str],
) -> str:
    message = _needs(first, free)
    ending = sorted({job.number for job in going if job.stopping or job.number in found.stops})
    assert found.begins_s is not None
    if not found.begins_s and ending:
        return f"{message}; starts when {', '.join(map(str, ending))} {'has' if len(ending) == 1 else 'have'} stopped"
    if found.begins_s < inf:
        return f"{message}; enough in {hours_text(found.begins_s)} at the latest"
    missing = sorted((host for host in first.able if host in out), key=natural)
    text = "; ".join(f"{host}: {out[host]}" for host in missing[:NAMED])
    more = f"; and {len(missing) - NAMED} more" if len(missing) > NAMED else ""
    return f"{message}; it is not known when more will be" + (f" ({text}{more})" if text else "")


def _why_behind(job: Waiting, first: Waiting, begins_s: float) -> str:
    when = f"in {hours_text(begins_s)}" if begins_s else "now"
    return f"would delay {first.number}, which gets some of the free hosts {when}; this one may run for {hours_text(job.left_s)}"
