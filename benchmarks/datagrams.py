"""Gradients by datagrams, of which a bounded share may be lost, against connections that repeat
everything: tails, accuracy.

    python benchmarks/datagrams.py [ROUNDS] Four ranks train a perceptron of 399 370 parameters over
one ring of 50 Mb/s, each line with 15 ms of delay and a queue of 60 packets, as in
examples/scenarios/mlt-loss. Arms by turns in one run: connections and `exchange: datagrams` with
`loss_bound: 0.02` over links that lose 1 % of all packets, half of it at either end (fault `loss`),
and both over links that lose none. An iteration is from the end of the one before to its own.
Accuracy: that of the last checkpoint, here, on samples that no rank trained with. All hosts'
checkpoints must hold the same bits, and no sum may lack more than the bound (`lost_share`, which
the program says itself). Bytes are those of the hosts' ports. The figure is the ratio of a run's
p99 with losses, one a round; also limits: the ratio of medians without, and accuracy.

Buffers of connections begin with 1 MB here. With the hosts' usual 128 kB the kernel lets them grow
only where a connection brings more than 57 kB in a round trip, which windows of that size hardly
allow: at 30 ms connections stay at 14 of 50 Mb/s, and a comparison with them would say nothing of
losses. `tcp, usual buffers` is that, without losses, once; it is only reported.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.bench_lab import BenchLab, bench_lab, ring_links
from benchmarks.harness import verdict
from benchmarks.job_rig import (
    CHECKPOINTS,
    TCP_BYTES,
    UDP_BYTES,
    Trained,
    losing,
    percentile,
    ratio,
    root,
    state_hash,
    trained,
)
from benchmarks.slot_rig import pids
from orchestrator.experiments.scenario.record import order
from workloads.training.eager import import_torch
from workloads.training.models import Data, model

HOSTS = [f"gpu{n:02d}" for n in range(1, 5)]
USUAL = "tcp, usual buffers"
ARMS = {
    "tcp, 1 %": (0.01, "wires"),
    "datagrams, 1 %": (0.01, "datagrams"),
    "tcp": (0.0, "wires"),
    "datagrams": (0.0, "datagrams"),
    USUAL: (0.0, "wires"),
}
BUFFERS = {True: "4096 1048576 33554432", False: "4096 131072 33554432"}
"""What is lost of a link's packets, and the exchange."""
LINES = ("1:15:60", "2:15:60")
ROUNDS, ITERATIONS, WARM = 3, 100, 10
HIDDEN, BATCH, SEED, SAMPLES, UNSEEN = 512, 16, 1, 20_000, 10**6
BOUND = 0.02
TAIL, ALIKE, POINTS = 0.7, 0.05, 1.0


def plan(lab: BenchLab, arm: str) -> Path:
    exchange = ARMS[arm][1]
    args: dict[str, Any] = {
        "hidden": HIDDEN,
        "batch": BATCH,
        "seed": SEED,
        "iterations": ITERATIONS,
    }
    args |= {"checkpoint_every": ITERATIONS, "exchange": exchange} | (
        {"loss_bound": BOUND} if exchange == "datagrams" else {}
    )
    job = {"name": "ddp", "workload": "train", "ranks": HOSTS, "rings": [HOSTS], "args": args}
    return lab.plan(exchange, ring_links(1, (1, 2), len(HOSTS)), job=job)


def accuracy(torch: Any, checkpoint: Path) -> float:
    """Percent of samples nobody trained with that these weights put into the right class."""
    network = model("mlp", torch, SEED, HIDDEN)
    state = torch.load(checkpoint, weights_only=True, map_location="cpu")
    with torch.no_grad():
        for parameter, was in zip(network.parameters(), state["parameters"], strict=True):
            parameter.copy_(was)
        inputs, target = Data("mlp", torch, SEED, 0, 1, SAMPLES).batch(UNSEEN)
        return 100 * float((network(inputs).argmax(1) == target).float().mean())


