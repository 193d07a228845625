"""The two framings of NETCONF over SSH (RFC 6242): `]]>]]>` of base:1.0, chunks of base:1.1."""

from __future__ import annotations

import re

END = b"]]>]]>"
MAX_MESSAGE = 1_048_576  # bytes
CHUNK = 4096  # bytes; a client must take a message in several chunks (RFC 6242 4.2)
_HEADER = re.compile(rb"\n#(?:([1-9][0-9]{0,9})|(#))\n")
_LONGEST_HEADER = 13


class Unframed(ValueError):
    """What arrived is no framing: the session must end (RFC 6242 4.2)."""


class Decoder:
    """Finds messages in a stream. No byte is examined twice, and no more than one message is
    kept.
    """

    def __init__(self) -> None:
        self.chunked = False
        self._data = bytearray()
        self._message = bytearray()
        self._seen = 0

    def feed(self, data: bytes) -> None:
        self._data += data

    def next(self) -> bytes | None:
        """Return the next whole message, None when there is none yet. Raises Unframed."""
        return self._chunks() if self.chunked else self._to_mark()

    def _to_mark(self) -> bytes | None:
        found = self._data.find(END, max(0, self._seen - len(END) + 1))
        if found < 0:
            self._seen = len(self._data)
            if self._seen > MAX_MESSAGE:
                raise Unframed("a message without an end")
            return None
        message = bytes(self._data[:found])
        del self._data[: found + len(END)]
        self._seen = 0
        return message

    def _chunks(self) -> bytes | None:
        while True:
            header = _HEADER.match(self._data)
            if header is None:
                if len(self._data) >= _LONGEST_HEADER or not _begins_header(
                    bytes(self._data[:_LONGEST_HEADER])
                ):
                    raise Unframed("no chunk header")
                return None
            if header[2]:
                if not self._message:
                    raise Unframed("an end of chunks without a chunk")
                message = bytes(self._message)
                del self._data[: header.end()]
                self._message.clear()
                return message
            size = int(header[1])
            if len(self._message) + size > MAX_MESSAGE:
                raise Unframed(f"a chunk of {size} bytes")
            if len(self._data) < header.end() + size:
                return None
            self._message += self._data[header.end() : header.end() + size]
            del self._data[: header.end() + size]


def _begins_header(data: bytes) -> bool:
    return not data or bool(re.fullmatch(rb"\n(#(#|[1-9][0-9]{0,9})?)?", data))


def encode(message: bytes, chunked: bool) -> bytes:
    """Return `message` framed."""
    if not chunked:
        return message + END
    pieces = [message[i : i + CHUNK] for i in range(0, len(message), CHUNK)]
    return b"".join(b"\n#%d\n%b" % (len(piece), piece) for piece in pieces) + b"\n##\n"
