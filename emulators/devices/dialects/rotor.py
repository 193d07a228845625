"""A rotor: a switch that stores matchings and turns through them by its own clock. Assumed: no
vendor.

Nobody sells such a device with a public interface; this is a reading of RotorNet (SIGCOMM 2017) and
Opera (NSDI 2020), and every word of the dialect is this project's own. It is specified in
docs/reference/rotor-dialect.md.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from emulators.devices.dialects.base import Dialect, Session
from emulators.devices.dialects.polatis_scpi import numbered
from emulators.devices.family import Family
from emulators.optics.plant import Pair, Side
from emulators.optics.rotor_schedule import Map, RotorSchedule
from emulators.optics.rotorplant import NS, RotorPlant

UNKNOWN, ARGUMENTS, NO_PORT, NO_SLOT, RANGE = 10, 11, 12, 13, 14
ROTATING, NO_PROGRAM, NOT_BEGUN, NOT_ROTATING, TOO_SOON = 20, 21, 22, 23, 24
IN_USE, TWICE, LOCKED, HARDWARE, REFUSED = 30, 31, 32, 40, 50
MOST_SLOTS, MOST_US = 64, 3_600_000_000
US = 1_000_000
LEAST_DWELL_US = 100  # shorter slots are not to be had on a general-purpose machine
State = tuple[tuple[Pair, ...], tuple[Pair, ...]]


class RotorError(Exception):
    """The command is refused: `code` and why."""

    def __init__(self, code: int, why: str) -> None:
        super().__init__(code, why)
        self.code, self.why = code, why


@dataclass(frozen=True, slots=True)
class Program:
    """The matchings stored, and their times (us)."""

    dwell_us: int
    dark_window_us: int
    slots: tuple[Map, ...]

    @property
    def crc(self) -> str:
        """CRC-32 of the program's text."""
        lines = [f"{len(self.slots)} {self.dwell_us} {self.dark_window_us}"]
        lines += [f"{number} {written(slot)}" for number, slot in enumerate(self.slots)]
        return f"{zlib.crc32(''.join(f'{line}' + chr(10) for line in lines).encode()):08x}"


@dataclass(slots=True)
class Draft:
    """A program being loaded."""

    dwell_us: int
    dark_window_us: int
    slots: list[Map]


def written(pairs: Iterable[Pair]) -> str:
    """Return circuits as the device writes them."""
    return " ".join(f"{i}>{e}" for i, e in sorted(pairs, key=lambda pair: int(pair[0]))) or "-"


