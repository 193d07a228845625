"""Follow one run's journal by byte offset, part after part, and store next to it how much of it a
destination has.
"""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from orchestrator.telemetry.reader import part_files

BATCH_LINES = 5000
_PIECE = 1 << 20
_NOTE_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Mark:
    """How much of a journal one destination has: the part and the byte (uncompressed) up to which
    every line is acknowledged.

    points: lines sent; refused: how many of these the server rejected, with its words for the last
    rejection.
    """

    target: str = ""
    part: int = 0
    offset: int = 0
    points: int = 0
    refused: int = 0
    message: str = ""


class JournalTail:
    """Reads whole lines after the mark; a line without a line end is not returned.

    The journal may move on to a next part, compress a closed one, or cut off a torn line meanwhile:
    of an open part only the offset is kept between two reads.
    """

    def __init__(self, run_dir: Path, mark: Mark) -> None:
        self.run_dir = run_dir
        self.mark = mark
        self._packed: gzip.GzipFile | None = None
        self._ahead = b""

    def take(self, most: int = BATCH_LINES) -> bytes:
        """The next lines, at most so many; empty if there are none now."""
        while True:
            if piece := self._read(most):
                return piece
            if (later := self._later()) is None:
                return b""
            # There is a next part, so this one no longer grows; it may have grown before the next
            # part was seen.
            if piece := self._read(most):
                return piece
            self._forget()
            self.mark = Mark(
                self.mark.target, later, 0, self.mark.points, self.mark.refused, self.mark.message
            )

    def taken(self, data: bytes, points: int, refused: int = 0, text: str = "") -> None:
        """The lines of the last `take` are acknowledged: move the mark past them."""
        m = self.mark
        self.mark = Mark(
            m.target,
            m.part,
            m.offset + len(data),
            m.points + points,
            m.refused + refused,
            text or m.message,
        )
        self._ahead = self._ahead[len(data) :]

    def behind(self) -> int:
        """Bytes not yet acknowledged, a torn last line included; compressed parts count with their
        compressed size.
        """
        total = 0
        for path in part_files(self.run_dir):
            number = _number(path)
            with suppress(OSError):
                if number == self.mark.part and path.suffix == ".gz":
                    total += 0 if self._at_end(path) else path.stat().st_size
                elif number >= self.mark.part:
                    total += path.stat().st_size - (
                        self.mark.offset if number == self.mark.part else 0
                    )
        return max(0, total)

    def close(self) -> None:
        self._forget()

    def _forget(self) -> None:
        if self._packed is not None:
            self._packed.close()
        self._packed, self._ahead = None, b""

    def _folder(self) -> Path:
        return self.run_dir / "telemetry"

    def _later(self) -> int | None:
        """The number of the next part; None while this one is the last."""
        numbers = [n for path in part_files(self.run_dir) if (n := _number(path)) > self.mark.part]
        return min(numbers, default=None)

    def _read(self, most: int) -> bytes:
        if self._packed is None:
            try:
                fd = os.open(
                    self._folder() / f"{self.mark.part:03d}.lp", os.O_RDONLY | os.O_CLOEXEC
                )
            except FileNotFoundError:
                return self._unpacked(most)
            try:
                return _whole(fd, self.mark.offset, most)
            finally:
                os.close(fd)
        return self._unpacked(most)

    def _unpacked(self, most: int) -> bytes:
        if self._packed is None:
            path = self._folder() / f"{self.mark.part:03d}.lp.gz"
            if not path.exists():
                return b""
            self._packed = gzip.open(path, "rb")  # noqa: SIM115 - kept open from one read to the next
            self._packed.seek(self.mark.offset)
        while (cut := _cut(self._ahead, most)) == 0 or (
            len(self._ahead) < _PIECE and cut == len(self._ahead)
        ):
            more = self._packed.read(_PIECE)
            if not more:
                break
            self._ahead += more
        return self._ahead[:cut]

    def _at_end(self, path: Path) -> bool:
        with gzip.open(path, "rb") as packed:
            packed.seek(self.mark.offset)
            return b"\n" not in packed.read(_PIECE)


def stored_mark(run_dir: Path, key: str, target: str) -> Mark:
    """The mark of a destination for a journal; a new one if there is none that can be read."""
    try:
        reply = json.loads(_place(run_dir, key).read_text(encoding="utf-8"))
        part, offset, points, refused = (
            int(reply[name]) for name in ("part", "offset", "points", "refused")
        )
        found = Mark(target, part, offset, points, refused, str(reply.get("message", "")))
    except (OSError, ValueError, KeyError, TypeError):
        return Mark(target)
    return found if found.part >= 0 and found.offset >= 0 else Mark(target)


def store_mark(run_dir: Path, key: str, mark: Mark) -> None:
    """Write the mark. Raises: OSError - disk full, or the run is gone."""
    put(_place(run_dir, key), asdict(mark))


def put(path: Path, values: Mapping[str, object]) -> None:
    """Overwrite a file with a small JSON object, in one write of fixed size. Raises: OSError.

    Not by a rename: on ext4 that waits for the disk (mount option auto_da_alloc). What a power cut
    leaves reads as nothing.
    """
    text = json.dumps(values).encode().ljust(_NOTE_BYTES)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.pwrite(fd, text, 0)
    finally:
        os.close(fd)


def _place(run_dir: Path, key: str) -> Path:
    return run_dir / "telemetry" / f"influx-{key}.json"


def _number(path: Path) -> int:
    return int(path.name.split(".")[0])


def _whole(fd: int, offset: int, most: int) -> bytes:
    """Whole lines from `offset` on; reads on until a line longer than one piece is complete."""
    size = _PIECE
    while True:
        piece = os.pread(fd, size, offset)
        cut = _cut(piece, most)
        if cut or len(piece) < size:
            return piece[:cut]
        size *= 2


def _cut(piece: bytes, most: int) -> int:
    """The end of the last whole line, at most so many lines on."""
    if piece.count(b"\n") <= most:
        return piece.rfind(b"\n") + 1
    return len(piece) - len(piece.split(b"\n", most)[-1])
