"""Colours of this program, as opposed to colour codes in text of devices, hosts and other users,
which are printed as text.
"""

from __future__ import annotations

import os
import re

from optics.plain import printable

_KEY = os.urandom(8).hex()  # random per process: foreign text cannot contain it
_MARKS = re.compile(rf"(\x1b\[{_KEY};\d+m)")


def colour(text: str, code: int) -> str:
    """Mark text for a colour (ECMA-48 SGR code) that `coloured` turns on; colour codes in other
    text are not.
    """
    return f"\x1b[{_KEY};{code}m{text}\x1b[{_KEY};0m"


def coloured(text: str) -> str:
    """`printable`, with the colours that `colour` marked turned on."""
    parts = _MARKS.split(text)
    return "".join(
        part.replace(f"{_KEY};", "") if i % 2 else printable(part) for i, part in enumerate(parts)
    )


def one_line(text: str) -> str:
    """`printable` without line breaks, for a cell or a line of a list; the marks of `colour`
    stay.
    """
    return "".join(
        part if i % 2 else printable(part, keep="") for i, part in enumerate(_MARKS.split(text))
    )
