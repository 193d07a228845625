"""The verbs that only read the lab: `status` and `verify`."""

from __future__ import annotations

from typing import Annotated

import typer

from orchestrator.cli.call import Call, Result, engine, is_stopped_lab, verb


def register(root: typer.Typer) -> None:
    @verb(
        root,
        "status",
        "Show the lab as its devices and hosts answer now.",
        examples="""
testbed status
testbed status --exit-code      exit 8 if the lab differs from the current plan
testbed status --json | jq .data.drift
""",
    )
    def status(
        call: Call, exit_code: Annotated[bool, typer.Option("--exit-code", help="Exit 8 if there are differences.")] = False
    ) -> Result:
        from orchestrator.cli import render

        report = call.work(engine().status)
        data, text = report.to_json(), render.status(report, call.colour)
        silent = [d.name for d in report.devices if not d.ok] + [h.name for h in report.hosts if not h.ok]
        if silent:
            hint = "testbed lab start" if is_stopped_lab(call.settings.inventory) else "testbed doctor"
            return Result(data, text, "E-UNREACHABLE", 5, f"{len(silent)} do not answer: {', '.join(silent[:8])}", hint, ok=False)
        if report.drift and exit_code:
            return Result(data, text, "DIFFERENCES", 8)
        return Result(data, text)

    @verb(
        root,
        "verify",
        "Climb the ladder: map, light, link, identity, forwarding.",
        examples="""
testbed verify
testbed verify --json | jq '.data.rungs[] | select(.ok | not)'
""",
    )
    def verify(call: Call) -> Result:
        from orchestrator.cli import render

        report = call.work(engine().verify)
        data, text = report.to_json(), render.verify(report, call.colour)
        if report.ok:
            return Result(data, text)
        failed = [r.name for r in report.rungs if not r.ok]
        return Result(data, text, "E-NOT-VERIFIED", 7, f"not verified: {', '.join(failed)}", "testbed status", ok=False)
