"""What packet switches have counted for a job that was lent functions of them, asked, and brought
home.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from drivers.functions import SIZES, FunctionSwitch, use_of
from extensions.switch_functions.measurements import MEASUREMENTS
from optics import TestbedError
from optics.leases import FunctionUse, Lease
from orchestrator.inventory.lab import Lab
from orchestrator.store.records import JobRecord
from orchestrator.telemetry.journal import Journal

COUNTED = tuple(name for name, field in MEASUREMENTS[0].fields.items() if field.kind == "int")
HIGHEST = 2**53
LOOK_S = 2.0
"""So long (s) a switch may take to say who uses it."""
ENDED = "its lease has ended, or the packet switch restarted"


class Asked:
    """Asks each packet switch once what its allocations have counted, however many want to know."""

    def __init__(self) -> None:
        self._answers: dict[tuple[str, str], asyncio.Future[Sequence[Mapping[str, Any]] | str]] = {}

    async def counters(self, segment: str, control: str) -> Sequence[Mapping[str, Any]] | str:
        """Those of each allocation, under the names of the page; or why the switch does not say, in
        a line.
        """
        if (segment, control) not in self._answers:
            self._answers[segment, control] = asyncio.ensure_future(_counters(segment, control))
        return await self._answers[segment, control]

    async def uses(self, segment: str, control: str) -> tuple[FunctionUse, ...]:
        """Who uses the functions of a packet switch; one with an `error` if it does not say."""
        reported = await self.counters(segment, control)
        return (
            (FunctionUse(segment, "", error=reported),)
            if isinstance(reported, str)
            else tuple(use_of(segment, each) for each in reported)
        )


async def _counters(segment: str, control: str) -> Sequence[Mapping[str, Any]] | str:
    switch = FunctionSwitch(segment, control, LOOK_S)
    try:
        return await switch.counters()
    except TestbedError as error:
        return error.line
    finally:
        await switch.close()


async def counted(
    lease: Lease, record: JobRecord, lab: Lab, run_dir: Path, asked: Asked
) -> Mapping[str, int | float | str]:
    """What a lease has counted, as `JobStatus.attached` has it, and into the run's journal."""
    named = {"function": lease.function, "segment": lease.segment}
    own = {"allocation": lease.allocation}
    key = SIZES[lease.function][0]
    at = lab.segments.get(lease.segment)
    had: dict[str, Any] = {"size": lease.size, "each_bytes": lease.each_bytes}
    had["total"] = at.functions.get(lease.function, {}).get(key) if at is not None else None
    answer = await asked.counters(lease.segment, lease.control)
    if isinstance(answer, str):
        return {
            **named,
            **own,
            "state": "silent",
            "missing": str(FunctionUse(lease.segment, lease.function, error=answer)),
        }
    reply = next((each for each in answer if each.get("allocation") == lease.allocation), None)
    if reply is None:
        return {
            **named,
            **own,
            "state": "ended",
            "missing": str(FunctionUse(lease.segment, lease.function, error=ENDED)),
        }
    had |= {
        name: value
        for name in COUNTED
        if type(value := reply.get(name)) is int and 0 <= value < HIGHEST
    }
    left_s = reply.get("lease_left_s")
    had["lease_left_s"] = (
        float(left_s) if isinstance(left_s, (int, float)) and 0 <= left_s < HIGHEST else None
    )
    run_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    with Journal(run_dir, record.run, lab.name) as journal:
        journal.point("function", {"job": record.name, **named}, had)
    return {
        **named,
        **own,
        "state": "leased",
        **{name: value for name, value in had.items() if value is not None},
    }
