"""What the guard does about a job: nothing, wait, restart it, or replace a host. Pure: values in,
an action out.

Exit codes and heartbeats are written by the job's user, who can so cause or prevent restarts of
this one job, never more than the budget allows.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from optics import HostName
from optics.plain import counted, seconds_text
from optics.ranks import LOST_PEER, RankName, host_of_rank, signal_of
from orchestrator.hosts.late import START_S

UNUSABLE = (2, 126, 127)
"""Exit codes of a rank that could not be started so: bad arguments, environment or checkpoint; a
command that cannot be run.
"""
HANG_ITERATIONS, HANG_LEAST_S, HANG_MOST_S = 3, 4.0, 300.0
"""A job hangs when no rank's heartbeat has changed for this many times its longest iteration: no
sooner than after the least (s), and no later than the most (s) beyond that iteration. The least is
twice that of a silent rank in `hosts/late.py`: that only names it, this restarts the job, and on a
busy machine ranks of a healthy job may pause for seconds."""
PROGRAM_LEAST_S = 300.0
"""The least (s) for a program of the lab's owner: what it does between two iterations that it
shows, such as an evaluation or a checkpoint, looks like computing and takes minutes."""
SILENT_S = 10.0
"""A host whose agent does not answer for this long (s) while its job has ended or hangs is taken
for dead.
"""
FIRST_BACKOFF_S, LAST_BACKOFF_S = 10.0, 600.0
"""Pause (s) after the first attempt of a row; it doubles with each further one, up to the last."""
CALM_S = 30.0
"""A job that ran for this long (s) after an attempt ends the row."""
MOST_RESTARTS = 100
"""The largest budget: the store reads the latest 200 attempts (`store/recoveries.py`), more of one
period would not be counted.
"""
REPEATED = 2
"""A host whose ranks were lost in this many earlier attempts of the period is replaced rather than
used again.
"""


@dataclass(frozen=True, slots=True)
class Budget:
    """At most `restarts` recoveries in any `per_s` (s)."""

    restarts: int
    per_s: float

    @classmethod
    def of(cls, text: str) -> Budget:
        """Read `3/h`, `2/30m` or `10/d`. Raises: ValueError - it is no budget, or one of 0 or of
        more than `MOST_RESTARTS`.
        """
        found = re.fullmatch(r"([0-9]{1,4})/([0-9]{1,4})?(s|m|min|h|d)", text.strip().lower())
        if found is None:
            raise ValueError(f"{text!r} is not a number per time such as 3/h, 2/30m or 10/d")
        restarts, units = int(found[1]), int(found[2] or 1)
        if restarts == 0:
            raise ValueError(
                f"a budget of {text} never restarts anything; to watch without acting, leave --jobs out"
            )
        if restarts > MOST_RESTARTS:
            raise ValueError(
                f"{text!r} is more than {MOST_RESTARTS} recoveries; a shorter period allows as many, such as 10/h for 240/d"
            )
        if units == 0:
            raise ValueError(f"{text!r} has a period of zero")
        return cls(
            restarts,
            units * {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}[found[3]],
        )

    def __str__(self) -> str:
        for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
            if self.per_s % size == 0:
                units = int(self.per_s // size)
                return f"{self.restarts}/{units if units > 1 else ''}{unit}"
        return f"{self.restarts}/{self.per_s:g}s"


@dataclass(frozen=True, slots=True)
class RankEnd:
    """state: running, exited (with `code`), killed, absent (its host knows nothing of it), silent
    (its host does not answer).
    """

    state: str
    code: int | None = None

    @property
    def lost(self) -> bool:
        """It was ended from outside."""
        return self.state in ("killed", "absent") or (
            self.state == "exited" and signal_of(self.code) is not None
        )

    def __str__(self) -> str:
        return (
            f"exit {self.code}"
            if self.state == "exited"
            else {"silent": "its host does not answer"}.get(self.state, self.state)
        )


@dataclass(frozen=True, slots=True)
class Sight:
    """What is known of a job at one moment.

    job: its id in the store. recorded: its state there. still_s: since any rank's heartbeat changed
    (s). longest_s: the longest time (s) from one of its iterations to the next that it showed, 0 if
    unknown. still_s is 0 where nothing can be concluded from heartbeats: while it starts, is paused
    or held, or has none. silent_s: hosts of the job that do not answer, and since when (s). blamed:
    the host that the others wait for, if any. least_s: it hangs no sooner than after this (s).
    """

    job: int
    recorded: str
    ranks: Mapping[RankName, RankEnd]
    still_s: float = 0.0
    longest_s: float = 0.0
    silent_s: Mapping[HostName, float] = field(default_factory=dict)
    blamed: HostName = ""
    least_s: float = HANG_LEAST_S


@dataclass(frozen=True, slots=True)
class PastRecovery:
    """An earlier recovery. hosts: those whose ranks were lost. age_s: since it began; idle_s: since
    it ended (0: it goes on).

    outcome: ok, failed, died (the guard did, or was killed), or empty while it goes on.
    """

    job: int
    hosts: tuple[HostName, ...]
    age_s: float
    idle_s: float
    outcome: str


@dataclass(frozen=True, slots=True)
class Fault:
    """kind: `lost` (ranks), `hang`, `dead-host`, `own` (the program ended by itself), `unknown` (no
    host has a record of its ranks: all lost power just after its launch, or were installed again,
    and its ranks may run). hosts: the causes as far as known."""

    kind: Literal["lost", "hang", "dead-host", "own", "unknown"]
    why: str
    hosts: tuple[HostName, ...] = ()


@dataclass(frozen=True, slots=True)
class Action:
    """What to do. wait, report: nothing now, and why; after_s: look again then at the latest.
    evict: replace `hosts`.
    """

    kind: Literal["none", "wait", "report", "restart", "evict"]
    why: str = ""
    hosts: tuple[HostName, ...] = ()
    after_s: float = 0.0


NOTHING = Action("none")


def backoff_s(attempts: int) -> float:
    """Pause (s) after this many attempts in a row."""
    return min(FIRST_BACKOFF_S * 2.0 ** (attempts - 1), LAST_BACKOFF_S) if attempts else 0.0


def in_a_row(past: Sequence[PastRecovery]) -> int:
    """How many attempts, up to now, followed each other with no calm between them beyond the
    prescribed pause.
    """
    row, before = 0, 0.0
    for attempt in sorted(past, key=lambda one: -one.age_s):
        row = row + 1 if row and before - attempt.age_s < backoff_s(row) + CALM_S else 1
        before = attempt.idle_s
    return row if before < backoff_s(row) + CALM_S else 0


def hang_s(longest_s: float, least_s: float = HANG_LEAST_S) -> float:
    """How long (s) a job with this longest iteration (s, 0: none has ended yet) may stand before it
    counts as hanging.
    """
    if longest_s <= 0:
        return max(START_S, least_s)
    return max(min(HANG_ITERATIONS * longest_s, longest_s + HANG_MOST_S), least_s)


def fault(sight: Sight) -> Fault | None:
    """What is wrong with the job; None if it runs, was stopped or finished, or nothing can be
    determined yet.
    """
    ends = sight.ranks
    if sight.recorded in ("stopped", "finished", "none") or not ends:
        return None
    states, blamed = {end.state for end in ends.values()}, (sight.blamed,) if sight.blamed else ()
    if states == {"silent"}:
        return None  # this machine's network rather than all hosts at once
    if states == {"absent"}:
        return Fault(
            "unknown",
            f"{', '.join(dict.fromkeys(map(host_of_rank, ends)))}: none knows of it any more",
        )
    waits = sight.still_s >= hang_s(sight.longest_s, sight.least_s)
    silent = tuple(
        dict.fromkeys(host_of_rank(rank) for rank, end in ends.items() if end.state == "silent")
    )
    over = {
        rank: end for rank, end in ends.items() if end.lost or (end.state == "exited" and end.code)
    }
    if unusable := {rank: end for rank, end in over.items() if end.code in UNUSABLE}:
        return Fault("own", _listed(unusable))
    if silent and (over or waits):
        text = f"; {_listed(over)}" if over else f"; no rank has moved for {sight.still_s:.1f} s"
        return Fault(
            "dead-host",
            f"{', '.join(silent)} {'does' if len(silent) == 1 else 'do'} not answer{text}",
            silent,
        )
    if lost := {rank: end for rank, end in over.items() if end.lost}:
        return Fault("lost", _listed(lost), tuple(dict.fromkeys(map(host_of_rank, lost))))
    if peers := {rank: end for rank, end in over.items() if end.code == LOST_PEER}:
        return Fault("lost", f"{counted(len(peers), 'rank')} lost a peer ({_listed(over)})", blamed)
    if over:
        return Fault("own", _listed(over))
    if waits and any(end.state == "running" for end in ends.values()):
        times = (
            f"{sight.still_s / sight.longest_s:.0f} times its longest iteration"
            if sight.longest_s > 0
            else "and no iteration has ended"
        )
        message = f"no rank has moved for {sight.still_s:.1f} s, {times}"
        return Fault(
            "hang", message + (f"; the others wait for {sight.blamed}" if blamed else ""), blamed
        )
    return None


def _listed(ends: Mapping[RankName, RankEnd]) -> str:
    first = [f"{rank}: {end}" for rank, end in list(ends.items())[:4]]
    return ", ".join(first) + (f" and {len(ends) - 4} more" if len(ends) > 4 else "")


def decide_recovery(
    sight: Sight, past: Sequence[PastRecovery], budget: Budget, spares: Collection[HostName]
) -> Action:
    """What to do about the job. past: earlier recoveries on this part of the lab. spares: hosts
    that could replace one now.
    """
    found = fault(sight)
    if found is None:
        return NOTHING
    if found.kind == "own":
        return Action(
            "report", f"{found.why}: it ended by itself, and would again; see: testbed job logs"
        )
    if found.kind == "unknown":
        return Action(
            "report",
            f"{found.why}, and it is not known whether its ranks run; once none does: testbed up",
        )
    if any(attempt.job == sight.job and attempt.outcome == "ok" for attempt in past):
        return NOTHING  # the job that this one was replaced by is not recorded yet
    if any(not attempt.outcome for attempt in past):
        return Action("wait", f"{found.why}; a recovery goes on already", after_s=1.0)
    hosts: tuple[HostName, ...] = ()
    if found.kind == "dead-host":
        hosts = found.hosts
        if (left := SILENT_S - min(sight.silent_s.get(host, 0.0) for host in hosts)) > 0:
            return Action("wait", f"{found.why}; taken for dead after {SILENT_S:g} s", hosts, left)
        if len(hosts) > len(spares):
            has = f"{len(spares) or 'no'} usable spare{'' if len(spares) == 1 else 's'} for {counted(len(hosts), 'host')}"
            return Action(
                "report",
                f"{found.why}; {has}: the job is restarted once {', '.join(hosts)} answers again",
                hosts,
            )
    recent = [attempt for attempt in past if attempt.age_s < budget.per_s]
    if len(recent) >= budget.restarts:
        free_s = budget.per_s - sorted(attempt.age_s for attempt in recent)[budget.restarts - 1]
        why = f"{found.why}; the budget of {budget} is spent for another {seconds_text(free_s)}: testbed job launch, or wait"
        return Action("report", why, hosts, free_s)
    if (
        recent
        and (left := backoff_s(in_a_row(recent)) - min(attempt.idle_s for attempt in recent)) > 0
    ):
        return Action(
            "wait",
            f"{found.why}; attempt {len(recent) + 1} of {budget} in {left:.0f} s",
            hosts,
            left,
        )
    if not hosts and spares:
        often = [
            host
            for host in found.hosts
            if sum(host in attempt.hosts for attempt in recent) >= REPEATED
        ]
        hosts = tuple(often[: len(spares)])
        if hosts:
            again = f"{', '.join(hosts)} for the {_times(1 + max(sum(h in a.hosts for a in recent) for h in hosts))} time"
            return Action("evict", f"{found.why}: {again}", hosts)
    return Action("evict" if hosts else "restart", found.why, hosts or found.hosts)


def _times(count: int) -> str:
    return {1: "first", 2: "second", 3: "third"}.get(count, f"{count}th")
