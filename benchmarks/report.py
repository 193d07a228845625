"""How long `testbed experiment report all` takes, from the command to the page, over 1000 runs of
12 hosts.

The runs are written through the real store and journal, each with what a run of
`examples/topoopt-12.json` writes (circuits, phases of devices and hosts, light, verification, port
counters at 10 Hz for two seconds, forty iterations): 1.2 million points. One run's report is given
for comparison.
"""

from __future__ import annotations

import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path

from optics.plan import Job
from orchestrator.store.job_spec import JobSpec

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.harness import spread, undisturbed, verdict
from orchestrator.settings import load
from orchestrator.store.keys import tenancy_key
from orchestrator.store.store import Store
from orchestrator.telemetry import Journal

LIMIT_S = 10.0
RUNS = 1000
ROUNDS = 3
MS = 1_000_000
HOSTS = [f"gpu{n:02d}" for n in range(1, 13)]
KEY = "emulated-bench"
Fields = dict[str, int | float | str | None]
PLAN = {
    "schema": "testbed.plan/1",
    "name": "topoopt-12",
    "links": [{"a": f"{a}:p1", "b": f"{b}:p2"} for a, b in pairwise(HOSTS)],
}


class Clock:
    """The clock of the imagined lab."""

    now_ns = 0

    def monotonic_ns(self) -> int:
        return self.now_ns

    def time_ns(self) -> int:
        return 1_790_000_000 * 10**9 + self.now_ns


