"""`python -m extensions.storage.rank`: keeps one job's checkpoints until its ranks have ended; see
the package.

TESTBED_OBSERVER_STORAGE says where to listen (port 0: at one that is free), the key of those who
may connect, and the ranks' numbers. Files go to TESTBED_CHECKPOINT_DIR; `storage.jsonl` in
TESTBED_JOB_DIR gets a line for each. Exit codes: 0 done, 2 bad environment, 75 no rank came, 1
anything else.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from io import FileIO
from pathlib import Path

from workloads.training.checkpoint import KEPT_BEHIND, Checkpoints, check_whole
from workloads.transport.peers import CONNECTIONS, Connection, Server, meeting

from .storage_observer import ASKED, GIVEN, HEAD, LARGEST, RESTORE_S, VARIABLE

RECORDS = "storage.jsonl"
WHOLE, RESERVE = 256 << 30, 256 << 20
"""Bytes: of all checkpoints of a job, and that stay free on the disk."""
SYNCED = 8 << 20
"""Bytes after which what came is brought to the disk: with the last ones little is left to do, and
ranks that end together wait for each other's.
"""
HIGHEST = 1 << 53
JOB_S, IDLE_S = 600.0, 3600.0
"""How long (s) the ranks are waited for: to come; and to come again once all have gone."""
TICK_S = 1.0
ANEW = "anew"
"""A file that is there while what is kept is of an earlier training than the ranks': until they have
a new checkpoint, or have begun from an old one.
"""


class Sender(Connection):
    """A rank. file: what it sends now, of `size` bytes, `left` of them missing; path: its name once
    it is whole.
    """

    file: FileIO | None = None
    path = Path()
    rank = unsent = iteration = size = left = 0
    begun_s = 0.0


class Receiver(Server[Sender]):
    """Keeps the newest few checkpoints, of ranks with these numbers. restore: as Meeting has it.

    What was there at first goes when the first new one is whole: all of it, where the ranks' is
    another training, and of that all but the newest before, if there is no room; else what is not
    older.
    """

    name = "storage"
    roles = noted = ("keep", "restore")

    def __init__(
        self,
        listener: socket.socket,
        key: bytes,
        ranks: Sequence[int],
        restore: str,
        directory: Path,
        records: Path,
    ) -> None:
        super().__init__(listener, key, Sender, max(CONNECTIONS, 2 * len(ranks)))
        self._ranks, self._directory, self._anew = ranks, directory, directory / ANEW
        self._records = records.open("a", buffering=1)
        self._folder = os.open(directory, os.O_RDONLY)
        self._giving, self._ended = set[int](), set[int]()
        self._came = False
        for left in directory.glob("*.unfinished"):
            left.unlink()
        if not restore:
            self._anew.touch()
        self._hides = restore != "only" and self._anew.exists()
        kept = self._of(0)
        self._before = {path: each for each in kept.kept() for path in kept.of(each)}

    def run(self) -> int:
        """Keep what comes until the ranks have ended; return the exit code."""
        self.listen()
        newest = 0 if self._hides else max(self._before.values(), default=0)
        port = self._listener.getsockname()[1]
        print(f"storage: listens on port {port}, newest checkpoint {newest}", flush=True)
        gone_s = time.monotonic()
        while not self.stopped:
            now_s = self.wait(TICK_S)
            if any(peer.role for peer in self._peers):
                gone_s = now_s
            elif now_s - gone_s > (IDLE_S if self._came else JOB_S):
                break
        for peer in [*self._peers]:
            self.close(peer)
        with suppress(OSError):  # what it could not write is written again
            self._records.close()
        os.close(self._folder)
        return 0 if self._came or self.stopped else 75

    def greeted(self, peer: Sender) -> None:
        self._came = True
        if peer.role == "keep" and not self._hides:  # all have begun
            self._anew.unlink(missing_ok=True)

    def taken(self, peer: Sender) -> None:
        data = peer.data
        if peer.role == "restore":
            if len(data) >= ASKED.size:
                self._asked(peer, *ASKED.unpack_from(data))
            return
        while data:
            if peer.file is None:
                if len(data) < HEAD.size:
                    return
                self._begun(peer, *HEAD.unpack_from(data))
                del data[: HEAD.size]
            else:
                count = peer.file.write(data[: peer.left])
                del data[:count]
                before, peer.left = peer.left, peer.left - count
                if not peer.left:
                    self._finished(peer, peer.file)
                elif before // SYNCED > peer.left // SYNCED:
                    os.fdatasync(peer.file.fileno())

    def closed(self, peer: Sender) -> None:
        """What it had not sent whole is dropped."""
        file, peer.file, peer.left = peer.file, None, 0
        if file is not None:
            with suppress(OSError), file:
                peer.path.with_suffix(".unfinished").unlink(missing_ok=True)

    def _of(self, rank: int) -> Checkpoints:
        return Checkpoints(self._directory, rank, None)

    def _begun(self, peer: Sender, rank: int, unsent: int, iteration: int, size: int) -> None:
        if rank in self._ranks and iteration == size == 0:
            self._ended.add(rank)
            self.stopped |= self._ended == {*self._ranks}
            return
        if rank not in self._ranks or not 0 < iteration <= HIGHEST or not 0 < size <= LARGEST:
            raise ValueError(f"announced rank {rank}, iteration {iteration}, {size} bytes")
        # a rank whose connection broke has another
        for other in [each for each in self._peers if each.file and each.rank == rank]:
            self.close(other, "its rank sends on another connection")
        due = sum(each.left for each in self._peers) + size
        goes = self._before if self._hides else {}
        stays = [each for each in self._directory.iterdir() if each not in goes]
        if sum(each.stat().st_size for each in stays) + due > WHOLE:
            raise ValueError(f"no room for {size} bytes: {WHOLE} is the most of a job")
        if goes and self._short(due):  # somebody may want the newest back
            newest = max(goes.values())
            for path in [path for path, each in goes.items() if each < newest]:
                path.unlink(missing_ok=True)
                del goes[path]
        if self._short(due):
            text = f"no room for {size} bytes: {RESERVE} stay free on the disk of {self._directory}"
            old = f"; {len(goes)} checkpoints there are of an earlier training" if goes else ""
            raise ValueError(text + old)
        peer.path = self._of(rank).path(iteration)
        peer.file = peer.path.with_suffix(".unfinished").open("wb", buffering=0)
        peer.rank, peer.unsent, peer.iteration, peer.size = rank, unsent, iteration, size
        peer.left, peer.begun_s = size, time.monotonic()

    def _short(self, due: int) -> bool:
        return shutil.disk_usage(self._directory).free - due < RESERVE

    def _finished(self, peer: Sender, file: FileIO) -> None:
        os.fsync(file.fileno())
        peer.path.with_suffix(".unfinished").replace(peer.path)
        os.fsync(self._folder)
        file.close()
        peer.file = None
        self._drop(peer.path, peer.iteration)
        record = {
            "rank": self._ranks.index(peer.rank),
            "iter": peer.iteration,
            "bytes": peer.size,
            "send_ms": round(1e3 * (time.monotonic() - peer.begun_s), 3),
            "unsent": peer.unsent,
            "t_wall_ns": time.time_ns(),
        }
        with suppress(OSError):  # it is kept, said or not
            self._records.write(json.dumps(record) + "\n")
        peer.link.send(b".")

    def _drop(self, new: Path, iteration: int) -> None:
        """Drop what the `new` one takes the place of: of what was there at first, and beyond the
        newest few.
        """
        for path, then in self._before.items():
            if path != new and (self._hides or then >= iteration):
                path.unlink(missing_ok=True)
        self._before, self._hides = {}, False
        self._anew.unlink(missing_ok=True)
        kept = self._of(0)
        for old in kept.kept()[:-KEPT_BEHIND]:
            for path in kept.of(old):
                path.unlink(missing_ok=True)

    def _asked(self, peer: Sender, rank: int, after: int) -> None:
        if rank not in self._ranks or rank in self._giving:
            raise ValueError(f"asked for a checkpoint of rank {rank}")
        self._giving.add(rank)
        link = self.release(peer)
        try:
            threading.Thread(target=self._give, args=(link, rank, after), daemon=True).start()
        except RuntimeError as error:  # no more threads
            link.close()
            self._giving.discard(rank)
            self.say(f"rank {rank} was not given its checkpoint: {error}")

    def _give(self, link: socket.socket, rank: int, after: int) -> None:
        """Send the newest checkpoint, of a later iteration than `after`, that is as it was written:
        the rank's own, or another's. In a thread: to read them takes minutes, and all ranks ask.
        """
        try:
            with link:
                link.settimeout(RESTORE_S)
                path, iteration = self._newest(rank, after)
                if path is None:
                    link.sendall(GIVEN.pack(False, 0, 0))
                    return
                with path.open("rb") as file:
                    mine, size = path == self._of(rank).path(iteration), path.stat().st_size
                    link.sendall(GIVEN.pack(mine, iteration, size))
                    link.sendfile(file)
        except OSError as error:
            self.say(f"rank {rank} was not given its checkpoint: {error}")
        finally:
            self._giving.discard(rank)

    def _newest(self, rank: int, after: int) -> tuple[Path | None, int]:
        kept = self._of(rank)
        for iteration in reversed([] if self._hides else kept.kept()):
            for path in kept.of(iteration) if iteration > after else ():
                try:
                    check_whole(path)
                except Exception as error:  # of anything that damage can look like
                    self.say(f"{path.name} is not used: {error}")
                    continue
                return path, iteration
        return None, 0


def main() -> int:
    text = os.environ.get(VARIABLE, "")
    try:
        met = meeting(text, VARIABLE)
        ranks = [int(each) for each in json.loads(text)["ranks"]]
        job, kept = (Path(os.environ[f"TESTBED_{name}_DIR"]) for name in ("JOB", "CHECKPOINT"))
    except (ValueError, KeyError, TypeError) as error:
        print(f"storage: its environment: {error!r}", file=sys.stderr)
        return 2
    listener = socket.create_server((met.address, met.port), backlog=CONNECTIONS)
    receiver = Receiver(listener, met.key, ranks, met.restore, kept, job / RECORDS)
    receiver.handle_signals()
    return receiver.run()


if __name__ == "__main__":
    sys.exit(main())
