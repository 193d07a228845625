"""TL1 messages cut from a stream of bytes, however it is split.

Layout after GR-831 and the Symmetricom SSU-2000 manual; two-digit years, ctag 0, continuation blocks, prompts and echoes as kept in
the public Quali, MonALISA and pynt clients of optical switches:

    <CR><LF><LF>   SID YY-MM-DD HH:MM:SS<CR><LF>
    M  CTAG COMPLD<CR><LF>           or, unsolicited:  *C  ATAG REPT ALM CRS<CR><LF>
       "row"<CR><LF>                 any number; also /* comments */, and a four-letter code after DENY
    ;                                or > when the answer goes on in another whole message after a line <
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from optics import Garbled

LONGEST_LINE = 1 << 16
"""Bytes without a line end after which a stream is no TL1 (rows of optical switches stay under 300)."""

_HEADER = re.compile(r"(?:.*\s{3})?\s*(?P<sid>.*?)\s+(?P<date>\d{2,4}-\d\d-\d\d)\s+(?P<time>\d\d:\d\d:\d\d)\s*")
_SOLICITED = re.compile(r"\s*M\s+(?P<ctag>\S+)\s+(?P<code>[A-Z]{4,6})\s*")
_UNSOLICITED = re.compile(r"\s*(?P<alarm>\*C|\*\*|\*\^|\*|A)\s+(?P<atag>\S+)\s+(?P<verb>[A-Z][A-Z0-9]*(?:\s+[A-Z0-9^_-]+)*)\s*")
_LONGEST_HEADER = 400  # a header is short; longer lines are spared the expression above
_ERROR_CODE = re.compile(r"[A-Z]{4}")
_KEY = re.compile(r"\s*[A-Za-z][A-Za-z0-9_-]*\s*")
_AS_IT_IS = re.compile(r"[A-Za-z0-9_.@+-]+")


@dataclass(frozen=True, slots=True)
class Reply:
    """A solicited answer, continuation blocks joined. `rows` are the quoted lines without their quotes, `stray` is any other text.

    `comments` are for people: nothing may be concluded from their words (legal notices speak of "failed" and "denied").
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
    def words(self) -> str:
        """What the device said about a denial, on one line."""
        said = ", ".join(part for part in (self.error, *self.comments, *self.stray, *self.rows) if part)
        return said or self.code


@dataclass(frozen=True, slots=True)
class Autonomous:
    """An unsolicited message: alarm code (`*C`, `**`, `*^`, `*`, `A`), its tag and its words (`REPT ALM CRS`)."""

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
    """A message while it arrives."""

    sid: str = ""
    solicited: re.Match[str] | None = None
    unsolicited: re.Match[str] | None = None
    rows: list[str] = field(default_factory=list)
    comments: list[str] = field(default_factory=list)
    stray: list[str] = field(default_factory=list)
    comment: str | None = None

    @property
    def named(self) -> bool:
        return self.solicited is not None or self.unsolicited is not None


def _header(line: str) -> re.Match[str] | None:
    return _HEADER.fullmatch(line) if len(line) < _LONGEST_HEADER else None


