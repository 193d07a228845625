"""Cases: send and recv, barriers, objects, groups, coalesced and functional collectives, and many
of them at once.
"""

from __future__ import annotations

import threading
import warnings
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional

from tests.backend.judging import MEMBERS, Findings, group, reduced, values


def send_and_recv(dtype: str) -> list[str]:
    """Pairs in both directions, with tags, out of order, with nothing in them, and from whoever
    sends.
    """
    found, me, count = Findings(), dist.get_rank(), dist.get_world_size()
    typed: torch.dtype = getattr(torch, dtype)
    for size in (0, 1, 7, 1001):
        for step in range(1, count):
            to, of, came = (me + step) % count, (me - step) % count, torch.zeros(size, dtype=typed)
            with found.trying("isend and irecv", dtype, size, step):
                works = [dist.isend(values(me, size, typed, step), to), dist.irecv(came, of)]
                for work in works:
                    work.wait()
                found.same(
                    came, values(of, size, typed, step), "isend and irecv", dtype, size, step
                )
        with found.trying("send and recv", dtype, size):
            other, came = me ^ 1, torch.zeros(size, 2, dtype=typed)[:, 0]
            if me < other:
                dist.send(values(me, size, typed), other)
                found.true(dist.recv(came, other) == other, "recv returns the sender")
            else:
                found.true(dist.recv(came, other) == other, "recv returns the sender")
                dist.send(values(me, size, typed), other)
            found.same(came, values(other, size, typed), "send and recv", dtype, size)
    return found.wrong


def tags() -> list[str]:
    """What is received goes by its tag, whatever came first; of one tag in the order it was
    sent.
    """
    found, me = Findings(), dist.get_rank()
    if me == 0:
        works = [
            dist.isend(torch.tensor([float(tag), float(n)]), 1, tag=tag)
            for n in range(2)
            for tag in (7, 3)
        ]
        for work in works:
            work.wait()
    elif me == 1:
        for tag in (3, 7):
            for n in range(2):
                came = torch.zeros(2)
                dist.recv(came, 0, tag=tag)
                found.same(came, torch.tensor([float(tag), float(n)]), "tag", tag, n)
    return found.wrong


def recv_from_any() -> str:
    """What is said of receiving from whoever sends, which this back-end does not do (nor does
    NCCL).
    """
    try:
        dist.recv(torch.zeros(1))
    except (RuntimeError, ValueError) as error:
        return str(error)
    return ""


def batches() -> list[str]:
    """All pairs at once; the order of a list's receives and sends does not matter."""
    found, me, count = Findings(), dist.get_rank(), dist.get_world_size()
    others = [rank for rank in range(count) if rank != me]
    for receive_first in (True, False):
        came = {of: [torch.zeros(5 + of), torch.zeros(3)] for of in others}
        receives = [dist.P2POp(dist.irecv, each, of) for of in others for each in came[of]]
        sends = [
            dist.P2POp(dist.isend, each, to)
            for to in others
            for each in (torch.full((5 + me,), float(10 * me + to)), torch.full((3,), float(me)))
        ]
        for work in dist.batch_isend_irecv(receives + sends if receive_first else sends + receives):
            work.wait()
        for of in others:
            found.same(
                came[of][0],
                torch.full((5 + of,), float(10 * of + me)),
                "first from",
                of,
                receive_first,
            )
            found.same(came[of][1], torch.full((3,), float(of)), "second from", of, receive_first)
    return found.wrong


def within_a_group() -> list[str]:
    """Ranks of a group are global ones, unless they are said to be the group's."""
    found, me, own = Findings(), dist.get_rank(), group("three")
    if own is None:
        return []
    found.true(
        dist.get_rank(own) == me - 1 and dist.get_world_size(own) == 3, "rank and size in the group"
    )
    came = torch.zeros(2)
    if me == 1:
        dist.send(torch.tensor([4.0, 5.0]), 3, group=own)
        dist.send(torch.tensor([6.0, 7.0]), group_dst=1, group=own)
    elif me == 3:
        dist.recv(came, 1, group=own)
        found.same(came, torch.tensor([4.0, 5.0]), "from 1")
    else:
        dist.recv(came, group_src=0, group=own)
        found.same(came, torch.tensor([6.0, 7.0]), "from the group's 0")
    root = torch.full((3,), float(me))
    dist.broadcast(root, group_src=2, group=own)
    found.same(root, torch.full((3,), 3.0), "from the group's 2")
    return found.wrong


