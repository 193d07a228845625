"""The verbs `up` and `down`, which change the lab."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from orchestrator.cli.call import Call, Result, Usage, engine, verb
from orchestrator.cli.completing import avoidable, plans, saved_plans
from orchestrator.cli.rehearsing import next_to, rehearsed_first
from orchestrator.cli.shared import GuardJobs, Pairs, Restarts, Wait, changed, own_tenancy, seconds
from orchestrator.verbs.invoke import is_stopped_lab

Topology = Annotated[
    Path | None,
    typer.Option(
        "--topology", "-t", metavar="PLAN", help="The plan, a JSON file.", autocompletion=plans
    ),
]
PlanFile = Annotated[
    Path | None,
    typer.Argument(metavar="[PLAN]", help="The same as --topology.", autocompletion=plans),
]


def _stop_guard(call: Call) -> None:
    """Stop the guard of the plan that is to be taken down."""
    if not (call.settings.data_dir / "guard").is_dir():
        return
    from orchestrator.services.guard.process import GUARD

    if (stopped := GUARD.stop(call.settings, own_tenancy(call))) is not None:
        call.note(f"guard{stopped.of} stopped (pid {stopped.pid})")


def wanted(path: Path | None, call: Call, file: Path | None = None) -> Path:
    """The plan file of --topology or of the argument `file`. Raises: Usage, BadFile."""
    if path is not None and file is not None:
        raise Usage(
            f"{call.verb}: two plans given, {path} and {file}", hint=f"testbed {call.verb} --help"
        )
    path = path or file
    if path is None:
        raise Usage(
            f"{call.verb}: no plan given",
            hint=f"testbed {call.verb} --topology examples/ring-12.json",
        )
    if not path.exists():
        from optics.errors import BadFile
        from optics.plain import did_you_mean

        nearby = plans(f"{path.parent}/" if path.parent != Path() else "")
        raise BadFile([f"{path}: no such file{did_you_mean(str(path), nearby)}"])
    return path


def startable(
    path: Path | None, call: Call, file: Path | None, spares: tuple[str, ...] = ()
) -> Path:
    """As `wanted`, and read the plan and check the spares if the emulated lab has yet to be started
    for them.

    Raises: Usage, BadFile; Missing, Infeasible, Interlock - a spare cannot be one.
    """
    path = wanted(path, call, file)
    if is_stopped_lab(call.settings.inventory):
        from orchestrator.session import load_lab, load_plan

        lab = load_lab(call.settings.inventory)
        plan, text = load_plan(path, lab)
        if spares:
            from orchestrator.services.guard.recover import with_spares

            with call.store() as store:
                with_spares(text, plan, spares, lab, store, call.settings)
    return path


Avoid = Annotated[
    list[str] | None,
    typer.Option(
        "--avoid",
        metavar="WHAT",
        help="Do not use this host port, device port, fibre, trunk or device; links move to spare ports. May be repeated.",
        autocompletion=avoidable,
    ),
]


Relabel = Annotated[
    bool,
    typer.Option(
        "--relabel",
        help="Let hosts that the plan declares interchangeable swap places, so that fewer circuits move.",
    ),
]


Adopt = Annotated[
    list[str] | None,
    typer.Option(
        "--adopt",
        metavar="CIRCUIT",
        help="Take over another owner's circuit: ocs1:4->17, or all of them: owner:alice. May be repeated.",
    ),
]


def _within(text: str | None) -> float | None:
    """The time to confirm in (s). Raises: Usage - not one that hosts can count down."""
    if text is None:
        return None
    from orchestrator.store.confirmations import LEAST_S, MOST_S

    confirm_s = seconds("--confirm-within", text, "5m")
    if not LEAST_S <= confirm_s <= MOST_S:
        raise Usage(
            f"--confirm-within: must be from 1 s to {MOST_S / 3600:g} h, not {text}",
            hint="--confirm-within 5m",
        )
    return confirm_s


def _guard_jobs(call: Call, path: Path, guard: bool, jobs: bool, restarts: str | None) -> str:
    """The budget that the guard is to recover the job within, empty if it is not to.

    Raises: Usage - options that do not go together. Locked - a guard runs that does otherwise;
    nothing is changed yet.
    """
    command = f"up -t {shlex.quote(str(path))} --guard"
    if (jobs or restarts is not None) and not guard:
        raise Usage(
            f"up: --{'jobs' if jobs else 'restarts'} can only be used with --guard",
            hint=f"testbed {command} --jobs",
        )
    if not guard:
        return ""
    from orchestrator.services.guard.process import budget_of, recovers_as

    budget = budget_of(command, jobs, restarts or "")
    if budget is None:
        return ""
    if (call.settings.data_dir / "guard").is_dir():
        recovers_as(call.settings, own_tenancy(call), str(budget))
    return str(budget)


def _start_guard(call: Call, run: str, budget: str) -> str:
    """Start a guard for the plan that is up now; return the line that says so."""
    from orchestrator.services.guard.process import GUARD, GuardOptions, recovers_as

    log = call.settings.run_dir(run) / "guard.jsonl"
    if budget:
        recovers_as(call.settings, own_tenancy(call), budget)
    started = GUARD.start(
        call.settings, own_tenancy(call), log, GuardOptions(jobs=bool(budget), restarts=budget)
    )
    return f"  guard      {started}; events in {started.log}"


class JobMode(StrEnum):
    """What becomes of a running job."""

    live = "live"
    restart = "restart"
    keep = "keep"


def _names(text: str | None) -> tuple[str, ...]:
    """The hosts of --spares, such as `gpu11,gpu12`. Raises: Usage - it names none."""
    names = tuple(filter(None, map(str.strip, (text or "").split(","))))
    if text is not None and not names:
        raise Usage(
            f"up: --spares: {text!r} names no host",
            hint="idle hosts like those of the plan: --spares gpu11,gpu12",
        )
    return names


def _rehearsable(path: str, *, relabel: bool, dry_run: bool, spares: tuple[str, ...]) -> None:
    """Raises: Usage - an option that a rehearsal does not take, and what does the same."""
    path = shlex.quote(path)
    instead = {
        "spares": (bool(spares), f'write them in the plan: "spares": {json.dumps(spares)}'),
        "relabel": (
            relabel,
            f"testbed plan -t {path} --relabel -o saved.json; then: testbed up --plan saved.json --rehearse",
        ),
        "dry-run": (
            dry_run,
            f"testbed plan --rehearse -t {path}, which makes no change on the lab",
        ),
    }
    for option, (given, hint) in instead.items():
        if given:
            raise Usage(f"up: --rehearse and --{option} cannot be combined", hint=hint)


app = typer.Typer()


@verb(
    app,
    "up",
    "Bring a plan up: circuits, routes, checks, its job.",
    examples="""
