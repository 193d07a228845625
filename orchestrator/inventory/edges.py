"""The schema of the three inventory files, checked by pydantic before anything becomes a value."""

from __future__ import annotations

import re
from ipaddress import AddressValueError, IPv4Address
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import Field, field_validator

from optics import one_pattern
from optics.plain import did_you_mean
from orchestrator.inventory.partitions import PartitionEdge
from orchestrator.inventory.schema import (
    ACCOUNT,
    INTERFACE,
    LAUNCHERS,
    NAME,
    PARTITION,
    PORT,
    VARIABLE,
    Edge,
)

Forwarding = Literal["kernel", "npar-rdma"]
ADDRESS_SCHEMES = ("tcp", "telnet", "ssh", "netconf", "http", "https", "visa", "serial")

# a dark interval of 10 ms then costs a flow about 15 ms; with the kernel's 200 ms it often costs
# 250
RTO_MIN_MS = 5
LANES, LAST = 64, 1023
"""Lanes of a host, and the last number of a host: n has 10.255.(L + 64 * (n // 256)).(n % 256) for
lane L.
"""

Name = Annotated[str, Field(pattern=NAME)]
Interface = Annotated[
    str, Field(pattern=INTERFACE, description="a Linux interface name, at most 15 characters")
]
Power = Annotated[float, Field(ge=-60, le=60, description="dBm")]
Label = Annotated[
    str, Field(min_length=1, max_length=64, description="a device port as printed on its faceplate")
]


def _octets(text: str, wanted: tuple[int, ...]) -> str:
    parts = text.split(".")
    if len(parts) not in wanted or not all(
        part.isdigit() and int(part) < 256 and str(int(part)) == part for part in parts
    ):
        raise ValueError(
            f'"{text}" is not {" or ".join(str(n) for n in wanted)} octets of an IPv4 address'
        )
    return text


class LoginEdge(Edge):
    """A user, and where his password is: at most one of the three."""

    username: str = ""
    password: str = ""
    password_env: str | None = None
    password_file: str | None = None


class BmcEdge(LoginEdge):
    address: str
    username: Annotated[str, Field(min_length=1, max_length=256)]
    ca_file: str = ""
    system: Annotated[str, Field(pattern=NAME)] | None = None
    timeout_s: Annotated[float, Field(gt=0, le=300)] = 10.0

    @field_validator("address")
    @classmethod
    def _https(cls, text: str) -> str:
        try:
            url = urlsplit(text)
            secure = url.scheme == "https" or (
                url.scheme == "http" and url.hostname in ("127.0.0.1", "localhost")
            )
            usable = secure and bool(url.hostname) and (url.port is None or url.port > 0)
        except ValueError:
            usable = False
        if not usable or set(text) & set("@{? #") or url.path.strip("/"):
            raise ValueError(
                f'"{text}" is not the address of a BMC: wanted https://HOST or https://HOST:PORT '
                "(http:// only on this machine: it would show the password)"
            )
        return text.rstrip("/").lower()


class PortEdge(Edge):
    interface: Interface
    eth: Interface | None = None


