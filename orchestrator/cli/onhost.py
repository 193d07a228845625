"""`testbed host`: log in to a host with the SSH parameters of the inventory; make hosts ready; what
Ansible is given them; power-cycle one by its BMC.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli.call import Call, Result, Usage, verb
from orchestrator.cli.completing import hosts
from orchestrator.cli.groups import family
from orchestrator.cli.locks import Reason
from orchestrator.cli.shared import require_running_lab

if TYPE_CHECKING:
    from orchestrator.inventory.hosts import Host
    from orchestrator.results import Json
    from orchestrator.verbs.power import HostPower

Name = Annotated[str, typer.Argument(metavar="HOST", help="The host.", autocompletion=hosts)]

Limit = Annotated[
    list[str] | None,
    typer.Option(
        "--limit",
        metavar="HOST",
        help="Only this host; repeatable. Default: all hosts.",
        autocompletion=hosts,
    ),
]


def _host(call: Call, name: str) -> Host:
    from orchestrator.hosts.openssh import find_host
    from orchestrator.session import load_lab

    found = find_host(name, dict(load_lab(call.settings.inventory).hosts))
    require_running_lab(call.settings.inventory)
    return found


app = family("host")


@verb(
    app,
    "exec",
    "Run a command on a host, and exit with its exit code.",
    examples="""
testbed host exec gpu03 -- ip -brief link
testbed host exec gpu03 -- "ip route show table all | grep 10.255"    a single word is run by the host's shell
testbed host exec gpu03 --json -- uname -r
""",
    more="""
Uses SSH with the address, port, user, key and options of hosts.yml; stdin is passed on. Several words are passed to the host
unchanged; a single one is interpreted by its shell. No lock is taken and no run is recorded. Without --timeout there is no
time limit. The exit code is 5 if the host cannot be reached.
""",
)
def on_host(
    call: Call,
    host: Name,
    command: Annotated[
        list[str], typer.Argument(metavar="-- COMMAND...", help="The command to run.")
    ],
) -> Result:
    from orchestrator.hosts.openssh import run

    settings = call.settings
    limit = None if settings.origins.get("timeout", "default") == "default" else settings.timeout_s
    code, out, err = run(_host(call, host), command, capture=call.json, timeout_s=limit)
    data: dict[str, Json] = {
        "host": host,
        "command": [*command],
        "exit_code": code,
        "stdout": out,
        "stderr": err,
    }
    if code:
        # else its own output says why
        text = f"{host}: the command exited with {code}" if call.json else ""
        return Result(data, "", "E-COMMAND", code, text, ok=False)
    return Result(data)


@verb(
    app,
    "shell",
    "Open a shell on a host.",
    examples="testbed host shell gpu03\ntestbed host shell node-a --inventory inventory/example-lab",
    more="Uses SSH like `testbed host exec`, and exits with the exit code of the shell.",
)
def shell(call: Call, host: Name) -> Result:
    from orchestrator.hosts.openssh import run

    if call.json:
        raise Usage(
            "host shell: cannot be used with --json",
            hint="testbed host exec HOST --json -- COMMAND",
        )
    code, _, _ = run(_host(call, host), ())
    return Result(
        {"host": host, "exit_code": code},
        exit_code=code,
        code="E-COMMAND" if code else "OK",
        ok=not code,
    )


@verb(
    app,
    "provision",
    "Install the agent on hosts, and set links, addresses and sysctls.",
    examples="testbed host provision\ntestbed host provision --limit gpu03 --limit gpu04",
    more="""
What `up` does with hosts that a plan needs, before one needs them. Ansible does the same with a role of ordinary modules, and
undoes it: docs/how-to/provision-with-ansible.md
""",
)
def provision(call: Call, limit: Limit = None) -> Result:
    from optics.plain import counted
    from orchestrator.verbs import hosts as verbs

    report = call.work_on_lab(verbs.provision, limit or ())
    same = [name for name, done in report.hosts.items() if not done.changed and not done.started]
    lines = [
        f"{name}: {counted(len(done.changed), 'change')}, agent {'started' if done.started else 'runs on'}"
        for name, done in report.hosts.items()
        if name not in same
    ]
    lines += [f"  {name}: {note}" for name, done in report.hosts.items() for note in done.notes]
    if same:
        lines.append(f"{counted(len(same), 'host')} as wanted: {', '.join(same)}")
    return Result(report.to_json(), "\n".join(lines))


@verb(
    app,
    "variables",
    "Print what hosts are given when they are provisioned, as variables for Ansible.",
    examples="""
