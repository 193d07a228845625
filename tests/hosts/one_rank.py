"""Jobs of one rank per host, whose requests are those of the releases that knew nothing else."""

from __future__ import annotations

from dataclasses import replace

from optics.plan import Job, RingGroup, Send, Traffic, Transfer
from orchestrator.inventory.lab import Lab
from tests.hosts.two_hosts import small_lab

HOSTS = ("gpu02", "gpu01")


def cases() -> dict[str, tuple[Job, Lab]]:
    """Jobs and labs by name: training, an all-reduce with NCCL, a replay."""
    lab = small_lab()
    rings = (HOSTS, HOSTS[::-1])
    rdma = replace(
        lab, hosts={n: replace(h, gpus=1, forwarding="npar-rdma") for n, h in lab.hosts.items()}
    )
    sends = (
        Send(1, "gpu02", "gpu01", "gpu02", 0.0, 1.0),
        Send(1, "gpu01", "gpu02", "gpu01", 0.0, 1.0),
    )
    traffic = Traffic(
        (RingGroup("data", 4002, rings), RingGroup("planned", 8, (HOSTS,), sends)),
        (Transfer("gpu01", "gpu02", 10, 1),),
        0.25,
    )
    return {
        "train": (
            Job(
                "ddp",
                "train",
                HOSTS,
                rings,
                {"iterations": 9, "bucket_mb": 2.5, "resume": False},
                {"X": "1"},
            ),
            lab,
        ),
        "allreduce": (Job("sum", "allreduce", HOSTS, rings), rdma),
        "replay": (Job("dlrm", "replay", HOSTS, (), {"iterations": 3}, traffic=traffic), lab),
    }
