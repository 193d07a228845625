"""What NetBox lists of a lab: devices, cables and the ports of patch panels, checked. Answers in,
values out.

NetBox is not trusted: everything here is checked before it becomes a name, a number or a file.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import ip_interface
from typing import Annotated, Any, TypeAlias, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from optics import BadFile
from optics.plain import did_you_mean, printable
from orchestrator.inventory.schema import NAME

CONTEXT = "testbed"
"""The key of a device's config context that says that it is part of the lab."""
OF_SWITCHES = frozenset({"driver", "address", "username", "timeout_s", "traits"})
"""Keys of devices.yml that NetBox may give: none that reads a variable or a file of the operator."""
OF_HOSTS = frozenset(
    {"host_id", "forwarding", "gpus", "lanes", "link_mbps", "mgmt_address", "node_prefix"}
    | {"port_prefix", "ranks"}
)
"""Variables of hosts.yml that NetBox may give: none that says as whom jobs run."""
MOST_PROBLEMS = 100
LABEL = r"[A-Za-z0-9][A-Za-z0-9._/:-]{0,63}"
"""Port labels that are taken over: a driver writes them into commands."""
INTERFACE = r"[A-Za-z0-9][A-Za-z0-9._@-]{0,14}"
"""Names of Linux interfaces that are taken over: Ansible would evaluate braces."""

Key: TypeAlias = tuple[str, int]
"""A port: its type (`dcim.interface`) and its number in NetBox."""
Text = Annotated[str, Field(max_length=255)]
Id = Annotated[int, Field(ge=1)]
INTERFACES, FRONT, REAR = "dcim.interface", "dcim.frontport", "dcim.rearport"


class _Row(BaseModel):
    """An object of a list. NetBox may have more fields, now or in a later version."""

    model_config = ConfigDict(extra="ignore", frozen=True, allow_inf_nan=False, defer_build=True)


class _Choice(_Row):
    value: Text | None = None


class _Named(_Row):
    id: Id
    name: Text | None = None


class _Address(_Row):
    address: Text


class DeviceRow(_Row):
    id: Id
    name: Text | None = None
    config_context: dict[str, Any] | None = None
    primary_ip: _Address | None = None


class _Object(_Row):
    name: Text | None = None
    device: _Named | None = None


class _End(_Row):
    object_type: Text
    object_id: Id
    object: _Object | None = None

    @property
    def key(self) -> Key:
        return self.object_type, self.object_id

    def __str__(self) -> str:
        device = self.object.device if self.object else None
        name = self.object.name if self.object else None
        return printable(f"{(device and device.name) or '?'}:{name or self.object_id}")


class CableRow(_Row):
    id: Id
    label: Text = ""
    a_terminations: Annotated[list[_End], Field(max_length=64)] = Field(default_factory=list)
    b_terminations: Annotated[list[_End], Field(max_length=64)] = Field(default_factory=list)
    length: Annotated[float, Field(ge=0)] | None = None
    length_unit: _Choice | None = None
    profile: _Choice | None = None
    custom_fields: dict[str, Any] = Field(default_factory=dict)


class InterfaceRow(_Row):
    id: Id
    name: Text
    label: Text = ""


class _Mapping(_Row):
    position: Id = 1
    rear_port: Id
    rear_port_position: Id = 1


class FrontRow(_Row):
    """A front port. Up to NetBox 4.4 it leads to one position of one rear port (`rear_port`), from
    4.5 on to several (`rear_ports`).
    """

    id: Id
    positions: Id = 1
    rear_ports: Annotated[list[_Mapping], Field(max_length=1024)] | None = None
    rear_port: _Named | None = None
    rear_port_position: Id = 1

    @property
    def leads(self) -> Sequence[tuple[int, int, int]]:
        """Position here, rear port, and position there."""
        if self.rear_ports is not None:
            return [(m.position, m.rear_port, m.rear_port_position) for m in self.rear_ports]
        return [] if self.rear_port is None else [(1, self.rear_port.id, self.rear_port_position)]


class RearRow(_Row):
    id: Id
    positions: Annotated[int, Field(ge=1, le=1024)] = 1


@dataclass(frozen=True, slots=True)
class Answers:
    """NetBox's lists of devices, cables and cabled ports, as JSON."""

    devices: Sequence[Any]
    cables: Sequence[Any]
    interfaces: Sequence[Any]
    front_ports: Sequence[Any]
    rear_ports: Sequence[Any]


