"""Follow the journals of a lab's newest runs: existing points first, then new ones, within
bounds.
"""

from __future__ import annotations

import gzip
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from orchestrator.telemetry.lineprotocol import Point, parse
from orchestrator.telemetry.names import MEASUREMENTS
from orchestrator.telemetry.reader import is_declared, part_files
from orchestrator.telemetry.tail import JournalTail, Mark

RUNS = 12
"""Number of newest runs followed, in addition to those in `keep`."""
RECENT_BYTES = 4 << 20
"""Samples (counters of ports) are read back only from the last so many bytes of a journal: some
minutes of a lab.
"""
SAMPLED_RUNS = 3
"""Number of newest runs whose samples are read back; of the others only events are."""
PARTS_BACK = 2
"""Number of parts of a journal (64 MB each) before its last one from which events are read back."""
BATCHES = 8
"""Most batches read from one journal at a time, so that no other journal waits."""
SLOW_S = 0.5
"""Interval (s) of checks for a next part or a next run where a journal did not grow."""

_EVENTS = tuple(
    f"{name},".encode()
    for name, known in MEASUREMENTS.items()
    if known.events or name == "iteration"
)


class Journals:
    """The newest runs below `state_dir`. belongs: whether a run is one of the lab, called once for
    each.
    """

    def __init__(self, state_dir: Path, belongs: Callable[[str], bool]) -> None:
        self._runs = state_dir / "runs"
        self._belongs = belongs
        self._known: dict[str, bool] = {}
        self._tails: dict[str, JournalTail] = {}
        self._due: dict[str, float] = {}
        self._listed = -1.0
        self._stamp = -1
        self.keep: frozenset[str] = frozenset()
        self.unread = 0
        """Lines that could not be read because they were damaged on disk."""

    @property
    def followed(self) -> tuple[str, ...]:
        """The runs followed now, oldest first."""
        return tuple(sorted(self._tails))

    def take(self) -> Iterator[Point]:
        """The points added since the last call; for a new run, its existing points. Oldest run
        first.
        """
        now = time.monotonic()
        fresh = self._list(now)
        names = self.followed
        for run in names:
            tail = self._tails[run]
            if run in fresh:
                yield from self._back(
                    tail, samples=run in names[-SAMPLED_RUNS:] or run in self.keep
                )
            if self._grown(tail) or now >= self._due.get(run, 0.0):
                self._due[run] = now + SLOW_S
                yield from self._added(tail)

    def close(self) -> None:
        for tail in self._tails.values():
            tail.close()

    def _list(self, now: float) -> set[str]:
        """Find new runs and return them; drop those that are too old or gone."""
        try:
            stamp = self._runs.stat().st_mtime_ns
        except OSError:
            stamp = 0  # no run yet
        if (
            stamp == self._stamp
            and self.keep <= self._tails.keys()
            and now < self._listed + 4 * SLOW_S
        ):
            return set()
        self._stamp, self._listed = stamp, now
        names: list[str] = []
        with suppress(OSError):
            names = sorted((p.name for p in self._runs.iterdir()), reverse=True)
        wanted: set[str] = set()
        for name in names:
            if name in self.keep or (len(wanted) < RUNS and self._is_ours(name)):
                wanted.add(name)
        for name in self._tails.keys() - wanted:
            self._tails.pop(name).close()
            self._due.pop(name, None)
        fresh = wanted - self._tails.keys()
        self._tails |= {name: JournalTail(self._runs / name, Mark()) for name in fresh}
        return fresh

    def _is_ours(self, run: str) -> bool:
        if run not in self._known:
            self._known[run] = self._belongs(run)
        return self._known[run]

    def _grown(self, tail: JournalTail) -> bool:
        try:
            size = (tail.run_dir / "telemetry" / f"{tail.mark.part:03d}.lp").stat().st_size
        except OSError:
            return False
        return size > tail.mark.offset

    def _added(self, tail: JournalTail) -> Iterator[Point]:
        for _ in range(BATCHES):
            try:
                data = tail.take()
            # pruned or compressed between two reads: the next one finds the new state
            except (OSError, EOFError):
                return
            if not data:
                return
            tail.taken(data, 0)
            yield from self._points(data.splitlines())

    def _back(self, tail: JournalTail, *, samples: bool) -> Iterator[Point]:
        """The events of the last parts, and every point near the end; moves the tail to the
        position reached.
        """
        files = part_files(tail.run_dir)[-PARTS_BACK - 1 :]
        for path in files:
            try:
                data = (
                    gzip.decompress(path.read_bytes())
                    if path.suffix == ".gz"
                    else path.read_bytes()
                )
            except (OSError, EOFError):
                continue
            end = data.rfind(b"\n") + 1
            near = end  # up to here only events
            if samples and path == files[-1]:
                near = 0 if end <= RECENT_BYTES else data.find(b"\n", end - RECENT_BYTES) + 1
            yield from self._points(
                line for line in data[:near].splitlines() if line.startswith(_EVENTS)
            )
            yield from self._points(data[near:end].splitlines())
            tail.mark = Mark(part=int(path.name.split(".")[0]), offset=end)

    def _points(self, lines: Iterable[bytes]) -> Iterator[Point]:
        for line in lines:
            try:
                yield is_declared(parse(line.decode("utf-8")))
            except ValueError:
                self.unread += 1
