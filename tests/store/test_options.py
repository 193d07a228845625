"""The options of a run: kept as one flat JSON object, and read back as they were."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from optics import StoreFailed
from orchestrator.fabric.up_state import SlotsMade
from orchestrator.store.options import NO_OPTIONS, PLAIN, RunOptions, UpOptions

MOVED = RunOptions(
    UpOptions(job="restart", avoid=("gpu01:p1",)),
    evict={"gpu02": "gpu05"},
    lost=("gpu02",),
    why="asked for",
)


@pytest.mark.parametrize(
    "options",
    [
        NO_OPTIONS,
        RunOptions(PLAIN),
        RunOptions(
            UpOptions(confirm_s=60.0, adopt=("owner:bob",), launch_job=False),
            slots=SlotsMade(2, (0, 2)),
            resumes="r1",
        ),
        MOVED,
        RunOptions(of="r1", unconfirmed="r2"),
        RunOptions(dark_s=(0.1, 0.5)),
    ],
)
def test_options_are_read_as_they_were_written(options: RunOptions) -> None:
    assert RunOptions.of_json(json.loads(json.dumps(options.to_json()))) == options


def test_all_that_up_was_asked_is_kept_and_of_the_rest_what_has_a_value() -> None:
    up = {
        "launch_job": True,
        "avoid": ["gpu01:p1"],
        "adopt": [],
        "relabel": False,
        "spares": [],
        "rollback": True,
    }
    assert MOVED.to_json() == up | {
        "job": "restart",
        "evict": {"gpu02": "gpu05"},
        "lost": ["gpu02"],
        "why": "asked for",
    }
    assert NO_OPTIONS.to_json() == {} and RunOptions(of="r1").to_json() == {"of": "r1"}


def test_what_concerns_the_command_alone_is_not_done_again_by_one_that_resumes_it() -> None:
    alone = RunOptions(UpOptions(expected="f00d", dry_run=True, rollback=False))
    assert RunOptions.of_json(alone.to_json()) == replace(alone, up=UpOptions(rollback=False))


@pytest.mark.parametrize("slots", [{}, 3, {"made": [1]}])
def test_options_that_this_version_did_not_write_are_refused(slots: object) -> None:
    with pytest.raises(StoreFailed, match="the store has a "):
        RunOptions.of_json({"slots": slots})  # type: ignore[dict-item]


def test_an_option_that_nobody_knows_is_refused_by_name() -> None:
    with pytest.raises(
        StoreFailed, match="RunOptions whose fields are not those of this version: launch_after"
    ):
        RunOptions.of_json({"of": "r1", "launch_after": True})
