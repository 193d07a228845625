"""What ns-3, MSCCL++ and NCCL's tuner get, read by the rules of their own readers."""

from __future__ import annotations

import json
from collections import defaultdict, deque
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.plan.design.design import design
from orchestrator.plan.design.export import export_design
from orchestrator.verbs.design_files import read_workload
from planner.formats.exporters import msccl, mscclpp, ns3, ranks
from planner.model.demand import Infeasible
from planner.model.shape import Ring, Shape
from planner.topology.methods import Wanted
from tests.kit.labs import ROOT, lab_of
from tests.planner.formats.test_exporters import reduced

Held = list[list[frozenset[int]]]


def carried_out(text: str, seed: int = 0) -> Held:
    """Run an MSCCL++ plan: which ranks' parts each chunk of each rank is the sum of, at the end.

    Thread blocks take their operations in an order drawn by the seed. Data that was put arrives
    with its signal, some time later; until it is waited for, nobody may rely on it.
    """
    rng = np.random.default_rng(seed)
    found = json.loads(text)
    gpus: list[Any] = found["gpus"]
    assert found["collective"] == "allreduce" and found["inplace"] is True
    assert [gpu["id"] for gpu in gpus] == list(range(len(gpus)))
    memory: list[dict[str, list[frozenset[int] | None]]] = [
        {"i": [frozenset({rank})] * gpu["input_chunks"], "s": [None] * gpu["scratch_chunks"]}
        for rank, gpu in enumerate(gpus)
    ]
    ends = [gpu["channels"][0]["connected_to"] for gpu in gpus]

    def other_end(rank: int, channel: int) -> tuple[int, int]:
        """The k-th channel to a peer ends at the k-th of the peer to this rank."""
        peer = ends[rank][channel]
        nth = ends[rank][:channel].count(peer)
        return peer, [k for k, back in enumerate(ends[peer]) if back == rank][nth]

    coming: dict[tuple[int, int], deque[tuple[str, int, frozenset[int]]]] = defaultdict(deque)
    semaphores = [[one["init_value"] for one in gpu["semaphores"]] for gpu in gpus]
    blocks = []
    for rank, gpu in enumerate(gpus):
        used = [
            k for tb in gpu["threadblocks"] for one in tb["channels"] for k in one["channel_ids"]
        ]
        assert sorted(used) == list(range(len(ends[rank]))), "a channel belongs to one thread block"
        assert [block["id"] for block in gpu["threadblocks"]] == list(
            range(len(gpu["threadblocks"]))
        )
        for block in gpu["threadblocks"]:
            assert len(block["ops"]) <= 64, "as many operations as a thread block holds"
            (channels,) = block["channels"]
            (remote,) = block["remote_buffer_refs"]
            assert channels["channel_type"] == remote["access_channel_type"] == "port"
            buffers = [gpu["remote_buffers"][k] for k in remote["remote_buffer_ids"]]
            blocks.append((rank, channels["channel_ids"], buffers, deque(block["ops"])))
    while any(ops for *_, ops in blocks):
        moved = False
        for index in rng.permutation(len(blocks)).tolist():
            rank, channels, buffers, ops = blocks[index]
            if not ops:
                continue
            op, own = ops[0], memory[rank]
            channel = channels[op["channel_ids"][0]] if "channel_ids" in op else -1
            if op["name"] == "wait":
                if not coming[rank, channel]:
                    continue
                kind, at, value = coming[rank, channel].popleft()
                own[kind][at] = value
            elif op["name"] == "sem_acquire":
                if not semaphores[rank][op["semaphore_ids"][0]]:
                    continue
                semaphores[rank][op["semaphore_ids"][0]] -= 1
            elif op["name"] == "sem_release":
                semaphores[rank][op["semaphore_ids"][0]] += 1
            elif op["name"] == "pws":
                (source,), (target,) = op["src_buff"], op["dst_buff"]
                buffer, value = buffers[target["buffer_id"]], own[source["type"]][source["index"]]
                peer, there = other_end(rank, channel)
                assert buffer["rank"] == peer, "the channel ends where the buffer is"
                assert value is not None and source["size"] == target["size"] == 1
                coming[peer, there].append((buffer["type"], target["index"], value))
            elif op["name"] == "re":
                one, two = (own[ref["type"]][ref["index"]] for ref in op["src_buff"])
                (target,) = op["dst_buff"]
                assert one is not None and two is not None and not one & two, "added once"
                own[target["type"]][target["index"]] = one | two
            else:
                assert op["name"] in ("nop", "flush")
            ops.popleft()
            moved = True
        assert moved, "every operation that waits is answered in the end"
    assert not any(coming.values()) and not any(map(any, semaphores))
    return [[chunk or frozenset() for chunk in each["i"]] for each in memory]


@settings(max_examples=40, deadline=None)
@given(
    st.integers(2, 9).flatmap(
        lambda n: st.lists(st.permutations(range(n)), min_size=1, max_size=4)
    ),
    st.integers(0, 9),
)
def test_an_mscclpp_plan_sums_what_the_msccl_program_of_its_rings_sums(
    found: list[list[int]], seed: int
) -> None:
    orders = [tuple(order) for order in found]
    assert carried_out(mscclpp.plan("a", orders), seed) == reduced(msccl.xml("a", orders))


