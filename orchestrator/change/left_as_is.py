"""A change that failed and is not rolled back: what it is reported as."""

from __future__ import annotations

from optics import ChangeFailed, HandsNeeded, StoreFailed, TestbedError
from orchestrator.change.apply import finish
from orchestrator.change.context import Context
from orchestrator.change.down import progress_lines
from orchestrator.change.move import Move
from orchestrator.plan.target import Target


async def unrecorded(
    context: Context, goal: Target, error: BaseException, broken: StoreFailed
) -> HandsNeeded:
    """Steps cannot be recorded, so nothing is rolled back; hosts revert unconfirmed commits. Report
    the present state.
    """
    lines = await finish(progress_lines(context, goal.change))
    first = str(error) if isinstance(error, TestbedError) else f"{type(error).__name__}: {error}"
    text = first if first == str(broken) else f"{first}\n{broken}"
    left = (
        f"make {context.store.path} writable again; testbed status then shows how far it got",
        *lines,
    )
    text += "\nno step is taken that cannot be recorded, so nothing was rolled back; manual repair is needed:"
    return HandsNeeded(text, left, hint=f"to go back: testbed rollback {context.run.id}")


async def stopped(
    context: Context, move: Move, goal: Target, error: BaseException
) -> BaseException:
    """Bring the hosts to consistent routes, read what the devices really hold, and report both;
    cancelled stays cancelled.
    """
    safe = await finish(move.retreat())
    lines = await finish(progress_lines(context, goal.change))
    if not isinstance(error, TestbedError):
        return error
    listed = "\n".join(f"  {n}. {line}" for n, line in enumerate([*lines, f"hosts: {safe}"], 1))
    run = context.run.id
    return ChangeFailed(
        f"{error}\npresent state:\n{listed}",
        hint=f"{error.hint + '; ' if error.hint else ''}to go on: testbed resume {run}; to go back: testbed rollback {run}",
    )
