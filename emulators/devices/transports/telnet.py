"""The telnet protocol as a device's command line uses it (RFC 854, 855, 857, 858, 1091, 1073;
answers as RFC 1143 asks).

No socket here: bytes in; clean bytes, and bytes to answer, out.
"""

from __future__ import annotations

IAC, DONT, DO, WONT, WILL, SB = range(255, 249, -1)
EC, AYT, IP, BRK, SE = 247, 246, 244, 243, 240
BINARY, ECHO, SUPPRESS_GO_AHEAD, TERMINAL_TYPE, WINDOW_SIZE = 0, 1, 3, 24, 31
SERVER_OPTIONS = frozenset({BINARY, ECHO, SUPPRESS_GO_AHEAD})  # options the device has
# options it lets a client have
CLIENT_OPTIONS = frozenset({BINARY, SUPPRESS_GO_AHEAD, TERMINAL_TYPE, WINDOW_SIZE})
SEND = 1  # RFC 1091: ask for the name of the terminal
_CTRL_C = 3


class Telnet:
    """One client's side of the options. What is kept does not grow with what arrives: a
    subnegotiation's content is dropped.
    """

    def __init__(self) -> None:
        self._state = "text"
        self._verb = 0
        self._mine: set[int] = set()  # options the device has switched on
        self._yours: set[int] = set()  # options the client was asked for or has switched on
        self._asked: set[tuple[int, int]] = set()  # our offers and requests not yet answered

    def offers(self) -> bytes:
        """Return the device's opening: WILL ECHO, WILL SUPPRESS-GO-AHEAD, DO TERMINAL-TYPE, DO
        NAWS, as login servers do.
        """
        out = bytearray()
        for option in (ECHO, SUPPRESS_GO_AHEAD):
            self._mine.add(option)
            self._asked.add((WILL, option))
            out += bytes((IAC, WILL, option))
        for option in (TERMINAL_TYPE, WINDOW_SIZE):
            self._asked.add((DO, option))
            out += bytes((IAC, DO, option))
        return bytes(out)

    def encode(self, data: bytes) -> bytes:
        """Return `data` with every 0xFF doubled."""
        return data.replace(b"\xff", b"\xff\xff")

    def receive(self, data: bytes) -> tuple[bytes, bytes]:
        """Take what the client sent, in any pieces; return the text in it, and the answer."""
        if self._state == "text" and IAC not in data and 0 not in data:
            return data, b""
        text, answers = bytearray(), bytearray()
        for byte in data:
            self._take(byte, text, answers)
        return bytes(text), bytes(answers)

    def _take(self, byte: int, text: bytearray, answers: bytearray) -> None:
        match self._state:
            case "text":
                if byte == IAC:
                    self._state = "command"
                # CR NUL is a carriage return alone; a NUL elsewhere does nothing (RFC 854)
                elif byte:
                    text.append(byte)
            case "command":
                self._state = "text"
                if byte == IAC:
                    text.append(IAC)
                elif byte in (WILL, WONT, DO, DONT):
                    self._state, self._verb = "option", byte
                elif byte == SB:
                    self._state = "subject"
                elif byte == AYT:
                    answers += b"\r\n[Yes]\r\n"
                elif byte in (IP, BRK):
                    text.append(_CTRL_C)
                elif byte == EC:
                    text.append(8)
            case "option":
                self._state = "text"
                answers += self._agree(self._verb, byte)
            case "subject" | "content":
                self._state = "content-iac" if byte == IAC else "content"
            case "content-iac":
                self._state = "text" if byte == SE else "content"

    def _agree(self, verb: int, option: int) -> bytes:
        """Answer a request but not an acknowledgement, or both sides would answer each other
        endlessly (RFC 1143).
        """
        wish = verb in (WILL, DO)
        by_client = verb in (WILL, WONT)
        asked = (DO if by_client else WILL, option)
        on, allowed = (self._yours, CLIENT_OPTIONS) if by_client else (self._mine, SERVER_OPTIONS)
        yes, no = (DO, DONT) if by_client else (WILL, WONT)
        if asked in self._asked:
            self._asked.discard(asked)
            if wish and option in allowed:
                on.add(option)
                return (
                    bytes((IAC, SB, TERMINAL_TYPE, SEND, IAC, SE))
                    if by_client and option == TERMINAL_TYPE
                    else b""
                )
            on.discard(option)
            return b""
        if wish == (option in on):
            return b""
        if wish and option in allowed:
            on.add(option)
            return bytes((IAC, yes, option))
        if wish:
            return bytes((IAC, no, option))
        on.discard(option)
        return bytes((IAC, no, option))
