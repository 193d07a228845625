"""The hosts of a lab, read from the Ansible inventory: ports, addresses, and connection
parameters.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any
from urllib.parse import urlsplit

from optics import HostName
from optics.plain import did_you_mean
from orchestrator.inventory.ansible import InventoryHost, read_inventory
from orchestrator.inventory.edges import LANES, RTO_MIN_MS, Forwarding, HostEdge, SshEdge
from orchestrator.inventory.logins import Bmc, secret_of
from orchestrator.inventory.partitions import Partition, read_partitions
from orchestrator.inventory.positions import Document, Problems
from orchestrator.inventory.schema import check

HOST = r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}"


LEAST_RANKS = 8
"""A host holds at least so many ranks, unless the inventory says otherwise: the GPUs of common
servers.
"""


@dataclass(frozen=True, slots=True)
class FabricPort:
    """One transceiver of a host as its kernel names it. `interface` sends the host's own traffic.

    eth: on `npar-rdma` hosts the port's second function, whose frames reach the kernel; `interface`
    is then the RDMA function.
    """

    number: int
    interface: str
    eth: str | None = None


@dataclass(frozen=True, slots=True)
class SshTarget:
    """How the operator reaches a host, as Ansible does. `options` are the `-o` pairs of the SSH
    arguments; paths are unexpanded. remedy: the command that restarts a host which does not answer;
    empty without a BMC.
    """

    address: str
    port: int = 22
    user: str = ""
    key_file: str = ""
    known_hosts: str = ""
    options: Mapping[str, str] = field(default_factory=dict)
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class Host:
    """A GPU server. `host_id` (0..1023) numbers it in every fabric address; `lanes`: parallel
    equal-cost paths it can distinguish.

    link_mbps: line rate of a port, per direction (Mb/s); used by predictions only. storage_mbps:
    the rate at which it keeps checkpoints (Mb/s), 0: as fast as it can. site: where it stands, empty:
    not said; other sites are reached over lines with delay. rto_min_ms: the least time
    after which its TCP sends again (ms). max_ranks: so many ranks of a job without NCCL may run
    here; with NCCL each needs a GPU. job_user: the user that jobs run as. job_env: variables that
    plans may set beyond those `orchestrator.plan.job_env` allows. job_users: the other users that
    programs of the lab's owner run as. partitions: its parts that carry plans of their own.
    partition: which part of the host `whole` this is, None for a whole host; its lanes are counted
    from 0. port_mbps: rate of each port at a packet switch (Mb/s), of hosts with partitions. bmc:
    its management controller.
    """

    name: HostName
    host_id: int
    forwarding: Forwarding
    ports: Mapping[int, FabricPort]
    lanes: int
    node_prefix: str
    port_prefix: str
    mgmt_address: str
    gpus: int
    ssh: SshTarget
    link_mbps: float = 25_000.0
    storage_mbps: float = 0.0
    site: str = ""
    rto_min_ms: int = RTO_MIN_MS
    job_user: str = "testbed-job"
    job_env: tuple[str, ...] = ()
    job_users: tuple[str, ...] = ()
    max_ranks: int = LEAST_RANKS
    partitions: Mapping[str, Partition] = field(default_factory=dict)
    port_mbps: Mapping[int, float] = field(default_factory=dict)
    bmc: Bmc | None = None
    partition: Partition | None = None
    whole: Host | None = None

    @property
    def machine(self) -> HostName:
        """The name of the server in Ansible's inventory: of a partition, that of the whole host."""
        return self.whole.name if self.whole else self.name

    def share_of(self, lane: int) -> tuple[str, float]:
        """The partition that has this lane, empty for none, and the share of a port at a packet
        switch that its lanes have in all: a limit also for plans that use the host whole.
        """
        for name, part in self.partitions.items():
            if lane in part.lanes:
                return name, part.share or 1.0
        return "", 1.0

    def partitioned(self) -> dict[HostName, Host]:
        """The partitions as hosts, by name: the same ports and addresses, of its own lanes only."""
        return {
            f"{self.name}/{name}": replace(
                self,
                name=f"{self.name}/{name}",
                lanes=len(part.lanes),
                gpus=len(part.mig) or self.gpus,
                partitions={},
                partition=part,
                whole=self,
            )
            for name, part in self.partitions.items()
        }

    def lane_address(self, lane: int) -> str:
        """The host's address for traffic of `lane` (0..lanes-1); lane 0 is the address of the
        host.
        """
        at = self.partition.lanes[lane] if self.partition else lane
        return f"{self.node_prefix}.{at + LANES * (self.host_id >> 8)}.{self.host_id & 255}"

    def port_address(self, port: int) -> str:
        """The address of one port: 10.PORT.0.HOST under a prefix of one octet, 10.100.HOST.PORT
        under a prefix of two.

        A HOST above 255 goes on in the octet before, as in `lane_address`.
        """
        if "." in self.port_prefix:
            return f"{self.port_prefix}.{self.host_id}.{port}"
        return f"{self.port_prefix}.{port}.{self.host_id >> 8}.{self.host_id & 255}"