@dataclass(frozen=True, slots=True)
class Rows:
    """The lists, checked; of the devices those of the lab."""

    hosts: Mapping[int, DeviceRow]
    switches: Mapping[int, DeviceRow]
    others: frozenset[int]
    """Devices that are not part of the lab."""
    cables: Sequence[CableRow]
    interfaces: Mapping[int, InterfaceRow]
    fronts: Mapping[int, FrontRow]
    rears: Mapping[int, RearRow]
    context: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    """What the config context of each device of the lab says."""


def read_rows(answers: Answers, source: str) -> Rows:
    """The lists, checked. source: where they are from, for errors. Raises: BadFile - everything
    wrong with them.
    """
    problems: list[str] = []
    devices = _checked(DeviceRow, answers.devices, f"{source}: device", problems)
    context: dict[int, Mapping[str, Any]] = {}
    for device in devices:
        given = (device.config_context or {}).get(CONTEXT)
        if given is not None:
            context[device.id] = _context(device, given, f"{source}: device", problems)
    names = Counter(device.name for device in devices if device.id in context)
    problems += [
        f"{source}: {times} devices of the lab are called {printable(str(name))}: rename them, or choose by --filter"
        for name, times in names.items()
        if times > 1
    ]
    switches = {d.id: d for d in devices if "driver" in context.get(d.id, ())}
    rows = Rows(
        {d.id: d for d in devices if d.id in context and d.id not in switches},
        switches,
        frozenset(d.id for d in devices if d.id not in context),
        _checked(CableRow, answers.cables, f"{source}: cable", problems),
        _by_id(_checked(InterfaceRow, answers.interfaces, f"{source}: interface", problems)),
        _by_id(_checked(FrontRow, answers.front_ports, f"{source}: front port", problems)),
        _by_id(_checked(RearRow, answers.rear_ports, f"{source}: rear port", problems)),
        context,
    )
    if not problems and not (rows.hosts and rows.switches):
        missing = "host" if rows.switches else "optical switch"
        problems.append(
            f"{source}: no {missing} of {len(devices)} devices: the config context of a device of the lab has {CONTEXT},"
            f" of a switch with driver and address"
        )
    if problems:
        more = [f"and {len(problems) - MOST_PROBLEMS} more"] if problems[MOST_PROBLEMS:] else []
        raise BadFile(
            [*problems[:MOST_PROBLEMS], *more],
            hint="correct it in NetBox; nothing was written (docs/how-to/netbox.md)",
        )
    return rows


Model = TypeVar("Model", bound=_Row)
Numbered = TypeVar("Numbered", InterfaceRow, FrontRow, RearRow)


def _checked(
    model: type[Model], rows: Iterable[Any], what: str, problems: list[str]
) -> list[Model]:
    found = []
    for place, row in enumerate(rows):
        try:
            found.append(model.model_validate(row))
        except ValidationError as error:
            first = error.errors()[0]
            number = row.get("id", f"at {place}") if isinstance(row, Mapping) else f"at {place}"
            where = ".".join(map(str, first["loc"]))
            problems.append(f"{what} {printable(str(number))[:40]}: {where}: {first['msg']}")
    return found


def _by_id(rows: Iterable[Numbered]) -> dict[int, Numbered]:
    return {row.id: row for row in rows}


def _context(device: DeviceRow, given: Any, what: str, problems: list[str]) -> Mapping[str, Any]:
    """What a device's config context says, without what may not come from there."""
    where = f"{what} {device.id}"
    name = device.name or ""
    if not re.fullmatch(NAME.strip("^$"), name):
        problems.append(
            f"{where}: the name {printable(name)[:60]!r}: use letters, digits, '.', '_' and '-', at most 63"
        )
    if not isinstance(given, Mapping):
        problems.append(f"{where}: config context {CONTEXT}: wanted an object")
        return {}
    known = OF_SWITCHES if "driver" in given else OF_HOSTS
    for key in [key for key in given if key not in known]:
        problems.append(
            f"{where}: config context {CONTEXT}.{printable(str(key))[:40]}: not taken from NetBox; wanted"
            f" {', '.join(sorted(known))}{did_you_mean(key, known)}"
        )
    if "driver" in given and "address" not in given:
        problems.append(f"{where}: config context {CONTEXT}: a switch needs address")
    if "driver" not in given and device.primary_ip:
        try:
            ip_interface(device.primary_ip.address)
        except ValueError:
            problems.append(f"{where}: primary IP: not an address")
    return given
