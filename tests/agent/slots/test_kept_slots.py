"""What a daemon makes of the schedule that the one before it kept, where that is of another
version.
"""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from agent.slots import operations as slots
from agent.slots.operations import Slots

REQUEST = {
    "slots": [{"generation": g, "hold": None, "falling": [], "rising": []} for g in (1, 2)],
    "dwell_s": 0.4,
    "dark_window_s": 0.1,
    "guard_s": 0.0,
    "late_s": 0.1,
    "follow": "light",
    "kind": "clock",
}
KEPT = {"request": REQUEST, "count": 3, "lease_ns": 1 << 62, "edges": [0], "coarse": False}


def daemon(kept: object, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Slots:
    state = folder / "slots.json"
    state.write_text(json.dumps(kept))
    monkeypatch.setattr(slots, "STATE", str(state))
    generations: Any = SimpleNamespace(
        kept=set(),
        flush=SimpleNamespace(keep=False),
        addresses=lambda _: set(),
        active=1,
        pending=None,
        commit=lambda *_, **__: None,
    )
    server: Any = SimpleNamespace(
        generations=generations, interfaces={}, timer=lambda *_: 0, cancelled=set()
    )
    return Slots(server)


def test_a_schedule_that_was_kept_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = daemon(KEPT, tmp_path, monkeypatch)
    assert found.machine is not None and found.generations.kept == {1, 2}


@pytest.mark.parametrize(
    "change",
    [{"lease_ns": None}, {"edges": ["x"]}, {"count": "x"}, {"lease_ns": "x"}, {"request": []}],
)
def test_a_daemon_starts_whatever_another_version_kept(
    change: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = daemon(KEPT | change, tmp_path, monkeypatch)
    assert found.machine is None and found.request is None and not found.generations.kept


def test_a_daemon_starts_where_a_field_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = daemon({k: v for k, v in KEPT.items() if k != "lease_ns"}, tmp_path, monkeypatch)
    assert found.machine is None
