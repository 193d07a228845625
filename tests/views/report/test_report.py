"""`experiment report`: what the page says is what the journals hold, what they do not hold is said,
and the page needs nobody.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import itertools
import json
import random
import re
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from orchestrator.cli import report as report_command
from orchestrator.views.report.figures import Drawing, breakdown, draw_topology
from orchestrator.views.report.ledger import Answer, number_text
from orchestrator.views.report.questions import Reconfiguration
from orchestrator.views.report.texts import ending
from orchestrator.views.report.topology import Topology
from orchestrator.views.report.traffic import before_after, iteration_chart
from orchestrator.views.report.waterfalls import run_waterfall
from tests.disk import room_for
from tests.views.report.conftest import Typed
from tests.views.report.page import Page, disagreeing, from_csv
from tests.views.report.recorded import CROSSED, RING, SWITCHES, Lab


def report(typed: Typed, *argv: object) -> tuple[Page, dict[str, Any]]:
    result = typed("experiment", "report", *argv, "--json")
    assert result.code == 0, result.out
    return Page(Path(result.data["file"]).read_text()), result.data


def exported(typed: Typed, page: Page) -> list[Path]:
    """The journals the page names, as `testbed telemetry export` writes them."""
    folders = [typed.home / "csv" / run for run in page.numbers["journals"]]
    for folder in folders:
        assert typed("telemetry", "export", folder.name, "--out", folder).code == 0
    return folders


def recomputed(typed: Typed, page: Page) -> int:
    """Ask every question of the page again, of nothing but the exported files; how many numbers
    agree.
    """
    database = from_csv(exported(typed, page))
    assert disagreeing(page, database) == []
    database.close()
    return sum(
        len(answer["rows"]) * len(answer["columns"])
        for answer in page.numbers["answers"].values()
        if answer["sql"]
    )


def shown_as_answered(typed: Typed, page: Page) -> int:
    """Every number on the page is the cell of the answer, or of the store's record, that it says it
    is.
    """
    for value, origin in page.shown:
        if origin.startswith("store:"):
            run, *path = origin.removeprefix("store:").split("/")
            found = json.loads(typed("run", "show", run, "--json").out)["data"]["run"]
            for word in path:
                found = found[word]
        else:
            name, row, column = origin.rsplit("/", 2)
            answer = page.numbers["answers"][name]
            found = answer["rows"][int(row)][answer["columns"].index(column)]
        assert value == str(found), (origin, value, found)
    return len(page.shown)


def test_every_number_of_a_run_is_recomputed_from_the_exported_files(
    typed: Typed, lab: Lab
) -> None:
    lab.up("crossed", CROSSED, job_ms=55.0)
    run = lab.up("ring", RING, before=("crossed", CROSSED))
    page, _ = report(typed, run)
    assert recomputed(typed, page) > 200
    assert shown_as_answered(typed, page) > 60
    reply = {line: page.numbers["answers"][line]["rows"][0] for line in ("job", "throughput")}
    job = dict(zip(page.numbers["answers"]["job"]["columns"], reply["job"], strict=True))
    assert (
        job["before_n"] == job["after_n"] == 20
        and 55 < job["before_ms"] < 57
        and 40 < job["after_ms"] < 42
    )
    assert (
        job["pause_ms"] == pytest.approx(1400 + 350 + 900 + 2000 + 5 * 40)
        and job["during_ms"] is None
    )
    assert "pause of the job 4.9 s longest time" in page.text
    _, before, _, across, after, _ = reply["throughput"]
    assert (before, after) == (pytest.approx(800), pytest.approx(640, rel=0.01)) and across < 700


def test_every_number_of_a_campaign_is_recomputed_and_the_spread_is_that_of_its_runs(
    typed: Typed, lab: Lab
) -> None:
    for n in range(5):
        lab.up(("ring", "crossed")[n % 2], (RING, CROSSED)[n % 2], dark_ms=40.0 + n)
    lab.up("ring", RING, status="rolled-back", message="ocs1: no answer", moved=False, job_ms=None)
    page, data = report(typed, "all", "--data", typed.home / "data")
    assert len(data["runs"]) == 6
    assert recomputed(typed, page) > 100 and shown_as_answered(typed, page) > 80
    spread = {row[0]: row[1:] for row in page.numbers["answers"]["percentiles"]["rows"]}
    assert spread["dark"] == [5, 40.0, 42.0, 44.0, 44.0, 44.0]
    assert "6 runs: 5 ok, 1 rolled-back." in page.text
    assert "rolled back: everything is as it was before. ocs1: no answer" in page.text
    assert "testbed up --topology 'my plan.json' (6 x)" in page.text
    with (typed.home / "data" / "reconfig.csv").open() as file:
        assert [float(row["dark_ms"]) for row in csv.DictReader(file)] == [
            40.0,
            41.0,
            42.0,
            43.0,
            44.0,
        ]
    assert json.loads((typed.home / "data" / "answers.json").read_text()) == page.numbers["answers"]


def test_the_page_needs_no_network_no_script_and_no_exception_to_a_strict_content_policy(
    typed: Typed, lab: Lab
) -> None:
    page, _ = report(typed, lab.up("ring", RING, before=("crossed", CROSSED)))
    policy = (
        next(
            a["content"]
            for t, a in page.tags
            if t == "meta" and a.get("http-equiv") == "Content-Security-Policy"
        )
        or ""
    )
    style = re.findall(r"<style>(.*?)</style>", page.html, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(style[0].encode()).digest()).decode()
    assert (
        len(style) == 1
        and f"style-src 'sha256-{digest}'" in policy
        and policy.startswith("default-src 'none'")
    )
    assert not [t for t, a in page.tags if "style" in a or any(name.startswith("on") for name in a)]
    assert [a.get("type") for t, a in page.tags if t == "script"] == ["application/json"]
    links = [
        value or ""
        for _, a in page.tags
        for name, value in a.items()
        if name in ("href", "src", "xlink:href")
    ]
    assert links and all(link.startswith("#") for link in links)
    ids = [a["id"] for _, a in page.tags if "id" in a]
    assert len(ids) == len(set(ids)) and {link[1:] for link in links} <= set(ids)
    assert "prefers-color-scheme:dark" in style[0] and "@media print" in style[0]
    assert "#0b0c0d" not in page.html and "currentColor" in page.html


def test_the_topology_before_and_after_tells_kept_made_and_broken_links(
    typed: Typed, lab: Lab
) -> None:
    page, _ = report(typed, lab.up("ring", RING, before=("crossed", CROSSED)))
    assert "2 kept" in page.text and "2 made" in page.text and "2 broken" in page.text


def test_packet_switches_of_a_plan_are_in_the_figure(typed: Typed, lab: Lab) -> None:
    lab.up("ring", RING)
    mesh = list(combinations(SWITCHES["ideal"], 2))
    over = lab.up(
        "over-tree", [], switches=["tree"], before=("over-ideal", mesh), moved=False, job_ms=None
    )
    page, _ = report(typed, over)
    assert "0 kept" in page.text and "4 made" in page.text and "4 broken" in page.text, (
        "links to the switch, not of a mesh"
    )
    assert "packet switches (squares in the figure): tree. No light is moved for them." in page.text
    assert (
        ">ideal</text>" in page.html
        and ">tree</text>" in page.html
        and "not reached" not in page.text
    )
    page, _ = report(typed, "all")
    assert (
        ">over-tree</text>" in page.html
        and ">ring</text>" in page.html
        and "packet switches: no light moved" in page.text
    )
    unnoted = lab.up("over-tree", [], switches=["tree"], moved=False, job_ms=None, noted=False)
    page, _ = report(typed, unnoted)
    assert (
        "packet switches (their hosts were not recorded): tree" in page.text
        and "No links" not in page.text
    )
    refused = lab.up(
        "over-tree",
        [],
        switches=["tree"],
        moved=False,
        job_ms=None,
        status="failed",
        message="held by a tag",
    )
    assert "requested, not reached" in report(typed, refused)[0].text
    text = "over-tree is up and stays up; its job does not run"
    jobless = lab.up(
        "over-tree", [], switches=["tree"], moved=False, job_ms=None, status="failed", message=text
    )
    assert "requested, not reached" not in report(typed, jobless)[0].text


def test_a_run_that_did_not_do_what_was_asked_says_so_plainly(typed: Typed, lab: Lab) -> None:
    run = lab.up(
        "ring",
        RING,
        status="rolled-back",
        message="ocs1: no <answer>",
        moved=False,
        job_ms=None,
        before=("crossed", CROSSED),
    )
    page, _ = report(typed, run)
    assert (
        "It failed and was rolled back: everything is as it was before." in page.text
        and "ocs1: no <answer>" in page.text
    )
    assert "requested, not reached" in page.text and "No reconfiguration was completed" in page.text
    assert "FAILED" in page.text


ENDS = {
    "ok": "It succeeded.",
    "failed": "It failed.",
    "hands-needed": "manual repair was needed",
    "interrupted": "It was interrupted.",
    "running": "This report shows what it has recorded so far.",
}


@pytest.mark.parametrize("status", ENDS)
def test_every_way_to_end_has_its_words(lab: Lab, status: str) -> None:
    run = lab.store.new_run("up", "emulated", plan_name="ring")
    if status != "running":
        run.found(None, None)
        run.finish(status)
    record = lab.store.get(run.id)
    assert record is not None and ENDS[status] in ending(record)


def test_hostile_words_of_a_plan_stay_words(typed: Typed, lab: Lab) -> None:
    page, _ = report(
        typed, lab.up("</script><script>alert(1)</script>", RING, message="", job_ms=None)
    )
    assert page.html.count("<script") == 1 and "<script>alert" not in page.html
    page, _ = report(
        typed,
        lab.up(
            "$\\frac{x$ \x1b[2J\u202e",
            [("gpu$1:p1", "gpu\x07$2:p1")],
            message="\x1b[31m",
            job_ms=None,
        ),
    )
    assert not set(page.text) & set("\x1b\x07\u202e") and "gpu$1" in page.text


def test_a_journal_that_lacks_any_of_its_fields_still_makes_a_report(
    typed: Typed, lab: Lab
) -> None:
    chance = random.Random(1)
    lab.up("crossed", CROSSED)
    run = lab.up("ring", RING, before=("crossed", CROSSED))
    part = lab.settings.run_dir(run) / "telemetry" / "000.lp"
    lines = []
    for line in part.read_text().splitlines():
        series, fields, time_ns = re.fullmatch(r"(\S+) (.*) (\d+)", line).groups()  # type: ignore[union-attr]
        kept = [
            field
            for field in re.findall(r'\w+="[^"]*"|\w+=[^,"]+', fields)
            if chance.random() > 0.3
        ]
        lines += [f"{series} {','.join(kept)} {time_ns}"] if kept else []
    part.write_text("\n".join(lines) + "\n")
    page, _ = report(typed, run)
    assert recomputed(typed, page) > 50 and shown_as_answered(typed, page) > 5
    assert typed("experiment", "report", "all").code == 0


@pytest.mark.long
def test_the_figures_are_files_for_papers_and_the_same_every_time(typed: Typed, lab: Lab) -> None:
    run = lab.up("ring", RING)
    page, data = report(typed, run, "--figures", typed.home / "paper")
    made = {path.name: path.read_bytes() for path in (typed.home / "paper").iterdir()}
    assert {
        f"{name}.pdf"
        for name in ("topology", "phases", "devices", "parts-cdf", "throughput", "job")
    } <= made.keys()
    assert all(
        text.startswith(b"%PDF-" if name.endswith("pdf") else b"<?xml")
        for name, text in made.items()
    )
    assert sorted(data["figures"]) == sorted(str(typed.home / "paper" / name) for name in made)
    assert report(typed, run)[0].html == page.html
    drawing = Drawing("t", "t", "", draw_topology(Topology(after=frozenset({("a:p1", "b:p1")}))))
    drawn = [
        [path.read_bytes() for path in drawing.save(at)]
        for at in (typed.home, typed.home / "paper")
    ]
    assert drawn[0] == drawn[1]


def test_every_part_can_be_read_in_the_figure_beside_a_job_that_took_seconds_to_go_on() -> None:
    columns = ("part", "n", "least_ms", "median_ms", "p90_ms", "p99_ms", "most_ms")
    rows = [
        ("ack", 0.0, 0.0),
        ("link", 0.03, 0.04),
        ("route", 0.3, 0.4),
        ("dark", 64.0, 65.0),
        ("resume", 12_000.0, 13_000.0),
    ]
    spread = Answer(
        "percentiles", "", "", columns, tuple((p, 9, m, m, last, last, last) for p, m, last in rows)
    )
    figure = breakdown(spread)
    assert figure is not None
    (axes,) = figure.axes
    figure.canvas.draw()
    assert [tick.get_text() for tick in axes.get_yticklabels()] == [row[0] for row in rows]
    across = axes.transData + axes.transAxes.inverted()
    dots = [
        across.transform(line.get_xydata())[0][0] for line in axes.lines if line.get_marker() == "o"
    ]
    assert len(dots) == len(rows) and dots[0] == pytest.approx(0.0, abs=0.03) and dots[-1] < 0.9
    assert all(b - a > 0.05 for a, b in itertools.pairwise(dots)), dots


@pytest.mark.parametrize(
    ("part", "flag"),
    [
        ("_save", ""),
        pytest.param("_figures", "--figures", marks=pytest.mark.long),
        pytest.param("_tables", "--data", marks=pytest.mark.long),
    ],
)
def test_a_disk_that_fills_tears_neither_page_nor_figure_nor_table(
    typed: Typed, lab: Lab, monkeypatch: pytest.MonkeyPatch, part: str, flag: str
) -> None:
    run = lab.up("ring", RING)
    page, folder = typed.home / "page.html", typed.home / "paper"
    folder.mkdir()
    argv = ("experiment", "report", run, "--out", page, *((flag, folder) if flag else ()))
    assert typed(*argv).code == 0
    before = {path: path.read_bytes() for path in (page, *folder.iterdir())}
    write, size = getattr(report_command, part), [0]

    def cramped(*args: Any) -> Any:
        with room_for(size[0]):
            return write(*args)

    monkeypatch.setattr(report_command, part, cramped)
    for size[0] in (100, 9000):
        result = typed(*argv)
        assert result.code == 2 and "cannot be written: File too large" in result.err, result
        assert {path: path.read_bytes() for path in (page, *folder.iterdir())} == before


def test_the_default_page_is_written_beside_the_journal(typed: Typed, lab: Lab) -> None:
    run = lab.up("ring", RING)
    result = typed("experiment", "report")
    path = lab.settings.run_dir(run) / "report.html"
    assert (
        result.code == 0
        and "Report: " in result.out
        and path.is_file()
        and not list(path.parent.glob(".*"))
    )


def test_a_move_is_drawn_in_milliseconds_a_job_in_seconds_and_each_phase_once(lab: Lab) -> None:
    columns = ("kind", "subject", "phase", "begin_ms", "duration_ms", "ok", "detail")
    notices = [
        ("stage", 300.0, 2600.0),
        ("arm", 2900.0, 90.0),
        ("switch", 3000.0, 80.0),
        ("resume", 3070.0, 14000.0),
    ]
    notices += [
        ("verify", 3090.0, 240.0),
        ("job", 3400.0, 900.0),
        ("launch", 4300.0, 2000.0),
        ("job", 6300.0, 12000.0),
    ]
    phases = Answer(
        "phases",
        "",
        "",
        columns,
        tuple(("run", "", name, begin, ms, 1, "") for name, begin, ms in notices),
    )
    figure = run_waterfall(phases)
    assert figure is not None
    charts = {a.get_title(loc="left"): a for a in figure.axes}
    rows = {title: [tick.get_text() for tick in a.get_yticklabels()] for title, a in charts.items()}
    assert rows == {
        "before light moves": ["stage"],
        "the move": ["arm", "switch", "verify"],
        "the job": ["job", "launch", "resume"],
    }
    assert [a.get_xlabel().split()[0] for a in figure.axes] == ["s", "ms", "s"]
    assert charts["the move"].get_xlim()[1] < 600
    hatched = [patch.get_hatch() for patch in charts["the job"].patches]
    assert hatched == [None, None, None, "////"], (
        "two bars of job, one of launch, and what runs beside them"
    )


def test_of_iterations_before_and_after_each_whole_dot_is_inside_the_figure() -> None:
    columns = ("reconfig_id", "before_ms", "after_ms")
    figure = before_after(
        Answer("job", "", "", columns, (("a/1", 40.0, 30.0), ("a/2", 30.0, 41.0)))
    )
    assert figure is not None
    left, right = figure.axes[0].get_xlim()
    assert left == 0 and right > 1.02 * 41


def test_no_median_is_drawn_where_the_job_paused() -> None:
    move = Reconfiguration("r/1", None, 10**10, 10**10, 10**10 + 10**8)  # type: ignore[arg-type]
    points = [(10**10 - n * 10**9, 50.0, "a") for n in (3, 2, 1)] + [
        (10**10 + n * 10**9, 40.0, "b") for n in (14, 15)
    ]
    figure = iteration_chart(move, points, 50.0, 40.0)
    assert figure is not None
    lines = [[round(x, 2) for x in line.get_xdata()] for line in figure.axes[0].lines[1:]]
    assert lines == [[-3.0, -0.95], [14.0, 15.04]]


def test_bad_words_are_refused_with_what_would_do(typed: Typed, lab: Lab) -> None:
    result = typed("experiment", "report")
    assert result.code == 2 and "there are no runs yet" in result.err
    run = lab.up("ring", RING)
    result = typed("experiment", "report", "nine")
    assert result.code == 2 and f"no run or campaign 'nine'; the latest are {run}" in result.err
    assert "neither an age" in typed("experiment", "report", "--since", "yesterday").err
    result = typed("experiment", "report", "--plan", "torus")
    assert result.code == 2 and "no run that changed the lab matches" in result.err
    assert "runs cannot be combined with" in typed("experiment", "report", run, "--since", "7d").err
    (typed.home / "some.json").write_text("{}")
    result = typed("experiment", "report", typed.home / "some.json")
    assert result.code == 3 and "this is not a campaign" in result.err


@pytest.mark.parametrize("flag", ["--out", "--figures", "--data"])
def test_a_place_that_cannot_be_written_is_named(typed: Typed, lab: Lab, flag: str) -> None:
    run = lab.up("ring", RING)
    (typed.home / "file").write_text("")
    place = typed.home / "file" / "below"
    result = typed("experiment", "report", run, flag, place)
    assert (
        result.code == 2
        and f"{place} cannot be written: Not a directory" in result.err
        and f"choose another {flag}" in result.err
    )


def test_numbers_are_shown_with_their_units() -> None:
    assert (
        number_text(61.2, "ms") == "61 ms"
        and number_text(0.25, "ms") == "0.2 ms"
        and number_text(2000.0, "ms", 60.0).startswith("2 min 00 s of")
    )
    assert (
        number_text(1234567, "") == "1 234 567"
        and number_text("ocs1", "") == "ocs1"
        and number_text(801.23, "Mb/s") == "801.2 Mb/s"
    )


def test_a_run_of_many_moves_shows_their_spread_and_draws_the_longest(
    typed: Typed, lab: Lab
) -> None:
    page, _ = report(typed, lab.up("ring", RING, again=11, ports=False))
    assert recomputed(typed, page) > 500 and shown_as_answered(typed, page) > 100
    assert "Of 12 reconfigurations the 3 longest are drawn individually." in page.text
    assert "12 reconfigurations were recorded." in page.text
    drawn = [a["aria-label"] or "" for t, a in page.tags if t == "svg"]
    run = page.numbers["runs"][0]
    assert [name for name in drawn if name.startswith("devices of")] == [
        f"devices of {run}/{n}" for n in (10, 11, 12)
    ]
