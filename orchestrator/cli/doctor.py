"""`testbed doctor`: what this machine can do, what the lab answers, and how to mend what fails."""

from __future__ import annotations

import typer

from orchestrator.cli.call import Call, Result, verb


def register(root: typer.Typer) -> None:
    @verb(
        root,
        "doctor",
        "Try all the lab needs; say what fails, its fix, what still works.",
        examples="""
testbed doctor
testbed doctor --inventory inventory/example-lab
testbed doctor --json | jq '.data.checks[] | select(.state=="fail")'
""",
        more="Nothing is written to a device or a host.",
    )
    def doctor(call: Call) -> Result:
        from orchestrator import doctor
        from orchestrator.cli.text import listed, paint
        from orchestrator.reports import to_json
        from orchestrator.telemetry.progress import counted

        checks = doctor.examine(call.settings)
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
            return Result(data, "\n".join([*lines, "All that is needed is there"]))
        text = "\n".join(lines)
        message = f"{counted(len(failed), 'check')} failed: {listed([c.name for c in failed])}"
        if any(c.area in ("machine", "store") for c in failed):
            return Result(data, text, "E-MISSING", 2, message, "mend what `fix:` says", ok=False)
        if any(c.area == "inventory" for c in failed):
            return Result(data, text, "E-BAD-FILE", 3, message, "mend what `fix:` says", ok=False)
        return Result(data, text, "E-UNREACHABLE", 5, message, "mend what `fix:` says", ok=False)
