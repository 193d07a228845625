"""The facts that the agent's `provision` applies to a host, and the archive that installs the
agent.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path, PurePath
from typing import Any

import agent
import playbooks
import workloads
from orchestrator.extensions import folders
from orchestrator.inventory.hosts import Host
from orchestrator.inventory.partitions import Partition

PLAYBOOKS = Path(playbooks.__path__[0])
AGENT = Path(agent.__path__[0])
# A bridge without ports carries the lane addresses: gloo takes the first address of an interface,
# and that of lo is 127.0.0.1.
HOST_DEVICE = "host0"
# characters of one command (render.COMMAND_LIMIT, with room for what else it says)
ARCHIVE_PIECE = 90_000
# Makes torch import the workloads' back-end for torch.distributed; the same as
# backend/pyproject.toml builds.
TORCH_BACKEND = (
    (
        "optical_testbed_torch-0.1.0.dist-info/METADATA",
        b"Metadata-Version: 2.1\nName: optical-testbed-torch\nVersion: 0.1.0\n",
    ),
    (
        "optical_testbed_torch-0.1.0.dist-info/entry_points.txt",
        b"[torch.backends]\ntestbed = testbed_torch.backend:register\n",
    ),
)
TORCH_PACKAGE = "testbed_torch"  # a link to workloads: the name of the package in that distribution
# bytes; what 25G NICs and the emulated fibres carry; an interface that refuses it is noted and left
# unchanged
MTU = 9000

# (key, value, needed): what is needed and cannot be set stops provisioning; the rest is noted.
SYSCTLS: tuple[tuple[str, str, bool], ...] = (
    ("net.ipv4.ip_forward", "1", True),
    ("net.ipv4.conf.all.rp_filter", "0", True),  # paths there and back may differ
    ("net.ipv4.conf.all.send_redirects", "0", True),
    ("net.ipv4.conf.all.accept_redirects", "0", True),
    # a dark circuit is drained, not routed around by chance
    ("net.ipv4.conf.all.ignore_routes_with_linkdown", "0", True),
    ("net.ipv4.conf.all.arp_announce", "2", True),
    # refused inside a network namespace; the routes carry congctl
    ("net.ipv4.tcp_congestion_control", "cubic", False),
    ("net.ipv4.tcp_slow_start_after_idle", "0", False),  # collectives send in bursts
    # what a closed connection learned was true of the circuits of its time
    ("net.ipv4.tcp_no_metrics_save", "1", False),
)
PORT_SYSCTLS: tuple[tuple[str, str, bool], ...] = (
    ("rp_filter", "0", True),
    ("send_redirects", "0", True),
    ("accept_redirects", "0", True),
    ("arp_evict_nocarrier", "0", False),  # Linux 5.16 and newer
)


def facts(host: Host) -> dict[str, Any]:
    """The facts of one host, with `sha`: the digest of everything provisioning installs there. A
    partition has those of its host.
    """
    host = host.whole or host
    names = [port.interface for _, port in sorted(host.ports.items())]
    names += [port.eth for _, port in sorted(host.ports.items()) if port.eth]
    kernel = host.forwarding == "kernel"
    sysctls = [list(s) for s in SYSCTLS]
    # Linux 6.12; else by the routes' rto_min
    sysctls.append(["net.ipv4.tcp_rto_min_us", str(host.rto_min_ms * 1000), False])
    # a dot inside an interface name (VLANs) is escaped: the agent turns the others into slashes
    sysctls += [
        [f"net.ipv4.conf.{name.replace('.', chr(92) + '.')}.{key}", value, needed]
        for name in names
        for key, value, needed in PORT_SYSCTLS
    ]
    lanes = [host.lane_address(lane) for lane in range(host.lanes)] if kernel else []
    found: dict[str, Any] = {
        "host": host.name,
        "forwarding": host.forwarding,
        "host_device": HOST_DEVICE if kernel else None,
        "lanes": lanes,
        "echo": lanes or [host.port_address(number) for number in sorted(host.ports)],
        "node_prefix": f"{host.node_prefix}.0.0/16" if kernel else None,
        "ports": [
            {
                "number": number,
                "interface": port.interface,
                "eth": port.eth,
                "address": host.port_address(number),
            }
            for number, port in sorted(host.ports.items())
        ],
        "mtu": MTU,
        "sysctls": sysctls,
        "workloads": workload_digest(),
        "job_user": host.job_user,
    }
    if host.job_users:
        found["job_users"] = list(host.job_users)
    if host.partitions:
        own = {host.lane_address(lane) for part in host.partitions.values() for lane in part.lanes}
        # the partitions' agents answer there
        found["echo"] = [address for address in lanes if address not in own]
        found["partitions"] = {
            name: _partition(host, part) for name, part in sorted(host.partitions.items())
        }
        found["ports"] = [
            port | {"mbps": host.port_mbps.get(port["number"])} for port in found["ports"]
        ]
    found["sha"] = hashlib.sha256(
        json.dumps([found, program_digest()], sort_keys=True).encode()
    ).hexdigest()
    return found


def _partition(host: Host, part: Partition) -> dict[str, Any]:
    """What the agents of a host are given of one of its partitions."""
    lanes = [host.lane_address(lane) for lane in part.lanes]
    known = {
        "index": part.index,
        "lanes": lanes,
        "cpus": part.cpus,
        "share": part.share,
        "mig": list(part.mig),
    }
    return {key: value for key, value in known.items() if value not in ("", None, [])}


def own_agent(host: Host) -> str:
    """What stands before a command to the agent of a host: empty, but for a partition."""
    at = f"partitions/{host.partition.name}" if host.partition else ""
    return f"env TESTBED_VAR=/var/lib/testbed/{at} TESTBED_RUN=/run/testbed/{at} " if at else ""


def digest(paths: Iterable[tuple[str, bytes]]) -> str:
    found = hashlib.sha256()
    for name, content in paths:
        found.update(name.encode() + b"\0" + content + b"\0")
    return found.hexdigest()


@lru_cache(maxsize=1)
def programs() -> tuple[tuple[str, bytes], ...]:
    """The files of the agent, and of what mechanisms have it do, by their names on the host."""
    # as the agent's `own_sha` has them
    return tuple(sorted(_files({"agent": AGENT, **folders("host")}, ".py", ".o")))


def _files(of: Mapping[str, Path], *endings: str) -> tuple[tuple[str, bytes], ...]:
    """The files of these folders, with their names on the host."""
    found = (
        (name, folder, path)
        for name, folder in of.items()
        for path in sorted(folder.rglob("*"))
        if path.suffix in endings
    )
    return tuple(
        (f"{name}/{path.relative_to(folder).as_posix()}", path.read_bytes())
        for name, folder, path in found
    )


@lru_cache(maxsize=1)
def workload_files() -> tuple[tuple[str, bytes], ...]:
    """The files of the directory that is in the jobs' PYTHONPATH."""
    neighbour = folders("rank")
    above = sorted(
        {
            f"{package}/__init__.py"
            for name in neighbour
            for package in map(str, PurePath(name).parents)
            if package != "."
        }
    )
    # without these, another package of that name that is installed on the host would be taken,
    # wherever that is
    return (
        *_files({"workloads": Path(workloads.__path__[0]), **neighbour}, ".py"),
        *((name, b"") for name in above),
        *TORCH_BACKEND,
    )


@lru_cache(maxsize=1)
def program_digest() -> str:
    return digest(programs())


@lru_cache(maxsize=1)
def workload_digest() -> str:
    return digest(workload_files())[:16]


@lru_cache(maxsize=1)
def archive() -> bytes:
    """Everything that is unpacked into /var/lib/testbed, as tar.gz: the same bytes for the same
    content.
    """
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name, content in (
            *programs(),
            *((f"workloads/{workload_digest()}/{n}", c) for n, c in workload_files()),
        ):
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), 0o644
            tar.addfile(entry, io.BytesIO(content))
        link = tarfile.TarInfo(f"workloads/{workload_digest()}/{TORCH_PACKAGE}")
        link.type, link.linkname = tarfile.SYMTYPE, "workloads"
        tar.addfile(link)
    return gzip.compress(buffer.getvalue(), 9, mtime=0)


def provision_archive() -> tuple[str, ...]:
    """The archive in base64, in pieces that one command carries each."""
    packed = base64.b64encode(archive()).decode()
    return tuple(packed[at : at + ARCHIVE_PIECE] for at in range(0, len(packed), ARCHIVE_PIECE))


def archive_digest() -> str:
    return digest((*programs(), *workload_files()))
