"""`testbed design match`: the choice, clauses that are not met, and its own regret."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from optics import BadFile, HostPort
from orchestrator.cli import compare
from orchestrator.cli.call import Result
from orchestrator.plan.design.capabilities import Line
from orchestrator.plan.reader import read_plan
from orchestrator.verbs.design_files import read_lines
from tests.house.repository import ROOT
from tests.kit.labs import lab_of

AT = ("--inventory", ROOT / "inventory" / "emulated-packet")


def workload(folder: Path, **more: Any) -> tuple[str, Path]:
    path = folder / "w.yaml"
    content = {"schema": "testbed.workload/1", "name": "w", "ranks": 4}
    content["collectives"] = [{"id": "all", "bytes": 5_292_072}]  # type: ignore[assignment]
    path.write_text(json.dumps({**content, **more}))
    return "--workload", path


def test_the_best_is_written_and_said_with_reasons(cli: Any, tmp_path: Path) -> None:
    given = workload(tmp_path)
    result = cli("design", "match", *AT, *given, "--out", tmp_path / "plan.json", "--explain")
    assert result.code == 0, result.err
    assert "packet switch ideal: 4 hosts at 40 Mb/s" in result.out
    assert "refused    ring-wavelengths, static, tcp: no light" in result.out
    assert "Matched: w-match: " in result.out and "up --inventory" in result.err
    plan = read_plan((tmp_path / "plan.json").read_text(), "plan.json", lab_of("emulated-packet"))
    assert plan.name == "w-match"
    data = cli("design", "match", *AT, *given, "--json").json["data"]
    assert data["plan"]["name"] == "w-match" and data["unmet"] == {}
    assert data["candidates"][-1]["iteration_ms"] is None


def test_a_clause_that_nothing_meets_ends_with_3_and_a_plan(cli: Any, tmp_path: Path) -> None:
    given = workload(tmp_path, needs={"deadline_ms": 0.01})
    result = cli("design", "match", *AT, *given, "--out", tmp_path / "plan.json")
    assert result.code == 3 and "no candidate meets it" in result.err
    assert "needs.deadline_ms" in result.out and (tmp_path / "plan.json").exists()
    answer = cli("design", "match", *AT, *given, "--json").json
    assert answer["code"] == "E-INFEASIBLE" and set(answer["data"]["unmet"]) == {"deadline_ms"}


def test_what_a_lab_can_do_is_said_without_a_workload(cli: Any) -> None:
    result = cli("design", "match", *AT, "--capabilities")
    assert "aggregate (slots 64, slot_bytes 8192, jobs 2)" in result.out
    assert "circuits in turn over p1, p2" in result.out
    data = cli("design", "match", *AT, "--capabilities", "--json").json["data"]
    assert [one["name"] for one in data["capabilities"]["switches"]] == ["ideal", "oversubscribed"]
    assert "no workload given" in cli("design", "match", *AT).err


def test_the_best_are_measured_and_the_regret_of_the_choice_is_said(
    cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def measured(call: Any, kept: Any, *more: Any) -> Result:
        ratio = {"value": 0.9, "low": None, "high": None}
        verdicts = {"b": {"ratio": ratio, "of_ms": 99.0, "over_ms": 110.0}}
        return Result({"name": kept.name, "arms": kept.data["arms"], "verdicts": verdicts})

    monkeypatch.setattr(compare, "measured", measured)
    given = workload(tmp_path, needs={"train": {"model": "mlp"}})
    result = cli("design", "match", *AT, *given, "--try", "3", "--json")
    assert result.code == 0, result.err
    tried = result.json["data"]["tried"]
    assert tried["measured_ms"] == [110.0, 99.0, None] and tried["ratios"] == [None, 0.9, None]
    assert len(set(tried["candidates"])) == 3
    assert tried["regret"] == pytest.approx(1 / 0.9 - 1), "of rounds, not of all iterations"
    assert tried["predicted_ms"] == sorted(tried["predicted_ms"])
    assert "regret" in cli("design", "match", *AT, *given, "--try", "3").out


def test_the_example_of_its_page_prints_what_the_page_shows(cli: Any, tmp_path: Path) -> None:
    page = (ROOT / "docs" / "tutorial" / "a-workload.md").read_text()
    (tmp_path / "mlp.yaml").write_text(page.partition("```yaml\n")[2].partition("```")[0])
    result = cli("design", "match", *AT, "--workload", tmp_path / "mlp.yaml")
    assert result.code == 0, result.err
    assert result.out in page


def test_lines_are_read_from_the_page_of_an_emulated_lab(tmp_path: Path) -> None:
    page = tmp_path / "emulator.yml"
    assert read_lines(tmp_path) == {}
    page.write_text("lines:\n- {ports: ['gpu01:p2'], delay_ms: 15, queue_packets: 9, loss: 0.01}\n")
    assert read_lines(tmp_path) == {HostPort("gpu01", 2): Line(0.0, 0.015, 0.01)}
    page.write_text("lines:\n- {ports: ['gpu01:p2']}\n")
    with pytest.raises(BadFile, match=r"lines: wanted a list of .*: 'delay_ms'"):
        read_lines(tmp_path)
