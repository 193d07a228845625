"""A plan without a host that has failed: a spare takes its place, or its neighbours close the rings
without it. Pure.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from optics import BadFile, HostName, Infeasible, LinkKind, Missing
from optics.plain import did_you_mean, summary
from optics.plan import Job, Plan, ring_steps
from optics.ranks import RankName, host_of_rank
from orchestrator.inventory.lab import Lab
from orchestrator.plan.attached import rewrite_attachments
from orchestrator.plan.interchangeable import difference, relabelled_text
from orchestrator.plan.ports import assign_ports
from orchestrator.plan.reader import read_plan


def hosts_in_use(plan: Plan) -> set[HostName]:
    """Every host that a plan links or runs ranks on."""
    return {*plan.hosts} | set(plan.job.needed if plan.job else ())


def why_no_spare(host: HostName, spare: HostName, plan: Plan, lab: Lab) -> str:
    """Why a host of the plan cannot be replaced by `spare`, as far as plan and inventory say; empty
    if it can.
    """
    if spare not in lab.hosts:
        return f"{spare} is not in the lab ({summary(lab.hosts, 'host')}){did_you_mean(spare, lab.hosts)}"
    if spare in hosts_in_use(plan):
        return f"{spare} is in use by {plan.name} already"
    text = difference(host, spare, lab)
    return f"{spare} cannot take the place of {host}: {host} has {text}" if text else ""


def like(host: HostName, plan: Plan, lab: Lab) -> list[HostName]:
    """The hosts outside the plan that could take the place of `host`, the plan's own spares
    first.
    """
    names = (*plan.spares, *(name for name in lab.hosts if name not in plan.spares))
    return [name for name in names if not why_no_spare(host, name, plan, lab)]


def replaced(text: str, plan: Plan, lab: Lab, by: Mapping[HostName, HostName]) -> str:
    """The plan with spares in the place of hosts; ranks keep their numbers and their training.

    Raises: Missing - a host is not of the plan, or no spare of the lab. Infeasible - a spare is not
    like its host, or in use.
    """
    for host, spare in by.items():
        _of(host, plan, lab)
        if message := why_no_spare(host, spare, plan, lab):
            others = [name for name in like(host, plan, lab) if name not in by.values()]
            hint = (
                f"testbed job evict {host} --spare {others[0]}"
                if others
                else "leave --spare out: its neighbours close the rings without it"
            )
            raise (Missing if spare not in lab.hosts else Infeasible)(message, hint=hint)
    if len(set(by.values())) < len(by):
        raise Infeasible(
            f"one spare cannot take the place of {' and '.join(by)}", hint="name a spare for each"
        )
    body = json.loads(relabelled_text(text, by))
    _rewrite(body, lambda hosts: [by.get(host, host) for host in hosts], by.values())
    if plan.job is not None:
        taken = {
            rank: by[host_of_rank(rank)] + rank.removeprefix(host_of_rank(rank))
            for rank in _on(by, plan.job.ranks)
        }
        _note(body, plan.job, taken)
    return accepted_text(body, plan, lab, _without(by), "")


def plan_without_host(text: str, plan: Plan, lab: Lab, host: HostName) -> str:
    """The plan without a host: one rank (or as many as it had) fewer, each ring closed by its
    neighbours' freed ports.

    Attachments of its job become what they are without it (`Planned.without`).

    Raises: Missing - it is not of the plan. Infeasible - it holds what no other host does, or a
    ring cannot be closed.
    """
    _of(host, plan, lab)
    _dispensable(host, plan, lab)
    body = json.loads(text)
    job = plan.job
    if job is not None:
        body["job"]["ranks"] = [rank for rank in body["job"]["ranks"] if host_of_rank(rank) != host]
        _note(body, job, dict.fromkeys(_on((host,), job.ranks), ""))
        for holder in (body["job"], *(body["job"].get("traffic") or {}).get("groups", ())):
            if "rings" in holder:
                holder["rings"] = [
                    [name for name in ring if name != host] for ring in holder["rings"]
                ]
        rewrite_attachments(body["job"], lambda kind, section: kind.without(section, host))
        if groups := (body["job"].get("traffic") or {}).get("groups"):
            body["job"]["traffic"]["groups"] = [
                group for group in groups if len(group["rings"][0]) > 1
            ]
    removed = [link for link in body.get("links", ()) if host in _ends(link)]
    body["links"] = [link for link in body.get("links", ()) if host not in _ends(link)]
    body["links"] += [{"a": a, "b": b, "kind": kind} for a, b, kind in _joined(host, plan, removed)]
    for segment in body.get("segments", ()):
        named = segment.get("hosts") or list(lab.segments[segment["name"]].ports)
        segment["hosts"] = [name for name in named if name != host]
    body["segments"] = [
        segment for segment in body.get("segments", ()) if len(segment["hosts"]) > 1
    ]
    _unscheduled(body, host)
    body["routes"] = [
        r for r in body.get("routes", ()) if host not in (r["src"], r["dst"], *r["via"])
    ]
    _rewrite(body, lambda hosts: [name for name in hosts if name != host], ())
    for key in ("segments", "routes", "predicted"):
        if not body.get(key) or key == "predicted":  # the prediction was for one more host
            body.pop(key, None)
    hint = f"--spare, for a host like it; or design it again: testbed design replan --topology FILE --host {host}"
    try:
        return accepted_text(body, plan, lab, _without((host,)), hint)
    # the ports that are free now are at different switches: choose all of them again
    except Infeasible:
        moved = [{**link, "a": a, "b": b} for link in body["links"] for a, b in (_ends(link),)]
        return accepted_text({**body, "links": moved}, plan, lab, _without((host,)), hint)


def _unscheduled(body: dict[str, Any], host: HostName) -> None:
    """Take a host out of the slots."""
    schedule = body.get("schedule") or {}
    for slot in schedule.get("slots", ()):
        slot["links"] = [link for link in slot["links"] if host not in _ends(link)]
    if "hosts" in schedule:
        schedule["hosts"] = [name for name in schedule["hosts"] if name != host]


def _of(host: HostName, plan: Plan, lab: Lab) -> None:
    if host not in (inside := hosts_in_use(plan)):
        where = "" if host in lab.hosts else ", nor of the lab"
        raise Missing(
            f"{host} is no host of {plan.name}{where}{did_you_mean(host, inside)}",
            hint="testbed status",
        )


def _on(hosts: Iterable[HostName], ranks: Sequence[RankName]) -> list[RankName]:
    return [rank for rank in ranks if host_of_rank(rank) in set(hosts)]


def _ends(link: Mapping[str, str]) -> tuple[HostName, HostName]:
    return link["a"].partition(":")[0], link["b"].partition(":")[0]


def _rewrite(body: dict[str, Any], changed: Any, taken: Iterable[HostName]) -> None:
    """Interchangeable hosts, and the spares that are left."""
    if isinstance(groups := body.get("interchangeable"), list):
        body["interchangeable"] = [group for group in map(changed, groups) if len(group) > 1]
    if "spares" in body:
        body["spares"] = [name for name in body["spares"] if name not in set(taken)]


def _note(body: dict[str, Any], job: Job, taken: Mapping[RankName, RankName]) -> None:
    """Record in the plan which ranks took whose place, so that the training stays the same one
    (`launch.identity`). job: as it was.
    """
    before, joined = job.evicted, job.joined
    now = {rank: taken.get(then, then) for rank, then in before.items()}
    now |= {
        rank: then
        for rank, then in taken.items()
        if rank not in before.values() and rank not in joined
    }
    if joined:  # it began without them
        places = (taken.get(rank, rank) for rank in joined)
        body["job"]["joined"] = [rank for rank in places if rank]
    body["job"]["evicted"] = {rank: then for rank, then in now.items() if rank != then}


def _dispensable(host: HostName, plan: Plan, lab: Lab) -> None:
    """Raises: Infeasible - the others do not have what this host's ranks hold."""
    job = plan.job
    if job is None or host not in job.hosts:
        return
    spares = like(host, plan, lab)
    hint = (
        f"testbed job evict {host} --spare {spares[0]}"
        if spares
        else "a host like it, as --spare; none is free in this lab"
    )
    if len(job.hosts) < 3:
        raise Infeasible(f"without {host} job {job.name} has one host left", hint=hint)
    if job.workload == "program":
        raise Infeasible(
            f"what the ranks of program {job.program} hold is not known, so none can be left out",
            hint=hint,
        )
    traffic = job.traffic
    if traffic is None:
        return
    if any(host in (transfer.src, transfer.dst, transfer.via) for transfer in traffic.transfers):
        shared = any(
            host in ring and len(ring) > 1 for group in traffic.groups for ring in group.rings
        )
        what = (
            "takes part in model-parallel transfers"
            if shared
            else "passes on transfers"
            if all(host not in (transfer.src, transfer.dst) for transfer in traffic.transfers)
            else "is the only holder of a pipeline stage"
        )
        raise Infeasible(
            f"{host} {what} of job {job.name}, which cannot go on without {'them' if shared else 'it'}",
            hint=hint,
        )
    if any(group.schedule and host in group.rings[0] for group in traffic.groups):
        raise Infeasible(
            f"{host} is part of an all-reduce by a schedule, which must be designed again",
            hint=hint,
        )


