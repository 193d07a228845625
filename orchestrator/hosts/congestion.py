"""TCP's congestion control of a job's connections, set while it runs."""

from __future__ import annotations

from collections.abc import Collection

from optics.plan import Congestion
from optics.ranks import RankName
from orchestrator.hosts.channels import Channels
from orchestrator.hosts.launch import congestion, on_host
from orchestrator.hosts.render import CONGCTL

REGISTER_S = 30.0
"""How long (s) hosts may take to register a congestion control for a moment: 0.1 s each, many of them on one small machine."""


class Congestions:
    """What is asked of hosts about the congestion control of a job that runs."""

    def __init__(self, channels: Channels) -> None:
        self.channels = channels

    async def set(self, job: str, ranks: Collection[RankName], wanted: Congestion | None) -> None:
        """Give the connections of a running job a congestion control. `job`: its name on the hosts. None: what the routes pin.

        Raises: Refused - a host cannot have it, or the job does not run there.
        """
        fields = {"control": CONGCTL, "back": True} if wanted is None else congestion(wanted)
        await self.channels.ask({rank: {"job": on_host(job, rank), **fields} for rank in ranks}, "congestion", REGISTER_S)
