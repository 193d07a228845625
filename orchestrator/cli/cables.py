"""`testbed devices trace`, `cables` and `losses`: fibres from end to end, and what they should lose."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from orchestrator.cli import completing
from orchestrator.cli.call import Call, Result, engine, verb

if TYPE_CHECKING:
    from optics import Dbm
    from orchestrator.results import Json
    from orchestrator.verify.trace import TraceReport

app = typer.Typer()


@verb(
    app,
    "trace",
    "Draw the path of a host port's light from end to end.",
    examples="testbed devices trace gpu01:1\ntestbed devices trace gpu01:p1 --json",
    more="Losses are those of the inventory and of the meters on the way. Devices are only read.",
)
def trace(
    call: Call, port: Annotated[str, typer.Argument(metavar="HOST:PORT", help="Where it begins.")]
) -> Result:
    report = call.work(engine.devices_trace, port=port)
    data = report.to_json()
    return Result(data, drawn(report))


def drawn(report: TraceReport) -> str:
    """The path, downwards."""
    from orchestrator.cli.text import columns

    rows: list[tuple[str, ...]] = [(report.port, "", "expected", "seen", "power")]
    for hop in report.hops:
        what = (
            f"{hop.start} -> {hop.end}"
            if hop.kind == "pass"
            else ", panel ".join([f"{hop.kind} {hop.name}", *hop.panels])
        )
        seen = "" if hop.seen_db is None else f"{hop.seen_db:.2f} dB"
        powers = (hop.in_dbm, hop.out_dbm)
        power = "" if powers == (None, None) else " -> ".join(map(_dbm, powers))
        rows.append(
            ("|" if hop.kind != "pass" else "+", what, f"{hop.expected_db:.2f} dB", seen, power)
        )
    rows.append(
        (
            report.receiver or "x",
            "" if report.receiver else report.ends,
            f"{report.expected_db:.2f} dB",
        )
    )
    return "\n".join([*columns(rows), *([report.lost] if report.lost else [])])


def _dbm(power: Dbm | None) -> str:
    return "?" if power is None else f"{power:.1f} dBm"


@verb(
    app,
    "cables",
    "List all cables with their labels and ends, to print.",
    examples="testbed devices cables\ntestbed devices cables --csv > cables.csv",
    more="Light of the first end enters at `to`; of a duplex cable, that which leaves at `back` comes back.",
)
def cables(
    call: Call, csv: Annotated[bool, typer.Option("--csv", help="As CSV, with a head.")] = False
) -> Result:
    import io
    from csv import writer

    from orchestrator.cli.text import columns
    from orchestrator.session import load_lab

    lab = load_lab(call.settings.inventory)
    rows = [
        (
            f.name,
            str(f.port),
            str(f.enters),
            str(f.leaves),
            " ".join(f.panels),
            f.length_m,
            f.loss_db,
        )
        for f in lab.fibres.values()
    ]
    rows += [
        (t.name, str(t.start), str(t.end), "", " ".join(t.panels), t.length_m, t.loss_db)
        for t in lab.trunks
    ]
    head = ("label", "from", "to", "back", "panels", "length_m", "loss_db")
    if csv:
        out = io.StringIO()
        writer(out, lineterminator="\n").writerows([head, *rows])
        text = out.getvalue().rstrip()
    else:
        shown = [(*ends, f"{length:g}", f"{loss:.2f}") for *ends, length, loss in rows]
        text = "\n".join(columns([head, *shown]))
    data = [dict(zip(head, row, strict=True)) for row in rows]
    return Result({"cables": cast("Json", data)}, text)


@verb(
    app,
    "losses",
    "Import the insertion losses of a device's paths, as its factory measured them.",
    examples="""
testbed devices losses ocs1.json --device ocs1     SONiC's table OCS_FACTORY_INSERTION_LOSS
testbed devices losses ocs1.csv --device ocs1      columns ingress, egress, loss_db
""",
    more="They replace those that losses.csv of the inventory has of this device, and the typical loss of its driver.",
)
def losses(
    call: Call,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="JSON or CSV.")],
    device: Annotated[
        str,
        typer.Option("--device", "-d", metavar="NAME", help="Whose losses they are.",
                     autocompletion=completing.devices),
    ],
) -> Result:  # fmt: skip
    from optics import BadFile, Missing
    from optics.plain import counted, did_you_mean, reason
    from orchestrator.cli.shared import write_file
    from orchestrator.files.reading import attentive, text_of
    from orchestrator.inventory.losses import LOSSES, losses_text, read_factory
    from orchestrator.session import load_lab

    lab = load_lab(call.settings.inventory)
    if device not in lab.devices:
        raise Missing(
            f"device {device} is not in the lab{did_you_mean(device, lab.devices)}",
            hint="testbed devices",
        )
    try:
        with attentive(str(file)):
            found = read_factory(text_of(file), str(file))
    except (OSError, UnicodeDecodeError) as error:
        raise BadFile([f"{file}: {reason(error)}"], hint="give a file that can be read") from error
    ports = {port.label for port in lab.cabled if port.device == device}
    if not any(a in ports and b in ports for a, b in found):
        a, b = next(iter(found))
        raise BadFile(
            [
                f"{file}: none of its paths ({a} -> {b}, ...) joins two ports of {device} with a cable"
            ],
            hint=f"ports are named as in fibres.yml: {', '.join(sorted(ports)[:4])}; nothing was changed",
        )
    rest = {path: db for path, db in lab.losses.items() if path[0] != device}
    target = call.settings.inventory / LOSSES
    write_file(target, losses_text(rest | {(device, a, b): db for (a, b), db in found.items()}))
    text = f"{counted(len(found), 'path')} of {device}, {min(found.values()):.2f} to {max(found.values()):.2f} dB, in {target}"
    return Result({"device": device, "file": str(target), "paths": len(found)}, text)
