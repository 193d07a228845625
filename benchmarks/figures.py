"""The figures of all benchmarks: a record of each in `benchmarks/records/`, and the page made of
them.

`python -m benchmarks.figures` writes the page; `python -m benchmarks NAME --record` measures, and
writes the record and the page.
"""

from __future__ import annotations

import ast
import json
import math
import os
import platform
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import date
from pathlib import Path
from textwrap import fill
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RECORDS, PAGE = ROOT / "benchmarks" / "records", ROOT / "docs" / "reference" / "benchmarks.md"
SCHEMA = "testbed.benchmark/1"
USUAL = "two cores, shared"
"""The machine of figures below which none is named."""
HEAD = """\
# Figures of the benchmarks

Generated from `benchmarks/records/` by `python -m benchmarks.figures`; do not edit. `make bench` runs all, `make bench
NAME=dark_window` one, and `make bench NAME="dark_window --record"` also writes its figures here. What a benchmark does
is at the head of its module.

Everything is emulated on one machine. Emulated rates are 1:100 (25 Gb/s is 250 Mb/s), so times of collectives compare
topologies and do not predict those of GPUs. The shared machine's speed varies by a quarter from hour to hour; other
work affects `dark_window` and `up_total` most. `cli_start`, `up_total` and `dark_window` take `--against PATH`, another
checkout, and measure both alternately.

A value is a median unless its row names another statistic; the ratio of `storm` is a geometric mean of those of its
storms. In brackets: an interval with its confidence, or the *range* of several runs or moves, and n, the number of
moves, trials, rounds or runs. A range alone keeps its limit with both ends. Below each table: the machine, if not two
shared cores, date, commit and, if it is not `make bench` with the name of the benchmark, the command; a letter marks
the figures that differ. For figures older than the records, the commit is that which first stated them. Values and
intervals are as the benchmark made them at that commit. Claims about systems are [scenarios](papers.md).
"""


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One figure of a benchmark, and how it was measured.

    spread: the confidence of low and high (`95 %`), or `range`. n: how many moves, trials, rounds
    or runs. least, most: the limits. read: where the benchmark's JSON object has a field of the
    figure: keys and indices joined by dots, then `*` and a factor if the unit differs
    (`interval.0`, `value*100`).
    """

    what: str
    unit: str
    value: float | None = None
    low: float | None = None
    high: float | None = None
    spread: str | None = None
    n: int | None = None
    least: float | None = None
    most: float | None = None
    machine: str | None = None
    date: str | None = None
    commit: str | None = None
    command: str | None = None
    read: Mapping[str, str] = field(default_factory=dict)

    @property
    def met(self) -> bool | None:
        """Whether the value, or else both ends of the range, keep the limits; None without a limit
        or a figure.
        """
        ends = [
            end
            for end in ((self.low, self.high) if self.value is None else (self.value,))
            if end is not None
        ]
        if not ends or self.least is self.most is None:
            return None
        return all(
            (self.least is None or end >= self.least) and (self.most is None or end <= self.most)
            for end in ends
        )

    @property
    def found(self) -> str:
        """The value, with its interval or range and n; a range alone if there is no value."""
        ends = (
            f"{self.low:,} to {self.high:,}"
            if self.low is not None and self.high is not None
            else ""
        )
        n = f"n {self.n:,}" if self.n is not None else ""
        if self.value is None:
            return (
                f"{ends} {self.unit} ({'; '.join(filter(None, (self.spread, n)))})" if ends else "-"
            )
        within = "; ".join(filter(None, (ends and f"{ends}, {self.spread}", n)))
        return f"{self.value:,} {self.unit}".strip() + (f" ({within})" if within else "")

    def how(self, benchmark: str) -> str:
        """On which machine, when and at which commit it was measured, and by which command; machine
        and command unless they are the usual ones.
        """
        usual = f"make bench NAME={benchmark}"
        command = f"`{self.command}`" if self.command not in (None, usual) else None
        machine = self.machine if self.machine != USUAL else None
        return "; ".join(filter(None, (machine, self.date, self.commit, command)))

    def row(self, mark: str = "") -> str:
        """This figure's row of the page."""
        limits = [
            f"{word} {limit:,}"
            for word, limit in (("≥", self.least), ("≤", self.most))
            if limit is not None
        ]
        met = {True: ": met", False: ": **missed**", None: ""}[self.met]
        cells = (self.what, self.found, (", ".join(limits) or "-") + met, *filter(None, (mark,)))
        return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"


@dataclass(frozen=True)
class Record:
    """The figures of one benchmark. notes: sentences below its table, in Markdown."""

    benchmark: str
    figures: Sequence[Figure]
    notes: Sequence[str] = ()

    def write(self, folder: Path = RECORDS) -> None:
        """Write the record's file."""
        folder.mkdir(exist_ok=True)
        text = json.dumps({"schema": SCHEMA, **asdict(self)}, indent=1, ensure_ascii=False)
        (folder / f"{self.benchmark}.json").write_text(text + "\n")


def records(folder: Path = RECORDS) -> dict[str, Record]:
    """Every record, by benchmark."""
    found = {}
    for file in sorted(folder.glob("*.json")):
        data = json.loads(file.read_text())
        found[file.stem] = Record(
            data["benchmark"], [Figure(**each) for each in data["figures"]], data["notes"]
        )
    return found


