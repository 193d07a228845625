"""Reservations as iCalendar (RFC 5545), for calendar programs. Pure."""

from __future__ import annotations

import datetime
from collections.abc import Iterable

from optics.plain import printable
from orchestrator.store.lock_queue import Lock

OCTETS = 75
"""Of a line, without its end (RFC 5545, 3.1); a longer one is continued behind CRLF and a blank."""
DAY_S = 86_400.0


def icalendar(lab: str, locks: Iterable[Lock]) -> str:
    """A calendar of these reservations. One that has no end yet is shown as a day long; one that was
    released before its date as cancelled, so that it disappears where it was imported before.
    """
    lines = ["BEGIN:VCALENDAR", "VERSION:2.0", "PRODID:-//optical-testbed//testbed//EN"]
    lines += ["METHOD:PUBLISH", f"X-WR-CALNAME:{_escaped(lab)}"]
    for lock in locks:
        cancelled = lock.ended is not None and lock.ended <= lock.since
        end = lock.expires if cancelled else lock.ended or lock.expires
        state = (
            "CANCELLED" if cancelled else "TENTATIVE" if lock.state == "waiting" else "CONFIRMED"
        )
        lines += [
            "BEGIN:VEVENT",
            f"UID:{lock.id}-{int(lock.asked)}@{_escaped(lab)}.testbed",
            f"DTSTAMP:{_utc(lock.ended or lock.asked)}",
            f"DTSTART:{_utc(lock.since)}",
            f"DTEND:{_utc(end or lock.since + (lock.for_s or DAY_S))}",
            f"SUMMARY:{_escaped(f'{lock.owner}: {lock.reason}')}",
            f"LOCATION:{_escaped(str(lock.scope))}",
            f"DESCRIPTION:{_escaped(f'lock {lock.id}, {lock.state}, by {lock.user} on {lock.host}')}",
            f"STATUS:{state}",
            "END:VEVENT",
        ]
    return "".join(f"{_folded(line)}\r\n" for line in [*lines, "END:VCALENDAR"])


def _utc(at: float) -> str:
    return datetime.datetime.fromtimestamp(at, datetime.UTC).strftime("%Y%m%dT%H%M%SZ")


def _escaped(text: str) -> str:
    """As a value of type TEXT."""
    for sign in "\\;,":
        text = text.replace(sign, f"\\{sign}")
    return printable(text, keep="")


def _folded(line: str) -> str:
    """Cut into lines that are short enough, never inside a character."""
    parts, size = [""], 0
    for sign in line:
        size += len(sign.encode())
        if size > OCTETS:
            parts.append(sign)
            size = 1 + len(sign.encode())
        else:
            parts[-1] += sign
    return "\r\n ".join(parts)
