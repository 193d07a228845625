"""Path probes: is every lane address reachable, and over how many links."""

from __future__ import annotations

import os
import socket
import struct
import time
from functools import partial

from agent.basics import bad, integer, number

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from agent.shapes import Ancillary, Answer, Daemon, Json

PROBE_PORT = 7187
CROSS_S = 2.0
# to send, answer and read one probe on a shared core: asked again sooner, all would be asked twice
EACH_NS = 100_000


class Rounds:
    """Ask many at once, ask again those that stay silent after 4, 8, 16... ms, answer when all are
    known or time is up.
    """

    def __init__(
        self,
        server: Daemon,
        timeout_s: float,
        ask: Callable[[list[int]], None],
        missing: Callable[[], list[int]],
        finish: Callable[[], None],
        pause_ns: int,
    ) -> None:
        self.server, self.ask, self.missing, self.finish = server, ask, missing, finish
        self.end = time.monotonic_ns() + int(timeout_s * 1e9)
        self.pause = pause_ns
        self.over = False
        self.round()

    def round(self) -> None:
        if self.over:
            return
        now = time.monotonic_ns()
        if now >= self.end or not self.missing():
            self.close()
            return
        self.ask(self.missing())
        self.server.timer(min(self.end, now + self.pause), self.round)
        self.pause = min(2 * self.pause, 64_000_000)

    def heard(self) -> None:
        if not self.over and not self.missing():
            self.close()

    def close(self) -> None:
        self.over = True
        self.finish()


class Probes:
    """Path probes: a UDP echo that reports how often the packet was forwarded, from the TTL it
    arrived with.
    """

    HEAD = struct.Struct("=4sQ")

    def __init__(self, server: Daemon) -> None:
        self.server = server
        self.echoes: list[socket.socket] = []
        self.addresses: list[str] = []
        self.asked: dict[int, tuple[Callable[[int, int, int, int, str], None], int, int, int]] = {}
        self.nonce = int.from_bytes(os.urandom(4), "big") << 32
        self.socket = self.udp("0.0.0.0", 0)
        server.register(self.socket.fileno(), self.answers)

    def udp(self, address: str, port: int) -> socket.socket:
        s = socket.socket(
            socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC
        )
        s.setsockopt(socket.SOL_IP, 15, 1)  # IP_FREEBIND: the address may come later
        s.setsockopt(socket.SOL_IP, 12, 1)  # IP_RECVTTL
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
        s.bind((address, port))
        return s

    def listen(self, addresses: list[str]) -> None:
        """Answer probes on these addresses and nowhere else."""
        if addresses == self.addresses:
            return
        for s in self.echoes:
            self.server.unregister(s.fileno())
            s.close()
        self.addresses, self.echoes = addresses, [self.udp(a, PROBE_PORT) for a in addresses]
        for s in self.echoes:
            self.server.register(s.fileno(), partial(self.echo, s))

    @staticmethod
    def ttl(ancillary: Ancillary) -> int:
        for level, kind, data in ancillary:
            if level == socket.SOL_IP and kind == socket.IP_TTL:
                return int(struct.unpack_from("=i", data)[0])
        return 0

    def echo(self, s: socket.socket, _: int) -> None:
        name = self.server.host.encode()[:40]
        for _ in range(64):
            try:
                data, ancillary, _, sender = s.recvmsg(256, 64)
                # the answer is never longer than the question
                if len(data) >= 64 and data[:4] == b"TBq1":
                    s.sendto(
                        b"TBa1" + data[4:12] + bytes([self.ttl(ancillary) & 255]) + name, sender
                    )
            except BlockingIOError:
                return
            except OSError:
                continue

    def probe(
        self,
        request: Json,
        answer: Answer,
        pause_ns: int = 4_000_000,
        each: Callable[[str], None] | None = None,
    ) -> None:
        """Ask the agents behind `targets`. each: called with every address as soon as it has
        answered. Raises: Failure.
        """
        targets = request.get("targets")
        if not isinstance(targets, list) or not all(
            isinstance(t, dict) and isinstance(t.get("address"), str) for t in targets
        ):
            raise bad("targets: a list of {address, hops} is needed")
        ttl = min(integer(dict({"ttl": 64}, **request), "ttl", 1), 255)
        results: list[Json] = [{"address": t["address"], "ok": False} for t in targets]
        right = [False] * len(targets)
        mine: list[int] = []

        def ask(missing: list[int]) -> None:
            self.socket.setsockopt(socket.SOL_IP, socket.IP_TTL, ttl)
            for i in missing:
                self.nonce += 1
                mine.append(self.nonce)
                self.asked[self.nonce] = (heard, i, time.monotonic_ns(), ttl)
                try:
                    self.socket.sendto(
                        self.HEAD.pack(b"TBq1", self.nonce).ljust(64, b"\0"),
                        (targets[i]["address"], PROBE_PORT),
                    )
                except OSError as e:
                    results[i]["error"] = e.strerror

        def heard(i: int, rtt_ns: int, hops: int, back: int, name: str) -> None:
            wanted = targets[i].get("hops")
            results[i] = {
                "address": targets[i]["address"],
                "ok": True,
                "hops": hops,
                "back_hops": back,
                "rtt_us": rtt_ns // 1000,
                "host": name,
            }
            right[i] = wanted is None or wanted == hops
            if each is not None:
                each(targets[i]["address"])
            rounds.heard()

        def finish() -> None:
            for nonce in mine:
                self.asked.pop(nonce, None)
            answer({"results": results, "ok_count": sum(r["ok"] for r in results)})

        pause_ns = max(pause_ns, EACH_NS * len(targets))
        rounds = Rounds(
            self.server,
            number(request, "timeout_s", 0.5),
            ask,
            lambda: [i for i, r in enumerate(right) if not r],
            finish,
            pause_ns,
        )

    def cross(self, generation: int, addresses: list[str]) -> None:
        """Send an event when every neighbour behind a new link has answered over it: the first
        packets there and back.
        """

        def finish(reply: Json) -> None:
            event = {"event": "crossed", "generation": generation, "t_ns": time.monotonic_ns()}
            self.server.broadcast(dict(event, answered=reply["ok_count"], asked=len(addresses)))

        targets = [{"address": address, "hops": 1} for address in addresses]
        self.probe({"targets": targets, "timeout_s": CROSS_S}, finish, 1_000_000)

    def meet(
        self, addresses: list[str], each: Callable[[str], None], done: Callable[[], None]
    ) -> None:
        """Call `each` with every one of these addresses as soon as its host has routes back to this
        one, and `done` after CROSS_S at most."""
        targets = [{"address": address} for address in addresses]
        self.probe({"targets": targets, "timeout_s": CROSS_S}, lambda _: done(), 1_000_000, each)

    def answers(self, _: int) -> None:
        for _ in range(128):
            try:
                data, ancillary, _, _ = self.socket.recvmsg(256, 64)
            except BlockingIOError:
                return
            except OSError:
                continue
            now = time.monotonic_ns()
            if len(data) < 13 or data[:4] != b"TBa1":
                continue
            entry = self.asked.pop(struct.unpack_from("=Q", data, 4)[0], None)
            if entry:
                heard, i, sent, ttl = entry
                heard(
                    i,
                    now - sent,
                    ttl - data[12] + 1,
                    64 - self.ttl(ancillary) + 1,
                    data[13:].decode("utf-8", "replace"),
                )
