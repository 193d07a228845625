"""Cases: each collective, over types, operations, sizes, memory layouts, groups and styles."""

from __future__ import annotations

import hashlib
import itertools
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from tests.backend.judging import (
    MEMBERS,
    SIZES,
    STYLES,
    Findings,
    carry_out,
    group,
    reduced,
    shaped,
    values,
)


def _type(name: str) -> torch.dtype:
    found: torch.dtype = getattr(torch, name)
    return found


def _op(name: str) -> Any:
    return getattr(dist.ReduceOp, name)


def _all(dtype: torch.dtype, size: int, members: list[int], salt: int = 0) -> list[Tensor]:
    return [values(rank, size, dtype, salt) for rank in members]


def all_reduce(dtype: str, ops: list[str], among: str = "world") -> list[str]:
    found, members, own = Findings(), MEMBERS[among], group(among)
    if own is None:
        return []
    for op, size, style in itertools.product(ops, SIZES, STYLES):
        wanted = reduced(op, _all(_type(dtype), size, members))
        for layout, tensor in shaped(values(dist.get_rank(), size, _type(dtype))):
            with found.trying("all_reduce", dtype, op, size, style, layout):
                carry_out(style, dist.all_reduce, tensor, _op(op), group=own)
                found.same(tensor.flatten(), wanted, "all_reduce", dtype, op, size, style, layout)
    return found.wrong


def all_reduce_of_fractions(dtype: str, size: int) -> str:
    """The digest of a sum that depends on the order of summation; it must be the same on all ranks,
    and near the true sum.
    """
    dice = torch.Generator().manual_seed(5)
    brought = torch.rand(len(MEMBERS["world"]), size, generator=dice).to(_type(dtype))
    tensor = brought[dist.get_rank()].clone()
    dist.all_reduce(tensor)
    torch.testing.assert_close(
        tensor.double(),
        brought.double().sum(0),
        rtol=1e-5 if dtype == "float32" else 2e-2,
        atol=1e-5,
    )
    return hashlib.sha256(tensor.view(torch.uint8).numpy().tobytes()).hexdigest()


def reduce(dtype: str, ops: list[str], among: str = "world") -> list[str]:
    found, members, own = Findings(), MEMBERS[among], group(among)
    if own is None:
        return []
    for op, size, style, to in itertools.product(ops, SIZES, STYLES, members):
        wanted = reduced(op, _all(_type(dtype), size, members))
        for layout, tensor in shaped(values(dist.get_rank(), size, _type(dtype))):
            with found.trying("reduce", dtype, op, size, style, layout, to):
                carry_out(style, dist.reduce, tensor, to, _op(op), group=own)
                if dist.get_rank() == to:
                    found.same(
                        tensor.flatten(), wanted, "reduce", dtype, op, size, style, layout, to
                    )
    return found.wrong


def broadcast(dtype: str, among: str = "world") -> list[str]:
    found, members, own = Findings(), MEMBERS[among], group(among)
    if own is None:
        return []
    for size, style, source in itertools.product(SIZES, STYLES, members):
        wanted = values(source, size, _type(dtype))
        for layout, tensor in shaped(values(dist.get_rank(), size, _type(dtype))):
            with found.trying("broadcast", dtype, size, style, layout, source):
                carry_out(style, dist.broadcast, tensor, source, group=own)
                found.same(
                    tensor.flatten(), wanted, "broadcast", dtype, size, style, layout, source
                )
    return found.wrong


def all_gather(dtype: str, among: str = "world") -> list[str]:
    """Into lists, with sizes that are equal and that differ from rank to rank ("Uneven sized
    tensors are supported").
    """
    found, members, own = Findings(), MEMBERS[among], group(among)
    if own is None:
        return []
    for size, style, uneven in itertools.product(SIZES, STYLES, (0, 1)):
        wanted = [
            values(rank, size + uneven * 2 * at, _type(dtype)) for at, rank in enumerate(members)
        ]
        for layout, tensor in shaped(wanted[members.index(dist.get_rank())]):
            if tensor.dim() != 1 and uneven:
                continue
            with found.trying("all_gather", dtype, size, style, layout, uneven):
                wide = 1 if layout == "contiguous" else 2
                shapes = [each.shape if tensor.dim() == 1 else tensor.shape for each in wanted]
                outputs = [
                    torch.zeros(*shape, wide, dtype=tensor.dtype)[..., 0] for shape in shapes
                ]
                carry_out(style, dist.all_gather, outputs, tensor, group=own)
                for got, each in zip(outputs, wanted, strict=True):
                    found.same(
                        got.flatten(), each, "all_gather", dtype, size, style, layout, uneven
                    )
    return found.wrong


