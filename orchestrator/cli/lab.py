"""`testbed lab`: the emulated lab as a process."""

from __future__ import annotations

import typer

from orchestrator.cli.call import Call, Result, verb


def register(root: typer.Typer) -> None:
    app = typer.Typer(name="lab", help="The emulated lab (`up` starts it by itself).", no_args_is_help=True, rich_markup_mode=None)
    root.add_typer(app)

    @verb(
        app,
        "start",
        "Start the emulated lab in the background.",
        examples="testbed lab start\ntestbed lab start --inventory inventory/emulated",
    )
    def start(call: Call) -> Result:
        from orchestrator import labproc
        from orchestrator.cli.text import path_text, seconds_text
        from orchestrator.reports import Json

        call.note("starting the emulated lab ...")
        started = labproc.start(call.settings.inventory, min(labproc.START_S, call.settings.timeout_s))
        about = labproc.ask(call.settings.inventory, "status")
        words = "was running already" if started.already else f"up after {seconds_text(started.seconds)}"
        data: dict[str, Json] = {
            "pid": started.pid,
            "seconds": started.seconds,
            "already": started.already,
            "state_dir": str(started.state_dir),
        }
        return Result(
            data, f"lab      {labproc.about(about)} {words}, pid {started.pid}, log {path_text(started.state_dir / 'lab.log')}"
        )

    @verb(app, "stop", "Stop the emulated lab; nothing of it stays.", examples="testbed lab stop")
    def stop(call: Call) -> Result:
        from orchestrator import labproc

        stopped = labproc.stop(call.settings.inventory, min(labproc.STOP_S, call.settings.timeout_s))
        return Result({"stopped": stopped}, "lab      stopped" if stopped else "lab      was not running")

    @verb(
        app,
        "status",
        "Show the emulated lab: what it serves and which light is on.",
        examples="testbed lab status\ntestbed lab status --json | jq .data.glass",
    )
    def status(call: Call) -> Result:
        from orchestrator import labproc
        from orchestrator.cli.text import columns, listed

        inventory = call.settings.inventory
        if not labproc.is_emulated(inventory):
            return Result({"running": False, "emulated": False}, f"lab      {inventory} is not an emulated lab")
        if not labproc.is_running(inventory):
            return Result({"running": False, "emulated": True}, "lab      not running", hint="testbed lab start")
        about = labproc.ask(inventory, "status")
        glass = labproc.ask(inventory, "glass")
        about.pop("ok", None)
        lit = glass["glass"]
        lines = [f"lab      {labproc.about(about)}, pid {about.get('pid', '-')}"]
        lines += columns((f"  {name}", f"{len(pairs)} cross-connects lit") for name, pairs in lit.items())
        dark = [name for name, host in about["hosts"].items() if not host["sshd"]]
        if dark:
            lines.append(f"  no sshd  {listed(dark)}")
        return Result({"running": True, "emulated": True, "lab": about, "glass": lit}, "\n".join(lines))