def _joined(
    host: HostName, plan: Plan, removed: Sequence[Mapping[str, Any]]
) -> list[tuple[HostName, HostName, str]]:
    """The links that close each ring without the host: of its neighbours there, as many as lose a
    link each.

    Ends have no port: the one that was freed may be at another switch than its new peer's.
    """
    free: Counter[HostName] = Counter()
    for link in removed:
        free.update(
            name for name in _ends(link) for _ in range(link.get("count", 1)) if name != host
        )
    existing: Counter[frozenset[HostName]] = Counter(
        frozenset(link.hosts) for link in plan.links if host not in link.hosts
    )
    kind = next((link.get("kind", "duplex") for link in removed), LinkKind.DUPLEX.value)
    made: list[tuple[HostName, HostName, str]] = []
    used: Counter[frozenset[HostName]] = Counter()
    for order in _one_direction(plan.rings) if kind == LinkKind.DUPLEX.value else plan.rings:
        if host not in order or len(order) < 4:
            continue  # what is left of three is a pair, which its own link joins
        at = order.index(host)
        before, after = order[at - 1], order[(at + 1) % len(order)]
        pair = frozenset((before, after))
        steps = sum(frozenset(step) == pair for other in plan.rings for step in ring_steps(other))
        if free[before] and free[after]:
            free.subtract((before, after))
            made.append((before, after, kind))
        elif existing[pair] <= steps + used[pair]:
            raise Infeasible(
                f"without {host} a ring steps from {before} to {after}, which have no ports to be joined by",
                hint=f"--spare, for a host like it; or design it again: testbed design replan --topology FILE --host {host}",
            )
        used[pair] += 1
    return made


