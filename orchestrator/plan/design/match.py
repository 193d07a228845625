"""Chooses how a workload runs on a lab: every method, schedule, transport and function of packet
switches that the lab has is designed and priced by the predictors, and what cannot be is kept with
the reason. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from optics import BadFile, BadPlugin, HostName, HostPort, Infeasible
from optics.plain import seconds_text
from orchestrator.inventory.lab import Lab
from orchestrator.inventory.segments import Segment
from orchestrator.plan.design import wavelengths
from orchestrator.plan.design.capabilities import Capabilities, Line, Lines, capabilities, slowest
from orchestrator.plan.design.design import Design, Read, design
from orchestrator.plan.design.document import document
from orchestrator.plan.design.flows import rate_mbps
from orchestrator.plan.design.periodic import PATTERNS, periodic
from orchestrator.plan.design.placement import chosen_hosts
from orchestrator.plan.design.prices import plan_watts
from orchestrator.plan.reader import read_plan
from planner.model.backend import Backend
from planner.predict.cost import Prices
from planner.predict.services import added_s, lookups, tcp_mbps
from planner.registry import TOPOLOGIES, plugins
from planner.topology.methods import METHODS, Wanted
from workloads.training.models import MODELS, parameters

MATCH = "match"
"""In place of a method: the best of all."""
STATIC, TCP, DATAGRAMS = "static", "tcp", "datagrams"
BASE = "topoopt"
"""The method whose hosts and ports a schedule uses."""
MOST_TURNING = 32
"""Hosts up to which a schedule is predicted: the routes of every slot are a table of all pairs."""
REFUSALS = (Infeasible, BadFile, BadPlugin)
ROUNDED = 0.1
"""By how much (share) the size of a model may be off where layers describe it."""


@dataclass(frozen=True)
class Candidate:
    """One way to run the job. Times (s) of this lab, None where it cannot be, because of `refused`.
    why: its reasons, a line each. unmet: clauses of the needs that it does not meet, by name with
    the reason. content: of the plan file. watts: of its network, where prices are given.
    """

    method: str
    schedule: str = STATIC
    transport: str = TCP
    function: str = ""
    seconds: float | None = None
    watts: float | None = None
    refused: str = ""
    why: tuple[str, ...] = ()
    unmet: Mapping[str, str] = field(default_factory=dict)
    content: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @property
    def name(self) -> str:
        return ", ".join(filter(None, (self.method, self.schedule, self.transport, self.function)))

    @property
    def text(self) -> str:
        """The plan file."""
        return json.dumps(self.content, indent=1) + "\n"


@dataclass(frozen=True)
class Match:
    """All candidates, the best first: those that leave fewest clauses unmet, then the fastest;
    those that cannot be are last. time_scale: time here per time of the workload.
    """

    candidates: tuple[Candidate, ...]
    capabilities: Capabilities
    time_scale: float = 1.0

    @property
    def best(self) -> Candidate:
        return self.candidates[0]

    @property
    def able(self) -> tuple[Candidate, ...]:
        return tuple(one for one in self.candidates if one.seconds is not None)

    def meets(self, clause: str) -> Candidate | None:
        """The best candidate that meets a clause; None: nothing does."""
        return next((one for one in self.able if clause not in one.unmet), None)

    def distinct(self, count: int) -> list[Candidate]:
        """The best candidates whose plans differ in more than words."""
        found: dict[str, Candidate] = {}
        for one in self.able:
            differs = {key: one.content.get(key) for key in ("links", "segments", "schedule")}
            found.setdefault(json.dumps([differs, one.content["job"]["args"]]), one)
        return [*found.values()][:count]


def match(
    read: Read,
    lab: Lab,
    *,
    hosts: tuple[HostName, ...] = (),
    lines: Lines | None = None,
    prices: Prices | None = None,
    iterations: int = 20,
    name: str = "",
    schedules: bool = True,
    shared: bool = True,
) -> Match:
    """All ways to run a workload on these hosts, none: the first of the lab. schedules: also those
    whose circuits take turns; shared: also functions of switches, and switches with less than full
    rate, which another job may use at the same time. Raises: Infeasible - there is none, and why.
    """
    work = _Work(read, lab, lines or {}, hosts, iterations, name, shared, prices)
    found = [one for way in _statics(lab, shared) for one in work.static(*way)]
    if schedules:
        found += work.turns()
    rank = {id(one): number for number, one in enumerate(found)}
    found.sort(
        key=lambda one: (
            one.seconds is None,
            len(one.unmet),
            float(f"{one.seconds or 0.0:.9g}"),
            rank[id(one)],
        )
    )
    if found[0].seconds is None:
        few = "; ".join(f"{one.method}: {one.refused}" for one in found[:4])
        raise Infeasible(
            f"no method can place {read.workload.name} on these {read.demand.n} hosts: {few}",
            hint="testbed design match --capabilities",
        )
    return Match(tuple(found), capabilities(lab, work.hosts, work.lines), work.time_scale)


def _statics(lab: Lab, shared: bool) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Methods without a schedule, and the packet switches of those over such."""
    yield from ((name, ()) for name in METHODS)
    yield wavelengths.METHOD, ()
    yield from ((one.name, ()) for one in plugins(TOPOLOGIES) if not one.problem)
    usable = [name for name, segment in lab.segments.items() if shared or segment.full]
    yield from (("electrical", (name,)) for name in usable)
    if len(usable) > 1 and len(usable) == len(lab.segments):
        yield "electrical", ("*",)


