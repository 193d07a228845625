"""What the glass inside a switch does: ports, exclusion, settling, loss, power.

No clock and no socket here: `now` (s, monotonic) is an argument.

A faceplate is *split* when the ingress and egress labels differ (Polatis: 1..N in, N+1..N+M out) and *duplex* when every
label has an IN and an OUT side (Calient). The plant knows sides only, so both kinds are the same code.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

Pair = tuple[str, str]
"""(ingress label, egress label)."""
Side = tuple[str, str]
"""("in" | "out", label): one side of a port."""

MEAN_LOSS_DB, MAX_LOSS_DB = 1.5, 2.7  # data sheet figures quoted by the TCD testbed notes on Polatis: 1.5 dB typical, 2.7 dB max
REMAKE_DB, REMAKE_LIMIT_DB = 0.05, 0.1  # repeatability +-0.1 dB (same notes)
METER_BIAS_DB = 1.0  # power monitor accuracy +-1.0 dB (same notes)
NOISE_DB = 0.02
DARK_DBM = -50.0  # a meter looking at no light, +-1 dB: Glimmerglass driver log shows -48..-52 dBm
FLOOR_DBM = -60.0  # power-low limit in the public ONOS/Polatis NETCONF tests
LOS_DBM = -30.0
FOREVER_S = -1.0e9  # `since` of what was there before the clock started


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened to the glass: what is "making", "lit" or "broken"."""

    at_s: float
    pair: Pair
    what: str


@dataclass(frozen=True, slots=True)
class Violation:
    """An attempt to drive a port that already carries another circuit."""

    at_s: float
    pair: Pair
    why: str


@dataclass(slots=True)
class Circuit:
    """Mirrors turned to each other; light passes from `lit_at_s` on."""

    ingress: str
    egress: str
    since_s: float
    lit_at_s: float
    loss_db: float

    @property
    def pair(self) -> Pair:
        return (self.ingress, self.egress)


@dataclass(slots=True)
class Impairments:
    """What is wrong with the ports, by side; the fault list owns it."""

    stuck: set[Side] = field(default_factory=set)  # mirror does not move: neither made nor broken
    failed: set[Side] = field(default_factory=set)  # port hardware failed: no light, no new circuit
    cut: set[Side] = field(default_factory=set)  # fibre broken outside the switch
    extra_loss_db: dict[Side, float] = field(default_factory=dict)