def barriers(among: str = "world") -> list[str]:
    """Nobody leaves a barrier before everybody has come: each rank writes down that it comes, and
    finds the others' notes.
    """
    found, members, own = Findings(), MEMBERS[among], group(among)
    if own is None:
        return []
    store = dist.distributed_c10d._get_default_store()
    for step in range(6):
        if members[step % len(members)] == dist.get_rank():
            threading.Event().wait(0.1)  # the others come first
        store.set(f"barrier {among} {step} {dist.get_rank()}", "here")
        if step % 2:
            dist.barrier(group=own, async_op=True).wait()
        else:
            dist.barrier(group=own)
        for rank in members:
            found.true(
                store.check([f"barrier {among} {step} {rank}"]),
                "rank",
                rank,
                "had not come to",
                step,
            )
    return found.wrong


def monitored_barrier() -> str:
    """torch itself keeps it to gloo; what it says."""
    try:
        dist.monitored_barrier()
    except ValueError as error:
        return str(error)
    return ""


def objects(among: str = "world") -> list[str]:
    found, members, own = Findings(), MEMBERS[among], group(among)
    if own is None:
        return []
    me, at = dist.get_rank(), members.index(dist.get_rank())
    things: list[Any] = [
        {"rank": rank, "name": "x" * 1000 * rank, "t": torch.ones(rank)} for rank in members
    ]
    names = [len(thing["name"]) for thing in things]
    gathered: list[Any] = [None] * len(members)
    dist.all_gather_object(gathered, things[at], group=own)
    found.true([len(each["name"]) for each in gathered] == names, "all_gather_object")
    for root in members:
        kept: list[Any] | None = [None] * len(members) if me == root else None
        dist.gather_object(things[at], kept, dst=root, group=own)
        found.true(
            kept is None or [each["rank"] for each in kept] == members, "gather_object", root
        )
        shown = [things[members.index(root)], root] if me == root else [None, None]
        dist.broadcast_object_list(shown, src=root, group=own)
        found.true(shown[1] == root and shown[0]["rank"] == root, "broadcast_object_list", root)
        mine: list[Any] = [None]
        dist.scatter_object_list(mine, things if me == root else None, src=root, group=own)
        found.true(mine[0]["rank"] == me, "scatter_object_list", root)
    return found.wrong


def objects_between_two() -> list[str]:
    found, me = Findings(), dist.get_rank()
    if me == 2:
        dist.send_object_list([{"a": 1}, "b"], dst=0)
    elif me == 0:
        came: list[Any] = [None, None]
        sender = dist.recv_object_list(came, src=2)
        found.true(sender == 2 and came == [{"a": 1}, "b"], "recv_object_list", sender, came)
    return found.wrong


