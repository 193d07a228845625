"""`testbed lock` and `testbed tagout`: locks and reservations, and tags that keep light off while
people work in the rack.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, cast

import typer

from orchestrator.cli.call import Call, Result, Usage, verb
from orchestrator.cli.completing import lock_ids, taggable
from orchestrator.cli.groups import Listed, family
from orchestrator.cli.shared import seconds

if TYPE_CHECKING:
    from orchestrator.inventory.lab import Lab
    from orchestrator.results import Json
    from orchestrator.store.lock_queue import Lock
    from orchestrator.store.locks import Locks


def _reason(text: str) -> str:
    if not text.isprintable() or len(text) > MOST_CHARACTERS:
        raise Usage(
            f"--reason: must be one line of printable text, at most {MOST_CHARACTERS} characters",
            hint='--reason "hands in rack"',
        )
    return text


MOST_CHARACTERS = 500
"""Characters of a reason, which is shown in tables, status and error messages."""
Reason = Annotated[
    str, typer.Option("--reason", metavar="TEXT", help="Why; shown to others.", callback=_reason)
]
Steal = Annotated[
    bool,
    typer.Option(
        "--steal",
        help="Allow another owner's, by its exact ID; needs --reason and is logged in the audit.",
    ),
]
Names = list[str] | None
AUDITED = 20
"""Audit records that are shown by default; there is one for every lock."""


@contextmanager
def _locks(call: Call) -> Iterator[tuple[Lab, Locks]]:
    from orchestrator.session import load_lab
    from orchestrator.store.locks import locks_of

    lab = load_lab(call.settings.inventory)
    with call.store() as store:
        yield lab, locks_of(lab, call.settings, store)


def _data(lock: Lock) -> dict[str, Json]:
    from orchestrator.results import to_json

    data = cast("dict[str, Json]", to_json(lock))
    for internal in ("process", "seq", "asked", "ended"):
        del data[internal]
    return data | {"scope": cast("Json", lock.scope.to_data()), "message": str(lock.scope)}


def _table(live: Sequence[Lock]) -> str:
    from optics.plain import seconds_text
    from orchestrator.cli.text import columns
    from orchestrator.store.lock_queue import clock

    if not live:
        return "No locks"
    rows = [("lock", "state", "kind", "by", "since", "until", "holds", "reason")]
    for lock in live:
        by = f"{lock.user}@{lock.host}" + (f" for {lock.owner}" if lock.owner != lock.user else "")
        by += f" pid {lock.pid}" if lock.kind == "run" else ""
        until = (
            "run ends"
            if lock.kind == "run"
            else clock(lock.expires)
            if lock.expires is not None
            else seconds_text(lock.for_s)
            if lock.for_s is not None
            else "released"
        )
        state = lock.state + (
            f" after {lock.after}" if lock.after and lock.state == "waiting" else ""
        )
        rows.append(
            (lock.id, state, lock.kind, by, clock(lock.since), until, str(lock.scope), lock.reason)
        )
    return "\n".join(columns(rows))


lock = family("lock", Listed)
app = typer.Typer()
app.add_typer(lock)


@verb(lock, "list", "List the locks and those that wait.", examples="testbed lock list")
def list_(call: Call) -> Result:
    with _locks(call) as (_, locks):
        live = locks.listed()
    return Result({"locks": cast("Json", [_data(one) for one in live])}, _table(live))


@verb(
    lock,
    "audit",
    "List what was done with locks, tags and other owners' circuits.",
    examples="""
testbed lock audit                                 the newest 20 locks, thefts, tags and adoptions
testbed lock audit --last 200
""",
)
def audit(
    call: Call,
    last: Annotated[
        int, typer.Option("--last", metavar="N", min=1, max=10000, help="How many records.")
    ] = AUDITED,
) -> Result:
    from orchestrator.cli.text import columns, when
    from orchestrator.results import to_json
    from orchestrator.store.audit import audit as audited

    with _locks(call) as (_, locks):
        records = audited(locks.store, locks.lab, last + 1)
    older = len(records) > last
    rows = [(when(r.at), f"{r.user}@{r.host}", r.what, r.subject, r.why) for r in records[:last]]
    text = "\n".join(columns(rows)) or "No records"
    hint = f"testbed lock audit --last {10 * last}" if older else ""
    data: dict[str, Json] = {"audit": to_json(records[:last]), "older": older}
    return Result(data, f"{text}\nOlder records are not shown" if older else text, hint=hint)


@verb(
    lock,
    "reserve",
    "Reserve hosts, ports, devices or the whole lab.",
    examples="""
