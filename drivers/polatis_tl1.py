"""Polatis / HUBER+SUHNER piezo switches over TL1, port 3082. A circuit is a patch; its ports are
numbers, 1..N in, N+1..N+M out.

Requests as in Quali's cloudshell-L1-polatis and public client code (CODE). No public capture of a
refusal or of an unsolicited message exists, so anything but COMPLD is a refusal, quoted from the
switch.

- A patch that was acknowledged is not yet made (the Optical Lab Portal sees patches "not confirmed"
  and asks up to four more times, 1.5 s apart): it is accepted when RTRV-PATCH shows it, and
  requested again, after reading, a bounded number of times.
- Rows may come without their quotes (Quali), so text outside rows is read as a row.
- `MODE=RELATIVE` is taken to hold the output LEVEL dB below the port named by REFS, here the
  circuit's ingress port: assumed, the modes are known by name alone. So LEVEL is the attenuation
  and the circuit's own loss, which the switch's meters show while the attenuator is open; until
  they did, the typical loss is taken. In modes ABSOLUTE and CONVERGED the level is taken for a
  power and not reported as an attenuation.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import ClassVar

from drivers.api import Evidence
from drivers.rounds import Marks
from drivers.session.crossconnects import believed
from drivers.session.pairs import Pair, PairSwitch, port_number
from drivers.session.tl1 import OPTIONS, Command, Tl1Session, open_tl1
from drivers.watch import patience_option
from drivers.wire import tl1, unknown
from drivers.wire.polatis import FLOOR_DBM, PATIENCE_S, TRAITS
from drivers.wire.unknown import Unknown, sorted_out
from optics import (
    Db,
    Dbm,
    DeviceConfig,
    Garbled,
    Identity,
    Port,
    PortState,
    Refused,
    Setting,
    Traits,
)

PORTS_PER_LIST = 64  # keeps a command under 300 bytes; no source gives a limit
SHUTTERS = {"open": PortState.ENABLED, "closed": PortState.DISABLED, "close": PortState.DISABLED}
"""`open` is CODE, `closed` assumed; any other word but "fail..." is not understood."""
_NO_READING = frozenset({"", "-", "--", "NA", "N/A", "NONE"})
_NUMBER = re.compile(r"[+-]?\d{1,3}(\.\d+)?")
MODES = ("NONE", "ABSOLUTE", "RELATIVE", "CONVERGED")


class PolatisTl1(PairSwitch):
    """A Polatis switch at its TL1 port."""

    TRAITS: ClassVar[Traits] = TRAITS
    OPTIONS: ClassVar[Mapping[str, str]] = {
        **OPTIONS,
        "idle_timeout": "ED-EQPT TIMEOUT value sent after the login, in the switch's own unit; default none is sent",
        "patience_s": patience_option(PATIENCE_S),
    }
    PATIENCE_S: ClassVar[float] = PATIENCE_S
    EVIDENCE: ClassVar[Evidence] = Evidence(
        "Polatis / HUBER+SUHNER matrix switches, TL1",
        ("tcp", "telnet"),
        {
            **dict.fromkeys(
                ("identify", "read", "change", "power", "ports", "attenuation"), "CODE"
            ),
            **{"refusals": "assumed", "settling": "DOC"},
        },
    )
    TRIES: ClassVar[int] = 4
    UNSAID: ClassVar[str] = "not refused either"

    def __init__(self, config: DeviceConfig, traits: Traits) -> None:
        super().__init__(config, traits)
        timeout = config.options.get("idle_timeout", "")
        if not re.fullmatch(r"[0-9]{0,6}", timeout):
            raise ValueError(f"idle_timeout {timeout!r}: a whole number")
        self._session: Tl1Session = open_tl1(
            config,
            opening=[_command("ED-EQPT", "TIMEOUT", "", f"ADMIN={timeout}")] if timeout else [],
        )
        self._attenuators: frozenset[int] | None = None
        self._losses: dict[Pair, Db] = {}  # of circuits, as measured with their attenuators open

    async def identify(self) -> Identity:
        async with self._lock:
            size = " ".join(await self._text(_ask("RTRV-EQPT", "SYSTEM", "", "PARAMETER=SIZE")))
            inventory = " ".join(await self._text(_ask("RTRV-INV", "OCS")))
            kind = ",".join(await self._text(_ask("RTRV-NETYPE")))
        ports = re.search(r"\bSIZE=\s*(\d{1,4})\s*x\s*(\d{1,4})\b", size, re.IGNORECASE)
        serial = re.search(r"\bSN=\s*([^,:;\s\"\\]+)", inventory)
        tokens = [word.strip() for word in kind.replace('"', "").split(",")]
        if not ports or not serial or len(tokens) < 4 or not all(map(int, ports.groups())):
            raise Garbled(
                f"{self.name}: identity: {size[:80]!r}, {inventory[:80]!r}, {kind[:80]!r}"
            )
        enter, leave = int(ports[1]), int(ports[2])
        numbers = [str(n) for n in range(1, enter + leave + 1)]
        return Identity(
            tokens[0],
            tokens[1],
            serial[1],
            tokens[3],
            tuple(numbers[:enter]),
            tuple(numbers[enter:]),
        )

    async def power(self, ports: Iterable[Port]) -> Mapping[Port, Dbm]:
        async with self._lock:
            return await self._powers(ports)

    async def port_states(self, ports: Iterable[Port]) -> Mapping[Port, PortState]:
        async with self._lock:
            return await self._shutters(list(ports))

    async def set_ports(self, ports: Iterable[Port], *, enabled: bool) -> Mapping[Port, PortState]:
        numbers = self._own(ports)
        wanted = list(numbers.values())
        async with self._lock:
            for _, text in tl1.port_lists(numbers, PORTS_PER_LIST):
                await self._session.ask(
                    _command("RLS-PORT-SHUTTER" if enabled else "OPR-PORT-SHUTTER", text)
                )
            return await self._watch_ports(wanted, self._shutters, enabled)

    async def attenuation(self, ports: Iterable[Port]) -> Mapping[Port, Db]:
        async with self._lock:
            return await self._levels(list(ports))

    async def attenuate(self, levels: Mapping[Port, Db]) -> Mapping[Port, Db]:
        self._own(levels)
        async with self._lock:
            able = await self._able()
            source = {b: a for a, b in await self._read()}
            for port, level in levels.items():
                number = port_number(port.label)
                if number is None or number not in able:
                    raise Refused(f"{port}: there is no attenuator at this port")
                if not 0 <= level < 100:
                    raise Refused(f"{port}: {level} dB is no attenuation")
                if level and number not in source:
                    raise Refused(
                        f"{port}: no circuit ends here; attenuation is relative to the port where light enters"
                    )
            circuits = {port: (source.get(int(port.label), 0), int(port.label)) for port in levels}
            await self._measure(circuits)
            commands = []
            for port, level in levels.items():
                pair = circuits[port]
                level_db = level + self._loss_of(pair)
                text = (
                    f"MODE=RELATIVE,LEVEL={level_db:.2f},REFS={pair[0]}" if level else "MODE=NONE"
                )
                commands.append(_command("SET-PORT-ATTEN", str(pair[1]), text))
            if refusals := "; ".join(filter(None, await self._session.refusals(commands))):
                raise Refused(f"{self.name} {refusals}")
            return await self._levels(list(levels))

    async def _measure(self, circuits: Mapping[Port, Pair]) -> None:
        """Note the loss of each circuit that is lit and whose attenuator is open."""
        open_now = {port: pair for port, pair in circuits.items() if pair[0]}
        modes = await self._rows_of("RTRV-PORT-ATTEN", open_now)
        open_now = {
            port: pair
            for port, pair in open_now.items()
            if _level_text(modes.get(port, ""))[0] == "NONE"
        }
        ends = {Port(self.name, str(number)) for pair in open_now.values() for number in pair}
        read = await self._powers(ends)
        for pair in open_now.values():
            before, after = (read.get(Port(self.name, str(number))) for number in pair)
            if before is not None and after is not None:
                self._losses[pair] = max(0.0, round(before - after, 2))

    def _loss_of(self, pair: Pair) -> Db:
        return self._losses.get(pair, self.traits.insertion_loss_db)

    def holders(self) -> Mapping[Setting | Port, str]:
        """Ports of rows of the map that cannot be read."""
        return unknown.holders(self.name, self._strange)

    async def _rows(self) -> tuple[tuple[Pair, ...], frozenset[Unknown]]:
        try:
            return sorted_out(await self._text(_ask("RTRV-PATCH")), _patch, _unreadable)
        except Garbled as error:
            raise Garbled(f"{self.name}: map: {error}") from error

    async def _read(self) -> frozenset[Pair]:
        rows, self._strange = await believed(f"{self.name}: map", self._rows, self._strange)
        pairs = frozenset(rows)
        if len({a for a, _ in pairs}) < len(pairs) or len({b for _, b in pairs}) < len(pairs):
            raise Garbled(f"{self.name}: map: a port in two patches")
        return pairs

    async def _break(self, pairs: list[Pair], marks: Marks[Pair]) -> None:
        await self._each("DLT-PATCH", {pair: str(pair[0]) for pair in pairs}, marks)

    async def _make(self, pairs: list[Pair], marks: Marks[Pair]) -> None:
        await self._each("ENT-PATCH", {pair: f"{pair[0]},{pair[1]}" for pair in pairs}, marks)

    async def _each(self, verb: str, aids: Mapping[Pair, str], marks: Marks[Pair]) -> None:
        """One command for each pair, so that each has its own answer; several are pending at
        once.
        """
        marks.write(len(aids))
        refusals = await self._session.refusals([_command(verb, aid) for aid in aids.values()])
        marks.reasons.update(
            {pair: text for pair, text in zip(aids, refusals, strict=True) if text}
        )

    async def _text(self, command: Command) -> tuple[str, ...]:
        reply = await self._session.ask(command)
        return (*reply.rows, *(text.strip('"') for text in reply.stray))

    async def _rows_of(self, verb: str, ports: Iterable[Port]) -> dict[Port, str]:
        """The rows `port:words` by port. If a list is denied, its ports are queried one by one;
        denied ones are absent.
        """
        wanted = self._numbers(ports)
        lists = tl1.port_lists(wanted, PORTS_PER_LIST)
        replies = await self._session.batch([_ask(verb, text) for _, text in lists])
        alone = [
            n
            for (part, _), reply in zip(lists, replies, strict=True)
            if not reply.completed and len(part) > 1
            for n in part
        ]
        replies += await self._session.batch([_ask(verb, str(n)) for n in alone]) if alone else []
        found: dict[Port, str] = {}
        for text in (
            text for reply in replies if reply.completed for text in (*reply.rows, *reply.stray)
        ):
            label, colon, message = text.strip('"').partition(":")
            if not colon or (at := port_number(label.strip())) is None:
                raise Garbled(f'{self.name}: answer to "{verb}": {text[:120]!r}')
            if at in wanted:
                found[wanted[at]] = message.strip()
        return found

    async def _powers(self, ports: Iterable[Port]) -> dict[Port, Dbm]:
        found: dict[Port, Dbm] = {}
        for port, word in (await self._rows_of("RTRV-PORT-POWER", ports)).items():
            if word.upper() in _NO_READING:
                continue
            if not _NUMBER.fullmatch(word):
                raise Garbled(f"{self.name}: power of {port.label} is {word!r}")
            if float(word) > FLOOR_DBM:
                found[port] = float(word)
        return found

    async def _shutters(self, ports: list[Port]) -> dict[Port, PortState]:
        states: dict[Port, PortState] = {}
        for port, word in (await self._rows_of("RTRV-PORT-SHUTTER", ports)).items():
            known = (
                PortState.FAILED if word.lower().startswith("fail") else SHUTTERS.get(word.lower())
            )
            if known is None:
                raise Garbled(f"{self.name}: shutter of {port.label} is {word[:40]!r}")
            states[port] = known
        return states

    async def _able(self) -> frozenset[int]:
        """The ports with attenuators, from the switch's own list; none if it denies the query."""
        if self._attenuators is None:
            (reply,) = await self._session.batch(
                [_ask("RTRV-EQPT", "ATTEN", "", "PARAMETER=CONFIG")]
            )
            texts = [*reply.rows, *reply.stray] if reply.completed else []
            ranges = [
                found
                for text in texts
                for found in re.findall(r"\bPORT=\s*(\d{1,4})(?:&&(\d{1,4}))?", text)
            ]
            able = frozenset(
                n for first, last in ranges for n in range(int(first), int(last or first) + 1)
            )
            if not reply.completed:  # perhaps not now, perhaps never
                return able
            self._attenuators = able
        return self._attenuators

    async def _levels(self, ports: list[Port]) -> dict[Port, Db]:
        able = await self._able()
        texts = await self._rows_of(
            "RTRV-PORT-ATTEN", [port for port in ports if port_number(port.label) in able]
        )
        source = {b: a for a, b in await self._read()} if texts else {}
        found: dict[Port, Db] = {}
        for port, text in texts.items():
            mode, level = _level_text(text)
            if mode == "NONE":
                found[port] = 0.0
            elif mode == "RELATIVE" and level is not None:
                number = int(port.label)
                found[port] = max(
                    0.0, round(level - self._loss_of((source.get(number, 0), number)), 2)
                )
            elif mode not in MODES:
                raise Garbled(f"{self.name}: attenuation of {port.label} is {text[:80]!r}")
        return found


