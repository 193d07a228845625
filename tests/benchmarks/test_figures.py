"""Records of benchmarks, and the rows made of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.figures import Figure, Record, measured, number, page, record, records, table

ABOUT: dict[str, str | None] = {"machine": "here", "date": "2026-11-28", "commit": "1234abcd"}


@pytest.mark.parametrize(
    ("figure", "met"),
    [
        ({"value": 1.2, "most": 1.15}, False),
        ({"value": 1.15, "most": 1.15}, True),
        ({"value": 0.9, "least": 0.95, "most": 1.05}, False),
        ({"low": 5.0, "high": 8.0, "most": 7.0}, False),
        ({"low": 168.0, "high": 210.0, "least": 200.0}, False),
        ({"value": 6.0, "low": 5.0, "high": 8.0, "most": 7.0}, True),
        ({"value": 3.0}, None),
        ({"most": 3.0}, None),
    ],
)
def test_a_figure_is_met_if_its_value_or_else_both_ends_of_its_range_keep_the_limits(
    figure: dict[str, float], met: bool | None
) -> None:
    assert Figure(what="it", unit="s", **figure).met is met  # type: ignore[arg-type]


def test_a_row_has_the_value_with_its_interval_and_n_and_the_limit_with_its_verdict() -> None:
    figure = Figure(
        what="up | down", unit="ms", value=1625, low=41, high=102, spread="95 %", n=10, most=415
    )
    assert figure.row() == "| up / down | 1,625 ms (41 to 102, 95 %; n 10) | ≤ 415: **missed** |"
    figure = Figure(what="it", unit="s", low=5, high=8, spread="range")
    assert figure.row("a") == "| it | 5 to 8 s (range) | - | a |"


def test_how_figures_were_measured_is_below_their_table_once_for_all_of_the_same_measurement() -> (
    None
):
    now, before = (
        {"machine": "here", "date": date, "commit": "1234abcd"}
        for date in ("2026-11-28", "2026-11-21")
    )
    usual = [
        Figure(what=what, unit="s", value=1, command="make bench NAME=lab_boot", **now)
        for what in ("one", "two")
    ]
    assert table(Record("lab_boot", usual)).endswith(
        "| two | 1 s | - |\n\nhere; 2026-11-28; 1234abcd.\n"
    )
    older = Figure(what="three", unit="s", value=1, command="make bench NAME=x", **before)
    several = table(Record("lab_boot", [*usual, older]))
    assert "| two | 1 s | - | a |\n| three | 1 s | - | b |" in several
    assert several.endswith(
        "a: here; 2026-11-28; 1234abcd.\n\nb: here; 2026-11-21; 1234abcd; `make bench NAME=x`.\n"
    )


def test_numbers_are_found_by_keys_and_indices_and_change_their_unit() -> None:
    line = {
        "value": 0.018,
        "interval": [0.41, 0.5],
        "arms": {"25 ms": {"lost": 67.0}},
        "equal": "18 of 20",
        "ratio": float("nan"),
    }
    assert number(line, "value*100") == 1.8
    assert number(line, "interval.-1") == 0.5
    assert number(line, "arms.25 ms.lost") == 67
    assert number(line, "equal") == 18
    assert number(line, "ratio") is None
    for path in ("ended", "arms.50 ms.lost", "interval.2", "value.deeper", "arms"):
        with pytest.raises(KeyError):
            number(line, path)


def test_a_figure_measured_again_keeps_nothing_of_the_measurement_before_but_its_limits() -> None:
    old = Figure(
        what="it",
        unit="s",
        value=2.0,
        low=1.0,
        high=3.0,
        spread="95 %",
        n=10,
        most=5.0,
        date="2026-11-21",
        read={"value": "value"},
    )
    new = measured(old, {"value": 4}, ABOUT)
    assert (new.value, new.low, new.high, new.n, new.most) == (4, None, None, None, 5.0)
    assert (new.machine, new.date, new.commit) == ("here", "2026-11-28", "1234abcd")


def test_a_benchmark_writes_its_record_and_the_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, to = tmp_path / "records", tmp_path / "page.md"
    line = {"name": "lab_boot", "value": 0.3, "unit": "s", "limit": 4.0, "kind": "at most"}
    record("lab_boot", line, ABOUT, folder, to)
    (first,) = records(folder)["lab_boot"].figures
    assert (first.value, first.most, first.least, first.met) == (0.3, 4, None, True)
    kept = Figure(what="of a larger lab", unit="s", value=0.7, read={"value": "value_64"})
    Record("lab_boot", [first, kept]).write(folder)
    record("lab_boot", line | {"value": 5.0}, ABOUT, folder, to)
    again, unmeasured = records(folder)["lab_boot"].figures
    assert (again.value, again.met) == (5, False) and unmeasured == kept
    assert "'value_64': of a larger lab" in capsys.readouterr().err
    assert (
        to.read_text() == page(records(folder))
        and "2 figures, 1 with a limit, of which 1 are missed." in to.read_text()
    )
