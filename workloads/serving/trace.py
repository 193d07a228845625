"""Requests to a language model: when each comes, how many tokens its prompt has, and how many it
asks for. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass

FORM = "requests AT_S:PROMPT:OUTPUT, with blanks between them"
MOST_TOKENS = 1 << 20
KINDS = ("poisson", "periodic", "bursts", "list")


@dataclass(frozen=True, slots=True)
class Request:
    """at_s: since the trace began. prompt, output: tokens. home: its tokens are made where those of
    its conversation were (drawing.home_of), not where most room is.
    """

    number: int
    at_s: float
    prompt: int
    output: int
    home: bool = False


@dataclass(frozen=True, slots=True)
class Load:
    """What a trace is drawn from.

    rate: requests a second, in the mean. period_s: of `periodic`, whose rate is a sine from nothing
    to twice the mean. burst: requests of `bursts` that come at one time. Prompts and outputs have
    from half to one and a half times as many tokens as said, all equally likely; one in
    `long_every` requests has a prompt of `long_prompt` tokens (0: none has). home: the share of
    requests with a home. shift: after so many turns homes move (0: never).
    """

    kind: str
    rate: float
    period_s: float
    burst: int
    prompt: int
    output: int
    long_every: int
    long_prompt: int
    home: float
    shift: int
    seed: int


def most_tokens(load: Load, listed: list[Request]) -> int:
    """What the longest request has at most, prompt and output."""
    if load.kind == "list":
        return max((request.prompt + request.output for request in listed), default=0)
    prompt = max(load.prompt + load.prompt // 2, load.long_prompt if load.long_every else 0)
    return prompt + load.output + load.output // 2


def read_list(text: object) -> list[Request]:
    """The requests of a trace that was written down, in order of time.

    Raises: ValueError - it is none, and why.

    >>> [(r.number, r.at_s, r.prompt, r.output) for r in read_list("0.5:100:8 0:20:1")]
    [(0, 0.0, 20, 1), (1, 0.5, 100, 8)]
    """
    if not isinstance(text, str):
        raise ValueError("not a text")
    found = []
    for word in text.split():
        parts = word.split(":")
        try:
            at_s, prompt, output = float(parts[0]), int(parts[1]), int(parts[2])
        except (ValueError, IndexError):
            raise ValueError(f"{word} is not AT_S:PROMPT:OUTPUT") from None
        if len(parts) != 3 or not 0 <= at_s <= 86400:
            raise ValueError(f"{word}: wanted three numbers, the first from 0 to 86400")
        if not (1 <= prompt <= MOST_TOKENS and 1 <= output <= MOST_TOKENS):
            raise ValueError(f"{word}: wanted 1 to {MOST_TOKENS} tokens of prompt and of output")
        found.append((at_s, prompt, output))
    return [Request(number, *each) for number, each in enumerate(sorted(found))]
