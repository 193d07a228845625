"""Words of others, made fit for a terminal: a device, a host or a file must not move the cursor or write lines of ours."""

from __future__ import annotations

import os
import re

_KEY = os.urandom(8).hex()  # of this process: what others wrote cannot contain it, so it tells our colours from theirs
_OURS = re.compile(rf"(\x1b\[{_KEY};\d+m)")


def printable(text: str, *, keep: str = "\n") -> str:
    r"""The text with everything that is neither printable nor in `keep` written as an escape.

    Control characters, both kinds of CSI, characters that turn the direction of writing or have no width (Unicode Cc, Cf, Zl, Zp)
    and halves of surrogate pairs are not printable.

    >>> printable("up\x1b[2J\u202e")
    'up\\x1b[2J\\u202e'
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in keep else c.encode("unicode_escape").decode("ascii") for c in text)


def colour(text: str, code: int) -> str:
    """Mark text for a colour (ECMA-48 SGR code) that `coloured` turns on; colours in others' words stay words."""
    return f"\x1b[{_KEY};{code}m{text}\x1b[{_KEY};0m"


def coloured(text: str) -> str:
    """`printable`, with the colours that `colour` marked turned on."""
    parts = _OURS.split(text)
    return "".join(part.replace(f"{_KEY};", "") if i % 2 else printable(part) for i, part in enumerate(parts))


def one_line(text: str) -> str:
    """`printable` without line breaks, for a cell or a line of a list; the marks of `colour` stay."""
    return "".join(part if i % 2 else printable(part, keep="") for i, part in enumerate(_OURS.split(text)))


def indented(text: str) -> str:
    """The same for a message of several lines: those after the first are set in, so that none can pass for another message."""
    first, *rest = printable(text).split("\n")
    return "\n".join([first, *(line if not line or line[0] == " " else f"  {line}" for line in rest)])


def json_safe(text: str) -> str:
    """JSON text with what is not printable escaped inside its strings; its meaning is the same."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\n" else "".join(f"\\u{u:04x}" for u in _utf16(c)) for c in text)


def _utf16(char: str) -> list[int]:
    data = char.encode("utf-16-be", "surrogatepass")
    return [int.from_bytes(data[i : i + 2], "big") for i in range(0, len(data), 2)]
