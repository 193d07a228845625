"""Reads a plan file (`testbed.plan/1`) and checks it against a lab; all errors at once, each with
line and column.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any

from optics import BadFile, HostName
from optics.plan import Acceptance, FixedRoute, Plan, TransitionPolicy
from orchestrator.inventory.json_reader import read_json
from orchestrator.inventory.lab import Lab
from orchestrator.inventory.positions import Document, Path, Problems
from orchestrator.inventory.schema import attempt, check, show
from orchestrator.plan.attached import Site, attachment_hosts, read_attached
from orchestrator.plan.edges import PlanEdge, RouteEdge
from orchestrator.plan.interchangeable import alike, difference
from orchestrator.plan.jobs import JobReader
from orchestrator.plan.links import Links
from orchestrator.plan.other_lab import refuse_another_labs
from orchestrator.plan.partitions import check_partitions
from orchestrator.plan.schedule import ScheduleReader

HINT = "correct the plan; nothing was changed"


def read_plan(text: str, filename: str, lab: Lab) -> Plan:
    """The plan `text` describes, checked against `lab`.

    Ends without a port stay so; `ports.assign_ports` chooses their ports.
    Raises: BadFile - everything wrong with it, in the order of the file.
    """
    document = _document(text, filename)
    refuse_another_labs(document, lab)
    problems, notes = Problems(document), Problems(document)
    edge = check(PlanEdge, document.value, problems)
    raw: Mapping[str, Any] = document.value if isinstance(document.value, Mapping) else {}
    known = {field.alias or name for name, field in PlanEdge.model_fields.items()}
    # what it was meant for seems to be missing
    if any(key not in known and not key.startswith("x_") for key in raw):
        raise BadFile(problems.lines(), hint=HINT)
    checked = Links(lab, problems)
    max_loss_db = edge.acceptance.max_loss_db if edge else Acceptance().max_loss_db
    links = checked.links(raw.get("links"), max_loss_db)
    links += checked.segments(raw.get("segments"))
    if edge is not None and not edge.links and not edge.segments and edge.schedule is None:
        problems.add(
            ("links",) if "links" in raw else (),
            "the plan joins no hosts: give it links, segments, or both",
        )
    changing = ScheduleReader(checked, links, max_loss_db)
    schedule = changing.schedule(raw)
    sometimes = (
        [link for slot in schedule.slots for link in slot.links] if schedule is not None else ()
    )
    reader = JobReader(checked, notes)
    job = reader.job(raw.get("job"))
    attached = read_attached(
        Site(reader.edge, job, edge, checked, links, (*links, *sometimes), notes)
    )
    if job is not None:
        job = replace(job, attached=attached)
        job = replace(job, aside=attachment_hosts(job))
    if (
        job is not None
        and schedule is not None
        and job.workload == "train"
        and job.args.get("exchange") == "gloo"
    ):
        message = "gloo: torch's connections do not know the slots, and wait out dark ones by TCP's timers; exchange wires knows them"
        notes.add(("job", "args", "exchange"), message)
    if job is not None and edge is not None and edge.predicted is not None:
        job = replace(job, predicted=edge.predicted.model_dump(exclude_none=True))
    plan = Plan(edge.name if edge else "", links, job, schedule=schedule)
    if schedule is not None and (job or edge is None or edge.acceptance.all_pairs):
        changing.meeting(schedule, job.hosts if job else plan.hosts)
    check_partitions(plan, edge, checked, problems)
    routes = _Routes(checked).routes(raw.get("routes"))
    groups = _interchangeable(edge.interchangeable if edge else [], plan.hosts, checked)
    spares = _spares(
        edge.spares if edge else [], {*plan.hosts, *(job.needed if job else ())}, checked
    )
    if problems or edge is None:
        raise BadFile(problems.lines(), hint=HINT)
    return replace(
        plan,
        routes=routes,
        acceptance=Acceptance(**edge.acceptance.model_dump()),
        transition=TransitionPolicy(**edge.transition.model_dump()),
        description=edge.description,
        sha256=hashlib.sha256(text.encode()).hexdigest(),
        warnings=tuple(notes.lines()),
        interchangeable=groups,
        segments=tuple(segment.name for segment in edge.segments),
        spares=spares,
    )


def _document(text: str, filename: str) -> Document:
    """Parse the file. Raises: BadFile - it is not JSON; YAML is called by its name."""
    try:
        return read_json(text, filename)
    except BadFile as error:
        first = next(
            (
                line
                for line in map(str.strip, text.splitlines())
                if line and not line.startswith("#")
            ),
            "",
        )
        yaml = re.match(r"(---|[A-Za-z_]\w*:)(\s|$)", first)
        lines = [
            re.sub(r" not JSON: .*", " this is YAML; a plan is JSON", line)
            for line in error.problems
        ]
        raise BadFile(lines if yaml else error.problems, hint=HINT) from None


def _interchangeable(
    groups: str | list[list[str]], hosts: Iterable[HostName], links: Links
) -> tuple[tuple[HostName, ...], ...]:
    """The groups of interchangeable hosts: equal hosts only, none in two groups."""
    if isinstance(groups, str):
        return alike(hosts, links.lab)
    seen: dict[str, int] = {}
    for index, group in enumerate(groups):
        first = next((host for host in group if host in links.lab.hosts), "")
        for at, host in enumerate(group):
            path: Path = ("interchangeable", index, at)
            if not links.known_host(host, path):
                continue
            if host in seen:
                where = (
                    "twice in this group"
                    if seen[host] == index
                    else f"already in interchangeable[{seen[host]}]"
                )
                links.problems.add(path, f"host {host} is {where}")
            seen.setdefault(host, index)
            if text := difference(first, host, links.lab):
                links.problems.add(
                    path, f"{host} cannot take the place of {first}: {first} has {text}"
                )
    return tuple(tuple(group) for group in groups if len(group) > 1)


def _spares(names: list[str], used: Collection[HostName], links: Links) -> tuple[HostName, ...]:
    """The spares: hosts that the plan does not use, each like one that it uses."""
    for at, name in enumerate(names):
        path: Path = ("spares", at)
        if not links.known_host(name, path):
            continue
        inside = sorted(host for host in used if host in links.lab.hosts)
        if name in used:
            links.problems.add(path, f"{name} is in use by this plan, so it is no spare")
        elif name in names[:at]:
            links.problems.add(path, f"{name} is named twice")
        elif inside and all(tokens := [difference(host, name, links.lab) for host in inside]):
            links.problems.add(
                path,
                f"{name} cannot take the place of any host of the plan: {inside[0]} has {tokens[0]}",
            )
    return tuple(names)


class _Routes:
    """Reads fixed routes: each follows links, and two routes to one host do not contradict each
    other.
    """

    def __init__(self, links: Links) -> None:
        self.lab, self.links, self.problems = links.lab, links, links.problems

    def routes(self, raw: Any) -> tuple[FixedRoute, ...]:
        fixed: list[FixedRoute] = []
        chosen: dict[tuple[HostName, HostName, int], tuple[HostName, int]] = {}
        for index, item in enumerate(raw if isinstance(raw, list) else ()):
            path: Path = ("routes", index)
            edge = attempt(RouteEdge, item)
            if edge is None:
                continue
            places: list[Path] = [
                (*path, "src"),
                *((*path, "via", at) for at in range(len(edge.via))),
                (*path, "dst"),
            ]
            hops = [edge.src, *edge.via, edge.dst]
            # reports every one
            known = [
                self.links.known_host(host, place) for host, place in zip(hops, places, strict=True)
            ]
            if not all(known):
                continue
            twice = next((at for at, host in enumerate(hops) if host in hops[:at]), None)
            if twice is not None:
                self.problems.add(places[twice], f"the route visits {hops[twice]} twice")
                continue
            if self.links.complete and not self.follows(hops, places):
                continue
            host = self.lab.hosts[edge.src]
            lanes = host.lanes
            if edge.lane is not None and host.forwarding == "npar-rdma":
                self.problems.add(
                    (*path, "lane"), "npar-rdma relays cannot tell lanes apart; leave the lane out"
                )
                continue
            if edge.lane is not None and edge.lane >= lanes:
                self.problems.add(
                    (*path, "lane"), f"wanted a lane of 0..{lanes - 1}, got {show(edge.lane)}"
                )
                continue
            for lane in range(lanes) if edge.lane is None else (edge.lane,):
                clash = self.clash(hops, lane, index, chosen)
                if clash:
                    self.problems.add(path, clash)
                    break
            fixed.append(FixedRoute(edge.src, edge.dst, tuple(edge.via), edge.lane))
        return tuple(fixed)

    def clash(
        self,
        hops: list[str],
        lane: int,
        index: int,
        chosen: dict[tuple[HostName, HostName, int], tuple[HostName, int]],
    ) -> str:
        """Hosts route by destination, so two routes to one target must have the same next hop at
        each host they share.
        """
        target = hops[-1]
        for host, follower in pairwise(hops):
            other, by = chosen.setdefault((host, target, lane), (follower, index))
            if other != follower:
                return f"{host} cannot send traffic for {target} to {follower}: routes[{by}] sends it to {other}"
        return ""

    def follows(self, hops: list[str], places: list[Path]) -> bool:
        for at, (host, follower) in enumerate(pairwise(hops)):
            if not self.links.edges[host, follower]:
                self.problems.add(
                    places[at + 1],
                    f"the route steps from {host} to {follower}, but no link joins them",
                )
                return False
        return True
