"""Pairs without another path are held while it is dark: when, which hosts, in which order, and what
failures leave.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from optics import ChangeFailed, RolledBack, TestbedError
from optics.plan import TransitionPolicy
from orchestrator.change.dark import worthwhile
from orchestrator.fabric.rules import Route
from orchestrator.store.store import Store
from tests.change.fleet import Bench, plan_text, ring

LINE = ring()[:3]  # gpu01 - gpu02 - gpu03 - gpu04
MOVED = (("gpu01:p3", "gpu02:p3"), *LINE[1:])
ALWAYS = {"transition": {"hold": "always"}}
NEVER = {"transition": {"hold": "never"}}


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with Store(tmp_path / "store.sqlite3", durable=False) as store:
        yield Bench(store, tmp_path)


async def move(bench: Bench, **more: object) -> list[str]:
    """Bring the line up, then move its first link; return what was asked of hosts and devices for
    that.
    """
    await bench.up(plan_text("line", *LINE))
    bench.points.names.clear()
    await bench.up(plan_text("moved", *MOVED, **{**ALWAYS, **more}))
    return [name.rpartition(" ")[0] if name[-1].isdigit() else name for name in bench.points.names]


@pytest.mark.parametrize(
    ("hold", "dark_s", "wanted"),
    [
        ("auto", 0.009, False),
        ("auto", 0.099, False),
        ("auto", 0.1, True),
        ("always", 0.009, False),
        ("always", 0.01, True),
        ("always", 5.0, True),
        ("always", 5.1, False),
        ("auto", 150.0, False),
        ("never", 0.2, False),
    ],
)
def test_hosts_hold_in_the_dark_of_a_mirror_switch_and_not_of_a_robot(
    hold: str, dark_s: float, wanted: bool
) -> None:
    assert worthwhile(TransitionPolicy(hold=hold), dark_s) is wanted  # type: ignore[arg-type]


async def test_hosts_hold_last_before_the_light_moves(bench: Bench) -> None:
    asked = await move(bench)
    assert asked == [
        "hosts: stage",
        "hosts: arm",
        "hosts: hold",
        "ocs1: apply",
        "hosts: commit",
        "hosts: confirm",
    ]
    assert bench.pending() == [] and len(set(bench.generations().values())) == 1


async def test_all_hosts_that_lose_a_pair_hold_and_keep_their_routes_to_the_others(
    bench: Bench,
) -> None:
    staged: dict[str, set[str]] = {}
    stage = bench.fleet.routes.stage

    async def watched(generations):  # type: ignore[no-untyped-def]
        held = generations[min(generations)]
        staged.update(
            {
                host: {rule.destination for rule in rules if isinstance(rule, Route)}
                for host, rules in held.items()
            }
        )
        return await stage(generations)

    await bench.up(plan_text("line", *LINE))
    bench.fleet.routes.stage = watched
    await bench.up(plan_text("moved", *MOVED, **ALWAYS))
    reached = {
        host: {found.split(".")[3] for found in addresses} for host, addresses in staged.items()
    }
    assert reached == {
        "gpu01": set(),
        "gpu02": {"3/32", "4/32"},
        "gpu03": {"2/32", "4/32"},
        "gpu04": {"2/32", "3/32"},
    }


async def test_where_every_pair_has_another_path_nobody_holds(bench: Bench) -> None:
    await bench.up(plan_text("ring", *ring()))
    bench.points.names.clear()
    await bench.up(plan_text("moved", ("gpu01:p3", "gpu02:p3"), *ring()[1:], **ALWAYS))
    assert not [name for name in bench.points.names if "hold" in name]


async def test_a_plan_can_forbid_it(bench: Bench) -> None:
    assert "hosts: hold" not in await move(bench, **NEVER)


@pytest.mark.parametrize("how", ["refused", "lost"])
async def test_a_hold_that_fails_stops_no_change(bench: Bench, how: str) -> None:
    await bench.up(plan_text("line", *LINE))
    bench.points.names.clear()
    bench.points.fail[3] = how
    await bench.up(plan_text("moved", *MOVED, **ALWAYS))
    assert bench.points.names[2].startswith("hosts: hold")
    assert bench.pending() == [] and len(set(bench.generations().values())) == 1


@pytest.mark.parametrize("how", ["refused", "lost", "half"])
async def test_a_change_that_fails_in_the_dark_leaves_nobody_held(bench: Bench, how: str) -> None:
    await bench.up(plan_text("line", *LINE))
    before = bench.generations(), bench.held()
    bench.points.names.clear()
    bench.points.fail[4] = how
    with pytest.raises(TestbedError) as failed:
        await bench.up(plan_text("moved", *MOVED, **ALWAYS))
    assert isinstance(failed.value, (ChangeFailed, RolledBack))
    assert bench.points.names[3] == "ocs1: apply"
    assert (bench.generations(), bench.held()) == before and bench.pending() == []
    assert not [name for name, host in bench.fleet.all.items() if host.holding == host.active]


async def test_the_hold_is_a_phase_of_the_run(bench: Bench) -> None:
    await bench.up(plan_text("line", *LINE))
    report = await bench.up(plan_text("moved", *MOVED, **ALWAYS))
    phases = {phase.name: phase for phase in report.phases}
    assert phases["hold"].detail.startswith("4 hosts without another path, 4 connections waiting")
