"""The slots of a schedule on one host, with the time, the carriers and the commits in the test's
hands.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any

import pytest

from agent.shapes import Link
from agent.slots.clock import EDGES, SlotClock
from agent.slots.machine import SlotMachine

MS = 1_000_000
PERIOD, DARK_WINDOW, GUARD, LATE = 500 * MS, 50 * MS, 20 * MS, 100 * MS
BOTH = [{"falling": ["a"], "rising": ["a"]} for _ in range(3)]
"""Three slots that all use the port `a`, as in a round robin of hosts with one port."""


class Host:
    """A host of one schedule: `done` is what it committed, as (ms, words)."""

    def __init__(
        self,
        slots: list[Any] = BOTH,
        *,
        lease: bool = True,
        follow: str = "light",
        kind: str = "clock",
        late_ns: int = LATE,
    ) -> None:
        self.now_ns = 1000 * MS
        self.links: dict[str, Link] = {n: {"carrier": True, "ups": 1, "downs": 0} for n in "abc"}
        self.timers: list[tuple[int, int, Callable[[], object]]] = []
        self.cancelled: set[int] = set()
        self.done: list[tuple[int, str]] = []
        self.events: list[dict[str, object]] = []
        self.held, self.handles = False, 0
        times = {
            "guard_ns": GUARD,
            "dark_window_ns": DARK_WINDOW,
            "late_ns": late_ns,
            "follow": follow,
            "kind": kind,
        }
        self.machine = SlotMachine(self, slots, times, SlotClock(PERIOD), 0)
        if lease:
            self.tick(0, ends_ms=450, lease_ms=10**9)

    def now(self) -> int:
        return self.now_ns

    def link(self, interface: str) -> Link:
        return self.links[interface]

    def commit(self, slot: int) -> None:
        self.done.append((self.now_ns // MS - 1000, f"slot {slot}"))
        self.held = False

    def hold(self, slot: int, lease_ns: int) -> None:
        assert lease_ns > 0, "a hold without a lease"
        self.done.append((self.now_ns // MS - 1000, f"hold {slot}"))
        self.held = True

    def timer(self, at_ns: int, function: Callable[[], object]) -> int:
        self.handles += 1
        heapq.heappush(self.timers, (at_ns, self.handles, function))
        return self.handles

    def cancel(self, handle: int) -> None:
        self.cancelled.add(handle)

    def changed(self, **fields: object) -> None:
        self.events.append(fields)

    # -- what the test does

    def tick(self, count: int, *, ends_ms: int | None = None, lease_ms: int = 10**9) -> None:
        end = None if ends_ms is None else self.now_ns + ends_ms * MS
        self.machine.tick(count, end, self.now_ns + lease_ms * MS)

    def until(self, ms: float) -> None:
        """Let the time pass, to so many ms after the beginning."""
        to = int((1000 + ms) * MS)
        while self.timers and self.timers[0][0] <= to:
            at, handle, function = heapq.heappop(self.timers)
            if handle in self.cancelled:
                self.cancelled.discard(handle)
            else:
                self.now_ns = max(self.now_ns, at)
                function()
        self.now_ns = to

    def dark(self, *ports: str) -> None:
        for port in ports:
            self.links[port]["carrier"] = False
            self.links[port]["downs"] += 1
        self.machine.carrier()

    def light(self, *ports: str) -> None:
        for port in ports:
            self.links[port]["carrier"] = True
            self.links[port]["ups"] += 1
        self.machine.carrier()

    def at_change(self, at_ms: float, *ports: str, dark_window_ms: float = 50) -> None:
        """The light of `ports` moves at this time."""
        self.until(at_ms)
        self.dark(*ports or "a")
        self.until(at_ms + dark_window_ms)
        self.light(*ports or "a")


def test_a_slot_is_held_before_its_end_and_the_next_is_committed_when_its_light_comes() -> None:
    host = Host()
    host.at_change(450)
    host.at_change(950)
    assert host.done == [
        (0, "slot 0"),
        (430, "hold 0"),
        (500, "slot 1"),
        (930, "hold 1"),
        (1000, "slot 2"),
    ]
    assert [e for e in host.events if e["why"] == "light"][-1]["lit_ns"] == 450 * MS


def test_the_expected_end_follows_the_carriers_however_inexact_the_first_word_was() -> None:
    host = Host()
    host.at_change(441)
    for k in range(1, 6):
        host.at_change(441 + 500 * k)
    assert [at for at, what in host.done if what.startswith("hold")] == [
        430,
        *(921 + 500 * k for k in range(5)),
    ]
    assert host.machine.end_ns() == (1000 + 441 + 3000) * MS


def test_turns_that_were_late_do_not_make_the_host_expect_late_ones() -> None:
    host = Host()
    for k, late in enumerate((0, 40, 0, 60, 30, 30)):
        host.at_change(450 + 500 * k + late)
    assert host.machine.end_ns() == (1000 + 450 + 3000) * MS
    assert [e["error_ns"] for e in host.events if e["why"] == "light"][-1] == 30 * MS


def test_without_a_turn_the_host_goes_back_to_its_slot_and_expects_the_end_a_period_later() -> None:
    host = Host()
    host.until(800)
    assert host.done == [(0, "slot 0"), (430, "hold 0"), (600, "slot 0")]
    host.tick(0, ends_ms=155)  # late by 5 ms
    host.at_change(950)
    assert host.done[3:] == [(800, "slot 0"), (930, "hold 0"), (1000, "slot 1")]
    assert host.machine.end_ns() == (1000 + 1450) * MS


def test_who_turned_has_died_so_the_host_stays_in_the_slot_whose_light_is_there() -> None:
    host = Host(lease=False)
    host.tick(0, ends_ms=450, lease_ms=700)
    host.at_change(450)
    host.until(60_000)
    assert host.done[-1] == (500, "slot 1") and not host.held
    assert host.machine.state == "free" and host.machine.end_ns() is None


def test_light_that_never_comes_ends_the_hold_in_a_slot_and_light_that_comes_later_is_still_the_next_slots() -> (
    None
):
    host = Host()
    host.until(450)
    host.dark("a")
    host.until(700)
    assert host.done[2:] == [(600, "slot 0")] and not host.held and host.machine.state == "free"
    host.light("a")
    assert host.done[3:] == [(700, "slot 1")] and host.machine.count == 1


def test_where_more_of_the_next_slots_light_is_there_the_host_goes_on_to_it() -> None:
    host = Host([{"falling": ["a", "b", "c"], "rising": ["a", "b", "c"]}] * 2)
    host.until(450)
    host.dark("a", "b", "c")
    host.light("a", "b")
    host.until(700)
    assert host.done[-1] == (600, "slot 1") and host.machine.state == "free"
    host.tick(1)
    assert host.machine.state == "day"


def test_a_host_whose_ports_do_not_change_goes_by_what_it_is_told_and_never_ahead_of_it() -> None:
    host = Host([{"falling": [], "rising": []}] * 3)
    host.until(505)
    host.tick(1, ends_ms=445)
    host.until(1100)  # nobody turned
    assert host.done == [
        (0, "slot 0"),
        (430, "hold 0"),
        (505, "slot 1"),
        (930, "hold 1"),
        (1100, "slot 1"),
    ]


def test_an_idle_host_holds_for_the_night_and_is_in_the_slot_by_its_own_clock() -> None:
    host = Host(
        [
            {"falling": ["a"], "rising": ["a"]},
            {"falling": ["a"], "rising": ["a"]},
            {"falling": [], "rising": []},
        ]
    )
    host.machine.count = 1
    host.tick(1, ends_ms=450)
    host.until(450)
    host.dark("a")
    host.until(520)
    assert host.done[-1] == (500, "slot 2")


def test_the_host_takes_the_slot_that_it_is_told_where_it_missed_some() -> None:
    host = Host()
    host.until(100)
    host.tick(5, ends_ms=350)
    assert host.done[-1] == (100, "slot 2") and host.machine.count == 5


def test_light_of_the_next_slot_is_not_announced_away_by_a_message_that_is_faster() -> None:
    host = Host()
    host.until(450)
    host.dark("a")
    host.until(490)
    host.tick(1, ends_ms=460)
    assert host.done[-1] == (430, "hold 0")
    host.light("a")
    assert host.done[-1] == (490, "slot 1")


def test_two_changes_of_a_carrier_in_one_event_are_the_dark_and_the_light() -> None:
    host = Host()
    host.until(450)
    host.links["a"].update(downs=1, ups=2)
    host.machine.carrier()
    assert host.done[-1] == (450, "slot 1")


def test_an_end_that_comes_unexpected_is_held_at_once() -> None:
    host = Host()
    host.at_change(300)
    assert host.done == [(0, "slot 0"), (300, "hold 0"), (350, "slot 1")]
    assert host.machine.end_ns() == (1000 + 800) * MS  # too far from what was expected: a new phase


def test_a_port_that_stays_dark_does_not_keep_the_others_from_following() -> None:
    host = Host([{"falling": ["a", "b"], "rising": ["a", "b"]}] * 3)
    host.until(100)
    host.dark("b")
    host.until(400)
    assert not host.held
    host.tick(0, ends_ms=50)
    host.until(450)
    host.dark("a")
    host.until(500)
    host.light("a")
    host.tick(1, ends_ms=450)
    host.until(700)
    host.tick(1, ends_ms=250)
    assert host.done[-1][1] == "slot 1" and host.machine.state == "day"


def test_by_the_clock_the_next_slot_begins_whether_or_not_its_light_is_seen() -> None:
    host = Host(follow="clock")
    host.until(1010)
    assert host.done == [
        (0, "slot 0"),
        (430, "hold 0"),
        (500, "slot 1"),
        (930, "hold 1"),
        (1000, "slot 2"),
    ]


def test_by_the_jobs_phases_nothing_is_held_before_it_is_asked_for() -> None:
    host = Host(kind="phase")
    host.until(5000)
    assert host.done == [(0, "slot 0")]
    host.machine.change_slot()
    host.dark("a")
    host.until(5050)
    host.light("a")
    assert host.done[1:] == [(5000, "hold 0"), (5050, "slot 1")]


def test_stopping_during_a_hold_leaves_the_slots_routes() -> None:
    host = Host()
    host.until(440)
    host.machine.stop()
    host.until(10_000)
    assert host.done[-1] == (440, "slot 0") and host.machine.state == "free"


def test_stopping_in_the_dark_leaves_the_routes_of_the_slot_whose_light_is_there() -> None:
    host = Host()
    host.until(450)
    host.dark("a")
    host.machine.stop()
    assert host.done[-1] == (450, "slot 0") and not host.held
    host = Host([{"falling": ["a", "b"], "rising": ["a", "b"]}] * 3)
    host.until(450)
    host.dark("a", "b")
    host.light("a")
    host.machine.stop()
    assert host.done[-1] == (450, "slot 1") and not host.held


def test_a_hold_is_bounded_whatever_lateness_a_schedule_allows() -> None:
    host = Host(late_ns=86400 * 1000 * MS)
    host.until(450)
    host.dark("a")
    host.until(11_000)
    assert host.done[-1] == (450 + 50 + 10_000, "slot 0") and not host.held


@pytest.mark.parametrize("at_ms", range(0, 1500, 35))
def test_whenever_the_turns_end_no_host_is_left_in_a_hold_two_slots_later(at_ms: int) -> None:
    host, dead = Host(lease=False), False
    host.tick(0, ends_ms=450, lease_ms=1600)
    for at, what in ((450, "dark"), (500, "light"), (950, "dark"), (1000, "light"), (1450, "dark")):
        if at > at_ms:
            dead = True
            break
        host.until(at)
        host.dark("a") if what == "dark" else host.light("a")
    assert dead or at_ms >= 1450
    host.until(at_ms + 1000)
    assert not host.held and host.done[-1][1].startswith("slot")
    host.until(100_000)
    assert not host.held and host.machine.state == "free"


def test_one_turn_that_is_later_than_any_limit_does_not_move_what_is_expected_next() -> None:
    host = Host()
    host.at_change(450)
    host.at_change(950 + 190)  # a host that waits for a processor sees it as late, too
    host.tick(2, ends_ms=300)
    assert host.machine.end_ns() == (1000 + 1450) * MS
    host.at_change(1450)
    assert host.done[-2:] == [(1430, "hold 2"), (1500, "slot 0")]


def test_while_nobody_turns_a_carrier_that_comes_back_moves_no_host_to_another_slot() -> None:
    host = Host(lease=False)
    host.dark("a")
    host.light("a")
    assert host.done == [], "a loaded schedule changes nothing before it is sent a slot"
    host.tick(0, ends_ms=450, lease_ms=300)
    host.until(1000)
    host.dark("a")
    host.until(5000)
    host.light("a")
    host.until(60_000)
    assert host.done == [(0, "slot 0")] and host.machine.count == 0
    host.tick(0, ends_ms=450)
    host.until(60_450)
    host.dark("a")
    host.until(60_500)
    host.light("a")
    assert host.done[-2:] == [(60_430, "hold 0"), (60_500, "slot 1")]


def test_timers_that_have_fired_are_not_cancelled_again() -> None:
    host = Host()
    for k in range(20):
        host.at_change(450 + 500 * k)
    host.tick(20)
    waiting = {handle for _, handle, _ in host.timers}
    assert host.cancelled <= waiting, "the daemon would keep their numbers for ever"


def test_edges_are_forgotten_so_that_clocks_that_drift_apart_stay_locked() -> None:
    clock = SlotClock(PERIOD)
    for n in range(200):
        clock.edge(n, n * (PERIOD + 50_000), LATE)  # 100 parts per million fast
    assert abs(clock.end_ns(200) - 200 * (PERIOD + 50_000)) <= (EDGES + 1) * 50_000
