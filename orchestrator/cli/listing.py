"""The verbs of `testbed` by module, and the list of them in `testbed --help`, which imports none of these modules."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from typer.core import TyperGroup

from orchestrator.extensions import module_of
from orchestrator.extensions import verbs as of_extensions

VERBS: Mapping[str, Mapping[str, str]] = {
    "change": {
        "up": "Bring a plan up: switch circuits, set routes, verify, launch its job.",
        "plan": "Show what `up` would change, port by port; change nothing.",
        "prewire": "Let robotic switches prepare the next plan, so that `up` is fast.",
        "down": "Stop the job, take down your circuits, restore the hosts.",
    },
    "rehearse": {
        "rehearse": "Make a change on an emulated twin of this lab; the lab is only read.",
    },
    "recover": {
        "rollback": "Undo a change: restore the circuits, routes and job from before it.",
        "resume": "Continue a run that crashed or was stopped.",
        "confirm": "Keep a change that was made with `up --confirm-within`.",
        "restore": "Restore the current plan after a power cut.",
    },
    "status": {
        "status": "Show the present state of the lab, as its devices and hosts report it.",
        "verify": "Verify the lab rung by rung: map, light, link, identity, forwarding, traffic.",
    },
    "service": {
        "service": "Background processes: guard, schedule, queue, metrics, sink, adapt, pacing.",
    },
    **{
        f"extensions.{name}.command": {verb: summary for verb, summary in verbs.items() if " " not in verb}
        for name, verbs in of_extensions().items()
    },
    "locks": {
        "lock": "List locks, or reserve hosts, ports, devices or the whole lab.",
        "unlock": "Release a reservation, or break another owner's lock.",
        "tagout": "Tag out a fibre, port, device or host: block all changes there.",
    },
    "devices": {
        "devices": "List the devices: identity, ports, optical power, abilities.",
    },
    "driver": {
        "driver": "List, check and develop drivers.",
    },
    "design": {
        "design": "Design a topology for a job.",
    },
    "job": {
        "job": "The job of the current plan.",
    },
    "queue": {
        "queue": "List the jobs that run and wait.",
    },
    "onhost": {
        "exec": "Run a command on a host, and exit with its exit code.",
        "shell": "Open a shell on a host.",
    },
    "runs": {
        "history": "List runs: who changed what, and when.",
        "show": "Show a run: a waterfall of its phases, its steps, its job.",
        "note": "Write notes and tags to runs, by which `history` finds them again.",
    },
    "watch": {
        "watch": "Show the lab live: circuits, devices, rates, iterations, the last change.",
    },
    "ui": {
        "ui": "Serve a web page that shows the lab live, with a button for the safe plan.",
    },
    "report": {
        "report": "Write a report on runs: a self-contained page, and figures for papers.",
    },
    "compare": {
        "compare": "Measure plans alternately with the same job, and report the differences.",
    },
    "reproduce": {
        "reproduce": "Run a scenario: measure its arms in turn and judge the claim.",
    },
    "sweep": {
        "sweep": "Campaigns of many trials.",
    },
    "telemetry": {
        "telemetry": "Sample; copy journals to InfluxDB; query and export them.",
    },
    "grafana": {
        "grafana": "Dashboards for Grafana.",
    },
    "lab": {
        "lab": "The emulated lab (`up` starts it automatically).",
    },
    "doctor": {
        "doctor": "Check everything the lab needs; show failures and how to fix them.",
    },
    "installed": {
        "examples": "List the installed examples, or copy them into a directory.",
        "schema": "Print the JSON Schema of a file format, or of what --json prints.",
        "version": "Print the versions of testbed and its dependencies.",
    },
}
"""The verbs by module with their summaries, in the order of `testbed --help`; a module without its package is of this one."""


def added(group: str) -> Iterator[Any]:
    """The apps of the verbs that extensions have in `testbed GROUP`."""
    for name, verbs in of_extensions().items():
        if any(verb.startswith(f"{group} ") for verb in verbs):
            yield getattr(module_of(name, "command"), group)


class Listing(TyperGroup):
    """The command line without a verb: it lists all of them, and runs none."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(verb, summary) for verbs in VERBS.values() for verb, summary in verbs.items()])
