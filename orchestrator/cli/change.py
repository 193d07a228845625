"""The verbs that change the lab: `up`, `down`; and `plan`, which says what `up` would do."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from orchestrator.cli.call import Call, Result, Usage, engine, is_stopped_lab, verb
from orchestrator.cli.completing import avoidable, plans, saved_plans

Topology = Annotated[
    Path | None,
    typer.Option("--topology", "-t", metavar="PLAN", help="The plan, a JSON file.", show_default=False, autocompletion=plans),
]
PlanFile = Annotated[
    Path | None, typer.Argument(metavar="[PLAN]", help="The same as --topology.", show_default=False, autocompletion=plans)
]


def _unwatch(call: Call) -> None:
    """End the guard of the plan that is to be taken down."""
    if not (call.settings.data_dir / "guard").is_dir():
        return
    from orchestrator.engine.guard import process as guardfile
    from orchestrator.session import load_lab
    from orchestrator.store.keys import slice_of

    if (there := guardfile.stop(call.settings, slice_of(load_lab(call.settings.inventory), call.settings))) is not None:
        call.note(f"guard of {there.plan} ended (pid {there.pid})")


def _wanted(path: Path | None, call: Call, file: Path | None = None) -> Path:
    """The plan file that is meant: of --topology, or `file`, which stands alone. Raises: Usage, BadFile."""
    if path is not None and file is not None:
        raise Usage(f"{call.verb}: two plans are given, {path} and {file}", hint=f"testbed {call.verb} --help")
    path = path or file
    if path is None:
        raise Usage(f"{call.verb}: no plan given", hint=f"testbed {call.verb} --topology examples/ring-12.json")
    if not path.exists():
        from difflib import get_close_matches

        from optics.errors import BadFile

        near = get_close_matches(str(path), plans(f"{path.parent}/" if path.parent != Path() else ""), 1)
        raise BadFile([f"{path}: no such file" + (f"; did you mean {near[0]}?" if near else "")])
    return path


def _startable(path: Path | None, call: Call, file: Path | None = None) -> Path:
    """As `_wanted`; no lab is started for a plan that could not be brought up on it. Raises: Usage, BadFile."""
    path = _wanted(path, call, file)
    if is_stopped_lab(call.settings.inventory):
        from orchestrator.session import load_lab, load_plan

        load_plan(path, load_lab(call.settings.inventory))
    return path


Avoid = Annotated[
    list[str] | None,
    typer.Option(
        "--avoid",
        metavar="WHAT",
        help="Do without a host port, device port, fibre, trunk or device; links move to spare ports. May be repeated.",
        show_default=False,
        autocompletion=avoidable,
    ),
]


Relabel = Annotated[
    bool,
    typer.Option("--relabel", help="Let hosts that the plan calls interchangeable take each other's places, to move less light."),
]


Adopt = Annotated[
    list[str] | None,
    typer.Option(
        "--adopt",
        metavar="CIRCUIT",
        help="Make somebody else's circuit yours: ocs1:4->17, or all of an owner's: owner:alice. May be repeated.",
        show_default=False,
    ),
]
Wait = Annotated[
    str | None,
    typer.Option("--wait", metavar="TIME", help="Wait this long for others who hold what it needs: 10m.", show_default=False),
]


def _within(text: str | None) -> float | None:
    """The time to confirm in. Raises: Usage - not a time that hosts can count down."""
    if text is None:
        return None
    from orchestrator.settings import duration
    from orchestrator.store.confirmations import LEAST_S, MOST_S

    try:
        seconds = duration(text)
    except ValueError as error:
        raise Usage(f"--confirm-within: {error}", hint="--confirm-within 5m") from None
    if not LEAST_S <= seconds <= MOST_S:
        raise Usage(f"--confirm-within: from 1 s to {MOST_S / 3600:g} h, not {text}", hint="--confirm-within 5m")
    return seconds


def _watch(call: Call, run: str) -> str:
    """Have a guard for the plan that is up now; return what to say of it."""
    from orchestrator.engine.guard import process as guardfile
    from orchestrator.session import load_lab
    from orchestrator.store.keys import slice_of

    settings = call.settings
    there = guardfile.start(settings, slice_of(load_lab(settings.inventory), settings), settings.run_dir(run) / "guard.jsonl")
    return f"  guard      {there}; events in {there.log}"


def register(root: typer.Typer) -> None:
    @verb(
        root,
        "up",
        "Bring a plan up: switch, link, route, verify, launch its job.",
        examples="""
