"""Choose the fewest, shortest inputs that reach every line the many reach."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from tests.fuzz.targets import INSTRUMENTED, Fuzz, targets

Arc = tuple[CodeType, int, int]
_OURS = tuple(f"/{package}/" for package in INSTRUMENTED)


def reached(fuzz: Fuzz, data: bytes) -> frozenset[Arc]:
    """The steps from line to line of this project's code that an input takes."""
    found: set[Arc] = set()

    def called(frame: FrameType, event: str, _: Any) -> Callable[[FrameType, str, Any], Any] | None:
        if not any(part in frame.f_code.co_filename for part in _OURS):
            return None
        last = 0

        def stepped(frame: FrameType, event: str, _: Any) -> Any:
            nonlocal last
            found.add((frame.f_code, last, frame.f_lineno))
            last = frame.f_lineno
            return stepped

        return stepped

    sys.settrace(called)
    try:
        fuzz(data)
    finally:
        sys.settrace(None)
    return frozenset(found)


def keep_smallest(name: str, kept: Path, found: Path, most: int, most_bytes: int) -> None:
    """Leave in `kept` what covers all that `kept` and `found` cover: so many files and bytes at
    most, what adds most first.
    """
    fuzz = targets()[name]
    both = {file.read_bytes() for folder in (kept, found) for file in folder.iterdir()}
    inputs = sorted(both, key=lambda data: (len(data), data))
    covers = {data: reached(fuzz, data) for data in inputs}
    missing = frozenset().union(*covers.values())
    chosen: list[bytes] = []
    while missing and len(chosen) < most:
        best = max(inputs, key=lambda data: len(covers[data] & missing) / (len(data) + 40))
        if sum(map(len, chosen)) + len(best) > most_bytes or not covers[best] & missing:
            break
        chosen.append(best)
        missing -= covers[best]
    for file in kept.iterdir():
        file.unlink()
    for data in chosen:
        (kept / hashlib.sha256(data).hexdigest()[:12]).write_bytes(data)
