"""What hosts keep of a job comes to its run's folder and journal: each piece once, however many
commands look at the job.
"""

from __future__ import annotations

import json
import time
from collections.abc import Awaitable, Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from optics import HostName
from orchestrator.hosts import Tail
from orchestrator.processes import try_lock
from orchestrator.session import Session

MOST_BYTES = 256 << 20
"""Of one file of a job, how much is fetched: its program may write what it likes."""
REPLACED = "\ufffd"


@dataclass
class CollectionMark:
    """How far a run's journal has what hosts keep: after which number or byte of each rank, and
    when it was fetched (wall s).

    ahead: how much each host's wall clock is ahead of the local one (ns), compared at `clocks_at`
    (wall s).
    """

    at: float = 0.0
    clocks_at: float = 0.0
    after: dict[str, int] = field(default_factory=dict)
    ahead: dict[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, text: str) -> CollectionMark:
        """The note that this text is; of anything else a new one."""
        with suppress(ValueError, TypeError, KeyError, AttributeError):
            found = json.loads(text)
            after, ahead = (
                {str(k): int(v) for k, v in found[name].items()} for name in ("after", "ahead")
            )
            return cls(float(found["at"]), float(found["clocks_at"]), after, ahead)
        return cls()

    def due(self, again_s: float) -> bool:
        """Whether the last time is so long ago (s)."""
        return abs(time.time() - self.at) >= again_s


@contextmanager
def collection_mark(path: Path) -> Iterator[CollectionMark | None]:
    """The note in this file, as the body changes it; None: another command has it, which may be
    stopped, so nobody waits for it.
    """
    with path.open("a+", encoding="utf-8") as file:
        path.chmod(0o600)
        if not try_lock(file):
            yield None
            return
        file.seek(0)
        before = file.read()
        note = CollectionMark.of(before)
        yield note
        if (now := json.dumps(asdict(note))) != before:
            file.truncate(0)
            file.write(now)


async def ahead_ns(session: Session, hosts: Collection[HostName]) -> dict[HostName, int]:
    """The wall clock of each host minus the local one (ns); 0 if the difference is within the
    measurement error.
    """
    clocks = await session.hosts.measure.clocks(hosts)
    return {
        host: c.offset_ns if abs(c.offset_ns) > c.round_trip_ns / 2 else 0
        for host, c in clocks.items()
    }


async def collect_lines(
    session: Session,
    host: HostName,
    local: Path,
    tail: Callable[[int], Awaitable[Tail]],
    take: Callable[[list[bytes], int], None],
) -> Tail:
    """Append to `local` the whole lines that a file on the host has beyond it; return the last
    piece.

    tail: asks for the piece from a byte on. take: gets the lines that no other command took, and
    how much the host's wall clock is ahead (ns). Raises: as `tail`; what came before is kept.
    """
    local.touch(mode=0o600)
    while True:
        offset = local.stat().st_size
        piece = await tail(offset)
        whole = whole_lines(piece, offset)
        ahead = (await ahead_ns(session, [host]))[host] if whole else 0
        if whole and append(local, offset, whole):
            take(whole.splitlines(), ahead)
        if not whole or offset + len(whole) >= min(piece.size, MOST_BYTES):
            return piece


def whole_lines(piece: Tail, offset: int) -> bytes:
    """The whole lines of a piece from `offset` on, in as many bytes as they had: by the size of the
    copy the next piece is found.

    A line too long for one piece is taken as it comes, for what follows it. Bytes that are no text
    arrived as REPLACED.
    """
    text = piece.text[: piece.text.rfind("\n") + 1] or (
        piece.text if piece.offset < piece.size else ""
    )
    if REPLACED not in text:
        return text.encode()
    made = text.replace(REPLACED, "?").encode()
    end = b"\n" if made.endswith(b"\n") else b""
    return made.removesuffix(end).ljust(piece.offset - offset - len(end)) + end


def append(file: Path, offset: int, piece: bytes) -> bool:
    """Append `piece` if the end is still at `offset`; false if another command fetched the same
    lines meanwhile, or does now.
    """
    with file.open("ab") as end:
        if not try_lock(end):
            return False
        if end.seek(0, 2) != offset:
            return False
        end.write(piece)
        return True
