"""`testbed design METHOD`: from a workload and a lab to a plan, with a prediction of its iteration
time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperGroup
from typer.main import get_command

from orchestrator.cli import designmatch, designmore, designperiodic, interchange
from orchestrator.cli import designoptions as options
from orchestrator.cli.call import Call, Result, Usage, verb
from orchestrator.cli.shared import one_of, write_file

if TYPE_CHECKING:
    from optics.plan import Plan
    from orchestrator.inventory.lab import Lab
    from orchestrator.plan.design.design import Design, Read
    from planner.topology.alternating import Seen, Watch
    from planner.topology.methods import Wanted


SHORT = {
    "topoopt": "TopoOpt: rings of small diameter for all-reduce, matchings for the rest.",
    "exact": "Best topology found for up to 16 hosts: Cayley graphs, known graphs and variants.",
    "direct": "Direct-connect: base graphs and their expansions.",
    "ring": "Parallel links along one ring.",
    "torus": "The squarest torus (--twisted: twisted); ignores the traffic.",
    "random": "A random regular graph; ignores the traffic.",
    "expander": "A random regular graph with a large spectral gap.",
    "rail-only": "Rail-only: links only within domains and rails (--domain).",
    "ring-wavelengths": "Links over a ring of wavelength-selective switches, few wavelengths on any fibre (--wavelengths).",
    "ideal": "One packet switch for all hosts (`segments` in fibres.yml).",
    "fat-tree": "Packet switches in racks, with full bisection.",
    "oversubscribed": "Packet switches in racks, with oversubscribed uplinks.",
    "electrical": "The packet switches named by --segment.",
}
PROGRESS_S = 0.1
"""The progress of a search is shown at most this often."""


def exported(found: Design, lab: Lab, folder: Path) -> tuple[list[str], list[str]]:
    """Write the files for other tools into `folder`; return their names, and a line for each that
    does not apply.

    Raises: OSError - one cannot be written; an older file of that name is unchanged.
    """
    from orchestrator.files.atomic import write_whole
    from orchestrator.plan.design.export import export_design

    files, refused = export_design(found, lab)
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        write_whole(folder / name, content)
    return list(files), refused


def _found(call: Call, lab: Lab, wanted: Wanted, workload: Path, processes: int) -> Design:
    from orchestrator.cli.pool import workers
    from orchestrator.verbs.design_files import read_workload

    read = read_workload(workload)
    with workers(processes) as pool:
        return replace(
            _designed(call, read, lab, replace(wanted, workers=pool), workload), wanted=wanted
        )


def _designed(call: Call, read: Read, lab: Lab, wanted: Wanted, workload: Path) -> Design:
    from orchestrator.plan.design.design import design

    if not wanted.search:
        return design(read, lab, wanted)
    if not read.workload.layers:
        raise Usage(
            f"{call.verb}: --search distributes a model's layers; {workload} lists none",
            hint="omit --search",
        )
    return watched(call, lambda watch: design(read, lab, wanted, watch), wanted.chains)


def watched(call: Call, find: Callable[[Watch], Design], chains: int = 1) -> Design:
    """Show the progress of a search. The first Ctrl-C (or SIGTERM) ends it with the best so far (of
    several chains: of those that have ended, if any has), a second one the command.

    A signal after the last strategy has no effect: the design is then complete, and reported as
    such.
    """
    import signal

    from optics.plain import seconds_text

    stop = False
    shown = time.monotonic()

    def stopped(number: int, frame: FrameType | None) -> None:
        nonlocal stop
        if stop or chains > 1:  # else `watch` is asked soon
            raise KeyboardInterrupt
        stop = True

    with call.progress() as progress:

        def watch(seen: Seen) -> bool:
            nonlocal shown
            if (now := time.monotonic()) - shown >= PROGRESS_S:
                shown = now
                counted = "round" if chains == 1 else "chains ended:"
                text = f"{counted} {seen.step}, best iteration {seconds_text(seen.best_s)}; Ctrl-C takes the best so far"
                progress.update("search", seen.tried, seen.budget, text)
            return not stop

        before = {
            number: signal.signal(number, stopped) for number in (signal.SIGINT, signal.SIGTERM)
        }
        progress.phase("search", "strategies and topologies in turn")
        try:
            found = find(watch)
            progress.done("search", "stopped; the best so far" if found.stopped else "")
            return found
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _other(path: Path, lab: Lab) -> Plan:
    """A plan of --beside. Raises: Usage - there is no such file; BadFile - it is not a plan of this
    lab.
    """
    from orchestrator.session import load_plan

    if not path.exists():
        raise Usage(
            f"--beside {path}: no such file", hint="--beside first.json: a plan of this lab"
        )
    return load_plan(path, lab)[0]


class Methods(TyperGroup):
    """The methods. Those of other distributions are looked up only for the list, or if a name is
    not one of the program's own.
    """

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        return super().get_command(ctx, cmd_name) or _of_another(cmd_name)

    def list_commands(self, ctx: Any) -> list[str]:
        from planner.registry import TOPOLOGIES, plugins

        own = super().list_commands(ctx)
        return [
            *own,
            *(one.name for one in plugins(TOPOLOGIES) if not one.problem and one.name not in own),
        ]


_HELP = """Design a topology for a job.