class Parser:
    """The receiving side of one connection: `feed` bytes, get the messages they complete.

    Outside a message everything is ignored but a header: prompts, echoes of the command, telnet negotiation, terminal noise.
    """

    def __init__(self) -> None:
        self._buffer = ""
        self._stack: list[_Block] = []  # an unsolicited message may begin inside an answer; the answer goes on after it
        self._parts: dict[str, list[_Block]] = {}  # blocks ended by ">", by ctag
        self._messages: list[Message] = []

    def feed(self, data: bytes) -> list[Message]:
        """Take bytes, return the messages completed by them. Raises: Garbled - far too much without a line end."""
        self._buffer += data.decode("latin-1")
        while True:
            line, newline, rest = self._buffer.partition("\n")
            if newline:
                self._buffer = rest
                self._line(line.rstrip("\r"))
            elif self._stack and (at := self._terminator(line)) is not None:
                # The last line of a message needs no line end: a device may say nothing more until asked.
                self._buffer = line[at + 1 :]
                self._line(line[: at + 1])
            else:
                break
        if len(self._buffer) > LONGEST_LINE:
            raise Garbled(f"no line end in {len(self._buffer)} bytes, beginning {self._buffer[:40]!r}")
        messages, self._messages = self._messages, []
        return messages

    def _terminator(self, line: str) -> int | None:
        """Where the message ends in this line: a `;` outside quotes and comments."""
        if ";" not in line:
            return None
        quoted = False
        commented = self._stack[-1].comment is not None
        i = 0
        while i < len(line):
            if commented:
                end = line.find("*/", i)
                if end < 0:
                    return None
                commented, i = False, end + 1
            elif quoted:
                if line[i] == "\\":
                    i += 1
                elif line[i] == '"':
                    quoted = False
            elif line[i] == '"':
                quoted = True
            elif line.startswith("/*", i):
                commented, i = True, i + 1
            elif line[i] == ";":
                return i
            i += 1
        return None

    def _line(self, line: str) -> None:
        if not self._stack:
            self._outside(line)
            return
        at = self._terminator(line)
        if at is None:
            self._inside(line)
            return
        self._inside(line[:at])
        self._end()
        # What follows the terminator is a prompt, an echo or the beginning of the next message; inside an answer that an
        # unsolicited message interrupted it is more of the answer.
        if line[at + 1 :].strip():
            self._line(line[at + 1 :])

    def _outside(self, line: str) -> None:
        if header := _header(line):
            self._stack.append(_Block(sid=header["sid"].strip()))
        elif match := _SOLICITED.fullmatch(line):  # its header was lost or damaged; the answer itself is whole
            self._stack.append(_Block(solicited=match))

    def _inside(self, line: str) -> None:
        block = self._stack[-1]
        if block.comment is not None or line.lstrip().startswith("/*"):
            self._comment(block, line)
            return
        text = line.strip()
        if not text:
            return
        if not text.startswith('"') and (header := _header(line)):
            if not block.named:
                self._stack.pop()  # a header without a message: the real one begins here
            self._stack.append(_Block(sid=header["sid"].strip()))
        elif not block.named:
            self._name(block, line)
        elif text == ">" and block.solicited is not None:
            self._stack.pop()
            self._parts.setdefault(block.solicited["ctag"], []).append(block)
        elif text.startswith('"') and text.endswith('"') and len(text) > 1:
            block.rows.append(text[1:-1])
        else:
            block.stray.append(text)

    def _name(self, block: _Block, line: str) -> None:
        block.solicited = _SOLICITED.fullmatch(line)
        block.unsolicited = None if block.solicited else _UNSOLICITED.fullmatch(line)
        if not block.named:
            block.stray.append(line.strip())
        elif block.solicited and len(self._stack) > 1:
            # An answer inside an answer: the outer one lost its end.
            torn = self._stack.pop(-2)
            name = torn.solicited or torn.unsolicited
            self._messages.append(Unreadable(f"{name[0].strip() if name else ''} ... {' '.join(torn.rows[-1:])} (no end)"))

    @staticmethod
    def _comment(block: _Block, line: str) -> None:
        so_far = line.strip() if block.comment is None else f"{block.comment} {line.strip()}"
        if "*/" not in so_far[2:]:
            block.comment = so_far
            return
        end = so_far.index("*/", 2)
        block.comment = None
        block.comments.append(so_far[2:end].strip())
        if rest := so_far[end + 2 :].strip():
            block.stray.append(rest)

    def _end(self) -> None:
        block = self._stack.pop()
        if block.solicited is not None:
            self._messages.append(self._reply(block, block.solicited))
        elif block.unsolicited is not None:
            found = block.unsolicited
            self._messages.append(Autonomous(found["alarm"], found["atag"], tuple(found["verb"].split()), tuple(block.rows)))
        else:
            self._messages.append(Unreadable(" ".join([*block.stray, *block.rows])[:200]))

    def _reply(self, block: _Block, named: re.Match[str]) -> Reply:
        blocks = [*self._parts.pop(named["ctag"], []), block]
        stray = [text for part in blocks for text in part.stray]
        error = ""
        if named["code"] != "COMPLD" and stray and _ERROR_CODE.fullmatch(stray[0]):
            error = stray.pop(0)
        return Reply(
            named["ctag"],
            named["code"],
            block.sid,
            error,
            tuple(row for part in blocks for row in part.rows),
            tuple(comment for part in blocks for comment in part.comments),
            tuple(stray),
        )


@dataclass(frozen=True, slots=True)
class Row:
    """A payload row read by key: `name:positional,positional:KEY=value,KEY=value`."""

    name: str
    positional: tuple[str, ...]
    fields: Mapping[str, str]

    def __getitem__(self, key: str) -> str:
        """The value of `key`. Raises: Garbled - the row has no such key."""
        try:
            return self.fields[key]
        except KeyError:
            raise Garbled(f"row {self.name!r} has no {key} (it has {', '.join(self.fields) or 'nothing'})") from None


def parse_row(row: str) -> Row:
    r"""Read one row; escaped quotes protect `:`, `,` and `=` inside a value.

    >>> parse_row('1.1.1:WX,NONE:INAS=IS,LABEL=\\"a,b\\"').fields["LABEL"]
    'a,b'
    """
    name, *blocks = _split(row, ":")
    positional: list[str] = []
    fields: dict[str, str] = {}
    for block in blocks:
        for part in _split(block, ","):
            key, equals, value = part.partition("=")
            if equals and _KEY.fullmatch(key):
                fields[key.strip().upper()] = value.strip().removeprefix('\\"').removesuffix('\\"')
            elif part.strip() or len(blocks) > 1:
                positional.append(part.strip())
    return Row(name.strip(), tuple(positional), fields)


def _split(text: str, separator: str) -> list[str]:
    """Split outside escaped quotes."""
    if '\\"' not in text:
        return text.split(separator)
    parts: list[str] = []
    inside = False
    for chunk in text.split(separator):
        if inside:
            parts[-1] += separator + chunk
        else:
            parts.append(chunk)
        if chunk.count('\\"') % 2:
            inside = not inside
    return parts


def command(verb: str, aid: str, ctag: str, *blocks: str) -> str:
    """Write `VERB::AID:CTAG::block:block;`. The target identifier stays empty: one connection is one device.

    >>> command("ACT-CRS", "1.1.1,1.1.2", "7", "1.1.1-1.1.2,LAB")
    'ACT-CRS::1.1.1,1.1.2:7::1.1.1-1.1.2,LAB;'
    """
    payload = "".join(f":{block}" for block in blocks)
    return f"{verb}::{aid}:{ctag}:{payload};" if payload else f"{verb}::{aid}:{ctag};"


def quoted(text: str) -> str:
    """Write a user name or password so that the grammar cannot take it for punctuation.

    Raises: ValueError - characters no TL1 string can carry.
    """
    if _AS_IT_IS.fullmatch(text):
        return text
    if not text.isprintable() or not text.isascii() or '"' in text or "\\" in text:
        raise ValueError("only printable ASCII without quotes and backslashes can be sent")
    return f'"{text}"'


def identifier(name: str) -> str:
    """Write a name the device itself has shown (`1.1.1>1.1.2`, `uplink 7`), quoted only where it holds punctuation.

    Raises: ValueError - as `quoted`.
    """
    return name if re.fullmatch(r'[^\s;:,"\\]+', name) else quoted(name)
