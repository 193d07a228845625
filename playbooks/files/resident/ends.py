"""Who is at the other end of each fibre."""

import binascii
import contextlib
import json
import os
import socket
import time

from resident.basics import bad, number
from resident.probes import Rounds

ETHERTYPE = 0x88B5  # IEEE 802 local experimental ethertype 1


class FibreEnds:
    """Who is at the other end of each fibre: small frames that no router passes on, answered by the committer over there.

    `answered` is who received our light and said so; `heard` is whose light we receive. On a duplex link both are the same.
    """

    def __init__(self, server):
        self.server = server
        self.asked = {}
        self.last = {}
        self.socket = socket.socket(
            socket.AF_PACKET, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC, socket.htons(ETHERTYPE)
        )
        server.register(self.socket.fileno(), self.receive)

    def send(self, interface, target, message):
        text = json.dumps(message, separators=(",", ":")).encode().ljust(46, b" ")
        self.socket.sendto(text, (interface, ETHERTYPE, 0, 0, target))

    def neighbours(self, request, answer):
        ports = self.server.ports
        wanted = request.get("ports") or sorted(ports)
        unknown = [p for p in wanted if p not in ports]
        if unknown:
            raise bad(f"ports: {unknown} are not ports of this host (it has {sorted(ports)})")
        nonce = binascii.hexlify(os.urandom(6)).decode()
        began = time.monotonic_ns()
        answered = {}

        def ask(missing):
            for port in missing:
                with contextlib.suppress(OSError):
                    self.send(ports[port], b"\xff" * 6, {"q": nonce, "h": self.server.host, "p": port})

        def heard(port, peer):
            answered[port] = peer
            rounds.heard()

        def lit():
            return [p for p in wanted if self.server.interfaces.get(ports[p], {}).get("carrier") and p not in answered]

        def finish():
            self.asked.pop(nonce, None)
            found = {}
            for port in wanted:
                link = self.server.interfaces.get(ports[port], {})
                at, peer = self.last.get(port, (0, None))
                found[str(port)] = {"interface": ports[port], "carrier": bool(link.get("carrier")), "answered": answered.get(port)}
                found[str(port)]["heard"] = peer if at >= began - int(1e9) else None
            answer({"ports": found})

        self.asked[nonce] = heard
        rounds = Rounds(self.server, number(request, "timeout_s", 0.3), ask, lit, finish)

    def receive(self, _):
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
                message = json.loads(data)
                peer = {"host": str(message["h"]), "port": int(message["p"])}
                self.last[port] = (time.monotonic_ns(), peer)
                if "q" in message:
                    self.send(interface, sender, {"a": message["q"], "h": self.server.host, "p": port})
                elif message.get("a") in self.asked:
                    self.asked[message["a"]](port, peer)
            except (ValueError, KeyError, TypeError, OSError):
                continue
