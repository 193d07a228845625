"""The plan file of a design: links, the job with its traffic, the prediction, who made it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

from optics import BadFile, HostName
from optics.ranks import ranks_on
from orchestrator.inventory.lab import Lab
from orchestrator.plan.design import electrical
from orchestrator.plan.design.design import Design
from orchestrator.plan.design.scale import bytes_here
from orchestrator.plan.reader import read_plan
from planner.registry import SCHEDULES, TOPOLOGIES, plugin
from planner.schedule.bfb import Send

SPARE_DB = 6.0
"""What circuits over several devices may lose beyond what is expected: each pass of a WSS differs
by up to 2 dB (LCoS, U).
"""


def _sends(schedule: Sequence[Send], hosts: Sequence[HostName]) -> list[dict[str, Any]]:
    """The sends of a schedule; the parts of a piece follow each other at each receiver."""
    laid: dict[tuple[int, int], float] = {}
    rows = []
    for send in schedule:
        begin = laid.get((send.dst, send.shard), 0.0)
        end = round(begin + send.part, 9)
        laid[send.dst, send.shard] = end = 1.0 if end > 1 - 1e-6 else end
        ends = {"begin": begin, "end": end} if (begin, end) != (0.0, 1.0) else {}
        rows.append(
            {
                "step": send.step,
                "src": hosts[send.src],
                "dst": hosts[send.dst],
                "shard": hosts[send.shard],
                **ends,
            }
        )
    return rows


def checked(found: Design, content: dict[str, Any], name: str, lab: Lab) -> str:
    """The text of a design's plan file, which this lab takes. name: of the file, for messages.

    Raises: BadFile - it does not. BadPlugin - it does not, and another distribution's generator or
    schedule is behind it.
    """
    text = json.dumps(content, indent=1) + "\n"
    try:
        read_plan(text, name, lab)
    except BadFile as error:
        groups = (
            [(TOPOLOGIES, found.wanted.method)]
            if found.wanted.method not in electrical.KINDS
            else []
        )
        groups += (
            [(SCHEDULES, found.wanted.schedule)]
            if found.schedules and found.wanted.schedule
            else []
        )
        for group, used in groups:
            if (other := plugin(group, used)) is not None:
                few = "; ".join(error.problems[:4])
                other.fail(f"no plan can be made of its answer: {few}", error)
        raise
    return text


def document(found: Design, name: str = "") -> dict[str, Any]:
    """The plan file: links, the job with its traffic, the prediction, who made it."""
    hosts, workload, wanted = found.hosts, found.read.workload, found.wanted
    each = workload.ranks_per_host
    ringed = {
        frozenset(pair)
        for ring in found.shape.rings
        for pair in zip(ring.order, ring.order[1:] + ring.order[:1], strict=True)
    }
    merged: Counter[tuple[int, int]] = Counter()
    for a, b in found.shape.cables.tolist():
        merged[(a, b) if not found.shape.duplex or a < b else (b, a)] += 1
    kind = {} if found.shape.duplex else {"kind": "simplex"}
    links = [
        {"a": hosts[a], "b": hosts[b], **kind, **({"count": count} if count > 1 else {})}
        | {"x_purpose": "allreduce" if frozenset((a, b)) in ringed else "mp"}
        for (a, b), count in sorted(merged.items())
    ]
    if found.found.ports:
        cables = zip(found.shape.cables.tolist(), found.found.ports, strict=True)
        links = [
            {
                "a": str(a),
                "b": str(b),
                "x_purpose": "allreduce" if frozenset(pair) in ringed else "mp",
            }
            for pair, (a, b) in cables
        ]
    segments = [{"name": name, "hosts": list(members)} for name, members in found.found.segments]
    here = found.here
    predicted = {
        "iteration_ms": here.iteration_s * 1e3,
        "compute_ms": here.compute_s * 1e3,
        "transfers_ms": here.transfers_s * 1e3,
        "allreduce_ms": here.allreduce_s * 1e3,
        "busbw_mbps": here.busbw / 1e6 / each,  # rank 0 sums a part of its host's buffers
        "link_mbps": found.link_mbps,
        "diameter": float(found.shape.diameter),
        "mean_hops": found.shape.mean_hops(),
        "bandwidth_tax": here.tax,
    }
    groups = [
        {
            "id": group.id,
            "bytes": bytes_here(group.bytes, found.scale),
            "rings": [[hosts[rank] for rank in order] for order in found.orders[group.id]],
        }
        | (
            {"schedule": _sends(found.schedules[group.id], hosts)}
            if group.id in found.schedules
            else {}
        )
        for group in found.read.demand.groups
        if group.bytes
    ]
    rules = {"rules": wanted.rules} if wanted.method == "topoopt" else {}
    return {
        "schema": "testbed.plan/1",
        "name": name or f"{workload.name}-{'twisted-' if wanted.twisted else ''}{wanted.method}",
        "description": f"{workload.description or workload.name}: {wanted.method}, for a {wanted.backend} back-end",
        "producer": {
            "name": "testbed-design",
            "method": wanted.method,
            **rules,
            "seed": wanted.seed,
            "backend": wanted.backend,
            "workload": workload.name,
            "workload_sha256": found.read.sha256,
        },
        **({"segments": segments} if segments else {"links": links}),
        **(
            {"acceptance": {"max_loss_db": round(found.loss_db + SPARE_DB, 1)}}
            if found.found.ports
            else {}
        ),
        "job": {
            "name": f"{workload.name}-{wanted.method}",
            "workload": "replay",
            "ranks": [rank for host in hosts for rank in ranks_on(host, each)],
            "args": {"iterations": wanted.iterations}
            | ({"relay": wanted.relay} if wanted.relay else {}),
            "traffic": {
                "groups": groups,
                "transfers": [
                    {"src": hosts[t.src], "dst": hosts[t.dst], "bytes": t.bytes, "lane": t.lane}
                    | ({} if t.via is None else {"via": hosts[t.via]})
                    for t in found.transfers
                ],
                "compute_s": round(here.compute_s, 6),
                "scale": found.scale,
                "time_scale": float(f"{found.time_scale:.9g}"),
            },
        },
        "predicted": {key: round(value, 3) for key, value in predicted.items()},
    }
