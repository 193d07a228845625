"""The files of an inventory after NetBox's cabling is taken over, and what that changes. Pure.

What NetBox does not know stays as it is: measured losses, slots, passwords, SSH settings, segments.
"""

from __future__ import annotations

import copy
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from optics import HostPort
from orchestrator.inventory.cabling import Cabling, FoundFibre, FoundHost, port_numbers
from orchestrator.inventory.lab import Lab

FILES = ("hosts.yml", "devices.yml", "fibres.yml")
_NEW_HOSTS: Mapping[str, Any] = {"all": {"vars": {"ansible_user": "root"}, "hosts": {}}}


@dataclass(frozen=True, slots=True)
class Difference:
    """What NetBox has otherwise than the inventory. what: host, device, fibre or trunk; how: added,
    removed or changed; details: `enters 1 -> 2`.
    """

    what: str
    name: str
    how: str
    details: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Inventory:
    """The files by name, as values; `changed` of them differ from before. cables: the numbers in
    NetBox of each strand of a fibre, or of a trunk's one, by name.
    """

    files: Mapping[str, Any]
    changed: tuple[str, ...]
    differences: tuple[Difference, ...]
    cables: Mapping[str, tuple[tuple[int, ...], ...]]


def taken_over(
    cabling: Cabling, name: str, lab: Lab | None = None, files: Mapping[str, Any] | None = None
) -> Inventory:
    """The inventory of this cabling. name: of a new lab; lab, files: the inventory from before."""
    new: dict[str, Any] = copy.deepcopy(
        dict(files)
        if files
        else {
            "hosts.yml": _NEW_HOSTS,
            "devices.yml": {"lab": name, "devices": {}},
            "fibres.yml": {},
        }
    )
    numbers = port_numbers(cabling, _numbers(lab))
    differences = [
        *_hosts(new["hosts.yml"], cabling, numbers, lab),
        *_devices(new["devices.yml"]["devices"], cabling),
    ]
    fibres, trunks = new["fibres.yml"].get("fibres") or [], new["fibres.yml"].get("trunks") or []
    wanted, cables = _named(cabling, numbers, fibres, trunks)
    for what, old in (("fibre", fibres), ("trunk", trunks)):
        found, made = _cables(what, old, wanted[what])
        differences += made
        if found or what == "fibre":
            new["fibres.yml"][f"{what}s"] = found
        else:
            new["fibres.yml"].pop("trunks", None)
    of = {"host": "hosts.yml", "device": "devices.yml"}
    changed = {of.get(each.what, "fibres.yml") for each in differences}
    return Inventory(
        new, tuple(file for file in FILES if file in changed), tuple(differences), cables
    )


def file_text(name: str, value: Any) -> str:
    """The text of a file; of cables a line each."""
    import yaml

    if name != "fibres.yml":
        return yaml.safe_dump(value, sort_keys=False, allow_unicode=True)
    lines = [
        "# Cables, from NetBox: `testbed lab import netbox` shows and takes over what changes."
    ]
    for key in ("fibres", "trunks"):
        if key in value:
            entries = [f"  - {json.dumps(entry)}" for entry in value[key]]
            lines += [f"{key}:", *entries] if entries else [f"{key}: []"]
    rest = {key: part for key, part in value.items() if key not in ("fibres", "trunks")}
    return "\n".join(lines) + "\n" + (yaml.safe_dump(rest, sort_keys=False) if rest else "")


def _numbers(lab: Lab | None) -> dict[str, dict[str, int]]:
    """The port number of each interface of each host."""
    return {
        name: {
            interface: number
            for number, port in host.ports.items()
            for interface in (port.interface, port.eth)
            if interface
        }
        for name, host in (lab.hosts if lab else {}).items()
    }


