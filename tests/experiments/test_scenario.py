"""The runner of scenarios on a lab of fakes: rounds, changes, watchdogs, and the state the lab is
left in.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from optics.errors import NotVerified, RolledBack, TimedOut
from orchestrator.change.report import DownReport, UpReport
from orchestrator.experiments.files.scenario.reader import read_scenario
from orchestrator.experiments.files.scenario.values import Scenario
from orchestrator.experiments.scenario.record import (
    ComparisonRecord,
    Known,
    begin_comparison,
    check_arms,
    expected_duration_s,
    keep_outcome,
    known,
    minutes,
    shipped,
)
from orchestrator.experiments.scenario.runner import Runner, leave
from orchestrator.experiments.scenario.void import Slowed
from orchestrator.inventory.lab import Lab
from orchestrator.jobs.report import JobStatus
from orchestrator.settings import Settings, load
from tests.kit.labs import lab_of

LINKS = [{"a": "gpu01:p1", "b": "gpu02:p1"}]
JOB = {"name": "j", "workload": "train", "ranks": ["gpu01", "gpu02"], "args": {"iterations": 0}}
PLANS = {
    f"{name}.json": {
        "schema": "testbed.plan/1",
        "name": name,
        "links": [{"a": f"gpu01:{p}", "b": f"gpu02:{p}"}],
        "job": JOB,
    }
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
        "arms: {a: {}, b: {plan: b.json}, c: {plan: c.json, watchdog_s: 30}}",
        "arms: {stay: {}, go: {then: b.json, mode: live}}",
    )
    .replace("[plan.links]", "[then]")
    .replace("iteration_ms, of: b, over: a", "span_ms, of: go, over: stay")
)


def scenario(text: str = STAY) -> Scenario:
    return read_scenario(text, "s.yaml", lambda name: json.dumps(PLANS[name]))


@dataclass
class Fake:
    """A tenant's verbs: the job makes an iteration a second. fail: what the verb of that number
    raises; slow: plans on which no job comes further; again: whether a change launches the job
    again; ends: the job's last iteration, 0: none is."""

    now: float = 0.0
    reported: list[str] = field(default_factory=list)
    fail: dict[int, BaseException] = field(default_factory=dict)
    slow: set[str] = field(default_factory=set)
    renew_all: bool = False
    ends: int = 0
    plan: str = ""
    job: int = 0
    since: float | None = None
    ups: int = 0

    def _next(self, what: str) -> None:
        self.reported.append(what)
        if (error := self.fail.pop(len(self.reported), None)) is not None:
            raise error

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def up(self, plan: Path, *, launch: bool = False, mode: Any = None) -> UpReport:
        name = str(json.loads(plan.read_text())["name"])
        self._next(f"up {name}{f' {mode}' if mode else ''}")
        same, self.plan, self.ups = name == self.plan, name, self.ups + 1
        if launch and (self.since is None or (self.renew_all and not same)):
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
        if self.ends and made >= self.ends:
            state, made = "finished", self.ends
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


def narrow() -> bool:
    """That of intervals which are narrow."""
    return True


def ready(
    settings: Settings, lab: Lab, text: str = STAY, *, fake: Fake | None = None
) -> tuple[Runner, Fake, ComparisonRecord]:
    found, fake = scenario(text), fake or Fake()
    record = begin_comparison(settings, lab, found, kind="reproduce", leave="before")
    record.data["least"] = 2
    return (
        Runner(
            record,
            found,
            {"ann": fake},
            lambda text: None,
            None,
            True,
            fake.sleep,
            lambda: fake.now,
        ),
        fake,
        record,
    )


def test_arms_are_measured_in_turn_each_from_its_plan_to_its_stop(
    settings: Settings, lab: Lab
) -> None:
    runner, fake, record = ready(settings, lab)
    runner.measure_rounds(narrow)
    assert [(slot["arm"], slot["round"]) for slot in record.slots] == [
        *zip("abccba", (1, 1, 1, 2, 2, 2), strict=True)
    ]
    assert fake.reported == [word for arm in "abccba" for word in (f"up {arm}", "launch", "stop")]
    assert all(slot["jobs"]["ann"][0]["last"] >= 7 for slot in record.slots), (
        "the warm-up, and what counts"
    )
    saved = json.loads((record.folder / "campaign.json").read_text())
    assert [slot["state"] for slot in saved["slots"]] == ["done"] * 6 and saved["scenario"][
        "label"
    ] == "native"
    assert (
        leave(record, {"ann": fake}) == "as it was before: ann: nothing is up"
        and fake.reported[-1] == "rollback up-1"
    )


