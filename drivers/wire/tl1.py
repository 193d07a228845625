"""TL1 messages cut from a stream of bytes, however it is split.

Layout after GR-831 and the Symmetricom SSU-2000 manual (DOC); two-digit years, ctag 0, continuation
blocks, prompts and echoes as kept in the public Quali, MonALISA and pynt clients of optical
switches (REAL):

    <CR><LF><LF>   SID YY-MM-DD HH:MM:SS<CR><LF>
    M  CTAG COMPLD<CR><LF>           or, unsolicited:  *C  ATAG REPT ALM CRS<CR><LF>
       "row"<CR><LF>                 any number; also /* comments */, and a four-letter code after DENY
    ;                                or > when the answer goes on in another whole message after a line <

A run of plain rows, which is what a long answer consists of, is taken by one regular expression;
every byte is examined a bounded number of times, in whatever pieces it arrives. Rows and commands
are in `drivers.wire.tl1_text`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from drivers.wire.tl1_text import Row, command, identifier, parse_row, port_lists, quoted, target
from optics import Garbled

__all__ = [
    "Autonomous",
    "Message",
    "Parser",
    "Reply",
    "Row",
    "Unreadable",
    "command",
    "identifier",
    "parse_row",
    "port_lists",
    "quoted",
    "target",
]

LONGEST_LINE = 1 << 16
"""Bytes without a line end after which a stream is no TL1 (rows of optical switches stay under
300).
"""
LARGEST = 1 << 24
"""Bytes of unfinished answers after which a stream is no TL1: the longest dump of a 320-port switch
has some 40 000.
"""
MOST_STRAY = 10_000
"""Lines of one answer that are neither rows nor comments; devices send a few. 16 MB of them would
take a minute.
"""
DEEPEST = 4
"""Messages one inside the other; an answer that an unsolicited message interrupts makes two."""
MOST_TAGS = 64
"""Answers that may be incomplete in continuation blocks at once; no client sends more commands at a
time.
"""
# larger ones are taken in parts, so that what is copied stays in the processor's cache
_PIECE = 1 << 14

_ROWS = re.compile(rb'(?:[ \t]*+"[^"\\\n]*+"[ \t]*+\r?+\n)++')
_QUOTED = re.compile(r'"([^"]*+)"')
_STAMP = re.compile(r"\s(\d{2,4}-\d\d-\d\d)\s+(\d\d:\d\d:\d\d)\s*\Z")
_SOLICITED = re.compile(r"\s*M\s+(?P<ctag>\S+)\s+(?P<code>[A-Z]{4,6})\s*")
_UNSOLICITED = re.compile(
    r"\s*(?P<alarm>\*C|\*\*|\*\^|\*|A)\s+(?P<atag>\S+)\s+(?P<verb>[A-Z][A-Z0-9]*(?:\s+[A-Z0-9^_-]+)*)\s*"
)
_LONGEST_HEADER = 400  # a header is short; longer lines are spared the expressions above
_PROMPT = re.compile(r"\A\s*(?:[A-Za-z][\w.-]{0,31}>|<) ?")
_ERROR_CODE = re.compile(r"[A-Z]{4}")
_PLAIN, _IN_QUOTES, _IN_COMMENT = range(3)
_MARK = re.compile(rb'"|;|/\*')
_IN_STRING = re.compile(rb'(?:[^"\\]++|\\.)*+("?+)', re.DOTALL)


@dataclass(frozen=True, slots=True)
class Reply:
    """A solicited answer, continuation blocks joined. `rows` are the quoted lines without their
    quotes, `stray` is any other text.

    `comments` are for people: nothing may be concluded from their words (legal notices speak of
    "failed" and "denied").
    """

    ctag: str
    code: str
    sid: str = ""
    error: str = ""
    rows: tuple[str, ...] = ()
    comments: tuple[str, ...] = ()
    stray: tuple[str, ...] = ()

    @property
    def completed(self) -> bool:
        return self.code == "COMPLD"

    @property
    def message(self) -> str:
        """What the device said about a denial, on one line."""
        text = ", ".join(
            part for part in (self.error, *self.comments, *self.stray, *self.rows) if part
        )
        return text or self.code


@dataclass(frozen=True, slots=True)
class Autonomous:
    """An unsolicited message: alarm code (`*C`, `**`, `*^`, `*`, `A`), its tag and its words
    (`REPT ALM CRS`).
    """

    alarm: str
    atag: str
    verb: tuple[str, ...]
    rows: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A message that began like one and cannot be read."""

    text: str


Message = Reply | Autonomous | Unreadable


