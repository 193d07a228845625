"""Telnet (RFC 854), the transport of command lines and of TL1 ports with a prompt:
`telnet://host:port`.
"""

from __future__ import annotations

import re
from typing import ClassVar

from drivers.link.tcp import TcpLink, _Stream

IAC, DONT, DO, WONT, WILL, SB, SE = 255, 254, 253, 252, 251, 250, 240
SUPPRESS_GO_AHEAD = 3
"""The one option worth having (RFC 858): without it a strict peer waits for its turn to speak.
Everything else is refused: no device here needs to know of a terminal, and its echo is skipped by
the reader."""
MOST_ANSWERS = 256
"""Options have one byte, so an honest peer has at most this many questions; a peer that never stops
asking gets no more answers.
"""

_LINE_END = re.compile(rb"\r\n|\r|\n")


class Negotiation:
    """The receiving side of telnet, as a client: takes bytes in any pieces, gives the text in them
    and the bytes to answer with.

    Subnegotiations, which only follow an option this side never agreed to, are skipped however long
    they are.
    """

    def __init__(self) -> None:
        self._command = b""  # of a sequence that has begun and not ended
        self._skipping = False
        self._after_return = False
        self._agreed: set[int] = set()  # the peer's DO or WILL (as the byte) that was agreed to
        self._answers = 0

    def feed(self, data: bytes) -> tuple[bytes, bytes]:
        """Return (text, answer); either may be empty."""
        text, answer = bytearray(), bytearray()
        data, self._command = self._command + data, b""
        at = 0
        while at < len(data):
            mark = data.find(IAC, at)
            end = len(data) if mark < 0 else mark
            if not self._skipping:
                text += data[at:end]
            if mark < 0:
                break
            size = (
                3
                if mark + 1 < len(data)
                and data[mark + 1] in (DO, DONT, WILL, WONT)
                and not self._skipping
                else 2
            )
            if mark + size > len(data):
                self._command = data[mark:]
                break
            verb = data[mark + 1]
            if self._skipping:
                self._skipping = verb != SE
            elif verb == IAC:
                text.append(IAC)
            elif verb == SB:
                self._skipping = True
            elif size == 3:
                answer += self._answer(verb, data[mark + 2])
            at = mark + size
        return self._lines(bytes(text)), bytes(answer)

    def _answer(self, verb: int, option: int) -> bytes:
        """Answer only what changes something (RFC 1143), else both ends could answer each other
        endlessly.
        """
        ask, agreed, refused = (DO, WILL, WONT) if verb in (DO, DONT) else (WILL, DO, DONT)
        if verb == ask and option == SUPPRESS_GO_AHEAD:
            if ask in self._agreed:
                return b""
            self._agreed.add(ask)
            reply = agreed
        elif verb == ask:
            reply = refused
        elif option == SUPPRESS_GO_AHEAD and ask in self._agreed:
            self._agreed.discard(ask)
            reply = refused
        else:
            return b""
        self._answers += 1
        return bytes((IAC, reply, option)) if self._answers <= MOST_ANSWERS else b""

    def _lines(self, text: bytes) -> bytes:
        """Drop the NUL that marks a bare carriage return."""
        if not text:
            return text
        cleaned = (
            (b"\r" + text).replace(b"\r\0", b"\r")[1:]
            if self._after_return
            else text.replace(b"\r\0", b"\r")
        )
        self._after_return = text.endswith(b"\r")
        return cleaned


def escaped(data: bytes) -> bytes:
    """Write bytes as the network virtual terminal wants them: IAC doubled, line ends CR LF, a bare
    CR as CR NUL.

    >>> escaped(b"a\\xff\\nb\\r\\n")
    b'a\\xff\\xff\\r\\nb\\r\\n'
    """
    ends = {b"\r": b"\r\0"}
    return _LINE_END.sub(lambda end: ends.get(end[0], b"\r\n"), data.replace(b"\xff", b"\xff\xff"))


class _TelnetStream(_Stream):
    """Answers option negotiation as it comes, whether or not a question is pending; passes on the
    text.
    """

    def __init__(self) -> None:
        super().__init__()
        self._negotiation = Negotiation()

    def data_received(self, data: bytes) -> None:
        text, answer = self._negotiation.feed(data)
        if answer and self._transport is not None:
            self._transport.write(answer)
        if text:
            super().data_received(text)


class TelnetLink(TcpLink):
    """A TCP connection that speaks telnet: same deadlines, same errors."""

    protocol: ClassVar[type[_Stream]] = _TelnetStream

    async def _write(self, data: bytes) -> None:
        await super()._write(escaped(data))
