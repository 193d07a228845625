"""The runner of scenarios on a lab of fakes: order, changes, watchdogs, the state the lab is left in; and how bands are judged."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as bounded
from hypothesis import strategies as st

from optics.errors import NotVerified, RolledBack, TimedOut
from orchestrator.change.report import DownReport, UpReport
from orchestrator.experiments.files.scenario.reader import read_scenario
from orchestrator.experiments.files.scenario.values import Compared, Scenario
from orchestrator.experiments.scenario.interval import Interval
from orchestrator.experiments.scenario.judging import JudgedComparison, compared_of, judge_comparison, reproduced
from orchestrator.experiments.scenario.record import (
    ComparisonRecord,
    Known,
    begin_comparison,
    check_arms,
    expected_duration_s,
    known,
    minutes,
    order,
)
from orchestrator.experiments.scenario.runner import Runner, leave
from orchestrator.inventory.lab import Lab
from orchestrator.jobs.report import JobStatus
from orchestrator.settings import Settings, load
from tests.kit.labs import lab_of

LINKS = [{"a": "gpu01:p1", "b": "gpu02:p1"}]
JOB = {"name": "j", "workload": "train", "ranks": ["gpu01", "gpu02"], "args": {"iterations": 0}}
PLANS = {
    f"{name}.json": {"schema": "testbed.plan/1", "name": name, "links": [{"a": f"gpu01:{p}", "b": f"gpu02:{p}"}], "job": JOB}
    for name, p in (("a", "p1"), ("b", "p2"), ("c", "p3"))
}
STAY = """\
schema: testbed.scenario/1
name: s
title: A scenario
source: [a paper]
claim: b is as fast as a
label: native
lab: any
tenants: {ann: {plan: a.json}}
arms: {a: {}, b: {plan: b.json}, c: {plan: c.json, watchdog_s: 30}}
differs: [plan.links]
repeats: 2
iterations: 5
warm_up: 2
compare:
  - {metric: iteration_ms, of: b, over: a, band: {min: 0.9, max: 1.1}}