@dataclass(slots=True)
class _Block:
    """A message while it arrives. `size`: bytes it holds; `comment`: the lines of one that is still
    open.

    `resumed`: another message has just ended inside it, after which the device may have printed its
    prompt.
    """

    sid: str = ""
    solicited: re.Match[str] | None = None
    unsolicited: re.Match[str] | None = None
    rows: list[str] = field(default_factory=list)
    comments: list[str] = field(default_factory=list)
    stray: list[str] = field(default_factory=list)
    comment: list[str] | None = None
    size: int = 0
    resumed: bool = False

    @property
    def named(self) -> bool:
        return self.solicited is not None or self.unsolicited is not None

    def join(self, later: _Block) -> None:
        self.sid, self.solicited = later.sid, later.solicited
        self.rows += later.rows
        self.comments += later.comments
        self.stray += later.stray
        self.size += later.size


def _sid(line: str) -> str | None:
    """The source identifier of a header line, None when it is none. A prompt may be glued to the
    three blanks before it.
    """
    if len(line) >= _LONGEST_HEADER or (stamp := _STAMP.search(line)) is None:
        return None
    return line[: stamp.start()].rstrip().rpartition("   ")[2].strip()


def _hunt(text: bytes | bytearray, at: int, inside: int) -> tuple[int, int, int]:
    """Find the `;` that ends a message, outside quotes and comments, from `at` on; `inside`: what
    `at` is in.

    Returns its place, -1 when there is none, and where and inside of what to go on when more of the
    line has come.
    """
    while True:
        if inside == _IN_COMMENT:
            end = text.find(b"*/", at)
            if end < 0:
                return -1, max(at, len(text) - text.endswith(b"*")), inside
            at, inside = end + 2, _PLAIN
        elif inside == _IN_QUOTES:
            string = _IN_STRING.match(text, at)
            assert string is not None  # it matches nothing as well
            at = string.end()
            if not string[1]:
                return -1, at, inside
            inside = _PLAIN
        else:
            mark = _MARK.search(text, at)
            if mark is None:
                return -1, max(at, len(text) - text.endswith(b"/")), inside
            if mark[0] == b";":
                return mark.start(), mark.end(), inside
            at, inside = mark.end(), _IN_QUOTES if mark[0] == b'"' else _IN_COMMENT


