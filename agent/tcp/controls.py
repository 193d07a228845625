"""TCP's congestion controls on this host."""

from __future__ import annotations

from agent.basics import read

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping


def available() -> list[str]:
    """Those that the kernel has now."""
    return read("/proc/sys/net/ipv4/tcp_available_congestion_control").split()


def control_here(wanted: object, names: Mapping[str, str]) -> str | None:
    """What the kernel calls the one that a route wants; None if it has it not: a route naming an
    absent one would be refused.

    names: the kernel's of those that have another here.
    """
    name = names.get(wanted, wanted) if isinstance(wanted, str) else None
    return name if name in available() else None