def _patch(text: str) -> Pair:
    found = re.fullmatch(r"\s*(\d{1,4})\s*,\s*(\d{1,4})\s*", text)
    pair = (int(found[1]), int(found[2])) if found else (0, 0)
    if not all(pair) or pair[0] == pair[1]:
        raise Garbled(f"not a patch: {text[:120]!r}")
    return min(pair), max(pair)  # the ingress port has the lower number


def _unreadable(text: str) -> Unknown:
    return Unknown(
        text, frozenset(str(int(port)) for port in re.findall(r"(?<!\d)\d{1,4}(?!\d)", text))
    )


def _level_text(text: str) -> tuple[str, float | None]:
    """Mode and level of an attenuator, by key if there are keys, else by their form."""
    parts = [part.strip() for part in text.split(",")]
    fields = tl1.parse_row(f"x:{text}").fields
    mode = fields.get("MODE") or next((part for part in parts if part.upper() in MODES), "")
    level = fields.get("LEVEL") or next((part for part in parts if _NUMBER.fullmatch(part)), "")
    return mode.upper(), float(level) if _NUMBER.fullmatch(level) else None


def _command(verb: str, aid: str = "", *blocks: str) -> Command:
    """As Polatis clients write it: the colon after the tag is sent even if nothing follows."""
    return Command(verb, aid, blocks, general="")


def _ask(verb: str, aid: str = "", *blocks: str) -> Command:
    return Command(verb, aid, blocks, again=True, general="")
