"""`testbed experiment sweep`: run a campaign of trials, show its results."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from optics.plain import counted
from orchestrator.cli.call import Call, Result, Usage, verb
from orchestrator.cli.groups import Family, family, first_word

if TYPE_CHECKING:
    from orchestrator.experiments.sweep.campaign import CampaignProgress
    from orchestrator.experiments.sweep.record import CampaignRecord
    from orchestrator.results import Json

ASK = 500
"""More trials than this are asked about."""
RUN, FAILED = "run", 8
ERRORS, MOST_SHOWN = 8, 300
"""How many different errors are shown, and how much of each (characters); the rest is in the
results.
"""


class Files(Family):
    """`experiment sweep FILE` is `experiment sweep run FILE`: a group with an argument could have
    no verbs.
    """

    def ordered(self, args: list[str]) -> list[str]:
        place = first_word(args)
        named = place is not None and args[place] in self.commands
        return super().ordered(args if named or not args or args == ["--help"] else [RUN, *args])


app = family("sweep", Files, "Campaigns of many trials.")


@verb(
    app,
    RUN,
    "Run a campaign: the trials of a grid or a list of parameters.",
    examples="""
testbed experiment sweep examples/sweeps/methods.yaml
testbed experiment sweep examples/sweeps/methods.yaml --check        read it and count its trials, start nothing
testbed experiment sweep examples/sweeps/methods.yaml --resume       make the missing trials, and those that failed
testbed experiment sweep examples/sweeps/methods.yaml --on dask tcp://scheduler:8786
""",
    more="""
Trials run on worker processes of this machine, or on the workers of a Dask scheduler. Each result is kept as soon as its trial
ends, so a campaign that was interrupted or killed goes on with --resume. Needs: pip install 'optical-testbed[sweep]'.
docs/how-to/sweep.md
""",
)
def run(
    call: Call,
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="The campaign file (testbed.sweep/1).")
    ],
    scheduler: Annotated[
        str | None, typer.Argument(metavar="[ADDRESS]", help="With --on dask: of the scheduler.")
    ] = None,
    on: Annotated[
        str, typer.Option("--on", metavar="WHERE", help="local, or dask ADDRESS.")
    ] = "local",
    resume: Annotated[
        bool, typer.Option("--resume", help="Keep the results there are, make what is missing.")
    ] = False,
    workers: Annotated[
        int | None,
        typer.Option(
            "--workers",
            metavar="N",
            min=1,
            max=256,
            help="Processes of this machine; one a core by default.",
        ),
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Only read the campaign and count its trials.")
    ] = False,
) -> Result:
    where = _where(on, scheduler)
    if workers is not None and where != "local":
        raise Usage(
            f"experiment sweep: --workers is of --on local; {where} has its own",
            hint="start more there: dask worker ADDRESS",
        )
    from optics.errors import Infeasible
    from orchestrator.experiments.sweep.verb import carried_out, load_campaign

    campaign = load_campaign(file)
    count = len(campaign.trials)
    kinds = campaign.kinds
    message = f"{campaign.name}: {count} trials, {', '.join(f'{number} {kind}' for kind, number in kinds.items())}"
    if check:
        data: dict[str, Json] = {
            "name": campaign.name,
            "kinds": {**kinds},
            "trials": count,
            "parameters": [*campaign.parameters],
        }
        from orchestrator.experiments.sweep.trial import impossible

        text = f"{message}; parameters: {', '.join(campaign.parameters)}"
        if bad := impossible(trial.task for trial in campaign.trials):
            text += (
                f"\n{len(bad)} of {count} trials cannot be made: {'; '.join(dict.fromkeys(bad))}"
            )
            if len(bad) == count:
                raise Infeasible(text, hint="a larger lab, or a workload of fewer ranks")
        return Result(data, text, hint=f"testbed experiment sweep {file}")
    if count > ASK:
        try:
            call.confirm(f"{message}. Run them all?")
        except Usage as error:
            raise Usage(
                f"{message}; {error}", hint=f"testbed experiment sweep {file} --yes"
            ) from None
    with call.progress() as progress:
        found, seen = carried_out(
            call.settings,
            campaign,
            progress,
            where,
            workers,
            resume=resume,
            again=f"testbed experiment sweep {file} --resume",
        )
    return _ended(found, seen)


def _where(on: str, scheduler: str | None) -> str:
    """`local`, or the address of the scheduler. Raises: Usage."""
    if on == "dask":
        if scheduler is None:
            raise Usage(
                "experiment sweep: --on dask needs the scheduler's address",
                hint="testbed experiment sweep FILE --on dask tcp://scheduler:8786",
            )
        return scheduler
    if scheduler is not None:
        raise Usage(
            f"experiment sweep: {scheduler}: an address goes with --on dask",
            hint=f"testbed experiment sweep FILE --on dask {scheduler}",
        )
    return on


def _ended(found: CampaignRecord, seen: CampaignProgress) -> Result:
    from orchestrator.experiments.sweep.record import PARQUET
    from orchestrator.results import path_text

    table = found.folder / PARQUET
    lines = [
        f"{found.name}: {seen.done} of {seen.total} trials done, {seen.failed} failed",
        *_failures(found.results()),
    ]
    lines += [f"  results    {path_text(table)}"] if table.is_file() else []
    data = _data(found) | {"done": seen.done, "failed": seen.failed, "total": seen.total}
    text = "\n".join(lines)
    if not seen.failed:
        return Result(data, text, hint="testbed experiment sweep show")
    return Result(
        data,
        text,
        "E-TRIALS-FAILED",
        FAILED,
        f"{seen.failed} of {seen.total} trials failed, at each attempt",
        "testbed experiment sweep show; mend the cause, then testbed experiment sweep FILE --resume",
        ok=False,
    )


def _data(found: CampaignRecord) -> dict[str, Json]:
    from orchestrator.experiments.sweep.record import DATABASE, PARQUET

    return {
        "name": found.name,
        "folder": str(found.folder),
        "parquet": str(found.folder / PARQUET),
        "database": str(found.folder / DATABASE),
    }


def _failures(results: Iterable[Mapping[str, Any]]) -> list[str]:
    """A line for each error, with how many trials ended with it and the parameters of the first:
    `method=ring ports=4`.
    """
    found: dict[str, list[Mapping[str, Any]]] = {}
    for each in results:
        if each["state"] == "failed":
            found.setdefault(each["errors"][-1].splitlines()[0][:MOST_SHOWN], []).append(
                each["labels"]
            )
    lines = []
    for error, trials in found.items():
        others = f" (and {counted(len(trials) - 1, 'more trial')})" if len(trials) > 1 else ""
        lines.append(
            f"  failed     {' '.join(f'{name}={value}' for name, value in trials[0].items())}{others}: {error}"
        )
    return [
        *lines[:ERRORS],
        *(
            [f"             and {counted(len(lines) - ERRORS, 'other error')}"]
            if len(lines) > ERRORS
            else []
        ),
    ]


@verb(
    app,
    "show",
    "Show the results of a campaign: a table, a figure.",
    examples="""
