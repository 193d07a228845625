"""Polatis / HUBER+SUHNER switches over NETCONF: `netconf://host:830`.

Names, operations and values as in the ONOS driver and public ncclient scripts. The list of circuits
is called `pairs` in models before revision 2017-08-04 and `pair` from then on; the hello lists the
revision. One edit-config carries any number of circuits; if the device refuses it, each is sent
alone so that each gets its own answer.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import ClassVar

from drivers.api import Evidence
from drivers.rounds import Marks
from drivers.session.netconf import OPTIONS, NetconfSession, open_netconf
from drivers.session.pairs import port_number
from drivers.session.polatis_yang import PolatisYang, Voa
from drivers.wire import netconf, polatis
from drivers.wire.netconf import Element, tree
from drivers.wire.polatis import Pair
from optics import Dbm, DeviceConfig, Identity, Refused, Traits

NS = "http://www.polatis.com/yang/optical-switch"
SINCE_PAIR = "2017-08-04"  # ONOS


class PolatisNetconf(PolatisYang):
    """A Polatis switch over NETCONF."""

    OPTIONS: ClassVar[Mapping[str, str]] = {**PolatisYang.OPTIONS, **OPTIONS}
    EVIDENCE: ClassVar[Evidence] = Evidence(
        "Polatis / HUBER+SUHNER, NETCONF",
        ("netconf",),
        {
            "identify": "CODE",
            "read": "CODE",
            "change": "CODE",
            "refusals": "assumed",
            "power": "CODE",
            "ports": "CODE",
            "attenuation": "assumed",
            "settling": "DOC",
        },
    )

    def __init__(self, config: DeviceConfig, traits: Traits) -> None:
        super().__init__(config, traits)
        self._session: NetconfSession = NetconfSession(open_netconf(config))

    async def identify(self) -> Identity:
        def read(data: Element) -> Identity:
            keys = ("manufacturer", "model-name", "serial-number", "software-version")
            vendor, model, serial, firmware = (
                netconf.reported(data, "product-information", key) for key in keys
            )
            return self._identity(vendor, model, serial, firmware)

        async with self._lock:
            return await self._session.get(
                tree("product-information", ns=NS), read, question="get product-information"
            )

    async def _set_ports(self, numbers: list[int], enabled: bool) -> None:
        """By the RPC `port-set-state`, a port at a time; its body as in ONOS."""
        verb = "port-enab" if enabled else "port-disab"
        for n in numbers:
            call = tree("port-set-state", tree(verb, str(n)), ns=NS)
            await self._session.call(netconf.show(call), f"port-set-state {verb} {n}")

    async def _read(self) -> frozenset[Pair]:
        word = await self._word()

        def read(data: Element) -> frozenset[Pair]:
            held = netconf.child(data, "cross-connects")
            rows = [] if held is None else list(netconf.children(held, word))
            return polatis.whole_map(
                (int(netconf.number(r, "ingress")), int(netconf.number(r, "egress"))) for r in rows
            )

        return await self._session.get(
            tree("cross-connects", ns=NS), read, question="get cross-connects"
        )

    async def _break(self, pairs: list[Pair], marks: Marks[Pair]) -> None:
        await self._in_lists(False, pairs, marks, lambda part: self._edit("delete", part, marks))

    async def _make(self, pairs: list[Pair], marks: Marks[Pair]) -> None:
        await self._in_lists(True, pairs, marks, lambda part: self._edit("merge", part, marks))

    async def _edit(self, operation: str, pairs: list[Pair], marks: Marks[Pair]) -> str:
        """Send one edit-config; return the device's reason for a refusal, empty if it was done.

        A circuit is merged, not created, as public clients do; the map was read a moment ago and
        its ports were free.
        """
        word = await self._word()
        rows = [
            tree(
                word, tree("ingress", str(a)), tree("egress", str(b)), ns=NS, nc_operation=operation
            )
            for a, b in pairs
        ]
        few = ", ".join(f"{a}->{b}" for a, b in pairs[:4]) + (", ..." if len(pairs) > 4 else "")
        marks.write()
        try:
            await self._session.edit(
                tree("cross-connects", *rows, ns=NS), question=f"{operation} {word} {few}"
            )
        except Refused as error:
            return str(error).removeprefix(f"{self.name} ")
        return ""

    async def _word(self) -> str:
        """The name of the list of circuits on this device."""
        for uri in await self._session.capabilities():
            if uri.startswith(NS + "?") and (
                revision := re.search(r"[?&]revision=([0-9-]{10})", uri.replace("&amp;", "&"))
            ):
                return "pair" if revision[1] >= SINCE_PAIR else "pairs"
        return "pair"

    async def _ports(self, name: str) -> dict[int, Element]:
        """The rows of a list of ports by number; empty if the switch has no such list."""

        def read(data: Element) -> dict[int, Element]:
            held = netconf.child(data, name)
            rows = [] if held is None else list(netconf.children(held, "port"))
            return {int(netconf.number(row, "port-id")): row for row in rows}

        return await self._session.get(tree(name, ns=NS), read, question=f"get {name}")

    async def _states(self) -> dict[int, str]:
        return {
            n: netconf.reported(row, "status")
            for n, row in (await self._ports("port-config")).items()
        }

    async def _attenuators(self) -> dict[int, Voa]:
        return {n: _voa(row) for n, row in (await self._ports("voa")).items()}

    async def _set_attenuators(self, wanted: Mapping[int, Voa]) -> None:
        config = tree("voa", ns=NS)
        for n, voa in sorted(wanted.items()):
            row = [tree("port-id", str(n)), tree("atten-mode", voa.mode)]
            if voa.level is not None:
                row += [
                    tree("atten-level", polatis.level(voa.level)),
                    tree("reference-port", str(voa.reference)),
                ]
            config.append(tree("port", *row, ns=NS))
        if wanted:
            await self._session.edit(
                config, question=f"edit voa of ports {', '.join(map(str, sorted(wanted)))}"
            )

    async def _meters(self) -> dict[int, Dbm]:
        return {
            n: float(netconf.number(row, "power"))
            for n, row in (await self._ports("opm-power")).items()
        }


def _voa(row: Element) -> Voa:
    level = (
        float(netconf.number(row, "atten-level"))
        if netconf.reported(row, "atten-level", default="")
        else None
    )
    reference = netconf.reported(row, "reference-port", default="")
    return Voa(netconf.reported(row, "atten-mode"), level, port_number(reference) or 0)
