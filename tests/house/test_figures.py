"""Measured figures stand in the records of the benchmarks; the page is generated from them, and
README quotes them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from benchmarks.figures import PAGE, Figure, Record, page, records
from tests.house.repository import ROOT

NUMBER = re.compile(r"(?<![\w.,])(?<![a-z]-)\d+(?:,\d{3})*(?:\.\d+)?(?!\w)")


def numbers(text: str) -> set[float]:
    return {float(found.replace(",", "")) for found in NUMBER.findall(text)}


def known(figures: Iterable[Figure]) -> set[float]:
    """Every number of these figures, those of their words included."""
    found: set[float] = set()
    for each in figures:
        cells = (each.value, each.low, each.high, each.n, each.least, each.most)
        found |= {float(cell) for cell in cells if cell is not None} | numbers(each.what)
    return found


def unrecorded(text: str, found: Mapping[str, Record]) -> list[str]:
    """Numbers of a section "Measured" that are in no record, by line.

    A line that names benchmarks, as code or as an anchor of the page of figures, quotes these; any
    other line may quote all. Numbers within code and in the targets of links are not figures.
    """
    wrong = []
    section = re.search(r"^## Measured.*?\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    assert section, "there is no section Measured"
    for line in section[1].splitlines():
        named = [
            name
            for name in re.findall(r"`(\w+)`|benchmarks\.md#(\w+)", line)
            for name in name
            if name in found
        ]
        prose = re.sub(r"\]\([^)]*\)|`[^`]*`", " ", line)
        allowed = known(figure for name in named or found for figure in found[name].figures)
        wrong += [f"{number:g}: {line}" for number in sorted(numbers(prose) - allowed)]
    return wrong


def test_the_page_of_figures_is_that_of_the_records() -> None:
    assert PAGE.read_text() == page(records())


def test_every_number_of_the_readmes_section_on_measurements_is_in_a_record() -> None:
    assert unrecorded((ROOT / "README.md").read_text(), records()) == []


def test_a_number_that_is_in_no_record_of_its_benchmark_is_noticed() -> None:
    job = Record(
        "job_pause",
        [Figure(what="12 ranks", unit="ms", value=75.0, low=41.0, high=102.0, n=10, most=1415.0)],
    )
    boot = Record("lab_boot", [Figure(what="it", unit="s", value=0.28)])
    found = {"job_pause": job, "lab_boot": boot}
    row = "| `job_pause` | 12 ranks: 75.0 ms (41 to 102) | 1,415 ms | [x](y-7.md) `z 8` |"
    right = f"## Measured\n\n{row}\n75 and 0.28 s.\n## Next\n5\n"
    assert unrecorded(right, found) == []
    for old, new in (("75.0", "76.0"), ("1,415", "1,416"), ("75 and", "74 and"), ("75.0", "0.28")):
        (wrong,) = unrecorded(right.replace(old, new), found)
        assert wrong.startswith(f"{float(re.sub('[^0-9.]', '', new)):g}: ")
    assert unrecorded("## Measured\n[x](docs/reference/benchmarks.md#lab_boot): 75 s\n", found)
