"""A lab on paper: its inventory, a store with circuits that are up, journals to write into; no
device and no host answers.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from orchestrator.fabric.up_state import UpState
from orchestrator.plan.reader import read_plan
from orchestrator.plan.target import target
from orchestrator.session import load_lab
from orchestrator.settings import Settings, load
from orchestrator.store.keys import key_of, tenancy_of
from orchestrator.store.run import Run
from orchestrator.store.store import Store
from orchestrator.telemetry import Journal
from orchestrator.views.live import Watcher
from tests.kit.jobs import spec

ROOT = Path(__file__).resolve().parents[3]
PLAN = ROOT / "examples" / "topoopt-12.json"


@dataclass
class LabWriter:
    """Writes what runs write: the store as other processes do, journals of runs."""

    settings: Settings
    store: Store
    journals: list[Journal] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.lab = load_lab(self.settings.inventory)
        self.key, self.tenancy = key_of(self.lab), tenancy_of(self.lab, self.settings)

    @contextmanager
    def watcher(self) -> Iterator[Watcher]:
        """One that looks, with a connection to the store of its own, as another process has."""
        with (
            Store(self.settings.store_path, durable=False) as store,
            Watcher(self.settings, store) as watcher,
        ):
            yield watcher

    def run(self, verb: str = "up", plan: str = "topoopt-12") -> Run:
        return self.store.new_run(
            verb, self.key, plan_name=plan, user="ann", owner=self.settings.owner
        )

    def up(self) -> Run:
        """A plan is up: 48 circuits are held."""
        text = PLAN.read_text()
        plan = read_plan(text, PLAN.name, self.lab)
        goal = target(plan, self.lab, dict.fromkeys(self.lab.devices, frozenset()), ())
        run = self.run()
        self.store.own(self.tenancy, run.id, frozenset().union(*goal.wanted.values()))
        self.store.set_current(
            self.tenancy,
            run.id,
            plan_name="topoopt-12",
            plan_sha="x",
            plan_text=text,
            up=UpState(goal.links),
            generation=1,
        )
        run.finish("ok")
        return run

    def launched(self, run: Run, at_ms: float, name: str = "ddp") -> int:
        """A job that a run launched."""
        with patch("orchestrator.store.store.time.time", return_value=at_ms / 1e3):
            job = self.store.add_job(self.tenancy, run.id, name, spec())
        self.store.set_job(job, "running")
        return job

    def journal(self, run: Run, **more: Any) -> Journal:
        journal = Journal(self.settings.run_dir(run.id), run.id, self.lab.name, **more)
        self.journals.append(journal)
        return journal

    def move(self, run: Run, dark_ms: float = 64.0) -> Journal:
        """The journal of a change that moved light."""
        journal = self.journal(run)
        now = journal.now_ns()
        journal.phase("stage", now, now + 2_000_000_000, detail="528 routes")
        journal.phase("switch", now + 2_000_000_000, now + 2_100_000_000)
        journal.phase(
            "switch", now + 2_000_000_000, now + 2_070_000_000, kind="device", subject="ocs1"
        )
        tags = {"job": "ddp", "trigger": "up", "policy": "drain", "ok": "1"}
        journal.point(
            "reconfig", tags, {"n_circuits": 72, "dark_ms": dark_ms, "total_ms": 190.5}, now
        )
        return journal

    def train(
        self,
        run: Run,
        *,
        until_ms: float,
        first: int = 0,
        count: int = 40,
        slow: dict[int, float] | None = None,
    ) -> None:
        """Iterations of the job that a run launched, one after the other, 200 ms each but for those
        in `slow`.
        """
        took = {n: (slow or {}).get(n, 200.0 + n % 3) for n in range(first, first + count)}
        at = until_ms - sum(took.values())
        with Journal(self.settings.run_dir(run.id), run.id, self.lab.name) as journal:
            for number, ms in took.items():
                tags = {"job": "ddp", "workload": "train"}
                journal.point(
                    "iteration",
                    tags,
                    {"iter": number, "iter_ms": ms},
                    round(at * 1e6) - journal.anchor_ns,
                )
                at += ms

    def change_rings(
        self,
        run: Run,
        at_ms: float,
        *,
        after: int,
        dark_ms: float = 60.0,
        ok: bool = True,
        light: bool = True,
    ) -> None:
        """The journal of a change at which the job turned: removals 4 ms after its begin, then
        dark, then 4 ms to the commit.
        """
        with Journal(self.settings.run_dir(run.id), run.id, self.lab.name) as journal:
            begun, named = round(at_ms * 1e6) - journal.anchor_ns, {"reconfig_id": f"{run.id}/1"}
            if light:
                tags = {"job": "ddp", "trigger": "up", "policy": "drain", "ok": "1"}
                journal.point(
                    "reconfig",
                    tags,
                    {**named, "n_circuits": 48, "dark_ms": dark_ms, "total_ms": 900.0},
                    begun,
                )
                ends = {"t_dark_begin_ns": 4_000_000, "t_dark_end_ns": round((4 + dark_ms) * 1e6)}
                ends["t_route_ns"] = ends["t_dark_end_ns"] + 4_000_000
                for device in ("ocs1", "ocs2"):
                    tags = {
                        "device": device,
                        "kind": "ocs",
                        "model": "polatis-scpi",
                        "op": "change",
                    }
                    journal.point(
                        "reconfig_device", tags, {**named, **ends, "writes": 1, "error": ""}, begun
                    )
            paused = {
                "paused_ms": dark_ms + 36,
                "dark_ms": dark_ms,
                "commit_ms": 4.0,
                "boundary_ms": 32.0,
            }
            times = {
                "before_ms": 212.0,
                "after_ms": 172.0,
                "worst_rank_ms": 71.0,
                "prepare_ms": 380.0,
            }
            fields: dict[str, Any] = (
                {"move": 3, "after": after, **paused, **times}
                if ok
                else {"move": 3, "prepare_ms": 380.0}
            )
            journal.point(
                "ring_change",
                {"job": "ddp", "mode": "send", "ok": str(int(ok))},
                {**named, **fields},
                begun,
            )


@pytest.fixture
def lab_writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LabWriter]:
    inventory = tmp_path / "inventory"
    inventory.mkdir()
    # at an address where nobody listens, and no emulator's to start
    for name in ("hosts.yml", "devices.yml", "fibres.yml"):
        text = (
            (ROOT / "inventory" / "emulated" / name).read_text().replace("127.0.0.1", "127.9.9.9")
        )
        (inventory / name).write_text(
            text.replace("~/.local/state/testbed/emulated", str(tmp_path / "lab"))
        )
    for name in ("DATA", "STATE", "LOCK"):
        monkeypatch.setenv(f"TESTBED_{name}_DIR", str(tmp_path / name.lower()))
    monkeypatch.setenv("TESTBED_INVENTORY", str(inventory))
    settings = load()
    with Store(settings.store_path, durable=False) as store:
        found = LabWriter(settings, store)
        yield found
        for journal in found.journals:
            journal.close()
