"""The congestion control of a job's connections: given when its ranks start, and changed while they
run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from extensions.congestion.plan import OWN, Congestion, PlannedCongestion
from optics import HostName
from optics.plan import Job
from orchestrator.hosts.launch import on_host
from orchestrator.hosts.render import CONGCTL
from orchestrator.inventory.lab import Lab
from orchestrator.jobs.attachments import Attachment, Given
from orchestrator.jobs.record import ranks_of
from orchestrator.session import Session
from orchestrator.store.records import JobRecord

REGISTER_S = 30.0
"""How long (s) hosts may take to register a congestion control for a moment: 0.1 s each, many of
them on one small machine.
"""


def fields(wanted: Congestion) -> dict[str, Any]:
    """A congestion control as agents take it."""
    parameters = asdict(wanted) if wanted.control == OWN else {"control": wanted.control}
    return {"control": parameters.pop("control"), "parameters": parameters}


class CongestionOfJob(Attachment[Congestion]):
    """Hosts' agents set it on the connections of a job's processes, those that come later
    included.
    """

    key = PlannedCongestion.key

    async def ready(self, value: Congestion, job: Job, session: Session) -> None:
        await session.hosts.channels.ask_all(
            job.hosts, "congestion.ready", {"control": value.control}, REGISTER_S
        )

    def extra(
        self, value: Congestion, given: Given, lab: Lab, host: HostName
    ) -> tuple[Mapping[str, str], Mapping[str, Any]]:
        return {}, {"congestion": fields(value)}

    async def adjust(self, session: Session, record: JobRecord, value: Congestion | None) -> str:
        """None: what the routes pin. Raises: Refused - a host cannot have it, or the job does not
        run there. Unreachable.
        """
        reply = {"control": CONGCTL, "back": True} if value is None else fields(value)
        name, ranks = record.spec.on_hosts, ranks_of(record, session.lab)
        await session.hosts.channels.ask(
            {rank: {"job": on_host(name, rank), **reply} for rank in ranks},
            "congestion",
            REGISTER_S,
        )
        control = value.control if value is not None else "that of the routes"
        return f"the congestion control of {record.name}'s connections is {control} now"


ATTACHMENT = CongestionOfJob()
