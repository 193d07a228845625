"""Rates and times as series for a chart, bounded. Pure: times are wall milliseconds as the journal
has them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from dataclasses import dataclass, field

BUCKET_MS = 200.0
"""Length (ms) of the buckets in which the traffic of all ports is summed: two samples of each port
at ten a second.
"""
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
        return [
            [round(t, 3), round(v, 3)]
            for t, v in zip(self.at, self.values, strict=True)
            if t <= until
        ]

    def taken(self, until: float = float("inf")) -> list[list[float]]:
        """The values set since the last call, up to a time."""
        found = sorted((t, v) for t, v in self.fresh.items() if t <= until)
        for t, _ in found:
            del self.fresh[t]
        return [[round(t, 3), round(v, 3)] for t, v in found]


@dataclass
class Traffic:
    """The total sending rate of all ports, in buckets: the mean over the sampled part of a bucket,
    Mb/s.

    Buckets are kept as long as their points: samples that a job's hosts kept come home host by
    host, minutes of each at once.
    """

    series: Series = field(default_factory=Series)
    newest: float = 0.0
    _buckets: dict[float, tuple[float, float]] = field(default_factory=dict)
    """By begin: kilobits sent, and the longest time (ms) that the samples of a port cover."""
    _reached: dict[str, float] = field(default_factory=dict)
    """Up to when (ms) each port was sampled."""
    _last: dict[tuple[str, bool], tuple[float, float]] = field(default_factory=dict)
    """The last bucket of each port, and how much of it (ms) its samples cover; those that came late
    on their own.
    """

    @property
    def until(self) -> float:
        """The last bucket that the samples of every port have reached; ports that are no longer
        sampled are not waited for.
        """
        now = [at for at in self._reached.values() if at > self.newest - GAP_MS]
        return min(now, default=0.0) - BUCKET_MS

    def add(
        self, port: str, begin: float, end: float, kilobits: float, *, late: bool = False
    ) -> None:
        """Add the bytes a port sent between two samples. late: newer ones of the port came
        before.
        """
        at = begin // BUCKET_MS * BUCKET_MS
        last, had = self._last.get((port, late), (at, 0.0))
        if not late and at > last + BUCKET_MS:
            self._last[port, True] = last, had  # what comes late goes on from there
        while at < end:
            part = min(end, at + BUCKET_MS) - max(begin, at)
            last, had = at, part + (had if at == last else 0.0)
            sent, covered = self._buckets.get(at, (0.0, 0.0))
            sent, covered = sent + kilobits * part / (end - begin), max(covered, had)
            self._buckets[at] = sent, covered
            self.series.set(at, sent / covered)
            at += BUCKET_MS
        self._last[port, late] = last, had
        self._reached[port] = max(end, self._reached.get(port, 0.0))
        self.newest = max(self.newest, end)
        if len(self._buckets) > 1.2 * WINDOW_MS / BUCKET_MS:
            self._buckets = {
                t: found for t, found in self._buckets.items() if t > self.newest - WINDOW_MS
            }


Sample = tuple[float, int, int]
"""When (ms), and how many bytes a port has sent and received."""


def _follows(before: Sample, sample: Sample) -> bool:
    """Whether a rate can be determined between two samples; not where the port came up again, or no
    view was sampling.
    """
    return sample[1] >= before[1] and sample[2] >= before[2] and 0 < sample[0] - before[0] <= GAP_MS


@dataclass
class Counter:
    """One port's most recent counters, and of which times its counters are known."""

    seen: deque[Sample] = field(default_factory=lambda: deque(maxlen=64))
    _since: float = 0.0
    """From when on (ms) the samples follow each other."""
    _late: deque[Sample] = field(default_factory=lambda: deque(maxlen=1))
    """The latest of samples that came after newer ones."""
    _late_since: float = 0.0
    _known: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=16))
    """Earlier times (ms) in which samples followed each other."""

    def add(self, port: str, at: float, sent: int, received: int, total: Traffic) -> None:
        """Add a sample, and add to `total` the bytes sent since the previous one."""
        sample = at, sent, received
        if self.seen and at <= self.seen[-1][0]:
            self._came_late(port, sample, total)
            return
        if self.seen and not _follows(self.seen[-1], sample):
            self._known.append((self._since, self.seen[-1][0]))
            self.seen.clear()
        if self.seen:
            before, had, _ = self.seen[-1]
            total.add(port, before, at, (sent - had) * 8e-3)
        else:
            self._since = at
        self.seen.append(sample)
        while self.seen[0][0] < at - SMOOTH_MS and len(self.seen) > 2:
            self.seen.popleft()

    def _came_late(self, port: str, sample: Sample, total: Traffic) -> None:
        """Add what was sent since the last sample that came late, as far as its buckets are not
        known yet.
        """
        before = self._late[-1] if self._late else None
        self._late.append(sample)
        if before is None or not _follows(before, sample):
            if before is not None:
                self._known.append((self._late_since, before[0]))
            self._late_since = sample[0]
            return
        begin, end = before[0], sample[0]
        mbps = (sample[1] - before[1]) * 8e-3 / (end - begin)
        for since, until in sorted([*self._known, (self._since, self.seen[-1][0])]):
            if since <= begin and until > begin - BUCKET_MS and until != begin:
                begin = max(begin, -(-until // BUCKET_MS) * BUCKET_MS)
            elif since > begin:
                end = min(end, since // BUCKET_MS * BUCKET_MS)
        if begin < end:
            total.add(port, begin, end, mbps * (end - begin), late=True)

    def mbps(self, now: float) -> tuple[float, float] | None:
        """Rates sent and received (Mb/s), None if there are no recent samples."""
        if len(self.seen) < 2 or now - self.seen[-1][0] > GAP_MS:
            return None
        (t0, s0, r0), (t1, s1, r1) = self.seen[0], self.seen[-1]
        return ((s1 - s0) * 8e-3 / (t1 - t0), (r1 - r0) * 8e-3 / (t1 - t0))
