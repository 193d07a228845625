"""The whole of `testbed up`, from process start to exit: 24 circuits moved, 132 host pairs
verified, on a warm lab; then again.

Warm: the lab runs and its hosts are provisioned. Every run is a fresh process, as an operator's is.
The second figure is the same command again: nothing to do, and not one write on any device (the
devices' own counters).

    python benchmarks/up_total.py [--against PATH] PATH: another checkout, which is measured in turn
with this one, on a lab of its own. For each the processor time of the command and of what it starts
is printed too, and that of the whole machine meanwhile: the rest is the emulated hosts' and the
devices', which real ones would spend elsewhere, and what else the machine does.

Each run is followed by a null command and a null `up` (`floors.py`), and both figures are also
given as the median of their ratios to these. Reckoned before the first such run, for a quiet
machine on which these take 0.45 and 1.65 s: `up` again adds 12 logins (0.1 s, and as much of their
hosts'), four devices and the store, so at most 1.5; `up` adds these, an agent started on each host
(12 x 25 ms on two cores), 50 ms of switching, and the verification of 132 pairs (0.1 s), so at most
1.35.
"""

from __future__ import annotations

import os
import resource
import statistics
import sys
import time
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.bench_lab import ROOT, BenchLab, against, bench_lab, ring_links
from benchmarks.floors import modules, null_s
from benchmarks.harness import verdict

RUNS, LIMIT_S, AGAIN_LIMIT_S = 5, 2.0, 0.5
LIMIT_X, AGAIN_LIMIT_X = 1.35, 1.5
"""Most that the two may take in times of the null `up` and of the null command."""


def machine_s() -> float:
    """Processor time (s) that this machine has spent on everything since it started."""
    user, nice, system, _, _, irq, softirq, *_ = (
        Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    )
    return sum(map(int, (user, nice, system, irq, softirq))) / os.sysconf("SC_CLK_TCK")


class Ups:
    """The runs of one tree's lab: seconds from start to exit, of processors for the command, and of
    the whole machine.
    """

    def __init__(self, lab: BenchLab) -> None:
        self.lab, self.wrote = lab, 0
        self.plans = [
            lab.plan("here", ring_links(1, (1, 2)) + ring_links(5, (3, 4))),
            lab.plan("there", ring_links(5, (1, 2)) + ring_links(1, (3, 4))),
        ]
        lab.call("up", "--topology", self.plans[1], "--no-job")
        self.first: list[tuple[float, float, float]] = []
        self.again: list[tuple[float, float, float]] = []
        self.imported = {
            "up": modules(lab, "up", "--topology", self.plans[0], "--no-job"),
            "again": modules(lab, "up", "--topology", self.plans[0], "--no-job"),
        }
        lab.call("up", "--topology", self.plans[1], "--no-job")
        self.null: dict[str, list[float]] = {"up": [], "again": []}

    def timed(self, plan: Path, kept: list[tuple[float, float, float]]) -> dict[str, object]:
        """Bring `plan` up and keep what it took; return the report."""
        used, all_s, began = (
            resource.getrusage(resource.RUSAGE_CHILDREN),
            machine_s(),
            time.perf_counter(),
        )
        report = self.lab.call("up", "--topology", plan, "--no-job")
        took, now = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
        kept.append(
            (took, now.ru_utime + now.ru_stime - used.ru_utime - used.ru_stime, machine_s() - all_s)
        )
        return report

    def run(self, number: int) -> None:
        """A change, and the same command again."""
        plan = self.plans[number % 2]
        report = self.timed(plan, self.first)
        if (report["made"], report["pairs_ok"]) != (48, 132):
            raise RuntimeError(
                f"not the change that was to be timed: {report['made']} made, {report['pairs_ok']} pairs"
            )
        before = self.lab.ask("writes")["writes"]
        if not self.timed(plan, self.again)["nothing_to_do"]:
            raise RuntimeError("the second up found something to do")
        self.wrote += sum(
            after - before[name] for name, after in self.lab.ask("writes")["writes"].items()
        )
        for name, kept in self.null.items():
            kept.append(null_s(self.lab, self.imported[name], play=name == "up"))
        print(
            f"  {self.lab.tree.name}, run {number + 1}: up {self.first[-1][0]:.2f} s, again {self.again[-1][0]:.2f} s;"
            f" null {self.null['up'][-1]:.2f} s, {self.null['again'][-1]:.2f} s",
            flush=True,
        )

    def notify(self) -> dict[str, float]:
        """Print the medians and return them."""
        found: dict[str, float] = {}
        for name, kept in (("up", self.first), ("again", self.again)):
            took, own, whole = (statistics.median(values) for values in zip(*kept, strict=True))
            null = self.null[name]
            over = statistics.median(
                took / floor for (took, *_), floor in zip(kept, null, strict=True)
            )
            print(
                f"  {self.lab.tree.name}: {name:5} {took:.2f} s, {over:.2f} x a null one of {statistics.median(null):.2f} s"
            )
            print(
                f"    processors: {own:.2f} s the command and Ansible,"
                f" {max(0.0, whole - own):.2f} s hosts, devices and others, on {os.cpu_count()} cores"
            )
            found |= {
                f"{name}_s": round(took, 3),
                f"{name}_own_s": round(own, 3),
                f"{name}_machine_s": round(whole, 3),
            }
            found |= {
                f"{name}_null_s": round(statistics.median(null), 3),
                f"{name}_over_null": round(over, 3),
            }
        return found


def main() -> int:
    with ExitStack() as stack:
        every = [Ups(stack.enter_context(bench_lab(tree=tree))) for tree in against(sys.argv[1:])]
        for number in range(RUNS):
            for ups in every:
                ups.run(number)
        reply = {ups.lab.tree.name: ups.notify() for ups in every}
        own = next(ups for ups in every if ups.lab.tree == ROOT)
    over, again_over = (reply[ROOT.name][f"{name}_over_null"] for name in own.null)
    first, second = (
        statistics.median(took for took, *_ in kept) for kept in (own.first, own.again)
    )
    return verdict(
        "up_total",
        first,
        "s",
        LIMIT_S,
        "at most",
        also=second <= AGAIN_LIMIT_S
        and not own.wrote
        and over <= LIMIT_X
        and again_over <= AGAIN_LIMIT_X,
        again_s=round(second, 3),
        again_limit_s=AGAIN_LIMIT_S,
        again_writes=own.wrote,
        over_null=over,
        over_null_limit=LIMIT_X,
        again_over_null=again_over,
        again_over_null_limit=AGAIN_LIMIT_X,
        trees=reply,
    )


if __name__ == "__main__":
    sys.exit(main())
