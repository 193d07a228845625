"""What the target of a change comes to, in names and digests. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping

from optics import CrossConnect, HostName, Interlock, SpectralRoute, TestbedError
from orchestrator.fabric.circuits import settings
from orchestrator.fabric.lightpath import Held, among
from orchestrator.fabric.rules import Rules
from orchestrator.hosts import Hello
from orchestrator.inventory.lab import Lab
from orchestrator.plan.target import Target
from orchestrator.store.records import CurrentPlan


def settings_word(goal: Target) -> str:
    """The noun for the plan's settings: of one kind, or just settings."""
    kinds = {type(x) for circuit in goal.circuits for x in circuit.path}
    return (
        "cross-connects"
        if kinds == {CrossConnect}
        else "spectral routes"
        if kinds == {SpectralRoute}
        else "settings"
    )


def rules_sha(wanted: Mapping[HostName, Rules]) -> str:
    """A digest of the rules of all hosts, the same for the same rules."""
    text = "\n".join(
        f"{host} {rule}"
        for host, rules in sorted(wanted.items())
        for rule in sorted(map(str, rules))
    )
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def as_saved(expected: str, now: str) -> None:
    """Compare fingerprints, if one was given. Raises: Interlock - the lab is not as it was when the
    plan was saved.
    """
    if expected and now != expected:
        raise Interlock(
            f"the lab is not as it was when this plan was saved (fingerprint {now}, then {expected})",
            hint="make the plan again and review it: testbed plan --topology examples/ring-12.json",
        )


def goal_hosts(goal: Target) -> set[HostName]:
    """The hosts that the links join."""
    return {p.host for link in goal.links for p in (link.a, link.b)}


def is_incomplete(current: CurrentPlan | None, lab: Lab, held: Held) -> bool:
    """Whether devices in `held` (those that answer) lack a circuit of the plan that is up: its job
    may wait for that light.
    """
    if current is None:
        return False
    try:
        up = settings(current.up.circuits(lab))
    except TestbedError:  # the inventory changed since
        return False
    return any(
        among(wanted, held[device]) != wanted for device, wanted in up.items() if device in held
    )


def followed(
    current: CurrentPlan | None,
    own: Collection[int],
    hellos: Mapping[HostName, Hello],
    wanted: Mapping[HostName, Rules],
    sha: str,
) -> bool:
    """Whether every host runs the plan that is up with exactly these rules, and has no revert
    pending.

    own: the owner's generations; sha: as `rules_sha` of `wanted`.
    """
    if current is None or current.up.rules_sha != sha:
        return False
    return all(
        (hello.active == current.generation if host in wanted else hello.active not in own)
        and (hello.pending_s is None or hello.active not in own)
        for host, hello in hellos.items()
    )