\b
Examples:
  testbed design match -w examples/workloads/dlrm.yaml -o plan.json
  testbed up --topology plan.json
  testbed design ring -w examples/workloads/dlrm.yaml --predict --explain
  testbed design methods
"""
app = typer.Typer(
    name="design", cls=Methods, help=_HELP, no_args_is_help=True, rich_markup_mode=None
)


def _document(
    found: Design, lab: Lab, others: Mapping[str, Plan], name: str, out: Path | None
) -> dict[str, Any]:
    """The plan, written to `--out` unless `up` would refuse it. Raises: Usage - it cannot be
    written; BadFile - refused.
    """
    from orchestrator.plan.design.document import checked, document
    from orchestrator.plan.design.placement import unused_name

    plan = document(found, name)
    plan["name"] = name or unused_name(plan["name"], [other.name for other in others.values()])
    plan["job"]["name"] = unused_name(
        plan["job"]["name"], (other.job.name for other in others.values() if other.job)
    )
    text = checked(found, plan, str(out or "plan.json"), lab)
    if out is not None:
        write_file(out, text)
    return plan


def _result(
    call: Call,
    found: Design,
    lab: Lab,
    others: Mapping[str, Plan],
    plan: dict[str, Any],
    *,
    explain: bool,
    predict: bool,
    out: Path | None,
) -> Result:
    import shlex

    from orchestrator.cli import designtext
    from orchestrator.cli.explaining import explained
    from orchestrator.plan.design.placement import owner_for, shared

    data = {"plan": plan, **designtext.data(found)}
    switches = [name for name, _ in found.found.segments]
    if both := shared(lab, found.hosts, switches, others):
        data["shared"] = [{"plan": path, "segment": over} for path, over in both]
        for path, over in both:
            call.note(
                f"{path} also uses {over}; the prediction does not account for its shared uplinks"
            )
    lines = explained(found, lab) if explain else []
    data |= {"routing": lines} if explain else {}
    rates = [lab.segments[switch].link_mbps for switch in switches]
    text = designtext.text(found, plan["name"], routing=lines, predict=predict, ports_mbps=rates)
    as_other = (
        f" --as {owner_for(plan['name'], [other.name for other in others.values()])}"
        if others
        else ""
    )
    where = f" --inventory {shlex.quote(call.inventory)}" if call.inventory else ""
    hint = "" if out is None else f"testbed up{where} --topology {shlex.quote(str(out))}{as_other}"
    if found.stopped:
        message = "the search was stopped; this is the best so far" + (
            "" if out is None else f", and so is {out}"
        )
        return Result(data, text, "E-INTERRUPTED", 130, message, hint, ok=False)
    return Result(data, text, hint=hint)


def _with_files(
    result: Result,
    found: Design,
    lab: Lab,
    plan: Mapping[str, Any],
    svg: Path | None,
    export: Path | None,
) -> Result:
    """Write the files of --svg and --export, and add them to the result. Raises: Usage - it cannot
    be written.
    """
    data, lines = dict(result.data), []
    if svg is not None:
        from orchestrator.plan.design.export import picture

        write_file(svg, picture(found, lab, plan["name"]))
        data["svg"] = str(svg)
    if export is not None:
        try:
            written, refused = exported(found, lab, export)
        except OSError as error:
            raise Usage(
                f"{export}: {error.strerror}", hint="choose a directory that can be written"
            ) from error
        data |= {"exported": [*written], "not_exported": [*refused]}
        lines = [
            f"  exported   {len(written)} files to {export}",
            *(f"             not {line}" for line in refused),
        ]
    return replace(result, data=data, text="\n".join([*lines, result.text]))


def _of_another(name: str) -> Any:
    """The command of a topology generator of another distribution; None: there is none of this
    name.
    """
    from planner.registry import TOPOLOGIES, plugins

    found = next((one for one in plugins(TOPOLOGIES) if one.name == name), None)
    if found is None:
        return None
    alone = typer.Typer(rich_markup_mode=None, add_completion=False)
    _method(name, f"A topology generator of {found.distribution}.", alone)
    return get_command(alone)


def _method(method: str, short: str, app: typer.Typer) -> None:
    @verb(
        app,
        method,
        short,
        examples=f"""