def all_gather_single(dtype: str, among: str = "world") -> list[str]:
    """Into one tensor: joined along the first dimension, and stacked along a new one."""
    found, members, own = Findings(), MEMBERS[among], group(among)
    if own is None:
        return []
    for size, style, name in itertools.product(
        SIZES, STYLES, ("all_gather_into_tensor", "all_gather_single")
    ):
        wanted = _all(_type(dtype), size, members)
        for layout, tensor in shaped(wanted[members.index(dist.get_rank())]):
            if tensor.dim() != 1 or not hasattr(dist, name):
                continue
            with found.trying(name, dtype, size, style, layout):
                joined = torch.zeros(len(members) * size, dtype=tensor.dtype)
                carry_out(style, getattr(dist, name), joined, tensor, group=own)
                found.same(joined, torch.cat(wanted), name, dtype, size, style, layout, "joined")
                stacked = torch.zeros(len(members), size, dtype=tensor.dtype)
                carry_out(style, getattr(dist, name), stacked, tensor, group=own)
                found.same(
                    stacked, torch.stack(wanted), name, dtype, size, style, layout, "stacked"
                )
    return found.wrong


def gather_and_scatter(dtype: str, among: str = "world") -> list[str]:
    found, members, own = Findings(), MEMBERS[among], group(among)
    if own is None:
        return []
    me = dist.get_rank()
    for size, style, root in itertools.product(SIZES, STYLES, members):
        wanted = _all(_type(dtype), size, members)
        for layout, tensor in shaped(values(me, size, _type(dtype))):
            with found.trying("gather", dtype, size, style, layout, root):
                outputs = [torch.zeros_like(tensor) for _ in members] if me == root else None
                carry_out(style, dist.gather, tensor, outputs, root, group=own)
                for got, each in zip(outputs or [], wanted, strict=False):
                    found.same(got.flatten(), each, "gather", dtype, size, style, layout, root)
            with found.trying("scatter", dtype, size, style, layout, root):
                inputs = (
                    [next(shaped(each))[1].view(tensor.shape) for each in wanted]
                    if me == root
                    else None
                )
                carry_out(style, dist.scatter, tensor, inputs, root, group=own)
                found.same(
                    tensor.flatten(),
                    wanted[members.index(me)],
                    "scatter",
                    dtype,
                    size,
                    style,
                    layout,
                    root,
                )
    return found.wrong


def reduce_scatter(dtype: str, ops: list[str], among: str = "world") -> list[str]:
    """From lists, with parts that are equal and that differ from rank to rank, and from one
    tensor.
    """
    found, members, own = Findings(), MEMBERS[among], group(among)
    if own is None:
        return []
    me, count = members.index(dist.get_rank()), len(members)
    for op, size, style in itertools.product(ops, SIZES, STYLES):
        brought = {
            rank: [values(rank, size, _type(dtype), salt=to) for to in range(count)]
            for rank in members
        }
        wanted = reduced(op, [brought[rank][me] for rank in members])
        for layout, output in shaped(torch.zeros(size, dtype=_type(dtype))):
            with found.trying("reduce_scatter", dtype, op, size, style, layout):
                inputs = [each.clone().view(output.shape) for each in brought[members[me]]]
                carry_out(style, dist.reduce_scatter, output, inputs, _op(op), group=own)
                found.same(
                    output.flatten(), wanted, "reduce_scatter", dtype, op, size, style, layout
                )
        for name in ("reduce_scatter_tensor", "reduce_scatter_single"):
            if not hasattr(dist, name):
                continue
            for form in (torch.cat, torch.stack):
                with found.trying(name, dtype, op, size, style, form.__name__):
                    output, whole = (
                        torch.zeros(size, dtype=_type(dtype)),
                        form(brought[members[me]]),
                    )
                    kept = whole.clone()
                    carry_out(style, getattr(dist, name), output, whole, _op(op), group=own)
                    found.same(output, wanted, name, dtype, op, size, style, form.__name__)
                    found.same(
                        whole, kept, name, dtype, op, size, style, form.__name__, "the input"
                    )
    return found.wrong


