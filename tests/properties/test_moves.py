"""The order of a robot's moves, against every other order there is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import permutations

from hypothesis import given
from hypothesis import settings as effort
from hypothesis import strategies as st

from optics import Change, CrossConnect, Port, Setting, clash
from orchestrator.fabric.move_order import dark_moves, dark_port_s, in_order, ordered
from orchestrator.fabric.transition import transition
from tests.change.fibrelab import SWITCH, hosts_yml, read
from tests.change.test_slow_devices import ROBOT


def connect(into: int, out: int) -> CrossConnect:
    return CrossConnect(Port("rome1", f"E{into}"), Port("rome1", f"W{out}"))


@st.composite
def changes(draw: st.DrawFn, size: int = 4, most: int = 7) -> Change:
    """From one map of a small panel to another; what both hold is not in it."""
    old, new = (
        {connect(into, outs[into]) for into in draw(st.sets(st.integers(0, size - 1)))}
        for outs in (draw(st.permutations(range(size))), draw(st.permutations(range(size))))
    )
    moves = [*sorted(old - new), *sorted(new - old)][:most]
    return Change("rome1", frozenset(moves) & (old - new), frozenset(moves) & (new - old))


def possible(order: tuple[Setting, ...], change: Change) -> bool:
    """Every port is free when it is used."""
    held = set(change.remove)
    for setting in order:
        if setting in change.remove:
            held.discard(setting)
        elif any(clash(setting, other) for other in held):
            return False
        else:
            held.add(setting)
    return True


@given(changes(most=6))
@effort(max_examples=150)
def test_no_other_order_leaves_ports_dark_for_less(change: Change) -> None:
    order = ordered(change)
    assert (
        set(order) == change.remove | change.add
        and len(order) == len(set(order))
        and possible(order, change)
    )
    best = min(
        dark_moves(other, change) for other in permutations(order) if possible(other, change)
    )
    assert dark_moves(order, change) == best


def test_what_frees_ports_for_two_is_broken_last() -> None:
    old, new = (connect(0, 2), connect(1, 1), connect(2, 0)), (connect(0, 0), connect(1, 2))
    change = Change("rome1", frozenset(old), frozenset(new))
    assert dark_moves(ordered(change), change) == 11


def chains(order: tuple[Setting, ...], change: Change) -> list[tuple[Setting, ...]]:
    """The order cut where nothing hangs together any more."""
    found: list[list[Setting]] = []
    for setting in order:
        near = [chain for chain in found if any(clash(setting, other) for other in chain)]
        found = [
            *(chain for chain in found if chain not in near),
            [s for chain in near for s in chain] + [setting],
        ]
    return [
        tuple(s for s in order if s in chain)
        for chain in sorted(found, key=lambda chain: min(map(order.index, chain)))
    ]


def joined(
    steps: Iterable[tuple[Setting, ...]],
    carried: Mapping[Setting, tuple[str, str]],
    stay: list[tuple[str, str]],
) -> int:
    """Pairs of hosts that have a way while a chain is worked on, over what stays and what is not
    touched yet, times moves.
    """
    left, total = dict(carried), 0
    for chain in steps:
        left = {s: step for s, step in left.items() if s not in chain}
        paths = {
            a: {b for x, b in [*stay, *left.values()] if x == a} for a, _ in [*stay, *left.values()]
        }
        for _ in range(4):
            paths = {
                host: found.union(*(paths.get(b, set()) for b in found))
                for host, found in paths.items()
            }
        total += len(chain) * sum(len(found - {host}) for host, found in paths.items())
    return total


@given(changes(size=6, most=12), st.sets(st.tuples(st.integers(0, 5), st.integers(0, 5))))
@effort(max_examples=100)
def test_no_other_order_of_the_chains_keeps_hosts_joined_longer(
    change: Change, links: set[tuple[int, int]]
) -> None:
    carried = {s: (f"h{s.ingress.label[1:]}", f"h{s.egress.label[1:]}") for s in change.remove}
    stay = [(f"h{a}", f"h{b}") for a, b in links if a != b]
    order = ordered(change, carried, stay)
    assert possible(order, change) and dark_moves(order, change) == dark_moves(
        ordered(change), change
    )
    steps = chains(order, change)
    assert [s for chain in steps for s in chain] == list(order), "a chain is done without a pause"
    kinds = [
        [c for c in steps if change.remove.isdisjoint(c)],
        [],
        [c for c in steps if change.add.isdisjoint(c)],
    ]
    kinds[1] = [c for c in steps if c not in kinds[0] and c not in kinds[2]]
    assert steps == [c for kind in kinds for c in kind], (
        "what needs nothing freed first, what is only broken last"
    )
    best = max(
        joined([*kinds[0], *swaps, *removed], carried, stay)
        for swaps in permutations(kinds[1])
        for removed in permutations(kinds[2])
    )
    assert joined(steps, carried, stay) == best


def test_chains_that_cut_nobody_off_come_first() -> None:
    # Three swaps of two circuits each; the hosts of the middle one are joined by nothing else.
    pairs = [(1, 2), (3, 4), (5, 6)]
    old = {connect(a, b) for a, b in pairs}
    new = {connect(a, b + 20) for a, b in pairs}
    change = Change("rome1", frozenset(old), frozenset(new))
    carried = {connect(1, 2): ("a", "b"), connect(3, 4): ("c", "d"), connect(5, 6): ("a", "b")}
    order = ordered(change, carried, [("a", "b")])
    assert [order.index(connect(*pair)) for pair in pairs] == [0, 4, 2]


def test_a_chain_that_everybody_can_spare_comes_first_among_many_too() -> None:
    pairs = [(k, k + 50) for k in range(1, 13)]
    change = Change(
        "rome1",
        frozenset(connect(*p) for p in pairs),
        frozenset(connect(a, b + 50) for a, b in pairs),
    )
    # a ring of 11 and one more link
    carried = {connect(a, b): (f"h{a}", f"h{a % 11 + 1}") for a, b in pairs}
    order = ordered(change, carried, [("h1", "h2")])
    assert order[0] == connect(1, 51) and set(order) == change.remove | change.add


def test_ports_that_stay_dark_and_circuits_without_light_are_not_counted() -> None:
    old, new, other = connect(1, 2), connect(1, 3), connect(5, 6)
    change = Change("rome1", frozenset({old, other}), frozenset({new}))
    assert ordered(change) == (old, new, other) and dark_moves(ordered(change), change) == 2
    assert dark_moves(ordered(change), change, lit={other}) == 0


def test_only_serial_devices_are_given_an_order_and_it_is_no_part_of_the_change() -> None:
    fibres = [
        f'name: f{k}, host: gpu0{k}, port: 1, device: rome1, enters: "E{k}", leaves: "W{k}"'
        for k in (1, 2, 3)
    ]
    fibres += [
        f'name: g{k}, host: gpu0{k}, port: 2, device: ocs1, enters: "{k}", leaves: "{k + 9}"'
        for k in (1, 2, 3)
    ]
    lab = read(hosts_yml(3, 2), {"rome1": ROBOT, "ocs1": SWITCH}, fibres)
    light = {k: CrossConnect(Port("ocs1", "1"), Port("ocs1", str(k))) for k in (10, 11)}
    observed = {"rome1": frozenset({connect(1, 2), connect(2, 1)}), "ocs1": frozenset({light[10]})}
    wanted = {"rome1": frozenset({connect(1, 3), connect(3, 1)}), "ocs1": frozenset({light[11]})}
    plain = transition(observed, wanted, observed)
    change = in_order(plain, {}, observed, lab)
    assert change == plain and change.changes["ocs1"].order == ()
    assert change.changes["rome1"].order == (
        connect(1, 2),
        connect(1, 3),
        connect(2, 1),
        connect(3, 1),
    )
    assert dark_port_s(change.changes["rome1"], lab) == 4 * ROBOT.settle_s
