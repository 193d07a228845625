"""The verbs of `testbed` in groups, each with its module, and `testbed --help`, which imports none
of these modules, nor typer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from orchestrator.extensions import module_of
from orchestrator.extensions import verbs as of_extensions

GROUPS: Mapping[str, Mapping[str, tuple[str, str]]] = {
    "Change": {
        "up": ("change", "Bring a plan up: circuits, routes, checks, its job."),
        "plan": ("plan", "Show what `up` would change; prepare or rehearse it."),
        "down": ("change", "Stop the job, take down your circuits, restore the hosts."),
        "rollback": ("recover", "Undo a change: restore circuits, routes and job from before."),
        "resume": ("recover", "Continue a run that crashed or was stopped."),
        "confirm": ("recover", "Keep a change that was made with `up --confirm-within`."),
        "restore": ("recover", "Restore the current plan after a power cut."),
    },
    "Look": {
        "status": ("status", "Show the lab as its devices and hosts report it."),
        "verify": ("status", "Verify the lab from circuits to traffic."),
        "watch": ("watch", "Show the lab live in the terminal."),
        "ui": ("ui", "Serve a web page that shows the lab live."),
        "run": ("runs", "List and show past runs, and write notes to them."),
        "doctor": ("doctor", "Check everything the lab needs; say how to fix what fails."),
    },
    "Jobs": {
        "job": ("job", "The job of the current plan, and the queue of jobs."),
        "service": ("service", "Background processes: guard, schedule, queue, metrics, sink, ..."),
    },
    "Design and measure": {
        "design": ("design", "Design a topology for a job."),
        "experiment": ("experiment", "Compare plans, reproduce claims, run sweeps, write reports."),
    },
    "Share": {
        "lock": ("locks", "List locks; reserve hosts, ports, devices or the whole lab."),
        "tagout": ("tagout", "Tag out a fibre, port, device or host: block changes there."),
    },
    "Set up": {
        "lab": ("lab", "The emulated lab; import the inventory of a real one."),
        "devices": ("devices", "List devices and their optical power; check drivers."),
        "host": ("onhost", "Run a command on a host; provision hosts; power-cycle a dead one."),
        "telemetry": ("telemetry", "Sample, query and export; InfluxDB and Grafana."),
        "examples": ("installed", "List and copy the examples; print schemas of files."),
    },
}
"""The verbs in the order of `testbed --help`: of each its module, of this package unless it names
another, and what it does.
"""

VERBS: Mapping[str, tuple[str, str]] = {
    verb: found for verbs in GROUPS.values() for verb, found in verbs.items()
}

COMMON_OPTIONS: Mapping[str, tuple[str, str]] = {
    "inventory": ("-i, --inventory DIR", "Lab to use, a directory."),
    "json": ("--json", "Print one JSON object, errors too."),
    "no_color": ("--no-color", "No colours (also: NO_COLOR, or not a terminal)."),
    "yes": ("-y, --yes", "Do not ask."),
    "timeout": ("--timeout TIME", "Longest time it may take: 90s, 2m."),
    "owner": ("--as OWNER", "Whose part of the lab to work on: a user, a project."),
}
"""The options of all verbs, as `--help` shows them."""

_OF_TESTBED = {
    "--version": "Print the versions of testbed and its dependencies.",
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
    testbed run show                          show how long each phase took
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
    sections = {
        heading: {verb: summary for verb, (_, summary) in verbs.items()}
        for heading, verbs in GROUPS.items()
    }
    sections["Options"] = {**dict(COMMON_OPTIONS.values()), **_OF_TESTBED}
    return (
        _HEAD
        + "".join(_section(heading, rows) for heading, rows in sections.items())
        + _TAIL.rstrip("\n")
    )


def _section(heading: str, rows: Mapping[str, str]) -> str:
    wide = max(map(len, rows)) if heading == "Options" else max(map(len, VERBS))
    return f"\n{heading}:\n" + "".join(f"  {name:<{wide}}  {text}\n" for name, text in rows.items())
