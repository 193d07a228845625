"""What the ranks of a job are about to send, as their hosts' agents read it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from extensions.adapt.traffic import Demand, Sent
from optics import Garbled
from optics.ranks import RankName
from orchestrator.hosts.channels import Channels
from orchestrator.hosts.launch import on_host


async def demand(
    channels: Channels,
    job: str,
    ranks: Collection[RankName],
    *,
    after: int = 0,
    reach: int = 0,
    within_s: float = 0.0,
) -> Mapping[RankName, Demand]:
    """What each rank of a job is about to send, its iterations after `after`; answered once its
    step is at least `reach`.

    within_s: it is answered after this long (at most 30, s) all the same. Raises: Unreachable,
    TimedOut; Refused - an agent is too old to know; Garbled.
    """
    common = {"after": after, "reach": reach, "within_s": within_s}
    answers = await channels.ask(
        {r: {"name": on_host(job, r), **common} for r in ranks}, "demand", within_s + 5.0
    )
    offsets = {rank: channels.offset_ns(rank) for rank in answers}
    try:
        return {rank: _demand(rank, values, offsets[rank]) for rank, values in answers.items()}
    except (KeyError, TypeError, ValueError) as error:
        raise Garbled(f"the answer of an agent to demand is none: {error!r}") from error


def _demand(rank: RankName, v: Mapping[str, Any], offset_ns: int) -> Demand:
    """Read an answer to `demand`. Raises: KeyError, TypeError, ValueError - it is none."""
    rows = tuple(
        Sent(
            int(n),
            begin - offset_ns,
            gate - offset_ns,
            end - offset_ns if end else None,
            tuple(map(int, to)),
        )
        for n, begin, gate, end, to in v["rows"]
    )
    since_ns = int(v.get("since_ns", offset_ns)) - offset_ns
    return Demand(rank, str(v["state"]), int(v["step"]), since_ns, rows, str(v.get("error", "")))
