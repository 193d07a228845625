"""Reads the schedule of a plan file: slots of links, or a pattern of them, in which all pairs that
must talk meet. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from math import ceil
from typing import Any

from optics import DeviceName, HostName, HostPort, LinkKind
from optics.plain import seconds_text
from optics.plan import Schedule, Slot, WantedLink, reached, steps_of
from optics.ranks import hosts_of
from orchestrator.inventory.lab import Lab
from orchestrator.inventory.positions import Path
from orchestrator.inventory.schema import attempt
from orchestrator.plan.edges import MOST_SLOTS, ScheduleEdge
from orchestrator.plan.links import Links

SETTLINGS = 4
"""Least dwell in settling times of a device that moves between slots: with fewer it is dark for
more than a fifth of the time.
"""
REACTION_S = 0.01
"""The dark window is this much longer (s) than devices need by their data sheets: command, report,
carrier and commit took 5 to 16 ms on the emulated lab. With a longer dark window, light would come
before its slot by as much as devices are faster."""
FOLLOWED_S = 0.1
"""Least dwell (s) at which hosts' ports lose carrier in the dark windows of a device that changes
by itself, as emulated.
"""
HOST_PERIOD_S = 0.05
"""Least time (s) of a slot and its dark window at which hosts change slots
(`agent/slots/operations.py`)."""
BURST_S, PACKET_BYTES, BURST_BYTES = 0.002, 9014, 65_536
"""What TCP hands to a port at once: an emulated one takes what it carries in this time
(`emulators/fabric/switches.py`), a packet at least, and none takes more than 64 kB."""
FIBRE_S_PER_M = 4.9e-9
AT: Path = ("schedule",)


class ScheduleReader:
    """Reads a plan's schedule beside the links that are always lit."""

    def __init__(self, links: Links, always: Sequence[WantedLink], max_loss_db: float) -> None:
        self.lab, self.links, self.problems = links.lab, links, links.problems
        self.always, self.max_loss_db = always, max_loss_db

    def schedule(self, document: Mapping[str, Any]) -> Schedule | None:
        """The schedule of a plan file's content, None without one or where it has mistakes that the
        schema names.
        """
        raw: Any = document.get("schedule")
        edge = attempt(ScheduleEdge, raw) if raw is not None else None
        if edge is None:
            return None
        guard_s = auto_guard_s(self.lab) if edge.guard_s == "auto" else edge.guard_s
        if guard_s >= edge.dwell_s:
            text = f"hosts would stop sending {seconds_text(guard_s)} before the end of a slot of {seconds_text(edge.dwell_s)}"
            self.problems.add(
                (*AT, "guard_s"), f"{text}: nothing is left to send in; wanted less than dwell_s"
            )
        self.kinds(edge, document.get("job") is not None)
        self.either(edge)
        if edge.pattern is not None and not edge.slots:
            slots = self.pattern(edge, document)
        else:
            raws = raw["slots"] if edge.slots else ()
            if len(raws) > MOST_SLOTS:
                self.problems.add(
                    (*AT, "slots"), f"{len(raws)} slots; a schedule has at most {MOST_SLOTS}"
                )
                return None
            slots = self.read([slot["links"] for slot in raws])
        if len(slots) == 1:
            place = "pattern" if edge.pattern else "slots"
            self.problems.add(
                (*AT, place), "one slot, which never ends: write its links as the plan's links"
            )
        elif len(set(map(frozenset, (slot.links for slot in slots)))) == 1:
            self.problems.add(
                (*AT, "slots"),
                "all slots have the same links, so nothing changes: write them as the plan's links",
            )
        self.dwell(edge, slots)
        return Schedule(
            slots,
            edge.dwell_s,
            guard_s,
            edge.kind,
            edge.follow,
            edge.late,
            edge.pattern or "",
            edge.tcp,
            edge.hold,
        )

    def kinds(self, edge: ScheduleEdge, job: bool) -> None:
        """A schedule by phases needs a job, and light to go by, as nobody knows when its iterations
        end.
        """
        if edge.kind == "phase" and not job:
            self.problems.add(
                (*AT, "kind"), "the job's iterations end a slot, but the plan has no job"
            )
        if edge.kind == "phase" and edge.follow == "clock":
            self.problems.add(
                (*AT, "follow"), "no clock tells when the job's iterations end; wanted light"
            )

    def either(self, edge: ScheduleEdge) -> None:
        """Slots or a pattern, and a pattern's words only with it."""
        if "slots" in edge.model_fields_set and edge.pattern is not None:
            self.problems.add((*AT, "pattern"), "slots are given too; wanted one of the two")
        elif not edge.slots and edge.pattern is None:
            self.problems.add(
                AT, "the schedule has no slots: give it slots, or a pattern with ports"
            )
        elif edge.pattern is None:
            for key in ("ports", "hosts"):
                if getattr(edge, key):
                    self.problems.add(
                        (*AT, key), f"slots name their own {key}; {key} go with a pattern", key=True
                    )
        elif not edge.ports:
            self.problems.add(
                (*AT, "pattern"),
                f"the pattern {edge.pattern} needs the ports that it joins: ports: [p1, ...]",
            )

    def read(self, raws: Iterable[Any]) -> tuple[Slot, ...]:
        return tuple(
            Slot(
                self.links.links(raw, self.max_loss_db, (*AT, "slots", index, "links"), self.always)
            )
            for index, raw in enumerate(raws)
        )

    def pattern(self, edge: ScheduleEdge, document: Mapping[str, Any]) -> tuple[Slot, ...]:
        """The slots of a pattern: link k of a slot joins port k of two hosts."""
        from planner.schedule.round_robin import expanded, fewest_slots  # here, as it loads numpy

        hosts, at = self.members(edge, document)
        places: list[tuple[str, Path]] = [
            (host, (*at, index) if edge.hosts else at) for index, host in enumerate(hosts)
        ]
        known = [self.links.known_host(host, place) for host, place in places]  # reports every one
        ports = edge.ports
        for index, port in enumerate(ports):
            if port in ports[:index]:
                self.problems.add((*AT, "ports", index), f"port {port} is named twice")
                known.append(False)
            elif all(known):
                ends = (self.links.end(f"{host}:{port}", (*AT, "ports", index)) for host in hosts)
                known.append(None not in ends)  # reports the first
        if not all(known) or len(hosts) < 2 or not ports or edge.pattern is None:
            if len(hosts) < 2 and ports:
                self.problems.add(
                    at,
                    f"the pattern {edge.pattern} joins {len(hosts)} hosts; wanted at least 2: name them as hosts",
                )
            self.links.complete = False
            return ()
        found = expanded(edge.pattern, len(hosts), len(ports))
        if len(found) > MOST_SLOTS:
            least = fewest_slots(len(hosts), len(ports))
            other = (
                f"; staggered has {least}"
                if least <= MOST_SLOTS
                else "; give it more ports or fewer hosts"
            )
            text = f"{edge.pattern} over {len(hosts)} hosts and {len(ports)} ports has {len(found)} slots; "
            text += f"at most {MOST_SLOTS} are possible"
            self.problems.add((*AT, "pattern"), text + other)
            self.links.complete = False
            return ()
        return self.read(
            [
                {"a": f"{hosts[a]}:{port}", "b": f"{hosts[b]}:{port}"}
                for port, matching in zip(ports, slot, strict=True)
                for a, b in matching
            ]
            for slot in found
        )

    def members(
        self, edge: ScheduleEdge, document: Mapping[str, Any]
    ) -> tuple[list[HostName], Path]:
        """The hosts of a pattern, each once, and their place in the file: its own, else the job's,
        else those of the links.
        """
        if edge.hosts:
            for index, host in enumerate(edge.hosts):
                if host in edge.hosts[:index]:
                    self.problems.add((*AT, "hosts", index), f"host {host} is named twice")
            return list(dict.fromkeys(edge.hosts)), (*AT, "hosts")
        job = document.get("job")
        ranks = job.get("ranks") if isinstance(job, Mapping) else None
        if isinstance(ranks, list) and all(isinstance(rank, str) for rank in ranks):
            return list(hosts_of(ranks)), (*AT, "pattern")
        return list(dict.fromkeys(host for link in self.always for host in link.hosts)), (
            *AT,
            "pattern",
        )

    def meeting(self, schedule: Schedule, hosts: Sequence[HostName]) -> None:
        """Every two of these hosts have a path in some slot."""
        if not self.links.complete:
            return
        directions: dict[HostName, set[HostName]] = {host: set() for host in hosts}
        for slot in schedule.slots:
            steps = steps_of((*self.always, *slot.links))
            for host in hosts:
                directions[host] |= reached(host, steps)
        lost = [
            (a, b)
            for a, b in combinations(hosts, 2)
            if b not in directions[a] or a not in directions[b]
        ]
        if lost:
            few = ", ".join(f"{a} and {b}" for a, b in lost[:4]) + (
                ", ..." if len(lost) > 4 else ""
            )
            place = "pattern" if schedule.pattern else "slots"
            self.problems.add(
                (*AT, place),
                f"never meet: {few}; in some slot a path over its links must join them",
            )

    def dwell(self, edge: ScheduleEdge, slots: Sequence[Slot]) -> None:
        """Every device that moves between slots is fast enough for them."""
        needs = settling(slots, self.lab)
        if not needs:
            return
        stored = {d: self.lab.traits_of(d).stored_dwell_s for d in needs}
        if edge.kind == "clock" and None not in stored.values():
            self.stored_dwell(
                edge,
                {d: least for d, least in stored.items() if least is not None},
                max(needs.values()),
            )
            return
        device, settling_s = max(needs.items(), key=lambda item: item[1])
        if edge.dwell_s >= SETTLINGS * settling_s - 1e-9:
            return
        text = f"{device} takes {seconds_text(settling_s)} from slot to slot, and light must last {SETTLINGS} times as long: "
        text += f"the nearest dwell that works is {SETTLINGS * settling_s:g} s"
        if edge.kind == "clock" and stored[device] is not None:
            notice = ", ".join(sorted(d for d, least in stored.items() if least is None))
            text += f"; it could change slots by itself, but {notice} must be given every slot, and so all are"
        self.problems.add((*AT, "dwell_s"), text)

    def stored_dwell(
        self, edge: ScheduleEdge, least: Mapping[DeviceName, float], settling_s: float
    ) -> None:
        """Devices that change slots by themselves are fast enough, and so are the hosts that follow
        them.
        """
        device = max(least, key=lambda name: least[name])
        shortest = max(least[device], HOST_PERIOD_S - REACTION_S - settling_s)
        if edge.dwell_s < shortest - 1e-9:
            who = f"{device} changes slots by itself at {seconds_text(least[device])}, hosts at {seconds_text(HOST_PERIOD_S)}"
            text = f"{who} with the dark time: the nearest dwell that works is {shortest:g} s"
        elif edge.follow == "light" and edge.dwell_s < FOLLOWED_S:
            text = f"{device} changes slots by itself, and hosts' ports see no end of light in slots of {seconds_text(edge.dwell_s)}: "
            text += f"the nearest dwell that works is {FOLLOWED_S:g} s, or {edge.dwell_s:g} s by their clocks alone (follow: clock)"
            shortest = FOLLOWED_S
        else:
            return
        if edge.follow == "light" and shortest < FOLLOWED_S:
            text += f" with follow: clock, {FOLLOWED_S:g} s with follow: light"
        self.problems.add((*AT, "dwell_s"), text)


