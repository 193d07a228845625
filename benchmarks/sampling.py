"""What sampling 48 ports 100 times a second costs: of a core of each machine, and of a job's
all-reduce.

A private emulated lab of 12 hosts with four ports each runs an all-reduce job on the TopoOpt plan,
over one ring: what bounds it are the links, as on real hosts, and not the cores that twelve
emulated ones share. Sampling is on and off in turns, many times. The processor time of every agent
and of the operator's process comes from the scheduler's own accounts (/proc/PID/schedstat); what
they take without sampling is taken off. The figure is the most that any one machine gives: in a
real lab each host and the operator are machines of their own. The sum over all twelve, which only
an emulated lab has on one machine, is printed too, as are 10 and 1000 samples a second.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.bench_lab import ROOT, BenchLab, bench_lab
from benchmarks.harness import verdict
from orchestrator.change.port_counters import Counters
from orchestrator.hosts import Hosts
from orchestrator.session import load_lab, open_session
from orchestrator.telemetry import Journal

HZ, LIMIT_SHARE, LIMIT_SLOWER = 100, 0.02, 0.01
ROUNDS, WINDOW_S, OTHERS_S = 12, 4.0, 6.0
SIZE = "2M"


def network(pid: int | str) -> str:
    """The network namespace of a process."""
    return str(Path(f"/proc/{pid}/ns/net").readlink())


def agents(lab: BenchLab) -> list[int]:
    """The processes of all agents of this lab: watchdogs and daemons, found by their hosts' network
    namespaces.
    """
    hosts = {network(host["pid"]) for host in lab.ask("status")["hosts"].values()}
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            tokens = (entry / "cmdline").read_bytes().split(b"\0")
            if (
                any(w.endswith(b"agent/__main__.py") for w in tokens)
                and b"attach" not in tokens
                and network(entry.name) in hosts
            ):
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def ran_ns(pid: int) -> int:
    """Time on a processor so far, from the scheduler."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0])


def plan(lab: BenchLab) -> Path:
    """The TopoOpt plan with an all-reduce over one ring that goes on for ever."""
    body: dict[str, Any] = json.loads((ROOT / "examples" / "topoopt-12.json").read_text())
    body.pop("$schema", None)
    job = {"ranks": body["job"]["ranks"], "rings": body["job"]["rings"][:1], "backend": "gloo"}
    body |= {
        "name": "sampled",
        "job": job
        | {"name": "sampled", "workload": "allreduce", "args": {"minbytes": SIZE, "loop": True}},
    }
    path = lab.folder / "sampled.json"
    path.write_text(json.dumps(body))
    return path


class Bench:
    """The lab's hosts, sampled or not, and the processor time taken meanwhile."""

    def __init__(self, hosts: Hosts, lab: BenchLab, journal: Journal) -> None:
        self.hosts, self.lab, self.journal = hosts, lab, journal

    async def window(
        self, hz: float, seconds: float
    ) -> tuple[dict[str, float], float, tuple[int, int], float]:
        """Shares of a core that each host's agent and this process took, when that was (wall ns),
        samples a second and port.
        """
        queue, counters = self.hosts.channels.subscribe(), Counters(self.journal)
        await self.hosts.measure.stream_counters(1 / hz if hz else None)
        await asyncio.sleep(0.2)
        pids = agents(self.lab)
        before, here = [ran_ns(pid) for pid in pids], time.process_time_ns()
        began, wall = time.monotonic(), time.time_ns()
        rows = counters.rows
        while (left := began + seconds - time.monotonic()) > 0:
            try:
                async with asyncio.timeout(left):
                    event = await queue.get()
            except TimeoutError:
                break
            if event.kind == "counters":
                counters.add(event)
        took = time.monotonic() - began
        shares = [
            (now - then) / 1e9 / took
            for now, then in zip([ran_ns(pid) for pid in pids], before, strict=True)
        ]
        hosts = per_host(shares, [network(pid) for pid in pids])
        operator = (time.process_time_ns() - here) / 1e9 / took
        await self.hosts.measure.stream_counters(None)
        self.hosts.channels.unsubscribe(queue)
        rate = (counters.rows - rows) / took / max(1, len(counters.latest))
        return hosts, operator, (wall, time.time_ns()), rate


