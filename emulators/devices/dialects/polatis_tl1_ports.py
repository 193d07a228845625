"""The ports of a Polatis switch over TL1: shutters, meters, labels, flaps, attenuators.

Grades as in polatis_tl1. CODE: `OPEN` and `CLOSED`, the codes of denials (a test suite of the
vendor); rows `"2:label"` (a public client reads them); off-time, on-time and cycles of a flap, in
this order (a public script's help). U: how a flap is listed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from emulators.devices.dialects.base import Session
from emulators.devices.dialects.polatis_port import Attenuator, Flap, Monitor, metered, number_of
from emulators.devices.dialects.tl1 import (
    MOST_LISTED,
    Command,
    Denied,
    Reply,
    Tl1Dialect,
    Verb,
    Writer,
)
from emulators.optics.plant import Pair, Plant, Side

MOST_LABEL = 25  # characters (CODE: 26 are denied)
NO_LABEL = frozenset("@#$")  # CODE: denied


class PolatisPorts(Tl1Dialect[tuple[Pair, ...]]):
    """What each port is and has. bad_port: the code that denies a port that is not there. all_aid:
    `ALL` names every port.
    """

    def __init__(
        self,
        plant: Plant,
        writer: Writer,
        account: tuple[str, str],
        *,
        model: str,
        voa: bool,
        row_delay_s: float,
        bad_port: str,
        all_aid: bool,
        seed: int,
        idle_s: float | None,
        boot_s: float,
    ) -> None:
        super().__init__(plant, writer, account, seed=seed, idle_s=idle_s, boot_s=boot_s)
        self.model, self.voa, self.row_delay_s, self.bad_port, self.all_aid = (
            model,
            voa,
            row_delay_s,
            bad_port,
            all_aid,
        )
        self.labels: dict[str, str] = {}
        self.monitors: dict[str, Monitor] = {}
        self.attenuators: dict[str, Attenuator] = {}
        self.flaps: dict[str, Flap] = {}
        self._hold_changed = False  # an attenuator moved since the last tick
        self._side: dict[str, Side] = {p: ("in", p) for p in plant.ingress} | {
            p: ("out", p) for p in plant.egress
        }
        self.port_verbs: Mapping[str, Verb] = {
            "OPR-PORT-SHUTTER": lambda session, asked, now: self._shutter(asked, True, now),
            "RLS-PORT-SHUTTER": lambda session, asked, now: self._shutter(asked, False, now),
            "RTRV-PORT-SHUTTER": lambda session, asked, now: self._rows(
                session, asked, self._shutter_row, now
            ),
            "RTRV-PORT-POWER": lambda session, asked, now: self._rows(
                session, asked, self._power_row, now
            ),
            "RTRV-PORT-PMON": lambda session, asked, now: self._rows(
                session, asked, self._monitor_row, now
            ),
            "SET-PORT-PMON": self._set_monitor,
            "ED-PORT-LABEL": self._label,
            "DLT-PORT-LABEL": self._unlabel,
            "RTRV-PORT-LABEL": lambda session, asked, now: self._rows(
                session, asked, self._label_row, now
            ),
            "ENT-PORT-FLAP": self._flap_entered,
            "OPR-PORT-FLAP": lambda session, asked, now: self._flap(asked, True, now),
            "RLS-PORT-FLAP": lambda session, asked, now: self._flap(asked, False, now),
            "RTRV-PORT-FLAP": self._flap_rows,
            "SET-PORT-ATTEN": self._set_attenuation,
            "RTRV-PORT-ATTEN": lambda session, asked, now: self._rows(
                session, asked, self._attenuation_row, now
            ),
        }

    # ---- time and light

    def tick(self, now: float) -> None:
        for port, flap in self.flaps.items():
            if (dark := flap.toggled(now)) is not None and not flap.was_shut:
                self.plant.set_disabled([self._side[port]], dark, now)
        self._hold_changed = False
        super().tick(now)

    def next_event(self, now: float) -> float | None:
        times = [
            t
            for t in (super().next_event(now), *(f.next_s for f in self.flaps.values()))
            if t is not None
        ]
        if self._hold_changed:  # the light is to be re-evaluated
            times.append(now)
        return min(times, default=None)

    def on_light(self, now: float) -> None:
        self._hold_levels(now)

    # ---- which ports

    def everyone(self, asked: Command) -> bool:
        """Return whether a command is about every port: no AID or, newer software only, `ALL`
        (REAL).
        """
        return not asked.aid or (self.all_aid and asked.aid.upper() == "ALL")

    def known(self, label: str) -> Side:
        """Return the side of a port. Raises Denied."""
        side = self._side.get(label.strip())
        if side is None:
            # REAL with IIAC, CODE with IDNV
            raise Denied(self.bad_port, f"Invalid OXC port: {label.strip()[:20]}")
        return side

    def listed(self, text: str) -> list[Side]:
        """Return the sides of a list `1&4&&7`. Raises Denied."""
        if not text.strip():
            raise Denied("IIAC", "Empty parameters")  # CODE
        found: list[Side] = []
        for part in text.replace("&&", "~").split("&"):
            ends = [int(self.known(end)[1]) for end in part.split("~")]
            if len(ends) > 2 or ends[0] > ends[-1] or ends[-1] - ends[0] + len(found) > MOST_LISTED:
                raise Denied("IIAC", f"Invalid AID {text[:40]}")
            found += [self.known(str(port)) for port in range(ends[0], ends[-1] + 1)]
        return found

    def _rows(
        self, session: Session, asked: Command, row: Callable[[Side, float], str | None], now: float
    ) -> Reply:
        """One row per port asked for; a port that has no such thing has no row, and if none has it
        the question is denied (U).
        """
        sides = list(self._side.values()) if self.everyone(asked) else self.listed(asked.aid)
        rows = [text for side in sides if (text := row(side, now)) is not None]
        if sides and not rows:
            raise Denied("ENEQ", "Not equipped")
        session.delay_s = self.row_delay_s * len(rows)
        return Reply(rows)

    # ---- shutters and meters

    def _shutter(self, asked: Command, shut: bool, now: float) -> Reply:
        sides = self.listed(asked.aid)
        self.wrote(now)
        self.plant.set_disabled(self.some(sides), shut, now)
        return Reply()

    def _shutter_row(self, side: Side, now: float) -> str:
        """`FAILED` is U: over SCPI a port has these three states (DOC notes)."""
        if side in self.plant.wrong.failed:
            return f"{side[1]}:FAILED"
        return f"{side[1]}:{'CLOSED' if self.plant.disabled(side) else 'OPEN'}"

    def _power_row(self, side: Side, now: float) -> str | None:
        return (
            f"{side[1]}:{self.plant.power_dbm(side, now):.2f}"
            if metered(self.model, side)
            else None
        )

    def _monitor_row(self, side: Side, now: float) -> str | None:
        return (
            f"{side[1]}:{self.monitors.get(side[1], Monitor())}"
            if metered(self.model, side)
            else None
        )

    def _set_monitor(self, session: Session, asked: Command, now: float) -> Reply:
        """`wave` is CODE; `offset` and `avgtime` are named after the columns of the answer (U)."""
        sides, options = self.listed(asked.aid), asked.options
        if not options or set(options) - {"WAVE", "OFFSET", "AVGTIME"}:
            raise Denied("IDNV", "Invalid data")
        values = {key: number_of(text) for key, text in options.items()}
        if any(value is None for value in values.values()):
            raise Denied("IDNV", "Invalid data")
        if any(not metered(self.model, side) for side in sides):
            raise Denied("ENEQ", "Not equipped")
        self.wrote(now)
        for _, label in () if self.silent else self.some(sides):
            self.monitors[label] = self.monitors.get(label, Monitor()).changed(values)
        return Reply()

    # ---- labels

    def _label(self, session: Session, asked: Command, now: float) -> Reply:
        """One label for all, or as many as ports, parted by `&` (CODE)."""
        sides, text = self.listed(asked.aid), asked.options.get("LABEL")
        given = (
            []
            if text is None
            else text.split("&")
            if text.count("&") + 1 == len(sides)
            else [text] * len(sides)
        )
        if not given or any(len(label) > MOST_LABEL or NO_LABEL & set(label) for label in given):
            raise Denied("IPNV", "Parameter not valid")
        self.wrote(now)
        if not self.silent:
            self.labels |= {port: label for (_, port), label in zip(sides, given, strict=True)}
        return Reply()

    def _unlabel(self, session: Session, asked: Command, now: float) -> Reply:
        sides = self.listed(asked.aid)
        self.wrote(now)
        for _, port in () if self.silent else sides:
            self.labels.pop(port, None)
        return Reply()

    def _label_row(self, side: Side, now: float) -> str:
        return f"{side[1]}:{self.labels.get(side[1], '')}"

    # ---- flaps: the switch's own fault injection

    def _flap_entered(self, session: Session, asked: Command, now: float) -> Reply:
        """ENT-PORT-FLAP::10:c::1000,500,1: dark for so long (ms), then open for so long, how often;
        0 for ever (U).

        CODE: pypolatis parts the three by `&`.
        """
        sides = self.listed(asked.aid)
        given = "".join(asked.blocks[1:2]).replace("&", ",").split(",")
        numbers = [n for item in given if (n := number_of(item)) is not None]
        if len(given) != 3 or len(numbers) != 3:
            raise Denied("IDNV", "Invalid data")
        dark_ms, open_ms, times = numbers
        if (
            not 0 < dark_ms <= 3.6e6
            or not 0 < open_ms <= 3.6e6
            or dark_ms + open_ms < 10
            or not 0 <= times <= 1e6
        ):
            raise Denied("IDNV", "Invalid data")
        self.wrote(now)
        for _, label in () if self.silent else sides:
            self._stop_flap(label, now)
            self.flaps[label] = Flap((dark_ms + open_ms) / 1000, dark_ms / 1000, int(times))
        return Reply()

    def _flap_rows(self, session: Session, asked: Command, now: float) -> Reply:
        """Those that were entered, in the words of ENT-PORT-FLAP (U)."""
        sides = list(self._side.values()) if self.everyone(asked) else self.listed(asked.aid)
        return Reply([f"{port}:{self.flaps[port]}" for _, port in sides if port in self.flaps])

    def _flap(self, asked: Command, start: bool, now: float) -> Reply:
        sides = self.listed(asked.aid)
        for side in sides:
            if side[1] not in self.flaps:
                raise Denied("SNVS", f"No flap entered for {side[1]}")
        self.wrote(now)
        for side in () if self.silent else sides:
            if start:
                self.flaps[side[1]].start(now, self.plant.disabled(side))
            else:
                self._stop_flap(side[1], now)
        self.tick(now)
        return Reply()

    def _stop_flap(self, label: str, now: float) -> None:
        flap = self.flaps.get(label)
        if flap is not None and flap.stop() and not flap.was_shut:
            self.plant.set_disabled([self._side[label]], False, now)

    # ---- variable attenuators

    def _set_attenuation(self, session: Session, asked: Command, now: float) -> Reply:
        """SET-PORT-ATTEN::33:c:::MODE=..,LEVEL=..,REFS=..; output ports only (CODE)."""
        options = asked.options
        mode, level = options.get("MODE", "").upper(), number_of(options.get("LEVEL", "0"))
        if set(options) - {"MODE", "LEVEL", "REFS"} or level is None or abs(level) > 100:
            raise Denied("IDNV", "Invalid data")
        if mode not in Attenuator.MODES or (mode != "NONE" and "LEVEL" not in options):
            raise Denied("IDNV", "Invalid data - mode")
        sides = self.listed(asked.aid)
        if not self.voa or any(which != "out" for which, _ in sides):
            raise Denied("ENEQ", "Not equipped - output ports only")
        refs = self.known(options["REFS"])[1] if options.get("REFS") else ""
        self.wrote(now)
        for _, label in () if self.silent else self.some(sides):
            self.attenuators[label] = Attenuator(mode, level, refs)
            self.plant.attenuate(("out", label), 0.0)
        self._hold_levels(now)
        return Reply()

    def _attenuation_row(self, side: Side, now: float) -> str | None:
        """In the words of SET-PORT-ATTEN (U)."""
        if not self.voa or side[0] != "out":
            return None
        return f"{side[1]}:{self.attenuators.get(side[1], Attenuator())}"

    def _hold_levels(self, now: float) -> None:
        """Turn the attenuators to what their modes ask, from the light there is now."""
        for label, attenuator in self.attenuators.items():
            circuit = self.plant.circuit(("out", label))
            if circuit is None or not circuit.settled(now):
                attenuator.released()
                continue
            reference = attenuator.refs or circuit.ingress
            db = attenuator.needed(
                self.plant.true_dbm(self._side[reference], now),
                self.plant.true_dbm(("out", label), now),
                self.plant.attenuators.get(("out", label), 0.0),
            )
            if db is not None and abs(db - self.plant.attenuators.get(("out", label), 0.0)) > 0.005:
                self.plant.attenuate(("out", label), db)
                self._hold_changed = True
