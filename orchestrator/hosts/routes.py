"""Route generations: staged, through Ansible or over the channels; over those committed now or on
carrier, confirmed, reverted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from optics import HostName, HostPort, Refused, TestbedError, TimedOut, Unreachable
from orchestrator.fabric.rules import Rules
from orchestrator.hosts import render
from orchestrator.hosts.api import Committed, Held, HostEvent, Staged
from orchestrator.hosts.channels import Channels
from orchestrator.hosts.plays import Plays, lines


class HostRoutes:
    """The route generations of all hosts; see docs/reference/agent.md for what each operation does
    on a host.
    """

    def __init__(self, channels: Channels, plays: Plays) -> None:
        self.channels, self.plays = channels, plays

    def expect_play(self) -> None:
        """Have Ansible start now: routes are likely to be staged. Raises: Missing - it is not
        installed.
        """
        self.plays.expect("stage_rules.yml")

    async def stage(
        self, generations: Mapping[int, Mapping[HostName, Rules]]
    ) -> Mapping[HostName, Mapping[int, Staged]]:
        """Put route generations into tables that no rule selects yet, all in one play."""
        payloads = render.rule_payloads(
            generations, self.channels.run_token(), rto_min_ms=self._rto_min_ms()
        )
        if not payloads:
            return {}
        play = await self.plays.play(
            "stage_rules.yml",
            list(payloads),
            {"testbed_agent": self.plays.agents(payloads), "testbed_rules": payloads},
        )
        return {
            name: _staged(
                lines(
                    name,
                    play.reported[name]["stage"],
                    sum(name in hosts for hosts in generations.values()),
                )
            )
            for name in payloads
        }

    async def stage_warm(
        self,
        generations: Mapping[int, Mapping[HostName, Rules]],
        timeout_s: float = 5.0,
        *,
        congctl: str = render.CONGCTL,
    ) -> Mapping[HostName, Mapping[int, Staged]]:
        """As `stage`, over the open channels: milliseconds, for changes that cannot wait for a
        play.

        congctl: what the routes pin; PER_NETWORK needs `load_networks` before.
        """

        async def ask(single: Collection[HostName] = ()) -> dict[str, dict[str, Any]]:
            payloads = render.rule_payloads(
                generations, congctl=congctl, single=single, rto_min_ms=self._rto_min_ms()
            )
            return await self.channels.ask(
                {name: {"packed": packed} for name, packed in payloads.items()}, "stage", timeout_s
            )

        try:
            answers = await ask()
        # an agent of an older release, which `up` has not replaced yet, knows no addresses without
        # a route
        except Refused:
            if not (older := self.channels.unprovisioned()):
                raise
            answers = await ask(older)
        return {name: _staged(values["staged"]) for name, values in answers.items()}

    def _rto_min_ms(self) -> dict[HostName, int]:
        return {name: host.rto_min_ms for name, host in self.channels.lab.hosts.items()}

    async def commit(
        self,
        generation: int,
        names: Collection[HostName] | None = None,
        revert_after_s: float | None = None,
    ) -> Mapping[HostName, Committed]:
        """Make a staged generation active now; the hosts revert after `revert_after_s` unless
        `confirm` comes.
        """
        request = {"generation": generation, "revert_after_s": revert_after_s}
        answers = await self.channels.ask_all(names, "commit", request)
        return {name: self._committed(name, values) for name, values in answers.items()}

    async def hold(
        self,
        generation: int,
        names: Collection[HostName],
        revert_after_s: float,
        *,
        flush: bool = True,
    ) -> Mapping[HostName, Held]:
        """Make a generation active that leaves pairs without a route, until the next commit or for
        `revert_after_s`.

        flush: the hosts push the sockets that waited as soon as it ends.
        """
        request = {
            "generation": generation,
            "revert_after_s": revert_after_s,
            "hold": True,
            "flush": flush,
        }
        answers = await self.channels.ask_all(names, "commit", request)
        waiting = {name: values.get("waiting") or {} for name, values in answers.items()}
        return {
            n: Held(n, w.get("sockets", 0), w.get("found", 0), w.get("skipped", ""))
            for n, w in waiting.items()
        }

    async def arm(
        self,
        generation: int,
        when_up: Mapping[HostName, Collection[int]],
        *,
        revert_after_s: float | None = None,
        deadline_s: float = 60.0,
        cross: Mapping[HostName, Collection[str]] | None = None,
    ) -> None:
        """Have each host commit `generation` as soon as carrier came up again on its listed ports;
        call before light moves.

        cross: addresses of neighbours that each host probes once it has committed; a `crossed`
        event follows when all answered.
        """
        requests = {
            name: {
                "generation": generation,
                "when_up": [self.channels.lab.interface(HostPort(name, p)) for p in sorted(ports)],
                "revert_after_s": revert_after_s,
                "deadline_s": deadline_s,
                "cross": sorted((cross or {}).get(name, ())),
            }
            for name, ports in when_up.items()
        }
        await self.channels.ask(requests, "arm")

    async def disarm(self, names: Collection[HostName] | None = None) -> None:
        await self.channels.ask_all(names, "disarm", {})

    async def wait_committed(
        self,
        generation: int,
        names: Collection[HostName],
        deadline_s: float,
        queue: asyncio.Queue[HostEvent],
    ) -> Mapping[HostName, Committed | TestbedError]:
        """Wait until every named host has committed `generation` on carrier, or reports why not.

        queue: subscribed before the light moved, or commits that were faster than this call are
        missed.
        """
        found: dict[HostName, Committed | TestbedError] = {}
        waiting = set(names)
        try:
            async with asyncio.timeout(deadline_s):
                while waiting:
                    event = await queue.get()
                    if (
                        event.host not in waiting
                        or event.values.get("generation", generation) != generation
                    ):
                        continue
                    outcome = self._outcome(event)
                    if outcome is not None:
                        found[event.host] = outcome
                        waiting.discard(event.host)
        except TimeoutError:
            for name in waiting:
                found[name] = TimedOut(
                    f"{name}: generation {generation} was not committed within {deadline_s:g} s"
                )
        return found

    def _outcome(self, event: HostEvent) -> Committed | TestbedError | None:
        generation = event.values.get("generation")
        match event.kind:
            case "committed":
                return self._committed(event.host, event.values)
            case "expired":
                return TimedOut(
                    f"{event.host}: no carrier on {', '.join(event.values['missing'])}; generation {generation} stays staged"
                )
            case "failed":
                return Refused(f"{event.host}: generation {generation}: {event.values['error']}")
            case "lost":
                return Unreachable(
                    f"{event.host}: the channel to its agent is gone: {event.values['error']}"
                )
        return None

    def _committed(self, name: HostName, values: Mapping[str, Any]) -> Committed:
        offset = self.channels.offset_ns(name)
        link = values.get("t_link_ns")
        return Committed(
            name,
            values["generation"],
            values["previous"],
            values["t_commit_ns"] - offset,
            None if link is None else link - offset,
        )

    async def confirm(self, generation: int, names: Collection[HostName] | None = None) -> None:
        """Keep what was committed: the hosts stop counting down. Older generations are dropped."""
        await self.channels.ask_all(names, "confirm", {"generation": generation})

    async def revert(
        self, names: Collection[HostName] | None = None
    ) -> Mapping[HostName, int | None]:
        """Revert to the generation active before the last commit; returns which that is (None: no
        routes at all).
        """
        answers = await self.channels.ask_all(names, "revert", {})
        return {name: values["generation"] for name, values in answers.items()}

    async def clear(self, names: Collection[HostName], generations: Collection[int]) -> None:
        """Remove these generations, the active one too. What others have staged stays; an agent of
        an older release removes all.
        """
        requests: dict[HostName, dict[str, object]] = {}
        # an owner has had thousands: those that the host had when it was greeted, and all that were
        # made since
        for name in names:
            hello = self.channels.hellos.get(name)
            known = {*hello.staged, hello.active or 0} if hello is not None else {0}
            newest = max(known)
            requests[name] = {
                "generations": sorted(
                    number for number in generations if number in known or number > newest
                )
            }
        await self.channels.ask(requests, "clear", 30.0)


def _staged(values: Iterable[Mapping[str, Any]]) -> dict[int, Staged]:
    return {v["generation"]: Staged(v["generation"], v["routes"], v["table"]) for v in values}