def test_what_is_compared_after_seconds_is_measured_for_as_long_from_the_warm_up_on(
    settings: Settings, lab: Lab
) -> None:
    for text, least in (
        (STAY.replace("metric: iteration_ms", "metric: loss, seconds: 20"), 2 + 20),
        (CHANGE.replace("metric: span_ms", "metric: loss, seconds: 20"), 2 + 20),
        (STAY.replace("metric: iteration_ms", "metric: loss, seconds: 3"), 2 + 5),
    ):
        runner, _, record = ready(settings, lab, text)
        runner.measure_rounds(narrow)
        made = [
            slot["jobs"]["ann"][0]["last"] + 1 - slot["jobs"]["ann"][0]["first"]
            for slot in record.slots
        ]
        assert {slot["state"] for slot in record.slots} == {"done"}
        assert all(least <= number <= least + 4 for number in made), made


def test_uplinks_are_shared_in_each_arm_as_it_says_or_else_as_the_lab_does(
    settings: Settings, lab: Lab
) -> None:
    text = STAY.replace("lab: any", "lab: {hosts: 12, queue: {kb: 128}}").replace(
        "c: {plan: c.json,", "c: {lab: {share: job},"
    )
    runner, _, _ = ready(settings, lab, text.replace("[plan.links]", "[plan.links, lab.share]"))
    lines: list[str] = []
    runner.share = lines.append
    runner.measure_rounds(narrow)
    assert lines == ["fifo", "fifo", "job", "job", "fifo", "fifo"]


def test_circuits_follow_the_job_in_an_arm_whose_plan_says_so_and_in_no_other(
    settings: Settings, lab: Lab
) -> None:
    runner, fake, _ = ready(settings, lab, fake=Fake(slow={"c"}))
    runner.scenario.arms["c"].setups["ann"].plan.document["adapt"] = {"every": 1}  # type: ignore[index]
    runner.measure_rounds(narrow)
    of_c = ["up c", "launch", "adapt None", "adapt ends", "stop"]
    assert fake.reported[6:16] == of_c * 2, "it is stopped before the job, a stalled one's too"
    assert sum(word.startswith("adapt") for word in fake.reported) == 4


def test_what_a_job_makes_before_its_slots_turn_or_its_circuits_follow_it_is_not_measured(
    settings: Settings, lab: Lab
) -> None:
    class Slow(Fake):
        def launch(self) -> JobStatus:
            found = super().launch()
            self.sleep(4.0)
            return found

    runner, _, record = ready(settings, lab, fake=Slow())
    document = runner.scenario.arms["b"].setups["ann"].plan.document
    document["schedule"] = {"dwell_s": 1.0}  # type: ignore[index]
    runner.scenario.arms["c"].setups["ann"].plan.document["adapt"] = {"every": 1}  # type: ignore[index]
    runner.measure_rounds(narrow)
    first = {slot["arm"]: slot["jobs"]["ann"][0]["first"] for slot in record.slots}
    assert first == {"a": 5, "b": 5, "c": 5}, "in all arms the same iterations count"


def test_a_stall_is_a_result_and_the_others_are_measured_all_the_same(
    settings: Settings, lab: Lab
) -> None:
    runner, fake, record = ready(settings, lab, fake=Fake(slow={"c"}))
    runner.measure_rounds(narrow)
    assert [(slot["arm"], slot["state"]) for slot in record.slots] == [
        *(
            ("a", "done"),
            ("b", "done"),
            ("c", "stalled"),
            ("c", "stalled"),
            ("b", "done"),
            ("a", "done"),
        ),
    ]
    stalled = record.slots[2]
    assert (
        stalled["error"] == "j made 0 of 7 iterations in 30 s" and 30 <= stalled["seconds"] < 32
    ), "the arm's own watchdog"
    assert fake.reported.count("stop") == 6, "a stalled job is stopped, too"


def test_a_verb_that_times_out_is_a_stall_and_another_error_ends_the_scenario(
    settings: Settings, lab: Lab
) -> None:
    runner, _, record = ready(
        settings, lab, fake=Fake(fail={4: TimedOut("ocs1: no answer"), 11: RolledBack("refused")})
    )
    with pytest.raises(RolledBack):
        runner.measure_rounds(narrow)
    assert [slot["state"] for slot in record.slots] == [
        "done",
        "stalled",
        "done",
        "done",
        "failed",
        "waiting",
    ]
    assert record.slots[1]["error"] == "ocs1: no answer" and record.slots[4]["error"] == "refused"


def test_a_job_that_ends_before_all_iterations_that_count_is_an_error(
    settings: Settings, lab: Lab
) -> None:
    runner, _, record = ready(settings, lab, fake=Fake(ends=6))
    with pytest.raises(NotVerified, match="job j ended after 6 iterations, 7 are needed"):
        runner.measure_rounds(narrow)
    assert record.slots[0]["state"] == "failed"


