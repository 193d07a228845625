"""Outage seen by host pairs while all 24 circuits move, divided by the switches' own switching
time, at 50 and at 25 ms.

Six disjoint pairs, so every host, probe each other in both directions every millisecond over real
sockets in the hosts' namespaces; `testbed up` moves the lab back and forth between two plans that
share no circuit. The outage of a direction is the time from its last packet before to its first
packet after. The figure is the median over the moves of the median direction; the worst direction
of each move is printed and reported with it.

    python benchmarks/dark_window.py [--against PATH] PATH: another checkout, which is measured in
turn with this one, on a lab of its own. What is above the devices' own time is cut where
`dark_trace.py` says, so that the emulator's share and the program's are distinguished. Without the
emulator's (from a command until light goes, and from due light until carrier) the outage has limits
of its own, reckoned before the first run that judged them: commands to four devices and the slowest
commit take 2.3 ms, a period of the probes 1 ms, so 1.07 and 1.13 times the devices' time. Null
devices answer at once (1 ms): the outage with them is what no device's own time explains.
"""

from __future__ import annotations

import json
import signal
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.bench_lab import ROOT, BenchLab, against, bench_lab, ring_links
from benchmarks.dark_trace import cuts, medians, traced
from benchmarks.harness import verdict

MOVES = 10
LIMITS = {0.025: 1.25, 0.05: 1.15}
"""Most that the outage may be, in switching times, by switching time (s)."""
OWN_LIMITS = {0.025: 1.13, 0.05: 1.07}
"""The same without the emulator's share."""
NULL_S = 0.001


