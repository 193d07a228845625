"""Port counters: one look at all of them, and samples taken at a rate and sent in batches.

A sample is one RTM_GETSTATS dump, copied and not read: where each port's counters stand in it is
learnt once and checked with every sample. 7 us for 4 ports in 7 interfaces, without the time to
wake up.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import signal
import struct
import time
import zlib

from agent.basics import bad, number
from agent.host.netlink import (
    DUMP,
    GETSTATS,
    HEADER,
    NEWLINK,
    REQUEST,
    Rtnl,
    attrs,
    link_values,
    links,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Protocol

    from agent.shapes import Answer, Daemon, Json, Ports

    class Client(Protocol):
        """Who is sent samples."""

        counting: Series | None

        def send(self, message: Json) -> None: ...


FIELDS = (
    "rx_pkts",
    "tx_pkts",
    "rx_bytes",
    "tx_bytes",
    "rx_errors",
    "tx_errors",
    "rx_dropped",
    "tx_dropped",
)
STATS = struct.Struct("=8Q")  # the head of struct rtnl_link_stats64
ROW = struct.Struct("=qQ")
END = struct.Struct("=IH")
# bytes before the counters in the body of a message: if_stats_msg, then the attribute's head
HEAD = 16
NEWSTATS, DONE, ERROR = 92, 3, 2
LEAST_S = 0.001
BATCH_S = 0.5
# a tenth of the share of an ordinary process (sched(7)), and never nothing, as 19 would be
NICE = 10
# a port that lost its light is read after this long: ending the darkness goes first
DARK_NS = 10_000_000
LONGEST_NS = 2_000_000_000  # no batch waits longer, not even while this host waits for its light
MOST_ROWS = 4000
BUFFER = 1 << 18


class Samples:
    """The counters of the ports of `host`. Carriers are those of the kernel's last events."""

    def __init__(self, host: Ports) -> None:
        self.host = host
        self.link = Rtnl()
        self.buffer = bytearray(BUFFER)
        body = struct.pack("=BBHII", 0, 0, 0, 0, 1)  # IFLA_STATS_LINK_64 of every interface
        self.question = HEADER.pack(16 + len(body), GETSTATS, REQUEST | DUMP, 1, 0) + body
        # of each port: the offset of its message in an answer, the bytes before its counters, its
        # name
        self.places: tuple[tuple[int, bytes, str], ...] = ()
        self.numbers: list[int] = []  # the ports of a row, in their order

    def look(self) -> dict[str, dict[str, int]]:
        """Read every port once: {number: {field: value, "oper": 0 or 1}}."""
        host = self.host
        index = {
            host.interfaces[i]["ifindex"]: n for n, i in host.ports.items() if i in host.interfaces
        }
        ports: dict[str, dict[str, int]] = {}
        for data in self.link.dump(GETSTATS, struct.pack("=BBHII", 0, 0, 0, 0, 1)):
            port = index.get(struct.unpack_from("=I", data, 4)[0])
            if port is not None:
                ports[str(port)] = dict(zip(FIELDS, STATS.unpack_from(attrs(data, 12)[1])))
                ports[str(port)]["oper"] = self.oper(port)
        return ports

    def oper(self, port: int) -> int:
        return int(bool(self.host.interfaces.get(self.host.ports[port], {}).get("carrier")))

    def row(self) -> tuple[list[int], bytes]:
        """One sample: the ports, in order, and a row: when, which of them have carrier (bit by
        bit), and their counters.
        """
        buffer = self.buffer
        self.link.socket.send(self.question)
        size = self.link.socket.recv_into(buffer)
        now = time.monotonic_ns()
        found, bits, bit, interfaces = b"", 0, 1, self.host.interfaces
        for at, head, name in self.places:
            if not buffer.startswith(head, at) or at >= size or name not in interfaces:
                break
            found += buffer[at + HEAD : at + HEAD + STATS.size]
            bits |= bit if interfaces[name]["carrier"] else 0
            bit <<= 1
        else:
            if self.places and ended(buffer, size):
                return self.numbers, ROW.pack(now, bits) + found
        while not ended(buffer, size):  # more interfaces than fit into one answer
            size = self.link.socket.recv_into(buffer)
        return self.slow_row()

    def slow_row(self) -> tuple[list[int], bytes]:
        """As `row`, by reading every message; learns where the ports are, if one answer holds them
        all.
        """
        host, buffer = self.host, self.buffer
        existing = [(n, name) for n, name in sorted(host.ports.items()) if name in host.interfaces]
        wanted = {host.interfaces[name]["ifindex"]: name for _, name in existing}
        self.link.socket.send(self.question)
        values: dict[str, bytes] = {}
        places: dict[str, tuple[int, bytes, str]] = {}
        answers, over = 0, False
        while not over:
            size = self.link.socket.recv_into(buffer)
            now = time.monotonic_ns()
            answers += 1
            over = ended(buffer, size)
            for offset, length, kind in messages(buffer, size):
                name = (
                    wanted.get(struct.unpack_from("=I", buffer, offset + 20)[0])
                    if kind == NEWSTATS
                    else None
                )
                if name is not None and length >= 16 + HEAD + STATS.size:
                    at = offset + 16
                    values[name] = bytes(buffer[at + HEAD : at + HEAD + STATS.size])
                    places[name] = (at, bytes(buffer[at : at + HEAD]), name)
        existing = [(n, name) for n, name in existing if name in values]
        numbers = [n for n, _ in existing]
        self.numbers = self.numbers if numbers == self.numbers else numbers
        self.places = tuple(places[name] for _, name in existing) if answers == 1 else ()
        bits = sum(
            1 << bit for bit, (_, name) in enumerate(existing) if host.interfaces[name]["carrier"]
        )
        return self.numbers, ROW.pack(now, bits) + b"".join(values[name] for _, name in existing)


