"""Polatis / HUBER+SUHNER switches over NETCONF: `netconf://host:830`.

Names, operations and values as in the ONOS driver and public ncclient scripts. The list of circuits is called `pairs` in models
before revision 2017-08-04 and `pair` from then on; the revision stands in the capability of the hello. One edit-config carries any
number of circuits; where the device refuses it, each is sent alone so that each gets its own words.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import ClassVar

from drivers.api import Evidence
from drivers.rounds import Marks
from drivers.session.netconf import OPTIONS, NetconfSession, open_netconf
from drivers.session.pairs import port_number
from drivers.session.voa import Voa, VoaSwitch
from drivers.watch import late_s, patience_option, watch
from drivers.wire import netconf, polatis
from drivers.wire.netconf import Element, tree
from drivers.wire.polatis import PATIENCE_S, Pair
from optics import Dbm, DeviceConfig, Identity, Port, PortState, Refused, Traits

NS = "http://www.polatis.com/yang/optical-switch"
SINCE_PAIR = "2017-08-04"  # ONOS


class PolatisNetconf(VoaSwitch):
    """A Polatis switch. Its ports are numbers: 1..N light enters, N+1..N+M light leaves."""

    # As the other Polatis drivers: H+S data sheet as quoted by the TCD testbed.
    _configured = True
    TRAITS: ClassVar[Traits] = Traits(
        settle_s=0.05, at_once=None, keeps_others_lit=True, latching=False, insertion_loss_db=1.5, meter_db=1.0
    )
    OPTIONS: ClassVar[Mapping[str, str]] = {
        "size": "ingress and egress ports as `16x16`, where the model name does not say; default what it says",
        **OPTIONS,
        "patience_s": patience_option(PATIENCE_S),
    }
    PATIENCE_S: ClassVar[float] = PATIENCE_S
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
        self._session = NetconfSession(open_netconf(config))
        self._size = config.options.get("size", "")
        if self._size:
            polatis.size(self._size)

    async def identify(self) -> Identity:
        def read(data: Element) -> Identity:
            said = [
                netconf.said(data, "product-information", key)
                for key in ("manufacturer", "model-name", "serial-number", "software-version")
            ]
            enter, leave = polatis.size(self._size or said[1])
            ports = [str(n) for n in range(1, enter + leave + 1)]
            return Identity(*said[:4], tuple(ports[:enter]), tuple(ports[enter:]))  # type: ignore[call-arg,arg-type]

        async with self._turn:
            return await self._session.get(tree("product-information", ns=NS), read, question="get product-information")

    async def power(self, ports: Iterable[Port]) -> Mapping[Port, Dbm]:
        wanted = self._numbers(ports)
        async with self._turn:
            return {wanted[n]: level for n, level in (await self._levels()).items() if n in wanted}

    async def port_states(self, ports: Iterable[Port]) -> Mapping[Port, PortState]:
        async with self._turn:
            return await self._port_states(self._numbers(ports))

    async def set_ports(self, ports: Iterable[Port], *, enabled: bool) -> Mapping[Port, PortState]:
        """As the protocol says, by the RPC `port-set-state`, a port at a time (its body as in ONOS)."""
        wanted = self._own(ports)
        async with self._turn:
            for n in sorted(wanted):
                verb = "port-enab" if enabled else "port-disab"
                call = tree("port-set-state", tree(verb, str(n)), ns=NS)
                await self._session.call(netconf.show(call), f"port-set-state {verb} {n}")
            return await self._port_states(wanted)

    async def close(self) -> None:
        async with self._turn:
            await self._session.close()

    async def _read(self) -> frozenset[Pair]:
        word = await self._word()

        def read(data: Element) -> frozenset[Pair]:
            held = netconf.child(data, "cross-connects")
            rows = [] if held is None else list(netconf.children(held, word))
            return polatis.whole_map((int(netconf.number(r, "ingress")), int(netconf.number(r, "egress"))) for r in rows)

        return await self._session.get(tree("cross-connects", ns=NS), read, question="get cross-connects")

    async def _drain(self) -> list[str]:
        return []  # errors come with the answers

    async def _break(self, pairs: list[Pair], marks: Marks[Pair]) -> None:
        await self._edit("delete", pairs, marks)

    async def _make(self, pairs: list[Pair], marks: Marks[Pair]) -> None:
        await self._edit("merge", pairs, marks)

    async def _edit(self, operation: str, pairs: list[Pair], marks: Marks[Pair]) -> None:
        """Send one edit-config for all `pairs`; where the device objects, find out to which of them."""
        words = await self._edit_once(operation, pairs, marks)
        if not words:
            return
        if len(pairs) == 1:
            marks.words[pairs[0]] = words
            return
        making = operation == "merge"
        last = await watch(  # of a refused list the device may have done all, some or nothing
            self._read,
            lambda seen: all((pair in seen) == making for pair in pairs),
            expected_s=self.traits.settle_s,
            patience_s=late_s(self.traits),
        )
        for pair in pairs:
            if (pair in last.report) != making and (words := await self._edit_once(operation, [pair], marks)):
                marks.words[pair] = words

    async def _edit_once(self, operation: str, pairs: list[Pair], marks: Marks[Pair]) -> str:
        """One edit-config; the device's words, empty when it was done.

        A circuit is merged, not created, as public clients do; the map was read a moment ago and its ports were free.
        """
        word = await self._word()
        rows = [tree(word, tree("ingress", str(a)), tree("egress", str(b)), ns=NS, nc_operation=operation) for a, b in pairs]
        few = ", ".join(f"{a}->{b}" for a, b in pairs[:4]) + (", ..." if len(pairs) > 4 else "")
        marks.write()
        try:
            await self._session.edit(tree("cross-connects", *rows, ns=NS), question=f"{operation} {word} {few}")
        except Refused as error:
            return str(error).removeprefix(f"{self.name} ")
        return ""

    async def _word(self) -> str:
        """What the list of circuits is called on this device."""
        for uri in await self._session.capabilities():
            if uri.startswith(NS + "?") and (revision := re.search(r"[?&]revision=([0-9-]{10})", uri.replace("&amp;", "&"))):
                return "pair" if revision[1] >= SINCE_PAIR else "pairs"
        return "pair"

    async def _ports(self, name: str) -> dict[int, Element]:
        """The rows of a list of ports by number; empty where the switch has no such thing."""

        def read(data: Element) -> dict[int, Element]:
            held = netconf.child(data, name)
            rows = [] if held is None else list(netconf.children(held, "port"))
            return {int(netconf.number(row, "port-id")): row for row in rows}

        return await self._session.get(tree(name, ns=NS), read, question=f"get {name}")

    async def _port_states(self, wanted: Mapping[int, Port]) -> dict[Port, PortState]:
        rows = await self._ports("port-config")
        return {port: polatis.port_state(netconf.said(rows[n], "status")) for n, port in wanted.items() if n in rows}

    async def _attenuators(self) -> dict[int, Voa]:
        return {n: _voa(row) for n, row in (await self._ports("voa")).items()}

    async def _set_attenuators(self, wanted: Mapping[int, Voa]) -> None:
        config = tree("voa", ns=NS)
        for n, voa in sorted(wanted.items()):
            row = [tree("port-id", str(n)), tree("atten-mode", voa.mode)]
            if voa.level is not None:
                row += [tree("atten-level", polatis.level(voa.level)), tree("reference-port", str(voa.reference))]
            config.append(tree("port", *row, ns=NS))
        if wanted:
            await self._session.edit(config, question=f"edit voa of ports {', '.join(map(str, sorted(wanted)))}")

    async def _levels(self) -> dict[int, float]:
        found = {n: netconf.number(row, "power") for n, row in (await self._ports("opm-power")).items()}
        return {n: float(level) for n, level in found.items() if level > polatis.FLOOR_DBM}


def _voa(row: Element) -> Voa:
    level = float(netconf.number(row, "atten-level")) if netconf.said(row, "atten-level", default="") else None
    reference = netconf.said(row, "reference-port", default="")
    return Voa(netconf.said(row, "atten-mode"), level, port_number(reference) or 0)