def _hosts(
    tree: Any, cabling: Cabling, numbers: Mapping[tuple[str, str], int], lab: Lab | None
) -> Iterator[Difference]:
    known = {name: host for name, host in (lab.hosts if lab else {}).items() if not host.partition}
    ids = {host.host_id for host in known.values()}
    ids |= {
        n for host in cabling.hosts.values() if isinstance(n := host.variables.get("host_id"), int)
    }
    free = (number for number in range(1, 1 << 16) if number not in ids)
    cabled: dict[str, dict[int, str]] = {}
    for (name, interface), number in numbers.items():
        cabled.setdefault(name, {})[number] = interface
    for name, found in cabling.hosts.items():
        ports = dict(sorted(cabled.get(name, {}).items()))
        if name in known:
            old = known[name]
            told = {
                "ansible_host": old.ssh.address,
                **{key: _now(old, key) for key in found.variables},
            }
            wanted = _variables(found)
            change = {
                key: value
                for key, value in wanted.items()
                if told[key.removeprefix("testbed_")] != value
            }
            details = [
                f"{key} {told[key.removeprefix('testbed_')]} -> {value}"
                for key, value in change.items()
            ]
            fresh = {n: i for n, i in ports.items() if n not in old.ports}
            if fresh:
                details += [
                    f"port {number} {interface} added" for number, interface in fresh.items()
                ]
                change["testbed_ports"] = {
                    number: {"interface": port.interface, **({"eth": port.eth} if port.eth else {})}
                    for number, port in old.ports.items()
                } | {number: {"interface": interface} for number, interface in fresh.items()}
            if change:
                next(_places(tree, name))[name].update(change)
                yield Difference("host", name, "changed", tuple(details))
        elif ports:
            variables = {
                **_variables(found),
                "testbed_host_id": found.variables.get("host_id") or next(free),
                "testbed_ports": {n: {"interface": interface} for n, interface in ports.items()},
            }
            _group(tree, known)[name] = variables
            yield Difference("host", name, "added")
    for name in [name for name in known if name not in cabling.hosts]:
        for place in _places(tree, name):
            del place[name]
        yield Difference("host", name, "removed")


def _variables(found: FoundHost) -> dict[str, Any]:
    address = {"ansible_host": found.address} if found.address else {}
    return address | {f"testbed_{key}": value for key, value in found.variables.items()}


def _now(host: Any, key: str) -> Any:
    return getattr(host, "max_ranks" if key == "ranks" else key)


def _places(tree: Any, host: str) -> Iterator[dict[str, Any]]:
    """The `hosts` of every group that names the host. Where one has its variables, it is first."""
    found = [hosts for hosts in _groups(tree) if host in hosts]
    for hosts in found:
        hosts[host] = hosts[host] or {}
    yield from sorted(found, key=lambda hosts: not hosts[host])


def _group(tree: Any, known: Mapping[str, Any]) -> dict[str, Any]:
    """The `hosts` that a new host goes to: of the first group with a host of the lab."""
    for hosts in _groups(tree):
        if known.keys() & hosts.keys():
            return hosts
    top: dict[str, Any] = tree.setdefault("all", {})
    if not isinstance(top.get("hosts"), dict):
        top["hosts"] = {}
    found: dict[str, Any] = top["hosts"]
    return found


def _groups(tree: Any) -> Iterator[dict[str, Any]]:
    for group in tree.values() if isinstance(tree, dict) else ():
        if isinstance(group, dict):
            if isinstance(group.get("hosts"), dict):
                yield group["hosts"]
            yield from _groups(group.get("children"))


def _devices(tree: dict[str, Any], cabling: Cabling) -> Iterator[Difference]:
    for name, wanted in cabling.devices.items():
        if name not in tree:
            tree[name] = dict(wanted)
            yield Difference("device", name, "added")
        elif details := _changed(tree[name], wanted):
            tree[name].update(wanted)
            yield Difference("device", name, "changed", details)
    for name in [name for name in tree if name not in cabling.devices]:
        del tree[name]
        yield Difference("device", name, "removed")


