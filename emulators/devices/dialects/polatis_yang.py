"""The data of a Polatis switch behind RESTCONF and NETCONF: the content of its YANG modules
`optical-switch` and `polatis-switch`.

Grades: REAL mocks of public clients, CODE literals of public clients (ONOS drivers/polatis/netconf;
tcdona3; quintons/polatis2; the pqnstack, GQuON and Padtec scripts; a test suite of the vendor), DOC
an RFC, U unconfirmed. CODE: the tables, their lists, keys and leaves below; the list of
cross-connects is `pairs` before revision 2017-08-04 and `pair` from then on; ENABLED, DISABLED,
FAILED; the modes of attenuators. U, and chosen so that they ask most of a driver: a pair is
configured, and shown, at once and carries light `settle_s` later; a change is done as a whole or
refused as a whole; pairs that stay are not touched; a disabled or failed port takes no new pair.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from emulators.devices.dialects.base import AnyDialect
from emulators.devices.dialects.polatis_port import MOST_DB, Attenuator, metered, number_of
from emulators.optics.plant import Pair, Side

OPTICAL = "http://www.polatis.com/yang/optical-switch"  # CODE: ONOS
SWITCH = "http://www.polatis.com/yang/polatis-switch"  # CODE: ONOS
RENAMED = "2017-08-04"  # CODE: ONOS
NEWEST = "2017-08-04"
# uint; the rest is text or decimal64
NUMBERS = frozenset({"ingress", "egress", "port-id", "reference-port", "averaging-time"})
# CODE: both forms; whether shut
STATUS = {"ENABLED": False, "PC_ENABLED": False, "DISABLED": True, "PC_DISABLED": True}
# CODE: tcdona3, each with VOA_MODE_ before it
MODES = ("NONE", "RELATIVE", "ABSOLUTE", "CONVERGED", "MAXIMUM", "FIXED")
# CODE that each port has all three; values U
METER = {"wavelength": "1550.0", "offset": "0.0", "averaging-time": "4"}
MAX_LABEL = 64  # characters (U)
BOOT = {"DARK": "DARK", "REST": "REST", "RESTORE": "REST", "AUTO": "AUTO", "AUTOSAVE": "AUTO"}

Row = Mapping[str, str]
Tables = Mapping[str, Sequence[Row]]


class Refused(Exception):
    """A change that is not made; `tag` and `app_tag` are those of RFC 6241 appendix A, `where` is
    table and row.
    """

    def __init__(self, tag: str, message: str, where: str = "", app_tag: str = "") -> None:
        super().__init__(tag, message)
        self.tag, self.message, self.where, self.app_tag = tag, message, where, app_tag


@dataclass(frozen=True, slots=True)
class Table:
    """A container with one list."""

    module: str
    rows: str
    key: str
    leaves: tuple[str, ...]
    writable: bool = True


class PolatisYang:
    """The data of one switch; `dialect` is asked about faults and notified of writes."""

    def __init__(
        self,
        dialect: AnyDialect,
        *,
        model: str | None,
        serial: str,
        firmware: str,
        revision: str,
        boot_mode: str,
        voa: bool,
        older_ports: bool = False,
    ) -> None:
        self.dialect, self.plant = dialect, dialect.plant
        ingress, egress = self.plant.ingress, self.plant.egress
        self.model = model or f"N-VST-{len(ingress)}x{len(egress)}-LA1-DMHNV-801"
        self.serial, self.firmware, self.revision, self.voa = serial, firmware, revision, voa
        if boot_mode.upper() not in BOOT:
            raise ValueError(
                f"{self.plant.name}: boot_mode {boot_mode!r} is none of DARK, RESTORE, AUTOSAVE"
            )
        self.boot_mode = BOOT[boot_mode.upper()]
        self.list_name = "pair" if revision >= RENAMED else "pairs"
        port = ("port", "port-id")
        self.tables = {
            "cross-connects": Table(
                "optical-switch", self.list_name, "ingress", ("ingress", "egress")
            ),
            "port-config": Table(
                "optical-switch", *port, ("port-id", "status", "label", "peer-port")
            ),
            "opm-power": Table("optical-switch", *port, ("port-id", "power"), writable=False),
            "opm-config": Table("optical-switch", *port, ("port-id", *METER)),
            "voa": Table(
                "optical-switch", *port, ("port-id", "atten-mode", "atten-level", "reference-port")
            ),
        }
        if older_ports:  # CODE: public web pages read a port's label here
            self.tables["ports"] = Table(
                "optical-switch", *port, ("port-id", "port-label"), writable=False
            )
        self._sides: dict[str, Side] = {p: ("in", p) for p in ingress} | {
            p: ("out", p) for p in egress
        }
        self._labels: dict[str, dict[str, str]] = {}
        self._opm: dict[str, dict[str, str]] = {}
        self._voa: dict[str, tuple[str, Attenuator]] = {}
        self._saved: tuple[Pair, ...] = ()

    @property
    def product(self) -> dict[str, str]:
        """REAL: names and their order."""
        values = {"manufacturer": "Polatis", "serial-number": self.serial}
        return {**values, "model-name": self.model, "software-version": self.firmware}

    def pairs(self) -> tuple[Pair, ...]:
        """Return the pairs as configured, by ingress."""
        return tuple(sorted(self.plant.pairs(), key=lambda pair: int(pair[0])))

    def configuration(
        self, pairs: Sequence[Pair], names: frozenset[str] | None = None
    ) -> dict[str, list[Row]]:
        """Return the tables that can be written, of those in `names` (None: all), with these
        cross-connects.
        """
        tables: dict[str, Callable[[], list[Row]]] = {
            "cross-connects": lambda: [{"ingress": i, "egress": e} for i, e in pairs],
            "port-config": self._ports,
            "opm-config": lambda: [
                {"port-id": p, **METER, **self._opm.get(p, {})} for p, _ in self._metered()
            ],
            "voa": lambda: [self._attenuator(p) for p in self.plant.egress] if self.voa else [],
        }
        return {name: rows() for name, rows in tables.items() if names is None or name in names}

    def everything(
        self, pairs: Sequence[Pair], now: float, names: frozenset[str] | None = None
    ) -> dict[str, list[Row]]:
        """Return configuration and state, of the tables in `names`."""
        tables = self.configuration(pairs, names)
        if names is None or "opm-power" in names:
            power = self.plant.power_dbm
            tables["opm-power"] = [
                {"port-id": p, "power": f"{power(side, now):.2f}"} for p, side in self._metered()
            ]
        if "ports" in self.tables and (names is None or "ports" in names):
            tables["ports"] = [
                {"port-id": p, "port-label": self._labels.get(p, {}).get("label", "")}
                for p in self._sides
            ]
        return tables

    # ---- changes

    def write(self, wanted: Tables, now: float) -> None:
        """Make the tables named in `wanted` as given there. Raises Refused: nothing is changed."""
        target = self._target(wanted["cross-connects"]) if "cross-connects" in wanted else None
        labels, shut = (
            self._wanted_ports(wanted["port-config"])
            if "port-config" in wanted
            else (self._labels, {})
        )
        opm = self._wanted_opm(wanted["opm-config"]) if "opm-config" in wanted else self._opm
        voa = self._wanted_voa(wanted["voa"]) if "voa" in wanted else self._voa
        if target is not None:
            self._move(target, now)
        self._labels, self._opm = labels, opm
        for disable in (True, False):
            if sides := [side for side, closed in shut.items() if closed is disable]:
                self.shut(sides, disable, now)
        self._advance(voa)

    def shut(self, sides: Sequence[Side], disable: bool, now: float) -> None:
        """Close or open shutters."""
        if not self.dialect.silent:
            self.plant.set_disabled(self.dialect.some(sides), disable, now)

    def side(self, port: str, where: str = "") -> Side:
        """Return the side of a port. Raises Refused."""
        found = self._sides.get(port)
        if found is None:
            raise Refused("invalid-value", f"Invalid OXC port: {port[:20]}", where)  # CODE
        return found

    def preset(self, pair: Pair) -> None:
        """Make a pair as if it had been there for ever. Raises ValueError."""
        self.plant.preset([pair])
        self._remember()

    def rebooted(self, keep: bool, now: float) -> None:
        """DARK comes up empty, RESTORE with the pairs of the start, AUTOSAVE with the last (DOC:
        boot:mode of the same switch).
        """
        if keep and self.boot_mode != "DARK":
            self.plant.restore(self._saved, now, self.dialect.boot_s)
        elif not keep:
            self._saved = ()

    def hold(self, now: float) -> bool:
        """Turn the attenuators to what their modes ask, from the light there is now; return whether
        one moved.
        """
        moved = False
        for port, (mode, attenuator) in self._voa.items():
            side, present = ("out", port), self.plant.attenuators.get(("out", port), 0.0)
            circuit = self.plant.circuit(side)
            db: float | None
            if mode in ("MAXIMUM", "FIXED"):
                db = MOST_DB if mode == "MAXIMUM" else None
            elif circuit is None or not circuit.settled(now):
                attenuator.released()
                continue
            else:
                reference = self._sides[attenuator.refs or circuit.ingress]
                db = attenuator.needed(
                    self.plant.true_dbm(reference, now), self.plant.true_dbm(side, now), present
                )
            if db is not None and abs(db - present) > 0.005:
                self.plant.attenuate(side, db)
                moved = True
        return moved

    # ---- inside

    def _target(self, rows: Sequence[Row]) -> dict[str, str]:
        target: dict[str, str] = {}
        taken: dict[str, str] = {}
        for row in rows:
            ingress, where = row.get("ingress", ""), f"{self.list_name}={row.get('ingress', '')}"
            if "egress" not in row:
                raise Refused("missing-element", "egress is missing", where)
            egress = row["egress"]
            if self.side(ingress, where)[0] != "in":
                raise Refused("invalid-value", f"Invalid OXC port: {ingress}", where)
            # CODE: where, and in which words
            if self._sides.get(egress, ("in", egress))[0] != "out":
                path = f"/cross-connects/{self.list_name}[ingress='{ingress}']"
                text = "Either the port is invalid or it does not have switching capability"
                raise Refused("invalid-value", f"{path} : {text}", where)
            if ingress in target:
                raise Refused("data-exists", f"ingress {ingress} stands twice", where)
            if egress in taken:
                raise Refused(
                    "in-use",
                    f"egress {egress} is in use by ingress {taken[egress]}",
                    where,
                    "data-not-unique",
                )
            target[ingress], taken[egress] = egress, ingress
        return target

    def _move(self, target: Mapping[str, str], now: float) -> None:
        present = dict(self.plant.pairs())
        drop = [pair for pair in present.items() if target.get(pair[0]) != pair[1]]
        make = [pair for pair in target.items() if present.get(pair[0]) != pair[1]]
        wrong = self.plant.wrong
        for pairs, reasons in ((drop, ()), (make, (("failed", wrong.failed), ("disabled", None)))):
            for pair in pairs:
                where = f"{self.list_name}={pair[0]}"
                if lock := wrong.lock(pair):
                    raise Refused("in-use", lock, where)
                sides: tuple[Side, Side] = (("in", pair[0]), ("out", pair[1]))
                for side in sides:
                    if side in wrong.stuck:
                        raise Refused("operation-failed", f"port {side[1]} stuck", where)
                    for reason, marked in reasons:
                        if self.plant.disabled(side) if marked is None else side in marked:
                            raise Refused("operation-failed", f"port {side[1]} {reason}", where)
        self.plant.disconnect(self.dialect.some(drop), now)
        # some of a bulk may not have been freed
        free = [pair for pair in self.dialect.some(make) if not self._blocking(pair)]
        self.plant.connect(free, now)
        self._remember()

    def _blocking(self, pair: Pair) -> bool:
        return any(
            self.plant.circuit(side) is not None for side in (("in", pair[0]), ("out", pair[1]))
        )

    def _remember(self) -> None:
        if self.boot_mode == "AUTO" or (self.boot_mode == "REST" and not self._saved):
            self._saved = self.plant.pairs()

    def _metered(self) -> list[tuple[str, Side]]:
        return [(port, side) for port, side in self._sides.items() if metered(self.model, side)]

    def _ports(self) -> list[Row]:
        failed = self.plant.wrong.failed
        rows: list[Row] = []
        for port, side in self._sides.items():
            status = (
                "FAILED"
                if side in failed
                else "DISABLED"
                if self.plant.disabled(side)
                else "ENABLED"
            )
            rows.append(
                {
                    "port-id": port,
                    "status": status,
                    "label": "",
                    "peer-port": "",
                    **self._labels.get(port, {}),
                }
            )
        return rows

    def _attenuator(self, port: str) -> Row:
        mode, attenuator = self._voa.get(port, ("NONE", Attenuator()))
        row = {"port-id": port, "atten-mode": f"VOA_MODE_{mode}"}
        if mode in ("RELATIVE", "ABSOLUTE", "CONVERGED"):
            row["atten-level"] = f"{attenuator.level:.2f}"
        return row | ({"reference-port": attenuator.refs} if attenuator.refs else {})

    def _wanted_ports(
        self, rows: Sequence[Row]
    ) -> tuple[dict[str, dict[str, str]], dict[Side, bool]]:
        labels: dict[str, dict[str, str]] = {}
        shut: dict[Side, bool] = {}
        for row in rows:
            port, where = row.get("port-id", ""), f"port={row.get('port-id', '')}"
            side, status = self.side(port, where), row.get("status", "")
            if status in STATUS:
                if STATUS[status] != self.plant.disabled(side):
                    shut[side] = STATUS[status]
            elif status not in ("", "FAILED"):
                raise Refused("invalid-value", f"status {status[:20]}", where)
            texts = {name: row[name] for name in ("label", "peer-port") if row.get(name)}
            if any(len(word) > MAX_LABEL or not word.isprintable() for word in texts.values()):
                raise Refused("invalid-value", "label", where)
            if texts:
                labels[port] = texts
        return labels, shut

    def _wanted_opm(self, rows: Sequence[Row]) -> dict[str, dict[str, str]]:
        kept: dict[str, dict[str, str]] = {}
        for row in rows:
            port, where = row.get("port-id", ""), f"port={row.get('port-id', '')}"
            if not metered(self.model, self.side(port, where)):
                raise Refused("invalid-value", f"port {port} has no power monitor", where)
            values = {name: row[name] for name in METER if row.get(name)}
            if any(number_of(value) is None for value in values.values()):
                raise Refused("invalid-value", "no number", where)
            if values:
                kept[port] = values
        return kept

    def _wanted_voa(self, rows: Sequence[Row]) -> dict[str, tuple[str, Attenuator]]:
        wanted: dict[str, tuple[str, Attenuator]] = {}
        for row in rows:
            port, where = row.get("port-id", ""), f"port={row.get('port-id', '')}"
            mode = row.get("atten-mode", "VOA_MODE_NONE").removeprefix("VOA_MODE_")
            level, reference = row.get("atten-level", ""), row.get("reference-port", "")
            if not self.voa or self.side(port, where)[0] != "out":
                raise Refused("invalid-value", f"port {port} has no attenuator", where)
            needs = mode in ("RELATIVE", "ABSOLUTE", "CONVERGED")
            number = number_of(level) if level else 0.0
            if mode not in MODES or number is None or abs(number) > 100 or (needs and not level):
                raise Refused("invalid-value", "mode or level", where)
            if reference:
                self.side(reference, where)
            if mode == "NONE":
                continue
            base = mode if mode in Attenuator.MODES else "NONE"
            new = Attenuator(
                base, number if needs else 0.0, reference if mode == "RELATIVE" else ""
            )
            before = self._voa.get(port)
            same = (
                before is not None
                and before[0] == mode
                and (before[1].level, before[1].refs) == (new.level, new.refs)
            )
            wanted[port] = before if same and before is not None else (mode, new)
        return wanted

    def _advance(self, voa: dict[str, tuple[str, Attenuator]]) -> None:
        if self.dialect.silent or voa is self._voa:
            return
        for port in self._voa:
            if port not in voa:
                self.plant.attenuate(("out", port), 0.0)
        self._voa = voa
