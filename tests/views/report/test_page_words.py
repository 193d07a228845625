"""What pages say of runs, and which runs they are about; their figures are not drawn."""

from __future__ import annotations

import fcntl
import os
import re

import pytest

from orchestrator.telemetry import Journal, read_points
from tests.views.report.conftest import UNDRAWN, Typed
from tests.views.report.page import Page, disagreeing, from_csv
from tests.views.report.recorded import CROSSED, KEY, RING, Lab
from tests.views.report.test_report import exported, recomputed, report, shown_as_answered

pytestmark = UNDRAWN


def test_a_number_that_is_not_what_the_journal_says_is_noticed(typed: Typed, lab: Lab) -> None:
    page, _ = report(typed, lab.up("ring", RING))
    page.numbers["answers"]["reconfigs"]["rows"][0][7] += 0.001
    assert [text.split(":")[0] for text in disagreeing(page, from_csv(exported(typed, page)))] == [
        "reconfigs"
    ]
    with pytest.raises(AssertionError):
        shown_as_answered(typed, page)


def test_what_was_never_recorded_is_said_to_be_so_and_is_not_zero(typed: Typed, lab: Lab) -> None:
    page, _ = report(typed, lab.up("ring", RING, job_ms=None, ports=False, noted=False))
    assert "not recorded: power, first packet, resume" in page.text
    assert "No port counters were sampled around a move" in page.text
    assert "No job ran before or after a move" in page.text
    assert "emulated or real: not recorded, time scale not recorded" in page.text
    assert (
        "the command, as reconstructed from the store testbed up (plan ring, launch_job=True, rollback=True)"
        in page.text
    )
    answer = page.numbers["answers"]["reconfigs"]
    assert answer["rows"][0][answer["columns"].index("power_ms")] is None


def test_times_of_devices_that_run_faster_are_told_in_their_own_time_too(
    typed: Typed, lab: Lab
) -> None:
    lab.time_scale = 60.0
    page, _ = report(typed, lab.up("ring", RING, dark_ms=500.0))
    assert "30.0 s of device time (500 ms here, x60)" in page.text
    assert "emulated lab, time scale ocs1 x60, ocs2 x60" in page.text
    captions = re.findall(r"<figcaption>(.*?)</figcaption>", page.html)
    assert len(captions) == 6 and all("x60" in caption for caption in captions[1:])


