"""Rail-only against full bisection, for tensor slices in domains and replicas along rails: `python rail_only.py`.

The rail-only fabric is emulated: domains of two hosts and rails of six, links of one rate. Full bisection is reckoned, the same
domains kept. That domains are 5 to 12 times as fast as rails, and what any-to-any traffic then costs, is reckoned for both.
"""

from __future__ import annotations

from common import ANALYTIC, HOSTS, NATIVE, RATE_MBPS, ROOT, Design, bench_lab, measure, options, ratio, say

from orchestrator.designing import PAYLOAD, read_workload
from planner.railonly import Rails, full_bisection_s

SIZE = 2


def main() -> None:
    given = options(__doc__.partition("\n")[0])
    workload = ROOT / "examples" / "workloads" / "slices.yaml"
    read = read_workload(workload)
    with bench_lab(HOSTS, "--rate-mbps", str(RATE_MBPS)) as lab:
        more = ("--iterations", str(given.iterations), "--domain", str(SIZE))
        design = Design.of(lab, "rail-only", "rail-only", workload, *more)
        seen = measure(lab, [design], given.repeats)["rail-only"]
    # Half of the four ports make a domain's links, half a rail's; domains pass both ways on parallel links, rings both ways round.
    rate = 2 * read.workload.rate_gbps * PAYLOAD
    whole_ms = [full_bisection_s(read.demand, SIZE, rate, rate) * design.time_scale * 1e3]
    say("iteration rail-only / with full bisection", *ratio(seen, whole_ms), f"rail-only {NATIVE}\n    full bisection {ANALYTIC}")
    for name, hb, net in (("A100", 300 * 8, 25 * 8), ("H100", 450 * 8, 50 * 8)):
        rails = Rails(HOSTS, 4, hb, net)
        same = rails.iteration_s(read.demand) / full_bisection_s(read.demand, 4, hb, net)
        words = f"{hb // 8} GB/s in domains, {net // 8} GB/s on rails"
        say(f"{name} ({words}): iteration rail-only / full bisection, sparse traffic", same, None, None, ANALYTIC)
        say(f"{name}: all-to-all by forwarding / with full bisection", 1 + rails.forwarding_overhead(), None, None, ANALYTIC)


if __name__ == "__main__":
    main()
