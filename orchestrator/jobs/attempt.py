"""One attempt to pause a running job, or to give its ranks other rings: what is asked of them, and
what their answers mean.

The ranks decide among themselves, in their own store, and every request to them ends with a lease:
an operator that dies at any point leaves them on one set of rings, running.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from optics import Locked, Refused, TestbedError
from optics.plain import counted
from optics.ranks import RankName, host_of_rank, hosts_of
from orchestrator.hosts import Hosts, RankState
from orchestrator.store.records import JobRecord

MOST_S = 3600.0
"""The longest pause (s) that hosts accept."""
HOLD_TAKES, GO_TAKES = 2, 3
"""So many iterations may end before all ranks pause, or report that they changed over: the one that
runs when they are asked, the one at whose end they do it, and after a change over the first on the
new rings, at whose end a rank reports it."""
BUSY = ("preparing", "prepared", "held")
"""States of a rank whose move has neither taken effect nor ended."""
LOOK_S = 0.05
"""How long (s) between two looks at the ranks."""
QUIET_S = 2.0
"""A rank that has not reported for this long (s) is called silent."""
SHOWN = 4
"""So many ranks are named in a message, then they are counted."""


@dataclass
class Attempt:
    """Move `move` of the job `record`. boundary_s: an iteration of it takes this time (s) at most.

    states: the latest of every rank. Everything but `drop` raises: Refused - in words: which ranks
    did not, since when, in which state; Unreachable, TimedOut - a host does not answer; Locked - a
    newer run holds one.
    """

    hosts: Hosts
    record: JobRecord
    move: int
    boundary_s: float
    states: dict[int, RankState] = field(default_factory=dict)
    took_ms: dict[int, float] = field(default_factory=dict)
    """How long each rank took to connect what the move needs."""

    @property
    def job(self) -> str:
        """The job's name on the hosts."""
        return self.record.spec.on_hosts

    @property
    def ranks(self) -> tuple[RankName, ...]:
        """Every rank of the job; this inventory may lack the host of some."""
        return self.record.spec.wanted.ranks

    async def present(self, asked: Callable[[int], str] | None = None) -> None:
        """See that every rank takes part, and none is in another move. asked: in words, who asked
        for a move, and when.
        """
        self._known()
        states = await self.hosts.ring_changes.states(self.job, self.ranks)
        self._all_present(states)
        if busy := [s for s in states if s.state in BUSY]:
            what = (
                "is paused"
                if all(s.state == "held" for s in busy)
                else "has another move under way"
            )
            raise Refused(
                f"job {self.record.name} {what} (move {busy[0].move}{asked(busy[0].move) if asked is not None else ''})",
                hint="to end a pause: testbed job resume",
            )

    async def prepare(
        self, layout: Mapping[str, Any], lease_s: float, generation: int | None = None
    ) -> None:
        """Have all ranks connect what `layout` needs (empty: a pause alone); they have passed a
        boundary when this returns.
        """
        self._known()
        found = await self.hosts.ring_changes.prepare(
            self.job,
            self.move,
            self.ranks,
            layout,
            lease_s=lease_s,
            within_s=self.boundary_s,
            generation=generation,
        )
        self._judge(found, self.boundary_s, "prepared", "held", "changed")
        self.took_ms = {s.rank: s.took_ms for s in found if s.took_ms is not None}

    async def hold(self, longest_s: float) -> int:
        """Pause all ranks at the end of an iteration; return its number. It ends by itself after
        `longest_s` (s).
        """
        within_s = HOLD_TAKES * self.boundary_s
        iteration = 0
        # with room to begin; without, once all pause
        for lease_s in (min(MOST_S, longest_s + within_s), longest_s):
            found = await self.hosts.ring_changes.hold(
                self.job, self.move, self.ranks, lease_s=lease_s, within_s=within_s
            )
            self._judge(found, within_s, "held", "changed")
            iteration = max(s.iteration for s in found)
        return iteration

    async def go_on(self) -> int:
        """Have the ranks use what they prepared; return the iteration at whose end they do. A pause
        ends in any case.
        """
        within_s = GO_TAKES * self.boundary_s
        found = await self.hosts.ring_changes.go_on(
            self.job, self.move, self.ranks, within_s=within_s
        )
        self._judge(found, within_s, "changed")
        return self.after

    @property
    def after(self) -> int:
        """The iteration at whose end the ranks changed over, by those that report it; 0 if none
        does.
        """
        changed = [s for s in self.states.values() if s.move == self.move and s.state == "changed"]
        return max((s.iteration - 1 if s.after is None else s.after for s in changed), default=0)

    @property
    def busy(self) -> bool:
        """Whether some rank is in a move, by the latest states."""
        return any(s.state in BUSY for s in self.states.values())

    async def ended(self, within_s: float) -> Literal["changed", "decided", "void", "unknown"]:
        """How the move ended: on all ranks; `decided`: not all have reported it. Waits for
        `within_s` (s) at most.

        Raises: Locked.
        """
        until = time.monotonic() + within_s
        while True:
            try:
                states = await self.hosts.ring_changes.states(self.job, self.ranks)
                self._all_present(states)
            except Locked:
                raise
            except TestbedError:
                return "unknown"
            changed = [s for s in states if s.state == "changed" and s.move == self.move]
            if len(changed) == len(states):
                return "changed"
            waiting = changed or [s for s in states if s.state in BUSY and s.move == self.move]
            if not waiting or time.monotonic() > until:
                return "decided" if changed else "void" if self.void or not waiting else "unknown"
            await asyncio.sleep(LOOK_S)

    @property
    def void(self) -> bool:
        """Whether some rank knows that the move ended without effect; then it did so on all,
        whatever they have reported.
        """
        return any(s.state == "void" and s.move == self.move for s in self.states.values())

    async def drop(self) -> None:
        """Have the ranks forget the move unless it was decided; hosts that do not answer leave it
        to the lease.
        """
        existing = [
            rank for rank in self.ranks if host_of_rank(rank) in self.hosts.channels.lab.hosts
        ]
        asked = (self.hosts.ring_changes.drop(self.job, self.move, [rank]) for rank in existing)
        failed = await asyncio.gather(*asked, return_exceptions=True)
        if fault := next(
            (e for e in failed if e is not None and not isinstance(e, TestbedError)), None
        ):
            raise fault

    def _known(self) -> None:
        if removed := [
            host for host in hosts_of(self.ranks) if host not in self.hosts.channels.lab.hosts
        ]:
            raise Refused(
                f"job {self.record.name} runs on {_listed(removed)}, not in the inventory any more"
            )

    def _all_present(self, found: Collection[RankState]) -> None:
        self.states |= {s.rank: s for s in found}
        here = {s.rank for s in found}
        if absent := [
            f"rank {rank} ({name})" for rank, name in enumerate(self.ranks) if rank not in here
        ]:
            raise Refused(
                f"{_listed(absent)} of job {self.record.name} "
                + ("does not take part" if len(absent) == 1 else "do not take part")
                + ": launched by an older version, still starting, or ended",
                hint="testbed job status; a job that is launched again takes part",
            )

    def _judge(self, found: Collection[RankState], within_s: float, *wanted: str) -> None:
        """Raises: Refused - not all ranks have reached the first state of `wanted`, which the
        others follow, in `within_s` (s).
        """
        self._all_present(found)
        off = [s for s in found if s.state not in wanted or s.move != self.move]
        if not off:
            return
        if cannot := [s for s in off if s.error and s.move == self.move]:
            raise Refused(_listed(f"rank {s.rank} ({s.host}): {s.error}" for s in cannot))
        if self.void:
            lease = "a rank, a host or a lease ended it before all ranks agreed"
            raise Refused(f"move {self.move} of job {self.record.name} has no effect: {lease}")
        late = _listed(_late(s, self.move) for s in off)
        raise Refused(
            f"{counted(len(found) - len(off), 'rank')} of {len(self.ranks)} {wanted[0]} within {within_s:g} s; {late}",
            hint="an iteration takes longer? transition.boundary_s in the plan allows more",
        )


def _late(state: RankState, move: int) -> str:
    text = f"rank {state.rank} ({state.host}) {f'is {state.state}' if state.move == move else 'did not react'}"
    text += f" at iteration {state.iteration}"
    return text + (
        f", silent for {state.silent_s:.0f} s" if (state.silent_s or 0.0) >= QUIET_S else ""
    )


def _listed(tokens: Iterable[str]) -> str:
    found = list(tokens)
    return ", ".join(found[:SHOWN]) + (
        f" and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
    )