def test_in_a_comparison_a_stall_is_an_error(settings: Settings, lab: Lab) -> None:
    runner, _, record = ready(settings, lab, fake=Fake(slow={"b"}))
    with pytest.raises(NotVerified, match="j made 0 of 7 iterations in 120 s"):
        replace(runner, stalls=False).measure_rounds(narrow)
    assert record.slots[1]["state"] == "failed"
    runner, _, record = ready(settings, lab, fake=Fake(slow={"b"}))
    runner.slowed = lambda slot: Slowed(0.5 if slot["arm"] == "b" else 0.0, "gpu01")
    replace(runner, stalls=False).measure_rounds(narrow)
    assert [slot["state"] for slot in record.slots] == ["done", "void", "done"] * 2, "as in others"


def test_an_interrupt_keeps_what_was_measured_and_stops_nothing_else(
    settings: Settings, lab: Lab
) -> None:
    runner, _, record = ready(settings, lab, fake=Fake(fail={5: KeyboardInterrupt()}))
    with pytest.raises(KeyboardInterrupt):
        runner.measure_rounds(narrow)
    assert [slot["state"] for slot in record.slots][:3] == ["done", "failed", "waiting"]


def test_the_job_goes_on_from_change_to_change_and_an_arm_may_stay(
    settings: Settings, lab: Lab
) -> None:
    runner, fake, record = ready(settings, lab, CHANGE)
    runner.measure_rounds(narrow)
    assert fake.reported == ["up a", "up a", "up b live", "up a", "up b live", "up a", "stop"]
    assert [slot["arm"] for slot in record.slots] == ["stay", "go", "go", "stay"]
    parts = [slot["jobs"]["ann"] for slot in record.slots]
    assert all(len(p) == 1 and p[0]["run"] == "job-1" for p in parts), "one launch for all"
    assert all(
        p[0]["first"] + 1 == p[0]["after"] and p[0]["last"] >= p[0]["after"] + 5 for p in parts
    )
    assert [slot["changes"] for slot in record.slots] == [{}, {"ann": "up-3"}, {"ann": "up-5"}, {}]


def test_a_change_that_launches_the_job_again_has_two_parts(settings: Settings, lab: Lab) -> None:
    runner, _, record = ready(settings, lab, CHANGE, fake=Fake(renew_all=True))
    runner.measure_rounds(narrow)
    before, again = record.slots[1]["jobs"]["ann"]
    assert (
        before["run"] != again["run"]
        and before["after"] is None
        and again["after"] == 0
        and again["last"] >= 5
    )


def test_each_arm_has_its_switching_time_and_the_way_back_is_at_the_labs_own(
    settings: Settings, lab: Lab
) -> None:
    text = CHANGE.replace("lab: any", "lab: {settle_ms: 40}").replace(
        "mode: live}", "sweep: {lab.settle_ms: [1, 1000]}}"
    )
    text = text.replace("[then]", "[then, lab.settle_ms]").replace("of: go", "of: go@1")
    runner, _, _ = ready(settings, lab, text)
    set_to: list[float] = []
    replace(runner, settle=set_to.append).measure_rounds(narrow)
    assert set_to[:6] == [40, 40, 40, 1, 40, 1000]


def test_two_tenants_start_together_and_what_one_made_alone_does_not_count(
    settings: Settings, lab: Lab
) -> None:
    found = scenario(
        STAY.replace("{ann: {plan: a.json}}", "{ann: {plan: a.json}, bob: {plan: a.json}}").replace(
            "of: b", "of: b, tenant: bob"
        )
    )
    record = begin_comparison(settings, lab, found, kind="reproduce", leave="down")
    record.data["least"] = 2
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
    Runner(
        record,
        found,
        {"ann": ann, "bob": bob},
        lambda text: None,
        None,
        True,
        sleep,
        lambda: ann.now,
    ).measure_rounds(narrow)
    first = {tenant: parts[0]["first"] for tenant, parts in record.slots[0]["jobs"].items()}
    assert first == {"ann": 5, "bob": 1}
    last = {tenant: parts[0]["last"] for tenant, parts in record.slots[0]["jobs"].items()}
    assert last == {"ann": 11, "bob": 7}, (
        "the time that one was waited for is not waited for the other again"
    )
    assert (
        leave(record, {"ann": ann, "bob": bob}) == "nothing is up"
        and ann.reported[-1] == bob.reported[-1] == "down"
    )


