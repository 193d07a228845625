"""The back-end `testbed` does what torch.distributed's documentation says of each collective."""

from __future__ import annotations

from typing import Any

import pytest

from tests.backend.crew import WORLD, Crew
from tests.backend.judging import MEMBERS

pytestmark = pytest.mark.timeout(400)

FLOATS, INTEGERS = (
    ("float32", "bfloat16", "float64", "float16"),
    ("int64", "int32", "uint8", "int8"),
)
ARITHMETIC = ["SUM", "PRODUCT", "MIN", "MAX"]
BITWISE = ["BAND", "BOR", "BXOR"]
NOTHING: list[list[str]] = [[]] * WORLD
LONG = pytest.mark.long


def types(*names: str, always: tuple[str, ...]) -> list[Any]:
    """Parameters, of which `make test` takes those named `always`."""
    return [name if name in always else pytest.param(name, marks=LONG) for name in names]


def ops(dtype: str) -> list[str]:
    return [*ARITHMETIC, *(["AVG"] if dtype in FLOATS else BITWISE)]


@pytest.mark.parametrize(
    "dtype", types(*FLOATS, *INTEGERS, always=("float32", "bfloat16", "int64"))
)
def test_all_reduce_gives_every_rank_the_sum_and_the_other_operations(
    crew: Crew, dtype: str
) -> None:
    assert crew("collectives.all_reduce", dtype=dtype, ops=ops(dtype)) == NOTHING


@pytest.mark.parametrize("among", MEMBERS)
def test_collectives_keep_to_their_group(crew: Crew, among: str) -> None:
    for case in ("all_reduce", "reduce", "reduce_scatter"):
        assert crew(f"collectives.{case}", dtype="float32", ops=["SUM"], among=among) == NOTHING
    for case in (
        "broadcast",
        "all_gather",
        "all_gather_single",
        "gather_and_scatter",
        "all_to_all",
    ):
        assert crew(f"collectives.{case}", dtype="float32", among=among) == NOTHING


@pytest.mark.parametrize(
    ("dtype", "size"), [("float32", 10_007), ("bfloat16", 10_007), ("float32", 5)]
)
def test_a_sum_of_fractions_has_the_same_bits_on_all_ranks(
    crew: Crew, dtype: str, size: int
) -> None:
    assert len(set(crew("collectives.all_reduce_of_fractions", dtype=dtype, size=size))) == 1


@pytest.mark.parametrize("dtype", types("float32", "bfloat16", "int64", always=("float32",)))
def test_reduce_and_reduce_scatter_give_each_rank_its_part(crew: Crew, dtype: str) -> None:
    assert crew("collectives.reduce", dtype=dtype, ops=["SUM", "MAX"]) == NOTHING
    assert crew("collectives.reduce_scatter", dtype=dtype, ops=ops(dtype)) == NOTHING


@pytest.mark.parametrize(
    "dtype", types("float32", "bfloat16", "int64", "uint8", "bool", always=("float32", "bool"))
)
@pytest.mark.parametrize(
    "case", ["broadcast", "all_gather", "all_gather_single", "gather_and_scatter", "all_to_all"]
)
def test_what_is_only_moved_arrives_as_it_was(crew: Crew, case: str, dtype: str) -> None:
    assert crew(f"collectives.{case}", dtype=dtype) == NOTHING


def test_lists_of_tensors_that_differ_in_size_are_exchanged(crew: Crew) -> None:
    assert crew("collectives.all_to_all_of_uneven_lists") == NOTHING


def test_complex_numbers_are_summed_and_gathered(crew: Crew) -> None:
    assert crew("collectives.complex_numbers") == NOTHING


def test_tensors_larger_than_any_buffer_arrive(crew: Crew) -> None:
    assert crew("collectives.large", elements=1_500_007) == NOTHING
