"""The run store: what it was told survives, and what is told about dead runs is the
truth."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sqlite3
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from optics import (
    CrossConnect,
    FrequencySlot,
    Locked,
    Missing,
    Port,
    SpectralRoute,
    StoreFailed,
    TestbedError,
)
from orchestrator.fabric.up_state import UpState
from orchestrator.store.generations import generation_owners, next_generation
from orchestrator.store.keys import lab_key, tenancy_key
from orchestrator.store.light import add_light, light_history
from orchestrator.store.options import RunOptions, UpOptions
from orchestrator.store.records import Belonging, LightPoint
from orchestrator.store.runs import named
from orchestrator.store.schema import SCHEMA
from orchestrator.store.store import Store
from tests.kit.jobs import spec

A = CrossConnect(Port("ocs1", "1"), Port("ocs1", "17"))
B = CrossConnect(Port("ocs3", "1.1.1"), Port("ocs3", "1.1.1"))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(tmp_path / "data" / "testbed.sqlite3", durable=False) as opened:
        yield opened


OPEN = """
import sys
from pathlib import Path
from orchestrator.store.store import Store
with Store(Path(sys.argv[1])) as store:
    print(len(store.history(limit=9)))
"""


@pytest.mark.parametrize("closed", [True, False])
def test_another_connection_in_this_process_takes_no_lock_from_the_first(
    store: Store, closed: bool
) -> None:
    """As two calls of the Python API have at once; else a command elsewhere would remove the log
    that the first one writes to.
    """

    def seen_elsewhere() -> int:
        argv = [sys.executable, "-c", OPEN, str(store.path)]
        return int(subprocess.run(argv, capture_output=True, text=True, check=True).stdout)

    with Store(store.path, durable=False) as second:
        if closed:
            second.close()
        assert seen_elsewhere() == 0
        store.new_run("up", "emulated")
        assert seen_elsewhere() == 1, "what was written since is not lost"


def test_only_its_owner_may_read_the_store(store: Store) -> None:
    store.new_run("up", "emulated")
    for path in store.path.parent.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    assert stat.S_IMODE(store.path.parent.stat().st_mode) == 0o700


def test_runs_are_numbered_by_the_day(store: Store) -> None:
    first, second = store.new_run("up", "emulated"), store.new_run("down", "emulated")
    assert re.fullmatch(r"\d{4}-\d\d-\d\d-0001", first.id) and second.id == f"{first.id[:-1]}2"


def test_a_run_is_found_by_its_ending_and_as_the_last(store: Store) -> None:
    first, second = (
        store.new_run("up", "emulated", plan_name="ring-12"),
        store.new_run("down", "emulated"),
    )
    found = store.get("0001")
    assert found is not None and found.id == first.id and found.plan_name == "ring-12"
    last = store.get("last")
    assert last is not None and last.id == second.id
    assert store.get("000") is None and store.get("") is None and store.get("nine") is None
    assert [r.id for r in store.history()] == [second.id, first.id]
    assert store.history("another lab") == []


def test_a_word_that_names_no_run_or_several_is_refused_with_the_latest(store: Store) -> None:
    with pytest.raises(Missing, match="there is no run 'last'; there are no runs yet"):
        named(store, "last")
    ids = [store.new_run("up", "emulated").id for _ in range(11)]
    with pytest.raises(
        Missing, match=f"there is no run '9999'; the latest are {', '.join(ids[:-6:-1])}$"
    ):
        named(store, "9999")
    with pytest.raises(Missing, match=f"2 runs end in '1', the latest are {ids[10]}, {ids[0]}$"):
        named(store, "1")
    assert named(store, ids[2][-4:]).id == ids[2]


def test_a_step_is_on_disk_before_its_effect(store: Store) -> None:
    run = store.new_run("up", "emulated")
    with run.step("device", "ocs1", "apply", intent=[A], inverse=[]) as step:
        with Store(store.path) as other:
            (seen,) = other.steps(run.id)
        assert seen.state == "doing" and seen.intent == [
            {
                "ingress": {"device": "ocs1", "label": "1"},
                "egress": {"device": "ocs1", "label": "17"},
            }
        ]
        step.result({"writes": 2})
    (after,) = store.steps(run.id)
    assert (after.state, after.result, after.error) == (
        "done",
        {"writes": 2},
        "",
    ) and after.seconds is not None


def test_a_failed_step_keeps_the_error(store: Store) -> None:
    run = store.new_run("up", "emulated")
    with pytest.raises(TestbedError), run.step("device", "ocs1", "apply"):
        raise TestbedError("ocs1 refused: -200, port in use")
    (seen,) = store.steps(run.id)
    assert (seen.state, seen.error) == ("failed", "TestbedError: ocs1 refused: -200, port in use")


def test_parallel_steps_begin_in_one_commit(store: Store) -> None:
    run = store.new_run("up", "emulated")
    steps = run.plan_all([("device", name, "apply", None, None) for name in ("ocs1", "ocs2")])
    assert [s.state for s in store.steps(run.id)] == ["planned", "planned"]
    run.begin_all(steps)
    assert [s.state for s in store.steps(run.id)] == ["doing", "doing"]
    steps[1].end()
    steps[0].end("the device was silent")
    assert [(s.state, s.error) for s in store.steps(run.id)] == [
        ("failed", "the device was silent"),
        ("done", ""),
    ]


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (None, "ok", 0),
        (Locked("locked by ann"), "failed", 4),
        (RuntimeError("a fault"), "failed", 1),
        (KeyboardInterrupt(), "interrupted", 130),
    ],
)
def test_a_run_ends_with_its_status_whatever_leaves_it(
    store: Store, error: BaseException | None, status: str, code: int
) -> None:
    try:
        with store.new_run("up", "emulated"):
            if error is not None:
                raise error
    except BaseException as caught:
        assert caught is error
    record = store.get("last")
    assert (
        record is not None
        and (record.status, record.exit_code) == (status, code)
        and record.ended is not None
    )


def test_what_is_ours_is_remembered_per_lab(store: Store) -> None:
    store.own("emulated", "r", [A, B])
    store.own("emulated", "r", [A])
    assert store.owned("emulated") == {A, B} and store.owned("other") == frozenset()
    store.disown("emulated", [A])
    assert store.owned("emulated") == {B}


def test_the_current_plan_is_what_was_set_last(store: Store) -> None:
    assert store.current("emulated") is None
    for name, generation in (("ring", 3), ("torus", 4)):
        store.set_current(
            "emulated",
            "r",
            plan_name=name,
            plan_sha="s",
            plan_text="{}",
            up=UpState(),
            generation=generation,
        )
    current = store.current("emulated")
    assert current is not None and (current.plan_name, current.generation) == ("torus", 4)
    store.keep_current("emulated", replace(current, generation=5), "r")
    kept = store.current("emulated")
    assert kept is not None and kept == replace(current, generation=5, since=kept.since)
    store.clear_current("emulated")
    assert store.current("emulated") is None


def test_a_generation_is_never_given_twice(store: Store) -> None:
    given: list[int] = []

    def take() -> None:
        with Store(store.path, durable=False) as own:
            given.extend(next_generation(own, "emulated") for _ in range(20))

    threads = [threading.Thread(target=take) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(given) == list(range(1, 81)) and next_generation(store, "other") == 1


def test_two_runs_never_share_an_id(store: Store) -> None:
    runs: list[str] = []

    def begin() -> None:
        with Store(store.path, durable=False) as own:
            runs.extend(own.new_run("up", "emulated").id for _ in range(20))

    threads = [threading.Thread(target=begin) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(runs) == len(set(runs)) == 80


def test_jobs_are_kept_with_their_state(store: Store) -> None:
    store.set_job(
        store.add_job("emulated", "r", "ddp-mlp", spec("gpu01")),
        "failed",
        "rank 3 ended with 1",
        ended=True,
    )
    record = store.latest_job("emulated")
    assert record is not None and (record.name, record.state, record.spec) == (
        "ddp-mlp",
        "failed",
        spec("gpu01"),
    )
    assert record.ended is not None and store.latest_job("other") is None


def test_the_usual_time_of_a_phase_is_the_median_of_good_runs(store: Store) -> None:
    for seconds, status in ((1.0, "ok"), (9.0, "failed"), (2.0, "ok"), (3.0, "ok")):
        store.new_run("up", "emulated", inventory="inv").finish(
            status, summary={"phases": {"stage": seconds}}
        )
    assert (
        store.expected_seconds("inv", "up") == {"stage": 2.0}
        and store.expected_seconds("inv", "down") == {}
    )


def test_a_killed_writer_leaves_a_store_that_tells_what_may_have_happened(tmp_path: Path) -> None:
    path = tmp_path / "testbed.sqlite3"
    program = """
