"""One rung of the verification ladder: its finding, its time limit, and its code."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from optics import NotVerified, TestbedError
from orchestrator.verify.report import CollectiveFigures, LevelResult, LinkQuality, PairSample

LEVELS: Mapping[str, float] = {
    "map": 60.0, "light": 60.0, "power": 1.0, "link": 10.0, "identity": 15.0, "forwarding": 60.0,
    "qualification": 120.0, "collective": 240.0,
}  # fmt: skip
"""The rungs, bottom first, and their time limits (s): devices that are asked one port after the
other need the most.
"""
TRAFFIC = ("qualification", "collective")
"""Rungs that load the links; climbed only if the plan or the operator asks for them."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one rung."""

    ok: bool
    detail: str
    evidence: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    links: tuple[LinkQuality, ...] = ()
    collective: CollectiveFigures | None = None
    pairs: PairSample | None = None


Check: TypeAlias = Callable[[], Awaitable[Finding]]


def code(name: str) -> str:
    """The code of a failed rung: `E-LIGHT`."""
    return f"E-{name.upper()}"


def check_passed(levels: Iterable[LevelResult], lines: int | None = None, hint: str = "") -> None:
    """Raises: NotVerified - with so many lines of the evidence of each rung that failed."""
    failed = [
        "\n  ".join((f"{r.name}: {r.detail}", *r.evidence[:lines])) for r in levels if not r.ok
    ]
    if failed:
        raise NotVerified("\n".join(failed), hint=hint)


async def check_level(name: str, check: Check, timeout_s: float | None = None) -> LevelResult:
    """Time one rung; an error of a device or host, or no result in time, is a failed rung, with the
    message as evidence.
    """
    begin = time.monotonic()
    limit = LEVELS.get(name) if timeout_s is None else timeout_s
    try:
        async with asyncio.timeout(limit) as timer:
            found = await check()
    except TestbedError as error:
        found = Finding(False, "could not be checked", tuple(str(error).splitlines()))
    except TimeoutError:
        if not timer.expired():
            raise
        found = Finding(False, "could not be checked", (f"no result after {limit:g} s",))
    seconds = time.monotonic() - begin
    return LevelResult(
        name,
        found.ok,
        found.detail,
        seconds,
        found.evidence,
        "OK" if found.ok else code(name),
        found.notes,
        limit,
        found.links,
        found.collective,
        found.pairs,
    )