class Rotor(Dialect[State]):
    """One rotor. dark_window_us: the shortest night. carriers_from_s: the shortest dwell (s) at
    which hosts' ports lose carrier.
    """

    writes = re.compile(
        r"^\s*(#\d+\s+)?(SET|CLEAR|GOTO|STEP|START|STOP|LOAD\s+END)\b", re.IGNORECASE
    )

    def __init__(
        self,
        plant: RotorPlant,
        *,
        model: str = "rotor",
        serial: str = "R0001",
        firmware: str = "1.0",
        dark_window_us: int = 20,
        carriers_from_s: float = 0.1,
        seed: int = 0,
        idle_s: float | None = None,
        boot_s: float = 1.0,
    ) -> None:
        super().__init__(plant, seed=seed, idle_s=idle_s, boot_s=boot_s)
        self.plant: RotorPlant = plant
        plant.carriers_from_s = carriers_from_s
        self.model, self.serial, self.firmware, self.dark_window_us = (
            model,
            serial,
            firmware,
            dark_window_us,
        )
        self.program: Program | None = None
        # that it rests in, or is on its way to; None: the map was made by hand
        self.slot: int | None = None
        self._phase = (0.0, 0.0)  # when the order came that it rests by, and when its light did (s)
        self._ahead_s = self._random.uniform(10.0, 1000.0)  # of its clock before the server's
        self._drafts: dict[int, Draft] = {}
        self._verbs: dict[str, Callable[[Session, list[str], float], list[str]]] = {
            "ID?": lambda session, tokens, now: [
                f"ID assumed,{self.model},{self.serial},{self.firmware}"
            ],
            "PORTS?": lambda session, tokens, now: [
                f"PORTS {len(self.plant.ingress)} {len(self.plant.egress)}"
            ],
            "LIMITS?": lambda session, tokens, now: [self._limits()],
            "MAP?": self._map,
            "SET": self._set,
            "CLEAR": self._clear,
            "LOAD": self._load,
            "PROGRAM?": self._program,
            "GOTO": self._goto,
            "STEP": self._step,
            "START": self._start,
            "STOP": self._stop,
            "POS?": self._position,
            "CLOCK?": lambda session, tokens, now: [f"CLOCK {self._clock(now)}"],
            "STATS?": self._statistics,
            "POWER?": self._power,
        }

    def preset(self, ingress: str, egress: str) -> None:
        """Make a pair as if it had been there for ever. Raises ValueError."""
        self.plant.preset([(ingress, egress)])

    # ---- the manner

    def split(self, session: Session) -> list[str]:
        if b"\n" not in session.buffer:
            return []
        *lines, session.buffer = session.buffer.split(b"\n")
        return [text for line in lines if (text := line.decode("latin-1").strip())]

    def execute(self, session: Session, command: str, now: float) -> bytes:
        tag, tokens = _tagged(command)
        try:
            handler = self._verbs.get(tokens[0].upper()) if tokens else None
            if handler is None:
                raise RotorError(UNKNOWN, "unknown command " + " ".join(tokens)[:40])
            lines = handler(session, tokens[1:], now)
            if not lines or not lines[-1].startswith("ERR "):
                lines.append("OK")
        except RotorError as error:
            lines = [f"ERR {error.code} {error.why}"]
        return self._reported(tag, lines)

    def refuse(self, session: Session, command: str, now: float) -> bytes:
        return self._reported(_tagged(command)[0], [f"ERR {REFUSED} refused"])

    def unsolicited(self, now: float) -> bytes:
        return b"! door opened\n"

    def snapshot(self, now: float) -> State:
        light = self.plant.light(now)
        return tuple(light), tuple(pair for pair in self.plant.pairs() if pair not in light)

    def close(self, session: Session) -> None:
        super().close(session)
        self._drafts.pop(session.number, None)

    def rebooted(self, keep: bool, now: float) -> None:
        """It comes back dark and at rest; the program is stored, unless it is lost."""
        self.slot, self._phase = None, (now, now)
        if not keep:
            self.program = None

    def step_clock(self, seconds: float) -> None:
        """Its clock jumps; it turns as it turned."""
        self._ahead_s += seconds

    def on_light(self, now: float) -> None:
        for pair, why in self.plant.missing:
            for session in self.sessions:
                self.send(session, now, f"! {pair[0]}>{pair[1]} not made: {why}\n".encode())
        self.plant.missing.clear()

    def _reported(self, tag: str, lines: Iterable[str]) -> bytes:
        return "".join(
            f"{tag}{''.join(c if ' ' <= c <= '~' else '?' for c in line)}\n" for line in lines
        ).encode()

    # ---- circuits by hand

    def _map(self, session: Session, tokens: list[str], now: float) -> list[str]:
        settled, moving = self.view(now)
        return [f"MAP {written(settled)}", f"MOVING {written(moving)}"]

    def _set(self, session: Session, tokens: list[str], now: float) -> list[str]:
        pairs = self.some(self._pairs(tokens))
        self._at_rest()
        sides: set[Side] = {side for i, e in pairs for side in (("in", i), ("out", e))}
        for side in sorted(sides):
            existing = self.plant.circuit(side)
            if existing is not None and existing.pair not in pairs:
                # a violation
                self.plant.connect(
                    [pair for pair in pairs if side in (("in", pair[0]), ("out", pair[1]))][:1], now
                )
                raise RotorError(
                    IN_USE, f"port {side[1]} in use by {existing.ingress}>{existing.egress}"
                )
        self._unlocked(pair for pair in pairs if self.plant.since(pair) is None)
        return self._by_hand(self.plant.connect, pairs, now)

    def _clear(self, session: Session, tokens: list[str], now: float) -> list[str]:
        pairs = list(self.plant.pairs()) if tokens == ["*"] else self._pairs(tokens)
        self._at_rest()
        self._unlocked(pair for pair in pairs if self.plant.since(pair) is not None)
        return self._by_hand(self.plant.disconnect, self.some(pairs), now)

    def _by_hand(
        self,
        change: Callable[[Iterable[Pair], float], dict[Pair, str]],
        pairs: list[Pair],
        now: float,
    ) -> list[str]:
        self.wrote(now)
        failed = change(pairs, now)
        if not self.silent:
            self.slot, self._phase = None, (now, now)
        lines = [f"FAILED {i}>{e} {HARDWARE} {why}" for (i, e), why in failed.items()]
        return [*lines, f"ERR {HARDWARE} partly done"] if lines else []

    def _unlocked(self, pairs: Iterable[Pair]) -> None:
        for pair in pairs:
            if why := self.plant.wrong.lock(pair):
                raise RotorError(LOCKED, why)

    def _at_rest(self) -> None:
        if self.plant.schedule is not None:
            raise RotorError(ROTATING, "turning: STOP first")

    # ---- the program

    def _limits(self) -> str:
        settle_us = round(self.plant.settle_s * US)
        dwell, dark_window = f"{LEAST_DWELL_US}-{MOST_US}", f"{self.dark_window_us}-{MOST_US}"
        return f"LIMITS slots={MOST_SLOTS} dwell_us={dwell} dark_window_us={dark_window} settle_us={settle_us}"

    def _load(self, session: Session, tokens: list[str], now: float) -> list[str]:
        draft = self._drafts.get(session.number)
        verb = tokens[0].upper() if tokens else ""
        if verb not in ("BEGIN", "SLOT", "END", "ABORT"):
            raise RotorError(ARGUMENTS, "wanted LOAD BEGIN, SLOT, END or ABORT")
        if verb == "ABORT":
            self._drafts.pop(session.number, None)
            return []
        if verb == "BEGIN":
            self._at_rest()
            slots, dwell_us, dark_window_us = (_number(word) for word in _exactly(3, tokens[1:]))
            _within("slots", slots, 1, MOST_SLOTS)
            _within("dwell_us", dwell_us, LEAST_DWELL_US, MOST_US)
            _within("dark_window_us", dark_window_us, self.dark_window_us, MOST_US)
            self._drafts[session.number] = Draft(dwell_us, dark_window_us, [frozenset()] * slots)
            return []
        if draft is None:
            raise RotorError(NOT_BEGUN, "no LOAD BEGIN on this connection")
        if verb == "SLOT":
            number = _number(tokens[1] if len(tokens) > 1 else "")
            if number >= len(draft.slots):
                raise RotorError(NO_SLOT, f"no slot {number}: there are {len(draft.slots)}, from 0")
            draft.slots[number] = frozenset(self._pairs(tokens[2:]))
            return []
        self._at_rest()
        self.wrote(now)
        program = Program(draft.dwell_us, draft.dark_window_us, tuple(draft.slots))
        del self._drafts[session.number]
        if not self.silent:
            self.program, self.slot, self._phase = program, None, (now, now)
        return [f"LOADED {program.crc}"]

    def _program(self, session: Session, tokens: list[str], now: float) -> list[str]:
        stored = self.program
        if stored is None:
            return ["PROGRAM -"]
        first = (
            f"PROGRAM {len(stored.slots)} {stored.dwell_us} {stored.dark_window_us} {stored.crc}"
        )
        return [
            first,
            *(f"SLOT {number} {written(slot)}" for number, slot in enumerate(stored.slots)),
        ]

    # ---- turning

    def _goto(self, session: Session, tokens: list[str], now: float) -> list[str]:
        (word,) = _exactly(1, tokens)
        return self._rotate_to(_number(word), now)

    def _step(self, session: Session, tokens: list[str], now: float) -> list[str]:
        _exactly(0, tokens)
        stored = self._stored()
        return self._rotate_to(0 if self.slot is None else (self.slot + 1) % len(stored.slots), now)

    def _rotate_to(self, slot: int, now: float) -> list[str]:
        stored = self._stored(slot)
        self._at_rest()
        self.wrote(now)
        at_us = self._clock(now) + stored.dark_window_us
        if not self.silent:
            self.plant.rotate_to(stored.slots[slot], now, self._s(at_us))
            self.slot, self._phase = slot, (now, self._s(at_us))
        return [f"AT {at_us}"]

    def _start(self, session: Session, tokens: list[str], now: float) -> list[str]:
        numbers, at = list(tokens), None
        if len(tokens) >= 2 and tokens[-2].upper() == "AT":
            numbers, at = tokens[:-2], _number(tokens[-1])
        if len(numbers) > 1:
            raise RotorError(ARGUMENTS, "wanted START [slot] [AT clock_us]")
        first = _number(numbers[0]) if numbers else self.slot or 0
        stored = self._stored(first)
        self._at_rest()
        present = (
            self.slot == first
            and self._phase[1] <= now
            and set(self.plant.pairs()) == stored.slots[first]
        )
        soonest = self._clock(now) + (0 if present and at is None else stored.dark_window_us)
        if at is not None and at < soonest:
            raise RotorError(TOO_SOON, f"AT {at} is too soon: {soonest} or later")
        if at is not None:
            _within("AT", at, soonest, soonest + MOST_US)
        if self.plant.cannot_gate and stored.dwell_us < self.plant.carriers_from_s * US:
            raise RotorError(REFUSED, f"this lab cannot turn so fast: {self.plant.cannot_gate}")
        self.wrote(now)
        start_us = soonest if at is None else at
        if not self.silent:
            start_ns = round(self._s(start_us) * NS)
            self.plant.start(
                RotorSchedule(
                    start_ns,
                    stored.dwell_us * 1000,
                    stored.dark_window_us * 1000,
                    stored.slots,
                    first,
                ),
                now,
            )
            self._phase = (now, now)
        return [f"STARTED {start_us}"]

    def _stop(self, session: Session, tokens: list[str], now: float) -> list[str]:
        _exactly(0, tokens)
        schedule = self.plant.schedule
        if schedule is None:
            raise RotorError(NOT_ROTATING, "not turning")
        self.wrote(now)
        moment = schedule.moment(round(now * NS))
        lit_s = now if moment.day else moment.until_ns / NS
        if not self.silent:
            self.plant.stop(now)
            if moment.step >= 0:
                self.slot = schedule.slot(moment.step)
            self._phase = (now, lit_s)
        return [f"AT {self._us(lit_s)}"]

    def _position(self, session: Session, tokens: list[str], now: float) -> list[str]:
        schedule = self.plant.schedule
        since_s, lit_s = self._phase
        if schedule is None:
            state = ("MANUAL", "-") if self.slot is None else ("STOPPED", str(self.slot))
            if now < lit_s:
                return [f"POS {state[0]} {state[1]} NIGHT 0 {self._us(since_s)} {self._us(lit_s)}"]
            return [f"POS {state[0]} {state[1]} DAY 0 {self._us(lit_s)} -"]
        moment = schedule.moment(round(now * NS))
        until_us = self._us(moment.until_ns / NS)
        if moment.step < 0:
            return [f"POS WAITING {schedule.first} DAY 0 {self._us(since_s)} {until_us}"]
        phase, cycle = "DAY" if moment.day else "NIGHT", moment.step // len(schedule.slots)
        return [
            f"POS TURNING {schedule.slot(moment.step)} {phase} {cycle} {self._us(moment.since_ns / NS)} {until_us}"
        ]

    def _statistics(self, session: Session, tokens: list[str], now: float) -> list[str]:
        self.plant.advance(now)
        return [
            f"STATS turns={self.plant.steps} late={self.plant.late} worst_us={round(self.plant.worst_s * US)}"
        ]

    def _power(self, session: Session, tokens: list[str], now: float) -> list[str]:
        ports = [*self.plant.ingress, *self.plant.egress]
        if unknown := [word for word in tokens if word not in ports]:
            raise RotorError(NO_PORT, f"no port {unknown[0][:20]}")
        shown = []
        for port in tokens or ports:
            which = "in" if port in self.plant.ingress else "out"
            shown.append(f"POWER {port} {self.plant.power_dbm((which, port), now):.2f}")
        return shown

    # ---- words and times

    def _stored(self, slot: int = 0) -> Program:
        if self.program is None:
            raise RotorError(NO_PROGRAM, "no program")
        if slot >= len(self.program.slots):
            raise RotorError(
                NO_SLOT, f"no slot {slot}: there are {len(self.program.slots)}, from 0"
            )
        return self.program

    def _pairs(self, tokens: list[str]) -> list[Pair]:
        if not tokens:
            raise RotorError(ARGUMENTS, "wanted pairs, or - for none")
        if tokens == ["-"]:
            return []
        pairs = list(dict.fromkeys(_pair(word) for word in tokens))
        for ingress, egress in pairs:
            if ingress not in self.plant.ingress or egress not in self.plant.egress:
                raise RotorError(NO_PORT, f"no ingress {ingress} or no egress {egress}")
        for ports in zip(*pairs, strict=True):
            if twice := [port for port in ports if ports.count(port) > 1]:
                raise RotorError(TWICE, f"port {twice[0]} twice")
        return pairs

    def _clock(self, now: float) -> int:
        """What the device's clock shows now: the last whole microsecond, so that nothing ordered
        from now on lies ahead.
        """
        return int((now + self._ahead_s) * US)

    def _us(self, at_s: float) -> int:
        """The device's clock at `at_s` of the server's, a time that was a whole microsecond."""
        return round((at_s + self._ahead_s) * US)

    def _s(self, clock_us: int) -> float:
        return clock_us / US - self._ahead_s


def _tagged(command: str) -> tuple[str, list[str]]:
    tokens = command.split()
    if tokens and re.fullmatch(r"#[0-9]{1,9}", tokens[0]):
        return f"{tokens[0]} ", tokens[1:]
    return "", tokens


def _pair(word: str) -> Pair:
    match = re.fullmatch(r"([1-9][0-9]{0,5})>([1-9][0-9]{0,5})", word)
    if match is None:
        raise RotorError(ARGUMENTS, f"no pair {word[:40]}")
    return match[1], match[2]


def _number(word: str) -> int:
    if not re.fullmatch(r"[0-9]{1,18}", word):
        raise RotorError(ARGUMENTS, f"no number {word[:20]!r}")
    return int(word)


def _exactly(count: int, tokens: list[str]) -> list[str]:
    if len(tokens) != count:
        raise RotorError(ARGUMENTS, f"wanted {count} arguments, seen {len(tokens)}")
    return tokens


def _within(what: str, number: int, least: int, most: int) -> None:
    if not least <= number <= most:
        raise RotorError(RANGE, f"{what} {number}: {least} to {most}")


FAMILY = Family("rotor", ("tcp",), Rotor, numbered, settle_s=0.01, plant=RotorPlant, rotates=True)
