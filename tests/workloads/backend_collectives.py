"""Every kind of collective once, each against what it must give. Arguments: what
`init_process_group` is given, and a check.
"""

import os
import sys
import time

import torch
import torch.distributed as dist


def collectives() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    total = size * (size - 1) / 2
    for kind in (
        torch.float32,
        torch.float64,
        torch.float16,
        torch.bfloat16,
        torch.int32,
        torch.int64,
        torch.uint8,
    ):
        for count in (1, 1001, 100_000):
            numbers = torch.full((count,), rank, dtype=kind)
            dist.all_reduce(numbers)
            assert (numbers == total).all(), (kind, count)
        parts = torch.arange(size * 50).remainder(7).to(kind)
        mine = torch.empty(50, dtype=kind)
        dist.reduce_scatter_tensor(mine, parts.clone())
        assert (mine == parts[rank * 50 : (rank + 1) * 50] * size).all(), kind
        every = torch.empty(size * 50, dtype=kind)
        dist.all_gather_into_tensor(every, parts[rank * 50 : (rank + 1) * 50])
        assert (every == parts).all(), kind
    some = torch.tensor([rank == 0, True, False])
    dist.all_reduce(some)
    assert some.tolist() == [True, True, False]
    changed = (torch.arange(12.0).view(3, 4) * (rank + 1)).t()
    dist.all_reduce(changed, dist.ReduceOp.AVG)
    assert torch.equal(changed, (torch.arange(12.0).view(3, 4) * (size + 1) / 2).t())
    most, least = torch.tensor([rank, -rank]), torch.tensor([rank, -rank])
    dist.all_reduce(most, dist.ReduceOp.MAX)
    dist.reduce(least, size - 1, dist.ReduceOp.MIN)
    assert most.tolist() == [size - 1, 0] and least.tolist() == (
        [0, 1 - size] if rank == size - 1 else [rank, -rank]
    )
    works = [dist.all_reduce(torch.full((5000,), float(k)), async_op=True) for k in range(20)]
    assert all((work.get_future().wait()[0] == k * size).all() for k, work in enumerate(works))
    messages(rank, size)


def messages(rank: int, size: int) -> None:
    given = torch.arange(size * 3.0) + 100 * rank
    got = torch.empty(size * 3)
    dist.all_to_all_single(got, given)
    assert got.tolist() == [100 * r + 3 * rank + k for r in range(size) for k in range(3)]
    rows = [torch.empty(2) for _ in range(size)] if rank == 1 else None
    dist.gather(torch.full((2,), float(rank)), rows, dst=1)
    assert rows is None or torch.equal(torch.stack(rows)[:, 0], torch.arange(float(size)))
    mine = torch.empty(2)
    dist.scatter(
        mine, [torch.full((2,), float(r)) for r in range(size)] if rank == 0 else None, src=0
    )
    assert mine.tolist() == [rank, rank]
    first, second = torch.empty(70_000), torch.empty(5)
    out = [
        dist.isend(torch.full((70_000,), float(rank)), (rank + 1) % size, tag=1),
        dist.isend(torch.ones(5), (rank + 1) % size, tag=2),
    ]
    dist.recv(second, (rank - 1) % size, tag=2)
    dist.recv(first, (rank - 1) % size, tag=1)
    assert (first == (rank - 1) % size).all() and (second == 1).all()
    for work in out:
        work.wait()
    everything: list[object] = [None] * size
    dist.all_gather_object(everything, {"rank": rank})
    assert everything == [{"rank": r} for r in range(size)]
    pair = dist.new_group([0, size - 1])
    if rank in (0, size - 1):
        both = torch.full((50_000,), float(rank))
        dist.all_reduce(both, group=pair)
        assert (both == size - 1).all()


def lost() -> None:
    """Rank 1 ends in the midst of everything; the others are told at once, and who."""
    if dist.get_rank() == 1:
        os._exit(3)
    try:
        while True:
            dist.all_reduce(torch.ones(10))
    except RuntimeError as error:
        print(error, flush=True)


def hooked() -> None:
    """gloo stays the process group; gradients go over the rings."""
    from testbed_torch import hook, report

    torch.manual_seed(0)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
    model.register_comm_hook(None, hook)
    model(torch.full((1, 4), float(dist.get_rank()))).sum().backward()
    assert model.module.weight.grad is not None
    assert model.module.weight.grad.tolist() == [[(dist.get_world_size() - 1) / 2] * 4]
    for iteration in (1, 2):
        time.sleep(0.01)
        report(iteration, loss=1 / iteration)


if __name__ == "__main__":
    dist.init_process_group(sys.argv[1])
    {"collectives": collectives, "lost": lost, "hooked": hooked}[sys.argv[2]]()
    if sys.argv[2] != "lost":
        dist.destroy_process_group()
