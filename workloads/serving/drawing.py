"""Draws traces of requests. The same load, turn and seed give the same trace on every rank."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator

from .trace import Load, Request


def draw(load: Load, count: int, turn: int) -> list[Request]:
    """A trace of so many requests, another one for each turn."""
    chance = random.Random(f"{load.seed}/{turn}")
    times = _times(load, chance)
    return [
        Request(
            number,
            next(times),
            _prompt(load, number, chance),
            around(load.output, chance),
            bool(load.home) and chance.random() < load.home,
        )
        for number in range(count)
    ]


def home_of(load: Load, front: int, turn: int, ranks: int) -> int:
    """Which of so many ranks is home to the requests that come to rank `front` in a turn: of
    `periodic` the next one after each shift, else any.
    """
    moves = (turn - 1) // load.shift if load.shift else 0
    if load.kind != "periodic":
        moves = random.Random(f"{load.seed}/homes/{moves}").randrange(ranks)
    return (front + moves) % ranks


def around(mean: int, chance: random.Random) -> int:
    """From half of `mean` to one and a half of it, and at least 1."""
    return max(1, chance.randint(mean - mean // 2, mean + mean // 2))


def _prompt(load: Load, number: int, chance: random.Random) -> int:
    drawn = around(load.prompt, chance)
    every = load.long_every
    # of each `every` another place, so that they come to all ranks in turn
    is_long = every and number % every == (number // every) % every
    return load.long_prompt if is_long else drawn


def _times(load: Load, chance: random.Random) -> Iterator[float]:
    at, together = 0.0, load.burst if load.kind == "bursts" else 1
    # periodic: drawn at the highest rate, and kept with the share that the rate is of it
    rate = load.rate * 2 if load.kind == "periodic" else load.rate / together
    while True:
        at += chance.expovariate(rate)
        turn = math.sin(2 * math.pi * at / load.period_s)
        if load.kind != "periodic" or chance.random() < (1 + turn) / 2:
            for _ in range(together):
                yield at
