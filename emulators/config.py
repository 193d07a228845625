"""Read the inventory directory: what the emulators need of hosts.yml, devices.yml, fibres.yml, and all of emulator.yml.

The emulated lab is a separate program and trusts nothing else; the full check of an inventory, with positions and suggestions,
is the job of the program under test.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from emulators.addresses import Address, parse


class BadInventory(ValueError):
    """The inventory cannot be emulated; one problem per line, `file: where: what`."""


@dataclass(frozen=True, slots=True)
class HostConfig:
    """An emulated host. `interfaces` maps port number to interface name."""

    name: str
    number: int
    ssh_port: int
    mgmt_address: str
    interfaces: Mapping[int, str]


@dataclass(frozen=True, slots=True)
class DeviceConfig:
    """An emulated switch and where it answers. `overrides` go to its plant as they are; key_file: what its driver logs in with."""

    name: str
    driver: str
    address: Address
    username: str | None
    password: str | None
    overrides: Mapping[str, object]
    key_file: str = ""

    @property
    def port(self) -> int:
        """The loopback port; 0: a serial line."""
        return self.address.port


@dataclass(frozen=True, slots=True)
class Fibre:
    """A duplex cable: the host's light enters the device at `enters`, what leaves at `leaves` reaches the host."""

    name: str
    host: str
    port: int
    device: str
    enters: str
    leaves: str


@dataclass(frozen=True, slots=True)
class LabConfig:
    """One lab. `rate_bps` 0 means unshaped; `mtu` is the largest packet a fibre carries, bytes."""

    inventory: Path
    state: Path
    hosts: Mapping[str, HostConfig]
    devices: Mapping[str, DeviceConfig]
    fibres: tuple[Fibre, ...]
    with_hosts: bool = True
    seed: int = 1
    rate_bps: int = 250_000_000
    mtu: int = 9000
    reserve_core: bool | None = None


def read_config(inventory: Path) -> LabConfig:
    """Read an inventory directory.

    Raises: BadInventory - a file is missing, is not YAML, or says something that cannot be emulated.
    """
    inventory = inventory.resolve()
    hosts_file, devices_file, fibres_file = (_load(inventory / f"{stem}.yml") for stem in ("hosts", "devices", "fibres"))
    extra = _load(inventory / "emulator.yml") if (inventory / "emulator.yml").exists() else {}
    problems: list[str] = []
    unknown = set(extra) - {"hosts", "seed", "link_rate_mbps", "mtu", "devices", "reserve_core"}
    problems += [f"emulator.yml: {key}: unknown setting" for key in sorted(unknown)]

    hosts: dict[str, HostConfig] = {}
    keys: set[str] = set()
    users: set[str] = set()
    for name, facts in _hosts(hosts_file.get("all", hosts_file), {}):
        keys.add(str(facts.get("ansible_ssh_private_key_file", "")))
        users.add(str(facts.get("ansible_user", "root")))
        try:
            hosts[name] = HostConfig(
                name=name,
                number=int(facts["testbed_host_id"]),
                ssh_port=int(facts["ansible_port"]),
                mgmt_address=str(facts["testbed_mgmt_address"]),
                interfaces={int(number): str(port["interface"]) for number, port in facts["testbed_ports"].items()},
            )
        except (KeyError, TypeError, ValueError) as problem:
            problems.append(f"hosts.yml: {name}: {_words(problem)}")
        if facts.get("ansible_host", "127.0.0.1") not in ("127.0.0.1", "localhost"):
            problems.append(f"hosts.yml: {name}: ansible_host is {facts['ansible_host']}; an emulated host answers on 127.0.0.1")
    if len(keys) > 1 or (hosts and not any(keys)):
        problems.append(
            "hosts.yml: all emulated hosts need the same ansible_ssh_private_key_file: its folder keeps the lab's state"
        )
    if users - {"root"}:
        problems.append(f"hosts.yml: ansible_user: emulated hosts know only root, not {', '.join(sorted(users - {'root'}))}")

    overrides = extra.get("devices") or {}
    devices: dict[str, DeviceConfig] = {}
    for name, entry in (devices_file.get("devices") or {}).items():
        try:
            devices[name] = _device(name, entry, overrides.get(name) or {})
        except (KeyError, TypeError, ValueError) as problem:
            problems.append(f"devices.yml: {name}: {_words(problem)}")
    problems += [f"emulator.yml: devices: {name} is not in devices.yml" for name in sorted(set(overrides) - set(devices))]

    fibres: list[Fibre] = []
    for entry in fibres_file.get("fibres") or []:
        try:
            name, host, device, enters, leaves = (str(entry[k]) for k in ("name", "host", "device", "enters", "leaves"))
            fibre = Fibre(name, host, int(entry["port"]), device, enters, leaves)
        except (KeyError, TypeError, ValueError) as problem:
            problems.append(f"fibres.yml: {entry}: {_words(problem)}")
            continue
        if fibre.host not in hosts or fibre.port not in hosts[fibre.host].interfaces:
            problems.append(f"fibres.yml: {fibre.name}: no port {fibre.port} on a host {fibre.host} in hosts.yml")
        if fibre.device not in devices:
            problems.append(f"fibres.yml: {fibre.name}: device {fibre.device} is not in devices.yml")
        fibres.append(fibre)
    problems += [f"fibres.yml: {what}" for what in _twice(fibres)]
    if problems:
        raise BadInventory("\n".join(f"{inventory}/{problem}" for problem in problems))

    key = Path(next(iter(keys)) if keys else "~/.local/state/testbed/emulated/id_ed25519").expanduser()
    return LabConfig(
        inventory=inventory,
        state=(inventory / key).parent,
        hosts=hosts,
        devices=devices,
        fibres=tuple(fibres),
        with_hosts=bool(extra.get("hosts", True)) and bool(hosts),
        seed=int(extra.get("seed", 1)),
        rate_bps=round(float(extra.get("link_rate_mbps", 250)) * 1_000_000),
        mtu=int(extra.get("mtu", 9000)),
        reserve_core=extra.get("reserve_core"),
    )


