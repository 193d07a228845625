"""A scenario's page: its figures follow from journals, its outcome from its bands; and what a
change costs a job.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from playwright.sync_api import Browser

from orchestrator.results import to_json
from orchestrator.settings import campaigns
from orchestrator.telemetry.journal import Journal
from orchestrator.views.report import traffic
from orchestrator.views.report.samples import IterationEnd, loss_after, lost_ms, span_ms, steps
from tests.experiments.test_scenario import CHANGE, STAY, scenario
from tests.views.report.conftest import UNDRAWN, Typed
from tests.views.report.recorded import CROSSED, RING, Lab
from tests.views.report.test_page_in_browser import CHROMIUM, SMALLEST_LETTERS, browser  # noqa: F401
from tests.views.report.test_report import recomputed, report, shown_as_answered

MS = 1_000_000


def training(took: Sequence[float], numbers: Sequence[int] | None = None) -> list[IterationEnd]:
    """Iterations that end one after the other, each after so many ms."""
    end, found = 0.0, []
    for at, ms in enumerate(took):
        end += ms
        found.append(IterationEnd(numbers[at] if numbers else at + 1, round(end * MS), ms))
    return found


def test_a_change_costs_what_its_iterations_took_beyond_the_usual() -> None:
    found = training([100.0] * 30 + [180.0] + [90.0] * 30)
    assert lost_ms(found, 3050 * MS, 3110 * MS) == pytest.approx(90.0), (
        "the new usual, since it ended after light was back"
    )
    assert lost_ms(training([100.0] * 60), 3050 * MS, 3110 * MS) == 0.0


def test_what_a_restart_trains_again_is_lost_as_a_whole() -> None:
    took = [100.0] * 30 + [5000.0] + [100.0] * 40
    again = [*range(1, 31), *range(29, 70)]
    assert lost_ms(training(took, again), 3050 * MS, 3200 * MS) == pytest.approx(5000.0 + 100.0)
    assert lost_ms(training(took), 3050 * MS, 3200 * MS) == pytest.approx(4900.0)


def test_no_figure_is_made_of_too_few_iterations() -> None:
    assert lost_ms(training([100.0] * 30), 3050 * MS, 3110 * MS) is None
    assert lost_ms(training([100.0] * 31), 3050 * MS, 3110 * MS) is None
    assert lost_ms(training([100.0] * 9), 100 * MS, 160 * MS) is None


def test_a_span_counts_progress_and_not_iterations_made_twice() -> None:
    assert span_ms(training([100.0] * 30), 9, 10) == pytest.approx(1000.0)
    assert span_ms(training([100.0] * 30, [*range(1, 16), *range(11, 26)]), 9, 10) == pytest.approx(
        1500.0
    )
    assert span_ms(training([100.0] * 12), 9, 10) is None


def test_a_loss_after_seconds_is_that_of_the_iterations_that_ended_in_the_last_fifth_of_them() -> (
    None
):
    found, losses = training([100.0] * 30), [float(n) for n in range(1, 31)]
    assert loss_after(found, losses, 9, 1.0) == 19.5, "of iterations 19 and 20"
    assert loss_after(found, [*losses[:19], None, *losses[20:]], 9, 1.0) is None, "it diverged"
    assert loss_after(found, losses, 9, 3.0) is None, "the job had ended by then"


@given(
    st.lists(st.floats(50, 60), min_size=25, max_size=40),
    st.lists(st.floats(50, 60), min_size=30, max_size=40),
    st.floats(0, 1e4),
)
def test_what_is_lost_grows_by_what_one_iteration_takes_longer(
    before: list[float], after: list[float], more: float
) -> None:
    def lost(extra: float) -> float:
        found = training([*before, 60.0 + extra, *after])
        begin = found[len(before)].end_ns - MS
        answer = lost_ms(found, begin, begin)
        assert answer is not None
        return answer

    assert lost(more) - lost(0.0) == pytest.approx(more, abs=1e-3)


def test_an_iteration_counts_from_the_end_of_the_one_before() -> None:
    lines = [
        {"iter": n, "iter_ms": 10.0, "time_ns": at * MS} for n, at in ((1, 0), (2, 10), (3, 120))
    ]
    assert [step.took_ms for step in steps(lines)] == [10.0, 10.0, 110.0]


ENDED = {"least": 5, "width": 0.05, "budget_s": 3600.0, "ended": "width"}
FIVE = "abbaabbaab"


def record(lab: Lab, text: str, slots: list[dict[str, Any]], *, ended: bool = True) -> str:
    """Keep a record of these measurements, as `testbed experiment reproduce` does; not `ended`: as
    before rounds.
    """
    found = scenario(text)
    facts = to_json(
        {
            n: getattr(found, n)
            for n in ("name", "title", "source", "claim", "label", "differs", "compared")
        }
    )
    arms = {name: {"swept": to_json(arm.swept)} for name, arm in found.arms.items()}
    data = {
        "schema": "testbed.campaign/1",
        "kind": "reproduce",
        "name": "reproduce-1",
        "title": found.title,
        "arms": {name: name for name in found.arms},
        "tenants": ["ann"],
        "iterations": found.iterations,
        "warm_up": found.warm_up,
        "slots": slots,
        **(ENDED if ended else {}),
        "left": "nothing is up",
        "scenario": facts | {"arms": arms},  # type: ignore[operator]
        "environment": {"cores": 2, "congestion_control": {"of the plan's routes": "cubic"}},
    }
    folder = campaigns(lab.settings) / "reproduce-1"
    folder.mkdir(parents=True)
    (folder / "campaign.json").write_text(json.dumps(data))
    return "reproduce-1"


def stayed(lab: Lab, speed: float, arm: str, state: str = "done") -> dict[str, Any]:
    run = lab.up(arm, RING if arm == "a" else CROSSED, job_ms=speed)
    return {
        "arm": arm,
        "state": state,
        "runs": [run],
        "jobs": {"ann": [{"run": run, "first": 1, "last": 30}]},
        "changes": {},
    }


def test_the_page_of_a_scenario_says_what_it_shows_and_every_number_follows(
    typed: Typed, lab: Lab
) -> None:
    slots = [stayed(lab, 40.0 + n / 10, arm) | {"round": 1 + n // 2} for n, arm in enumerate(FIVE)]
    slots += [stayed(lab, 90.0, "c") | {"round": 1}]
    slots += [
        stayed(lab, 90.0, "c", "stalled")
        | {"error": "j made 0 of 7 iterations in 30 s", "round": 2}
    ]
    page, _ = report(typed, record(lab, STAY, slots))
    assert recomputed(typed, page) > 100 and shown_as_answered(typed, page) > 20
    assert (
        "Claim holds. Claim: b is as fast as a" in page.text
        and "0.9 to 1.1" in page.text
        and "Source: a paper" in page.text
    )
    assert (
        "c (stalled)" in page.text
        and "j made 0 of 7 iterations in 30 s" in page.text
        and "cubic" in page.text
    )
    assert "Measuring ended when the interval of every ratio was at most 5%" in page.text
    assert "geometric mean of the rounds' ratios, 95 % t-interval" in page.text
    rows = page.numbers["answers"]["compared"]["rows"]
    assert len(rows) == 11 * 5, "five of each finished measurement, without the warm-up"
    (finding,) = page.numbers["answers"]["findings"]["rows"]
    assert finding[2] <= finding[1] <= finding[3] and finding[4:] == [True, 5, "holds"]


def test_a_dilated_record_is_shown_as_at_k_1_and_beside_what_another_k_gave(
    typed: Typed, lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[tuple[Any, str]] = []
    draw = traffic.measurements
    monkeypatch.setattr(
        traffic, "measurements", lambda *given: drawn.append((given[0], given[1])) or draw(*given)
    )
    slots = [stayed(lab, 80.0 + n / 10, arm) | {"round": 1 + n // 2} for n, arm in enumerate(FIVE)]
    slots[0]["slowed"] = {
        "share": 0.05,
        "rank": "gpu01",
        "retransmitted": 17,
        "rwnd_limited_ms": 2500.4,
        "refused": 3,
        "limit": 0.2,
    }
    name = record(lab, STAY, slots)
    page, _ = report(typed, name)
    assert "dilation" not in page.text and "as at k = 1" not in page.html and "2500 ms" in page.text
    kept = campaigns(lab.settings) / name / "campaign.json"
    data = json.loads(kept.read_text())
    data["scenario"] |= {"sha256": "0", "lab": {"dilation": 2.0}}
    kept.write_text(json.dumps(data))
    other = json.loads(kept.read_text()) | {"name": "reproduce-0", "outcome": "claim holds"}
    ratio = {"value": 0.5, "low": 0.49, "high": 0.51}
    other["findings"] = [{"name": "iteration_ms b / a", "found": ratio, "n": 5}]
    other["scenario"]["lab"]["dilation"] = 1.0
    (kept.parent.parent / "reproduce-0").mkdir()
    (kept.parent.parent / "reproduce-0" / "campaign.json").write_text(json.dumps(other))
    page, _ = report(typed, name)
    assert (
        "The lab was 2 times slower (dilation): rates divided by 2" in page.text
        and "1250 ms" in page.text
    )
    assert "iteration, ms as at k = 1" in page.html.replace("&#160;", " ")
    assert (
        "it moves, which is a finding" in page.text
        and "reproduce-0" in page.text
        and "0.5 (0.49 to 0.51)" in page.text
    )
    assert min(row[2] for row in page.numbers["answers"]["compared"]["rows"]) > 75, (
        "the query has real time"
    )
    (values,) = [each["b"] for each, axis in drawn if "as at k = 1" in axis]
    assert all(37 < value < 45 for value in values[0])


@pytest.mark.long
@UNDRAWN
def test_the_same_values_outside_the_band_refute_the_claim(typed: Typed, lab: Lab) -> None:
    slots = [
        stayed(lab, 40.0 if arm == "a" else 80.0, arm) | {"round": 1 + n // 2}
        for n, arm in enumerate(FIVE)
    ]
    page, _ = report(typed, record(lab, STAY, slots))
    assert (
        "Refuted. Claim" in page.text
        and "Refuted, the whole interval is outside the band: iteration_ms b / a." in page.text
    )


@UNDRAWN
def test_void_measurements_are_listed_with_what_slowed_them_down_and_count_nowhere(
    typed: Typed, lab: Lab
) -> None:
    slots = [stayed(lab, 40.0, arm) | {"round": 1 + n // 2} for n, arm in enumerate(FIVE)]
    void = stayed(lab, 400.0, "a", "void") | {"round": 5}
    counts = {"retransmitted": 17, "rwnd_limited_ms": 2500.4, "refused": 3, "limit": 0.2}
    void["slowed"] = {"share": 0.375, "rank": "gpu02", **counts}
    for slot in slots:
        slot["slowed"] = {"share": 0.05, "rank": "gpu01", **counts}
    slots[0]["slowed"] = {"share": None, "rank": "", **counts}
    page, _ = report(typed, record(lab, STAY, [*slots, void]))
    assert "Claim holds. Claim" in page.text and "a (void)" in page.text
    assert "37.5%, gpu02" in page.text and "not known" in page.text and "2500 ms" in page.text
    assert (
        "1 of 11 measurements are void" in page.text
        and "more than 20% of an iteration" in page.text
    )
    (finding,) = page.numbers["answers"]["findings"]["rows"]
    assert finding[1] == pytest.approx(1.0) and finding[5] == 5


@UNDRAWN
def test_a_record_that_is_older_than_rounds_is_read_as_rounds_and_starved_of_them(
    typed: Typed, lab: Lab
) -> None:
    slots = [stayed(lab, 40.0, arm) for arm in "abcabc"]
    page, _ = report(typed, record(lab, STAY, slots, ended=False))
    assert (
        "Starved. Claim" in page.text
        and "2 of the 5 rounds that are the least count: iteration_ms b / a." in page.text
    )


def test_bytes_loss_and_progress_are_compared_of_jobs_that_change_nothing(
    typed: Typed, lab: Lab
) -> None:
    text = STAY[: STAY.index("  - {metric")] + "".join(
        f"  - {{metric: {metric}, of: b, over: a, band: {{min: 0, max: 9}}}}\n"
        for metric in (
            "wire_bytes",
            "loss",
            "span_ms",
            "iteration_p99_ms",
            "loss, seconds: 1",
            "ttft_p99_ms",
            "goodput",
        )
    )
    slots = [
        stayed(lab, 40.0 if arm == "a" else 80.0, arm) | {"round": 1 + n // 2}
        for n, arm in enumerate("abba")
    ]
    for slot in slots:
        sent = {"iter_ms": 1.0, "wire_bytes": 1000 if slot["arm"] == "a" else 250}
        with Journal(
            lab.settings.run_dir(slot["runs"][0]), slot["runs"][0], "emulated", clock=lab.clock
        ) as journal:
            for n in range(30):
                journal.point(
                    "collective",
                    {"job": "ddp", "op": "all_reduce", "algo": "ring"},
                    sent | {"iter": n},
                    lab.clock.now_ns,
                )
                late = slot["arm"] == "b"
                figures = {"ttft_p99_ms": 90.0 if late else 60.0, "goodput": 0.5 if late else 1.0}
                journal.point("serving", {"job": "ddp"}, figures | {"iter": n}, lab.clock.now_ns)
    page, _ = report(typed, record(lab, text, slots))
    found = [row[1] for row in page.numbers["answers"]["findings"]["rows"]]
    assert found == [
        0.25,
        pytest.approx(2.8 / 2.4),
        pytest.approx(2.0, abs=0.05),
        pytest.approx(2.0, abs=0.1),
        pytest.approx(2.8 / 2.4),
        pytest.approx(1.5),
        pytest.approx(0.5),
    ]
    assert "loss after 1 s" in page.html.replace("&#160;", " ")
    assert recomputed(typed, page) > 100


@UNDRAWN
def test_a_change_is_read_from_the_journals_of_the_job_and_of_the_change(
    typed: Typed, lab: Lab
) -> None:
    text = (
        CHANGE.replace("span_ms, of: go, over: stay", "lost_ms, of: go, over: again")
        .replace(
            "stay: {}, go: {then: b.json, mode: live}",
            "again: {then: b.json, mode: restart}, go: {then: b.json, mode: live}",
        )
        .replace("[then]", "[mode]")
    )
    slots = []
    for n, arm in enumerate(("again", "go", "go", "again")):
        first = lab.up("ring", RING, job_ms=40.0, iterations=40)
        dark = 60.0 if arm == "go" else 60.0 + n
        run = lab.up(
            "crossed", CROSSED, before=("ring", RING), dark_ms=dark, job_ms=40.0, iterations=40
        )
        parts = [
            {"run": first, "first": 1, "last": 40, "after": None},
            {"run": run, "first": 1, "last": 40, "after": 0},
        ]
        slot = {
            "arm": arm,
            "round": 1 + n // 2,
            "state": "done",
            "runs": [first, run],
            "jobs": {"ann": parts},
        }
        slots.append(slot | {"changes": {"ann": run}})
    page, _ = report(typed, record(lab, text, slots))
    assert recomputed(typed, page) > 100 and shown_as_answered(typed, page) > 20
    (finding,) = page.numbers["answers"]["findings"]["rows"]
    assert finding[1] == pytest.approx(1.0, abs=0.05)
    assert [row[5] for row in page.numbers["answers"]["changes"]["rows"]] == [
        60.0,
        60.0,
        60.0,
        63.0,
    ]


@pytest.mark.long
@pytest.mark.skipif(
    CHROMIUM is None,
    reason="Chromium is not installed (scripts/install-deps chromium): the page was not opened",
)
def test_a_scenarios_page_fits_a_phone(browser: Browser, typed: Typed, lab: Lab) -> None:  # noqa: F811
    slots = [stayed(lab, 40.0 + n, arm) for n, arm in enumerate("abba")]
    record(lab, STAY, slots)
    file = typed("experiment", "report", "reproduce-1", "--json").data["file"]
    with browser.new_context(viewport={"width": 390, "height": 844}) as context:
        page = context.new_page()
        page.goto(f"file://{file}")
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        assert page.evaluate(SMALLEST_LETTERS) >= 8
