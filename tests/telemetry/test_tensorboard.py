"""`telemetry export --format tensorboard`: TensorBoard itself reads what a journal says of
iterations.
"""

from __future__ import annotations

import struct
import sys
from pathlib import Path
from typing import Any

import pytest

from orchestrator.telemetry import Journal, tensorboard
from tests.telemetry.test_telemetry_commands import Typed, room_for, typed

__all__ = ["typed"]


def trained(run_dir: Path, job: str = "ddp", count: int = 30, first: int = 0) -> None:
    """Iterations of a job, and a collective in each second of them, written in blocks as a job that
    is followed has them.
    """
    with Journal(run_dir, run_dir.name, "lab") as journal:
        for n in range(first, first + count):
            fields = {"iter": n, "iter_ms": 200.0 + n, "loss": 1 / (n + 1)}
            journal.point("iteration", {"job": job, "workload": "train"}, fields, n * 200_000_000)
        for n in range(first, first + count, 2):
            journal.point(
                "collective",
                {"job": job, "op": "all-reduce", "algo": "ring"},
                {"iter": n, "busbw_gbps": 1.5},
            )
        journal.point("port", {"host": "gpu1", "port": "p1", "layer": "nic"}, {"rx_bytes": 1})


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """What TensorBoard finds in a directory."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    found.Reload()
    return {
        tag: [(each.step, each.value) for each in found.Scalars(tag)]
        for tag in found.Tags()["scalars"]
    }


def test_tensorboard_reads_every_iteration_of_every_job_once_however_often_it_is_exported(
    typed: Typed,
) -> None:
    trained(typed.runs / "r1")
    trained(typed.runs / "r2", job="../up/job x")
    for _ in range(2):
        made = typed.json("export", "all", "--out", "tb", "--format", "tensorboard")["files"]
    assert made == {
        "tb/r1/ddp/events.out.tfevents.0.r1": 75,
        "tb/r2/_up_job_x/events.out.tfevents.0.r2": 75,
    }
    assert {str(p) for p in Path("tb").rglob("*") if p.is_file()} == made.keys(), (
        "nothing else, and nothing outside"
    )
    single = struct.Struct("f")  # TensorBoard's scalars are of single precision
    for folder in ("tb/r1/ddp", "tb/r2/_up_job_x"):
        found = scalars(Path(folder))
        assert found.keys() == {"iteration/iter_ms", "iteration/loss", "collective/busbw_gbps"}
        assert found["iteration/loss"] == [
            (n, single.unpack(single.pack(1 / (n + 1)))[0]) for n in range(30)
        ]
        assert found["collective/busbw_gbps"] == [(n, 1.5) for n in range(0, 30, 2)]
    trained(typed.runs / "r1", first=30)
    typed("export", "r1", "--out", "tb", "--format", "tensorboard")
    assert len(scalars(Path("tb/r1/ddp"))["iteration/loss"]) == 60


def test_a_full_disk_and_a_journal_without_a_job_leave_what_was_there(
    typed: Typed, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained(typed.runs / "r1")
    typed("export", "r1", "--out", "tb", "--format", "tensorboard")
    (file,) = (path for path in Path("tb").rglob("*") if path.is_file())
    before = file.read_bytes()
    export = tensorboard.export_tensorboard

    def cramped(*args: Any) -> dict[Path, int]:
        with room_for(1000):
            return export(*args)

    with monkeypatch.context() as patch:
        patch.setattr(tensorboard, "export_tensorboard", cramped)
        assert "choose another --out" in typed(
            "export", "r1", "--out", "tb", "--format", "tensorboard", code=2
        )
    assert file.read_bytes() == before and [p for p in Path("tb").rglob("*") if p.is_file()] == [
        file
    ]
    trained(typed.runs / "r3", count=0)
    assert "No job has iterations" in typed(
        "export", "r3", "--out", "tb", "--format", "tensorboard"
    )


def test_without_tensorboard_the_error_says_how_to_install_it(
    typed: Typed, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained(typed.runs / "r1")
    monkeypatch.setitem(sys.modules, "tensorboard.summary.writer.record_writer", None)
    assert "optical-testbed[tensorboard]" in typed(
        "export", "r1", "--out", "tb", "--format", "tensorboard", code=2
    )
