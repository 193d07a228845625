"""The options of `testbed design METHOD`, and which of them contradict each other."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli.call import Call, Usage
from orchestrator.cli.completing import workloads

if TYPE_CHECKING:
    from planner.topology.methods import Wanted

ALPHA_US, DOMAIN, PATIENCE = 0.0, 2, 10_000

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
Out = Annotated[
    Path | None, typer.Option("--out", "-o", metavar="FILE", help="Write the plan to this file.")
]
LabDir = Annotated[
    str | None,
    typer.Option("--lab", metavar="DIR", help="The lab to design for; same as --inventory."),
]
Rules = Annotated[
    str,
    typer.Option(
        "--rules",
        metavar="SET",
        help="TopoOpt as in the paper, or as in the released planner (artifact).",
    ),
]
Seed = Annotated[
    int, typer.Option("--seed", min=0, help="Random seed; the same seed gives the same plan.")
]
Backend = Annotated[
    str,
    typer.Option(
        "--backend",
        metavar="KIND",
        help="Ability of the collective library: single-order, ring-groups, msccl.",
    ),
]
Hosts = Annotated[
    str | None,
    typer.Option("--hosts", metavar="LIST", help="Hosts in the order of their ranks: gpu01,gpu02."),
]
NextTo = Annotated[
    list[Path] | None,
    typer.Option(
        "--beside",
        metavar="PLAN",
        help="Only use hosts that this plan leaves free; may be repeated.",
    ),
]
Ports = Annotated[int | None, typer.Option("--ports", min=1, help="Ports to use of each host.")]
Simplex = Annotated[
    bool,
    typer.Option(
        "--simplex", help="One-way links: connect transmitters and receivers independently."
    ),
]
Alpha = Annotated[
    float, typer.Option("--alpha-us", min=0, help="Fixed time per step (us), for predictions.")
]
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
Name = Annotated[str, typer.Option("--name", metavar="NAME", help="Name of the plan.")]
Domain = Annotated[int, typer.Option("--domain", min=1, help="Hosts per rail-only domain.")]
Segment = Annotated[
    list[str] | None,
    typer.Option(
        "--segment",
        metavar="NAME",
        help="Packet switch to use, * matches any characters; may be repeated.",
    ),
]
Relay = Annotated[
    str,
    typer.Option(
        "--relay",
        metavar="HOW",
        help="A rank passes on what no packet switch carries: in chunks, or once it is whole.",
    ),
]
Twisted = Annotated[
    bool,
    typer.Option(
        "--twisted", help="Torus: twist it, as TPU v4 does; fewer hops between its hosts."
    ),
]
Wavelengths = Annotated[
    int | None,
    typer.Option(
        "--wavelengths",
        min=1,
        help="Ring of wavelengths: use at most so many (all that hosts send).",
    ),
]
Schedule = Annotated[
    str,
    typer.Option(
        "--schedule",
        metavar="NAME",
        help="With --backend msccl: the schedule of all-reduce (testbed design methods).",
    ),
]
Search = Annotated[
    int,
    typer.Option(
        "--search",
        min=0,
        help="TopoOpt: number of parallelisation strategies to search (0: keep the workload's).",
    ),
]
Patience = Annotated[
    int,
    typer.Option(
        "--patience",
        min=1,
        help="With --search: stop after this many strategies without improvement.",
    ),
]
Chains = Annotated[
    int,
    typer.Option(
        "--chains",
        min=1,
        help="With --search: make so many searches with dice of their own, and take the best.",
    ),
]
Processes = Annotated[
    int,
    typer.Option(
        "--workers",
        min=1,
        max=256,
        help="Processes that search; the plan is the same with any number.",
    ),
]
Explain = Annotated[
    bool, typer.Option("--explain", help="Explain the design: degrees, strides, routing.")
]
Svg = Annotated[
    Path | None,
    typer.Option("--svg", metavar="FILE", help="Draw the rings and the traffic to this file."),
]
Export = Annotated[
    Path | None,
    typer.Option(
        "--export", metavar="DIR", help="Also write files for NCCL, MSCCL, ASTRA-sim, GraphViz, ..."
    ),
]
Predict = Annotated[
    bool, typer.Option("--predict", help="Show the predicted iteration time by part.")
]


def check(call: Call, wanted: Wanted, processes: int) -> None:
    """Raises: Usage - options that contradict each other, or do not apply to the method."""
    from orchestrator.plan.design.electrical import KINDS
    from orchestrator.plan.design.wavelengths import METHOD

    if wanted.rules != "paper" and wanted.method != "topoopt":
        raise Usage(
            f"{call.verb}: --rules applies to topoopt only",
            hint=f"testbed design topoopt --rules {wanted.rules}",
        )
    if wanted.domain != DOMAIN and wanted.method != "rail-only":
        raise Usage(
            f"{call.verb}: --domain applies to rail-only only",
            hint="testbed design rail-only --domain 4",
        )
    if wanted.twisted and wanted.method != "torus":
        raise Usage(
            f"{call.verb}: --twisted applies to torus only", hint="testbed design torus --twisted"
        )
    if both := [host for host in wanted.hosts if host in wanted.taken]:
        raise Usage(
            f"{call.verb}: --hosts {both[0]} contradicts --beside {wanted.taken[both[0]]}, which uses that host",
            hint="omit --hosts, or name hosts that are free",
        )
    if wanted.wavelengths and wanted.method != METHOD:
        raise Usage(
            f"{call.verb}: --wavelengths applies to {METHOD} only",
            hint="testbed design ring-wavelengths --wavelengths 2",
        )
    if wanted.method in KINDS:
        for option, given in (("--ports", wanted.ports is not None), ("--simplex", wanted.simplex)):
            if given:
                raise Usage(
                    f"{call.verb}: {option} applies to optical methods only", hint=f"omit {option}"
                )
    elif wanted.segments or wanted.relay:
        option = "--segment" if wanted.segments else "--relay"
        raise Usage(
            f"{call.verb}: {option} applies to {', '.join(KINDS)} only",
            hint="testbed design electrical --segment NAME",
        )
    if wanted.search and wanted.method != "topoopt":
        raise Usage(
            f"{call.verb}: --search applies to topoopt only",
            hint="testbed design topoopt --search 1000",
        )
    if wanted.patience != PATIENCE and not wanted.search:
        raise Usage(
            f"{call.verb}: --patience requires --search",
            hint=f"--search 100000 --patience {wanted.patience}",
        )
    if wanted.chains > 1 and not wanted.search:
        raise Usage(
            f"{call.verb}: --chains requires --search",
            hint=f"--search 1000 --chains {wanted.chains}",
        )
    if processes > 1 and not wanted.search and wanted.method != "exact":
        raise Usage(
            f"{call.verb}: --workers applies to exact, and to topoopt with --search",
            hint="omit --workers",
        )
