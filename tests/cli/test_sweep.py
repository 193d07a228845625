"""`testbed experiment sweep` at the command line: what is refused before anything starts, and what
is shown of results.
"""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from orchestrator.cli.main import run
from orchestrator.experiments.sweep import record, verb
from orchestrator.experiments.sweep.trial import Outcome
from orchestrator.experiments.sweep.version import of_program
from orchestrator.settings import load
from tests.house.repository import ROOT

EXAMPLE = ROOT / "examples" / "sweeps" / "methods.yaml"


@pytest.fixture(autouse=True)
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TESTBED_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("TESTBED_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def reported(capsys: pytest.CaptureFixture[str], *argv: object) -> tuple[int, dict[str, Any]]:
    code = run(["experiment", "sweep", *map(str, argv), "--json"])
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return code, found


def kept(failing: str = "") -> None:
    """The example with a result for each trial of two workloads, failed for one method."""
    campaign = verb.load_campaign(EXAMPLE)
    found = record.begin_campaign(load(), campaign, of_program(), resume=False)
    for at, trial in enumerate(campaign.trials[:48]):
        error = "Infeasible: no" if trial.labels["method"] == failing else ""
        values = {} if error else {"iteration_ms": 100.0 + at, "dark_ms": 50.0}
        found.keep(
            trial, [Outcome(values=values, error=error, seconds=0.1, worker="vm", began=0.0)]
        )


def test_a_campaign_is_read_and_counted_without_being_run(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, found = reported(capsys, EXAMPLE, "--check")
    assert (
        code == 0
        and found["data"]["trials"] == 72
        and found["data"]["parameters"] == ["workload", "method", "ports", "seed"]
    )
    assert (
        reported(capsys, "run", EXAMPLE, "--check")[1]["data"]
        == reported(capsys, "--check", EXAMPLE)[1]["data"]
    )


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["no.yaml"], "no.yaml: No such file or directory"),
        ([EXAMPLE, "--on", "dask"], "--on dask needs the scheduler's address"),
        ([EXAMPLE, "tcp://s:8786"], "an address goes with --on dask"),
        ([EXAMPLE, "--on", "dask", "tcp://s:8786", "--workers", 3], "--workers is of --on local"),
        ([EXAMPLE, "--on", "here"], "--on here: wanted local, or an address"),
        (["show"], "no campaign was run yet"),
    ],
)
def test_what_cannot_be_done_is_said_before_anything_starts(
    capsys: pytest.CaptureFixture[str], argv: list[object], message: str
) -> None:
    code, found = reported(capsys, *argv)
    assert code in (2, 3) and message in found["message"] + str(found["data"])


