"""How a check ends when it does not pass."""

from __future__ import annotations


class Failed(AssertionError):
    """The driver, or the device, does not do what was declared; the message says what was wanted and what was seen."""


class NotTried(Exception):
    """This subject gives no opportunity (too few free ports, no login); the message says what is lacking."""


def want(holds: object, words: str) -> None:
    """Go on if `holds`. Raises: Failed - with `words`."""
    if not holds:
        raise Failed(words)