testbed design {method} -w examples/workloads/dlrm.yaml -o plan.json
testbed up --topology plan.json
testbed design {method} -w examples/workloads/dlrm.yaml --predict --explain
testbed design {method} -w examples/workloads/dlrm.yaml --export design     files for NCCL, MSCCL, ASTRA-sim, ...
testbed design {method} -w other.yaml --beside plan.json -o other.json   a second job on free hosts
""",
        more="The lab is not changed. The plan's job replays the workload's traffic; `up` compares its times with the prediction.",
    )
    def run(
        call: Call,
        workload: options.Workload = None,
        out: options.Out = None,
        lab: options.LabDir = None,
        rules: options.Rules = "paper",
        seed: options.Seed = 1,
        backend: options.Backend = "ring-groups",
        hosts: options.Hosts = None,
        neighbour: options.NextTo = None,
        ports: options.Ports = None,
        simplex: options.Simplex = False,
        alpha_us: options.Alpha = options.ALPHA_US,
        scale: options.Scale = None,
        iterations: options.Iterations = 20,
        domain: options.Domain = options.DOMAIN,
        twisted: options.Twisted = False,
        wavelengths: options.Wavelengths = None,
        search: options.Search = 0,
        patience: options.Patience = options.PATIENCE,
        chains: options.Chains = 1,
        processes: options.Processes = 1,
        segment: options.Segment = None,
        relay: options.Relay = "",
        schedule: options.Schedule = "",
        name: options.Name = "",
        explain: options.Explain = False,
        predict: options.Predict = False,
        svg: options.Svg = None,
        export: options.Export = None,
    ) -> Result:
        from orchestrator.plan.design.placement import taken
        from orchestrator.plan.design.wavelengths import METHOD, held_by
        from orchestrator.session import load_lab
        from planner.model.backend import BACKENDS
        from planner.topology.methods import RELAYS, Wanted

        if lab and call.inventory and lab != call.inventory:
            raise Usage(
                f"{call.verb}: --lab {lab} and --inventory {call.inventory} contradict each other",
                hint="give only one",
            )
        if workload is None:
            hint = f"testbed {call.verb} --workload examples/workloads/dlrm.yaml --out plan.json"
            raise Usage(f"{call.verb}: no workload given", hint=hint)
        call.inventory = lab or call.inventory
        at = load_lab(call.settings.inventory)
        existing = {str(path): _other(path, at) for path in neighbour or ()}
        wanted = Wanted(
            method,
            rules=one_of(rules, ("paper", "artifact"), "--rules"),  # type: ignore[arg-type]
            seed=seed,
            backend=one_of(backend, BACKENDS, "--backend"),  # type: ignore[arg-type]
            hosts=tuple(host.strip() for host in (hosts or "").split(",") if host.strip()),
            taken=taken(existing),
            ports=ports,
            simplex=simplex,
            alpha_s=alpha_us / 1e6,
            scale=scale,
            iterations=iterations,
            domain=domain,
            search=search,
            patience=patience,
            chains=chains,
            segments=tuple(segment or ()),
            relay=one_of(relay, RELAYS, "--relay") if relay else "",  # type: ignore[arg-type]
            twisted=twisted,
            wavelengths=wavelengths or 0,
            held=held_by(existing, at) if method == METHOD else (),
            schedule=schedule,
        )
        options.check(call, wanted, processes)
        found = _found(call, at, wanted, workload, processes)
        plan = _document(found, at, existing, name, out)
        result = _result(call, found, at, existing, plan, explain=explain, predict=predict, out=out)
        return _with_files(result, found, at, plan, svg, export)


for _name, _short in SHORT.items():
    _method(_name, _short, app)
app.add_typer(designmatch.app)
app.add_typer(designperiodic.app)
app.add_typer(designmore.app)
app.add_typer(interchange.app)
