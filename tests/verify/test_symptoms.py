"""What a diagnosis reads: a job's state by its ranks, settings that are gone, who uses processors,
a bisected all-reduce.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from optics import Circuit, CrossConnect, HostPort, Link, Port
from orchestrator.fabric.up_state import UpState
from orchestrator.hosts.api import Flow, Heartbeat
from orchestrator.hosts.measurements import _load
from orchestrator.session import Command, Session
from orchestrator.settings import load
from orchestrator.store.keys import key_of, tenancy_of
from orchestrator.store.options import RunOptions, UpOptions
from orchestrator.store.store import Store
from orchestrator.telemetry.progress import Silent
from orchestrator.verbs.diagnose import subject, usual_since_ring_change_ms
from orchestrator.verify.bisect import slow_hosts
from orchestrator.verify.carried import carried
from orchestrator.verify.qualification import Direction
from orchestrator.verify.signals import PlannedLink
from orchestrator.verify.symptoms import GLANCE_S, LOAD_S, DiagnosedJob, job_state, look, missing
from tests.properties.labs import lab

HOSTS = tuple(f"gpu{n:02d}" for n in range(1, 13))


def heartbeat(state: str, code: int | None = None) -> Heartbeat:
    return Heartbeat("gpu01", state, code, 3, "compute", 0.1, ())


def test_the_state_of_a_job_is_what_its_ranks_show() -> None:
    assert (
        job_state("running", {"a": heartbeat("running"), "b": heartbeat("exited", 75)}) == "running"
    )
    assert job_state("running", {"a": heartbeat("exited", 0)}) == "finished"
    assert job_state("running", {"a": heartbeat("exited", 0), "b": heartbeat("killed")}) == "failed"
    assert job_state("stopped", {"a": heartbeat("killed")}) == "stopped", (
        "what the store says has ended has ended"
    )
    assert job_state("running", {}) == "running", "nobody can be asked"


def test_only_settings_of_devices_that_were_read_can_be_missing() -> None:
    other, ended = (
        CrossConnect(Port("ocs1", "1"), Port("ocs1", "4")),
        CrossConnect(Port("ocs1", "2"), Port("ocs1", "3")),
    )
    unread = CrossConnect(Port("ocs2", "1"), Port("ocs2", "4"))
    circuits = [
        Circuit(HostPort("gpu01", 1), HostPort("gpu02", 1), (other,)),
        Circuit(HostPort("gpu03", 1), HostPort("gpu04", 1), (ended, unread)),
    ]
    assert missing(circuits, {"ocs1": frozenset({other})}) == {"gpu03:p1->gpu04:p1": (str(ended),)}


def test_what_is_usual_is_taken_since_the_latest_turn_and_before_the_latest_iterations() -> None:
    def records(ms: float, count: int) -> list[dict[str, float]]:
        return [{"iter_ms": ms} for _ in range(count)]

    assert usual_since_ring_change_ms(records(100, 40)) == 100
    assert (
        usual_since_ring_change_ms(
            [*records(100, 40), {"iter_ms": 50.0, "move": 2}, *records(50, 40)]
        )
        == 50
    )
    assert usual_since_ring_change_ms([*records(100, 40), *records(900, 20)]) == 100
    assert usual_since_ring_change_ms(records(100, 25)) is None


def test_an_agent_that_answers_with_nonsense_is_no_load() -> None:
    good = {
        "seconds": 1.0,
        "cpus": 2,
        "busy": 1.5,
        "ranks": {"job.1": {"state": "T", "cores": 0.0, "heartbeat": ""}, "x": {}},
    }
    answer = good | {
        "others": [{"pid": 7, "command": "a\x1b[2Jlong command name", "cores": 1.0}],
        "sent": 5,
        "again": 0,
    }
    del answer["ranks"]["x"]  # type: ignore[attr-defined]
    found = _load("gpu01", answer, {"job.1": "gpu01"})
    assert (
        found.ranks["gpu01"].state == "T"
        and "\x1b" not in found.others[0].command
        and len(found.others[0].command) <= 15
    )
    with pytest.raises((KeyError, TypeError, ValueError)):
        _load("gpu01", good, {})


async def test_a_diagnosis_knows_where_the_plan_that_is_up_is_kept_and_what_it_avoids(
    tmp_path: Path,
) -> None:
    here = lab(6, 4)
    places = {f"TESTBED_{n}_DIR": str(tmp_path / n.lower()) for n in ("DATA", "STATE", "LOCK")}
    settings = load(env=places, cwd=tmp_path)
    store = Store(settings.store_path, durable=False)
    text = json.dumps(
        {"schema": "testbed.plan/1", "name": "ring", "links": [{"a": "gpu01", "b": "gpu02"}]}
    )
    run = store.new_run(
        "up",
        key_of(here),
        user="ann",
        owner="ann",
        options=RunOptions(UpOptions(avoid=("gpu03:p1", "f-gpu04-p1"))),
    )
    mine = tenancy_of(here, settings)
    store.set_current(
        mine, run.id, plan_name="ring", plan_sha="x", plan_text=text, up=UpState(), generation=1
    )
    session = Session(here, Path("inventory"), {}, cast(Any, None))
    found = await subject(
        Command(Silent(), store, settings),
        session,
        store.current(mine) or pytest.fail("none is up"),
        None,
    )
    assert found.plan_file == f"{settings.run_dir(run.id)}/plan.json" and found.avoid == (
        "gpu03:p1",
        "f-gpu04-p1",
    )


class Fabric:
    """Hosts some of which are slow in any all-reduce."""

    def __init__(self, *slow: str, together: bool = False) -> None:
        self.slow, self.together, self.runs = set(slow), together, 0

    async def __call__(self, hosts: tuple[str, ...]) -> float:
        self.runs += 1
        assert len(hosts) > 1
        hit = self.slow & set(hosts)
        return 0.2 if (hit == self.slow if self.together else hit) and self.slow else 0.9


@pytest.mark.parametrize("count", [2, 3, 4, 5, 7, 12])
async def test_one_slow_host_is_found_in_few_runs_wherever_it_is(count: int) -> None:
    for slow in HOSTS[:count]:
        fabric = Fabric(slow)
        found = await slow_hosts(HOSTS[:count], fabric)
        assert set(found) == ({(slow,)} if count > 2 else {HOSTS[:2]}), slow
        assert fabric.runs <= 2 * count.bit_length() + 1


async def test_fast_hosts_need_one_run_and_hosts_that_are_slow_only_together_are_not_split() -> (
    None
):
    fabric = Fabric()
    assert await slow_hosts(HOSTS, fabric) == {} and fabric.runs == 1
    assert set(await slow_hosts(HOSTS, Fabric("gpu01", "gpu12", together=True))) == {HOSTS}
    assert set(await slow_hosts(HOSTS, Fabric("gpu01", "gpu12"))) == {HOSTS}, "both halves are slow"


@pytest.mark.parametrize(
    ("ended", "bare", "looks"),
    [
        ("killed", "", [GLANCE_S]),
        ("running", "", [GLANCE_S, LOAD_S]),
        ("running", "gpu03", [GLANCE_S]),
        ("running", "gpu11", [GLANCE_S, LOAD_S]),
    ],
)
def test_processors_are_looked_at_for_long_only_where_nothing_is_dark_dead_or_stopped(
    ended: str, bare: str, looks: list[float]
) -> None:
    asked: list[float] = []

    async def load(job: str, ranks: list[str], for_s: float) -> dict[str, Any]:
        asked.append(for_s)
        return {}

    async def heartbeats(job: str, ranks: list[str]) -> dict[str, Heartbeat]:
        return {
            rank: Heartbeat(
                rank, ended if rank == "gpu02" else "running", None, 3, "compute", 0.1, ()
            )
            for rank in ranks
        }

    async def clocks(names: list[str]) -> dict[str, Any]:
        return {}

    hosts = SimpleNamespace(
        measure=SimpleNamespace(load=load, heartbeats=heartbeats, clocks=clocks)
    )
    session: Any = SimpleNamespace(hosts=hosts, lab=SimpleNamespace(), devices={})
    ranks = HOSTS[:4]
    hellos = {host: SimpleNamespace(installed=host != bare, ports={}) for host in (*ranks, "gpu11")}
    seen: Any = SimpleNamespace(hellos=hellos, errors={}, settings={})
    plan: Any = None
    subject = DiagnosedJob(plan, (), (), "job", "job", "running", ranks)
    signals = asyncio.run(look(session, subject, seen))
    assert (
        asked == looks and signals.state == "running" and signals.heartbeats["gpu02"].state == ended
    )
    assert signals.bare == frozenset({bare} & {*ranks}), (
        "a host without an agent, if the job or the plan uses it"
    )


def test_only_what_goes_over_one_link_and_ends_there_is_counted_for_it() -> None:
    here = lab(3, 2)
    a, b = HostPort("gpu01", 1), HostPort("gpu02", 1)
    other, third = here.hosts["gpu02"], here.hosts["gpu03"]
    flow = Flow(other.lane_address(0), other.port_address(1), 1, 1.0, 10, 0.1, 5, 0)
    further = replace(flow, to=third.lane_address(0))
    elsewhere = replace(flow, via=third.port_address(1))
    wires = (PlannedLink(Link(a, b)),)
    assert carried({"gpu01": (further, elsewhere, flow)}, wires, here) == {Direction(a, b): flow}
    assert (
        carried({"gpu01": (replace(flow, port=None),)}, (PlannedLink(Link(a, b), "plane1"),), here)
        == {}
    )