testbed host variables --limit gpu03
testbed host variables --archive lab.tar.gz >lab.yml
ansible-playbook -i hosts.yml -e @lab.yml provision.yml    where the program itself is not installed
""",
    more="Reads the inventory alone. The role optical.testbed.host takes it as host_lab: docs/how-to/provision-with-ansible.md",
)
def variables(
    call: Call,
    limit: Limit = None,
    archive: Annotated[
        Path | None,
        typer.Option(
            "--archive",
            metavar="FILE",
            help="Write the agent and the programs of jobs to this file.",
        ),
    ] = None,
) -> Result:
    import yaml

    from orchestrator.verbs import hosts as verbs

    found = verbs.variables(call.settings.inventory, limit or (), archive)
    return Result(
        found, yaml.safe_dump({"host_lab": found}, sort_keys=False).rstrip(), verbatim=True
    )


@verb(
    app,
    "power",
    "Show a host's power as its BMC reports it; power-cycle a dead host.",
    examples="""
testbed host power gpu07                     on or off, the health that its BMC reports; nothing is changed
testbed host power gpu07 --cycle             power-cycle it and wait until it answers
testbed host power gpu07 --on                switch it on
testbed host power gpu07 --cycle --force --reason "its GPUs hang"
""",
    more="""
Redfish, by testbed_bmc of hosts.yml. The host and its ports are locked meanwhile, and the run and the audit keep who did it, why,
and what the BMC answered. A host that answers is refused without --force; one that is tagged out, or in another's plan or job, always.
""",
)
def power(
    call: Call,
    host: Name,
    cycle: Annotated[
        bool, typer.Option("--cycle", help="Power-cycle it; switch it on if it is off.")
    ] = False,
    on: Annotated[bool, typer.Option("--on", help="Switch it on.")] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Even if it answers; needs --reason.")
    ] = False,
    reason: Reason = "",
) -> Result:
    from optics.plain import seconds_text
    from orchestrator.verbs import power as verbs

    if cycle and on:
        raise Usage("host power: give either --cycle or --on", hint="testbed host power --help")
    if force and not reason:
        raise Usage(
            "host power: --force needs a --reason",
            hint=f'testbed host power {host} --cycle --force --reason "..."',
        )
    if (force or reason) and not (cycle or on):
        raise Usage(
            "host power: --force and --reason are of --cycle and --on",
            hint=f"testbed host power {host} --cycle",
        )
    require_running_lab(call.settings.inventory)
    if not (cycle or on):
        seen = call.work(verbs.host_power, host)
        return Result(seen.to_json(), _power(seen), hint=_next(seen))
    what = "Power-cycle" if cycle else "Switch on"
    call.confirm(f"{what} {host}? Whatever still runs there ends")
    done = call.work(verbs.host_reset, host, cycle=cycle, force=force, reason=reason)
    text = f"{_power(done)}\n{done.reset}: {done.said}; it answered after {seconds_text(done.boot_s or 0.0)}"
    agent = "its agent runs" if done.agent else "its agent does not run yet"
    return Result(done.to_json(), f"{text}, {agent}   run {done.run}", hint=_next(done))


def _power(seen: HostPower) -> str:
    about = ", ".join(filter(None, (seen.model, seen.health and f"health {seen.health}")))
    state = "answers" if seen.answers else "does not answer"
    return (
        f"{seen.host}: {seen.power.lower()}, {state}   {about + '   ' if about else ''}{seen.bmc}"
    )


def _next(seen: HostPower) -> str:
    if not seen.answers:
        return f"testbed host power {seen.host} {'--on' if seen.power == 'Off' else '--cycle'}"
    if not seen.run:
        return ""
    if seen.plan:
        return f"testbed restore brings {seen.plan} back"
    return f"testbed host provision --limit {seen.host}, or testbed up with a plan"
