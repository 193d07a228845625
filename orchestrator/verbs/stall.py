"""`testbed verify --stall`: how long traffic stands while a link of this lab is dark, and what was
measured before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from optics import Infeasible
from optics.plain import seconds_text
from orchestrator.change.run import ChangeRun
from orchestrator.change.stall import DARK_S, LONGEST_S
from orchestrator.session import Command, load_lab
from orchestrator.store.keys import key_of
from orchestrator.store.stalls import stall_history
from orchestrator.verify.report import StallReport


async def stall(
    command: Command, *, dark_s: Sequence[float] = (), history: bool = False
) -> StallReport:
    """Darken one link of the plan that is up for each of `dark_s` (s; none: `DARK_S`) and time its
    hosts' traffic.

    The lab is afterwards as it was. history: also return what was measured before.

    Raises: Infeasible - a time is too long, or no link can be measured. Missing, Refused - the plan
    is not up as it should be. Interlock - a job runs. Locked. Else as `up`: what was changed is
    rolled back.
    """
    if long := [seconds for seconds in dark_s if seconds > LONGEST_S]:
        raise Infeasible(
            f"--dark {seconds_text(long[0])}: at most {LONGEST_S:g} s; traffic is drained, not held, for longer changes"
        )
    lab = load_lab(command.inventory)
    earlier = stall_history(command.store, key_of(lab))
    report = await ChangeRun("stall", lab, command).stall(tuple(dark_s) or DARK_S)
    return replace(report, earlier=earlier if history else ())


async def stall_curves(command: Command) -> StallReport:
    """What was measured before, without measuring again; connects to nothing."""
    lab = load_lab(command.inventory)
    return StallReport(lab.name, earlier=stall_history(command.store, key_of(lab)))
