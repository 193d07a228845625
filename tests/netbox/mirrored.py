"""A lab's inventory as NetBox would list it: every fibre a cable from interface to switch."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any

from orchestrator.inventory.lab import Lab


def mirrored(lab: Lab, field: str = "") -> dict[str, list[Any]]:
    """The lists of a NetBox with the hosts, devices and fibres of a lab. field: a custom field that
    cables have.
    """
    numbers = {name: number for number, name in enumerate([*lab.hosts, *lab.devices], 1)}
    ids: Iterator[int] = count(1)
    lists: dict[str, list[Any]] = {
        name: [] for name in ("devices", "cables", "interfaces", "front-ports", "rear-ports")
    }

    def end(device: str, name: str) -> dict[str, Any]:
        owner = {"id": numbers[device], "name": device}
        port = {"id": next(ids), "name": name, "device": owner}
        lists["interfaces"].append({**port, "label": ""})
        return {"object_type": "dcim.interface", "object_id": port["id"], "object": port}

    for name, config in lab.devices.items():
        told = {"driver": config.driver, "address": config.address}
        lists["devices"].append(
            {"id": numbers[name], "name": name, "config_context": {"testbed": told}}
        )
    for name, host in lab.hosts.items():
        lists["devices"].append(
            {
                "id": numbers[name],
                "name": name,
                "config_context": {"testbed": {"host_id": host.host_id}},
                "primary_ip": {"address": f"192.0.2.{host.host_id}/24"},
            }
        )
    for at, fibre in lab.fibres.items():
        sides = dict.fromkeys((fibre.enters.label, fibre.leaves.label))
        lists["cables"].append(
            {
                "id": len(lists["cables"]) + 1,
                "label": fibre.name,
                "a_terminations": [end(at.host, lab.hosts[at.host].ports[at.number].interface)],
                "b_terminations": [end(fibre.device, label) for label in sides],
                "custom_fields": {field: None} if field else {},
            }
        )
    return lists
