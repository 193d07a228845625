"""Rates and times as series for a chart, bounded. Pure: times are wall milliseconds as the journal has them."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from dataclasses import dataclass, field

BUCKET_MS = 200.0
"""Length (ms) of the buckets in which the traffic of all ports is summed: two samples of each port at ten a second."""
WINDOW_MS = 600_000.0
"""Points older than this, relative to the newest, are dropped."""
GAP_MS = 3_000.0
"""Between samples further apart than this (ms) the rate is unknown: no view was sampling."""
SMOOTH_MS = 600.0
"""A port's rate is computed over its last so many milliseconds."""


@dataclass
class Series:
    """(ms, value) in order of time; `fresh` are those set since the last call that took them."""

    at: list[float] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    fresh: dict[float, float] = field(default_factory=dict)

    def set(self, at: float, value: float) -> None:
        """Set the value at a time, replacing an existing one."""
        where = bisect_left(self.at, at)
        if where < len(self.at) and self.at[where] == at:
            self.values[where] = value
        else:
            if self.at and at < self.at[-1] - WINDOW_MS:
                return
            self.at.insert(where, at)
            self.values.insert(where, value)
        self.fresh[at] = value
        if len(self.at) > 64 and self.at[0] < self.at[-1] - 1.2 * WINDOW_MS:
            cut = bisect_left(self.at, self.at[-1] - WINDOW_MS)
            del self.at[:cut], self.values[:cut]

    def all(self, until: float = float("inf")) -> list[list[float]]:
        """Everything up to a time."""
        return [[round(t, 3), round(v, 3)] for t, v in zip(self.at, self.values, strict=True) if t <= until]

    def taken(self, until: float = float("inf")) -> list[list[float]]:
        """The values set since the last call, up to a time."""
        found = sorted((t, v) for t, v in self.fresh.items() if t <= until)
        for t, _ in found:
            del self.fresh[t]
        return [[round(t, 3), round(v, 3)] for t, v in found]


@dataclass
class Traffic:
    """The total sending rate of all ports, in buckets: the mean over the sampled part of a bucket, Mb/s."""

    series: Series = field(default_factory=Series)
    newest: float = 0.0
    _open: dict[float, tuple[float, dict[str, float]]] = field(default_factory=dict)

    @property
    def until(self) -> float:
        """The last bucket that every port's sample has reached."""
        return self.newest - 1.5 * BUCKET_MS

    def add(self, port: str, begin: float, end: float, kilobits: float) -> None:
        """Add the bytes a port sent between two samples."""
        at = begin // BUCKET_MS * BUCKET_MS
        while at < end:
            part = min(end, at + BUCKET_MS) - max(begin, at)
            sent, covered = self._open.setdefault(at, (0.0, {}))
            covered[port] = covered.get(port, 0.0) + part
            sent += kilobits * part / (end - begin)
            self._open[at] = sent, covered
            self.series.set(at, sent / max(covered.values()))
            at += BUCKET_MS
        self.newest = max(self.newest, end)
        if len(self._open) > 4 * GAP_MS / BUCKET_MS:
            self._open = {t: found for t, found in self._open.items() if t > self.newest - 2 * GAP_MS}


@dataclass
class Counter:
    """One port's most recent counters: (ms, sent, received), bytes."""

    seen: deque[tuple[float, int, int]] = field(default_factory=lambda: deque(maxlen=64))

    def add(self, port: str, at: float, sent: int, received: int, total: Traffic) -> None:
        """Add a sample, and add to `total` the bytes sent since the previous one."""
        if self.seen:
            before, had, heard = self.seen[-1]
            if at <= before:
                return
            if sent < had or received < heard or at - before > GAP_MS:  # the port came up again, or no view was sampling
                self.seen.clear()
            else:
                total.add(port, before, at, (sent - had) * 8e-3)
        self.seen.append((at, sent, received))
        while self.seen[0][0] < at - SMOOTH_MS and len(self.seen) > 2:
            self.seen.popleft()

    def mbps(self, now: float) -> tuple[float, float] | None:
        """Rates sent and received (Mb/s), None if there are no recent samples."""
        if len(self.seen) < 2 or now - self.seen[-1][0] > GAP_MS:
            return None
        (t0, s0, r0), (t1, s1, r1) = self.seen[0], self.seen[-1]
        return ((s1 - s0) * 8e-3 / (t1 - t0), (r1 - r0) * 8e-3 / (t1 - t0))
