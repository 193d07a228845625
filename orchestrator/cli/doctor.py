"""`testbed doctor`: what this machine can do, what the lab answers, and how to mend what fails."""

from __future__ import annotations

from typing import Annotated

import typer

from orchestrator.cli.call import Call, Result, Usage, verb

app = typer.Typer()


@verb(
    app,
    "doctor",
    "Try all the lab needs; say what fails, its fix, what still works.",
    examples="""
testbed doctor
testbed doctor --inventory inventory/example-lab
testbed doctor --json | jq '.data.checks[] | select(.state=="fail")'
testbed doctor --store                 is every page of the run store whole?
testbed doctor --store --recover       take what can be read of a damaged one into a new file
""",
    more="""
Nothing is written to a device or a host. --recover keeps the damaged file under another name beside the new one.
""",
)
def doctor(
    call: Call,
    store: Annotated[bool, typer.Option("--store", help="Check the file of the run store whole, and nothing else.")] = False,
    recover: Annotated[
        bool, typer.Option("--recover", help="With --store: put what can be read of a damaged store into a new file.")
    ] = False,
) -> Result:
    from optics.plain import counted
    from orchestrator.cli.text import listed, paint
    from orchestrator.results import to_json
    from orchestrator.verify import doctor

    if recover and not store:
        raise Usage("--recover goes with --store", hint="testbed doctor --store --recover")
    checks = doctor.examine_store(call.settings, recover=recover) if store else doctor.examine(call.settings)
    colours = {"ok": "green", "warn": "yellow", "fail": "red"}
    lines = []
    # Two dozen reachable hosts are one line; each that fails has its own.
    answering = [c.name for c in checks if c.area == "reach" and c.state == "ok"]
    for check in checks:
        if check.name in answering and check.area == "reach":
            continue
        first, *rest = check.detail.splitlines() or [""]
        lines.append(f"  {paint(f'{check.state:<4}', colours[check.state], call.colour)} {check.name:<42} {first}")
        lines += [f"       {line}" for line in rest]
        if check.state != "ok":
            lines.append(f"       fix: {check.fix}")
            lines.append(f"       still works: {check.works}")
    if answering:
        lines.append(f"  {paint('ok  ', 'green', call.colour)} {'reachable':<42} {len(answering)}: {listed(answering, 4)}")
    failed = [c for c in checks if c.state == "fail"]
    data = {"checks": to_json(checks), "failed": len(failed)}
    if not failed:
        return Result(data, "\n".join(lines if store else [*lines, "All that is needed is there"]))
    text = "\n".join(lines)
    if store:
        return Result(data, text, "E-STORE", 2, failed[0].detail, failed[0].fix, ok=False)
    message = f"{counted(len(failed), 'check')} failed: {listed([c.name for c in failed])}"
    if any(c.area in ("machine", "store") for c in failed):
        return Result(data, text, "E-MISSING", 2, message, "mend what `fix:` says", ok=False)
    if any(c.area == "inventory" for c in failed):
        return Result(data, text, "E-BAD-FILE", 3, message, "mend what `fix:` says", ok=False)
    return Result(data, text, "E-UNREACHABLE", 5, message, "mend what `fix:` says", ok=False)
