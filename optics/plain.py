"""Words of others, made fit for a terminal: a device, a host or a file must not move the cursor or write lines of ours."""

from __future__ import annotations


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


def indented(text: str) -> str:
    """The same for a message of several lines: those after the first are set in, so that none can pass for another message."""
    first, *rest = printable(text).split("\n")
    return "\n".join([first, *(line if not line or line[0] == " " else f"  {line}" for line in rest)])


def json_safe(text: str) -> str:
    """JSON text with what is not printable escaped inside its strings; its meaning is the same."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\n" else "".join(f"\\u{u:04x}" for u in _utf16(c)) for c in text)


def reason(error: Exception) -> str:
    """Why something failed, in words: of an error of the system without its number and the file's name, which stand beside it."""
    if isinstance(error, UnicodeDecodeError):
        return "not UTF-8 text"
    return error.strerror if isinstance(error, OSError) and error.strerror else str(error)


def _utf16(char: str) -> list[int]:
    data = char.encode("utf-16-be", "surrogatepass")
    return [int.from_bytes(data[i : i + 2], "big") for i in range(0, len(data), 2)]
