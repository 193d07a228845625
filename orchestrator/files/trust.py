"""Whose files are trusted: the user's own, root's, those of this program's owner, and of users whom
the operator names.

What a command reads from a directory decides where passwords go and what runs on hosts, so a file
that another user of this machine put there is refused, as git does (safe.directory).
"""

from __future__ import annotations

import grp
import os
import pwd
import stat
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from optics.errors import Untrusted
from orchestrator.files.reading import read_whole

SHARED = Path("/run/testbed-locks")
"""Where all users of a machine who may change its labs lock; in a directory where only root creates
files.
"""

STATED_BY = (
    "hosts.yml",
    "devices.yml",
    "fibres.yml",
    "programs.yml",
    "losses.csv",
    "emulator.yml",
    "known_hosts",
    "group_vars",
    "host_vars",
)
"""The files read from an inventory's directory; Ansible takes the last two from the directory of
hosts.yml. The files of programs are checked when they are read (`orchestrator.hosts.program`)."""
MOST_FILES = 5000
MOST_BYTES = 1 << 20


def believed(names: Iterable[str] = ()) -> frozenset[int]:
    """The user ids whose files are trusted; `names`: of users, or numbers. Raises: ValueError -
    there is no such user.

    The program's owner decides what it does anyway, and so does the user who became root by sudo to
    run it.
    """
    found = {0, os.geteuid(), Path(__file__).stat().st_uid}
    if os.geteuid() == 0 and (sudo := os.environ.get("SUDO_UID", "")).isdecimal():
        found.add(int(sudo))
    for name in names:
        try:
            found.add(int(name) if name.isdecimal() else pwd.getpwnam(name).pw_uid)
        except KeyError:
            raise ValueError(f"there is no user {name!r} on this machine") from None
    return frozenset(found)


def user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"


def group_name(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return f"gid {gid}"


def require_own(path: Path, uids: Collection[int]) -> None:
    """Raises: Untrusted - `path`, or the link it is, belongs to another user. OSError - it does not
    exist.
    """
    for found in (path.lstat(), path.stat()):
        if found.st_uid not in uids:
            raise _belongs(path, found.st_uid)


def require_own_folder(folder: Path, uids: Collection[int]) -> None:
    """Raises: Untrusted - another user owns the directory, or its parent, and could replace it."""
    require_own(folder, uids)
    require_own(folder.resolve().parent, uids)


def read_own(path: Path, uids: Collection[int]) -> str:
    """The text of a settings file that no other user can have written.

    Raises: Untrusted - another user owns it or its directory, or may write there. OSError,
    UnicodeDecodeError.
    """
    require_own(path, uids)
    # a blocking open would wait on a FIFO
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(fd):
        found = os.fstat(fd)  # of the open file: a name may point elsewhere a moment later
        text = read_whole(fd, MOST_BYTES).decode()
        if found.st_uid not in uids:
            raise _belongs(path, found.st_uid)
        require_own(path.parent, uids)
        for loose in (path, path.parent):
            if _world_writable(loose):
                raise Untrusted(
                    f"{loose}: every user may write it, and so decide what testbed does",
                    hint=f"chmod o-w {loose}",
                )
        return text


def require_own_inventory(folder: Path, uids: Collection[int]) -> None:
    """Raises: Untrusted - another user owns the directory, its parent, or a file in it that would
    be read.
    """
    if folder.is_dir():
        require_own_folder(folder, uids)
        for path in _inventory(folder):
            require_own(path, uids)


def loose(folder: Path) -> list[Path]:
    """The files and directories of an inventory that every user of this machine may write or
    replace.
    """
    if not folder.is_dir():
        return []
    return [
        path for path in (folder.resolve().parent, *_inventory(folder)) if _world_writable(path)
    ]


def _inventory(folder: Path) -> Iterator[Path]:
    """The directory and all in it that is read, links included. Raises: Untrusted - too many files
    to check.
    """
    yield folder
    count = 0
    for top in (folder / name for name in STATED_BY):
        if top.exists():
            yield top
        for where, folders, files in os.walk(top):
            yield from (
                Path(where, name) for name in (*folders, *files) if Path(where, name).exists()
            )
            count += len(folders) + len(files)
            if count > MOST_FILES:
                raise Untrusted(
                    f"{top}: more than {MOST_FILES} files, too many to check their owners",
                    hint=f"tidy up {top}",
                )


def _world_writable(path: Path) -> bool:
    mode = path.stat().st_mode
    return bool(mode & stat.S_IWOTH) and not (stat.S_ISDIR(mode) and mode & stat.S_ISVTX)


def _belongs(path: Path, uid: int) -> Untrusted:
    who = user_name(uid)
    return Untrusted(
        f"{path}: belongs to {who}, and its content would decide what testbed does",
        hint=f"if you trust {who}: export TESTBED_TRUST={who if ' ' not in who else uid}, or `trust` in your config.toml "
        "(docs/how-to/keep-it-safe.md); otherwise work in a directory of your own",
    )
