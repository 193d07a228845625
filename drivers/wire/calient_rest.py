"""A Calient switch's answers over REST: connection rows, the results inside HTTP 200, port details.
Numbers are text.

Shapes: COSMOS Ryu application, NTT Com RENAT (a port's detail as captured), public clients. A row's
`half1.conn` is `in>out`; a two-way row has a `half2`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from drivers.wire.calient_rows import is_aid, labels
from drivers.wire.rest import (
    Json,
    decimal,
    mapping,
    parse_json,
    quote,
    restconf_message,
    rows,
    text,
)
from drivers.wire.unknown import Unknown
from optics import Garbled

Row = Mapping[str, Json]


def body(status: int, content: bytes) -> Json:
    """The JSON of an answer. Raises: Garbled - another status than 200, or not JSON."""
    if status != 200:
        raise Garbled(restconf_message(status, content))
    return parse_json(content)


def refusal(item: Json) -> str:
    """The words of a result, empty when it says that it was done: `status` is "1", or "0" and then
    `msg` and `description` say why.

    >>> refusal({"response": {"status": "0", "msg": "Failed", "description": "port in use"}})
    'Failed: port in use'

    Raises: Garbled - no such result.
    """
    held = mapping(item, "a result")
    held = mapping(held["response"], "response") if "response" in held else held
    status = text(held, "status")
    if status not in ("0", "1"):
        raise Garbled(f"status is neither 0 nor 1: {quote(repr(held))}")
    lines = [text(held, key, "") for key in ("msg", "description")]
    return (
        ""
        if status == "1"
        else ": ".join(word[:200] for word in lines if word) or "failed, without words"
    )


def refusals(answer: Json, count: int) -> list[str]:
    """The results of a batch of `count` items, in their order. Raises: Garbled - another number of
    them.

    One result for a whole batch that failed (for example for lack of rights) counts for every item.
    """
    items = answer if isinstance(answer, list) else [answer]
    found = [refusal(item) for item in items]
    if len(found) == 1 and found[0]:
        return found * count
    if len(found) != count:
        raise Garbled(f"{len(found)} results for {count} items: {quote(repr(answer))}")
    return found


def endpoints(half: Row) -> tuple[str, str]:
    """Where light enters and leaves, from a half's `conn` (`3.3.1>3.3.2`). Raises: Garbled."""
    ends = re.split(r"[>-]", text(half, "conn"))
    if len(ends) != 2 or not all(map(is_aid, ends)):
        raise Garbled(f"no circuit: {quote(repr(half))}")
    return ends[0], ends[1]


def unreadable(row: Row) -> Unknown:
    """A row of the list that is outside its form, with every port that it may concern."""
    halves = [half for key in ("half1", "half2") if isinstance(half := row.get(key), dict)]
    named = [
        text
        for part in (row, *halves)
        for key in ("conn", "name", "connid")
        if isinstance(text := part.get(key), str)
    ]
    ends = [
        end
        for half in halves
        if isinstance(conn := half.get("conn"), str)
        for end in re.split(r"[>-]", conn)
        if end
    ]
    return Unknown(json.dumps(row, default=str), labels(*named) | {*ends})


def connections(answer: Json) -> list[Row]:
    """The rows of the list of cross-connects. Raises: Garbled - no list, or a result with status
    "0" in its place.
    """
    return rows(answer, "the list")


def level(row: Row, key: str) -> float | None:
    """A power (dBm) written as text, None where the port has no meter. Raises: Garbled."""
    word = text(row, key, "").strip()
    return None if word.upper() in ("", "NONE", "N/A", "--") else float(decimal(word, key))
