"""The alternating optimisation, on models small enough to weigh every strategy."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import numpy as np
import pytest
import yaml

from planner.model.demand import Demand, Group, Infeasible
from planner.model.shape import Lab
from planner.model.workload import Workload, demand
from planner.predict.score import allreduce_s, iteration_s, mp_s
from planner.topology.alternating import (
    WATCH_EVERY,
    Alternation,
    Option,
    Part,
    Seen,
    alternate,
    together,
)
from planner.topology.strategies import parts
from planner.topology.topofinder import find
from tests.planner.predict.test_routing import all_to_all

N = 8
ALL = tuple(range(N))


def layer(name: str, replicated: int, placed: float) -> Part:
    """A layer that either sums `replicated` bytes of gradients or sends `placed` bytes between
    every two ranks.
    """
    return Part(
        name,
        (
            Option("replicated", 0.001, (Group(name, ALL, replicated),)),
            Option("placed", 0.001, (), placed * all_to_all(N)),
            Option(
                "halves",
                0.002,
                (Group(f"{name}-a", ALL[:4], replicated), Group(f"{name}-b", ALL[4:], replicated)),
            ),
        ),
    )


MODEL = (layer("large", 10**9, 10**6), layer("small", 10**6, 10**7), layer("even", 10**8, 10**7))


def weigh(chosen: tuple[int, ...], lab: Lab) -> float:
    """A strategy on the topology found for it, its traffic between pairs divided evenly."""
    wanted = together(N, MODEL, chosen)
    shape = find(wanted, lab).shape
    return (
        wanted.compute_s
        + mp_s(shape, wanted.mp, lab, exact=False)
        + allreduce_s(shape, wanted.groups, lab)
    )


@pytest.mark.parametrize("rules", ["paper", "artifact"])
def test_what_is_found_is_as_fast_as_it_says_and_never_slower_than_the_start(rules: str) -> None:
    lab = Lab(N, 4)
    for start in product(range(3), repeat=3):
        found = alternate(MODEL, lab, N, budget=60, start=start, rules=rules)
        assert found.iteration_s <= found.rounds[0].before_s
        shape = found.finding.shape
        # the linear program divides better
        assert iteration_s(shape, found.demand, lab) <= found.iteration_s * (1 + 1e-9)


def test_the_best_strategy_is_found_and_the_pair_is_no_slower_than_with_the_topology_made_for_it() -> (
    None
):
    lab = Lab(N, 4)
    best = min(product(range(3), repeat=3), key=lambda chosen: weigh(chosen, lab))
    found = alternate(MODEL, lab, N, budget=200)
    assert found.settled and found.strategy == tuple(
        MODEL[i].options[k].name for i, k in enumerate(best)
    )
    assert found.iteration_s <= weigh(best, lab)
    # much to sum and little to send, and the reverse
    assert found.strategy[:2] == ("placed", "replicated")


def test_groups_of_the_same_ranks_are_summed_and_names_stay_apart() -> None:
    demand_ = together(N, MODEL, (0, 1, 0))
    assert [(group.id, group.bytes) for group in demand_.groups] == [("large", 11 * 10**8)]
    assert demand_.mp_bytes == 56 * 10**7 and demand_.compute_s == pytest.approx(0.003)
    twice = (Part("x", (Option("o", 0.0, (Group("g", (0, 1), 1), Group("g", (2, 3), 2))),)),)
    assert [group.id for group in together(4, twice, (0,)).groups] == ["g", "g-2"]


def test_a_search_ends_when_patience_does_however_much_it_may_try() -> None:
    for rules in ("paper", "artifact"):
        found = alternate(MODEL, Lab(N, 4), N, budget=10**8, patience=200, rules=rules)
        assert all(200 <= notified.tried < 10**6 for notified in found.rounds) and not found.stopped
        assert (
            found.iteration_s <= alternate(MODEL, Lab(N, 4), N, budget=100, rules=rules).iteration_s
        )
    assert [notified.tried for notified in alternate(MODEL, Lab(N, 4), N, budget=80).rounds] == [
        80
    ] * 2, "the budget holds, too"
    with pytest.raises(Infeasible, match="patience 0"):
        alternate(MODEL, Lab(N, 4), N, patience=0)


def test_who_watches_sees_it_get_better_and_may_take_the_best_so_far() -> None:
    lab, heard = Lab(N, 4), []

    def watch(seen: Seen) -> bool:
        heard.append(seen)
        return len(heard) < 12

    found = alternate(MODEL, lab, N, budget=10**8, patience=10**8, watch=watch)
    assert found.stopped and not found.settled and len(heard) == 12
    assert [seen.tried for seen in heard] == list(range(0, 12 * WATCH_EVERY, WATCH_EVERY)) and {
        seen.budget for seen in heard
    } == {10**8}
    times = [seen.best_s for seen in heard]
    assert times == sorted(times, reverse=True) and times[-1] < times[0]
    assert found.iteration_s <= times[-1] and found.rounds[-1].tried == heard[-1].tried
    unwatched = alternate(MODEL, lab, N, budget=300)
    assert (
        alternate(MODEL, lab, N, budget=300, watch=lambda seen: True).rounds == unwatched.rounds
    ), "to watch changes nothing"


def test_a_seed_gives_the_same_search() -> None:
    def shown(found: Alternation) -> str:
        return repr((found.strategy, found.iteration_s, found.rounds, found.finding.shape))

    for rules in ("paper", "artifact"):
        one, other = (
            alternate(MODEL, Lab(N, 4), N, seed=7, budget=80, rules=rules) for _ in range(2)
        )
        assert shown(one) == shown(other)


def test_groups_apart_still_get_a_topology_other_strategies_can_use() -> None:
    found = alternate(MODEL[:1], Lab(N, 4), N, start=(2,), budget=20)
    assert found.finding.shape.connected


@pytest.mark.parametrize(
    ("condition", "make"),
    [
        ("nothing has no option", lambda: alternate([Part("nothing", ())], Lab(N, 4), N)),
        (r"0 part\(s\)", lambda: alternate([], Lab(N, 4), N)),
        ("a budget of 0", lambda: alternate(MODEL, Lab(N, 4), N, budget=0)),
        ("a job of 8 ranks on 4 hosts", lambda: alternate(MODEL, Lab(4, 4), N)),
    ],
)
def test_a_search_that_cannot_be_is_refused(condition: str, make: object) -> None:
    with pytest.raises(Infeasible, match=condition) as caught:
        make()  # type: ignore[operator]
    assert caught.value.alternative


EXAMPLES = Path("examples/workloads")


def read(name: str, **changed: object) -> Workload:
    raw = yaml.safe_load((Path(__file__).parents[3] / EXAMPLES / name).read_text())
    return Workload.model_validate({**raw, **changed})


@pytest.mark.parametrize("name", ["dlrm.yaml", "bert.yaml", "moe.yaml", "vgg16.yaml"])
def test_the_first_options_of_a_workload_are_the_workload(name: str) -> None:
    workload = read(name)
    other, made = (
        demand(workload),
        together(workload.ranks, parts(workload), [0] * len(parts(workload))),
    )
    assert made.mp == pytest.approx(other.mp) and made.compute_s == other.compute_s
    assert {(g.members, g.bytes) for g in made.groups} == {
        (g.members, g.bytes) for g in other.groups
    }


def test_tables_can_be_placed_or_replicated_and_transformers_split() -> None:
    model, tables = parts(read("dlrm.yaml"))
    assert [option.name for option in tables.options] == ["placed", "replicated"] and len(
        model.options
    ) == 1
    assert tables.options[0].mp is not None and tables.options[1].groups[0].bytes > 0
    (bert,) = parts(read("bert.yaml"))
    assert {
        "data 6 x tensor 2 x pipeline 1, experts over 1",
        "data 4 x tensor 1 x pipeline 3, experts over 1",
    } & {option.name for option in bert.options}


def test_stages_idle_while_samples_pass_through() -> None:
    (bert,) = parts(read("bert.yaml"))
    times = {option.name: option.compute_s for option in bert.options}
    own = bert.options[0].compute_s
    split = next(name for name in times if "pipeline 2" in name)
    assert times[split] > own > 0


def test_small_tables_are_replicated_and_large_ones_placed() -> None:
    layers = [
        {"kind": "embedding", "name": "large", "tables": 8, "rows": 10**6, "width": 128},
        {"kind": "embedding", "name": "small", "tables": 8, "rows": 100, "width": 128},
        {"kind": "dense", "parameters": 10**6},
    ]
    workload = Workload.model_validate(
        {"schema": "testbed.workload/1", "name": "w", "ranks": 8, "batch": 512, "layers": layers}
    )
    found = alternate(parts(workload), Lab(8, 4), 8)
    assert dict(zip((part.name for part in parts(workload)), found.strategy, strict=True)) == {
        "model": "data 8 x tensor 1 x pipeline 1, experts over 1",
        "large": "placed",
        "small": "replicated",
    }
    assert isinstance(found.demand, Demand) and found.demand.mp_bytes > 0
    assert np.isfinite(found.iteration_s)