testbed up examples/ring-12.json
testbed up examples/torus-3x4.json --dry-run            compute everything, change nothing
testbed up examples/topoopt-12.json --rehearse          on an emulated twin first, then ask
testbed up examples/ring-12.json --confirm-within 5m    roll back unless confirmed in time
testbed up examples/ring-12.json --guard                and reroute around circuits that lose light
""",
    more="Circuits that stay are not touched; those of other owners only if adopted. A stopped emulated lab is started.",
)
def up(
    call: Call,
    file: PlanFile = None,
    topology: Topology = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would change; change nothing.")
    ] = False,
    rehearse: Annotated[
        bool,
        typer.Option(
            "--rehearse", help="Make the change on an emulated twin first, show it, and ask."
        ),
    ] = False,
    confirm_within: Annotated[
        str | None,
        typer.Option(
            "--confirm-within",
            metavar="TIME",
            help="Roll back unless `testbed confirm` is run within TIME of its end: 5m.",
        ),
    ] = None,
    guard: Annotated[
        bool, typer.Option("--guard", help="Start the guard in the background; `down` stops it.")
    ] = False,
    jobs: GuardJobs = False,
    job: Annotated[
        JobMode | None,
        typer.Option(
            "--job",
            help="The running job changes its rings (live, or nothing is changed), is launched again (restart), or stays "
            "as it is (keep). Default: transition.live of the plan.",
        ),
    ] = None,
    no_job: Annotated[bool, typer.Option("--no-job", help="Do not launch the plan's job.")] = False,
    plan: Annotated[
        Path | None,
        typer.Option(
            "--plan",
            metavar="SAVED",
            help="A plan saved by `testbed plan -o`.",
            autocompletion=saved_plans,
        ),
    ] = None,
    avoid: Avoid = None,
    relabel: Relabel = False,
    adopt: Adopt = None,
    wait: Wait = None,
    pairs: Pairs = None,
    rollback: Annotated[
        bool,
        typer.Option(
            "--rollback/--no-rollback", help="Roll back a change that fails or is interrupted."
        ),
    ] = True,
    restarts: Restarts = None,
    spares: Annotated[
        str | None,
        typer.Option(
            "--spares",
            metavar="HOSTS",
            help="Idle hosts that may take the place of one that fails: gpu11,gpu12.",
        ),
    ] = None,
) -> Result:
    from orchestrator.cli import saved
    from orchestrator.store.options import UpOptions

    call.wait, call.pairs = wait, pairs
    if rehearse:
        _rehearsable(
            str(topology or file or "PLAN"), relabel=relabel, dry_run=dry_run, spares=_names(spares)
        )
    if plan is not None and (topology or file) is not None:
        raise Usage("up: --topology and --plan cannot be combined", hint="testbed up --help")
    if plan is not None and relabel:
        raise Usage(
            "up: --relabel and --plan cannot be combined", hint="testbed plan --relabel -o SAVED"
        )
    if job is not None and no_job:
        raise Usage("up: --job and --no-job cannot be combined", hint="testbed up --help")
    kept = saved.load(plan, call.settings.cache_dir) if plan is not None else None
    options = UpOptions(
        launch_job=not no_job,
        job=None if job is None else job.value,
        avoid=tuple(avoid or ()),
        adopt=tuple(adopt or ()),
        relabel=relabel,
        spares=_names(spares),
        rollback=rollback,
        confirm_s=_within(confirm_within),
        dry_run=dry_run,
    )
    path = startable(kept.topology if kept else topology, call, file, options.spares)
    budget = _guard_jobs(call, path, guard, jobs, restarts)
    rehearsed = (
        rehearsed_first(call, path, options, kept.fingerprint if kept else "") if rehearse else None
    )
    expected = rehearsed.fingerprint if rehearsed else kept.fingerprint if kept else ""
    report = call.work_on_lab(engine.up, path, replace(options, expected=expected))
    result = (
        changed(report, call)
        if rehearsed is None
        else next_to(changed(report, call), rehearsed, report, call)
    )
    return (
        replace(result, text=f"{_start_guard(call, report.run, budget)}\n{result.text}")
        if guard and not dry_run
        else result
    )


@verb(
    app,
    "down",
    "Stop the job, take down your circuits, restore the hosts.",
    examples="""
testbed down
testbed down --yes      do not ask (required without a terminal)
""",
    more="Circuits of other owners stay. The emulated lab keeps running; `testbed lab stop` stops it.",
)
def down(call: Call, wait: Wait = None) -> Result:
    call.wait = wait
    call.confirm(f"Stop the job and take down your circuits on {call.settings.inventory.name}?")
    _stop_guard(call)
    report = call.work(engine.down)
    return changed(report, call, retry="testbed down")
