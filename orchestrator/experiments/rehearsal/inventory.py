"""The inventory of a lab's twin: the same hosts, devices, ports and fibres, at addresses of this
machine. Values in, texts out.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from optics import DeviceConfig, DeviceName, Identity
from orchestrator.inventory.hosts import Host
from orchestrator.inventory.lab import Lab

FASTEST_MBPS = 1000.0
"""Faster ports are emulated at a hundredth of their rate: more than a machine's processors can
carry for a whole lab.
"""
SLOWER = 100.0
LEAST_QUEUE_KB = 68
"""The shortest queue that an inventory may have (`QueueEdge`)."""
_PLACES = frozenset({"known_hosts", "key_file"})


@dataclass(frozen=True, slots=True)
class AccessPaths:
    """Where the twin's parts answer: a loopback port for every host, device and segment with
    functions; its keys' directory.
    """

    hosts: Mapping[str, int]
    devices: Mapping[str, int]
    state: Path
    functions: Mapping[str, int] = field(default_factory=dict)


def lab_without_devices(lab: Lab, removed: Collection[DeviceName]) -> Lab:
    """The lab without these devices and their cables."""
    return replace(
        lab,
        devices={name: config for name, config in lab.devices.items() if name not in removed},
        fibres={port: fibre for port, fibre in lab.fibres.items() if fibre.device not in removed},
        trunks=tuple(t for t in lab.trunks if not {t.start.device, t.end.device} & set(removed)),
    )


def slower(lab: Lab) -> float:
    """By how much the twin's ports are slower than the lab's."""
    return (
        SLOWER
        if max((host.link_mbps for host in lab.hosts.values()), default=0.0) > FASTEST_MBPS
        else 1.0
    )


def texts(
    lab: Lab,
    identities: Mapping[DeviceName, Identity],
    families: Mapping[str, Mapping[str, Any]],
    paths: AccessPaths,
) -> dict[str, str]:
    """The twin's files by name. families: the emulators' facts, by driver. Devices switch at once
    until they are given a time.
    """
    import yaml

    parts = {
        "hosts.yml": _hosts(lab, paths),
        "devices.yml": {
            "lab": lab.name,
            "devices": {
                n: _device(lab, c, families[c.driver], paths) for n, c in lab.devices.items()
            },
        },
        "fibres.yml": _cables(lab, paths),
        "emulator.yml": {
            "hosts": True,
            "seed": 1,
            "link_rate_mbps": min(host.link_mbps for host in lab.hosts.values()) / slower(lab),
            "devices": {
                name: {"ports": _ports(identities[name]), "settle_s": 0.0, "bulk_settle_s": 0.0}
                for name in lab.devices
            },
        },
    }
    return {name: yaml.safe_dump(part, sort_keys=False) for name, part in parts.items()}


def not_on_twin(lab: Lab) -> Iterator[str]:
    """What the lab has and its twin cannot have, and what the rehearsal therefore does not show."""
    if any(host.forwarding != "kernel" for host in lab.hosts.values()):
        yield "RDMA functions: the twin's hosts forward IP packets, so delay and loss of RDMA do not show"
    if any(host.gpus for host in lab.hosts.values()):
        yield "GPUs: its job computes on this machine's processors over gloo, so iteration times do not show"
    if slower(lab) > 1:
        yield f"rate: its ports carry a {SLOWER:g}th of the lab's, so throughput does not show"


def _hosts(lab: Lab, paths: AccessPaths) -> dict[str, Any]:
    known = f"-o UserKnownHostsFile={paths.state}/known_hosts -o StrictHostKeyChecking=yes"
    common = {
        "ansible_user": "root",
        "ansible_host": "127.0.0.1",
        "ansible_ssh_private_key_file": f"{paths.state}/id_ed25519",
        "ansible_ssh_common_args": known,
        "ansible_python_interpreter": "python3",
    }
    return {
        "all": {
            "vars": common,
            "hosts": {h.name: _host(h, n, lab, paths) for n, h in enumerate(lab.hosts.values(), 1)},
        }
    }


def _host(host: Host, number: int, lab: Lab, paths: AccessPaths) -> dict[str, Any]:
    """number: from 1, of the hosts of the twin, which has fewer than there are numbers in an
    inventory.
    """
    return {
        "ansible_port": paths.hosts[host.name],
        "testbed_host_id": host.host_id,
        "testbed_mgmt_address": f"10.254.0.{number}",
        "testbed_ports": {
            number: {"interface": port.interface} for number, port in host.ports.items()
        },
        "testbed_forwarding": "kernel",
        "testbed_node_prefix": host.node_prefix,
        "testbed_port_prefix": host.port_prefix.partition(".")[0],
        "testbed_lanes": host.lanes,
        "testbed_gpus": 0,
        "testbed_ranks": host.max_ranks,
        "testbed_link_mbps": host.link_mbps / slower(lab),
        **({"testbed_storage_mbps": host.storage_mbps} if host.storage_mbps else {}),
        **({"testbed_site": host.site} if host.site else {}),
        "testbed_rto_min_ms": host.rto_min_ms,
        "testbed_job_user": host.job_user,
        "testbed_job_env": list(host.job_env),
    }


def _device(
    lab: Lab, config: DeviceConfig, family: Mapping[str, Any], paths: AccessPaths
) -> dict[str, Any]:
    asked = config.address.partition("://")[0]
    scheme = asked if asked in family["schemes"] else family["schemes"][0]
    known = (
        {"known_hosts": f"{paths.state}/known_hosts_devices"}
        if scheme in ("ssh", "netconf")
        else {}
    )
    line = f"serial://{paths.state}/{config.name}"
    limits = dict(lab.input_limits.get(config.name, {}))
    found: dict[str, Any] = {
        "driver": config.driver,
        "address": line
        if scheme == "serial"
        else f"{scheme}://127.0.0.1:{paths.devices[config.name]}",
        "traits": dict(config.traits),
        "timeout_s": config.timeout_s,
        # what names a file or another machine is the lab's own
        "options": {k: v for k, v in config.options.items() if k not in _PLACES and "/" not in v}
        | known,
        "time_scale": config.time_scale,
    }
    if "" in limits:
        found["max_input_dbm"] = limits.pop("")
    if limits:
        found["max_input_dbm_at"] = limits
    if family["login"]:
        found["username"], found["password"] = family["login"]
    return found


def _ports(found: Identity) -> dict[str, list[str]]:
    return {"in": [*found.ingress], "out": [*found.egress, *found.dark]}


def _cables(lab: Lab, paths: AccessPaths) -> dict[str, Any]:
    fibres = [
        {
            "name": fibre.name,
            "host": port.host,
            "port": port.number,
            "device": fibre.device,
            "enters": fibre.enters.label,
            "leaves": fibre.leaves.label,
            "length_m": fibre.length_m,
            "loss_db": fibre.loss_db,
            **(
                {}
                if fibre.slot is None or fibre.slot.grid is None
                else {"slot": dict(zip("nm", fibre.slot.grid, strict=True))}
            ),
            **({} if fibre.tx_dbm is None else {"tx_dbm": fibre.tx_dbm}),
        }
        for port, fibre in lab.fibres.items()
    ]
    trunks = [
        {
            "name": trunk.name,
            "from": {"device": trunk.start.device, "port": trunk.start.label},
            "to": {"device": trunk.end.device, "port": trunk.end.label},
            "length_m": trunk.length_m,
            "loss_db": max(trunk.loss_db, 0.0),
            **({"gain_db": -trunk.loss_db} if trunk.loss_db < 0 else {}),
        }
        for trunk in lab.trunks
    ]
    return {"fibres": fibres, "trunks": trunks, "segments": list(_segments(lab, paths))}


def _segments(lab: Lab, paths: AccessPaths) -> Iterable[dict[str, Any]]:
    by = slower(lab)
    for segment in lab.segments.values():
        racks = [
            {"hosts": list(rack.hosts), "uplink_mbps": rack.uplink_mbps / by}
            for rack in segment.racks
        ]
        ports = [str(port) for port in segment.ports.values()]
        more: dict[str, Any] = {"racks": racks} if racks else {}
        if segment.functions:
            functions = {name: dict(most) for name, most in segment.functions.items()}
            more |= {
                "address": f"127.0.0.1:{paths.functions[segment.name]}",
                "functions": functions,
            }
        if segment.queue:
            more["queue"] = {
                "kb": max(LEAST_QUEUE_KB, round(segment.queue.kb / by)),
                "share": segment.queue.share,
            }
        yield {"name": segment.name, "ports": ports, "link_mbps": segment.link_mbps / by, **more}
