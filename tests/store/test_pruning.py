"""Old runs are removed on demand: rows and folders, and never what something still needs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from optics import CrossConnect, Port
from orchestrator.fabric.up_state import UpState
from orchestrator.settings import Settings, load
from orchestrator.store.keys import tenancy_key
from orchestrator.store.options import RunOptions
from orchestrator.store.store import Store
from orchestrator.telemetry.influx_api import InfluxTarget
from orchestrator.verbs import prune as pruning
from orchestrator.verify import doctor_store
from tests.disk import room_for
from tests.kit.jobs import spec
from tests.telemetry.conftest import fill

KEY = tenancy_key("lab", "ann")


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    names = {
        f"TESTBED_{name}_DIR": str(tmp_path / name.lower()) for name in ("DATA", "STATE", "LOCK")
    }
    return replace(load(env=names, cwd=tmp_path), user="ann", owner="ann")


@pytest.fixture
def store(settings: Settings) -> Iterator[Store]:
    with Store(settings.store_path, durable=False) as opened:
        yield opened


def ran(
    store: Store,
    settings: Settings,
    verb: str = "up",
    *,
    status: str = "ok",
    begun: bool = True,
    **more: object,
) -> str:
    """One run that left a journal."""
    run = store.new_run(
        verb, "lab", user=str(more.pop("user", "ann")), owner="ann", options=RunOptions(**more)
    )
    if begun:
        run.found({}, {})
    with run.step("device", "ocs1", "apply"):
        pass
    run.finish(status)
    fill(settings.run_dir(run.id), 3)
    return run.id


def test_the_oldest_runs_go_with_their_steps_and_folders_and_the_newest_stay(
    store: Store, settings: Settings
) -> None:
    runs = [ran(store, settings) for _ in range(10)]
    found = pruning.forgettable(store, settings, 4, None)
    assert (
        [record.id for record in found.going] == runs[:6] and not found.staying and found.bytes > 0
    )
    pruning.forget(store, settings, found.going)
    assert [record.id for record in store.history()] == runs[:5:-1]
    assert not any(store.steps(run) or settings.run_dir(run).exists() for run in runs[:6])
    assert all(store.steps(run) and settings.run_dir(run).exists() for run in runs[6:])
    assert not pruning.forgettable(store, settings, 4, None).going
    assert store.new_run("up", "lab").id > runs[-1]


def test_what_is_up_half_done_or_needed_to_go_back_stays_however_old(
    store: Store, settings: Settings
) -> None:
    ran(store, settings)
    # half done; what was before it is where a rollback leads
    first = ran(store, settings, status="failed")
    second = ran(store, settings, resumes=first)
    store.resolve([first], second)
    up = ran(store, settings)
    store.set_current(
        KEY, up, plan_name="ring", plan_sha="", plan_text="{}", up=UpState(), generation=1
    )
    holds, launched, compared, dead = (ran(store, settings) for _ in range(4))
    store.own(KEY, holds, [CrossConnect(Port("ocs1", "1"), Port("ocs1", "17"))])
    store.add_job(KEY, launched, "ddp", spec())
    folder = settings.state_dir / "campaigns" / "a-b"
    folder.mkdir(parents=True)
    (folder / "campaign.json").write_text(json.dumps({"slots": [{"runs": [compared]}]}))
    store.write("UPDATE runs SET status='failed' WHERE id=?", (dead,))
    undone = ran(store, settings, "rollback", of=second)
    refused = [ran(store, settings, status="failed", begun=False) for _ in range(3)]
    found = pruning.forgettable(store, settings, 1, None)
    why = dict(found.staying)
    assert set(why) == {first, second, up, holds, launched, compared, dead, undone}, why
    assert (
        "current plan" in why[up]
        and "comparison a-b" in why[compared]
        and "unfinished" in why[dead]
    )
    assert [record.id for record in found.going][1:] == refused[:2]


def test_runs_of_others_in_a_shared_store_are_theirs(store: Store, settings: Settings) -> None:
    theirs = [ran(store, settings, user="bob") for _ in range(3)]
    mine = [ran(store, settings) for _ in range(3)]
    found = pruning.forgettable(store, settings, 1, None)
    assert [record.id for record in found.going] == mine[:2] and theirs


def test_journals_that_influxdb_has_not_yet_stay(store: Store, settings: Settings) -> None:
    runs = [ran(store, settings) for _ in range(3)]
    found = pruning.forgettable(store, settings, 1, InfluxTarget("http://127.0.0.1:1", "testbed"))
    assert (
        not found.going
        and [run for run, why in found.staying if "not in InfluxDB yet" in why] == runs[:2]
    )


def test_a_removal_that_was_interrupted_is_ended_by_the_next(
    store: Store, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = [ran(store, settings) for _ in range(3)]
    with room_for(0), pytest.raises(Exception, match=r"cannot be written|disk"):
        pruning.forget(store, settings, pruning.forgettable(store, settings, 1, None).going)
    found = pruning.forgettable(store, settings, 1, None)
    assert [record.id for record in found.going] == runs[:2]
    pruning.forget(store, settings, found.going)
    assert [record.id for record in store.history()] == runs[2:]


def test_doctor_tells_how_much_runs_take_and_from_when_on_to_remove_some(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    (settings.state_dir / "runs" / "r").mkdir(parents=True)
    assert (found := doctor_store._runs(settings)).state == "ok" and found.detail.startswith(
        "1 in "
    )
    monkeypatch.setattr("orchestrator.store.runs.MANY", 1)
    assert (
        found := doctor_store._runs(settings)
    ).state == "warn" and "testbed run list --prune --keep 200" in found.fix


def test_what_is_deleted_is_given_back_to_the_disk_unless_others_use_the_store(
    tmp_path: Path,
) -> None:
    path = tmp_path / "store" / "testbed.sqlite3"
    with Store(path, durable=False) as store, Store(path, durable=False) as other:
        for _ in range(40):
            store.new_run("up", "lab", plan_text="x" * 20_000).finish("ok")
        store.read("PRAGMA wal_checkpoint(TRUNCATE)")
        before, newest = path.stat().st_size, store.history()[0].id
        store.write("DELETE FROM runs WHERE id<>?", (newest,))
        with other.transaction():
            assert not store.shrink() and path.stat().st_size == before
        assert store.shrink() and path.stat().st_size < before / 5
        assert [run.id for run in other.history()] == [newest]
        store.new_run("up", "lab").finish("ok")
        assert [run.id for run in other.history()][1] == newest
