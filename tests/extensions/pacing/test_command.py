"""The service `pacing` and `testbed job phases` as they are typed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from extensions.pacing import coordinator
from extensions.pacing.coordinator import CoordinateReport
from extensions.pacing.options import CoordinateOptions
from extensions.pacing.report import PhasesReport, answer
from extensions.pacing.service import CoordinateState
from orchestrator.background.kind import Kind
from orchestrator.background.state import ServiceState
from tests.extensions.pacing.test_coordinator import seen
from tests.house.repository import ROOT

LAB = ("-i", str(ROOT / "inventory" / "example-lab"))


def test_it_starts_a_process_that_does_the_work_and_prints_what_that_found(
    cli: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[tuple[str, ...]] = []

    def start(
        kind: Kind[ServiceState], settings: object, lab: object, log: object, options: Any
    ) -> ServiceState:
        started.append((kind.name, *options.text()))
        return CoordinateState(7, state="pacing", last="score 1.00 on tree rack 1 up")

    monkeypatch.setattr(Kind, "start", start)
    found = cli(
        "service", "start", "pacing", "--force", "--grid", "2", "--for", "500ms", "--json", *LAB
    )
    assert found.code == 0 and found.json["data"]["state"]["last"] == "score 1.00 on tree rack 1 up"
    assert started == [("pacing", "--force", "--grid", "2", "--for", "0.5s")]


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["start", "pacing", "--by", "magic"], "--by magic: not one of shift, mltcp, together"),
        (["start", "pacing", "--by", "mltcp", "--force"], "--by mltcp cannot be combined"),
        (["run", "pacing", "--by", "mltcp"], "--by mltcp needs no process"),
    ],
)
def test_words_that_make_no_sense_are_refused(cli: Any, argv: list[str], message: str) -> None:
    found = cli("service", *argv, "--json", *LAB)
    assert found.code == 2 and message in found.json["message"]


def test_without_jobs_both_say_what_is_missing(cli: Any) -> None:
    assert "no job runs" in cli("job", "phases", "--json", *LAB).json["message"]
    for by in ("shift", "together"):
        assert (
            "none runs"
            in cli("service", "run", "pacing", "--by", by, "--json", *LAB).json["message"]
        )


def test_what_is_done_once_is_done_by_the_command_itself(
    cli: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def windows(_: object) -> list[str]:
        return ["ann:moe"]

    async def together(*_: object, notify: object, options: CoordinateOptions) -> CoordinateReport:
        return CoordinateReport(
            "lab",
            options.by,
            "alone",
            0,
            1.0,
            PhasesReport("lab", ()),
            "iterations of 2 jobs began at once",
        )

    monkeypatch.setattr(coordinator, "by_windows", windows)
    monkeypatch.setattr(coordinator, "coordinate", together)
    given = cli("service", "start", "pacing", "--by", "mltcp", "--json", *LAB).json
    assert given["data"] == {
        "service": "pacing",
        "started": False,
        "state": None,
        "details": {"mltcp": ["ann:moe"]},
    }
    assert given["hint"].startswith("testbed ") and given["hint"].endswith("service stop pacing")
    assert (
        cli("service", "start", "pacing", "--by", "together", *LAB).out
        == "iterations of 2 jobs began at once\n"
    )


def test_the_phases_are_text_json_and_a_picture(
    cli: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async def phases(*_: object, grid_ms: float, seconds: float) -> Any:
        assert (grid_ms, seconds) == (0.5, 30.0)
        return answer("lab", [seen("ann", 30, 70), seen("bob", 30, 70)], grid_ms)

    monkeypatch.setattr(coordinator, "job_phases", phases)
    drawn = tmp_path / "phases.svg"
    found = cli("job", "phases", "--grid", "0.5", "--for", "30s", "--figure", str(drawn), "--json")
    assert (
        found.code == 0
        and found.json["data"]["score"] < 0.95
        and found.json["data"]["jobs"][0]["name"] == "ann:job"
    )
    assert "do not fit" in cli(
        "job", "phases", "--grid", "0.5", "--for", "30s"
    ).out and drawn.read_text().startswith("<svg")
