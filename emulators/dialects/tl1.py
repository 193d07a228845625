"""TL1 as network elements speak it: commands in, blocks out.

Layout and denial: Symmetricom SSU-2000 manual p. 271, TimeProvider 500 manual, GR-831. Two-digit years: every public capture
(Quali cloudshell-L1-calient tests, the public Glimmerglass driver log, MonALISA). Raw mode: no echo, no prompt.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

_CTAG = re.compile(r"[A-Za-z0-9_.]{1,6}")  # GR-831: at most six characters
_QUOTED = re.compile(r'"[^"]*"')


class Denied(Exception):
    """The command is denied with `code`; `text` goes into the comment line."""

    def __init__(self, code: str, text: str = "") -> None:
        super().__init__(code, text)
        self.code, self.text = code, text


@dataclass(frozen=True, slots=True)
class Command:
    """`VERB-MOD:TID:AID:CTAG:GENERAL:payload;` taken apart; the verb is upper case, a missing part is empty."""

    verb: str
    tid: str
    aid: str
    ctag: str
    general: str
    payload: tuple[str, ...]

    @property
    def aids(self) -> tuple[str, ...]:
        return tuple(part.strip() for part in self.aid.split(","))


@dataclass(frozen=True, slots=True)
class Reply:
    """What a completed command brings: rows of quoted text, then comment lines."""

    rows: Sequence[str] = ()
    comments: Sequence[str] = field(default=())


def split_commands(buffer: bytes) -> tuple[list[str], bytes]:
    """Return the commands that ended with `;` outside quotes, and the bytes left over."""
    if b";" not in buffer:
        return [], buffer
    commands: list[str] = []
    start, quoted = 0, False
    for index, byte in enumerate(buffer):
        if byte == 0x22:
            quoted = not quoted
        elif byte == 0x0A:  # no quoted text spans lines: one stray quote must not swallow the session
            quoted = False
        elif byte == 0x3B and not quoted:
            commands.append(buffer[start:index].decode("latin-1").strip())
            start = index + 1
    return [c for c in commands if c], buffer[start:]


def parse(text: str) -> Command:
    """Take a command apart. Raises Denied (IISP, IICT): the ctag answered is then 0 (SSU-2000 manual)."""
    if '"' in text:  # a colon or comma inside quotes is text
        kept = [m.group() for m in _QUOTED.finditer(text)]
        parts = _QUOTED.sub("\0", text).split(":")
        words = iter(kept)
        parts = [re.sub("\0", lambda _: next(words), part) for part in parts]
    else:
        parts = text.split(":")
    parts = [part.strip() for part in parts]
    verb, tid, aid, ctag, general, *rest = [*parts, "", "", "", ""] if len(parts) < 5 else parts
    payload = ":".join(rest)
    if not text.isprintable() or not re.fullmatch(r"[A-Za-z0-9]+(-[A-Za-z0-9]+)*", verb):
        raise Denied("IISP", "Syntax or punctuation")
    if ctag and not _CTAG.fullmatch(ctag):
        raise Denied("IICT", "Invalid ctag")
    return Command(verb.upper(), tid.strip('"'), aid, ctag or "0", general, tuple(part.strip() for part in payload.split(",")))


class Writer:
    """Makes output blocks. `epoch_s`: Unix time of the plant's second 0; rows above `block_rows` are split (0: never).

    Continuation (`>`, then `<` and a whole new header) is REAL on Glimmerglass; whether Calient splits is unconfirmed.
    """

    def __init__(self, sid: str, epoch_s: float = 0.0, block_rows: int = 0, trailer: bytes = b"") -> None:
        self.sid, self.epoch_s, self.block_rows, self.trailer = sid, epoch_s, block_rows, trailer
        self._second, self._stamp = -1, ""
        self._atag = 0

    def stamp(self, now: float) -> str:
        second = int(self.epoch_s + now)
        if second != self._second:
            self._second, self._stamp = second, datetime.fromtimestamp(second, UTC).strftime("%y-%m-%d %H:%M:%S")
        return self._stamp

    def header(self, now: float) -> str:
        return f"\r\n\n   {self.sid} {self.stamp(now)}\r\n"

    def completed(self, ctag: str, reply: Reply, now: float) -> bytes:
        """Return a COMPLD answer in one block or several."""
        size = self.block_rows or len(reply.rows) or 1
        blocks = [reply.rows[i : i + size] for i in range(0, len(reply.rows), size)] or [()]
        texts = []
        for index, rows in enumerate(blocks):
            last = index == len(blocks) - 1
            lines = [f'   "{row}"\r\n' for row in rows]
            lines += [f"   /* {comment} */\r\n" for comment in reply.comments if last]
            texts.append(f"{self.header(now)}M  {ctag} COMPLD\r\n{''.join(lines)}{';' if last else '>'}")
        return "\r\n<".join(texts).encode("latin-1", "replace") + self.trailer

    def denied(self, ctag: str, denial: Denied, now: float) -> bytes:
        """Return a DENY answer with code and comment."""
        comment = f"   /* {denial.text} */\r\n" if denial.text else ""
        return f"{self.header(now)}M  {ctag} DENY\r\n   {denial.code}\r\n{comment};".encode("latin-1", "replace") + self.trailer

    def autonomous(self, alarm: str, what: str, rows: Iterable[str], now: float) -> bytes:
        """Return an autonomous message: `alarm` is "*C", "**", "*^", "* " or "A " (pynt's TL1 parser)."""
        self._atag += 1
        lines = "".join(f'   "{row}"\r\n' for row in rows)
        return f"{self.header(now)}{alarm:<2} {self._atag} {what}\r\n{lines};".encode("latin-1", "replace") + self.trailer
