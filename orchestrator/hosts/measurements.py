"""What hosts measure, asked over the channels: paths, fibre ends, traffic, counters, clocks."""

from __future__ import annotations

import asyncio
import math
import secrets
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from optics import HostName, HostPort, TestbedError
from optics.plain import printable
from optics.ranks import RankName, by_host
from orchestrator.hosts.api import (
    ClockReading,
    FibreEnd,
    Flow,
    Heartbeat,
    Load,
    PortCounters,
    Probe,
    Process,
    RankLoad,
    RankTimes,
    Stream,
    Tail,
)
from orchestrator.hosts.channels import Channels
from orchestrator.hosts.counters import port_counters
from orchestrator.hosts.launch import on_host


class Measurements:
    """Measurements of all hosts; none of them changes a host's routes."""

    def __init__(self, channels: Channels) -> None:
        self.channels = channels

    async def probe(
        self, targets: Mapping[HostName, Mapping[str, int | None]], timeout_s: float = 0.5
    ) -> Mapping[HostName, Mapping[str, Probe]]:
        """From each host, probe addresses with the planned number of links (None: any); a wrong
        count is asked again in time.
        """
        requests = {
            name: {
                "targets": [{"address": a, "hops": h} for a, h in wanted.items()],
                "timeout_s": timeout_s,
            }
            for name, wanted in targets.items()
        }
        answers = await self.channels.ask(requests, "probe", timeout_s + 5.0, bounded=True)
        return {
            name: {r["address"]: _probe(name, r) for r in values["results"]}
            for name, values in answers.items()
        }

    async def neighbours(
        self,
        ports: Collection[HostPort],
        timeout_s: float = 0.3,
        *,
        expecting: Collection[HostPort] | None = None,
    ) -> Mapping[HostPort, FibreEnd]:
        """The far end of each port, by signed frames: reveals swapped fibres.

        expecting: those of `ports` that must receive a frame; a host answers once its own have
        (None: once each port was answered). Every call has a key of its own, which only the hosts
        get, over SSH.
        """
        by_host: dict[HostName, list[int]] = {}
        for port in sorted(ports):
            by_host.setdefault(port.host, []).append(port.number)
        wanted = None if expecting is None else set(expecting)
        common = {"timeout_s": timeout_s, "key": secrets.token_hex(32)}
        requests: dict[HostName, dict[str, Any]] = {
            name: {"ports": numbers, **common} for name, numbers in by_host.items()
        }
        if wanted is not None:
            for name, request in requests.items():
                request["hear"] = [
                    number for number in by_host[name] if HostPort(name, number) in wanted
                ]
        answers = await self.channels.ask(requests, "neighbours", timeout_s + 5.0)
        return {
            HostPort(name, int(number)): FibreEnd(
                HostPort(name, int(number)), v["carrier"], _end(v["answered"]), _end(v["heard"])
            )
            for name, values in answers.items()
            for number, v in values["ports"].items()
        }

    async def traffic(
        self, requests: Mapping[HostName, Mapping[str, Any]], timeout_s: float
    ) -> dict[HostName, dict[str, Any]]:
        """Open, start or read measured flows (`agent/measure/traffic.py`)."""
        return await self.channels.ask(requests, "traffic", timeout_s)

    async def stream(self, ends: Mapping[HostName, str], seconds: float) -> str:
        """Have two hosts send to each other over TCP as fast as it goes, along the routes in use,
        for `seconds` (s, at most 59).

        ends: the two hosts and the own address that each uses. Return a token for `streamed`.
        """
        (one, two), token = ends, secrets.token_hex(8)
        mine = {name: {"token": token, "address": address} for name, address in ends.items()}
        opened = await self.traffic(
            {name: {"do": "accept", "seconds": seconds + 1.0, **own} for name, own in mine.items()},
            5.0,
        )
        towards = {one: two, two: one}
        await self.traffic(
            {
                name: {
                    "do": "pour",
                    "seconds": seconds,
                    "peer": ends[towards[name]],
                    "tcp": opened[towards[name]]["tcp"],
                    **own,
                }
                for name, own in mine.items()
            },
            5.0,
        )
        return token

    async def streamed(
        self, token: str, names: Collection[HostName], timeout_s: float
    ) -> Mapping[HostName, Stream]:
        """What each host received, once the stream has ended."""
        answers = await self.traffic(
            {name: {"do": "heard", "token": token} for name in names}, timeout_s
        )
        return {
            name: self._stream(name, values["heard"]["stream"]) for name, values in answers.items()
        }

    def _stream(self, name: HostName, values: Mapping[str, Any]) -> Stream:
        offset = self.channels.offset_ns(name)
        gaps = tuple((begin - offset, end - offset) for begin, end in values.get("gaps", ()))
        return Stream(name, values["bytes"], gaps, bool(values.get("open", True)))

    async def watch_links(self, names: Collection[HostName]) -> Mapping[HostPort, bool]:
        """Subscribe to `link` events, one per carrier change; returns the present carriers."""
        answers = await self.channels.ask_all(names, "watch", {"links": True})
        return {
            HostPort(name, int(port)): up
            for name, values in answers.items()
            for port, up in values["links"].items()
        }

    async def counters(
        self, names: Collection[HostName] | None = None
    ) -> Mapping[HostPort, PortCounters]:
        """One reading of every port's counters."""
        answers = await self.channels.ask_all(names, "counters", {})
        offsets = {name: self.channels.offset_ns(name) for name in answers}
        return {
            port: v
            for name, answer in answers.items()
            for port, v in port_counters(name, answer, offsets[name]).items()
        }

    async def stream_counters(
        self,
        interval_s: float | None,
        names: Collection[HostName] | None = None,
        *,
        batch_s: float = 1.0,
    ) -> None:
        """Let hosts sample every `interval_s` (>= 0.001, s; None: stop) and send `counters` events,
        read with `counter_samples`.

        batch_s: how long (s) they gather samples; longer while they are armed.
        """
        await self.channels.ask_all(
            names, "counters", {"interval_s": interval_s, "batch_s": batch_s}
        )

    async def keep_counters(self, job: str, interval_s: float, ranks: Collection[RankName]) -> None:
        """Have the hosts of these ranks sample every `interval_s` (0.1 to 8, s) and keep the
        samples, until the rank ends.
        """
        await self.channels.ask(
            {rank: {"name": on_host(job, rank), "interval_s": interval_s} for rank in ranks},
            "counters.keep",
        )

    async def kept_counters(
        self, job: str, offsets: Mapping[RankName, int]
    ) -> Mapping[RankName, Tail]:
        """Part of what was kept, from byte `offsets` on: lines that `counter_samples` reads as a
        `counters` event.
        """
        requests = {
            rank: {"name": on_host(job, rank), "offset": at} for rank, at in offsets.items()
        }
        answers = await self.channels.ask(requests, "counters.kept")
        return {rank: Tail(v["data"], v["offset"], v["size"], "") for rank, v in answers.items()}

    async def heartbeats(
        self,
        job: str,
        ranks: Collection[RankName],
        after: Mapping[RankName, int] | None = None,
        timeout_s: float = 5.0,
    ) -> Mapping[RankName, Heartbeat]:
        """What each rank of a job wrote of itself, with its iterations after `after` (None: the
        latest, 255 at most).

        A rank whose host does not answer within `timeout_s`, or whose agent is too old to know, is
        left out.
        """

        async def one(rank: RankName) -> Heartbeat | None:
            request = {"name": on_host(job, rank), "after": (after or {}).get(rank, -1)}
            try:
                return _beat(
                    rank, (await self.channels.ask({rank: request}, "heartbeats", timeout_s))[rank]
                )
            except (TestbedError, KeyError, TypeError, ValueError):
                return None

        found = await asyncio.gather(*map(one, ranks))
        return {heartbeat.rank: heartbeat for heartbeat in found if heartbeat is not None}

    async def load(
        self, job: str, ranks: Collection[RankName], for_s: float = 1.0
    ) -> Mapping[HostName, Load]:
        """Who uses the processors of these ranks' hosts, looked at for `for_s` (0.1 to 10, s).

        A host that does not answer, or whose agent is too old to know, is left out.
        """

        async def one(host: HostName, here: Sequence[RankName]) -> Load | None:
            names = {on_host(job, rank): rank for rank in here}
            try:
                answers = await self.channels.ask(
                    {host: {"names": [*names], "for_s": for_s}}, "load", for_s + 5.0
                )
                return _load(host, answers[host], names)
            except (TestbedError, KeyError, TypeError, ValueError):
                return None

        found = await asyncio.gather(*(one(host, here) for host, here in by_host(ranks).items()))
        return {load.host: load for load in found if load is not None}

    def leave_counters(self) -> None:
        """Ask hosts to stop sampling without waiting for replies: the caller is already handling a
        failure.
        """
        self.channels.notify("counters", {"interval_s": None})

    async def stream_gpus(self, interval_s: float | None, names: Collection[HostName]) -> None:
        """Let hosts read their GPUs every `interval_s` (>= 0.1, s; None: stop); those that have
        some send `gpus` events.
        """
        await self.channels.ask_all(names, "gpus", {"interval_s": interval_s})

    async def clocks(
        self, names: Collection[HostName] | None = None, within_s: float = 5.0
    ) -> Mapping[HostName, ClockReading]:
        """Compare clocks, one host after the other: replies that arrive together would delay each
        other.

        within_s: no further host is asked after this long (s).
        """
        found: dict[HostName, ClockReading] = {}
        give_up = time.monotonic() + within_s
        for name in self.channels.names(names):
            began, wall_ns = time.monotonic_ns(), time.time_ns()
            answer = (await self.channels.ask({name: {}}, "clock"))[name]
            took = time.monotonic_ns() - began
            found[name] = ClockReading(answer["wall_ns"] - wall_ns - took // 2, took)
            if time.monotonic() > give_up:
                break
        return found


def _probe(source: HostName, r: Mapping[str, Any]) -> Probe:
    return Probe(source, r["address"], r["ok"], r.get("hops"), r.get("error", ""))


def _beat(rank: RankName, v: Mapping[str, Any]) -> Heartbeat:
    """Read an answer to `heartbeats`. Raises: KeyError, TypeError, ValueError - it is none."""
    now = v["heartbeat"] or {"iteration": 0, "phase": "", "age_s": math.inf, "alive_s": None}
    alive_s = math.inf if now["alive_s"] is None else float(now["alive_s"])
    times = tuple(
        RankTimes(int(n), int(at), *(us / 1e3 for us in row[:6]), *map(int, row[6:]))
        for n, at, *row in v["times"]
    )
    ages = alive_s, float(now.get("save_s", 0.0))
    return Heartbeat(
        rank,
        v["state"],
        v.get("code"),
        int(now["iteration"]),
        now["phase"],
        float(now["age_s"]),
        times,
        *ages,
    )


def _load(host: HostName, v: Mapping[str, Any], names: Mapping[str, RankName]) -> Load:
    """Read an answer to `load`. Raises: KeyError, TypeError, ValueError - it is none."""
    ranks = {
        names[n]: RankLoad(str(r["state"]), float(r["cores"]), str(r["heartbeat"]))
        for n, r in v["ranks"].items()
        if n in names
    }
    others = tuple(
        Process(int(p["pid"]), printable(str(p["command"]))[:15], float(p["cores"]))
        for p in v["others"]
    )
    flows, past = (tuple(map(_flow, v.get(name, ()))) for name in ("flows", "past"))
    sent, again = int(v["sent"]), int(v["again"])
    return Load(
        host,
        float(v["seconds"]),
        int(v["cpus"]),
        float(v["busy"]),
        ranks,
        others,
        sent,
        again,
        flows,
        past,
    )


def _flow(v: Mapping[str, Any]) -> Flow:
    port = None if v["port"] is None else int(v["port"])
    counted = (int(v[name]) for name in ("segments", "again", "times"))
    return Flow(
        str(v["to"]),
        str(v["via"]),
        port,
        float(v["seconds"]),
        int(v["bytes"]),
        float(v["busy_s"]),
        *counted,
    )


def _end(peer: Mapping[str, Any] | None) -> HostPort | None:
    return None if peer is None else HostPort(peer["host"], peer["port"])
