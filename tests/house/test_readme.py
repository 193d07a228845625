"""The README stays short, and its headline figures are those of the records, with their limits and
verdicts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from benchmarks.figures import Figure, Record, records
from tests.house.repository import ROOT
from tests.house.test_figures import numbers
from tests.house.test_pages import section

MOST_LINES, MOST_WORDS = 150, 1600
HEADLINES = 8
ROW = re.compile(
    r"^\| (?P<what>.*benchmarks\.md#(?P<name>\w+).*) \| (?P<value>[^|]*) \| (?P<limit>[^|]*) \| (?P<verdict>[^|]*) \|$"
)
VERDICTS = {True: "met", False: "**missed**"}


def readme() -> str:
    return (ROOT / "README.md").read_text()


def is_row_of(row: Mapping[str, str], figure: Figure) -> bool:
    """Whether a row of the table states this figure's value or range, one limit of it, and whether
    it is kept.
    """
    value = {figure.value} if figure.value is not None else {figure.low, figure.high}
    limits = {limit for limit in (figure.least, figure.most) if limit is not None}
    return (
        numbers(row["value"]) == value
        and row["value"].endswith(f" {figure.unit}")
        and numbers(row["limit"]) == limits
        and figure.met is not None
        and row["verdict"] == VERDICTS[figure.met]
    )


def untrue(text: str, found: Mapping[str, Record]) -> Iterator[str]:
    """The rows of the section Measured that no figure of the benchmark they name bears out."""
    for line in section(text, "Measured").splitlines():
        if row := ROW.match(line):
            figures = found[row["name"]].figures if row["name"] in found else ()
            if not any(is_row_of(row.groupdict(), figure) for figure in figures):
                yield line


def test_the_readme_is_short() -> None:
    text = readme()
    assert len(text.splitlines()) <= MOST_LINES
    assert len(text.split()) <= MOST_WORDS


def test_the_headline_figures_have_the_value_the_limit_and_the_verdict_of_their_record() -> None:
    text = readme()
    table = [line for line in section(text, "Measured").splitlines() if line.startswith("| ")][1:]
    assert len(table) == HEADLINES and all(ROW.match(line) for line in table)
    assert list(untrue(text, records())) == []


def test_a_headline_figure_that_its_record_does_not_bear_out_is_noticed() -> None:
    found = {"boot": Record("boot", [Figure(what="it", unit="s", value=5.0, most=4.0)])}
    row = "| [it](benchmarks.md#boot) | 5 s | 4 s | **missed** |"
    assert list(untrue(f"## Measured\n{row}\n", found)) == []
    for old, new in (
        ("**missed**", "met"),
        ("5 s", "3 s"),
        ("4 s", "6 s"),
        ("5 s", "5 ms"),
        ("#boot", "#start"),
    ):
        assert list(untrue(f"## Measured\n{row.replace(old, new)}\n", found)), new