def new_groups() -> list[str]:
    """Groups made in one order on all ranks, overlapping, from unsorted ranks, of some ranks only,
    and used in any order.
    """
    found, me = Findings(), dist.get_rank()
    names = [[0, 1], [2, 3], [1, 2], [0, 1, 2], [3, 1, 0], [0, 2], [0, 1]]
    made = [dist.new_group(ranks) for ranks in names]
    for ranks, own in reversed(list(zip(names, made, strict=True))):
        if me not in ranks:
            found.true(own == dist.GroupMember.NON_GROUP_MEMBER, "no member of", ranks)
            continue
        found.true(
            dist.get_process_group_ranks(own) == sorted(ranks),
            "ranks",
            ranks,
            dist.get_process_group_ranks(own),
        )
        total, gathered = torch.tensor([me + 1]), [torch.zeros(1, dtype=torch.int64) for _ in ranks]
        dist.all_reduce(total, group=own)
        found.same(total, torch.tensor([sum(ranks) + len(ranks)]), "all_reduce in", ranks)
        dist.all_gather(gathered, torch.tensor([me]), group=own)
        found.same(torch.cat(gathered), torch.tensor(sorted(ranks)), "all_gather in", ranks)
    own, _ = dist.new_subgroups(2)
    total = torch.tensor([me])
    dist.all_reduce(total, group=own)
    found.same(total, torch.tensor([me // 2 * 4 + 1]), "new_subgroups")
    for each in made:
        if each != dist.GroupMember.NON_GROUP_MEMBER:
            dist.destroy_process_group(each)
    dist.barrier()  # the default group works on
    return found.wrong


def functional_collectives() -> list[str]:
    """Those that torch.compile and DTensor use."""
    found, me, count = Findings(), dist.get_rank(), dist.get_world_size()
    everyone = [values(rank, 8, torch.float32) for rank in range(count)]
    kept, world = everyone[me].clone(), dist.group.WORLD
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        total = functional.all_reduce(everyone[me], "sum", world)
        found.same(total + 0, reduced("SUM", everyone), "all_reduce")
        found.same(everyone[me], kept, "all_reduce: the input")
        found.same(
            functional.all_gather_tensor(everyone[me], 0, world) + 0,
            torch.cat(everyone),
            "all_gather_tensor",
        )
        part = functional.reduce_scatter_tensor(everyone[me], "sum", 0, world) + 0
        found.same(part, reduced("SUM", everyone).chunk(count)[me], "reduce_scatter_tensor")
        found.same(functional.broadcast(everyone[me], 2, world) + 0, everyone[2], "broadcast")
        exchanged = functional.all_to_all_single(everyone[me], None, None, world) + 0
        found.same(
            exchanged, torch.cat([each.chunk(count)[me] for each in everyone]), "all_to_all_single"
        )
        totals = functional.all_reduce_coalesced([everyone[me], everyone[me] * 2], "sum", world)
        found.same(totals[1] + 0, reduced("SUM", everyone) * 2, "all_reduce_coalesced")
        wholes = functional.all_gather_into_tensor_coalesced(
            [everyone[me], everyone[me][:3]], world
        )
        found.same(
            wholes[1] + 0,
            torch.cat([each[:3] for each in everyone]),
            "all_gather_into_tensor_coalesced",
        )
        parts = functional.reduce_scatter_tensor_coalesced(
            [everyone[me], everyone[me][:4]], "sum", [0, 0], world
        )
        found.same(
            parts[1] + 0, reduced("SUM", everyone)[me : me + 1], "reduce_scatter_tensor_coalesced"
        )
    return found.wrong


def coalesced() -> list[str]:
    """Several collectives handed over as one."""
    found, me, count = Findings(), dist.get_rank(), dist.get_world_size()
    everyone = [
        [values(rank, size, torch.float32) for size in (5, 1, 1001)] for rank in range(count)
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with found.trying("all_reduce_coalesced"):
            sums = [each.clone() for each in everyone[me]]
            dist.all_reduce_coalesced(sums)
            for at, got in enumerate(sums):
                found.same(
                    got, reduced("SUM", [each[at] for each in everyone]), "all_reduce_coalesced", at
                )
        with found.trying("all_gather_coalesced"):
            lists = [[torch.zeros_like(each) for each in everyone[me]] for _ in range(count)]
            dist.all_gather_coalesced(lists, everyone[me])
            for rank, at in ((rank, at) for rank in range(count) for at in range(3)):
                found.same(lists[rank][at], everyone[rank][at], "all_gather_coalesced", rank, at)
    return found.wrong


def many_at_once(rounds: int) -> list[str]:
    """Small collectives of all kinds and groups under way together, waited for in another order
    than they were begun.
    """
    found, me, count = Findings(), dist.get_rank(), dist.get_world_size()
    pair, three = group("pair"), group("three")
    for step in range(rounds):
        waiting: list[tuple[str, Any, Any, torch.Tensor]] = []

        def begin(
            name: str, got: torch.Tensor, wanted: torch.Tensor, work: Any, to: Any = waiting
        ) -> None:
            to.append((name, work, got, wanted))

        for salt, size in enumerate((step % 5, 3, 129)):
            everyone = [values(rank, size, torch.float32, salt + step) for rank in range(count)]
            total, whole, root = (
                everyone[me].clone(),
                torch.zeros(count * size),
                everyone[me].clone(),
            )
            begin(
                "all_reduce", total, reduced("SUM", everyone), dist.all_reduce(total, async_op=True)
            )
            begin(
                "all_gather",
                whole,
                torch.cat(everyone),
                dist.all_gather_into_tensor(whole, everyone[me], async_op=True),
            )
            begin(
                "broadcast",
                root,
                everyone[step % count],
                dist.broadcast(root, step % count, async_op=True),
            )
            for name, own in (("pair", pair), ("three", three)):
                if own is not None:
                    some = everyone[me].clone()
                    wanted = reduced("SUM", [everyone[rank] for rank in MEMBERS[name]])
                    begin(name, some, wanted, dist.all_reduce(some, group=own, async_op=True))
            came, sent = torch.zeros(size), everyone[me].clone()
            begin("irecv", came, everyone[(me - 1) % count], dist.irecv(came, (me - 1) % count))
            begin("isend", sent, everyone[me], dist.isend(sent, (me + 1) % count))
        for name, work, got, wanted in reversed(waiting):
            work.wait()
            found.same(got, wanted, name, "round", step)
    return found.wrong


def futures() -> list[str]:
    """A work's future gives the result, and runs what is to come after it."""
    found, me = Findings(), dist.get_rank()
    tensor = torch.full((5,), float(me))
    work = dist.all_reduce(tensor, async_op=True)
    doubled = work.get_future().then(lambda done: done.value()[0] * 2).wait()
    found.same(doubled, torch.full((5,), 12.0), "then")
    work.wait()
    found.true(work.is_completed() and work.is_success(), "completed")
    found.same(work.result()[0] if work.result() else tensor, torch.full((5,), 6.0), "result")
    return found.wrong


def names() -> list[object]:
    """What torch says of the group."""
    return [
        dist.get_backend(),
        dist.is_backend_available(dist.get_backend()),
        dist.get_rank(),
        dist.get_world_size(),
    ]
