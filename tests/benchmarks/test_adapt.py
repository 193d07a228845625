"""What the benchmark `adapt` takes from a job's records."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.adapt import seen


def test_a_missing_iteration_and_darkness_after_the_computing_are_seen(tmp_path: Path) -> None:
    (run := tmp_path / "run").mkdir()
    records = [{"iter": n, "t_wall_ns": n * 10**9, "iter_ms": 900.0} for n in (1, 2, 4)]
    (run / "trainer.iterations.jsonl").write_text("\n".join(map(json.dumps, records)))
    found = seen("run", tmp_path, [(1.05, 1.1), (2.1, 2.24), (4.5, 4.6)])
    assert (found.iterations, found.lost, len(found.dark_ms)) == (3, 1, 2)
    assert found.exposed == pytest.approx([0.0, 0.1]), "90 ms of 900 after 150 ms of computing"
