"""Sends each checkpoint that this rank has written to the job's storage, at this rank's share of its
rate; gives ranks that begin again what that has.

Before a checkpoint's bytes go its rank, iteration and size. The storage answers with a byte once it
is on its disk, and with nothing else: what it does not want ends the connection. A rank that begins
says its number, and is sent a checkpoint in the same form.
"""

from __future__ import annotations

import json
import socket
import struct
import sys
import time
from pathlib import Path

from workloads.programs.observers import Observer, Training
from workloads.training.checkpoint import PIECE, Paced
from workloads.transport.peers import Meeting, connect, exactly, meeting

VARIABLE = "TESTBED_OBSERVER_STORAGE"
RECORDS = "storage.jsonl"
HEAD, RANK = struct.Struct("!IQQ"), struct.Struct("!I")
LARGEST = 1 << 30
"""Bytes of a checkpoint."""
CONNECT_S, AGAIN_S = 10.0, 15.0
"""How long (s) a job that starts waits for its storage; after a failure it is tried again so much
later, and for a second only, as training may wait.
"""
SEND_S = 60.0
"""A storage that takes nothing for so long (s), or does not answer, is given up."""


class StorageObserver(Observer):
    """A checkpoint that cannot be sent is counted and said, and the job goes on: the rank has its
    own.
    """

    def __init__(self, known: Meeting, mbps: float, optical: bool) -> None:
        self._meeting, self._mbps, self._optical = known, mbps, optical
        self.alone = known.restore == "only"
        self._link: socket.socket | None = None
        self._own, self._rank, self._again_s = "", 0, 0.0

    def restore(self, training: Training, after: int) -> int:
        """Every rank is sent the newest checkpoint: what it wrote itself or, where that is not
        there, what another did.
        """
        if not self._meeting.restore:
            return 0
        place, iteration, mine, content = training.job.place, 0, False, b""
        try:
            source, iteration, content = self._fetched(place.rank, place.lane(0), after)
            mine = source == place.rank
        except (OSError, ValueError) as error:
            print(f"# storage: nothing is restored from it: {error}", file=sys.stderr, flush=True)
        found = training.job.accord.gather("from the storage", iteration)
        if len({*found}) > 1 or iteration <= after:
            if self.alone:
                raise ValueError(
                    "the job's storage has no checkpoint for all ranks; without it: testbed job launch"
                )
            return 0
        return training.take(content, mine)

    def _fetched(self, rank: int, own: str, after: int) -> tuple[int, int, bytes]:
        """Whose checkpoint is the newest for this rank, of which iteration, and, if that is beyond
        `after`, its bytes. Raises: OSError, ValueError - there is none.
        """
        with connect(self._meeting, "restore", CONNECT_S, own if self._optical else "") as link:
            link.settimeout(SEND_S)
            link.sendall(RANK.pack(rank))
            source, iteration, size = HEAD.unpack(exactly(link, HEAD.size))
            if not iteration:
                raise ValueError("it has none")
            if not 0 < size <= LARGEST:
                raise ValueError(f"it announced {size} bytes")
            content = exactly(link, size) if iteration > after else b""
        return source, iteration, content

    def begin(self, training: Training, iteration: int) -> None:
        place = training.job.place
        self._rank, self._mbps = place.rank, self._mbps / place.dilation
        self._own = place.lane(0) if self._optical else ""
        self._records = (place.job_dir / RECORDS).open("a", buffering=1)
        try:
            self._link = self._connected(CONNECT_S)
        except OSError as error:
            self._failed(error)

    def written(self, iteration: int, path: Path) -> None:
        begin_s, size, kept = time.monotonic(), 0, 0
        try:
            size = path.stat().st_size
            self._send(iteration, path, size)
            kept = 1
        except OSError as error:
            self._failed(error)
        record = {
            "iter": iteration,
            "bytes": size,
            "send_ms": round(1e3 * (time.monotonic() - begin_s), 3),
            "kept": kept,
            "limit_mbps": self._mbps,
            "t_wall_ns": time.time_ns(),
        }
        self._records.write(json.dumps(record) + "\n")

    def end(self) -> None:
        if self._link is not None:
            self._link.close()

    def _send(self, iteration: int, path: Path, size: int) -> None:
        """Raises: OSError - the storage does not have it."""
        if self._link is None:
            if time.monotonic() < self._again_s:
                raise ConnectionError("it is not there")
            self._link = self._connected(1.0)
        link = self._link
        with path.open("rb") as file, link.makefile("wb") as out:
            out.write(HEAD.pack(self._rank, iteration, size))
            paced = Paced(out, self._mbps)
            while piece := file.read(PIECE):
                paced.write(piece)
        exactly(link, 1)

    def _connected(self, within_s: float) -> socket.socket:
        link = connect(self._meeting, "keep", within_s, self._own)
        link.settimeout(SEND_S)
        return link

    def _failed(self, error: OSError) -> None:
        link, self._link = self._link, None
        if link is not None:
            link.close()
        if time.monotonic() >= self._again_s:
            print(
                f"# storage: not sent, the job goes on: {error}",
                file=sys.stderr,
                flush=True,
            )
        self._again_s = time.monotonic() + AGAIN_S


def observer(message: str) -> Observer:
    """As workloads/programs/observers.py has it."""
    known, values = meeting(message, VARIABLE), json.loads(message)
    try:
        return StorageObserver(known, float(values["mbps"]), bool(values["lane"]))
    except (KeyError, TypeError) as error:
        raise ValueError(f"{VARIABLE}: {error!r} of mbps, lane") from error
