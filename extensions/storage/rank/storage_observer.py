"""Sends each checkpoint that this rank has written to the job's storage, at this rank's share of its
rate; gives ranks that begin again what that has.

Before a checkpoint's bytes go the rank's number, how many it could not send, iteration and size;
both are 0 once the rank has ended. The storage answers with a byte once it is on its disk, and with
nothing else: what it does not want ends the connection. A rank that begins says its number and the
iteration it has, and is sent a newer one.
"""

from __future__ import annotations

import json
import socket
import struct
import sys
import time
from contextlib import suppress
from pathlib import Path

from workloads.programs.observers import Observer, Training
from workloads.training.checkpoint import PIECE, Paced
from workloads.transport.peers import Meeting, connect, exactly, meeting

VARIABLE = "TESTBED_OBSERVER_STORAGE"
HEAD, ASKED, GIVEN = struct.Struct("!IIQQ"), struct.Struct("!IQ"), struct.Struct("!?QQ")
"""Of a checkpoint that comes; of a rank that begins; of one that it is given: whether the rank wrote
it, its iteration (0: there is none) and size.
"""
LARGEST = 1 << 30
"""Bytes of a checkpoint: a rank that begins from it has it in memory twice."""
CONNECT_S, AGAIN_S = 10.0, 15.0
"""How long (s) a job that starts waits for its storage; after a failure it is tried again so much
later, and for a second only, as training may wait.
"""
SEND_S, RESTORE_S = 10.0, 600.0
"""A storage that takes nothing for so long (s), or does not answer, is given up: as training may
wait for it; as all ranks begin, and it reads all that they are given, for which they wait for each
other, too.
"""


UNKNOWN = -1
"""The iteration of what a rank asked for, where it got no answer."""


class StorageObserver(Observer):
    """A checkpoint that cannot be sent is counted and said, and the job goes on: the rank has its
    own. number: the rank's.
    """

    def __init__(self, known: Meeting, mbps: float, optical: bool, number: int) -> None:
        self._meeting, self._mbps, self._optical, self._number = known, mbps, optical, number
        self.alone = known.restore == "only"
        self._where = f"the job's storage at {known.address}:{known.port}"
        self._link: socket.socket | None = None
        self._own, self._unsent, self._again_s, self._patience_s = "", 0, 0.0, 0.0

    def restore(self, training: Training, after: int) -> int:
        """Every rank is sent the newest checkpoint: what it wrote itself or, where that is not
        there, what another did. Raises: ValueError - only some were, and ranks have none to go on
        from; on all ranks.
        """
        if not self._meeting.restore:
            return 0
        place, iteration, mine, content = training.job.place, UNKNOWN, False, b""
        try:
            own = place.lane(0) if self._optical else ""
            mine, iteration, content = self._fetched(own, after)
        except OSError as error:
            text = f"# storage: rank {place.rank} begins from nothing of {self._where}: {error}"
            print(text, file=sys.stderr, flush=True)
        found = training.job.accord.gather("from the storage", iteration, RESTORE_S)
        if iteration > 0 and len({*found}) == 1:
            if (done := training.take(content, mine)) != iteration:
                raise ValueError(f"{self._where} gave iteration {done} as {iteration}")
            return done
        given = ", ".join(str(each) if each > 0 else "none" for each in found)
        text = f"{self._where} has no checkpoint for all ranks (iterations, by rank: {given})"
        if self.alone or (any(found) and not after):
            raise ValueError(
                f"{text}; again, or from the ranks' own: testbed up; from the beginning: testbed job launch"
            )
        if any(found):
            print(f"# storage: {text}: the ranks' own are used", file=sys.stderr, flush=True)
        return 0

    def _fetched(self, own: str, after: int) -> tuple[bool, int, bytes]:
        """Whether this rank wrote the newest checkpoint beyond `after`, its iteration, its bytes; 0
        for none. Raises: OSError.
        """
        with connect(self._meeting, "restore", CONNECT_S, own) as link:
            link.settimeout(RESTORE_S)
            link.sendall(ASKED.pack(self._number, after))
            mine, iteration, size = GIVEN.unpack(exactly(link, GIVEN.size))
            if size > LARGEST:
                raise OSError(f"it announced {size} bytes")
            return mine, iteration, exactly(link, size)

    def begin(self, training: Training, iteration: int) -> None:
        place = training.job.place
        self._mbps, self._patience_s = self._mbps / place.dilation, place.timeout_s
        self._own = place.lane(0) if self._optical else ""
        try:
            self._link = connect(self._meeting, "keep", CONNECT_S, self._own)
        except OSError as error:
            self._failed(error)

    def written(self, iteration: int, path: Path) -> None:
        try:
            self._send(iteration, path)
        except OSError as error:
            self._unsent += 1
            self._failed(error, f"the checkpoint of iteration {iteration} is not at ")

    def end(self) -> None:
        if self._link is not None:
            with suppress(OSError):
                self._link.sendall(HEAD.pack(self._number, 0, 0, 0))
            self._link.close()

    def _send(self, iteration: int, path: Path) -> None:
        """Raises: OSError - the storage does not have it. A rank that is done with it sooner, or whose
        storage is lost, waits for this one in the next sum, and not for longer than for a lost peer.
        """
        size = path.stat().st_size
        if size > LARGEST:
            raise OSError(f"it has {size} bytes, and {LARGEST} are the most that a storage takes")
        if (takes_s := 8e-6 * size / self._mbps) > self._patience_s / 2:
            most = f"more than the {self._patience_s / 2:.0f} s for which ranks may wait for each other"
            raise OSError(
                f"it takes {takes_s:.0f} s at this rank's rate, {most}: write a higher mbps"
            )
        if (link := self._link) is None:
            if time.monotonic() < self._again_s:
                raise ConnectionError("it is not there")
            link = self._link = connect(self._meeting, "keep", 1.0, self._own)
        until_s = time.monotonic() + 0.75 * self._patience_s

        def send(data: bytes | memoryview) -> None:
            if (left_s := until_s - time.monotonic()) <= 0:
                raise TimeoutError(f"not all of it was taken in {0.75 * self._patience_s:.0f} s")
            link.settimeout(min(SEND_S, left_s))
            link.sendall(data)

        send(HEAD.pack(self._number, self._unsent, iteration, size))
        paced = Paced(send, self._mbps)
        with path.open("rb") as file:
            while piece := file.read(PIECE):
                paced.write(piece)
        exactly(link, 1)

    def _failed(self, error: OSError, what: str = "") -> None:
        link, self._link = self._link, None
        if link is not None:
            link.close()
        if time.monotonic() >= self._again_s:
            text = f"# storage: {what}{self._where}: {error}; the rank has its own, and the job goes on"
            hint = "if this goes on: testbed job stop, then testbed up"
            print(f"{text}; {hint}", file=sys.stderr, flush=True)
            self._again_s = time.monotonic() + AGAIN_S


def observer(message: str) -> Observer:
    """As workloads/programs/observers.py has it."""
    known, values = meeting(message, VARIABLE), json.loads(message)
    try:
        lane, number = bool(values["lane"]), int(values["number"])
        return StorageObserver(known, float(values["mbps"]), lane, number)
    except (KeyError, TypeError) as error:
        raise ValueError(f"{VARIABLE}: {error!r} of mbps, lane, number") from error
