"""What is, by the word of the lab itself: its glass, the hosts' kernels, what their committers
still owe; never the program's.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

from orchestrator.hosts import Hello
from orchestrator.session import load_lab, open_session
from orchestrator.store.store import Store
from tests.end_to_end.conftest import Lab

FibrePlant = Mapping[str, set[tuple[str, str]]]
Routes = Mapping[str, list[str]]
PROTOCOL = "183"  # of our routes and rules


def wanted_light(lab: Lab, links: Iterable[tuple[str, str]]) -> FibrePlant:
    """The circuits that duplex links need, read off the cables; no planner of the program is
    asked.
    """
    devices = yaml.safe_load((lab.inventory / "devices.yml").read_text())["devices"]
    cables = {
        f"{f['host']}:p{f['port']}": f
        for f in yaml.safe_load((lab.inventory / "fibres.yml").read_text())["fibres"]
    }
    found: dict[str, set[tuple[str, str]]] = {name: set() for name in devices}
    for a, b in links:
        for one, other in ((a, b), (b, a)):
            found[cables[one]["device"]].add(
                (str(cables[one]["enters"]), str(cables[other]["leaves"]))
            )
    return found


def routes(lab: Lab) -> Routes:
    """The routes each host's kernel follows now: of the table its first rule of ours names."""
    return {
        name: _routes(str(host["pid"]))
        for name, host in lab.ask("status")["hosts"].items()
        if host["pid"]
    }


def _routes(pid: str) -> list[str]:
    rules = [
        r
        for r in _ip(pid, "rule")
        if r.get("protocol") == PROTOCOL and str(r.get("table", "")).isdigit()
    ]
    if not rules:
        return []
    return sorted(
        json.dumps(
            {k: r[k] for k in ("dst", "gateway", "dev", "prefsrc", "metrics") if k in r},
            sort_keys=True,
        )
        for r in _ip(pid, "route", "show", "table", str(rules[0]["table"]))
    )


def _ip(pid: str, *argv: str) -> list[dict[str, Any]]:
    command = ["nsenter", "-t", pid, "-n", "ip", "-N", "-j", *argv]
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=False
    )
    found: list[dict[str, Any]] = json.loads(done.stdout or "[]")
    return found


def hellos(lab: Lab) -> dict[str, Hello | Exception]:
    """What each host's committer says of itself: generations, and what is armed or waits to be
    confirmed.
    """

    async def ask() -> dict[str, Hello | Exception]:
        async with open_session(
            load_lab(lab.inventory), lab.inventory, lab.folder / "look"
        ) as session:
            return dict(await session.hosts.channels.connect())

    return asyncio.run(ask())


@dataclass(frozen=True)
class Wanted:
    """A state of the lab: its circuits and its hosts' routes."""

    name: str
    light: FibrePlant
    routes: Routes = field(default_factory=dict)


def wrong(lab: Lab, store: Store, tenancy: str, wanted: Wanted) -> list[str]:
    """Everything that is not as `wanted`, in words: glass, kernels, committers, and the store's
    opinion of them.
    """
    found = []
    light = lab.light()
    for device, pairs in wanted.light.items():
        found += [f"{device}: {a}->{b} is missing" for a, b in sorted(pairs - light[device])]
        found += [
            f"{device}: {a}->{b} should not be there" for a, b in sorted(light[device] - pairs)
        ]
    if any(lab.ask("writes")["violations"].values()):
        found.append(f"a port was driven for two circuits: {lab.ask('writes')['violations']}")
    now = routes(lab)
    found += [
        f"{host}: other routes than {wanted.name}'s"
        for host in now
        if now[host] != wanted.routes.get(host, [])
    ]
    current = store.current(tenancy)
    for host, hello in hellos(lab).items():
        if not isinstance(hello, Hello):
            found.append(f"{host}: {hello}")
            continue
        if hello.active != (current.generation if current and wanted.routes.get(host) else None):
            found.append(
                f"{host}: runs generation {hello.active}, the store says {current.generation if current else None}"
            )
        if hello.armed is not None or hello.pending_s is not None:
            found.append(
                f"{host}: armed {hello.armed}, reverts in {hello.pending_s} s: what is now will not stay"
            )
    if (current.plan_name if current else "") != wanted.name:
        found.append(f"the store says {current.plan_name if current else 'nothing'} is up")
    owned = {(s.ingress.device, s.ingress.label, s.egress.label) for s in store.owned(tenancy)}
    lit = {(d, a, b) for d, pairs in wanted.light.items() for a, b in pairs}
    found += [
        f"the store owns {d}:{a}->{b}, and it is not {wanted.name}'s"
        for d, a, b in sorted(owned - lit)
    ]
    found += [f"the store does not own {d}:{a}->{b}" for d, a, b in sorted(lit - owned)]
    return found
