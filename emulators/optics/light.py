"""The optics that every emulated device shares: input power, path loss, meter readings, faults of
ports.

No clock and no socket here: `now` (s, monotonic) is an argument. The model is the same for every
family; its numbers are arguments of the plant where the family's differ.

Power out = power in - loss of the path - attenuation set on purpose. The loss of a path is drawn
once, from a seed and the names of its ends, and drawn again by a little each time it is made
(repeatability). A meter adds a bias of its own and noise and counts in 0.01 dB; the dialects print
what they have in their family's format.
"""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias, TypedDict

Pair: TypeAlias = tuple[str, str]
"""(ingress label, egress label)."""
Band: TypeAlias = tuple[str, str, int, int]
"""(ingress label, egress label, from MHz, to MHz): a passband of a wavelength-selective switch."""
Lit: TypeAlias = Pair | Band
"""A path through a device on which light passes now."""
Side: TypeAlias = tuple[str, str]
"""("in" | "out", label): one side of a port."""

# data sheet figures quoted by the TCD testbed notes on Polatis: 1.5 dB typical, 2.7 dB max
MEAN_LOSS_DB, MAX_LOSS_DB = 1.5, 2.7
# of the paths' losses, as a share of what lies between the mean and the most; the least is a third
# of the mean
SPREAD = 0.35 / 1.2
REMAKE_DB, REMAKE_LIMIT_DB = 0.05, 0.1  # repeatability +-0.1 dB (same notes)
METER_BIAS_DB = 1.0  # power monitor accuracy +-1.0 dB (same notes)
NOISE_DB = 0.02
DARK_DBM = -50.0  # a meter looking at no light, +-1 dB: Glimmerglass driver log shows -48..-52 dBm
FLOOR_DBM = -60.0  # power-low limit in the public ONOS/Polatis NETCONF tests
LOS_DBM = -30.0
DEFAULT_INPUT_DBM = 0.0  # input of an ingress for which none was set
FOREVER_S = -1.0e9  # `since` of circuits that existed before the clock started
# update interval of a drifting connector: no meter shows finer steps
DRIFT_STEP_DB, DRIFT_STEP_S = 0.01, 0.25
FIBRE_DB_PER_KM, CONNECTOR_DB = 0.35, 0.3  # single-mode fibre at 1310 nm (G.652), a good connector


class Beam(NamedTuple):
    """Light of one transmitter. Without edges (0, 0): light of every frequency, `dbm` in whatever
    passband it meets.
    """

    dbm: float
    low_mhz: int = 0
    high_mhz: int = 0

    def weaker(self, db: float) -> Beam:
        return Beam(self.dbm - db, self.low_mhz, self.high_mhz)


@dataclass(frozen=True, slots=True)
class Event:
    """One event of a circuit: `what` is "making", "lit" or "broken"."""

    at_s: float
    pair: Lit
    what: str


@dataclass(frozen=True, slots=True)
class Violation:
    """An attempt to drive a port that already carries another circuit, or two transmitters brought
    to one receiver.
    """

    at_s: float
    pair: Lit
    why: str


@dataclass(slots=True)
class Impairments:
    """The faults of the ports, by side; the fault list owns it."""

    stuck: set[Side] = field(default_factory=set)  # mirror does not move: neither made nor broken
    failed: set[Side] = field(default_factory=set)  # port hardware failed: no light, no new circuit
    cut: set[Side] = field(default_factory=set)  # fibre broken outside the switch
    extra_loss_db: dict[Side, float] = field(default_factory=dict)
    # since when (s), dB per second
    drift: dict[Side, tuple[float, float]] = field(default_factory=dict)
    # by whom: neither made nor broken by anybody else
    locked: dict[Side, str] = field(default_factory=dict)

    def lock(self, pair: Pair) -> str | None:
        """Return why other clients may not touch `pair`, None when it is free."""
        held = next((s for s in (("in", pair[0]), ("out", pair[1])) if s in self.locked), None)
        return f"port {held[1]} locked by {self.locked[held]}" if held else None

    def closed(self, pair: Pair) -> str | None:
        """Return why `pair` cannot be made, None when it can."""
        for side in (("in", pair[0]), ("out", pair[1])):
            for reason, sides in (("failed", self.failed), ("stuck", self.stuck)):
                if side in sides:
                    return f"port {side[1]} {reason}"
        return self.lock(pair)

    def fixed(self, pairs: Iterable[Pair]) -> str | None:
        """Return why `pairs` can be neither made nor broken, None when they can; a port that failed
        does not hold a mirror.
        """
        for pair in pairs:
            if stuck := next(
                (s for s in (("in", pair[0]), ("out", pair[1])) if s in self.stuck), None
            ):
                return f"port {stuck[1]} stuck"
            if why := self.lock(pair):
                return why
        return None


def total_dbm(beams: Iterable[Beam]) -> float | None:
    """Return the power of all beams together, None when there is none."""
    levels = [beam.dbm for beam in beams]
    if len(levels) < 2:
        return levels[0] if levels else None
    return 10.0 * math.log10(sum(10.0 ** (dbm / 10.0) for dbm in levels))


