"""Two runs of an imagined lab, written by the real journal, with every declared field: so every
panel has something to show.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import sin
from pathlib import Path

from orchestrator.telemetry import MEASUREMENTS, Journal
from orchestrator.telemetry.lineprotocol import FieldValue

BEGIN_NS = 1_795_000_000_000_000_000
SECOND = 1_000_000_000
RUN_S = 60
RUNS = ("2026-11-21-0001", "2026-11-21-0002")
END_NS = BEGIN_NS + len(RUNS) * RUN_S * SECOND
DEVICES = (
    ("ocs1", "ocs", "polatis-scpi"),
    ("ocs2", "ocs", "calient-tl1"),
    ("robot1", "robot", "rome-cli"),
    ("wss1", "wss", "waveshaper-http"),
)
SIZES = (("bytes", 1), ("pkts", 1500))
HOSTS = tuple(f"gpu{n:02d}" for n in range(1, 7))


@dataclass
class Stopped:
    """Clocks that stand where they are put."""

    now: int

    def monotonic_ns(self) -> int:
        return self.now

    def time_ns(self) -> int:
        return self.now


def write(folder: Path) -> list[Path]:
    """Write the journals below `folder` and return the directories of the runs."""
    made = []
    for index, run in enumerate(RUNS):
        begin = BEGIN_NS + index * RUN_S * SECOND
        with Journal(folder / run, run, "imagined", clock=Stopped(begin)) as journal:
            for at, measurement, tags, fields in points(index, run):
                journal.point(measurement, tags, fields, begin + at)
        made.append(folder / run)
    return made


Wanted = tuple[int, str, dict[str, str], dict[str, FieldValue]]


def points(index: int, run: str) -> Iterator[Wanted]:
    """All points of one run: (offset in ns, measurement, tags, fields)."""
    yield from moves(index, run)
    yield from samples(index)
    yield from steps(index)
    yield from ring_changes(run)
    yield from slots()
    yield from looks()
    for n, mode in enumerate(("drained", "sending", "held")):
        figures: dict[str, FieldValue] = {
            "asked_ms": 0.0,
            "dark_ms": 55.0,
            "lost_ms": 60.0 + n,
            "usual_ms": 4.0,
        }
        yield (
            n * SECOND,
            "stall",
            {"mode": mode},
            {"link": "gpu01:p1--gpu02:p1", "devices": "ocs1", **figures},
        )


def ring_changes(run: str) -> Iterator[Wanted]:
    """At each reconfiguration the job turns; in the one that fails it keeps its rings."""
    for n in range(10):
        at, last = (3 + 5 * n) * SECOND, n == 9
        parts: dict[str, FieldValue] = {
            "dark_ms": 60.0 + n,
            "commit_ms": 4.0,
            "boundary_ms": 32.0,
            "paused_ms": 96.0 + n,
        }
        parts |= {
            "before_ms": 43.0,
            "after_ms": 37.0,
            "worst_rank_ms": 70.0 + n,
            "after": 60 + 100 * n,
        }
        named: dict[str, FieldValue] = {
            "reconfig_id": f"{run}/{n + 1}",
            "move": n + 1,
            "prepare_ms": 380.0,
        }
        mode = ("send", "drain", "hold")[n % 3]
        yield (
            at,
            "ring_change",
            {"job": "ddp", "mode": mode, "ok": str(int(not last))},
            named if last else named | parts,
        )
        for rank, host in enumerate(HOSTS):
            reply: dict[str, FieldValue] = {
                "move": n + 1,
                "state": "void" if last else "changed",
                "iteration": 61 + 100 * n,
            }
            reply |= {"took_ms": 300.0, "held_ms": 70.0, "stall_ms": 60.0 + rank}
            yield at, "ring_change_rank", {"job": "ddp", "rank": str(rank), "host": host}, reply
            took: dict[str, FieldValue] = {
                "iter": 60 + 100 * n,
                "iter_ms": 43.0,
                "compute_ms": 30.0 + rank,
            }
            took |= {"exposed_ms": 13.0 - rank, "wait_ms": 3.0, "processor_ms": 0.5}
            took |= {"rwnd_limited_ms": 0.0, "retransmitted": 0, "refused": 0}
            yield at, "rank", {"job": "ddp", "rank": host}, took


def slots() -> Iterator[Wanted]:
    """Three slots in turn, half a second each; the one in the middle of the run ends late."""
    for n in range(2 * RUN_S - 2):
        at, late = n * SECOND // 2, 120.0 if n == RUN_S else 0.4 + 0.1 * (n % 5)
        shared: dict[str, FieldValue] = {
            "slot": n % 3,
            "cycle": n // 3,
            "late_ms": late,
            "lit_ms": 450.0,
            "duty": 0.89,
        }
        for k, device in enumerate(("ocs1", "wss1")):
            yield (
                at,
                "slot",
                {"plan": "ring_changes", "device": device},
                {**shared, "dark_ms": 50.0 + 2 * k + sin(n)},
            )
        for k, host in enumerate(HOSTS):
            seen: dict[str, FieldValue] = {
                "slot": n % 3,
                "edge_error_ms": 0.2 * k + sin(n),
                "dark_ms": 51.0,
                "lit_ms": 449.0,
            }
            yield at, "slot_host", {"plan": "ring_changes", "host": host}, seen


def looks() -> Iterator[Wanted]:
    """Twenty looks at a job's traffic: half of them change circuits, one fails."""
    for n in range(20):
        what = "failed" if n == 19 else "changed" if n % 2 else "skipped"
        gain = 1.02 if what == "skipped" else 1.5 + 0.05 * n
        why = {"changed": "", "skipped": "gain", "failed": "TimedOut"}[what]
        fields: dict[str, FieldValue] = {
            "iteration": 6 * n,
            "why": why,
            "skew": 4.0 + sin(n),
            "gain": gain,
            "now_ms": 90.0 * gain,
        }
        fields |= {"then_ms": 90.0, "planned_ms": 20.0}
        if what == "changed":
            fields |= {"change_ms": 64.0 + n, "dark_ms": 52.0, "exposed_ms": 0.1 * n, "moved": 34}
        yield 3 * n * SECOND, "adapt", {"plan": "moe", "what": what}, fields


