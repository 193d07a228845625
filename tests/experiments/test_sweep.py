"""Campaigns: trials that fail, workers that die, schedulers that go; every trial is once in the
result.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import pytest

from optical_testbed_home import environment
from optics import BadFile, Outcome, Usage
from optics.errors import Locked, Missing, NotVerified, Refused, Unreachable
from orchestrator.experiments.files.scenario.values import WantedLab
from orchestrator.experiments.files.sweep.reader import read_campaign
from orchestrator.experiments.files.sweep.values import Campaign
from orchestrator.experiments.scenario.judging import JudgedComparison, result_of
from orchestrator.experiments.scenario.lab import prepare_lab
from orchestrator.experiments.scenario.paired import Interval
from orchestrator.experiments.sweep import campaign as campaigns
from orchestrator.experiments.sweep import onlab, record, trial, verb
from orchestrator.experiments.sweep.campaign import trials_to_make
from orchestrator.experiments.sweep.cluster import concurrent_trials, dask_client
from orchestrator.experiments.sweep.trial import predict, run_trial
from orchestrator.experiments.sweep.verb import carried_out, load_campaign
from orchestrator.experiments.sweep.version import of_program
from orchestrator.settings import Settings, load
from orchestrator.telemetry.progress import Silent
from tests.experiments.test_judging import RATIO
from tests.house.repository import ROOT

WORKLOAD = (ROOT / "examples" / "workloads" / "bert.yaml").read_text()
HEAD = "schema: testbed.sweep/1\nname: x\nkind: prediction\nretries: 1\nlab: {hosts: 12, ports: 4}\nbase: {workload: bert.yaml}\n"


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setenv("TESTBED_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("TESTBED_DATA_DIR", str(tmp_path / "data"))
    return load(cwd=tmp_path)


def campaign(text: str, head: str = HEAD) -> Campaign:
    return read_campaign(head + text, "c.yaml", lambda _: WORKLOAD)


def run_all(settings: Settings, wanted: Campaign, **more: Any) -> list[dict[str, Any]]:
    kept, _ = carried_out(
        settings, wanted, Silent(), **({"workers": 1, "resume": True, "again": "again"} | more)
    )
    return list(kept.results())


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dask's scheduler and worker in threads of the test, which takes no second to start."""

    @contextmanager
    def connected(
        on: str, workers: int, folder: Path, state_dir: Path, resources: Iterable[str] = ()
    ) -> Iterator[Any]:
        from distributed import Client

        own = {
            "processes": False,
            "n_workers": 1,
            "threads_per_worker": 1,
            "dashboard_address": None,
        }
        with Client(
            **own,
            resources=dict.fromkeys(resources, 1),
            local_directory=str(folder),
            set_as_default=False,
        ) as client:
            yield client

    monkeypatch.setattr(verb, "dask_client", connected)


@pytest.mark.usefixtures("in_this_process")
def test_a_trial_that_fails_is_tried_again_kept_and_made_again_on_resume(
    settings: Settings,
) -> None:
    found = run_all(settings, campaign("grid: {method: [ring, nonsense]}"), resume=False)
    good, bad = found
    assert (good["state"], good["attempts"], good["errors"]) == ("done", 1, []) and good["values"][
        "iteration_ms"
    ] > 0
    assert (bad["state"], bad["attempts"], len(bad["errors"])) == (
        "failed",
        2,
        2,
    ) and "nonsense" in bad["errors"][-1]
    wanted = campaign("grid: {method: [torus, ring, nonsense]}")
    kept = record.begin_campaign(settings, wanted, of_program(), resume=True)
    assert [trial.labels["method"] for trial in trials_to_make(wanted, kept)] == [
        "torus",
        "nonsense",
    ]
    again = run_all(settings, campaign("grid: {method: [ring, nonsense]}"))
    assert again[0] == good and again[1]["began"] > bad["began"]
    with duckdb.connect(str(kept.folder / "results.duckdb"), read_only=True) as database:
        assert database.sql("SELECT method, state, attempts FROM trials ORDER BY method").fetchall() == [
            ("nonsense", "failed", 2), ("ring", "done", 1)]  # fmt: skip
        assert database.sql("SELECT method, trials, iteration_ms FROM summary").fetchall() == [
            ("ring", 1, good["values"]["iteration_ms"])
        ]