def _load(path: Path) -> dict[str, Any]:
    try:
        content = yaml.load(path.read_text(), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except FileNotFoundError:
        raise BadInventory(f"{path}: no such file; an inventory directory has hosts.yml, devices.yml and fibres.yml") from None
    except yaml.YAMLError as problem:
        raise BadInventory(f"{path}: {problem}") from None
    if not isinstance(content, dict):
        raise BadInventory(f"{path}: a mapping is expected at the top")
    return content


def _hosts(group: Mapping[str, Any], inherited: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the hosts of an Ansible group and its children, each with the variables it inherits."""
    facts = {**inherited, **(group.get("vars") or {})}
    for name, own in (group.get("hosts") or {}).items():
        yield name, {**facts, **(own or {})}
    for child in (group.get("children") or {}).values():
        yield from _hosts(child or {}, facts)


def _device(name: str, entry: Mapping[str, Any], overrides: Mapping[str, Any]) -> DeviceConfig:
    address, key_file = parse(str(entry["address"])), str((entry.get("options") or {}).get("key_file", ""))
    login = entry.get("username"), entry.get("password")
    return DeviceConfig(name, str(entry["driver"]), address, *login, dict(overrides), key_file)


def _twice(fibres: list[Fibre]) -> Iterator[str]:
    """Say which plug would have to be in two sockets."""
    seen: dict[tuple[str, str, str], str] = {}
    for fibre in fibres:
        for plug in (
            (fibre.host, str(fibre.port), "port"),
            (fibre.device, fibre.enters, "ingress"),
            (fibre.device, fibre.leaves, "egress"),
        ):
            if plug in seen:
                yield f"{fibre.name}: {plug[0]} {plug[2]} {plug[1]} is taken by {seen[plug]}"
            seen[plug] = fibre.name


def _words(problem: Exception) -> str:
    return f"{problem.args[0]} is missing" if isinstance(problem, KeyError) else str(problem)
