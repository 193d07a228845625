"""`testbed design`: a workload and a lab in, a plan out, and what it will take."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestrator.cli.call import Call, Result, Usage, verb
from orchestrator.cli.completing import workloads

if TYPE_CHECKING:
    from optics.plan import Plan
    from orchestrator.inventory.lab import Lab
    from orchestrator.plan.design.design import Design
    from planner.methods import Wanted

Workload = Annotated[
    Path | None,
    typer.Option(
        "--workload",
        "-w",
        metavar="FILE",
        help="What the job moves, a YAML file or a task graph.",
        show_default=False,
        autocompletion=workloads,
    ),
]
Out = Annotated[Path | None, typer.Option("--out", "-o", metavar="FILE", help="Write the plan here.", show_default=False)]
LabDir = Annotated[
    str | None, typer.Option("--lab", metavar="DIR", help="The lab to design for, as --inventory.", show_default=False)
]
Rules = Annotated[str, typer.Option("--rules", metavar="SET", help="paper, or artifact: what the released planner does.")]
Seed = Annotated[int, typer.Option("--seed", min=0, help="Of everything random; the same gives the same plan.")]
Backend = Annotated[
    str, typer.Option("--backend", metavar="KIND", help="What the collective library can do: single-order, ring-groups, msccl.")
]
Hosts = Annotated[
    str | None, typer.Option("--hosts", metavar="LIST", help="Hosts of ranks 0, 1, ...: gpu01,gpu02.", show_default=False)
]
Beside = Annotated[
    list[Path] | None,
    typer.Option("--beside", metavar="PLAN", help="Take hosts that this plan leaves free; may be repeated.", show_default=False),
]
Ports = Annotated[int | None, typer.Option("--ports", min=1, help="Use so many ports of each host.", show_default=False)]
Simplex = Annotated[bool, typer.Option("--simplex", help="Links that carry one way: transmitters and receivers joined apart.")]
Alpha = Annotated[float, typer.Option("--alpha-us", min=0, help="Time a step costs beside its bytes (us), for predictions.")]
Scale = Annotated[
    float | None,
    typer.Option(
        "--scale", min=0, help="Bytes of the job per byte of the workload; else chosen by the lab's rate.", show_default=False
    ),
]
Iterations = Annotated[int, typer.Option("--iterations", min=0, help="Of the job; 0: until stopped.")]
Name = Annotated[str, typer.Option("--name", metavar="NAME", help="Name of the plan.", show_default=False)]
Domain = Annotated[int, typer.Option("--domain", min=1, help="Hosts of a rail-only domain.")]
Segment = Annotated[
    list[str] | None,
    typer.Option("--segment", metavar="NAME", help="Packet switch to use, * for any letters; may be repeated.", show_default=False),
]
Search = Annotated[int, typer.Option("--search", min=0, help="TopoOpt: also try so many ways to spread the model (0: its own).")]
Patience = Annotated[
    int, typer.Option("--patience", min=1, help="End the search after so many tried in a row that are no better (--search).")
]
Explain = Annotated[bool, typer.Option("--explain", help="Say why: split, strides, routing.")]
Svg = Annotated[
    Path | None, typer.Option("--svg", metavar="FILE", help="Draw rings, and bytes before and after.", show_default=False)
]
Export = Annotated[
    Path | None,
    typer.Option("--export", metavar="DIR", help="Also write it for NCCL, MSCCL, ASTRA-sim, GraphViz, ...", show_default=False),
]
Predict = Annotated[bool, typer.Option("--predict", help="Say what an iteration will take, part by part.")]

SHORT = {
    "topoopt": "TopoOpt: rings of small diameter for sums, matched pairs for the rest.",
    "exact": "The best found for up to 16 hosts: circulants, other Cayley graphs, known graphs, graphs near them.",
    "direct": "Direct-connect: base graphs and their expansions.",
    "ring": "Parallel links along one ring.",
    "torus": "The squarest torus: takes no notice of traffic.",
    "random": "A random regular graph: takes no notice of traffic.",
    "expander": "A random regular graph with a large spectral gap.",
    "rail-only": "Domains and rails: nothing else joins hosts (--domain).",
    "ideal": "One packet switch that joins all hosts (fibres.yml: segments).",
    "fat-tree": "Packet switches in racks, with full bisection.",
    "oversubscribed": "Packet switches in racks whose uplinks carry less than their hosts send.",
    "electrical": "The packet switches that --segment names, together.",
}
ALPHA_US, DOMAIN, PATIENCE = 0.0, 2, 10_000


def one_of(value: str, known: tuple[str, ...], option: str) -> str:
    """Raises: Usage - `value` is not one of these."""
    if value not in known:
        from optics.plain import did_you_mean

        raise Usage(f"{option} {value}: not one of {', '.join(known)}{did_you_mean(value, known)}", hint=f"{option} {known[0]}")
    return value


def kept(path: Path, text: str) -> None:
    """Write a file whole. Raises: Usage - it cannot be written there."""
    from orchestrator.atomic import write_whole

    try:
        write_whole(path, text)
    except OSError as error:
        raise Usage(f"{path}: {error.strerror}", hint="name a file that can be written") from error


def exported(found: Design, lab: Lab, folder: Path) -> tuple[list[str], list[str]]:
    """Write the files of other tools into `folder`; return their names, and a line for each that does not apply.

    Raises: OSError - one cannot be written; what was there under its name is as it was.
    """
    from orchestrator.atomic import write_whole
    from orchestrator.plan.design.export import export

    files, refused = export(found, lab)
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        write_whole(folder / name, content)
    return list(files), refused


def _design(call: Call, method: str, workload: Path | None, **given: Any) -> Design:
    from orchestrator.cli.files import read_workload
    from orchestrator.cli.searching import watched
    from orchestrator.plan.design.design import design
    from orchestrator.plan.design.placement import taken
    from orchestrator.session import load_lab
    from planner.backend import BACKENDS
    from planner.methods import Wanted

    if workload is None:
        raise Usage(
            f"{call.verb}: no workload given", hint=f"testbed {call.verb} --workload examples/workloads/dlrm.yaml --out plan.json"
        )
    lab = load_lab(call.settings.inventory)
    named = tuple(host.strip() for host in (given["hosts"] or "").split(",") if host.strip())
    whose = taken(given["beside"])
    if both := [host for host in named if host in whose]:
        raise Usage(
            f"{call.verb}: --hosts {both[0]} and --beside {whose[both[0]]}, which has that host, contradict each other",
            hint="leave --hosts out, or name hosts that are free",
        )
    wanted = Wanted(
        method,
        rules=one_of(given["rules"], ("paper", "artifact"), "--rules"),  # type: ignore[arg-type]
        seed=given["seed"],
        backend=one_of(given["backend"], BACKENDS, "--backend"),  # type: ignore[arg-type]
        hosts=named,
        taken=whose,
        ports=given["ports"],
        simplex=given["simplex"],
        alpha_s=given["alpha_us"] / 1e6,
        scale=given["scale"],
        iterations=given["iterations"],
        domain=given["domain"],
        search=given["search"],
        patience=given["patience"],
        segments=tuple(given["segment"] or ()),
    )
    _fits(call, wanted)
    if wanted.search and method != "topoopt":
        raise Usage(f"{call.verb}: --search goes with topoopt only", hint="testbed design topoopt --search 1000")
    if wanted.patience != PATIENCE and not wanted.search:
        raise Usage(f"{call.verb}: --patience goes with --search", hint=f"--search 100000 --patience {wanted.patience}")
    read = read_workload(workload)
    if not wanted.search:
        return design(read, lab, wanted)
    if not read.workload.layers:
        raise Usage(f"{call.verb}: --search spreads a model's layers; {workload} says none", hint="leave --search out")
    return watched(call, lambda watch: design(read, lab, wanted, watch))


def _fits(call: Call, wanted: Wanted) -> None:
    """Raises: Usage - an option of optical methods with packet switches, or the reverse."""
    from orchestrator.plan.design.electrical import KINDS

    if wanted.method in KINDS:
        for option, given in (("--ports", wanted.ports is not None), ("--simplex", wanted.simplex)):
            if given:
                raise Usage(f"{call.verb}: {option} goes with optical methods", hint=f"leave {option} out")
    elif wanted.segments:
        raise Usage(f"{call.verb}: --segment goes with {', '.join(KINDS)}", hint="testbed design electrical --segment NAME")


def _there(path: Path, lab: Lab) -> Plan:
    """A plan that is beside. Raises: Usage - there is no such file; BadFile - it is no plan of this lab."""
    from orchestrator.session import load_plan

    if not path.exists():
        raise Usage(f"--beside {path}: no such file", hint="--beside first.json: a plan of this lab")
    return load_plan(path, lab)[0]


def register(root: typer.Typer) -> None:
    app = typer.Typer(name="design", help="Find a topology for a job.", no_args_is_help=True, rich_markup_mode=None)
    root.add_typer(app)
    for method, short in SHORT.items():
        _method(app, method, short)

    from orchestrator.cli import designmore

    designmore.register(app)


def _method(app: typer.Typer, method: str, short: str) -> None:
    @verb(
        app,
        method,
        short,
        examples=f"""
