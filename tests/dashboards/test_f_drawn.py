"""Every panel as Grafana's own library draws it in a browser: nothing is empty, cut off or not a
number, and what is empty says so.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from tests.dashboards.drawing import CHROMIUM, LIBRARY, NOT_DRAWN, Seen, browser, build, drawn
from tests.dashboards.grafana import DASHBOARDS
from tests.dashboards.server import Influx
from tests.dashboards.test_c_data import RANGE

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(300),
    pytest.mark.skipif(
        CHROMIUM is None,
        reason="Chromium is not installed (scripts/install-deps chromium): no panel was drawn",
    ),
    pytest.mark.skipif(
        not LIBRARY.is_dir(),
        reason="not installed: make drawing (no panel was drawn by Grafana's library)",
    ),
]
SHOWN = (RANGE[0], RANGE[1] + 3_500)
"""Not a round time at the end: Grafana's axis cuts a time that is written at its very end."""
LATER = (SHOWN[0] + 3_600_000, SHOWN[1] + 3_600_000)
"""A time in which nothing happened."""
Pictures = dict[str, dict[str, Seen]]


@pytest.fixture(scope="module")
def pictures(
    influx: Influx, imagined: str, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Pictures, Pictures, Path]:
    """What is seen of all panels by dashboard and title: of the imagined runs, and of a time after
    them; and the folder of a picture of each panel.
    """
    build()
    folder = tmp_path_factory.mktemp("pictures")
    full: Pictures = {}
    empty: Pictures = {}
    ask = partial(influx.ask, imagined)
    with browser() as chromium:
        for name, dashboard in DASHBOARDS.items():
            with drawn(chromium, dashboard, *SHOWN, ask) as (page, seen):
                full[name] = {one.panel["title"]: one for one in seen}
                for one in seen:
                    box = page.locator(f'[data-panel="{one.panel["id"]}"]')
                    box.screenshot(path=folder / f"{name}-{one.panel['id']}.png")
            with drawn(chromium, dashboard, *LATER, ask) as (_, seen):
                empty[name] = {one.panel["title"]: one for one in seen}
    return full, empty, folder


@pytest.fixture
def full(pictures: tuple[Pictures, Pictures, Path]) -> list[Seen]:
    return [one for of_dashboard in pictures[0].values() for one in of_dashboard.values()]


@pytest.fixture
def empty(pictures: tuple[Pictures, Pictures, Path]) -> list[Seen]:
    return [one for of_dashboard in pictures[1].values() for one in of_dashboard.values()]


def words(one: Seen) -> str:
    return " ".join([*one.texts, *one.canvas])


def test_every_panel_has_a_picture(pictures: tuple[Pictures, Pictures, Path]) -> None:
    full, _, folder = pictures
    every = {f"{name}-{one.panel['id']}.png" for name in full for one in full[name].values()}
    assert {path.name for path in folder.iterdir()} == every
    assert all(path.stat().st_size > 1000 for path in folder.iterdir())


def test_curves_are_drawn_with_their_axes_and_a_legend_of_each(full: list[Seen]) -> None:
    curves = [one for one in full if one.panel["type"] == "timeseries"]
    assert len(curves) > 30
    for one in curves:
        assert one.inked > 0.005, one.panel["title"]
        assert sum(":" in text for text in one.canvas) > 1, one.panel["title"]
        names = {frame["fields"][1]["config"]["displayNameFromDS"] for frame in one.panel["frames"]}
        assert names and names <= set(one.texts), one.panel["title"]


def test_nothing_that_is_drawn_is_cut_off_or_not_a_number(full: list[Seen]) -> None:
    wrong = [
        f"{one.panel['title']}: {one.cut}"
        for one in full
        if one.cut or "NaN" in words(one) or "undefined" in words(one)
    ]
    assert not wrong, "\n".join(wrong)


def test_what_the_library_does_not_draw_says_so_and_has_its_data_as_text(full: list[Seen]) -> None:
    others = [one for one in full if one.panel["type"] in NOT_DRAWN]
    assert others and {one.panel["type"] for one in others} == NOT_DRAWN
    for one in others:
        assert f"{one.panel['type']}: Grafana's library does not draw it" in words(one)
        assert any("\n" in text and "|" in text for text in one.texts) or (
            one.panel["type"] == "histogram"
        ), one.panel["title"]


def test_a_panel_without_data_says_so(empty: list[Seen]) -> None:
    for one in empty:
        nothing = one.panel["fieldConfig"]["defaults"]["noValue"]
        assert not one.inked and nothing in one.texts, f"{one.panel['title']}: {one.texts}"


def test_figures_are_seen_in_the_units_of_the_trade(
    pictures: tuple[Pictures, Pictures, Path],
) -> None:
    full = pictures[0]

    def read(dashboard: str, title: str) -> str:
        return words(full[dashboard][title])

    assert "-1.50 dBm" in read("testbed-fabric", "Weakest light").replace("\u00a0", " ")
    assert "-1.3 dBm" in full["testbed-fabric"]["Light received"].canvas
    assert "1 Gb/s" in full["testbed-live"]["Throughput of the fabric"].canvas
    assert "100%" in full["testbed-training"]["Busy"].canvas
    assert "150%" not in full["testbed-training"]["Busy"].canvas


def test_a_table_shows_names_as_they_are_and_the_slowest_first(
    pictures: tuple[Pictures, Pictures, Path],
) -> None:
    full = pictures[0]
    drift = full["testbed-fabric"]["Drift of loss"].texts
    assert "3" in drift and "3 dB" not in drift
    slowest = full["testbed-reconfiguration"]["The ten slowest"].texts
    first = [text for text in slowest if text.endswith(" ms")][:2]
    assert first[0] == "120 ms", first
    phases = full["testbed-reconfiguration"]["Phases of a run"].texts
    assert {"phase", "p50", "p90", "p99", "max", "n"} <= set(phases)
