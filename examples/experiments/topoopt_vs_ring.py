"""TopoOpt against one ring of parallel links, for a DLRM with a third of its traffic from tables: `python topoopt_vs_ring.py`."""

from __future__ import annotations

from common import HOSTS, NATIVE, RATE_MBPS, ROOT, Design, bench_lab, measure, options, ratio, say

BATCH = 128
"""Samples per rank: the testbed's script goes from 16 to 1024; at 128 transfers are about a quarter of the bytes."""


def main() -> None:
    given = options(__doc__)
    with bench_lab(HOSTS, "--rate-mbps", str(RATE_MBPS)) as lab:
        workload = lab.folder / "dlrm.yaml"
        text = (ROOT / "examples" / "workloads" / "dlrm.yaml").read_text()
        workload.write_text(text.replace("\nbatch: 16\n", f"\nbatch: {BATCH}\n"))
        more = ("--iterations", str(given.iterations))
        designs = [Design.of(lab, name, name, workload, *more) for name in ("topoopt", "exact", "ring")]
        seen = measure(lab, designs, given.repeats)
    for name in ("topoopt", "exact"):
        say(f"iteration with one ring / with {name}", *ratio(seen["ring"], seen[name]), NATIVE)


if __name__ == "__main__":
    main()
