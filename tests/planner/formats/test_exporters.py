"""What other tools get is right by their own rules: programs run, files read back, environments
agree.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from xml.etree import ElementTree

import flatbuffers
import flatbuffers.table
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.formats import chakra
from planner.formats.exporters import astra, graphviz, msccl, ranks, svg
from planner.formats.exporters.taskgraph import tables, taskgraph
from planner.formats.importers.taskgraph import demand as imported
from planner.formats.taskgraph import NOMINAL_COMM, read, write
from planner.model.backend import orders
from planner.model.demand import Demand, Group, Infeasible
from planner.model.shape import Ring, Shape
from planner.predict.routing import Routes, even
from planner.schedule import bfb

HOSTS = [f"gpu{k:02d}" for k in range(1, 13)]
SHAPE = Shape(6, 4, True, (Ring("all", (0, 1, 2, 3, 4, 5), 1), Ring("all", (0, 5, 4, 3, 2, 1), 5)))


def asked(n: int = 6) -> Demand:
    mp = np.zeros((n, n))
    mp[0, 3], mp[4, 1] = 700, 32
    return Demand(n, (Group("dp", tuple(range(n)), 1200), Group("tp", (1, 2), 40)), mp, 0.02)


def reduced(text: str, seed: int = 0) -> list[list[frozenset[int]]]:
    """Run an MSCCL program: which ranks' parts each chunk of each rank is the sum of, at the end.

    Thread blocks take their steps in an order drawn by the seed, as soon as what they wait for is
    there; a wire holds two messages.
    """
    rng = np.random.default_rng(seed)
    root = ElementTree.fromstring(text)
    chunks, n = int(root.attrib["nchunksperloop"]), int(root.attrib["ngpus"])
    held = [[frozenset({rank})] * chunks for rank in range(n)]
    wires: dict[tuple[int, int, str], deque[tuple[int, list[frozenset[int]]]]] = {}
    blocks = [(int(gpu.attrib["id"]), tb, deque(tb)) for gpu in root for tb in gpu]
    done: dict[tuple[int, str], int] = {}
    assert [int(gpu.attrib["id"]) for gpu in root] == list(range(n))
    for gpu in root:
        assert [int(tb.attrib["id"]) for tb in gpu] == list(range(len(gpu))), (
            "thread blocks are numbered without gaps"
        )
        for end in ("send", "recv"):
            used = [(tb.attrib[end], tb.attrib["chan"]) for tb in gpu if tb.attrib[end] != "-1"]
            assert len(set(used)) == len(used), "a connection belongs to one thread block"
        awaited = {
            (step.attrib["depid"], step.attrib["deps"])
            for tb in gpu
            for step in tb
            if step.attrib["depid"] != "-1"
        }
        posted = {
            (tb.attrib["id"], step.attrib["s"])
            for tb in gpu
            for step in tb
            if step.attrib["hasdep"] == "1"
        }
        assert awaited == posted, "who is waited for says when it is done, and nobody else"
    while any(steps for _, _, steps in blocks):
        moved = False
        for index in rng.permutation(len(blocks)).tolist():
            rank, tb, steps = blocks[index]
            if not steps:
                continue
            step = steps[0].attrib
            kind, at, count = step["type"], int(step["srcoff"]), int(step["cnt"])
            incoming = wires.setdefault((int(tb.attrib["recv"]), rank, tb.attrib["chan"]), deque())
            outgoing = wires.setdefault((rank, int(tb.attrib["send"]), tb.attrib["chan"]), deque())
            receives, sends = kind.startswith("r"), kind in ("s", "rrs", "rrcs", "rcs")
            waits = step["depid"] != "-1" and done.get((rank, step["depid"]), -1) < int(
                step["deps"]
            )
            if waits or (receives and not incoming) or (sends and len(outgoing) == 2):
                continue
            assert (
                count < 72 and int(step["s"]) == done.get((rank, tb.attrib["id"]), -1) + 1 < 256
            ), "as MSCCL takes it"
            if kind == "nop":
                assert step["depid"] != "-1" and steps[1].attrib["depid"] != "-1", (
                    "the last one of a chain does something"
                )
            value = held[rank][at : at + count]
            if receives:
                sent, got = incoming.popleft()
                assert (sent, len(got)) == (at, count), (
                    "what is received are the chunks that are meant"
                )
                if kind.startswith("rr"):
                    assert not any(one & other for one, other in zip(got, value, strict=True)), (
                        "nothing is added twice"
                    )
                    value = [one | other for one, other in zip(got, value, strict=True)]
                else:
                    value = got
            if kind in ("rrcs", "rrc", "rcs", "r"):
                held[rank][at : at + count] = value
            if sends:
                outgoing.append((at, value))
            steps.popleft()
            done[rank, tb.attrib["id"]] = int(step["s"])
            moved = True
        assert moved, "every step that waits is answered in the end"
    assert not any(wires.values())
    return held


@settings(max_examples=25, deadline=None)
@given(
    st.sets(st.integers(0, 20), min_size=2, max_size=9).flatmap(
        lambda n: st.lists(st.permutations(sorted(n)), min_size=1, max_size=4)
    )
)
def test_an_msccl_program_sums_everything_everywhere(found: list[list[int]]) -> None:
    everybody = frozenset(range(len(found[0])))
    assert msccl.ranks_of(found[0]) == tuple(sorted(found[0])), (
        "whoever the members are, the program counts them from 0"
    )
    assert all(
        chunk == everybody
        for rank in reduced(msccl.xml("a", [tuple(order) for order in found]))
        for chunk in rank
    )


@settings(max_examples=25, deadline=None)
@given(st.data(), st.integers(3, 9), st.booleans(), st.integers(0, 9))
def test_a_breadth_first_schedule_becomes_a_program_that_sums_everything_over_links(
    data: st.DataObject, n: int, duplex: bool, seed: int
) -> None:
    orders = data.draw(st.lists(st.permutations(range(n)), min_size=1, max_size=3))
    shape = Shape(n, 6, duplex, tuple(Ring("a", tuple(order)) for order in orders))
    text = msccl.scheduled("a", n, bfb.schedule(shape))
    assert all(chunk == frozenset(range(n)) for rank in reduced(text, seed) for chunk in rank)
    for gpu in ElementTree.fromstring(text):
        for tb in gpu:
            src, dst = int(gpu.attrib["id"]), int(tb.attrib["send"])
            assert dst == -1 or shape.adjacency[src, dst] or shape.adjacency[dst, src]


def test_parts_finer_than_a_program_takes_are_rounded_and_still_whole() -> None:
    thirds = [bfb.Send(1, src, 0, 3, 1 / 3 + off) for src, off in ((1, 1e-3), (2, -2e-3))]
    sends = [bfb.Send(1, 3, dst, 3, 1.0) for dst in (1, 2)] + [replace(s, step=2) for s in thirds]
    sends += [bfb.Send(1, 3, 0, 3, 1 / 3 + 1e-3)] + [
        bfb.Send(1, k, j, k, 1.0) for k in range(3) for j in range(4) if j != k
    ]
    text = msccl.scheduled("a", 4, sends)
    assert f'nchunksperloop="{4 * msccl.FINEST}"' in text
    assert all(chunk == frozenset(range(4)) for rank in reduced(text) for chunk in rank)


def test_parallel_links_are_channels_of_their_own() -> None:
    shape = Shape(2, 2, True, (), ((0, 1), (0, 1)))
    root = ElementTree.fromstring(msccl.scheduled("a", 2, bfb.schedule(shape)))
    assert root.attrib["nchannels"] == "2" and all(len(gpu) == 4 for gpu in root)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: msccl.xml("a", []), "each once in every order"),
        (lambda: msccl.xml("a", [(0, 2), (0, 1)]), "each once in every order"),
        (lambda: msccl.xml("a", [(0, 2, 2)]), "each once in every order"),
        (
            lambda: msccl.xml("a", [tuple(range(129))]),
            "257 steps in a thread block, MSCCL 256 at most",
        ),
        (lambda: msccl.xml("a", [(0, 1)] * 33), "33 channels, MSCCL 32"),
        (lambda: msccl.scheduled("a", 2, []), "without sends"),
    ],
)
def test_what_msccl_does_not_take_is_refused(make: Callable[[], str], text: str) -> None:
    with pytest.raises(Infeasible, match=text) as caught:
        make()
    assert caught.value.alternative


def test_stock_nccl_gets_one_order_or_a_refusal() -> None:
    parallel = orders(asked(), SHAPE, "single-order")
    assert parallel["dp"] == ((0, 1, 2, 3, 4, 5),) * 2, (
        "the rings run opposite ways, and links carry both"
    )
    assert ranks.nccl_environment(parallel, 6)["NCCL_MAX_NCHANNELS"] == "2"
    assert ranks.rank_file(HOSTS, (2, 0, 1)) == "gpu03\ngpu01\ngpu02\n"
    with pytest.raises(Infeasible, match="different orders of all 6"):
        ranks.nccl_environment(orders(asked(), SHAPE, "ring-groups"), 6)


def test_ring_groups_name_every_order_of_every_group() -> None:
    found = json.loads(ranks.ring_groups(orders(asked(), SHAPE, "ring-groups")))
    assert len(found["dp"]) == 4 and [sorted(order) for order in found["tp"]] == [[1, 2]]


def plain(value: Any) -> Any:
    """A table without what is nothing, numbers as a file of single precision keeps them."""
    if isinstance(value, dict):
        return {key: plain(one) for key, one in value.items() if one not in (0, 0.0, [])}
    if isinstance(value, list):
        return [plain(one) for one in value]
    return float(np.float32(value)) if isinstance(value, float) else value


def test_a_task_graph_comes_back_as_it_went() -> None:
    given_tables = tables(asked(), SHAPE, even(SHAPE), 25.0)
    found = read(taskgraph(asked(), SHAPE, even(SHAPE), 25.0))
    assert found["nnode"] == 6 and found["netbw"] == 25 * 125_000
    for name in ("conn", "tasks", "devices", "routes", "rings"):
        assert [plain(one) for one in found[name]] == [plain(one) for one in given_tables[name]], (
            name
        )
    assert (
        found["tasks"][0]["runtime"] == pytest.approx(20.0)
        and found["rings"][0]["ringpaths"][1]["jumps"] == [5] * 6
    )


def test_the_flatbuffers_library_finds_the_fields_where_the_simulator_looks() -> None:
    data = bytearray(taskgraph(asked(), SHAPE, even(SHAPE), 25.0))
    root = flatbuffers.table.Table(
        data, flatbuffers.encode.Get(flatbuffers.packer.uoffset, data, 0)
    )
    nnode = root.Offset(6)
    assert root.Get(flatbuffers.number_types.Uint32Flags, root.Pos + nnode) == 6
    tasks = root.Offset(20)
    assert root.VectorLen(tasks) == 2 * 6 + 2 + 2
    last = flatbuffers.table.Table(
        data, root.Indirect(root.Vector(tasks) + 4 * (root.VectorLen(tasks) - 1))
    )
    assert last.Get(flatbuffers.number_types.Int16Flags, last.Pos + last.Offset(4)) == 6, (
        "an all-reduce"
    )
    assert last.VectorLen(last.Offset(14)) == 2, "whose next tasks are its group"


def test_a_demand_is_found_again_in_its_task_graph() -> None:
    found = imported(taskgraph(asked(), SHAPE, even(SHAPE), 25.0))
    assert np.array_equal(found.mp, asked().mp) and found.compute_s == pytest.approx(0.02)
    assert {g.members: g.bytes for g in found.groups} == {
        g.members: g.bytes for g in asked().groups
    }


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_spoilt_task_graphs_are_refused_or_read_and_never_worse(data: st.DataObject) -> None:
    whole = bytearray(taskgraph(asked(), SHAPE, even(SHAPE), 25.0))
    for _ in range(data.draw(st.integers(0, 6))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    try:
        imported(bytes(whole[: data.draw(st.integers(0, len(whole)))]))
    except Infeasible as error:
        assert error.alternative


def test_a_task_graph_that_names_what_is_not_there_is_refused() -> None:
    graph = {
        "nnode": 4,
        "tasks": [{"type": NOMINAL_COMM, "taskid": 1, "deviceid": 77, "xfersize": 9}],
    }
    with pytest.raises(Infeasible, match="device 77, which is not there"):
        imported(write(graph))


def test_astra_knows_rings_and_full_connection_and_nothing_else() -> None:
    ring = Shape(6, 4, True, (Ring("all", (0, 1, 2, 3, 4, 5), 1),) * 2)
    assert astra.network(ring, 25.0).splitlines() == [
        "topology: [ Ring ]", "npus_count: [ 6 ]", "bandwidth: [ 6.25 ]", "latency: [ 0 ]",
    ]  # fmt: skip
    with pytest.raises(Infeasible, match="rings, full connection and switches only"):
        astra.network(
            Shape(6, 4, True, (Ring("a", (0, 1, 2, 3, 4, 5)), Ring("a", (0, 2, 4, 1, 3, 5)))), 25.0
        )


def test_a_chakra_trace_says_what_a_rank_does_in_which_order() -> None:
    nodes = chakra.read(astra.trace(asked(), 1), 1)
    assert [node.kind for node in nodes] == [
        chakra.COMPUTE, chakra.RECEIVE, chakra.COLLECTIVE, chakra.COLLECTIVE,
    ]  # fmt: skip
    assert [node.after for node in nodes] == [(), (0,), (1,), (1,)], "sums come after transfers"
    assert nodes[0].micros == 20_000 and nodes[3].attributes == {
        "is_cpu_op": False, "comm_type": 0, "comm_size": 40, "pg_name": "2",
    }  # fmt: skip


def test_drawings_are_well_formed_and_show_every_link() -> None:
    shape = Shape(6, 5, True, SHAPE.rings, ((0, 3), (1, 4)))
    text = svg.svg("a & b", shape, HOSTS, asked().mp, asked().mp)
    paths = [e for e in ElementTree.fromstring(text).iter() if e.tag.endswith("path")]
    assert len(paths) == len(shape.cables)
    assert graphviz.dot(shape, HOSTS).count(" -- ") == len(shape.cables)


def test_lists_are_there_for_the_simulator_even_if_empty() -> None:
    alone = Demand(3, (Group("a", (0, 1), 8),), np.zeros((3, 3)))
    shape = Shape(3, 2, True, (Ring("a", (0, 1, 2)),))
    data = bytearray(taskgraph(alone, shape, even(shape), 25.0))
    root = flatbuffers.table.Table(
        data, flatbuffers.encode.Get(flatbuffers.packer.uoffset, data, 0)
    )
    tasks = root.Offset(20)
    for number in range(root.VectorLen(tasks)):
        task = flatbuffers.table.Table(data, root.Indirect(root.Vector(tasks) + 4 * number))
        assert task.Offset(14), (
            f"task {number} says that nothing follows it; it does not leave that out"
        )
    assert root.VectorLen(root.Offset(18)) == 0, "no operators"


def test_jumps_of_a_ring_are_between_nodes() -> None:
    shape = Shape(12, 4, True, (Ring("a", (0, 9, 6, 3), 3), Ring("b", (4, 5, 6), 1)))
    found = tables(Demand(12, (), np.zeros((12, 12))), shape, Routes(12, {}), 25.0)["rings"]
    assert found[1] == {"ringsz": 4, "ringpaths": [{"jumps": [9] * 4}]} and found[0]["ringpaths"][
        0
    ]["jumps"] == [1, 1, 10]
