"""After a failure all hosts that answer end on one generation, and the words say which."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import cast

from optics import TestbedError, Unreachable
from orchestrator.change.dark import Hold
from orchestrator.change.move import Move
from orchestrator.hosts import Hello
from tests.hosts.parts import OwnParts

OLD, DRAIN, HOLD, NEW = 3, 4, 5, 6


class Committers(OwnParts):
    """Hosts that keep a generation each; those in `ended` do not answer."""

    def __init__(self, hellos: Mapping[str, Hello], ended: Collection[str] = ()) -> None:
        self.hellos, self.ended = dict(hellos), ended

    async def connect(
        self, names: Collection[str] | None = None
    ) -> Mapping[str, Hello | TestbedError]:
        chosen = self.hellos if names is None else names
        return {
            n: Unreachable(f"{n}: no route") if n in self.ended else self.hellos[n] for n in chosen
        }

    async def disarm(self, names: Collection[str]) -> None:
        assert not set(names) & set(self.ended)

    async def confirm(self, generation: int, names: Collection[str]) -> None:
        for name in names:
            assert self.hellos[name].active == generation
            self.hellos[name] = replace(self.hellos[name], pending_s=None, pending_to=None)

    async def revert(self, names: Collection[str]) -> None:
        for name in names:
            self.hellos[name] = replace(
                self.hellos[name],
                active=self.hellos[name].pending_to,
                pending_s=None,
                pending_to=None,
            )

    def active(self) -> set[int | None]:
        return {h.active for n, h in self.hellos.items() if n not in self.ended}


def hello(host: str, active: int, pending_to: int | None = None) -> Hello:
    return Hello(
        host,
        True,
        active=active,
        pending_s=None if pending_to is None else 9.0,
        pending_to=pending_to,
    )


def retreat(hosts: Committers, drained: int | None, hold: Hold | None = None) -> str:
    plan = SimpleNamespace(transition=SimpleNamespace(revert_after_s=60.0))
    change = SimpleNamespace(
        hosts=hosts, asked=set(hosts.hellos), generation=NEW, drained=drained, hold=hold, plan=plan
    )
    return asyncio.run(Move.retreat(cast(Move, change)))


def test_hosts_that_committed_go_back_to_the_drained_routes() -> None:
    hosts = Committers({"a": hello("a", NEW, DRAIN), "b": hello("b", DRAIN)})
    assert retreat(hosts, DRAIN) == "on the routes over the circuits that stayed"
    assert hosts.active() == {DRAIN}


def test_a_drain_that_stopped_half_way_is_taken_back() -> None:
    hosts = Committers({"a": hello("a", DRAIN, OLD), "b": hello("b", OLD)})
    assert retreat(hosts, DRAIN) == "back on the routes they had"
    assert hosts.active() == {OLD}


def test_hosts_that_hold_go_back_at_once() -> None:
    hosts = Committers(
        {"a": hello("a", HOLD, OLD), "b": hello("b", OLD), "c": hello("c", NEW, OLD)}
    )
    assert retreat(hosts, None, Hold(HOLD, {}, 0.05)) == "back on the routes they had"
    assert hosts.active() == {OLD}


def test_hosts_that_hold_after_a_drain_go_back_to_the_drained_routes() -> None:
    hosts = Committers({"a": hello("a", HOLD, DRAIN), "b": hello("b", DRAIN)})
    assert (
        retreat(hosts, DRAIN, Hold(HOLD, {}, 0.05)) == "on the routes over the circuits that stayed"
    )
    assert hosts.active() == {DRAIN}


def test_once_one_host_was_told_to_keep_the_new_routes_the_others_follow() -> None:
    hosts = Committers({"a": hello("a", NEW), "b": hello("b", NEW, OLD)})
    assert retreat(hosts, None) == "on the new routes"
    assert hosts.active() == {NEW} and hosts.hellos["b"].pending_s is None


def test_a_host_that_does_not_answer_keeps_nobody_else_from_going_back() -> None:
    hosts = Committers({"a": hello("a", NEW, OLD), "b": hello("b", NEW, OLD)}, ended={"b"})
    text = retreat(hosts, None)
    assert hosts.active() == {OLD}
    assert "b: no route" in text and "within 60 s" in text
