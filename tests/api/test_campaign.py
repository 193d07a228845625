"""`Campaign`: the same campaign as at the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from optical_testbed import BadFile, Campaign, Event, Locked, Usage
from orchestrator.experiments.sweep import record
from orchestrator.experiments.sweep.trial import Outcome
from orchestrator.experiments.sweep.version import of_program
from orchestrator.settings import load
from tests.house.repository import ROOT

EXAMPLE = ROOT / "examples" / "sweeps" / "methods.yaml"


def test_a_campaign_has_its_trials_and_the_results_that_there_are(tmp_path: Path) -> None:
    campaign = Campaign(EXAMPLE, settings={"state_dir": tmp_path})
    assert (campaign.name, len(campaign), campaign.results()) == ("methods", 72, ())
    trial = campaign._campaign.trials[1]
    kept = record.begin_campaign(
        load({"state_dir": str(tmp_path)}), campaign._campaign, of_program(), resume=False
    )
    kept.keep(
        trial,
        [Outcome(values={"iteration_ms": 5.0}, error="", seconds=0.1, worker="vm", began=0.0)],
    )
    (found,) = campaign.results()
    assert (
        found["labels"] == trial.labels
        and found["values"] == {"iteration_ms": 5.0}
        and campaign.folder == kept.folder
    )
    assert campaign.frame().to_dict("records") == [
        {**trial.labels, "state": "done", "iteration_ms": 5.0}
    ]


def test_what_is_wrong_is_raised_as_everywhere_and_progress_is_of_one_run(tmp_path: Path) -> None:
    with pytest.raises(BadFile, match=r"no\.yaml: No such file"):
        Campaign(tmp_path / "no.yaml")
    campaign = Campaign(EXAMPLE, settings={"state_dir": tmp_path})
    seen: list[Event] = []
    with pytest.raises(Usage, match="wanted local, or an address"):
        campaign.run("nowhere", progress=seen.append)
    assert [event.name for event in seen] == ["workers"]
    with record.campaign_lock(load({"state_dir": str(tmp_path)}), "methods"), pytest.raises(Locked):
        campaign.run()
    assert len(seen) == 1
