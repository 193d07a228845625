"""The results of a campaign for people: a table of medians, and a figure with intervals."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from optics.errors import Missing, Usage
from optics.plain import counted, did_you_mean, reason
from orchestrator.experiments.files.sweep.values import CHANCE, Label
from orchestrator.experiments.sweep.record import CampaignRecord
from orchestrator.results import Json, to_json

SHOWN = 3
"""Values in a table, where none are asked for by name."""
FIRST = ("iteration_ms", "lost_ms", "dark_ms", "reproduced")
"""Those that are shown before others."""
KINDS = (".svg", ".pdf", ".png")


LEVEL, FEW = 95, 5
"""Percentage of samples whose interval has the median in it, and the number of trials that have no
such interval.
"""
WIDTH, HEIGHT = 5.0, 3.4
"""Of a figure (inches): its text can be read on a telephone and in a column of a paper."""
ASIDE, TICKS, MOST_TICK, ROW = 0.08, 8, 28, 45
"""Between lines at one word (of 1); numbers that each have a tick; characters of a tick, and of all
in a row.
"""


@dataclass(frozen=True, slots=True)
class Middle:
    """What some trials measured: the median, its interval, the least and the largest; trials: how
    many have the value.

    low, high: None of 5 trials and fewer, from which no 95 % interval follows without an assumption
    about the distribution.
    """

    value: float
    low: float | None
    high: float | None
    least: float
    largest: float
    trials: int

    @property
    def ends(self) -> tuple[float, float]:
        """The interval, or the range where there is none."""
        return (
            (self.least, self.largest)
            if self.low is None or self.high is None
            else (self.low, self.high)
        )


@dataclass(frozen=True, slots=True)
class Row:
    """Trials that differ in seed and repeat alone; trials: how many."""

    labels: Mapping[str, Label]
    trials: int
    values: Mapping[str, Middle]

    def to_json(self) -> dict[str, Json]:
        return {"labels": dict(self.labels), "trials": self.trials, "values": to_json(self.values)}


def rows_of(record: CampaignRecord, results: Iterable[Mapping[str, Any]]) -> list[Row]:
    """The finished trials, put together, in the order of the campaign."""
    names = [name for name in record.parameters if name not in CHANCE]
    found: dict[tuple[object, ...], list[Mapping[str, Any]]] = {}
    for result in results:
        if result["state"] == "done":
            found.setdefault(tuple(result["labels"].get(name) for name in names), []).append(result)
    rows = []
    for trials in found.values():
        measured: dict[str, list[float]] = {}
        for trial in trials:
            for name, value in trial["values"].items():
                measured.setdefault(name, []).append(value)
        labels = {name: value for name, value in trials[0]["labels"].items() if name not in CHANCE}
        rows.append(
            Row(labels, len(trials), {name: middle(values) for name, values in measured.items()})
        )
    return rows


def middle(values: Sequence[float]) -> Middle:
    """The median with its interval between two of the values themselves, whatever their
    distribution.

    A value is below the median as a coin falls, so the k-th from either end encloses it but for
    twice the binomial tail below k (the interval of the sign test).
    """
    ranked, number = sorted(values), len(values)
    outside, paths, k = 0, 1, 0
    while (outside + paths) * 200 <= (100 - LEVEL) << number:
        outside, paths, k = outside + paths, paths * (number - k) // (k + 1), k + 1
    low, high = (ranked[k - 1], ranked[-k]) if k else (None, None)
    return Middle(median(ranked), low, high, ranked[0], ranked[-1], number)


def values_to_show(rows: Sequence[Row], wanted: Sequence[str]) -> list[str]:
    """The values to show: those asked for, else the first few."""
    known = list(dict.fromkeys(name for row in rows for name in row.values))
    return (
        list(wanted)
        or sorted(known, key=lambda name: FIRST.index(name) if name in FIRST else len(FIRST))[
            :SHOWN
        ]
    )


def sweep_table(rows: Sequence[Row], wanted: Sequence[str]) -> tuple[list[list[str]], str]:
    """Rows of cells: parameters, number of trials, and of each value the median with its interval;
    and what its brackets mean.
    """
    names = list(dict.fromkeys(name for row in rows for name in row.labels))
    values = values_to_show(rows, wanted)
    if not rows:
        return [], ""
    cells = [[*names, "trials", *values]]
    cells += [
        [
            *(str(row.labels.get(name, "")) for name in names),
            str(row.trials),
            *(_text(row.values.get(value)) for value in values),
        ]
        for row in rows
    ]
    return cells, legend(
        row.values[value] for row in rows for value in values if value in row.values
    )


def _text(found: Middle | None) -> str:
    if found is None:
        return "-"
    low, high = found.ends
    if low == high:
        return f"{found.value:.4g}"
    return (
        f"{found.value:.4g} [{low:.4g} to {high:.4g}]"
        if found.low is None
        else f"{found.value:.4g} ({low:.4g} to {high:.4g})"
    )


def legend(found: Iterable[Middle]) -> str:
    """What the ends of these values are: an interval, or a range."""
    few = {each.low is None for each in found if each.least != each.largest}
    texts = {
        False: f"( ) {LEVEL} % interval of the median",
        True: "[ ] least and largest: an interval needs 6 trials",
    }
    return "; ".join(texts[each] for each in sorted(few))


@dataclass(frozen=True, slots=True)
class FigureRequest:
    """A figure: the value y over x, a parameter or another value, with a line for each value of the
    parameter `by`. only: values of other parameters, as tables show them."""

    x: str
    y: str
    by: str = ""
    only: Mapping[str, str] = field(default_factory=dict)

    def of(self, rows: Sequence[Row]) -> list[Row]:
        """The rows to draw. Raises: Usage - over a parameter, rows that differ in yet another one
        would be one line.
        """
        found = [
            row
            for row in rows
            if all(str(row.labels.get(name)) == value for name, value in self.only.items())
        ]
        for name in found[0].labels if found and self.x in found[0].labels else ():
            values = list(dict.fromkeys(str(row.labels.get(name)) for row in found))
            if name not in (self.x, self.by) and len(values) > 1:
                text = f"--figure: {name} differs, too ({', '.join(values[:8])}): choose one, or give it as by"
                raise Usage(
                    text,
                    hint=f"testbed experiment sweep show --figure x={self.x},y={self.y},by={self.by or name},{name}={values[0]}",
                )
        return found


def parse_figure(text: str, record: CampaignRecord, values: Sequence[str]) -> FigureRequest:
    """Read `x=dark_ms,y=lost_ms,by=plan,method=ring`. Raises: Usage - a part is missing, or names
    nothing that there is.
    """
    given = dict(part.partition("=")[::2] for part in text.split(","))
    parameters = [name for name in record.parameters if name not in CHANCE]
    only = {name: value for name, value in given.items() if name not in ("x", "y", "by")}
    problems = [
        f"--figure: {name}: not x, y, by, or a parameter{did_you_mean(name, parameters)}"
        for name in only
        if name not in parameters
    ]
    problems += [f"--figure: {name} is missing" for name in ("x", "y") if not given.get(name)]
    for name, known in (("x", [*parameters, *values]), ("y", values), ("by", parameters)):
        if given.get(name) and given[name] not in known:
            problems.append(
                f"--figure: {name}={given[name]}: wanted one of {', '.join(known)}{did_you_mean(given[name], known)}"
            )
    if problems:
        raise Usage(
            "\n".join(problems),
            hint="testbed experiment sweep show --figure x=ports,y=iteration_ms,by=method",
        )
    return FigureRequest(given["x"], given["y"], given.get("by", ""), only)


def draw_figure(
    wanted: FigureRequest, rows: Sequence[Row], record: CampaignRecord, path: Path, cache_dir: Path
) -> None:
    """Draw a figure into a file. Raises: Missing - nothing to draw. Usage - no kind of file that
    can be drawn, or not writable.
    """
    from orchestrator.files.atomic import atomic_write
    from orchestrator.views.report.figures import one_figure, prepare, style

    if path.suffix not in KINDS:
        raise Usage(f"--out {path}: wanted a file that ends with {', '.join(KINDS)}")
    lines: dict[Label, list[tuple[Label, Middle]]] = {}
    for row in wanted.of(rows):
        at = row.values[wanted.x].value if wanted.x in row.values else row.labels.get(wanted.x)
        if wanted.y in row.values and at is not None:
            lines.setdefault(row.labels.get(wanted.by, ""), []).append((at, row.values[wanted.y]))
    if not lines:
        raise Missing(
            f"{record.name}: no trial that is done has {wanted.y} and {wanted.x}",
            hint="testbed experiment sweep show",
        )
    places = list(dict.fromkeys(at for line in lines.values() for at, _ in line))
    text = any(isinstance(at, str) for at in places)
    prepare(cache_dir)
    with one_figure(HEIGHT) as (figure, axes):
        figure.set_figwidth(WIDTH)
        for number, (label, line) in enumerate(lines.items()):
            # else those of one place hide each other
            aside = (number - (len(lines) - 1) / 2) * ASIDE if text else 0.0
            placed = [
                (places.index(at) + aside if text else float(at), found) for at, found in line
            ]
            placed.sort(key=lambda point: point[0])
            axes.errorbar(
                [at for at, _ in placed],
                [found.value for _, found in placed],
                yerr=[
                    [found.value - found.ends[0] for _, found in placed],
                    [found.ends[1] - found.value for _, found in placed],
                ],
                marker="o",
                markersize=3,
                capsize=2,
                linewidth=1,
                linestyle="" if text or wanted.x in rows[0].values else "-",
                label=str(label) or None,
            )
        if text:
            ticks = [str(at)[:MOST_TICK] for at in places]
            slant = {"rotation": 20, "ha": "right"} if sum(map(len, ticks)) > ROW else {}
            axes.set_xticks(range(len(places)), ticks, **slant)
        elif wanted.x in record.parameters and len(places) <= TICKS:
            axes.set_xticks(sorted(places))
        axes.set_xlabel(wanted.x)
        axes.set_ylabel(wanted.y)
        axes.set_title(
            _ends(found for line in lines.values() for _, found in line),
            loc="left",
            fontsize="small",
        )
        axes.margins(y=0.1)
        low, high = axes.get_ylim()
        axes.set_ylim(min(low, 0.0), high + 0.05 * abs(high))
        axes.grid(True, axis="y")
        if wanted.by:
            figure.legend(title=wanted.by, loc="outside upper left", ncols=4)
    try:
        with style(), atomic_write(path) as fresh:
            figure.savefig(fresh, format=path.suffix[1:], dpi=200, facecolor="white")
    except OSError as error:
        raise Usage(f"{path}: {reason(error)}") from error


def _ends(found: Iterable[Middle]) -> str:
    """What a figure's points and bars are."""
    numbers = sorted({each.trials for each in found})
    trials = (
        f"{numbers[0]} to {numbers[-1]} trials"
        if len(numbers) > 1
        else counted(numbers[0], "trial")
    )
    if numbers[-1] == 1:
        return "one trial a point: no interval"
    bars = f"{LEVEL} % interval of the median" if numbers[0] > FEW else "least and largest"
    bars += (
        f", of {FEW} trials and fewer least and largest" if numbers[0] <= FEW < numbers[-1] else ""
    )
    return f"median of {trials}; bars: {bars}"
