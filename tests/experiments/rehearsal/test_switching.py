"""Switching times come from the journals of this lab's own changes."""

from __future__ import annotations

from pathlib import Path

import pytest

from optics import Change, CrossConnect, Port
from orchestrator.experiments.rehearsal.switching import switching
from orchestrator.store.keys import key_of
from orchestrator.store.store import Store
from orchestrator.telemetry.journal import Journal
from tests.experiments.rehearsal.test_findings import goal, link
from tests.experiments.rehearsal.test_twin import settings_of


def changed(
    store: Store,
    home: Path,
    key: str,
    device: str,
    dark_ms: int,
    *,
    model: str = "polatis-scpi",
    status: str = "ok",
) -> None:
    run = store.new_run("up", key)
    with Journal(settings_of(home, home).run_dir(run.id), run.id, "made") as journal:
        fields = {
            "reconfig_id": f"{run.id}/1",
            "t_send_ns": 0,
            "t_ack_ns": 5,
            "t_dark_begin_ns": 1_000_000,
        }
        fields |= {
            "t_dark_end_ns": (1 + dark_ms) * 1_000_000,
            "n_ports": 8,
            "writes": 1,
            "error": "",
        }
        tags = {"device": device, "kind": "ocs", "model": model, "op": "change"}
        journal.point("reconfig_device", tags, fields, 1_000)
    run.finish(status)


def test_the_journals_of_this_lab_and_these_devices_say_how_long_switching_takes(
    tmp_path: Path,
) -> None:
    lab, _ = goal([], [link(1, 2)])
    change = Change(
        "ocs1",
        add=frozenset(
            {CrossConnect(Port("ocs1", str(n)), Port("ocs1", str(100 + n))) for n in range(1, 5)}
        ),
    )
    settings = settings_of(tmp_path, tmp_path)
    with Store(tmp_path / "store.sqlite3", durable=False) as store:
        for dark_ms in (70, 80, 90):
            changed(store, tmp_path, key_of(lab), "ocs1", dark_ms)
        changed(store, tmp_path, key_of(lab), "ocs1", 900, status="rolled-back")
        changed(store, tmp_path, key_of(lab), "ocs1", 900, model="calient-tl1")
        changed(store, tmp_path, "another-lab", "ocs1", 900)
        found = switching(lab, store, settings, {"ocs1": change})
    assert (found["ocs1"].seconds, found["ocs1"].samples) == (pytest.approx(0.08), 3)
    assert str(found["ocs1"]) == "80 ms, measured in 3 changes"
    assert (found["ocs2"].seconds, found["ocs2"].samples) == (0.05, 0)
