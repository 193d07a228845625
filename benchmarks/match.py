"""How far `testbed design match` is from the best: five workloads on four labs, every candidate's
iteration simulated flow by flow.

The choice is by the predictors, which reckon with the fullest link of a phase. Here flows share
links max-min fair and take what others leave when they end; a ring's step begins when the one
before has arrived. Slots and sums in a switch have no flows here: their predictions count as they
are. No lab runs. The limit: the choice is at most 5 % slower than the fastest candidate.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Hashable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.harness import verdict
from optics.plan import ring_steps
from orchestrator.fabric.next_hops import lanes_of, next_hops
from orchestrator.inventory.lab import Lab
from orchestrator.plan.design.design import PAYLOAD
from orchestrator.plan.design.flows import path, rate_mbps
from orchestrator.plan.design.match import STATIC, Candidate, match
from orchestrator.plan.design.workload import read_text
from orchestrator.plan.ports import assign_ports
from orchestrator.plan.reader import read_plan
from orchestrator.plan.target import normal
from orchestrator.session import load_lab
from planner.predict.iteration import Shared

ROOT = Path(__file__).parents[1]
LABS = {"emulated": 12, "emulated-packet": 4, "emulated-ring": 6, "emulated-lookahead": 6}
WORKLOADS: Mapping[str, Mapping[str, Any]] = {
    "sums": {"collectives": [{"id": "all", "bytes": 200_000_000}]},
    "all-to-all": {"transfers": [{"among": "all", "bytes": 10_000_000}]},
    "both": {
        "collectives": [{"id": "all", "bytes": 100_000_000}],
        "transfers": [{"among": "all", "bytes": 5_000_000}],
        "compute_s": 0.02,
    },
    "one pair": {
        "collectives": [{"id": "all", "bytes": 1_000_000}],
        "transfers": [
            {"src": 0, "dst": 3, "bytes": 400_000_000},
            {"src": 1, "dst": 2, "bytes": 100_000_000},
        ],
    },
    "training": {
        "collectives": [{"id": "all", "bytes": 5_292_072}],  # of 1.3 M parameters
        "needs": {"train": {"model": "mlp"}},
    },
}
LIMIT = 0.05
Flow = tuple[float, Sequence[Hashable]]


def fair(flows: Sequence[Flow]) -> list[float]:
    """Max-min fair rates, in links of the common rate."""
    free: dict[Hashable, float] = {}
    users: dict[Hashable, set[int]] = {}
    for number, (_, used) in enumerate(flows):
        for link in used:
            free[link] = link.speed if isinstance(link, Shared) else 1.0
            users.setdefault(link, set()).add(number)
    rates, open_ = [0.0] * len(flows), set(range(len(flows)))
    while open_:
        full = min((k for k in users if users[k]), key=lambda link: free[link] / len(users[link]))
        rate = free[full] / len(users[full])
        for number in [*users[full]]:
            rates[number] = rate
            open_.discard(number)
            for link in flows[number][1]:
                if number in users[link]:
                    users[link].discard(number)
                    free[link] -= rate
    return rates


def simulated(stages: Sequence[Iterator[Sequence[Flow]]], bytes_per_s: float) -> float:
    """Time (s) until all have ended: each yields the flows of one step after the other."""
    now = 0.0
    running: list[Sequence[Flow]] = [next(stage, ()) for stage in stages]
    while any(running):
        rates = iter(fair([flow for each in running for flow in each]))
        at = [[(size, used, next(rates)) for size, used in each] for each in running]
        step = min(size / (rate * bytes_per_s) for each in at for size, _, rate in each)
        now += step
        for number, each in enumerate(at):
            left = [(size - rate * bytes_per_s * step, used) for size, used, rate in each]
            kept = [flow for flow in left if flow[0] > 1e-3]
            running[number] = next(stages[number], ()) if each and not kept else kept
    return now


def ring(size: float, steps: Sequence[Sequence[Hashable]]) -> Iterator[Sequence[Flow]]:
    """The 2 (k - 1) steps of a ring, in each of which every member sends a k-th."""
    for _ in range(2 * (len(steps) - 1)):
        yield [(size / len(steps), used) for used in steps]


def seconds(one: Candidate, lab: Lab) -> float:
    """The iteration of a candidate, simulated where it replays flows over links that stay."""
    assert one.seconds is not None
    plan = read_plan(json.dumps(one.content), "plan.json", lab)
    traffic = plan.job.traffic if plan.job else None
    if one.schedule != STATIC or plan.job is None or traffic is None:
        return one.seconds
    orders = [(order, group) for group in traffic.groups for order in group.rings]
    links = [normal(link) for link in assign_ports(plan.links, lab)]
    chosen = next_hops(links, lanes_of(lab), (), [order for order, _ in orders])
    rate = rate_mbps(lab, plan.job.hosts) * 1e6 / 8 * PAYLOAD
    rings = []
    for number, (order, group) in enumerate(orders):
        lane = number % lanes_of(lab)
        steps = [path(chosen, lab, a, b, lane) for a, b in ring_steps(list(order))]
        rings.append(ring(group.bytes / len(group.rings), steps))
    moved: list[Flow] = [
        (one.bytes, path(chosen, lab, one.src, one.dst, one.lane)) for one in traffic.transfers
    ]
    sent = simulated([iter([moved])], rate) if moved else 0.0
    return traffic.compute_s + sent + simulated(rings, rate)


def main() -> int:
    worst, cases = 0.0, 0
    for name, count in LABS.items():
        lab = load_lab(ROOT / "inventory" / name)
        for kind, content in WORKLOADS.items():
            given = {"schema": "testbed.workload/1", "name": "w", "ranks": count, **content}
            found = match(read_text(json.dumps(given), kind), lab)
            each = [(seconds(one, lab), one.name) for one in found.able]
            best = min(each)
            regret = each[0][0] / best[0] - 1
            worst, cases = max(worst, regret), cases + 1
            print(
                f"  {name:<20} {kind:<12} {each[0][1]:<44} {regret:6.1%} of {len(each)}, fastest {best[1]}",
                flush=True,
            )
    return verdict("match", worst, "slower than the best", LIMIT, "at most", cases=cases)


if __name__ == "__main__":
    sys.exit(main())
