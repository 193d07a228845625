"""What the API takes and gives: plans of every kind, designs, telemetry as rows and as a
DataFrame.
"""

from __future__ import annotations

import dataclasses
import doctest
import json
import sys
from collections.abc import Mapping
from pathlib import Path

import jsonschema
import pandas
import pytest

import optical_testbed.lab
from optical_testbed import BadFile, Designed, Infeasible, Lab, Missing, Rows
from optical_testbed.plans import source
from optics import LinkKind
from optics.plan import Acceptance, Avoid, Plan, TransitionPolicy, WantedLink
from orchestrator.plan.edges import plan_schema
from orchestrator.plan.reader import read_plan
from orchestrator.plan.written import document_of
from orchestrator.session import PlanText, load_lab, load_plan
from orchestrator.store.notes import annotate
from orchestrator.store.store import Store
from orchestrator.telemetry import Journal
from tests.house.repository import ROOT
from tests.kit.examples import PLANS, plan_inventory
from tests.kit.labs import lab_of

RUN = "2026-11-21-0001"


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lab:
    monkeypatch.chdir(ROOT)
    return Lab.open(
        "inventory/emulated",
        settings={f"{name}_dir": str(tmp_path / name) for name in ("data", "state", "lock")},
    )


# plans


@pytest.mark.parametrize(
    "path", [path for path in PLANS if path.stem != "schedule"], ids=lambda path: path.stem
)
def test_a_plan_is_written_as_it_was_read(path: Path, tmp_path: Path) -> None:
    own = load_lab(ROOT / "inventory" / plan_inventory(path.name))
    plan, _ = load_plan(path, own)
    written = document_of(plan)
    jsonschema.validate(written, plan_schema())
    (tmp_path / "again.json").write_text(json.dumps(written))
    again, _ = load_plan(tmp_path / "again.json", own)
    assert dataclasses.replace(again, sha256=plan.sha256) == plan


def test_values_of_a_plan_that_differ_from_the_usual_are_written() -> None:
    links = (
        WantedLink("gpu01", "gpu02", LinkKind.SIMPLEX),
        WantedLink("gpu02", "gpu01", LinkKind.SIMPLEX),
    )
    plan = Plan(
        "pair",
        links,
        acceptance=Acceptance(max_loss_db=7.5),
        transition=TransitionPolicy(live="never"),
        description="two",
    )
    written = document_of(plan)
    assert written["acceptance"] == {"max_loss_db": 7.5} and written["transition"] == {
        "live": "never"
    }
    again = read_plan(json.dumps(written), "again", lab_of("emulated"))
    assert dataclasses.replace(again, sha256="") == plan
    with pytest.raises(ValueError, match="avoids gpu01:p1"):
        document_of(dataclasses.replace(plan, avoid=Avoid(("gpu01:p1",))))


def test_a_plan_may_be_a_file_a_dict_values_or_a_design() -> None:
    content = {"schema": "testbed.plan/1", "name": "pair", "links": [{"a": "gpu01", "b": "gpu02"}]}
    assert source("x.json") == source(Path("x.json")) == Path("x.json")
    plan = Plan("pair", (WantedLink("gpu01", "gpu02"),))
    for given in (content, plan, Designed(content, {})):
        found = source(given)
        assert (
            isinstance(found, PlanText)
            and found.name == "pair"
            and json.loads(found.text) == content
        )


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (7, "got int"),
        ([1], "got list"),
        ({"name": {1, 2}}, "cannot be written as JSON"),
        ({"x": float("nan")}, "as JSON"),
    ],
)
def test_what_is_no_plan_is_refused(given: object, message: str) -> None:
    with pytest.raises(BadFile, match=message):
        source(given)  # type: ignore[arg-type]


# designs


def test_a_design_is_saved_and_is_what_the_command_line_writes(lab: Lab, tmp_path: Path) -> None:
    workload: Mapping[str, object] = {
        "schema": "testbed.workload/1", "name": "w", "ranks": 6, "compute_s": 0.01,
        "collectives": [{"id": "all", "ranks": "all", "bytes": 1000000}],
    }  # fmt: skip
    design = lab.design(workload, "ring", name="mine", ports=2, iterations=7)
    assert design.name == "mine" and design.why == ("1 parallel ring(s) in rank order",)
    path = design.save(tmp_path / "plan.json")
    plan = read_plan(path.read_text(), "plan.json", lab_of("emulated"))
    assert (
        plan.job is not None
        and plan.job.args == {"iterations": 7}
        and plan.job.predicted == design.predicted
    )


def test_mistakes_in_a_design_are_named(lab: Lab) -> None:
    dlrm = "examples/workloads/dlrm.yaml"
    with pytest.raises(BadFile, match="method: there is no 'topopt'; did you mean topoopt"):
        lab.design(dlrm, "topopt")
    with pytest.raises(BadFile, match="schedule: there is no 'x'"):
        lab.design(dlrm, backend="msccl", schedule="x")
    with pytest.raises(Infeasible, match="the back-end ring-groups has rings only"):
        lab.design(dlrm, schedule="breadth-first")
    with pytest.raises(BadFile, match="backend: 'nccl' is not one of"):
        lab.design(dlrm, backend="nccl")
    with pytest.raises(BadFile, match="search: applies to the method topoopt"):
        lab.design(dlrm, "ring", search=10)
    with pytest.raises(BadFile, match="ranks"):
        lab.design({"schema": "testbed.workload/1", "name": "w"})
    with pytest.raises(BadFile, match="No such file"):
        lab.design("nowhere.yaml")