class _Work:
    """One workload on one lab."""

    def __init__(
        self,
        read: Read,
        lab: Lab,
        lines: Lines,
        hosts: tuple[HostName, ...],
        iterations: int,
        name: str,
        shared: bool,
        prices: Prices | None,
    ) -> None:
        self.prices = prices
        self.read, self.lab, self.lines, self.name, self.shared = read, lab, lines, name, shared
        self.needs = read.workload.needs
        self.hosts = chosen_hosts(lab, read.demand.n, hosts, each=read.workload.ranks_per_host)
        own = self.needs.train is not None or self.needs.requests is not None
        # such a job has its own bytes
        self.base = Wanted(
            BASE, hosts=self.hosts, iterations=iterations, scale=1.0 if own else None
        )
        self.replays, self.time_scale = not own, 1.0
        self.turned: Design | None = None
        self._check()

    def _check(self) -> None:
        """Raises: Infeasible - the traffic is not that of the program that is to run."""
        given, asked = self.read.demand, self.needs.train
        if asked is None:
            return
        if given.mp.any() or [len(group.members) for group in given.groups] != [given.n]:
            raise Infeasible(
                "needs.train: a training sums over all its hosts and sends nothing else, but this workload has other traffic",
                hint="leave needs.train out: its job then replays the traffic",
            )
        if asked.model not in MODELS:
            raise Infeasible(
                f"needs.train.model: {asked.model}: no such model", hint=" or ".join(MODELS)
            )
        own, [summed] = parameters(asked.model, asked.hidden), given.groups
        if not 1 - ROUNDED <= summed.bytes / (4 * own) <= 1 + ROUNDED:
            raise Infeasible(
                f"needs.train: the model {asked.model} has {own} parameters, {4 * own} bytes to sum; this workload sums {summed.bytes}",
                hint=f"describe that model (a layer `{{kind: dense, parameters: {own}}}`, 4 bytes_per_number), or set needs.train.hidden",
            )

    def static(self, method: str, segments: tuple[str, ...]) -> Iterator[Candidate]:
        """A method's design with each transport and function that it may have."""
        label = f"{method} over {segments[0]}" if segments else method
        try:
            if not segments and not all(
                any(port.host == host for port in self.lab.fibres) for host in self.hosts
            ):
                raise Infeasible("not all hosts have optical ports")
            wanted = replace(self.base, method=method, segments=segments)
            found, line = self._designed(wanted)
        except REFUSALS as error:
            yield Candidate(label, refused=error.line)
            return
        if line.loss >= 1:
            yield Candidate(label, refused="a line of it loses every packet")
            return
        if method == BASE:
            self.turned = found
        self.time_scale = found.time_scale
        yield self._priced(found, line, label, TCP, None)
        if self.needs.loss is not None and 0 < line.loss < 1:
            yield self._priced(found, line, label, DATAGRAMS, None)
        for name, members in found.found.segments:
            segment = self.lab.segments[name]
            for function in segment.functions if self.shared else ():
                if function == self._function and len(members) == len(self.hosts):
                    yield self._priced(found, line, label, TCP, segment)

    @property
    def _function(self) -> str:
        """What of a packet switch the job's program can use."""
        if self.needs.train is not None:
            return "aggregate"
        return "cache" if self.needs.requests is not None else ""

    def _designed(self, wanted: Wanted) -> tuple[Design, Line]:
        """A design whose steps take as long as its lines, and the worst of them."""
        found = design(self.read, self.lab, wanted)
        line = slowest(self.lines, self._ports(found))
        if line.delay_s:
            backend: Backend = "msccl" if self.replays else "ring-groups"
            wanted = replace(wanted, alpha_s=line.delay_s, backend=backend)
            found = design(self.read, self.lab, wanted)
        return found, line

    def _ports(self, found: Design) -> list[HostPort]:
        ends = (end for link in found.links for end in (link.a, link.b))
        return [end for end in ends if isinstance(end, HostPort)]

    def _slower(self, ports: Sequence[HostPort], line: Line, transport: str) -> tuple[float, float]:
        """Rate (Mb/s) that the slowest of these ports carries, and how many times as long its line
        makes the same bytes take.
        """
        known = rate_mbps(self.lab, self.hosts)
        rates = [self.lab.segment_at[p].link_mbps for p in ports if p in self.lab.segment_at]
        mbps = min([*rates, *([known] if len(rates) < len(ports) else [])])
        able = min(mbps, line.mbps or mbps)
        if transport == TCP:
            return mbps, mbps / tcp_mbps(able, line.delay_s, line.loss)
        return mbps, mbps / (able * (1 - line.loss))

    def _priced(
        self, found: Design, line: Line, label: str, transport: str, by: Segment | None
    ) -> Candidate:
        """A candidate with its plan; by: the switch whose function it uses."""
        function = f"{self._function} of {by.name}" if by else ""
        one = Candidate(label, STATIC, transport, function)
        mbps, slower = self._slower(self._ports(found), line, transport)
        here, why = found.here, list(found.found.why)
        # what messages travel is in both, and no slower line makes it longer
        most = max((len(each.members) for each in self.read.demand.groups), default=1)
        travel_s = min(here.allreduce_s, 2 * (most - 1) * line.delay_s)
        sums = (here.allreduce_s - travel_s) * slower + travel_s
        moved, computed = here.transfers_s * slower, here.compute_s
        if slower > 1.001:
            lost = f" and loses {line.loss:.2%}" if line.loss else ""
            why.append(
                f"a line takes {seconds_text(line.delay_s)}{lost}: {transport} carries {mbps / slower:.4g} of {mbps:g} Mb/s"
            )
        each = self.read.workload.ranks_per_host
        if by and self.needs.train is not None:
            much = by.functions["aggregate"]
            [group] = self.read.demand.groups
            # a rank sends from its first lane
            share = min(self.lab.hosts[host].share_of(0)[1] for host in self.hosts)
            rate = share * mbps / slower * 1e6 / 8
            slots = much["slots"] // much["jobs"]
            if not slots:
                return replace(one, refused=f"{by.name} has less than a slot for each job")
            sums = added_s(group.bytes * each, slots, much["slot_bytes"], rate, line.delay_s)
            why.append(f"{by.name} adds: each rank sends its gradients once, over {slots} slots")
        if (asked := self.needs.requests) is not None:
            cached = by.functions["cache"]["entries"] // 2 if by else 0
            if by and asked.bytes > by.functions["cache"]["entry_bytes"]:
                return replace(one, refused=f"{by.name} keeps no values of {asked.bytes} bytes")
            ranks = self.read.workload.ranks
            busiest = lookups(asked.count, ranks, asked.keys, asked.skew, cached)
            # the program computes nothing else, and asks one value after the other
            computed = busiest * asked.lookup_ms / 1e3
            computed += asked.count * 2 * line.delay_s * found.shape.mean_hops()
            why.append(
                f"the busiest owner finds {busiest:.4g} values an iteration"
                + (f", as {by.name} keeps the {cached} most popular" if by else "")
            )
        times = (computed, moved, sums)
        reach_s = line.delay_s * found.shape.diameter
        content = self._content(document(found, self.name), found, transport, by)
        return self._judged(one, content, times, reach_s, why)

    def turns(self) -> Iterator[Candidate]:
        """Circuits that take turns by each pattern, on the ports of the base's design."""
        why_not = ""
        if not self.replays:
            why_not = "no prediction but of a job that replays its traffic"
        elif len(self.hosts) > MOST_TURNING:
            why_not = f"predicted up to {MOST_TURNING} hosts only"
        for pattern in PATTERNS:
            one = Candidate("periodic", pattern)
            if why_not or self.turned is None:
                refused = why_not or f"{BASE} has no design whose hosts and ports it could use"
                yield replace(one, refused=refused)
                continue
            try:
                yield self._turning(one, self.turned)
            except REFUSALS as error:
                yield replace(one, refused=error.line)

    def _turning(self, one: Candidate, base: Design) -> Candidate:
        """Raises: Infeasible - the pattern cannot be."""
        found = periodic(
            base,
            document(base),
            self.lab,
            pattern=one.schedule,
            dwell_s=None,
            guard_s=0.0,
            name=self.name,
        )
        ports = [HostPort(host, int(port[1:])) for host in self.hosts for port in found.ports]
        line = slowest(self.lines, ports)
        _, slower = self._slower(ports, line, TCP)
        times = (found.compute_s, found.transfers_s * slower, found.allreduce_s * slower)
        dwell, dark = seconds_text(found.dwell_s), seconds_text(found.dark_s)
        why = [f"{found.slots} slots of {dwell}, dark for {dark} between"]
        return self._judged(one, {**found.content}, times, found.cycle_s + line.delay_s, why)

    def _content(
        self,
        plan: dict[str, Any],
        found: Design,
        transport: str,
        by: Segment | None,
    ) -> dict[str, Any]:
        """The plan with the job that the needs name in place of the replay."""
        if self.replays:
            return plan
        needs, job = self.needs, plan["job"]
        args: dict[str, Any] = {"iterations": self.base.iterations}
        if (asked := needs.requests) is not None:
            args |= {"requests": asked.count, "keys": asked.keys, "bytes": asked.bytes}
            args |= {"skew": asked.skew, "lookup_ms": asked.lookup_ms}
            job = {"name": job["name"], "workload": "retrieve", "ranks": job["ranks"]}
        elif needs.train is not None:
            args |= {key: value for key, value in needs.train.model_dump().items() if value}
            if computed := round(found.here.compute_s * 1e3, 3):
                args["compute_ms"] = computed
            if by:
                args["exchange"] = "aggregate"
            elif transport == DATAGRAMS:
                args |= {"exchange": "datagrams", "loss_bound": needs.loss}
            if needs.checkpoints is not None:
                args |= {"checkpoint": "async", "checkpoint_every": needs.checkpoints.every}
            whole = [ring for ring in found.shape.rings if len(ring.order) == found.shape.n]
            [orders] = found.orders.values()
            rings = [[found.hosts[rank] for rank in order] for order in orders] if whole else []
            job = {"name": job["name"], "workload": "train", "ranks": job["ranks"], "rings": rings}
        if by:
            for segment in plan["segments"]:
                if segment["name"] == by.name:
                    segment["functions"] = [self._function]
        shown = ("link_mbps", "diameter", "mean_hops")
        return {
            **plan,
            "job": {**job, "args": args},
            "predicted": {key: plan["predicted"][key] for key in shown},
        }

    def _judged(
        self,
        one: Candidate,
        content: dict[str, Any],
        times: Sequence[float],
        reach_s: float,
        why: Sequence[str],
    ) -> Candidate:
        """The candidate with its times and the clauses that it does not meet, if the lab takes the
        plan. reach_s: the longest that a message may wait and travel.
        """
        seconds = sum(times)
        parts = dict(zip(("compute", "transfers", "allreduce"), times, strict=True))
        predicted = {f"{key}_ms": round(s * 1e3, 3) for key, s in parts.items()}
        workload = self.read.workload
        name = self.name or f"{workload.name}-match"
        content = {
            **content,
            "name": name,
            "job": {**content["job"], "name": name},
            "predicted": {
                **content["predicted"],
                "iteration_ms": round(seconds * 1e3, 3),
                **predicted,
            },
        }
        try:
            plan = read_plan(json.dumps(content), "plan.json", self.lab)
            watts = plan_watts(self.prices, self.lab, plan) if self.prices else None
        except REFUSALS as error:
            problem = error.problems[0] if isinstance(error, BadFile) else error.line
            return replace(one, refused=problem)
        unmet = self._unmet(seconds, reach_s, watts)
        told = [
            f"{workload.description or workload.name}: {one.name}, by testbed design match",
            *why,
            *(f"not met: {clause}: {text}" for clause, text in unmet.items()),
        ]
        content["description"] = "; ".join(told)[:4000]
        return replace(
            one, seconds=seconds, watts=watts, why=tuple(why), unmet=unmet, content=content
        )

    def _unmet(self, seconds: float, reach_s: float, watts: float | None) -> dict[str, str]:
        needs, found = self.needs, {}
        if needs.watts is not None and (watts is None or watts > needs.watts):
            takes = "an unknown power" if watts is None else f"{watts:.4g} W"
            found["watts"] = f"its network takes {takes}, {needs.watts:g} W are allowed"
        own_s = seconds / self.time_scale
        if needs.deadline_ms is not None and own_s * 1e3 > needs.deadline_ms:
            found["deadline_ms"] = (
                f"an iteration takes {own_s * 1e3:.4g} ms, {needs.deadline_ms:g} ms are allowed"
            )
        if needs.latency_ms is not None and not self.lines and not reach_s:
            found["latency_ms"] = (
                "the delay of this lab's lines is not known (lines of emulator.yml)"
            )
        elif needs.latency_ms is not None and reach_s * 1e3 > needs.latency_ms:
            found["latency_ms"] = (
                f"a message may take {reach_s * 1e3:.4g} ms, {needs.latency_ms:g} ms are allowed"
            )
        if (kept := needs.checkpoints) is not None:
            mbps = min(self.lab.hosts[host].storage_mbps for host in self.hosts)
            written_s = kept.bytes * self.read.workload.ranks_per_host * 8 / 1e6 / (mbps or 1.0)
            if not mbps:
                found["checkpoints"] = (
                    "the rate of a host's storage is not known (testbed_storage_mbps)"
                )
            elif written_s > kept.every * seconds:
                found["checkpoints"] = (
                    f"writing takes {seconds_text(written_s)}, {kept.every} iterations {seconds_text(kept.every * seconds)}"
                )
        return found
