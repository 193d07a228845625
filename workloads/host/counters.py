"""What the kernel counts of a host: bytes sent, and how busy its processors are."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path


def sent_bytes(devices: Sequence[str]) -> int:
    """What these network devices of this host have sent, headers of frames included."""
    found = 0
    for name, _, counters in (
        line.partition(":")
        for line in Path("/proc/net/dev").read_text(encoding="ascii").splitlines()
    ):
        if name.strip() in devices:
            found += int(counters.split()[8])
    return found


def processors() -> tuple[int, int]:
    """How long this host's processors were at work so far, and how long they were there, in the
    kernel's ticks; 0, 0: unknown.
    """
    try:
        ticks = [
            int(word)
            for word in Path("/proc/stat")
            .read_text(encoding="ascii")
            .partition("\n")[0]
            .split()[1:9]
        ]
    except (OSError, ValueError):
        return 0, 0
    return sum(ticks) - sum(ticks[3:5]), sum(ticks)  # idle, and idle while something is read
