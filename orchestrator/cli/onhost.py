"""`testbed exec` and `testbed shell`: onto a host, with the SSH parameters of the inventory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli.call import Call, Result, Usage, is_stopped_lab, verb
from orchestrator.cli.completing import hosts

if TYPE_CHECKING:
    from orchestrator.inventory.hosts import Host
    from orchestrator.results import Json

Name = Annotated[str, typer.Argument(metavar="HOST", help="Which host.", autocompletion=hosts)]


def _host(call: Call, name: str) -> Host:
    from optics.errors import Unreachable
    from orchestrator.hosts.openssh import find
    from orchestrator.session import load_lab

    found = find(name, dict(load_lab(call.settings.inventory).hosts))
    if is_stopped_lab(call.settings.inventory):
        raise Unreachable("the emulated lab is not running", hint="testbed lab start")
    return found


def register(root: typer.Typer) -> None:
    @verb(
        root,
        "exec",
        "Run a command on a host; end with its exit code.",
        examples="""
testbed exec gpu03 -- ip -brief link
testbed exec gpu03 -- "ip route show table all | grep 10.255"    one word is for the host's shell
testbed exec gpu03 --json -- uname -r
""",
        more="""
Over SSH, with the address, port, user, key and options of hosts.yml; stdin is the command's. Several words reach the host as they
are, a single one is read by its shell. No lock is held and nothing is kept in the history. Without --timeout there is no limit.
Exit 5 if the host cannot be reached.
""",
    )
    def on_host(
        call: Call,
        host: Name,
        command: Annotated[list[str], typer.Argument(metavar="-- COMMAND...", help="What to run there.", show_default=False)],
    ) -> Result:
        from orchestrator.hosts.openssh import run

        settings = call.settings
        limit = None if settings.origins.get("timeout", "default") == "default" else settings.timeout_s
        code, out, err = run(_host(call, host), command, capture=call.json, timeout_s=limit)
        data: dict[str, Json] = {"host": host, "command": [*command], "exit_code": code, "stdout": out, "stderr": err}
        if code:
            words = f"{host}: the command ended with {code}" if call.json else ""  # else it said itself what it had to say
            return Result(data, "", "E-COMMAND", code, words, ok=False)
        return Result(data)

    @verb(
        root,
        "shell",
        "Open a shell on a host.",
        examples="testbed shell gpu03\ntestbed shell node-a --inventory inventory/example-lab",
        more="Over SSH, as `testbed exec`; it ends with the exit code of the shell.",
    )
    def shell(call: Call, host: Name) -> Result:
        from orchestrator.hosts.openssh import run

        if call.json:
            raise Usage("shell: a shell prints no JSON", hint="testbed exec HOST --json -- COMMAND")
        code, _, _ = run(_host(call, host), ())
        return Result({"host": host, "exit_code": code}, exit_code=code, code="E-COMMAND" if code else "OK", ok=not code)
