"""`--relabel`: a plan with its interchangeable hosts exchanged so that most circuits stay. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from optics import HostName, Infeasible, Interlock, Setting
from optics.plan import Plan
from orchestrator.fabric.circuits import foreign_ports, live_links
from orchestrator.fabric.lightpath import Held, among
from orchestrator.fabric.transition import per_device
from orchestrator.inventory.lab import Lab
from orchestrator.plan.interchangeable import Labels, labels_between, relabelled_text
from orchestrator.plan.label_search import labels
from orchestrator.plan.reader import read_plan
from orchestrator.plan.report import RelabelReport
from orchestrator.plan.target import target


def relabelled(
    plan: Plan,
    text: str,
    lab: Lab,
    observed: Held,
    owned: Iterable[Setting],
    current_text: str = "",
) -> tuple[Plan, str, RelabelReport]:
    """The plan that moves the fewest settings, never more than the plan as written, its text, and a
    report.

    current_text: of the plan that is up; if that is this plan relabelled, its labels are kept
    unless others move less. Raises: Infeasible, Interlock - as `target`, if no labelling helps.
    """
    owned = list(owned)
    own = per_device(owned)
    held_own = {d: among(held, own.get(d, ())) for d, held in observed.items()}
    inside = {host for link in plan.links for host in link.hosts} | set(
        plan.job.hosts if plan.job else ()
    )
    busy = {port.host for port in foreign_ports(observed, own, lab)} - inside
    out = {*busy, *plan.spares, *({*plan.job.aside} - inside if plan.job else ())}
    groups = [[host for host in group if host not in out] for group in plan.interchangeable]
    known = labels_between(text, current_text) if current_text else None
    if known is not None and not _within(known, groups):
        known = None
    optical = [link for link in plan.links if not lab.electrical(link)]
    found = labels(optical, groups, live_links(held_own, lab), known)
    tried: dict[tuple[tuple[HostName, HostName], ...], int | Infeasible | Interlock] = {}
    plans: dict[tuple[tuple[HostName, HostName], ...], tuple[Plan, str]] = {}
    for by in (known or {}, {}, found):
        key = tuple(by.items())
        if key not in tried:
            plans[key] = _applied(plan, text, lab, by)
            try:
                tried[key] = _moves(plans[key][0], lab, observed, owned)
            except (Infeasible, Interlock) as error:
                tried[key] = error
    possible = {key: moves for key, moves in tried.items() if isinstance(moves, int)}
    as_written = tried[()]
    if not possible:
        assert isinstance(as_written, Exception)  # the plan as written is among those tried
        raise as_written
    best = min(possible, key=lambda key: possible[key])  # the first of equals
    report = RelabelReport(
        dict(best), possible[best], as_written if isinstance(as_written, int) else None
    )
    return *plans[best], report


def _within(by: Labels, groups: Iterable[Iterable[HostName]]) -> bool:
    """Each host's label is of its own group."""
    group = {host: index for index, members in enumerate(groups) for host in members}
    return all(old in group and group[old] == group.get(new) for old, new in by.items())


def _applied(plan: Plan, text: str, lab: Lab, by: Labels) -> tuple[Plan, str]:
    if not by:
        return plan, text
    changed = relabelled_text(text, by)
    return replace(
        read_plan(changed, plan.name, lab), avoid=plan.avoid, warnings=plan.warnings
    ), changed


def _moves(plan: Plan, lab: Lab, observed: Held, owned: Iterable[Setting]) -> int:
    change = target(plan, lab, observed, owned).change
    return sum(map(len, change.made.values())) + sum(map(len, change.removed.values()))