"""
CHANGE = (
    STAY.replace(
        "arms: {a: {}, b: {plan: b.json}, c: {plan: c.json, watchdog_s: 30}}", "arms: {stay: {}, go: {then: b.json, mode: live}}"
    )
    .replace("[plan.links]", "[then]")
    .replace("iteration_ms, of: b, over: a", "span_ms, of: go, over: stay")
)


def scenario(text: str = STAY) -> Scenario:
    return read_scenario(text, "s.yaml", lambda name: json.dumps(PLANS[name]))


@dataclass
class Fake:
    """A tenant's verbs: the job makes an iteration a second. fail: what the verb of that number raises; slow: plans on which no job
    comes further; anew: whether a change launches the job again."""

    now: float = 0.0
    said: list[str] = field(default_factory=list)
    fail: dict[int, BaseException] = field(default_factory=dict)
    slow: set[str] = field(default_factory=set)
    anew: bool = False
    plan: str = ""
    job: int = 0
    since: float | None = None
    ups: int = 0

    def _next(self, what: str) -> None:
        self.said.append(what)
        if (error := self.fail.pop(len(self.said), None)) is not None:
            raise error

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def up(self, plan: Path, *, launch: bool = False, mode: Any = None) -> UpReport:
        name = str(json.loads(plan.read_text())["name"])
        self._next(f"up {name}{f' {mode}' if mode else ''}")
        same, self.plan, self.ups = name == self.plan, name, self.ups + 1
        if launch and (self.since is None or (self.anew and not same)):
            self._launch()
        return UpReport(f"up-{self.ups}", name, "lab", nothing_to_do=same)

    def _launch(self) -> None:
        self.job, self.since = self.job + 1, self.now

    def launch(self) -> JobStatus:
        self._next("launch")
        self._launch()
        return self._status()

    def status(self) -> JobStatus:
        return self._status()

    def _status(self) -> JobStatus:
        made = 0 if self.since is None or self.plan in self.slow else int(self.now - self.since)
        state = "stopped" if self.since is None else "running"
        return JobStatus("j", state, iterations=made, iteration_ms=1000.0, run=f"job-{self.job}")

    def stop(self) -> JobStatus:
        self._next("stop")
        found = self._status()
        self.since = None
        return replace(found, state="stopped")

    def begin(self, extension: str, how: Any) -> list[str]:
        self._next(f"{extension} {how}")
        return [f"was {how}"]

    def end(self, extension: str) -> None:
        self._next(f"{extension} ends")

    def rollback(self, run: str) -> UpReport | DownReport:
        self._next(f"rollback {run}")
        return DownReport("r", "lab")

    def down(self) -> DownReport:
        self._next("down")
        return DownReport("r", "lab")


@pytest.fixture(scope="module")
def lab() -> Lab:
    return lab_of("emulated")


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    for name in ("DATA", "STATE", "LOCK"):
        monkeypatch.setenv(f"TESTBED_{name}_DIR", str(tmp_path / name))
    return load({})


def ready(settings: Settings, lab: Lab, text: str = STAY, *, fake: Fake | None = None) -> tuple[Runner, Fake, ComparisonRecord]:
    found, fake = scenario(text), fake or Fake()
    record = begin_comparison(settings, lab, found, kind="reproduce", leave="before")
    return Runner(record, found, {"ann": fake}, lambda words: None, None, True, fake.sleep, lambda: fake.now), fake, record


def test_arms_are_measured_in_turn_each_from_its_plan_to_its_stop(settings: Settings, lab: Lab) -> None:
    runner, fake, record = ready(settings, lab)
    assert runner.measure()
    assert [slot["arm"] for slot in record.slots] == [*"abccba"] == order(["a", "b", "c"], 2)
    assert fake.said == [word for arm in "abccba" for word in (f"up {arm}", "launch", "stop")]
    assert all(slot["jobs"]["ann"][0]["last"] >= 7 for slot in record.slots), "the warm-up, and what counts"
    saved = json.loads((record.folder / "campaign.json").read_text())
    assert [slot["state"] for slot in saved["slots"]] == ["done"] * 6 and saved["scenario"]["label"] == "native"
    assert leave(record, {"ann": fake}) == "as it was before: ann: nothing is up" and fake.said[-1] == "rollback up-1"


def test_uplinks_are_shared_in_each_arm_as_it_says_or_else_as_the_lab_does(settings: Settings, lab: Lab) -> None:
    text = STAY.replace("lab: any", "lab: {hosts: 12, queue: {kb: 128}}").replace("c: {plan: c.json,", "c: {lab: {share: job},")
    runner, _, _ = ready(settings, lab, text.replace("[plan.links]", "[plan.links, lab.share]"))
    said: list[str] = []
    runner.share = said.append
    assert runner.measure() and said == ["fifo", "fifo", "job", "job", "fifo", "fifo"]


def test_circuits_follow_the_job_in_an_arm_whose_plan_says_so_and_in_no_other(settings: Settings, lab: Lab) -> None:
    runner, fake, _ = ready(settings, lab, fake=Fake(slow={"c"}))
    runner.scenario.arms["c"].setups["ann"].plan.document["adapt"] = {"every": 1}  # type: ignore[index]
    assert runner.measure()
    of_c = ["up c", "launch", "adapt None", "adapt ends", "stop"]
    assert fake.said[6:16] == of_c * 2, "it is stopped before the job, a stalled one's too"
    assert sum(word.startswith("adapt") for word in fake.said) == 4


def test_what_a_job_makes_before_its_slots_turn_or_its_circuits_follow_it_is_not_measured(settings: Settings, lab: Lab) -> None:
    class Slow(Fake):
        def launch(self) -> JobStatus:
            found = super().launch()
            self.sleep(4.0)
            return found

    runner, _, record = ready(settings, lab, fake=Slow())
    document = runner.scenario.arms["b"].setups["ann"].plan.document
    document["schedule"] = {"dwell_s": 1.0}  # type: ignore[index]
    runner.scenario.arms["c"].setups["ann"].plan.document["adapt"] = {"every": 1}  # type: ignore[index]
    assert runner.measure()
    first = {slot["arm"]: slot["jobs"]["ann"][0]["first"] for slot in record.slots}
    assert first == {"a": 1, "b": 5, "c": 5}


def test_a_stall_is_a_result_and_the_others_are_measured_all_the_same(settings: Settings, lab: Lab) -> None:
    runner, fake, record = ready(settings, lab, fake=Fake(slow={"c"}))
    assert runner.measure()
    assert [(slot["arm"], slot["state"]) for slot in record.slots] == [
        *(("a", "done"), ("b", "done"), ("c", "stalled"), ("c", "stalled"), ("b", "done"), ("a", "done")),
    ]
    stalled = record.slots[2]
    assert stalled["error"] == "j made 0 of 7 iterations in 30 s" and 30 <= stalled["seconds"] < 32, "the arm's own watchdog"
    assert fake.said.count("stop") == 6, "a stalled job is stopped, too"


def test_a_verb_that_times_out_is_a_stall_and_another_error_ends_the_scenario(settings: Settings, lab: Lab) -> None:
    runner, _, record = ready(settings, lab, fake=Fake(fail={4: TimedOut("ocs1: no answer"), 11: RolledBack("refused")}))
    with pytest.raises(RolledBack):
        runner.measure()
    assert [slot["state"] for slot in record.slots] == ["done", "stalled", "done", "done", "failed", "waiting"]
    assert record.slots[1]["error"] == "ocs1: no answer" and record.slots[4]["error"] == "refused"


def test_in_a_comparison_a_stall_is_an_error(settings: Settings, lab: Lab) -> None:
    runner, _, record = ready(settings, lab, fake=Fake(slow={"b"}))
    with pytest.raises(NotVerified, match="j made 0 of 7 iterations in 120 s"):
        replace(runner, stalls=False).measure()
    assert record.slots[1]["state"] == "failed"


def test_an_interrupt_keeps_what_was_measured_and_stops_nothing_else(settings: Settings, lab: Lab) -> None:
    runner, _, record = ready(settings, lab, fake=Fake(fail={5: KeyboardInterrupt()}))
    with pytest.raises(KeyboardInterrupt):
        runner.measure()
    assert [slot["state"] for slot in record.slots][:3] == ["done", "failed", "waiting"]


def test_the_job_goes_on_from_change_to_change_and_an_arm_may_stay(settings: Settings, lab: Lab) -> None:
    runner, fake, record = ready(settings, lab, CHANGE)
    assert runner.measure()
    assert fake.said == ["up a", "up a", "up b live", "up a", "up b live", "up a", "stop"]
    assert [slot["arm"] for slot in record.slots] == ["stay", "go", "go", "stay"]
    parts = [slot["jobs"]["ann"] for slot in record.slots]
    assert all(len(p) == 1 and p[0]["run"] == "job-1" for p in parts), "one launch for all"
    assert all(p[0]["first"] + 1 == p[0]["after"] and p[0]["last"] >= p[0]["after"] + 5 for p in parts)
    assert [slot["changes"] for slot in record.slots] == [{}, {"ann": "up-3"}, {"ann": "up-5"}, {}]


def test_a_change_that_launches_the_job_again_has_two_parts(settings: Settings, lab: Lab) -> None:
    runner, _, record = ready(settings, lab, CHANGE, fake=Fake(anew=True))
    assert runner.measure()
    before, again = record.slots[1]["jobs"]["ann"]
    assert before["run"] != again["run"] and before["after"] is None and again["after"] == 0 and again["last"] >= 5


def test_each_arm_has_its_switching_time_and_the_way_back_is_at_the_labs_own(settings: Settings, lab: Lab) -> None:
    text = CHANGE.replace("lab: any", "lab: {settle_ms: 40}").replace("mode: live}", "sweep: {lab.settle_ms: [1, 1000]}}")
    text = text.replace("[then]", "[then, lab.settle_ms]").replace("of: go", "of: go@1")
    runner, _, _ = ready(settings, lab, text)
    set_to: list[float] = []
    replace(runner, settle=set_to.append).measure()
    assert set_to[:6] == [40, 40, 40, 1, 40, 1000]


def test_two_tenants_start_together_and_what_one_made_alone_does_not_count(settings: Settings, lab: Lab) -> None:
    found = scenario(
        STAY.replace("{ann: {plan: a.json}}", "{ann: {plan: a.json}, bob: {plan: a.json}}").replace("of: b", "of: b, tenant: bob")
    )
    record = begin_comparison(settings, lab, found, kind="reproduce", leave="down")
    ann, bob = Fake(), Fake()

    def sleep(seconds: float) -> None:
        ann.sleep(seconds)
        bob.sleep(seconds)

    def head_start(plan: Path, **options: Any) -> UpReport:
        return Fake.up(bob, plan, **options)

    bob.up = head_start  # type: ignore[method-assign]
    launched = bob.launch

    def late() -> JobStatus:
        sleep(4.0)
        return launched()

    bob.launch = late  # type: ignore[method-assign]
    Runner(record, found, {"ann": ann, "bob": bob}, lambda words: None, None, True, sleep, lambda: ann.now).measure()
    first = {tenant: parts[0]["first"] for tenant, parts in record.slots[0]["jobs"].items()}
    assert first == {"ann": 5, "bob": 1}
    assert leave(record, {"ann": ann, "bob": bob}) == "nothing is up" and ann.said[-1] == bob.said[-1] == "down"


def test_arms_that_are_coordinated_begin_together_and_differ_in_the_shift_alone(settings: Settings, lab: Lab) -> None:
    text = STAY.replace("{ann: {plan: a.json}}", "{ann: {plan: a.json}, bob: {plan: a.json}}")
    text = text.replace(
        "{a: {}, b: {plan: b.json}, c: {plan: c.json, watchdog_s: 30}}", "{a: {coordinate: together}, b: {coordinate: shift}}"
    )
    found = scenario(text.replace("[plan.links]", "[coordinate]").replace("of: b", "of: b, tenant: bob"))
    record = begin_comparison(settings, lab, found, kind="reproduce", leave="down")
    ann, bob = Fake(), Fake()

    def sleep(seconds: float) -> None:
        ann.sleep(seconds)
        bob.sleep(seconds)

    Runner(record, found, {"ann": ann, "bob": bob}, lambda words: None, None, True, sleep, lambda: ann.now).measure()
    asked = [word for word in ann.said if word.startswith("pacing")]
    assert asked == [words for how in ("together", "shift", "shift", "together") for words in (f"pacing {how}", "pacing ends")]
    assert [slot["said"] for slot in record.slots[:2]] == [{"pacing": ["was together"]}, {"pacing": ["was shift"]}]
    assert not any(word.startswith("pacing") for word in bob.said)


def test_a_plan_that_does_not_fit_the_lab_is_refused_with_its_place_before_anything_moves(settings: Settings, lab: Lab) -> None:
    bad = {**PLANS["b.json"], "links": [{"a": "gpu01:p1", "b": "gpu99:p1"}]}
    found = read_scenario(STAY, "s.yaml", lambda name: json.dumps(bad if name == "b.json" else PLANS[name], indent=1))
    with pytest.raises(ValueError, match=r"b\.json:\d+:\d+: links\[0\]\.b: .*gpu99"):
        check_arms(lab, found)


def test_a_job_that_ends_is_refused_where_it_must_run_through_a_change(settings: Settings, lab: Lab) -> None:
    with pytest.raises(ValueError, match="it must run through every change"):
        check_arms(
            lab, scenario(CHANGE.replace("{plan: a.json}", "{plan: a.json, args: {iterations: 40}}").replace("[then]", "[then]"))
        )


RATIO = Compared("x", "iteration_ms", "b", "a", "ann", 0.9, 1.1)


def judged(of: list[list[float]], over: list[list[float]], states: str = "done", compared: Compared = RATIO) -> Any:
    samples = {("b", "ann", "iteration_ms", 0): of, ("a", "ann", "iteration_ms", 0): over}
    return judge_comparison(compared, samples, {"a": ["done"] * 2, "b": ["done", states]})


def test_a_comparison_holds_if_its_whole_interval_is_inside_the_band() -> None:
    same = [[100.0, 101.0, 99.0]] * 3
    assert judged(same, same).holds
    assert judged(same, [[50.0, 51.0, 49.0]] * 3).why == "the interval is not inside the band"
    wide = judged([[60.0] * 3, [100.0] * 3, [140.0] * 3], same)
    assert wide.found.value == pytest.approx(1.0) and not wide.holds, "the middle alone does not count"
    assert not judged([[100.0]], same).holds and "at least two" in judged([[100.0]], same).why


def test_a_stall_or_a_missing_figure_never_holds() -> None:
    same = [[100.0, 101.0]] * 2
    assert judged(same, same, "stalled").why == "arm b stalled in 1 of 2 measurements"
    assert judged([[], []], same).why == "iteration_ms of arm b was not recorded"
    none = replace(RATIO, metric="stalled", over="", low=None, high=0.0)
    assert judged(same, same, "stalled", none).found.value == 0.5 and judged(same, same, "done", none).holds


@bounded(deadline=None, max_examples=15)
@given(st.lists(st.floats(1, 1e6), min_size=2, max_size=6), st.floats(0.1, 10))
def test_a_band_around_everything_holds_and_an_empty_one_does_not(values: list[float], factor: float) -> None:
    of, over = [[v * factor] for v in values], [[v] for v in values]
    assert judged(of, over, compared=replace(RATIO, low=0.0, high=None)).holds
    assert not judged(of, over, compared=replace(RATIO, low=1e9, high=None)).holds


def test_it_is_reproduced_only_if_every_comparison_holds_and_all_was_measured(settings: Settings, lab: Lab) -> None:
    same = [[100.0, 101.0]] * 2
    good, bad = judged(same, same), judged(same, same, "stalled")
    assert reproduced([good], True) and not reproduced([good], False) and not reproduced([good, bad], True)
    assert not reproduced([], True)
    _, _, record = ready(settings, lab)
    assert compared_of(json.loads((record.folder / "campaign.json").read_text())) == list(scenario().compared)


@pytest.mark.parametrize(
    ("found", "band", "shown"),
    [
        ((1.03, 1.0, 1.0504), (0.95, 1.05), "1.030 (95 % 1.000 to 1.0504)"),
        ((1.03, 0.94996, 1.04), (0.95, None), "1.03 (95 % 0.94996 to 1.04)"),
        ((0.021, 0.019, 0.024), (None, 0.03), "0.021 (95 % 0.019 to 0.024)"),
        ((1.0, 0.95, 1.05), (0.95, 1.05), "1 (95 % 0.95 to 1.05)"),
    ],
)
def test_a_verdict_has_as_many_digits_as_show_its_reason(
    found: tuple[float, float, float], band: tuple[float | None, float | None], shown: str
) -> None:
    one = Compared("x", "iteration_ms", "a", "b", "ann", *band)
    holds = (band[0] is None or found[1] >= band[0]) and (band[1] is None or found[2] <= band[1])
    words = JudgedComparison(one, Interval(*found), holds, "" if holds else "the interval is not inside the band").words
    low, high = (float(part) for part in words.partition("95 % ")[2].partition(")")[0].split(" to "))
    assert holds == ((band[0] is None or low >= band[0]) and (band[1] is None or high <= band[1])), words
    assert [float(n) for n in re.findall(r"[0-9.]+", shown)] == [float(n) for n in re.findall(r"[0-9.]+", words.partition(",")[0])]


def test_earlier_records_tell_how_long_a_scenario_takes_and_what_was_found(lab: Lab, settings: Settings) -> None:
    small = scenario()
    assert known(settings, small) == Known() and expected_duration_s(small, Known()) == 2 * (120.0 + 120.0 + 30.0)
    record = begin_comparison(settings, lab, small, kind="reproduce", leave="down")
    record.slots[0].update(state="done", seconds=30.0)
    record.slots[1].update(state="failed", seconds=500.0)
    record.save()
    assert known(settings, small) == Known("", "", 30.0)
    record.data["outcome"] = "not reproduced"
    record.save()
    found = known(settings, small)
    assert (found.outcome, found.each_s) == ("not reproduced", 30.0) and found.day
    assert expected_duration_s(small, found) == 180.0 and [*map(minutes, (30.0, 180.0))] == ["30 s", "3 min"]
    assert known(settings, replace(small, sha256="other")) == Known("", "", 30.0)