def _changed(old: Mapping[str, Any], new: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(
        f"{key} {_short(old.get(key))} -> {_short(value)}"
        for key, value in new.items()
        if old.get(key) != value
    )


def _short(value: Any) -> str:
    if isinstance(value, Mapping) and {"device", "port"} <= value.keys():
        return f"{value['device']}:{value['port']}"
    return "none" if value is None else str(value)


Entry = dict[str, Any]


def _named(
    cabling: Cabling,
    numbers: Mapping[tuple[str, str], int],
    fibres: Sequence[Entry],
    trunks: Sequence[Entry],
) -> tuple[dict[str, dict[str, Entry]], dict[str, tuple[tuple[int, ...], ...]]]:
    """Fibres and trunks by name, and the cables of each. A name is the label of the first cable,
    where it is one and no other has it; else that from before; else made of its ends.
    """
    labels = Counter(fibre.label for fibre in cabling.fibres)
    labels.update(trunk.label for trunk in cabling.trunks)
    unique = {label for label, times in labels.items() if label and times == 1}
    had: dict[object, str] = {(f["host"], f["port"]): f["name"] for f in fibres}
    had |= {(_short(t["from"]), _short(t["to"])): t["name"] for t in trunks}
    taken: set[str] = set(unique)
    cables: dict[str, tuple[tuple[int, ...], ...]] = {}
    found: dict[str, dict[str, Entry]] = {"fibre": {}, "trunk": {}}

    def name_of(label: str, ends: object, made: str) -> str:
        if label in unique:
            return label
        wanted = chain((had.get(ends, ""), made), _numbered(made))
        name = next(each for each in wanted if each and each not in taken)
        taken.add(name)
        return name

    for fibre in cabling.fibres:
        number = numbers[fibre.host, fibre.interface]
        name = name_of(fibre.label, (fibre.host, number), f"{fibre.host[:59]}-p{number}")
        found["fibre"][name] = _entry(name, fibre, number)
        cables[name] = fibre.cables
    for trunk in cabling.trunks:
        start, end = ({"device": device, "port": port} for device, port in (trunk.start, trunk.end))
        made = f"{trunk.start[0][:24]}-{trunk.end[0][:24]}-{trunk.cables[0]}"
        name = name_of(trunk.label, (_short(start), _short(end)), made)
        found["trunk"][name] = {"name": name, "from": start, "to": end, **_length(trunk)}
        cables[name] = (trunk.cables,)
    return found, cables


def _numbered(made: str) -> Iterator[str]:
    yield from (f"{made[:56]}-{number}" for number in range(2, 1 << 16))


def _entry(name: str, fibre: FoundFibre, number: int) -> Entry:
    port = HostPort(fibre.host, number)
    return {
        "name": name,
        "host": port.host,
        "port": port.number,
        "device": fibre.device,
        "enters": fibre.enters,
        "leaves": fibre.leaves,
        **_length(fibre),
    }


def _length(found: Any) -> Entry:
    length = {} if found.length_m is None else {"length_m": found.length_m}
    return length if found.loss_db is None else {**length, "loss_db": found.loss_db}


def _cables(
    what: str, old: Sequence[Entry], wanted: Mapping[str, Entry]
) -> tuple[list[Entry], list[Difference]]:
    """The entries of a list after the change: those from before in their order, then new ones. A
    loss from before was perhaps measured and stays.
    """
    found, differences = [], []
    before = {entry["name"] for entry in old}
    for entry in old:
        name = entry["name"]
        if name not in wanted:
            differences.append(Difference(what, name, "removed"))
            continue
        new = {k: v for k, v in wanted[name].items() if k != "loss_db" or "loss_db" not in entry}
        if details := _changed(entry, new):
            differences.append(Difference(what, name, "changed", details))
        found.append({**entry, **new})
    for name, entry in wanted.items():
        if name not in before:
            found.append(dict(entry))
            differences.append(Difference(what, name, "added"))
    return found, differences
