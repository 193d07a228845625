"""Golden planner cases, a folder each: `case.json` says which plan comes after which,
`expected.txt` what is made of it.

A result that is meant to change is rewritten with `UPDATE_GOLDEN=1 pytest tests/plan`; read the
difference before you keep it.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from optics import CrossConnect, HostPort, Interlock, Link, Port
from optics.plain import natural
from optics.plan import Plan
from orchestrator.fabric.circuits import circuits, foreign_ports, live_links, settings
from orchestrator.fabric.lightpath import LightMap, loss_db
from orchestrator.fabric.rules import Macs, Rules, drain_rules, hops, rules
from orchestrator.fabric.transition import transition
from orchestrator.inventory.lab import Lab
from orchestrator.plan.ports import assign_ports
from orchestrator.plan.reader import read_plan
from tests.kit.labs import lab_of
from tests.oracles.rings import plan_rings
from tests.oracles.walk import walk

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
CASES = sorted(path.parent for path in (HERE / "cases").glob("*/case.json"))


def macs_of(lab: Lab) -> dict[HostPort, Macs]:
    return {
        port: Macs(
            f"02:00:00:00:{lab.hosts[port.host].host_id:02x}:{port.number:02x}",
            f"02:00:00:01:00:{index:02x}",
        )
        for index, port in enumerate(lab.fibres)
    }


def plan_at(case: Path, name: str, lab: Lab) -> Plan:
    path = case / name if (case / name).exists() else ROOT / "examples" / name
    return read_plan(path.read_text(), name, lab)


def written(title: str, per_host: dict[str, Rules], hosts: list[str]) -> list[str]:
    lines = []
    for host in hosts:
        lines += [
            f"{title} of {host}",
            *sorted(f"  {rule.command()}" for rule in per_host.get(host, frozenset())),
        ]
    return lines


def story(case: Path) -> str:
    """Everything that is computed for the case, in words."""
    asked: dict[str, Any] = json.loads((case / "case.json").read_text())
    lab = lab_of(asked["lab"])
    macs = macs_of(lab)
    now: tuple[Link, ...] = ()
    before = None
    for name in asked.get("before", []):
        before = plan_at(case, name, lab)
        now = assign_ports(before.links, lab, now)
    ours = settings(circuits(now, lab))
    foreign = {
        device: {CrossConnect(Port(device, a), Port(device, b)) for a, b in held}
        for device, held in asked.get("foreign", {}).items()
    }
    observed = {
        device: ours.get(device, frozenset()) | foreign.get(device, set()) for device in lab.devices
    }
    old = live_links(ours, lab)
    busy = foreign_ports(observed, ours, lab)

    plan = plan_at(case, asked["plan"], lab)
    lines = [f"plan {plan.name}", *(f"warning {text}" for text in plan.warnings)]
    links = assign_ports(plan.links, lab, old, busy)
    directions = circuits(links, lab)
    lines += [f"  {link}" for link in links]
    try:
        change = transition(observed, settings(directions), ours)
    except Interlock as refused:
        return "\n".join([*lines, f"refused: {refused}"]) + "\n"
    traces = [*LightMap(observed, lab).traces(), *LightMap(change.after(observed), lab).traces()]
    ends = {trace.path[0]: trace for trace in traces}
    for device in sorted(change.kept):
        kept, removed, made = change.kept[device], change.removed[device], change.made[device]
        lines.append(f"{device}: {len(kept)} kept, {len(removed)} broken, {len(made)} made")
        for action, held in (
            ("keep", kept),
            ("break", removed),
            ("make", made),
            ("foreign", change.foreign[device]),
        ):
            for setting in sorted(
                held, key=lambda one: (natural(one.ingress.label), natural(one.egress.label))
            ):
                a, b = (
                    (ends[setting].transmitter, ends[setting].receiver)
                    if setting in ends
                    else (None, None)
                )
                loss = f" {loss_db(a, b, (setting,), lab):.2f} dB" if a and b else ""
                lines.append(f"  {action} {setting} ({a}->{b}){loss}")
    counted = Counter(hops(links, lab, plan.routes).values())
    lines.append(
        "pairs by hops: " + ", ".join(f"{hops}: {count}" for hops, count in sorted(counted.items()))
    )
    for ring in plan_rings(plan.job, links, lab, plan.routes) if plan.job else ():
        lines.append(
            f"ring {ring.index} on lane {ring.lane} leaves by ports {' '.join(str(hop.out.number) for hop in ring.hops)}"
        )
    final = dict(rules(links, lab, macs, plan.routes, plan.rings))
    lines += written("rules", final, asked.get("show", []))
    if before is not None:
        steady = {frozenset((link.a, link.b)) for link in links}
        kept = [link for link in now if frozenset((link.a, link.b)) in steady]
        lines += written(
            "drain rules",
            dict(drain_rules(now, kept, lab, macs, before.routes, before.rings)),
            asked.get("show", []),
        )
    for source, target in hops(links, lab, plan.routes):
        assert walk(final, lab, macs, links, source, target)[-1] == target
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("case", CASES, ids=lambda path: path.name)
def test_a_plan_becomes_what_its_case_says(case: Path) -> None:
    seen = story(case)
    if os.environ.get("UPDATE_GOLDEN"):
        (case / "expected.txt").write_text(seen)
    assert seen == (case / "expected.txt").read_text()
