"""`testbed devices`: identity and abilities of the devices, optical power on every circuit, and the
drivers.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from orchestrator.cli import cables, completing, driver
from orchestrator.cli.call import Call, Result, engine, verb
from orchestrator.cli.groups import Listed, family
from orchestrator.cli.shared import Unicode, write_file

app = family("devices", Listed)
app.add_typer(driver.app)
app.add_typer(cables.app)


@verb(
    app,
    "list",
    "List the devices: identity, ports, optical power, abilities.",
    examples="testbed devices list\ntestbed devices list --json | jq '.data.devices[].abilities'",
)
def list_(call: Call) -> Result:
    from optics.plain import seconds_text
    from orchestrator.cli.call import unanswered
    from orchestrator.cli.text import columns

    report = call.work(engine.devices)
    rows: list[Sequence[str]] = [
        ("device", "", "driver", "ports", "holds", "settles", "light", "abilities", "identity")
    ]
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
        rows.append(
            (
                d.name,
                "ok",
                d.driver,
                ports,
                str(d.settings),
                settles,
                light,
                ", ".join(d.abilities) or "-",
                d.identity,
            )
        )
    data, text = report.to_json(), "\n".join(columns(rows))
    return unanswered(
        data, text, {d.name: d.code for d in report.devices if not d.ok}, "testbed doctor"
    ) or Result(data, text)


@verb(
    app,
    "power",
    "Show power in and out and loss of every circuit, and the expected loss.",
    examples="""
testbed devices power
testbed devices power --device ocs1
testbed devices power --history           change of each circuit's loss since its first measurement
testbed devices power --svg light.svg     draw a bar chart
""",
    more="Each measurement is recorded, as are those of `up` and `verify`. Devices are only read.",
)
def power(
    call: Call,
    device: Annotated[
        str | None,
        typer.Option(
            "--device",
            "-d",
            metavar="NAME",
            help="Only circuits through this device.",
            autocompletion=completing.devices,
        ),
    ] = None,
    history: Annotated[
        bool, typer.Option("--history", help="Also show changes since the first measurement.")
    ] = False,
    svg: Annotated[
        Path | None, typer.Option("--svg", metavar="FILE", help="Draw a bar chart to this file.")
    ] = None,
    unicode: Unicode = True,
) -> Result:
    from optics.plain import counted
    from orchestrator.cli import lightpicture

    report = call.work(engine.devices_power, device=device, history=history)
    lines = lightpicture.table(report, call.colour, unicode=unicode and call.unicode)
    if history:
        lines += [
            "",
            *(lightpicture.history(report.history, call.colour) or ["  no earlier measurements"]),
        ]
    lines += [f"  {note}" for note in report.notes]
    if svg is not None:
        write_file(svg, lightpicture.svg(report))
        call.note(f"written: {svg}")
    dark = sum(bool(c.lost) for c in report.circuits)
    drifted = sum(c.beyond for c in report.history)
    blind = sum(c.in_dbm is None and c.out_dbm is None and not c.lost for c in report.circuits)
    summary = counted(len(report.circuits), "circuit") + (
        f", {blind} not measured (no power meter on the path)" if blind else ""
    )
    summary += f", {dark} dark" if dark else ""
    summary += f", {drifted} changed beyond repeatability" if drifted else ""
    return Result(report.to_json(), "\n".join([*lines, f"Power on {report.lab}: {summary}"]))