def measured(lab: BenchLab, arm: str) -> Trained:
    """Train once. Losses begin when the plan is up, so that they are none of its checks'
    business.
    """
    path, share = plan(lab, arm), ARMS[arm][0]
    lab.call("up", "--topology", path, "--no-job")
    for pid in pids(lab).values():
        command = [
            "nsenter",
            "-t",
            str(pid),
            "-n",
            "sysctl",
            "-qw",
            f"net.ipv4.tcp_rmem={BUFFERS[arm != USUAL]}",
        ]
        subprocess.run(command, check=True)
    with losing(lab, HOSTS, (1, 2), 100 * (1 - (1 - share) ** 0.5)) if share else nullcontext():
        return trained(lab, path, "ddp", HOSTS, 400)


def main() -> int:
    """Measure and print; return the exit code."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS
    torch = import_torch()
    found: dict[str, list[Trained]] = {arm: [] for arm in ARMS}
    right: dict[str, list[float]] = {arm: [] for arm in ARMS}
    alike = True
    size = ["--ports", "2", "--rate-mbps", "50", "--settle-s", "0.02"]
    with bench_lab(
        len(HOSTS), *size, *(word for line in LINES for word in ("--line", line))
    ) as lab:
        for arm in [*order(list(ARMS)[:4], rounds), USUAL]:
            found[arm].append(one := measured(lab, arm))
            last = f"checkpoint-*-{ITERATIONS}.pt"
            kept = [
                max(
                    (root(pids(lab)[h]) / CHECKPOINTS).rglob(last),
                    key=lambda p: p.stat().st_mtime_ns,
                )
                for h in HOSTS
            ]
            alike &= len({state_hash(torch, path, ("parameters",)) for path in kept}) == 1
            right[arm].append(accuracy(torch, kept[0]))
            spent = one.took_ms(WARM)
            bytes_ = one.sent(WARM, ITERATIONS - 1, UDP_BYTES if "datagrams" in arm else TCP_BYTES)
            print(
                f"  {arm:<18} p50 {statistics.median(spent):6.0f}  p99 {percentile(spent, 0.99):6.0f}  worst {max(spent):6.0f} ms,"
                f" {bytes_:8.0f} bytes, accuracy {right[arm][-1]:.2f} %",
                flush=True,
            )
        lab.call("down", "--yes")
    lossy, clean = (list(ARMS)[:2], list(ARMS)[2:4])

    took = {arm: [one.took_ms(WARM) for one in runs] for arm, runs in found.items()}
    tails = ratio(took[lossy[0]], took[lossy[1]], lambda values: percentile(values, 0.99))
    same = ratio(took[clean[0]], took[clean[1]])
    points = {arm: statistics.fmean(values) for arm, values in right.items()}
    apart = max(abs(points[arm] - points[lossy[0]]) for arm in (lossy[1], clean[1]))
    lost = max(
        value
        for arm in (lossy[1], clean[1])
        for one in found[arm]
        for value in one.values("lost_share", 0)
    )
    worst = {
        arm: round(statistics.median(percentile(values, 0.99) for values in runs))
        for arm, runs in took.items()
    }
    print(
        f"  p99 with losses {tails}, medians without {same}; accuracy {apart:.2f} points apart; a sum lacks {lost:.4f}"
        f" at most; weights of all hosts alike: {alike}; load {os.getloadavg()[0]:.1f}"
    )
    return verdict(
        "datagrams",
        tails[0],
        "x p99",
        TAIL,
        "at most",
        also=abs(same[0] - 1) <= ALIKE and apart <= POINTS and lost <= BOUND and alike,
        interval=tails[1:],
        rounds=rounds,
        without_loss=same,
        p99_ms=worst,
        accuracy={arm: round(value, 2) for arm, value in points.items()},
        points_apart=round(apart, 2),
        most_lost=lost,
        weights_alike=alike,
        label="native",
    )


if __name__ == "__main__":
    sys.exit(main())
