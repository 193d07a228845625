"""TL1 as network elements speak it: commands in, blocks out.

Layout and denial: Symmetricom SSU-2000 manual p. 271, TimeProvider 500 manual, GR-831. Two-digit
years: every public capture (Quali cloudshell-L1-calient tests, the public Glimmerglass driver log,
MonALISA). Raw mode: no echo, no prompt.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from emulators.devices.dialects.base import Dialect, Session, State
from emulators.optics.plant import Plant

_CTAG = re.compile(r"[A-Za-z0-9_.]{1,6}")  # GR-831: at most six characters
MOST_LISTED = 4096  # no switch has more ports; a range may not ask for more
_QUOTED = re.compile(r'"[^"]*"')


class Denied(Exception):
    """The command is denied with `code`; `text` goes into the comment line."""

    def __init__(self, code: str, text: str = "") -> None:
        super().__init__(code, text)
        self.code, self.text = code, text


@dataclass(frozen=True, slots=True)
class Command:
    """`VERB-MOD:TID:AID:CTAG:GENERAL:payload;` taken apart; the verb is upper case, a missing part
    is empty.
    """

    verb: str
    tid: str
    aid: str
    ctag: str
    general: str
    payload: tuple[str, ...]
    blocks: tuple[str, ...] = ()  # everything after the ctag, by colons
    parts: tuple[str, ...] = ()  # all of it, as sent

    @property
    def options(self) -> dict[str, str]:
        """The `KEY=value` items of all blocks after the ctag, keys in upper case, quotes taken
        off.
        """
        found: dict[str, str] = {}
        for block in self.blocks:
            for item in unquoted_split(block, ","):
                key, equals, value = item.partition("=")
                if equals:
                    found[key.strip().upper()] = value.strip().strip('"')
        return found

    @property
    def aids(self) -> tuple[str, ...]:
        return tuple(part.strip() for part in self.aid.split(","))


@dataclass(frozen=True, slots=True)
class Reply:
    """What a completed command brings: rows of quoted text, lines without quotes, then comment
    lines.
    """

    rows: Sequence[str] = ()
    comments: Sequence[str] = field(default=())
    bare: Sequence[str] = field(default=())


def unquoted_split(text: str, at: str) -> list[str]:
    """Split at a character outside quotes."""
    if '"' not in text:
        return text.split(at)
    kept = iter(_QUOTED.findall(text))
    return [
        re.sub("\0", lambda _: next(kept), part)
        for part in _QUOTED.sub("\0", text.replace("\0", " ")).split(at)
    ]


def listed(text: str) -> list[str]:
    """Return the numbers of a list `1&4&&7`: `a&b` and, for ranges, `a&&b` (Polatis, Glimmerglass).
    Raises Denied (IIAC).
    """
    found: list[str] = []
    for part in text.replace("&&", "~").split("&"):
        ends = part.split("~")
        if len(ends) > 2 or not all(re.fullmatch(r"[0-9]{1,6}", end.strip()) for end in ends):
            raise Denied("IIAC", f"Invalid AID {text[:40]}")
        low, high = int(ends[0]), int(ends[-1])
        if low > high or high - low + len(found) > MOST_LISTED:
            raise Denied("IIAC", f"Invalid AID {text[:40]}")
        found += map(str, range(low, high + 1))
    return found


def split_commands(buffer: bytes) -> tuple[list[str], bytes]:
    """Return the commands that ended with `;` outside quotes, and the bytes left over."""
    if b";" not in buffer:
        return [], buffer
    commands: list[str] = []
    start, quoted = 0, False
    for index, byte in enumerate(buffer):
        if byte == 0x22:
            quoted = not quoted
        # no quoted text spans lines: one stray quote must not swallow the session
        elif byte == 0x0A:
            quoted = False
        elif byte == 0x3B and not quoted:
            commands.append(buffer[start:index].decode("latin-1").strip())
            start = index + 1
    return [c for c in commands if c], buffer[start:]


def parse(text: str) -> Command:
    """Take a command apart. Raises Denied (IISP, IICT): the ctag answered is then 0 (SSU-2000
    manual).
    """
    parts = unquoted_split(text, ":")  # a colon or comma inside quotes is text
    sent = tuple(parts)
    parts = [part.strip() for part in parts]
    verb, tid, aid, ctag, general, *rest = [*parts, "", "", "", ""] if len(parts) < 5 else parts
    payload = ":".join(rest)
    if not text.isprintable() or not re.fullmatch(r"[A-Za-z0-9]+(-[A-Za-z0-9]+)*", verb):
        raise Denied("IISP", "Syntax or punctuation")
    if ctag and not _CTAG.fullmatch(ctag):
        raise Denied("IICT", "Invalid ctag")
    return Command(
        verb.upper(),
        tid.strip('"'),
        aid,
        ctag or "0",
        general,
        tuple(part.strip() for part in payload.split(",")),
        (general, *rest),
        sent,
    )


class Writer:
    """Makes output blocks. `epoch_s`: Unix time of the plant's second 0.

    A new block begins before the row that would be more than `block_rows` or would make the block
    longer than `block_bytes` (0: no limit). Continuation (`>`, then `<` and a whole new header) is
    REAL on Glimmerglass; whether Calient splits is unconfirmed. `sid` of a call: a name other than
    the device's own, as a switch gives before the login. `off_s`: how far its clock is off.
    `indents`: blanks before the header and before a row.
    """

    def __init__(
        self,
        sid: str,
        epoch_s: float = 0.0,
        block_rows: int = 0,
        trailer: bytes = b"",
        *,
        block_bytes: int = 0,
        indents: tuple[int, int] = (3, 3),
    ) -> None:
        self.sid, self.epoch_s, self.block_rows, self.trailer = sid, epoch_s, block_rows, trailer
        self.block_bytes = block_bytes
        self.before_header, self.before_row = (" " * blanks for blanks in indents)
        self.off_s = 0.0
        self._second, self._stamp = -1, ""
        self._atag = 0

    def stamp(self, now: float) -> str:
        second = int(self.epoch_s + self.off_s + now)
        if second != self._second:
            self._second, self._stamp = second, self.clock(now).strftime("%y-%m-%d %H:%M:%S")
        return self._stamp

    def clock(self, now: float) -> datetime:
        """Return the time of day by the device's own clock."""
        return datetime.fromtimestamp(int(self.epoch_s + self.off_s + now), UTC)

    def header(self, now: float, sid: str | None = None) -> str:
        return f"\r\n\n{self.before_header}{self.sid if sid is None else sid} {self.stamp(now)}\r\n"

    def completed(self, ctag: str, reply: Reply, now: float, sid: str | None = None) -> bytes:
        """Return a COMPLD answer in one block or several."""
        head = f"{self.header(now, sid)}M  {ctag} COMPLD\r\n"
        blocks: list[list[str]] = [[]]
        size = len(head)
        for line in (f'{self.before_row}"{row}"\r\n' for row in reply.rows):
            full = len(blocks[-1]) == self.block_rows or size + len(line) > self.block_bytes > 0
            if blocks[-1] and full:
                blocks.append([])
                size = len(head)
            blocks[-1].append(line)
            size += len(line)
        blocks[-1] += [f"   {text}\r\n" for text in reply.bare]
        # REAL (Quali): no blank before the end
        blocks[-1] += [f"   /* {comment}*/\r\n" for comment in reply.comments]
        texts = [f"{head}{''.join(lines)}{';' if lines is blocks[-1] else '>'}" for lines in blocks]
        return "\r\n<".join(texts).encode("latin-1", "replace") + self.trailer

    def denied(self, ctag: str, denial: Denied, now: float, sid: str | None = None) -> bytes:
        """Return a DENY answer with code and comment."""
        comment = f"   /* {denial.text} */\r\n" if denial.text else ""
        return (
            f"{self.header(now, sid)}M  {ctag} DENY\r\n   {denial.code}\r\n{comment};".encode(
                "latin-1", "replace"
            )
            + self.trailer
        )

    def autonomous(self, alarm: str, what: str, rows: Iterable[str], now: float) -> bytes:
        """Return an autonomous message: `alarm` is "*C", "**", "*^", "* " or "A " (pynt's TL1
        parser).
        """
        self._atag += 1
        lines = "".join(f'{self.before_row}"{row}"\r\n' for row in rows)
        return (
            f"{self.header(now)}{alarm:<2} {self._atag} {what}\r\n{lines};".encode(
                "latin-1", "replace"
            )
            + self.trailer
        )


