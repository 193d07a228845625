"""A lab that is k times slower in all that is not this program, and what its ratios say beside
those of another k.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from emulators.inventory.config import read_config
from optics import BadFile
from orchestrator.experiments.files.scenario.reader import read_scenario
from orchestrator.experiments.files.scenario.values import Compared, Scenario, WantedLab
from orchestrator.experiments.scenario.dilated import at_other_dilations, at_two, dilated
from orchestrator.experiments.scenario.judging import JudgedComparison
from orchestrator.experiments.scenario.lab import prepare_lab
from orchestrator.experiments.scenario.paired import Interval
from orchestrator.experiments.scenario.record import Known, begin_comparison, keep_outcome, known
from orchestrator.inventory.lab import Lab
from orchestrator.session import load_lab
from orchestrator.settings import Settings
from tests.experiments.test_scenario import CHANGE, PLANS, STAY, lab, settings  # noqa: F401

OWN = STAY.replace("lab: any", "lab: {hosts: 2, ports: 3}").replace(
    "of: b, over: a", "of: b, over: a, name: b over a"
)


def scenario(text: str = OWN, **schedule: Any) -> Scenario:
    plans = {
        name: {**plan, "schedule": schedule} if schedule and name == "b.json" else plan
        for name, plan in PLANS.items()
    }
    text = text.replace("[plan.links]", "[plan.links, plan.schedule]") if schedule else text
    return read_scenario(text, "s.yaml", lambda name: json.dumps(plans[name]))


def test_rates_are_divided_times_are_longer_and_bytes_stay(tmp_path: Path) -> None:
    electrical = ("ideal@20", "oversubscribed:2@100", "domains:2")
    wanted = WantedLab(
        *(2, 2, 100, 50.0, 7),
        electrical,
        2,
        lines=("1:15:16:0.01",),
        queue="68:job",
        storage_mbps=300.0,
        dilation=4.0,
    )
    inventory = prepare_lab(tmp_path / "lab", wanted)
    config, read = read_config(inventory), load_lab(inventory)
    plain = read_config(prepare_lab(tmp_path / "plain", replace(wanted, dilation=1.0)))
    assert (config.rate_bps, config.dilation, config.seed, plain.dilation) == (
        25_000_000,
        4.0,
        7,
        1.0,
    )
    assert [s.rate_bps * 4 for s in config.segments] == [s.rate_bps for s in plain.segments]
    assert [[up * 4 for _, up in s.racks] for s in config.segments] == [
        [up for _, up in s.racks] for s in plain.segments
    ]
    assert [s.queue for s in config.segments] == [s.queue for s in plain.segments]
    (line,) = config.lines
    assert (line.delay_s, line.queue_packets, line.loss) == (pytest.approx(0.06), 16, 0.01)
    assert {device.overrides["settle_s"] for device in config.devices.values()} == {0.2}
    assert {name: device.traits["settle_s"] for name, device in read.devices.items()} == {
        "ocs1": 0.2,
        "ocs2": 0.2,
    }
    assert {(h.link_mbps, h.storage_mbps, h.rto_min_ms) for h in read.hosts.values()} == {
        (25.0, 75.0, 20)
    }


def test_a_rate_need_not_divide(tmp_path: Path) -> None:
    assert (
        read_config(
            prepare_lab(tmp_path / "lab", WantedLab(hosts=2, ports=1, rate_mbps=20, dilation=3))
        ).rate_bps
        == 6_666_667
    )


def test_devices_that_run_faster_than_real_ones_are_not_dilated(tmp_path: Path) -> None:
    with pytest.raises(BadFile, match="telescent-cli runs faster here than a real one"):
        prepare_lab(
            tmp_path / "lab", WantedLab(hosts=2, ports=1, driver="telescent-cli", dilation=2)
        )


def test_watchdogs_and_schedules_follow_and_plans_without_one_stay_as_they_are() -> None:
    before = scenario(dwell_s=0.2, guard_s=0.01, slots=[])
    slow = dilated(before, 5)
    assert (slow.label, slow.dilation, slow.sha256) == ("dilated", 5, before.sha256)
    assert {name: arm.watchdog_s for name, arm in slow.arms.items()} == {
        "a": 600,
        "b": 600,
        "c": 150,
    }
    plans = {
        name: (arm.setups["ann"].plan, before.arms[name].setups["ann"].plan)
        for name, arm in slow.arms.items()
    }
    assert [name for name, (here, other) in plans.items() if here != other] == ["b"]
    assert plans["b"][0].document["schedule"] == {"dwell_s": 1.0, "guard_s": 0.05, "slots": []}
    assert json.loads(plans["b"][0].text) == plans["b"][0].document
    assert dilated(before, 1) == before


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (STAY, "it runs on the lab of --inventory"),
        (
            CHANGE.replace("lab: any", "lab: {}"),
            "span_ms of a change (span_ms go / stay) is a figure of this program",
        ),
        (
            CHANGE.replace("lab: any", "lab: {}")
            .replace("span_ms", "lost_ms")
            .replace("over: stay", "over: go2"),
            "lost_ms of a change",
        ),
        (
            CHANGE.replace("lab: any", "lab: {}")
            .replace("span_ms", "dark_ms")
            .replace("over: stay", "over: go2"),
            "dark_ms of a change",
        ),
    ],
)
def test_real_labs_and_figures_of_this_program_are_refused(text: str, message: str) -> None:
    text = text.replace(
        "go: {then: b.json, mode: live}",
        "go: {then: b.json, mode: live}, go2: {then: b.json, mode: restart}",
    )
    found = scenario(text.replace("differs: [then]", "differs: [then, mode]"))
    with pytest.raises(BadFile) as caught:
        dilated(found, 2)
    assert (
        f"s cannot be dilated by 2: {message}" in str(caught.value)
        and caught.value.hint == "leave out --dilation"
    )
    assert dilated(found, 1) == found


def test_a_loss_is_compared_after_as_much_of_the_slower_labs_time() -> None:
    found = scenario(OWN.replace("metric: iteration_ms", "metric: loss, seconds: 20"))
    assert found.lasts_s == 20 and dilated(found, 3).lasts_s == 60


def test_progress_of_jobs_that_stay_can_be_dilated_and_a_guard_that_is_reckoned_cannot() -> None:
    assert dilated(scenario(OWN.replace("iteration_ms", "span_ms")), 2).dilation == 2
    with pytest.raises(BadFile, match="the plan of arm b has guard_s auto"):
        dilated(scenario(dwell_s=0.2, guard_s="auto", slots=[]), 2)


def judged(value: float, low: float, high: float, n: int = 5) -> JudgedComparison:
    compared = Compared("b over a", "iteration_ms", "b", "a", "ann", 0.9, 1.1)
    return JudgedComparison(compared, Interval(value, low, high), "holds", n)


@pytest.mark.parametrize(
    ("other", "moving", "text"),
    [
        (
            judged(1.02, 1.01, 1.03),
            "same",
            "1 at k = 1 and 1.02 at k = 2, 2.0% more: the same, so it does not depend",
        ),
        (
            judged(0.90, 0.89, 0.91),
            "moves",
            "10.0% less: it moves, which is a finding: this machine, or a time",
        ),
        (
            judged(1.02, 0.80, 1.30),
            "not told",
            "2.0% more: rounds are too few, or intervals too wide, to say",
        ),
        (judged(1.02, 1.01, 1.03, 4), "not told", "2.0% more: rounds are too few"),
        (judged(0.90, 0.89, 0.91, 4), "not told", "10.0% less: rounds are too few"),
        (
            judged(1.05, 0.98, 1.12),
            "not told",
            "5.0% more: rounds are too few, or intervals too wide",
        ),
        (replace(judged(0.0, 0.0, 0.0), found=None), "not told", "has no ratio at k = 1 or 2"),
    ],
)
def test_a_ratio_at_two_dilations_stays_or_moves_or_tells_nothing(
    other: JudgedComparison, moving: str, text: str
) -> None:
    here = judged(1.0, 0.99, 1.01)
    data: dict[str, Any] = {"width": 0.05, "scenario": {"lab": {"dilation": 1}}}
    (one,) = at_two(
        [here], data, {"dilation": 2.0, "record": "reproduce-2", "findings": [other.to_json()]}
    )
    assert (one.moving, one.record) == (moving, "reproduce-2") and text in one.message
    slow = {**data, "scenario": {"lab": {"dilation": 2}}}
    (back,) = at_two(
        [other], slow, {"dilation": 1.0, "record": "reproduce-2", "findings": [here.to_json()]}
    )
    assert back.message == one.message, "whichever of the two records is looked at"
    older = {key: value for key, value in other.to_json().items() if key != "n"}
    assert (
        at_two([here], data, {"dilation": 2.0, "record": "reproduce-2", "findings": [older]}) == []
    ), "made before rounds"


def test_narrow_is_by_the_ratio_however_far_the_band_reaches() -> None:
    wide = judged(1.0, 0.9, 1.1)
    far = replace(wide, compared=replace(wide.compared, high=10.0))
    assert far.width < 0.05, "by the band it is"
    data: dict[str, Any] = {"width": 0.05, "scenario": {"lab": {"dilation": 1}}}
    (one,) = at_two([far], data, {"dilation": 2.0, "record": "r", "findings": [far.to_json()]})
    assert one.moving == "not told"


def test_records_of_another_dilation_are_kept_apart_and_compared_from_twice_on(
    lab: Lab,  # noqa: F811
    settings: Settings,  # noqa: F811
) -> None:
    def measured(k: float, outcome: str, text: str = OWN) -> dict[str, Any]:
        record = begin_comparison(
            settings, lab, dilated(scenario(text), k), kind="reproduce", leave="down"
        )
        record.data["environment"] = {"commit": "c0ffee00"}
        if outcome:
            keep_outcome(record, outcome, [{"k": k, "outcome": outcome}])
        return record.data

    one = measured(1, "claim holds")
    for k, outcome in (
        (1.5, "refuted"),
        (2, "refuted"),
        (2, "not shown"),
        (5, "claim holds"),
        (4, ""),
    ):
        measured(k, outcome)
    measured(8, "refuted", OWN.replace("repeats: 2", "repeats: 3"))
    assert (
        known(settings, scenario()).outcome == "claim holds"
        and known(settings, dilated(scenario(), 2)).outcome == "not shown"
    )
    assert known(settings, dilated(scenario(), 3)) == Known()
    found = at_other_dilations(settings, one)
    assert [(other["dilation"], other["findings"][0]["outcome"]) for other in found] == [
        (2, "not shown"),
        (5, "claim holds"),
    ]
    assert at_other_dilations(settings, {"scenario": {"name": "s", "lab": None}}) == []
