"""Data-parallel training over several rings at once: `python -m workloads.train --model mlp --iterations 50`.

A real model (see models.py) under DistributedDataParallel, whose buckets are averaged by rings.py while backward still runs.
Rank 0 writes one line per iteration to `iterations.jsonl`, one per change of rings to `turns.jsonl` and, when it ends,
`summary.json`, in TESTBED_JOB_DIR. The environment is described in place.py. SIGTERM: all ranks finish the same iteration, write
a checkpoint and exit 0. `--resume` goes on from the newest iteration all ranks have a checkpoint of, or from the start where
there is none; a rank without `--resume`, or without any, is given the others' state. Exit codes: 0 done or stopped, 2 bad
arguments, environment or checkpoint, 75 a peer was lost (start all ranks again with --resume), 1 anything else.
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import itertools
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .models import USUAL
from .options import read
from .slots import shared

if TYPE_CHECKING:
    from .program import Job


def main() -> None:
    arguments = read("train", "Data-parallel training over several rings at once.")
    usual_batch, usual_lr = USUAL[arguments.model]
    arguments.batch = arguments.batch or usual_batch
    arguments.lr = arguments.lr or usual_lr

    from .program import run

    run("workloads.train", lambda job: train(job, arguments))


def train(job: Job, arguments: argparse.Namespace) -> dict[str, Any]:
    """Train until the iteration asked for or the agreed stop; return what the summary shall say."""
    from . import models
    from .accord import common
    from .checkpoint import Checkpoints

    torch, place = job.torch, job.place
    directory = Path(os.environ.get("TESTBED_CHECKPOINT_DIR") or place.job_dir)
    directory.mkdir(parents=True, exist_ok=True)
    checkpoints = Checkpoints(directory, place.rank, torch)
    same = {"model": arguments.model, "hidden": arguments.hidden, "seed": arguments.seed}

    module = models.model(arguments.model, torch, arguments.seed, arguments.hidden).to(job.rings.device)
    momentum = [torch.zeros_like(parameter) for parameter in module.parameters()]
    if not arguments.resume:
        checkpoints.forget()  # no rank can have written one of this run: that takes an iteration, and so all ranks
    kept = job.accord.gather("checkpoints", checkpoints.kept())
    done = common(kept)
    tensors = [*module.parameters(), *momentum]
    if done in kept[place.rank]:
        state = checkpoints.read(done, same)
        with torch.no_grad():
            for tensor, was in zip(tensors, [*state["parameters"], *state["momentum"]], strict=True):
                tensor.copy_(was)
    if done and not all(kept):  # a rank has taken the place of one whose host is gone: all hold the same weights
        source = next(rank for rank, have in enumerate(kept) if have)
        with torch.no_grad():
            for tensor in tensors:
                torch.distributed.broadcast(tensor, source)

    def write_checkpoint(iteration: int) -> str:
        parameters = [parameter.detach().cpu() for parameter in module.parameters()]
        return str(checkpoints.write(iteration, same | {"parameters": parameters, "momentum": [m.cpu() for m in momentum]}))

    job.carry_on_rings()
    data = models.Data(arguments.model, torch, arguments.seed, place.rank, place.world, arguments.batch)
    step = Step(job, module, momentum, arguments.lr, arguments.bucket_mb)
    first, last, stopped, checkpoint = None, None, False, ""
    started_s = time.monotonic()
    wanted = range(done + 1, arguments.iterations + 1) if arguments.iterations else itertools.count(done + 1)
    for iteration in wanted:
        job.before(iteration)
        record = step.run(iteration, *data.batch(iteration)) | {"samples": arguments.batch * place.world}
        job.records.iteration(record)
        first, last, done = first or record, record, iteration
        stopped = job.last(iteration)
        if stopped or (arguments.checkpoint_every and iteration % arguments.checkpoint_every == 0):
            with job.beat.save():
                checkpoint = write_checkpoint(iteration)
        if stopped:
            break
        if arguments.ungated:  # not before all are connected, for which the slots are asked, too
            shared().close()
    trained_s = time.monotonic() - started_s
    checksums = job.accord.gather("weights", checksum(module))
    return {
        "model": arguments.model,
        "parameters": sum(parameter.numel() for parameter in module.parameters()),
        "iterations": done,
        "resumed_from": done if first is None else first["iter"] - 1,
        "stopped": stopped,
        "checkpoint": checkpoint,
        "trained_s": round(trained_s, 3),
        "first_loss": first and first["loss"],
        "last_loss": last and last["loss"],
        "median_iter_ms": step.median_ms(),
        "weights_sha256": checksums[0],
        "weights_identical": len(set(checksums)) == 1,
    }


class Step:
    """One training iteration: forward, backward with the averaging of gradients under way, update; and its times."""

    def __init__(self, job: Job, module: Any, momentum: list[Any], lr: float, bucket_mb: float) -> None:
        from .records import Clock
        from .rings import averaging_hook

        self._job, self._momentum, self._lr = job, momentum, lr
        gpus = [job.rings.device] if job.rings.backend == "nccl" else None
        self._model = job.torch.nn.parallel.DistributedDataParallel(
            module, device_ids=gpus, bucket_cap_mb=bucket_mb, gradient_as_bucket_view=True
        )
        self._model.register_comm_hook(None, averaging_hook(job.rings, job.torch, [self._see]))
        self._clock = Clock()
        self._sent: list[tuple[int, int]] = []  # of this iteration: (when a bucket was full, monotonic ns; its bytes)
        self._took_ms: list[float] = []

    def _see(self, bucket: Any) -> None:
        flat = bucket.buffer()
        self._sent.append((time.monotonic_ns(), flat.numel() * flat.element_size()))
        if bucket.is_last():  # computing is done
            self._job.beat.exchange()

    def run(self, iteration: int, inputs: Any, target: Any) -> dict[str, Any]:
        """Run one iteration and return its record.

        comm_ms is the exposed part: from the last bucket being full, when computing is done, to all sums being there. The rates
        are over the time any bucket was on its way. With nccl both are the host's view, after the device has been waited for.
        """
        from .records import rates

        torch, job = self._job.torch, self._job
        self._sent.clear()
        begin_ns = time.monotonic_ns()
        self._model.zero_grad(set_to_none=True)
        output = self._model(inputs.to(job.rings.device))
        loss = torch.nn.functional.cross_entropy(output, target.to(job.rings.device))
        loss.backward()
        job.synchronize()
        summed_ns = time.monotonic_ns()
        job.beat.exchanged()
        with torch.no_grad():
            for parameter, speed in zip(self._model.parameters(), self._momentum, strict=True):
                speed.mul_(0.9).add_(parameter.grad)
                parameter.add_(speed, alpha=-self._lr)
        value = float(loss.detach())
        took_ms = (time.monotonic_ns() - begin_ns) / 1e6
        job.beat.end()
        self._took_ms.append(took_ms)
        size = sum(size for _, size in self._sent)
        return {
            "iter": iteration,
            "t_wall_ns": self._clock.wall_ns(begin_ns),
            "iter_ms": round(took_ms, 3),
            "comm_ms": round((summed_ns - self._sent[-1][0]) / 1e6, 3),
            "loss": round(value, 6),
            "bytes": size,
            **rates(size, (summed_ns - self._sent[0][0]) / 1e9, job.place.world),
        }

    def median_ms(self) -> float | None:
        """Return the median time of an iteration (ms), the first, which sets things up, left out where there are others."""
        took = sorted(self._took_ms[1:] or self._took_ms)
        return round(took[len(took) // 2], 3) if took else None


def checksum(module: Any) -> str:
    """Return the SHA-256 of all weights, bit by bit."""
    digest = hashlib.sha256()
    for parameter in module.parameters():
        held = parameter.detach().cpu().contiguous()  # must live while its memory is read
        digest.update(ctypes.string_at(held.data_ptr(), held.numel() * held.element_size()))
    return digest.hexdigest()


if __name__ == "__main__":
    main()