testbed experiment sweep show                       the campaign that was begun last
testbed experiment sweep show methods --json
testbed experiment sweep show methods --figure x=ports,y=iteration_ms,by=method
testbed experiment sweep show methods --figure x=method,y=iteration_ms,by=workload --out figure.pdf
""",
    more="""
What differs only in `seed` or `repeat` is one row, or one point: its median, and the 95 % interval of the median.
Results of finished trials are shown while the campaign still runs.
""",
)
def show(
    call: Call,
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="Of the campaign; the latest by default.")
    ] = None,
    figure: Annotated[
        str | None,
        typer.Option(
            "--figure", metavar="x=X,y=Y,by=B", help="Draw Y over X, a line for each value of B."
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="FILE", help="The figure's file: .svg, .pdf or .png."),
    ] = None,
    value: Annotated[
        list[str] | None,
        typer.Option(
            "--value",
            metavar="NAME",
            help="Show this value; may be repeated; the first few by default.",
        ),
    ] = None,
) -> Result:
    from orchestrator.cli.text import columns
    from orchestrator.experiments.sweep import record
    from orchestrator.results import path_text, to_json
    from orchestrator.views.sweep import draw_figure, parse_figure, rows_of, sweep_table

    if out is not None and figure is None:
        raise Usage(
            "experiment sweep show: --out is of --figure",
            hint="testbed experiment sweep show --figure x=ports,y=iteration_ms",
        )
    found = record.find_campaign(call.settings, name)
    results = list(found.results())
    states = {
        state: sum(each["state"] == state for each in results) for state in ("done", "failed")
    }
    rows = rows_of(found, results)
    wanted = tuple(value or ())
    known = list(dict.fromkeys(each for row in rows for each in row.values))
    if unknown := [each for each in wanted if each not in known]:
        from optics.plain import did_you_mean

        raise Usage(
            f"experiment sweep show: no value {unknown[0]}{did_you_mean(unknown[0], known)}",
            hint=f"--value {known[0]}" if known else "",
        )
    waiting = len(found.trials) - len(results)
    text = f"{found.name}: {states['done']} of {len(found.trials)} trials done, {states['failed']} failed, {waiting} waiting"
    data: dict[str, Json] = (
        _data(found)
        | states
        | {"waiting": waiting, "rows": to_json([row.to_json() for row in rows])}
    )
    cells, meaning = sweep_table(rows, wanted)
    lines = [
        text,
        *(f"  {line}" for line in filter(None, (*columns(cells), meaning))),
        *_failures(results),
    ]
    if figure is not None:
        place = out or found.folder / "figure.svg"
        draw_figure(parse_figure(figure, found, known), rows, found, place, call.settings.cache_dir)
        data["figure"] = str(place)
        lines.append(f"  figure     {path_text(place)}")
    hint = "testbed experiment sweep FILE --resume" if waiting or states["failed"] else ""
    return Result(data, "\n".join(lines), hint=hint)
