"""The results of a campaign for people: a table of medians, and a figure with intervals."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from optics.errors import BadFile
from optics.plain import did_you_mean, reason
from orchestrator.engine.scenario.interval import Interval, median_interval
from orchestrator.engine.sweep.record import Record
from orchestrator.plan.sweep.values import CHANCE, Label
from orchestrator.results import Json, to_json

SHOWN = 3
"""Values in a table, where none are asked for by name."""
FIRST = ("iteration_ms", "lost_ms", "dark_ms", "reproduced")
"""Those that are shown before others."""
KINDS = (".svg", ".pdf", ".png")


@dataclass(frozen=True, slots=True)
class Row:
    """Trials that differ in seed and repeat alone. values: median of each, with the interval of the median; trials: how many."""

    labels: Mapping[str, Label]
    trials: int
    values: Mapping[str, Interval]

    def to_json(self) -> dict[str, Json]:
        return {"labels": dict(self.labels), "trials": self.trials, "values": to_json(self.values)}


def rows_of(record: Record, results: Iterable[Mapping[str, Any]]) -> list[Row]:
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
        rows.append(Row(labels, len(trials), {name: _interval(values) for name, values in measured.items()}))
    return rows


def _interval(values: Sequence[float]) -> Interval:
    """The interval of a median; equal values need no resampling."""
    if len(values) > 1 and min(values) == max(values):
        return Interval(values[0], values[0], values[0])
    return median_interval(values)


def chosen(rows: Sequence[Row], wanted: Sequence[str]) -> list[str]:
    """The values to show: those asked for, else the first few."""
    known = list(dict.fromkeys(name for row in rows for name in row.values))
    return list(wanted) or sorted(known, key=lambda name: FIRST.index(name) if name in FIRST else len(FIRST))[:SHOWN]


def table(rows: Sequence[Row], wanted: Sequence[str]) -> list[str]:
    """Aligned lines: parameters, number of trials, and of each value the median with its interval."""
    names = list(dict.fromkeys(name for row in rows for name in row.labels))
    values = chosen(rows, wanted)
    if not rows:
        return []
    cells = [[*names, "trials", *values]]
    cells += [
        [*(str(row.labels.get(name, "")) for name in names), str(row.trials), *(_words(row.values.get(value)) for value in values)]
        for row in rows
    ]
    widths = [max(len(line[at]) for line in cells) for at in range(len(cells[0]))]
    return [("  " + "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))).rstrip() for line in cells]


def _words(found: Interval | None) -> str:
    if found is None:
        return "-"
    if found.low is None or found.high is None or found.low == found.high:
        return f"{found.value:.4g}"
    return f"{found.value:.4g} ({found.low:.4g} to {found.high:.4g})"


@dataclass(frozen=True, slots=True)
class Asked:
    """A figure: the value y over x, a parameter or another value, with a line for each value of the parameter `by`. only: values of
    other parameters, as tables show them."""

    x: str
    y: str
    by: str = ""
    only: Mapping[str, str] = field(default_factory=dict)

    def of(self, rows: Sequence[Row]) -> list[Row]:
        """The rows to draw. Raises: BadFile - over a parameter, rows that differ in yet another one would be one line."""
        found = [row for row in rows if all(str(row.labels.get(name)) == value for name, value in self.only.items())]
        for name in found[0].labels if found and self.x in found[0].labels else ():
            values = list(dict.fromkeys(str(row.labels.get(name)) for row in found))
            if name not in (self.x, self.by) and len(values) > 1:
                words = f"--figure: {name} differs, too ({', '.join(values[:8])}): choose one, or give it as by"
                raise BadFile(
                    [words], hint=f"testbed sweep show --figure x={self.x},y={self.y},by={self.by or name},{name}={values[0]}"
                )
        return found


def asked(text: str, record: Record, values: Sequence[str]) -> Asked:
    """Read `x=dark_ms,y=lost_ms,by=plan,method=ring`. Raises: BadFile - a part is missing, or names nothing that there is."""
    given = dict(part.partition("=")[::2] for part in text.split(","))
    parameters = [name for name in record.parameters if name not in CHANCE]
    only = {name: value for name, value in given.items() if name not in ("x", "y", "by")}
    problems = [
        f"--figure: {name}: not x, y, by, or a parameter{did_you_mean(name, parameters)}" for name in only if name not in parameters
    ]
    problems += [f"--figure: {name} is missing" for name in ("x", "y") if not given.get(name)]
    for name, known in (("x", [*parameters, *values]), ("y", values), ("by", parameters)):
        if given.get(name) and given[name] not in known:
            problems.append(f"--figure: {name}={given[name]}: wanted one of {', '.join(known)}{did_you_mean(given[name], known)}")
    if problems:
        raise BadFile(problems, hint="testbed sweep show --figure x=ports,y=iteration_ms,by=method")
    return Asked(given["x"], given["y"], given.get("by", ""), only)


def drawn(wanted: Asked, rows: Sequence[Row], record: Record, path: Path, cache_dir: Path) -> None:
    """Draw a figure into a file. Raises: BadFile - nothing to draw, or not a kind of file that can be drawn, or not writable."""
    from orchestrator.atomic import whole
    from orchestrator.views.report.figures import one_figure, prepare, style

    if path.suffix not in KINDS:
        raise BadFile([f"{path}: wanted a file that ends with {', '.join(KINDS)}"])
    points: dict[Label, list[tuple[Label, Interval]]] = {}
    for row in wanted.of(rows):
        at = row.values[wanted.x].value if wanted.x in row.values else row.labels.get(wanted.x)
        if wanted.y in row.values and at is not None:
            points.setdefault(row.labels.get(wanted.by, ""), []).append((at, row.values[wanted.y]))
    if not points:
        raise BadFile([f"{record.name}: no trial that is done has {wanted.y} and {wanted.x}"], hint="testbed sweep show")
    words = any(isinstance(at, str) for line in points.values() for at, _ in line)
    prepare(cache_dir)
    with one_figure(3.2) as (figure, axes):
        for label, line in points.items():
            placed = [(str(at), found) for at, found in line] if words else sorted(line, key=lambda point: point[0])
            y = [found.value for _, found in placed]
            ends = [
                (found.value if found.low is None else found.low, found.value if found.high is None else found.high)
                for _, found in placed
            ]
            axes.errorbar(
                [at for at, _ in placed],
                y,
                yerr=[
                    [v - low for v, (low, _) in zip(y, ends, strict=True)],
                    [high - v for v, (_, high) in zip(y, ends, strict=True)],
                ],
                marker="o",
                markersize=3,
                capsize=2,
                linewidth=1,
                linestyle="" if words or wanted.x in rows[0].values else "-",
                label=str(label) or None,
            )
        axes.set_xlabel(wanted.x)
        axes.set_ylabel(f"{wanted.y}, median and 95 % interval")
        axes.margins(y=0.1)
        axes.set_ylim(bottom=0)
        axes.grid(True, axis="y")
        if wanted.by:
            axes.legend(title=wanted.by)
    try:
        with style(), whole(path) as fresh:
            figure.savefig(fresh, format=path.suffix[1:])
    except OSError as error:
        raise BadFile([f"{path}: {reason(error)}"]) from error
