"""The step between sites, in one process: four ranks in two sites that train a small model."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from workloads.training import models
from workloads.training.momentum import step
from workloads.training.outer import Outer, taking_part

SITES = ((0, 1), (2, 3))


def trained(
    sites: tuple[tuple[int, ...], ...], every: int, lr: float, momentum: float, count: int
) -> list[list[Any]]:
    """The weights of each site after so many iterations. every: 0: no averages between sites."""
    modules = [models.model("mlp", torch, 1, 32) for _ in sites]
    weights = [list(module.parameters()) for module in modules]
    momenta = [[torch.zeros_like(each) for each in mine] for mine in weights]
    outers = [
        Outer(torch, mine, [torch.zeros_like(each) for each in mine], lr, momentum)
        for mine in weights
    ]
    data = [models.Data("mlp", torch, 1, rank, 4, 8) for rank in range(4)]
    for iteration in range(1, count + 1):
        for site, module, mine, moving in zip(sites, modules, weights, momenta, strict=True):
            module.zero_grad(set_to_none=True)
            for rank in site:
                inputs, target = data[rank].batch(iteration)
                loss = torch.nn.functional.cross_entropy(module(inputs), target)
                (loss / len(site)).backward()
            step(torch, (mine, moving), [each.grad for each in mine], 0.01)
        if every and iteration % every == 0:
            removed = [outer.removed(mine) for outer, mine in zip(outers, weights, strict=True)]
            average = [sum(each) / len(sites) for each in zip(*removed, strict=True)]
            for outer, mine in zip(outers, weights, strict=True):
                outer.step(mine, [each.clone() for each in average])
    return weights


def test_averages_in_every_iteration_as_they_are_give_the_weights_of_ranks_that_are_all_alike() -> (
    None
):
    first, second = trained(SITES, 1, 1.0, 0.0, 20)
    (alike,) = trained(((0, 1, 2, 3),), 0, 0.0, 0.0, 20)
    for one, other, wanted in zip(first, second, alike, strict=True):
        assert torch.equal(one, other)
        assert torch.allclose(one, wanted, rtol=0, atol=1e-6)


def test_sites_hold_the_same_weights_after_an_average_and_others_between() -> None:
    for count, same in ((8, True), (9, False)):
        first, second = trained(SITES, 4, 0.7, 0.9, count)
        assert all(torch.equal(*both) for both in zip(first, second, strict=True)) is same


def test_the_step_between_sites_is_that_of_nesterov() -> None:
    torch.manual_seed(3)
    mine = torch.nn.Parameter(torch.randn(50))
    theirs = torch.nn.Parameter(mine.detach().clone())
    outer = Outer(torch, [mine], [torch.zeros(50)], 0.7, 0.9)
    known = torch.optim.SGD([theirs], lr=0.7, momentum=0.9, nesterov=True)
    for _ in range(4):
        with torch.no_grad():
            mine.sub_(0.1 * torch.randn(50))
        removed = outer.removed([mine])
        theirs.grad = removed[0].clone()
        known.step()
        outer.step([mine], removed)
        assert torch.allclose(mine, theirs, rtol=0, atol=1e-6)


def test_a_rank_that_diverged_and_takes_no_part_adds_nothing() -> None:
    weights = torch.nn.Parameter(torch.tensor([3.0, 5.0]))
    outer = Outer(torch, [weights], (), 1.0, 0.0)
    with torch.no_grad():
        weights.copy_(torch.tensor([2.0, 1.0]))
    assert outer.removed([weights], 2.0)[0].tolist() == [2.0, 8.0]
    with torch.no_grad():
        weights.copy_(torch.tensor([float("inf"), float("nan")]))
    assert outer.removed([weights], 0.0)[0].tolist() == [0.0, 0.0]


@given(
    st.lists(st.sampled_from("abcdef"), min_size=1, max_size=12),
    st.floats(0.01, 1.0),
    st.integers(0, 99),
)
def test_a_share_of_the_sites_takes_part_one_at_least_and_others_the_next_time(
    sites: list[str], share: float, seed: int
) -> None:
    all_of_them = frozenset(sites)
    chosen = [taking_part(sites, share, seed, n) for n in range(60)]
    assert chosen == [taking_part(sites[::-1], share, seed, n) for n in range(60)]
    (count,) = {len(each) for each in chosen}
    assert 1 <= count == pytest.approx(share * len(all_of_them), abs=1)
    assert frozenset().union(*chosen) == all_of_them
