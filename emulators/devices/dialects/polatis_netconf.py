"""Polatis (HUBER+SUHNER) switches over NETCONF, port 830.

Grades as in polatis_yang. CODE (ONOS, tcdona3): the namespaces, the capability that gives the
revision of optical-switch, edit-config of pairs (merge; delete with the ingress alone, or of the
whole container), <get> of cross-connects, port-config, opm-power, voa and product-information with
subtree filters, port-set-state and port-shutter-set-state with port-enab or port-disab, answered
<ok/>. A read of a port that is not there is an error, and words of errors are CODE (a test suite of
the vendor). U: which other capabilities there are, the tags of errors, notifications.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from lxml import etree

from emulators.devices.dialects.base import Session
from emulators.devices.dialects.netconf import NETCONF, NetconfDialect, RpcError
from emulators.devices.dialects.netconf_data import Schema
from emulators.devices.dialects.polatis_restconf import plain
from emulators.devices.dialects.polatis_scpi import numbered
from emulators.devices.dialects.polatis_yang import (
    NEWEST,
    OPTICAL,
    SWITCH,
    PolatisYang,
    Refused,
    Row,
)
from emulators.devices.dialects.xml import element, leaf, local, namespace, text
from emulators.devices.family import Family
from emulators.optics.plant import Pair, Plant

SHUTTERS = {(OPTICAL, "port-set-state"), (SWITCH, "port-shutter-set-state")}  # CODE: ONOS; tcdona3


class PolatisNetconf(NetconfDialect[tuple[Pair, ...]]):
    """One switch. revision: of module optical-switch, before 2017-08-04 with `pairs`. voa:
    attenuators at the egress ports.
    """

    writes = re.compile(r"<([\w.-]+:)?(edit-config|port-set-state|port-shutter-set-state)\b")

    def __init__(
        self,
        plant: Plant,
        *,
        model: str | None = None,
        serial: str = "2000",
        firmware: str = "6.7.3.9",
        revision: str = NEWEST,
        boot_mode: str = "AUTO",
        voa: bool = True,
        base_1_1: bool = True,
        epoch_s: float = 0.0,
        seed: int = 0,
        idle_s: float | None = None,
        boot_s: float = 1.0,
    ) -> None:
        super().__init__(
            plant, base_1_1=base_1_1, epoch_s=epoch_s, seed=seed, idle_s=idle_s, boot_s=boot_s
        )
        self.data = PolatisYang(
            self,
            model=model,
            serial=serial,
            firmware=firmware,
            revision=str(revision),
            boot_mode=boot_mode,
            voa=voa,
        )
        self.schemas: Mapping[str, Schema] = {
            f"{{{OPTICAL}}}{name}": Schema.of(
                name,
                Schema.of(table.rows, *(Schema(leaf) for leaf in table.leaves), key=table.key),
                writable=table.writable,
            )
            for name, table in self.data.tables.items()
        }
        self._hold_changed = False

    def preset(self, ingress: str, egress: str) -> None:
        """Make a pair as if it had been there for ever. Raises ValueError."""
        self.data.preset((ingress, egress))

    # ---- the manner

    def snapshot(self, now: float) -> tuple[Pair, ...]:
        return self.data.pairs()

    def rebooted(self, keep: bool, now: float) -> None:
        self.lock = None
        self.data.rebooted(keep, now)

    def on_light(self, now: float) -> None:
        self._hold_changed = self.data.hold(now)

    def next_event(self, now: float) -> float | None:
        return now if self._hold_changed else super().next_event(now)

    def event(self, now: float) -> etree._Element:
        """A system alarm; its leaves are U."""
        alarm = element(f"{{{SWITCH}}}system-alarms", {None: SWITCH})
        leaf(alarm, "alarm-time", f"{self.epoch_s + now:.0f}")
        leaf(alarm, "alarm-message", "temperature")
        return alarm

    # ---- what the base asks

    def capabilities(self) -> Sequence[str]:
        return (
            f"{OPTICAL}?module=optical-switch&revision={self.data.revision}",
            f"{SWITCH}?module=polatis-switch&revision={self.data.revision}",
        )

    def configuration(self, now: float) -> list[etree._Element]:
        return self._written(self.data.configuration(self.view(now), self.tops))

    def state(self, now: float) -> list[etree._Element]:
        product = element(f"{{{OPTICAL}}}product-information", {None: OPTICAL})
        for name, value in self.data.product.items():
            leaf(product, name, value)
        return [*self._written(self.data.everything(self.view(now), now, self.tops)), product]

    def configure(self, config: list[etree._Element], now: float) -> None:
        tables = self.data.tables.items()
        wanted: dict[str, list[Row]] = {
            n: [] for n, table in tables if table.writable and (self.tops is None or n in self.tops)
        }
        for node in config:
            rows = wanted[local(str(node.tag))]
            for entry in node:
                try:
                    rows.append(
                        {
                            local(str(each.tag)): plain(local(str(each.tag)), text(each))
                            for each in entry
                        }
                    )
                except ValueError as problem:
                    raise RpcError("invalid-value", str(problem)) from None
        try:
            self.data.write(wanted, now)
        except Refused as no:
            raise RpcError(no.tag, no.message, app_tag=no.app_tag, path=no.where) from None
        self._hold_changed = self.data.hold(now)

    def operation(
        self, session: Session, asked: etree._Element, now: float
    ) -> list[etree._Element] | None:
        if (namespace(str(asked.tag)), local(str(asked.tag))) not in SHUTTERS:
            return None
        self._free(session)
        try:
            wanted = {self.data.side(text(each)): self._shut(each) for each in asked}
        except Refused as no:
            raise RpcError(no.tag, no.message) from None
        if not wanted:
            raise RpcError(
                "missing-element", "port-enab or port-disab", info={"bad-element": "port-enab"}
            )
        self.wrote(now)
        for side, disable in wanted.items():
            self.data.shut([side], disable, now)
        return []

    # ---- inside

    def _data(self, nodes: list[etree._Element], asked: etree._Element) -> etree._Element:
        for top in asked.iterfind(f"{{{NETCONF}}}filter/*"):
            name = local(str(top.tag))
            table = self.data.tables.get(name)
            if table is None:
                continue
            for key in top.iterfind(f"{{*}}{table.rows}/{{*}}{table.key}"):
                port = text(key).strip()
                try:
                    if port:
                        self.data.side(port)
                except Refused as no:
                    raise RpcError(
                        no.tag, f"/opsw:{name}/{table.rows}{{{port}}}: {no.message}"
                    ) from None
        return super()._data(nodes, asked)

    def _shut(self, word: etree._Element) -> bool:
        name = local(str(word.tag))
        if name not in ("port-enab", "port-disab"):
            raise RpcError("unknown-element", name, info={"bad-element": name})
        return name == "port-disab"

    def _written(self, tables: Mapping[str, Sequence[Row]]) -> list[etree._Element]:
        nodes = []
        for name, rows in tables.items():
            if not rows:
                continue
            node = element(f"{{{OPTICAL}}}{name}", {None: OPTICAL})
            for row in rows:
                entry = etree.SubElement(node, f"{{{OPTICAL}}}{self.data.tables[name].rows}")
                for word, value in row.items():
                    leaf(entry, word, value)
            nodes.append(node)
        return nodes


FAMILY = Family("polatis-netconf", ("netconf",), PolatisNetconf, numbered, login=("admin", "root"))
