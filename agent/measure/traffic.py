"""Measured traffic: datagrams on one fibre, from port to port, and TCP along the routes in use
(`stream`).

Datagrams are bound to the interface, so that no route takes them elsewhere.

A short-lived process per flow and end: the daemon itself never waits for traffic.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import struct
import time
from functools import partial

from agent.basics import bad, integer, number
from agent.measure import stream

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from agent.shapes import Answer, Daemon, Json, Listening

TOKEN = re.compile(r"^[0-9a-f]{16}$")
FLOWS, BYTES, SECONDS, MBPS = 64, 64 << 20, 10.0, 1_000_000
STREAM_S = 60.0
SO_BINDTODEVICE, SO_TIMESTAMPNS, SO_RCVBUFFORCE, UDP_SEGMENT, UDP_GRO = 25, 35, 33, 103, 104
# receive buffer (bytes): half a second of 250 Mb/s, should the receiver not get the processor
ROOM = 16 << 20
CATCH_UP = 4  # chunks that a sender held up sends at once; the rest of its delay is given up
END = b"end"


def datagram(mtu: int) -> tuple[int, int]:
    """Payload (bytes) of the largest datagram, and how many of them one call hands to the
    kernel.
    """
    size = max(min(mtu, 9000) - 28, 512)
    return size, max(60_000 // size, 1)


def bound(interface: str, address: str) -> socket.socket:
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
    try:
        s.setsockopt(socket.SOL_SOCKET, SO_BINDTODEVICE, interface.encode())
        s.bind((address, 0))
    except OSError:
        s.close()
        raise
    return s


def receive(s: socket.socket, token: bytes, size: int, end: float) -> Json:
    """Count what arrives with this token until the sender says that it is done, or `end` (monotonic
    s).
    """
    with contextlib.suppress(OSError):
        s.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, ROOM)
    with contextlib.suppress(OSError):
        s.setsockopt(socket.IPPROTO_UDP, UDP_GRO, 1)
    s.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
    datagrams = total = 0
    first = last = opening = 0
    while time.monotonic() < end:
        s.settimeout(max(end - time.monotonic(), 0.001))
        try:
            data, ancillary, _, _ = s.recvmsg(1 << 16, 128)
        except OSError:
            break
        if not data.startswith(token):
            continue
        if data[len(token) : len(token) + len(END)] == END:
            end = min(end, time.monotonic() + 0.02)  # what the end overtook
            continue
        at = time.time_ns()
        for level, kind, value in ancillary:
            if level == socket.SOL_SOCKET and kind == SO_TIMESTAMPNS:
                seconds, rest = struct.unpack_from("=qq", value)
                at = seconds * 1_000_000_000 + rest
        if not total:
            first, opening = at, len(data)
        last = at
        datagrams += -(-len(data) // size)
        total += len(data)
    span = last - first
    return {
        "datagrams": datagrams,
        "bytes": total,
        "mbps": round((total - opening) * 8e3 / span, 3) if span > 0 else None,
    }


def send(
    s: socket.socket,
    token: bytes,
    size: int,
    count: int,
    limit: int,
    rate_mbps: float | None,
    seconds: float,
) -> Json:
    """Send `limit` bytes as fast as they go, or at `rate_mbps` for `seconds`; return what was
    handed to the kernel.
    """
    segmented = True
    try:
        s.setsockopt(socket.IPPROTO_UDP, UDP_SEGMENT, size)
    except OSError:
        segmented = False
    piece = token.ljust(size, b"\0")
    chunk = piece * count if segmented else piece
    each = count if segmented else 1
    sent = 0
    step = len(chunk) * 8e3 / rate_mbps if rate_mbps else 0.0  # ns between two chunks
    begin = time.monotonic_ns()
    due = float(begin)
    until = begin + int(seconds * 1e9)
    while (time.monotonic_ns() < until) if rate_mbps else (sent * size < limit):
        late = time.monotonic_ns() - due
        if late < 0:
            time.sleep(-late / 1e9)
        elif step and late > CATCH_UP * step:
            due += late - CATCH_UP * step
        try:
            s.send(chunk)
        except BlockingIOError:
            continue
        except OSError as e:
            if segmented:  # this interface cannot take them together
                s.setsockopt(socket.IPPROTO_UDP, UDP_SEGMENT, 0)
                segmented, chunk, each = False, piece, 1
                step /= count
                continue
            return {"datagrams": sent, "bytes": sent * size, "error": e.strerror}
        sent += each
        due += step
    with contextlib.suppress(OSError):
        s.setsockopt(socket.IPPROTO_UDP, UDP_SEGMENT, 0)
    for _ in range(3):
        with contextlib.suppress(OSError):
            s.send(token + END)
        time.sleep(0.002)
    return {
        "datagrams": sent,
        "bytes": sent * size,
        "seconds": round((time.monotonic_ns() - begin) / 1e9, 4),
    }


class Traffic:
    """Flows by token: `listen` opens their far ends, `send` drives them, `heard` reports what
    arrived.
    """

    def __init__(self, server: Daemon) -> None:
        self.server = server
        self.listening: dict[str, Listening] = {}

    def operate(self, request: Json, answer: Answer) -> Json | None:
        token = request.get("token")
        if not isinstance(token, str) or not TOKEN.match(token):
            raise bad("token: 16 hexadecimal digits are needed")
        what = request.get("do")
        self.server.flows.tested(min(number(request, "seconds", 0.0) or 0.0, STREAM_S))
        if what == "listen":
            return self.listen(token, request)
        if what == "send":
            self.send(token, request, answer)
        elif what == "heard":
            self.heard(token, answer)
        elif what == "accept":
            return self.accept(token, request)
        elif what == "pour":
            return self.pour(token, request)
        else:
            raise bad("do: listen, send, accept, pour or heard is needed")
        return None

    def flows(self, request: Json) -> list[tuple[Json, str, int, int]]:
        flows = request.get("flows")
        if (
            not isinstance(flows, list)
            or not 0 < len(flows) <= FLOWS
            or not all(isinstance(f, dict) for f in flows)
        ):
            raise bad(f"flows: a list of 1 to {FLOWS} flows is needed")
        found = []
        for flow in flows:
            port = integer(flow, "port", 1)
            if port not in self.server.ports:
                raise bad(
                    f"flows: {port} is not a port of this host (it has {sorted(self.server.ports)})"
                )
            if not isinstance(flow.get("flow"), str) or not isinstance(flow.get("address"), str):
                raise bad("flows: each needs a flow and an address")
            interface = self.server.ports[port]
            mtu = min(
                integer({"mtu": 9000, **flow}, "mtu", 576),
                self.server.interfaces.get(interface, {}).get("mtu") or 1500,
            )
            found.append((flow, interface, *datagram(mtu)))
        return found

    def listen(self, token: str, request: Json) -> Json:
        seconds = min(number(request, "seconds", 2.0), SECONDS)
        if token in self.listening:
            raise bad("token: in use")
        opened: list[tuple[str, int, socket.socket]] = []
        try:
            for flow, interface, size, _ in self.flows(request):
                opened.append((flow["flow"], size, bound(interface, flow["address"])))
        except OSError as e:
            for _, _, s in opened:
                s.close()
            raise bad(f"flows: {e.strerror}") from None
        end = time.monotonic() + seconds
        self.expect(token, len(opened), seconds)
        udp = {}
        for name, size, s in opened:
            udp[name] = s.getsockname()[1]
            self.apart(
                partial(receive, s, token.encode(), size, end),
                s,
                partial(self.received, token, name),
            )
        return {"udp": udp}

    def expect(self, token: str, count: int, seconds: float) -> None:
        """Keep the results of `count` receivers for `heard`; those that are never asked for are
        dropped.
        """
        self.listening[token] = {"heard": {}, "missing": count, "answer": None}
        self.server.timer(
            time.monotonic_ns() + int((seconds + 10.0) * 1e9),
            lambda: self.listening.pop(token, None),
        )

    def accept(self, token: str, request: Json) -> Json:
        """Open the far end of a stream: one TCP connection to `address`, for `seconds` at most."""
        seconds = min(number(request, "seconds", 2.0), STREAM_S)
        if token in self.listening:
            raise bad("token: in use")
        s = self.stream_socket(request)
        try:
            s.listen(8)
        except OSError as e:
            s.close()
            raise bad(f"address: {e.strerror}") from None
        tcp = s.getsockname()[1]
        self.expect(token, 1, seconds)
        end = time.monotonic() + seconds
        self.apart(
            partial(stream.accept, s, token.encode(), end),
            s,
            partial(self.received, token, "stream"),
        )
        return {"tcp": tcp}

    def pour(self, token: str, request: Json) -> Json:
        """Send to a stream's far end (`peer`, `tcp`) for `seconds`; answered at once, and nothing
        is reported later.
        """
        seconds = min(number(request, "seconds", 2.0), STREAM_S)
        peer, tcp = request.get("peer"), integer(request, "tcp", 1)
        if not isinstance(peer, str):
            raise bad("peer: an address is needed")
        s = self.stream_socket(request)
        self.apart(
            partial(stream.pour, s, token.encode(), peer, tcp, time.monotonic() + seconds),
            s,
            lambda _: None,
        )
        return {"seconds": seconds}

    def stream_socket(self, request: Json) -> socket.socket:
        address = request.get("address")
        s = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            s.bind((address, 0))
        except (OSError, TypeError) as e:
            s.close()
            raise bad(f"address: {getattr(e, 'strerror', None) or e}") from None
        return s

    def received(self, token: str, name: str, result: Json) -> None:
        look = self.listening.get(token)
        if look is not None:
            look["heard"][name] = result
            look["missing"] -= 1
            self.finish(token)

    def finish(self, token: str) -> None:
        look = self.listening[token]
        if look["answer"] is not None and look["missing"] <= 0:
            del self.listening[token]
            look["answer"]({"heard": look["heard"]})

    def heard(self, token: str, answer: Answer) -> None:
        if token not in self.listening:
            raise bad("token: nothing listens for it")
        self.listening[token]["answer"] = answer
        self.finish(token)

    def send(self, token: str, request: Json, answer: Answer) -> None:
        flows = self.flows(request)
        sent: Json = {}

        def done(name: str, result: Json) -> None:
            sent[name] = result
            if len(sent) == len(flows):
                answer({"sent": sent})

        for flow, interface, size, count in flows:
            limit = min(integer(dict({"bytes": 0}, **flow), "bytes", 0), BYTES)
            rate, seconds = flow.get("rate_mbps"), min(number(flow, "seconds", 0.0), SECONDS)
            if rate is not None and (not isinstance(rate, (int, float)) or not 0 < rate <= MBPS):
                raise bad(f"rate_mbps: more than 0 and at most {MBPS} are needed, got {rate!r}")
            peer, udp = flow.get("peer"), integer(flow, "udp", 1)
            try:
                s = bound(interface, flow["address"])
                s.connect((peer, udp))
            except (OSError, TypeError, OverflowError) as e:
                done(
                    flow["flow"],
                    {"datagrams": 0, "bytes": 0, "error": str(getattr(e, "strerror", None) or e)},
                )
                continue
            self.apart(
                partial(send, s, token.encode(), size, count, limit, rate, seconds),
                s,
                partial(done, flow["flow"]),
            )

    def apart(
        self, work: Callable[[], Json], s: socket.socket, done: Callable[[Json], None]
    ) -> None:
        """Do `work` with the socket `s` in a process of its own; `done` gets its result."""
        out, into = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                for name in (signal.SIGTERM, signal.SIGINT):
                    signal.signal(name, signal.SIG_DFL)
                keep = sorted((s.fileno(), into))
                for low, high in zip([3, *(fd + 1 for fd in keep)], [*keep, 4096]):
                    os.closerange(low, high)
                os.write(into, json.dumps(work()).encode())
                os._exit(0)
            except BaseException:
                os._exit(1)
        os.close(into)
        s.close()
        lines: list[bytes] = []

        def hear(_: int) -> None:
            data = os.read(out, 65536)
            if data:
                lines.append(data)
                return
            self.server.unregister(out)
            os.close(out)
            os.waitpid(pid, 0)
            try:
                result = json.loads(b"".join(lines))
            except ValueError:
                result = {
                    "datagrams": 0,
                    "bytes": 0,
                    "error": "the process that measures ended early",
                }
            done(result)

        self.server.register(out, hear)
