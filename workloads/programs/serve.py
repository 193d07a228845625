"""Requests to a language model, answered: `python -m workloads.programs.serve --prefill 2`.

The first `--prefill` ranks compute prompts. They send keys and values, of real size and in pages of
16 tokens, to the rank with most room of the others, which make the tokens: chunk by chunk, while
they compute the next. With `--prefill 0` each rank does both. This is what DistServe compares (OSDI
2024). Computing is waited for, as a host's processor would for its GPU: `--prompt-us` for each
token of a prompt, `--step-ms` for a step of tokens, `--sequence-us` more for each request in it.

An iteration is a trace of `--requests` requests, which come to the ranks that compute prompts in
turn, and ends once all are answered. What each rank is going to send stands in the file `demand`
(demand.py) before, so that circuits can follow (extensions/adapt). The time to first token (TTFT) begins when a request comes and
ends when the first token is back where it came to: keys and values have moved by then, as tokens
come from the rank that makes them (vLLM's disaggregated prefilling). The time per output token
(TPOT) is that of the tokens after it. Records: `ttft_ms`, `tpot_ms`, median and 99th percentile;
`goodput`, the share of requests that met `--ttft-ms` and `--tpot-ms`; `served`, `lost`; `kv_bytes`,
keys and values that moved; `kv_ms`, how long those of a request moved after its prompt was computed,
median. A request that is not answered once, or bytes that did not come, end the job. Exit codes as in
train.py. Not with NCCL.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import median
from typing import TYPE_CHECKING, Any

from ..progress.demand import Demand
from ..progress.records import Clock
from ..serving.books import Answered, figures
from ..serving.drawing import draw, home_of
from ..serving.pages import page_bytes, pages_of
from ..serving.parts import Back, Both, Front, Memory, Part
from ..serving.posts import Message
from ..serving.queues import Costs
from ..serving.talk import Talk
from ..serving.trace import Request, read_list
from .options import conflicts, read
from .serve_options import load_of

if TYPE_CHECKING:
    from .program import Job

DAY_S, SLICE_S = 86_400.0, 1.0
FIGURES = 4
"""Of each request: whether it was answered, and those of Answered."""


def main() -> None:
    arguments = read("serve", "Requests to a language model, answered by ranks.")

    from .program import run

    run("workloads.programs.serve", lambda job: serve(job, arguments))


def serve(job: Job, given: argparse.Namespace) -> dict[str, Any]:
    """Answer requests until the last iteration or the agreed stop; return what the summary shall
    say.
    """
    place = job.place
    if job.rings.backend == "nccl":
        raise ValueError(
            "serve: keys and values go over connections of its own; give the job the backend gloo"
        )
    for name, text in conflicts("serve", vars(given), False, place.world):
        raise ValueError(f"--{name}: {text}")
    job.carry_on_rings("gloo")
    rank = Rank(job, given)
    clock, done, counted = Clock(), 0, dict.fromkeys(("served", "kv_bytes", "goodput"), 0.0)
    for iteration in range(1, given.iterations + 1) if given.iterations else itertools.count(1):
        job.before(iteration)
        begin_ns = time.monotonic_ns()
        record = rank.iteration(iteration)
        took_ms = round((time.monotonic_ns() - begin_ns) / 1e6, 3)
        job.heartbeat.end()
        record = {
            "iter": iteration,
            "t_wall_ns": clock.wall_ns(begin_ns),
            "iter_ms": took_ms,
        } | record
        job.records.iteration(record)
        done, counted = iteration, {name: counted[name] + record[name] for name in counted}
        if job.last(iteration) or rank.stops:
            break
    rank.talk.close()
    return {
        "iterations": done,
        "served": int(counted["served"]),
        "kv_bytes": int(counted["kv_bytes"]),
        "goodput": round(counted["goodput"] / done, 4),
    }


class Rank:
    """A rank's part, its connections, and the meeting of all ranks."""

    def __init__(self, job: Job, given: argparse.Namespace) -> None:
        """Raises: RuntimeError - a peer does not come."""
        self._job, self._given, place = job, given, job.place
        slower, me = place.dilation, place.rank
        self._shown_s = 0.0
        costs = Costs(
            given.prompt_us * slower / 1e6,
            given.step_ms * slower / 1e3,
            given.sequence_us * slower / 1e6,
            given.chunk,
            given.batch,
        )
        self._load, self._listed = load_of(vars(given)), read_list(given.list)
        self._size = page_bytes(given.layers, given.heads, given.dimension, given.bytes)
        memory = Memory(given.pages, self._size)
        self._demand = Demand(place.job_dir, me, place.world)
        self._fronts = given.prefill or place.world
        makers = range(given.prefill, place.world) if given.prefill else ()
        self._part: Part
        room: Callable[[Message], list[memoryview]] = _nothing
        peers = [*makers] if me < self._fronts else [*range(self._fronts)]
        if not given.prefill:
            self._part = Both(memory, costs)
        elif me < self._fronts:
            self._part = Front(memory, costs, dict.fromkeys(makers, given.pages))
        else:
            self._part = back = Back(memory, costs)
            room = back.room
        self.talk = Talk(
            place, job.rings.store, job.rings.stall, peers, prefills=me < self._fronts, room=room
        )
        if isinstance(self._part, Front | Back):
            self._part.talk = self.talk
        # with `--prefill 0` a rank that is done hears nothing of the others until they are
        self._meeting = job.rings.management_group("serving", None if given.prefill else DAY_S)
        self.stops = False
        """Whether a rank was asked to stop before it ended the latest iteration."""

    def iteration(self, iteration: int) -> dict[str, Any]:
        """Answer a trace; what its record says beside number and times. Raises: RuntimeError - a
        request or bytes were lost, or a peer.
        """
        part, given, place = self._part, self._given, self._job.place
        slower = place.dilation
        self._demand.attention(iteration)
        requests = self._listed or draw(self._load, given.requests, iteration)
        mine = [
            replace(r, at_s=r.at_s * slower)
            for r in requests
            if r.number % self._fronts == place.rank
        ]
        self._sum([0.0])  # all begin together
        self._rest(given.pause_ms * slower / 1e3)
        announced = [0] * place.world
        if isinstance(part, Front):
            makers = range(self._fronts, place.world)
            part.home = makers[home_of(self._load, place.rank, iteration, len(makers))]
            announced = self._announced(mine, part.home, makers)
        self._demand.gate(announced)
        self.talk.begin()
        part.begin(mine, time.monotonic())
        part.advance(time.monotonic())
        while not part.over or self.talk.waits:
            heard, sent = self.talk.wait(part.next_s)
            now_s = time.monotonic()
            if now_s >= self._shown_s:
                self._show(now_s)
            part.advance(now_s)  # what was due before they came does not wait for them
            for peer, message in heard:
                part.hear(peer, message, now_s)
            for request in sent:
                part.sent(request)
            part.advance(now_s)
        self._demand.end()
        asked, *found = self._sum(
            [float(self._job.accord.asked), *self._results(mine, len(requests))]
        )
        self.stops = asked > 0
        return self._record(requests, found)

    def _show(self, now_s: float) -> None:
        """Sign of life: an iteration may be long, and no two need be alike."""
        self._shown_s = now_s + SLICE_S
        self._job.heartbeat.moved()

    def _rest(self, pause_s: float) -> None:
        end_s = time.monotonic() + pause_s
        while (left_s := end_s - time.monotonic()) > 0:
            self._show(time.monotonic())
            time.sleep(min(SLICE_S, left_s))

    def _announced(self, mine: list[Request], home: int, makers: Sequence[int]) -> list[int]:
        """The bytes of keys and values that this rank is going to send to each rank; what goes
        where most room is counts for all alike.
        """
        found = [0.0] * self._job.place.world
        for request in mine:
            there = [home] if request.home else makers
            for rank in there:
                found[rank] += pages_of(request.prompt) * self._size / len(there)
        return [round(size) for size in found]

    def _results(self, mine: list[Request], count: int) -> list[float]:
        """FIGURES of each request, those of other ranks' 0; bytes that were sent, and that came."""
        part, found = self._part, [0.0] * (FIGURES * count + 2)
        for request in mine:
            if (one := part.books.answered(request.number, request.output)) is not None:
                at = FIGURES * request.number
                found[at : at + FIGURES] = 1.0, one.ttft_s, one.tpot_s, one.moved_s
        found[-2 if isinstance(part, Front) else -1] = float(part.moved)
        return found

    def _record(self, requests: list[Request], found: list[float]) -> dict[str, Any]:
        given, slower = self._given, self._job.place.dilation
        rows = [found[at : at + FIGURES] for at in range(0, len(found) - 2, FIGURES)]
        if wrong := [number for number, row in enumerate(rows) if row[0] != 1]:
            raise RuntimeError(f"{len(wrong)} of {len(requests)} requests lost, first {wrong[0]}")
        if found[-2] != found[-1]:
            raise RuntimeError(f"{found[-2]:.0f} bytes were sent, and {found[-1]:.0f} came")
        answered = [Answered(*row[1:]) for row in rows]
        targets = given.ttft_ms * slower / 1e3, given.tpot_ms * slower / 1e3
        return {
            **figures(answered, len(requests), *targets),
            "kv_bytes": int(found[-1]),
            "kv_ms": round(1e3 * median(one.moved_s for one in answered), 3),
        }

    def _sum(self, values: list[float]) -> list[float]:
        """The sums over all ranks, once all have given theirs."""
        torch = self._job.torch
        given = torch.tensor(values, dtype=torch.float64)
        self._job.heartbeat.unheard()
        self._meeting.allreduce([given]).wait()
        return [float(value) for value in given]


def _nothing(_: Message) -> list[memoryview]:
    return []


if __name__ == "__main__":
    main()
