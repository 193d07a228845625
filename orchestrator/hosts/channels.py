"""The channels to the agents of all hosts: requests to many at once, and their events."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from optics import HostName, HostPort, TestbedError, TimedOut
from optics.ranks import RankName, host_of_rank, hosts_of
from orchestrator.fabric.rules import Macs
from orchestrator.hosts import facts
from orchestrator.hosts.api import Hello, HostEvent
from orchestrator.hosts.at_once import AtOnce
from orchestrator.hosts.channel import Channel, hello_of
from orchestrator.hosts.failures import one_error
from orchestrator.hosts.launch import on_host
from orchestrator.inventory.lab import Lab
from orchestrator.settings import BOUNDS

PATIENCE_S = 0.5
"""A login takes 0.02 s of this machine's processor and 0.1 s in all where nothing else runs; a
longer one waits for its host.
"""


class Channels:
    """A channel to each host. `names` None means all; failures of several hosts are raised as one
    error that names each.

    What puts operations of its own to agents does so with `ask`, `ask_all` or `ask_ranks`. Raises,
    everywhere: Unreachable - no channel to a host. TimedOut - a host did not answer. Refused - a
    host said no. Locked - a newer run holds a host. at_once: so many are logged in to, or asked for
    their pairs, at the same time.
    """

    def __init__(self, lab: Lab, at_once: int = BOUNDS.at_once) -> None:
        self.lab = lab
        self._at_once = AtOnce(at_once, PATIENCE_S)
        self.hellos: dict[HostName, Hello] = {}
        self.token: int | None = None
        # a thread per host at most: a silent host must not delay another; made when needed, so
        # usually as many as `at_once`
        self._threads = ThreadPoolExecutor(
            max_workers=max(1, len(lab.hosts)), thread_name_prefix="hosts"
        )
        self._channels = {
            name: Channel(host, self._event, self._threads) for name, host in lab.hosts.items()
        }
        self._queues: list[asyncio.Queue[HostEvent]] = []

    async def close(self) -> None:
        """Close every channel. Agents, routes and jobs stay."""

        async def close(channel: Channel) -> None:
            async with self._at_once.room():
                await channel.close()

        await asyncio.gather(*map(close, self._channels.values()))
        self._threads.shutdown(wait=False)

    async def connect(
        self, names: Collection[HostName] | None = None, timeout_s: float = 10.0
    ) -> Mapping[HostName, Hello | TestbedError]:
        """Connect to all named hosts, `at_once` at a time; one that cannot be reached is an error
        in the result and not raised.
        """

        async def one(name: HostName) -> Hello | TestbedError:
            try:
                async with self._at_once.room():
                    self.hellos[name] = await self._channels[name].connect(timeout_s)
                return self.hellos[name]
            except TestbedError as error:
                self.hellos.pop(name, None)
                return error

        names = self.names(names)
        return dict(zip(names, await asyncio.gather(*map(one, names)), strict=True))

    async def greet(self, names: Collection[HostName]) -> Mapping[HostName, Hello]:
        """The present state of connected hosts, asked over the open channels: a millisecond instead
        of a login.
        """
        answers = await self.ask({name: {} for name in self.names(names)}, "hello")
        self.hellos |= {
            name: hello_of(values, self.hellos[name].same_clock) for name, values in answers.items()
        }
        return {name: self.hellos[name] for name in answers}

    def attached(self) -> tuple[HostName, ...]:
        """Hosts that were greeted, with an open channel."""
        return tuple(
            name
            for name, channel in self._channels.items()
            if channel.attached and name in self.hellos
        )

    def unprovisioned(self) -> tuple[HostName, ...]:
        """Connected hosts whose facts, agent or workloads are not what this program would
        install.
        """
        return tuple(
            n
            for n, h in self.lab.hosts.items()
            if n in self.hellos and self.hellos[n].provision != facts.facts(h)["sha"]
        )

    def unready(self) -> tuple[HostName, ...]:
        """Connected hosts that provisioning would change: `unprovisioned`, or without the user that
        jobs run as.
        """
        older = self.unprovisioned()
        return tuple(
            name
            for name, hello in self.hellos.items()
            if name in older or (hello.installed and not hello.job_user)
        )

    def macs(self) -> Mapping[HostPort, Macs]:
        """The MAC addresses of all ports of connected hosts, as their kernels report them."""
        return {
            HostPort(n, p): Macs(s.mac, s.eth_mac)
            for n, hello in self.hellos.items()
            for p, s in hello.ports.items()
            if s.mac
        }

    async def fence(self, token: int, names: Collection[HostName]) -> None:
        """Act as the run with `token` from now on; these hosts refuse older runs, and disarm what
        an older run armed.

        Raises: Locked - a newer run holds one of them.
        """
        self.token = token
        unprovisioned = self.unprovisioned()  # an older agent has no fence
        await self.ask_all(
            [name for name in names if name in self.hellos and name not in unprovisioned],
            "fence",
            {},
        )

    def subscribe(self) -> asyncio.Queue[HostEvent]:
        """Return a queue that gets every event from now on; release it with `unsubscribe`."""
        queue: asyncio.Queue[HostEvent] = asyncio.Queue()
        self._queues.append(queue)
        return queue

    def unsubscribe(self, queue: asyncio.Queue[HostEvent]) -> None:
        self._queues.remove(queue)

    def _event(self, host: HostName, kind: str, at_ns: int, values: Mapping[str, Any]) -> None:
        for queue in self._queues:
            queue.put_nowait(HostEvent(host, kind, at_ns, values))

    def names(self, names: Collection[HostName] | None) -> list[HostName]:
        """These hosts; None: all."""
        return list(self._channels if names is None else names)

    def offset_ns(self, name: HostName | RankName) -> int:
        """The clock of a host, or of the host of a rank, minus this machine's."""
        return self._channels[host_of_rank(name)].offset_ns

    def run_token(self) -> dict[str, int]:
        """What every request says of the run that it is for; nothing before `fence`. Agents know
        what needs it.
        """
        return {} if self.token is None else {"token": self.token}

    async def ask(
        self,
        requests: Mapping[HostName | RankName, Mapping[str, Any]],
        op: str,
        timeout_s: float = 5.0,
        *,
        bounded: bool = False,
    ) -> dict[str, dict[str, Any]]:
        """Send one request to each host, or to the host of each rank; raise one error that names
        all that failed.

        All are sent before any is waited for, or, if `bounded`, `at_once` of them at a time.
        """
        token = self.run_token()

        def send(name: str, fields: Mapping[str, Any]) -> asyncio.Future[dict[str, Any]]:
            # `traffic` has a `token` of its own
            return self._channels[host_of_rank(name)].send(op, **{**token, **fields})

        async def one_by_one(
            name: str, fields: Mapping[str, Any]
        ) -> asyncio.Future[dict[str, Any]]:
            async with self._at_once.room():
                future = send(name, fields)
                await asyncio.wait([future], timeout=timeout_s)
                return future

        if bounded:
            sent = dict(
                zip(
                    requests,
                    await asyncio.gather(*(one_by_one(*each) for each in requests.items())),
                    strict=True,
                )
            )
        else:
            sent = {name: send(name, fields) for name, fields in requests.items()}
            if sent:
                await asyncio.wait(sent.values(), timeout=timeout_s)
        answers: dict[str, dict[str, Any]] = {}
        failed: dict[str, TestbedError] = {}
        for name, future in sent.items():
            if not future.done():
                future.cancel()
                failed[name] = TimedOut(
                    f"{name}: no answer to {op} after {timeout_s:g} s", hint="testbed doctor"
                )
            elif (error := future.exception()) is None:
                answers[name] = future.result()
            elif isinstance(error, TestbedError):
                failed[name] = error
            else:
                raise error
        if failed:
            raise one_error(failed, len(set(hosts_of(answers)) - set(hosts_of(failed))))
        return answers

    async def ask_all(
        self,
        names: Collection[HostName] | None,
        op: str,
        fields: Mapping[str, Any],
        timeout_s: float = 5.0,
    ) -> dict[HostName, dict[str, Any]]:
        """Send the same request to each of `names`."""
        return await self.ask(dict.fromkeys(self.names(names), fields), op, timeout_s)

    async def ask_ranks(
        self,
        job: str,
        ranks: Collection[RankName],
        op: str,
        fields: Mapping[str, Any],
        timeout_s: float = 5.0,
    ) -> dict[RankName, dict[str, Any]]:
        """Send the same request about a job to the host of each rank, under the name that the rank
        has there.
        """
        return await self.ask(
            {rank: {"name": on_host(job, rank), **fields} for rank in ranks}, op, timeout_s
        )

    async def failures(
        self, names: Collection[HostName], op: str, fields: Mapping[str, Any], timeout_s: float
    ) -> Mapping[HostName, TestbedError]:
        """Send the same request to each of `names`; return the errors of those that did not do it,
        and raise none.
        """
        token = self.run_token()

        async def one(name: HostName) -> TestbedError | None:
            try:
                await self._channels[name].ask(op, timeout_s=timeout_s, **{**token, **fields})
            except TestbedError as error:
                return error
            return None

        answers = await asyncio.gather(*map(one, names))
        return {
            name: error for name, error in zip(names, answers, strict=True) if error is not None
        }

    def notify(self, op: str, fields: Mapping[str, Any]) -> None:
        """Send the same request over every open channel, and wait for no answer: none is read."""
        for channel in self._channels.values():
            if channel.attached:
                channel.send(op, **fields).add_done_callback(
                    lambda done: done.cancelled() or done.exception()
                )
