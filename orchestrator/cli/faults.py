"""`testbed lab fault` and `testbed lab fibre`: inject faults into the emulated lab."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from orchestrator.cli.call import Call, Result, verb
from orchestrator.cli.completing import cables, faulty

Cable = Annotated[
    str,
    typer.Argument(metavar="FIBRE", help="Name of the cable in fibres.yml.", autocompletion=cables),
]


def _cables(inventory: Path, *names: str, swapped: bool = False) -> None:
    """Check that the lab has these cables. swapped: they must be fibres. Raises: Missing; Usage -
    one is no fibre.
    """
    from optics.errors import Missing
    from optics.plain import did_you_mean
    from orchestrator import emulated as labproc
    from orchestrator.cli.call import Usage

    known = labproc.cables(labproc.ask(inventory, "status"))
    for name in names:
        if name not in known:
            raise Missing(
                f"this lab has no cable {name}{did_you_mean(name, known)}",
                hint=f"see {inventory / 'fibres.yml'}",
            )
        if swapped and known[name] != "fibre":
            raise Usage(
                f"{name} is a {known[name]}: only fibres between a host and a device can be swapped"
            )


def _emulated(call: Call) -> Path:
    """The inventory. Raises: Missing - it is one of real hardware, into which no faults can be
    injected.
    """
    from optics.errors import Missing
    from orchestrator import emulated as labproc
    from orchestrator.inventory.folders import absent

    inventory = call.settings.inventory
    if (wrong := absent(inventory)) is not None:
        raise wrong
    if not labproc.is_emulated(inventory):
        raise Missing(
            f"{inventory} is not an emulated lab (it has no emulator.yml)",
            hint="choose one: --inventory inventory/emulated",
        )
    return inventory


_OF_ONE_KIND = {
    "db": "extra-loss",
    "db_per_hour": "drift",
    "limit": "login-limit",
    "user": "port-locked",
}
_DEFAULTS = {"after": 0, "probability": 1.0, "at_s": 0.0}


def _reports_something(kind: str, field: str, value: object) -> bool:
    """Whether to show a field of a fault: it has no column of its own, is set, and applies to its
    kind.
    """
    if (
        field in ("number", "kind", "state", "fired")
        or value is None
        or _DEFAULTS.get(field) == value
    ):
        return False
    return _OF_ONE_KIND.get(field, kind) == kind


def _at(inventory: Path, name: str) -> dict[str, Any]:
    """How the lab is asked about faults of `name`: as a device, or as a host, a packet switch or
    `all` hosts. Raises: Missing.
    """
    from optics.errors import Missing
    from optics.plain import did_you_mean
    from orchestrator import emulated as labproc

    about = labproc.ask(inventory, "status")
    if name in about["devices"]:
        return {"device": name}
    hosts = (
        [*about["hosts"], *(segment["name"] for segment in about["segments"]), "all"]
        if about["hosts"]
        else []
    )
    if name not in hosts:
        known = did_you_mean(name, [*about["devices"], *hosts])
        raise Missing(
            f"no device, host or packet switch {name} runs in this lab{known}",
            hint="testbed lab status",
        )
    return {"host": name}


def _seconds(option: str, text: str | None) -> float | None:
    """The value of an option that is a duration or 0. Raises: Usage - it is none."""
    from orchestrator.cli.shared import seconds

    return None if text is None else 0.0 if text == "0" else seconds(option, text, "90s")


faults = typer.Typer(
    name="fault",
    help="Inject faults into emulated devices, hosts and links.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@verb(
    faults,
    "add",
    "Add a fault to a device, a host or a link.",
    examples="testbed lab fault add ocs1 drop-after --match conn:add --count 1\n"
    "testbed lab fault add ocs1 dark-port --port 3 --at 10 --for 5\ntestbed lab fault add ocs1 reboot-lose\n"
    "testbed lab fault add gpu05 slow-link --port 2 --mbps 50\ntestbed lab fault add gpu05 hang-rank --at 10s --for 30s\n"
    "testbed lab fault add all storm --per 3h --seed 1",
    more="The faults are listed in docs/how-to/inject-faults.md.",
)
def add(
    call: Call,
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="Device, host or packet switch; all: all hosts.",
            autocompletion=faulty,
        ),
    ],
    kind: Annotated[str, typer.Argument(metavar="FAULT", help="Name of the fault.")],
    match: Annotated[
        str | None,
        typer.Option("--match", help="Only commands that match this regular expression."),
    ] = None,
    on: Annotated[
        str | None,
        typer.Option("--on", help="Only writing or only reading commands.", metavar="write|read"),
    ] = None,
    after: Annotated[
        int | None, typer.Option("--after", help="Number of matches to let pass first.", min=0)
    ] = None,
    count: Annotated[
        int | None, typer.Option("--count", help="Number of times to occur.", min=1)
    ] = None,
    probability: Annotated[
        float | None,
        typer.Option(
            "--probability", help="Probability for each match, or of each time.", min=0.0, max=1.0
        ),
    ] = None,
    seconds: Annotated[
        float | None,
        typer.Option(
            "--seconds", help="Duration of faults that have one; of a storm's, on average."
        ),
    ] = None,
    port: Annotated[str | None, typer.Option("--port", help="Label of the port.")] = None,
    db: Annotated[float | None, typer.Option("--db", help="Loss, for extra-loss.")] = None,
    db_per_hour: Annotated[
        float | None, typer.Option("--db-per-hour", help="Rate, for drift.")
    ] = None,
    limit: Annotated[
        int | None, typer.Option("--limit", help="Number of sessions, for login-limit.", min=0)
    ] = None,
    at_byte: Annotated[
        int | None, typer.Option("--at-byte", help="Byte position, for split and garble.")
    ] = None,
    user: Annotated[
        str | None, typer.Option("--user", help="User who locks the port, for port-locked.")
    ] = None,
    at: Annotated[
        str | None, typer.Option("--at", metavar="TIME", help="Start after this time: 10, 10s, 2m.")
    ] = None,
    for_: Annotated[
        str | None, typer.Option("--for", metavar="TIME", help="Last this long.")
    ] = None,
    per: Annotated[
        str | None,
        typer.Option(
            "--per", metavar="TIME", help="Hosts: come again this often; a storm: on average."
        ),
    ] = None,
    mbps: Annotated[
        float | None, typer.Option("--mbps", help="Rate each way, for slow-link.")
    ] = None,
    percent: Annotated[
        float | None, typer.Option("--percent", help="Share lost each way, for loss.")
    ] = None,
    threads: Annotated[
        int | None, typer.Option("--threads", help="Number of busy threads, for cpu-hog.")
    ] = None,
    rank: Annotated[
        str | None,
        typer.Option("--rank", help="Rank on the host, for hang-rank and kill-rank: gpu05/1 or 1."),
    ] = None,
    offset: Annotated[
        float | None, typer.Option("--offset", help="Seconds ahead, for clock-drift.")
    ] = None,
    ppm: Annotated[float | None, typer.Option("--ppm", help="Rate, for clock-drift.")] = None,
    seed: Annotated[int | None, typer.Option("--seed", help="Of what a storm draws.")] = None,
) -> Result:
    from optics.errors import Missing
    from orchestrator import emulated as labproc

    given = {
        "match": match, "on": on, "after": after, "count": count, "probability": probability, "seconds": seconds,
        "port": port, "db": db, "db_per_hour": db_per_hour, "limit": limit, "at_byte": at_byte, "user": user,
        "at_s": _seconds("--at", at), "for_s": _seconds("--for", for_), "per_s": _seconds("--per", per), "mbps": mbps,
        "percent": percent, "threads": threads, "rank": rank, "offset_s": offset, "ppm": ppm, "seed": seed,
    }  # fmt: skip
    wanted: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    inventory = _emulated(call)
    place = _at(inventory, name)
    try:
        number = labproc.ask(inventory, "faults.add", **place, kind=kind, **wanted)["number"]
    except Missing as error:  # the lab says what is wrong with the request
        where = "the faults and what each takes: docs/how-to/inject-faults.md; the options: testbed lab fault add --help"
        raise Missing(str(error), hint=error.hint or where) from None
    text = f"{kind} added, number {number}" if number else f"{kind} has occurred"
    return Result({"device": name, "kind": kind, "number": number}, f"{name:<8} {text}")


@verb(
    faults,
    "list",
    "List the faults of all devices, hosts and links.",
    examples="testbed lab fault list\ntestbed lab fault list --log\ntestbed lab fault list --json | jq .data.faults.ocs1",
)
def list_(
    call: Call,
    log: Annotated[
        bool, typer.Option("--log", help="Also what was done to the lab, and when.")
    ] = False,
) -> Result:
    from optics.plain import counted
    from orchestrator import emulated as labproc
    from orchestrator.cli.text import columns

    answer = labproc.ask(_emulated(call), "faults.list")
    faults = answer["faults"]
    rows = [
        (
            name,
            str(fault["number"]),
            fault["kind"],
            f"{fault['state']}, fired {counted(fault['fired'], 'time')}",
            " ".join(
                f"{k}={v}" for k, v in fault.items() if _reports_something(fault["kind"], k, v)
            ),
        )
        for name, armed in faults.items()
        for fault in armed
    ]
    lines = list(columns(iter(rows))) if rows else ["no faults"]
    lines += [logged(entry) for entry in answer["log"]] if log else []
    return Result({"faults": faults, "log": answer["log"]}, "\n".join(lines))


def logged(entry: Mapping[str, Any]) -> str:
    """A line of what was done to the lab: time of day (UTC), event, what is known of it."""
    from datetime import UTC, datetime

    at = datetime.fromtimestamp(entry["t_wall_ns"] / 1e9, UTC).strftime("%H:%M:%S.%f")[:-3]
    known = " ".join(f"{k}={v}" for k, v in entry.items() if k not in ("t_wall_ns", "event"))
    return f"{at}Z {entry['event']:<13} {known}"


@verb(faults, "remove", "Remove a fault by its number.", examples="testbed lab fault remove ocs1 1")
def remove(
    call: Call,
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME", help="Device, host or packet switch; all.", autocompletion=faulty
        ),
    ],
    number: Annotated[
        int, typer.Argument(metavar="NUMBER", help="Number of the fault, from `list`.")
    ],
) -> Result:
    from orchestrator import emulated as labproc

    inventory = _emulated(call)
    labproc.ask(inventory, "faults.remove", **_at(inventory, name), number=number)
    return Result({"device": name, "number": number}, f"{name:<8} fault {number} removed")


fibres = typer.Typer(
    name="fibre",
    help="Cut, splice and swap emulated fibres.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


def _severed(call: Call, name: str, cut: bool) -> Result:
    from orchestrator import emulated as labproc

    inventory = _emulated(call)
    _cables(inventory, name)
    left = labproc.ask(inventory, "fibre", name=name, cut=cut)["cut"]
    return Result(
        {"name": name, "cut": left},
        f"{name} is {'cut: dark in both directions' if cut else 'intact'}",
    )


@verb(
    fibres,
    "cut",
    "Cut a cable: it goes dark in both directions.",
    examples="testbed lab fibre cut f-gpu03-p2",
)
def cut(call: Call, name: Cable) -> Result:
    return _severed(call, name, True)


@verb(
    fibres, "splice", "Splice a cable that was cut.", examples="testbed lab fibre splice f-gpu03-p2"
)
def splice(call: Call, name: Cable) -> Result:
    return _severed(call, name, False)


@verb(
    fibres,
    "swap",
    "Swap the connectors of two fibres at their devices; repeat to undo.",
    examples="testbed lab fibre swap f-gpu03-p2 f-gpu04-p2\ntestbed lab fibre swap f-gpu03-p2 f-gpu04-p2 --ends leaves",
)
def swap(
    call: Call,
    one: Cable,
    other: Cable,
    ends: Annotated[
        str, typer.Option("--ends", help="Which connectors to swap.", metavar="both|enters|leaves")
    ] = "both",
) -> Result:
    from orchestrator import emulated as labproc
    from orchestrator.cli.shared import one_of

    one_of(ends, ("both", "enters", "leaves"), "--ends")
    inventory = _emulated(call)
    _cables(inventory, one, other, swapped=True)
    plugged = labproc.ask(inventory, "fibre.swap", a=one, b=other, ends=ends)["plugged"]
    lines = [
        f"{name} enters {at['device']}:{at['enters']}, leaves {at['device']}:{at['leaves']}"
        for name, at in plugged.items()
    ]
    return Result({"plugged": plugged}, "\n".join(lines))