def test_arms_that_are_coordinated_begin_together_and_differ_in_the_shift_alone(
    settings: Settings, lab: Lab
) -> None:
    text = STAY.replace("{ann: {plan: a.json}}", "{ann: {plan: a.json}, bob: {plan: a.json}}")
    text = text.replace(
        "{a: {}, b: {plan: b.json}, c: {plan: c.json, watchdog_s: 30}}",
        "{a: {coordinate: together}, b: {coordinate: shift}}",
    )
    found = scenario(
        text.replace("[plan.links]", "[coordinate]").replace("of: b", "of: b, tenant: bob")
    )
    record = begin_comparison(settings, lab, found, kind="reproduce", leave="down")
    record.data["least"] = 2
    ann, bob = Fake(), Fake()

    def sleep(seconds: float) -> None:
        ann.sleep(seconds)
        bob.sleep(seconds)

    Runner(
        record,
        found,
        {"ann": ann, "bob": bob},
        lambda text: None,
        None,
        True,
        sleep,
        lambda: ann.now,
    ).measure_rounds(narrow)
    asked = [word for word in ann.reported if word.startswith("pacing")]
    assert asked == [
        text
        for how in ("together", "shift", "shift", "together")
        for text in (f"pacing {how}", "pacing ends")
    ]
    assert [slot["reported"] for slot in record.slots[:2]] == [
        {"pacing": ["was together"]},
        {"pacing": ["was shift"]},
    ]
    assert not any(word.startswith("pacing") for word in bob.reported)


def test_a_plan_that_does_not_fit_the_lab_is_refused_with_its_place_before_anything_moves(
    settings: Settings, lab: Lab
) -> None:
    bad = {**PLANS["b.json"], "links": [{"a": "gpu01:p1", "b": "gpu99:p1"}]}
    found = read_scenario(
        STAY, "s.yaml", lambda name: json.dumps(bad if name == "b.json" else PLANS[name], indent=1)
    )
    with pytest.raises(ValueError, match=r"b\.json:\d+:\d+: links\[0\]\.b: .*gpu99"):
        check_arms(lab, found)


def test_a_job_that_ends_is_refused_where_it_must_run_through_a_change(
    settings: Settings, lab: Lab
) -> None:
    with pytest.raises(ValueError, match="it must run through every change"):
        check_arms(
            lab,
            scenario(
                CHANGE.replace("{plan: a.json}", "{plan: a.json, args: {iterations: 40}}").replace(
                    "[then]", "[then]"
                )
            ),
        )


def test_earlier_records_tell_how_long_a_scenario_takes_and_what_was_found(
    lab: Lab, settings: Settings
) -> None:
    small = scenario()
    assert known(settings, small) == Known() and expected_duration_s(small, Known()) == 5 * (
        120.0 + 120.0 + 30.0
    )
    record = begin_comparison(settings, lab, small, kind="reproduce", leave="down")
    record.add("ab", 1)
    record.slots[0].update(state="done", seconds=30.0)
    record.slots[1].update(state="failed", seconds=500.0)
    record.save()
    assert known(settings, small) == Known(each_s=30.0)
    record.data |= {"outcome": "not shown", "environment": {"commit": "c0ffee00+"}}
    record.save()
    found = known(settings, small)
    assert (found.outcome, found.each_s, found.commit) == (
        "not shown",
        30.0,
        "c0ffee00+",
    ) and found.day
    assert expected_duration_s(small, found) == 450.0 and [*map(minutes, (30.0, 180.0))] == [
        "30 s",
        "3 min",
    ]
    assert expected_duration_s(replace(small, budget_s=100.0), found) == 100.0
    assert known(settings, replace(small, sha256="other")) == Known(each_s=30.0)


def test_what_was_found_before_the_program_was_shipped_is_read_if_it_can_be(tmp_path: Path) -> None:
    file, own = tmp_path / "scenario.yaml", scenario()
    assert shipped(file, own) == Known()
    for bad in ("{", "[]", '{"outcome": "x"}'):
        (tmp_path / "found.json").write_text(bad)
        assert shipped(file, own) == Known()
    found = {"outcome": "refuted", "day": "2026-11-23", "commit": None, "each_s": 40.5}
    (tmp_path / "found.json").write_text(json.dumps(found | {"dilation": 3, "sha256": own.sha256}))
    assert shipped(file, own) == Known("refuted", "2026-11-23", "", 40.5, True, 3.0)
    other = read_scenario(STAY, "s.yaml", lambda name: json.dumps(PLANS[name] | {"name": "new"}))
    assert shipped(file, other) == Known(), "it was found with other plans"


def test_a_judged_record_has_the_file_that_is_shipped_beside_its_scenario(
    lab: Lab, settings: Settings
) -> None:
    small = scenario()
    record = begin_comparison(settings, lab, small, kind="reproduce", leave="down")
    record.add("ab", 1)
    for slot, seconds in zip(record.slots, (30.0, 41.0), strict=True):
        slot.update(state="done", seconds=seconds)
    record.data["environment"] = {"commit": "c0ffee00"}
    keep_outcome(record, "refuted", [])
    found = shipped(record.folder / "scenario.yaml", small)
    assert found == replace(known(settings, small), shipped=True) and (
        found.outcome,
        found.each_s,
    ) == ("refuted", 35.5)