def read_hosts(
    document: Document, problems: Problems
) -> tuple[dict[HostName, Host], frozenset[HostName] | None]:
    """The valid hosts on the fabric, and the names of all, invalid ones included; None if the file
    is too malformed.
    """
    hosts: dict[HostName, Host] = {}
    names = []
    entries = read_inventory(document, problems)
    whole = not problems
    for entry in entries.values():
        if "testbed_host_id" not in entry.variables and "testbed_ports" not in entry.variables:
            # a machine of the inventory that is not on the fabric, such as the telemetry server
            continue
        names.append(entry.name)
        # it becomes part of file names, and Ansible would evaluate a {{ }} in it
        if not re.fullmatch(HOST, entry.name):
            problems.add(
                entry.path,
                f"{entry.name[:60]!r} is not a host name: use letters, digits, '.', '_' and '-'",
                key=True,
            )
            continue
        host = _host(entry, problems)
        if host is not None:
            hosts[host.name] = host
    if not names and whole:
        problems.add((), "no host has testbed_host_id and testbed_ports")
    _agreement(hosts, entries, problems)
    return hosts, frozenset(names) if whole else None


def _host(entry: InventoryHost, problems: Problems) -> Host | None:
    ours = {
        key.removeprefix("testbed_"): value
        for key, value in entry.variables.items()
        if key.startswith("testbed_")
    }
    for key in [key for key in ours if key not in HostEdge.model_fields]:
        hint = did_you_mean(key, HostEdge.model_fields).replace(
            "did you mean ", "did you mean testbed_"
        )
        problems.add(
            entry.places[f"testbed_{key}"], f"unknown variable testbed_{key}{hint}", key=True
        )
        del ours[key]

    def place(prefix: str) -> Any:
        return lambda inner: (
            (*entry.places[prefix + str(inner[0])], *inner[1:])
            if inner and prefix + str(inner[0]) in entry.places
            else entry.path
        )

    ssh_vars = {key: entry.variables[key] for key in SshEdge.model_fields if key in entry.variables}
    for key in ("host_id", "ports"):
        if key not in ours:
            problems.add(entry.path, f"host {entry.name} has no testbed_{key}", key=True)
    edge = (
        check(HostEdge, ours, problems, place=place("testbed_"))
        if {"host_id", "ports"} <= set(ours)
        else None
    )
    ssh = check(SshEdge, ssh_vars, problems, place=place(""))
    if edge is None or ssh is None:
        return None
    ports_at = entry.places["testbed_ports"]
    seen: dict[str, int] = {}
    for number, port in edge.ports.items():
        for name in filter(None, (port.interface, port.eth)):
            if name in seen:
                problems.add(
                    (*ports_at, number),
                    f"interface {name} of {entry.name} is named twice, first at port {seen[name]}",
                )
            seen.setdefault(name, number)
        if (port.eth is not None) != (edge.forwarding == "npar-rdma"):
            wanted = "needs" if edge.forwarding == "npar-rdma" else "does not use"
            problems.add(
                (*ports_at, number),
                f"forwarding {edge.forwarding} {wanted} the second function of the port, `eth`",
            )
    octets = edge.port_prefix.count(".") + 1
    if octets != (2 if edge.forwarding == "npar-rdma" else 1):
        where = entry.places.get("testbed_port_prefix", entry.path)
        wants = (
            'two octets, such as "10.100"'
            if edge.forwarding == "npar-rdma"
            else 'one octet, such as "10"'
        )
        problems.add(
            where,
            f"forwarding {edge.forwarding} needs a testbed_port_prefix of {wants}, got {edge.port_prefix}",
        )
    partitions_at = entry.places.get("testbed_partitions", entry.path)
    partitions = read_partitions(
        entry.name, edge.partitions, edge.lanes, edge.forwarding, partitions_at, problems
    )
    bmc = None
    if edge.bmc is not None:
        bmc = Bmc(
            address=edge.bmc.address,
            username=edge.bmc.username,
            password=edge.bmc.password,
            secret=secret_of(edge.bmc, entry.places["testbed_bmc"], problems),
            ca_file=edge.bmc.ca_file,
            system=edge.bmc.system or "",
            timeout_s=edge.bmc.timeout_s,
        )
    options = _ssh_options(ssh.ansible_ssh_common_args)
    address = ssh.ansible_host or entry.name
    return Host(
        name=entry.name,
        host_id=edge.host_id,
        forwarding=edge.forwarding,
        ports={
            number: FabricPort(number, port.interface, port.eth)
            for number, port in sorted(edge.ports.items())
        },
        lanes=edge.lanes,
        node_prefix=edge.node_prefix,
        port_prefix=edge.port_prefix,
        mgmt_address=edge.mgmt_address or address,
        gpus=edge.gpus,
        link_mbps=edge.link_mbps,
        storage_mbps=edge.storage_mbps or 0.0,
        site=edge.site or "",
        rto_min_ms=edge.rto_min_ms,
        job_user=edge.job_user,
        job_env=tuple(edge.job_env),
        partitions=partitions,
        bmc=bmc,
        max_ranks=edge.ranks or max(LEAST_RANKS, edge.gpus),
        ssh=SshTarget(
            address=address,
            port=ssh.ansible_port,
            user=ssh.ansible_user,
            key_file=ssh.ansible_ssh_private_key_file,
            known_hosts=options.get("UserKnownHostsFile", "").replace("${HOME}/", "~/", 1),
            options=options,
            remedy=f"testbed host power {entry.name} --cycle" if bmc else "",
        ),
    )


