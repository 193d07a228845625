"""A plan with one more host, whose ranks join its job: it takes a place in every ring. Pure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from optics import HostName, Infeasible, LinkKind, Missing
from optics.plain import did_you_mean, summary
from optics.plan import Plan
from optics.ranks import RankName, by_host, local_rank, numbered
from orchestrator.inventory.lab import Lab
from orchestrator.plan.evict import accepted_text


def plan_with_host(text: str, plan: Plan, lab: Lab, host: HostName) -> str:
    """The plan with a host whose ranks are the last of its job, in every ring between its last and
    its first host. A ring's link between these two, where it has one, is replaced by two.

    Raises: Missing - it is not of the lab, or the plan has no job. Infeasible - its ranks are in
    the job already, or there are no ports for its links.
    """
    job = plan.job
    if host not in lab.hosts:
        raise Missing(
            f"{host} is not in the lab ({summary(lab.hosts, 'host')}){did_you_mean(host, lab.hosts)}",
            hint="testbed status",
        )
    if job is None:
        raise Missing(
            f"{plan.name} has no job that {host} could join", hint="testbed up with a plan of a job"
        )
    if host in job.hosts:
        raise Infeasible(f"{host} is in job {job.name} already", hint="testbed job status")
    if plan.schedule is not None:
        raise Infeasible(
            f"{host} cannot join {job.name} while the circuits of {plan.name} move by a schedule",
            hint="testbed up with a plan of other hosts",
        )
    body = json.loads(text)
    body["links"] = list(body.get("links", ()))
    if host not in plan.hosts:
        _link(body["links"], job.rings or (job.hosts,), host, plan)
    _enter(body["job"], host, job.rings, _ranks(host, job.ranks))
    if "spares" in body:
        body["spares"] = [name for name in body["spares"] if name != host]
    body.pop("predicted", None)  # it was for one host fewer
    hint = f"ports of {host} and its neighbours must be free at one switch; or design it again: testbed design topoopt --workload FILE"
    return accepted_text(body, plan, lab, f"take {host}", hint)


def _ranks(host: HostName, ranks: Sequence[RankName]) -> list[RankName]:
    """Its ranks, as many as each other host has."""
    here = next(iter(by_host(ranks).values()))
    return [f"{host}/{local_rank(rank)}" if numbered(rank) else host for rank in here]


def _link(
    links: list[dict[str, Any]],
    rings: Sequence[Sequence[HostName]],
    host: HostName,
    plan: Plan,
) -> None:
    """Join the host to the last and the first host of each ring; a duplex link carries a ring and
    the same ring backwards.
    """
    kind = plan.links[0].kind if plan.links else LinkKind.DUPLEX
    done: list[frozenset[tuple[HostName, HostName]]] = []
    for order in rings:
        steps = frozenset(zip(order, (*order[1:], order[0]), strict=True))
        if kind == LinkKind.DUPLEX and frozenset((b, a) for a, b in steps) in done:
            continue
        done.append(steps)
        last, first = order[-1], order[0]
        if len(order) > 2:  # of two, a link carries both steps
            _without(links, last, first, kind)
        links += [{"a": a, "b": b, "kind": kind.value} for a, b in ((last, host), (host, first))]


def _without(links: list[dict[str, Any]], a: HostName, b: HostName, kind: LinkKind) -> None:
    """Leave out one link between two hosts, where there is one."""
    for link in links:
        ends = [link[end].partition(":")[0] for end in ("a", "b")]
        if ends == [a, b] or (kind == LinkKind.DUPLEX and ends == [b, a]):
            link["count"] = link.get("count", 1) - 1
            if not link["count"]:
                links.remove(link)
            return


def _enter(
    job: dict[str, Any],
    host: HostName,
    rings: Sequence[Sequence[HostName]],
    ranks: Sequence[RankName],
) -> None:
    """Write the ranks into the job's ranks and rings. One that another took the place of is as new
    as this one: it is that other which joined.
    """
    evicted: dict[str, str] = job.get("evicted") or {}
    joined = [*(job.get("joined") or ())]
    for rank in ranks:
        now = evicted.pop(rank, None)
        if now is None or now:
            joined.append(now or rank)
    job["ranks"] = [*job["ranks"], *ranks]
    made: list[tuple[Sequence[HostName], list[HostName]]] = []
    for order in rings:
        at = {tuple(old[k:]) + tuple(old[:k]): new for old, new in made for k in range(len(old))}
        back = at.get(tuple(reversed(order)))
        made.append((order, list(reversed(back)) if back is not None else [*order, host]))
    job["rings"] = [new for _, new in made]
    if joined:
        job["joined"] = joined
    if "evicted" in job:
        job["evicted"] = evicted
