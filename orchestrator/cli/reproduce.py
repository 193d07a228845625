"""`testbed experiment reproduce`: run a scenario and say what it shows."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from orchestrator.cli.call import Call, Result, Usage, verb
from orchestrator.cli.installed import SCENARIO, scenarios
from orchestrator.cli.measuring import (
    Tenant,
    bounded,
    is_narrow,
    left_text,
    page_of,
    progress_of,
    runner_of,
)
from orchestrator.cli.shared import seconds
from orchestrator.experiments.files.scenario.values import LEAST_ROUNDS

if TYPE_CHECKING:
    from orchestrator.experiments.files.scenario.values import Scenario, WantedLab
    from orchestrator.experiments.scenario.record import ComparisonRecord, Known
    from orchestrator.inventory.lab import Lab
    from orchestrator.results import Json

NOT_REPRODUCED = 8

app = typer.Typer()


def _names(incomplete: str) -> list[str]:
    return [name for name in scenarios() if name.startswith(incomplete)]


@verb(
    app,
    "reproduce",
    "Run a scenario: measure its arms in turn and judge the claim.",
    examples="""
testbed experiment reproduce --list                     scenarios that come with the program
testbed experiment reproduce live-vs-restart
testbed experiment reproduce my/scenario.yaml --check   read it and its plans, start nothing
testbed experiment reproduce my/scenario.yaml --out page.html
testbed experiment reproduce rail-only --dilation 2     on a lab that is two times slower, to compare the ratios
testbed experiment reproduce rail-only --resume reproduce-2026-11-22-0001    make the measurements that an interrupt left out
""",
    more="""