class Moves:
    """The moves of one tree's lab at one switching time: outages in s, and whose the milliseconds
    were.
    """

    def __init__(self, lab: BenchLab, settle_s: float) -> None:
        self.lab, self.settle_s = lab, settle_s
        self.worst: list[float] = []
        self.middle: list[float] = []
        self.shares: list[Mapping[str, float]] = []
        self.ran: list[Mapping[str, float]] = []
        self.waited: list[Mapping[str, float]] = []

    def move(self, plan: Path) -> None:
        """Move the lab to `plan` while its hosts are probed."""
        lab = self.lab
        lab.settle(self.settle_s)
        status = lab.ask("status")["hosts"]
        names = sorted(status)
        hosts = {
            name: {"pid": status[name]["pid"], "address": f"10.255.0.{i + 1}"}
            for i, name in enumerate(names)
        }
        pairs = [(names[i], names[i + 1]) for i in range(0, len(names), 2)]
        prober = subprocess.Popen(
            [sys.executable, Path(__file__).with_name("prober.py"), "60", "1"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert prober.stdin is not None and prober.stdout is not None
        prober.stdin.write(json.dumps({"hosts": hosts, "pairs": pairs}))
        prober.stdin.close()
        prober.stdout.readline()
        time.sleep(0.3)
        with traced() as trace:
            report = lab.call("up", "--topology", plan, "--no-job")
        time.sleep(0.3)
        prober.send_signal(signal.SIGTERM)
        directions = [json.loads(line) for line in prober.stdout]
        prober.wait()
        if any(not d["gaps"] for d in directions):
            raise RuntimeError(
                "a direction saw no outage: the move did not touch it, so the figure would mean nothing"
            )
        gaps = sorted(
            (max(d["gaps"], key=lambda gap: gap[1] - gap[0]) for d in directions),
            key=lambda gap: gap[1] - gap[0],
        )
        outages = [(b - a) / 1e9 for a, b in gaps]
        self.worst.append(max(outages))
        self.middle.append(statistics.median(outages))
        cut = cuts(lab, report, gaps[len(gaps) // 2])
        self.shares.append(cut.shares_ms)
        found = trace.shares(cut.spans)
        self.ran.append({kind: ran for kind, (ran, _) in found.items()})
        self.waited.append({kind: waited for kind, (_, waited) in found.items()})
        print(
            f"  {lab.tree.name}, {self.settle_s * 1e3:.0f} ms switches, move {len(self.worst):2}:"
            f" outage worst {self.worst[-1] * 1e3:6.1f} ms, median {self.middle[-1] * 1e3:6.1f} ms"
            f" (up reports dark {report['dark_ms']:.1f}, link {report['link_ms']:.1f}, commit {report['commit_ms']:.1f} ms)",
            flush=True,
        )

    @property
    def ratio(self) -> float:
        """The median direction's outage in switching times."""
        return statistics.median(self.middle) / self.settle_s

    @property
    def own_ratio(self) -> float:
        """The same without the emulator's share."""
        theirs = [
            sum(ms for name, ms in shares.items() if name.startswith("emulator")) / 1e3
            for shares in self.shares
        ]
        return (
            statistics.median(outage - s for outage, s in zip(self.middle, theirs, strict=True))
            / self.settle_s
        )

    def notify(self) -> dict[str, object]:
        """Print the figures; return them for the last line."""
        worst = statistics.median(self.worst) / self.settle_s
        print(
            f"  {self.lab.tree.name} at {self.settle_s * 1e3:.0f} ms: worst {worst:.2f} x, median direction {self.ratio:.3f} x,"
            f" without the emulator {self.own_ratio:.3f} x"
        )
        shares = medians(self.shares)
        for name, ms in shares.items():
            print(f"    {ms:6.2f} ms  {name}")
        ran, waited = medians(self.ran), medians(self.waited)
        if not ran:
            print(
                "    no trace of the scheduler: it needs root, and tracefs mounted at /sys/kernel/tracing"
            )
        for kind in sorted(ran, key=lambda kind: -ran[kind]):
            longest = waited.get(kind, 0.0)
            print(
                f"    in these parts {kind:9} ran {ran[kind]:6.2f} ms, one waited at most {longest:5.2f} ms for a core"
            )
        return {
            "ratio": round(self.ratio, 3),
            "own_ratio": round(self.own_ratio, 3),
            "worst_direction": round(worst, 3),
            "shares_ms": shares,
        }


def main() -> int:
    reply: dict[str, dict[str, object]] = defaultdict(dict)
    ratios: dict[float, float] = {}
    own: dict[float, float] = {}
    with ExitStack() as stack:
        labs = [stack.enter_context(bench_lab(tree=tree)) for tree in against(sys.argv[1:])]
        plans = {
            lab.tree: [
                lab.plan("here", ring_links(1, (1, 2)) + ring_links(5, (3, 4))),
                lab.plan("there", ring_links(5, (1, 2)) + ring_links(1, (3, 4))),
            ]
            for lab in labs
        }
        for lab in labs:
            lab.call("up", "--topology", plans[lab.tree][1], "--no-job")
        for settle_s in (*LIMITS, NULL_S):
            moves = [Moves(lab, settle_s) for lab in labs]
            for number in range(MOVES):
                for each in moves:
                    each.move(plans[each.lab.tree][number % 2])
            for each in moves:
                reply[each.lab.tree.name][f"{settle_s * 1e3:.0f}_ms"] = each.notify()
                if each.lab.tree == ROOT:
                    ratios[settle_s], own[settle_s] = each.ratio, each.own_ratio
    return verdict(
        "dark_window",
        ratios[0.05],
        "x",
        LIMITS[0.05],
        "at most",
        also=all(
            found[settle_s] <= most
            for found, limits in ((ratios, LIMITS), (own, OWN_LIMITS))
            for settle_s, most in limits.items()
        ),
        at_25ms=round(ratios[0.025], 3),
        at_25ms_limit=LIMITS[0.025],
        own=round(own[0.05], 3),
        own_limit=OWN_LIMITS[0.05],
        own_at_25ms=round(own[0.025], 3),
        own_at_25ms_limit=OWN_LIMITS[0.025],
        null_ms=round(ratios[NULL_S] * NULL_S * 1e3, 2),
        trees=reply,
    )


if __name__ == "__main__":
    sys.exit(main())
