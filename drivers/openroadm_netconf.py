"""ROADMs that speak the OpenROADM 2.x device model over NETCONF: `netconf://host:830`.

The model is public (DOC, org-openroadm-device of releases 2.0 to 2.2.1), its use as in public
controllers: media channels, network media channels and the connection in three edits, removal in
the opposite order (ONOS and a NETCONF program, CODE); then `opticalControlMode` power, to degrees
with a target, and 20 s to reach it (TransportPCE, CODE).

Whether a connection passes light while its mode is `off` is in no public source: TransportPCE takes
it for dark, the ONOS driver never sets another mode. So a connection of others that is `off` is no
route, and its spectrum is not used either.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from typing import ClassVar

from drivers.api import Evidence
from drivers.rounds import Marks
from drivers.session.netconf import OPTIONS, NetconfSession, open_netconf
from drivers.session.routes import RouteSwitch, blocking
from drivers.watch import patience_option
from drivers.wire import openroadm, unknown
from drivers.wire.openroadm import MC, NMC, OFF, OMS, OWN, Connection, Interface, Node, Table
from optics import (
    Change,
    DeviceConfig,
    Garbled,
    Identity,
    Outcome,
    Port,
    Refused,
    Setting,
    SpectralRoute,
    Traits,
)

LEAST_DBM, MOST_DBM = -20, 5
"""TransportPCE asks for -9 to 2 dBm in 50 GHz (CODE); what is far outside that is a typing
error.
"""


@dataclass(frozen=True, slots=True)
class Held:
    """All that the device holds: connections that carry light, and those that do not or not yet."""

    table: Table
    where: Mapping[SpectralRoute, Connection]
    dark: Mapping[SpectralRoute, Connection]

    @property
    def routes(self) -> frozenset[SpectralRoute]:
        return frozenset(self.where)


class OpenroadmNetconf(RouteSwitch[Held]):
    """A node of degrees and add/drop groups. `DEG1` is degree 1, both ways; `SRG1/3/0/C3` is port
    C3 of circuit pack 3/0.
    """

    # Power at a degree's output is reached within 12 s (specification, as quoted by TRNSPRTPCE-88);
    # TransportPCE waits 20 s. The node amplifies and levels, so no loss is promised. Whether
    # connections outlive a loss of power is in no source.
    TRAITS: ClassVar[Traits] = Traits(
        settle_s=20.0,
        at_once=None,
        keeps_others_lit=True,
        latching=False,
        insertion_loss_db=0.0,
        spectral=True,
        directions=((r"DEG([0-9]+)", r"(?!DEG\1$)DEG[0-9]+|SRG.+"), ("SRG.+", "DEG[0-9]+")),
    )
    PATIENCE_S = 60.0  # "at least one vendor product needs 60 seconds" (TransportPCE)
    LABEL = openroadm.LABEL
    OPTIONS: ClassVar[Mapping[str, str]] = {
        "output_dbm": "power with which each channel leaves a degree (dBm, -20 to 5); default -9, TransportPCE's for no span loss",
        **OPTIONS,
        "patience_s": patience_option(PATIENCE_S),
    }
    EVIDENCE: ClassVar[Evidence] = Evidence(
        "OpenROADM 2.x ROADMs, NETCONF",
        ("netconf",),
        {
            "identify": "DOC",
            "read": "DOC",
            "change": "CODE",
            "refusals": "assumed",
            "settling": "CODE",
        },
    )
    max_attenuation_db = 0.0  # the node levels each channel itself

    def __init__(self, config: DeviceConfig, traits: Traits) -> None:
        super().__init__(config, traits)
        self._session: NetconfSession = NetconfSession(open_netconf(config))
        self._write_s = config.timeout_s + traits.settle_s
        self._dbm = _dbm(config.options.get("output_dbm", "-9"))
        self._node: Node | None = None
        # when (s, monotonic) the light of a connection made here is there
        self._lit_at: dict[str, float] = {}
        self._seen: Held | None = None

    async def identify(self) -> Identity:
        async with self._lock:
            self._node = None
            node = await self._read_node()
        return Identity(
            node.vendor,
            node.model,
            node.serial,
            node.firmware,
            tuple(node.ingress),
            tuple(node.egress),
        )

    def holders(self) -> Mapping[Setting | Port, str]:
        """Connections that do not, or not yet, carry light, and ports whose connection is not
        understood.
        """
        if self._seen is None:
            return {}
        dark: dict[Setting | Port, str] = {
            route: _dark(held) for route, held in self._seen.dark.items()
        }
        return dark | unknown.holders(self.name, self._seen.table.odd)

    async def _read_node(self) -> Node:
        """Cards may be added at any time, so each change begins by asking again."""
        if self._node is None:
            self._node = await self._session.get(
                openroadm.asked_node(), openroadm.parse_node, question="get info and ports"
            )
        return self._node

    async def _look(self) -> Held:
        read = partial(openroadm.parse_table, node=await self._read_node())
        table = await self._session.get(
            openroadm.asked_table(),
            read,
            question="get-config interface and roadm-connections",
            config=True,
        )
        where: dict[SpectralRoute, Connection] = {}
        dark: dict[SpectralRoute, Connection] = {}
        now = time.monotonic()
        for held in table.connections:
            lit = held.mode != OFF and now >= self._lit_at.get(held.name, 0.0)
            route = SpectralRoute(
                Port(self.name, held.ingress), Port(self.name, held.egress), held.slot
            )
            (where if lit else dark)[route] = held
        self._seen = Held(table, where, dark)
        return self._seen

    async def _round(self, change: Change, marks: Marks[Setting]) -> Outcome:
        self._node = None
        # a lost answer may have been that to a deletion: what rested below the connection is still
        # there
        if marks.writes:
            seen = await self._look()
            routes = [
                {r for r in half if isinstance(r, SpectralRoute)} - seen.routes
                for half in (change.remove, change.add)
            ]
            removed, wanted = (
                {name for route in half for name in self._own_at(route, seen)} for half in routes
            )
            await self._tidy(removed - wanted, marks)
        return await super()._round(change, marks)

    def _own_at(self, route: SpectralRoute, seen: Held) -> set[str]:
        """The channels of this program in the route's slot at its two ends."""
        ends = {
            self._known.ingress.get(route.ingress.label),
            self._known.egress.get(route.egress.label),
        }
        own = (each for each in seen.table.interfaces.values() if each.name.startswith(OWN))
        return {each.name for each in own if each.place in ends and each.slot == route.slot}

    def _fault(self, route: SpectralRoute, seen: Held) -> str:
        if route in seen.routes:
            return ""
        node, ends = self._known, (route.ingress.label, route.egress.label)
        if ends[0] not in node.ingress or ends[1] not in node.egress:
            return f"not a port of {self.name}"
        if route.attenuation_db:
            return "a node of this model levels its channels itself; no attenuation can be set"
        places = [
            (label, side[label])
            for label, side in zip(ends, (node.ingress, node.egress), strict=True)
        ]
        for label, place in places:
            if label.startswith("DEG") and seen.table.find(OMS, place) is None:
                return f"degree {label[3:]} has no OMS interface at {place.pack} {place.port}: bring its line into service first"
        if text := unknown.at(ends, seen.table.odd):
            return text
        others = {other: held for other, held in seen.dark.items() if not held.own}
        if text := blocking(route, sorted(others)):
            return f"{text}, which is {OFF}: whether it passes light is not known; delete it on the node, or let its owner light it"
        return ""

    async def _carry_out(
        self,
        removed: Sequence[SpectralRoute],
        tuned: Sequence[tuple[SpectralRoute, SpectralRoute]],
        new: Sequence[SpectralRoute],
        seen: Held,
        marks: Marks[Setting],
    ) -> None:
        if removed:
            await self._take_down({route: seen.where[route] for route in removed}, marks)
            marks.broke()
            seen = await self._look() if new else seen
        # a new route may not use what could not be removed
        stuck = [route for route in removed if route in marks.reasons]
        marks.reasons.update({route: text for route in new if (text := blocking(route, stuck))})
        if free := [route for route in new if route not in marks.reasons]:
            seen = await self._clear(free, seen, marks)
            text = await self._build(free, seen, marks)
            for route in free if text else ():
                if len(free) > 1:  # find out which of them the device refuses
                    text = await self._build([route], await self._look(), marks)
                if text:
                    marks.reasons[route] = text
                    await self._undo(route, marks)

    async def _take_down(
        self, removed: Mapping[SpectralRoute, Connection], marks: Marks[Setting]
    ) -> None:
        refused = await self._delete([*removed.values()], marks)
        for route, held in removed.items() if refused else ():
            text = await self._delete([held], marks) if len(removed) > 1 else refused
            if text:
                marks.reasons[route] = text
        await self._tidy(
            {name for held in removed.values() for name in (held.source, held.destination)}, marks
        )

    async def _delete(self, held: Sequence[Connection], marks: Marks[Setting]) -> str:
        names = [each.name for each in held]
        rows = [
            openroadm.deletion_of("roadm-connections", "connection-name", name) for name in names
        ]
        text = await self._edit(rows, f"delete roadm-connections {_few(names)}", marks)
        for name in () if text else names:
            self._lit_at.pop(name, None)
        return text

    async def _tidy(self, nmcs: set[str], marks: Marks[Setting]) -> None:
        """Delete these network media channels, then the media channels below, as far as nothing
        rests on them any more.

        A refusal is no failure: the light is gone, and a channel that stays is named by the device
        when its spectrum is wanted.
        """
        mcs: set[str] = set()
        for wanted in (nmcs, mcs):
            if not wanted:
                continue
            table = (await self._look()).table
            free = [
                table.interfaces[name]
                for name in sorted(wanted & table.interfaces.keys() - table.used)
            ]
            free = [each for each in free if each.kind in (MC, NMC)]
            mcs |= {each.below for each in free if each.kind == NMC and each.below}
            if names := [each.name for each in free]:
                rows = [openroadm.deletion_of("interface", "name", name) for name in names]
                await self._edit(rows, f"delete interface {_few(names)}", marks)

    async def _clear(self, new: Sequence[SpectralRoute], seen: Held, marks: Marks[Setting]) -> Held:
        """Delete what an interrupted change of this program left in the spectrum of the new routes;
        return what is held then.
        """
        node = self._known
        own = {other: held for other, held in seen.dark.items() if held.own and held.mode == OFF}
        left = {
            other: held for other, held in own.items() if other not in new and blocking(other, new)
        }
        if left:
            await self._take_down(left, marks)
            for other in left:
                marks.reasons.pop(other, None)
            seen = await self._look()
        at = {(node.ingress[r.ingress.label], r.slot) for r in new} | {
            (node.egress[r.egress.label], r.slot) for r in new
        }
        names = {
            each.name
            for each in seen.table.interfaces.values()
            if each.name.startswith(OWN)
            and each.name not in seen.table.used
            and each.slot is not None
            if any(
                place == each.place and slot != each.slot and slot.overlaps(each.slot)
                for place, slot in at
            )
        }
        if not names:
            return seen
        await self._tidy(names, marks)
        return await self._look()

    async def _build(self, new: Sequence[SpectralRoute], seen: Held, marks: Marks[Setting]) -> str:
        """Make the channels of all, then the connections, then bring them to power; stop at the
        first refusal and return it.
        """
        table = seen.table
        mcs: dict[str, Interface] = {}
        nmcs: dict[str, Interface] = {}
        rows: list[str] = []
        power: list[str] = []
        existing = {(held.name, held.source, held.destination) for held in table.connections}
        for route in new:
            ends = [self._channels(route, side, table, mcs, nmcs) for side in ("RX", "TX")]
            name = _name_of(route)
            if (name, *ends) not in existing:
                rows.append(openroadm.connection_of(name, *ends))
            power.append(
                openroadm.lighting_of(
                    name, self._dbm if route.egress.label.startswith("DEG") else None
                )
            )
        names = [_name_of(route) for route in new]
        steps: tuple[tuple[list[str], str], ...] = (
            (
                [openroadm.interface_of(each) for each in mcs.values()],
                f"edit interface {_few([*mcs])}",
            ),
            (
                [openroadm.interface_of(each) for each in nmcs.values()],
                f"edit interface {_few([*nmcs])}",
            ),
            (rows, f"edit roadm-connections {_few(names)}"),
            (power, f"edit opticalControlMode of {_few(names)}"),
        )
        for step, question in steps:
            if step and (text := await self._edit(step, question, marks)):
                return text
        self._lit_at.update(dict.fromkeys(names, time.monotonic() + self.traits.settle_s))
        return ""

    def _channels(
        self,
        route: SpectralRoute,
        side: str,
        table: Table,
        mcs: dict[str, Interface],
        nmcs: dict[str, Interface],
    ) -> str:
        """The name of the network media channel of one end; what is not there yet is put into `mcs`
        and `nmcs`.
        """
        node = self._known
        label = (route.ingress if side == "RX" else route.egress).label
        place = (node.ingress if side == "RX" else node.egress)[label]
        paths = "TXRX" if node.ingress.get(label) == node.egress.get(label) else side
        end, below = f"{label}-{paths}", ""
        if label.startswith("DEG"):
            oms = table.find(OMS, place)
            assert oms is not None  # else it is a fault
            mc = table.find(MC, place, route.slot) or Interface(
                _named(end, "mc", route), MC, place, oms.name, route.slot
            )
            if mc.name not in table.interfaces:
                mcs[mc.name] = mc
            below = mc.name
        nmc = table.find(NMC, place, route.slot) or Interface(
            _named(end, "nmc", route), NMC, place, below, route.slot
        )
        if nmc.name not in table.interfaces:
            nmcs[nmc.name] = nmc
        return nmc.name

    async def _undo(self, route: SpectralRoute, marks: Marks[Setting]) -> None:
        """Delete what was made of a route that was refused half-way."""
        seen = await self._look()
        held = seen.dark.get(route)
        if held is not None and held.own and held.mode == OFF:
            await self._delete([held], marks)
        await self._tidy(self._own_at(route, seen), marks)

    async def _edit(self, rows: Iterable[str], question: str, marks: Marks[Setting]) -> str:
        """Send one edit-config; return the device's words if it refuses."""
        marks.write()
        try:
            await self._session.edit(
                openroadm.config_of(*rows), question=question, timeout_s=self._write_s
            )
        except Refused as error:
            return str(error).removeprefix(f"{self.name} ")
        return ""

    @property
    def _known(self) -> Node:
        if self._node is None:
            raise Garbled(f"{self.name}: its ports are not read yet")
        return self._node


def _dbm(text: str) -> Decimal:
    """Read the option `output_dbm`. Raises: ValueError."""
    found = Decimal(text) if re.fullmatch(r"-?[0-9]{1,2}(\.[0-9]{1,2})?", text) else None
    if found is None or not LEAST_DBM <= found <= MOST_DBM:
        raise ValueError(f"output_dbm: dBm from {LEAST_DBM} to {MOST_DBM}, not {text!r}")
    return found


def _dark(held: Connection) -> str:
    state = (
        "opticalControlMode off, whether it passes light is not known"
        if held.mode == OFF
        else "its power is being set"
    )
    return f"roadm-connection {held.name}: {state}"


def _name_of(route: SpectralRoute) -> str:
    return f"{OWN}{route.ingress.label}-{route.egress.label}-{route.slot.low_mhz}-{route.slot.high_mhz}"


def _named(end: str, kind: str, route: SpectralRoute) -> str:
    """TransportPCE's form with edges for slot numbers; it finds the one kind from the other by
    `nmc` and `mc`.
    """
    return f"{OWN}{end}-{kind}-{route.slot.low_mhz}-{route.slot.high_mhz}"


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