testbed lock reserve --hosts gpu01,gpu02 --for 2h --reason "demo"
testbed lock reserve --ports ocs1:1-16 --for 1h --reason "cleaning" --queue
testbed lock reserve --for 30m --reason "upgrade" --after 3f9a1c   the whole lab, after that lock
""",
    more="A reservation keeps other owners out until it expires or is released; your own commands still work.",
)
def reserve(
    call: Call,
    hosts: Annotated[
        Names,
        typer.Option("--hosts", metavar="HOSTS", help="Hosts and the ports their fibres lead to."),
    ] = None,
    ports: Annotated[
        Names, typer.Option("--ports", metavar="PORTS", help="Device ports: ocs1:4, ocs1:1-16.")
    ] = None,
    device: Annotated[
        Names, typer.Option("--device", metavar="DEVICE", help="A whole device.")
    ] = None,
    for_: Annotated[
        str, typer.Option("--for", metavar="TIME", help="How long: 90s, 30m, 2h.")
    ] = "",
    reason: Reason = "",
    after: Annotated[
        str, typer.Option("--after", metavar="LOCK", help="Start when that lock ends.")
    ] = "",
    queue: Annotated[
        bool, typer.Option("--queue", help="Join the queue if others hold any of it.")
    ] = False,
) -> Result:
    from orchestrator.store.lock_queue import clock
    from orchestrator.store.scope import read_scope

    if not for_ or not reason:
        missing = "--for" if not for_ else "--reason"
        raise Usage(
            f"lock reserve: {missing} is missing",
            hint='testbed lock reserve --for 2h --reason "..."',
        )
    for_s = seconds("--for", for_, "2h")
    with _locks(call) as (lab, locks):
        scope = read_scope(lab, hosts or (), ports or (), device or ())
        made = locks.take("reservation", scope, reason, for_s=for_s, queue=queue, after=after)
        ahead = locks.ahead(made.id)
    if made.state == "active":
        text = f"Reserved {made.scope} until {clock(made.expires or 0.0)}   lock {made.id}"
    else:
        text = f"Waiting for {made.scope}   lock {made.id}\n" + "\n".join(
            f"  behind {one} [lock {one.id}]" for one in ahead
        )
    data: dict[str, Json] = {
        "lock": _data(made),
        "behind": cast("Json", [_data(one) for one in ahead]),
    }
    return Result(data, text, hint=f"testbed lock release {made.id}")


@verb(
    lock,
    "release",
    "Release a reservation, or break another owner's lock.",
    examples="""
testbed lock release 3f9a1c
testbed lock release 3f9a1c --steal --reason "ann is at sea, her run hangs"
testbed lock release --hosts --reason "the run store was lost"
""",
    more="""
A run that loses its lock stops before its next step, and its hosts reject it once a newer run has started. Use --hosts when hosts
reject every run of this store as outdated: they will accept the next one. First make sure that nobody else is working on them.
""",
)
def release(
    call: Call,
    name: Annotated[
        str, typer.Argument(metavar="LOCK", help="The complete ID.", autocompletion=lock_ids)
    ] = "",
    steal: Steal = False,
    hosts: Annotated[
        bool, typer.Option("--hosts", help="Make hosts accept runs of this store again.")
    ] = False,
    reason: Reason = "",
) -> Result:
    from optics.errors import Locked, Missing

    if bool(name) == hosts or (hosts and steal):
        raise Usage("lock release: give either one lock or --hosts", hint="testbed lock")
    if hosts:
        return _take_hosts(call, reason)
    if steal and not reason:
        raise Usage(
            "lock release: --steal needs a --reason",
            hint=f'testbed lock release {name} --steal --reason "..."',
        )
    with _locks(call) as (_, locks):
        found = next((one for one in locks.listed() if one.id == name), None)
        if found is None:
            ended = locks.get(name)
            how = (
                f"it {ended.state if ended.state != 'died' else 'ended with its process'}"
                if ended
                else "there is no such ID"
            )
            raise Missing(f"lock {name} is neither held nor queued: {how}", hint="testbed lock")
        owned = found.owner == locks.who.owner and (
            found.kind == "reservation" or found.state == "waiting"
        )
        if not owned and not steal:
            whose = (
                "held by a running command"
                if found.owner == locks.who.owner
                else f"owned by {found.owner}"
            )
            raise Locked(
                f"lock {name} is {whose}: {found}",
                hint=f'ask {found.user}, or: testbed lock release {name} --steal --reason "..."',
            )
        taken = locks.steal(name, reason) if steal else locks.release(name, reason)
        if taken is None:
            raise Missing(f"lock {name} has ended in the meantime", hint="testbed lock")
    text = f"{'Stolen from' if steal else 'Released by'} {taken}"
    running = steal and taken.kind == "run" and taken.state == "active"
    hint = (
        f"process {taken.pid} on {taken.host} may still finish its current step; check with testbed status"
        if running
        else ""
    )
    return Result({"lock": _data(taken), "stolen": steal}, text, hint=hint)


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


def _take_hosts(call: Call, reason: str) -> Result:
    from orchestrator.verbs.fencing import take_hosts

    if not reason:
        raise Usage(
            "lock release: --hosts needs a --reason",
            hint='testbed lock release --hosts --reason "..."',
        )
    report = call.work(take_hosts, reason)
    text = "No host rejects runs of this store"
    if report.hosts:
        text = f"{len(report.hosts)} hosts will accept the next run, whose token will be above {report.token}"
    text += "".join(f"\n  not checked: {text}" for text in report.silent.values())
    return Result(report.to_json(), text)


def _tags(call: Call) -> Result:
    from orchestrator.results import to_json
    from orchestrator.store.tagouts import Tagouts

    with _locks(call) as (_, locks):
        tags = Tagouts(locks.store, locks.lab, locks.who).listed()
    return Result({"tagouts": to_json(tags)}, "\n".join(map(str, tags)) or "No tags")


def _tag(call: Call, subject: str, reason: str) -> Result:
    from orchestrator.results import to_json
    from orchestrator.store.scope import Scope, of_ports
    from orchestrator.store.tagouts import Tagouts, place_of

    with _locks(call) as (lab, locks):
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
        "busy": cast("Json", [_data(one) for one in busy]),
    }
    return Result(data, f"{made}", hint=hint)


def _untag(call: Call, name: str, steal: bool, reason: str) -> Result:
    from orchestrator.results import to_json
    from orchestrator.store.tagouts import Tagouts

    with _locks(call) as (_, locks):
        ended = Tagouts(locks.store, locks.lab, locks.who).remove(name, steal=steal, why=reason)
    return Result({"removed": to_json(ended)}, "\n".join(f"Removed: {tag}" for tag in ended))
