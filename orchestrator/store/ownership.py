"""Ownership of circuits and hosts: those of other owners are listed and not touched, unless
circuits are adopted by name.
"""

from __future__ import annotations

import re
import time
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from difflib import get_close_matches

from optics import CrossConnect, HostName, Missing, Setting, SpectralRoute
from optics.errors import Interlock
from orchestrator.fabric.lightpath import Held, among, routes, without_attenuation
from orchestrator.inventory.hosts import Host
from orchestrator.store.audit import Who, add_audit
from orchestrator.store.generations import hand_over
from orchestrator.store.keys import tenancy_key
from orchestrator.store.records import Belonging
from orchestrator.store.store import Store

OWNER = "owner:"


def setting_text(setting: Setting) -> str:
    """A setting as operators name it: without its attenuation."""
    if isinstance(setting, SpectralRoute):
        setting = SpectralRoute(setting.ingress, setting.egress, setting.slot)
    return str(setting)


def reverse(setting: Setting) -> Setting | None:
    """The reverse circuit over the same two ports: a duplex switch may have made both as one
    connection.
    """
    return (
        CrossConnect(setting.egress, setting.ingress) if isinstance(setting, CrossConnect) else None
    )


def adopted(
    tokens: Sequence[str],
    seen: Held,
    owned: Iterable[Setting],
    owners: Mapping[Setting, Belonging],
    *,
    again: bool = False,
) -> frozenset[Setting]:
    """The existing foreign circuits that `tokens` name: `ocs1:4->17`, or all of an owner's,
    `owner:alice`.

    A spectral route is named with its slot, or without if there is only one between its ports.
    again: these may be owned already, because an earlier run adopted them. Raises: Missing - no
    circuit has such a name; all such names are listed. Interlock - only one of the two directions
    between two ports is named: a switch may be unable to end one and keep the other lit.
    """
    ours = routes(owned)
    existing = sorted((s for held in seen.values() for s in held), key=str)
    found: set[Setting] = set()
    problems = []
    for word in tokens:
        if word.startswith(OWNER):
            name = word.removeprefix(OWNER)
            theirs = routes(s for s, whose in owners.items() if whose.owner == name)
            chosen = [s for s in existing if without_attenuation(s) in theirs]
            near = get_close_matches(name, {whose.owner for whose in owners.values()}, 1)
            why = f"{name} has no circuits on this lab" + (
                f"; did you mean {OWNER}{near[0]}?" if near else ""
            )
        else:
            chosen = [s for s in existing if setting_text(s) == word] or [
                s for s in existing if setting_text(s).partition("@")[0] == word
            ]
            names = [setting_text(s) for s in existing if without_attenuation(s) not in ours]
            why = f"{word} does not exist; foreign circuits: {', '.join(names[:6]) or 'none'}"
            if len(chosen) > 1:
                chosen, why = [], f"{word} could be {' or '.join(map(setting_text, chosen))}"
        if not chosen and not again:
            problems.append(f"--adopt {word}: {why}")
        found.update(s for s in chosen if without_attenuation(s) not in ours)
    if problems:
        raise Missing("\n".join(problems), hint="testbed status lists the circuits of others")
    chosen_routes = ours | routes(found)
    halves = sorted(
        (setting_text(s), setting_text(back))
        for s in found
        for back in existing
        if back == reverse(s) and without_attenuation(back) not in chosen_routes
    )
    if halves:
        raise Interlock(
            "\n".join(
                f"--adopt {one}: may be one connection with {back}, which could not be kept without it"
                for one, back in halves
            ),
            hint=" ".join(f'add --adopt "{back}"' for _, back in halves),
        )
    return frozenset(found)


def adopt(
    store: Store, lab: str, who: Who, run: str, settings: Iterable[Setting], tokens: Sequence[str]
) -> list[str]:
    """Take over circuits in the store, audited, all of them or none; return the adopted ones, in
    words.

    An owner without circuits no longer has a plan up, and the routes of that plan may be replaced.
    """
    wanted = sorted(settings, key=str)
    if not wanted:
        return []
    owners = {without_attenuation(s): whose for s, whose in store.owners(lab).items()}
    ours = tenancy_key(lab, who.owner)
    lines = []
    with store.transaction() as db:
        store.own(ours, run, wanted)
        for setting in wanted:
            whose = owners.get(without_attenuation(setting))
            lines.append(
                f"{setting_text(setting)}, {f'of {whose}' if whose else 'of no owner this store knows'}"
            )
            add_audit(
                db,
                lab,
                who,
                time.time(),
                "adopted",
                setting_text(setting),
                f"{lines[-1]}; by run {run}: --adopt {' '.join(tokens)}",
            )
        for name in sorted({whose.owner for whose in owners.values()} - {who.owner}):
            theirs = tenancy_key(lab, name)
            if store.owned(theirs) or (current := store.current(theirs)) is None:
                continue
            store.clear_current(theirs)
            hand_over(store, lab, name, who.owner)
            plan = f"plan {current.plan_name}"
            lines.append(f"the {plan} of {name}, who has no more circuits")
            add_audit(
                db,
                lab,
                who,
                time.time(),
                "adopted",
                plan,
                f"of {name}, run {current.run}; by run {run}",
            )
    return lines


