"""The verbs of `testbed design` that assess plans and labs: `compare`, `rewire`, `replan`,
`partitions` and `cost`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from orchestrator.cli.call import Call, Result, Usage, engine, verb
from orchestrator.cli.shared import own_tenancy, write_file

if TYPE_CHECKING:
    from optics.plan import Plan

Topology = Annotated[
    Path | None,
    typer.Option("--topology", "-t", metavar="PLAN", help="A plan made by `testbed design`."),
]
LinkUp = Annotated[
    float,
    typer.Option(
        "--link-up-s", min=0, help="Time (s) that ports need to come up once they have light."
    ),
]

MOST_SIDE, MOST_SIDES = 4096, 3
"""Limits of grids and slices on the command line."""
COUNTED = 2
MOST_GPUS = 10_000_000
"""Iterations of a running job over which ports are counted, unless they were counted before."""


def _plan(call: Call, path: Path | None) -> tuple[Path, Plan]:
    """The file of --topology, and its plan. Raises: Usage - there is none; BadFile - it is not a
    plan of this lab.
    """
    from orchestrator.session import load_lab, load_plan

    if path is None or not path.exists():
        what = "no plan given" if path is None else f"{path}: no such file"
        raise Usage(f"{call.verb}: {what}", hint=f"testbed {call.verb} --topology plan.json")
    return path, load_plan(path, load_lab(call.settings.inventory))[0]


app = typer.Typer()


@verb(
    app,
    "compare",
    "Compare the prediction for a run's job with its measurement.",
    examples="testbed design compare\ntestbed design compare 2026-11-21-0007",
)
def compare(
    call: Call,
    run: Annotated[
        str,
        typer.Argument(
            metavar="[RUN]", help="Run ID, its last digits, or `last` (the run of the newest job)."
        ),
    ] = "last",
) -> Result:
    """Prediction and measurement of a run's job. The port counters of a running job are read first.

    Raises: Missing - no such run, or nothing to compare.
    """
    from optics.errors import TestbedError
    from orchestrator.cli import designtext
    from orchestrator.results import to_json
    from orchestrator.session import load_lab
    from orchestrator.store.runs import named
    from orchestrator.verbs.profile import count_hops, job_profile, versus

    with call.store() as store:
        job = store.latest_job(own_tenancy(call))
        record = named(store, job.run if run == "last" and job is not None else run)
    lab = load_lab(call.settings.inventory)
    of_run = (record.id, record.plan_name, record.plan_text, call.settings.run_dir(record.id), lab)
    running = False
    if job is not None and job.run == record.id:
        try:
            # fetches the newest iterations
            running = call.work(engine.job_status).state == "running"
        except TestbedError as error:
            call.note(f"its newest iterations could not be fetched: {error.line}")
    found = versus(*of_run)
    if running and any(
        one.figure == "bandwidth tax" and one.predicted and one.measured is None
        for one in found.figures
    ):
        try:
            call.work(job_profile, iterations=COUNTED)
            found = versus(*of_run)
        except TestbedError as error:
            call.note(f"its ports' counters could not be read: {error.line}")
    try:
        if call.work(count_hops, record.id):
            found = versus(*of_run)
    except TestbedError as error:
        found = versus(*of_run)
        call.note(f"hops between its hosts could not be counted: {error.line}")
    data: dict[str, Any] = {
        **found.to_json(),
        "limit": found.limit,
        "figures": [{**cast(Any, to_json(one)), "off": one.off} for one in found.figures],
    }
    return Result(data, designtext.versus(found))


@verb(
    app,
    "rewire",
    "Show what changing to this plan costs the job, and when it pays off.",
    examples="testbed design rewire --topology plan.json\ntestbed design rewire -t plan.json --link-up-s 5.67",
    more="The lab is not changed. The change is that of `testbed plan`; both topologies are computed with the new plan's traffic.",
)
def rewire(call: Call, topology: Topology = None, link_up_s: LinkUp = 0.0) -> Result:
    from optics.errors import Missing
    from orchestrator.cli import designtext
    from orchestrator.plan.design.replan import rewiring
    from orchestrator.plan.reader import read_plan
    from orchestrator.session import load_lab

    path, wanted = _plan(call, topology)
    lab = load_lab(call.settings.inventory)
    with call.store() as store:
        current = store.current(own_tenancy(call))
    if current is None:
        raise Missing(
            "no plan is up on this lab: there is nothing to compare with",
            hint=f"testbed up --topology {path}",
        )
    change = call.work(engine.plan, path)
    report = rewiring(
        wanted, read_plan(current.plan_text, current.plan_name, lab), change, lab, link_up_s
    )
    return Result(report.to_json(), designtext.rewire(report))


@verb(
    app,
    "replan",
    "After a failure, compare rerouting now with rewiring at the next checkpoint.",
    examples="""
testbed design replan --topology plan.json --link gpu01:gpu02
testbed design replan --topology plan.json --host gpu07
testbed design replan --topology plan.json --link gpu01:gpu02 --out repaired.json
""",
    more="""
