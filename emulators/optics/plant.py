"""The optics of a cross-connect switch: ports, exclusion, settling, loss, power.

No clock and no socket here: `now` (s, monotonic) is an argument.

A faceplate is *split* when the ingress and egress labels differ (Polatis: 1..N in, N+1..N+M out)
and *duplex* when every label has an IN and an OUT side (Calient). The plant knows sides only, so
both kinds are the same code.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Unpack

from emulators.optics.circuits import Circuit, Circuits
from emulators.optics.light import (
    DARK_DBM,
    FLOOR_DBM,
    FOREVER_S,
    LOS_DBM,
    Beam,
    Event,
    Figures,
    Impairments,
    Optic,
    Pair,
    Side,
    Violation,
    total_dbm,
)

__all__ = [
    "DARK_DBM",
    "FLOOR_DBM",
    "LOS_DBM",
    "Event",
    "Impairments",
    "Pair",
    "Plant",
    "Side",
    "Violation",
]


class Plant(Optic):
    """One switch's optics.

    settle_s: time from a command to light. Piezo: 50 ms for one circuit or any set (Polatis data
    sheet, TCD notes). bulk_settle_s: the same for a set larger than one duplex circuit, where it
    differs. 3D MEMS: at most 200 ms per set (Calient S320 hardware guide p. 44). None: as settle_s.
    Breaking is dark at once on both.
    """

    def __init__(
        self,
        name: str,
        ingress: Iterable[str],
        egress: Iterable[str],
        settle_s: float = 0.05,
        seed: int = 0,
        **figures: Unpack[Figures],
    ) -> None:
        super().__init__(name, ingress, egress, settle_s, seed, **figures)
        self._circuits = Circuits()
        self._lit: tuple[int, frozenset[Pair]] = (-1, frozenset())
        self._moved: set[Pair] = set()  # pairs to re-evaluate; the rest of `_lit` is right

    # ---- circuits

    def circuit(self, side: Side) -> Circuit | None:
        """Return the circuit that uses `side`, settled or not."""
        return self._circuits.at.get(side)

    def pairs(self) -> tuple[Pair, ...]:
        """Return the commanded pairs in the order of the ingress ports' making."""
        return tuple(self._circuits.of)

    def since(self, pair: Pair) -> float | None:
        """Return when `pair` was last made (s), None when it is not."""
        circuit = self._circuits.at.get(("in", pair[0]))
        return circuit.since_s if circuit and circuit.egress == pair[1] else None

    def why_not(self, pair: Pair) -> str | None:
        """Return why `pair` cannot be made now, None when it can."""
        for side in (("in", pair[0]), ("out", pair[1])):
            if side not in self._known:
                return f"no {side[0]} port {side[1]}"
            if side in self._circuits.at:
                return f"port {side[1]} in use"
            for reason, sides in (
                ("failed", self.wrong.failed),
                ("stuck", self.wrong.stuck),
                ("disabled", self._blocked),
            ):
                if side in sides:
                    return f"port {side[1]} {reason}"
        return None

    def connect(self, pairs: Iterable[Pair], now: float) -> dict[Pair, str]:
        """Make `pairs` together; return the ones not made, with the reason. A pair already made
        stays as it is.
        """
        self.advance(now)
        refused: dict[Pair, str] = {}
        made: list[Pair] = []
        for pair in pairs:
            if self.since(pair) is not None:
                continue
            if why := self.why_not(pair) or self.wrong.lock(pair):
                refused[pair] = why
                if why.endswith("in use"):
                    self.violations.append(Violation(now, pair, why))
                continue
            if self.deaf:
                continue
            self._circuits.hold(Circuit(*pair, now, now, self._draw_loss(pair)))
            made.append(pair)
        self._settle(made, now, self._set_settle_s(len(made)))
        return refused

    def disconnect(self, pairs: Iterable[Pair], now: float) -> dict[Pair, str]:
        """Break `pairs` at once; return the ones not broken, with the reason. A pair that is not
        made is skipped.
        """
        self.advance(now)
        refused: dict[Pair, str] = {}
        for pair in pairs:
            if self.since(pair) is None:
                continue
            if ("in", pair[0]) in self.wrong.stuck or ("out", pair[1]) in self.wrong.stuck:
                refused[pair] = "mirror stuck"
            elif why := self.wrong.lock(pair):
                refused[pair] = why
            elif not self.deaf:
                self._break(pair, now)
        return refused

    def power_cycle(self, now: float) -> None:
        """Lose power: every circuit is gone at once, stuck mirrors too."""
        self.advance(now)
        for pair in self.pairs():
            self._break(pair, now)

    def restore(self, pairs: Iterable[Pair], now: float, after_s: float = 0.0) -> None:
        """Make `pairs` as one set `after_s` from now, whatever is wrong with their ports (firmware
        turns mirrors blindly).
        """
        self.advance(now)
        made = [
            p
            for p in pairs
            if ("in", p[0]) not in self._circuits.at and ("out", p[1]) not in self._circuits.at
        ]
        for pair in made:
            self._circuits.hold(Circuit(*pair, now, now, self._draw_loss(pair)))
        self._settle(made, now, after_s + self._set_settle_s(len(made)))

    def preset(self, pairs: Iterable[Pair]) -> None:
        """Make `pairs` as if they had been lit for ever. Raises ValueError when they collide or do
        not exist.
        """
        for pair in pairs:
            if why := self.why_not(pair):
                raise ValueError(f"{self.name}: preset {pair[0]}->{pair[1]}: {why}")
            self._circuits.hold(Circuit(*pair, FOREVER_S, FOREVER_S, self._draw_loss(pair)))
        self.version += 1

    def set_disabled(self, sides: Iterable[Side], disabled: bool, now: float) -> None:
        """Close or open the ports' shutters; a circuit behind an opened one settles again."""
        self.advance(now)
        if self.deaf:
            return
        for side in sides:
            if disabled:
                self._blocked.add(side)
            elif side in self._blocked:
                self._blocked.discard(side)
                if circuit := self._circuits.at.get(side):
                    self._circuits.settle(circuit, now + self.settle_s)
        self.version += 1

    # ---- light

    def advance(self, now: float) -> None:
        """Settle the circuits that are due."""
        super().advance(now)
        if due := self._circuits.due(now):
            self.history.extend(Event(c.lit_at_s, c.pair, "lit") for c in due)
            self._move(c.pair for c in due)

    def next_event(self, now: float) -> float | None:
        """Return when the next circuit settles (s), None when nothing moves."""
        due = super().next_event(now)
        if not self._circuits.settling:
            return due
        return self._circuits.due_s if due is None else min(due, self._circuits.due_s)

    def light(self, now: float) -> frozenset[Pair]:
        """Return the pairs whose mirrors face each other and rest, whatever light there is."""
        self.advance(now)
        return frozenset(pair for pair, c in self._circuits.of.items() if c.settled(now))

    def lit(self, now: float) -> frozenset[Pair]:
        """Return the pairs that bring light from the fibre at the ingress into the fibre at the
        egress.
        """
        self.advance(now)
        version, lit = self._lit
        if version != self.version:
            lit = frozenset(pair for pair, c in self._circuits.of.items() if self.passes(c, now))
        elif self._moved:
            lit -= self._moved
            lit |= {
                pair
                for pair in self._moved
                if (c := self._circuits.of.get(pair)) and self.passes(c, now)
            }
        self._moved.clear()
        self._lit = (self.version, lit)
        return lit

    def bright(self, circuit: Circuit, now: float) -> bool:
        """Return whether light comes out of the switch by `circuit`; a fibre broken behind its
        egress is not seen here.
        """
        return self.passes(circuit, now, seen_inside=True)

    def passes(self, circuit: Circuit, now: float, *, seen_inside: bool = False) -> bool:
        """Return whether `circuit` is settled and light above the loss-of-signal threshold leaves
        by its egress fibre.
        """
        sides = (("in", circuit.ingress), ("out", circuit.egress))
        if not circuit.settled(now) or any(
            s in self._blocked or s in self.wrong.failed for s in sides
        ):
            return False
        if sides[1] in self.wrong.cut and not seen_inside:
            return False
        arriving = total_dbm(self.arriving(circuit.ingress))
        return arriving is not None and arriving - self._path_loss(circuit, now) >= self.los_dbm

    def leaving(self, egress: str, now: float) -> tuple[Beam, ...]:
        """Return the light that goes into the fibre at `egress`."""
        circuit = self._circuits.at.get(("out", egress))
        if circuit is None or not self.passes(circuit, now):
            return ()
        loss = self._path_loss(circuit, now)
        return tuple(beam.weaker(loss) for beam in self.arriving(circuit.ingress))

    def power_dbm(self, side: Side, now: float) -> float:
        """Return what the power monitor of `side` reads (dBm): bias per port, noise, 0.01 dB steps.

        An egress without a circuit reads the floor exactly; no light reads about `dark_dbm`.
        """
        self.advance(now)
        if side[0] == "out" and side not in self._circuits.at:
            return self.floor_dbm
        return self._reading(side, self.true_dbm(side, now))

    def true_dbm(self, side: Side, now: float) -> float | None:
        """Return the power at `side` exactly, as no meter could show it (dBm), None in the dark."""
        which, label = side
        if which == "in":
            return total_dbm(self.arriving(label))
        circuit = self._circuits.at.get(side)
        if circuit is None or not circuit.settled(now):
            return None
        power = total_dbm(self.arriving(circuit.ingress))
        if power is None or any(
            s in self._blocked or s in self.wrong.failed for s in (side, ("in", circuit.ingress))
        ):
            return None
        return power - self._path_loss(circuit, now)

    def loss_db(self, pair: Pair) -> float | None:
        """Return the insertion loss `pair` was made with (dB, faults not counted), None when it is
        not made.
        """
        circuit = self._circuits.at.get(("in", pair[0]))
        return circuit.loss_db if circuit and circuit.egress == pair[1] else None

    # ---- inside

    def _move(self, pairs: Iterable[Pair]) -> None:
        """Note that these circuits changed and nothing else did: `lit` need not re-evaluate the
        others.
        """
        if self._lit[0] == self.version:
            self._lit = (self.version + 1, self._lit[1])
            self._moved.update(pairs)
        self.version += 1

    def _settle(self, pairs: list[Pair], now: float, settle_s: float) -> None:
        for pair in pairs:
            self._circuits.settle(self._circuits.of[pair], now + settle_s)
            self.history.append(Event(now, pair, "making"))
        if pairs:
            self._move(pairs)
            self.advance(now)

    def _break(self, pair: Pair, now: float) -> None:
        self._circuits.drop(pair)
        self.history.append(Event(now, pair, "broken"))
        self._move([pair])

    def _path_loss(self, circuit: Circuit, now: float) -> float:
        return circuit.loss_db + self._extra_db(circuit.pair, now)