def test_many_trials_are_asked_about_with_their_number(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (
        EXAMPLE.read_text()
        .replace("../", f"{ROOT}/examples/")
        .replace("[1, 2, 3]", str([*range(30)]))
    )
    (tmp_path / "many.yaml").write_text(text)
    code, found = reported(capsys, tmp_path / "many.yaml")
    assert code == 2 and found["message"].startswith(
        "methods: 720 trials, 720 prediction; experiment sweep run asks"
    )
    assert found["hint"] == f"testbed experiment sweep {tmp_path / 'many.yaml'} --yes"
    monkeypatch.setattr("orchestrator.cli.call.Call.must_be_able_to_ask", lambda call: None)
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    assert run(["experiment", "sweep", str(tmp_path / "many.yaml")]) == 130
    assert "methods: 720 trials, 720 prediction. Run them all? [y/N]" in capsys.readouterr().err


def test_without_dask_it_says_how_to_install_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    code, found = reported(capsys, EXAMPLE)
    assert code == 2 and "pip install 'optical-testbed[sweep]'" in found["hint"]


def test_results_are_shown_as_medians_with_what_failed_and_what_waits(
    capsys: pytest.CaptureFixture[str],
) -> None:
    kept(failing="torus")
    code, found = reported(capsys, "show")
    data = found["data"]
    assert code == 0 and (data["done"], data["failed"], data["waiting"]) == (36, 12, 24)
    assert len(data["rows"]) == 12 and {one["labels"]["method"] for one in data["rows"]} == {
        "topoopt",
        "ring",
        "random",
    }
    row = data["rows"][0]
    assert (
        row["labels"] == {"workload": "bert", "method": "topoopt", "ports": 2}
        and row["trials"] == 3
    )
    assert row["values"]["iteration_ms"] == {
        "value": 101.0, "low": None, "high": None, "least": 100.0, "largest": 102.0, "trials": 3}  # fmt: skip
    run(["experiment", "sweep", "show", "methods", "--value", "dark_ms"])
    out = capsys.readouterr().out
    assert (
        "methods: 36 of 72 trials done, 12 failed, 24 waiting" in out
        and "failed     workload=bert method=torus" in out
    )
    assert out.splitlines()[1].split() == ["workload", "method", "ports", "trials", "dark_ms"]
    run(["experiment", "sweep", "show"])
    assert (
        "101 [100 to 102]" in (out := capsys.readouterr().out)
        and "  [ ] least and largest: an interval needs 6 trials" in out
    )
    assert (
        "no value dork_ms; did you mean dark_ms?"
        in reported(capsys, "show", "--value", "dork_ms")[1]["message"]
    )


def test_a_figure_is_drawn_of_what_differs_in_its_own_parameters_only(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    kept()
    figure = tmp_path / "f.svg"
    code, found = reported(
        capsys, "show", "--figure", "x=ports,y=iteration_ms,by=method", "--out", figure
    )
    assert code == 2 and "workload differs, too (bert, dlrm)" in found["message"]
    assert (
        reported(
            capsys,
            "show",
            "--figure",
            "x=ports,y=iteration_ms,by=method,workload=dlrm",
            "--out",
            figure,
        )[0]
        == 0
    )
    assert "topoopt" in figure.read_text()
    assert reported(capsys, "show", "--figure", "x=dark_ms,y=iteration_ms,by=method")[0] == 0
    assert (tmp_path / "state" / "sweeps" / "methods" / "figure.svg").is_file()
    for text, message in (
        ("x=ports", "y is missing"),
        ("x=prots,y=dark_ms", "did you mean ports?"),
        ("x=ports,y=a,z=1", "z: not x"),
    ):
        assert message in reported(capsys, "show", "--figure", text)[1]["message"]


def test_trials_that_failed_make_the_exit_code_and_are_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    kept(failing="torus")
    seen = verb.CampaignProgress(72, 60, 12)
    monkeypatch.setattr(
        verb, "carried_out", lambda settings, *_, **__: (record.find_campaign(settings, None), seen)
    )
    code, found = reported(capsys, EXAMPLE, "--resume")
    assert (code, found["code"]) == (8, "E-TRIALS-FAILED") and found["data"]["failed"] == 12
    assert run(["experiment", "sweep", str(EXAMPLE), "--resume"]) == 8
    assert (
        "failed     workload=bert method=torus ports=2 seed=1 (and 11 more trials): Infeasible: no"
        in capsys.readouterr().out
    )


@pytest.mark.parametrize(("hosts", "code"), [(8, 3), (12, 0)])
def test_check_says_which_trials_the_lab_has_too_few_hosts_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], hosts: int, code: int
) -> None:
    page = tmp_path / "c.yaml"
    where = ROOT / "examples" / "workloads" / "bert.yaml"
    head = (
        f"schema: testbed.sweep/1\nname: x\nkind: prediction\nlab: {{hosts: {hosts}, ports: 4}}\n"
    )
    page.write_text(f"{head}base: {{workload: {where}, method: ring}}\ngrid: {{seed: [1, 2]}}\n")
    assert run(["experiment", "sweep", str(page), "--check"]) == code
    result = capsys.readouterr()
    assert (
        "2 of 2 trials cannot be made" in result.err
        and "needs 12 hosts, the lab has 8" in result.err
    ) == (code == 3), result
