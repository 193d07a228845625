"""What a rank of a job printed last."""

from __future__ import annotations

from optics import Refused
from optics.ranks import RankName
from orchestrator.hosts.fleet import Hosts


async def last_line(hosts: Hosts, job: str, rank: RankName) -> str:
    """Empty if it printed nothing; why it cannot be read, where the job put something else in the
    place of its log.
    """
    try:
        lines = (await hosts.jobs.tail(job, rank, "log", -2000)).text.strip().splitlines()
    except Refused as error:
        return f"({error})"
    return lines[-1] if lines else ""
