"""TopoOpt on patch panels against electrical fabrics of equal cost: `python topoopt_vs_fattree.py [--prices FILE]`.

TopoOpt runs on the emulated lab. The lab has no electrical switches, so the fat-trees are reckoned: one with full bisection and
links as fast as a panel's price allows, one with links as fast as all optical ports together and so few uplinks that it costs as
much. Prices are those of planner/prices.yml, unverified.
"""

from __future__ import annotations

from common import ANALYTIC, HOSTS, NATIVE, RATE_MBPS, ROOT, Design, bench_lab, measure, options, ratio, say

from orchestrator.costing import read_prices
from orchestrator.designing import PAYLOAD, read_workload
from planner.baselines import fat_tree, oversubscribed
from planner.shape import Lab

PORTS, GBPS, RACK = 4, 25.0, 4


def main() -> None:
    given = options(__doc__.partition("\n")[0])
    prices = read_prices()
    budget = prices.host("panel", GBPS, PORTS)
    equal = prices.equal_rate(budget, "three tiers")
    factor = prices.equal_oversubscription(budget, PORTS * GBPS)
    print(f"  a panel's {PORTS} x {GBPS:g} Gb/s cost {budget:.0f} {prices.currency} a host ({prices.mark}); as much cost")
    print(
        f"    a fat-tree of {equal:.1f} Gb/s with full bisection, or one of {PORTS * GBPS:g} Gb/s oversubscribed {factor:.1f} to 1"
    )
    workload = ROOT / "examples" / "workloads" / "dlrm.yaml"
    demand = read_workload(workload).demand
    home = Lab(HOSTS, PORTS, GBPS * PAYLOAD)
    trees = {
        "fat-tree of equal cost": fat_tree(home, equal * PAYLOAD).iteration_s(demand),
        "oversubscribed fat-tree of equal cost": oversubscribed(home, factor, RACK).iteration_s(demand),
    }
    with bench_lab(HOSTS, "--rate-mbps", str(RATE_MBPS)) as lab:
        design = Design.of(lab, "topoopt", "topoopt", workload, "--iterations", str(given.iterations))
        seen = measure(lab, [design], given.repeats)["topoopt"]
    for name, seconds in trees.items():
        here_ms = [seconds * design.time_scale * 1e3]
        say(f"iteration with a {name} / with TopoOpt", *ratio(here_ms, seen), f"TopoOpt {NATIVE}\n    {name} {ANALYTIC}")
        say("    the same, both reckoned", here_ms[0] / design.predicted_ms, None, None, ANALYTIC)


if __name__ == "__main__":
    main()
