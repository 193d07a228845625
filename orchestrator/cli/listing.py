"""The verbs of `testbed` in groups, each with its module, and `testbed --help`, which imports none of these modules, nor typer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from orchestrator.extensions import module_of
from orchestrator.extensions import verbs as of_extensions

GROUPS: Mapping[str, Mapping[str, tuple[str, str]]] = {
    "Change": {
        "up": ("change", "Bring a plan up: switch circuits, set routes, verify, launch its job."),
        "plan": ("change", "Show what `up` would change, port by port; change nothing."),
        "prewire": ("change", "Let robotic switches prepare the next plan, so that `up` is fast."),
        "down": ("change", "Stop the job, take down your circuits, restore the hosts."),
        "rehearse": ("rehearse", "Make a change on an emulated twin of this lab; the lab is only read."),
        "rollback": ("recover", "Undo a change: restore the circuits, routes and job from before it."),
        "resume": ("recover", "Continue a run that crashed or was stopped."),
        "confirm": ("recover", "Keep a change that was made with `up --confirm-within`."),
        "restore": ("recover", "Restore the current plan after a power cut."),
    },
    "Look": {
        "status": ("status", "Show the present state of the lab, as its devices and hosts report it."),
        "verify": ("status", "Verify the lab rung by rung: map, light, link, identity, forwarding, traffic."),
        "watch": ("watch", "Show the lab live: circuits, devices, rates, iterations, the last change."),
        "ui": ("ui", "Serve a web page that shows the lab live, with a button for the safe plan."),
        "history": ("runs", "List runs: who changed what, and when."),
        "show": ("runs", "Show a run: a waterfall of its phases, its steps, its job."),
        "note": ("runs", "Write notes and tags to runs, by which `history` finds them again."),
        "doctor": ("doctor", "Check everything the lab needs; show failures and how to fix them."),
    },
    "Jobs": {
        "job": ("job", "The job of the current plan."),
        "queue": ("queue", "List the jobs that run and wait; serve the queue."),
        "guard": ("guard", "Watch the current plan; reroute traffic around circuits that lose light; recover its job."),
        "turn": ("turn", "Turn the slots of the plan that is up."),
        "serve": ("serve", "Answer other programs."),
        **{
            verb: (f"extensions.{name}.command", summary)
            for name, verbs in of_extensions().items()
            for verb, summary in verbs.items()
            if " " not in verb
        },
    },
    "Design and measure": {
        "design": ("design", "Design a topology for a job."),
        "report": ("report", "Write a report on runs: a self-contained page, and figures for papers."),
        "compare": ("compare", "Measure plans alternately with the same job, and report the differences."),
        "reproduce": ("reproduce", "Run a scenario: measure its arms in turn and judge the claim."),
        "sweep": ("sweep", "Campaigns of many trials."),
    },
    "Share": {
        "lock": ("locks", "List locks, or reserve hosts, ports, devices or the whole lab."),
        "unlock": ("locks", "Release a reservation, or break another owner's lock."),
        "tagout": ("locks", "Tag out a fibre, port, device or host: block all changes there."),
    },
    "Set up": {
        "lab": ("lab", "The emulated lab (`up` starts it automatically)."),
        "devices": ("devices", "List the devices: identity, ports, optical power, abilities."),
        "driver": ("driver", "List, check and develop drivers."),
        "exec": ("onhost", "Run a command on a host, and exit with its exit code."),
        "shell": ("onhost", "Open a shell on a host."),
        "telemetry": ("telemetry", "Sample; copy journals to InfluxDB; query and export them."),
        "grafana": ("grafana", "Dashboards for Grafana."),
        "examples": ("installed", "List the installed examples, or copy them into a directory."),
        "schema": ("installed", "Print the JSON Schema of a file format, or of what --json prints."),
        "version": ("installed", "Print the versions of testbed and its dependencies."),
    },
}
"""The verbs in the order of `testbed --help`: of each its module, of this package unless it names another, and what it does."""

VERBS: Mapping[str, tuple[str, str]] = {verb: found for verbs in GROUPS.values() for verb, found in verbs.items()}

COMMON_OPTIONS: Mapping[str, tuple[str, str]] = {
    "inventory": ("-i, --inventory DIR", "Lab to use, a directory."),
    "json": ("--json", "Print one JSON object, errors too."),
    "no_color": ("--no-color", "No colours (also: NO_COLOR, or not a terminal)."),
    "yes": ("-y, --yes", "Do not ask."),
    "timeout": ("--timeout TIME", "Longest time it may take: 90s, 2m."),
    "owner": ("--as OWNER", "Whose part of the lab to work on: a user, a project."),
}
"""The options of all verbs, with their help."""

_OF_ALL = {
    "--install-completion": "Install completion for the current shell.",
    "--show-completion": "Show completion for the current shell, to copy it.",
    "--help": "Show this message and exit.",
}

_HEAD = """Usage: testbed [OPTIONS] COMMAND [ARGS]...

  Run a reconfigurable optical GPU cluster: plan a topology, switch circuits,
  set host routes, train.

  Examples:
    testbed up -t examples/topoopt-12.json    bring up a plan and run its job
    testbed plan -t examples/torus-3x4.json   show what would change
    testbed status                            show the state of the lab
    testbed show last                         show how long each phase took
    testbed down                              take down your circuits
"""

_TAIL = """
  Exit codes: 0 done, 1 unexpected, 2 usage, 3 bad plan or inventory, 4 locked,
  5 unreachable, 6 rolled back, 7 manual repair needed, 8 differences,
  9 interlock, 130 interrupted.
"""


def added(group: str) -> Iterator[Any]:
    """The apps of the verbs that extensions have in `testbed GROUP`."""
    for name, verbs in of_extensions().items():
        if any(verb.startswith(f"{group} ") for verb in verbs):
            yield getattr(module_of(name, "command"), group)


def help_text() -> str:
    """What `testbed --help` prints."""
    sections = {heading: {verb: summary for verb, (_, summary) in verbs.items()} for heading, verbs in GROUPS.items()}
    sections["Options"] = {**dict(COMMON_OPTIONS.values()), **_OF_ALL}
    return _HEAD + "".join(_section(heading, rows) for heading, rows in sections.items()) + _TAIL.rstrip("\n")


def _section(heading: str, rows: Mapping[str, str]) -> str:
    wide = max(map(len, rows)) if heading == "Options" else max(map(len, VERBS))
    return f"\n{heading}:\n" + "".join(f"  {name:<{wide}}  {words}\n" for name, words in rows.items())