@lru_cache(maxsize=16)
def _ssh_options(arguments: str) -> Mapping[str, str]:
    """The `-o Name=value` pairs of a command line; other arguments are ignored. Most hosts have the
    same, and shlex is slow.
    """
    try:
        tokens = shlex.split(arguments)
    except ValueError:
        return {}
    pairs = re.findall(r"(?:^|\0)-o\0?([^\0=]+)=([^\0]*)", "\0".join(tokens))
    return {name.strip(): value.strip() for name, value in pairs}


def _agreement(
    hosts: Mapping[HostName, Host], entries: Mapping[str, InventoryHost], problems: Problems
) -> None:
    """Host ids and BMCs are unique, and all hosts agree in forwarding and addressing: rules are computed for
    the fabric as a whole.
    """
    first = next(iter(hosts.values()), None)
    ids: dict[int, HostName] = {}
    bmcs: dict[tuple[str | None, int], list[Host]] = {}
    partitioned = next((host.name for host in hosts.values() if host.partitions), "")
    for host in hosts.values():
        entry = entries[host.name]
        if host.host_id in ids:
            where = entry.places["testbed_host_id"]
            problems.add(
                where,
                f"{host.name} has the same testbed_host_id {host.host_id} as {ids[host.host_id]}",
            )
        ids.setdefault(host.host_id, host.name)
        if host.bmc is not None:
            url, system = urlsplit(host.bmc.address), host.bmc.system
            at = (url.hostname, url.port or (443 if url.scheme == "https" else 80))
            # without `system` it is the only one there
            for near in bmcs.get(at, ()):
                assert near.bmc is not None
                if system == near.bmc.system or not (system and near.bmc.system):
                    problems.add(
                        (*entry.places["testbed_bmc"], "address"),
                        f"{host.name} has the same BMC as {near.name}, {host.bmc.address}: "
                        "restarting one would restart the other; computers behind one BMC have a `system` each",
                    )
                    break
            bmcs.setdefault(at, []).append(host)
        if host.host_id > 255 and (partitioned or host.forwarding != "kernel"):
            why = (
                f"{partitioned} has testbed_partitions"
                if partitioned
                else f"forwarding is {host.forwarding}"
            )
            problems.add(
                entry.places["testbed_host_id"],
                f"{host.name}: testbed_host_id is at most 255 where {why}",
            )
        for name in ("forwarding", "lanes", "node_prefix", "port_prefix"):
            mine, theirs = getattr(host, name), getattr(first, name)
            if mine != theirs:
                where = entry.places.get(f"testbed_{name}", entry.path)
                other = first.name if first else ""
                text = f"{host.name} has testbed_{name} {mine}, {other} has {theirs}; all hosts of a lab must have the same value"
                problems.add(where, text)
