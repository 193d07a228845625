"""`testbed design periodic`: a schedule in which every pair of hosts meets in turn, beside the plan
without one.
"""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestrator.cli.call import Call, Result, Usage, verb
from orchestrator.cli.completing import workloads
from orchestrator.cli.shared import one_of, write_file

if TYPE_CHECKING:
    from orchestrator.plan.design.periodic import PeriodicDesign

Workload = Annotated[
    Path | None,
    typer.Option(
        "--workload",
        "-w",
        metavar="FILE",
        help="The job's traffic: a YAML file, a task graph, or a Chakra trace (NAME.0.et).",
        autocompletion=workloads,
    ),
]
Dwell = Annotated[
    float | None,
    typer.Option(
        "--dwell", metavar="S", help="Light of a slot (s); by default for a duty of 90 %."
    ),
]
Guard = Annotated[
    str,
    typer.Option(
        "--guard",
        metavar="S|auto",
        help="Hosts stop sending this long (s) before a slot's end; auto: as packets wait.",
    ),
]
Pattern = Annotated[
    str,
    typer.Option(
        "--pattern",
        metavar="NAME",
        help="staggered: each port its own pairs; round-robin: all alike; opera: one port moves at a time; demand: by bytes.",
    ),
]
Out = Annotated[
    Path | None, typer.Option("--out", "-o", metavar="FILE", help="Write the plan to this file.")
]
Hosts = Annotated[
    str | None,
    typer.Option("--hosts", metavar="LIST", help="Hosts in the order of their ranks: gpu01,gpu02."),
]
Ports = Annotated[int | None, typer.Option("--ports", min=1, help="Ports to use of each host.")]
Scale = Annotated[
    float | None,
    typer.Option(
        "--scale",
        min=0,
        help="Bytes of the job per byte of the workload; by default from the lab's link rate.",
    ),
]
Iterations = Annotated[
    int, typer.Option("--iterations", min=0, help="Iterations of the job; 0: until stopped.")
]
Seed = Annotated[
    int, typer.Option("--seed", min=0, help="Random seed; the same seed gives the same plan.")
]
Name = Annotated[str, typer.Option("--name", metavar="NAME", help="Name of the plan.")]

app = typer.Typer()


@verb(
    app,
    "periodic",
    "A schedule: every pair of hosts in turn, beside the best plan without one.",
    examples="""
testbed design periodic -w examples/workloads/dlrm.yaml --dwell 0.45 -o plan.json
testbed design periodic -w examples/workloads/dlrm.yaml
testbed up --topology plan.json
""",
    more="The lab is not changed. The plan without a schedule is topoopt's, for the same hosts, ports and bytes.",
)
def periodic(
    call: Call,
    workload: Workload = None,
    dwell: Dwell = None,
    guard: Guard = "0",
    pattern: Pattern = "staggered",
    out: Out = None,
    hosts: Hosts = None,
    ports: Ports = None,
    scale: Scale = None,
    iterations: Iterations = 20,
    seed: Seed = 1,
    name: Name = "",
) -> Result:
    from orchestrator.plan.design.design import design
    from orchestrator.plan.design.document import document
    from orchestrator.plan.design.periodic import PATTERNS
    from orchestrator.plan.design.periodic import periodic as designed
    from orchestrator.plan.reader import read_plan
    from orchestrator.session import load_lab
    from orchestrator.verbs.design_files import read_workload
    from planner.topology.methods import Wanted

    if workload is None:
        hint = f"testbed {call.verb} --workload examples/workloads/dlrm.yaml --dwell 0.45 --out plan.json"
        raise Usage(f"{call.verb}: no workload given", hint=hint)
    one_of(pattern, PATTERNS, "--pattern")
    if dwell is not None and not 0 < dwell <= 3600:
        raise Usage(
            f"--dwell {dwell:g}: wanted a time above 0, at most 3600 s", hint="--dwell 0.45"
        )
    guard_s = _guard_s(guard)
    lab = load_lab(call.settings.inventory)
    named = tuple(host.strip() for host in (hosts or "").split(",") if host.strip())
    wanted = Wanted(
        "topoopt", hosts=named, ports=ports, scale=scale, iterations=iterations, seed=seed
    )
    static = design(read_workload(workload), lab, wanted)
    found = designed(
        static, document(static), lab, pattern=pattern, dwell_s=dwell, guard_s=guard_s, name=name
    )
    text = json.dumps(found.content, indent=1) + "\n"
    read_plan(text, str(out or "plan.json"), lab)
    if out is not None:
        write_file(out, text)
    where = f" --inventory {shlex.quote(call.inventory)}" if call.inventory else ""
    hint = "" if out is None else f"testbed up{where} --topology {shlex.quote(str(out))}"
    return Result(data(found), shown(found), hint=hint)


def _guard_s(text: str) -> float | None:
    """The guard of an option, None for `auto`. Raises: Usage - it is no time."""
    if text == "auto":
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= 3600:
        raise Usage(f"--guard {text}: wanted a time of 0 to 3600 s, or auto", hint="--guard auto")
    return seconds


def data(found: PeriodicDesign) -> dict[str, Any]:
    """What `--json` gives; times in milliseconds, of this lab."""
    both = {"static": found.static.here.iteration_s, "periodic": found.iteration_s}
    return {
        "plan": dict(found.content),
        "slots": found.slots,
        "duty": round(found.duty, 4),
        "cycle_ms": round(found.cycle_s * 1e3, 3),
        "dark_ms": round(found.dark_s * 1e3, 3),
        "iteration_ms": {name: round(seconds * 1e3, 3) for name, seconds in both.items()},
    }


def shown(found: PeriodicDesign) -> str:
    """Schedule, prediction, and the prediction without a schedule."""
    from optics.plain import counted, seconds_text
    from orchestrator.cli.text import columns

    static = found.static.here
    ports = ", ".join(found.ports)
    lines = [
        f"  schedule   {found.pattern}, {counted(found.slots, 'slot')} over {counted(len(found.static.hosts), 'host')} at {ports}",
        f"             dwell {seconds_text(found.dwell_s)}, guard {seconds_text(found.guard_s)}, dark {seconds_text(found.dark_s)}"
        f": cycle {seconds_text(found.cycle_s)}, duty {found.duty:.0%}",
    ]
    rows: list[tuple[str, ...]] = [
        ("  predicted", "compute", "transfers", "all-reduce", "iteration")
    ]
    for name, one in (("with the schedule", found), ("topoopt, static", static)):
        times = (one.compute_s, one.transfers_s, one.allreduce_s, one.iteration_s)
        rows.append((f"  {name}", *map(seconds_text, times)))
    lines += columns(rows)
    ratio = found.iteration_s / static.iteration_s
    better = f"{ratio:.2f} times as long as" if ratio >= 1 else f"{1 / ratio:.2f} times as fast as"
    name = found.static.read.workload.name
    return "\n".join(
        [
            *lines,
            f"Designed: {found.content['name']} for {name}; an iteration is {better} the static plan's",
        ]
    )