class Tl1Dialect(Dialect[State]):
    """The common part of the TL1 families: `;` ends a command, the login, denials, the clock in
    every header.

    verbs: commands of a logged-in user. anyone: commands answered before the login too. An account
    of None takes any login and needs none.
    """

    logs_in = True

    def __init__(
        self,
        plant: Plant,
        writer: Writer,
        account: tuple[str, str] | None,
        *,
        seed: int = 0,
        idle_s: float | None = None,
        boot_s: float = 1.0,
    ) -> None:
        super().__init__(plant, seed=seed, idle_s=idle_s, boot_s=boot_s)
        self.writer, self.account = writer, account
        self.logs_in = account is not None
        self.plna_s = 0.0
        self.anyone: Mapping[str, Verb] = {
            "ACT-USER": self.login,
            "CANC-USER": self.logout,
            # a ping; answered before login too (U)
            "RTRV-HDR": lambda session, asked, now: Reply(),
        }
        self.verbs: Mapping[str, Verb] = {}

    # ---- the manner

    def split(self, session: Session) -> list[str]:
        commands, session.buffer = split_commands(session.buffer)
        return commands

    def execute(self, session: Session, command: str, now: float) -> bytes:
        ctag = "0"
        try:
            asked = parse(command)
            ctag = asked.ctag
            reply = self.answer(session, asked, now)
            return self.framed(
                command, self.writer.completed(ctag, reply, now, self.shown_sid(session))
            )
        except Denied as denial:
            return self.framed(
                command, self.writer.denied(ctag, denial, now, self.shown_sid(session))
            )

    def answer(self, session: Session, asked: Command, now: float) -> Reply:
        """Carry out a command. Raises Denied."""
        if asked.tid.strip() and asked.tid.upper() not in (
            self.writer.sid.upper(),
            (self.shown_sid(session) or "").upper(),
        ):
            raise Denied("IITA", "Invalid target identifier")
        if verb := self.anyone.get(asked.verb):
            return verb(session, asked, now)
        verb = self.verbs.get(asked.verb)
        if verb is None:
            raise Denied("IICM", f"Invalid command {asked.verb}")
        if (session.user is None and self.account) or now < session.login_s + self.plna_s:
            raise Denied("PLNA", "Login Not Active")
        return verb(session, asked, now)

    def framed(self, command: str, reply: bytes) -> bytes:
        """Return a reply with what the family prints around it: echo, prompt."""
        return reply

    def shown_sid(self, session: Session) -> str | None:
        """Return the name in the headers, None for the device's own."""
        return None

    def refuse(self, session: Session, command: str, now: float) -> bytes:
        return self.deny(session, command, Denied("SROF", "Requested operation Failed"), now)

    def not_logged_in(self, session: Session, command: str, now: float) -> bytes:
        return self.deny(session, command, Denied("PLNA", "Login Not Active"), now)

    def deny(self, session: Session, command: str, denial: Denied, now: float) -> bytes:
        try:
            ctag = parse(command).ctag
        except Denied as worse:
            ctag, denial = "0", worse
        return self.framed(command, self.writer.denied(ctag, denial, now, self.shown_sid(session)))

    def inside(self, reply: bytes) -> int:
        """Between two blocks where there are several, else in the middle of the only one."""
        between = reply.find(b"\r\n>")
        return between + 3 if between >= 0 else reply.find(b"\r\n", 3) + 2

    def step_clock(self, seconds: float) -> None:
        self.writer.off_s += seconds

    # ---- sessions

    def login(self, session: Session, asked: Command, now: float) -> Reply:
        """ACT-USER::<user>:c::<password>."""
        user, password = asked.aid.strip('"'), asked.payload[0].strip('"')
        if self.account and (user, password) != self.account:
            raise Denied("IDNV", "Login Failed - Invalid user or password")
        limit = self.faults.persistent("login-limit")
        if (
            limit
            and sum(s.user is not None for s in self.sessions if s is not session) >= limit.limit
        ):
            raise Denied("SARB", "Login Failed - all sessions busy")
        self.enter(session, user, now)
        return Reply()

    def logout(self, session: Session, asked: Command, now: float) -> Reply:
        session.user = None
        return Reply()


Verb = Callable[[Session, Command, float], Reply]
