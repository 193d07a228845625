"""The definition of a check and the list of all checks. A check is a small async function of a
`Subject`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum
from importlib import import_module
from typing import TypeAlias

from conformance.subject import Subject

Body: TypeAlias = Callable[[Subject], Awaitable[None]]


class Effect(StrEnum):
    """The effect of a check on the device."""

    READS = "reads"
    MOVES = "moves light"


@dataclass(frozen=True, slots=True)
class Check:
    """One check. name: its id (`--only`); sentence: what it confirms.

    truth: it queries the emulator (optical state, counters, faults) and cannot be run on hardware.
    ports: how many free connections it needs.
    """

    name: str
    sentence: str
    capability: str
    body: Body
    effect: Effect = Effect.MOVES
    truth: bool = True
    ports: int = 6


PARTS = ("identity", "changes", "losses", "lies", "waiting", "sessions", "abilities", "spectrum")
CHECKS: dict[str, Check] = {}
"""All checks by name, in the order they run: those that only read come first."""


def check(
    sentence: str,
    capability: str,
    *,
    effect: Effect = Effect.MOVES,
    truth: bool = True,
    ports: int = 6,
) -> Callable[[Body], Body]:
    """Register the function; its name, with hyphens, is the name of the check."""

    def enter(body: Body) -> Body:
        name = getattr(body, "__name__", "").replace("_", "-")
        if name in CHECKS:
            raise ValueError(f"two checks are named {name}")
        CHECKS[name] = Check(name, sentence, capability, body, effect, truth, ports)
        return body

    return enter


def all_checks() -> tuple[Check, ...]:
    """Every check: first those that only read, then those that change connections without faults,
    then the rest.
    """
    for part in PARTS:
        import_module(f"conformance.checks.{part}")
    return tuple(sorted(CHECKS.values(), key=lambda c: (c.effect is not Effect.READS, c.truth)))