import sys, pathlib
from orchestrator.store.store import Store
store = Store(pathlib.Path(sys.argv[1]))
run = store.new_run("up", "emulated")
n = 0
while True:
    with run.step("device", f"ocs{n}", "apply"):
        print(n, flush=True)
    n += 1
"""
    writer = subprocess.Popen(
        [sys.executable, "-c", program, str(path)], stdout=subprocess.PIPE, text=True
    )
    assert writer.stdout is not None
    begun = -1
    for line in writer.stdout:
        begun = int(line)
        if begun == 20:
            writer.send_signal(signal.SIGKILL)
    writer.stdout.close()
    writer.wait()
    with Store(path) as store:
        record = store.get("last")
        assert record is not None and record.status == "died"
        states = [s.state for s in store.steps(record.id)]
        # Everything told is there; at most the last two are open (begun, and planned but not
        # begun).
        assert len(states) >= begun + 1 >= 21
        assert set(states[:begun]) == {"done"} and set(states[begun + 1 :]) <= {"planned", "doing"}
        assert next_generation(store, "emulated") == 1


def test_a_run_of_this_process_is_running_and_of_a_reused_pid_is_dead(store: Store) -> None:
    run = store.new_run("up", "emulated")
    alive = store.get(run.id)
    assert alive is not None and alive.status == "running"
    with sqlite3.connect(store.path) as db:
        db.execute("UPDATE runs SET process='another life'")
    db.close()
    dead = store.get(run.id)
    assert dead is not None and dead.status == "died"


def test_a_file_that_is_no_store_is_named_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "testbed.sqlite3"
    path.write_bytes(b"these are notes, not a database\n" * 200)
    with pytest.raises(StoreFailed, match=re.escape(f"{path} is damaged or not a store")) as caught:
        Store(path)
    assert "testbed doctor --store" in caught.value.hint and path.read_bytes().startswith(
        b"these are notes"
    )


def test_a_store_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "testbed.sqlite3"
    Store(path).close()
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA user_version=99")
    db.close()
    with pytest.raises(StoreFailed, match="newer testbed") as caught:
        Store(path)
    assert "leave it where it is" in caught.value.hint


@pytest.mark.parametrize("version", range(1, SCHEMA))
def test_a_store_of_an_older_version_is_refused_with_a_way_on_and_stays_as_it_is(
    tmp_path: Path, version: int
) -> None:
    path = tmp_path / "testbed.sqlite3"
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE runs(id TEXT PRIMARY KEY)")
        db.execute(f"PRAGMA user_version={version}")
    db.close()
    with pytest.raises(
        StoreFailed, match=f"an older testbed \\(schema {version}, this one uses {SCHEMA}\\)"
    ) as caught:
        Store(path)
    assert f"mv {path} {path}.old" in caught.value.hint and "up --adopt" in caught.value.hint
    with sqlite3.connect(path) as db:
        tables = db.execute("SELECT name FROM sqlite_master WHERE type='table'").fetchall()
        assert tables == [("runs",)] and db.execute("PRAGMA user_version").fetchone() == (version,)
    db.close()


def test_a_lab_is_known_by_its_devices_not_by_where_its_files_are() -> None:
    assert (
        lab_key("emulated", ["b", "a"])
        == lab_key("emulated", ["a", "b"])
        != lab_key("emulated", ["a", "c"])
    )
    assert os.sep not in lab_key("../lab one", ["a"])


R = SpectralRoute(Port("wss1", "in"), Port("wss1", "3"), FrequencySlot.flexgrid(-280, 4), 2.5)


def test_a_spectral_route_is_ours_with_its_slot_and_its_last_attenuation(store: Store) -> None:
    run = store.new_run("up", "lab")
    other = SpectralRoute(R.ingress, R.egress, FrequencySlot.flexgrid(-272, 4))
    store.own("lab", run.id, [A, R, other])
    assert store.owned("lab") == {A, R, other}
    weaker = replace(R, attenuation_db=4.0)
    store.own("lab", run.id, [weaker])
    assert store.owned("lab") == {A, weaker, other}
    store.disown("lab", [R], by=run.id)
    assert store.owned("lab") == {A, other}


def test_what_is_up_belongs_to_an_owner_and_others_can_be_told_whose_it_is(store: Store) -> None:
    ann, bob = tenancy_key("lab", "ann"), tenancy_key("lab", "bob")
    run = store.new_run("up", "lab", plan_name="ring-6", owner="ann")
    store.own(ann, run.id, [A])
    store.set_current(
        ann, run.id, plan_name="ring-6", plan_sha="s", plan_text="{}", up=UpState(), generation=1
    )
    assert store.owned(bob) == frozenset() and store.current(bob) is None
    assert (
        store.owners("lab") == {A: Belonging("ann", run.id, "ring-6")} and store.owners("la") == {}
    )
    assert str(store.owners("lab")[A]) == f"ann (ring-6, run {run.id})"
    assert list(store.currents("lab")) == ["ann"]
    assert (
        next_generation(store, "lab", "ann", run.id) == 1
        and next_generation(store, "lab", "bob", "") == 2
    )
    assert {number: whose.owner for number, whose in generation_owners(store, "lab").items()} == {
        1: "ann",
        2: "bob",
    }


def test_tokens_of_a_lab_only_grow(store: Store) -> None:
    tokens = [store.new_run("up", "lab").token for _ in range(3)]
    assert tokens == sorted(set(tokens))


def test_a_new_stores_tokens_are_higher_than_a_lost_ones(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.time", lambda: 1_800_000_000.0)
    for _ in range(5):
        last = store.new_run("up", "lab").token
    monkeypatch.setattr("time.time", lambda: 1_800_000_060.0)
    with Store(tmp_path / "new" / "testbed.sqlite3", durable=False) as new:
        assert new.new_run("up", "lab").token > last


def test_what_a_run_found_and_wanted_is_on_disk_with_its_options(store: Store) -> None:
    run = store.new_run("up", "lab", options=RunOptions(UpOptions(launch_job=False), resumes="r"))
    assert store.journalled(run.id) == (None, None)
    run.found({"settings": [A]}, {"settings": [B]})
    with Store(store.path) as other:
        (before, target), record = other.journalled(run.id), other.get(run.id)
    assert before != target and before is not None
    assert (
        record is not None
        and record.begun
        and record.options == RunOptions(UpOptions(launch_job=False), resumes="r")
    )


def test_a_step_of_a_fenced_run_begins_only_while_the_fence_lets_it(store: Store) -> None:
    run = store.new_run("up", "lab")
    steps = run.plan_all([("device", name, "apply", None, None) for name in ("ocs1", "ocs2")])

    def stolen(db: sqlite3.Connection) -> None:
        raise Locked("bob took the lab")

    run.fence(stolen)
    with pytest.raises(Locked, match="bob"):
        run.begin_all(steps)
    assert [s.state for s in store.steps(run.id)] == ["planned", "planned"]
    other = store.new_run("up", "lab")
    with other.step("device", "ocs1", "apply"):
        pass


def test_a_run_that_stopped_on_its_way_is_unfinished_until_another_put_it_right(
    store: Store,
) -> None:
    failed, harmless, good = (store.new_run("up", "lab", owner="ann") for _ in range(3))
    failed.found({}, {})
    failed.finish("failed", 7)
    harmless.finish("failed", 5)
    good.found({}, {})
    good.finish("ok")
    assert [r.id for r in store.unfinished("lab", "ann")] == [failed.id] and store.unfinished(
        "lab", "bob"
    ) == []
    store.resolve([failed.id], good.id)
    assert store.unfinished("lab", "ann") == []
    record = store.get(failed.id)
    assert record is not None and record.resolved_by == good.id


def test_an_interrupted_step_says_so(store: Store) -> None:
    run = store.new_run("up", "lab")
    with pytest.raises(asyncio.CancelledError), run.step("host", "all", "stage"):
        raise asyncio.CancelledError
    (seen,) = store.steps(run.id)
    assert (seen.state, seen.error) == ("failed", "interrupted")


def test_how_long_a_run_took_does_not_depend_on_the_wall_clock(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = store.new_run("up", "lab")
    wall = time.time()
    monkeypatch.setattr(time, "time", lambda: wall - 3600.0)  # somebody set the clock back an hour
    with run.step("host", "all", "stage"):
        pass
    run.finish("ok")
    record, (step,) = store.get(run.id), store.steps(run.id)
    assert record is not None and record.seconds is not None and 0 <= record.seconds < 3600
    assert step.seconds is not None and 0 <= step.seconds < 3600


def test_measured_light_is_kept_over_runs_oldest_first(store: Store) -> None:
    late, early = (LightPoint("a->b", "ocs1:1->17", at, -1.0, -2.5, 1.5) for at in (20.0, 10.0))
    add_light(store, "lab", "r2", [late])
    add_light(store, "lab", "", [early])
    assert (
        light_history(store, "lab") == [early, replace(late, run="r2")]
        and light_history(store, "other") == []
    )


def test_what_came_last_is_told_by_no_clock(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """S14: somebody sets the wall clock back between two runs."""
    first = store.new_run("up", "lab", user="ann")
    first.found({}, {})
    first.finish("failed")
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now - 7200.0)
    second = store.new_run("up", "lab", user="ann")
    second.found({}, {})
    second.finish("failed")
    assert [run.id for run in store.history("lab")] == [second.id, first.id]
    assert [run.id for run in store.unfinished("lab", "ann")] == [second.id, first.id]
    assert (last := store.get("last")) is not None and last.id == second.id


def test_who_lost_the_lab_says_nothing_of_it_any_more(store: Store) -> None:
    """S11: a process that slept between its last step and its last word finds that the lab is
    somebody else's.
    """

    def ended(db: sqlite3.Connection) -> None:
        raise Locked("ended")

    mine = tenancy_key("lab", "ann")
    newer, old = store.new_run("up", "lab", user="ann"), store.new_run("up", "lab", user="ann")
    texts = {"plan_sha": "", "plan_text": "", "up": UpState(), "generation": 2}
    store.set_current(mine, newer.id, plan_name="new", **texts)  # type: ignore[arg-type]
    old.fence(ended)
    with pytest.raises(Locked):
        store.set_current(mine, old.id, plan_name="old", **texts)  # type: ignore[arg-type]
    with pytest.raises(Locked):
        store.set_current(mine, newer.id, plan_name="old", by=old.id, **texts)  # type: ignore[arg-type]
    with pytest.raises(Locked):
        store.clear_current(mine, old.id)
    with pytest.raises(Locked):
        store.own(mine, old.id, [A])
    current = store.current(mine)
    assert current is not None and current.plan_name == "new" and not store.owned(mine)


def test_a_job_launch_that_died_is_nothing_to_resume(store: Store) -> None:
    for verb in ("job launch", "confirm", "guard"):
        run = store.new_run(verb, "lab", user="ann")
        run.found({}, {})
        run.finish("failed")
    assert store.unfinished("lab", "ann") == []