def purpose(benchmark: str) -> str:
    """The first sentence of the benchmark's module, whatever its line breaks."""
    text = ast.get_docstring(ast.parse((ROOT / "benchmarks" / f"{benchmark}.py").read_text())) or ""
    return " ".join(text.partition("\n\n")[0].split()).partition(". ")[0].rstrip(".") + "."


def table(record: Record) -> str:
    """The figures of a record, and below them how they were measured."""
    hows = list(dict.fromkeys(figure.how(record.benchmark) for figure in record.figures))
    marks = dict(zip(hows, "abcdefghijklmnopqrstuvwxyz" if len(hows) > 1 else [""], strict=False))
    head = ("measured", "value", "limit", *(["how"] if len(hows) > 1 else []))
    rows = (figure.row(marks[figure.how(record.benchmark)]) for figure in record.figures)
    below = (_filled(f"{mark}: {how}." if mark else f"{how}.") for how, mark in marks.items())
    return "\n".join(
        (f"| {' | '.join(head)} |", "|---" * len(head) + "|", *rows, "", "\n\n".join(below), "")
    )


def _filled(text: str) -> str:
    return fill(text, 120, break_long_words=False, break_on_hyphens=False)


def page(found: Mapping[str, Record]) -> str:
    """The text of the page."""
    every = [figure for record in found.values() for figure in record.figures]
    judged = [figure.met for figure in every if figure.met is not None]
    parts = [
        HEAD,
        f"{len(every)} figures, {len(judged)} with a limit, of which {judged.count(False)} are missed.",
    ]
    for name, record in found.items():
        notes = "".join(f"\n{_filled(note)}\n" for note in record.notes)
        parts.append(f"\n## {name}\n\n{table(record)}{notes}".rstrip())
    return "\n".join(parts) + "\n"


def here() -> dict[str, str | None]:
    """Machine, load included, date and commit of a measurement that begins now; `+` after a commit:
    with changes.
    """
    names = re.findall(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    machine = f"{os.cpu_count()} x {(names or [platform.machine()])[0]}, Linux {platform.release()}, load {os.getloadavg()[0]:.1f}"
    git = ["git", "-C", str(ROOT), "-c", f"safe.directory={ROOT}"]
    ours = [f":!{path.relative_to(ROOT)}" for path in (RECORDS, PAGE)]
    try:
        head = subprocess.run(
            [*git, "rev-parse", "--short=8", "HEAD"], capture_output=True, text=True, check=True
        ).stdout.strip()
        changed = subprocess.run(
            [*git, "diff", "--quiet", "HEAD", "--", str(ROOT), *ours], capture_output=True
        ).returncode
    except (OSError, subprocess.CalledProcessError):
        return {"machine": machine, "date": date.today().isoformat(), "commit": None}
    return {
        "machine": machine,
        "date": date.today().isoformat(),
        "commit": head + ("+" if changed else ""),
    }


def number(line: Mapping[str, Any], path: str) -> float | None:
    """The number at `path` of a JSON object; that of `3 of 20` is 3, None one that is not finite.
    Raises: KeyError - none there.
    """
    keys, _, factor = path.partition("*")
    found: Any = line
    try:
        for key in keys.split("."):
            found = found[int(key) if isinstance(found, list) else key]
        value = float(str(found).split()[0]) * float(factor or 1)
    except (KeyError, IndexError, TypeError, ValueError):
        raise KeyError(path) from None
    if not math.isfinite(value):
        return None
    return int(value) if value.is_integer() else float(f"{value:.6g}")


def measured(figure: Figure, line: Mapping[str, Any], about: dict[str, str | None]) -> Figure:
    """The figure as this JSON object has it. Raises: KeyError - it has it not."""
    # of the measurement before
    changes: dict[str, Any] = dict.fromkeys(("value", "low", "high", "n"))
    return replace(
        figure, **changes | {name: number(line, path) for name, path in figure.read.items()} | about
    )


def record(
    name: str,
    line: Mapping[str, Any],
    about: dict[str, str | None],
    folder: Path = RECORDS,
    to: Path = PAGE,
) -> None:
    """Update the record of a benchmark that ended with this JSON object, or begin one, and write
    the page.

    Figures that the object has not stay as they are, and are named.
    """
    old = records(folder).get(name)
    if old is None:
        limit = (
            {"at most": "most", "at least": "least"}.get(line.get("kind", ""))
            if line.get("limit") is not None
            else None
        )
        read = {"value": "value"} | ({limit: "limit"} if limit else {})
        old = Record(
            name,
            [
                Figure(
                    what=purpose(name),
                    unit=line["unit"],
                    command=f"make bench NAME={name}",
                    read=read,
                )
            ],
        )
    new = []
    for figure in old.figures:
        try:
            new.append(measured(figure, line, about) if figure.read else figure)
        except KeyError as missing:
            print(
                f"not recorded, as the benchmark did not give {missing}: {figure.what}",
                file=sys.stderr,
            )
            new.append(figure)
    replace(old, figures=new).write(folder)
    to.write_text(page(records(folder)))


if __name__ == "__main__":
    PAGE.write_text(page(records()))
