"""`run list --prune` as it is typed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from orchestrator.settings import load
from orchestrator.store.store import Store
from tests.telemetry.conftest import fill


def test_history_says_what_would_go_asks_and_removes(cli: Any, tmp_path: Path) -> None:
    with Store(tmp_path / "data" / "testbed.sqlite3", durable=False) as store:
        for _ in range(5):
            run = store.new_run("verify", "lab", user=load().user)
            run.finish("ok")
            fill(tmp_path / "state" / "runs" / run.id, 3)
    assert cli("run", "list", "--keep", "3").code == 2
    result = cli("run", "list", "--prune", "--keep", "3", "--dry-run")
    assert result.code == 0 and "Would remove 2 runs (" in result.out and "-0001 to " in result.out
    assert cli("run", "list", "--prune", "--keep", "3").code == 2, "there is no terminal to ask on"
    assert len(cli("run", "list", "--json").json["data"]["runs"]) == 5
    done = cli("run", "list", "--prune", "--keep", "3", "--yes", "--json").json["data"]
    assert [run[-4:] for run in done["removed"]] == ["0001", "0002"] and done["mb"] > 0
    assert len(cli("run", "list", "--json").json["data"]["runs"]) == 3
    assert len(list((tmp_path / "state" / "runs").iterdir())) == 3
    assert "Nothing to remove" in cli("run", "list", "--prune").out
