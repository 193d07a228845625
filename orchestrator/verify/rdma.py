"""Whether NCCL finds the RDMA ports of a host where it is told to look: the interface by its name,
its device, and its address at the index of the GID table. Pure.

After a link flap or a restart of its driver a NIC may come back under another name, or with its GIDs
at other indices; NCCL then fails with an error of the verbs library that names neither.
"""

from __future__ import annotations

import ipaddress
import json
import re
import shlex
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from optics import Garbled
from orchestrator.hosts.launch import nccl_environment
from orchestrator.inventory.hosts import FabricPort, Host
from orchestrator.verify.probe import RDMA_OF, Probe

V2 = "RoCE v2"
DEVICE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")
INTERFACE = re.compile(r"[^\s/'\"`]{1,15}")
MAC = re.compile(r"([0-9a-f]{2}:){5}[0-9a-f]{2}")
"""What a host prints and an operator is told to type: nothing that a shell reads otherwise."""
LONGEST = 64  # characters of a state or a type
MOST_NAMED = 8


@dataclass(frozen=True, slots=True)
class Gid:
    """An entry of a GID table that is in use. kind: `RoCE v2`, `IB/RoCE v1`."""

    index: int
    gid: str
    kind: str

    def __str__(self) -> str:
        address = ipaddress.IPv6Address(self.gid)
        return f"{address.ipv4_mapped or address} ({self.kind or 'of unknown type'})"


@dataclass(frozen=True, slots=True)
class RdmaPort:
    """A port of an RDMA device. state: as the kernel words it, `ACTIVE` where it carries."""

    device: str
    number: int
    state: str
    interfaces: tuple[str, ...]
    gids: tuple[Gid, ...]

    def __str__(self) -> str:
        return f"{self.device} port {self.number}"


@dataclass(frozen=True, slots=True)
class RdmaTables:
    """What a host printed. macs: of all its interfaces; carriers: None for one that is down.
    provisioned: the MAC address of each port's interfaces when it was last provisioned.
    """

    ports: tuple[RdmaPort, ...] = ()
    macs: Mapping[str, str] = field(default_factory=dict)
    carriers: Mapping[str, bool | None] = field(default_factory=dict)
    provisioned: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PortFault:
    """What is wrong with an optical port, and what to do next. kind: faults of one kind have one
    remedy. index: where its GID is instead.
    """

    kind: str
    text: str
    fix: str
    index: int | None = None


def read_tables(line: str) -> RdmaTables:
    """Read what the agent's `rdma` prints. Raises: Garbled - it is anything else."""
    try:
        found = json.loads(line)["rdma"]
        return RdmaTables(
            tuple(
                RdmaPort(
                    _name(device, DEVICE),
                    int(number),
                    _text(port["state"]),
                    tuple(_name(name, INTERFACE) for name in port["interfaces"]),
                    tuple(_gid(*row) for row in port["gids"]),
                )
                for device, ports in found["devices"].items()
                for number, port in ports.items()
            ),
            {_name(name, INTERFACE): _mac(mac) for name, (mac, _) in found["interfaces"].items()},
            {
                name: carrier if isinstance(carrier, bool) else None
                for name, (_, carrier) in found["interfaces"].items()
            },
            {_name(name, INTERFACE): _mac(mac) for name, mac in found["provisioned"].items()},
        )
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError, RecursionError):
        raise Garbled(f"the agent's `rdma` prints {line[:60]!r}") from None


def _text(text: Any) -> str:
    if not isinstance(text, str) or not text.isprintable() or len(text) > LONGEST:
        raise ValueError("a printable text is needed")
    return text


def _name(text: Any, form: re.Pattern[str]) -> str:
    if not form.fullmatch(_text(text)):
        raise ValueError("a name is needed")
    return str(text)


def _mac(text: Any) -> str:
    """Empty for one of another length, as tunnels and InfiniBand have."""
    return str(text) if MAC.fullmatch(_text(text)) else ""


