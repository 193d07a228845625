"""The gates of a running job: what its ranks are about to send once they have decided, and the
moment in an iteration at which a change fits.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field

from extensions.adapt.hosts import demand
from extensions.adapt.region_change import Abandoned
from extensions.adapt.traffic import Demand
from optics import Link, NotVerified, TestbedError
from optics.ranks import RankName
from orchestrator.hosts.channels import Channels
from orchestrator.hosts.late import START_S

WAIT_S = 1.0
"""A rank is waited for in pieces of this long (s), between which a request to stop is seen."""
MOMENT_S = 60.0
"""A change that found no moment to begin for this long (s) is given up."""


@dataclass
class Gates:
    """Those of the ranks of a job, `job` being its name on the hosts."""

    channels: Channels
    job: str
    ranks: tuple[RankName, ...]
    began: float = field(default_factory=time.monotonic)

    async def decided(
        self, at: int, mend: Callable[[], Awaitable[None]]
    ) -> Mapping[RankName, Demand] | None:
        """What all ranks send in iteration `at` or a later one, once its gates have decided; None
        if the job has ended. mend: called while that iteration does not come.

        Raises: as `demand`; NotVerified - its program does not say.
        """
        while True:
            found = await self._first(2 * at + 1)
            if found.state != "running":
                return None
            # its ranks may still be loading
            if found.error and time.monotonic() > self.began + START_S:
                hint = "testbed job status; the programs moe and serve say it: extensions/adapt/README.md"
                text = f"{found.rank} does not say what it sends: {found.error}"
                raise NotVerified(text, hint=hint)
            if found.step > 2 * at and found.step % 2:
                return await self._all(found.step // 2, after=max(0, found.step // 2 - 8))
            if found.step <= 2 * at:
                await mend()
            at = max(at, found.step // 2)

    async def moment(
        self,
        iteration: int,
        fits: Callable[[float], bool],
        stopping: Callable[[], bool],
        dark: Callable[[], Awaitable[Collection[Link]]],
    ) -> int:
        """Wait for an iteration, `iteration` or a later one, that has begun so shortly ago that a
        change `fits`, by how long ago that is (s); return its number. dark: asked, while that
        iteration does not come, for circuits without light.

        Raises: Abandoned - it did not come, or there is one, for which the job waits; as `demand`.
        """
        reach, until = 2 * iteration, time.monotonic() + MOMENT_S
        while time.monotonic() < until:
            found = await self._first(reach)
            if found.state != "running" or stopping():
                raise Abandoned("stopped on request" if stopping() else "the job has ended")
            late_s = (time.monotonic_ns() - found.since_ns) / 1e9
            if found.step >= reach:
                if found.step % 2 == 0 and fits(late_s):
                    return found.step // 2
                reach = 2 * (found.step // 2 + 1)
            elif await dark():
                raise Abandoned("the job waits for a circuit without light")
        raise Abandoned(f"no iteration left room for a change within {MOMENT_S:g} s")

    async def exposed_ms(self, done_ns: int, iteration: int) -> float:
        """How much of a change until `done_ns` fell into the exchanges of its iteration (ms); 0
        where the ranks do not tell any more.
        """
        try:
            found = await self._all(iteration, after=iteration - 1)
        except TestbedError:
            return 0.0
        sent = (sent for each in found.values() for sent in each.sent)
        gates = [each.gate_ns for each in sent if each.iteration == iteration]
        return max(0.0, (done_ns - min(gates)) / 1e6) if gates else 0.0

    async def _first(self, reach: int) -> Demand:
        """Of the first rank, once its step is `reach`, after WAIT_S at the latest."""
        rank = self.ranks[0]
        return (await demand(self.channels, self.job, [rank], reach=reach, within_s=WAIT_S))[rank]

    async def _all(self, iteration: int, after: int) -> Mapping[RankName, Demand]:
        reach = 2 * iteration + 1
        return await demand(
            self.channels, self.job, self.ranks, after=after, reach=reach, within_s=WAIT_S
        )