def messages(buffer: bytearray, size: int) -> Iterator[tuple[int, int, int]]:
    """Where each message of an answer begins, its length and kind."""
    offset = 0
    while offset + 16 <= size:
        length, kind, _, _, _ = HEADER.unpack_from(buffer, offset)
        if length < 16:
            return
        yield offset, length, kind
        offset += (length + 3) & ~3


def ended(buffer: bytearray, size: int) -> bool:
    """Whether an answer is the last of its dump: the mark of the end is alone, or behind the last
    message that fitted.
    """
    if size >= 20 and END.unpack_from(buffer, size - 20) == (20, DONE):
        return True
    return any(kind in (DONE, ERROR) for _, _, kind in messages(buffer, size))


class Host:
    """What a sampler knows of its host: the ports, and the interfaces as the kernel reports
    them.
    """

    def __init__(self, ports: dict[int, str]) -> None:
        self.ports = ports
        self.events = Rtnl(groups=1)
        self.interfaces = links(Rtnl())
        self.events.socket.setblocking(False)

    def hear(self) -> None:
        try:
            # each note comes by itself: all that wait, else samples lag behind the carriers by a
            # step for each
            while True:
                for kind, _, _, data in self.events.receive():
                    if data[0]:
                        continue  # a bridge port's note, which carries no carrier
                    value = link_values(data)
                    if kind == NEWLINK:
                        self.interfaces[value["name"]] = value
                    else:
                        self.interfaces.pop(value["name"], None)
        except BlockingIOError:
            return
        except OSError:  # events were lost: look at everything again
            self.interfaces = links(Rtnl())


def sampled(out: int, ports: dict[int, str], step_ns: int, batch_ns: int) -> None:
    """Sample until SIGTERM, or until the reader is gone; a JSON line per batch."""
    host = Host(ports)
    samples = Samples(host)
    ending: list[bool] = []
    signal.signal(signal.SIGTERM, lambda *_: ending.append(True))
    rows: list[bytes] = []
    numbers, missed, began = samples.numbers, 0, time.monotonic_ns()
    due = began + step_ns
    while True:
        now = time.monotonic_ns()
        if now < due and not ending:
            time.sleep((due - now) / 1e9)
        host.hear()
        existing, row = samples.row()
        now = time.monotonic_ns()
        if rows and (
            existing is not numbers or now - began >= batch_ns or len(rows) >= MOST_ROWS or ending
        ):
            packed = base64.b64encode(zlib.compress(b"".join(rows), 1)).decode()
            line = {"t_ns": now, "numbers": numbers, "rows": packed, "missed": missed}
            os.write(out, json.dumps(line, separators=(",", ":")).encode() + b"\n")
            rows, missed, began = [], 0, now
        if ending:
            return
        rows.append(row)
        numbers = existing
        due += step_ns
        if due <= now:  # late: what was missed is missed, and counted
            late = (now - due) // step_ns + 1
            missed += late
            due += late * step_ns