def _few(words: Iterable[str], separator: str = ", ") -> str:
    first = list(words)
    more = [f"and {len(first) - MOST_NAMED} more"] if len(first) > MOST_NAMED else []
    return separator.join([*first[:MOST_NAMED], *more])


def _gid(index: Any, gid: Any, kind: Any) -> Gid:
    return Gid(int(index), ipaddress.IPv6Address(_text(gid)).exploded, _text(kind))


def rdma_environment(host: Host, job_env: Mapping[str, str]) -> Mapping[str, str]:
    """What NCCL is told of a host's RDMA devices by the launch and by the job's own environment;
    empty if it is told to use none.
    """
    env = {**nccl_environment(host, 1), **job_env}
    told = env.get("NCCL_NET", "IB").upper() == "IB" and env.get("NCCL_IB_DISABLE", "0") == "0"
    return env if told else {}


def port_faults(
    host: Host,
    tables: RdmaTables,
    job_env: Mapping[str, str],
    numbers: Collection[int] | None = None,
) -> tuple[PortFault, ...]:
    """What NCCL will not find at these ports of a host (None: all), port by port; nothing where it
    uses no RDMA. Ports that the job itself leaves out are not looked at.
    """
    env = rdma_environment(host, job_env)
    if not env:
        return ()
    found = (
        _fault(host, port, tables, env, "NCCL_IB_HCA" in job_env)
        for port in host.ports.values()
        if numbers is None or port.number in numbers
    )
    return tuple(fault for fault in found if fault is not None)


def _fault(
    host: Host, port: FabricPort, tables: RdmaTables, env: Mapping[str, str], own: bool
) -> PortFault | None:
    name, where, run = port.interface, f"p{port.number}", f"testbed host exec {host.machine} -- "
    if (moved := _renamed(where, name, tables)) is not None:
        return moved
    again = f"{run}'ip link set {name} down; ip link set {name} up', then testbed restore"
    at = [each for each in tables.ports if name in each.interfaces]
    if not at:
        return PortFault(
            "device",
            f"{where}: no RDMA device has interface {name}",
            f"load the driver of the NIC's RDMA function again; {run}dmesg says why it is not there",
        )
    spec = env.get("NCCL_IB_HCA", "")
    used = [each for each in at if nccl_uses(spec, each)]
    if not used and own:
        return None
    if not used:
        return PortFault(
            "name",
            f"{where}: {name} is {at[0].device}, which NCCL_IB_HCA={spec} does not name",
            f"give it that name: {run}rdma dev set {shlex.quote(at[0].device)} name NAME;"
            " lastingly, in rdma-core's 60-rdma-persistent-naming.rules",
        )
    here = used[0]
    if (carrier := tables.carriers.get(name)) is None:
        return PortFault(
            "down", f"{where}: {name} is down", f"{run}ip link set {name} up, then testbed restore"
        )
    if carrier and here.state != "ACTIVE":
        return PortFault(
            "state",
            f"{where}: {here} is {here.state or 'in no known state'} although {name} has carrier",
            again,
        )
    address = f"testbed host provision --limit {host.machine}, which sets the address; then {again}"
    return _gid_fault(where, host.port_address(port.number), here, env, again, address)


def _renamed(where: str, name: str, tables: RdmaTables) -> PortFault | None:
    """Whether another interface has the MAC address that this one had, or there is none of its
    name.
    """
    mac = tables.provisioned.get(name)
    if name in tables.macs and tables.macs[name] == (mac or tables.macs[name]):
        return None
    now = sorted(each for each, other in tables.macs.items() if mac and other == mac)
    if not now and name in tables.macs:
        return None  # another NIC was put in
    if not now:
        which = (
            f"no interface has the MAC address that it had, {mac}"
            if mac
            else "it has " + _few(sorted(tables.macs))
        )
        return PortFault(
            "absent",
            f"{where}: no interface {name}; {which}",
            "look on the host whether the NIC and its driver are there (lspci, dmesg)",
        )
    return PortFault(
        "renamed",
        f"{where}: {name} was renamed to {_few(now)}, which has its MAC address {mac}",
        f"""pin the name by a udev rule (SUBSYSTEM=="net", ATTR{{address}}=="{mac}", NAME="{name}"), rename it, then testbed restore""",
    )


