"""Recoveries in the store: begun before any effect, within the budget, never twice, and seen after
the death of who began them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from optics import Locked, NotVerified
from orchestrator.store import recoveries as kept
from orchestrator.store.audit import Who, audit
from orchestrator.store.recoveries import Begun, Recovery, recoveries, recovering
from orchestrator.store.store import Store

LAB, KEY = "lab", "lab/ann"
WHO = Who("ann", "ann")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(tmp_path / "store.sqlite3", durable=False) as made:
        yield made


def begin(
    store: Store, job: int = 1, most: int = 9, who: Who = WHO
) -> AbstractContextManager[Begun]:
    def may(past: list[Recovery]) -> str:
        return "the budget is spent" if len(past) >= most else ""

    return recovering(
        store,
        LAB,
        KEY,
        who,
        job=job,
        name="mlp",
        action="restart",
        hosts=("gpu02",),
        why="gpu02: killed",
        may=may,
    )


def test_an_attempt_is_there_before_it_has_an_effect_and_says_how_it_ended(store: Store) -> None:
    with begin(store) as begun:
        (now,) = recoveries(store, KEY)
        assert (now.outcome, now.idle_s, now.hosts) == ("", 0.0, ("gpu02",)) and now.age_s < 60
        begun.by("2026-11-22-0007")
    (done,) = recoveries(store, KEY)
    assert (done.outcome, done.run) == ("ok", "2026-11-22-0007") and "because gpu02: killed" in str(
        done
    )
    assert [(one.what, one.subject) for one in audit(store, LAB)] == [
        ("recovered", "job mlp"),
        ("recovering", "job mlp"),
    ]
    assert not recoveries(store, "lab/bob")


def test_one_fault_is_acted_upon_once_and_a_failed_attempt_may_be_repeated(store: Store) -> None:
    with pytest.raises(NotVerified), begin(store):
        raise NotVerified("no iteration\nin time")
    (failed,) = recoveries(store, KEY)
    assert failed.outcome == "failed" and str(failed).startswith(
        "restart, failed: no iteration; because"
    )
    with begin(store), pytest.raises(Locked, match="goes on already"), begin(store, job=2):
        pass
    with pytest.raises(Locked, match="recovered already"), begin(store):
        pass
    assert len(recoveries(store, KEY)) == 2


def test_what_must_not_begin_leaves_no_trace(store: Store) -> None:
    for job in (1, 2):
        with begin(store, job):
            pass
    with pytest.raises(Locked, match="budget is spent"), begin(store, 3, most=2):
        pass
    assert len(recoveries(store, KEY)) == 2 and len(audit(store, LAB)) == 4


def test_an_attempt_whose_process_is_gone_has_died_and_counts(store: Store) -> None:
    class Ended(Who):
        process = "another boot/1"  # type: ignore[assignment]

    died = begin(store, who=Ended("ann", "ann", pid=2**22 + 1))
    died.__enter__()
    (found,) = recoveries(store, KEY)
    assert found.outcome == "died" and found.idle_s == pytest.approx(found.age_s, abs=0.1)
    with begin(store):  # the fault was not repaired
        pass
    died.__exit__(None, None, None)


def test_a_clock_that_is_set_neither_refills_the_budget_nor_blocks_it(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    with begin(store):
        pass
    wall = kept.time.time()
    for moved in (7200.0, -7200.0):
        monkeypatch.setattr(kept.time, "time", lambda moved=moved: wall + moved)
        (found,) = recoveries(store, KEY)
        assert found.age_s < 60 and found.idle_s < 60
    monkeypatch.setattr(kept, "boot_id", lambda: "after a restart")
    (found,) = recoveries(store, KEY)
    assert found.age_s == 0.0, "its wall clock says that it is still to come"
