"""A change in which anything goes wrong, or anybody dies: hosts end with confirmed routes over
links that have light, and the store says which; the next turn goes on from there."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from drivers.api import at_once
from extensions.adapt.adapter import Adapter
from extensions.adapt.gates import Gates
from extensions.adapt.plan import Adapt, Region
from extensions.adapt.region_change import Abandoned, RegionChange, RegionChanged, RegionState
from extensions.adapt.service import AdaptOptions
from optics import HostPort, Link, NotVerified, TestbedError, Unreachable
from optics.plan import Plan
from orchestrator.change.context import Context
from orchestrator.fabric.rules import Route
from orchestrator.fabric.up_state import UpState
from orchestrator.store.records import CurrentPlan
from orchestrator.store.store import Store
from tests.change.fibrelab import SWITCH
from tests.change.fleet import TENANCY, Bench, Killed
from tests.extensions.adapt.site import HOSTS, electrical, lab

REGION = Region("r", HOSTS, tuple(HostPort(h, p) for h in HOSTS for p in (1, 2)), "packets")


def link(a: str, b: str, port: int) -> Link:
    return Link(HostPort(a, port), HostPort(b, port))


HERE = (
    link("gpu01", "gpu02", 1),
    link("gpu03", "gpu04", 1),
    link("gpu01", "gpu03", 2),
    link("gpu02", "gpu04", 2),
)
OTHER = (link("gpu01", "gpu04", 1), link("gpu02", "gpu03", 1), link("gpu01", "gpu03", 2))
"""One circuit stays, three go dark, two are made; gpu04 and gpu02 have one port less."""


class RegionBench(Bench):
    """Four hosts, two switches and a packet switch, with circuits HERE up."""

    def __init__(self, store: Store, folder: Path) -> None:
        self.furnish(store, folder, lab().with_traits({"ocs1": SWITCH, "ocs2": SWITCH}))
        _, self.context_ = self.context("adapt")
        self.plan = Plan("p", ())
        data = UpState(tuple(electrical()))
        store.set_current(
            TENANCY,
            self.context_.run.id,
            plan_name="p",
            plan_sha="",
            plan_text="",
            up=data,
            generation=1,
        )
        for host in self.fleet.all.values():
            host.staged[1], host.active = frozenset(), 1
        next_generation = self.context_.next_generation()
        assert next_generation == 1
        assert asyncio.run(self.change(HERE)).moved == 8

    @property
    def current(self) -> CurrentPlan:
        found = self.store.current(TENANCY)
        assert found is not None
        return found

    def region_change(self, links: tuple[Link, ...]) -> RegionChange:
        """A change from what devices hold and what the store says, as an adapter begins."""
        context: Context = self.context_
        state_now = RegionState(self.held(), self.current.up.links, self.current.generation)
        macs = cast(Any, self.fleet).channels.macs()
        return RegionChange(
            context, self.plan, self.current, state_now, [*electrical(), *links], [REGION], macs
        )

    async def change(self, links: tuple[Link, ...]) -> RegionChanged:
        change = self.region_change(links)

        async def moment() -> None:
            with self.points.point("job", "begins"):
                pass

        try:
            await change.prepare()
            return await change.carry_out(moment)
        except TestbedError:
            await change.retreat()
            raise

    def lit(self) -> set[HostPort]:
        return {
            HostPort(h, p)
            for h, host in self.fleet.all.items()
            for p, other in host.carrier.items()
            if other
        }

    def sound(self) -> None:
        """Every host has confirmed routes, which use ports with light or at the packet switch; the
        store knows one of them.
        """
        for name, host in self.fleet.all.items():
            assert not host.pending and host.active is not None
            at = {
                port.interface: HostPort(name, number)
                for number, port in self.lab.hosts[name].ports.items()
            }
            used = {
                at[rule.interface] for rule in host.staged[host.active] if isinstance(rule, Route)
            }
            assert {p for p in used if p.number < 3} <= self.lit(), f"{name} sends into the dark"
            assert (
                len(
                    {
                        r.destination
                        for r in host.staged[host.active]
                        if isinstance(r, Route) and r.lane == 0
                    }
                )
                == 3
            )
        optical = [one for one in self.current.up.links if not self.lab.electrical(one)]
        assert {port for one in optical for port in (one.a, one.b)} <= self.lit(), (
            "recorded, and dark"
        )

    def dies(self) -> None:
        """The adapter is gone: what nobody confirms is taken back, what is armed expires."""
        for host in self.fleet.all.values():
            if host.pending:
                host.active, host.previous, host.pending = host.pending_to, None, False
            host.armed = None


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[RegionBench]:
    with Store(tmp_path / "testbed.sqlite3", durable=False) as store:
        yield RegionBench(store, tmp_path)


def test_a_turn_puts_traffic_on_the_packet_switch_before_light_moves_and_confirms_once_circuits_answer(
    bench: RegionBench,
) -> None:
    bench.points.names.clear()
    assert asyncio.run(bench.change(OTHER)).moved == 10
    bench.sound()
    drained, new = bench.current.generation - 1, bench.current.generation
    assert bench.points.names == [
        *(
            "hosts: stage",
            "hosts: arm",
            "job: begins",
            f"hosts: commit {drained}",
            "ocs1: apply",
            "ocs2: apply",
        ),
        *("hosts: probe", f"hosts: confirm {new}"),
    ]
    assert set(bench.generations().values()) == {new}


POINTS = ("stage", "arm", "begins", "commit", "ocs1", "ocs2", "probe", "confirm")


WRONG = ("refused", "lost", "killed before", "killed after")
OF_DEVICES = ("reboot-keep", "reboot-lose", "half")
CASES = [
    (point, how)
    for point in POINTS
    for how in (*WRONG, *(OF_DEVICES if point.startswith("ocs") else ()))
]


@pytest.mark.parametrize(("point", "how"), CASES)
def test_whatever_goes_wrong_routes_are_confirmed_and_lit_and_the_next_turn_goes_on(
    bench: RegionBench, point: str, how: str
) -> None:
    at = POINTS.index(point)

    async def go() -> None:
        bench.points.fail[len(bench.points.names) + 1 + at] = how
        if how.startswith("killed"):
            with pytest.raises(Killed):
                await bench.change(OTHER)
            bench.dies()
        else:
            with pytest.raises(TestbedError):
                await bench.change(OTHER)
        await asyncio.sleep(0.25 if how.startswith("reboot") else 0)

    asyncio.run(go())
    # circuits that were to stay are gone, too, and routes over them until the next turn
    if how != "reboot-lose":
        bench.sound()
    asyncio.run(bench.change(OTHER if at % 2 else HERE))
    bench.sound()
    assert len(set(bench.generations().values())) == 1


def test_a_turn_whose_moment_does_not_come_changes_nothing(bench: RegionBench) -> None:
    before = bench.generations(), bench.held(), bench.current.generation

    async def never() -> None:
        raise Abandoned("the job has ended")

    async def go() -> None:
        change = bench.region_change(OTHER)
        await change.prepare()
        with pytest.raises(Abandoned):
            await change.carry_out(never)
        await change.retreat()

    asyncio.run(go())
    assert (bench.generations(), bench.held(), bench.current.generation) == before
    assert not any(host.armed for host in bench.fleet.all.values())
    bench.sound()


def adapter_of(bench: RegionBench, heard: list[str]) -> Adapter:
    """An adapter whose events are kept in `heard`, and whose devices leave two ports of OTHER dark."""
    adapter = Adapter(
        bench.context_,
        bench.plan,
        Adapt(1),
        bench.current,
        (REGION,),
        cast(Any, SimpleNamespace(now=lambda **state: None)),
        lambda event: heard.append(str(event["event"])),
        AdaptOptions(),
    )
    adapter.members = HOSTS
    bench.fleet.dark = {HostPort("gpu01", 1), HostPort("gpu04", 1)}
    return adapter


def test_a_port_at_which_a_change_found_no_light_gets_no_circuit_any_more(
    bench: RegionBench,
) -> None:
    """Or the next change would be over it again, and the third one would end the adapter."""
    heard: list[str] = []
    adapter = adapter_of(bench, heard)
    with pytest.raises(NotVerified):
        asyncio.run(adapter._carry_out(bench.region_change(OTHER), at_once))
    assert (adapter.out, heard) == (bench.fleet.dark, ["mended"])
    bench.sound()


def test_a_host_that_cannot_be_asked_for_dark_ports_does_not_hide_why_a_change_failed(
    bench: RegionBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    adapter = adapter_of(bench, [])

    async def silent(*_: object) -> frozenset[Link]:
        raise Unreachable("gpu02 does not answer")

    monkeypatch.setattr(adapter, "_dark", silent)
    with pytest.raises(NotVerified, match="hosts are"):
        asyncio.run(adapter._carry_out(bench.region_change(OTHER), at_once))
    bench.sound()


def test_a_moment_is_not_waited_for_while_the_job_waits_for_a_circuit_without_light() -> None:
    class Exchanging:
        """Agents whose job stays in one exchange."""

        async def ask(self, requests: dict[str, Any], *more: object) -> dict[str, Any]:
            return {rank: {"state": "running", "step": 7, "rows": []} for rank in requests}

        def offset_ns(self, rank: str) -> int:
            return 0

    gates = Gates(cast(Any, Exchanging()), "job", ("gpu01",))

    async def dark() -> tuple[Link, ...]:
        return HERE[:1]

    with pytest.raises(Abandoned, match="without light"):
        asyncio.run(gates.moment(4, lambda late_s: True, lambda: False, dark))


@pytest.mark.parametrize("moved", [False, True], ids=["before it began", "after it"])
def test_a_host_that_lost_its_routes_does_not_say_which_the_others_run(
    bench: RegionBench, moved: bool
) -> None:
    """Its agent died while routes were staged, and another began without any."""

    async def go() -> int:
        change, began = bench.region_change(OTHER), bench.current.generation

        async def moment() -> None: ...

        await change.prepare()
        if moved:
            await change.carry_out(moment)
        bench.fleet.all["gpu03"].active = None
        await change.retreat()
        return change.generation if moved else began

    wanted = asyncio.run(go())
    assert bench.current.generation == wanted
    assert set(bench.generations().values()) == {wanted, None}