def all_to_all(dtype: str, among: str = "world") -> list[str]:
    """Lists of equal tensors, and one tensor in equal parts and in parts that differ, some of them
    empty.
    """
    found, members, own = Findings(), MEMBERS[among], group(among)
    if own is None:
        return []
    me, count, typed = members.index(dist.get_rank()), len(members), _type(dtype)

    def part(sender: int, to: int, size: int) -> Tensor:
        return values(members[sender], size, typed, salt=to)

    for size, style in itertools.product(SIZES, STYLES):
        wanted = [part(sender, me, size) for sender in range(count)]
        with found.trying("all_to_all", dtype, size, style):
            outputs = [torch.zeros(size, dtype=typed) for _ in members]
            carry_out(
                style,
                dist.all_to_all,
                outputs,
                [part(me, to, size) for to in range(count)],
                group=own,
            )
            for got, each in zip(outputs, wanted, strict=True):
                found.same(got, each, "all_to_all", dtype, size, style)
        with found.trying("all_to_all_single", dtype, size, style):
            joined = torch.zeros(count * size, dtype=typed)
            carry_out(
                style,
                dist.all_to_all_single,
                joined,
                torch.cat([part(me, to, size) for to in range(count)]),
                group=own,
            )
            found.same(joined, torch.cat(wanted), "all_to_all_single", dtype, size, style)
        with found.trying("all_to_all_single, uneven", dtype, size, style):
            sizes = [
                [size * ((sender + 2 * to) % 3) for to in range(count)] for sender in range(count)
            ]
            sent, taken = sizes[me], [sizes[sender][me] for sender in range(count)]
            joined = torch.zeros(sum(taken), 2, dtype=typed)
            rows = torch.cat([part(me, to, 2 * n).view(n, 2) for to, n in enumerate(sent)])
            carry_out(style, dist.all_to_all_single, joined, rows, taken, sent, group=own)
            whole = torch.cat(
                [part(sender, me, 2 * n).view(n, 2) for sender, n in enumerate(taken)]
            )
            found.same(joined, whole, "all_to_all_single, uneven", dtype, size, style)
    return found.wrong


def all_to_all_of_uneven_lists(among: str = "world") -> list[str]:
    found, members, own = Findings(), MEMBERS[among], group(among)
    if own is None:
        return []
    me, count = members.index(dist.get_rank()), len(members)
    with found.trying("all_to_all, uneven"):
        outputs = [torch.zeros(2, 3 * sender + me) for sender in range(count)]
        dist.all_to_all(
            outputs,
            [torch.full((2, 3 * me + to), float(10 * me + to)) for to in range(count)],
            group=own,
        )
        for sender, got in enumerate(outputs):
            found.same(
                got,
                torch.full((2, 3 * sender + me), float(10 * sender + me)),
                "all_to_all, uneven",
                sender,
            )
    return found.wrong


def large(elements: int) -> list[str]:
    """One large sum, gather and exchange: more than any buffer between two ranks takes at once."""
    found, me, count = Findings(), dist.get_rank(), dist.get_world_size()
    mine = values(me, elements, torch.float32)
    total = mine.clone()
    dist.all_reduce(total)
    found.same(
        total,
        reduced("SUM", _all(torch.float32, elements, list(range(count)))),
        "all_reduce",
        elements,
    )
    whole = torch.zeros(count * elements)
    dist.all_gather_into_tensor(whole, mine)
    found.same(
        whole,
        torch.cat(_all(torch.float32, elements, list(range(count)))),
        "all_gather_into_tensor",
        elements,
    )
    part = torch.zeros(elements)
    dist.reduce_scatter_tensor(part, whole)
    found.same(part, count * mine, "reduce_scatter_tensor", elements)
    exchanged = torch.zeros(count * elements)
    dist.all_to_all_single(exchanged, whole)
    found.same(exchanged, mine.repeat(count), "all_to_all_single", elements)
    right, left, came = (me + 1) % count, (me - 1) % count, torch.zeros(elements)
    for work in dist.batch_isend_irecv(
        [dist.P2POp(dist.isend, mine, right), dist.P2POp(dist.irecv, came, left)]
    ):
        work.wait()
    found.same(came, values(left, elements, torch.float32), "batch_isend_irecv", elements)
    return found.wrong


def complex_numbers() -> list[str]:
    """torch sends complex tensors as pairs of real ones."""
    found, me, count = Findings(), dist.get_rank(), dist.get_world_size()
    tensor = torch.complex(values(me, 7, torch.float32), values(me, 7, torch.float32, salt=1))
    everyone = [
        torch.complex(values(rank, 7, torch.float32), values(rank, 7, torch.float32, salt=1))
        for rank in range(count)
    ]
    total, gathered = tensor.clone(), [torch.zeros_like(tensor) for _ in range(count)]
    dist.all_reduce(total)
    found.same(total, reduced("SUM", everyone), "all_reduce")
    dist.all_gather(gathered, tensor)
    found.same(torch.stack(gathered), torch.stack(everyone), "all_gather")
    return found.wrong
