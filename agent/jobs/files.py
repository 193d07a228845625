"""Files of the programs of the lab's owner: copied here once, under their digest; and what else a
program needs on a host.

They belong to root, and the users of jobs may only read them.
"""

from __future__ import annotations

import os
import re
import shutil

from agent.basics import VAR, bad, integer, refused, settled

TYPE_CHECKING = False
if TYPE_CHECKING:
    from agent.shapes import Daemon, Json

FOLDER = VAR + "/programs"
DIGEST = re.compile(r"^[0-9a-f]{64}$")
UNPACKED_LIMIT = 40 << 20  # bytes; operators send at most 32 MiB of content, in 2000 files
PACKED_LIMIT = UNPACKED_LIMIT
KEPT = 16  # versions of files that a host keeps, the latest


def digest_of(request: Json) -> str:
    digest = request.get("files")
    if not isinstance(digest, str) or not DIGEST.match(digest):
        raise bad(f"files: a SHA-256 in hexadecimal is needed, got {digest!r}")
    return digest


def ready(server: Daemon, request: Json) -> Json:
    """What a program lacks here: refused if it is a directory or a user, `files` is false if it is
    its files.
    """
    name, paths = request.get("program"), request.get("paths", [])
    if not isinstance(name, str) or not isinstance(paths, list):
        raise bad("program, paths: a name and a list are needed")
    server.jobs.user(request.get("user"))
    for path in paths:
        if not isinstance(path, str) or not path.startswith("/"):
            raise bad(f"paths: absolute paths are needed, got {path!r}")
        if not os.path.isdir(path):
            raise refused(f"program {name} needs the directory {path}, which is not on this host")
    have = None
    if request.get("files") is not None:
        folder = f"{FOLDER}/{digest_of(request)}"
        have = os.path.isdir(folder)
        if have:
            os.utime(folder)  # it is in use: the last to be dropped
    return {"program": name, "files": have}


def put(request: Json) -> Json:
    """Take a piece of a program's files, a tar archive, gzipped; unpack it after the last piece."""
    import base64
    import binascii

    digest, offset = digest_of(request), integer(request, "offset", 0)
    try:
        data = base64.b64decode(request.get("data") or "", validate=True)
    except (TypeError, ValueError, binascii.Error):
        raise bad("data: base64 is needed") from None
    if offset + len(data) > PACKED_LIMIT:
        raise bad(f"files: more than {PACKED_LIMIT} bytes")
    part = f"{FOLDER}/{digest}.part"
    os.makedirs(FOLDER, mode=0o711, exist_ok=True)
    try:
        fd = os.open(
            part,
            os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | (0 if offset else os.O_CREAT | os.O_TRUNC),
            0o600,
        )
    except FileNotFoundError:
        raise refused(
            f"files {digest[:12]}: nothing of them is here, the piece begins at {offset}"
        ) from None
    try:
        size = os.fstat(fd).st_size
        if size != offset:
            raise refused(
                f"files {digest[:12]}: {size} bytes are here, the piece begins at {offset}; somebody else copies them too"
            )
        view = memoryview(data)
        while view:
            view = view[os.pwrite(fd, view, size + len(data) - len(view)) :]
        if request.get("last"):
            packed = os.pread(fd, PACKED_LIMIT, 0)
    finally:
        os.close(fd)
    if request.get("last"):
        os.unlink(part)
        unpack(packed, digest)
    return {"files": digest, "size": offset + len(data)}


def unpack(packed: bytes, digest: str) -> None:
    """Make the directory of these files, whole or not at all. Raises: Failure - they are not what
    the digest names.
    """
    import hashlib
    import io
    import tarfile
    import zlib

    stream = zlib.decompressobj(wbits=31)
    try:
        data = stream.decompress(packed, UNPACKED_LIMIT)
    except zlib.error as e:
        raise bad(f"files: not gzipped: {e}") from None
    if not stream.eof or hashlib.sha256(data).hexdigest() != digest:
        raise bad(
            f"files: cut off, more than {UNPACKED_LIMIT} bytes, or not those of digest {digest[:12]}"
        )
    folder = f"{FOLDER}/{digest}"
    new = folder + ".new"
    shutil.rmtree(new, ignore_errors=True)
    try:
        make(new)
        with tarfile.open(fileobj=io.BytesIO(data)) as tar:
            for member in tar:
                names = member.name.split("/")
                if not member.isreg() or not all(names) or "." in names or ".." in names:
                    raise bad(f"files: {member.name!r} is no plain file below the directory")
                for depth in range(1, len(names)):
                    make("/".join([new, *names[:depth]]))
                content = tar.extractfile(member)
                path = f"{new}/{member.name}"
                with open(path, "xb") as file:
                    shutil.copyfileobj(content, file) if content else None
                os.chmod(path, 0o755 if member.mode & 0o100 else 0o644)
        # its name says that it is whole, also after a power cut
        for place, _, names in os.walk(new):
            for path in [*(f"{place}/{name}" for name in names), place]:
                settled(path)
        shutil.rmtree(folder, ignore_errors=True)
        os.rename(new, folder)
        settled(FOLDER)
    except (tarfile.TarError, OSError, UnicodeError) as e:
        raise refused(f"files {digest[:12]} cannot be unpacked: {e}") from None
    finally:
        shutil.rmtree(new, ignore_errors=True)
    drop_old()


def make(folder: str) -> None:
    """A directory that all users may read."""
    if not os.path.isdir(folder):
        os.mkdir(folder)
        os.chmod(folder, 0o755)


def drop_old() -> None:
    """Keep the versions used last."""
    known = sorted(os.listdir(FOLDER), key=lambda name: os.lstat(f"{FOLDER}/{name}").st_mtime_ns)
    for name in known[:-KEPT]:
        path = f"{FOLDER}/{name}"
        if os.path.isdir(path):
            shutil.rmtree(path, ignore_errors=True)
        else:
            os.unlink(path)
