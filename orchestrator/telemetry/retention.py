"""Select the journals that may be deleted: of runs that ended long ago and that every destination
has.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from orchestrator.telemetry import tail
from orchestrator.telemetry.influx_api import InfluxTarget
from orchestrator.telemetry.reader import part_files


@dataclass(frozen=True, slots=True)
class Old:
    """A run's journal that is past its age. `why`: the reason to keep it anyway, empty if it may be
    deleted.
    """

    run: str
    folder: Path
    bytes: int
    why: str = ""


def old(
    runs: Path, older_s: float, keep: Collection[str], target: InfluxTarget | None
) -> list[Old]:
    """The journals whose last point is older than that (s), oldest first. keep: runs that are still
    needed.
    """
    now, found = time.time(), []
    for run_dir in sorted(runs.iterdir()) if runs.is_dir() else []:
        files = part_files(run_dir)
        if not files:
            continue
        stats = [path.stat() for path in files]
        age = now - max(s.st_mtime for s in stats)
        if age < older_s:
            continue
        why = "the active plan or job belongs to it" if run_dir.name in keep else ""
        if not why and target is not None and (left := _left(run_dir, target)):
            why = f"{left} bytes of it are not in InfluxDB yet"
        found.append(Old(run_dir.name, run_dir / "telemetry", sum(s.st_size for s in stats), why))
    return found


def prune(which: Collection[Old]) -> int:
    """Delete the journals that may be deleted; return the number of bytes freed."""
    removed = [each for each in which if not each.why]
    for each in removed:
        shutil.rmtree(each.folder)
    return sum(each.bytes for each in removed)


def _left(run_dir: Path, target: InfluxTarget) -> int:
    """Bytes that the target does not have yet, not counting a torn last line."""
    follower = tail.JournalTail(run_dir, tail.stored_mark(run_dir, target.key, target.name))
    try:
        return follower.behind() if follower.take() else 0
    finally:
        follower.close()
