"""Who is at the other end of each fibre."""

from __future__ import annotations

import binascii
import contextlib
import json
import os
import socket
import time

from agent.basics import bad, number

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from agent.shapes import Answer, Daemon, Json

ETHERTYPE = 0x88B5  # IEEE 802 local experimental ethertype 1
SIGNATURE = 32  # hexadecimal digits: 128 bits of HMAC-SHA256 (RFC 2104 section 5 allows half)


class Look:
    """One look at the fibre ends: who answered each port and whom it hears, by frames of this look
    alone.

    key: signs the frames of this look; without it a sender can neither ask nor answer. None:
    unsigned.
    """

    def __init__(self, key: bytes | None) -> None:
        self.key = key
        self.answered: dict[int, Json] = {}
        self.heard: dict[int, Json] = {}
        self.news: Callable[[], None] = lambda: None

    def signature(self, kind: str, nonce: str, host: str, port: int) -> str:
        import hashlib
        import hmac

        assert self.key is not None
        text = json.dumps([kind, nonce, host, port]).encode()
        return hmac.new(self.key, text, hashlib.sha256).hexdigest()[:SIGNATURE]

    def sealed(self, kind: str, nonce: str, host: str, port: int) -> Json:
        message: Json = {kind: nonce, "h": host, "p": port}
        if self.key is not None:
            message["s"] = self.signature(kind, nonce, host, port)
        return message

    def opens(self, kind: str, message: Json) -> bool:
        """Whether the message is of this look: signed with its key, or unsigned where it has
        none.
        """
        if self.key is None:
            return "s" not in message
        import hmac

        mine = self.signature(kind, message[kind], message["h"], message["p"])
        return hmac.compare_digest(mine, str(message.get("s", "")))


class FibreEnds:
    """Who is at the other end of each fibre: small frames that no router forwards, answered by the
    agent there.

    `answered`: who received our light and said so; `heard`: whose light we receive. On a duplex
    link both are the same. Frames of a look with a key are signed with HMAC-SHA256 over their
    content; the operator gives every host the key over SSH, a new one for every look, so that no
    other sender can claim to be a port or replay an earlier frame.
    """

    def __init__(self, server: Daemon) -> None:
        self.server = server
        self.looks: dict[str, Look] = {}
        self.socket = socket.socket(
            socket.AF_PACKET,
            socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC,
            socket.htons(ETHERTYPE),
        )
        server.register(self.socket.fileno(), self.receive)

    def send(self, interface: str, target: bytes, message: Json) -> None:
        text = json.dumps(message, separators=(",", ":")).encode().ljust(46, b" ")
        self.socket.sendto(text, (interface, ETHERTYPE, 0, 0, target))

    def neighbours(self, request: Json, answer: Answer) -> None:
        """Ask at `ports` until each is answered or time is up; reply once every lit port of `hear`
        has received a frame.

        Without `hear`: once every lit port was answered. Asking goes on afterwards where no answer
        came, because on a one-way link none can, and the far end may still be waiting for a frame.
        """
        ports = self.server.ports
        wanted = sorted(ports) if request.get("ports") is None else request["ports"]
        hear = request.get("hear")
        for name, given in (("ports", wanted), ("hear", [] if hear is None else hear)):
            if not isinstance(given, list) or not all(isinstance(p, int) for p in given):
                raise bad(f"{name}: a list of port numbers is needed")
            if unknown := [p for p in given if p not in ports]:
                raise bad(f"{name}: {unknown} are not ports of this host (it has {sorted(ports)})")
        key = request.get("key")
        if key is not None and not (isinstance(key, str) and len(key) >= 32):
            raise bad("key: 32 characters or more are needed")
        look = Look(None if key is None else key.encode())
        nonce = binascii.hexlify(os.urandom(6)).decode()
        self.looks[nonce] = look
        end = time.monotonic_ns() + int(number(request, "timeout_s", 0.3) * 1e9)
        replied = False

        def lit(port: int) -> bool:
            return bool(self.server.interfaces.get(ports[port], {}).get("carrier"))

        def known() -> bool:
            if hear is None:
                return all(p in look.answered for p in wanted if lit(p))
            return all(p in look.heard for p in hear if lit(p))

        def reply() -> None:
            nonlocal replied
            if replied:
                return
            replied = True
            found: Json = {}
            for port in dict.fromkeys([*wanted, *(hear or [])]):
                found[str(port)] = {
                    "interface": ports[port],
                    "carrier": lit(port),
                    "answered": look.answered.get(port),
                }
                found[str(port)]["heard"] = look.heard.get(port)
            answer({"ports": found})

        def ask(pause: int) -> None:
            now = time.monotonic_ns()
            missing = [p for p in wanted if p not in look.answered]
            if now >= end:
                reply()
                self.looks.pop(nonce, None)
                return
            for port in missing:
                with contextlib.suppress(OSError):  # dark
                    self.send(
                        ports[port], b"\xff" * 6, look.sealed("q", nonce, self.server.host, port)
                    )
            # Once all have answered, this look stays only to answer others.
            self.server.timer(
                min(end, now + pause) if missing else end, lambda: ask(min(2 * pause, 64_000_000))
            )

        def news() -> None:
            if not replied and known():
                reply()

        look.news = news
        ask(4_000_000)
        news()

    def receive(self, _: int) -> None:
        for _ in range(64):
            try:
                data, (interface, _, kind, _, sender) = self.socket.recvfrom(512)
            except BlockingIOError:
                return
            except OSError:
                continue
            port = self.server.numbers.get(interface)
            if port is None or kind == 4:  # PACKET_OUTGOING
                continue
            try:
                self.understand(json.loads(data), port, interface, sender)
            except (ValueError, KeyError, TypeError, OSError):
                continue

    def understand(self, message: Json, port: int, interface: str, sender: bytes) -> None:
        peer = {"host": str(message["h"]), "port": int(message["p"])}
        kind = "q" if "q" in message else "a"
        looks = [look for look in self.looks.values() if look.opens(kind, message)]
        for look in looks:
            look.heard[port] = peer
        if kind == "q":
            # An unsigned question is answered without a look of our own: it says no more than it
            # shows.
            reply = looks[0] if looks else Look(None) if "s" not in message else None
            if reply is not None:
                self.send(
                    interface, sender, reply.sealed("a", message["q"], self.server.host, port)
                )
        elif message["a"] in self.looks and self.looks[message["a"]] in looks:
            self.looks[message["a"]].answered[port] = peer
        for look in looks:
            look.news()
