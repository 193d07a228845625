"""The words that EXFO FTBx-9160 modules and DiCon MXS-9100 switches share: `ROUTe`, `STATus?`, and
a state in one word.
"""

from __future__ import annotations

from optics import DeviceName, Garbled, Refused

MOVES = frozenset({"BUSY", "INITINPROGRESS", "UNINITIALIZED"})
BROKEN = frozenset({"DISCONNECTED", "DEFECTIVE", "UNCONFIGURED"})


def state(text: str) -> str:
    """Read an answer to `STATus?` (MXS-9100 manual 91592, page 22). Raises: Garbled - none of its
    words.
    """
    word = text.strip().strip('"').upper()
    if word != "READY" and word not in MOVES | BROKEN:
        raise Garbled(f"not a state: {text[:80]!r}")
    return word


def moves(device: DeviceName, word: str) -> bool:
    """Whether a module in this state still moves. Raises: Refused - it says that it does not
    work.
    """
    if word in BROKEN:
        raise Refused(f"{device}: a module reports that it is {word}")
    return word in MOVES
