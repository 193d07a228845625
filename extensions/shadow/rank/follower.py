"""The shadow's state: weights that follow a job's gradients, and are compared with the hash that
the job publishes.

A state is believed only once its hash is that of the job. What is missing or different is never
guessed: that iteration is flagged, and the state is fetched from the job.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Any

from workloads.training.momentum import step
from workloads.transport.buffers import Buffer

from .chunks import Iteration, connection, iteration
from .streams import Stream, Streams

PATIENCE_S = 2.0
"""How long (s) bytes are waited for after the job has said that the iteration is over; a tap is
tens of milliseconds behind.
"""
LATE_S = 0.25
"""The same once bytes of the iteration after the next one were seen, which are not sent before
these have arrived.
"""
LOOK_S = 0.02
"""How often (s) an iteration is looked at of which bytes are missing."""
WAITING = 64
"""Iterations that are kept for a state on its way, before the oldest is given up."""
FETCH_S = (1.0, 60.0)
"""How long (s) after a state was asked for another one may be, at first and at most; it doubles
until an iteration is equal.
"""
LISTS, NUMBERS, SETS = 4096, 1 << 28, 64
"""Bounds on what the job may say: entries of a list, numbers of a state, sets of rings."""


NAME = re.compile(r"set/[^:]{1,80}:[0-9]{1,4}/[0-9]{1,5}")
"""What the connections of rings are called: their set, and which of them it is."""

Positions = Mapping[str, Sequence[tuple[Stream, int]]]


@dataclass(frozen=True, slots=True)
class Shape:
    """What a job trains. same: what names its weights, as its checkpoints have it. shapes: of its
    parameters.
    """

    lr: float
    shapes: tuple[tuple[int, ...], ...]
    same: Mapping[str, Any]

    @property
    def numbers(self) -> int:
        """How many numbers the parameters have."""
        return sum(_product(shape) for shape in self.shapes)


@dataclass(slots=True)
class RingSet:
    """Rings, and how far each of their connections was followed (bytes, without the greeting)."""

    orders: tuple[tuple[int, ...], ...]
    at: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Entry:
    """What the job said of one iteration. digest: of its state after it. reported_s: when
    (monotonic).
    """

    iteration: int
    set: str
    layout: int
    digest: str
    reported_s: float


@dataclass(frozen=True, slots=True)
class Verdict:
    """Of one iteration. equal: followed, and its hash is the job's. missing: bytes that were not
    seen.

    fetched: its state was sent by the job. lag_ms: from the job's word to the verdict.
    """

    iteration: int
    equal: bool
    missing: int = 0
    fetched: bool = False
    lag_ms: float = 0.0


class State:
    """Parameters and their speeds, in one block of memory."""

    def __init__(self, shape: Shape, torch: Any) -> None:
        whole = Buffer.zeros(2 * shape.numbers, "float32", torch.device("cpu"), torch)
        self.memory = whole.memory
        ends = list(
            accumulate((_product(each) for each in (*shape.shapes, *shape.shapes)), initial=0)
        )
        views = [
            whole.tensor[begin:end].view(each)
            for (begin, end), each in zip(
                pairwise(ends), (*shape.shapes, *shape.shapes), strict=True
            )
        ]
        self.parameters, self.momentum = views[: len(shape.shapes)], views[len(shape.shapes) :]

    def digest(self) -> str:
        return digest([self.memory])


def digest(memory: Sequence[Any]) -> str:
    """The SHA-256 of a state: of the bytes of its parameters, then of their speeds."""
    found = hashlib.sha256()
    for each in memory:
        found.update(each)
    return found.hexdigest()


class Follower:
    """Follows one job. wants: called when the job is to send its state. judged: called with the
    verdict on each iteration.
    """

    def __init__(
        self, torch: Any, wants: Callable[[], None], judged: Callable[[Verdict], None]
    ) -> None:
        self._torch, self._wants, self._judged = torch, wants, judged
        self.streams = Streams(NAME)
        self.shape: Shape | None = None
        self.checkpoint = 0
        """The iteration of the newest state whose hash is the job's; 0 for none."""
        self._at: int | None = None  # the iteration of the working state, None while there is none
        self._queue: deque[Entry] = deque()
        self._sets: dict[str, RingSet] = {}
        self._layouts: dict[int, tuple[Any, ...]] = {}
        self._plans: dict[tuple[str, int], Iteration] = {}
        # an iteration that may not become whole any more, and since when
        self._late: tuple[int, float] = (0, 0.0)
        self._asked_s, self._again_s = 0.0, FETCH_S[0]
        self._looked_s = 0.0
        self._ended = False
        self._fetched = 0  # the iteration of a state that was sent, until its hash is known

    # what the job says; raises ValueError, TypeError, KeyError or OverflowError for what no job
    # says

    def begin(self, message: Mapping[str, Any]) -> None:
        """The job begins: what it trains."""
        shapes = tuple(
            tuple(_whole(n, 0, NUMBERS) for n in _list(each)) for each in _list(message["shapes"])
        )
        shape = Shape(float(message["lr"]), shapes, dict(message["same"]))
        if shape.numbers > NUMBERS:
            raise ValueError(f"a model of {shape.numbers} numbers is larger than a shadow follows")
        self.shape = shape
        self._good, self._work = State(shape, self._torch), State(shape, self._torch)
        self._ahead = False  # whether the working state is one of its own, not the good one

    def rings(self, message: Mapping[str, Any]) -> None:
        """A set of rings that the job uses from now on."""
        orders = tuple(
            tuple(_whole(rank, 0, LISTS) for rank in _list(order))
            for order in _list(message["orders"])
        )
        if not orders or any(sorted(order) != list(range(len(orders[0]))) for order in orders):
            raise ValueError("orders: each names every rank once")
        name = str(message["set"])
        self._sets[name] = self._sets.pop(name, RingSet(orders))  # the latest last
        if len(self._sets) > SETS:  # a job goes back to the one before at most
            lost = next(iter(self._sets))
            del self._sets[lost]
            self.streams.forget(f"{lost}:")

    def layout(self, message: Mapping[str, Any]) -> None:
        """A layout of buckets: of each, which parameters' gradients begin where (numbers), and how
        many numbers it has.
        """
        assert self.shape is not None
        buckets = []
        for bucket in _list(message["buckets"]):
            size = _whole(bucket["numbers"], 0, NUMBERS)
            parts = [
                (_whole(p, 0, len(self.shape.shapes) - 1), _whole(at, 0, size))
                for p, at in _list(bucket["parts"])
            ]
            if any(at + _product(self.shape.shapes[p]) > size for p, at in parts):
                raise ValueError("a gradient does not fit into its bucket")
            buckets.append((size, parts))
        if sorted(p for _, parts in buckets for p, _ in parts) != list(
            range(len(self.shape.shapes))
        ):
            raise ValueError("a layout has every parameter once")
        flats = [
            Buffer.zeros(size, "float32", self._torch.device("cpu"), self._torch)
            for size, _ in buckets
        ]
        gradients: list[Any] = [None] * len(self.shape.shapes)
        for flat, (_, parts) in zip(flats, buckets, strict=True):
            for p, at in parts:
                shape = self.shape.shapes[p]
                gradients[p] = flat.tensor[at : at + _product(shape)].view(shape)
        if len(self._layouts) >= SETS:
            raise ValueError(f"more than {SETS} layouts of buckets")
        self._layouts[_whole(message["layout"], 0, 1 << 53)] = (
            tuple(size for size, _ in buckets),
            [flat.memory for flat in flats],
            gradients,
        )

    def iterated(self, message: Mapping[str, Any], now_s: float) -> None:
        """The job has ended an iteration."""
        entry = Entry(
            _whole(message["iteration"], 1, 1 << 53),
            str(message["set"]),
            _whole(message["layout"], 0, 1 << 53),
            str(message["digest"]),
            now_s,
        )
        if entry.set not in self._sets or entry.layout not in self._layouts:
            raise ValueError("an iteration over unknown rings or buckets")
        self._queue.append(entry)
        self.advance(now_s)

    def state(self, iteration: int, content: Any, now_s: float) -> None:
        """The state after an iteration, as the job sent it: the bytes of its parameters, then of
        their speeds.
        """
        if self.shape is None or len(content) != len(self._work.memory):
            raise ValueError(f"a state of {len(content)} bytes is not one of this job's")
        if self._at is not None:
            return
        self._work.memory[:] = content
        self._at, self._ahead, self._fetched = iteration, True, iteration
        self.advance(now_s)

    # following

    @property
    def newest(self) -> tuple[Shape, int, State] | None:
        """The newest state whose hash is the job's: what it trains, its iteration, and the
        state.
        """
        return (
            (self.shape, self.checkpoint, self._good)
            if self.shape is not None and self.checkpoint
            else None
        )

    @property
    def waits(self) -> bool:
        """Whether there are iterations that were not judged yet."""
        return bool(self._queue)

    def advance(self, now_s: float) -> None:
        """Follow as far as possible; to be called when something came in, and a few times a
        second.
        """
        while self._queue:
            entry = self._queue[0]
            if self._at is None:
                self._ask(now_s)
                if len(self._queue) <= WAITING and not self._ended:
                    return
                self._pass(entry)
                self._judged(Verdict(entry.iteration, equal=False))
            elif entry.iteration <= self._at:
                self._covered(entry)
            elif entry.iteration > self._at + 1:
                self._at = None
                continue
            elif not self._follow(entry, now_s):
                return
            self._queue.popleft()

    def end(self, now_s: float) -> None:
        """Nothing comes any more: flag what is not whole."""
        self._ended = True
        self.advance(now_s)

    def _covered(self, entry: Entry) -> None:
        """An iteration whose gradients are in the state that was fetched."""
        self._pass(entry)
        fetched = entry.iteration == self._fetched and self._at == self._fetched and self._ahead
        if fetched:
            if self._work.digest() == entry.digest:
                self._believe(entry.iteration)
            else:
                self._at, fetched = None, False  # sent wrongly: another one is asked for
        self._judged(Verdict(entry.iteration, equal=False, fetched=fetched))

    def _follow(self, entry: Entry, now_s: float) -> bool:
        """Step over an iteration and judge it; False: bytes may still come."""
        plan, positions = self._plan(entry)
        whole = all(
            s.has(at, at + plan.carried[name]) for name, each in positions.items() for s, at in each
        )
        if not whole and now_s - self._looked_s < LOOK_S and not self._ended:
            return False
        self._looked_s = now_s
        missing, copies = 0, []
        for chunk in plan.chunks:
            where = [
                (s, at + offset)
                for name, offset in chunk.seen
                if name in positions
                for s, at in positions[name]
            ]
            found = next(((s, at) for s, at in where if s.has(at, at + chunk.size)), None)
            if found is None:
                missing += min(
                    (s.missing(at, at + chunk.size) for s, at in where), default=chunk.size
                )
            else:
                copies.append((chunk, *found))
        if missing and not self._hopeless(entry, plan, positions, now_s):
            return False
        _, memory, gradients = self._layouts[entry.layout]
        for chunk, stream, at in copies:
            stream.copy(
                at, at + chunk.size, memory[chunk.bucket][chunk.begin : chunk.begin + chunk.size]
            )
        self._pass(entry)
        if missing:
            self._lose(now_s)
            self._judged(Verdict(entry.iteration, equal=False, missing=missing))
            return True
        assert self.shape is not None
        before, after = self._work if self._ahead else self._good, self._work
        step(
            self._torch,
            (before.parameters, before.momentum),
            gradients,
            self.shape.lr,
            (after.parameters, after.momentum),
        )
        self._at, self._ahead = entry.iteration, True
        equal = self._work.digest() == entry.digest
        if equal:
            self._believe(entry.iteration)
            self._again_s = FETCH_S[0]
        else:
            self._lose(now_s)
        self._judged(
            Verdict(entry.iteration, equal=equal, lag_ms=round(1e3 * (now_s - entry.reported_s), 3))
        )
        return True

    def _hopeless(self, entry: Entry, plan: Iteration, positions: Positions, now_s: float) -> bool:
        if self._ended or now_s - entry.reported_s > PATIENCE_S:
            return True
        if not any(
            s.end > at + 2 * plan.carried[name]
            for name, each in positions.items()
            for s, at in each
        ):
            return False
        if self._late[0] != entry.iteration:
            self._late = entry.iteration, now_s
        return now_s - self._late[1] > LATE_S

    def _plan(self, entry: Entry) -> tuple[Iteration, Positions]:
        """What an iteration brings; and where it begins in the streams that were seen, by
        connection.
        """
        rings, known = self._sets[entry.set], self.streams.named
        key = entry.set, entry.layout
        if key not in self._plans:
            if len(self._plans) > SETS:
                self._plans.clear()
            every = [
                connection(ring, rank) for ring, order in enumerate(rings.orders) for rank in order
            ]
            self._plans[key] = iteration(self._layouts[entry.layout][0], rings.orders, every)
        plan, at = self._plans[key], rings.at
        seen = {
            name: known[f"{entry.set}:{name}"]
            for name in plan.carried
            if f"{entry.set}:{name}" in known
        }
        return plan, {
            name: [(s, greeting + at.get(name, 0)) for s, greeting in each]
            for name, each in seen.items()
        }

    def _pass(self, entry: Entry) -> None:
        """Go on to the next iteration in all streams of its rings, those included that were not
        seen.
        """
        plan, positions = self._plan(entry)
        at = self._sets[entry.set].at
        for name, size in plan.carried.items():
            at[name] = at.get(name, 0) + size
            for stream, begin in positions.get(name, ()):
                stream.drop(begin + size)

    def _lose(self, now_s: float) -> None:
        self._at = None
        self._ask(now_s)

    def _ask(self, now_s: float) -> None:
        """Have the job send its state, not too often."""
        if self._asked_s and now_s - self._asked_s < self._again_s:
            return
        if self._asked_s:
            self._again_s = min(2 * self._again_s, FETCH_S[1])
        self._asked_s = now_s
        if not self._ended:
            self._wants()

    def _believe(self, iteration: int) -> None:
        """The working state is the job's."""
        self._good, self._work, self._ahead = self._work, self._good, False
        self.checkpoint = iteration


def _whole(value: object, least: int, most: int) -> int:
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f"{value!r} is not a whole number from {least} to {most}")
    return value


def _list(value: object) -> list[Any]:
    if not isinstance(value, list) or len(value) > LISTS:
        raise ValueError(f"not a list of at most {LISTS}")
    return value


def _product(shape: Sequence[int]) -> int:
    return math.prod(shape)
