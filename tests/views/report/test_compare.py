"""`experiment compare`: two plans in turns, each measurement kept, the lab left as it says,
intervals that mean something.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import geometric_mean, median
from types import SimpleNamespace
from typing import Any

import pytest

from optics.errors import Interrupted, RolledBack, TestbedError
from orchestrator.change.report import DownReport, UpReport
from orchestrator.experiments.scenario.compare import difference_text, scenario_of
from orchestrator.experiments.scenario.judging import JudgedComparison
from orchestrator.experiments.scenario.paired import Interval, paired_ratio
from orchestrator.experiments.scenario.record import ComparisonRecord, begin_comparison, order
from orchestrator.experiments.scenario.runner import leave
from orchestrator.jobs.report import JobStatus
from orchestrator.session import Command, load_lab
from orchestrator.store.keys import tenancy_of
from orchestrator.store.options import UpOptions
from orchestrator.telemetry import Journal
from orchestrator.views.report.measured import findings
from tests.house.repository import ROOT
from tests.kit.jobs import spec
from tests.views.report.conftest import Typed
from tests.views.report.recorded import CROSSED, RING, Lab
from tests.views.report.test_report import recomputed, report, shown_as_answered

SPEED_MS = {"topoopt-12": 50.0, "parallel-ring-12": 40.0}


@dataclass
class Engine:
    """The engine at its boundary; every run is really recorded. `fail`: what the verb of that
    number raises; `waits`: of an iteration, how long the rank of that launch has no processor;
    `forgets`: the rank of that launch has lost its first so many iterations.
    """

    lab: Lab
    up_now: str = ""
    reported: list[str] = field(default_factory=list)
    fail: dict[int, TestbedError | BaseException] = field(default_factory=dict)
    waits: dict[int, float] = field(default_factory=dict)
    forgets: dict[int, int] = field(default_factory=dict)
    job: str = ""
    made: int = 0

    def _next(self, what: str) -> None:
        self.reported.append(what)
        if (error := self.fail.pop(len(self.reported), None)) is not None:
            raise error

    async def up(self, command: Command, plan: Path, options: UpOptions) -> UpReport:
        name = json.loads(plan.read_text())["name"]
        self._next(f"up {name}")
        same, self.up_now = self.up_now == name, name
        links = RING if name == "topoopt-12" else CROSSED
        run = self.lab.up(name, links, job_ms=None, moved=not same, ports=False)
        return UpReport(run, name, "emulated", nothing_to_do=same)

    async def job_launch(self, command: Command) -> JobStatus:
        self._next("launch")
        store, clock = self.lab.store, self.lab.clock
        run = store.new_run("job launch", "emulated-1f", plan_name=self.up_now, user="ann")
        with Journal(self.lab.settings.run_dir(run.id), run.id, "emulated", clock=clock) as journal:
            self.lab.iterate(journal, 25, SPEED_MS[self.up_now] * (1 + 0.01 * len(self.reported)))
            launch = self.reported.count("launch")
            waited = self.waits.get(launch, 0.05)
            for n in range(self.forgets.get(launch, 0), 25):
                times = {"iter": n, "iter_ms": 40.0, "processor_ms": 40.0 * waited}
                journal.point("rank", {"job": "ddp", "rank": "gpu01"}, times, clock.now_ns)
        run.finish("ok")
        self.job, self.made = run.id, 4
        return self._job("running")

    async def job_status(self, command: Command) -> JobStatus:
        self._next("status")
        self.made = 25
        return self._job("running")

    async def job_stop(self, command: Command) -> JobStatus:
        self._next("stop")
        return self._job("stopped")

    async def rollback(
        self, command: Command, run: str | None, **options: Any
    ) -> UpReport | DownReport:
        self._next(f"rollback {run}")
        self.up_now = ""
        return DownReport("r", "emulated")

    async def down(self, command: Command, **options: Any) -> DownReport:
        self._next("down")
        return DownReport("r", "emulated")

    def _job(self, state: str) -> JobStatus:
        return JobStatus("ddp", state, "train", "gloo", 12, self.made, 40.0, run=self.job)


@pytest.fixture
def engine(typed: Typed, lab: Lab, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    # without emulator.yml: a lab of hardware, so nothing is started
    inventory = typed.home / "inventory" / "emulated"
    inventory.mkdir(parents=True)
    for name in ("hosts.yml", "devices.yml", "fibres.yml"):
        shutil.copy(ROOT / "inventory" / "emulated" / name, inventory)
    made = Engine(lab)
    verbs = {
        name: getattr(made, name)
        for name in ("up", "job_launch", "job_status", "job_stop", "rollback", "down")
    }
    monkeypatch.setitem(sys.modules, "orchestrator.verbs.change", SimpleNamespace(**verbs))  # type: ignore[arg-type]
    monkeypatch.setattr("orchestrator.experiments.scenario.runner.time.sleep", lambda s: None)
    yield made


PLANS = [ROOT / "examples" / f"{name}.json" for name in SPEED_MS]


def compare(typed: Typed, *argv: object, code: int = 0) -> dict[str, Any]:
    result = typed("experiment", "compare", *argv, "--json")
    assert result.code == code, result.out
    return dict(json.loads(result.out))


def test_the_order_alternates_so_that_a_drift_meets_both_plans_alike() -> None:
    assert "".join(order("ab", 4)) == "abbaabba" and "".join(order("abc", 2)) == "abccba"
    for n in (2, 4, 10):
        places: dict[str, float] = {"a": 0, "b": 0}
        for k, arm in enumerate(order("ab", n)):
            places[arm] += k
        assert places["a"] == places["b"]


@pytest.mark.long
def test_two_plans_are_compared_and_the_lab_is_as_before(typed: Typed, engine: Engine) -> None:
    data = compare(typed, *PLANS, "--repeats", 3)["data"]
    assert [slot["arm"] for slot in data["slots"]] == ["a", "b", "b", "a", "a", "b"]
    one = ["launch", "status", "stop"]
    a, b = (f"up {name}" for name in SPEED_MS)
    first = data["slots"][0]["runs"][0]
    measured = [word for up in (a, b, b, a, a, b) for word in (up, *one)]
    assert engine.reported == [*measured, f"rollback {first}"]
    assert data["left"] == "as it was before: nothing is up" and data["complete"]
    found = data["verdict"]
    assert (
        0.7 < found["ratio"]["low"] <= found["ratio"]["value"] <= found["ratio"]["high"] < 0.95
        and found["sure"]
    )
    assert [len(v) for side in data["iteration_ms"].values() for v in side] == [20] * 6
    assert all(v[0] < 60 for side in data["iteration_ms"].values() for v in side), (
        "the first iteration of a launch does not count"
    )
    page, _ = report(typed, data["name"])
    assert recomputed(typed, page) > 100 and shown_as_answered(typed, page) > 20
    again = page.numbers["answers"]["compared"]["rows"]
    times: dict[str, list[float]] = {}
    for run, _, ms, *_ in again:
        times.setdefault(run, []).append(ms)
    arms: dict[str, list[list[float]]] = {"a": [], "b": []}
    for slot in data["slots"]:
        arms[slot["arm"]].append(times[slot["job_run"]])
    rounds = [(median(b), median(a)) for a, b in zip(*arms.values(), strict=True)]
    ratio = paired_ratio([b / a for b, a in rounds])
    assert found["ratio"] == asdict(ratio.found) and (found["n"], found["how"]) == (3, "t")
    assert found["medians"] == [
        {"round": n, "of": b, "over": a} for n, (b, a) in enumerate(rounds, 1)
    ]
    middles = [geometric_mean(each) for each in zip(*rounds, strict=True)]
    assert [found["of_ms"], found["over_ms"]] == middles
    assert middles[0] / middles[1] == pytest.approx(found["ratio"]["value"]), "nothing is pooled"
    (row,) = page.numbers["answers"]["verdict"]["rows"]
    assert row == ["b", *middles, *found["ratio"].values(), 3]
    assert (
        "Measured in rounds: a, b; b, a; a, b." in page.text
        and "B: parallel-ring-12: iterations" in page.text
        and "geometric mean of the rounds' ratios, 95 % t-interval" in page.text
    )
    assert "The lab was left as it was before: nothing is up." in page.text


def test_a_failure_keeps_what_was_measured_leaves_the_lab_as_promised_and_can_be_gone_on_with(
    typed: Typed, engine: Engine
) -> None:
    engine.fail[5] = RolledBack("ocs1: no answer")
    body = compare(typed, *PLANS, "--repeats", 1, code=6)
    name = body["message"].splitlines()[1].split(":")[0]
    assert (
        f"{name}: 1 measurement in 1 round, 1 failed are saved; the lab was left as it was before: nothing is up"
        in body["message"]
    )
    assert f"testbed experiment compare --resume {name}" in body["hint"]
    kept = json.loads(
        (engine.lab.settings.state_dir / "campaigns" / name / "campaign.json").read_text()
    )
    assert [(slot["state"], slot.get("error", "")) for slot in kept["slots"]] == [
        ("done", ""),
        ("failed", "ocs1: no answer"),
    ]
    before = len(engine.reported)
    data = compare(typed, "--resume", name)["data"]
    assert [each for each in engine.reported[before:] if each.startswith("up ")] == [
        "up parallel-ring-12",
        "up topoopt-12",
    ], "a round that was broken off is followed by a whole one"
    found = data["verdict"]
    assert data["complete"] and found["n"] == 1 and found["ratio"]["low"] is None
    assert not found["sure"] and [each["round"] for each in found["medians"]] == [2]
    before = len(engine.reported)
    assert (
        compare(typed, "--resume", name)["data"]["verdict"] == data["verdict"]
        and len(engine.reported) == before
    ), "it is done"


def test_an_interrupted_comparison_stays_where_it_was_stopped_and_says_so(
    typed: Typed, engine: Engine
) -> None:
    engine.fail[5] = Interrupted("interrupted: taken back")
    body = compare(typed, *PLANS, "--repeats", 1, code=130)
    assert (
        "1 measurement in 1 round, 1 failed are saved; the lab was left as it was when stopped"
        in body["message"]
    )
    assert not any(text.startswith("rollback") for text in engine.reported)


def test_the_lab_is_left_as_said_also_when_the_time_is_up(typed: Typed, engine: Engine) -> None:
    data = compare(typed, *PLANS, "--repeats", 2, "--leave", "a", "--within", "1ms")["data"]
    assert [slot["state"] for slot in data["slots"]] == ["done", "done"] and not data["complete"]
    assert (
        engine.reported[-1] == "up topoopt-12"
        and data["left"] == "A: topoopt-12 is up, its job does not run"
    )
    folder = Path(data["file"]).parent
    kept = ComparisonRecord(
        folder, json.loads((folder / "campaign.json").read_text()) | {"leave": "down"}
    )
    assert (
        leave(kept, {"": SimpleNamespace(down=lambda: engine.reported.append("down"))})
        == "nothing is up"
    )  # type: ignore[arg-type]
    assert engine.reported[-1] == "down"


def test_a_measurement_whose_ranks_waited_does_not_count_and_another_round_follows(
    typed: Typed, engine: Engine
) -> None:
    engine.waits[2] = 0.3
    data = compare(typed, *PLANS, "--repeats", 2)["data"]
    states = [(slot["arm"], slot["round"], slot["state"]) for slot in data["slots"]]
    assert states[:3] == [("a", 1, "done"), ("b", 1, "void"), ("b", 2, "done")]
    assert len(states) == 6 and data["complete"] and data["verdict"]["n"] == 2
    assert [each["round"] for each in data["verdict"]["medians"]] == [2, 3]
    slowed = data["slots"][1]["slowed"]
    assert (slowed["share"], slowed["rank"]) == (pytest.approx(0.3), "gpu01")
    page, _ = report(typed, data["name"])
    assert "a, b (void); b, a; a, b." in page.text and "1 of 6 measurements are void" in page.text


def test_a_measurement_whose_first_iterations_ranks_no_longer_know_says_so(
    typed: Typed, engine: Engine
) -> None:
    engine.forgets |= {1: 14, 2: 25, 3: 5}
    data = compare(typed, *PLANS, "--repeats", 2)["data"]
    assert [slot["slowed"]["known"] for slot in data["slots"]] == [0.35, 0.0, 0.8, 1.0]
    assert data["slots"][1]["slowed"]["share"] is None and data["complete"]
    page, _ = report(typed, data["name"])
    assert "5.0%, gpu01, known of 35% of the iterations" in page.text and "not known" in page.text


def test_plans_are_not_measured_for_ever_on_a_machine_that_is_never_free(
    typed: Typed, engine: Engine
) -> None:
    engine.waits |= dict.fromkeys(range(1, 9), 3.0)
    result = typed("experiment", "compare", *PLANS, "--repeats", 2)
    assert "8 measurements in 4 rounds, 8 void" in result.out and "nothing to compare" in result.out
    name = result.out.split()[1]
    assert f"testbed experiment compare --resume {name}" in result.out + result.err
    data = compare(typed, "--resume", name)["data"]
    assert data["complete"] and data["verdict"]["n"] == 2 and len(data["slots"]) == 12


def test_a_job_that_runs_is_not_stopped_without_a_yes(typed: Typed, engine: Engine) -> None:
    settings, store = engine.lab.settings, engine.lab.store
    store.add_job(tenancy_of(load_lab(settings.inventory), settings), "r", "somebody's", spec())
    result = typed("experiment", "compare", *PLANS)
    assert result.code == 2 and "add --yes" in result.err and not engine.reported


def rewritten(change: Callable[[dict[str, Any]], object], home: Path) -> Path:
    plan = json.loads(PLANS[1].read_text())
    change(plan)
    path = home / "changed.json"
    path.write_text(json.dumps(plan))
    return path


BAD: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "no job": (lambda p: p.pop("job"), "the plan has no job, so nothing can be measured"),
    "another job": (
        lambda p: p["job"]["args"].update(iterations=77),
        "the jobs differ in args: two things would be compared at once",
    ),
    "no plan": (lambda p: p.clear(), "schema"),
}


@pytest.mark.parametrize("name", BAD)
def test_plans_that_cannot_be_compared_are_refused_before_anything_moves(
    typed: Typed, engine: Engine, name: str
) -> None:
    change, text = BAD[name]
    result = typed("experiment", "compare", PLANS[0], rewritten(change, typed.home))
    assert result.code == 3 and text in result.err and not engine.reported
    assert not (engine.lab.settings.state_dir / "campaigns").exists()


def test_a_job_given_to_both_makes_different_jobs_the_same(typed: Typed, engine: Engine) -> None:
    other = rewritten(BAD["another job"][0], typed.home)
    settings = engine.lab.settings
    scenario = scenario_of(
        [PLANS[0], other], job=PLANS[0], repeats=1, iterations=20, watchdog_s=1.0
    )
    made = begin_comparison(
        settings, load_lab(settings.inventory), scenario, kind="compare", leave="before"
    )
    jobs = [json.loads(made.plan(arm).read_text())["job"] for arm in "ab"]
    assert jobs[0]["args"] == jobs[1]["args"] and jobs[0]["rings"] != jobs[1]["rings"]


def test_bad_words_are_refused(typed: Typed, engine: Engine) -> None:
    assert "two plans are required" in typed("experiment", "compare", PLANS[0]).err
    assert (
        "the job ends after 300 iterations"
        in typed("experiment", "compare", *PLANS, "--iterations", 300).err
    )
    assert "there is no comparison 'x'" in typed("experiment", "compare", "--resume", "x").err
    assert (
        "give no plans and no --job" in typed("experiment", "compare", *PLANS, "--resume", "x").err
    )
    assert "--within" in typed("experiment", "compare", *PLANS, "--within", "soon").err
    assert not engine.reported


Rounds = Sequence[tuple[float | None, float | None]]
"""Of each round the medians of plans a and b; None: it was not measured; 0: it has no iterations."""


def compared(rounds: Rounds) -> list[JudgedComparison]:
    slots: list[dict[str, Any]] = []
    samples: dict[tuple[str, str, str, float], dict[int, list[float]]] = {}
    for number, values in enumerate(rounds, 1):
        for arm, value in zip("ab", values, strict=True):
            if value:
                each = samples.setdefault((arm, "", "iteration_ms", 0), {})
                each[len(slots)] = [value, value * 0.9, value * 1.2]
            slots.append(
                {"arm": arm, "round": number, "state": "failed" if value is None else "done"}
            )
    return findings(samples, {"arms": {"a": "A", "b": "B"}, "slots": slots})


def test_a_difference_is_told_where_there_is_one_and_not_where_there_is_none() -> None:
    (slower,) = compared([(40.0, 48.0), (41.0, 49.0), (60.0, 72.6)])
    assert slower.found is not None and slower.sure and slower.n == 3
    assert 1.19 < slower.found.value < 1.21, "a slow round cancels"
    assert difference_text(slower, "A", "B").startswith(
        "B: iterations 20.2 % longer than A: 55.5 against 46.2 ms, ratio 1.202"
    )
    (same,) = compared([(40.0, 41.0), (41.0, 40.0), (40.0, 40.5)])
    assert not same.sure
    assert difference_text(same, "A", "B").startswith(
        "no difference found between A and B: 40.5 against 40.3 ms, ratio 1.004"
    )
    assert same.compared.band == "none" and "band none" in same.message


def test_only_rounds_in_which_both_plans_were_measured_count() -> None:
    (one,) = compared([(40.0, 44.0), (80.0, None), (None, 90.0)])
    assert one.found == Interval(1.1, None, None) and one.n == 1 and not one.sure
    assert difference_text(one, "A", "B").endswith(
        "10.0 % longer than A, 44.0 against 40.0 ms; an interval needs at least two rounds"
    )
    assert [one.found for one in compared([(80.0, None), (None, 90.0)])] == [None]
    assert compared([(40.0, 44.0), (40.0, 0.0), (41.0, 45.1)])[0].n == 2, "one has no iterations"
    wild = difference_text(compared([(40.0, 8.0), (8.0, 40.0)])[0], "A", "B")
    assert len(wild) < 140, "however wide an interval is"
