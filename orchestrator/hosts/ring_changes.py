"""What the ranks of a running job are asked over the channels: to prepare other rings, to pause at
a boundary, to change over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import Any

from optics import TestbedError
from optics.ranks import RankName, host_of_rank, hosts_of
from orchestrator.hosts.api import RankState
from orchestrator.hosts.channels import Channels
from orchestrator.hosts.failures import one_error
from orchestrator.hosts.launch import on_host

REPLY_S = 5.0
"""A host gets this much longer (s) to answer than it is asked to wait for its ranks."""
ENDED = frozenset(("cannot", "void"))
"""States of a rank in which its move has no effect, on any rank."""


class RingChanges:
    """The moves of a job; docs/reference/agent.md says what each operation does on a host. `job`:
    its name on the hosts.

    A move that is under way has the same number on all hosts. A host without a rank that takes part
    returns no states. Waiting ends when all ranks of a host have reached the state, one cannot, or
    `within_s` (s) is over: the caller judges the states.
    """

    def __init__(self, channels: Channels) -> None:
        self.channels = channels

    async def prepare(
        self,
        job: str,
        move: int,
        ranks: Collection[RankName],
        layout: Mapping[str, Any],
        *,
        lease_s: float,
        within_s: float,
        generation: int | None = None,
    ) -> tuple[RankState, ...]:
        """Have all ranks connect what `layout` needs (as `launch.layout`; empty: nothing, a pause
        alone) while they go on.

        lease_s: after this time without `go` each forgets it. generation: hosts say `go` when it
        becomes active, and drop the move when they go back from it.
        """
        about = {"generation": generation} if generation is not None else {}
        return await self._move(
            "job.prepare", job, move, ranks, within_s, {**layout, **about, "lease_s": lease_s}
        )

    async def hold(
        self, job: str, move: int, ranks: Collection[RankName], *, lease_s: float, within_s: float
    ) -> tuple[RankState, ...]:
        """Pause all ranks at the end of the same iteration, for `lease_s` (s) at most."""
        return await self._move("job.hold", job, move, ranks, within_s, {"lease_s": lease_s})

    async def go_on(
        self, job: str, move: int, ranks: Collection[RankName], *, within_s: float
    ) -> tuple[RankState, ...]:
        """Have the ranks change over at the next boundary, at once if they pause; return when they
        have.
        """
        return await self._move("job.go", job, move, ranks, within_s, {"decide": True})

    async def drop(self, job: str, move: int, ranks: Collection[RankName]) -> None:
        """Have the ranks forget a move that was not decided."""
        await self.channels.ask_ranks(job, ranks, "job.drop", {"move": move}, REPLY_S)

    async def states(self, job: str, ranks: Collection[RankName]) -> tuple[RankState, ...]:
        """Where the ranks that take part are now."""
        return _states(await self.channels.ask_ranks(job, ranks, "job.ring_changes", {}, REPLY_S))

    async def pace(
        self,
        job: str,
        ranks: Collection[RankName],
        *,
        epoch_ns: int,
        period_ms: float,
        shift_ms: float,
        lease_s: float,
        by: str = "",
    ) -> int:
        """Have the iterations of these ranks begin `shift_ms` after `epoch_ns` (monotonic ns of
        this machine) and whole periods later, for `lease_s` at most; return how many ranks were
        told. It is no change that a run of the store makes: no token.

        by: whose word it is. Raises: Refused - that of another still counts.
        """
        period_ns, shift_ns = round(period_ms * 1e6), round(shift_ms * 1e6)
        common = {
            "period_ns": period_ns,
            "shift_ns": shift_ns % period_ns,
            "lease_s": lease_s,
            "by": by,
        }
        requests = {
            rank: {
                "job": on_host(job, rank),
                "epoch_ns": max(0, epoch_ns + self.channels.offset_ns(rank)),
                **common,
            }
            for rank in ranks
        }
        return sum(
            int(answer["ranks"]) for answer in (await self.channels.ask(requests, "pace")).values()
        )

    async def unpace(self, job: str, ranks: Collection[RankName], by: str = "") -> None:
        """Have their iterations begin when they like. by: whose word this ends, anybody's if it is
        empty.
        """
        await self.channels.ask(
            {rank: {"job": on_host(job, rank), "by": by} for rank in ranks}, "pace.stop"
        )

    async def _move(
        self,
        op: str,
        job: str,
        move: int,
        ranks: Collection[RankName],
        within_s: float,
        fields: Mapping[str, Any],
    ) -> tuple[RankState, ...]:
        """Send the request for all ranks. Once one fails or cannot, the move is dropped: nobody
        waits in vain.
        """
        about = {"move": move, "within_s": within_s, **fields}
        failed: dict[RankName, TestbedError] = {}

        async def ask(rank: RankName) -> dict[RankName, dict[str, Any]]:
            try:
                return await self.channels.ask_ranks(job, [rank], op, about, within_s + REPLY_S)
            except TestbedError as error:
                failed[rank] = error
                return {}

        answers: dict[RankName, dict[str, Any]] = {}
        dropped = False
        for done in asyncio.as_completed([ask(rank) for rank in ranks]):
            answers |= await done
            if not dropped and (
                failed or any(s.state in ENDED and s.move == move for s in _states(answers))
            ):
                dropped = True
                with suppress(TestbedError):
                    await self.drop(job, move, [rank for rank in ranks if rank not in failed])
        if failed:
            raise one_error(failed, len(set(hosts_of(answers)) - set(hosts_of(failed))))
        return _states(answers)


def _states(answers: Mapping[RankName, Mapping[str, Any]]) -> tuple[RankState, ...]:
    found = [
        RankState(
            host_of_rank(name),
            int(r["rank"]),
            str(r.get("state") or ""),
            int(r.get("move") or 0),
            int(r.get("iteration") or 0),
            after=r.get("after"),
            took_ms=r.get("took_ms"),
            held_ms=r.get("held_ms"),
            stall_ms=r.get("stall_ms"),
            silent_s=r.get("silent_s"),
            error=str(r.get("error") or ""),
        )
        for name, values in answers.items()
        for r in values["ranks"]
    ]
    return tuple(sorted(found, key=lambda state: state.rank))
