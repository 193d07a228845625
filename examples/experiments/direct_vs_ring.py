"""Direct-connect graphs against a ring at small sizes, where steps matter more than bytes: `python direct_vs_ring.py`.

Twelve ranks of degree 4. An all-reduce over rings takes 22 steps, one by breadth-first schedules on a graph of diameter 2 takes 4.
On the lab a step costs the scheduling of twelve processes that wait for each other; on hardware it costs microseconds, which is
computed separately.
"""

from __future__ import annotations

from common import ANALYTIC, HOSTS, NATIVE, RATE_MBPS, Design, bench_lab, measure, options, ratio, say

from planner.direct import pareto
from planner.shape import Lab

ALPHA_S, GBPS, DEGREE = 10e-6, 25.0, 4
SIZES = (1_000, 100_000, 10_000_000, 1_000_000_000)
PARAMETERS = (3_000, 300_000, 3_000_000)
WORKLOAD = """\
schema: testbed.workload/1
name: sum
ranks: 12
layers: [{{kind: dense, parameters: {parameters}}}]
"""


def main() -> None:
    given = options(__doc__.partition("\n")[0])
    with bench_lab(HOSTS, "--rate-mbps", str(RATE_MBPS)) as lab:
        for parameters in PARAMETERS:
            workload = lab.folder / f"sum-{parameters}.yaml"
            workload.write_text(WORKLOAD.format(parameters=parameters))
            more = ("--iterations", str(given.iterations), "--scale", "1")
            designs = [
                Design.of(lab, "ring", "ring", workload, *more, size=1.0),
                Design.of(lab, "direct", "direct", workload, *more, "--backend", "msccl", size=1.0),
            ]
            seen = measure(lab, designs, given.repeats)
            say(f"{4 * parameters:>13,} B: all-reduce over rings / by schedule", *ratio(seen["ring"], seen["direct"]), NATIVE)
    hardware = Lab(HOSTS, DEGREE, GBPS, alpha_s=ALPHA_S)
    best = pareto(HOSTS, DEGREE)
    print(f"  {HOSTS} ranks, {DEGREE} x {GBPS:g} Gb/s, {ALPHA_S * 1e6:g} us a step")
    for size in SIZES:
        ring_s = 2 * ((HOSTS - 1) * ALPHA_S + (HOSTS - 1) / HOSTS * size / (DEGREE * hardware.port_bytes_per_s))
        found = min(best, key=lambda one: one.cost.time_s(size, hardware))
        took_s = 2 * found.cost.time_s(size, hardware)
        words = f"{size:>13,} B: rings {ring_s * 1e6:10.1f} us, {found.name} {took_s * 1e6:10.1f} us; rings / direct"
        say(words, ring_s / took_s, None, None, ANALYTIC)


if __name__ == "__main__":
    main()