def fibre_loss_db(length_m: float, loss_db: float | None) -> float:
    """Return the loss of a fibre: as measured, or computed from its length and its two
    connectors.
    """
    return FIBRE_DB_PER_KM * length_m / 1000.0 + 2 * CONNECTOR_DB if loss_db is None else loss_db


def coupler_loss_db(fibres: int) -> float:
    """Return the loss of a passive coupler that joins `count` fibres: physics, 10 log10 N."""
    return 10.0 * math.log10(fibres)


class Figures(TypedDict, total=False):
    """The arguments by which a family configures an Optic."""

    bulk_settle_s: float | None
    dark_dbm: float
    floor_dbm: float
    los_dbm: float
    mean_loss_db: float
    max_loss_db: float


class Optic:
    """The common part of all families' plants: ports, their input power, losses, meters,
    impairments, the records.

    settle_s: time from a command to light. bulk_settle_s: the same for a large set, where it
    differs (None: as settle_s). floor_dbm: the least a meter shows; dark_dbm: its reading without
    light; los_dbm: weaker light counts as none.
    """

    def __init__(
        self,
        name: str,
        ingress: Iterable[str],
        egress: Iterable[str],
        settle_s: float,
        seed: int = 0,
        *,
        bulk_settle_s: float | None = None,
        dark_dbm: float = DARK_DBM,
        floor_dbm: float = FLOOR_DBM,
        los_dbm: float = LOS_DBM,
        mean_loss_db: float = MEAN_LOSS_DB,
        max_loss_db: float = MAX_LOSS_DB,
    ) -> None:
        if settle_s < 0 or (bulk_settle_s or 0.0) < 0:
            raise ValueError(
                f"{name}: settle_s: no mirror moves in less than no time, seen {settle_s}, {bulk_settle_s}"
            )
        self.name = name
        self.ingress, self.egress = tuple(ingress), tuple(egress)
        self.settle_s, self.bulk_settle_s, self.seed = settle_s, bulk_settle_s, seed
        self.dark_dbm, self.floor_dbm, self.los_dbm = dark_dbm, floor_dbm, los_dbm
        self.mean_loss_db, self.max_loss_db = mean_loss_db, max_loss_db
        self.wrong = Impairments()
        self.deaf = False  # orders are taken and nothing moves (fault silent-failure)
        self.writes = 0  # commands that change the device, counted by the dialect
        self.history: deque[Event] = deque(maxlen=100_000)
        self.violations: list[Violation] = []
        self.version = 0  # moves whenever `lit` or `leaving` may have changed
        # variable attenuators at ports and their attenuation, dB
        self.attenuators: dict[Side, float] = {}
        self._known: set[Side] = {("in", p) for p in self.ingress} | {
            ("out", p) for p in self.egress
        }
        self._blocked: set[Side] = set()
        self._beams: dict[str, tuple[Beam, ...]] = {}
        self._loss: dict[Pair, float] = {}
        self._random = random.Random(f"{seed}/{name}")
        self._bias = {
            side: self._random.uniform(-METER_BIAS_DB, METER_BIAS_DB)
            for side in sorted(self._known)
        }
        self._drift_due_s = math.inf

    # ---- what the server, the lab and the base dialect require of every plant

    def lit(self, now: float) -> frozenset[Lit]:
        """Return the paths that bring light from the fibre at the ingress into the fibre at the
        egress.
        """
        raise AssertionError("a plant says itself what is lit")

    def leaving(self, egress: str, now: float) -> tuple[Beam, ...]:
        """Return the light that goes into the fibre at `egress`."""
        raise AssertionError("a plant says itself what leaves it")

    def power_cycle(self, now: float) -> None:
        """Lose power: all light is gone at once."""
        raise AssertionError("a plant says itself what it loses")

    def next_event(self, now: float) -> float | None:
        """Return when light changes next by itself (s), None when nothing moves."""
        return self._drift_due_s if self.wrong.drift else None

    def advance(self, now: float) -> None:
        """Carry out all that is due."""
        if now >= self._drift_due_s:
            self._drift_due_s = now + self._drift_step_s() if self.wrong.drift else math.inf
            self.version += 1

    def sides(self, port: str) -> tuple[Side, ...]:
        """Return the sides meant by "17", or by "1.1.1", "1.1.1/in", "1.1.1/out" on a duplex
        faceplate. Raises KeyError.
        """
        label, _, which = port.rpartition("/") if port.endswith(("/in", "/out")) else (port, "", "")
        found = tuple(
            s for s in (("in", label), ("out", label)) if s in self._known and which in ("", s[0])
        )
        if not found:
            raise KeyError(f"{self.name} has no port {port}")
        return found

    def disabled(self, side: Side) -> bool:
        """Return whether a port is shut by command."""
        return side in self._blocked

    def set_input(self, port: str, dbm: float | None) -> None:
        """Set the power that the fibre brings to ingress `port` (dBm); None is dark. Unset ports
        get +0 dBm. Raises KeyError.
        """
        self.set_beams(port, () if dbm is None else (Beam(dbm),))

    def set_beams(self, port: str, beams: tuple[Beam, ...]) -> None:
        """Set the power, by frequency, that the fibre brings to ingress `port`. Raises KeyError."""
        if ("in", port) not in self._known:
            raise KeyError(f"{self.name} has no ingress {port}")
        if self._beams.get(port) != beams:
            self._beams[port] = beams
            self.version += 1

    def impair(self, change: Callable[[Impairments], object]) -> None:
        """Change the faults of the ports."""
        change(self.wrong)
        self.version += 1

    def drift(self, sides: Iterable[Side], db_per_hour: float | None, now: float) -> None:
        """Let the connectors at `sides` lose more and more light from now on; None cleans them."""
        for side in sides:
            if db_per_hour is None:
                self.wrong.drift.pop(side, None)
            else:
                self.wrong.drift[side] = (now, db_per_hour / 3600.0)
        self._drift_due_s = now + self._drift_step_s() if self.wrong.drift else math.inf
        self.version += 1

    # ---- for the plants

    def arriving(self, ingress: str) -> tuple[Beam, ...]:
        """Return the light at `ingress`, none when its fibre is broken."""
        if ("in", ingress) in self.wrong.cut:
            return ()
        return self._beams.get(ingress, (Beam(DEFAULT_INPUT_DBM),))

    def _extra_db(self, pair: Pair, now: float) -> float:
        """Return the further losses of a path: attenuation set on purpose, loss added at its ports,
        and what has drifted since.
        """
        wrong = self.wrong
        if not wrong.extra_loss_db and not wrong.drift and not self.attenuators:
            return 0.0
        sides: tuple[Side, Side] = (("in", pair[0]), ("out", pair[1]))
        return sum(
            self.attenuators.get(side, 0.0) + self._spoiled_db(wrong, side, now) for side in sides
        )

    def attenuate(self, side: Side, db: float) -> None:
        """Set the variable attenuator at `side`; 0 removes it."""
        if db > 0.0:
            self.attenuators[side] = db
        else:
            self.attenuators.pop(side, None)
        self.version += 1

    @staticmethod
    def _spoiled_db(wrong: Impairments, side: Side, now: float) -> float:
        since_s, db_per_s = wrong.drift.get(side, (now, 0.0))
        return wrong.extra_loss_db.get(side, 0.0) + max(0.0, now - since_s) * db_per_s

    def _set_settle_s(self, count: int) -> float:
        """Return the time (s) from a command to make so many paths together until there is
        light.
        """
        bulk = self.bulk_settle_s
        return self.settle_s if bulk is None or count <= 2 else max(bulk, self.settle_s)

    def _reading(self, side: Side, dbm: float | None) -> float:
        """Return the reading of the meter of `side` for this power: bias per port, noise, 0.01 dB
        steps, a floor.
        """
        if dbm is None or dbm < self.dark_dbm:
            return round(max(self.floor_dbm, self._random.gauss(self.dark_dbm, 1.0)), 2)
        return round(
            max(self.floor_dbm, dbm + self._bias[side] + self._random.gauss(0.0, NOISE_DB)), 2
        )

    def _draw_loss(self, pair: Pair) -> float:
        """Return the loss of a path that is being made: its own loss, the first time; a little more
        or less the next times.
        """
        # drawn from the pair's own name, so that the order of making does not matter
        if pair not in self._loss:
            own = random.Random(f"{self.seed}/{self.name}/{pair[0]}>{pair[1]}")
            drawn = own.gauss(self.mean_loss_db, SPREAD * (self.max_loss_db - self.mean_loss_db))
            self._loss[pair] = min(self.max_loss_db, max(self.mean_loss_db / 3, drawn))
            return self._loss[pair]
        shift = max(-REMAKE_LIMIT_DB, min(REMAKE_LIMIT_DB, self._random.gauss(0.0, REMAKE_DB)))
        return self._loss[pair] + shift

    def _drift_step_s(self) -> float:
        fastest = max((abs(rate) for _, rate in self.wrong.drift.values()), default=0.0)
        return max(DRIFT_STEP_S, DRIFT_STEP_DB / fastest) if fastest else math.inf


def edges_mhz(n: int, m: int) -> tuple[int, int]:
    """Return the edges of a slot of the flexible grid: centre 193.1 THz + n x 6.25 GHz, width m x
    12.5 GHz (ITU-T G.694.1).
    """
    return 193_100_000 + 6_250 * (n - m), 193_100_000 + 6_250 * (n + m)


def holds(path: Lit, slot: tuple[int, int] | None) -> bool:
    """Return whether a transmitter's light passes `path` whole. Light of unknown frequency (None)
    passes no passband.
    """
    return len(path) == 2 or (slot is not None and path[2] <= slot[0] and slot[1] <= path[3])
