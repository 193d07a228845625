"""What waits before the uplinks of a segment whose inventory gives its queues: in one queue, or in
one for each job.

The shaper of an uplink has a class for all traffic and one for each host whose traffic passes
there. A filter by the sender's Ethernet address, which switches leave as it is, says which class a
packet is in: the first with `fifo`, with `job` that of the first host of the sender's job. So who
shares and how is changed by filters alone, while everything that waits stays where it is.

Nobody tells a switch which hosts are a job's but the control socket (`queue.job`); until then each
host is a job of its own.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from emulators.fabric.netlink import FIRST_SHARE, Message, by_source, fair_shaper
from emulators.inventory.config import LabConfig, Segment


def port_mac(host: int, port: int) -> str:
    """The Ethernet address of a port of the host of this number."""
    return f"02:0a:00:{host >> 8:02x}:{host & 255:02x}:{port:02x}"


@dataclass(frozen=True, slots=True)
class _Uplink:
    """An interface that the traffic of these hosts leaves by."""

    index: int
    segment: Segment
    senders: Sequence[str]


class Queues:
    """The queues before uplinks, and what shares them."""

    def __init__(self, config: LabConfig) -> None:
        self._hosts = config.hosts
        self._uplinks: list[_Uplink] = []
        self.shares = {s.name: s.queue.share for s in config.segments if s.queue and s.racks}
        self.jobs: list[list[str]] = []

    def laid(
        self, segment: Segment, index: int, rate_bps: int, rack: Collection[str], *, up: bool
    ) -> list[Message]:
        """Shape an uplink of a segment with queues; up: it leads from the rack to the others, else
        to the rack.
        """
        assert segment.queue is not None
        uplink = _Uplink(index, segment, [host for host in segment.ports if (host in rack) == up])
        self._uplinks.append(uplink)
        shaped = fair_shaper(
            index, rate_bps, 1 + len(uplink.senders), limit_bytes=segment.queue.limit_bytes
        )
        return [*shaped, *self._sorted(uplink)]

    def share(self, how: str) -> list[Message]:
        """Have all segments with queues share uplinks by `fifo` or by `job`."""
        self.shares = dict.fromkeys(self.shares, how)
        return self._all()

    def job(self, hosts: Collection[str]) -> list[Message]:
        """Let these hosts be one job from now on; each leaves the job that it was in."""
        self.jobs = [
            left for job in self.jobs if (left := [host for host in job if host not in hosts])
        ] + [sorted(hosts)]
        return self._all()

    def _all(self) -> list[Message]:
        return [message for uplink in self._uplinks for message in self._sorted(uplink)]

    def _sorted(self, uplink: _Uplink) -> Iterator[Message]:
        place = {host: at for at, host in enumerate(uplink.senders)}
        first = {
            host: min(place[other] for other in job if other in place)
            for job in self.jobs
            for host in job
            if host in place
        }
        for host, at in place.items():
            number = 1 + first.get(host, at) if self.shares[uplink.segment.name] == "job" else 0
            mac = port_mac(self._hosts[host].number, uplink.segment.ports[host])
            yield by_source(uplink.index, at, mac, FIRST_SHARE + number)
