"""The process group that torch's functions call: those collectives that rings carry."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from . import passes
from .channel import Collective, describe
from .membership import Membership
from .name import NAME
from .pairs import Pairs
from .tensors import Flat, check, ending, function_of, one
from .uncompiled import uncompiled
from .work import Work


@uncompiled
class Named(dist.ProcessGroup):  # type: ignore[misc]
    """What torch asks every process group."""

    def __init__(self, membership: Membership) -> None:
        super().__init__(membership.rank, membership.size)
        self._membership = membership
        self._pairs = Pairs(membership)
        self._group_name = self._group_desc = ""
        self._coalesced: list[Work] | None = None

    def getBackendName(self) -> str:
        return NAME

    def getRank(self) -> int:
        return self._membership.rank

    def getSize(self) -> int:
        return self._membership.size

    def setGroupName(self, name: str) -> None:
        self._group_name = name

    def getGroupName(self) -> str:
        return self._group_name

    def setGroupDesc(self, desc: str) -> None:
        self._group_desc = desc

    def getGroupDesc(self) -> str:
        return self._group_desc

    def _start_coalescing(self, _device: Any) -> None:
        self._coalesced = []

    def _end_coalescing(self, _device: Any) -> Work:
        works, self._coalesced = self._coalesced or [], None
        return Work.of(works)

    def _issued(self, work: Work) -> Work:
        if self._coalesced is not None:
            self._coalesced.append(work)
        return work

    def shutdown(self) -> None:
        """Leave the group; what was issued is done first."""
        self._membership.close()

    def abort(self) -> None:
        """Leave at once."""
        self._membership.close(0)


@uncompiled
class Paired(Named):
    """The collectives that are messages from one rank to another."""

    def send(self, tensors: list[Any], dst: int, tag: int = 0) -> Work:
        return self._issued(self._pairs.send(one(tensors, "send"), dst, tag))

    def recv(self, tensors: list[Any], src: int, tag: int = 0) -> Work:
        return self._issued(self._pairs.receive(one(tensors, "recv"), src, tag))

    def recv_anysource(self, tensors: list[Any], tag: int = 0) -> Work:
        raise ValueError("testbed: recv from any rank: name the rank to receive from (src)")

    def gather(self, outputs: list[list[Any]], inputs: list[Any], opts: Any) -> Work:
        existing = one(outputs, "gather") if self.rank() == opts.rootRank else []
        return self._issued(self._pairs.gather(existing, one(inputs, "gather"), opts.rootRank))

    def scatter(self, outputs: list[Any], inputs: list[list[Any]], opts: Any) -> Work:
        existing = one(inputs, "scatter") if self.rank() == opts.rootRank else []
        return self._issued(self._pairs.scatter(one(outputs, "scatter"), existing, opts.rootRank))

    def alltoall(self, outputs: list[Any], inputs: list[Any], opts: Any = None) -> Work:
        return self._issued(self._pairs.all_to_all(outputs, inputs, outputs))

    def all_to_all_single(
        self,
        output: Any,
        input: Any,
        output_splits: list[int],
        input_splits: list[int],
        opts: Any = None,
    ) -> Work:
        parts = self._split(output, output_splits), self._split(input, input_splits)
        return self._issued(self._pairs.all_to_all(*parts, [output]))

    def _split(self, tensor: Any, sizes: list[int]) -> list[Any]:
        """The parts of a tensor by rank, along its first dimension. Raises: ValueError - it cannot
        be cut so.
        """
        size = self.size()
        if not tensor.is_contiguous() and tensor.numel():
            raise ValueError("testbed: all_to_all: a tensor is not contiguous")
        rows = tensor.shape[0] if tensor.dim() else 1
        parts = sizes or [rows // size] * size
        if sum(parts) != rows or len(parts) != size:
            raise ValueError(
                f"testbed: all_to_all: {rows} rows are not cut into {size} parts by {parts}"
            )
        return list(tensor.detach().split(parts))

    alltoall_base = all_to_all_single


@uncompiled
class Group(Paired):
    """A group of ranks. Collectives begin in the order in which they are called, and return a
    Work.
    """

    @classmethod
    def create(cls, options: Any) -> Group:
        """A group as torch describes it (DistributedBackendOptions)."""
        return cls(Membership.of(options))

    def _start(
        self,
        name: str,
        tensors: Any,
        flats: Sequence[Any],
        carried: Sequence[tuple[passes.Pass, int, int]],
        finish: Any,
        counted: bool = True,
    ) -> Work:
        """Issue a collective: `carried` as in channel.Collective; without numbers, or with one
        rank, it is done at once.
        """
        work = Work(tensors)
        if self._membership.size == 1 or not any(elements for _, elements, _ in carried):
            finish()
            work.succeed()
            return self._issued(work)
        whole = Collective(describe(name, flats), work, carried, finish=finish, counted=counted)
        return self._issued(self._membership.channel.issue(whole))

    # combining

    def allreduce(self, tensors: list[Any], opts: Any = None) -> Work:
        return self.allreduce_coalesced([one(tensors, "all_reduce")], opts)

    def allreduce_coalesced(self, tensors: list[Any], opts: Any = None) -> Work:
        operation = dist.ReduceOp.SUM if opts is None else opts.reduceOp
        flats = [Flat(tensor) for tensor in tensors]
        carried = [
            (
                passes.all_reduce(flat.buffer, function_of(operation, tensor)),
                flat.elements,
                flat.bytes,
            )
            for flat, tensor in zip(flats, tensors, strict=True)
        ]
        return self._start(
            "all_reduce", tensors, tensors, carried, ending(operation, self.size(), flats)
        )

    def reduce(self, tensors: list[Any], opts: Any) -> Work:
        tensor = one(tensors, "reduce")
        flat, root = Flat(tensor), opts.rootRank
        carried = [
            (
                passes.reduce(flat.buffer, root, function_of(opts.reduceOp, tensor)),
                flat.elements,
                flat.bytes,
            )
        ]
        finish = ending(opts.reduceOp, self.size(), [flat] if self.rank() == root else [])
        return self._start("reduce", tensors, tensors, carried, finish, counted=False)

    def reduce_scatter(self, outputs: list[Any], inputs: list[list[Any]], opts: Any = None) -> Work:
        return self._reduce_scatter(
            [(one(outputs, "reduce_scatter"), one(inputs, "reduce_scatter"))], outputs, opts
        )

    def reduce_scatter_single(self, output: Any, input: Any, opts: Any = None) -> Work:
        return self.reduce_scatter_single_coalesced([output], [input], opts)

    def reduce_scatter_single_coalesced(
        self, outputs: list[Any], inputs: list[Any], opts: Any = None
    ) -> Work:
        pairs = [
            (output, self._chunks(input, output, "reduce_scatter"))
            for output, input in zip(outputs, inputs, strict=True)
        ]
        return self._reduce_scatter(pairs, outputs, opts)

    def _reduce_scatter(
        self, pairs: Sequence[tuple[Any, Sequence[Any]]], outputs: list[Any], opts: Any
    ) -> Work:
        operation = dist.ReduceOp.SUM if opts is None else opts.reduceOp
        flats, carried = [], []
        for output, inputs in pairs:
            check(dict(enumerate(inputs)), output.numel(), "reduce_scatter")
            into = Flat(output, fill=False)
            given = [Flat(tensor).buffer for tensor in inputs]
            if len(given) == 1:
                into.numbers.copy_(given[0].tensor)
            combine = passes.reduce_scatter(given, into.buffer, function_of(operation, output))
            flats.append(into)
            carried.append((combine, into.elements, into.bytes * len(given)))
        return self._start(
            "reduce_scatter", outputs, outputs, carried, ending(operation, self.size(), flats)
        )

    # passing on

    def broadcast(self, tensors: list[Any], opts: Any) -> Work:
        tensor = one(tensors, "broadcast")
        flat = Flat(tensor)
        carried = [(passes.broadcast(flat.buffer, opts.rootRank), flat.elements, flat.bytes)]
        return self._start("broadcast", tensors, tensors, carried, flat.store, counted=False)

    def allgather(self, outputs: list[list[Any]], inputs: list[Any], opts: Any = None) -> Work:
        return self._all_gather([(one(outputs, "all_gather"), one(inputs, "all_gather"))], outputs)

    def allgather_coalesced(
        self, outputs: list[list[Any]], inputs: list[Any], opts: Any = None
    ) -> Work:
        return self._all_gather(
            [([of[k] for of in outputs], input) for k, input in enumerate(inputs)], outputs
        )

    def all_gather_single(self, output: Any, input: Any, opts: Any = None) -> Work:
        return self.all_gather_single_coalesced([output], [input], opts)

    def all_gather_single_coalesced(
        self, outputs: list[Any], inputs: list[Any], opts: Any = None
    ) -> Work:
        pairs = [
            (self._chunks(output, input, "all_gather"), input)
            for output, input in zip(outputs, inputs, strict=True)
        ]
        return self._all_gather(pairs, outputs)

    def _all_gather(self, pairs: Sequence[tuple[Sequence[Any], Any]], outputs: Any) -> Work:
        stored, carried, counted = [], [], False
        for each, input in pairs:
            if len(each) != self.size():
                raise ValueError(
                    f"testbed: all_gather: {len(each)} tensors for {self.size()} ranks"
                )
            own = each[self.rank()]
            check({self.rank(): own}, input.numel(), "all_gather")
            if own.data_ptr() != input.data_ptr() or not own.is_contiguous():
                own.detach().copy_(
                    input.detach().view(own.shape)
                    if input.is_contiguous()
                    else input.detach().reshape(own.shape)
                )
            flats = [Flat(tensor, fill=rank == self.rank()) for rank, tensor in enumerate(each)]
            stored += flats
            counted = counted or all(flat.elements for flat in flats)
            if len({flat.elements for flat in flats}) == 1:
                gather = passes.all_gather([flat.buffer for flat in flats])
                carried.append((gather, flats[0].elements, flats[0].bytes * len(flats)))
            else:
                carried += [
                    (passes.broadcast(flat.buffer, rank), flat.elements, flat.bytes)
                    for rank, flat in enumerate(flats)
                ]
        inputs = [input for _, input in pairs]
        return self._start("all_gather", outputs, inputs, carried, ending(None, 1, stored), counted)

    def _chunks(self, whole: Any, part: Any, what: str) -> list[Any]:
        """The parts of a tensor by rank. Raises: ValueError - it has not one of this size for each
        rank.
        """
        size = self.size()
        if whole.numel() != part.numel() * size:
            raise ValueError(
                f"testbed: {what}: {whole.numel()} numbers are not {size} times {part.numel()}"
            )
        if not whole.is_contiguous():
            raise ValueError(f"testbed: {what}: the tensor for all ranks is not contiguous")
        return list(whole.detach().view(size, -1).unbind(0))

    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    # meeting

    def barrier(self, opts: Any = None) -> Work:
        tensor = torch.zeros(1, dtype=torch.uint8)
        flat = Flat(tensor)
        carried = [(passes.all_reduce(flat.buffer, torch.add), 1, 1)]
        return self._start("barrier", [tensor], [tensor], carried, lambda: None)

    def monitored_barrier(self, timeout: Any = None, wait_all_ranks: bool = False) -> None:
        """A barrier; a rank that is lost is named in the error."""
        work = self.barrier()
        if timeout is None:
            work.wait()
        else:
            work.wait(timeout)
