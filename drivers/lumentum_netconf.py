"""Lumentum ROADM-20 (two wavelength-selective switches and two amplifiers in one box) over NETCONF:
`netconf://host:830`.

Requests as in the COSMOS team's client and Mininet-Optical; attenuation alone as in the ONOS
driver. Module 1 multiplexes add ports 4101..4120 into the line port 4201, module 2 demultiplexes
the line port 5101 into drop ports 5201..5220. No public source states how the device reports its
serial number or firmware.

One edit-config makes any number of connections; if it is refused, each is sent alone so that each
gets its own answer. Removals go first: spectrum that overlaps what is still there is refused.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import ClassVar

from drivers.api import Evidence
from drivers.rounds import Marks
from drivers.session.netconf import OPTIONS, NetconfSession, open_netconf
from drivers.session.routes import RouteSwitch, blocking
from drivers.watch import late_s, patience_option, watch
from drivers.wire import netconf, roadm
from drivers.wire.netconf import tree
from drivers.wire.roadm import Connection
from optics import (
    Change,
    Dbm,
    DeviceConfig,
    Identity,
    Outcome,
    Port,
    Refused,
    Setting,
    SpectralRoute,
    Traits,
)

FLOOR_DBM = Decimal(-30)  # COSMOS
MOST_DB = 25.0  # no source gives the range of attenuation; above it is a typing error
ADD, DROP = (tuple(f"{first}{n:02d}" for n in range(1, 21)) for first in (41, 52))
MUX_OUT, DEMUX_IN = "4201", "5101"


@dataclass(frozen=True, slots=True)
class Table:
    """All that the device holds: every connection, and those that carry light as routes."""

    connections: tuple[Connection, ...]
    where: Mapping[SpectralRoute, Connection]

    @property
    def routes(self) -> frozenset[SpectralRoute]:
        return frozenset(self.where)


class LumentumNetconf(RouteSwitch[Table]):
    """A ROADM-20. Ports carry the numbers printed on it."""

    # An edit-config takes 1 to 5 s (unconfirmed); 4.0 dB per path is the default of the COSMOS
    # testbed.
    TRAITS: ClassVar[Traits] = Traits(
        settle_s=5.0,
        at_once=None,
        keeps_others_lit=True,
        latching=True,
        insertion_loss_db=4.0,
        spectral=True,
        directions=(("41(0[1-9]|1[0-9]|20)", MUX_OUT), (DEMUX_IN, "52(0[1-9]|1[0-9]|20)")),
    )
    OPTIONS: ClassVar[Mapping[str, str]] = {
        "edfa": "`cycle`: take both amplifiers out of service around every change, which darkens all channels; default leave",
        **OPTIONS,
        "patience_s": patience_option(),
    }
    EVIDENCE: ClassVar[Evidence] = Evidence(
        "Lumentum ROADM-20, NETCONF",
        ("netconf",),
        {
            "identify": "assumed",
            "read": "CODE",
            "change": "CODE",
            "refusals": "assumed",
            "power": "CODE",
            "settling": "assumed",
        },
    )

    def __init__(self, config: DeviceConfig, traits: Traits) -> None:
        super().__init__(config, traits)
        self._session: NetconfSession = NetconfSession(open_netconf(config))
        self._write_s = config.timeout_s + traits.settle_s
        edfa = config.options.get("edfa", "leave")
        if edfa not in ("leave", "cycle"):
            raise ValueError(f"edfa: leave or cycle, not {edfa!r}")
        self._cycle = edfa == "cycle"
        self._dark = False  # this driver took the amplifiers out of service

    async def identify(self) -> Identity:
        async with self._lock:
            uris = await self._session.capabilities()
        revisions = [
            found[1]
            for uri in uris
            if uri.startswith(roadm.NS) and (found := re.search(r"revision=([0-9-]{10})", uri))
        ]
        firmware = f"connection model {revisions[0]}" if revisions else "not reported"
        return Identity(
            "Lumentum", "ROADM-20", "not reported", firmware, (*ADD, DEMUX_IN), (MUX_OUT, *DROP)
        )

    async def power(self, ports: Iterable[Port]) -> Mapping[Port, Dbm]:
        """As the protocol says: the sum over the connections of a port, the only power the device
        is known to report.
        """
        async with self._lock:
            seen = await self._look()
        sums: dict[str, float] = {}
        for c in seen.connections:
            for label, level in zip((c.ingress, c.egress), c.power, strict=True):
                if level is not None and level > FLOOR_DBM:
                    sums[label] = sums.get(label, 0.0) + 10 ** (float(level) / 10)
        return {
            port: round(10 * math.log10(sums[port.label]), 2)
            for port in ports
            if port.label in sums and port.device == self.name
        }

    async def _look(self) -> Table:
        connections = await self._session.get(
            tree("connections", ns=roadm.NS), roadm.parse_connections, question="get connections"
        )
        where = {
            SpectralRoute(
                Port(self.name, c.ingress),
                Port(self.name, c.egress),
                c.slot,
                float(c.attenuation_db),
            ): c
            for c in connections
            if c.lit
        }
        return Table(connections, where)

    async def _round(self, change: Change, marks: Marks[Setting]) -> Outcome:
        """As every device of routes; amplifiers left out of service by an earlier round whose
        answer was lost come back first.
        """
        if self._dark:
            await marks.begin()
            await self._light(marks)
        return await super()._round(change, marks)

    def _fault(self, route: SpectralRoute, seen: Table) -> str:
        if not 0 <= route.attenuation_db <= MOST_DB:
            return f"attenuation {route.attenuation_db:.1f} dB is not between 0 and {MOST_DB:.0f}"
        return ""

    async def _carry_out(
        self,
        removed: Sequence[SpectralRoute],
        tuned: Sequence[tuple[SpectralRoute, SpectralRoute]],
        new: Sequence[SpectralRoute],
        seen: Table,
        marks: Marks[Setting],
    ) -> None:
        try:
            if self._cycle and (removed or new):
                self._dark = True
                marks.write()
                await self._session.edit(
                    roadm.amplifiers("out-of-service"),
                    question="edfas out-of-service",
                    timeout_s=self._write_s,
                )
            for route in removed:
                await self._request(
                    [route],
                    roadm.deletion_of(seen.where[route].dn),
                    f"delete-connection {seen.where[route].dn}",
                    marks,
                )
            if removed:
                marks.broke()
            if tuned:
                await self._tune(tuned, seen, marks)
            # a new route may not use what could not be removed
            stuck = [route for route in removed if route in marks.reasons]
            marks.reasons.update({route: text for route in new if (text := blocking(route, stuck))})
            if free := [route for route in new if route not in marks.reasons]:
                await self._make(free, seen, removed, marks)
        finally:
            await self._light(marks)

    async def _light(self, marks: Marks[Setting]) -> None:
        """Put the amplifiers back in service if this driver took them out."""
        if self._dark:
            marks.write()
            await self._session.edit(
                roadm.amplifiers("in-service"), question="edfas in-service", timeout_s=self._write_s
            )
            self._dark = False

    async def _tune(
        self,
        tuned: Sequence[tuple[SpectralRoute, SpectralRoute]],
        seen: Table,
        marks: Marks[Setting],
    ) -> None:
        changes = {
            seen.where[before].dn: Decimal(f"{after.attenuation_db:.1f}") for before, after in tuned
        }
        both = [route for pair in tuned for route in pair]
        await self._request(
            both,
            roadm.attenuation_of(changes),
            f"edit attenuation of {len(tuned)}",
            marks,
            edit=True,
        )

    async def _make(
        self,
        new: Sequence[SpectralRoute],
        seen: Table,
        removed: Sequence[SpectralRoute],
        marks: Marks[Setting],
    ) -> None:
        """Send one edit-config for all; if the device refuses it, find out which of them it
        refuses.
        """
        wanted = self._numbered(new, seen, removed, marks)
        if not wanted or not await self._try(wanted, marks) or len(wanted) == 1:
            return
        last = await watch(  # of a refused list the device may have made all, some or nothing
            self._look,
            lambda now: wanted.keys() <= now.routes,
            expected_s=self.traits.settle_s,
            patience_s=late_s(self.traits),
        )
        for route in wanted:
            marks.reasons.pop(route, None)
            if route not in last.report.routes:
                await self._try({route: wanted[route]}, marks)

    async def _try(self, wanted: Mapping[SpectralRoute, Connection], marks: Marks[Setting]) -> bool:
        names = ", ".join(c.dn.removeprefix(f"{roadm.CARD};") for c in [*wanted.values()][:3])
        more = ", ..." if len(wanted) > 3 else ""
        return await self._request(
            [*wanted], roadm.config_of(*wanted.values()), f"edit {names}{more}", marks, edit=True
        )

    def _numbered(
        self,
        new: Sequence[SpectralRoute],
        seen: Table,
        removed: Sequence[SpectralRoute],
        marks: Marks[Setting],
    ) -> dict[SpectralRoute, Connection]:
        """Give each route a free number of its module. A dark connection of this program for the
        same route is reused.
        """
        freed = {seen.where[route].dn for route in removed if route not in marks.reasons}
        taken = {(c.module, c.number) for c in seen.connections if c.dn not in freed}
        found: dict[SpectralRoute, Connection] = {}
        for route in new:
            module = roadm.module_of(route.ingress.label)
            same = (route.ingress.label, route.egress.label, route.slot)
            owned = [c for c in seen.connections if not c.lit and c.name.startswith(roadm.NAME)]
            again = [c.number for c in owned if (c.ingress, c.egress, c.slot) == same]
            free = again or [
                n for n in range(1, roadm.MOST_CONNECTIONS + 1) if (module, n) not in taken
            ]
            if not free:
                marks.reasons[route] = (
                    f"all {roadm.MOST_CONNECTIONS} connections of module {module} are taken"
                )
                continue
            taken.add((module, free[0]))
            db, name = Decimal(f"{route.attenuation_db:.1f}"), f"{roadm.NAME}-{module}-{free[0]}"
            found[route] = Connection(
                module, free[0], route.ingress.label, route.egress.label, route.slot, db, True, name
            )
        return found

    async def _request(
        self,
        routes: Sequence[SpectralRoute],
        what: netconf.Element,
        question: str,
        marks: Marks[Setting],
        *,
        edit: bool = False,
    ) -> bool:
        """Send a change; if the device refuses it, keep the reason for `routes` and return True."""
        marks.write()
        try:
            if edit:
                await self._session.edit(what, question=question, timeout_s=self._write_s)
            else:
                await self._session.call(netconf.show(what), question, self._write_s)
        except Refused as error:
            marks.reasons.update(dict.fromkeys(routes, str(error).removeprefix(f"{self.name} ")))
            return True
        return False
