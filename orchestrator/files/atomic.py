"""Files that are written completely or not at all: a full disk, an error, a kill or a power cut
leaves the previous content.

Their paths come from users, perhaps in a directory like /tmp: links of other users are not followed
(without relying on the kernel's fs.protected_symlinks), and the draft is a file that no other user
can have created.
"""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from orchestrator.files.trust import believed, user_name


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """A place to write what becomes `path` when the block ends without error; a pipe or a device is
    written directly.

    Raises: OSError - it cannot get the name, or a link of another user is on the path; a previous
    file is unchanged.
    """
    check_links(path)
    if path.exists() and (
        not path.is_file() or path.is_relative_to("/dev") or path.is_relative_to("/proc")
    ):
        yield path
        return
    place = path.resolve()  # a link stays, and the file it points to is replaced
    fresh = place.with_name(f".{place.name[:200]}.{secrets.token_hex(8)}.new")
    os.close(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666))
    try:
        yield fresh
        _settled(fresh)
        fresh.replace(place)
    except BaseException:
        with suppress(OSError):
            fresh.unlink()
        raise
    with suppress(OSError):  # it is replaced; some file systems cannot sync a directory
        _settled(place.parent)


def _settled(path: Path) -> None:
    """Wait until the disk has it: a rename may reach it before the content does, and a power cut
    then leaves an empty file.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def check_links(path: Path) -> None:
    """Raises: PermissionError - `path`, or a directory on the path to it, is a link that another
    user made.
    """
    uids = believed()
    for step in (path.absolute(), *path.absolute().parents):
        if step.is_symlink() and (uid := step.lstat().st_uid) not in uids:
            raise PermissionError(errno.EPERM, f"{step} is a link, and belongs to {user_name(uid)}")


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a complete file, text in UTF-8. Raises: OSError - it cannot be written; the previous
    content is unchanged.
    """
    with atomic_write(path) as fresh:
        fresh.write_bytes(content.encode() if isinstance(content, str) else content)


def probe(path: Path) -> None:
    """Find out early that a file cannot be written; leaves nothing behind. Raises: OSError."""

    class Enough(Exception):
        pass

    with suppress(Enough), atomic_write(path) as fresh:
        if fresh != path:
            fresh.touch()
        raise Enough
