"""A change that failed and was rolled back: what it is reported as."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from optics import HandsNeeded, Interrupted, RolledBack, TestbedError
from orchestrator.change.context import Context


@dataclass(frozen=True, slots=True)
class Undone:
    """left: manual repairs, one each; empty: everything is as before, and `evidence` says what was
    read to verify it.
    """

    left: tuple[str, ...]
    evidence: str


def verdict(context: Context, error: BaseException, undone: Undone, *, moved: bool) -> TestbedError:
    """The error to raise for a change that failed with `error`. moved: something was changed before
    the rollback.
    """
    limit, stopped = context.limit, isinstance(error, asyncio.CancelledError)
    late = stopped and limit is not None and limit.passed
    message = (
        limit.text() if late and limit is not None else "interrupted" if stopped else _text(error)
    )
    hint = error.hint if isinstance(error, TestbedError) else ""
    if undone.left:
        again = f"once it is repaired: testbed rollback {context.run.id}"
        text = f"{message}\nnot everything could be rolled back; manual repair is needed:"
        return HandsNeeded(text, undone.left, hint=f"{hint + '; ' if hint else ''}{again}")
    context.run.unchanged = True
    if stopped and not late:
        return Interrupted(f"interrupted; rolled back, everything is as before: {undone.evidence}")
    if not moved and isinstance(error, TestbedError) and error.exit_code != HandsNeeded.exit_code:
        return error
    return RolledBack(
        f"{message}\nrolled back, everything is as before: {undone.evidence}", hint=hint
    )


def _text(error: BaseException) -> str:
    return (
        str(error)
        if isinstance(error, TestbedError)
        else f"a fault of this program: {type(error).__name__}: {error}"
    )
