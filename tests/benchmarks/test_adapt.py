"""What the benchmark `adapt` takes from a measurement."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.adapt import Arm, take


@pytest.mark.parametrize("paired", [True, False])
def test_a_measurement_counts_for_losses_though_its_round_is_not_whole(
    tmp_path: Path, paired: bool
) -> None:
    (run := tmp_path / "run").mkdir()
    records = [
        {"iter": n, "t_wall_ns": n * 10**9, "iter_ms": 900.0, "comm_ms": 100.0} for n in (1, 2, 4)
    ]
    (run / "trainer.iterations.jsonl").write_text("\n".join(map(json.dumps, records)))
    take(arm := Arm(), "run", tmp_path, [(2.5, 2.7)], paired=paired)
    assert (arm.lost, len(arm.exposed)) == (1, 1)
    assert arm.comm_ms == [[100.0] * 3] * paired
