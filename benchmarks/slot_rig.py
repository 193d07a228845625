"""What the benchmarks of schedules share: when each circuit was lit, flows that note their pauses,
and a ring job's prediction.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from benchmarks.bench_lab import BenchLab
from emulators.fabric.linux import inside
from optics.plan import Plan
from orchestrator.inventory.lab import Lab
from orchestrator.plan.design.design import PAYLOAD
from orchestrator.plan.design.flows import rate_mbps
from orchestrator.plan.design.periodic import Routes
from planner.schedule.periodic import ring_mean_s

Span = tuple[float, float]
"""From, to (s, CLOCK_MONOTONIC)."""
SAME_S = 0.02  # circuits of one slot change become lit within this time

FLOW = """
import socket, sys, time
kind, own, other, port = sys.argv[1:]
s = socket.socket()
if kind == "send":
    s.bind((own, 0))
    while True:
        try:
            s.connect((other, int(port)))
            break
        except OSError:
            time.sleep(0.05)
            s.close()
            s = socket.socket()
            s.bind((own, 0))
    piece = b"x" * 65536
    while True:
        s.sendall(piece)
s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
s.bind((own, int(port)))
s.listen(1)
print("ready", flush=True)
s, _ = s.accept()
total, last = 0, time.monotonic_ns()
said = last
while got := len(s.recv(1 << 18)):
    now = time.monotonic_ns()
    total += got
    if now - last > 5_000_000:
        print("pause", last, now, flush=True)
    if now - said > 20_000_000:
        print("total", now, total, flush=True)
        said = now
    last = now
"""


def ring_iteration_s(plan: Plan, lab: Lab, size: float, compute_s: float, dark_s: float) -> float:
    """Time (s) of an iteration of the plan's job on its schedule that computes, then sums a buffer
    of `size` bytes over its rings.

    dark_s: between two slots. Every ring is taken to be on lane 0. Raises: ValueError - the plan
    has no schedule, or no job.
    """
    if plan.schedule is None or plan.job is None:
        raise ValueError(f"plan {plan.name} has no schedule with a job")
    hosts, schedule = plan.job.hosts, plan.schedule
    rank = {host: number for number, host in enumerate(hosts)}
    rings = [[rank[host] for host in ring] for ring in plan.job.rings] or [list(range(len(hosts)))]
    slots = [plan.slot(index).links for index in range(len(schedule.slots))]
    routed = Routes.of(slots, hosts, lab).routed(schedule.dwell_s, schedule.guard_s, dark_s, lane=0)
    return ring_mean_s(routed, rings, size, rate_mbps(lab, hosts) * 1e6 / 8 * PAYLOAD, compute_s)


def pids(lab: BenchLab) -> dict[str, int]:
    """The first process of every host."""
    return {name: int(host["pid"]) for name, host in lab.ask("status")["hosts"].items()}


@contextmanager
def within(pid: int) -> Iterator[None]:
    """Be in the network of a host: sockets made here stay there."""
    net = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY)
    try:
        with inside(net):
            yield
    finally:
        os.close(net)


def address(host: str) -> str:
    """The fabric address of gpuNN."""
    return f"10.255.0.{int(host[3:])}"


def lit(lab: BenchLab) -> dict[tuple[str, str], list[Span]]:
    """When there was light from one host to another, by the emulated light path; a circuit that is
    lit now has no end yet (inf).
    """
    spans: dict[tuple[str, str], list[Span]] = {}
    fibres = lab.ask("status")["fibres"]
    for device in sorted({f["device"] for f in fibres}):
        enters, leaves = (
            {f[key]: f["host"] for f in fibres if f["device"] == device}
            for key in ("enters", "leaves")
        )
        since: dict[tuple[str, str], float] = {}
        for at_s, what, ingress, egress in (
            e[:4] for e in lab.ask("history", device=device)["history"]
        ):
            pair = (enters.get(str(ingress), ""), leaves.get(str(egress), ""))
            if what == "lit":
                since.setdefault((ingress, egress), at_s)
            elif what == "broken" and (ingress, egress) in since:
                spans.setdefault(pair, []).append((since.pop((ingress, egress)), at_s))
        for (ingress, egress), at_s in since.items():
            spans.setdefault((enters.get(ingress, ""), leaves.get(egress, "")), []).append(
                (at_s, float("inf"))
            )
    return {pair: sorted(found) for pair, found in spans.items()}


def steps(spans: dict[tuple[str, str], list[Span]]) -> list[float]:
    """When each slot's light was whole (s): the last circuit of those that became lit together."""
    at = sorted(begin for found in spans.values() for begin, _ in found)
    groups: list[list[float]] = []
    for one in at:
        if groups and one - groups[-1][-1] < SAME_S:
            groups[-1].append(one)
        else:
            groups.append([one])
    return [group[-1] for group in groups]


def overlap(spans: Sequence[Span], begin: float, end: float) -> float:
    """How long (s) of a time these were lit."""
    return sum(max(0.0, min(b, end) - max(a, begin)) for a, b in spans)


class Flow:
    """A TCP flow from one host to another at full rate; its receiver writes down every pause of
    more than 5 ms, and its bytes.
    """

    def __init__(self, lab: BenchLab, source: str, target: str, port: int) -> None:
        self.pair, self.log = (source, target), lab.folder / f"flow-{source}-{target}-{port}"
        found, own, other = pids(lab), address(source), address(target)
        with self.log.open("wb") as out:
            self.programs = [_program(found[target], "receive", other, "-", str(port), out=out)]
        self.programs.append(_program(found[source], "send", own, other, str(port), out=None))

    def rows(self, kind: str) -> list[tuple[int, int]]:
        """The lines of a kind: `pause`, from and to (ns); `total`, when (ns) and how many bytes so
        far.
        """
        argv = [line.split() for line in self.log.read_text().splitlines()]
        return [(int(w[1]), int(w[2])) for w in argv if len(w) == 3 and w[0] == kind]

    def rate(self, begin_s: float, end_s: float) -> float:
        """Bytes a second that arrived in this time."""
        rows = [(at / 1e9, total) for at, total in self.rows("total")]
        before = [r for r in rows if r[0] <= begin_s][-1:] or [(begin_s, 0)]
        after = [r for r in rows if r[0] <= end_s][-1:] or [(end_s, 0)]
        return (after[0][1] - before[0][1]) / max(end_s - begin_s, 1e-9)

    def stall(self, dark: Span) -> float:
        """The longest pause (s) of which any is in this dark time."""
        rows = [(a / 1e9, b / 1e9) for a, b in self.rows("pause")]
        return max((b - a for a, b in rows if a < dark[1] and b > dark[0]), default=0.0)

    def stop(self) -> None:
        for program in self.programs:
            program.kill()
            program.wait()


def _program(pid: int, *argv: str, out: object) -> subprocess.Popen[bytes]:
    command = ["nsenter", "-t", str(pid), "-n", "-m", "-p", "setpriv", "--pdeathsig", "KILL", "--"]
    quiet = subprocess.DEVNULL
    return subprocess.Popen(  # type: ignore[call-overload, no-any-return]
        [*command, sys.executable, "-S", "-E", "-c", FLOW, *argv], stdout=out or quiet, stderr=quiet
    )


@contextmanager
def flows(lab: BenchLab, pairs: Sequence[tuple[str, str]]) -> Iterator[list[Flow]]:
    """Flows from host to host while the block runs."""
    made: list[Flow] = []
    try:
        made += (Flow(lab, *pair, 5000 + n) for n, pair in enumerate(pairs))
        yield made
    finally:
        for flow in made:
            flow.stop()
