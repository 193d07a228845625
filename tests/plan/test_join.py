"""A plan with one more host: it has a place in every ring, and the training stays the same."""

from __future__ import annotations

import json
from typing import Any

import pytest

from optics import TestbedError
from optics.plan import Plan
from orchestrator.hosts.launch import identity
from orchestrator.inventory.lab import Lab
from orchestrator.plan.evict import plan_without_host, replaced
from orchestrator.plan.interchangeable import relabelled_text
from orchestrator.plan.join import plan_with_host
from orchestrator.plan.ports import assign_ports
from tests.plan.test_evict import HERE, RING, plan_of, text
from tests.properties.labs import lab


def joined(written: str, host: str = "gpu07", where: Lab = HERE) -> tuple[Plan, str]:
    found = plan_with_host(written, plan_of(written, where), where, host)
    return plan_of(found, where), found


def test_a_host_is_the_last_rank_and_closes_every_ring() -> None:
    before = plan_of(text())
    after, _ = joined(text(spares=["gpu07", "gpu08"], predicted={"iteration_ms": 3.0}))
    assert before.job is not None and after.job is not None
    assert after.job.ranks == (*RING, "gpu07") and after.spares == ("gpu08",)
    assert after.job.rings == ((*RING, "gpu07"), ("gpu07", *RING[::-1]))
    assert len(after.links) == 7 and {"gpu06", "gpu01"} not in [{*k.hosts} for k in after.links]
    kept = {str(link) for link in before.links} & {str(link) for link in after.links}
    assert len(kept) == 5 and assign_ports(after.links, HERE), "what need not move stays"
    assert after.job.joined == ("gpu07",) and identity(after.job) == identity(before.job)
    assert not after.job.predicted


def test_a_pair_becomes_a_ring_of_three() -> None:
    two = ["gpu01", "gpu02"]
    links = [{"a": "gpu01", "b": "gpu02"}]
    after, _ = joined(text(two, links, job={"rings": [two, two[::-1]]}), "gpu03")
    assert after.job is not None and len(after.links) == 3
    assert after.job.rings == (("gpu01", "gpu02", "gpu03"), ("gpu03", "gpu02", "gpu01"))


def test_a_host_of_parallel_links_takes_the_place_of_one_of_each_ring() -> None:
    links = [{"a": a, "b": b, "count": 2} for a, b in zip(RING, RING[1:] + RING[:1], strict=True)]
    after, _ = joined(text(links=links, job={"rings": [RING, RING]}), where=lab(8, 5))
    assert len(after.links) == 14 and after.job is not None
    assert after.job.rings == ((*RING, "gpu07"),) * 2


def test_an_evicted_host_comes_back_as_the_rank_that_it_was() -> None:
    first = plan_of(text())
    without = plan_without_host(text(), first, HERE, "gpu04")
    back, _ = joined(without, "gpu04")
    assert back.job is not None and first.job is not None
    assert not back.job.evicted and not back.job.joined and back.job.ranks[-1] == "gpu04"
    assert identity(back.job) == identity(first.job)


def test_a_host_whose_place_was_taken_comes_back_beside_its_spare() -> None:
    first = plan_of(text())
    by_spare = replaced(text(), first, HERE, {"gpu04": "gpu08"})
    back, _ = joined(by_spare, "gpu04")
    assert back.job is not None and first.job is not None and not back.job.evicted
    assert back.job.joined == ("gpu08",) and identity(back.job) == identity(first.job)


@pytest.mark.parametrize("spare", ["", "gpu08"])
def test_a_host_that_joined_leaves_again_and_the_training_stays_the_same(spare: str) -> None:
    first = plan_of(text())
    after, found = joined(text())
    left = (
        replaced(found, after, HERE, {"gpu07": spare})
        if spare
        else plan_without_host(found, after, HERE, "gpu07")
    )
    gone = plan_of(left)
    assert gone.job is not None and first.job is not None and not gone.job.evicted
    assert gone.job.joined == (("gpu08",) if spare else ())
    assert identity(gone.job) == identity(first.job)


@pytest.mark.parametrize("by", [{"gpu07": "gpu08"}, {"gpu07": "gpu01", "gpu01": "gpu07"}])
def test_a_rank_that_joined_is_one_after_hosts_were_exchanged(by: dict[str, str]) -> None:
    after, found = joined(text())
    other = plan_of(relabelled_text(found, by))
    assert after.job is not None and other.job is not None
    assert len(other.job.joined) == 1 and identity(other.job) == identity(after.job)


@pytest.mark.parametrize("by", [{"gpu08": "gpu07"}, {"gpu08": "gpu01", "gpu01": "gpu08"}])
def test_a_rank_that_took_a_place_is_one_after_hosts_were_exchanged(by: dict[str, str]) -> None:
    first = plan_of(text())
    other = plan_of(relabelled_text(replaced(text(), first, HERE, {"gpu04": "gpu08"}), by))
    assert first.job is not None and other.job is not None
    assert identity(other.job) == identity(first.job)


@pytest.mark.parametrize(
    ("host", "more", "message"),
    [
        ("gpu70", {}, "gpu70 is not in the lab"),
        ("gpu03", {}, "gpu03 is in job mlp already"),
        ("gpu07", {"job": None}, "ring has no job that gpu07 could join"),
    ],
)
def test_a_host_that_cannot_join_is_refused_with_why_and_what_next(
    host: str, more: dict[str, Any], message: str
) -> None:
    written = json.dumps(json.loads(text()) | more)
    with pytest.raises(TestbedError, match=message) as refused:
        plan_with_host(written, plan_of(written), HERE, host)
    assert str(refused.value.hint).startswith("testbed ")


def test_a_host_without_a_free_port_is_refused() -> None:
    where = lab(8, 1)
    written = text(
        ["gpu01", "gpu02"], [{"a": "gpu01", "b": "gpu02"}], job={"rings": [["gpu01", "gpu02"]]}
    )
    with pytest.raises(TestbedError, match="ring cannot take gpu03") as refused:
        plan_with_host(written, plan_of(written, where), where, "gpu03")
    assert "ports of gpu03" in str(refused.value.hint)


@pytest.mark.parametrize(
    ("ranks", "message"),
    [(["gpu08"], "gpu08 is not a rank of the job"), (["gpu01"] * 2, "gpu01 is named twice")],
)
def test_ranks_that_joined_are_checked_in_a_plan_file(ranks: list[str], message: str) -> None:
    with pytest.raises(TestbedError, match=message):
        plan_of(text(job={"joined": ranks}))
