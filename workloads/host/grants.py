"""What a packet switch gave a job, and the packets in which its ranks talk to it
(docs/reference/functions-dialect.md).
"""

from __future__ import annotations

import errno
import socket
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

HEADER = struct.Struct("<HBBI8sHHIQ")
"""Magic, version, type, allocation, token, worker, length, epoch, number."""
MAGIC, VERSION = 0x4654, 1
ADD, SUM, WAIT, GET, HIT, MISS, PUT, STORED = 1, 2, 3, 16, 17, 18, 19, 20
IP_MTU_DISCOVER, IP_MTU, IP_PMTUDISC_DO = 10, 14, 2  # linux/in.h; Python does not name them
BUFFER_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class Grant:
    """What a packet switch gave this job: an allocation, where it is reached, and how much it is.

    device: the network interface of this host that is cabled to it. size: slots or entries;
    each_bytes: of one of them.
    """

    allocation: int
    token: bytes
    address: str
    port: int
    device: str
    size: int
    each_bytes: int

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Grant:
        """As the launcher writes it. Raises: KeyError, ValueError, TypeError - it is none."""
        return cls(
            int(given["allocation"]),
            bytes.fromhex(given["token"]),
            str(given["address"]),
            int(given["port"]),
            str(given["device"]),
            int(given["size"]),
            int(given["each_bytes"]),
        )

    def connect(self, own: str) -> socket.socket:
        """A socket from this host's address `own` that talks to the switch only. Raises: OSError.

        It is bound to the device, which needs no privilege: without a route the kernel then takes
        the address for on-link.
        """
        link = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            if self.device:
                link.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, self.device.encode())
            # all slots of a window are sent at once
            for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
                link.setsockopt(socket.SOL_SOCKET, option, BUFFER_BYTES)
            link.bind((own, 0))
            link.setsockopt(socket.IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_DO)
            link.connect((self.address, self.port))
            mtu, largest = (
                link.getsockopt(socket.IPPROTO_IP, IP_MTU),
                self.each_bytes + HEADER.size + 28,
            )
            if largest > mtu:
                raise OSError(
                    errno.EMSGSIZE, f"packets of {largest} bytes do not fit its MTU, {mtu}"
                )
        except OSError as error:
            link.close()
            text = f"packet switch {self.address}:{self.port} by {self.device} from {own}: {error.strerror}"
            raise OSError(error.errno, text) from error
        return link
