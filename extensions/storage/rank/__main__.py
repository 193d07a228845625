"""`python -m extensions.storage.rank`: keeps one job's checkpoints until its ranks have ended; see
the package.

TESTBED_OBSERVER_STORAGE says where to listen and the key of those who may connect;
TESTBED_STORAGE_RANKS how many ranks there are; TESTBED_CHECKPOINT_DIR where files go. Exit codes: 0
done, 2 bad environment, 75 no rank came, 1 anything else.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from pathlib import Path
from typing import BinaryIO

from workloads.training.checkpoint import KEPT_BEHIND, Checkpoints, check_whole
from workloads.transport.peers import CONNECTIONS, Connection, Server, meeting

from .storage_observer import HEAD, LARGEST, RANK, SEND_S, VARIABLE

WHOLE = 256 << 30
"""Bytes of all checkpoints of a job."""
HIGHEST = 1 << 53
JOB_S, IDLE_S = 600.0, 60.0
"""How long (s) the ranks are waited for: to come; and to come again once all have gone."""
SLOW_S = 3600.0
"""A rank that sends nothing of its checkpoint for so long (s) is given up: at slow rates a piece
takes minutes.
"""
TICK_S = 1.0


class Sender(Connection):
    """A rank. file: what it sends now, of which `left` bytes are missing."""

    file: BinaryIO | None = None
    rank = iteration = left = 0


class Receiver(Server[Sender]):
    """Keeps the newest few checkpoints of each rank. Names are made of numbers alone."""

    name = "storage"
    roles = noted = ("keep", "restore")

    def __init__(
        self, listener: socket.socket, key: bytes, directory: Path, ranks: int, whole: int = WHOLE
    ) -> None:
        super().__init__(listener, key, Sender, max(CONNECTIONS, 2 * ranks))
        self._directory, self._ranks, self._whole = directory, ranks, whole
        self._came = self.stopped = False

    def run(self) -> int:
        """Keep what comes until the ranks have ended; return the exit code."""
        self.listen()
        print(f"storage: listens, {self._ranks} ranks", flush=True)
        gone_s = time.monotonic()
        while not self.stopped:
            now_s = self.wait(TICK_S)
            for peer in [each for each in self._peers if each.file and now_s > each.until_s]:
                self.close(peer, f"sent nothing for {SLOW_S:.0f} s")
            if any(peer.role for peer in self._peers):
                gone_s, self._came = now_s, True
            elif now_s - gone_s > (IDLE_S if self._came else JOB_S):
                break
        for peer in [*self._peers]:
            self.close(peer)
        return 0 if self._came or self.stopped else 75

    def taken(self, peer: Sender) -> None:
        peer.until_s = time.monotonic() + SLOW_S
        data = peer.data
        if peer.role == "restore":
            if len(data) >= RANK.size:
                self._give(peer, *RANK.unpack_from(data))
                self.close(peer)
            return
        while data:
            if peer.file is None:
                if len(data) < HEAD.size:
                    return
                self._begun(peer, *HEAD.unpack_from(data))
                del data[: HEAD.size]
            elif peer.file is not None:
                piece = data[: peer.left]
                peer.file.write(piece)
                del data[: len(piece)]
                peer.left -= len(piece)
                if not peer.left:
                    self._finished(peer, peer.file)

    def closed(self, peer: Sender) -> None:
        """What it had not sent whole is dropped."""
        file, peer.file = peer.file, None
        if file is not None:
            file.close()
            Path(file.name).unlink(missing_ok=True)

    def _of(self, rank: int) -> Checkpoints:
        return Checkpoints(self._directory, rank, None, KEPT_BEHIND)

    def _begun(self, peer: Sender, rank: int, iteration: int, size: int) -> None:
        if rank >= self._ranks or not 0 < iteration <= HIGHEST or not 0 < size <= LARGEST:
            raise ValueError(f"announced rank {rank}, iteration {iteration}, {size} bytes")
        # a rank whose connection broke has another
        for other in [each for each in self._peers if each.file and each.rank == rank]:
            self.close(other, "its rank sends on another connection")
        held = sum(each.stat().st_size for each in self._directory.iterdir())
        if held + sum(each.left for each in self._peers) + size > self._whole:
            raise ValueError(f"no room for {size} bytes: {self._whole} is the most of a job")
        unfinished = self._of(rank).path(iteration).with_suffix(".unfinished")
        peer.file, peer.rank, peer.iteration, peer.left = (
            unfinished.open("wb"),
            rank,
            iteration,
            size,
        )

    def _finished(self, peer: Sender, file: BinaryIO) -> None:
        checkpoints = self._of(peer.rank)
        file.flush()
        os.fsync(file.fileno())
        file.close()
        peer.file = None
        Path(file.name).replace(checkpoints.path(peer.iteration))
        checkpoints.drop_older(peer.iteration)
        peer.link.send(b".")

    def _give(self, peer: Sender, rank: int) -> None:
        """Send the newest checkpoint that is as it was written: the rank's own, or another's."""
        checkpoints = self._of(rank)
        peer.link.settimeout(SEND_S)
        for iteration in reversed(checkpoints.kept()):
            own = checkpoints.path(iteration)
            others = sorted(self._directory.glob(f"checkpoint-*-{iteration}.pt"))
            for path in sorted(others, key=lambda each: each != own):
                try:
                    check_whole(path)
                except Exception as error:  # of anything that damage can look like
                    print(f"storage: {path.name} is not used: {error}", flush=True)
                    continue
                with path.open("rb") as file:
                    source = int(path.stem.split("-")[1])
                    peer.link.sendall(HEAD.pack(source, iteration, path.stat().st_size))
                    peer.link.sendfile(file)
                return
        peer.link.sendall(HEAD.pack(0, 0, 0))


def main() -> int:
    try:
        met = meeting(os.environ.get(VARIABLE, ""), VARIABLE)
        ranks = int(os.environ.get("TESTBED_STORAGE_RANKS", ""))
    except ValueError as error:
        print(f"storage: {error}", file=sys.stderr)
        return 2
    directory = Path(
        os.environ.get("TESTBED_CHECKPOINT_DIR") or os.environ.get("TESTBED_JOB_DIR", ".")
    )
    for left in directory.glob("*.unfinished"):
        left.unlink()
    # they are of another training than the ranks', or older than what these begin from
    if not met.restore:
        Checkpoints(directory, 0, None).forget()
    receiver = Receiver(
        socket.create_server((met.address, met.port), backlog=CONNECTIONS),
        met.key,
        directory,
        ranks,
    )

    def stop(_number: int, _frame: object) -> None:
        receiver.stopped = True

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    return receiver.run()


if __name__ == "__main__":
    sys.exit(main())
