"""Regular expressions that can take exponential time on a line that does not match."""

from __future__ import annotations

import re

_TOKEN = re.compile(
    r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\(\?P[=>]\w+\)?|\(|\)|[*+]|\{[0-9]*,?[0-9]*\}|.", re.DOTALL
)
MOST_REPEATS = 12
"""Repetitions without an upper limit in one pattern."""


def explosive(pattern: str) -> str:
    r"""Why a pattern may take very long, in words; empty: no repeated group has a choice in it, and
    repetitions are few in all.

    A group that is repeated may match the same text in several ways if a repetition or an
    alternative is inside it, an optional part among them; then the number of attempts grows
    exponentially with the text. This refuses more than it must: possessive groups are not
    recognised.

    >>> explosive(r"(\d+)*x")
    'a repetition, an optional part or an alternative inside a repeated group'
    >>> explosive(r"iter (?P<iter>\d+)( loss [-+.\deE]+)?")
    ''
    """
    inside = [False]  # whether each open group has a repetition or an alternative so far
    # whether the last token closed a group, and whether that group has one
    closed = repeated = False
    count, before = 0, ""
    for token in _TOKEN.findall(pattern):
        last, before = before, token
        if token in ("*", "+") or re.fullmatch(r"\{[0-9]*,[0-9]*\}|\{[0-9]+\}", token):
            if closed and repeated:
                return "a repetition, an optional part or an alternative inside a repeated group"
            count += token in ("*", "+") or token.endswith(",}")
            inside[-1] = inside[-1] or token in ("*", "+") or "," in token
        elif token == "|" or (token == "?" and last != "("):
            inside[-1] = True
        elif token == "(":
            inside.append(False)
        elif token == ")" and len(inside) > 1:
            repeated = inside.pop()
            inside[-1] = inside[-1] or repeated
            closed = True
            continue
        closed = False
    return f"more than {MOST_REPEATS} repetitions" if count > MOST_REPEATS else ""