def auto_guard_s(lab: Lab) -> float:
    """How long (s) what waits in a port takes to arrive: the two bursts of a connection that fills
    the slowest port, and the way.

    The way is that of light through the longest fibre of a host, there and back, and the longest
    trunk.
    """
    rate = min(host.link_mbps for host in lab.hosts.values()) * 1e6 / 8
    queue_bytes = 2 * min(max(rate * BURST_S, PACKET_BYTES), BURST_BYTES)
    way_m = 2 * max((fibre.length_m for fibre in lab.fibres.values()), default=0.0)
    way_m += max((trunk.length_m for trunk in lab.trunks), default=0.0)
    return ceil((queue_bytes / rate + way_m * FIBRE_S_PER_M) * 1e6) / 1e6


def settling(slots: Sequence[Slot], lab: Lab) -> dict[DeviceName, float]:
    """How long (s, of this lab) each device takes from one slot to the next, at most; those that do
    not move are left out.

    By its data sheet: its settling time for each command, and the commands that its moves take. A
    link whose ports are still to be chosen may be at any device that its hosts have fibres to.
    """
    at: dict[HostName, set[DeviceName]] = {}
    for port, fibre in lab.fibres.items():
        at.setdefault(port.host, set()).add(fibre.device)
    longest: dict[DeviceName, float] = {}
    for before, slot in zip((slots[-1], *slots[:-1]) if slots else (), slots, strict=True):
        moves: Counter[DeviceName] = Counter()
        for link, count in (
            (Counter(before.links) - Counter(slot.links))
            + (Counter(slot.links) - Counter(before.links))
        ).items():
            for device in {device for end in (link.a, link.b) for device in _devices(end, lab, at)}:
                moves[device] += count * (2 if link.kind is LinkKind.DUPLEX else 1)
        for device, count in moves.items():
            traits = lab.traits_of(device)
            needs = traits.settle_s * (ceil(count / traits.at_once) if traits.at_once else 1)
            longest[device] = max(longest.get(device, 0.0), needs)
    return longest


def slowest_between_slots(slots: Sequence[Slot], lab: Lab) -> tuple[DeviceName, float] | None:
    """The device that takes longest from one slot to the next, and how long (s, of this lab); None
    if nothing moves.
    """
    return max(settling(slots, lab).items(), key=lambda item: item[1], default=None)


def _devices(
    end: HostPort | HostName, lab: Lab, at: Mapping[HostName, set[DeviceName]]
) -> set[DeviceName]:
    if isinstance(end, HostPort):
        return {lab.fibres[end].device} if end in lab.fibres else set()
    return at.get(end, set())
