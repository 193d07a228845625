"""What the runs of each verb change: one table, for everything that asks. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from orchestrator.extensions import extension_parts

Role: TypeAlias = str
"""What a run's lock is held for: a `change` of the lab, of its `job` alone, the `guard`'s reroute,
the slots of a `schedule`, a `reader` of what must not change meanwhile, or the name of an
extension's service that moves light again and again."""


@dataclass(frozen=True, slots=True)
class Verb:
    """light: its runs make or take down circuits. plan: after them a plan is up. half: one that
    dies may leave half the light of a plan. back: it goes back to an earlier state, so that there
    is none to go back to from it. lasting: it changes light again and again until it is stopped.
    undone: one that died is not continued: circuits and routes become what they were before it."""

    name: str
    role: Role = "change"
    light: bool = False
    plan: bool = False
    half: bool = False
    back: bool = False
    lasting: bool = False
    undone: bool = False


VERBS = {
    each.name: each
    for each in (
        Verb("up", light=True, plan=True, half=True),
        Verb("down", light=True, half=True),
        Verb("rollback", light=True, plan=True, half=True, back=True),
        Verb("restore", light=True, plan=True, half=True, back=True),
        Verb("prewire", light=True),
        Verb("confirm"),
        Verb("stall", half=True, undone=True),  # its circuits are as before when it has ended
        Verb("schedule", "schedule", lasting=True),
        *(
            Verb(each.name, each.name, lasting=True, undone=True)
            for each in extension_parts("service", "KIND")
            if each.moves_light
        ),
        Verb("guard", "guard"),
        Verb("job restart", "guard"),
        *(Verb(f"job {word}", "job") for word in ("launch", "restore", "stop", "pause", "resume")),
        *(Verb(word, "reader") for word in ("sample", "verify", "job diagnose")),
    )
}


MOVERS: frozenset[Role] = frozenset(each.role for each in VERBS.values() if each.lasting)
"""The roles of the locks of services that move light in the background, each by the name of its
service.
"""


def verb_of(name: str) -> Verb:
    """The verb of this name; one that is not in the table changes the lab, and no light."""
    return VERBS.get(name) or Verb(name)