def refuse_taken(
    names: Sequence[HostName],
    hosts: Mapping[HostName, Host],
    active: Mapping[HostName, int | None],
    generations: Mapping[int, Belonging],
    ours: Container[str],
) -> None:
    """Raises: Interlock - as `used_otherwise` and `taken_hosts`; names that are no hosts of the lab
    are left to others.
    """
    if lines := used_otherwise(
        (hosts[name] for name in names if name in hosts), active, generations
    ):
        raise Interlock(
            "\n".join(lines),
            hint="a host is used whole or in slices: plan around it, or first: testbed down",
        )
    if lines := taken_hosts(names, active, generations, ours):
        raise Interlock(
            "\n".join(lines),
            hint="a host carries one plan at a time: plan around it, or ask its owner for: testbed down",
        )


def refuse_shared(
    kept: Held, mine: Collection[Setting], owners: Mapping[Setting, Belonging]
) -> None:
    """Raises: Interlock - a wanted circuit is there already and another owner's, whose `down` or
    `rollback` would take it away.
    """
    existing = [setting for held in kept.values() for setting in held]
    if shared := sorted(among(existing, owners) - among(existing, mine), key=str):
        whose = {without_attenuation(setting): belonging for setting, belonging in owners.items()}
        lines = [
            f"{setting_text(setting)} is there and belongs to {whose[without_attenuation(setting)]}"
            for setting in shared
        ]
        text = " ".join(f'--adopt "{setting_text(setting)}"' for setting in shared[:3])
        raise Interlock(
            "\n".join(lines),
            hint=f"plan around it, ask its owner for: testbed down; or make it yours: {text}",
        )


def taken_hosts(
    hosts: Iterable[HostName],
    active: Mapping[HostName, int | None],
    generations: Mapping[int, Belonging],
    ours: Container[str],
) -> list[str]:
    """Hosts that run the routes of another owner than `ours`, in words: a host runs one plan at a
    time.

    active: the generation of routes that each reachable host runs, None if it runs none.
    """
    lines = []
    for host in hosts:
        generation = active.get(host)
        whose = None if generation is None else generations.get(generation)
        if whose is not None and whose.owner not in ours:
            lines.append(f"{host} belongs to {whose}")
    return lines


def used_otherwise(
    hosts: Iterable[Host],
    active: Mapping[HostName, int | None],
    generations: Mapping[int, Belonging],
) -> list[str]:
    """Hosts that are wanted whole and used in slices, or the reverse, in words: one rule of the
    whole host selects all packets.
    """
    lines = []
    for host in hosts:
        for other in (
            [f"{host.name}/{name}" for name in host.partitions]
            if host.partition is None
            else [host.machine]
        ):
            if (generation := active.get(other)) is not None:
                whose = (
                    f", which belongs to {generations[generation]}"
                    if generation in generations
                    else ""
                )
                lines.append(f"{host.name}: routes are active on {other}{whose}")
    return lines


def refusal_with_owners(error: Interlock, owners: Mapping[Setting, Belonging]) -> Interlock:
    """The same refusal, with the owner of every circuit in it."""
    text = str(error)
    names = []
    for setting, whose in sorted(owners.items(), key=lambda item: str(item[0])):
        name = re.escape(setting_text(setting)) + r"(?:-[0-9.]+dB)?(?![\w.@-])"
        text, count = re.subn(rf"which ({name}) uses", rf"which \1 of {whose} uses", text)
        names += [setting_text(setting)] if count else []
    wanted = " ".join(f'--adopt "{name}"' for name in names[:3] or ["DEVICE:IN->OUT"])
    return Interlock(text, hint=f"{error.hint}; or make them yours: {wanted}")
