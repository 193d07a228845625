"""Failures of several hosts as one error that names each of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from optics import Garbled, Locked, Refused, TestbedError, TimedOut, Unreachable

_BY_WEIGHT = (Locked, Unreachable, TimedOut, Garbled, Refused)


def one_error(failed: Mapping[str, TestbedError], done: int = 0) -> TestbedError:
    """One error of the most serious kind (locked, unreachable, timed out, garbled, refused), with
    one hint.

    It has a line for each host, or for all hosts that fail alike.

    failed: by host, or by rank. done: so many hosts did what was asked.
    """
    errors = [failed[name] for name in sorted(failed)]
    kind = next((k for k in _BY_WEIGHT if any(isinstance(e, k) for e in errors)), type(errors[0]))
    alike: dict[str, dict[str, None]] = {}  # ranks of a host may fail alike, too
    for error in errors:
        host, found, text = str(error).partition(": ")
        alike.setdefault(text if found else str(error), {})[host if found else ""] = None
    lines = [f"{_several(list(hosts))}{text}" for text, hosts in alike.items()]
    if done:
        lines.append(f"({done} other host{'s' if done > 1 else ''} did it)")
    return kind("\n".join(lines), hint=next((e.hint for e in errors if e.hint), ""))


def _several(hosts: Sequence[str]) -> str:
    """`gpu01: `; of more than three, how many there are, and the first and the last one."""
    if hosts == [""]:
        return ""
    return (
        f"{', '.join(hosts)}: "
        if len(hosts) <= 3
        else f"{len(hosts)} hosts ({hosts[0]} to {hosts[-1]}): "
    )
