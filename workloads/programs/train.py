"""Data-parallel training over several rings at once:
`python -m workloads.programs.train --model mlp --iterations 50`.

A real model (see models.py) under DistributedDataParallel, whose buckets are averaged by rings.py
while backward still runs; `--compress` has fewer numbers travel (compressors.py), `--sync-every`
averages seldom (steps.py). Rank 0 writes one line per iteration to `iterations.jsonl`, one per
change of rings to `ring_changes.jsonl` and, when it ends, `summary.json`, in TESTBED_JOB_DIR. The
environment is described in place.py. SIGTERM: all ranks finish the same iteration, write a
checkpoint and exit 0. `--resume` goes on from the newest iteration all ranks have a checkpoint of,
or from the start where there is none; a rank without `--resume`, or without any, is given the
others' state. More ranks may join while it runs (growing.py). Exit codes: 0 done or stopped, 2 bad
arguments, environment or checkpoint, 75 a peer was lost (start all ranks again with --resume), 1
anything else.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import hashlib
import itertools
import time
from typing import TYPE_CHECKING, Any

from ..host.slots import shared
from ..training.models import USUAL
from .options import conflicts, fixed, read

if TYPE_CHECKING:
    from .program import Job

FINISH_S = 10.0
"""A rank that has lost a peer waits so long at most (s) for a checkpoint that is being written."""


def main() -> None:
    arguments = read("train", "Data-parallel training over several rings at once.")
    usual_batch, usual_lr = USUAL[arguments.model]
    arguments.batch = arguments.batch or usual_batch
    arguments.lr = arguments.lr or usual_lr

    from .program import run

    run("workloads.programs.train", lambda job: train(job, arguments))


def train(job: Job, arguments: argparse.Namespace) -> dict[str, Any]:
    """Train until the iteration asked for or the agreed stop; return what the summary shall say."""
    from ..training import models
    from ..training.compression import read_compression
    from ..training.compressors import compressor
    from .state import State
    from .steps import EachIteration, Seldom, Step, TwoLevels, round_end

    torch, place, most = job.torch, job.place, arguments.iterations
    seldom = "site_every" if arguments.site_every else "sync_every"
    length = getattr(arguments, seldom)
    for name, text in conflicts("train", vars(arguments), job.rings.backend == "nccl"):
        raise ValueError(f"--{name.replace('_', '-')}: {text}")
    if arguments.site_every and not place.sites:
        raise ValueError("--site-every: TESTBED_SITES does not say which site each rank is in")
    for ring_change in place.ring_changes:
        if round_end(ring_change.after, length, most) != ring_change.after:
            raise ValueError(
                f"TESTBED_RING_CHANGES: after {ring_change.after}: with {seldom} {length} ranks change after every {length} iterations"
            )
    module = models.model(arguments.model, torch, arguments.seed, arguments.hidden).to(
        job.rings.device
    )
    parameters, wanted = list(module.parameters()), read_compression(arguments.compress)
    momentum = [torch.zeros_like(parameter) for parameter in parameters]
    by = compressor(wanted, parameters, place.rank, place.world, job.rings, torch)
    speed = [torch.zeros_like(parameter) for parameter in parameters if arguments.site_every]
    state = State(job, arguments, parameters, momentum, by, speed)
    done = 0 if place.joining else state.restore()
    growable = not any(True for _ in fixed(vars(arguments)))
    job.carry_on_rings(
        arguments.exchange,
        arguments.loss_bound,
        state if growable else None,
        inside=bool(arguments.site_every),
    )
    if place.joining:
        done = job.join()
    observers = state.observed(done)

    def begun() -> tuple[models.Data, Step]:
        """What depends on how many ranks there are."""
        world = job.place.world
        data = models.Data(
            arguments.model, torch, arguments.seed, place.rank, world, arguments.batch
        )
        step: Step
        if arguments.site_every:
            step = TwoLevels(job, module, momentum, arguments, by, speed)
        elif length > 1:
            step = Seldom(job, module, momentum, arguments.lr, by)
        else:
            step = EachIteration(
                job,
                module,
                momentum,
                arguments.lr,
                arguments.bucket_mb,
                None if wanted.kind == "none" else by,
            )
        step.observers = observers
        step.compute_s = arguments.compute_ms * place.dilation / 1e3
        return data, step

    data, step = begun()
    world = job.place.world
    first, last, stopped, checkpoint, agreed = None, None, False, "", done
    # what is said with the next iteration
    saved: dict[str, float] = {"damaged": state.damaged} if state.damaged else {}
    started_s = time.monotonic()
    try:
        for iteration in range(done + 1, most + 1) if most else itertools.count(done + 1):
            end = round_end(iteration, length, most)
            job.before(iteration, end)
            record = step.run(iteration, *data.batch(iteration), agree=iteration == end) | {
                "samples": arguments.batch * world
            }
            job.records.iteration(record | saved)
            saved = {}
            first, last, done = first or record, record, iteration
            # until then ranks may be iterations apart, and nothing can be agreed on
            if iteration < end:
                continue
            stopped = job.last(iteration)
            if world != job.place.world:  # new ranks hold what this one holds
                del data, step  # no gradient may still be a view of their buffers
                module.zero_grad(set_to_none=True)
                data, step = begun()
                world = job.place.world
            every = arguments.checkpoint_every
            if stopped or (every and iteration // every > agreed // every):
                begin_s = time.monotonic()
                with job.heartbeat.save():
                    checkpoint = str(state.write(iteration))
                saved = {"save_ms": round(1e3 * (time.monotonic() - begin_s), 3)}
            agreed = iteration
            if stopped:
                break
            # not before all are connected, for which the slots are asked, too
            if arguments.ungated:
                shared().close()
    except BaseException:  # a peer was lost, say: the job goes on from what is on disk
        with contextlib.suppress(OSError, RuntimeError):
            state.finish(FINISH_S)
        raise
    if arguments.checkpoint == "async":
        with job.heartbeat.save():
            state.finish()
    trained_s = time.monotonic() - started_s
    for observer in observers:
        observer.end()
    checksums = job.accord.gather("weights", checksum(module))
    wide = job.accord.gather("wide", None if job.rings.wide is None else step.wide)
    return {
        "model": arguments.model,
        "parameters": sum(parameter.numel() for parameter in parameters),
        "world": world,
        "iterations": done,
        "resumed_from": done if first is None else first["iter"] - 1,
        "own_state_lost": state.own_lost,
        "stopped": stopped,
        "checkpoint": checkpoint,
        "trained_s": round(trained_s, 3),
        "first_loss": first and first["loss"],
        "last_loss": last and last["loss"],
        "median_iter_ms": step.median_ms(),
        "weights_sha256": checksums[0],
        "weights_identical": len(set(checksums)) == 1,
        **({} if None in wide else {"wide_bytes": sum(wide)}),
    }


def checksum(module: Any) -> str:
    """Return the SHA-256 of all weights, bit by bit."""
    digest = hashlib.sha256()
    for parameter in module.parameters():
        held = parameter.detach().cpu().contiguous()  # must live while its memory is read
        digest.update(ctypes.string_at(held.data_ptr(), held.numel() * held.element_size()))
    return digest.hexdigest()


if __name__ == "__main__":
    main()
