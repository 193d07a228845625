"""Polatis / HUBER+SUHNER piezo switches over SCPI: TCP 5025, RS-232 38400 8N1, or anything pyvisa
opens.

Commands as in the hpn-bristol and R. Polster clients (the latter cites manual PROD-B-100-03-0). Set
commands are not answered and an impossible pair is silently not made, so each is followed at once
by `:syst:err?` and accepted only when `:oxc:swit:conn:stat?` confirms it.

What `settled_ns` means here: the moment the switch's own map showed the change. No public source
states whether the map waits for the piezo to settle; treat light as proven by a power reading or
the link, not by this timestamp.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import ClassVar

from drivers.api import Evidence
from drivers.link import open_link
from drivers.rounds import Marks
from drivers.session.pairs import Pair, PairSwitch
from drivers.session.scpi import ScpiSession
from drivers.watch import patience_option
from drivers.wire import scpi
from drivers.wire.polatis import FLOOR_DBM, PATIENCE_S, TRAITS
from optics import Dbm, DeviceConfig, Garbled, Identity, Port, PortState, Refused, Traits

PORTS_PER_QUERY = 256  # user notes of the manual
ERRORS = ":syst:err?"


class PolatisScpi(PairSwitch):
    """A Polatis switch. Its ports are numbers: 1..N light enters, N+1..N+M light leaves."""

    TRAITS: ClassVar[Traits] = TRAITS
    OPTIONS: ClassVar[Mapping[str, str]] = {
        "pace_s": "least time between two lines (s), 0.1 for old firmware; default 0",
        "patience_s": patience_option(PATIENCE_S),
    }

    PATIENCE_S: ClassVar[float] = PATIENCE_S
    EVIDENCE: ClassVar[Evidence] = Evidence(
        "Polatis / HUBER+SUHNER, SCPI",
        ("tcp", "serial", "visa"),
        {
            "identify": "REAL",
            "read": "REAL",
            "change": "CODE",
            "refusals": "assumed",
            "power": "REAL",
            "port control": "DOC",
            "persistence": "DOC",
            "settling": "DOC",
        },
    )

    def __init__(self, config: DeviceConfig, traits: Traits) -> None:
        super().__init__(config, traits)
        self._session: ScpiSession = ScpiSession(
            open_link(config.address, config.timeout_s, config.name),
            pace_s=float(config.options.get("pace_s", "0")),
        )
        self._metered: bool | None = None

    async def identify(self) -> Identity:
        async with self._lock:
            vendor, model, serial, firmware = await self._session.ask("*IDN?", scpi.parse_identity)
            enter, leave = await self._session.ask(
                ":oxc:swit:size?", partial(scpi.parse_integers, count=2)
            )
        if not (0 < enter <= 4096 and 0 < leave <= 4096):
            raise Garbled(f'{self.name}: answer to ":oxc:swit:size?": {enter} x {leave} ports')
        numbers = [str(n) for n in range(1, enter + leave + 1)]
        return Identity(
            vendor, model, serial, firmware, tuple(numbers[:enter]), tuple(numbers[enter:])
        )

    async def power(self, ports: Iterable[Port]) -> Mapping[Port, Dbm]:
        wanted = self._numbers(ports)
        async with self._lock:
            if self._metered is None:
                identity = await self._session.ask("*IDN?", scpi.parse_identity)
                # that series has no power meters
                self._metered = not identity[1].upper().startswith("I-OST")
            if not self._metered:
                return {}
            numbers = sorted(wanted)
            found: dict[Port, Dbm] = {}
            for at in range(0, len(numbers), PORTS_PER_QUERY):
                part = numbers[at : at + PORTS_PER_QUERY]
                read = partial(scpi.parse_numbers, count=len(part))
                levels = await self._session.ask(f":pmon:pow? {scpi.channels(part)}", read)
                found.update(
                    (wanted[n], level)
                    for n, level in zip(part, levels, strict=True)
                    if level > FLOOR_DBM
                )
            return found

    async def port_states(self, ports: Iterable[Port]) -> Mapping[Port, PortState]:
        wanted = self._numbers(ports)
        async with self._lock:
            return await self._port_states(wanted)

    async def set_ports(self, ports: Iterable[Port], *, enabled: bool) -> Mapping[Port, PortState]:
        wanted = self._own(ports)
        async with self._lock:
            if wanted:
                await self._drain()
                command = (
                    f":oxc:swit:port:{'enab' if enabled else 'dis'} {scpi.channels(sorted(wanted))}"
                )
                if text := await self._session.order(command, ERRORS, scpi.parse_error):
                    raise Refused(f"{self.name} {text}")
            return await self._port_states(wanted)

    async def persistence(self) -> str:
        async with self._lock:
            answer = await self._session.ask(":oxc:boot:mode?", scpi.parse_string)
        # user notes of the manual; the short form is four letters
        for word in ("DARK", "RESTORE", "AUTOSAVE"):
            if answer.upper() in (word, word[:4]):
                return word
        raise Garbled(f'{self.name}: answer to ":oxc:boot:mode?": {answer[:80]!r}')

    async def _port_states(self, wanted: Mapping[int, Port]) -> dict[Port, PortState]:
        found: dict[Port, PortState] = {}
        numbers = sorted(wanted)
        for at in range(0, len(numbers), PORTS_PER_QUERY):
            part = numbers[at : at + PORTS_PER_QUERY]
            read = partial(_parse_states, count=len(part))
            states = await self._session.ask(f":oxc:swit:port:stat? {scpi.channels(part)}", read)
            found.update((wanted[n], state) for n, state in zip(part, states, strict=True))
        return found

    async def _break(self, pairs: list[Pair], marks: Marks[Pair]) -> None:
        await self._in_lists(False, pairs, marks, lambda part: self._command("sub", part, marks))

    async def _make(self, pairs: list[Pair], marks: Marks[Pair]) -> None:
        await self._in_lists(True, pairs, marks, lambda part: self._command("add", part, marks))

    async def _command(self, verb: str, pairs: list[Pair], marks: Marks[Pair]) -> str:
        """Send a set command for `pairs`; return the errors it caused, empty when there are
        none.
        """
        lists = f"{scpi.channels(a for a, _ in pairs)},{scpi.channels(b for _, b in pairs)}"
        marks.write()
        return await self._session.order(f":oxc:swit:conn:{verb} {lists}", ERRORS, scpi.parse_error)

    async def _drain(self) -> list[str]:
        return await self._session.drain(ERRORS, scpi.parse_error)

    async def _read(self) -> frozenset[Pair]:
        return await self._session.ask(":oxc:swit:conn:stat?", _parse_map)


def _parse_map(text: str) -> frozenset[Pair]:
    """Read the map: two lists, parallel by position, not sorted."""
    lists = scpi.parse_channels(text)
    if len(lists) != 2 or len(lists[0]) != len(lists[1]):
        raise Garbled(f"not two lists of the same length: {text[:120]!r}")
    pairs = frozenset(zip(*lists, strict=True))
    if (
        len(pairs) != len(lists[0])
        or len(set(lists[0])) != len(pairs)
        or len(set(lists[1])) != len(pairs)
    ):
        raise Garbled(f"a port in two circuits: {text[:120]!r}")
    return pairs


# user notes of the manual
_STATES = {"D": PortState.DISABLED, "E": PortState.ENABLED, "F": PortState.FAILED}


def _parse_states(text: str, count: int) -> tuple[PortState, ...]:
    """Read `(D,E,F)`. Raises: Garbled - another number of letters, or others."""
    letters = [
        part.strip().upper() for part in text.strip().removeprefix("(").removesuffix(")").split(",")
    ]
    if len(letters) != count or not set(letters) <= _STATES.keys():
        raise Garbled(f"not {count} port states: {text[:120]!r}")
    return tuple(_STATES[letter] for letter in letters)
