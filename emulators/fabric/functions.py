"""Where the functions of packet switches are in the emulated lab: a process for each switch, with
an interface at its bridge.

The interface is in a namespace of its own, so a host reaches the functions over its cable only, as
fast as that is, and the process reaches nothing but the hosts there. It hears of the operator
through a socket that was bound before the lab left the machine.
"""

from __future__ import annotations

import json
import os
import select
import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from emulators.fabric import linux
from emulators.fabric.netlink import End, Netlink, address, link_state, subnet_route
from emulators.fabric.priority import LAB
from emulators.inventory.config import Segment

INDEX, PORT = 2, 7470
SO_SNDBUFFORCE, SO_RCVBUFFORCE = 32, 33  # asm-generic/socket.h; Python does not name them
BUFFER_BYTES = 8 << 20
"""Of the socket: every worker of a job may send all its slots at once."""
ORDER_BYTES = 65_536
ANSWER_S = 1.0


def place(number: int) -> tuple[str, str]:
    """The address and the MAC address of the functions of segment `number`, from 0, of a lab."""
    return f"10.253.{number}.1", f"02:0a:fd:00:{number:02x}:01"


class Functions:
    """The running functions of a segment, seen from the lab."""

    def __init__(self, segment: Segment, pid: int, control: socket.socket) -> None:
        self.segment, self.pid, self.control = segment, pid, control

    def ready(self) -> None:
        """Wait until it serves, as long as it lives. Raises: OSError - it cannot, or ended."""
        self._answer(None)

    def order(self, **texts: object) -> dict[str, object]:
        """Have the process carry out a request (process.py); return its state. Raises: OSError - it
        is gone, or does not answer.
        """
        if not self.pid:
            raise OSError(f"segment {self.segment.name}: the process of its functions has ended")
        self.ended()
        self.control.send(json.dumps(texts).encode(), socket.MSG_DONTWAIT)
        return self._answer(ANSWER_S)

    def ended(self) -> bool:
        """Whether the process has ended; answers that came too late are dropped."""
        try:
            while self.control.recv(ORDER_BYTES, socket.MSG_DONTWAIT):
                pass
        except BlockingIOError:
            return False
        return True

    def _answer(self, timeout_s: float | None) -> dict[str, object]:
        poll = select.poll()
        poll.register(self.control, select.POLLIN)
        text = (
            self.control.recv(ORDER_BYTES)
            if poll.poll(None if timeout_s is None else timeout_s * 1000)
            else b""
        )
        if not text:
            raise OSError(
                f"segment {self.segment.name}: no answer from the process of its functions"
            )
        reply: dict[str, object] = json.loads(text)
        if "error" in reply:
            raise OSError(f"segment {self.segment.name}: functions: {reply['error']}")
        return reply


def ends(segments: Sequence[Segment], mtu: int) -> dict[str, End]:
    """The far end of a cable to the functions of each segment that has some, each in a new
    namespace. Raises: OSError.
    """
    return {
        segment.name: End(INDEX, "fn", place(number)[1], mtu, net=linux.new_network())
        for number, segment in enumerate(segments)
        if segment.functions
    }


def start(
    segments: Sequence[Segment], ends: Mapping[str, End], listeners: Mapping[str, socket.socket]
) -> dict[str, Functions]:
    """Start the functions behind these ends. Takes over the sockets, and the namespaces. Raises:
    OSError.
    """
    found = {}
    for number, segment in enumerate(segments):
        if segment.name in ends:
            net, listener = ends[segment.name].net, listeners[segment.name]
            assert net is not None
            data = _socket(net, place(number)[0])
            os.close(net)
            ours, orders = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            pid = os.fork()
            if pid == 0:
                linux.leave(partial(_serve, number, segment, data, listener, orders))
            for each in (data, listener, orders):
                each.close()
            found[segment.name] = Functions(segment, pid, ours)
    return found


def _socket(net: int, own: str) -> socket.socket:
    """Make the interface usable that is in namespace `net`, and open the functions' socket there,
    which keeps both alive.
    """
    with linux.inside(net):
        knob = Path("/proc/sys/net/ipv6/conf/all/disable_ipv6")
        if knob.exists():
            knob.write_text("1")
        netlink = Netlink()
        netlink.send(
            [
                link_state(INDEX, True),
                address(INDEX, own, 32),
                subnet_route(INDEX, "0.0.0.0", 0, own),
            ]
        )
        netlink.close()
        data = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        for option in (SO_SNDBUFFORCE, SO_RCVBUFFORCE):
            data.setsockopt(socket.SOL_SOCKET, option, BUFFER_BYTES)
        data.bind((own, PORT))
    return data


def _serve(
    number: int,
    segment: Segment,
    data: socket.socket,
    listener: socket.socket,
    orders: socket.socket,
) -> int:
    linux.close_all_but({data.fileno(), listener.fileno(), orders.fileno()})
    try:
        # not above: numpy takes 0.1 s, and most labs have no functions
        from emulators.functions.control import Place
        from emulators.functions.process import Process
    except ImportError as problem:
        orders.send(json.dumps({"error": str(problem)}).encode())
        return 1
    own, mac = place(number)
    process = Process(
        segment.functions,
        Place(segment.name, own, PORT, mac, f"F{number + 1:04d}"),
        data,
        listener,
        orders,
    )
    with suppress(OSError):
        # A switch does not get slower because hosts are busy; `nice` would count inside this
        # session only (autogroup).
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(LAB))
    orders.send(json.dumps({"up": True}).encode())
    process.serve()
    return 0
