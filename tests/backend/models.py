"""Cases: what trains models over the group. Each is done once over the back-end and once over gloo,
in the same processes.
"""

from __future__ import annotations

import hashlib
import warnings
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

from tests.backend.judging import reference

STEPS = 6
MOST = 60_000
"""Iterations of a training that nobody ends."""


class Model(nn.Module):
    """Layers whose sizes no number of ranks divides; `used` says whether the side branch takes
    part.
    """

    def __init__(self) -> None:
        super().__init__()
        self.first, self.side, self.last = nn.Linear(13, 31), nn.Linear(31, 31), nn.Linear(31, 3)

    def forward(self, x: Tensor, used: bool = True) -> Tensor:
        hidden = torch.tanh(self.first(x))
        if used:
            hidden = hidden + self.side(hidden)
        out: Tensor = self.last(hidden)
        return out


def _model() -> Model:
    torch.manual_seed(3)
    return Model()


def _batch(step: int) -> tuple[Tensor, Tensor]:
    dice = torch.Generator().manual_seed(100 * step + dist.get_rank())
    return torch.randn(4, 13, generator=dice), torch.randint(3, (4,), generator=dice)


def _train(
    model: nn.Module, *, accumulate: int = 1, alternate: bool = False, steps: int = STEPS
) -> list[float]:
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9), []
    for step in range(steps):
        optimizer.zero_grad()
        for part in range(accumulate):
            inputs, targets = _batch(step * accumulate + part)
            last = part == accumulate - 1
            quiet = (
                model.no_sync()
                if not last and isinstance(model, DistributedDataParallel)
                else nullcontext()
            )
            with quiet:
                used = not alternate or (step + dist.get_rank()) % 2 == 0
                loss = nn.functional.cross_entropy(model(inputs, used), targets)
                loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def digest(model: nn.Module) -> str:
    """Of all weights, bit by bit."""
    held = hashlib.sha256()
    for parameter in model.parameters():
        whole = parameter.full_tensor() if hasattr(parameter, "full_tensor") else parameter
        held.update(whole.detach().contiguous().numpy().tobytes())
    return held.hexdigest()


def ddp(
    accumulate: int = 1, alternate: bool = False, compiled: str = "", hook: str = "", **options: Any
) -> tuple[str, float]:
    """The digest of the weights, and how far the losses are from those over gloo."""
    losses, model = [], None
    for own in (reference(), None):
        model = DistributedDataParallel(_model(), process_group=own, **options)
        if hook:
            from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

            model.register_comm_hook(own, getattr(default_hooks, hook))
        if compiled:
            model.compile(backend=compiled)
        losses.append(_train(model, accumulate=accumulate, alternate=alternate))
    assert model is not None
    return digest(model), max(abs(a - b) for a, b in zip(*losses, strict=True))


def join_uneven() -> tuple[str, float]:
    """Ranks with fewer batches than others, under DDP's join."""
    model = DistributedDataParallel(_model())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with warnings.catch_warnings(), model.join():
        warnings.simplefilter("ignore")
        for step in range(3 + dist.get_rank()):
            optimizer.zero_grad()
            inputs, targets = _batch(step)
            nn.functional.cross_entropy(model(inputs), targets).backward()
            optimizer.step()
    return digest(model), 0.0


def zero() -> tuple[str, float]:
    """DDP with the optimizer's state split over the ranks."""
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model = DistributedDataParallel(_model())
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.05, momentum=0.9)
    for step in range(STEPS):
        optimizer.zero_grad()
        inputs, targets = _batch(step)
        loss = nn.functional.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
    alone = DistributedDataParallel(_model(), process_group=reference())
    return digest(model), abs(loss.item() - _train(alone)[-1])


