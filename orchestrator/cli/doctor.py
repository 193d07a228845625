"""`testbed doctor`: check this machine and the lab, and show how to fix failures."""

from __future__ import annotations

from typing import Annotated

import typer

from orchestrator.cli.call import Call, Result, Usage, verb

app = typer.Typer()


@verb(
    app,
    "doctor",
    "Check everything the lab needs; say how to fix what fails.",
    examples="""
testbed doctor
testbed doctor --inventory inventory/example-lab
testbed doctor --json | jq '.data.checks[] | select(.state=="fail")'
testbed doctor --store                 check the file of the run store for damage
testbed doctor --store --recover       copy what is readable of a damaged one to a new file
""",
    more="Devices and hosts are only read. --recover keeps the damaged file under another name in the same directory.",
)
def doctor(
    call: Call,
    store: Annotated[
        bool, typer.Option("--store", help="Only check the file of the run store.")
    ] = False,
    recover: Annotated[
        bool,
        typer.Option(
            "--recover",
            help="With --store: copy what is readable of a damaged store to a new file.",
        ),
    ] = False,
) -> Result:
    from optics.plain import counted
    from orchestrator.cli.text import listed, paint
    from orchestrator.results import to_json
    from orchestrator.verify import doctor
    from orchestrator.verify.doctor_store import examine_store

    if recover and not store:
        raise Usage(
            "--recover can only be used with --store", hint="testbed doctor --store --recover"
        )
    checks = (
        examine_store(call.settings, recover=recover) if store else doctor.examine(call.settings)
    )
    colours = {"ok": "green", "warn": "yellow", "fail": "red"}
    lines = []
    # All reachable hosts share one line, and so do those that fail alike.
    answering = [c.name for c in checks if c.area == "reach" and c.state == "ok"]
    alike: dict[tuple[str, ...], list[str]] = {}
    for check in checks:
        if check.area == "reach":
            alike.setdefault((check.state, check.detail, check.fix), []).append(check.name)
    for check in checks:
        names = (
            alike[check.state, check.detail, check.fix] if check.area == "reach" else [check.name]
        )
        if names[0] != check.name or (check.area == "reach" and check.state == "ok"):
            continue
        first, *rest = check.detail.splitlines() or [""]
        lines.append(
            f"  {paint(f'{check.state:<4}', colours[check.state], call.colour)} {listed(names, 4):<42} {first}"
        )
        lines += [f"       {line}" for line in rest]
        if check.state != "ok":
            lines.append(f"       fix: {check.fix}")
            lines.append(f"       still works: {check.works}")
    if answering:
        lines.append(
            f"  {paint('ok  ', 'green', call.colour)} {'reachable':<42} {len(answering)}: {listed(answering, 4)}"
        )
    failed = [c for c in checks if c.state == "fail"]
    data = {"checks": to_json(checks), "failed": len(failed)}
    if not failed:
        return Result(data, "\n".join(lines if store else [*lines, "All checks passed"]))
    text = "\n".join(lines)
    if store:
        return Result(data, text, "E-STORE", 2, failed[0].detail, failed[0].fix, ok=False)
    message = f"{counted(len(failed), 'check')} failed: {listed([c.name for c in failed])}"
    if any(c.area in ("machine", "store") for c in failed):
        return Result(
            data, text, "E-MISSING", 2, message, "follow the lines that start with `fix:`", ok=False
        )
    if any(c.area == "inventory" for c in failed):
        return Result(
            data,
            text,
            "E-BAD-FILE",
            3,
            message,
            "follow the lines that start with `fix:`",
            ok=False,
        )
    return Result(
        data, text, "E-UNREACHABLE", 5, message, "follow the lines that start with `fix:`", ok=False
    )
