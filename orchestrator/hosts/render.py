"""Rules as requests to agents: routes and neighbours for `kernel` hosts, commands with their undo
for `npar-rdma`. Pure.
"""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from optics import HostName, Infeasible
from orchestrator.fabric.prefixes import rows
from orchestrator.fabric.rules import (
    Neighbour,
    RdmaNeighbour,
    RdmaRoute,
    Route,
    Rules,
    TransitFilter,
)
from orchestrator.inventory.edges import RTO_MIN_MS

CONGCTL = "cubic"  # pinned per route, because a namespace or distribution may default to another
PER_NETWORK = "per-network"  # each host's name for its own, which its agent knows
# Linux takes no single argument beyond 128 KiB (MAX_ARG_STRLEN), and Ansible's raw sends one
COMMAND_LIMIT = 100_000


def generation(
    number: int,
    rules: Rules,
    *,
    rto_min_ms: int = RTO_MIN_MS,
    congctl: str = CONGCTL,
    single: bool = False,
) -> dict[str, Any]:
    """One generation as a `stage` request. Sorted, so that equal rules give equal requests. single:
    as `prefixes.rows`.
    """
    neighbours = sorted(r for r in rules if isinstance(r, Neighbour))
    request: dict[str, Any] = {
        "op": "stage",
        "generation": number,
        "routes": [
            list(row) for row in rows((r for r in rules if isinstance(r, Route)), single=single)
        ],
        "neighbours": [[n.address, n.mac, n.interface] for n in neighbours],
        "rto_min_ms": rto_min_ms,
        "congctl": congctl,
    }
    commands = npar_commands(rules)
    if commands:
        request["commands"] = commands
    return request


def npar_commands(rules: Iterable[Any]) -> list[dict[str, list[str]]]:
    """The commands of an npar-rdma host, each with the one that undoes it, in the order they must
    be run.

    The rule set is the TopoOpt testbed's (hipersys-team/TopoOpt, testbed set-up) with `ip neigh`
    for `arp`. Filters get a preference of their own instead of `prio 0`, so that one of them can be
    taken away without the others.
    """
    rules = list(rules)
    filters = sorted(r for r in rules if isinstance(r, TransitFilter))
    found = [
        {
            "do": ["tc", "qdisc", "replace", "dev", name, "ingress"],
            "undo": ["tc", "qdisc", "del", "dev", name, "ingress"],
        }
        for name in sorted({f.interface for f in filters})
    ]
    found += [_filter(f) for f in filters]
    for n in sorted(r for r in rules if isinstance(r, RdmaNeighbour)):
        entry = [
            "ip",
            "neigh",
            "replace",
            n.address,
            "lladdr",
            n.mac,
            "dev",
            n.interface,
            "nud",
            "permanent",
        ]
        found.append({"do": entry, "undo": ["ip", "neigh", "del", n.address, "dev", n.interface]})
    for r in sorted(r for r in rules if isinstance(r, RdmaRoute)):
        entry = ["ip", "route", "replace", r.destination, "dev", r.interface, "src", r.source]
        found.append(
            {"do": entry, "undo": ["ip", "route", "del", r.destination, "dev", r.interface]}
        )
    return found


def _filter(f: TransitFilter) -> dict[str, list[str]]:
    tagged = f.protocol == "802.1Q"
    host = int(f.destination.split(".")[2])  # the host's /24 block: 10.100.HOST.0
    where = [
        "dev",
        f.interface,
        "parent",
        "ffff:",
        "protocol",
        f.protocol,
        "pref",
        str(2 * host + tagged),
    ]
    match = [
        "flower",
        "skip_hw",
        *(["vlan_ethtype", "ip"] if tagged else []),
        "dst_ip",
        f.destination,
    ]
    action = ["action", "pedit", "ex", "munge", "eth", "dst", "set", f.mac, "pipe"]
    action += ["action", "mirred", "egress", "redirect", "dev", f.out_interface]
    return {
        "do": ["tc", "filter", "add", *where, *match, *action],
        "undo": ["tc", "filter", "del", *where],
    }


def rule_payloads(
    generations: Mapping[int, Mapping[HostName, Rules]],
    token: Mapping[str, int] | None = None,
    congctl: str = CONGCTL,
    single: Collection[HostName] = (),
    rto_min_ms: Mapping[HostName, int] | None = None,
) -> dict[HostName, str]:
    """What `stage_rules.yml` hands to each host: all its generations, as JSON, compressed, in
    base64; `token` goes into each.

    single: hosts that get a row for each route. rto_min_ms: of the hosts, where it is not
    `RTO_MIN_MS`.
    """
    names = sorted({name for hosts in generations.values() for name in hosts})
    more, least = dict(token or {}), rto_min_ms or {}
    return {
        name: pack(
            [
                generation(
                    n,
                    hosts[name],
                    rto_min_ms=least.get(name, RTO_MIN_MS),
                    congctl=congctl,
                    single=name in single,
                )
                | more
                for n, hosts in sorted(generations.items())
                if name in hosts
            ],
            name,
        )
        for name in names
    }


def pack(value: Any, host: HostName) -> str:
    """JSON, gzip, base64. Raises: Infeasible - it does not fit into one command."""
    text = json.dumps(value, separators=(",", ":")).encode()
    packed = base64.b64encode(gzip.compress(text, 6, mtime=0)).decode()
    if len(packed) > COMMAND_LIMIT:
        raise Infeasible(
            f"{host}: its rules take {len(packed)} bytes compressed, more than one command carries ({COMMAND_LIMIT})"
        )
    return packed