--out writes the plan that closes the rings again: with the ports of two links of matched pairs (TopoOpt's repair), or round the
host. It changes no lab; the next command does.
""",
)
def replan(
    call: Call,
    topology: Topology = None,
    link: Annotated[
        list[str] | None,
        typer.Option("--link", metavar="A:B", help="A failed link; may be repeated."),
    ] = None,
    host: Annotated[
        list[str] | None,
        typer.Option("--host", metavar="HOST", help="A failed host; may be repeated."),
    ] = None,
    link_up_s: LinkUp = 0.0,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FILE", help="Write the repaired plan.")
    ] = None,
) -> Result:
    from optics.errors import Missing
    from orchestrator.cli import designtext
    from orchestrator.plan.design.repair import repaired
    from orchestrator.plan.design.replan import repair_options
    from orchestrator.results import to_json
    from orchestrator.session import load_lab, load_plan

    pairs = [tuple(text.split(":")) for text in link or ()]
    if bad := [":".join(pair) for pair in pairs if len(pair) != 2]:
        raise Usage(f"{call.verb}: --link {bad[0]}: must name two hosts", hint="--link gpu01:gpu02")
    if not pairs and not host:
        raise Usage(f"{call.verb}: no failure given", hint="--link gpu01:gpu02, or --host gpu07")
    path, plan = _plan(call, topology)
    lab, failed = load_lab(call.settings.inventory), cast(list[tuple[str, str]], pairs)
    data: dict[str, Any] = {
        "plan": plan.name,
        "failed": [*(f"{a}--{b}" for a, b in failed), *(host or [])],
    }
    lines: list[str] = []
    try:
        found = repair_options(plan, lab, failed, host or [], link_up_s)
    except Missing:  # it does not say what its job moves, so no option has a time
        if out is None:
            raise
    else:
        even = found.options.break_even_iterations
        data |= cast(dict[str, Any], to_json(found.options)) | {
            "break_even_iterations": None if even == float("inf") else even
        }
        lines.append(designtext.replan(found))
    if out is None:
        return Result(data, "\n".join(lines))
    made = repaired(plan, load_plan(path, lab)[1], lab, failed, host or [])
    write_file(out, made.text)
    avoid = "".join(f" --avoid {port}" for port in made.ports) + (
        " --avoid PORT, of the failed link" if made.open else ""
    )
    lines[:0] = [f"  repaired   {text}" for text in made.message]
    data |= {
        "out": str(out),
        "repaired": [*made.message],
        "avoid": [str(port) for port in made.ports],
    }
    return Result(
        data,
        "\n".join([*lines, f"Repaired: {plan.name}, in {out}"]),
        hint=f"testbed up --topology {out}{avoid}",
    )


def _sides(option: str, text: str) -> tuple[int, ...]:
    """The sides of an option such as 3x4; none for an empty one. Raises: Usage - it has no such
    form.
    """
    tokens = text.split("x") if text else []
    if not all(
        word.isascii() and word.isdigit() and 1 <= int(word[:5]) <= MOST_SIDE and len(word) < 5
        for word in tokens
    ):
        raise Usage(
            f"{option} {text}: wanted sides of 1 to {MOST_SIDE} hosts with x between",
            hint=f"{option} 3x4",
        )
    if len(tokens) > MOST_SIDES:
        raise Usage(f"{option} {text}: more than {MOST_SIDES} sides", hint=f"{option} 3x4")
    return tuple(map(int, tokens))


@verb(
    app,
    "slices",
    "Show which hosts can form a slice after failures, and how likely one is.",
    examples="""
testbed design slices --slice 2x4
testbed design slices --slice 2x4 --failed gpu03,gpu08 --svg slices.svg
testbed design slices --slice 4x4 --grid 4x8 --block 2x2 --failures 6     a failed host takes out its block of 4
""",
    more="The hosts form a torus in the order of their names. Optical switches join any of them to a slice (reconfigurable); with "
    "fixed\ncables (static) they must stand beside each other. All counts are exact. The lab is not contacted.",
)
def partitions(
    call: Call,
    wanted: Annotated[
        str,
        typer.Option(
            "--slice", metavar="SIDES", help="The slice: hosts along each of its sides, as 2x4."
        ),
    ] = "",
    grid: Annotated[
        str,
        typer.Option(
            "--grid",
            metavar="SIDES",
            help="The lab's hosts as a grid, as 3x4; by default as square as can be.",
        ),
    ] = "",
    block: Annotated[
        str,
        typer.Option("--block", metavar="SIDES", help="Hosts that a slice takes together, as 2x2."),
    ] = "",
    failed: Annotated[
        str, typer.Option("--failed", metavar="LIST", help="Hosts that have failed: gpu03,gpu08.")
    ] = "",
    failures: Annotated[
        int,
        typer.Option("--failures", min=0, help="Show probabilities for up to this many failures."),
    ] = 4,
    svg: Annotated[
        Path | None, typer.Option("--svg", metavar="FILE", help="Draw them to this file.")
    ] = None,
) -> Result:
    from optics.plain import did_you_mean
    from orchestrator.cli import slicetext
    from orchestrator.plan.design.slices import slices as found_slices
    from orchestrator.session import load_lab

    if not wanted:
        raise Usage(f"{call.verb}: no slice given", hint="testbed design slices --slice 2x4")
    sides = {
        option: _sides(option, text)
        for option, text in (("--slice", wanted), ("--grid", grid), ("--block", block))
    }
    if odd := [
        option for option, one in sides.items() if one and len(one) != len(sides["--slice"])
    ]:
        message = f"{call.verb}: {odd[0]} and --slice have different numbers of sides"
        raise Usage(message, hint="testbed design slices --slice 2x4 --grid 3x4 --block 1x2")
    names = [host.strip() for host in failed.split(",") if host.strip()]
    lab = load_lab(call.settings.inventory)
    whole = [name for name, host in lab.hosts.items() if host.partition is None]
    if unknown := [host for host in names if host not in whole]:
        message = (
            f"--failed {failed}: there is no host {unknown[0]}{did_you_mean(unknown[0], whole)}"
        )
        raise Usage(f"{call.verb}: {message}", hint=f"the hosts: {', '.join(whole)}")
    report = found_slices(
        whole, sides["--slice"], sides["--grid"], sides["--block"], names, failures
    )
    data = slicetext.data(report)
    if svg is not None:
        write_file(svg, slicetext.svg(report))
        data["svg"] = str(svg)
    hosts = ",".join(report.reconfigurable.hosts)
    hint = (
        f"testbed design torus --hosts {hosts} --workload FILE --out plan.json"
        if report.failed and hosts
        else ""
    )
    return Result(data, slicetext.text(report), hint=hint)


@verb(
    app,
    "methods",
    "List topology generators and schedules, those of other distributions too.",
    examples="testbed design methods\ntestbed design methods --json | jq '.data.topologies[].name'",
)
def methods(call: Call) -> Result:
    from orchestrator.cli.text import columns
    from orchestrator.plan.design.electrical import KINDS
    from orchestrator.plan.design.wavelengths import METHOD
    from orchestrator.results import Json
    from planner.registry import OWN_SCHEDULES, SCHEDULES, TOPOLOGIES, plugins
    from planner.topology.methods import METHODS

    rows: list[tuple[str, ...]] = []
    data: dict[str, Json] = {}
    for kind, group, own in (
        ("topologies", TOPOLOGIES, (*METHODS, *KINDS, METHOD)),
        ("schedules", SCHEDULES, tuple(OWN_SCHEDULES)),
    ):
        others = plugins(group)
        known: list[Json] = [
            {"name": name, "distribution": "optical-testbed", "object": "", "problem": ""}
            for name in own
        ]
        known += [
            {
                "name": one.name,
                "distribution": one.distribution,
                "object": one.entry.value,
                "problem": one.problem,
            }
            for one in others
        ]
        data[kind] = known
        rows += [(kind, name, "testbed", "") for name in own]
        rows += [
            (kind, one.name, f"{one.entry.value} of {one.distribution}", one.problem)
            for one in others
        ]
    return Result(data, "\n".join(columns(rows)))


@verb(
    app,
    "cost",
    "Show cost and power of fabrics per host, or of a cluster, from an editable table of prices.",
    examples="testbed design cost --ports 4 --rate-gbps 25\ntestbed design cost --ports 8 --rate-gbps 100 --prices mine.yml"
    "\ntestbed design cost --gpus 32768 --domain 256 --radix 64 --rate-gbps 200",
    more="The supplied prices are unverified; totals are marked so until the file says who checked them.",
)
def cost(
    call: Call,
    ports: Annotated[int, typer.Option("--ports", min=1, help="Optical ports per host.")] = 4,
    rate_gbps: Annotated[
        float, typer.Option("--rate-gbps", min=0.001, help="Rate of each port.")
    ] = 25.0,
    gpus: Annotated[
        int | None,
        typer.Option(
            "--gpus", min=2, max=MOST_GPUS, help="Rails against full bisection, one port per GPU."
        ),
    ] = None,
    domain: Annotated[
        int, typer.Option("--domain", min=1, help="With --gpus: GPUs per domain.")
    ] = 8,
    radix: Annotated[
        int, typer.Option("--radix", min=2, max=4096, help="With --gpus: ports of a switch.")
    ] = 64,
    prices: Annotated[
        Path | None, typer.Option("--prices", metavar="FILE", help="Your own table of prices.")
    ] = None,
) -> Result:
    from orchestrator.cli import designtext
    from orchestrator.plan.design.prices import clusters, fabrics
    from orchestrator.verbs.design_files import read_prices

    table = read_prices(prices)
    if gpus is not None:
        cluster = clusters(table, gpus, radix, domain, rate_gbps)
        return Result(cluster.to_json(), designtext.clusters(cluster))
    found = fabrics(table, ports, rate_gbps)
    return Result(found.to_json(), designtext.cost(found))
