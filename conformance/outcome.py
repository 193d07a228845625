"""The outcomes of a check that does not pass."""

from __future__ import annotations


class Failed(AssertionError):
    """The driver, or the device, does not do what was declared; the message states what was wanted
    and what was seen.
    """


class NotTried(Exception):
    """The check does not apply to this subject (too few free ports, no login); the message states
    what is missing.
    """


def want(holds: object, text: str) -> None:
    """Check that `holds` is true. Raises: Failed - with `text`."""
    if not holds:
        raise Failed(text)