A scenario (docs/how-to/scenarios.md) names its lab, arms, metrics, and the bands. A scenario with a lab of its own starts it and
stops it again. Arms are measured in rounds until the intervals are narrow or the budget is spent. The result is `claim holds`, or
with exit code 8 `claim holds, control does not`, `not shown`, `refuted` or `starved`; every measurement is saved.
""",
)
def reproduce(
    call: Call,
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[NAME|FILE]", help="A scenario of --list, or a file.", autocompletion=_names
        ),
    ] = None,
    list_: Annotated[
        bool, typer.Option("--list", help="List the scenarios that come with the program.")
    ] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Only read the scenario and its plans.")
    ] = False,
    repeats: Annotated[
        int | None,
        typer.Option(
            "--repeats",
            "-n",
            min=LEAST_ROUNDS,
            max=100,
            help="Rounds at least, instead of the scenario's.",
        ),
    ] = None,
    budget: Annotated[
        str | None,
        typer.Option(
            "--budget",
            metavar="TIME",
            help="Begin no round after this time, instead of the scenario's: 30m. With --resume: after this time in all.",
        ),
    ] = None,
    dilation: Annotated[
        float | None,
        typer.Option(
            "--dilation",
            metavar="K",
            min=1,
            max=100,
            help="Make the scenario's lab K times slower, instead of its own K.",
        ),
    ] = None,
    resume: Annotated[
        str | None,
        typer.Option(
            "--resume", metavar="RECORD", help="Make the missing measurements of this one."
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FILE", help="Write the report here.")
    ] = None,
) -> Result:
    if list_:
        return _listed(call)
    if name is None:
        raise Usage(
            "experiment reproduce: a scenario is required",
            hint="testbed experiment reproduce --list",
        )
    scenario = read(_file(name), dilation)
    if check:
        # what the planner predicts is of the numbers as they are written
        scenario = read(_file(name), 1)
    if resume is not None and repeats is not None:
        raise Usage(
            "experiment reproduce: --resume makes the rounds that were planned; give no --repeats"
        )
    scenario = scenario if repeats is None else replace(scenario, repeats=repeats)
    scenario = (
        scenario
        if budget is None
        else replace(scenario, budget_s=seconds("--budget", budget, "30m"))
    )
    kept = None if resume is None else _kept(call, scenario, resume, more=budget is not None)
    if scenario.lab is None:
        return _on_lab(call, scenario, kept, check, out)
    with _own_lab(call, scenario, scenario.lab, check=check) as own:
        return _on_lab(own, scenario, kept, check, out)


def _kept(call: Call, scenario: Scenario, word: str, *, more: bool) -> ComparisonRecord:
    """The record that is to be continued. Raises: Usage - it is of another scenario, of another
    version of this one, or has told something; only one that is starved gets `more` time.
    """
    from orchestrator.experiments.scenario.record import again, dilation_of

    found = again(call.settings, word, "reproduce")
    k = scenario.dilation
    if (
        found.data.get("scenario", {}).get("sha256") == scenario.sha256
        and (before := dilation_of(found.data)) != k
    ):
        hint = f"testbed experiment reproduce {scenario.name} --dilation {before:g} --resume {found.name}"
        raise Usage(
            f"experiment reproduce: {found.name} was measured at dilation {before:g}, not {k:g}",
            hint=hint,
        )
    if found.data.get("scenario", {}).get("sha256") != scenario.sha256:
        raise Usage(
            f"experiment reproduce: {found.name} was measured with another scenario file, or other plans, than {scenario.name}",
            hint=f"start again: testbed experiment reproduce {scenario.name}",
        )
    _go_on(found, scenario, more)
    return found


def _go_on(kept: ComparisonRecord, scenario: Scenario, more: bool) -> None:
    """Have measuring begin again, with the scenario's budget where there is to be `more`. Raises:
    Usage.
    """
    from orchestrator.experiments.scenario.record import minutes

    command, outcome = f"testbed experiment reproduce {scenario.name}", kept.data.get("outcome")
    claims = [one for one in kept.data.get("findings", ()) if one["role"] == "claim"]
    if judged := [one for one in claims if one["outcome"] != "starved"]:
        raise Usage(
            f"experiment reproduce: {kept.name} has judged {judged[0]['name']}: {judged[0]['outcome']}",
            hint=f"measure again: {command}",
        )
    if more and not outcome:
        raise Usage(
            f"experiment reproduce: {kept.name} was broken off, and goes on with the budget that it has",
            hint=f"{command} --resume {kept.name}",
        )
    budget_s = scenario.budget_s if more else float(kept.data.get("budget_s", 0))
    if outcome and kept.spent_s >= budget_s:
        raise Usage(
            f"experiment reproduce: {kept.name} has spent {minutes(kept.spent_s)}, and its budget is {minutes(budget_s)}",
            hint=f"allow more time in all: {command} --resume {kept.name} --budget {kept.spent_s * 2 // 60 + 1:.0f}m",
        )
    kept.data |= {"budget_s": budget_s, "ended": "", "outcome": "", "findings": []}


def read(path: Path, dilation: float | None = None) -> Scenario:
    """The scenario of a file, with its plans, at this dilation or else its own. Raises: BadFile -
    everything wrong with it.
    """
    from optics.errors import BadFile
    from optics.plain import reason
    from orchestrator.experiments.files.scenario.reader import read_scenario
    from orchestrator.experiments.scenario.dilated import dilated
    from orchestrator.files.reading import attentive, text_of

    try:
        text = text_of(path)
    except (OSError, UnicodeDecodeError) as error:
        raise BadFile(
            [f"{path}: {reason(error)}"], hint="testbed experiment reproduce --list"
        ) from error
    with attentive(str(path)):
        found = read_scenario(text, str(path), lambda word: text_of(path.parent / word))
    return dilated(found, dilation or found.dilation)


def _file(word: str) -> Path:
    """The file of a scenario. Raises: Usage - there is none."""
    from optics.plain import did_you_mean

    path = Path(word)
    if path.is_dir():
        path = path / SCENARIO
    if path.is_file() or path.suffix in (".yaml", ".yml", ".json"):
        return path
    known = scenarios()
    if word not in known:
        raise Usage(
            f"experiment reproduce: no scenario {word}{did_you_mean(word, known)}",
            hint="testbed experiment reproduce --list",
        )
    return known[word]


def _listed(call: Call) -> Result:
    from orchestrator.cli.text import columns
    from orchestrator.experiments.scenario.record import (
        dilation_of,
        expected_duration_s,
        known,
        minutes,
        read_records,
        shipped,
    )

    found: list[tuple[Scenario, Known]] = []
    for name, path in scenarios().items():
        own = read(path)
        before, came = known(call.settings, own), shipped(path, own)
        if not before.outcome and came.outcome and came.dilation == own.dilation:
            before = replace(came, each_s=before.each_s or came.each_s)
        same = (
            data
            for data in read_records(call.settings, name)
            if data["scenario"].get("sha256") == own.sha256
        )
        at_others = [
            read(path, k) for k in sorted({dilation_of(data) for data in same} - {own.dilation})
        ]
        found += [(own, before), *((s, known(call.settings, s)) for s in at_others)]
        if came.outcome and came.dilation not in {own.dilation, *(s.dilation for s in at_others)}:
            found.append((read(path, came.dilation), came))
    rows = [("scenario", "label", "hosts", "takes", "found", "when", "commit", "question")]
    rows += [
        (
            s.name + (f" (k = {s.dilation:g})" if s.dilation != 1 else ""),
            s.label,
            str(s.lab.hosts) if s.lab is not None else "any",
            ("" if before.each_s is not None else "up to ")
            + minutes(expected_duration_s(s, before)),
            before.outcome + (" (shipped)" if before.shipped else "") or "-",
            before.day or "-",
            before.commit or "-",
            s.title,
        )
        for s, before in found
    ]
    data = [
        {
            "name": s.name,
            "title": s.title,
            "label": s.label,
            "claim": s.claim,
            "source": [*s.source],
            "arms": [*s.arms],
        }
        | {"hosts": s.lab.hosts if s.lab is not None else None, "dilation": s.dilation}
        | {
            "seconds": expected_duration_s(s, before),
            "measured": before.each_s is not None,
            "outcome": before.outcome,
        }
        | {"day": before.day, "commit": before.commit, "shipped": before.shipped}
        for s, before in found
    ]
    return Result(
        {"scenarios": cast("Json", data)},
        "\n".join(columns(rows)),
        hint="testbed experiment reproduce NAME",
    )


@contextmanager
def _own_lab(call: Call, scenario: Scenario, wanted: WantedLab, *, check: bool) -> Iterator[Call]:
    """The call for the scenario's own lab, which is stopped at the end. Raises: Usage; Locked -
    another command uses it.
    """
    from optics.errors import Locked
    from orchestrator import emulated
    from orchestrator.experiments.scenario import lab
    from orchestrator.processes import file_lock
    from orchestrator.settings import private_dir

    if call.inventory is not None:
        raise Usage(
            f"experiment reproduce: {scenario.name} starts a lab of its own",
            hint="leave out --inventory, or give it `lab: any`",
        )
    if check:
        with tempfile.TemporaryDirectory(prefix="testbed-scenario-") as name:
            yield replace(call, inventory=str(lab.prepare_lab(Path(name) / scenario.name, wanted)))
        return
    place = private_dir(call.settings.state_dir / "scenarios")
    with file_lock(place / f"{scenario.name}.lock") as own:
        if not own:
            raise Locked(
                f"{scenario.name} is being reproduced by another command",
                hint="wait until it has ended",
            )
        inventory = lab.prepare_lab(place / scenario.name, wanted)
        try:
            yield replace(call, inventory=str(inventory))
        finally:
            emulated.stop_emulated_lab(inventory)


def _on_lab(
    call: Call, scenario: Scenario, kept: ComparisonRecord | None, check: bool, out: Path | None
) -> Result:
    """Measure on the lab of the call, judge, write the page. Raises: as the verbs; Interrupted."""
    from orchestrator import emulated
    from orchestrator.experiments.scenario.record import (
        begin_comparison,
        expected_duration_s,
        known,
        minutes,
    )
    from orchestrator.experiments.scenario.surroundings import environment_fingerprint
    from orchestrator.session import load_lab

    lab = load_lab(call.settings.inventory)
    if check:
        return _checked(lab, scenario)
    if kept is not None and kept.data["lab"] != lab.name:
        raise Usage(
            f"experiment reproduce: {kept.name} was measured on the lab {kept.data['lab']}, this is {lab.name}",
            hint="--inventory DIR of that lab",
        )
    if scenario.lab is None:
        call.confirm(
            f"Stop jobs and change the lab {lab.name} for {minutes(scenario.budget_s)} at most?"
        )
    before = known(call.settings, scenario)
    kept = kept or begin_comparison(
        call.settings,
        lab,
        scenario,
        kind="reproduce",
        leave="before" if scenario.lab is None else "down",
    )
    takes = minutes(expected_duration_s(scenario, before))
    text = f"about {takes}, as before" if before.each_s is not None else f"up to {takes}"
    most = minutes(float(kept.data["budget_s"]))
    text = (
        f"{kept.data['least']} rounds take {text}; more until intervals are narrow, {most} at most"
    )
    call.note(f"reproduce  {kept.name}: {scenario.title}; {text}")
    # In a lab of its own, too, each tenant is an owner; on one that is up a single tenant is
    # whoever gave the command.
    many = scenario.lab is not None or len(scenario.tenants) > 1
    verbs = {
        tenant: Tenant(replace(call, owner=tenant) if many else call) for tenant in scenario.tenants
    }
    if emulated.is_emulated(call.settings.inventory):
        emulated.start_emulated_lab(call.settings.inventory)
    kept.data["environment"] = environment_fingerprint(lab, kept.data.get("environment"))
    kept.save()
    runner = runner_of(call, kept, scenario, verbs)
    kept.data["environment"]["priority"] = runner.priority is not None
    with bounded(
        kept,
        verbs,
        f"testbed experiment reproduce {scenario.name} --resume {kept.name}",
        leaves=True,
    ):
        runner.measure_rounds(lambda: is_narrow(call, kept))
    kept.data["left"] = left_text(kept, verbs)
    return _result(call, kept, out)


def _checked(lab: Lab, scenario: Scenario) -> Result:
    """The arms, and what the planner predicts beside each band. Raises: BadFile - a plan does not
    fit the lab.
    """
    from orchestrator.cli.text import columns
    from orchestrator.experiments.scenario.predicted import predict_comparison
    from orchestrator.experiments.scenario.record import check_arms

    check_arms(lab, scenario)
    found = [predict_comparison(one, scenario.arms, lab) for one in scenario.compared]
    lines = [f"{scenario.name}: {len(scenario.arms)} arms: {', '.join(scenario.arms)}"]
    lines += columns(
        (f"  {p.compared.name} ({p.compared.role})", f"band {p.compared.band}", p.message)
        for p in found
    )
    data: dict[str, Json] = {
        "name": scenario.name,
        "arms": [*scenario.arms],
        "compared": [p.to_json() for p in found],
    }
    return Result(data, "\n".join(lines))


def _result(call: Call, kept: ComparisonRecord, out: Path | None) -> Result:
    from orchestrator.cli.text import columns
    from orchestrator.experiments.scenario.dilated import at_other_dilations, at_two
    from orchestrator.experiments.scenario.judging import RESULTS
    from orchestrator.experiments.scenario.record import dilation_of, keep_outcome
    from orchestrator.results import path_text
    from orchestrator.views.report.measured import findings, outcome_of

    page, found = page_of(call, kept, out)
    judged = findings(found, kept.data)
    outcome = outcome_of(judged, kept.data)
    keep_outcome(kept, outcome, [one.to_json() for one in judged])
    name, k = str(kept.data["scenario"]["name"]), dilation_of(kept.data)
    lines = [
        f"{name}: {outcome}   {kept.name}, {progress_of(kept)}" + (f", k = {k:g}" if k != 1 else "")
    ]
    lines += columns((f"  {f.compared.name} ({f.compared.role})", f.message) for f in judged)
    lines += [
        f"  {one.compared.name}: {one.message}"
        for other in at_other_dilations(call.settings, kept.data)
        for one in at_two(judged, kept.data, other)
    ]
    lines += [f"  lab        left {kept.data['left']}", f"  report     {path_text(page)}"]
    data: Mapping[str, Any] = {
        "name": name,
        "record": kept.name,
        "outcome": outcome,
        "label": kept.data["scenario"]["label"],
        "dilation": k,
        "findings": kept.data["findings"],
        "ended": kept.data["ended"],
        "slots": kept.slots,
        "environment": kept.data["environment"],
        "left": kept.data["left"],
        "report": str(page),
        "file": str(kept.folder / "campaign.json"),
    }
    text = "\n".join(lines)
    if outcome == RESULTS[0]:
        return Result(data, text)
    return Result(data, text, "E-NOT-REPRODUCED", NOT_REPRODUCED, f"{name}: {outcome}", ok=False)