class Plant:
    """One switch's optics.

    settle_s: time from a command to light. Piezo: 50 ms for one circuit or any set (Polatis data sheet, TCD notes).
    bulk_settle_s: the same for a set larger than one duplex circuit, where it differs. 3D MEMS: at most 200 ms per set
    (Calient S320 hardware guide p. 44). None: as settle_s. Breaking is dark at once on both.
    """

    def __init__(
        self,
        name: str,
        ingress: Iterable[str],
        egress: Iterable[str],
        settle_s: float = 0.05,
        seed: int = 0,
        *,
        bulk_settle_s: float | None = None,
        dark_dbm: float = DARK_DBM,
        floor_dbm: float = FLOOR_DBM,
        los_dbm: float = LOS_DBM,
    ) -> None:
        if settle_s < 0 or (bulk_settle_s or 0.0) < 0:
            raise ValueError(f"{name}: settle_s: no mirror moves in less than no time, seen {settle_s}, {bulk_settle_s}")
        self.name = name
        self.ingress, self.egress = tuple(ingress), tuple(egress)
        self.settle_s, self.bulk_settle_s, self.seed = settle_s, bulk_settle_s, seed
        self.dark_dbm, self.floor_dbm, self.los_dbm = dark_dbm, floor_dbm, los_dbm
        self.wrong = Impairments()
        self.writes = 0  # commands that change the device, counted by the dialect
        self.history: deque[Event] = deque(maxlen=100_000)
        self.violations: list[Violation] = []
        self.version = 0  # moves whenever `lit` may have changed
        self._known: set[Side] = {("in", p) for p in self.ingress} | {("out", p) for p in self.egress}
        self._blocked: set[Side] = set()
        self._input_dbm: dict[str, float | None] = {}
        self._circuits: dict[Side, Circuit] = {}  # each circuit stands under both its sides
        self._settling: list[Circuit] = []
        self._loss: dict[Pair, float] = {}
        self._random = random.Random(f"{seed}/{name}")
        self._bias = {side: self._random.uniform(-METER_BIAS_DB, METER_BIAS_DB) for side in sorted(self._known)}
        self._lit: tuple[int, frozenset[Pair]] = (-1, frozenset())

    # ---- circuits

    def sides(self, port: str) -> tuple[Side, ...]:
        """Return the sides meant by "17", or by "1.1.1", "1.1.1/in", "1.1.1/out" on a duplex faceplate. Raises KeyError."""
        label, _, which = port.partition("/")
        found = tuple(s for s in (("in", label), ("out", label)) if s in self._known and which in ("", s[0]))
        if not found:
            raise KeyError(f"{self.name} has no port {port}")
        return found

    def circuit(self, side: Side) -> Circuit | None:
        """Return the circuit that uses `side`, settled or not."""
        return self._circuits.get(side)

    def pairs(self) -> tuple[Pair, ...]:
        """Return the commanded pairs in the order of the ingress ports' making."""
        return tuple(c.pair for (which, _), c in self._circuits.items() if which == "in")

    def since(self, pair: Pair) -> float | None:
        """Return when `pair` was last made (s), None when it is not."""
        circuit = self._circuits.get(("in", pair[0]))
        return circuit.since_s if circuit and circuit.egress == pair[1] else None

    def why_not(self, pair: Pair) -> str | None:
        """Return why `pair` cannot be made now, None when it can."""
        for side in (("in", pair[0]), ("out", pair[1])):
            if side not in self._known:
                return f"no {side[0]} port {side[1]}"
            if side in self._circuits:
                return f"port {side[1]} in use"
            for reason, sides in (("failed", self.wrong.failed), ("stuck", self.wrong.stuck), ("disabled", self._blocked)):
                if side in sides:
                    return f"port {side[1]} {reason}"
        return None

    def connect(self, pairs: Iterable[Pair], now: float) -> dict[Pair, str]:
        """Make `pairs` together; return the ones not made, with the reason. A pair already made stays as it is."""
        self.advance(now)
        refused: dict[Pair, str] = {}
        made: list[Pair] = []
        for pair in pairs:
            if self.since(pair) is not None:
                continue
            if why := self.why_not(pair):
                refused[pair] = why
                if why.endswith("in use"):
                    self.violations.append(Violation(now, pair, why))
                continue
            circuit = Circuit(*pair, now, now, self._draw_loss(pair))
            self._circuits["in", pair[0]] = self._circuits["out", pair[1]] = circuit
            made.append(pair)
        self._settle(made, now, self._settle_s(len(made)))
        return refused

    def disconnect(self, pairs: Iterable[Pair], now: float) -> dict[Pair, str]:
        """Break `pairs` at once; return the ones not broken, with the reason. A pair that is not made is skipped."""
        self.advance(now)
        refused: dict[Pair, str] = {}
        for pair in pairs:
            if self.since(pair) is None:
                continue
            if ("in", pair[0]) in self.wrong.stuck or ("out", pair[1]) in self.wrong.stuck:
                refused[pair] = "mirror stuck"
                continue
            self._break(pair, now)
        return refused

    def power_cycle(self, now: float) -> None:
        """Lose power: every circuit is gone at once, stuck mirrors too."""
        self.advance(now)
        for pair in self.pairs():
            self._break(pair, now)

    def restore(self, pairs: Iterable[Pair], now: float, after_s: float = 0.0) -> None:
        """Make `pairs` as one set `after_s` from now, whatever is wrong with their ports (firmware turns mirrors blindly)."""
        self.advance(now)
        made = [p for p in pairs if ("in", p[0]) not in self._circuits and ("out", p[1]) not in self._circuits]
        for pair in made:
            circuit = Circuit(*pair, now, now, self._draw_loss(pair))
            self._circuits["in", pair[0]] = self._circuits["out", pair[1]] = circuit
        self._settle(made, now, after_s + self._settle_s(len(made)))

    def preset(self, pairs: Iterable[Pair]) -> None:
        """Make `pairs` as if they had been lit for ever. Raises ValueError when they collide or do not exist."""
        for pair in pairs:
            if why := self.why_not(pair):
                raise ValueError(f"{self.name}: preset {pair[0]}->{pair[1]}: {why}")
            circuit = Circuit(*pair, FOREVER_S, FOREVER_S, self._draw_loss(pair))
            self._circuits["in", pair[0]] = self._circuits["out", pair[1]] = circuit
        self.version += 1

    def set_disabled(self, sides: Iterable[Side], disabled: bool, now: float) -> None:
        """Close or open the ports' shutters; a circuit behind an opened one settles again."""
        self.advance(now)
        for side in sides:
            if disabled:
                self._blocked.add(side)
            elif side in self._blocked:
                self._blocked.discard(side)
                if circuit := self._circuits.get(side):
                    circuit.lit_at_s = now + self.settle_s
                    if circuit not in self._settling:
                        self._settling.append(circuit)
        self.version += 1

    def disabled(self, side: Side) -> bool:
        return side in self._blocked

    # ---- light

    def advance(self, now: float) -> None:
        """Let circuits whose time has come settle."""
        if not self._settling:
            return
        due = [c for c in self._settling if c.lit_at_s <= now]
        if due:
            self._settling = [c for c in self._settling if c.lit_at_s > now]
            self.history.extend(Event(c.lit_at_s, c.pair, "lit") for c in sorted(due, key=lambda c: c.lit_at_s))
            self.version += 1

    def next_event(self, now: float) -> float | None:
        """Return when the next circuit settles (s), None when nothing moves."""
        return min((c.lit_at_s for c in self._settling), default=None)

    def settled(self, circuit: Circuit, now: float) -> bool:
        return circuit.lit_at_s <= now

    def glass(self, now: float) -> frozenset[Pair]:
        """Return the pairs whose mirrors face each other and rest, whatever light there is."""
        self.advance(now)
        return frozenset(c.pair for c in self._each() if c.lit_at_s <= now)

    def lit(self, now: float) -> frozenset[Pair]:
        """Return the pairs that bring light from the fibre at the ingress into the fibre at the egress."""
        self.advance(now)
        if self._lit[0] != self.version:
            self._lit = (self.version, frozenset(c.pair for c in self._each() if self.passes(c, now)))
        return self._lit[1]

    def bright(self, circuit: Circuit, now: float) -> bool:
        """Return whether light comes out of the switch by `circuit`; a fibre broken behind its egress is not seen here."""
        return self.passes(circuit, now, seen_inside=True)

    def passes(self, circuit: Circuit, now: float, *, seen_inside: bool = False) -> bool:
        """Return whether `circuit` is settled and light above the loss-of-signal threshold leaves by its egress fibre."""
        sides = (("in", circuit.ingress), ("out", circuit.egress))
        if circuit.lit_at_s > now or any(s in self._blocked or s in self.wrong.failed for s in sides):
            return False
        if sides[1] in self.wrong.cut and not seen_inside:
            return False
        arriving = self._arriving_dbm(circuit.ingress)
        return arriving is not None and arriving - self._path_loss(circuit) >= self.los_dbm

    def set_input(self, port: str, dbm: float | None) -> None:
        """Say what light the fibre brings to ingress `port` (dBm); None is dark. Unset ports get +0 dBm."""
        if ("in", port) not in self._known:
            raise KeyError(f"{self.name} has no ingress {port}")
        self._input_dbm[port] = dbm
        self.version += 1

    def power_dbm(self, side: Side, now: float) -> float:
        """Return what the power monitor of `side` reads (dBm): bias per port, noise, 0.01 dB steps.

        An egress without a circuit reads the floor exactly; no light reads about `dark_dbm`.
        """
        self.advance(now)
        which, label = side
        power: float | None
        if which == "in":
            power = self._arriving_dbm(label)
        else:
            circuit = self._circuits.get(side)
            if circuit is None:
                return self.floor_dbm
            power = self._arriving_dbm(circuit.ingress)
            blocked = any(s in self._blocked or s in self.wrong.failed for s in (side, ("in", circuit.ingress)))
            if power is None or blocked or circuit.lit_at_s > now:
                power = None
            else:
                power -= self._path_loss(circuit)
        if power is None or power < self.dark_dbm:
            return round(max(self.floor_dbm, self._random.gauss(self.dark_dbm, 1.0)), 2)
        return round(max(self.floor_dbm, power + self._bias[side] + self._random.gauss(0.0, NOISE_DB)), 2)

    def loss_db(self, pair: Pair) -> float | None:
        """Return the insertion loss `pair` was made with (dB, faults not counted), None when it is not made."""
        circuit = self._circuits.get(("in", pair[0]))
        return circuit.loss_db if circuit and circuit.egress == pair[1] else None

    def impair(self, change: Callable[[Impairments], object]) -> None:
        """Change what is wrong with the ports."""
        change(self.wrong)
        self.version += 1

    # ---- inside

    def _each(self) -> Iterable[Circuit]:
        return (c for (which, _), c in self._circuits.items() if which == "in")

    def _settle_s(self, count: int) -> float:
        bulk = self.bulk_settle_s
        return self.settle_s if bulk is None or count <= 2 else max(bulk, self.settle_s)

    def _settle(self, pairs: list[Pair], now: float, settle_s: float) -> None:
        for pair in pairs:
            circuit = self._circuits["in", pair[0]]
            circuit.lit_at_s = now + settle_s
            self._settling.append(circuit)
            self.history.append(Event(now, pair, "making"))
        if pairs:
            self.version += 1
            self.advance(now)

    def _break(self, pair: Pair, now: float) -> None:
        circuit = self._circuits.pop(("in", pair[0]))
        del self._circuits["out", pair[1]]
        self._settling = [c for c in self._settling if c is not circuit]
        self.history.append(Event(now, pair, "broken"))
        self.version += 1

    def _arriving_dbm(self, ingress: str) -> float | None:
        if ("in", ingress) in self.wrong.cut:
            return None
        return self._input_dbm.get(ingress, 0.0)

    def _path_loss(self, circuit: Circuit) -> float:
        extra = self.wrong.extra_loss_db
        return circuit.loss_db + extra.get(("in", circuit.ingress), 0.0) + extra.get(("out", circuit.egress), 0.0)

    def _draw_loss(self, pair: Pair) -> float:
        if pair not in self._loss:  # drawn from the pair's own name, so that the order of making does not matter
            own = random.Random(f"{self.seed}/{self.name}/{pair[0]}>{pair[1]}")
            self._loss[pair] = min(MAX_LOSS_DB, max(0.5, own.gauss(MEAN_LOSS_DB, 0.35)))
            return self._loss[pair]
        shift = max(-REMAKE_LIMIT_DB, min(REMAKE_LIMIT_DB, self._random.gauss(0.0, REMAKE_DB)))
        return self._loss[pair] + shift