def _gid_fault(
    where: str, address: str, here: RdmaPort, env: Mapping[str, str], again: str, provision: str
) -> PortFault | None:
    """Whether the address is of type RoCE v2 at the index that NCCL is told; a negative one leaves
    it to NCCL.
    """
    wanted = ipaddress.IPv6Address(f"::ffff:{address}").exploded
    mine = [each for each in here.gids if each.gid == wanted]
    indices = sorted(each.index for each in mine if each.kind == V2)
    told = env.get("NCCL_IB_GID_INDEX", "-1")
    index = int(told) if told.isdecimal() else -1
    if not indices:
        other = _few((f"index {each.index}: {each}" for each in mine), "; ")
        return PortFault(
            "gid" if mine else "no-gid",
            f"{where}: {here} has no {V2} GID of {address} among {len(here.gids)}"
            + (f" ({other})" if other else ""),
            again if mine else provision,
        )
    if index < 0 or index in indices:
        return None
    there = next((str(each) for each in here.gids if each.index == index), "nothing")
    return PortFault(
        "gid",
        f"{where}: {here} has the {V2} GID of {address} at index {indices[0]}; at index {index}, which NCCL_IB_GID_INDEX says, is {there}",
        f"end the job, then {again}",
        indices[0],
    )


def nccl_uses(spec: str, port: RdmaPort) -> bool:
    """Whether NCCL_IB_HCA chooses a port: beginnings of device names, perhaps with a port; = before
    them: whole names, ^: all others.

    >>> port = RdmaPort("mlx5_1", 1, "ACTIVE", (), ())
    >>> [nccl_uses(spec, port) for spec in ("", "mlx5", "=mlx5_1:1", "^=mlx5_1", "mlx5_1:2")]
    [True, True, True, False, False]
    """
    rest = spec.removeprefix("^")
    exact = rest.startswith("=")
    found = not rest
    for word in filter(None, rest.removeprefix("=").split(",")):
        device, _, number = word.partition(":")
        fits = port.device == device if exact else port.device.startswith(device)
        found = found or (fits and number in ("", str(port.number)))
    return found != spec.startswith("^")


def tables_probe(
    host: Host,
    tables: RdmaTables,
    job_env: Mapping[str, str],
    numbers: Collection[int] | None = None,
) -> Probe:
    """One line about a host whose jobs use RDMA, at these ports (None: all); what is wrong in
    detail, and what to do next.
    """
    faults, name = port_faults(host, tables, job_env, numbers), f"{RDMA_OF}{host.name}"
    ports = len(host.ports if numbers is None else numbers)
    index = rdma_environment(host, job_env).get("NCCL_IB_GID_INDEX", "-1")
    if not faults:
        where = "" if index.startswith("-") else f" at index {index}"
        text = f"each of {ports} ports has its interface and its {V2} GID{where}"
        return Probe(name, "ok", text, area="reach")
    fixes: dict[str, str] = {}
    for fault in faults:
        fixes.setdefault(fault.kind, fault.fix)
    indices = {fault.index for fault in faults}
    if len(faults) == ports and len(indices) == 1 and None not in indices:
        fixes["env"] = (
            f'or, where all hosts have them there, "NCCL_IB_GID_INDEX": "{indices.pop()}" in the env of the plan\'s job, job stop, up'
        )
    return Probe(
        name,
        "fail",
        "\n".join(fault.text for fault in faults),
        "; ".join(fixes.values()),
        "jobs over sockets; with NCCL, those that run",
        "reach",
    )
