"""`testbed devices`: who the devices are and what they can do; `testbed devices power`: the light on every circuit."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from orchestrator.cli import completing
from orchestrator.cli.call import Call, Result, engine, verb

app = typer.Typer(name="devices", rich_markup_mode=None)


@verb(
    app,
    "",
    "The devices: identity, ports, light, what each can do.",
    examples="testbed devices\ntestbed devices --json | jq '.data.devices[].abilities'\ntestbed devices power",
)
def devices(call: Call) -> Result:
    from orchestrator.cli.call import unanswered
    from orchestrator.cli.text import columns, seconds_text

    report = call.work(engine().devices)
    rows: list[Sequence[str]] = [("device", "", "driver", "ports", "holds", "settles", "light", "abilities", "identity")]
    for d in report.devices:
        if not d.ok:
            rows.append((d.name, "FAIL", d.driver, "-", "-", "-", "-", "", d.error.splitlines()[0]))
            continue
        settles = seconds_text(d.settle_s * d.time_scale)
        if d.time_scale != 1:
            settles += f" ({seconds_text(d.settle_s)} here, x{d.time_scale:g})"
        light = "no meter" if not d.metered else f"{d.lit}/{d.metered}"
        if d.min_dbm is not None:
            light += f", {d.min_dbm:.1f} to {d.max_dbm:.1f} dBm"
        ports = f"{len(d.ingress)}x{len(d.egress)}"
        rows.append((d.name, "ok", d.driver, ports, str(d.settings), settles, light, ", ".join(d.abilities) or "-", d.identity))
    data, text = report.to_json(), "\n".join(columns(rows))
    return unanswered(data, text, {d.name: d.code for d in report.devices if not d.ok}, "testbed doctor") or Result(data, text)


@verb(
    app,
    "power",
    "Show the light on every circuit: in, out, loss against expectation.",
    examples="""
testbed devices power
testbed devices power --device ocs1
testbed devices power --history           how each circuit's loss changed since it was first measured
testbed devices power --svg light.svg     the same as a picture
""",
    more="Every look is kept, those of `up` and `verify` too; nothing is written to a device.",
)
def power(
    call: Call,
    device: Annotated[
        str | None,
        typer.Option("--device", "-d", metavar="NAME", help="Only circuits through it.", autocompletion=completing.devices),
    ] = None,
    history: Annotated[bool, typer.Option("--history", help="Changes since each circuit was first measured.")] = False,
    svg: Annotated[Path | None, typer.Option("--svg", metavar="FILE", help="Write a picture here.")] = None,
    unicode: Annotated[bool, typer.Option("--unicode/--no-unicode", help="Draw with block characters.")] = True,
) -> Result:
    from optics.plain import counted
    from orchestrator.atomic import write_whole
    from orchestrator.cli import lightpicture

    report = call.work(engine().devices_power, device=device, history=history)
    lines = lightpicture.table(report, call.colour, unicode=unicode and call.unicode)
    if history:
        lines += ["", *(lightpicture.history(report.history, call.colour) or ["  nothing was measured before"])]
    lines += [f"  {note}" for note in report.notes]
    if svg is not None:
        write_whole(svg, lightpicture.svg(report))
        call.note(f"written: {svg}")
    dark = sum(bool(c.lost) for c in report.circuits)
    drifted = sum(c.beyond for c in report.history)
    blind = sum(c.in_dbm is None and c.out_dbm is None and not c.lost for c in report.circuits)
    summary = counted(len(report.circuits), "circuit") + (f", {blind} not measured (no meter on the way)" if blind else "")
    summary += f", {dark} dark" if dark else ""
    summary += f", {drifted} changed beyond repeatability" if drifted else ""
    return Result(report.to_json(), "\n".join([*lines, f"Light on {report.lab}: {summary}"]))
