"""Rotor switches: a few whole maps, stored in the device, through which it changes slots by its own
clock.

No vendor sells one with a public interface: the dialect (`docs/reference/rotor-dialect.md`) is our
reading of the rotors of RotorNet (SIGCOMM 2017) and Opera (NSDI 2020), and every figure here is
assumed. Stopped, it is an ordinary cross-connect switch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar

from drivers.api import Evidence, PresetState
from drivers.link import Dropped, open_link
from drivers.rounds import Marks
from drivers.session.pairs import Pair, PairSwitch
from drivers.watch import patience_option
from drivers.wire import rotor
from optics import (
    Change,
    Dbm,
    DeviceConfig,
    Garbled,
    Identity,
    Outcome,
    Port,
    Refused,
    Setting,
    Traits,
)

FLOOR_DBM = -40.0
"""Weaker readings are the meter's own noise."""
LARGEST = 9999
"""More ports than any switch has."""
CLOSED = ("TURNING", "WAITING")
"""States in which the map is not set by hand."""


class Rotor(PairSwitch):
    """A rotor switch. Its ports are numbers: 1..N light enters, N+1..N+M light leaves."""

    TRAITS: ClassVar[Traits] = Traits(
        settle_s=0.01,
        at_once=None,
        keeps_others_lit=True,
        latching=False,
        insertion_loss_db=3.0,
        meter_db=1.0,
        stored_dwell_s=1e-4,
    )
    OPTIONS: ClassVar[Mapping[str, str]] = {"patience_s": patience_option()}
    UNSAID: ClassVar[str] = "no error answered"
    EVIDENCE: ClassVar[Evidence] = Evidence(
        "Rotor with stored maps (no vendor)",
        ("tcp",),
        dict.fromkeys(
            (
                "identify",
                "read",
                "change",
                "refusals",
                "power",
                "stored maps",
                "settling",
                "unsolicited",
            ),
            "assumed",
        ),
    )

    def __init__(self, config: DeviceConfig, traits: Traits) -> None:
        super().__init__(config, traits)
        self._session = self._link = open_link(config.address, config.timeout_s, config.name)
        self._tag = 0

    # -- a cross-connect switch

    async def identify(self) -> Identity:
        async with self._lock:
            vendor, model, serial, firmware = rotor.parse_identity((await self._ask("ID?")).lines)
            enter, leave = await self._size()
        numbers = [str(n) for n in range(1, enter + leave + 1)]
        return Identity(
            vendor, model, serial, firmware, tuple(numbers[:enter]), tuple(numbers[enter:])
        )

    async def power(self, ports: Iterable[Port]) -> Mapping[Port, Dbm]:
        wanted = self._numbers(ports)
        if not wanted:
            return {}
        async with self._lock:
            found = rotor.parse_power(
                (await self._ask("POWER? " + " ".join(map(str, sorted(wanted))))).lines
            )
        if strange := sorted(found.keys() - wanted.keys()):
            raise Garbled(f'{self.name}: answer to "POWER?": port {strange[0]} was not asked about')
        return {wanted[n]: level for n, level in found.items() if level > FLOOR_DBM}

    async def _size(self) -> Pair:
        enter, leave = rotor.counts(rotor.one("PORTS", (await self._ask("PORTS?")).lines), 2)
        if not (0 < enter <= LARGEST and 0 < leave <= LARGEST):
            raise Garbled(f'{self.name}: answer to "PORTS?": {enter} x {leave} ports')
        return enter, leave

    async def _round(self, change: Change, marks: Marks[Pair]) -> Outcome:
        if (change.remove or change.add) and not marks.writes:
            at = rotor.parse_position((await self._ask("POS?")).lines)
            if at.state in CLOSED:
                raise Refused(
                    f"{self.name}: it turns through its stored maps",
                    hint="testbed service stop schedule",
                )
        return await super()._round(change, marks)

    async def _read(self) -> frozenset[Pair]:
        settled, _ = rotor.parse_map((await self._ask("MAP?")).lines)
        return settled

    async def _break(self, pairs: list[Pair], marks: Marks[Pair]) -> None:
        await self._in_lists(
            False, pairs, marks, lambda part: self._set("CLEAR", part, marks), self._held
        )

    async def _make(self, pairs: list[Pair], marks: Marks[Pair]) -> None:
        await self._in_lists(
            True, pairs, marks, lambda part: self._set("SET", part, marks), self._held
        )

    async def _held(self) -> frozenset[Pair]:
        """Pairs that hold ports: those whose light is still to come too."""
        settled, moving = rotor.parse_map((await self._ask("MAP?")).lines)
        return settled | moving

    async def _set(self, verb: str, pairs: list[Pair], marks: Marks[Pair]) -> str:
        """Send one command for `pairs`; return why it was refused as a whole, empty when it was
        not.
        """
        marks.write()
        command = f"{verb} {rotor.write_pairs(pairs)}"
        reply = await self._ask(command, changes=True, refused=True)
        failed = rotor.parse_failures(reply.lines)
        marks.reasons.update(
            {pair: f'refused "{verb}": {why}' for pair, why in failed.items() if pair in pairs}
        )
        return (
            f'refused "{command[:80]}": {reply.code} {reply.text}'
            if reply.code and not failed
            else ""
        )

    # -- stored maps

    async def load(
        self, slots: Sequence[frozenset[Setting]], dwell_s: float, dark_window_s: float
    ) -> None:
        """As `drivers.api.Presets.load`."""
        maps = []
        for k, settings in enumerate(slots):
            pairs = {s: self._pair(s) for s in settings}
            if strange := [s for s, pair in pairs.items() if pair is None]:
                raise Refused(f"{self.name}: slot {k}: {strange[0]}: {self._no_pair(strange[0])}")
            maps.append(frozenset(pair for pair in pairs.values() if pair is not None))
        program = rotor.Program(round(dwell_s * 1e6), round(dark_window_s * 1e6), tuple(maps))
        lines = [f"LOAD BEGIN {len(maps)} {program.dwell_us} {program.dark_window_us}"]
        lines += [f"LOAD SLOT {k} {rotor.write_pairs(pairs)}" for k, pairs in enumerate(maps)]
        async with self._lock:
            # A lost connection forgets what was begun, so a repetition starts from the first line.
            *_, last = await self._ask_all([*lines, "LOAD END"], changes=True)
            if (crc := rotor.one("LOADED", last.lines)) != program.crc:
                raise Garbled(
                    f'{self.name}: answer to "LOAD END": checksum {crc[:20]!r}, {program.crc} was sent'
                )

    async def start(self, slot: int = 0) -> float:
        """As `drivers.api.Presets.start`."""
        async with self._lock:
            began = rotor.count(
                rotor.one("STARTED", (await self._ask(f"START {slot}", changes=True)).lines)
            )
            return (began - await self._clock()) / 1e6

    async def stop(self) -> None:
        """As `drivers.api.Presets.stop`."""
        async with self._lock:
            if rotor.parse_position((await self._ask("POS?")).lines).state in CLOSED:
                await self._ask("STOP", changes=True)

    async def position(self) -> PresetState:
        """As `drivers.api.Presets.position`."""
        async with self._lock:
            at = rotor.parse_position((await self._ask("POS?")).lines)
            left = (
                None if at.until_us is None else max(0.0, (at.until_us - await self._clock()) / 1e6)
            )
        return PresetState(at.state in CLOSED, at.slot, at.dark_window, at.cycle, left)

    async def _clock(self) -> int:
        return rotor.count(rotor.one("CLOCK", (await self._ask("CLOCK?")).lines))

    # -- lines

    async def _ask(self, line: str, *, changes: bool = False, refused: bool = False) -> rotor.Reply:
        return (await self._ask_all([line], changes=changes, refused=refused))[0]

    async def _ask_all(
        self, lines: Sequence[str], *, changes: bool = False, refused: bool = False
    ) -> list[rotor.Reply]:
        """Send `lines` at once and return their replies; questions once more on a new connection if
        the old one had ended.

        refused: a refusal is returned, not raised. Raises: Unreachable, TimedOut, Garbled; Refused
        - in the device's words.
        """
        try:
            replies = await self._once(lines)
        except (Dropped, Garbled):
            if changes:
                raise
            replies = await self._once(lines)
        for line, reply in zip(lines, replies, strict=True):
            if reply.code and not refused:
                raise Refused(f'{self.name}: refused "{line[:80]}": {reply.code} {reply.text}')
        return replies

    async def _once(self, lines: Sequence[str]) -> list[rotor.Reply]:
        if not self._link.alive:
            await self._link.open()
        tags = []
        for _ in lines:
            self._tag = self._tag % 999_999_999 + 1
            tags.append(f"#{self._tag}")
        replies = rotor.Replies(tags)
        data = "".join(f"{tag} {line}\n" for tag, line in zip(tags, lines, strict=True))
        try:
            await self._link.exchange(data.encode("ascii"), replies.feed, question=lines[-1][:80])
        except Garbled as error:
            await self._link.close()
            raise Garbled(f'{self.name}: answer to "{lines[-1][:80]}": {error}') from error
        except BaseException:
            await self._link.close()
            raise
        return replies.found
