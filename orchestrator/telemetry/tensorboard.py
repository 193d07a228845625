"""What a run's jobs did in their iterations, as event files of TensorBoard: one for each run and
job.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from optics.extras import extra
from orchestrator.files.atomic import atomic_write
from orchestrator.telemetry.lineprotocol import Point
from orchestrator.telemetry.names import MEASUREMENTS, OF_EXTENSIONS
from orchestrator.telemetry.reader import Recorded

BY_STEP: Mapping[str, tuple[str, ...]] = {
    name: tuple(
        field
        for field, known in MEASUREMENTS[name].fields.items()
        if field != "iter" and known.kind != "str"
    )
    for name in (
        "iteration",
        "collective",
        "requests",
        "serving",
        *(each.name for each in OF_EXTENSIONS if "iter" in each.fields),
    )
}
"""The fields of the measurements that count iterations (`iter`) and are of one job each: the scalar
`iteration/loss`, ...
"""
_UNFIT = re.compile(r"[^A-Za-z0-9._-]")


def export_tensorboard(
    runs: Sequence[Recorded], folder: Path, trouble: list[str] | None = None
) -> dict[Path, int]:
    """Write the event files of these runs' jobs, as FOLDER/RUN/JOB/events.out.tfevents.*; return
    each with its number of scalars.

    The step of a scalar is the job's iteration, its time that of the point. A file from an earlier
    export is replaced. Raises: Missing - TensorBoard is not installed. OSError - a file cannot be
    written.
    """
    event, record = _library()
    made: dict[Path, int] = {}
    folder.mkdir(parents=True, exist_ok=True)
    for run in runs:
        with ExitStack() as files:
            writers: dict[str, Callable[[bytes], None]] = {}
            for point in run.read(tuple(BY_STEP), trouble):
                if not isinstance(point.fields.get("iter"), int) or not (
                    scalars := dict(_scalars(point))
                ):
                    continue
                place = _place(folder, run.run_dir.name, point.tags["job"])
                if (write := writers.get(str(place))) is None:
                    place.parent.mkdir(parents=True, exist_ok=True)
                    file = files.enter_context(files.enter_context(atomic_write(place)).open("wb"))
                    write = writers[str(place)] = record(file).write
                    write(
                        event(
                            wall_time=point.time_ns / 1e9, file_version="brain.Event:2"
                        ).SerializeToString()
                    )
                    made[place] = 0
                summary = {
                    "value": [{"tag": tag, "simple_value": value} for tag, value in scalars.items()]
                }
                write(
                    event(
                        wall_time=point.time_ns / 1e9, step=point.fields["iter"], summary=summary
                    ).SerializeToString()
                )
                made[place] += len(scalars)
    return made


def _scalars(point: Point) -> Iterator[tuple[str, float]]:
    for field in BY_STEP[point.measurement]:
        value = point.fields.get(field)
        if isinstance(value, (int, float)):
            yield f"{point.measurement}/{field}", float(value)


def _place(folder: Path, run: str, job: str) -> Path:
    """The file of a job; the name of a job becomes that of one directory, whatever it contains."""
    name = _UNFIT.sub("_", job).lstrip(".")[:100] or "job"
    return folder / run / name / f"events.out.tfevents.0.{run}"


def _library() -> tuple[Any, Any]:
    """The classes of an event and of a file of them. Raises: Missing."""
    with extra("tensorboard", "event files"):
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.summary.writer.record_writer import RecordWriter
    return Event, RecordWriter