class HostEdge(Edge):
    """The `testbed_` variables of a host, without the prefix."""

    host_id: Annotated[int, Field(ge=0, le=LAST)]
    ports: Annotated[dict[Annotated[int, Field(ge=1, le=64)], PortEdge], Field(min_length=1)]
    forwarding: Forwarding = "kernel"
    node_prefix: str = "10.255"
    port_prefix: str = "10"
    lanes: Annotated[int, Field(ge=1, le=LANES)] = 4
    gpus: Annotated[int, Field(ge=0, le=64)] = 0
    ranks: Annotated[int, Field(ge=1, le=64)] | None = None
    link_mbps: Annotated[float, Field(gt=0, le=10_000_000)] = 25_000.0
    storage_mbps: Annotated[float, Field(ge=0.1, le=10_000_000)] | None = None
    site: Name | None = None
    rto_min_ms: Annotated[int, Field(ge=1, le=10_000)] = RTO_MIN_MS
    mgmt_address: str | None = None
    job_user: Annotated[str, Field(pattern=ACCOUNT)] = "testbed-job"
    job_env: list[Annotated[str, Field(pattern=VARIABLE)]] = Field(default_factory=list)
    partitions: dict[Annotated[str, Field(pattern=PARTITION)], PartitionEdge] = Field(
        default_factory=dict
    )
    bmc: BmcEdge | None = None

    @field_validator("job_env")
    @classmethod
    def _not_the_launchers(cls, names: list[str]) -> list[str]:
        if wrong := [name for name in names if re.fullmatch(LAUNCHERS, name)]:
            raise ValueError(f"{', '.join(wrong)}: set by the hosts and the launcher, not by plans")
        return names

    @field_validator("node_prefix")
    @classmethod
    def _two(cls, text: str) -> str:
        return _octets(text, (2,))

    @field_validator("port_prefix")
    @classmethod
    def _one_or_two(cls, text: str) -> str:
        return _octets(text, (1, 2))

    @field_validator("mgmt_address")
    @classmethod
    def _address(cls, text: str | None) -> str | None:
        try:
            return str(IPv4Address(text)) if text is not None else None
        except AddressValueError:
            raise ValueError(f'"{text}" is not an IPv4 address') from None


class SshEdge(Edge):
    """The variables of Ansible's SSH connection that the warm SSH sessions use too."""

    ansible_host: str | None = None
    ansible_port: Annotated[int, Field(ge=1, le=65535)] = 22
    ansible_user: str = ""
    ansible_ssh_private_key_file: str = ""
    ansible_ssh_common_args: str = ""

    @field_validator("*")
    @classmethod
    def _plain(cls, value: Any) -> Any:
        if isinstance(value, str) and "{{" in value:
            raise ValueError("templates are not evaluated here; write the value itself")
        return value


class TraitsEdge(Edge):
    settle_s: Annotated[float, Field(gt=0, le=3600)] | None = None
    at_once: Annotated[int, Field(ge=1, le=100_000)] | None = None
    keeps_others_lit: bool | None = None
    latching: bool | None = None
    insertion_loss_db: Annotated[float, Field(ge=0, le=60)] | None = None
    meter_db: Annotated[float, Field(ge=0, le=10)] | None = None
    directions: (
        Annotated[
            list[Annotated[list[str], Field(min_length=2, max_length=2)]], Field(max_length=1024)
        ]
        | None
    ) = None

    @field_validator("directions")
    @classmethod
    def _patterns(cls, directions: list[list[str]] | None) -> list[list[str]] | None:
        tried = [(path[0], path[0]) for path in directions or ()] + [
            (path[1], one_pattern(*path)) for path in directions or ()
        ]
        for pattern, whole in tried:
            try:
                re.compile(whole)
            except re.error as error:
                raise ValueError(
                    f'"{pattern}" is not a regular expression for port labels: {error}'
                ) from None
        return directions


class DeviceEdge(LoginEdge):
    driver: Name
    address: str
    traits: TraitsEdge = TraitsEdge()
    timeout_s: Annotated[float, Field(gt=0, le=3600)] = 5.0
    options: dict[str, str] = Field(default_factory=dict)
    time_scale: Annotated[float, Field(gt=0, le=10_000)] = 1.0
    max_input_dbm: Power | None = None
    max_input_dbm_at: dict[Label, Power] = Field(default_factory=dict)

    @field_validator("address")
    @classmethod
    def _url(cls, text: str) -> str:
        url = urlsplit(text)
        if url.scheme not in ADDRESS_SCHEMES:
            hint = did_you_mean(url.scheme, ADDRESS_SCHEMES)
            raise ValueError(
                f'"{text}" is not a device address: wanted one of {", ".join(f"{s}://" for s in ADDRESS_SCHEMES)}{hint}'
            )
        if url.scheme in ("tcp", "telnet", "ssh", "netconf", "http", "https"):
            try:
                usable = bool(url.hostname) and (url.scheme != "tcp" or url.port is not None)
            except ValueError:
                usable = False
            if not usable:
                raise ValueError(
                    f'"{text}" is not a device address: wanted {url.scheme}://HOST:PORT with a port of 1..65535'
                )
        return text


