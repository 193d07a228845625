"""Averages over all ranks for which fewer bytes travel than the numbers have: half precision, the
largest numbers, two factors.

What a rank leaves out of a tensor it adds to the same tensor the next time (error feedback), tensor
by tensor, so nothing depends on how tensors are sent together or over which rings. N numbers in
all, n ranks; a rank sends, without headers, in an iteration

    none      2 (n-1)/n x 4 N            all-reduce of float32
    fp16      2 (n-1)/n x 2 N            all-reduce of float16
    topk      (n-1) x 8 K                all-gather of K values and places: of each tensor its size times the share, rounded up
    powersgd  2 (n-1)/n x 4 F            all-reduce of F numbers: of each matrix rank x (rows + columns), and all others

(T. Vogels et al., PowerSGD, NeurIPS 2019; S. Stich et al., Sparsified SGD with Memory, NeurIPS
2018). All ranks hold the same averages, bit by bit; with powersgd only where their processors
compute alike, as each makes the factors orthogonal itself.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Protocol

from .compression import Compression

LARGEST_HALF = 60_000.0
"""Sums of all ranks stay below this in half precision, whose largest number is 65504; what is
beyond it follows later.
"""


class Carries(Protocol):
    """Rings (rings.py), or another that carries."""

    def start(self, flat: Any) -> list[Any]: ...
    def gather(self, table: Any) -> list[Any]: ...


class Compressor(ABC):
    """Averages tensors in place: `begin` for some of them, in the same order on all ranks, and
    `finish` for all that were begun.
    """

    def __init__(self, like: Sequence[Any], world: int, carries: Carries, torch: Any) -> None:
        """like: a tensor of the shape of each that will be averaged; `begin` names them by their
        place among these.
        """
        self._world, self._carries, self._torch = world, carries, torch
        self.residuals = [torch.zeros(tensor.shape) for tensor in like]
        """What this rank has left out so far."""
        self.common: list[Any] = []
        """What all ranks hold alike."""
        self._begun: list[tuple[list[Any], Any, list[Any]]] = []

    @abstractmethod
    def begin(self, places: Sequence[int], tensors: Sequence[Any]) -> None:
        """Begin to average these."""

    def finish(self) -> None:
        """Wait for what was begun and fill in the averages. Raises: RuntimeError - a peer is gone
        or silent for the timeout.
        """
        for tensors, existing, works in self._begun:
            for work in works:
                work.wait()
            self._fill(tensors, self._averages(existing, sum(tensor.numel() for tensor in tensors)))
        self._begun.clear()

    def _averages(self, existing: Any, length: int) -> Any:
        """The averages, one after the other, that follow from what has come in."""
        return existing

    def _fill(self, tensors: Sequence[Any], flat: Any) -> None:
        for tensor, part in zip(
            tensors, flat.split([tensor.numel() for tensor in tensors]), strict=True
        ):
            tensor.copy_(part.view_as(tensor))


class Whole(Compressor):
    """Nothing is left out."""

    def __init__(self, world: int, carries: Carries, torch: Any) -> None:
        super().__init__((), world, carries, torch)

    def begin(self, places: Sequence[int], tensors: Sequence[Any]) -> None:
        flat = self._torch.cat([tensor.reshape(-1) for tensor in tensors]).div_(self._world)
        self._begun.append((list(tensors), flat, self._carries.start(flat)))


class Half(Compressor):
    """Numbers travel and are summed in half precision."""

    def begin(self, places: Sequence[int], tensors: Sequence[Any]) -> None:
        wanted = self._torch.cat(
            [(t + self.residuals[k]).reshape(-1) for k, t in zip(places, tensors, strict=True)]
        )
        most = LARGEST_HALF / self._world
        sent = (wanted / self._world).clamp_(-most, most).half()
        self._fill(
            [self.residuals[place] for place in places],
            wanted.sub_(sent.float(), alpha=self._world),
        )
        self._begun.append((list(tensors), sent, self._carries.start(sent)))

    def _averages(self, existing: Any, length: int) -> Any:
        return existing.float()


class Largest(Compressor):
    """Of each tensor the numbers that are furthest from 0 travel, with their places."""

    def __init__(
        self, like: Sequence[Any], world: int, carries: Carries, torch: Any, share: float, rank: int
    ) -> None:
        super().__init__(like, world, carries, torch)
        self._share, self._rank = share, rank

    def begin(self, places: Sequence[int], tensors: Sequence[Any]) -> None:
        torch, first = self._torch, 0
        found, values = [], []
        for place, tensor in zip(places, tensors, strict=True):
            residual = self.residuals[place].add_(tensor).view(-1)
            where = (
                residual.abs().topk(counted(self._share, residual.numel()), sorted=False).indices
            )
            found.append((where + first).int())
            values.append(residual[where])
            residual[where] = 0.0
            first += residual.numel()
        own = torch.cat([*found, *(value.view(torch.int32) for value in values)])
        table = torch.empty(self._world, own.numel(), dtype=torch.int32)
        table[self._rank] = own
        self._begun.append((list(tensors), table, self._carries.gather(table)))

    def _averages(self, existing: Any, length: int) -> Any:
        torch = self._torch
        flat, count = torch.zeros(length), existing.shape[1] // 2
        # in the order of ranks: every rank adds the same numbers in the same order
        for row in existing:
            flat.index_add_(0, row[:count], row[count:].view(torch.float32))
        return flat.div_(self._world)


def counted(share: float, size: int) -> int:
    """So many of `size` numbers are a share, rounded up, one at least.

    >>> counted(0.01, 1000), counted(0.7, 10), counted(0.001, 3), counted(1e-8, 3)
    (10, 7, 1, 1)
    """
    return max(1, math.ceil(round(share * size, 6)))


class Factors(Compressor):
    """A matrix travels as the product of two with few columns, found from those of the time before;
    other tensors travel whole.
    """

    def __init__(
        self, like: Sequence[Any], world: int, carries: Carries, torch: Any, rank: int
    ) -> None:
        super().__init__(like, world, carries, torch)
        self._all: list[tuple[int, Any]] = []
        # by place: the factor with a row for each column of the matrix
        self._right: dict[int, Any] = {}
        for place, tensor in enumerate(like):
            rows, columns = _matrix(tensor)
            width = min(rank, rows, columns)
            if width * (rows + columns) < rows * columns:
                draw = torch.Generator().manual_seed(place)
                self._right[place] = torch.randn(columns, width, generator=draw)
        self.common = list(self._right.values())

    def begin(self, places: Sequence[int], tensors: Sequence[Any]) -> None:
        self._all += zip(places, tensors, strict=True)

    def finish(self) -> None:
        """As Compressor.finish. Nothing travels before: second factors need all of the first, in an
        order common to all.
        """
        torch, begun = self._torch, self._all
        self._all = []
        wanted = {k: (t + self.residuals[k]).view(_matrix(t)) for k, t in begun if k in self._right}
        whole = [tensor for place, tensor in begun if place not in self._right]
        left = [matrix @ self._right[place] for place, matrix in wanted.items()]
        self._average([*left, *whole])
        for (place, matrix), factor in zip(wanted.items(), left, strict=True):
            factor.copy_(torch.linalg.qr(factor)[0])
            own = matrix.t() @ factor
            self.residuals[place].copy_((matrix - factor @ own.t()).view_as(self.residuals[place]))
            self._right[place].copy_(own)
        self._average([self._right[place] for place in wanted])
        averages = {
            place: factor @ self._right[place].t()
            for place, factor in zip(wanted, left, strict=True)
        }
        for place, tensor in begun:
            if place in averages:
                tensor.copy_(averages[place].view_as(tensor))

    def _average(self, tensors: Sequence[Any]) -> None:
        if tensors:
            flat = self._torch.cat([tensor.reshape(-1) for tensor in tensors]).div_(self._world)
            for work in self._carries.start(flat):
                work.wait()
            self._fill(tensors, flat)


def _matrix(tensor: Any) -> tuple[int, int]:
    rows = tensor.shape[0] if tensor.dim() > 1 else 1
    return rows, tensor.numel() // rows


def compressor(
    wanted: Compression, like: Sequence[Any], rank: int, world: int, carries: Carries, torch: Any
) -> Compressor:
    """What averages tensors of these shapes."""
    if wanted.kind == "fp16":
        return Half(like, world, carries, torch)
    if wanted.kind == "topk":
        return Largest(like, world, carries, torch, wanted.share, rank)
    if wanted.kind == "powersgd":
        return Factors(like, world, carries, torch, wanted.rank)
    return Whole(world, carries, torch)


def compressing_hook(
    by: Compressor, parameters: Sequence[Any], torch: Any, seen: Sequence[Any] = ()
) -> Any:
    """Return a DistributedDataParallel communication hook that averages all buckets by `by`; the
    last one waits for all of them.

    parameters: of the model, in the order of what `by` was made for. Each of `seen` is called with
    the bucket before it is sent.
    """
    place = {id(parameter): k for k, parameter in enumerate(parameters)}

    def hook(_state: object, bucket: Any) -> Any:
        for look in seen:
            look(bucket)
        by.begin([place[id(parameter)] for parameter in bucket.parameters()], bucket.gradients())
        if bucket.is_last():
            by.finish()
        future = torch.futures.Future()
        future.set_result(bucket.buffer())
        return future

    hook.__annotations__ = {
        "bucket": torch.distributed.GradBucket,
        "return": torch.futures.Future[torch.Tensor],
    }
    return hook