def moves(index: int, run: str) -> Iterator[Wanted]:
    """Ten reconfigurations, the last of which fails, and what belongs to them."""
    names = [
        name.removesuffix("_ms") for name in MEASUREMENTS["reconfig"].fields if name.endswith("_ms")
    ]
    for n in range(10):
        at = (3 + 5 * n) * SECOND
        last = n == 9
        spans = {name: 1_000_000 * (k + 1) * (n + 2 + index) for k, name in enumerate(names)}
        named = {"reconfig_id": f"{run}/{n + 1}"}
        counts: dict[str, FieldValue] = {
            "seq": n + 1,
            "n_circuits": 12,
            "lost_bytes": 1500 * n,
            "value": 1,
        }
        times: dict[str, FieldValue] = {f"{k}_ns": v for k, v in spans.items()}
        times |= {f"{k}_ms": v / 1e6 for k, v in spans.items()}
        tags = {"job": "ddp", "trigger": "up", "policy": "drain", "ok": str(int(not last))}
        yield at, "reconfig", tags, {**named, **counts, **times}
        for level in ("map", "light", "link"):
            ok = int(not (last and level == "link"))
            fields: dict[str, FieldValue] = {
                "ok": ok,
                "passed": 47 + ok,
                "total": 48,
                "duration_ms": 3.5,
                "detail": "as seen",
            }
            yield at + SECOND, "verify", {"level": level}, {**named, **fields}
        drawn: dict[str, FieldValue] = {
            "ok": 1,
            "passed": 10_000,
            "total": 10_000,
            "of": 36_672,
            "seed": f"ab12cd34-{n}",
        }
        yield (
            at + SECOND,
            "verify",
            {"level": "forwarding"},
            {**named, **drawn, "duration_ms": 900.0, "detail": "pairs"},
        )
        for begin, phase in enumerate(("plan", "stage", "switch", "link", "verify")):
            took = 4_000_000 * (begin + 1) + n * 100_000
            yield (
                at + begin * took,
                "phase_begin",
                {"phase": phase},
                {"begin_ns": at + begin * took},
            )
            fields = {
                "begin_ns": at,
                "duration_ns": took,
                "duration_ms": took / 1e6,
                "ok": 1,
                "detail": "",
            }
            yield (
                at + begin * took,
                "phase",
                {"phase": phase, "kind": "run", "subject": ""},
                {**named, **fields},
            )
        for k, (device, kind, model) in enumerate(DEVICES):
            dark = 20_000_000 * (k + 1) + n * 1_000_000
            offsets: dict[str, FieldValue] = {
                "t_send_ns": 0,
                "t_ack_ns": 2_000_000,
                "t_dark_begin_ns": 1_000_000,
            }
            offsets |= {
                "t_dark_end_ns": 1_000_000 + dark,
                "t_power_ns": dark + 2_000_000,
                "t_link_up_ns": dark + 9_000_000,
            }
            offsets |= {
                "t_route_ns": dark + 12_000_000,
                "n_ports": 12,
                "writes": 2,
                "error": "-200, port in use" if last else "",
            }
            yield (
                at,
                "reconfig_device",
                {"device": device, "kind": kind, "model": model, "op": "change"},
                {**named, **offsets},
            )
            for step, phase in enumerate(("command", "dark", "settle", "up")):
                yield (
                    at + step * dark,
                    "device_phase",
                    {"device": device, "kind": kind},
                    {**named, "phase": phase},
                )


