"""Rail-only against full bisection, for tensor slices in domains and replicas along rails: `python rail_only.py`.

Both are emulated with packet switches: domains of two hosts, eight times as fast as a rail, plus either a switch for each rail,
or one for all hosts, at the same rate. The cost of any-to-any traffic on rails alone is computed, not measured.
"""

from __future__ import annotations

from common import ANALYTIC, HOSTS, NATIVE, RATE_MBPS, ROOT, Design, bench_lab, measure, options, ratio, say

from orchestrator.cli.files import read_workload
from planner.railonly import Rails, full_bisection_s

SIZE, FASTER = 2, 8


def main() -> None:
    given = options(__doc__.partition("\n")[0])
    workload = ROOT / "examples" / "workloads" / "slices.yaml"
    read = read_workload(workload)
    switches = (f"domains:{SIZE}@{FASTER * RATE_MBPS}", f"rails:{SIZE}@{RATE_MBPS}", f"ideal@{RATE_MBPS}")
    words = [word for kind in switches for word in ("--electrical", kind)]
    with bench_lab(HOSTS, "--rate-mbps", str(RATE_MBPS), *words) as lab:
        designs = [
            Design.of(lab, name, "electrical", workload, "--iterations", str(given.iterations), *segments)
            for name, segments in (
                ("rail-only", ("--segment", "domain*", "--segment", "rail*")),
                ("full-bisection", ("--segment", "domain*", "--segment", "ideal")),
            )
        ]
        seen = measure(lab, designs, given.repeats)
    say("iteration rail-only / with full bisection", *ratio(seen["rail-only"], seen["full-bisection"]), f"both {NATIVE}")
    say("    the same, both reckoned", designs[0].predicted_ms / designs[1].predicted_ms, None, None, ANALYTIC)
    for name, hb, net in (("A100", 300 * 8, 25 * 8), ("H100", 450 * 8, 50 * 8)):
        rails = Rails(HOSTS, 4, hb, net)
        same = rails.iteration_s(read.demand) / full_bisection_s(read.demand, 4, hb, net)
        rates = f"{hb // 8} GB/s in domains, {net // 8} GB/s on rails"
        say(f"{name} ({rates}): iteration rail-only / full bisection, sparse traffic", same, None, None, ANALYTIC)
        say(f"{name}: all-to-all by forwarding / with full bisection", 1 + rails.forwarding_overhead(), None, None, ANALYTIC)


if __name__ == "__main__":
    main()
