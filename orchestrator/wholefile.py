"""Files that are there whole or not at all: a full disk, an error or a kill leaves what was there before."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """Where to write what takes the name `path` when the block ends well; a pipe or a device is written itself.

    Raises: OSError - it cannot take the name; the old file, if there was one, is as it was.
    """
    if path.exists() and (not path.is_file() or path.is_relative_to("/dev") or path.is_relative_to("/proc")):
        yield path
        return
    place = path.resolve()  # behind a link the file itself is replaced, and the link stays
    fresh = place.with_name(f".{place.name}.{os.getpid()}.new")
    try:
        yield fresh
        fresh.replace(place)
    except BaseException:
        with suppress(OSError):
            fresh.unlink()
        raise


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a file whole, text in UTF-8. Raises: OSError - it cannot be written; what was there is as it was."""
    with whole(path) as fresh:
        fresh.write_bytes(content.encode() if isinstance(content, str) else content)


def probe(path: Path) -> None:
    """Find out early that a file cannot be written; nothing stays behind. Raises: OSError."""

    class Enough(Exception):
        pass

    with suppress(Enough), whole(path) as fresh:
        if fresh != path:
            fresh.touch()
        raise Enough
