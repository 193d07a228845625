"""The optics of a wavelength-selective switch: passbands, their exclusion, settling, loss, power.

No clock and no socket here: `now` (s, monotonic) is an argument. A passband takes the light between two frequencies (integer MHz)
from an ingress to an egress. The light itself is that of every emulated device (light.py).
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import groupby, pairwise
from typing import Unpack

from emulators.optics.light import (
    FOREVER_S,
    Band,
    Beam,
    Event,
    Figures,
    Lit,
    Optic,
    Pair,
    Side,
    Violation,
    holds,
    total_dbm,
)

C_BAND_MHZ = (191_250_000, 196_275_000)  # DOC: WSUTIL User Guide rev B, C-band models
MEAN_LOSS_DB, MAX_LOSS_DB = 4.5, 6.0  # 4 to 6 dB: LCoS row of the parameter table, U
SHAKES = 3  # intermediate states of an upload (U: the manual says that there are some)
SHAKEN_DB = 40.0  # the most that one takes; "high or low attenuation" (DOC: WaveShaper manual)


@dataclass(eq=False, slots=True)
class Passband:
    """One passband; light passes from `lit_at_s` on, `until_s` if it is being removed. `shaken_db`: of an intermediate state."""

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

    def overlap_mhz(self, low_mhz: int, high_mhz: int) -> int:
        return max(0, min(high_mhz, self.high_mhz) - max(low_mhz, self.low_mhz))


class SpectralPlant(Optic):
    """One wavelength-selective switch's optics.

    settle_s: from a command to light. transient_s: how long an upload disturbs what it covers, before it has settled (0: not at
    all). ways: pairs of ports between which light can pass at all (None: any). range_mhz: the spectrum the device can shape.
    """

    def __init__(
        self,
        name: str,
        ingress: Iterable[str],
        egress: Iterable[str],
        settle_s: float = 0.2,
        seed: int = 0,
        *,
        transient_s: tuple[float, float] = (0.0, 0.0),
        ways: Callable[[str, str], bool] | None = None,
        range_mhz: tuple[int, int] = C_BAND_MHZ,
        **figures: Unpack[Figures],
    ) -> None:
        figures = {"mean_loss_db": MEAN_LOSS_DB, "max_loss_db": MAX_LOSS_DB, **figures}
        super().__init__(name, ingress, egress, settle_s, seed, **figures)
        self.transient_s, self.ways, self.range_mhz = transient_s, ways, range_mhz
        self._bands: dict[Band, Passband] = {}  # as commanded
        self._fading: list[Passband] = []  # removed by an upload that is not yet carried out
        self._agenda: list[tuple[float, int, Callable[[float], None]]] = []
        self._order = 0
        self._lit: tuple[int, frozenset[Band]] = (-1, frozenset())

    # ---- passbands

    def bands(self) -> tuple[Passband, ...]:
        """Return the commanded passbands in the order of their making."""
        return tuple(self._bands.values())

    def passband(self, band: Band) -> Passband | None:
        return self._bands.get(band)

    def since(self, band: Band) -> float | None:
        """Return when `band` was last made (s), None when it is not."""
        found = self._bands.get(band)
        return found.since_s if found else None

    def why_not(self, band: Band) -> str | None:
        """Return why `band` cannot be made now, None when it can."""
        if why := self._impossible(band):
            return why
        return self._clash(band, self._bands.values()) or self._unusable(band)

    def connect(self, wanted: Mapping[Band, float], now: float) -> dict[Band, str]:
        """Make passbands with their attenuation (dB); return those not made, with the reason. One that is made keeps its light."""
        self.advance(now)
        refused: dict[Band, str] = {}
        for band, attenuation_db in wanted.items():
            if band in self._bands:
                refused |= self.set_attenuation(band, attenuation_db, now)
            elif why := self.why_not(band):
                refused[band] = why
                if why.startswith("spectrum in use"):
                    self.violations.append(Violation(now, band, why))
            elif not self.deaf:
                self._make(band, attenuation_db, now, now + self.settle_s)
        return refused

    def disconnect(self, bands: Iterable[Band], now: float) -> dict[Band, str]:
        """Take passbands away at once; return those not taken, with the reason. One that is not made is skipped."""
        self.advance(now)
        refused: dict[Band, str] = {}
        for band in bands:
            found = self._bands.get(band)
            if found is None:
                continue
            if why := self._held(found):
                refused[band] = why
            elif not self.deaf:
                self._break(found, now)
        return refused

    def set_attenuation(self, band: Band, attenuation_db: float, now: float) -> dict[Band, str]:
        """Change the attenuation of a passband in place; its light does not go out. Returns why not, if not."""
        self.advance(now)
        found = self._bands[band]
        if why := self._held(found):
            return {band: why}
        if found.attenuation_db != attenuation_db and not self.deaf:
            found.attenuation_db = attenuation_db
            self.version += 1
        return {}

    def load(self, wanted: Mapping[Band, float], span_mhz: tuple[int, int], now: float) -> None:
        """Upload the new spectrum within `span_mhz`; the rest stays as it is.

        Until shortly before `settle_s` is over the old light passes; then, for a draw from `transient_s`, what stays is shaken
        through intermediate states, then the new light passes. A band that is stuck stays; none is made on a failed port.
        Raises: ValueError - ports or spectrum that the device does not have, or the same spectrum twice on a port; nothing is done.
        """
        for end in (0, 1):
            for one, other in pairwise(sorted(wanted, key=lambda band: (band[end], band[2]))):
                if one[end] == other[end] and other[2] < one[3]:
                    raise ValueError(f"{self.name}: {one} and {other}: the same spectrum twice on port {one[end]}")
        self.advance(now)
        if self.deaf:
            return
        self._hurry(now)
        self._trim(span_mhz, now)
        low, high = self.transient_s
        ends_s = now + self.settle_s
        shaking_s = min(self.settle_s, self._random.uniform(low, high)) if high else 0.0
        covered = [p for p in self._bands.values() if p.overlap_mhz(*span_mhz)]
        for old in covered:
            if old.band not in wanted and not self._held(old):
                del self._bands[old.band]
                self._fading.append(old)
                self._at(ends_s - shaking_s, partial(self._fade, old))
        staying = self.bands()
        for band, attenuation_db in wanted.items():
            kept = self._bands.get(band)
            if kept is None:
                if why := self._impossible(band):
                    raise ValueError(f"{self.name}: {band}: {why}")
                if self._unusable(band) or self._clash(band, staying):
                    continue
                self._make(band, attenuation_db, now, ends_s)
                continue
            if self._held(kept):
                continue
            for step in range(SHAKES if shaking_s else 0):
                at_s = ends_s - shaking_s * (1 - step / SHAKES)
                shaken_db = self._random.uniform(0.0, SHAKEN_DB)
                self._at(at_s, partial(self._shake, kept, shaken_db))
            self._at(ends_s, partial(self._rest, kept, attenuation_db))
            if kept.lit_at_s > now:
                kept.lit_at_s = ends_s
                self._at(ends_s, partial(self._come, kept))

    def set_disabled(self, sides: Iterable[Side], disabled: bool, now: float) -> None:
        """Let no light through ports, or let it through again, at once."""
        self.advance(now)
        for side in sides:
            (self._blocked.add if disabled else self._blocked.discard)(side)
        self.version += 1

    def preset(self, wanted: Mapping[Band, float]) -> None:
        """Make passbands as if they had been lit for ever. Raises ValueError when they collide or cannot be."""
        for band, attenuation_db in wanted.items():
            if why := self.why_not(band):
                raise ValueError(f"{self.name}: preset {band}: {why}")
            self._bands[band] = Passband(*band, attenuation_db, FOREVER_S, FOREVER_S, self._draw_loss(band[:2]))
        self.version += 1

    def power_cycle(self, now: float) -> None:
        """Lose power: every passband is gone at once, stuck ones too."""
        self.advance(now)
        self._agenda.clear()
        for old in self._fading:
            self._note(now, old, "broken")
        self._fading.clear()
        for found in self.bands():
            self._break(found, now)

    def restore(self, wanted: Mapping[Band, float], now: float, after_s: float = 0.0) -> None:
        """Make passbands together `after_s` from now, whatever is wrong with their ports."""
        self.advance(now)
        for band, attenuation_db in wanted.items():
            if band not in self._bands:
                self._make(band, attenuation_db, now, now + after_s + self.settle_s)

    # ---- light

    def advance(self, now: float) -> None:
        """Carry out all that is due."""
        super().advance(now)
        while self._agenda and self._agenda[0][0] <= now:
            at_s, _, action = heapq.heappop(self._agenda)
            action(at_s)
            self.version += 1

    def next_event(self, now: float) -> float | None:
        """Return when light changes next by itself (s), None when nothing moves."""
        times = [t for t in (super().next_event(now), self._agenda[0][0] if self._agenda else None) if t is not None]
        return min(times, default=None)

    def settled(self, found: Passband, now: float) -> bool:
        return found.lit_at_s <= now

    def glass(self, now: float) -> frozenset[Band]:
        """Return the commanded passbands that have settled, whatever light there is."""
        self.advance(now)
        return frozenset(p.band for p in self._bands.values() if p.lit_at_s <= now)

    def shown(self, now: float) -> dict[Band, float]:
        """Return what the glass holds now, with attenuations (dB): what has settled, and what an upload has yet to take away."""
        self.advance(now)
        held = [*self._fading, *(p for p in self._bands.values() if p.lit_at_s <= now)]
        return {p.band: p.attenuation_db for p in held}

    def lit(self, now: float) -> frozenset[Lit]:
        """Return the stretches of spectrum that bring light from an ingress fibre into an egress fibre.

        Passbands that touch are one stretch: a transmitter's slot may lie across them.
        """
        self.advance(now)
        if self._lit[0] != self.version:
            self._lit = (self.version, frozenset(self._stretches(now)))
        return self._lit[1]

    def leaving(self, egress: str, now: float) -> tuple[Beam, ...]:
        """Return the light that goes into the fibre at `egress`; light that a passband cuts into is lost."""
        out: list[Beam] = []
        for stretch in self.lit(now):
            if stretch[1] != egress or len(stretch) == 2:
                continue
            ingress, _, low_mhz, high_mhz = stretch
            inside = [p for p in self._open(now) if p.pair == (ingress, egress) and p.overlap_mhz(low_mhz, high_mhz)]
            for beam in self.arriving(ingress):
                if not beam.high_mhz:
                    out += [Beam(beam.dbm - self._lost_db(p, now), p.low_mhz, p.high_mhz) for p in inside]
                elif holds(stretch, (beam.low_mhz, beam.high_mhz)):
                    across = [self._lost_db(p, now) for p in inside if p.overlap_mhz(beam.low_mhz, beam.high_mhz)]
                    out.append(beam.weaker(max(across)))
        return tuple(sorted(out, key=lambda beam: beam.low_mhz))

    def power_dbm(self, side: Side, now: float) -> float:
        """Return what the power monitor of `side` reads (dBm) of all frequencies; an egress without a passband reads the floor."""
        self.advance(now)
        which, label = side
        if which == "in":
            return self._reading(side, total_dbm(self.arriving(label)))
        if not any(p.egress == label for p in self._bands.values()):
            return self.floor_dbm
        parts = [dbm for p in self._open(now, seen_inside=True) if p.egress == label for dbm in self._through(p, now)]
        return self._reading(side, total_dbm(Beam(dbm) for dbm in parts))

    def channel_dbm(self, found: Passband, which: str, now: float) -> float:
        """Return what a channel monitor reads of `found` at its ingress ("in") or its egress ("out"), dBm."""
        self.advance(now)
        if which == "in":
            parts = [dbm for beam in self.arriving(found.ingress) if (dbm := _share(beam, found)) is not None]
            return self._reading(("in", found.ingress), total_dbm(Beam(dbm) for dbm in parts))
        passing = self._through(found, now) if found in self._open(now, seen_inside=True) else []
        return self._reading(("out", found.egress), total_dbm(Beam(dbm) for dbm in passing))

    # ---- inside

    def _impossible(self, band: Band) -> str | None:
        ingress, egress, low_mhz, high_mhz = band
        for side in (("in", ingress), ("out", egress)):
            if side not in self._known:
                return f"no {side[0]} port {side[1]}"
        if self.ways is not None and not self.ways(ingress, egress):
            return f"no way from {ingress} to {egress}"
        if not self.range_mhz[0] <= low_mhz < high_mhz <= self.range_mhz[1]:
            return f"no spectrum from {low_mhz} to {high_mhz} MHz"
        return None

    def _clash(self, band: Band, others: Iterable[Passband]) -> str | None:
        ingress, egress, low_mhz, high_mhz = band
        for other in others:
            if low_mhz < other.high_mhz and other.low_mhz < high_mhz and (other.ingress == ingress or other.egress == egress):
                return f"spectrum in use on port {ingress if other.ingress == ingress else egress}"
        return None

    def _unusable(self, band: Band) -> str | None:
        wrong = self.wrong
        for side in (("in", band[0]), ("out", band[1])):
            for reason, sides in (("failed", wrong.failed), ("stuck", wrong.stuck)):
                if side in sides:
                    return f"port {side[1]} {reason}"
        return wrong.lock(band[:2])

    def _held(self, found: Passband) -> str | None:
        for side in (("in", found.ingress), ("out", found.egress)):
            if side in self.wrong.stuck:
                return f"port {side[1]} stuck"
        return self.wrong.lock(found.pair)

    def _open(self, now: float, *, seen_inside: bool = False) -> Iterator[Passband]:
        """Yield the passbands light gets through now; a fibre broken behind the egress is not seen inside."""
        wrong = self.wrong
        for found in (*self._bands.values(), *self._fading):
            sides = (("in", found.ingress), ("out", found.egress))
            if found.lit_at_s > now or any(s in self._blocked or s in wrong.failed for s in sides):
                continue
            if seen_inside or sides[1] not in wrong.cut:
                yield found

    def _lost_db(self, found: Passband, now: float) -> float:
        return found.loss_db + found.attenuation_db + found.shaken_db + self._extra_db(found.pair, now)

    def _through(self, found: Passband, now: float) -> list[float]:
        lost_db = self._lost_db(found, now)
        return [dbm - lost_db for beam in self.arriving(found.ingress) if (dbm := _share(beam, found)) is not None]

    def _stretches(self, now: float) -> Iterator[Band]:
        bright: list[Passband] = []
        for found in self._open(now):
            touching = [b.dbm for b in self.arriving(found.ingress) if _share(b, found) is not None]
            if touching and max(touching) - self._lost_db(found, now) >= self.los_dbm:
                bright.append(found)
        bright.sort(key=lambda p: p.band)
        for pair, group in groupby(bright, key=lambda p: p.pair):
            runs: list[tuple[int, int]] = []
            for found in group:
                if runs and found.low_mhz <= runs[-1][1]:
                    runs[-1] = (runs[-1][0], max(runs[-1][1], found.high_mhz))
                else:
                    runs.append((found.low_mhz, found.high_mhz))
            beams = self.arriving(pair[0])
            for run in runs:
                if any(not b.high_mhz or (run[0] <= b.low_mhz and b.high_mhz <= run[1]) for b in beams):
                    yield (*pair, *run)

    def _make(self, band: Band, attenuation_db: float, now: float, lit_at_s: float) -> None:
        made = Passband(*band, attenuation_db, now, lit_at_s, self._draw_loss(band[:2]))
        self._bands[band] = made
        self._note(now, made, "making")
        self._at(lit_at_s, partial(self._come, made))
        self.version += 1
        self.advance(now)

    def _come(self, made: Passband, at_s: float) -> None:
        if self._bands.get(made.band) is made and made.lit_at_s == at_s:
            self._note(at_s, made, "lit")

    def _fade(self, old: Passband, at_s: float) -> None:
        if old in self._fading:
            self._fading.remove(old)
            self._note(at_s, old, "broken")

    def _shake(self, kept: Passband, shaken_db: float, at_s: float) -> None:
        kept.shaken_db = shaken_db

    def _rest(self, kept: Passband, attenuation_db: float, at_s: float) -> None:
        kept.shaken_db, kept.attenuation_db = 0.0, attenuation_db

    def _break(self, found: Passband, now: float) -> None:
        del self._bands[found.band]
        self._note(now, found, "broken")
        self.version += 1

    def _hurry(self, now: float) -> None:
        """Cut an upload short that another one overtakes: what was leaving is gone, what was shaken rests."""
        waiting, self._agenda = sorted(self._agenda, key=lambda entry: entry[:2]), []
        for _, _, action in waiting:
            action(now)
        for found in self._bands.values():
            if found.lit_at_s > now:
                self._at(found.lit_at_s, partial(self._come, found))
        self.version += 1

    def _trim(self, span_mhz: tuple[int, int], now: float) -> None:
        """Cut the passbands that stick out of `span_mhz` at its edges: the parts are separate from here on."""
        for old in self.bands():
            edges = sorted({old.low_mhz, old.high_mhz, *(e for e in span_mhz if old.low_mhz < e < old.high_mhz)})
            if len(edges) > 2:
                del self._bands[old.band]
                for low_mhz, high_mhz in pairwise(edges):
                    part = Passband(*old.pair, low_mhz, high_mhz, old.attenuation_db, old.since_s, old.lit_at_s, old.loss_db)
                    self._bands[part.band] = part
                    if part.lit_at_s > now:
                        self._at(part.lit_at_s, partial(self._come, part))

    def _at(self, at_s: float, action: Callable[[float], None]) -> None:
        self._order += 1
        heapq.heappush(self._agenda, (at_s, self._order, action))

    def _note(self, at_s: float, found: Passband, what: str) -> None:
        self.history.append(Event(at_s, found.band, what))


def _share(beam: Beam, found: Passband) -> float | None:
    """Return how much of a beam (dBm) lies in a passband, its power being even across it; None: none of it."""
    if not beam.high_mhz:
        return beam.dbm
    inside = found.overlap_mhz(beam.low_mhz, beam.high_mhz)
    return beam.dbm + 10.0 * math.log10(inside / (beam.high_mhz - beam.low_mhz)) if inside else None