class DevicesEdge(Edge):
    lab: Name
    devices: Annotated[dict[Name, DeviceEdge], Field(min_length=1)]


class SlotEdge(Edge):
    """A slot of the flexible grid, ITU-T G.694.1: centre 193.1 THz + n x 6.25 GHz, width m x 12.5
    GHz.
    """

    n: Annotated[int, Field(ge=-2000, le=2000)]
    m: Annotated[int, Field(ge=1, le=400)]


class FibreEdge(Edge):
    name: Name
    host: str
    port: Annotated[int, Field(ge=1, le=64)]
    device: str
    enters: Label
    leaves: Label
    length_m: Annotated[float, Field(ge=0, le=100_000)] = 0.0
    loss_db: Annotated[float, Field(ge=0, le=60)] | None = None
    panels: list[Label] = Field(default_factory=list)
    slot: SlotEdge | None = None
    tx_dbm: Power | None = None


class TrunkEndEdge(Edge):
    device: str
    port: Label


class TrunkEdge(Edge):
    """A one-way fibre from where light leaves one device to where it enters another, or the
    same.
    """

    name: Name
    start: Annotated[TrunkEndEdge, Field(alias="from")]
    end: Annotated[TrunkEndEdge, Field(alias="to")]
    length_m: Annotated[float, Field(ge=0, le=100_000)] = 0.0
    loss_db: Annotated[float, Field(ge=0, le=60)] | None = None
    gain_db: Annotated[float, Field(ge=0, le=40)] = 0.0
    panels: list[Label] = Field(default_factory=list)


class RackEdge(Edge):
    """Hosts of a segment at one leaf switch, and the rate of all its uplinks together."""

    hosts: Annotated[list[str], Field(min_length=1)]
    uplink_mbps: Annotated[float, Field(gt=0, le=10_000_000)]


class QueueEdge(Edge):
    """What waits in a segment's switches at most, and how what waits before an uplink takes
    turns.
    """

    # A kernel hands over up to 64 kB of TCP at once, with a header for each packet of it; a shorter
    # queue would take none of that.
    kb: Annotated[
        int,
        Field(ge=68, le=1_048_576, description="before each port and uplink, units of 1024 bytes"),
    ]
    share: Annotated[
        Literal["fifo", "job"],
        Field(description="one queue, or a queue for each job and equal shares"),
    ] = "fifo"


class AggregateEdge(Edge):
    """Sums of integer vectors in a packet switch; ranges: docs/reference/functions-dialect.md."""

    slots: Annotated[int, Field(ge=1, le=4096)]
    slot_bytes: Annotated[int, Field(ge=64, le=8896, multiple_of=4)]
    jobs: Annotated[int, Field(ge=1, le=64)]


class CacheEdge(Edge):
    """Values kept in a packet switch; ranges: docs/reference/functions-dialect.md."""

    entries: Annotated[int, Field(ge=1, le=65_536)]
    entry_bytes: Annotated[int, Field(ge=1, le=8896)]


class FunctionsEdge(Edge):
    aggregate: AggregateEdge | None = None
    cache: CacheEdge | None = None


class SegmentEdge(Edge):
    """Host ports cabled to packet switches that the program does not configure, but for their
    functions.
    """

    name: Name
    ports: Annotated[
        list[Annotated[str, Field(pattern=PORT, description="a host port such as gpu01:p5")]],
        Field(min_length=2),
    ]
    link_mbps: Annotated[float, Field(gt=0, le=10_000_000)]
    racks: list[RackEdge] = Field(default_factory=list)
    address: (
        Annotated[
            str, Field(pattern=r"^[A-Za-z0-9.-]{1,253}:[1-9]\d{0,4}$", description="HOST:PORT")
        ]
        | None
    ) = None
    functions: FunctionsEdge | None = None
    queue: QueueEdge | None = None


class FibresEdge(Edge):
    fibres: list[FibreEdge]
    trunks: list[TrunkEdge] = Field(default_factory=list)
    segments: list[SegmentEdge] = Field(default_factory=list)
