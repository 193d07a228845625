"""Gradients over the rings, for programs that keep gloo or nccl as their process group.

from testbed_torch import hook
model.register_comm_hook(None, hook)
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from .channel import Collective
from .passes import all_reduce
from .tensors import Flat
from .work import Work
from .world import World

TIMEOUT = timedelta(minutes=30)
"""Of the rings, where the environment gives none: as torch's own groups."""


def hook(_state: object, bucket: Any) -> Any:
    """Average a bucket of gradients over all ranks: a communication hook for
    DistributedDataParallel.

    The first bucket connects the rings; all ranks have the same buckets in the same order. Raises:
    RuntimeError - a peer is gone, or does not come. ValueError - the environment is wrong.
    """
    gradients = bucket.buffer()
    work = Work(gradients)
    if dist.get_world_size() == 1:
        work.succeed()
        return work.get_future()
    world = World.current
    if world is None:
        store = dist.PrefixStore("testbed/hook", dist.distributed_c10d._get_default_store())
        world = World.current = World(store, dist.get_rank(), dist.get_world_size(), TIMEOUT)
    present = gradients.div_(world.size)
    flat = Flat(present if present.device.type == "cpu" else present.cpu())

    def finish() -> None:
        if present.device.type != "cpu":
            present.copy_(flat.numbers)

    carried = [(all_reduce(flat.buffer, torch.add), flat.elements, flat.bytes)]
    world.channel.issue(Collective("gradients", work, carried, finish=finish))
    return work.get_future()


hook.__annotations__ = {
    "bucket": dist.GradBucket,
    "return": torch.futures.Future[torch.Tensor],
}  # torch compares with its own types
