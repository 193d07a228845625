"""`testbed experiment reproduce` at the command line: which scenario is meant, and what is refused
before anything starts.
"""

from __future__ import annotations

import fcntl
import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from orchestrator.cli.call import Result
from orchestrator.cli.main import run
from orchestrator.cli.reproduce import read
from tests.experiments.test_scenario import PLANS, STAY
from tests.house.repository import scenarios


def reported(capsys: pytest.CaptureFixture[str], *argv: object) -> tuple[int, dict[str, Any]]:
    code = run(["experiment", "reproduce", *map(str, argv), "--json"])
    return code, json.loads(capsys.readouterr().out)


@pytest.fixture(autouse=True)
def _places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DATA", "STATE", "LOCK"):
        monkeypatch.setenv(f"TESTBED_{name}_DIR", str(tmp_path / name))


def test_the_scenarios_that_come_with_the_program_are_listed_with_label_and_claim(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, found = reported(capsys, "--list")
    listed = {scenario["name"]: scenario for scenario in found["data"]["scenarios"]}
    assert code == 0 and [*listed] == [*scenarios()]
    assert (
        listed["live-vs-restart"]["arms"] == ["live", "restart"]
        and listed["rail-only"]["label"] == "native"
    )
    assert listed["ring-wavelengths"]["hosts"] == 6
    assert all(s["claim"] and s["source"] and s["seconds"] > 0 for s in listed.values())
    outcomes = {(s["name"], s["dilation"]): s["outcome"] for s in found["data"]["scenarios"]}
    assert outcomes["topoopt-vs-trees", 3] == "claim holds"
    assert outcomes["topoopt-vs-trees", 1] == "", "what was found at k = 3 is not said of k = 1"


@pytest.mark.parametrize(
    "name",
    [
        "cassini-incompatible",
        "cassini-pair",
        "diloco-wan",
        "incast-credits",
        "live-vs-restart",
        "mixnet-moe",
        "mltcp-pair",
        "mltcp-single",
        "rail-only",
        "rail-only-exchange",
        "reconfiguration-latency",
        "ring-wavelengths",
        "rotor-12",
        "serve-apart",
        "serve-predict",
        "shards-vs-tree",
        "storage-class",
        "swss-two-tenants",
        "topoopt-vs-trees",
    ],
)
def test_a_shipped_scenario_fits_the_lab_that_it_asks_for(
    capsys: pytest.CaptureFixture[str], name: str
) -> None:
    code, found = reported(capsys, name, "--check")
    assert code == 0, found["message"]
    assert len(found["data"]["arms"]) >= 2


def test_what_is_predicted_of_forwarding_over_rails_is_in_every_band(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, found = reported(capsys, "rail-only-exchange", "--check")
    bands = {one.name: one for one in read(scenarios()["rail-only-exchange"]).compared}
    assert code == 0 and len(found["data"]["compared"]) == len(bands) == 4
    for one in found["data"]["compared"]:
        band = bands[one["name"]]
        assert band.low <= one["ratio"] <= band.high, one


def test_both_arms_are_predicted_where_their_plans_say_nothing_or_it_is_said_why_not(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, found = reported(capsys, "rotor-12-2", "--check")
    assert code == 0 and all(one["ratio"] for one in found["data"]["compared"])
    _, found = reported(capsys, "shards-vs-tree-2", "--check")
    *_, control = found["data"]["compared"]
    assert control["over"] > 0 and control["of"] is None
    assert "one-tree goes over packet switches" in control["why"]


def test_an_unknown_name_and_a_file_that_is_not_there_are_refused(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, found = reported(capsys, "rails-only")
    assert code == 2 and "no scenario rails-only; did you mean rail-only?" in found["message"]
    code, found = reported(capsys, "nowhere.yaml")
    assert code == 3 and "nowhere.yaml: No such file" in found["message"]
    assert reported(capsys)[0] == 2


def test_a_lab_is_not_chosen_for_a_scenario_that_has_its_own(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    code, found = reported(capsys, "rail-only", "--inventory", tmp_path)
    assert code == 2 and "rail-only starts a lab of its own" in found["message"]


def test_a_lab_that_is_up_is_changed_only_after_a_yes(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    plan = Path(__file__).parents[2] / "examples" / "ring-12.json"
    file = tmp_path / "s.yaml"
    file.write_text(
        "{schema: testbed.scenario/1, name: s, title: t, source: [x], claim: c, label: native, lab: any, iterations: 5,\n"
        f"tenants: {{me: {{plan: {plan}}}}}, arms: {{a: {{}}, b: {{args: {{batch: 8}}}}}}, differs: [plan.job.args.batch],\n"
        "compare: [{metric: iteration_ms, of: b, over: a, band: {max: 9}}]}\n"
    )
    code, found = reported(capsys, file)
    assert code == 2 and found["hint"] == "add --yes"


def test_a_record_is_continued_only_with_the_same_scenario(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    code, found = reported(capsys, "rail-only", "--resume", "reproduce-1")
    assert code == 2 and "there is no record 'reproduce-1'" in found["message"]
    folder = tmp_path / "STATE" / "campaigns" / "reproduce-1"
    folder.mkdir(parents=True)
    (folder / "campaign.json").write_text(
        json.dumps(
            {
                "schema": "testbed.campaign/1",
                "name": "reproduce-1",
                "slots": [],
                "scenario": {"sha256": "0"},
            }
        )
    )
    code, found = reported(capsys, "rail-only", "--resume", "reproduce-1")
    assert code == 2 and "was measured with another scenario file" in found["message"]
    assert reported(capsys, "rail-only", "--resume", "reproduce-1", "--repeats", 3)[0] == 2


def test_a_scenario_is_dilated_only_where_its_claim_is_of_a_system(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, found = reported(capsys, "live-vs-restart", "--dilation", 2, "--check")
    assert (
        code == 3
        and "lost_ms of a change (training time lost, live / restart) is a figure of this program"
        in found["message"]
    )
    assert found["hint"] == "leave out --dilation"
    assert reported(capsys, "rail-only", "--dilation", 2, "--check")[0] == 0
    assert reported(capsys, "rail-only", "--dilation", 0.5)[0] == 2


def test_records_of_another_dilation_are_listed_apart_and_not_continued(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    folder = tmp_path / "STATE" / "campaigns" / "reproduce-1"
    folder.mkdir(parents=True)
    facts = {
        "name": "rail-only",
        "sha256": read(scenarios()["rail-only"]).sha256,
        "lab": {"dilation": 2.0},
    }
    data = {
        "schema": "testbed.campaign/1",
        "name": "reproduce-1",
        "slots": [],
        "scenario": facts,
        "outcome": "claim holds",
    }
    (folder / "campaign.json").write_text(json.dumps(data | {"findings": [], "day": "2026-11-29"}))
    listed = reported(capsys, "--list")[1]["data"]["scenarios"]
    found = [
        (one["dilation"], one["label"], one["outcome"], one["shipped"])
        for one in listed
        if one["name"] == "rail-only"
    ]
    assert (
        found[1:] == [(2.0, "dilated", "claim holds", False)] and found[0][0] == 1.0 and found[0][3]
    )
    assert (
        run(["experiment", "reproduce", "--list"]) == 0
        and "rail-only (k = 2)" in capsys.readouterr().out
    )
    code, refused = reported(capsys, "rail-only", "--resume", "reproduce-1")
    assert code == 2 and "reproduce-1 was measured at dilation 2, not 1" in refused["message"]
    assert (
        refused["hint"]
        == "testbed experiment reproduce rail-only --dilation 2 --resume reproduce-1"
    )


def test_only_a_starved_record_gets_more_time(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "STATE" / "campaigns" / "reproduce-1"
    folder.mkdir(parents=True)
    slot = {"arm": "rails", "round": 1, "state": "done", "seconds": 700.0, "runs": []}
    data = {
        "schema": "testbed.campaign/1",
        "name": "reproduce-1",
        "slots": [slot],
        "scenario": {"sha256": read(scenarios()["rail-only"]).sha256},
        "budget_s": 600.0,
        "ended": "budget",
        "outcome": "starved",
    }

    def keep(**other: Any) -> None:
        (folder / "campaign.json").write_text(json.dumps(data | other))

    keep()
    code, refused = reported(capsys, "rail-only", "--resume", "reproduce-1")
    assert (
        code == 2 and "reproduce-1 has spent 12 min, and its budget is 10 min" in refused["message"]
    )
    assert refused["hint"].endswith("rail-only --resume reproduce-1 --budget 24m")
    begun: list[dict[str, Any]] = []
    monkeypatch.setattr("orchestrator.cli.reproduce._own_lab", lambda *_, **__: nullcontext())
    monkeypatch.setattr(
        "orchestrator.cli.reproduce._on_lab",
        lambda _call, _scenario, kept, *_: begun.append(kept.data) or Result({}, ""),
    )
    assert reported(capsys, "rail-only", "--resume", "reproduce-1", "--budget", "24m")[0] == 0
    assert [(one["budget_s"], one["ended"]) for one in begun] == [(1440.0, "")]
    assert begun[0]["outcome"] == "", "broken off, it is not starved any more"
    for outcome in ("claim holds", "starved"):  # by its control
        keep(outcome=outcome, findings=[{"name": "x", "role": "claim", "outcome": "holds"}])
        for more in ((), ("--budget", "24m")):
            code, refused = reported(capsys, "rail-only", "--resume", "reproduce-1", *more)
            assert code == 2 and "reproduce-1 has judged x: holds" in refused["message"]
    keep(ended="", outcome="")
    code, refused = reported(capsys, "rail-only", "--resume", "reproduce-1", "--budget", "24m")
    assert code == 2 and "was broken off, and goes on with the budget" in refused["message"]
    assert reported(capsys, "rail-only", "--resume", "reproduce-1")[0] == 0


def test_a_record_of_another_lab_is_not_gone_on_with(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for name, plan in PLANS.items():
        (tmp_path / name).write_text(json.dumps(plan))
    (file := tmp_path / "s.yaml").write_text(STAY)
    (folder := tmp_path / "STATE" / "campaigns" / "reproduce-1").mkdir(parents=True)
    data = {"schema": "testbed.campaign/1", "name": "reproduce-1", "slots": [], "lab": "elsewhere"}
    data["scenario"] = {"sha256": read(file).sha256}
    (folder / "campaign.json").write_text(json.dumps(data))
    code, refused = reported(capsys, file, "--resume", "reproduce-1", "--yes")
    assert code == 2 and "was measured on the lab elsewhere, this is emulated" in refused["message"]


def test_two_commands_do_not_share_the_lab_of_a_scenario(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    place = tmp_path / "STATE" / "scenarios"
    place.mkdir(parents=True)
    with (place / "rail-only.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        code, found = reported(capsys, "rail-only")
    assert code == 4 and "is being reproduced by another command" in found["message"]