def write(journal: Journal, run: str, clock: Clock, chance: random.Random) -> None:
    """What one run writes."""
    name = f"{run}/1"
    begin = clock.now_ns
    sent = begin + 4000 * MS
    dark = chance.lognormvariate(4.1, 0.2)
    for k, phase in enumerate(
        ("observe", "plan", "stage", "arm", "drain", "switch", "link", "verify", "job", "launch")
    ):
        journal.phase(
            phase,
            begin + k * 700 * MS,
            begin + (k + 1) * 700 * MS,
            detail="as planned",
            reconfig_id=name,
        )
    for n in range(20):
        for host in HOSTS:
            for port in range(1, 5):
                tags = {"host": host, "port": f"p{port}", "layer": "nic"}
                counted: Fields = {
                    "tx_bytes": n * 3_000_000,
                    "rx_bytes": n * 3_000_000,
                    "tx_pkts": n * 400,
                    "rx_pkts": n * 400,
                    "drops": 0,
                    "oper": 1,
                }
                journal.point("port", tags, counted, sent - 1000 * MS + n * 100 * MS)
    spans = {
        "ack": 2.0,
        "command": 12.0,
        "dark": dark,
        "link": 1.0,
        "route": 0.3,
        "total": dark + 180.0 + chance.random() * 40,
    }
    fields: Fields = {"reconfig_id": name, "seq": 1, "n_circuits": 72, "value": 1}
    fields |= {f"{k}_ms": v for k, v in spans.items()} | {
        f"{k}_ns": round(v * MS) for k, v in spans.items()
    }
    journal.point(
        "reconfig", {"job": "ddp", "trigger": "up", "policy": "drain", "ok": "1"}, fields, sent
    )
    for k in range(4):
        device = f"ocs{k + 1}"
        tags = {
            "device": device,
            "kind": "ocs",
            "model": ("polatis-scpi", "calient-tl1")[k // 2],
            "op": "change",
        }
        ends: Fields = {
            "reconfig_id": name,
            "n_ports": 48,
            "writes": 3,
            "error": "",
            "t_send_ns": 0,
            "t_ack_ns": 10 * MS,
            "t_dark_begin_ns": 2 * MS,
            "t_dark_end_ns": round((dark + 2) * MS),
        }
        ends |= {"t_link_up_ns": round((dark + 3) * MS), "t_route_ns": round((dark + 3.3) * MS)}
        journal.point("reconfig_device", tags, ends, sent + k)
        journal.phase(
            "switch", sent, sent + round(dark * MS), kind="device", subject=device, reconfig_id=name
        )
        for phase in ("command", "dark", "settle", "up"):
            journal.point(
                "device_phase",
                {"device": device, "kind": "ocs"},
                {"phase": phase, "reconfig_id": name},
                sent + k,
            )
    for k, host in enumerate(HOSTS):
        journal.phase(
            "light",
            sent,
            sent + round((dark + 2) * MS) + k,
            kind="host",
            subject=host,
            reconfig_id=name,
        )
        journal.phase(
            "commit",
            sent + round((dark + 2) * MS),
            sent + round((dark + 2.3) * MS) + k,
            kind="host",
            subject=host,
            reconfig_id=name,
        )
    for level in ("map", "light", "link", "identity", "forwarding"):
        done: Fields = {
            "reconfig_id": name,
            "ok": 1,
            "passed": 48,
            "total": 48,
            "duration_ms": 20.0,
            "detail": "48/48",
        }
        journal.point("verify", {"level": level}, done, sent + 150 * MS)
    for k in range(84):
        a, b = HOSTS[k % 12], HOSTS[(k + 1) % 12]
        fields = {
            "circuit": f"{a}:p{k % 4 + 1}->{b}:p{k % 4 + 1}",
            "source": a,
            "target": b,
            "state": "made",
            "loss_db": 2.5,
        }
        journal.point("circuit", {"ocs": f"ocs{k % 4 + 1}", "id": str(k)}, fields, sent + 200 * MS)
        journal.point(
            "optical",
            {"device": f"ocs{k % 4 + 1}", "port": str(k)},
            {"rx_dbm": -1.5},
            sent + 150 * MS,
        )
    clock.now_ns = sent + 500 * MS
    for n in range(40):
        took = 1300.0 if n == 0 else 250.0 + chance.gauss(0, 12)
        journal.point(
            "iteration",
            {"job": "ddp", "workload": "train"},
            {"iter": n, "iter_ms": took, "comm_ms": took / 2, "loss": 0.1},
            clock.now_ns,
        )
        clock.now_ns += round(took * MS)


def fill(runs: int) -> int:
    """Write so many runs; return the points."""
    settings, clock, chance = load(), Clock(), random.Random(1)
    points = 0
    wall, time.time = time.time, lambda: clock.time_ns() / 1e9
    try:
        with Store(settings.store_path, durable=False) as store:
            for _ in range(runs):
                run = store.new_run(
                    "up",
                    KEY,
                    plan_name="topoopt-12",
                    plan_sha="00",
                    plan_text=json.dumps(PLAN),
                    inventory="/nowhere",
                    user="bench",
                )
                run.found({"current": None}, {"hosts": HOSTS})
                job = store.add_job(
                    tenancy_key(KEY, "bench"),
                    run.id,
                    "ddp",
                    JobSpec(Job("ddp", "train", ()), "ddp", "gloo"),
                )
                with Journal(settings.run_dir(run.id), run.id, "emulated", clock=clock) as journal:
                    write(journal, run.id, clock, chance)
                    points += journal.points
                store.set_job(job, "stopped", ended=True)
                run.finish("ok", summary={"dark_ms": 60.0, "dark_ms_expected": 50.0})
    finally:
        time.time = wall
    return points


def timed(*argv: str) -> tuple[float, Path]:
    """Seconds of one command, and the page it wrote."""
    began = time.perf_counter()
    command = [
        sys.executable,
        "-m",
        "orchestrator.cli.main",
        "experiment",
        "report",
        *argv,
        "--json",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    took = time.perf_counter() - began
    return took, Path(json.loads(done.stdout)["data"]["file"])


def main() -> int:
    with tempfile.TemporaryDirectory() as home:
        for name in ("DATA", "STATE", "LOCK"):
            os.environ[f"TESTBED_{name}_DIR"] = str(Path(home, name.lower()))
        os.environ["XDG_CONFIG_HOME"], os.environ["XDG_CACHE_HOME"] = (
            f"{home}/config",
            f"{home}/cache",
        )
        points = fill(RUNS)
        undisturbed()
        timed("last")  # matplotlib makes its list of fonts once in a machine's life
        times = []
        for _ in range(ROUNDS):
            took, page = timed("all")
            times.append(took)
        size, html = page.stat().st_size, page.read_text(encoding="utf-8")
        one = statistics.median(timed("last")[0] for _ in range(ROUNDS))
    whole = f"{RUNS} reconfigurations were recorded." in html
    print(
        f"{RUNS} runs, {points} points: {', '.join(f'{t:.2f}' for t in times)} s, page {size / 1e6:.2f} MB; one run {one:.2f} s"
    )
    return verdict(
        "report",
        statistics.median(times),
        "s",
        LIMIT_S,
        "at most",
        also=whole,
        spread=round(spread(times), 3),
        points=points,
        page_mb=round(size / 1e6, 2),
        one_run_s=round(one, 2),
    )


if __name__ == "__main__":
    sys.exit(main())
