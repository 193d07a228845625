"""JSON as switches speak it over HTTP: read strictly, numbers exact, and the error bodies of
RESTCONF (RFC 8040, section 7.1).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from decimal import Decimal
from typing import TypeAlias

from optics import Garbled
from optics.plain import printable

Json: TypeAlias = "Mapping[str, Json] | list[Json] | str | int | Decimal | bool | None"

_NUMBER = re.compile(r"[+-]?[0-9]{1,12}(\.[0-9]{1,12})?")


def quote(text: str | bytes) -> str:
    """The beginning of an answer, fit for a message.

    >>> quote(b"<html>" + b"x" * 500)[-12:]
    "xxxxxxxx'..."
    """
    if isinstance(text, bytes):
        text = text[:1000].decode("utf-8", "backslashreplace")
    return f"{text[:120]!r}..." if len(text) > 120 else repr(text)


def parse_json(body: bytes) -> Json:
    """Read a body; numbers with a fraction become Decimal. Raises: Garbled - not JSON, a key twice,
    NaN, too deep.

    >>> parse_json(b'{"center": 193.1}')
    {'center': Decimal('193.1')}
    """

    def once(pairs: list[tuple[str, Json]]) -> Mapping[str, Json]:
        found = dict(pairs)
        if len(found) != len(pairs):
            raise ValueError("a key twice")
        return found

    def no_number(word: str) -> Json:
        raise ValueError(f"{word} is no JSON")

    try:
        text = body.decode("utf-8-sig")
        return json.loads(  # type: ignore[no-any-return]
            text, object_pairs_hook=once, parse_float=Decimal, parse_constant=no_number
        )
    except (ValueError, ArithmeticError, RecursionError) as error:
        why = str(error).split(":")[0] or type(error).__name__
        raise Garbled(f"not JSON ({why}): {quote(body)}") from None


def mapping(value: Json, what: str) -> Mapping[str, Json]:
    """`value` as an object. Raises: Garbled."""
    if not isinstance(value, dict):
        raise Garbled(f"{what} is no object: {quote(repr(value))}")
    return value


def rows(value: Json, what: str) -> list[Mapping[str, Json]]:
    """`value` as a list of objects. Raises: Garbled."""
    if not isinstance(value, list):
        raise Garbled(f"{what} is no list: {quote(repr(value))}")
    return [mapping(row, what) for row in value]


def entries(value: Json, what: str) -> list[Mapping[str, Json]]:
    """The entries of a RESTCONF list; one may stand alone, as an object (CODE: a client of Polatis
    switches). Raises: Garbled.
    """
    return [value] if isinstance(value, dict) else rows(value, what)


def text(row: Mapping[str, Json], key: str, default: str | None = None) -> str:
    """The text at `key`, one line; a number counts as its digits. Raises: Garbled - absent without
    a default, or something else.
    """
    value = row.get(key, default)
    if isinstance(value, bool) or not isinstance(value, (str, int, Decimal)):
        raise Garbled(f"{key!r} is no text: {quote(repr(row))}")
    return printable(str(value), keep="")


def number(row: Mapping[str, Json], key: str) -> Decimal:
    """The number at `key`, exact, also where it is written as text. Raises: Garbled.

    >>> number({"inpower": "-3.4"}, "inpower"), number({"n": 7}, "n")
    (Decimal('-3.4'), Decimal('7'))
    """
    return decimal(text(row, key), key)


def decimal(word: str, what: str) -> Decimal:
    """A plain decimal number of a dozen digits. Raises: Garbled.

    >>> decimal(" 191.250 ", "frequency")
    Decimal('191.250')
    """
    if not _NUMBER.fullmatch(word.strip()):
        raise Garbled(f"{what} is no number: {quote(word)}")
    return Decimal(word.strip())


def whole(row: Mapping[str, Json], key: str) -> int:
    """The whole number at `key`. Raises: Garbled."""
    found = number(row, key)
    if found != found.to_integral_value():
        raise Garbled(f"{key!r} is no whole number: {quote(repr(row))}")
    return int(found)


def restconf_message(status: int, body: bytes) -> str:
    """What a RESTCONF error says: its tags and messages, else the beginning of the body.

    >>> restconf_message(409, b'{"ietf-restconf:errors":{"error":[{"error-tag":"in-use","error-message":"port 9"}]}}')
    'HTTP 409: in-use: port 9'
    """
    try:
        errors = mapping(mapping(parse_json(body), "body")["ietf-restconf:errors"], "errors")[
            "error"
        ]
        lines = [
            ": ".join(text(e, k) for k in ("error-tag", "error-message") if k in e)
            for e in entries(errors, "error")
        ]
        return f"HTTP {status}: " + "; ".join(word for word in lines if word)
    except (Garbled, KeyError):
        plain = re.sub(r"<[^<>]*>", " ", body[:2000].decode("utf-8", "replace"))
        plain = " ".join(plain.split())[:120]
        return f"HTTP {status}" + (f": {plain}" if plain else "")
