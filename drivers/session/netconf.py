"""Requests over NETCONF: reads are repeated once if their answer is lost, changes never."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from drivers.link.base import Dropped
from drivers.link.netconf import NetconfLink
from drivers.wire import netconf
from drivers.wire.netconf import Element
from optics import DeviceConfig, Garbled, Refused

T = TypeVar("T")

OPTIONS = {
    "known_hosts": "OpenSSH file of host keys (~ is expanded); default the user's and the system's",
    "key_file": "private key to log in with instead of the password",
}


def open_netconf(config: DeviceConfig) -> NetconfLink:
    """The link to a NETCONF device of the inventory. Raises: BadFile - no netconf:// address."""
    return NetconfLink(
        config.name,
        config.address,
        config.timeout_s,
        username=config.username,
        password=config.password,
        key_file=config.options.get("key_file", ""),
        known_hosts=config.options.get("known_hosts", ""),
    )


class NetconfSession:
    """Query one NETCONF device; connects when needed."""

    def __init__(self, link: NetconfLink) -> None:
        self._link = link

    async def capabilities(self) -> tuple[str, ...]:
        """The URIs of the device's hello. Raises: Unreachable, Refused."""
        await self._ready()
        return self._link.capabilities

    async def get(
        self,
        filtered: Element,
        read: Callable[[Element], T],
        *,
        question: str,
        config: bool = False,
    ) -> T:
        """Get what `filtered` selects: state and configuration, or the running configuration only.

        Raises: Unreachable, TimedOut, Garbled, Refused.
        """
        inside = f'<filter type="subtree">{netconf.show(filtered)}</filter>'
        operation = (
            f"<get-config><source><running/></source>{inside}</get-config>"
            if config
            else f"<get>{inside}</get>"
        )

        def parse(reply: Element) -> T:
            return read(netconf.data(reply))

        try:
            return await self._once(operation, parse, question, None)
        except (Dropped, Garbled):  # repeating a query changes nothing
            return await self._once(operation, parse, question, None)

    async def edit(
        self, *config: Element | str, question: str, timeout_s: float | None = None
    ) -> None:
        """Merge `config` into the running configuration, except where `operation` is given. Raises:
        as `get`.
        """
        inside = "".join(each if isinstance(each, str) else netconf.show(each) for each in config)
        await self.call(
            f"<edit-config><target><running/></target><config>{inside}</config></edit-config>",
            question,
            timeout_s,
        )

    async def call(self, operation: str, question: str, timeout_s: float | None = None) -> None:
        """Send an operation that is answered by ok; never twice. Raises: as `get`."""
        await self._once(operation, netconf.done, question, timeout_s)

    async def close(self) -> None:
        await self._link.close()

    async def _ready(self) -> None:
        if not self._link.alive:
            await self._link.open()

    async def _once(
        self, operation: str, read: Callable[[Element], T], question: str, timeout_s: float | None
    ) -> T:
        await self._ready()
        raw = await self._link.ask(operation, question=question, timeout_s=timeout_s)
        try:
            return read(netconf.parse_reply(raw))
        except Garbled as error:
            raise Garbled(f'{self._link.who}: answer to "{question}": {error}') from error
        except Refused as error:
            raise Refused(f'{self._link.who} refused "{question}": {error}') from error
