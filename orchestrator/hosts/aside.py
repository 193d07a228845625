"""A process of a job's attachment on a host, beside the ranks: started before them, looked at, ended
after them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from optics import HostName, Missing, Refused, TestbedError
from orchestrator.hosts.api import Tail
from orchestrator.hosts.channels import Channels
from orchestrator.hosts.facts import workload_digest

BEGUN_S = 60.0
"""An agent that answers has begun a process within this time (s), however busy its machine is."""


@dataclass(frozen=True, slots=True)
class Aside:
    """One. name: what its host calls it. noun: its key in a plan; job: whose it is, by name."""

    channels: Channels
    host: HostName
    name: str
    noun: str = ""
    job: str = ""

    async def reach(self) -> None:
        """See that its host answers. Raises: Missing - the inventory has it no more. Unreachable."""
        if self.host not in self.channels.lab.hosts:
            text = f"{self.host}, where the {self.noun} of job {self.job} is to be, is not in the inventory any more"
            hint = f"testbed up, with a plan that names another host, or leaves `{self.noun}` out"
            raise Missing(text, hint=hint)
        if self.host not in self.channels.attached() and isinstance(
            error := (await self.channels.connect([self.host]))[self.host], TestbedError
        ):
            raise error

    async def start(self, module: str, env: Mapping[str, str], checkpoints: str) -> None:
        """Start this module of those that are copied to hosts. checkpoints: the name of a directory
        that outlives it.
        """
        own = {
            "PYTHONPATH": f"/var/lib/testbed/workloads/{workload_digest()}",
            "PYTHONUNBUFFERED": "1",
        }
        about = {"name": self.name, "argv": ["python3", "-m", module], "env": {**own, **env}}
        await self.channels.ask(
            {self.host: about | {"checkpoints": checkpoints}}, "job.start", BEGUN_S
        )

    async def check_living(self) -> None:
        """Raises: Refused - it has ended."""
        state = (await self.channels.ask({self.host: {"name": self.name}}, "job.status", BEGUN_S))[
            self.host
        ]
        if state["state"] != "running":
            log = (await self.tail("log", -2000, BEGUN_S)).text.strip()
            how = f"exit {state['code']}" if state.get("code") is not None else state["state"]
            last = log.splitlines()[-1] if log else "it printed nothing"
            raise Refused(
                f"the {self.noun} of job {self.job} on {self.host} ended as it started ({how}): {last}",
                hint="testbed doctor",
            )

    async def end(self, grace_s: float = 10.0) -> None:
        """End it."""
        await self.channels.ask(
            {self.host: {"name": self.name, "grace_s": grace_s}}, "job.stop", grace_s + 5.0
        )

    async def tail(self, file: str, offset: int, timeout_s: float = 5.0) -> Tail:
        """A piece of one of its files, from byte `offset` on, and its state."""
        values = (
            await self.channels.ask(
                {self.host: {"name": self.name, "file": file, "offset": offset}},
                "job.tail",
                timeout_s,
            )
        )[self.host]
        return Tail(values["data"], values.get("offset", 0), values.get("size", 0), values["state"])