def samples(index: int) -> Iterator[Wanted]:
    """Counters, light, circuits, clocks and GPUs."""
    for tick in range(RUN_S * 10):
        at = tick * SECOND // 10
        moving = (tick - 30) % 50 < 3
        for k, host in enumerate(HOSTS):
            total = tick * 30_000_000 // 10
            counts: dict[str, FieldValue] = {
                "rx_bytes": total,
                "tx_bytes": total,
                "rx_pkts": total // 1500,
                "tx_pkts": total // 1500,
            }
            counts |= {
                "drops": tick // 50,
                "errors": tick // 20,
                "oper": int(not (moving or (k == 5 and tick > 550))),
            }
            yield at, "port", {"host": host, "port": "p1", "layer": "nic"}, counts
    for second in range(RUN_S):
        at = second * SECOND
        for k, host in enumerate(HOSTS):
            other = HOSTS[(k + 1 + index) % len(HOSTS)]
            loss = 1.2 + 0.1 * k + (0.01 * second if k == 2 else 0.0)
            path: dict[str, FieldValue] = {
                "circuit": f"{host}:p1->{other}:p1",
                "source": host,
                "target": other,
            }
            state = "removed" if k == 5 and second == RUN_S - 1 else "up"
            yield (
                at,
                "circuit",
                {"ocs": "ocs1", "id": str(k + 1)},
                {**path, "state": state, "mainstat": 240.0, "loss_db": loss},
            )
            light: dict[str, FieldValue] = {"rx_dbm": -1.0 - 0.1 * k, "tx_dbm": -2.2 - 0.1 * k}
            yield at, "optical", {"device": "ocs1", "port": str(k + 1)}, light
            yield (
                at,
                "clock",
                {"host": host},
                {"offset_ns": 1200 * (k - 2), "round_trip_ns": 400_000},
            )
            moved = second * 2_000_000_000
            busy: dict[str, FieldValue] = {
                "util": 92.0,
                "power_w": 410.0,
                "mem_bytes": 60 * 2**30,
                "nvlink_tx_bytes": moved,
            }
            yield (
                at,
                "gpu",
                {"host": host, "gpu": "0"},
                {**busy, "nvlink_rx_bytes": moved, "pcie_bytes_per_s": 1_200_000_000},
            )