def fsdp(
    compiled: str = "", mixed: bool = False, two_dimensions: bool = False
) -> tuple[str, float]:
    """FSDP2 over the default group's mesh; two dimensions: shards in pairs, which hold copies of
    each other (HSDP).
    """
    losses, model = [], None
    for backend in ("gloo", ""):
        model = _model()
        if two_dimensions and backend:
            mesh = None
        elif two_dimensions:
            mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("copies", "shards"))
        else:
            mesh = (
                DeviceMesh.from_group(reference(), "cpu")
                if backend
                else init_device_mesh("cpu", (dist.get_world_size(),))
            )
        if mesh is None:
            losses.append(_train(DistributedDataParallel(model, process_group=reference())))
            continue
        policy = (
            MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
            if mixed
            else MixedPrecisionPolicy()
        )
        for layer in (model.first, model.side):
            fully_shard(layer, mesh=mesh, mp_policy=policy)
        fully_shard(model, mesh=mesh, mp_policy=policy)
        if compiled:
            model.compile(backend=compiled)
        losses.append(_train(model))
    assert model is not None
    return digest(model), max(abs(a - b) for a, b in zip(*losses, strict=True))


def tensors_of_meshes() -> list[str]:
    """DTensor: sharded, copied, partial, and sharded along another dimension."""
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    whole, wrong = torch.arange(7 * 5, dtype=torch.float32).view(7, 5), []
    rows = distribute_tensor(whole, mesh, [Shard(0)])
    columns = rows.redistribute(mesh, [Shard(1)])
    partial = DTensor.from_local(torch.full((7, 5), 1.0), mesh, [Partial()])
    for name, got, wanted in (
        ("rows", rows.full_tensor(), whole),
        ("columns", columns.full_tensor(), whole),
        ("copied", rows.redistribute(mesh, [Replicate()]).to_local(), whole),
        ("partial", partial.full_tensor(), torch.full((7, 5), 4.0)),
        (
            "scattered",
            partial.redistribute(mesh, [Shard(0)]).full_tensor(),
            torch.full((7, 5), 4.0),
        ),
        (
            "product",
            (columns @ distribute_tensor(whole.t(), mesh, [Shard(0)])).full_tensor(),
            whole @ whole.t(),
        ),
    ):
        if not torch.equal(got, wanted):
            wrong.append(f"{name}: {got}")
    return wrong


def compiled_collectives() -> list[str]:
    """A compiled function with collectives inside."""

    def both(x: Tensor) -> Tensor:
        total = x.clone()
        dist.all_reduce(total)
        whole = torch.empty(4 * x.numel())
        dist.all_gather_into_tensor(whole, total)
        return whole * 2

    made = torch.compile(both, backend="aot_eager", fullgraph=True)
    got = made(torch.full((3,), float(dist.get_rank())))
    return [] if torch.equal(got, torch.full((12,), 12.0)) else [str(got)]


def changing(kind: str, until: str) -> dict[str, Any]:
    """Training while rings change, until rank 0 finds this file; the digest of the weights and the
    losses.
    """
    model: nn.Module = _model()
    if kind == "fsdp":
        fully_shard(model)
    else:
        model = DistributedDataParallel(model)
    losses, over = [], torch.zeros(1)
    while not over and len(losses) < MOST:
        losses += _train(model)
        if kind == "mixed":
            _others(len(losses))
        over.fill_(Path(until).exists())
        dist.broadcast(over, 0)
    return {"digest": digest(model), "losses": losses}


def _others(step: int) -> None:
    """What belongs to no model: objects, pairs of ranks, groups, a rank that sends while others do
    not.
    """
    me, count = dist.get_rank(), dist.get_world_size()
    gathered: list[Any] = [None] * count
    dist.all_gather_object(gathered, (me, step))
    assert gathered == [(rank, step) for rank in range(count)], gathered
    if me < 2:
        came = torch.zeros(3)
        pair = [
            dist.P2POp(dist.isend, torch.full((3,), float(me)), 1 - me),
            dist.P2POp(dist.irecv, came, 1 - me),
        ]
        for work in dist.batch_isend_irecv(pair):
            work.wait()
        assert came[0] == 1 - me, came
    dist.barrier()