def per_host(shares: list[float], hosts: list[str]) -> dict[str, float]:
    """The processor time of a host's processes together."""
    found: dict[str, float] = {}
    for share, host in zip(shares, hosts, strict=True):
        found[host] = found.get(host, 0.0) + share
    return found


async def measure(lab: BenchLab, steps: int, window_s: float) -> dict[str, Any]:
    """Cost with the job running, sampling on and off in turns; then other rates for a while
    each.
    """
    inventory = load_lab(lab.inventory)
    windows: dict[bool, list[tuple[int, int]]] = {True: [], False: []}
    costs: dict[float, list[tuple[dict[str, float], float, float]]] = {}
    async with open_session(inventory, lab.inventory, lab.folder / "ansible") as session:
        await session.hosts.channels.connect()
        with Journal(lab.folder / "sampled", "r", inventory.name) as journal:
            bench = Bench(session.hosts, lab, journal)

            async def once(hz: float, seconds: float) -> tuple[int, int]:
                hosts, operator, when, rate = await bench.window(hz, seconds)
                costs.setdefault(hz, []).append((hosts, operator, rate))
                return when

            for step in range(steps):
                for on in (True, False) if step % 2 else (False, True):
                    windows[on].append(await once(HZ if on else 0, window_s))
            for hz in (10, 1000):
                await once(hz, OTHERS_S)
    return {"costs": costs, "windows": windows}


def busbw(lab: BenchLab, windows: dict[bool, list[tuple[int, int]]]) -> dict[bool, list[float]]:
    """Bus bandwidth (Mb/s) of every all-reduce that lay whole inside a window."""
    lab.call("job", "status")
    (file,) = (lab.folder / "runs" / "runs").glob("*/*.iterations.jsonl")
    found: dict[bool, list[float]] = {True: [], False: []}
    for line in file.read_text().splitlines():
        record = json.loads(line)
        begin = int(record["t_wall_ns"])
        end = begin + int(record["iter_ms"] * 1e6)
        for on, spans in windows.items():
            if any(a <= begin and end <= b for a, b in spans):
                found[on].append(record["busbw_gbps"] * 1e3)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=ROUNDS)
    parser.add_argument("--window", type=float, default=WINDOW_S, metavar="SECONDS")
    chosen = parser.parse_args()
    with bench_lab() as lab:
        lab.call("up", "--topology", plan(lab))
        found = asyncio.run(measure(lab, chosen.steps, chosen.window))
        rates = busbw(lab, found["windows"])
        lab.call("job", "stop")
    costs = found["costs"]
    idle_host = {host: statistics.median(c[0][host] for c in costs[0]) for host in costs[0][0][0]}
    idle_here = statistics.median(c[1] for c in costs[0])

    def cost(hz: float) -> tuple[float, float, float]:
        """Of the busiest host, of all hosts together, of the operator; what they take unsampled
        taken off.
        """
        hosts = {
            host: statistics.median(c[0][host] for c in costs[hz]) - idle_host[host]
            for host in idle_host
        }
        return (
            max(hosts.values()),
            sum(hosts.values()),
            statistics.median(c[1] for c in costs[hz]) - idle_here,
        )

    for hz in (10, HZ, 1000):
        worst, total, here = cost(hz)
        rate = statistics.median(c[2] for c in costs[hz])
        print(
            f"{hz:5} Hz: busiest host {100 * worst:6.3f} % of a core, operator {100 * here:6.3f} %, all twelve hosts"
            f" {100 * total:6.2f} %; {rate:.1f} samples a second came of each port",
            flush=True,
        )
    with_, without = (statistics.median(rates[on]) for on in (True, False))
    pairs = min(len(rates[True]), len(rates[False]))
    print(
        f"all-reduce of {SIZE}: {with_:.1f} Mb/s sampled, {without:.1f} Mb/s not, medians of {pairs}: {with_ / without:.4f}"
    )
    worst, total, here = cost(HZ)
    slower = 1 - with_ / without
    return verdict(
        "sampling",
        max(worst, here),
        "of a core",
        LIMIT_SHARE,
        "at most",
        also=slower < LIMIT_SLOWER,
        busiest_host=round(worst, 5),
        operator=round(here, 5),
        all_hosts=round(total, 4),
        busbw_ratio=round(with_ / without, 5),
        busbw_limit=1 - LIMIT_SLOWER,
        ports=48,
        hz=HZ,
    )


if __name__ == "__main__":
    sys.exit(main())
