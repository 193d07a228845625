"""The optics of a wavelength-selective switch: passbands, their exclusion, settling, loss, power.

No clock and no socket here: `now` (s, monotonic) is an argument. A passband takes the light between
two frequencies (integer MHz) from an ingress to an egress. The light itself is that of every
emulated device (light.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Unpack

from emulators.optics.light import (
    Band,
    Beam,
    Figures,
    Lit,
    Optic,
    Side,
    Violation,
    holds,
    total_dbm,
)
from emulators.optics.passbands import (
    Passband,
    Passbands,
    clash,
    shares,
    stretches,
    strongest,
    twice,
)

C_BAND_MHZ = (191_250_000, 196_275_000)  # DOC: WSUTIL User Guide rev B, C-band models
MEAN_LOSS_DB, MAX_LOSS_DB = 4.5, 6.0  # 4 to 6 dB: LCoS row of the parameter table, U
SHAKES = 3  # intermediate states of an upload (U: the manual says that there are some)
SHAKEN_DB = 40.0  # the most that one takes; "high or low attenuation" (DOC: WaveShaper manual)


class SpectralPlant(Optic):
    """One wavelength-selective switch's optics.

    settle_s: from a command to light. transient_s: how long an upload disturbs what it covers,
    before it has settled (0: not at all). light_paths: pairs of ports between which light can pass
    at all (None: any). range_mhz: the spectrum the device can shape.
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
        light_paths: Callable[[str, str], bool] | None = None,
        range_mhz: tuple[int, int] = C_BAND_MHZ,
        **figures: Unpack[Figures],
    ) -> None:
        figures = {"mean_loss_db": MEAN_LOSS_DB, "max_loss_db": MAX_LOSS_DB, **figures}
        super().__init__(name, ingress, egress, settle_s, seed, **figures)
        self.transient_s, self.light_paths, self.range_mhz = transient_s, light_paths, range_mhz
        self._passbands = Passbands(self.history.append)
        self._lit: tuple[int, frozenset[Band]] = (-1, frozenset())

    # ---- passbands

    def bands(self) -> tuple[Passband, ...]:
        """Return the commanded passbands in the order of their making."""
        return tuple(self._passbands.of.values())

    def passband(self, band: Band) -> Passband | None:
        return self._passbands.of.get(band)

    def since(self, band: Band) -> float | None:
        """Return when `band` was last made (s), None when it is not."""
        found = self._passbands.of.get(band)
        return found.since_s if found else None

    def why_not(self, band: Band) -> str | None:
        """Return why `band` cannot be made now, None when it can."""
        if why := self._impossible(band):
            return why
        return clash(band, self._passbands.of.values()) or self.wrong.closed(band[:2])

    def connect(self, wanted: Mapping[Band, float], now: float) -> dict[Band, str]:
        """Make passbands with their attenuation (dB); return those not made, with the reason. One
        that is made keeps its light.
        """
        self.advance(now)
        refused: dict[Band, str] = {}
        for band, attenuation_db in wanted.items():
            if band in self._passbands.of:
                refused |= self.set_attenuation(band, attenuation_db, now)
            elif why := self.why_not(band):
                refused[band] = why
                if why.startswith("spectrum in use"):
                    self.violations.append(Violation(now, band, why))
            elif not self.deaf:
                self._make(band, attenuation_db, now, now + self.settle_s)
        return refused

    def disconnect(self, bands: Iterable[Band], now: float) -> dict[Band, str]:
        """Take passbands away at once; return those not taken, with the reason. One that is not
        made is skipped.
        """
        self.advance(now)
        refused: dict[Band, str] = {}
        for band in bands:
            found = self._passbands.of.get(band)
            if found is None:
                continue
            if why := self.wrong.fixed([found.pair]):
                refused[band] = why
            elif not self.deaf:
                self._passbands.drop(found, now)
                self.version += 1
        return refused

    def set_attenuation(self, band: Band, attenuation_db: float, now: float) -> dict[Band, str]:
        """Change the attenuation of a passband in place; its light does not go out. Returns why
        not, if not.
        """
        self.advance(now)
        found = self._passbands.of[band]
        if why := self.wrong.fixed([found.pair]):
            return {band: why}
        if found.attenuation_db != attenuation_db and not self.deaf:
            found.attenuation_db = attenuation_db
            self.version += 1
        return {}

    def load(self, wanted: Mapping[Band, float], span_mhz: tuple[int, int], now: float) -> None:
        """Upload the new spectrum within `span_mhz`; the rest stays as it is.

        Until shortly before `settle_s` is over the old light passes; then, for a draw from
        `transient_s`, what stays is shaken through intermediate states, then the new light passes.
        A band that is stuck stays; none is made on a failed port. Raises: ValueError - ports or
        spectrum that the device does not have, or the same spectrum twice on a port; nothing is
        done.
        """
        if why := twice(wanted):
            raise ValueError(f"{self.name}: {why}")
        self.advance(now)
        if self.deaf:
            return
        self._passbands.hurry(now)
        self.version += 1
        self._passbands.trim(span_mhz, now)
        low, high = self.transient_s
        ends_s = now + self.settle_s
        shaking_s = min(self.settle_s, self._random.uniform(low, high)) if high else 0.0
        covered = [p for p in self.bands() if p.overlap_mhz(*span_mhz)]
        for old in covered:
            if old.band not in wanted and not self.wrong.fixed([old.pair]):
                self._passbands.fade(old, ends_s - shaking_s)
        staying = self.bands()
        for band, attenuation_db in wanted.items():
            kept = self._passbands.of.get(band)
            if kept is None:
                if why := self._impossible(band):
                    raise ValueError(f"{self.name}: {band}: {why}")
                if self.wrong.closed(band[:2]) or clash(band, staying):
                    continue
                self._make(band, attenuation_db, now, ends_s)
                continue
            if self.wrong.fixed([kept.pair]):
                continue
            shaken = [
                (ends_s - shaking_s * (1 - step / SHAKES), self._random.uniform(0.0, SHAKEN_DB))
                for step in range(SHAKES if shaking_s else 0)
            ]
            self._passbands.change(kept, attenuation_db, shaken, ends_s, now)

    def set_disabled(self, sides: Iterable[Side], disabled: bool, now: float) -> None:
        """Let no light through ports, or let it through again, at once."""
        self.advance(now)
        for side in sides:
            (self._blocked.add if disabled else self._blocked.discard)(side)
        self.version += 1

    def preset(self, wanted: Mapping[Band, float]) -> None:
        """Make passbands as if they had been lit for ever. Raises ValueError when they collide or
        cannot be.
        """
        for band, attenuation_db in wanted.items():
            if why := self.why_not(band):
                raise ValueError(f"{self.name}: preset {band}: {why}")
            self._passbands.preset(band, attenuation_db, self._draw_loss(band[:2]))
        self.version += 1

    def power_cycle(self, now: float) -> None:
        """Lose power: every passband is gone at once, stuck ones too."""
        self.advance(now)
        self._passbands.lose(now)
        self.version += 1

    def restore(self, wanted: Mapping[Band, float], now: float, after_s: float = 0.0) -> None:
        """Make passbands together `after_s` from now, whatever is wrong with their ports."""
        self.advance(now)
        for band, attenuation_db in wanted.items():
            if band not in self._passbands.of:
                self._make(band, attenuation_db, now, now + after_s + self.settle_s)

    # ---- light

    def advance(self, now: float) -> None:
        """Carry out all that is due."""
        super().advance(now)
        self.version += self._passbands.carry_out(now)

    def next_event(self, now: float) -> float | None:
        """Return when light changes next by itself (s), None when nothing moves."""
        times = [t for t in (super().next_event(now), self._passbands.next_s) if t is not None]
        return min(times, default=None)

    def light(self, now: float) -> frozenset[Band]:
        """Return the commanded passbands that have settled, whatever light there is."""
        self.advance(now)
        return frozenset(p.band for p in self._passbands.of.values() if p.settled(now))

    def shown(self, now: float) -> dict[Band, float]:
        """Return what the light path holds now, with attenuations (dB): what has settled, and what
        an upload has yet to take away.
        """
        self.advance(now)
        held = [
            *self._passbands.fading,
            *(p for p in self._passbands.of.values() if p.settled(now)),
        ]
        return {p.band: p.attenuation_db for p in held}

    def lit(self, now: float) -> frozenset[Lit]:
        """Return the stretches of spectrum that bring light from an ingress fibre into an egress
        fibre.

        Passbands that touch are one stretch: a transmitter's slot may lie across them.
        """
        self.advance(now)
        if self._lit[0] != self.version:
            bright = [
                p
                for p in self._open(now)
                if strongest(self.arriving(p.ingress), p) - self._lost_db(p, now) >= self.los_dbm
            ]
            self._lit = (self.version, frozenset(stretches(bright, self.arriving)))
        return self._lit[1]

    def leaving(self, egress: str, now: float) -> tuple[Beam, ...]:
        """Return the light that goes into the fibre at `egress`; light that a passband cuts into is
        lost.
        """
        out: list[Beam] = []
        for stretch in self.lit(now):
            if stretch[1] != egress or len(stretch) == 2:
                continue
            ingress, _, low_mhz, high_mhz = stretch
            inside = [
                p
                for p in self._open(now)
                if p.pair == (ingress, egress) and p.overlap_mhz(low_mhz, high_mhz)
            ]
            for beam in self.arriving(ingress):
                if not beam.high_mhz:
                    out += [
                        Beam(beam.dbm - self._lost_db(p, now), p.low_mhz, p.high_mhz)
                        for p in inside
                    ]
                elif holds(stretch, (beam.low_mhz, beam.high_mhz)):
                    across = [
                        self._lost_db(p, now)
                        for p in inside
                        if p.overlap_mhz(beam.low_mhz, beam.high_mhz)
                    ]
                    out.append(beam.weaker(max(across)))
        return tuple(sorted(out, key=lambda beam: beam.low_mhz))

    def power_dbm(self, side: Side, now: float) -> float:
        """Return what the power monitor of `side` reads (dBm) of all frequencies; an egress without
        a passband reads the floor.
        """
        self.advance(now)
        which, label = side
        if which == "in":
            return self._reading(side, total_dbm(self.arriving(label)))
        if not any(p.egress == label for p in self._passbands.of.values()):
            return self.floor_dbm
        passing = [p for p in self._open(now, seen_inside=True) if p.egress == label]
        parts = [
            dbm - self._lost_db(p, now)
            for p in passing
            for dbm in shares(self.arriving(p.ingress), p)
        ]
        return self._reading(side, total_dbm(Beam(dbm) for dbm in parts))

    def channel_dbm(self, found: Passband, which: str, now: float) -> float:
        """Return what a channel monitor reads of `found` at its ingress ("in") or its egress
        ("out"), dBm.
        """
        self.advance(now)
        arriving = shares(self.arriving(found.ingress), found)
        if which == "in":
            return self._reading(("in", found.ingress), total_dbm(Beam(dbm) for dbm in arriving))
        lost_db = self._lost_db(found, now)
        passing = (
            [dbm - lost_db for dbm in arriving]
            if found in self._open(now, seen_inside=True)
            else []
        )
        return self._reading(("out", found.egress), total_dbm(Beam(dbm) for dbm in passing))

    # ---- inside

    def _impossible(self, band: Band) -> str | None:
        ingress, egress, low_mhz, high_mhz = band
        for side in (("in", ingress), ("out", egress)):
            if side not in self._known:
                return f"no {side[0]} port {side[1]}"
        if self.light_paths is not None and not self.light_paths(ingress, egress):
            return f"no way from {ingress} to {egress}"
        if not self.range_mhz[0] <= low_mhz < high_mhz <= self.range_mhz[1]:
            return f"no spectrum from {low_mhz} to {high_mhz} MHz"
        return None

    def _open(self, now: float, *, seen_inside: bool = False) -> Iterator[Passband]:
        """Yield the passbands light gets through now; a fibre broken behind the egress is not seen
        inside.
        """
        wrong = self.wrong
        for found in (*self._passbands.of.values(), *self._passbands.fading):
            sides = (("in", found.ingress), ("out", found.egress))
            if not found.settled(now) or any(
                s in self._blocked or s in wrong.failed for s in sides
            ):
                continue
            if seen_inside or sides[1] not in wrong.cut:
                yield found

    def _lost_db(self, found: Passband, now: float) -> float:
        return (
            found.loss_db + found.attenuation_db + found.shaken_db + self._extra_db(found.pair, now)
        )

    def _make(self, band: Band, attenuation_db: float, now: float, lit_at_s: float) -> None:
        self._passbands.make(
            Passband(*band, attenuation_db, now, lit_at_s, self._draw_loss(band[:2]))
        )
        self.version += 1
        self.advance(now)
