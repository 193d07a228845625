"""Pairs of ranks, barriers, objects, groups and many collectives at once, over the back-end
`testbed`.
"""

from __future__ import annotations

import pytest

from tests.backend.crew import WORLD, Crew
from tests.backend.judging import MEMBERS

pytestmark = pytest.mark.timeout(400)

NOTHING: list[list[str]] = [[]] * WORLD


def test_torch_knows_the_back_end_by_its_name(crew: Crew) -> None:
    assert crew("transfers.names") == [["testbed", True, rank, WORLD] for rank in range(WORLD)]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int64"])
def test_what_a_rank_sends_another_receives(crew: Crew, dtype: str) -> None:
    assert crew("transfers.send_and_recv", dtype=dtype) == NOTHING


@pytest.mark.parametrize("case", ["tags", "batches", "within_a_group"])
def test_what_is_sent_goes_to_whom_it_is_meant_for(crew: Crew, case: str) -> None:
    assert crew(f"transfers.{case}") == NOTHING


def test_receiving_from_any_rank_is_refused_in_words(crew: Crew) -> None:
    assert all("recv from any rank" in output for output in crew("transfers.recv_from_any"))


@pytest.mark.parametrize("among", ["world", "pair", "three", "one"])
def test_a_rank_leaves_a_barrier_after_all_have_come(crew: Crew, among: str) -> None:
    assert crew("transfers.barriers", among=among) == NOTHING


def test_the_monitored_barrier_is_refused_by_torch_itself(crew: Crew) -> None:
    assert all("GLOO" in output for output in crew("transfers.monitored_barrier"))


@pytest.mark.parametrize("among", MEMBERS)
def test_objects_go_where_tensors_go(crew: Crew, among: str) -> None:
    assert crew("transfers.objects", among=among) == NOTHING


def test_objects_are_sent_between_two_ranks(crew: Crew) -> None:
    assert crew("transfers.objects_between_two") == NOTHING


def test_groups_are_made_in_one_order_and_used_in_any(crew: Crew) -> None:
    assert crew("transfers.new_groups") == NOTHING


def test_collectives_of_compiled_programs_work(crew: Crew) -> None:
    assert crew("transfers.functional_collectives") == NOTHING


def test_several_collectives_are_handed_over_as_one(crew: Crew) -> None:
    assert crew("transfers.coalesced") == NOTHING


def test_many_small_collectives_under_way_at_once_do_not_mix(crew: Crew) -> None:
    assert crew("transfers.many_at_once", rounds=20) == NOTHING


def test_a_work_has_a_future_of_its_result(crew: Crew) -> None:
    assert crew("transfers.futures") == NOTHING
