"""`testbed tagout`: tags that keep light off while people work in the rack."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, cast

import typer

from orchestrator.cli.call import Call, Result, Usage, verb
from orchestrator.cli.completing import taggable
from orchestrator.cli.locks import Reason, Steal, lock_data, opened_locks

if TYPE_CHECKING:
    from orchestrator.results import Json

app = typer.Typer()


@verb(
    app,
    "tagout",
    "Tag out a fibre, port, device or host: block changes there.",
    examples="""
testbed tagout f-gpu03-p2 --reason "hands in rack"   a fibre, by its name in fibres.yml
testbed tagout ocs1:17 --reason "cleaning"         or a device, a host, gpu03:p2
testbed tagout                                     list tags
testbed tagout remove f-gpu03-p2                   remove your own tags there
testbed tagout remove 9c02d1 --steal --reason "..."    another owner's, by ID
""",
    more="Nothing overrides a tag, not even --yes: a change that would switch light there is refused with exit code 9.",
)
def tagout(
    call: Call,
    subject: Annotated[
        str,
        typer.Argument(
            metavar="[SUBJECT|list|remove]", help="What to tag.", autocompletion=taggable
        ),
    ] = "",
    name: Annotated[str, typer.Argument(metavar="[SUBJECT|TAG]", help="What to remove.")] = "",
    reason: Reason = "",
    steal: Steal = False,
) -> Result:
    if subject in ("", "list"):
        return _tags(call)
    if subject == "remove":
        if not name:
            raise Usage("tagout remove: nothing to remove is given", hint="testbed tagout list")
        if steal and not reason:
            raise Usage(
                "tagout: --steal needs a --reason",
                hint=f'testbed tagout remove {name} --steal --reason "..."',
            )
        return _untag(call, name, steal, reason)
    if name or steal or not reason:
        raise Usage(
            "tagout: --reason is missing" if not reason else "tagout: unexpected arguments",
            hint="testbed tagout --help",
        )
    return _tag(call, subject, reason)


def _tags(call: Call) -> Result:
    from orchestrator.results import to_json
    from orchestrator.store.tagouts import Tagouts

    with opened_locks(call) as (_, locks):
        tags = Tagouts(locks.store, locks.lab, locks.who).listed()
    return Result({"tagouts": to_json(tags)}, "\n".join(map(str, tags)) or "No tags")


def _tag(call: Call, subject: str, reason: str) -> Result:
    from orchestrator.results import to_json
    from orchestrator.store.scope import Scope, of_ports
    from orchestrator.store.tagouts import Tagouts, place_of

    with opened_locks(call) as (lab, locks):
        place = place_of(subject, lab)
        made = Tagouts(locks.store, locks.lab, locks.who).set(subject, reason)
        existing = of_ports(lab, place.ports) | Scope(
            frozenset(p.host for p in place.host_ports), devices=place.devices
        )
        busy = [
            one
            for one in locks.listed()
            if one.kind == "run" and one.state == "active" and one.scope.overlaps(existing)
        ]
    hint = (
        f"do not work there until this run has ended: {busy[0]}"
        if busy
        else f"testbed tagout remove {made.id}"
    )
    data: dict[str, Json] = {
        "tagout": to_json(made),
        "busy": cast("Json", [lock_data(one) for one in busy]),
    }
    return Result(data, f"{made}", hint=hint)


def _untag(call: Call, name: str, steal: bool, reason: str) -> Result:
    from orchestrator.results import to_json
    from orchestrator.store.tagouts import Tagouts

    with opened_locks(call) as (_, locks):
        ended = Tagouts(locks.store, locks.lab, locks.who).remove(name, steal=steal, why=reason)
    return Result({"removed": to_json(ended)}, "\n".join(f"Removed: {tag}" for tag in ended))
