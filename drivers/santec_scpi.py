"""Santec OSX-100, OSX-150 and JGR Optics SX1 switches over SCPI: modules 1xN, TCP or anything
pyvisa opens.

Commands as in public clients that cite tables 4 and 5 of the manual M-OSX_SX1-001. Commands run
asynchronously and unanswered: each is followed by `SYST:ERR?`, and is done when `STAT:OPER:COND?`
says 0 and `ROUTe0:CHANnel?` names the channel. No position of a module is dark, so a circuit is
removed by turning to a channel that leads nowhere (`rest`), where the lab has one.

Modules of two common ports (2A, 2B, 2C) are left alone: which of their ports meet is in no public
source.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from typing import ClassVar

from drivers.api import Evidence
from drivers.link import open_link
from drivers.rounds import Marks
from drivers.session.pairs import Pair
from drivers.session.scpi import ScpiSession
from drivers.session.selectors import DIRECTIONS, MODULES, Selectors
from drivers.watch import patience_option
from drivers.wire import scpi
from optics import DeviceConfig, Garbled, Identity, Traits

ERRORS = "SYST:ERR?"


class SantecScpi(Selectors):
    """A chassis of 1xN modules. Module m's common port is `m.in`, its channels are `m.1`, `m.2`,
    ...; modules count from 0.
    """

    # 300 ms for a turn: notes on the manual, with the emulator of a public client (CODE); another
    # client waits 250 ms. The loss is assumed. Whether a module keeps its channel without power is
    # in no source, hence not latching.
    TRAITS: ClassVar[Traits] = Traits(
        settle_s=0.3,
        at_once=1,
        keeps_others_lit=True,
        latching=False,
        insertion_loss_db=1.0,
        directions=DIRECTIONS,
    )
    OPTIONS: ClassVar[Mapping[str, str]] = {
        "rest": "channel that leads nowhere, where a module without a circuit rests; 24, or one per module: 0:24,2:12",
        "patience_s": patience_option(),
    }
    EVIDENCE: ClassVar[Evidence] = Evidence(
        "Santec OSX / JGR Optics SX1, 1xN, SCPI",
        ("tcp", "visa"),
        {
            "identify": "CODE",
            "read": "CODE",
            "change": "CODE",
            "refusals": "CODE",
            "settling": "CODE",
        },
    )

    def __init__(self, config: DeviceConfig, traits: Traits) -> None:
        super().__init__(config, traits)
        self._session: ScpiSession = ScpiSession(
            open_link(config.address, config.timeout_s, config.name)
        )
        self._rests = rests(config.options.get("rest", ""))

    async def identify(self) -> Identity:
        async with self._lock:
            vendor, model, serial, firmware = await self._session.ask("*IDN?", scpi.parse_identity)
            sizes = await self._modules()
        return Identity(vendor, model, serial, firmware, *self._ports(sizes))

    async def _modules(self) -> Mapping[int, int]:
        listed = await self._session.ask("MODule:CATalog?", catalogue)
        sizes = {module: size for module, (kind, size) in enumerate(listed) if kind == "1A"}
        if not sizes:
            kinds = ", ".join(f"{kind}x{size}" for kind, size in listed)
            raise Garbled(
                f'{self.name}: answer to "MODule:CATalog?": {kinds}; only modules with one common port, 1A, are known here'
            )
        for module in sizes.keys() & self._rests.keys():
            if self._rests[module] > sizes[module]:
                raise Garbled(
                    f"{self.name}: options.rest: module {module} has {sizes[module]} channels, not {self._rests[module]}"
                )
        return sizes

    async def _busy(self) -> bool:
        return (await self._session.ask("STAT:OPER:COND?", partial(scpi.parse_integers, count=1)))[
            0
        ] != 0

    async def _channel(self, module: int) -> int:
        return await self._session.ask(
            f"ROUTe{module}:CHANnel?", partial(_channel, size=self._sizes[module])
        )

    async def _connect(self, module: int, channel: int, marks: Marks[Pair]) -> str:
        marks.write()
        return await self._session.order(
            f"ROUTe{module}:CHANnel {channel}", ERRORS, scpi.parse_error
        )

    async def _drain(self) -> list[str]:
        return await self._session.drain(ERRORS, scpi.parse_error)

    def _rest(self, module: int) -> int | None:
        return self._rests.get(module, self._rests.get(-1))


def catalogue(text: str) -> list[tuple[str, int]]:
    """Read an answer to `MODule:CATalog?`: kind and channels of each module, in order.

    >>> catalogue('"SX 1Ax24","SX 2Bx12"')
    [('1A', 24), ('2B', 12)]

    Raises: Garbled - another text.
    """
    found = []
    for item in text.split(","):
        match = re.fullmatch(r'"?\s*(?:\w+ )?([12][A-Z])x([1-9]\d{0,2})\s*"?', item.strip())
        if not match:
            raise Garbled(f"not a list of modules: {text[:120]!r}")
        found.append((match[1], int(match[2])))
    if len(found) > MODULES:
        raise Garbled(f"{len(found)} modules: {text[:120]!r}")
    return found


def _channel(text: str, size: int) -> int:
    """Read an answer to `ROUTe0:CHANnel?`. Raises: Garbled."""
    (channel,) = scpi.parse_integers(text, 1)
    if not 1 <= channel <= size:
        raise Garbled(f"not one of {size} channels: {text[:80]!r}")
    return channel


def rests(text: str) -> dict[int, int]:
    """Read the option `rest`: module -> channel; -1 for all modules. Raises: ValueError."""
    found: dict[int, int] = {}
    for item in text.split(",") if text else []:
        match = re.fullmatch(r"\s*(?:(\d{1,2})\s*:)?\s*([1-9]\d{0,2})\s*", item)
        if not match or int(match[1] or -1) in found:
            raise ValueError(
                f"rest {text!r}: a channel for all modules (24), or one for each (0:24,2:12)"
            )
        found[int(match[1] or -1)] = int(match[2])
    if -1 in found and len(found) > 1:
        raise ValueError(f"rest {text!r}: one channel for all modules, or one for each")
    return found