class Parser:
    """The receiving side of one connection: `feed` bytes, get the messages they complete.

    Outside a message everything is ignored but a header: prompts, echoes of the command, telnet
    negotiation, terminal noise.
    """

    def __init__(self) -> None:
        self._buffer = bytearray()
        # how far the last line was searched for the end of its message, and inside of what
        self._hunted = (0, _PLAIN)
        # an unsolicited message may begin inside an answer; the answer goes on after it
        self._stack: list[_Block] = []
        self._parts: dict[str, _Block] = {}  # blocks ended by ">", joined, by ctag
        self._held = 0
        self._messages: list[Message] = []

    def feed(self, data: bytes) -> list[Message]:
        """Take bytes, return the messages completed by them. Raises: Garbled - far too much without
        a line end or in one answer.
        """
        if len(data) <= _PIECE:
            self._feed(data)
        else:
            for at in range(0, len(data), _PIECE):
                self._feed(data[at : at + _PIECE])
        if not self._messages:
            return []
        messages, self._messages = self._messages, []
        return messages

    @property
    def in_progress(self) -> int:
        """Bytes of answers that have begun and not ended; unsolicited messages do not count."""
        return sum(
            block.size
            for block in (*self._stack, *self._parts.values())
            if block.solicited is not None
        )

    def _feed(self, data: bytes) -> None:
        self._buffer += data
        if b"\n" in data:
            self._lines()
        while self._stack and b";" in data and self._buffer:
            # The last line of a message needs no line end: a device may say nothing more until
            # asked.
            end, *hunted = _hunt(self._buffer, *self._hunted)
            if end < 0:
                self._hunted = hunted[0], hunted[1]
                break
            self._take(bytes(self._buffer[:end]), last=True)
            self._end()
            del self._buffer[: end + 1]
            self._new_line()
        if len(self._buffer) > LONGEST_LINE:
            raise Garbled(
                f"no line end in {len(self._buffer)} bytes, beginning {bytes(self._buffer[:40])!r}"
            )
        if self._held > LARGEST:
            raise Garbled(f"{self._held} bytes of unfinished answers")

    def _lines(self) -> None:
        """Take every whole line of the buffer."""
        end = self._buffer.rfind(b"\n") + 1
        text = bytes(self._buffer[:end])
        del self._buffer[:end]
        at = 0
        while at < end:
            if self._stack:
                block = self._stack[-1]
                if block.comment is None and block.named and (run := _ROWS.match(text, at)):
                    block.rows += _QUOTED.findall(run[0].decode("latin-1"))
                    self._count(block, run.end() - at)
                    at = run.end()
                    continue
            newline = text.index(b"\n", at)
            self._line(text[at:newline].rstrip(b"\r"))
            at = newline + 1
        self._new_line()

    def _new_line(self) -> None:
        commented = bool(self._stack) and self._stack[-1].comment is not None
        self._hunted = 0, _IN_COMMENT if commented else _PLAIN

    def _line(self, line: bytes) -> None:
        while self._stack:
            end, *_ = _hunt(line, 0, _PLAIN if self._stack[-1].comment is None else _IN_COMMENT)
            if end < 0:
                self._take(line)
                return
            self._take(line[:end], last=True)
            self._end()
            # What follows the terminator is a prompt, an echo or the beginning of the next message;
            # inside an answer that an unsolicited message interrupted it is more of the answer.
            line = line[end + 1 :]
            if not line.strip():
                return
        self._outside(line.decode("latin-1"))

    def _outside(self, line: str) -> None:
        if (sid := _sid(line)) is not None:
            self._push(_Block(sid=sid))
        # its header was lost; the answer itself is whole
        elif match := _SOLICITED.fullmatch(_PROMPT.sub("", line, count=1)):
            self._push(_Block(solicited=match))

    def _take(self, data: bytes, *, last: bool = False) -> None:
        """Take one line of a message; `last`: what precedes its end, where nothing can continue in
        another block.
        """
        line = data.decode("latin-1")
        block = self._stack[-1]
        if block.resumed:
            line = _PROMPT.sub("", line, count=1)
        text = line.strip()
        if not text:
            return
        block.resumed = False
        self._count(block, len(text))
        if block.comment is not None or text.startswith("/*"):
            self._comment(block, text)
        elif not text.startswith('"') and (sid := _sid(line)) is not None:
            if not block.named:
                # a header without a message: the real one begins here
                self._drop(self._stack.pop())
            self._push(_Block(sid=sid))
        elif not block.named:
            self._name(block, line)
        elif text == ">" and not last and block.solicited is not None:
            self._keep(block.solicited["ctag"], self._stack.pop())
        elif text.startswith('"') and text.endswith('"') and len(text) > 1:
            block.rows.append(text[1:-1])
        else:
            self._stray(block, text)

    def _stray(self, block: _Block, text: str) -> None:
        block.stray.append(text)
        if len(block.stray) > MOST_STRAY:
            raise Garbled(
                f"more than {MOST_STRAY} lines of an answer are no rows, the last one {text[:40]!r}"
            )

    def _name(self, block: _Block, line: str) -> None:
        block.solicited = _SOLICITED.fullmatch(line)
        block.unsolicited = None if block.solicited else _UNSOLICITED.fullmatch(line)
        if not block.named:
            self._stray(block, line.strip())
        elif block.solicited and len(self._stack) > 1:
            # an answer inside an answer: the outer one lost its end
            self._torn(self._stack.pop(-2))

    def _push(self, block: _Block) -> None:
        self._stack.append(block)
        if len(self._stack) > DEEPEST:
            self._torn(self._stack.pop(0))

    def _keep(self, ctag: str, block: _Block) -> None:
        """Put a continuation block aside until the answer's last one has come."""
        if known := self._parts.get(ctag):
            known.join(block)
            return
        self._parts[ctag] = block
        if len(self._parts) > MOST_TAGS:
            self._torn(self._parts.pop(next(iter(self._parts))))

    def _torn(self, block: _Block) -> None:
        self._drop(block)
        name = block.solicited or block.unsolicited
        self._messages.append(
            Unreadable(
                f"{name[0].strip()[:80] if name else ''} ... {' '.join(block.rows[-1:])[:120]} (no end)"
            )
        )

    def _count(self, block: _Block, size: int) -> None:
        block.size += size
        self._held += size

    def _drop(self, block: _Block) -> None:
        self._held -= block.size

    @staticmethod
    def _comment(block: _Block, text: str) -> None:
        lines = block.comment or []
        end = text.find("*/", 0 if lines else 2)
        lines.append(text if end < 0 else text[:end])
        block.comment = lines if end < 0 else None
        if end < 0:
            return
        block.comments.append(" ".join(lines)[2:].strip())
        if rest := text[end + 2 :].strip():
            block.stray.append(rest)

    def _end(self) -> None:
        block = self._stack.pop()
        if self._stack:
            self._stack[-1].resumed = True
        if block.solicited is not None:
            if known := self._parts.pop(block.solicited["ctag"], None):
                known.join(block)
                block = known
            self._messages.append(self._reply(block))
        elif block.unsolicited is not None:
            found = block.unsolicited
            self._messages.append(
                Autonomous(
                    found["alarm"], found["atag"], tuple(found["verb"].split()), tuple(block.rows)
                )
            )
        else:
            self._messages.append(Unreadable(" ".join([*block.stray, *block.rows])[:200]))
        self._drop(block)

    @staticmethod
    def _reply(block: _Block) -> Reply:
        named, stray = block.solicited, block.stray
        assert named is not None
        error = (
            stray.pop(0)
            if named["code"] != "COMPLD" and stray and _ERROR_CODE.fullmatch(stray[0])
            else ""
        )
        return Reply(
            named["ctag"],
            named["code"],
            block.sid,
            error,
            tuple(block.rows),
            tuple(block.comments),
            tuple(stray),
        )
