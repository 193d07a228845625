"""What every part of the agent needs: paths, refusals, small files, checked numbers."""

from __future__ import annotations

import json
import os
import stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from agent.shapes import Json, T

VERSION = 1
VAR = os.environ.get("TESTBED_VAR", "/var/lib/testbed")  # survives a reboot: facts, workloads, jobs
# does not: what the kernel holds would be gone as well
RUN = os.environ.get("TESTBED_RUN", "/run/testbed")
SOCKET = RUN + "/committer.sock"
FOLDER = os.path.dirname(os.path.abspath(__file__))
HOME = os.path.dirname(FOLDER)  # what else the archive has is there, too
# run by its path: `python3 -m` would import runpy, and an attach cannot afford it
PROGRAM = FOLDER + "/__main__.py"


class Failure(Exception):
    """A request that cannot be done; `code` is one of bad-request, unknown-op, refused, overtaken,
    failed.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


def refused(message: str) -> Failure:
    return Failure("refused", message)


def bad(message: str) -> Failure:
    return Failure("bad-request", message)


def read(path: str) -> str:
    """The text of a file; empty where it cannot be read. Bytes that are no UTF-8 are replaced: any
    process may be named so.
    """
    try:
        with open(path, encoding="utf-8", errors="replace") as f:
            return f.read()
    except OSError:
        return ""


def read_json(path: str) -> Any:
    try:
        return json.loads(read(path))
    except ValueError:
        return None


def jobs_file(path: str, size: int) -> bytes:
    """The content of a file that a job writes, of this size and with one name.

    Raises: OSError, ValueError - there is none, or it is anything else.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1 or status.st_size != size:
            raise ValueError(f"the file is not a plain one of {size} bytes with one name")
        return os.pread(fd, size, 0)
    finally:
        os.close(fd)


def write(path: str, text: str, reach_disk: Callable[[str], object] = lambda path: None) -> None:
    """Replace a file in one step, readable by root only: a reader sees the old content or the new,
    never half.
    """
    fd = os.open(path + ".new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        view = memoryview(text.encode())
        while view:
            view = view[os.write(fd, view) :]
    finally:
        os.close(fd)
    reach_disk(path + ".new")
    os.rename(path + ".new", path)
    reach_disk(os.path.dirname(path))


def keep(path: str, text: str) -> None:
    """As `write`, for what must outlive a power cut: when this returns, the disk has it.

    A rename alone may reach the disk before the content does, which leaves an empty file. What a
    restart makes void (all below RUN, records of processes) is written without: the daemon has one
    thread, and a disk may take a tenth of a second.
    """
    write(path, text, settled)


def settled(path: str) -> None:
    """Wait until the disk has a file or a directory as it is now."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


UNPACKED_LIMIT = 16 << 20


def unpack(text: Any) -> Any:
    """Read JSON that was gzipped and put into base64. Nothing grows beyond UNPACKED_LIMIT, whatever
    was packed.
    """
    import binascii
    import zlib

    packed = zlib.decompressobj(wbits=31)
    try:
        data = packed.decompress(binascii.a2b_base64(text), UNPACKED_LIMIT)
        if packed.unconsumed_tail or not packed.eof:
            raise bad(f"packed: cut off, or more than {UNPACKED_LIMIT} bytes")
        return json.loads(data)
    except (TypeError, ValueError, zlib.error) as e:
        raise bad(f"packed: not JSON, gzipped, in base64: {e}") from None


def directories() -> None:
    """Make the agent's directories, all owned by root: the user of jobs may traverse some of them,
    and write into none.
    """
    for path, mode in (
        (VAR, 0o711),
        (VAR + "/jobs", 0o711),  # in it one directory per job, of the job's user
        (VAR + "/checkpoints", 0o711),  # likewise
        (VAR + "/ring_changes", 0o711),  # in it one socket per running job, of the job's user
        (VAR + "/slots", 0o711),  # likewise
        (VAR + "/started", 0o700),  # records of jobs: root signals the process that they name
        (VAR + "/workloads", 0o711),
        (VAR + "/programs", 0o711),
        (RUN, 0o700),
        (RUN + "/generations", 0o700),
    ):
        os.makedirs(path, mode=0o700, exist_ok=True)
        if os.stat(path).st_mode & 0o777 != mode:
            os.chmod(path, mode)


def host_parts() -> list[str]:
    """The folders below HOME with what mechanisms do on hosts: extensions/NAME/host."""
    try:
        names = sorted(os.listdir(HOME + "/extensions"))
    except OSError:
        return []
    return [
        part
        for part in (f"extensions/{name}/host" for name in names)
        if os.path.isdir(f"{HOME}/{part}")
    ]


def own_sha() -> str:
    """Return what identifies this very agent: a digest of its files and of those of the mechanisms,
    by name.
    """
    import hashlib

    digest = hashlib.sha256()
    folders = (
        each
        for part in (os.path.basename(FOLDER), *host_parts())
        for each in os.walk(f"{HOME}/{part}")
    )
    files = (
        os.path.relpath(f"{folder}/{name}", HOME) for folder, _, names in folders for name in names
    )
    for name in sorted(each for each in files if each.endswith((".py", ".o"))):
        with open(f"{HOME}/{name}", "rb") as f:
            digest.update(name.encode() + b"\0" + f.read() + b"\0")
    return digest.hexdigest()


def integer(request: Json, key: str, least: int) -> int:
    value = request.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise bad(f"{key}: a whole number >= {least} is needed, got {value!r}")
    return value


def number(request: Json, key: str, default: T) -> float | T:
    """A time in seconds; `default` where the request has none."""
    value = request.get(key)
    if value is None:
        return default
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 <= value <= 86400:
        raise bad(f"{key}: seconds from 0 to 86400 are needed, got {value!r}")
    return float(value)


def execute(argv: list[str] | None, tolerate: bool = False) -> None:
    """Run a command; `tolerate`: its failure is no failure, as with removing what is not there."""
    import subprocess

    if not argv:
        return
    done = subprocess.run(
        argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=10
    )
    if done.returncode and not tolerate:
        raise Failure(
            "failed",
            "{}: {}".format(
                " ".join(argv),
                done.stdout.decode(errors="replace").strip() or f"exit {done.returncode}",
            ),
        )


def text(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(w, str) for w in value)


def rows(request: Json, key: str, width: int) -> list[list[str]]:
    """Return request[key], a list of lists of `width` words; checked, because half a generation
    must not be staged.
    """
    value = request.get(key, [])
    if not isinstance(value, list):
        raise bad(f"{key}: a list is needed")
    for i, row in enumerate(value):
        if not text(row) or len(row) != width:
            raise bad(f"{key}[{i}]: {width} words are needed, got {row!r}")
    return value