def test_what_mscclpp_does_not_take_is_refused() -> None:
    assert mscclpp.plan("a", [tuple(range(13))])
    for orders, text in (
        ([tuple(range(14))], "14 ranks take 66 operations in a thread block, MSCCL"),
        ([(0, 1)] * 17, "17 rings take 17 semaphores"),
        ([(4,)], "one rank has nothing to sum"),
        ([(0, 1), (0, 2)], "each once in every order"),
    ):
        with pytest.raises(Infeasible, match=text) as caught:
            mscclpp.plan("a", orders)
        assert caught.value.alternative


def simulated(text: str) -> tuple[list[int], set[int], dict[tuple[int, int], float]]:
    """An edge list as the simulators read it: the first line, the switches, the rates (Gb/s)."""
    words = text.split()
    first = [
        int(words.pop(0)) for _ in range(text.partition("\n")[0].count(" ") + 1 - ("NONE" in text))
    ]
    if "NONE" in words:
        words.remove("NONE")
    nodes, switches, links = (first[0], sum(first[2:4]), first[4]) if len(first) == 5 else first
    boxes = {int(words.pop(0)) for _ in range(switches)}
    found: dict[tuple[int, int], float] = {}
    for _ in range(links):
        a, b, rate, delay, lost = (words.pop(0) for _ in range(5))
        pair = (int(a), int(b))
        assert pair not in found and (pair[1], pair[0]) not in found, "one link of a pair is kept"
        assert max(pair) < nodes and rate.endswith("Gbps") and delay.endswith("ms") and lost == "0"
        found[pair] = float(rate.removesuffix("Gbps"))
    assert not words
    return first, boxes, found


def reached(host: int, boxes: set[int], links: dict[tuple[int, int], float]) -> set[int]:
    """Where packets of a host arrive; only switches pass them on."""
    near = defaultdict(set)
    for a, b in links:
        near[a].add(b)
        near[b].add(a)
    seen, edge = {host}, [host]
    while edge:
        new = {b for a in edge if a == host or a in boxes for b in near[a]} - seen
        seen, edge = seen | new, list(new)
    return seen


def test_hosts_of_light_reach_each_other_in_ns_3_whose_hosts_pass_nothing_on() -> None:
    shape = Shape(5, 4, True, (Ring("a", (0, 2, 4, 1, 3)),), ((0, 2), (0, 2)))
    edges = ns3.light(shape, 12.5)
    first, boxes, links = simulated(edges.simai())
    assert first == [10, 1, 0, 5, 10] and boxes == set(range(5, 10))
    assert simulated(edges.astra()) == ([10, 5, 10], boxes, links)
    assert links[5, 7] == 37.5, "a ring's link and two matched ones are one of three times the rate"
    assert links[0, 5] == 50.0 and links[1, 6] == 25.0, "a host sends on all its links"
    assert all(set(range(5)) <= reached(host, boxes, links) for host in range(5))
    with pytest.raises(Infeasible, match="two directions"):
        ns3.light(Shape(3, 1, False, (Ring("a", (0, 1, 2)),)), 10.0)


def test_nccl_s_tuner_takes_as_many_rings_as_a_message_fills() -> None:
    order = (2, 0, 1)
    text = ranks.nccl_tuner({"dp": (order, order, order), "tp": ((1, 2),)}, 3, each=2)
    rows = [line.split(",") for line in text.splitlines() if not line.startswith("#")]
    for kind in ("allreduce", "allgather", "reducescatter"):
        mine = [row for row in rows if row[0] == kind]
        assert [row[5] for row in mine] == ["1", "2", "3"]
        assert [(int(row[1]), int(row[2])) for row in mine] == [
            (0, 65_535), (65_536, 98_303), (98_304, 2**64 - 1),
        ]  # fmt: skip
    assert {tuple(row[3:5] + row[6:]) for row in rows} == {("ring", "simple", "3", "6", "-1", "-1")}
    assert all(len(line) < 256 for line in text.splitlines()), "longer lines are cut"
    with pytest.raises(Infeasible, match="2 different orders of all 3"):
        ranks.nccl_tuner({"dp": ((0, 1, 2), (0, 2, 1))}, 3)


def test_a_design_is_exported_for_each_of_them() -> None:
    lab = lab_of("emulated")
    read = read_workload(ROOT / "examples" / "workloads" / "vgg16.yaml")
    files, refused = export_design(design(read, lab, Wanted("ring", backend="single-order")), lab)
    assert not refused
    whole = frozenset(range(12))
    assert all(
        c == whole for rank in carried_out(str(files["allreduce-data.mscclpp.json"])) for c in rank
    )
    assert simulated(str(files["ns3-topology.txt"]))[0][:2] == [24, 12]
    assert "allreduce,0," in str(files["nccl_tuner.conf"])
    stepped = design(read, lab, Wanted("direct", backend="msccl"))
    assert any(line.startswith("mscclpp: group data: ") for line in export_design(stepped, lab)[1])
