"""What is tried on the lab: other circuits for the job that runs, which goes on and does the same
work, and only they are taken back.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from extensions.tend import lab as module
from extensions.tend.guard import Priced
from extensions.tend.lab import LabBench, candidates, on_circuits, same_work
from optics import BadFile, Infeasible
from optics.plan import Job, RingGroup, Traffic, Transfer
from orchestrator.jobs.decision import CHANGES_RINGS, LABELS, differing
from orchestrator.plan.design.match import match
from orchestrator.plan.reader import read_plan
from orchestrator.store.options import UpOptions
from orchestrator.verbs.design_files import read_prices, read_workload
from tests.house.repository import ROOT
from tests.kit.labs import lab_of

LAB, PRICES = lab_of("emulated-packet"), read_prices()
REPLAY = {"transfers": [{"among": "all", "bytes": 5_000_000}], "compute_s": 0.01}
TRAIN = {"collectives": [{"id": "all", "bytes": 5_292_072}], "needs": {"train": {"model": "mlp"}}}
OWN = {
    "interchangeable": "all",
    "acceptance": {"max_loss_db": 5.0},
    "transition": {"boundary_s": 9.0},
}


def workload_of(folder: Path, content: dict[str, Any]) -> Path:
    file = folder / "w.yaml"
    head = {"schema": "testbed.workload/1", "name": "w", "ranks": 4}
    file.write_text(json.dumps({**head, **content}))
    return file


def bench_of(
    workload: Path, monkeypatch: pytest.MonkeyPatch, own: dict[str, Any] | None = None
) -> tuple[LabBench, Job]:
    """A bench whose plan that is up is the best one for this workload, with its job."""
    up = match(read_workload(workload), LAB, prices=PRICES, iterations=77, name="mine").best
    content = {**up.content, **(own or {})}
    running = read_plan(json.dumps(content), "up", LAB).job
    assert running is not None
    record = SimpleNamespace(spec=SimpleNamespace(wanted=running), name=running.name)
    monkeypatch.setattr(module, "hosts_of_job", lambda record, lab: running.hosts)
    bench: Any = object.__new__(LabBench)
    bench.lab, bench.prices, bench.key = LAB, PRICES, "lab/ann"
    bench.current = SimpleNamespace(run="0001", plan_sha="", plan_name="mine")
    bench.current.plan_text = json.dumps(content)
    bench._current = lambda: bench.current
    store = SimpleNamespace(
        latest_job=lambda key: record, get=lambda run: SimpleNamespace(avoid=("gpu01:p1",))
    )
    bench.command = SimpleNamespace(inventory=ROOT / "inventory" / "emulated-packet", store=store)
    return bench, running


@pytest.mark.parametrize("content", [REPLAY, TRAIN], ids=["replay", "train"])
def test_each_candidate_is_read_like_a_file_and_has_the_running_job_on_other_circuits(
    content: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workload = workload_of(tmp_path, content)
    bench, running = bench_of(workload, monkeypatch, OWN)
    known = candidates(bench, workload)
    assert len({one["name"] for one in known}) == len(known) > 3
    for one in known:
        plan = read_plan(json.dumps(one["plan"]), one["name"], LAB)
        assert plan.job is not None and plan.schedule is None
        assert {*differing(running, plan.job)} <= {*CHANGES_RINGS, *LABELS}, one["name"]
        assert plan.interchangeable and plan.acceptance.max_loss_db == 5.0
        assert plan.transition.boundary_s == 9.0
        assert one["predicted_ms"] > 0 and one["watts"] > 0


def test_a_workload_that_is_not_that_of_the_job_has_no_candidates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench, _ = bench_of(workload_of(tmp_path, REPLAY), monkeypatch)
    half = [{"among": "all", "bytes": 2_500_000}]
    with pytest.raises(Infeasible, match="none of its designs computes and sends what"):
        candidates(bench, workload_of(tmp_path, {**REPLAY, "transfers": half}))


async def test_a_plan_whose_job_does_less_is_refused_and_its_own_acceptance_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workload, asked = workload_of(tmp_path, REPLAY), list[UpOptions]()
    bench, _ = bench_of(workload, monkeypatch, OWN)

    async def plan(command: object, text: object, options: UpOptions) -> Any:
        asked.append(options)
        return SimpleNamespace(notes=(), diff=(), dark_ms_expected=50.0, fingerprint="f")

    monkeypatch.setattr(module.verbs, "plan", plan)
    other = candidates(bench, workload)[1]["plan"]
    weak = {**other, "acceptance": {"max_loss_db": 60.0, "all_pairs": False}, "interchangeable": []}
    priced = await bench.price("weak", json.dumps(weak))
    found = read_plan(priced.text, "weak", LAB)
    assert found.acceptance == read_plan(json.dumps(other), "other", LAB).acceptance
    assert found.interchangeable and found.sha256 == priced.sha
    assert asked == [UpOptions(job="live", avoid=("gpu01:p1",))]
    for change in ({"compute_s": 0.001}, {"transfers": other["job"]["traffic"]["transfers"][1:]}):
        job = {**other["job"], "traffic": {**other["job"]["traffic"], **change}}
        with pytest.raises(Infeasible, match="computes or sends something else"):
            await bench.price("less", json.dumps({**other, "job": job}))
    nothing = {key: value for key, value in other.items() if key != "job"}
    with pytest.raises(BadFile, match="a replay needs traffic"):
        await bench.price("nothing", json.dumps(nothing))


def test_work_is_the_same_however_it_is_cut_and_whichever_way_it_goes() -> None:
    group = RingGroup("g", 1000, (("a", "b", "c"),))
    sends = (Transfer("a", "b", 300), Transfer("b", "a", 200))
    one = Traffic((group,), sends, 0.5)
    cut = (Transfer("a", "b", 150, 1), Transfer("b", "a", 200, via="c"), Transfer("a", "b", 149))
    turned = replace(group, rings=(("c", "b", "a"), ("b", "a", "c")))
    assert same_work(one, replace(one, transfers=cut, groups=(turned,)))
    assert same_work(None, None) and not same_work(one, None) and not same_work(None, one)
    for other in (
        replace(one, compute_s=0.4),
        replace(one, groups=()),
        replace(one, groups=(replace(group, bytes=999),)),
        replace(one, groups=(replace(group, rings=(("a", "b"),)),)),
        replace(one, transfers=sends[:1]),
        replace(one, transfers=(*sends, Transfer("a", "c", 5))),
        replace(one, transfers=(Transfer("a", "b", 150), sends[1])),
    ):
        assert not same_work(one, other)


def test_a_plan_says_its_circuits_and_the_one_that_is_up_all_else() -> None:
    up = {
        "name": "u",
        "segments": [1],
        "routes": [2],
        "x_mine": 3,
        "job": {"name": "j", "rings": 4},
    }
    content = {"name": "c", "links": [5], "routes": [], "job": {"name": "k", "traffic": 6}}
    wanted = {"name": "c", "links": [5], "routes": [2], "x_mine": 3}
    assert on_circuits(up, content) == {**wanted, "job": {"name": "j", "traffic": 6}}


MINE = Priced("mine", "{}", "mine", 1.0, 4, 50.0, "f")


async def test_only_the_trial_is_confirmed_or_taken_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench, _ = bench_of(workload_of(tmp_path, REPLAY), monkeypatch)
    done: list[str] = []
    shas = {"0007": "theirs", "0008": "mine"}
    store: Any = bench.command.store
    store.get = lambda run: SimpleNamespace(plan_sha=shas.get(run, ""), avoid=())
    waits = SimpleNamespace(run="0007", left_s=lambda: 60.0)
    kept = SimpleNamespace(pending=lambda: waits)
    monkeypatch.setattr(module, "confirmations", lambda command: kept)

    async def rollback(command: object, run: str) -> Any:
        done.append(f"back {run}")
        return SimpleNamespace(dark_ms=20.0)

    async def confirm(command: object, run: str) -> None:
        done.append(f"confirm {run}")

    async def up(command: object, plan: object, options: UpOptions) -> Any:
        return SimpleNamespace(run="0008", confirm=object(), dark_ms=30.0)

    monkeypatch.setattr(module, "rollback", rollback)
    monkeypatch.setattr(module.verbs, "confirm", confirm, raising=False)
    monkeypatch.setattr(module.verbs, "up", up)
    assert await bench.back(MINE) is None and done == [], "that change is another command's"
    assert await bench.up(MINE, 60.0) == 30.0
    await bench.confirm()
    waits.run = "0008"
    assert await bench.back(MINE) == 20.0
    assert done == ["confirm 0008", "back 0008"]


async def test_what_came_up_without_a_deadline_is_taken_back_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench, _ = bench_of(workload_of(tmp_path, REPLAY), monkeypatch)
    current: Any = bench._current()
    done: list[str] = []

    async def up(command: object, plan: object, options: UpOptions) -> Any:
        assert options == UpOptions(job="live", avoid=("gpu01:p1",), confirm_s=60.0, expected="f")
        current.run = "0009"
        return SimpleNamespace(run="0009", confirm=None, dark_ms=None)

    async def rollback(command: object, run: str) -> None:
        done.append(run)

    monkeypatch.setattr(module.verbs, "up", up)
    monkeypatch.setattr(module, "rollback", rollback)
    with pytest.raises(Infeasible, match="moved no circuit"):
        await bench.up(MINE, 60.0)
    assert done == ["0009"]
