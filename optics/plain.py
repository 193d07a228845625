"""Text for people: untrusted text made safe to print, suggestions for misspelt names, lists, counts
and durations.

Text of a device, a host or a file must not move the cursor of a terminal or pass for a line of the
program.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import SequenceMatcher

_WORD_LENGTH = 256  # characters of a word compared with the known ones


def printable(text: str, *, keep: str = "\n") -> str:
    r"""The text with everything that is neither printable nor in `keep` written as an escape.

    Control characters, both kinds of CSI, characters that turn the direction of writing or have no
    width (Unicode Cc, Cf, Zl, Zp) and halves of surrogate pairs are not printable.

    >>> printable("up\x1b[2J\u202e")
    'up\\x1b[2J\\u202e'
    """
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() or c in keep else c.encode("unicode_escape").decode("ascii")
        for c in text
    )


def indented(text: str) -> str:
    """`printable` text of several lines, those after the first indented so that none can pass for
    another message.
    """
    first, *rest = printable(text).split("\n")
    return "\n".join(
        [first, *(line if not line or line[0] == " " else f"  {line}" for line in rest)]
    )


def json_safe(text: str) -> str:
    """JSON text with unprintable characters escaped inside its strings; its value is the same."""
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() or c == "\n" else "".join(f"\\u{u:04x}" for u in _utf16(c))
        for c in text
    )


def reason(error: Exception) -> str:
    """Why something failed, in words; of an OSError without its number and file name, which the
    caller gives.
    """
    if isinstance(error, UnicodeDecodeError):
        return "not UTF-8 text"
    return error.strerror if isinstance(error, OSError) and error.strerror else str(error)


def _utf16(char: str) -> list[int]:
    data = char.encode("utf-16-be", "surrogatepass")
    return [int.from_bytes(data[i : i + 2], "big") for i in range(0, len(data), 2)]


def did_you_mean(word: object, known: Iterable[str]) -> str:
    """`; did you mean X?` for the nearest known word, or nothing.

    Labels that differ in their last digits are equally near; then the longest common ending
    decides.
    """
    text = str(word)[:_WORD_LENGTH]
    matcher = SequenceMatcher(None, autojunk=False)
    matcher.set_seq2(text)  # it caches what it computes about its second word

    best: tuple[tuple[float, int], str] | None = None
    for candidate in sorted(known):
        matcher.set_seq1(candidate)
        least = max(0.6, best[0][0] if best else 0.0)
        if (
            matcher.real_quick_ratio() < least
            or matcher.quick_ratio() < least
            or (ratio := matcher.ratio()) < least
        ):
            continue
        ending = next(
            (
                at
                for at, (a, b) in enumerate(zip(reversed(text), reversed(candidate), strict=False))
                if a != b
            ),
            len(text),
        )
        if best is None or (ratio, ending) > best[0]:
            best = (ratio, ending), candidate
    return f"; did you mean {best[1]}?" if best else ""


def summary(names: Iterable[str], noun: str) -> str:
    """`12 hosts, gpu01..gpu12`: a list, shortened to its first and last name if it is long."""
    ordered = sorted(names, key=natural)
    if not ordered:
        return f"no {noun}s"
    listed = ", ".join(ordered) if len(ordered) <= 4 else f"{ordered[0]}..{ordered[-1]}"
    return f"{len(ordered)} {noun}{'s' if len(ordered) != 1 else ''}, {listed}"


def natural(text: str) -> tuple[tuple[int, int, str], ...]:
    """Sort key under which `gpu2` comes before `gpu10`."""
    return tuple(
        (0, int(part), "") if part.isdigit() else (1, 0, part)
        for part in re.findall(r"[0-9]+|[^0-9]+", text)
    )


def seconds_text(seconds: float) -> str:
    """A duration in a suitable unit: `0.4 ms`, `31 ms`, `2.1 s`, `3 min 05 s`."""
    if seconds < 0.01:
        return f"{seconds * 1e3:.1f} ms"
    if seconds < 1:
        return f"{seconds * 1e3:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    return f"{int(seconds) // 60} min {int(seconds) % 60:02d} s"


def hours_text(seconds: float) -> str:
    """As `seconds_text`, of durations that may be hours: `4 h 05 min`."""
    return (
        seconds_text(seconds)
        if seconds < 3600
        else f"{int(seconds) // 3600} h {int(seconds) % 3600 // 60:02d} min"
    )


def counted(number: int, noun: str) -> str:
    """`1 device`, `4 devices`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def scaled_text(seconds: float, time_scale: float) -> str:
    """The time a device takes: `1.0 s`; for one that runs faster than real ones,
    `61 s of device time (1.0 s here, x60)`.
    """
    if time_scale == 1:
        return seconds_text(seconds)
    return f"{seconds_text(seconds * time_scale)} of device time ({seconds_text(seconds)} here, x{time_scale:g})"


def share_text(share: float) -> str:
    """
    >>> share_text(0.0312), share_text(0.71), share_text(0), share_text(0.0004)
    ('3.1 %', '71 %', '0 %', '0.04 %')
    """
    percent = 100 * share
    return (
        f"{percent:.0f} %"
        if percent >= 10 or not percent
        else f"{percent:.1f} %"
        if percent >= 0.1
        else f"{percent:.2g} %"
    )
