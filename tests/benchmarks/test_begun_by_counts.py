"""Inference begun by counts: its integers against an oracle, its cycles against the latency
model.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.begun_by_counts import Core, Layer, expected_cycles, infer
from tests.oracles.photonic import inference

SHAPE = (100, 24, 10)


def network(
    seed: int, shape: tuple[int, ...], shift: int
) -> tuple[list[np.ndarray], list[Layer], list[int]]:
    chance = np.random.default_rng(seed)
    matrices = [chance.integers(-255, 256, (rows, width)) for width, rows in pairwise(shape)]
    layers = [
        Layer([[int(weight) for weight in row] for row in matrix], shift) for matrix in matrices
    ]
    return matrices, layers, [int(value) for value in chance.integers(0, 256, shape[0])]


def arrivals(core: Core, width: int, gap: int = 1) -> list[int]:
    return [gap * (n + 1) for n in range(core.words(width))]


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 2**32),
    st.lists(st.integers(1, 40), min_size=2, max_size=4),
    st.integers(0, 6),
    st.builds(Core, st.integers(1, 17), st.integers(1, 12), st.integers(1, 6), st.integers(0, 9)),
    st.integers(0, 5),
    st.booleans(),
)
def test_sums_are_those_of_the_oracle_whatever_the_timing(
    seed: int, shape: list[int], shift: int, core: Core, gap: int, stop_and_go: bool
) -> None:
    matrices, layers, query = network(seed, tuple(shape), shift)
    found = infer(core, layers, query, arrivals(core, shape[0], gap), stop_and_go=stop_and_go)
    assert list(found.sums) == inference(matrices, [shift] * len(layers), np.array(query))


@pytest.mark.parametrize("control", [0, 10, 1000])
@pytest.mark.parametrize("gap", [0, 1, 4])
def test_cycles_of_both_ways_are_those_of_the_model(control: int, gap: int) -> None:
    core = Core(control=control)
    _, layers, query = network(1, SHAPE, 4)
    for stop_and_go in (False, True):
        found = infer(core, layers, query, arrivals(core, SHAPE[0], gap), stop_and_go=stop_and_go)
        assert found.cycles == pytest.approx(
            expected_cycles(core, SHAPE, gap, stop_and_go=stop_and_go), rel=0.03
        )


def test_every_count_fires_once_for_what_it_counts() -> None:
    core = Core()
    _, layers, query = network(2, SHAPE, 4)
    rows = sum(SHAPE[1:])
    assert infer(core, layers, query, arrivals(core, SHAPE[0])).actions == {
        "query words": 1,
        "words begun": rows,
        "words come": rows,
        "outputs of a layer": len(layers),
    }


def test_a_product_is_the_upper_byte_and_keeps_its_sign() -> None:
    weights = [[255, 1], [-255, -1], [16, 16]]
    assert infer(Core(), [Layer(weights)], [255, 255], [0]).sums == (254, -254, 30)


@pytest.mark.parametrize(
    ("layers", "query", "when", "message"),
    [
        ([Layer([[1, 2]])], [1], [0], "layer 0: its rows must have 1 weights"),
        ([Layer([[1]]), Layer([[300]])], [1], [0], "layer 1: weights are -255 to 255"),
        ([Layer([[1]])], [256], [0], "values are 0 to 255"),
        ([Layer([[1]])], [1], [0, 1], "1 arrivals in order"),
        ([], [1], [0], "needs layers"),
    ],
)
def test_what_does_not_fit_is_refused(
    layers: list[Layer], query: list[int], when: list[int], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        infer(Core(), layers, query, when)
