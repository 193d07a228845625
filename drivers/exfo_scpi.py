"""EXFO FTBx-9160 1xN switch modules in an LTB-8 over SCPI, TCP.

Commands as in a public client of the module and of the LTB-8. A module is addressed by its number
in the platform (`LINS1:`). `ROUTe:CLOSe` and `ROUTe:OPEN` are reversed to other makers': CLOSe puts
the module in its reset position, where no light passes, and OPEN lets light pass again at the last
channel. What `ROUTe:SCAN` does to a module in its reset position is in no source: where no light
passes afterwards, OPEN follows.
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
from drivers.session.routscan import moves, state
from drivers.session.scpi import ScpiSession
from drivers.session.selectors import DARK, DIRECTIONS, MODULES, Selectors
from drivers.watch import patience_option
from drivers.wire import scpi
from optics import DeviceConfig, Garbled, Identity, Traits

ERRORS = "SYST:ERR?"


class ExfoScpi(Selectors):
    """FTBx-9160 modules of one platform. Module n's common port is `n.in`, its channels are `n.1`,
    `n.2`, ...
    """

    # No public figure of the module: 300 ms and 1.5 dB are assumed. Whether it keeps its channel
    # without power is in no source.
    TRAITS: ClassVar[Traits] = Traits(
        settle_s=0.3,
        at_once=1,
        keeps_others_lit=True,
        latching=False,
        insertion_loss_db=1.5,
        directions=DIRECTIONS,
    )
    OPTIONS: ClassVar[Mapping[str, str]] = {
        "modules": "numbers of the switch modules in the platform (LINS), such as 1,3; default those it lists as 9160",
        "patience_s": patience_option(),
    }
    EVIDENCE: ClassVar[Evidence] = Evidence(
        "EXFO FTBx-9160 in an LTB-8, SCPI",
        ("tcp",),
        {
            "identify": "CODE",
            "read": "CODE",
            "change": "CODE",
            "refusals": "CODE",
            "settling": "assumed",
        },
    )

    def __init__(self, config: DeviceConfig, traits: Traits) -> None:
        super().__init__(config, traits)
        self._session: ScpiSession = ScpiSession(
            open_link(config.address, config.timeout_s, config.name)
        )
        text = config.options.get("modules", "")
        tokens = [word.strip() for word in text.split(",")] if text else []
        if not all(
            word.isascii() and word.isdecimal() and 0 < int(word) < MODULES for word in tokens
        ):
            raise ValueError(f"modules {text!r}: numbers from 1 to {MODULES - 1}, with commas")
        self._given = sorted({int(word) for word in tokens})

    async def identify(self) -> Identity:
        async with self._lock:
            vendor, model, serial, firmware = await self._session.ask("*IDN?", scpi.parse_identity)
            sizes = await self._modules()
        return Identity(vendor, model, serial, firmware, *self._ports(sizes))

    async def _modules(self) -> Mapping[int, int]:
        sizes = {}
        for module in self._given or await self._session.ask("INST:CAT:FULL?", switches):
            question = f"LINS{module}:ROUTe:PATH:CATalog?"
            commons, sizes[module] = await self._session.ask(question, scpi.parse_size)
            if commons != 1:
                raise Garbled(
                    f'{self.name}: answer to "{question}": {commons}x{sizes[module]}; only 1xN is known here'
                )
        return sizes

    async def _busy(self) -> bool:
        # Each is asked: a module that does not work is named even while another moves.
        return any(
            [
                moves(self.name, await self._session.ask(f"LINS{module}:STATus?", state))
                for module in self._sizes
            ]
        )

    async def _channel(self, module: int) -> int:
        if not await self._open(module):
            return DARK
        (channel,) = await self._session.ask(
            f"LINS{module}:ROUTe:SCAN?", partial(scpi.parse_integers, count=1)
        )
        if not 0 <= channel <= self._sizes[module]:
            raise Garbled(
                f"{self.name}: module {module} reports channel {channel}, it has {self._sizes[module]}"
            )
        return channel

    async def _open(self, module: int) -> bool:
        (passes,) = await self._session.ask(
            f"LINS{module}:ROUTe:OPEN:STATe?", partial(scpi.parse_integers, count=1)
        )
        return passes != 0

    async def _connect(self, module: int, channel: int, marks: Marks[Pair]) -> str:
        if channel == DARK:
            return await self._order(module, "CLOSe", marks)
        text = await self._order(module, f"SCAN {channel}", marks)
        if not text and await self._idle() and not await self._open(module):
            text = await self._order(module, "OPEN", marks)
        return text

    async def _order(self, module: int, verb: str, marks: Marks[Pair]) -> str:
        marks.write()
        return await self._session.order(
            f"LINS{module}:ROUTe:{verb}", ERRORS, scpi.parse_bare_error
        )

    async def _drain(self) -> list[str]:
        return await self._session.drain(ERRORS, scpi.parse_bare_error)

    def _rest(self, module: int) -> int:
        return DARK


def switches(text: str) -> list[int]:
    """Read an answer to `INST:CAT:FULL?`, names and numbers in turn; return the numbers of the
    switches.

    >>> switches('"FTBx-1750",3,"FTBx-9160",1')
    [1]

    Raises: Garbled - another text, or no switch among them.
    """
    tokens = [scpi.parse_string(word) for word in text.split(",")]
    names, numbers = tokens[::2], tokens[1::2]
    if len(names) != len(numbers) or not all(
        re.fullmatch("[1-9][0-9]?", number) for number in numbers
    ):
        raise Garbled(f"not names and numbers of modules: {text[:120]!r}")
    found = sorted(
        {int(number) for name, number in zip(names, numbers, strict=True) if "9160" in name}
    )
    if not found or found[-1] >= MODULES:
        raise Garbled(f"no FTBx-9160 in {text[:120]!r}; options.modules names others")
    return found