def test_a_run_that_was_killed_tells_what_it_had_written(
    typed: Typed, lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = lab.up("ring", RING, status="died", moved=False, job_ms=None)
    monkeypatch.setattr("orchestrator.store.store.process_alive", lambda *_: False)
    assert (
        "The program died during the run. This report shows what it had recorded by then."
        in report(typed, run)[0].text
    )


def test_a_run_without_a_journal_is_told_from_the_store(typed: Typed, lab: Lab) -> None:
    lab.store.new_run("up", "emulated", plan_name="ring").finish("failed", 5, "ocs1: no answer")
    page, data = report(typed, "last")
    assert (
        "This run left no journal: none of its times were recorded." in page.text
        and "ocs1: no answer" in page.text
    )
    assert "Nothing had been changed." in page.text and data["journals"] == []


def test_a_torn_journal_is_reported_with_what_it_lost(typed: Typed, lab: Lab) -> None:
    run = lab.up("ring", RING)
    part = lab.settings.run_dir(run) / "telemetry" / "000.lp"
    part.write_bytes(part.read_bytes()[:-5])
    result = typed("experiment", "report", run, "--out", typed.home / "torn.html")
    assert result.code == 0 and "torn last line" in result.err
    page = Page((typed.home / "torn.html").read_text())
    assert f"{run}/000.lp:" in page.text and "torn last line" in page.text
    assert recomputed(typed, page) > 200


def test_a_page_may_go_where_no_file_is(typed: Typed, lab: Lab) -> None:
    pipe = typed.home / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    fcntl.fcntl(reader, fcntl.F_SETPIPE_SZ, 1 << 20)
    try:
        assert typed("experiment", "report", lab.up("ring", RING), "--out", pipe).code == 0
        assert os.read(reader, 1 << 20).startswith(b"<!doctype html>") and pipe.is_fifo()
    finally:
        os.close(reader)


@pytest.mark.long
def test_runs_of_other_labs_are_left_out_of_a_campaign_and_named(typed: Typed, lab: Lab) -> None:
    here = [lab.up("ring", RING, dark_ms=40.0 + n) for n in range(2)]
    place = lab.up("ring", RING, dark_ms=900.0, lab="other-77")
    page, data = report(typed, "all")
    assert data["runs"] == [place], "the newest run's lab, where the inventory's has no run"
    result = typed("experiment", "report", "all")
    assert f"runs of other-77 alone; left out: 2 of {KEY}" in result.out
    assert report(typed)[1]["runs"] == [place]
    lab.up("ring", RING, dark_ms=42.0)
    page, data = report(typed, "--plan", "ring")
    assert data["runs"][:2] == here and place not in data["runs"] and "other-77" not in page.text
    both, _ = report(typed, here[0], place)
    assert f"They cover 2 labs, whose times are mixed below: {KEY}, other-77." in both.text


def test_after_the_lab_was_taken_down_the_report_is_of_the_plan_that_was_up(
    typed: Typed, lab: Lab
) -> None:
    lab.up("ring", RING)
    second = lab.up("crossed", CROSSED, before=("ring", RING))
    taken_down = lab.store.new_run("down", KEY, user="ann")
    taken_down.finish("ok")
    result = typed("experiment", "report")
    assert (
        result.code == 0
        and "1 run\n" in result.out
        and "next: testbed experiment report all" in result.out + result.err
    )
    assert report(typed)[1]["runs"] == [second]
    assert report(typed, "last")[1]["runs"] == [taken_down.id]


def test_a_change_that_was_refused_is_not_the_newest_that_brought_a_plan_up(
    typed: Typed, lab: Lab
) -> None:
    failed = lab.up("ring", RING, status="failed", message="held by a tag", moved=False)
    assert report(typed)[1]["runs"] == [failed], "where nothing came up, the newest that tried"
    second = lab.up("crossed", CROSSED, before=("ring", RING))
    lab.up("ring", RING, status="failed", message="held by a tag", moved=False)
    assert report(typed)[1]["runs"] == [second]
    jobless = lab.up(
        "ring",
        RING,
        status="failed",
        message="ring is up and stays up; its job does not run\nar failed",
    )
    assert report(typed)[1]["runs"] == [jobless]


def test_a_campaign_by_time_or_tag_takes_the_runs_of_that_time_or_tag(
    typed: Typed, lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = lab.up("ring", RING, job_ms=None)
    lab.clock.now_ns += 7200 * 10**9
    second = lab.up("ring", RING, job_ms=None)
    with Journal(lab.settings.run_dir(second), second, "emulated", clock=lab.clock):
        pass
    monkeypatch.setattr("time.time", lambda: 1_795_000_000 + lab.clock.now_ns / 1e9)
    assert report(typed, "--since", "1h")[1]["runs"] == [second]
    assert report(typed, "--until", "1h", "--plan", "ring")[1]["runs"] == [first]
    assert (
        "no run that changed the lab matches"
        in typed("experiment", "report", "--tag", "paper-fig3").err
    )
    assert typed("run", "note", first, "--tag", "paper-fig3").code == 0
    assert report(typed, "--tag", "paper-fig3")[1]["runs"] == [first]


def test_nothing_is_written_where_the_page_cannot_be(typed: Typed, lab: Lab) -> None:
    run = lab.up("ring", RING)
    (typed.home / "kept.html").mkdir()
    assert typed("experiment", "report", run, "--out", typed.home / "kept.html").code == 0
    assert [path.name for path in (typed.home / "kept.html").iterdir()] == ["report.html"]


def test_of_counters_sampled_for_hours_only_those_near_a_move_are_read(
    typed: Typed, lab: Lab
) -> None:
    run = lab.up("ring", RING, job_ms=None)
    before = report(typed, run)[0].numbers["answers"]["throughput"]
    with Journal(lab.settings.run_dir(run), run, "emulated", clock=lab.clock) as journal:
        tags = {"host": "gpu01", "port": "p1", "layer": "nic"}
        journal.point("port", tags, {"tx_bytes": 10**12}, lab.clock.now_ns + 3600 * 10**9)
    folder = lab.settings.run_dir(run)
    times = [point.time_ns for point in read_points(folder, ("port",))]
    assert [
        p.time_ns for p in read_points(folder, ("port",), near=[(times[0], times[0] + 10**8)])
    ] == times[:16]
    assert len([*read_points(folder, ("port",), near=[])]) == 0
    page, _ = report(typed, run)
    assert page.numbers["answers"]["throughput"] == before and recomputed(typed, page) > 100


def test_what_some_ports_sent_is_not_told_as_what_all_sent(typed: Typed, lab: Lab) -> None:
    run = lab.up("ring", RING, job_ms=None)
    (whole,) = report(typed, run)[0].numbers["answers"]["throughput"]["rows"]
    part = lab.settings.run_dir(run) / "telemetry" / "000.lp"
    lines = part.read_text().splitlines(keepends=True)
    t0 = next(p.time_ns for p in read_points(part.parent.parent, ("reconfig",)))
    kept = [
        n
        for n in lines
        if not (n.startswith("port,") and "host=gpu03" in n and int(n.split()[-1]) < t0)
    ]
    assert len(kept) < len(lines)
    part.write_text("".join(kept))
    page, _ = report(typed, run)
    answer = page.numbers["answers"]["throughput"]
    reply = dict(zip(answer["columns"], answer["rows"][0], strict=True))
    assert (
        reply["before_mbps"] is None
        and reply["before_over_ms"] is None
        and reply["across_mbps"] is None
    )
    assert (
        reply["after_mbps"] == whole[answer["columns"].index("after_mbps")]
        and 0 < reply["after_over_ms"] <= 2000
    )
