"""Train a small GPT on the bytes of a text with DistributedDataParallel or FSDP2:
`torchrun --nproc-per-node 4 train.py`.

Rank 0 prints `iter N loss X` after each iteration, X being the mean over all ranks, and every rank
in the end `rank R weights D`, D being a digest of all weights: two runs with equal digests computed
the same, bit by bit. With `--checkpoints DIR` rank 0 writes DIR/gpt.pt every `--every` iterations
and at the end; `--resume` goes on from there.
"""

from __future__ import annotations

import argparse
import hashlib
import os
from pathlib import Path

import torch
import torch.distributed as dist
from data import Text
from model import GPT, Shape
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_state_dict,
    set_state_dict,
)
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

SHAPES = {
    "tiny": Shape(layers=2, width=64, heads=2, context=32),
    "small": Shape(),
    "medium": Shape(layers=8, width=256, heads=8, context=128),
}


def arguments() -> argparse.Namespace:
    text = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    text.add_argument(
        "--data", type=Path, default=Path(__file__).with_name("text.txt"), help="the text"
    )
    text.add_argument("--iterations", type=int, default=100, help="train until this iteration")
    text.add_argument("--preset", choices=SHAPES, default="small", help="the size of the model")
    text.add_argument("--batch", type=int, default=4, help="sequences of a rank in an iteration")
    text.add_argument("--lr", type=float, default=0.1, help="of SGD with momentum 0.9")
    text.add_argument("--seed", type=int, default=1)
    text.add_argument("--backend", help="of torch.distributed (default: torch's choice)")
    text.add_argument(
        "--fsdp",
        action="store_true",
        help="shard weights, gradients and optimizer state over the ranks",
    )
    text.add_argument("--compile", action="store_true", help="compile the model")
    text.add_argument(
        "--checkpoints", type=Path, help="a directory for the checkpoint (default: none is written)"
    )
    text.add_argument("--every", type=int, default=50, help="iterations between checkpoints")
    text.add_argument(
        "--resume", action="store_true", help="go on from the checkpoint, if there is one"
    )
    return text.parse_args()


def wrapped(model: GPT, asked: argparse.Namespace, device: torch.device) -> nn.Module:
    """The model as all ranks train it together."""
    if asked.fsdp:
        for block in model.blocks:
            fully_shard(block)
        fully_shard(model)
        whole: nn.Module = model
    else:
        whole = DistributedDataParallel(
            model, device_ids=[device.index] if device.type == "cuda" else None
        )
    if asked.compile:
        whole.compile()
    return whole


def save(path: Path, iteration: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Write the checkpoint whole or not at all; with FSDP all ranks give their part."""
    weights, state = get_state_dict(
        model, optimizer, options=StateDictOptions(full_state_dict=True, cpu_offload=True)
    )
    if dist.get_rank() == 0:
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_suffix(".unfinished")
        torch.save({"iteration": iteration, "weights": weights, "optimizer": state}, unfinished)
        unfinished.replace(path)


def load(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Take rank 0's checkpoint over to all ranks; return its iteration, 0 where there is none."""
    kept = (
        torch.load(path, weights_only=True, map_location="cpu")
        if dist.get_rank() == 0 and path.exists()
        else {}
    )
    found = [kept]
    dist.broadcast_object_list(found, src=0)
    kept = found[0]
    if kept:
        options = StateDictOptions(full_state_dict=True)
        set_state_dict(
            model,
            optimizer,
            model_state_dict=kept["weights"],
            optim_state_dict=kept["optimizer"],
            options=options,
        )
    return int(kept.get("iteration", 0))


def digest(model: nn.Module) -> str:
    """SHA-256 over all weights; with FSDP over those that all ranks hold together."""
    whole = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
    held = hashlib.sha256()
    for _, tensor in sorted(whole.items()):
        held.update(tensor.cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return held.hexdigest()


def mean_over_ranks(loss: Tensor) -> float:
    total = loss.detach().double()
    dist.all_reduce(total)
    return float(total) / dist.get_world_size()


def main() -> None:
    asked = arguments()
    local = int(os.environ.get("LOCAL_RANK", "0"))
    device = torch.device("cuda", local) if torch.cuda.is_available() else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group(asked.backend)
    rank, world = dist.get_rank(), dist.get_world_size()

    shape = SHAPES[asked.preset]
    text = Text(asked.data, shape.context, asked.seed)
    torch.manual_seed(asked.seed)
    model = wrapped(GPT(shape).to(device), asked, device)
    optimizer = torch.optim.SGD(model.parameters(), lr=asked.lr, momentum=0.9)
    checkpoint = asked.checkpoints / "gpt.pt" if asked.checkpoints else None
    done = load(checkpoint, model, optimizer) if checkpoint and asked.resume else 0
    if rank == 0:
        weights = sum(parameter.numel() for parameter in model.parameters())
        print(
            f"# {weights} weights, {world} ranks, {dist.get_backend()}, from iteration {done + 1}",
            flush=True,
        )

    for iteration in range(done + 1, asked.iterations + 1):
        inputs, targets = (
            each.to(device) for each in text.batch(iteration, rank, world, asked.batch)
        )
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
        loss.backward()
        optimizer.step()
        mean = mean_over_ranks(loss)
        if rank == 0:
            print(f"iter {iteration} loss {mean:.6f}", flush=True)
        if checkpoint and (iteration % asked.every == 0 or iteration == asked.iterations):
            save(checkpoint, iteration, model, optimizer)

    print(f"rank {rank} weights {digest(model)}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
