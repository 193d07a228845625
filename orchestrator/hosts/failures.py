"""Failures of several hosts as one error that names each of them."""

from __future__ import annotations

from collections.abc import Mapping

from optics import Garbled, Locked, Refused, TestbedError, TimedOut, Unreachable

_BY_WEIGHT = (Locked, Unreachable, TimedOut, Garbled, Refused)


def one_error(failed: Mapping[str, TestbedError], done: int = 0) -> TestbedError:
    """One error of the most serious kind (locked, unreachable, timed out, garbled, refused): a line per host, one hint.

    failed: by host, or by rank. done: so many hosts did what was asked.
    """
    errors = [failed[name] for name in sorted(failed)]
    kind = next((k for k in _BY_WEIGHT if any(isinstance(e, k) for e in errors)), type(errors[0]))
    lines = list(dict.fromkeys(str(e) for e in errors))  # ranks of a host may fail alike
    if done:
        lines.append(f"({done} other host{'s' if done > 1 else ''} did it)")
    return kind("\n".join(lines), hint=next((e.hint for e in errors if e.hint), ""))