def steps(index: int) -> Iterator[Wanted]:
    """Training steps of about 40 ms; the second run's topology is the better one."""
    for n in range(RUN_S * 20):
        at = n * SECOND // 20
        comm = (18.0 if index == 0 else 12.0) + sin(n)
        step: dict[str, FieldValue] = {
            "iter": n,
            "iter_ms": 25.0 + comm,
            "compute_ms": 25.0,
            "comm_ms": comm,
            "ring_groups": 2,
        }
        step |= {"samples_per_s": 12_000.0 / (25.0 + comm), "loss": 2.0 / (n + 1)}
        step |= {"save_ms": 11.0 + sin(n)} if n % 10 == 1 else {}
        yield at, "iteration", {"job": "ddp", "workload": "train"}, step
        if n % 5 == 0:
            one: dict[str, FieldValue] = {
                "size_bytes": 2**24,
                "iter": n,
                "iter_ms": comm,
                "exposed_comm_ms": comm / 3,
            }
            tags = {"job": "ddp", "op": "all_reduce", "algo": "ring"}
            sent: dict[str, FieldValue] = {
                "wire_bytes": 2**24,
                "wide_bytes": 2**22,
                "whole_bytes": 2**25,
                "resent_bytes": 2**12,
            }
            sent |= {"lost_share": 0.01 + 0.005 * sin(n), "loss_bound": 0.02}
            yield at, "collective", tags, {**one, **sent, "algbw_gbps": 0.9, "busbw_gbps": 1.65}
            asked: dict[str, FieldValue] = {
                "iter": n,
                "requests": 400,
                "hits": 240,
                "asked_bytes": 160 * 256,
            }
            yield at, "requests", {"job": "store"}, {**asked, "found_ms": 0.4, "found_p99_ms": 6.5}
            served: dict[str, FieldValue] = {"iter": n, "served": 64, "goodput": 0.9}
            served |= {"ttft_ms": 80.0, "ttft_p99_ms": 190.0, "kv_bytes": 2**25, "kv_ms": 3.5}
            yield at, "serving", {"job": "chat"}, {**served, "tpot_ms": 11.0, "tpot_p99_ms": 14.0}
            equal, fetched = int(n != 300), int(n == 320)
            seen: dict[str, FieldValue] = {
                "iter": n,
                "equal": equal,
                "fetched": fetched,
                "missing": 4096 * (1 - equal),
                "lost": n // 300,
            }
            places: dict[str, FieldValue] = {"host": "gpu06", "taps": "gpu01 gpu02"}
            yield (
                at,
                "shadow",
                {"job": "ddp"},
                {**seen, **places, "lag_ms": 4.2 + sin(n), "checkpoint": n - 5 * (1 - equal)},
            )
        if n % 20 == 0:
            stored: dict[str, FieldValue] = {
                "iter": n,
                "bytes": 3_200_000,
                "send_ms": 128.0 + sin(n),
            }
            stored |= {"unsent": n // 300, "rank": 0, "host": "gpu06", "over": "management"}
            yield at, "storage", {"job": "ddp"}, stored
            had: dict[str, FieldValue] = {
                "size": 16,
                "total": 64,
                "each_bytes": 8192,
                "lease_left_s": 60.0 - n // 20 % 15,
            }
            had |= {
                f"{what}_{direction}": n * size
                for what, size in (("packets", 1), ("bytes", 8224))
                for direction in ("in", "out")
            }
            adds: dict[str, FieldValue] = {"sums": n // 4, "duplicates": n // 100}
            keeps: dict[str, FieldValue] = {
                "gets": 10 * n,
                "hits": 7 * n,
                "stored": min(16, n),
                "evicted": n // 20,
            }
            for function, more in (("aggregate", adds), ("cache", keeps)):
                yield (
                    at,
                    "function",
                    {"job": "ddp", "segment": "ideal", "function": function},
                    had | more,
                )
