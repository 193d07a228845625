"""`testbed lock`: locks, reservations and their calendar."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from orchestrator.cli.call import Call, Result, Usage, verb
from orchestrator.cli.completing import lock_ids
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
MOST_AHEAD_S = 366 * 86_400.0
"""A date is at most so far (s) away: a year that was mistyped is refused."""
AUDITED = 20
"""Audit records that are shown by default; there is one for every lock."""


@contextmanager
def opened_locks(call: Call) -> Iterator[tuple[Lab, Locks]]:
    """The lab, and its locks as the caller sees them."""
    from orchestrator.session import load_lab
    from orchestrator.store.locks import locks_of

    lab = load_lab(call.settings.inventory)
    with call.store() as store:
        yield lab, locks_of(lab, call.settings, store)


def lock_data(lock: Lock) -> dict[str, Json]:
    """A lock as JSON."""
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


app = family("lock", Listed)


@verb(app, "list", "List the locks and those that wait.", examples="testbed lock list")
def list_(call: Call) -> Result:
    with opened_locks(call) as (_, locks):
        live = locks.listed()
    return Result({"locks": cast("Json", [lock_data(one) for one in live])}, _table(live))


@verb(
    app,
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

    with opened_locks(call) as (_, locks):
        records = audited(locks.store, locks.lab, last + 1)
    older = len(records) > last
    rows = [(when(r.at), f"{r.user}@{r.host}", r.what, r.subject, r.why) for r in records[:last]]
    text = "\n".join(columns(rows)) or "No records"
    hint = f"testbed lock audit --last {10 * last}" if older else ""
    data: dict[str, Json] = {"audit": to_json(records[:last]), "older": older}
    return Result(data, f"{text}\nOlder records are not shown" if older else text, hint=hint)


@verb(
    app,
    "reserve",
    "Reserve hosts, ports, devices or the whole lab.",
    examples="""
testbed lock reserve --hosts gpu01,gpu02 --for 2h --reason "demo"
testbed lock reserve --ports ocs1:1-16 --for 1h --reason "cleaning" --queue
testbed lock reserve --for 30m --reason "upgrade" --after 3f9a1c   the whole lab, after that lock
testbed lock reserve --hosts gpu01 --from "2026-12-01 09:00" --for 4h --reason "demo"
""",
    more="""
A reservation keeps other owners out until it expires or is released; your own commands still work. With --from it begins at a date;
a time without an offset is of the local zone.
""",
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
    from_: Annotated[
        str, typer.Option("--from", metavar="DATE", help="When it begins: 2026-12-01 09:00.")
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
    if from_ and (queue or after):
        raise Usage(
            "lock reserve: --from has a date, so it goes with neither --queue nor --after",
            hint="testbed lock calendar shows which times are free",
        )
    for_s = seconds("--for", for_, "2h")
    at = _future(from_) if from_ else None
    with opened_locks(call) as (lab, locks):
        scope = read_scope(lab, hosts or (), ports or (), device or ())
        made = locks.take(
            "reservation", scope, reason, for_s=for_s, at=at, queue=queue, after=after
        )
        ahead = locks.ahead(made.id)
    if made.state == "booked":
        text = f"Booked {made.scope} from {_date(made.since)} to {_date(made.expires)}   lock {made.id}"
    elif made.state == "active":
        text = f"Reserved {made.scope} until {clock(made.expires or 0.0)}   lock {made.id}"
    else:
        text = f"Waiting for {made.scope}   lock {made.id}\n" + "\n".join(
            f"  behind {one} [lock {one.id}]" for one in ahead
        )
    data: dict[str, Json] = {
        "lock": lock_data(made),
        "behind": cast("Json", [lock_data(one) for one in ahead]),
    }
    return Result(data, text, hint=f"testbed lock release {made.id}")


def _future(text: str) -> float:
    """The date of `--from`. Raises: Usage - it is none, past, or too far away."""
    import time

    from orchestrator.cli.shared import wall_time

    at = wall_time("--from", text, 'not a time such as "2026-12-01 09:00"')
    if at <= time.time():
        raise Usage(f"--from: {_date(at)} is past", hint="leave --from out to begin now")
    if at > time.time() + MOST_AHEAD_S:
        raise Usage(f"--from: {_date(at)} is more than a year away", hint="book a nearer date")
    return at


def _date(at: float | None) -> str:
    """A local date with its zone."""
    import time

    return "released" if at is None else time.strftime("%a %Y-%m-%d %H:%M %Z", time.localtime(at))


@verb(
    app,
    "calendar",
    "List reservations by date: past, present and to come.",
    examples="""
testbed lock calendar                      what is reserved and booked
testbed lock calendar --last 7d --runs     and who had what in the last seven days, changes too
testbed lock calendar --ical lab.ics       for a calendar program (RFC 5545)
""",
    more="A lock that has ended is remembered for 90 days.",
)
def calendar(
    call: Call,
    last: Annotated[
        str, typer.Option("--last", metavar="TIME", help="Also what has ended since: 7d.")
    ] = "",
    runs: Annotated[
        bool, typer.Option("--runs", help="Also the locks of commands that changed the lab.")
    ] = False,
    ical: Annotated[
        Path | None, typer.Option("--ical", metavar="FILE", help="Write reservations as iCalendar.")
    ] = None,
) -> Result:
    import time
    from math import inf

    from orchestrator.cli.text import columns
    from orchestrator.store.verbs import MOVERS

    since = time.time() - (seconds("--last", last, "7d") if last else 0.0)
    with opened_locks(call) as (lab, locks):
        found = locks.between(since, inf)
    kept = [
        one
        for one in found
        if one.kind == "reservation" or (runs and one.role in {"change", *MOVERS})
    ]
    # one that was released before its date was never there
    shown = [one for one in kept if one.ended is None or one.ended > one.since]
    if ical is not None:
        from orchestrator.cli.shared import write_file
        from orchestrator.views.icalendar import icalendar

        write_file(ical, icalendar(lab.name, [one for one in kept if one.kind == "reservation"]))
        call.note(f"written: {ical}")
    rows = [("from", "to", "by", "state", "holds", "reason", "lock")]
    rows += [
        (
            _date(one.since),
            _date(one.ended or one.expires),
            one.owner if one.owner == one.user else f"{one.user} for {one.owner}",
            one.state,
            str(one.scope),
            one.reason,
            one.id,
        )
        for one in shown
    ]
    text = "\n".join(columns(rows)) if shown else "No reservations"
    data = [lock_data(one) | {"ended": one.ended} for one in shown]
    return Result({"locks": cast("Json", data)}, text)


@verb(
    app,
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
    with opened_locks(call) as (_, locks):
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
    return Result({"lock": lock_data(taken), "stolen": steal}, text, hint=hint)


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
