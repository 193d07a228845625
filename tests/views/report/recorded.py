"""Runs as the store and the journal keep them, written through both: what a report is made of."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from optics import HostPort, Link
from orchestrator.fabric.up_state import UpState
from orchestrator.settings import Settings
from orchestrator.store.keys import tenancy_key
from orchestrator.store.options import RunOptions, UpOptions
from orchestrator.store.records import CurrentPlan
from orchestrator.store.run import Run
from orchestrator.store.store import Store
from orchestrator.telemetry import Journal, environment
from tests.kit.jobs import spec

MS = 1_000_000
START_S = 1_795_000_000
DEVICES = {"ocs1": "polatis-scpi", "ocs2": "calient-tl1"}
HOSTS = ("gpu01", "gpu02", "gpu03", "gpu04")
RING = [
    ("gpu01:p1", "gpu02:p1"),
    ("gpu02:p2", "gpu03:p2"),
    ("gpu03:p1", "gpu04:p1"),
    ("gpu04:p2", "gpu01:p2"),
]
CROSSED = [
    ("gpu01:p1", "gpu03:p1"),
    ("gpu02:p2", "gpu03:p2"),
    ("gpu02:p1", "gpu04:p1"),
    ("gpu04:p2", "gpu01:p2"),
]
SWITCHES = {"ideal": [f"{host}:p3" for host in HOSTS], "tree": [f"{host}:p4" for host in HOSTS]}
KEY = "emulated-1f"


class HandClock:
    """Wall time and monotonic time of one imagined lab."""

    def __init__(self, now_ns: int = 0) -> None:
        self.now_ns = now_ns

    def monotonic_ns(self) -> int:
        return self.now_ns

    def time_ns(self) -> int:
        return START_S * 10**9 + self.now_ns


@dataclass
class Lab:
    """Writes runs of one imagined lab, one after the other."""

    settings: Settings
    store: Store
    clock: HandClock
    time_scale: float = 1.0

    def up(
        self,
        name: str,
        links: Sequence[tuple[str, str]],
        *,
        dark_ms: float = 50.0,
        status: str = "ok",
        message: str = "",
        moved: bool = True,
        job_ms: float | None = 40.0,
        iterations: int = 30,
        before: tuple[str, Sequence[tuple[str, str]]] | None = None,
        noted: bool = True,
        ports: bool = True,
        again: int = 0,
        lab: str = KEY,
        switches: Sequence[str] = (),
        found_job: bool = True,
        inventory: str = "/nowhere",
    ) -> str:
        """One `up`: its journal with two devices, the hosts, circuits, ports at 10 Hz around the
        move, and the job's iterations.
        """
        plan: dict[str, Any] = {
            "schema": "testbed.plan/1",
            "name": name,
            "links": [{"a": a, "b": b} for a, b in links],
        }
        if switches:
            plan["segments"] = [{"name": switch} for switch in switches]
        run = self.store.new_run(
            "up",
            lab,
            plan_name=name,
            plan_sha="ab" * 32,
            plan_text=json.dumps(plan),
            inventory=inventory,
            user="ann",
            options=RunOptions(UpOptions()),
        )
        self._found(run, before, lab, job=found_job)
        folder = self.settings.run_dir(run.id)
        with Journal(folder, run.id, "emulated", clock=self.clock) as journal:
            if noted:
                (folder / environment.FILE).write_text(json.dumps(self._environment()))
            begin = self.clock.now_ns
            journal.phase("observe", begin, begin + 300 * MS)
            journal.phase("stage", begin + 300 * MS, begin + 1300 * MS)
            sent = begin + 1400 * MS
            if ports:
                self._ports(journal, begin, sent, dark_ms)
            if moved:
                self._move(journal, run.id, links, sent, dark_ms)
            journal.phase(
                "switch",
                sent,
                sent + round(dark_ms * MS),
                ok=moved,
                detail="" if moved else "ocs1: no answer",
            )
            self.clock.now_ns = sent + round(dark_ms * MS) + 300 * MS
            for n in range(again):  # a run that goes on reconfiguring
                self.clock.now_ns += 500 * MS
                self._move(journal, run.id, links, self.clock.now_ns, dark_ms + n, n + 2)
                self.clock.now_ns += 700 * MS
            if job_ms is not None and moved:
                number = self.store.add_job(tenancy_key(lab, "ann"), run.id, "ddp", spec())
                self.store.set_job(number, "running")
                crossed = sent + round((dark_ms + 4) * MS)
                at = self.clock.now_ns
                if before is not None:
                    journal.phase("job", at, at + 900 * MS, detail="stopped ddp")
                    at += 900 * MS
                journal.phase("launch", at, at + 2000 * MS)
                self.clock.now_ns = at = at + 2000 * MS
                self.iterate(journal, iterations, job_ms)
                journal.phase("job", at, self.clock.now_ns, detail="ddp running")
                journal.phase("resume", crossed, at + round(5 * job_ms * MS))
        if status != "died":
            run.finish(
                status,
                0 if status == "ok" else 6,
                message,
                {"dark_ms": dark_ms, "dark_ms_expected": 45.0, "phases": {}},
            )
        return run.id

    def iterate(self, journal: Journal, count: int, ms: float, first: int = 0) -> None:
        """A job's iterations, the first of a launch five times as long."""
        for n in range(first, first + count):
            took = ms * 5 if n == 0 else ms + (n % 7) * 0.25
            journal.point(
                "iteration",
                {"job": "ddp", "workload": "train"},
                {"iter": n, "iter_ms": took, "comm_ms": took / 2, "loss": 2.0 + ms / 100},
                self.clock.now_ns,
            )
            self.clock.now_ns += round(took * MS)

    def ranks(self, run: str, slow: str = "gpu03") -> None:
        """60 iterations of each rank of the job that `run` launched; `slow` computes 90 ms from the
        31st on, the others 30.
        """
        with Journal(self.settings.run_dir(run), run, "emulated", clock=self.clock) as journal:
            for host in HOSTS:
                at = self.clock.now_ns
                for n in range(1, 61):
                    late = n > 30
                    compute = 90.0 if host == slow and late else 30.0
                    wait = 60.0 if late and host != slow else 0.5
                    times = {
                        "iter_ms": compute + wait + 10,
                        "compute_ms": compute,
                        "exposed_ms": wait + 10,
                        "wait_ms": wait,
                    }
                    journal.point("rank", {"job": "ddp", "rank": host}, {"iter": n, **times}, at)
                    at += round(times["iter_ms"] * MS)

    def carried(self, run: str) -> None:
        """100 exchanges of the job that `run` launched, by datagrams: a sixth of whole sums. Its
        shadow missed the 40th and had the 41st sent; two switches do something for it; every tenth
        iteration had to wait for a checkpoint."""
        with Journal(self.settings.run_dir(run), run, "emulated", clock=self.clock) as journal:
            job, at = {"job": "ddp"}, self.clock.now_ns
            for n in range(1, 101):
                at += 200 * MS
                seen = {
                    "iter": n,
                    "equal": int(n not in (40, 41)),
                    "fetched": int(n == 41),
                    "missing": 512 if n == 40 else 0,
                    "lost": 3,
                }
                places = {"host": "gpu07", "taps": "gpu01 gpu02"}
                journal.point(
                    "shadow",
                    job,
                    {**seen, **places, "lag_ms": 4.0 + n % 2, "checkpoint": n - (n == 40)},
                    at,
                )
                size = {
                    "size_bytes": 4_000_000,
                    "wire_bytes": 1_000_000,
                    "whole_bytes": 6_000_000,
                    "resent_bytes": 20_000,
                }
                lost = {"lost_share": 0.019 if n == 7 else 0.01, "loss_bound": 0.02}
                journal.point(
                    "collective",
                    {**job, "op": "all_reduce", "algo": "ring"},
                    {"iter": n, "iter_ms": 60.0, **size, **lost},
                    at,
                )
                step = {"iter": 1000 + n, "iter_ms": 150.0, "comm_ms": 50.0} | (
                    {"save_ms": 12.0} if n % 10 == 0 else {}
                )
                journal.point("iteration", {**job, "workload": "train"}, step, at)
                had = {
                    "size": 15,
                    "total": 64,
                    "each_bytes": 8192,
                    "packets_in": 40 * n,
                    "bytes_in": 9000 * n,
                    "bytes_out": 9000 * n,
                }
                journal.point(
                    "function",
                    {**job, "segment": "ideal", "function": "aggregate"},
                    {**had, "sums": n, "duplicates": 2},
                    at,
                )
                counted = {"gets": 100 * n, "hits": 70 * n, "stored": 15, "evicted": n}
                journal.point(
                    "function", {**job, "segment": "tree", "function": "cache"}, had | counted, at
                )

    def slots(self) -> str:
        """A run that turned three slots ten times, on two switches; the 6th of all ended 40 ms
        late. Its adapter looked twice.
        """
        run = self.store.new_run(
            "schedule",
            KEY,
            plan_name="ring_changes",
            plan_sha="cd" * 32,
            inventory="/nowhere",
            user="ann",
        )
        with Journal(
            self.settings.run_dir(run.id), run.id, "emulated", clock=self.clock
        ) as journal:
            for n in range(30):
                at = self.clock.now_ns
                of = {
                    "slot": n % 3,
                    "cycle": n // 3,
                    "late_ms": 40.0 if n == 6 else 1.0,
                    "lit_ms": 450.0,
                    "duty": 0.9,
                }
                for k, device in enumerate(("ocs1", "ocs2")):
                    journal.point(
                        "slot",
                        {"plan": "ring_changes", "device": device},
                        {**of, "dark_ms": 49.0 + k},
                        at,
                    )
                for k, host in enumerate(HOSTS):
                    edge = {
                        "slot": n % 3,
                        "edge_error_ms": -3.0 if k == 2 else 0.5,
                        "dark_ms": 48.0,
                        "lit_ms": 451.0,
                    }
                    journal.point("slot_host", {"plan": "ring_changes", "host": host}, edge, at)
                self.clock.now_ns += round(500 * MS)
            for what, why, gain in (("changed", "", 2.5), ("skipped", "gain", 1.02)):
                times = (
                    {
                        "change_ms": 64.0,
                        "dark_ms": 52.0,
                        "exposed_ms": 0.0,
                        "moved": 34,
                        "planned_ms": 20.0,
                    }
                    if not why
                    else {}
                )
                look = {
                    "iteration": 9,
                    "why": why,
                    "skew": 3.0,
                    "gain": gain,
                    "now_ms": 90.0 * gain,
                    "then_ms": 90.0,
                }
                journal.point(
                    "adapt",
                    {"plan": "ring_changes", "what": what},
                    {**look, **times},
                    self.clock.now_ns,
                )
        run.finish("ok")
        return run.id

    def adapt(self) -> str:
        """An adapter of a plan of four links, which climbed the ladder twice."""
        plan = json.dumps({"name": "adapted", "links": [{"a": a, "b": b} for a, b in RING]})
        run = self.store.new_run(
            "adapt",
            KEY,
            plan_name="adapted",
            plan_sha="cd" * 32,
            plan_text=plan,
            inventory="/nowhere",
            user="ann",
        )
        run.found({"current": _current(("adapted", RING))}, {})
        with Journal(
            self.settings.run_dir(run.id), run.id, "emulated", clock=self.clock
        ) as journal:
            look = {
                "iteration": 9,
                "why": "",
                "skew": 3.0,
                "gain": 2.0,
                "now_ms": 90.0,
                "then_ms": 45.0,
                "change_ms": 64.0,
            }
            journal.point("adapt", {"plan": "adapted", "what": "changed"}, look, self.clock.now_ns)
            for took in (40.0, 60.0):
                ran = {
                    "reconfig_id": "",
                    "ok": 1,
                    "duration_ms": took,
                    "detail": "4/4 circuits lit",
                    "passed": 4,
                    "total": 4,
                }
                journal.point("verify", {"level": "circuits"}, ran, self.clock.now_ns)
        run.finish("ok")
        return run.id

    def change(
        self,
        *,
        slow: bool = True,
        light: bool = True,
        ok: bool = True,
        mode: str = "send",
        status: str = "ok",
    ) -> str:
        """A change during which the job of the latest `up` goes on: 60 iterations of 212 ms, of
        which the ranks turn after the 31st while light moves for 60 ms; from there 172 ms. slow:
        that one takes 400 ms and a later one 500 ms, for no reason."""
        job = self.store.job(1)
        assert job is not None
        run = self.store.new_run(
            "up",
            KEY,
            plan_name="changed",
            plan_sha="cd" * 32,
            plan_text="{}",
            inventory="/nowhere",
            user="ann",
        )
        self._found(run, None, KEY)
        begin = at = self.clock.now_ns
        folder, tags = self.settings.run_dir(run.id), {"job": "ddp", "workload": "train"}
        sent = 0
        with Journal(
            self.settings.run_dir(job.run), job.run, "emulated", clock=self.clock
        ) as journal:
            for n in range(100, 160):
                took = 212.0 if n < 131 else 172.0
                if slow and n in (130, 150):
                    took = 400.0 if n == 130 else 500.0
                if n == 130:
                    sent = at + 50 * MS
                journal.point(
                    "iteration", tags, {"iter": n, "iter_ms": took, "comm_ms": took / 2}, at
                )
                at += round(took * MS)
        self.clock.now_ns = at + 200 * MS
        with Journal(folder, run.id, "emulated", clock=self.clock) as journal:
            (folder / environment.FILE).write_text(json.dumps(self._environment()))
            journal.phase(
                "prepare",
                begin,
                begin + 380 * MS,
                detail="4 ranks connected their next rings, the slowest in 340 ms",
            )
            if light:
                self._move(journal, run.id, RING, sent, 60.0)
            named = {"reconfig_id": f"{run.id}/1", "move": 7}
            figures: dict[str, Any] = {"prepare_ms": 380.0}
            if ok:
                figures |= {
                    "after": 130,
                    "paused_ms": 96.0,
                    "dark_ms": 60.0,
                    "commit_ms": 4.0,
                    "boundary_ms": 32.0,
                }
                figures |= {"before_ms": 212.0, "after_ms": 172.0, "worst_rank_ms": 71.0}
            journal.point(
                "ring_change",
                {"job": "ddp", "mode": mode, "ok": str(int(ok))},
                named | figures,
                sent,
            )
            for rank, host in enumerate(HOSTS):
                reply = {
                    "move": 7,
                    "state": "changed",
                    "iteration": 131,
                    "took_ms": 300.0 + rank,
                    "stall_ms": 68.0 + rank,
                }
                journal.point(
                    "ring_change_rank", {"job": "ddp", "rank": str(rank), "host": host}, reply, sent
                )
        run.finish(status, 0 if status == "ok" else 6, "", {"dark_ms": 60.0, "phases": {}})
        return run.id

    def keep(self, *, after: int = 30, first: int = 100, ms: float = 40.0) -> str:
        """A change that leaves the job of the latest `up` alone; it goes on with `after`
        iterations.
        """
        job = self.store.job(1)
        assert job is not None
        run = self.store.new_run(
            "up",
            KEY,
            plan_name="kept",
            plan_sha="cd" * 32,
            plan_text="{}",
            inventory="/nowhere",
            user="ann",
        )
        self._found(run, None, KEY)
        with Journal(
            self.settings.run_dir(job.run), job.run, "emulated", clock=self.clock
        ) as journal:
            self.iterate(journal, 30, ms, first)
            sent = self.clock.now_ns
            self.clock.now_ns += 300 * MS
            with Journal(
                self.settings.run_dir(run.id), run.id, "emulated", clock=self.clock
            ) as own:
                self._move(own, run.id, RING, sent, 60.0)
            self.iterate(journal, after, ms, first + 30)
        run.finish("ok", 0, "", {"dark_ms": 60.0, "phases": {}})
        return run.id

    def _found(
        self,
        run: Run,
        before: tuple[str, Sequence[tuple[str, str]]] | None,
        lab: str,
        *,
        job: bool = True,
    ) -> None:
        """What a run sees before it changes anything."""
        latest = self.store.latest_job(tenancy_key(lab, "ann"))
        number = latest.id if job and latest is not None and latest.ended is None else None
        seen = {
            "current": _current(before),
            "ours": {},
            "others": {},
            "generations": {},
            "lit": [],
            "job": number,
        }
        run.found(seen, {"hosts": list(HOSTS)})

    def _move(
        self,
        journal: Journal,
        run: str,
        links: Sequence[tuple[str, str]],
        sent: int,
        dark_ms: float,
        seq: int = 1,
    ) -> None:
        name = f"{run}/{seq}"
        spans = {
            "ack": 2.0,
            "command": 5.0,
            "dark": dark_ms,
            "link": 1.5,
            "route": 0.25,
            "total": dark_ms + 120.0,
        }
        fields: dict[str, Any] = {
            "reconfig_id": name,
            "seq": seq,
            "n_circuits": 2 * len(links),
            "value": 1,
        }
        fields |= {f"{name}_ms": ms for name, ms in spans.items()} | {
            f"{name}_ns": round(ms * MS) for name, ms in spans.items()
        }
        journal.point(
            "reconfig", {"job": "ddp", "trigger": "up", "policy": "drain", "ok": "1"}, fields, sent
        )
        for k, (device, model) in enumerate(DEVICES.items()):
            ends = {
                "t_send_ns": 0,
                "t_ack_ns": 4 * MS,
                "t_dark_begin_ns": 2 * MS,
                "t_dark_end_ns": round((dark_ms + 2 - 3 * k) * MS),
            }
            ends |= {
                "t_link_up_ns": round((dark_ms + 3) * MS),
                "t_route_ns": round((dark_ms + 3.5) * MS),
            }
            tags = {"device": device, "kind": "ocs", "model": model, "op": "change"}
            journal.point(
                "reconfig_device",
                tags,
                {"reconfig_id": name, "n_ports": 8, "writes": 2 + k, "error": "", **ends},
                sent + k * MS,
            )
            journal.phase(
                "switch",
                sent + k * MS,
                sent + ends["t_dark_end_ns"],
                kind="device",
                subject=device,
                reconfig_id=name,
            )
        for k, host in enumerate(HOSTS):
            light = sent + round((dark_ms + 2.5 + k / 10) * MS)
            journal.phase("light", sent, light, kind="host", subject=host, reconfig_id=name)
            journal.phase(
                "commit", light, light + MS // 4, kind="host", subject=host, reconfig_id=name
            )
        for level in ("map", "light", "link", "identity", "forwarding"):
            fields = {
                "reconfig_id": name,
                "ok": 1,
                "passed": 8,
                "total": 8,
                "duration_ms": 7.5,
                "detail": "8/8",
            }
            journal.point("verify", {"level": level}, fields, sent + 100 * MS)
        for k, (a, b) in enumerate(links):
            for source, target in ((a, b), (b, a)):
                fields = {
                    "circuit": f"{source}->{target}",
                    "source": source[:5],
                    "target": target[:5],
                    "state": "made",
                    "loss_db": 1.5 + k,
                }
                journal.point(
                    "circuit", {"ocs": "ocs1", "id": f"{source}"}, fields, sent + 110 * MS
                )

    def _ports(self, journal: Journal, begin: int, sent: int, dark_ms: float) -> None:
        """Every host sends 100 Mb/s at each port, nothing while it is dark, and 80 after."""
        back = sent + round((dark_ms + 3.5) * MS)
        for n in range(40):
            at = begin + n * 100 * MS
            lit_ns = min(at, sent) - begin
            after_ns = max(0, at - back)
            for host in HOSTS:
                for port in ("p1", "p2"):
                    sent_bytes = round(lit_ns * 100 / 8000 + after_ns * 80 / 8000)
                    tags = {"host": host, "port": port, "layer": "nic"}
                    journal.point(
                        "port",
                        tags,
                        {"tx_bytes": sent_bytes, "rx_bytes": sent_bytes, "oper": 1},
                        at,
                    )

    def _environment(self) -> dict[str, Any]:
        return {
            "command": ["testbed", "up", "--topology", "my plan.json"],
            "versions": {"optical-testbed": "0.1.0", "python": "3.11.7"},
            "machine": {"name": "bench", "cores": 2, "load_1min": 0.5},
            "emulated": True,
            "devices": {
                name: {"driver": model, "time_scale": self.time_scale}
                for name, model in DEVICES.items()
            },
            "segments": SWITCHES,
        }


def _current(before: tuple[str, Sequence[tuple[str, str]]] | None) -> dict[str, Any] | None:
    if before is None:
        return None
    name, links = before
    ends = [
        [HostPort(host, int(port)) for host, port in (a.split(":p"), b.split(":p"))]
        for a, b in links
    ]
    return CurrentPlan(
        "x", name, "", "", UpState(tuple(Link(a, b) for a, b in ends)), 1, 0.0
    ).to_json()
