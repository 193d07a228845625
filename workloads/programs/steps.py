"""One training iteration: forward, backward, update, the exchange between ranks, and the times of
all that.

`EachIteration` averages gradients while backward still runs (DistributedDataParallel). `Seldom` is
local SGD (S. Stich, Local SGD converges fast and communicates little, ICLR 2019): each rank steps
by its own gradients, and every so many iterations all ranks average by how far their weights have
come since they last held the same. Momentum remains each rank's own. `TwoLevels` is both: ranks of
a site average gradients, and sites how far they have come (see outer.py).
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..collectives.rings import Inside, averaging_hook
from ..progress.records import Clock, rates
from ..training.compressors import Compressor, compressing_hook
from ..training.momentum import step
from ..training.outer import Outer, taking_part

if TYPE_CHECKING:
    import argparse

    from ..collectives.rings import Rings
    from .observers import Observer
    from .program import Job


def round_end(iteration: int, length: int, most: int) -> int:
    """At the end of which iteration, from this one on, ranks agree that do so after every `length`
    iterations and after the last.

    >>> [round_end(iteration, 4, 6) for iteration in (1, 4, 5, 6)], round_end(5, 4, 0)
    ([4, 4, 6, 6], 8)
    """
    end = -(-iteration // length) * length
    return min(end, most) if most else end


class Step(ABC):
    """An iteration of a model, of which a subclass says how ranks average."""

    def __init__(self, job: Job, module: Any, momentum: Sequence[Any], lr: float) -> None:
        self._job, self._module, self._momentum, self._lr = job, module, momentum, lr
        self._clock = Clock()
        # of this iteration: (when something was ready, monotonic ns; its bytes)
        self._exchanged: list[tuple[int, int]] = []
        self._begin_ns = self._summed_ns = 0
        self._took_ms: list[float] = []
        self.observers: Sequence[Observer] = ()
        # what this rank has sent to other sites, in bytes
        self.wide = 0
        # computing lasts at least so long
        self.compute_s = 0.0

    @abstractmethod
    def _backward(self, inputs: Any, target: Any) -> Any:
        """Compute the gradients, on return those that this rank steps by; return the loss."""

    @abstractmethod
    def _agree(self, iteration: int) -> None:
        """After the update, in an iteration at whose end all ranks hold the same weights: have them
        hold the same.
        """

    def _average(self, by: Compressor, outer: Outer, weight: float = 1.0) -> None:
        """Step by the average of how far all ranks have come. weight: of this rank in it."""
        parameters = list(self._module.parameters())
        removed = outer.removed(parameters, weight)
        self._job.synchronize()
        self._ready(sum(each.numel() * each.element_size() for each in removed), last=True)
        by.begin(range(len(removed)), removed)
        by.finish()
        self._summed()
        outer.step(parameters, removed)

    def run(
        self, iteration: int, inputs: Any, target: Any, *, agree: bool = True
    ) -> dict[str, Any]:
        """Run one iteration and return its record. agree: at its end all ranks hold the same
        weights.

        comm_ms is the exposed part: from when computing is done to all sums being there. bytes:
        what is averaged; wire_bytes: what this rank sent for that, where it is known; wide_bytes: of
        these, what went to other sites. resent_bytes, lost_share: as lossy.Datagrams.notes. algbw
        is of bytes, busbw of what a rank sends, both over the time in which any sum was on its way.
        With nccl times are the host's view, after the device has been waited for.
        """
        torch, job = self._job.torch, self._job
        self._exchanged.clear()
        sent, wide = job.rings.sent, job.rings.wide
        begin_ns = self._begin_ns = time.monotonic_ns()
        self._module.zero_grad(set_to_none=True)
        loss = self._backward(inputs.to(job.rings.device), target.to(job.rings.device))
        parameters = list(self._module.parameters())
        for observer in self.observers:
            observer.before_step()
        step(
            torch,
            (parameters, self._momentum),
            [parameter.grad for parameter in parameters],
            self._lr,
        )
        for observer in self.observers:
            observer.after_step(iteration)
        value = float(loss.detach())
        if agree:
            self._agree(iteration)
        took_ms = (time.monotonic_ns() - begin_ns) / 1e6
        job.heartbeat.end()
        self._took_ms.append(took_ms)
        record = {
            "iter": iteration,
            "t_wall_ns": self._clock.wall_ns(begin_ns),
            "iter_ms": round(took_ms, 3),
        }
        if not self._exchanged:
            return record | {"comm_ms": 0.0, "loss": round(value, 6)}
        size, seconds = (
            sum(size for _, size in self._exchanged),
            (self._summed_ns - self._exchanged[0][0]) / 1e9,
        )
        wire = None if sent is None else job.rings.sent - sent
        crossed = None if wide is None else (job.rings.wide or 0) - wide
        self.wide += crossed or 0
        return record | {
            "comm_ms": round((self._summed_ns - self._exchanged[-1][0]) / 1e6, 3),
            "loss": round(value, 6),
            "bytes": size,
            **({} if wire is None else {"wire_bytes": wire}),
            **({} if crossed is None else {"wide_bytes": crossed}),
            **({} if job.rings.exchange is None else job.rings.exchange.notes()),
            **rates(size, seconds, job.place.world, wire),
        }

    def _computed(self) -> None:
        """Computing is done, as soon as it has lasted `compute_s`."""
        time.sleep(max(0.0, self.compute_s - (time.monotonic_ns() - self._begin_ns) / 1e9))

    def _ready(self, size_bytes: int, *, last: bool) -> None:
        """So much is ready to be exchanged; last: computing is done."""
        self._exchanged.append((time.monotonic_ns(), size_bytes))
        if last:
            self._job.heartbeat.exchange()

    def _summed(self) -> None:
        """All that was exchanged is there."""
        self._job.synchronize()
        self._summed_ns = time.monotonic_ns()
        self._job.heartbeat.exchanged()

    def _loss(self, model: Any, inputs: Any, target: Any) -> Any:
        return self._job.torch.nn.functional.cross_entropy(model(inputs), target)

    def median_ms(self) -> float | None:
        """Return the median time of an iteration (ms), the first, which sets things up, left out
        where there are others.
        """
        took = sorted(self._took_ms[1:] or self._took_ms)
        return round(took[len(took) // 2], 3) if took else None


class EachIteration(Step):
    """Gradients are averaged in every iteration."""

    def __init__(
        self,
        job: Job,
        module: Any,
        momentum: Sequence[Any],
        lr: float,
        bucket_mb: float,
        by: Compressor | None = None,
        rings: Rings | Inside | None = None,
    ) -> None:
        """by: what averages them, in place of sums of whole gradients. rings: over which, if not
        over the job's.
        """
        super().__init__(job, module, momentum, lr)
        gpus = [job.rings.device] if job.rings.backend == "nccl" else None
        self._model = job.torch.nn.parallel.DistributedDataParallel(
            module, device_ids=gpus, bucket_cap_mb=bucket_mb, gradient_as_bucket_view=True
        )
        hook = (
            averaging_hook(rings or job.rings, job.torch, [self._see])
            if by is None
            else compressing_hook(by, list(module.parameters()), job.torch, [self._see])
        )
        self._model.register_comm_hook(None, hook)

    def _see(self, bucket: Any) -> None:
        flat = bucket.buffer()
        if bucket.is_last():
            self._computed()
        self._ready(flat.numel() * flat.element_size(), last=bucket.is_last())
        for observer in self.observers:
            observer.see(bucket, self._job.rings.current)

    def _backward(self, inputs: Any, target: Any) -> Any:
        loss = self._loss(self._model, inputs, target)
        loss.backward()
        self._summed()
        return loss

    def _agree(self, iteration: int) -> None:
        """They hold the same already."""


class TwoLevels(EachIteration):
    """Gradients are averaged inside a site in every iteration, and between sites how far they have
    come when all ranks are to agree.
    """

    def __init__(
        self,
        job: Job,
        module: Any,
        momentum: Sequence[Any],
        arguments: argparse.Namespace,
        by: Compressor,
        speed: Sequence[Any],
    ) -> None:
        """by: what averages between sites; speed: as Outer."""
        inside = Inside(job.rings)
        super().__init__(job, module, momentum, arguments.lr, arguments.bucket_mb, None, inside)
        outer = arguments.outer_lr, arguments.outer_momentum
        self._outer = Outer(job.torch, list(module.parameters()), speed, *outer)
        self._by, self._share, self._seed = by, arguments.site_share, arguments.seed

    def _agree(self, iteration: int) -> None:
        place = self._job.place
        chosen = taking_part(place.sites, self._share, self._seed, iteration)
        ranks = sum(site in chosen for site in place.sites)
        mine = place.sites[place.rank] in chosen
        self._average(self._by, self._outer, place.world / ranks if mine else 0.0)
        # what is exposed began with the sums inside, and bytes are those of gradients
        self._exchanged.pop()


class Seldom(Step):
    """Ranks step by their own gradients, and average how far they have come when they are to
    agree.
    """

    def __init__(
        self, job: Job, module: Any, momentum: Sequence[Any], lr: float, by: Compressor
    ) -> None:
        super().__init__(job, module, momentum, lr)
        self._by, self._outer = by, Outer(job.torch, list(module.parameters()), (), 1.0, 0.0)

    def _backward(self, inputs: Any, target: Any) -> Any:
        loss = self._loss(self._module, inputs, target)
        loss.backward()
        self._computed()
        # the heartbeat counts as computing what is no exchange, once there is one
        self._job.heartbeat.exchange()
        self._job.heartbeat.exchanged()
        return loss

    def _agree(self, iteration: int) -> None:
        self._average(self._by, self._outer)