testbed design {method} --workload examples/workloads/dlrm.yaml --out plan.json
testbed up --topology plan.json
testbed design {method} -w examples/workloads/dlrm.yaml --predict --explain --svg design.svg
testbed design {method} -w examples/workloads/dlrm.yaml --export design     for NCCL, MSCCL, ASTRA-sim, ...
testbed design {method} -w other.yaml --beside plan.json --out other.json   a second job on hosts that are free
""",
        more="Nothing touches the lab. The plan's job replays the workload's traffic; `up` shows prediction beside measurement.",
    )
    def run(
        call: Call,
        workload: Workload = None,
        out: Out = None,
        lab: LabDir = None,
        rules: Rules = "paper",
        seed: Seed = 1,
        backend: Backend = "ring-groups",
        hosts: Hosts = None,
        beside: Beside = None,
        ports: Ports = None,
        simplex: Simplex = False,
        alpha_us: Alpha = ALPHA_US,
        scale: Scale = None,
        iterations: Iterations = 20,
        domain: Domain = DOMAIN,
        search: Search = 0,
        patience: Patience = PATIENCE,
        segment: Segment = None,
        name: Name = "",
        explain: Explain = False,
        predict: Predict = False,
        svg: Svg = None,
        export: Export = None,
    ) -> Result:
        import json
        import shlex

        from orchestrator.cli import designtext
        from orchestrator.cli.explaining import explained
        from orchestrator.plan.design.document import document
        from orchestrator.plan.design.placement import apart, owner_for, shared
        from orchestrator.plan.reader import read_plan
        from orchestrator.session import load_lab

        if lab and call.inventory and lab != call.inventory:
            raise Usage(f"{call.verb}: --lab {lab} and --inventory {call.inventory} contradict each other", hint="name one")
        if rules != "paper" and method != "topoopt":
            raise Usage(f"{call.verb}: --rules goes with topoopt only", hint=f"testbed design topoopt --rules {rules}")
        if domain != DOMAIN and method != "rail-only":
            raise Usage(f"{call.verb}: --domain goes with rail-only only", hint="testbed design rail-only --domain 4")
        call.inventory = lab or call.inventory
        there = {str(path): _there(path, load_lab(call.settings.inventory)) for path in beside or ()}
        found = _design(
            call,
            method,
            workload,
            rules=rules,
            seed=seed,
            backend=backend,
            hosts=hosts,
            beside=there,
            ports=ports,
            simplex=simplex,
            alpha_us=alpha_us,
            scale=scale,
            iterations=iterations,
            domain=domain,
            search=search,
            patience=patience,
            segment=segment,
        )
        others = [other.name for other in there.values()]
        plan = document(found, name)
        plan["name"] = name or apart(plan["name"], others)
        plan["job"]["name"] = apart(plan["job"]["name"], (other.job.name for other in there.values() if other.job))
        text = json.dumps(plan, indent=1) + "\n"
        read_plan(text, str(out or "plan.json"), load_lab(call.settings.inventory))  # nothing is written that `up` would refuse
        data = {"plan": plan, **designtext.data(found)}
        at = load_lab(call.settings.inventory)
        over_switches = [name for name, _ in found.found.segments]
        if both := shared(at, found.hosts, over_switches, there):
            data["shared"] = [{"plan": path, "segment": over} for path, over in both]
            for path, over in both:
                call.note(f"{path} goes over {over}, too: they share its uplinks, which the prediction does not count")
        said = explained(found, at) if explain else []
        data |= {"routing": said} if explain else {}
        rates = [at.segments[switch].link_mbps for switch in over_switches]
        lines = [designtext.text(found, plan["name"], routing=said, predict=predict, ports_mbps=rates)]
        if out is not None:
            kept(out, text)
        if svg is not None or export is not None:
            from orchestrator.plan.design import export as exporting

            if svg is not None:
                kept(svg, exporting.picture(found, at, plan["name"]))
                data["svg"] = str(svg)
            if export is not None:
                try:
                    written, refused = exported(found, at, export)
                except OSError as error:
                    raise Usage(f"{export}: {error.strerror}", hint="name a folder that can be written") from error
                data |= {"exported": written, "not_exported": refused}
                lines.insert(0, f"  exported   {len(written)} files to {export}")
                lines[1:1] = [f"             not {line}" for line in refused]
        as_other = f" --as {owner_for(plan['name'], others)}" if beside else ""
        where = f" --inventory {shlex.quote(call.inventory)}" if call.inventory else ""
        hint = "" if out is None else f"testbed up{where} --topology {shlex.quote(str(out))}{as_other}"
        if found.stopped:
            words = "the search was stopped; this is the best so far" + ("" if out is None else f", and so is {out}")
            return Result(data, "\n".join(lines), "E-INTERRUPTED", 130, words, hint, ok=False)
        return Result(data, "\n".join(lines), hint=hint)
