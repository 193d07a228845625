"""A TL1 device made of one function: what it answers to a verb. For what no emulator does on
purpose.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from drivers.api import CircuitSwitch
from drivers.registry import open_device
from optics import CrossConnect, DeviceConfig, Port
from tests.drivers.scripted import serving

Answer = Callable[[str, str, str], str | list[str] | None]
"""(VERB, AID, everything after the tag) -> rows, the words of a denial, or None for silence."""


class Tl1Device:
    """Listens on a free port; `asked` holds the commands as they came.

    late_s: verb -> how long (s) its answer takes. murmur: sent again and again where nothing is
    answered. tag: of every answer, instead of the one that was asked under.
    """

    def __init__(self, answer: Answer, *, sid: str = "SID", echo: bool = False) -> None:
        self.answer, self.sid, self.echo = answer, sid, echo
        self.asked: list[str] = []
        self.late_s: dict[str, float] = {}
        self.murmur = b""
        self.tag = ""

    def verbs(self, *wanted: str) -> list[str]:
        return [command for command in self.asked if command.split(":")[0].upper() in wanted]

    async def talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            command = (await reader.readuntil(b";")).decode().strip()
            self.asked.append(command)
            if self.echo:
                writer.write(f"<{command}\r\n".encode())
            verb, _, aid, tag, *rest = [*command.removesuffix(";").split(":"), "", "", ""]
            output = self.answer(verb.upper(), aid, ":".join(rest).strip(":"))
            await asyncio.sleep(self.late_s.get(verb.upper(), 0.0))
            while output is None and self.murmur and not writer.is_closing():
                writer.write(self.murmur)
                await asyncio.sleep(0.05)
            if output is None:
                continue
            code = "DENY" if isinstance(output, str) else "COMPLD"
            lines = output.split("\n") if isinstance(output, str) else output
            body = "".join(f"   {line}\r\n" for line in lines)
            writer.write(
                f"\r\n\n   {self.sid} 26-01-01 12:00:00\r\nM  {self.tag or tag or '0'} {code}\r\n{body};".encode()
            )


@asynccontextmanager
async def driven(
    driver: str,
    answer: Answer,
    *,
    user: str = "admin",
    timeout_s: float = 1.0,
    echo: bool = False,
    sid: str = "SID",
    **options: str,
) -> AsyncIterator[tuple[CircuitSwitch, Tl1Device]]:
    """A driver in front of a device that answers so."""
    device = Tl1Device(answer, echo=echo, sid=sid)
    async with serving(device.talk) as port:
        password = "pass-w0rd" if user else ""
        address = f"tcp://127.0.0.1:{port}"
        patience = {key: value for key, value in ({"patience_s": "0.3"} | options).items() if value}
        config = DeviceConfig(
            "ocs1", driver, address, user, password, {"settle_s": 0.01}, timeout_s, patience
        )
        switch = open_device(config)
        try:
            yield switch, device
        finally:
            await switch.close()


def circuits(*pairs: tuple[str, str]) -> frozenset[CrossConnect]:
    return frozenset(CrossConnect(Port("ocs1", a), Port("ocs1", b)) for a, b in pairs)
