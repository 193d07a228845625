"""Chakra traces become the traffic of an iteration; ones that contradict each other are refused."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from optics import BadFile, Missing
from orchestrator.plan.design.design import design
from orchestrator.plan.design.document import document
from orchestrator.verbs.design_files import read_workload
from planner.formats import chakra
from planner.formats.chakra import COLLECTIVE, COMPUTE, RECEIVE, SEND, Node, Value, written
from planner.formats.exporters import astra, msccl
from planner.formats.importers.chakra import demand
from planner.model.demand import Demand, Group, Infeasible
from planner.topology.methods import Wanted
from tests.kit.labs import lab_of
from tests.planner.formats.test_exporters import reduced


def sends(number: int, to: int, size: int, *after: int, tag: int = 0) -> Node:
    return Node(
        number, "s", SEND, after, attributes={"comm_dst": to, "comm_size": size, "comm_tag": tag}
    )


def receives(number: int, of: int, size: int, *after: int, tag: int = 0) -> Node:
    return Node(
        number, "r", RECEIVE, after, attributes={"comm_src": of, "comm_size": size, "comm_tag": tag}
    )


def collective(number: int, kind: int, size: int, *after: int, group: str = "") -> Node:
    given: dict[str, Value] = {"comm_type": kind, "comm_size": size}
    return Node(
        number, "c", COLLECTIVE, after, attributes=given | ({"pg_name": group} if group else {})
    )


def computes(number: int, micros: int, *after: int, cpu: bool = False) -> Node:
    return Node(number, "k", COMPUTE, after, micros, {"is_cpu_op": cpu})


def of(*ranks: Sequence[Node]) -> Demand:
    return demand([written(nodes) for nodes in ranks])


def job(n: int = 5) -> Demand:
    mp = np.zeros((n, n))
    mp[0, 3], mp[3, 0], mp[4, 1] = 700, 5, 32
    return Demand(n, (Group("dp", tuple(range(n)), 1200), Group("tp", (1, 2), 40)), mp, 0.02)


@settings(max_examples=40, deadline=None)
@given(
    st.integers(2, 6).flatmap(
        lambda n: st.tuples(
            st.lists(
                st.lists(st.integers(0, 9**9), min_size=n, max_size=n), min_size=n, max_size=n
            ),
            st.lists(st.sets(st.integers(0, n - 1), min_size=2), max_size=3, unique_by=tuple),
        )
    )
)
def test_what_is_exported_comes_back(given_job: tuple[list[list[int]], list[set[int]]]) -> None:
    mp = np.array(given_job[0], dtype=float)
    np.fill_diagonal(mp, 0)
    groups = tuple(
        Group(f"g{k}", tuple(sorted(members)), 10 + k) for k, members in enumerate(given_job[1])
    )
    asked = Demand(len(mp), groups, mp, 0.25)
    found = demand([astra.trace(asked, rank) for rank in range(asked.n)])
    sums: dict[tuple[int, ...], int] = {}
    for group in asked.groups:
        sums[group.members] = sums.get(group.members, 0) + group.bytes
    assert np.array_equal(found.mp, mp) and found.compute_s == 0.25
    assert {group.members: group.bytes for group in found.groups} == sums


def test_a_trace_becomes_a_plan_whose_job_replays_it(tmp_path: Path) -> None:
    for rank in range(6):
        (tmp_path / f"my job.{rank}.et").write_bytes(astra.trace(job(6), rank))
    read = read_workload(tmp_path / "my job.2.et")
    assert read.workload.name == "my-job" and read.demand.n == 6
    plan = document(design(read, lab_of("emulated"), Wanted("ring", scale=1.0)))
    assert plan["job"]["workload"] == "replay"
    traffic = plan["job"]["traffic"]
    assert sum(t["bytes"] for t in traffic["transfers"]) == 737
    assert [group["bytes"] for group in traffic["groups"]] == [1200, 40]


def test_collectives_move_what_a_ring_moves_for_them() -> None:
    for kind, size, buffer in (
        (chakra.ALL_REDUCE, 900, 900),
        (chakra.ALL_GATHER, 300, 450),
        (chakra.REDUCE_SCATTER, 900, 450),
        (chakra.REDUCE_SCATTER_BLOCK, 900, 450),
        (chakra.BARRIER, 0, None),
    ):
        found = of(*([collective(7, kind, size)] for _ in range(3)))
        assert [group.bytes for group in found.groups] == ([] if buffer is None else [buffer])
    found = of(*([collective(7, chakra.ALL_TO_ALL, 900)] for _ in range(3)))
    assert (found.mp == 300 * (1 - np.eye(3))).all() and not found.groups


def test_an_iteration_computes_as_long_as_what_waits_for_each_other() -> None:
    one = [computes(0, 30), sends(1, 1, 8, 0), collective(2, 0, 4, 1), computes(3, 5, 2)]
    other = [receives(0, 0, 8), computes(1, 40, 0), collective(2, 0, 4, 1), computes(3, 50, 2)]
    assert of(one, other).compute_s == pytest.approx(120e-6), "30, then 40 behind the message, 50"
    free = [computes(k, 30) for k in range(5)]
    assert of(free, []).compute_s == pytest.approx(150e-6), "one operation of a GPU at a time"
    both = [*free, computes(9, 140, cpu=True)]
    assert of(both, []).compute_s == pytest.approx(150e-6), "and one of the CPU beside it"


def test_the_k_th_send_is_received_by_the_k_th_receive_of_its_tag() -> None:
    found = of(
        [sends(0, 1, 8, tag=1), sends(1, 1, 16, 0, tag=2), sends(2, 1, 32, 1, tag=1)],
        [receives(0, 0, 16, tag=2), receives(1, 0, 8, tag=1), receives(2, 0, 32, tag=1)],
    )
    assert found.mp[0, 1] == 56


@pytest.mark.parametrize(
    ("ranks", "text"),
    [
        ([[computes(0, 1), computes(0, 1)], []], r"rank 0, node 0 .*there twice"),
        ([[], [computes(3, 1, 8)]], r"rank 1, node 3 .*waits for node 8, which is not there"),
        ([[computes(0, 1, 1), computes(1, 1, 0)], []], r"node 0 .*waits for itself"),
        ([[sends(0, 2, 8)], []], r"rank 0, node 0 .*comm_dst 2, wanted a number below 2"),
        ([[sends(0, 0, 8)], []], "sends to its own rank"),
        ([[sends(0, 1, -8)], []], "rank 0 sends 1 times to rank 1 with tag 0, which receives 0"),
        ([[sends(0, 1, -8)], [receives(0, 0, 8)]], "comm_size -8"),
        ([[sends(0, 1, 8)], [receives(0, 0, 9)]], "receives 9 bytes where rank 0 sends 8"),
        ([[Node(0, "s", SEND)], []], "has no comm_dst"),
        ([[Node(0, "c", COLLECTIVE)], [Node(0, "c", COLLECTIVE)]], "has no comm_type"),
        (
            [[replace(sends(0, 1, 8), attributes={"comm_src": 1, "comm_dst": 1})], []],
            "belongs to another rank",
        ),
        ([[collective(0, 0, 8)], []], "rank 0 has 1 collectives, rank 1 0"),
        (
            [[collective(0, 0, 8, group="2")], [collective(0, 0, 8, group="2")] * 2],
            "there twice",
        ),
        (
            [[collective(0, 0, 8)], [collective(0, 6, 8)]],
            "rank 1, node 0 .*of type 6 and 8 bytes, at rank 0 of type 0",
        ),
        ([[collective(0, 5, 8)], [collective(0, 5, 8)]], "is a broadcast"),
        (
            [
                [collective(0, 0, 8, group="a"), collective(1, 0, 8, 0, group="b")],
                [collective(0, 0, 8, 1, group="a"), collective(1, 0, 8, group="b")],
            ],
            "waits for itself, over other nodes",
        ),
        ([[computes(0, 10**12)], []], "more than a day"),
        ([[]], "traces of 1 ranks"),
    ],
)
def test_traces_that_contradict_each_other_are_refused_with_the_place(
    ranks: list[list[Node]], text: str
) -> None:
    with pytest.raises(Infeasible, match=text) as caught:
        of(*ranks)
    assert caught.value.alternative


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", "rank 0: the trace is empty"),
        (b"\xff" * 40, "no Chakra message at byte 0"),
        (b"\x05\x0a", "no Chakra message at byte 0"),
        (b"\xff\xff\xff\xff\xff\xff\xff\xff\x7f", "no Chakra message at byte 0"),
        (written([])[:3], "no Chakra message at byte 0"),
        (written([]) + b"\x02\x08", "no Chakra message at byte 8"),
    ],
)
def test_bytes_that_are_no_trace_are_refused(data: bytes, text: str) -> None:
    with pytest.raises(Infeasible, match=text):
        demand([data, written([])])


def test_more_nodes_than_are_read_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chakra, "MOST_NODES", 5)
    three = [computes(k, 1) for k in range(3)]
    assert of(three, three[:2]).compute_s
    with pytest.raises(Infeasible, match="rank 1: the traces have more than 5 nodes"):
        of(three, three)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_spoilt_traces_are_refused_or_read_and_never_worse(data: st.DataObject) -> None:
    traces = [bytearray(astra.trace(job(), rank)) for rank in range(5)]
    for _ in range(data.draw(st.integers(0, 6))):
        whole = traces[data.draw(st.integers(0, 4))]
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    try:
        demand([bytes(trace) for trace in traces])
    except Infeasible as error:
        assert error.alternative


def test_files_whose_ranks_do_not_match_are_refused(tmp_path: Path) -> None:
    for rank in (0, 1, 3):
        (tmp_path / f"j.{rank}.et").write_bytes(astra.trace(job(), rank))
    with pytest.raises(BadFile) as caught:
        read_workload(tmp_path / "j.0.et")
    assert "j.2.et: missing; there is a trace of rank 3" in caught.value.problems[0]
    with pytest.raises(BadFile) as caught:
        read_workload(tmp_path / "j.et")
    assert "the name of a trace ends in its rank" in caught.value.problems[0]
    (tmp_path / "j.2.et").mkdir()
    with pytest.raises(BadFile) as caught:
        read_workload(tmp_path / "j.0.et")
    assert "j.2.et: " in caught.value.problems[0]


def test_without_protobuf_a_trace_names_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    chakra._classes.cache_clear()
    monkeypatch.setitem(sys.modules, "google.protobuf", None)
    with pytest.raises(Missing, match=r"package google\.protobuf") as caught:
        demand([b"", b""])
    assert caught.value.hint.endswith("pip install 'optical-testbed[traces]'")


RANKS, CHUNK = 8, 131_072


def ring_program(kinds: Sequence[tuple[str, int]]) -> str:
    """An MSCCL program of one thread block a rank; kinds: steps and chunks of rank 0, whose chunk k
    is chunk k + r at rank r.
    """
    lines = [f'<algo name="ring" nchunksperloop="{RANKS}" ngpus="{RANKS}" coll="allreduce">']
    for rank in range(RANKS):
        ends = f'send="{(rank + 1) % RANKS}" recv="{(rank - 1) % RANKS}"'
        lines.append(f'<gpu id="{rank}"><tb id="0" {ends} chan="0">')
        for place, (kind, chunk) in enumerate(kinds):
            at = (chunk + rank) % RANKS
            lines.append(
                f'<step s="{place}" type="{kind}" srcoff="{at}" dstoff="{at}" cnt="1" depid="-1" '
                'deps="-1" hasdep="0"/>'
            )
        lines.append("</tb></gpu>")
    return "".join([*lines, "</algo>"])


def traced(program: str) -> list[bytes]:
    """The program as Chakra traces, as ASTRA-sim's samples of custom collectives have it: a step
    waits for the one before, what reduces also computes.
    """
    traces = []
    for gpu in ElementTree.fromstring(program):
        nodes: list[Node] = []
        for tb in gpu:
            for step in tb:
                kind, size = step.attrib["type"], CHUNK * int(step.attrib["cnt"])
                before = [len(nodes) - 1] if nodes else []
                if kind != "s":
                    nodes.append(receives(len(nodes), int(tb.attrib["recv"]), size, *before))
                    before = [len(nodes) - 1]
                if kind.startswith("rr"):
                    nodes.append(computes(len(nodes), 1, *before))
                    before = [len(nodes) - 1]
                if kind in ("s", "rrs", "rrcs", "rcs"):
                    nodes.append(sends(len(nodes), int(tb.attrib["send"]), size, *before))
        traces.append(written(nodes))
    return traces


def test_the_ring_of_eight_ranks_is_the_same_as_a_trace_and_as_an_msccl_program() -> None:
    """Both of one schedule: one program is the exporter's, the other has the steps of astra-sim's
    examples/custom_collective/sample/allreduce_ring_8ranks; the traces are made here of each.
    """
    there = [(kind, -k) for k in range(1, 8) for kind in ("rrc", "s")]
    back = [(kind, -k) for k in range(8, 14) for kind in ("r", "s")]
    sample = ring_program([("s", 0), *there, *back, ("r", -14)])
    ours = msccl.xml("ring", [tuple(range(RANKS))])
    everybody = frozenset(range(RANKS))
    assert reduced(sample) == reduced(ours) == [[everybody] * RANKS] * RANKS
    ring = 14 * CHUNK * np.roll(np.eye(RANKS), 1, axis=1)
    for program in (sample, ours):
        found = demand(traced(program))
        assert np.array_equal(found.mp, ring), "2 (n - 1) chunks to the next, none elsewhere"
        assert found.compute_s == pytest.approx(7e-6), "seven reductions behind each other"


def test_a_ring_that_waits_before_it_sends_is_refused_as_a_trace() -> None:
    with pytest.raises(Infeasible, match="waits for itself, over other nodes"):
        demand(traced(ring_program([("r", 0), ("s", 0)])))
