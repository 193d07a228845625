"""Passbands of a wavelength-selective switch: those made and those being removed, how they change
with time, light in them.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby, pairwise

from emulators.optics.light import FOREVER_S, Band, Beam, Event, Pair


@dataclass(eq=False, slots=True)
class Passband:
    """One passband; light passes from `lit_at_s` on, `until_s` if it is being removed. `shaken_db`:
    of an intermediate state.
    """

    ingress: str
    egress: str
    low_mhz: int
    high_mhz: int
    attenuation_db: float
    since_s: float
    lit_at_s: float
    loss_db: float
    shaken_db: float = 0.0

    @property
    def band(self) -> Band:
        return (self.ingress, self.egress, self.low_mhz, self.high_mhz)

    @property
    def pair(self) -> Pair:
        return (self.ingress, self.egress)

    def settled(self, now: float) -> bool:
        return self.lit_at_s <= now

    def overlap_mhz(self, low_mhz: int, high_mhz: int) -> int:
        return max(0, min(high_mhz, self.high_mhz) - max(low_mhz, self.low_mhz))


class Passbands:
    """The passbands of a switch, and what is yet to happen to them.

    of: as commanded, in the order of their making. fading: removed by an upload that is not yet
    carried out. history: gets what happens.
    """

    def __init__(self, history: Callable[[Event], object]) -> None:
        self.of: dict[Band, Passband] = {}
        self.fading: list[Passband] = []
        self._history = history
        self._agenda: list[tuple[float, int, Callable[[float], None]]] = []
        self._order = 0

    @property
    def next_s(self) -> float | None:
        """When something happens next (s); None: nothing is due."""
        return self._agenda[0][0] if self._agenda else None

    def carry_out(self, now: float) -> int:
        """Let all happen that is due; return how much did."""
        count = 0
        while self._agenda and self._agenda[0][0] <= now:
            at_s, _, action = heapq.heappop(self._agenda)
            action(at_s)
            count += 1
        return count

    def make(self, made: Passband) -> None:
        self.of[made.band] = made
        self._note(made.since_s, made, "making")
        self._await(made)

    def preset(self, band: Band, attenuation_db: float, loss_db: float) -> None:
        """Make a passband as if it had been lit for ever."""
        self.of[band] = Passband(*band, attenuation_db, FOREVER_S, FOREVER_S, loss_db)

    def drop(self, found: Passband, now: float) -> None:
        """Take a passband away at once."""
        del self.of[found.band]
        self._note(now, found, "broken")

    def fade(self, old: Passband, at_s: float) -> None:
        """Take a passband out of those commanded; its light goes at `at_s` (s)."""
        del self.of[old.band]
        self.fading.append(old)
        self._at(at_s, partial(self._faded, old))

    def change(
        self,
        kept: Passband,
        attenuation_db: float,
        shaken: Iterable[tuple[float, float]],
        ends_s: float,
        now: float,
    ) -> None:
        """Let `kept` have this attenuation from `ends_s` (s) on. shaken: its intermediate states
        before, from when (s) and dB.
        """
        for at_s, shaken_db in shaken:
            self._at(at_s, partial(self._shake, kept, shaken_db))
        self._at(ends_s, partial(self._rest, kept, attenuation_db))
        if not kept.settled(now):
            kept.lit_at_s = ends_s
            self._await(kept)

    def hurry(self, now: float) -> None:
        """Cut an upload short that another one overtakes: what was leaving is gone, what was shaken
        rests.
        """
        waiting, self._agenda = sorted(self._agenda, key=lambda entry: entry[:2]), []
        for _, _, action in waiting:
            action(now)
        for found in self.of.values():
            if not found.settled(now):
                self._await(found)

    def trim(self, span_mhz: tuple[int, int], now: float) -> None:
        """Cut the passbands that stick out of `span_mhz` at its edges: the parts are separate from
        here on.
        """
        for old in tuple(self.of.values()):
            edges = sorted(
                {
                    old.low_mhz,
                    old.high_mhz,
                    *(e for e in span_mhz if old.low_mhz < e < old.high_mhz),
                }
            )
            if len(edges) > 2:
                del self.of[old.band]
                for low_mhz, high_mhz in pairwise(edges):
                    part = Passband(
                        *old.pair,
                        low_mhz,
                        high_mhz,
                        old.attenuation_db,
                        old.since_s,
                        old.lit_at_s,
                        old.loss_db,
                    )
                    self.of[part.band] = part
                    if not part.settled(now):
                        self._await(part)

    def lose(self, now: float) -> None:
        """Take all passbands away at once; nothing is due any more."""
        self._agenda.clear()
        for old in self.fading:
            self._note(now, old, "broken")
        self.fading.clear()
        for found in tuple(self.of.values()):
            self.drop(found, now)

    def _await(self, made: Passband) -> None:
        self._at(made.lit_at_s, partial(self._come, made))

    def _come(self, made: Passband, at_s: float) -> None:
        if self.of.get(made.band) is made and made.lit_at_s == at_s:
            self._note(at_s, made, "lit")

    def _faded(self, old: Passband, at_s: float) -> None:
        if old in self.fading:
            self.fading.remove(old)
            self._note(at_s, old, "broken")

    def _shake(self, kept: Passband, shaken_db: float, at_s: float) -> None:
        kept.shaken_db = shaken_db

    def _rest(self, kept: Passband, attenuation_db: float, at_s: float) -> None:
        kept.shaken_db, kept.attenuation_db = 0.0, attenuation_db

    def _at(self, at_s: float, action: Callable[[float], None]) -> None:
        self._order += 1
        heapq.heappush(self._agenda, (at_s, self._order, action))

    def _note(self, at_s: float, found: Passband, what: str) -> None:
        self._history(Event(at_s, found.band, what))


def clash(band: Band, others: Iterable[Passband]) -> str | None:
    """Return on which port another passband has spectrum of `band`, None: on none."""
    ingress, egress, low_mhz, high_mhz = band
    for other in others:
        if (
            low_mhz < other.high_mhz
            and other.low_mhz < high_mhz
            and (other.ingress == ingress or other.egress == egress)
        ):
            return f"spectrum in use on port {ingress if other.ingress == ingress else egress}"
    return None


def twice(wanted: Mapping[Band, float]) -> str | None:
    """Return which two of these passbands have the same spectrum on a port, None: no two."""
    for end in (0, 1):
        for one, other in pairwise(sorted(wanted, key=lambda band: (band[end], band[2]))):
            if one[end] == other[end] and other[2] < one[3]:
                return f"{one} and {other}: the same spectrum twice on port {one[end]}"
    return None


def share(beam: Beam, found: Passband) -> float | None:
    """Return how much of a beam (dBm) lies in a passband, its power being even across it; None:
    none of it.
    """
    if not beam.high_mhz:
        return beam.dbm
    inside = found.overlap_mhz(beam.low_mhz, beam.high_mhz)
    return beam.dbm + 10.0 * math.log10(inside / (beam.high_mhz - beam.low_mhz)) if inside else None


def shares(beams: Iterable[Beam], found: Passband) -> list[float]:
    """Return how much of each beam (dBm) lies in a passband, of those that touch it."""
    return [dbm for beam in beams if (dbm := share(beam, found)) is not None]


def strongest(beams: Iterable[Beam], found: Passband) -> float:
    """Return the power (dBm) of the strongest beam that touches a passband, all of it; minus
    infinity: none does.
    """
    return max((beam.dbm for beam in beams if share(beam, found) is not None), default=-math.inf)


def stretches(
    bright: Sequence[Passband], arriving: Callable[[str], tuple[Beam, ...]]
) -> Iterator[Band]:
    """Yield the stretches of spectrum that passbands with light in them make together, where a
    whole beam passes.

    Passbands that touch are one stretch: a transmitter's slot may lie across them.
    """
    for pair, group in groupby(sorted(bright, key=lambda p: p.band), key=lambda p: p.pair):
        runs: list[tuple[int, int]] = []
        for found in group:
            if runs and found.low_mhz <= runs[-1][1]:
                runs[-1] = (runs[-1][0], max(runs[-1][1], found.high_mhz))
            else:
                runs.append((found.low_mhz, found.high_mhz))
        beams = arriving(pair[0])
        for run in runs:
            if any(not b.high_mhz or (run[0] <= b.low_mhz and b.high_mhz <= run[1]) for b in beams):
                yield (*pair, *run)