def test_results_are_not_mixed_with_those_of_another_version_nor_overwritten(
    settings: Settings,
) -> None:
    wanted = campaign("grid: {method: [ring]}")
    kept = record.begin_campaign(settings, wanted, "1", resume=False)
    kept.keep(wanted.trials[0], [run_trial(wanted.trials[0].task, of_program())])
    with pytest.raises(BadFile, match="has 1 results already"):
        record.begin_campaign(settings, wanted, "1", resume=False)
    with pytest.raises(BadFile, match="are of version 1 of the program, this is 2"):
        record.begin_campaign(settings, wanted, "2", resume=True)
    with (
        record.campaign_lock(settings, "x"),
        pytest.raises(Locked, match="another command"),
        record.campaign_lock(settings, "x"),
    ):
        pass


def test_a_worker_of_another_version_runs_nothing() -> None:
    (trial,) = campaign("grid: {method: [ring]}").trials
    with pytest.raises(Refused, match=r"^worker on .* runs version .*, this is 0\.0\.9$"):
        run_trial(trial.task, "0.0.9")


@pytest.mark.usefixtures("in_this_process")
def test_a_worker_of_another_version_that_joins_later_ends_the_campaign(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.experiments.sweep.trial.of_program", lambda: "0.0.9")
    with pytest.raises(Refused, match=r"runs version 0\.0\.9, this is") as caught:
        run_all(settings, campaign("grid: {method: [ring, torus]}"))
    assert "--resume" in caught.value.hint and ended(settings) == 0


class FakeClient:
    """A scheduler with these workers, whose versions are these."""

    def __init__(
        self, versions: Mapping[str, object], resources: Mapping[str, Mapping[str, float]]
    ) -> None:
        self.versions, self.resources = versions, resources

    def scheduler_info(self, n_workers: int) -> Mapping[str, Any]:
        return {
            "workers": {
                name: {"host": name, "nthreads": 2, "resources": self.resources.get(name, {})}
                for name in self.versions
            }
        }

    def run(self, function: object, on_error: str) -> Mapping[str, object]:
        return self.versions


def test_workers_of_another_version_or_without_what_is_needed_are_refused_by_name() -> None:
    own = of_program()
    assert concurrent_trials(
        FakeClient({"a": own, "b": own}, {"b": {"lab": 1.0}}), ["", "lab"]
    ) == {"": 4, "lab": 1}
    with pytest.raises(Refused, match=r"b on b: 0\.0\.9"):
        concurrent_trials(FakeClient({"a": own, "b": "0.0.9"}, {}), [""])
    with pytest.raises(Refused, match="b on b: optical-testbed is not installed"):
        concurrent_trials(
            FakeClient({"b": ModuleNotFoundError("No module named 'orchestrator'")}, {}), [""]
        )
    with pytest.raises(Missing, match="no worker offers the resource lab_a"):
        concurrent_trials(FakeClient({"a": own}, {}), ["lab_a"])
    with pytest.raises(Missing, match="has no worker"):
        concurrent_trials(FakeClient({}, {}), [""])


def test_a_scheduler_that_is_not_there_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.experiments.sweep.cluster.CONNECT_S", 0.3)
    with (
        pytest.raises(Unreachable, match=r"no Dask scheduler at tcp://127\.0\.0\.1:1"),
        dask_client("tcp://127.0.0.1:1", 1, tmp_path / "client", tmp_path),
    ):
        pass
    with (
        pytest.raises(Usage, match="wanted local, or an address"),
        dask_client("scheduler", 1, tmp_path / "client", tmp_path),
    ):
        pass


# --- killed


def process(tmp_path: Path, *argv: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", *argv],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT), "DASK_TEMPORARY_DIRECTORY": str(tmp_path)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def kill(one: subprocess.Popen[bytes]) -> None:
    try:
        os.killpg(one.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    one.wait()


@contextmanager
def dask(tmp_path: Path, workers: int) -> Iterator[tuple[str, list[subprocess.Popen[bytes]]]]:
    """A scheduler and workers that are processes; the first process is the scheduler."""
    file = tmp_path / "scheduler.json"
    file.unlink(missing_ok=True)
    here = ["--scheduler-file", str(file)]
    started = [
        process(
            tmp_path,
            "distributed.cli.dask_scheduler",
            *here,
            "--port",
            "0",
            "--no-dashboard",
            "--host",
            "127.0.0.1",
        )
    ]
    try:
        for _ in range(workers):
            one = [
                "--nworkers",
                "1",
                "--nthreads",
                "1",
                "--no-dashboard",
                "--no-nanny",
                "--host",
                "127.0.0.1",
                "--resources",
                "lab=1",
            ]
            started.append(process(tmp_path, "distributed.cli.dask_worker", *here, *one))
        until = time.monotonic() + 60
        while not file.is_file() or not (text := file.read_text()):
            assert time.monotonic() < until
            time.sleep(0.05)
        address = json.loads(text)["address"]
        with dask_client(address, 0, tmp_path / "client", tmp_path) as client:
            client.wait_for_workers(workers, timeout=60)
        yield address, started
    finally:
        for one in started:
            kill(one)


def ended(settings: Settings) -> int:
    return len([*(record.sweeps(settings) / "x" / "trials").glob("*.json")])


def plan(name: str, *order: int) -> str:
    """A ring of hosts in this order."""
    links = [
        {"a": f"gpu{a:02}", "b": f"gpu{b:02}"}
        for a, b in zip(order, (*order[1:], order[0]), strict=True)
    ]
    return json.dumps({"schema": "testbed.plan/1", "name": name, "links": links})


MIXED = {
    "bert.yaml": WORKLOAD.replace("ranks: 12", "ranks: 4"),
    "a.json": plan("a", 1, 2, 3, 4),
    "b.json": plan("b", 1, 3, 2, 4),
}
PREDICTED = {"workload": "bert.yaml", "method": "topoopt"}
STEADY = {
    "circuits_made",
    "circuits_broken",
    "circuits_kept",
    "made",
    "removed",
    "kept",
    "writes",
    "pairs_ok",
    "pairs_total",
}
"""Values that are not measured times, of trials on devices and labs; those of a prediction all
are.
"""


def steady(results: list[dict[str, Any]]) -> list[Any]:
    return [
        {
            name: value
            for name, value in each["values"].items()
            if name in STEADY or each["labels"].get("kind") == "prediction"
        }
        for each in results
    ]


@pytest.mark.long
@pytest.mark.timeout(800)
@pytest.mark.parametrize("kinds", ["prediction", pytest.param("all", marks=pytest.mark.lab)])
def test_forty_trials_survive_a_killed_worker_and_a_killed_scheduler_and_are_those_of_one_worker(
    kinds: str, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = {"plan": "a.json", "then": "b.json"}
    some = [("prediction", 40, PREDICTED)]
    if kinds == "all":
        some = [("lab", 4, changes), ("devices", 12, changes), ("prediction", 24, PREDICTED)]
    rows = [
        {"kind": kind, "repeat": at, **given} for kind, count, given in some for at in range(count)
    ]
    head = "schema: testbed.sweep/1\nname: x\nkind: prediction\nlab: {hosts: 4, ports: 2, settle_ms: 10}\n"
    wanted = read_campaign(f"{head}list: {json.dumps(rows)}", "c.yaml", MIXED.__getitem__)
    assert len(wanted.trials) == 40
    kept = campaigns.CampaignRecord.keep
    at: dict[int, subprocess.Popen[bytes]] = {}

    def keep(self: record.CampaignRecord, *argv: Any) -> None:
        kept(self, *argv)
        if (one := at.pop(ended(settings), None)) is not None:
            kill(one)

    monkeypatch.setattr(campaigns.CampaignRecord, "keep", keep)
    with dask(tmp_path, 2) as (address, started):
        at |= {8: started[1], 20: started[0]}
        with pytest.raises(Unreachable, match=r"the Dask scheduler is gone; .* of 40 trials"):
            run_all(settings, wanted, where=address)
    assert not at and 20 <= ended(settings) < 40
    with dask(tmp_path, 2) as (address, _):
        both = run_all(settings, wanted, where=address)
    assert [one["key"] for one in both] == [trial.key for trial in wanted.trials]
    assert {one["state"] for one in both} == {"done"}
    table = duckdb.read_parquet(str(record.sweeps(settings) / "x" / "results.parquet"))
    assert table.aggregate("count(*), count(DISTINCT key)").fetchall() == [(40, 40)]
    assert not [*onlab.clear_left(settings)] and not [*onlab._labs(settings).glob("[0-9]*[0-9]")]
    assert not onlab._using(tmp_path)
    monkeypatch.setenv("TESTBED_STATE_DIR", str(tmp_path / "other"))
    alone = run_all(load(cwd=tmp_path), wanted)
    assert {one["state"] for one in alone} == {"done"} and steady(alone) == steady(both)
    assert not onlab._using(tmp_path)


# --- labs, whose emulators and commands are stood in for


PLAN = (ROOT / "examples" / "ring-12.json").read_text()


class Device:
    """A device that makes what it is asked for, or refuses."""

    def __init__(self, name: str, refuses: bool) -> None:
        self.name, self.refuses = name, refuses
        self.held: frozenset[Any] = frozenset()

    async def read(self) -> frozenset[Any]:
        return self.held

    async def apply(self, change: Any, ready: Any) -> Outcome:
        await ready()
        if not self.refuses:
            self.held = (self.held - {*change.remove}) | {*change.add}
        failed = dict.fromkeys(change.add, "E42 no such port") if self.refuses else {}
        return Outcome(self.name, self.held, 0, 5_000_000, 6_000_000, 55_000_000, 1, failed)

    async def close(self) -> None: ...


def devices_trial(
    monkeypatch: pytest.MonkeyPatch, refuses: bool = False
) -> tuple[Mapping[str, float], list[Any]]:
    asked: list[Any] = []

    @contextmanager
    def lab_of(wanted: Mapping[str, Any], *, hosts: bool) -> Iterator[Path]:
        assert not hosts
        yield ROOT / "inventory" / "emulated"

    def ask(inventory: Path, op: str, **given: Any) -> dict[str, Any]:
        asked.append((op, given))
        return {"devices": ["ocs1"]}

    monkeypatch.setattr(onlab, "generated_lab", lab_of)
    monkeypatch.setattr(onlab.emulated, "ask", ask)
    monkeypatch.setattr(onlab, "open_driver", lambda lab, name: Device(name, refuses))
    torus = (ROOT / "examples" / "torus-3x4.json").read_text()
    fault = {"at": "ocs1", "kind": "slow-reply", "seconds": 1.0}
    files = {"plan": {"name": "ring", "text": PLAN}, "then": {"name": "torus", "text": torus}}
    task = {
        "kind": "devices",
        "parameters": {"faults": [fault]},
        "files": files,
        "lab": {"wanted": {}},
        "watchdog_s": 60.0,
    }
    return onlab.change_of_devices(task), asked


def test_devices_alone_are_brought_to_a_plan_and_the_change_to_the_next_is_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    values, asked = devices_trial(monkeypatch)
    assert (
        values["dark_ms"] == 50.0 and values["circuits_made"] > 0 and values["circuits_broken"] > 0
    )
    assert asked[-1] == ("faults.add", {"device": "ocs1", "kind": "slow-reply", "seconds": 1.0})


def test_a_device_that_refuses_is_an_error_in_its_own_words(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(NotVerified, match="does not hold the circuits of ring: E42 no such port"):
        devices_trial(monkeypatch, refuses=True)


def lab_task(**parameters: Any) -> dict[str, Any]:
    files = {"plan": {"name": "a.json", "text": "{}"}, "then": {"name": "b.json", "text": "{}"}}
    return {
        "kind": "lab",
        "parameters": parameters,
        "files": files,
        "lab": {"wanted": {}},
        "watchdog_s": 60.0,
    }


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[list[str]]:
    """The commands that a trial on a lab gives; the second `up` reports."""
    given: list[list[str]] = []
    report = {
        "dark_ms": 66.0,
        "commit_ms": None,
        "nothing_to_do": False,
        "ring_change": {"paused_ms": 412.0},
        "job": {"iteration_ms": 193.0},
        "phases": [{"name": "switch", "seconds": 0.08}],
    }

    def command(
        argv: list[str],
        inventory: Path | None,
        own: Mapping[str, str],
        until: float,
        good: Any = (0,),
    ) -> Any:
        given.append([Path(word).name if "/" in word else word for word in argv])
        return report if len(given) == 2 else {}

    @contextmanager
    def lab_of(wanted: Mapping[str, Any], *, hosts: bool) -> Iterator[Path]:
        assert hosts
        yield tmp_path / "lab" / "inventory"

    (tmp_path / "lab" / "inventory").mkdir(parents=True)
    monkeypatch.setattr(onlab, "run_testbed", command)
    monkeypatch.setattr(onlab, "generated_lab", lab_of)
    return given


def test_a_whole_lab_is_used_by_commands_and_left_down(typed: list[list[str]]) -> None:
    values = onlab.on_lab(lab_task(mode="live"))
    assert typed == [
        ["up", "--topology", "plan.json"],
        ["up", "--topology", "then.json", "--job", "live"],
        ["down", "--yes"],
    ]
    assert values == {
        "dark_ms": 66.0,
        "turn.paused_ms": 412.0,
        "lost_ms": 412.0,
        "job.iteration_ms": 193.0,
        "switch_s": 0.08,
    }


def test_a_lab_that_does_not_come_down_fails_its_trial_and_one_that_failed_is_taken_down(
    typed: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def command(argv: list[str], *_: object) -> Any:
        typed.append(argv[:1])
        if argv[0] == failing:
            raise NotVerified(f"testbed {failing}: E-HANDS-NEEDED by hand")
        return {}

    monkeypatch.setattr(onlab, "run_testbed", command)
    for failing, given in (("up", ["up", "down"]), ("down", ["up", "up", "down"])):
        typed.clear()
        with pytest.raises(NotVerified, match=f"testbed {failing}: E-HANDS-NEEDED"):
            onlab.on_lab(lab_task())
        assert [argv[0] for argv in typed] == given


def test_a_lab_that_exists_is_used_on_its_own_machine(
    typed: list[list[str]], settings: Settings, tmp_path: Path
) -> None:
    task = lab_task(job=False) | {"lab": {"inventory": str(tmp_path / "nowhere")}}
    with pytest.raises(Missing, match="is not on this worker's machine"):
        onlab.on_lab(task)
    onlab.on_lab(task | {"lab": {"inventory": str(tmp_path)}})
    assert typed[0] == ["up", "--topology", "plan.json", "--no-job"] and typed[-1] == [
        "down",
        "--yes",
    ]


def test_a_command_says_why_it_failed_and_is_ended_when_it_takes_too_long(
    settings: Settings, tmp_path: Path
) -> None:
    until = time.monotonic() + 60
    assert onlab.run_testbed(["--version"], None, {}, until)["testbed"]
    with pytest.raises(NotVerified, match="testbed plan: E-BAD-FILE"):
        onlab.run_testbed(
            ["plan", "--topology", str(tmp_path / "no.json")],
            ROOT / "inventory" / "emulated",
            {},
            until,
        )
    with pytest.raises(onlab.TimedOut, match="longer than the campaign's watchdog_s"):
        onlab.run_testbed(["--version"], None, {}, time.monotonic() - 1)


def test_a_scenario_gives_its_findings(
    typed: list[list[str]], settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = JudgedComparison(RATIO, Interval(0.5, 0.4, 0.6), "holds", 5)
    few = JudgedComparison(replace(RATIO, name="few"), Interval(0.7, None, None), "starved", 1)
    none = JudgedComparison(replace(RATIO, name="none"), None, "not shown", 0)
    findings = [each.to_json() for each in (one, few, none)]
    found = {"outcome": result_of([one]), "findings": findings}
    sent: list[str] = []

    def command(argv: list[str], *_: object) -> Any:
        typed.append(argv)
        sent.extend(
            sorted(path.name for path in Path(argv[2]).parent.rglob("*.*") if path.is_file())
        )
        return found

    monkeypatch.setattr(onlab, "run_testbed", command)
    page = {"name": "s.yaml", "text": "x", "files": {"plans/a.json": "{}"}}
    task = lab_task(repeats=3) | {"files": {"scenario": page}}
    values = onlab.on_lab(task)
    assert values == {
        "reproduced": 1.0,
        "x": 0.5,
        "x low": 0.4,
        "x high": 0.6,
        "few": 0.7,
    }
    assert typed[0][:2] == ["experiment", "reproduce"] and typed[0][3:] == [
        "--yes",
        "--repeats",
        "3",
    ]
    assert sent == ["a.json", "scenario.yaml"]


def killed_while_it_reads(lab: str) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(
            "orchestrator.session.load_lab", lambda place: os.kill(os.getpid(), signal.SIGKILL)
        )
        trial._lab(lab)


def test_a_worker_that_is_killed_while_it_reads_its_lab_leaves_nothing_for_good(
    settings: Settings, tmp_path: Path
) -> None:
    lab = json.dumps({"files": {"hosts.yml": "hosts: {}"}})
    worker = multiprocessing.get_context("fork").Process(target=killed_while_it_reads, args=(lab,))
    worker.start()
    worker.join()
    assert worker.exitcode == -signal.SIGKILL
    assert [path.name for path in onlab._labs(settings).rglob("hosts.yml")] == ["hosts.yml"], (
        "where campaigns look for it"
    )
    assert not [*onlab.clear_left(settings)] and not [*onlab._labs(settings).rglob("hosts.yml")]


def test_two_trials_of_one_machine_use_two_folders_and_what_a_killed_one_left_is_ended_and_removed(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(onlab, "END_S", 0.3)
    with onlab.own_folder() as one, onlab.own_folder() as two:
        assert one != two
        assert not [*onlab.clear_left(settings)] and one.is_dir()
    assert not one.exists() and not two.exists()
    one.mkdir()
    (one / "plan.json").write_text("{}")
    left = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(60)", "emulators", f"{one}/lab/inventory"]
    )
    other = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(60)", f"{one}/plan.json"]
    )
    threading.Thread(target=left.wait).start()
    try:
        with onlab.own_folder() as again:
            assert again == one and not [*one.iterdir()]
            assert left.wait(5) == -signal.SIGTERM and other.poll() is None
    finally:
        for process in (left, other):
            process.kill()
            process.wait()


def test_labs_take_turns_on_a_machine_and_waiting_is_no_time_of_a_trial(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(onlab, "SHARED", tmp_path / "locks")
    monkeypatch.setattr(onlab, "on_lab", lambda task: {"x": 1.0})
    found: list[Any] = []
    one = threading.Thread(target=lambda: found.append(run_trial(lab_task(), of_program())))
    with onlab.lab_lock({"wanted": {}}):
        one.start()
        assert run_trial(lab_task() | {"lab": {"inventory": "x"}}, of_program())["values"]
        one.join(0.5)
        assert not found
    one.join()
    assert found[0]["values"] == {"x": 1.0} and found[0]["seconds"] < 0.5


def test_a_prediction_is_that_of_the_design(settings: Settings) -> None:
    one, other = (
        predict(trial.task) for trial in campaign("grid: {method: [ring], ports: [2, 4]}").trials
    )
    assert one["links"] == 12 and other["links"] == 24 and one["iteration_ms"] > 0
    assert load_campaign(ROOT / "examples" / "sweeps" / "methods.yaml").trials


def test_a_lab_whose_worker_died_before_it_was_ready_ends(tmp_path: Path) -> None:
    inventory = prepare_lab(tmp_path / "lab", WantedLab(hosts=2, ports=1))
    here, place = os.pipe()
    argv = [
        sys.executable,
        "-P",
        "-m",
        "emulators",
        str(inventory),
        "--devices-only",
        "--foreground",
        "--with-parent",
    ]
    start = f"import subprocess; subprocess.Popen({[*argv, '--ready-fd', str(place)]!r}, pass_fds=({place},))"
    os.close(here)
    subprocess.run(
        [sys.executable, "-c", start],
        pass_fds=(place,),
        stdout=subprocess.DEVNULL,
        check=True,
        env=environment(),
    )
    os.close(place)
    until = time.monotonic() + 60
    while onlab._using(tmp_path / "lab") and time.monotonic() < until:
        time.sleep(0.05)
    assert not onlab._using(tmp_path / "lab")
