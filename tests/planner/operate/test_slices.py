"""Slices after failures: counts against exhaustive enumeration by code that shares nothing with the
planner's.
"""

from __future__ import annotations

from fractions import Fraction
from itertools import combinations, permutations, product
from math import prod

import pytest

from planner.model.demand import Infeasible
from planner.operate.slices import Machine, Slice, choices, failed_blocks, formed, probability

Sides = tuple[int, ...]


def boxes(sides: Sides, block: Sides, wanted: Sides) -> set[frozenset[Sides]]:
    """Every set of hosts that stand as the slice on the torus, beginning at a block's corner,
    however it is turned.
    """
    found = set()
    for rotated in set(permutations(wanted)):
        if any(
            side % part or side > whole
            for side, part, whole in zip(rotated, block, sides, strict=True)
        ):
            continue
        for corner in product(
            *(range(0, whole, part) for whole, part in zip(sides, block, strict=True))
        ):
            steps = product(*map(range, rotated))
            found.add(
                frozenset(
                    tuple((c + s) % w for c, s, w in zip(corner, step, sides, strict=True))
                    for step in steps
                )
            )
    return found


def exhaustive(
    sides: Sides, block: Sides, wanted: Sides, failures: int, reconfigurable: bool
) -> Fraction:
    """The share of all sets of failed hosts that leave a slice, each set looked at."""
    hosts = list(product(*map(range, sides)))
    corner = {
        host: tuple(at // part for at, part in zip(host, block, strict=True)) for host in hosts
    }
    state = boxes(sides, block, wanted)
    good = every = 0
    for failed in combinations(hosts, failures):
        out = {corner[host] for host in failed}
        whole = {host for host in hosts if corner[host] not in out}
        every += 1
        good += len(whole) >= prod(wanted) if reconfigurable else any(box <= whole for box in state)
    return Fraction(good, every)


CASES = [
    ((3, 4), (1, 1), (2, 2)),
    ((3, 4), (1, 1), (2, 4)),
    ((3, 4), (1, 2), (1, 4)),
    ((4, 4), (2, 2), (2, 4)),
    ((12,), (1,), (5,)),
    ((12,), (3,), (6,)),
    ((2, 2, 4), (1, 1, 2), (2, 2, 2)),
    ((2, 3, 2), (1, 1, 1), (1, 2, 2)),
]


@pytest.mark.parametrize("reconfigurable", [True, False])
@pytest.mark.parametrize(("sides", "block", "wanted"), CASES)
def test_the_probability_of_a_slice_is_the_share_of_all_sets_of_failures(
    sides: Sides, block: Sides, wanted: Sides, reconfigurable: bool
) -> None:
    form = Slice(Machine(sides, block), wanted)
    for failures in range(6):
        counted = probability(form, failures, reconfigurable=reconfigurable)
        assert counted == exhaustive(sides, block, wanted, failures, reconfigurable), failures


@pytest.mark.parametrize(("sides", "block", "wanted"), CASES)
def test_the_hosts_named_for_a_slice_are_whole_and_none_are_named_where_none_is_left(
    sides: Sides, block: Sides, wanted: Sides
) -> None:
    machine = Machine(sides, block)
    form = Slice(machine, wanted)
    names = list(product(*map(range, sides)))
    state = boxes(sides, block, wanted)
    for failed in combinations(range(machine.hosts), 3):
        out = failed_blocks(machine, failed)
        left = [
            box
            for box in state
            if not any(machine.block_of(names.index(host)) in out for host in box)
        ]
        assert choices(form, failed, reconfigurable=False) == len(left)
        chosen = formed(form, failed, reconfigurable=False)
        assert bool(chosen) == bool(left) and (
            not chosen or frozenset(names[host] for host in chosen) in left
        )
        anywhere = formed(form, failed, reconfigurable=True)
        assert bool(anywhere) == bool(choices(form, failed, reconfigurable=True))
        assert not {machine.block_of(host) for host in anywhere} & out
        assert not anywhere or len(anywhere) == prod(wanted)


def test_any_healthy_blocks_of_a_tpu_v4_outlive_blocks_that_must_stand_together() -> None:
    machine = Machine((16, 16, 16), (4, 4, 4))
    half = Slice(machine, (8, 16, 16))
    assert (machine.blocks, half.size, len(half.places)) == (64, 32, 12)
    assert [probability(half, k, reconfigurable=True) for k in (0, 1, 4)] == [1, 1, 1]
    assert [probability(half, k, reconfigurable=False) for k in (0, 1)] == [1, 1]
    assert 0.55 < probability(half, 4, reconfigurable=False) < 0.56


@pytest.mark.parametrize(
    ("sides", "block", "wanted", "text"),
    [
        ((3, 4), (2, 2), (2, 2), "blocks of 2x2 do not fill a grid of 3x4"),
        ((3, 4), (1,), (2, 2), "blocks of 1 do not fill a grid of 3x4"),
        ((4, 4), (2, 2), (3, 2), "a slice of 3x2 is not made of whole blocks of 2x2"),
        ((4, 4), (1, 1), (2, 2, 2), "a slice of 2x2x2 is not made of whole blocks of 1x1"),
        ((4, 4), (1, 1), (4, 5), "a slice of 4x5 has 20 hosts, the machine has 16 hosts of 4x4"),
    ],
)
def test_a_slice_that_no_machine_has_is_refused(
    sides: Sides, block: Sides, wanted: Sides, text: str
) -> None:
    with pytest.raises(Infeasible, match=text):
        Slice(Machine(sides, block), wanted)


def test_a_count_that_would_not_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("planner.operate.slices.WORK", 200)
    with pytest.raises(Infeasible, match="takes too long"):
        probability(Slice(Machine((6, 6), (1, 1)), (2, 2)), 12, reconfigurable=False)
    with pytest.raises(Infeasible, match="13 failures among 12 hosts"):
        probability(Slice(Machine((3, 4), (1, 1)), (2, 2)), 13, reconfigurable=True)