# telemetry


@pytest.fixture
def recorded(lab: Lab) -> Lab:
    """A lab with one run of two phases and three iterations, the journal's last line torn."""
    with (
        Store(lab.settings.store_path) as store,
        store.new_run("up", "emulated-1", plan_name="ring", user="ann") as run,
    ):
        run.finish("ok")
    with Journal(lab.settings.run_dir(run.id), run.id, "emulated") as journal:
        for n in range(3):
            fields: dict[str, int | float | str] = {
                "iter": n,
                "iter_ms": 40.0 + n,
                "loss": 1.0 / (n + 1),
            }
            journal.point("iteration", {"job": "mlp", "workload": "train"}, fields)
        journal.point("verify", {"level": "map"}, {"ok": 1, "duration_ms": 2.0})
    (part,) = (lab.settings.run_dir(run.id) / "telemetry").glob("*.lp")
    with part.open("a") as file:
        file.write("iteration,torn")
    return lab


def test_rows_are_typed_and_say_what_could_not_be_read(recorded: Lab) -> None:
    rows = recorded.telemetry()
    assert rows.measurements == ("iteration", "verify") and rows.trouble == (
        "000.lp:5: torn last line",
    )
    assert [row.fields["iter_ms"] for row in rows[:3]] == [40.0, 41.0, 42.0] and isinstance(
        rows[:3], Rows
    )
    assert rows[0].tags["job"] == "mlp" and rows[0].time_ns > 0
    assert len(recorded.telemetry(measurement="verify")) == 1
    assert len(recorded.telemetry("0001", ["iteration"])) == 3
    assert recorded.runs()[0].plan_name == "ring"


def test_runs_are_found_by_their_tag(recorded: Lab) -> None:
    (run,) = recorded.runs()
    assert recorded.runs(tag="paper-fig3") == ()
    with Store(recorded.settings.store_path) as store:
        annotate(store, [run.id], "ann", tags=["paper-fig3"])
        store.new_run("up", "emulated-1").finish("ok")
    assert len(recorded.runs()) == 2 and recorded.runs(tag="paper-fig3") == (run,)


def test_a_frame_has_a_column_per_tag_and_field_a_time_and_the_units(recorded: Lab) -> None:
    frame = recorded.telemetry(measurement="iteration").frame()
    assert list(frame["iter_ms"]) == [40.0, 41.0, 42.0] and frame["iter"].dtype == "int64"
    assert (
        isinstance(frame.index, pandas.DatetimeIndex)
        and str(frame.index.tz) == "UTC"
        and frame.index.name == "time"
    )
    assert frame.attrs["units"]["iter_ms"] == "ms" and "measurement" not in frame
    both = recorded.telemetry().frame()
    assert list(both["measurement"]) == ["iteration"] * 3 + ["verify"]
    assert Rows("x", ()).frame().empty


def test_without_pandas_there_are_rows_and_the_error_says_how_to_get_it(
    recorded: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    rows = recorded.telemetry()
    with pytest.raises(ImportError, match=r"pip install 'optical-testbed\[analysis\]'"):
        rows.frame()


def test_unknown_runs_and_measurements_are_named(recorded: Lab) -> None:
    with pytest.raises(Missing, match="no run '0009'"):
        recorded.telemetry("0009")
    with pytest.raises(Missing, match="no measurement 'iterations'; did you mean iteration"):
        recorded.telemetry(measurement="iterations")


# pages


@pytest.mark.parametrize("page", ["how-to/python-api.md", "reference/python-api.md"])
def test_the_examples_of_a_page_are_true(
    page: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(ROOT)
    for name in ("DATA", "STATE", "LOCK"):
        monkeypatch.setenv(f"TESTBED_{name}_DIR", str(tmp_path / name))
    found = doctest.testfile(
        str(ROOT / "docs" / page), module_relative=False, optionflags=doctest.ELLIPSIS
    )
    assert not found.failed and (found.attempted or page.startswith("reference"))


@pytest.mark.parametrize(
    "module", [optical_testbed, optical_testbed.lab], ids=lambda module: str(module.__name__)
)
def test_the_examples_of_docstrings_are_true(
    module: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    found = doctest.testmod(module)  # type: ignore[arg-type]
    assert not found.failed and found.attempted


def test_a_lab_and_a_run_print_as_what_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("DATA", "STATE", "LOCK"):
        monkeypatch.setenv(f"TESTBED_{name}_DIR", str(tmp_path / name))
    with Store(tmp_path / "store.sqlite3", durable=False) as store:
        run = store.new_run("up", "lab", plan_name="ring", user="ann")
        run.finish("ok")
        assert repr(store.get(run.id)) == f"<run {run.id}: up ring, ok, by ann>"
    with Lab.open(ROOT / "inventory" / "emulated", owner="ann") as lab:
        assert repr(lab) == f"<Lab {ROOT / 'inventory' / 'emulated'}, owner ann>"
    assert repr(lab).endswith(", closed>")


def test_a_plan_that_is_not_there_is_answered_with_the_one_that_is_meant(tmp_path: Path) -> None:
    (tmp_path / "ring-12.json").write_text("{}")
    with pytest.raises(
        BadFile, match=r"rign-12\.json: no such file; did you mean .*ring-12\.json\?"
    ):
        load_plan(tmp_path / "rign-12.json", load_lab(ROOT / "inventory" / "emulated"))