def _one_direction(orders: Iterable[Sequence[HostName]]) -> list[tuple[HostName, ...]]:
    """The orders without those that are another one backwards: a duplex link carries both."""
    found: list[tuple[HostName, ...]] = []
    for order in map(tuple, orders):
        back = order[::-1]
        rotated = {back[at:] + back[:at] for at in range(len(back))}
        if not rotated & set(found):
            found.append(order)
    return found


def _without(hosts: Iterable[HostName]) -> str:
    return f"do without {', '.join(hosts)}"


def accepted_text(body: dict[str, Any], plan: Plan, lab: Lab, what: str, hint: str) -> str:
    """The text, which the lab takes. Raises: Infeasible - it does not, so the plan cannot do
    `what`.
    """
    text = json.dumps(body, indent=2, ensure_ascii=False) + "\n"
    try:
        assign_ports(read_plan(text, plan.name, lab).links, lab)
    except BadFile as error:
        few = "\n".join(error.problems[:4])
        raise Infeasible(
            f"{plan.name} cannot {what}:\n{few}",
            hint=hint or "testbed status",
        ) from None
    except Infeasible as error:
        raise Infeasible(f"{plan.name} cannot {what}: {error}", hint=hint or error.hint) from None
    return text


def left_out(text: str, spares: Sequence[HostName], plan: Plan, lab: Lab) -> str:
    """The plan with these spares instead of its own.

    Raises: Missing - one is not of the lab. Infeasible - one is named twice, in use by the plan, or
    like none of its hosts.
    """
    hosts = sorted(hosts_in_use(plan))
    wrong = []
    for at, spare in enumerate(spares):
        why = [why_no_spare(host, spare, plan, lab) for host in hosts]
        if spare in spares[:at]:
            wrong.append(f"{spare} is named twice")
        elif why and all(why):
            wrong.append(why[0])
    if wrong:
        fit = [
            name
            for name in lab.hosts
            if not all(why_no_spare(host, name, plan, lab) for host in hosts)
        ]
        hint = (
            f"idle hosts like those of the plan: --spares {','.join(fit[:4])}"
            if fit
            else "leave --spares out"
        )
        kind = Infeasible if set(spares) <= set(lab.hosts) else Missing
        raise kind("\n".join(f"--spares {','.join(spares)}: {text}" for text in wrong), hint=hint)
    body = json.loads(text)
    return json.dumps({**body, "spares": list(spares)}, indent=2, ensure_ascii=False) + "\n"
