"""The options of the program `serve`, and which values cannot be together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any

from ..serving.pages import TOKENS, page_bytes, pages_of
from ..serving.trace import FORM, KINDS, Load, most_tokens, read_list
from .option import MANY, Option

MOST_MEMORY = 1 << 32
MOST_RANKS = 256
"""Of the file `demand` (progress/demand.py)."""
MOST_S = 3600
"""An iteration's requests come within so long (s), in the mean."""
"""Bytes of the pages of a rank."""
SERVE = (
    Option("iterations", "whole", 20, "iterations; 0: until stopped", least=0, most=MANY),
    Option(
        "prefill",
        "whole",
        1,
        "ranks that compute prompts; the others make tokens; 0: each does both",
        least=0,
        most=1 << 16,
    ),
    Option("requests", "whole", 64, "requests of an iteration", least=1, most=100_000),
    Option(
        "trace",
        "word",
        "poisson",
        "when requests come",
        choices=KINDS,
    ),
    Option("rate", "number", 8.0, "requests a second, in the mean", above=0, most=1_000_000),
    Option(
        "period_s",
        "number",
        4.0,
        "of trace periodic: its rate swings",
        above=0,
        most=86_400,
    ),
    Option(
        "burst",
        "whole",
        8,
        "requests that come together (bursts)",
        least=1,
        most=100_000,
    ),
    Option(
        "list",
        "text",
        "",
        "those of an iteration (list)",
        parse=read_list,
        form=FORM,
    ),
    Option(
        "prompt",
        "whole",
        256,
        "tokens of a prompt, half as many more or fewer",
        least=1,
        most=1 << 20,
    ),
    Option("output", "whole", 16, "tokens asked for, likewise", least=1, most=1 << 20),
    Option(
        "long_every",
        "whole",
        0,
        "one in so many prompts is long; 0: none",
        least=0,
        most=MANY,
    ),
    Option("long_prompt", "whole", 4096, "its tokens", least=1, most=1 << 20),
    Option(
        "home",
        "number",
        0.0,
        "share of requests that go where their conversation is, not where most room is",
        least=0,
        most=1,
    ),
    Option(
        "shift",
        "whole",
        0,
        "iterations until conversations move, in a cycle (periodic) or anywhere; 0: never",
        least=0,
        most=MANY,
    ),
    Option(
        "pause_ms",
        "number",
        0.0,
        "before an iteration's requests",
        least=0,
        most=86_400_000,
    ),
    Option("layers", "whole", 4, "of the model", least=1, most=1024),
    Option("heads", "whole", 2, "of keys and values in a layer", least=1, most=1024),
    Option("dimension", "whole", 64, "numbers of a head", least=1, most=1 << 14),
    Option("bytes", "whole", 2, "of a number", choices=(1, 2, 4)),
    Option(
        "pages",
        "whole",
        1024,
        "pages of a rank",
        least=1,
        most=1 << 24,
    ),
    Option(
        "chunk",
        "whole",
        128,
        "tokens after which keys and values go out",
        least=16,
        most=1 << 20,
        multiple=16,
    ),
    Option(
        "batch",
        "whole",
        32,
        "requests of a step at most",
        least=1,
        most=1 << 16,
    ),
    Option("prompt_us", "number", 100.0, "computing a token of a prompt", least=0, most=1e9),
    Option("step_ms", "number", 10.0, "a step", least=0, most=60_000),
    Option("sequence_us", "number", 200.0, "more for each of its requests", least=0, most=1e9),
    Option(
        "ttft_ms",
        "number",
        200.0,
        "target: first token",
        above=0,
        most=86_400_000,
    ),
    Option("tpot_ms", "number", 50.0, "target: each one after it", above=0, most=86_400_000),
    Option("seed", "whole", 1, "of the requests", least=0, most=1 << 31),
)


def load_of(value: Mapping[str, Any]) -> Load:
    """The trace that the values of serve's options describe."""
    return Load(
        **{each.name: value[each.name] for each in fields(Load) if each.name != "kind"},
        kind=value["trace"],
    )


def conflicts_of_serve(
    value: Mapping[str, Any], ranks: int, nccl: bool
) -> Iterator[tuple[str, str]]:
    if nccl:
        yield (
            "prefill",
            "keys and values go over connections of serve's own; give the job backend gloo",
        )
    if ranks > MOST_RANKS:
        yield "prefill", f"{ranks} ranks; a job of serve has at most {MOST_RANKS}"
    if value["trace"] != "list" and (s := value["requests"] / value["rate"]) > MOST_S:
        yield (
            "rate",
            f"{value['rate']:g}: {value['requests']} requests take {s:.3g} s; an iteration may have {MOST_S}",
        )
    if value["prefill"] >= ranks:
        yield (
            "prefill",
            f"{value['prefill']}: of {ranks} rank{'s' if ranks > 1 else ''} none is left to make tokens; with 0 each rank does both",
        )
    listed = read_list(value["list"])
    if (value["trace"] == "list") != bool(listed):
        yield "list", "trace list needs it, and no other trace has one"
    tokens, size = (
        most_tokens(load_of(value), listed),
        page_bytes(*(value[name] for name in ("layers", "heads", "dimension", "bytes"))),
    )
    if (wanted := pages_of(tokens)) > value["pages"]:
        yield (
            "pages",
            f"{value['pages']}: a request of up to {tokens} tokens takes {wanted}, of {TOKENS} tokens each",
        )
    if (whole := size * value["pages"]) > MOST_MEMORY:
        yield (
            "pages",
            f"{value['pages']} of {size} bytes take {whole >> 20} MiB of each rank; wanted at most {MOST_MEMORY >> 20}",
        )
