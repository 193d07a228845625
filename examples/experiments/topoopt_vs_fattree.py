"""TopoOpt on patch panels against electrical fabrics of equal cost: `python topoopt_vs_fattree.py`.

All are emulated on one lab, its hosts cabled to optical and to packet switches, and measured in turns. Two fabrics cost what the
panel costs: one of full bisection, its links as fast as that price allows, and one with links as fast as all optical ports together
and so few uplinks that it costs no more. Prices are those of planner/prices.yml, unverified.
"""

from __future__ import annotations

from common import ANALYTIC, HOSTS, NATIVE, RATE_MBPS, ROOT, Design, bench_lab, measure, options, ratio, say

from orchestrator.cli.files import read_prices

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
    here = RATE_MBPS / GBPS  # Mb/s on the lab for a Gb/s
    switches = (f"fat-tree@{equal * here:.3f}", f"oversubscribed:{factor:.3f}@{PORTS * RATE_MBPS}")
    words = [word for kind in switches for word in ("--electrical", kind)]
    with bench_lab(HOSTS, "--rate-mbps", str(RATE_MBPS), "--rack", str(RACK), *words) as lab:
        designs = [
            Design.of(lab, method, method, workload, "--iterations", str(given.iterations))
            for method in ("topoopt", "fat-tree", "oversubscribed")
        ]
        seen = measure(lab, designs, given.repeats)
    for tree in designs[1:]:
        name = f"{tree.name} of equal cost"
        say(f"iteration, {name} / TopoOpt", *ratio(seen[tree.name], seen["topoopt"]), f"both {NATIVE}")
        say("    the same, both reckoned", tree.predicted_ms / designs[0].predicted_ms, None, None, ANALYTIC)


if __name__ == "__main__":
    main()