testbed up --topology examples/ring-12.json
testbed up examples/ring-12.json                    the same
testbed up -t examples/torus-3x4.json --dry-run     compute everything, write nothing
testbed up -t examples/topoopt-12.json --no-job     do not launch the plan's job
testbed up -t examples/ring-12.json --keep-job      training goes on over the change
testbed up --plan saved.json                        exactly the saved plan, or refuse
testbed up -t examples/ring-12.json --no-rollback   leave a change that fails as it is
testbed up -t examples/ring-12.json --avoid gpu03:p1    move that link to spare ports
testbed up -t examples/ring-12.json --wait 10m      queue behind whoever holds the lab
testbed up -t examples/ring-12.json --adopt "ocs1:4->17"    take over a circuit somebody else made
testbed up -t examples/ring-12.json --confirm-within 5m     back again unless `testbed confirm` comes
testbed up -t examples/ring-12.json --guard         and lead traffic round circuits that lose their light
""",
        more="Circuits that stay are not touched, circuits of others only if adopted. An emulated lab is started if need be.",
    )
    def up(
        call: Call,
        file: PlanFile = None,
        topology: Topology = None,
        plan: Annotated[
            Path | None,
            typer.Option(
                "--plan", metavar="SAVED", help="A plan saved with `plan -o`.", show_default=False, autocompletion=saved_plans
            ),
        ] = None,
        dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would happen; write nothing.")] = False,
        job: Annotated[bool, typer.Option("--job/--no-job", help="Launch the job of the plan.")] = True,
        keep_job: Annotated[
            bool, typer.Option("--keep-job", help="Let a job that runs go on, instead of stopping it for the plan's.")
        ] = False,
        avoid: Avoid = None,
        relabel: Relabel = False,
        adopt: Adopt = None,
        wait: Wait = None,
        rollback: Annotated[
            bool, typer.Option("--rollback/--no-rollback", help="Take a change back that fails or is interrupted.")
        ] = True,
        guard: Annotated[bool, typer.Option("--guard", help="Start `testbed guard` in the background, until `down`.")] = False,
        confirm_within: Annotated[
            str | None,
            typer.Option(
                "--confirm-within",
                metavar="TIME",
                help="Go back unless `testbed confirm` comes within TIME: 5m.",
                show_default=False,
            ),
        ] = None,
    ) -> Result:
        from orchestrator.cli import render, saved

        call.wait = wait
        if plan is not None and (topology or file) is not None:
            raise Usage("up: --topology and --plan exclude each other", hint="testbed up --help")
        if plan is not None and relabel:
            raise Usage("up: --relabel and --plan exclude each other", hint="testbed plan --relabel -o SAVED")
        kept = saved.load(plan, call.settings.cache_dir) if plan is not None else None
        path = _startable(kept.topology if kept else topology, call, file)
        report = call.work_on_lab(
            engine.up,
            path,
            dry_run=dry_run,
            launch_job=job,
            avoid=tuple(avoid or ()),
            relabel=relabel,
            adopt=tuple(adopt or ()),
            rollback=rollback,
            expected=kept.fingerprint if kept else "",
            confirm_s=_within(confirm_within),
            keep_job=keep_job,
        )
        text = render.up(report, call.colour, call.started, call.here, call.said)
        return Result(report.to_json(), f"{_watch(call, report.run)}\n{text}" if guard and not dry_run else text)

    @verb(
        root,
        "plan",
        "Show what `up` would change, port by port. Never writes.",
        examples="""
testbed plan examples/torus-3x4.json
testbed plan -t examples/ring-12.json -o saved.json   keep it for `testbed up --plan saved.json`
testbed plan -t examples/ring-12.json --exit-code     exit 8 if anything would change
testbed plan -t examples/ring-12.json --avoid gpu03:p1
testbed plan -t examples/torus-3x4.json --relabel     with hosts where they move the least
""",
    )
    def plan(
        call: Call,
        file: PlanFile = None,
        topology: Topology = None,
        avoid: Avoid = None,
        relabel: Relabel = False,
        adopt: Adopt = None,
        out: Annotated[
            Path | None, typer.Option("-o", "--out", metavar="FILE", help="Save the plan here.", show_default=False)
        ] = None,
        exit_code: Annotated[bool, typer.Option("--exit-code", help="Exit 8 if there are differences.")] = False,
    ) -> Result:
        from orchestrator.cli import render, saved

        path = _wanted(topology, call, file)
        report = call.work(engine.plan, path, avoid=tuple(avoid or ()), relabel=relabel, adopt=tuple(adopt or ()))
        hint = ""
        if out is not None:
            saved.keep(out, path, report)
            hint = f"testbed up --plan {out}"
        differs = exit_code and not report.nothing_to_do
        return Result(
            report.to_json(), render.plan(report, call.colour), "DIFFERENCES" if differs else "OK", 8 if differs else 0, hint=hint
        )

    @verb(
        root,
        "prewire",
        "Have robots wire the next plan in the dark, so that `up` only flips.",
        examples="""
testbed prewire --topology next.json
testbed up --topology next.json         milliseconds, after the minutes of prewire
""",
        more="Nothing that is lit is touched and no host sees any of it. What labs can do this: docs/how-to/look-ahead.md.",
    )
    def prewire(call: Call, file: PlanFile = None, topology: Topology = None, relabel: Relabel = False) -> Result:
        from orchestrator.cli import render

        path = _startable(topology, call, file)
        report = call.work_on_lab(engine.prewire, path, relabel=relabel)
        hint = f"testbed up --topology {path}" + (" --relabel" if relabel else "")
        return Result(report.to_json(), render.prewire(report, call.colour, call.said), hint=hint)

    @verb(
        root,
        "down",
        "Stop the job, take down what is ours, restore the hosts.",
        examples="""
testbed down
testbed down --yes      do not ask (needed without a terminal)
""",
        more="Circuits of others stay. The emulated lab keeps running: `testbed lab stop` ends it.",
    )
    def down(call: Call, wait: Wait = None) -> Result:
        from orchestrator.cli import render

        call.wait = wait
        call.confirm(f"Stop the job and take down our circuits on {call.settings.inventory.name}?")
        _unwatch(call)
        report = call.work(engine.down)
        text = render.down(report, call.colour, call.here, call.said)
        if report.left:
            from orchestrator.cli.text import left_words

            words = left_words(len(report.left))
            return Result(report.to_json(), text, "E-HANDS-NEEDED", 7, words, "when they are mended: testbed down", ok=False)
        return Result(report.to_json(), text)