class Counters(Samples):
    """The daemon's own reader of counters, and the sampling it does for its clients."""

    def __init__(self, server: Daemon) -> None:
        super().__init__(server)
        self.server = server
        # port -> when its carrier went last, and its counters then
        self.downs: dict[str, Json] = {}
        # ports whose carrier went and that were not read since -> when it went
        self.dark: dict[int, int] = {}

    def carrier(self, port: int, carrier: bool, now: int) -> None:
        """Keep what a port had counted when its light went: what was sent and did not arrive by
        then is lost.

        A dark port counts nothing, so there is time until its light is back, and one look serves
        all ports.
        """
        if carrier:
            if port in self.dark:
                self.keep()
            return
        if not self.dark:
            self.server.timer(now + DARK_NS, self.keep)
        self.dark[port] = now

    def keep(self) -> None:
        if not self.dark:
            return
        dark, self.dark = self.dark, {}
        with contextlib.suppress(OSError):
            ports = self.look()
            self.downs.update(
                {str(port): dict(ports.get(str(port), {}), t_ns=at) for port, at in dark.items()}
            )

    def counters(self, request: Json, client: Client, answer: Answer) -> Json | None:
        """Answer with one look. With `interval_s` (s, >= 0.001) samples follow from now on; null or
        0 ends them.
        """
        if "interval_s" not in request:
            return self.reading()
        interval_s, batch_s = (
            number(request, "interval_s", None) or 0,
            number(request, "batch_s", BATCH_S),
        )
        if 0 < interval_s < LEAST_S:
            raise bad(f"interval_s: at least {LEAST_S} seconds are needed, got {interval_s!r}")
        before, client.counting = client.counting, None
        if interval_s:
            client.counting = Series(self.server, client, int(interval_s * 1e9), int(batch_s * 1e9))
        if before is None:
            return self.reading()
        before.stop(lambda: answer(self.reading()))
        return None

    def reading(self) -> Json:
        self.keep()
        return {"t_ns": time.monotonic_ns(), "ports": self.look(), "downs": self.downs}


class Series:
    """Samples for one client, taken by a process of their own at low priority: a busy host misses
    samples, not work.

    A fork of this one, for a new interpreter would take 20 ms of a core just before the light
    moves.
    """

    def __init__(self, server: Daemon, client: Client, step_ns: int, batch_ns: int) -> None:
        self.server, self.client = server, client
        self.rest, self.held_ns = b"", 0
        self.held: list[bytes] = []
        self.then: Callable[[], None] | None = None
        self.fd, write_end = os.pipe()
        self.pid: int | None = os.fork()
        if not self.pid:
            try:
                lowly(write_end)
                sampled(1, server.ports, step_ns, min(batch_ns, LONGEST_NS))
            finally:
                os._exit(0)
        os.close(write_end)
        os.set_blocking(self.fd, False)
        server.register(self.fd, self.readable)

    def readable(self, _: int) -> None:
        try:
            data = os.read(self.fd, 1 << 20)
        except BlockingIOError:
            return
        if not data:
            self.end()
            return
        *lines, self.rest = (self.rest + data).split(b"\n")
        now = time.monotonic_ns()
        if not self.held:
            self.held_ns = now
        self.held += lines
        # While this host waits for its light it has nothing else to do: no work for what ends the
        # darkness.
        if not self.server.generations.armed or now - self.held_ns >= LONGEST_NS:
            self.send()

    def send(self) -> None:
        for line in self.held:
            self.client.send(dict(json.loads(line), event="counters"))
        self.held = []

    def stop(self, then: Callable[[], None]) -> None:
        """End the process; `then` is called behind the last samples, at most a second from now."""
        self.then = then
        if self.pid is not None:
            os.kill(self.pid, signal.SIGTERM)
        self.server.timer(time.monotonic_ns() + 1_000_000_000, self.end)

    def end(self) -> None:
        if self.pid is None:
            return
        pid, self.pid = self.pid, None
        self.server.unregister(self.fd)
        os.close(self.fd)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        self.send()
        if self.then is not None:
            self.then()


def lowly(out: int) -> None:
    """Become a process that holds nothing but `out`, as descriptor 1, at low priority."""
    os.dup2(out, 1)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    for number_ in (signal.SIGTERM, signal.SIGINT, signal.SIGPIPE, signal.SIGCHLD):
        signal.signal(number_, signal.SIG_DFL)
    os.setsid()
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, NICE)
        # `nice` counts only inside a session, where there are autogroups
        with open("/proc/self/autogroup", "w") as autogroup:
            autogroup.write(str(NICE))
