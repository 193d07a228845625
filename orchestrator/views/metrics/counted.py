"""What the journals of a lab's runs add up to: each is read once, then only what it has grown
by.
"""

from __future__ import annotations

import zlib
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from orchestrator.telemetry.lineprotocol import Point, parse
from orchestrator.telemetry.reader import is_declared, part_files
from orchestrator.telemetry.tail import JournalTail, Mark

DARK_S = (
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.06,
    0.075,
    0.1,
    0.15,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    60.0,
)
"""Upper limits (s) of the dark times' buckets: fine around what switches by mirrors take (25 to 75
ms), up to a robot's minute.
"""
MOST_JOBS = 100
"""Names of jobs that are shown, the latest: a name costs Prometheus three series, and a lab may
give each job a new one.
"""
_WANTED = (b"reconfig,", b"iteration,")


@dataclass
class JobCount:
    """The iterations of the jobs of one name. loss: of the latest one that has any, which ended at
    `at` (wall ns).
    """

    iterations: int = 0
    seconds: float = 0.0
    loss: float | None = None
    at: int = -1


@dataclass
class Counted:
    """The counts so far. dark: reconfigurations by bucket of `DARK_S`, then those beyond. They
    never become less while it lives.

    jobs: by name, the one that was read last at the end.
    unread: lines that are damaged, and reads of damaged files.
    """

    runs_dir: Path
    dark: list[int] = field(default_factory=lambda: [0] * (len(DARK_S) + 1))
    dark_seconds: float = 0.0
    jobs: dict[str, JobCount] = field(default_factory=dict)
    unread: int = 0
    _marks: dict[str, Mark] = field(default_factory=dict)
    _sizes: dict[str, tuple[tuple[str, int], ...]] = field(default_factory=dict)

    def read(self, runs: Iterable[str]) -> None:
        """Add what the journals of these runs have grown by; runs without a journal add nothing."""
        for run in runs:
            folder = self.runs_dir / run
            try:
                sizes = tuple((path.name, path.stat().st_size) for path in part_files(folder))
            except OSError:  # a part was compressed in between
                sizes = ()
            if sizes != self._sizes.get(run, ()):
                self._sizes[run] = sizes
                self._grown(run, folder)

    def _grown(self, run: str, folder: Path) -> None:
        tail = JournalTail(folder, self._marks.get(run, Mark()))
        try:
            while data := tail.take():
                for line in data.splitlines():
                    if line.startswith(_WANTED):
                        self._line(line)
                tail.taken(data, 0)
        except (OSError, EOFError, zlib.error):
            self.unread += 1
        finally:
            self._marks[run] = tail.mark
            tail.close()

    def _line(self, line: bytes) -> None:
        try:
            point = is_declared(parse(line.decode("utf-8")))
        except ValueError:
            self.unread += 1
            return
        if point.measurement == "iteration":
            self._iteration(point)
        elif "dark_ms" in point.fields:  # without one no light was moved
            seconds = float(point.fields["dark_ms"]) / 1e3
            self.dark[bisect_left(DARK_S, seconds)] += 1
            self.dark_seconds += seconds

    def _iteration(self, point: Point) -> None:
        if "iter_ms" not in point.fields:
            return
        job = self.jobs[point.tags["job"]] = self.jobs.pop(point.tags["job"], JobCount())
        job.iterations += 1
        job.seconds += float(point.fields["iter_ms"]) / 1e3
        if "loss" in point.fields and point.time_ns >= job.at:
            job.loss, job.at = float(point.fields["loss"]), point.time_ns
