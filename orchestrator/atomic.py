"""Files that are there whole or not at all: a full disk, an error or a kill leaves what was there before.

They are asked for by name, perhaps in a directory like /tmp: links of other users are not followed (nor do we trust the kernel's
fs.protected_symlinks to be on), and the draft is a file that no other user can have made.
"""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from orchestrator.trust import believed, user_name


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """Where to write what takes the name `path` when the block ends well; a pipe or a device is written itself.

    Raises: OSError - it cannot take the name, or a link of another user is on the way; the old file, if there was one, is as it
    was.
    """
    own_way(path)
    if path.exists() and (not path.is_file() or path.is_relative_to("/dev") or path.is_relative_to("/proc")):
        yield path
        return
    place = path.resolve()  # behind a link the file itself is replaced, and the link stays
    fresh = place.with_name(f".{place.name[:200]}.{secrets.token_hex(8)}.new")
    os.close(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666))
    try:
        yield fresh
        fresh.replace(place)
    except BaseException:
        with suppress(OSError):
            fresh.unlink()
        raise


def own_way(path: Path) -> None:
    """Raises: PermissionError - `path`, or a directory on the way to it, is a link that another user made."""
    uids = believed()
    for step in (path.absolute(), *path.absolute().parents):
        if step.is_symlink() and (uid := step.lstat().st_uid) not in uids:
            raise PermissionError(errno.EPERM, f"{step} is a link, and belongs to {user_name(uid)}")


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
