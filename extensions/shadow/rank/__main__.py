"""`python -m extensions.shadow.rank`: follows one job until it ends; see the package.

TESTBED_OBSERVER_SHADOW says where to listen, on the management network, and the key of those who
may connect: taps, rank 0, and with `restore` a rank 0 that may begin from the checkpoint of an
earlier shadow. In TESTBED_JOB_DIR `shadow.jsonl` gets a line per iteration, and
TESTBED_CHECKPOINT_DIR the newest checkpoint when the job has ended, however it ended, written at
the rate of TESTBED_STORAGE_MBPS. Exit codes: 0 done, 2 bad environment, 75 no job came, 1 anything
else.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
import sys
import time
from pathlib import Path
from typing import Any

from workloads.host.place import storage_rate
from workloads.training.checkpoint import Checkpoints, Damaged
from workloads.transport.peers import CONNECTIONS, Connection, Server, meeting

from .follower import Follower, Shape, State, Verdict, digest
from .segments import segments
from .shadow_observer import VARIABLE

RECORDS = "shadow.jsonl"
HEAD = struct.Struct("!III")
"""Before each block of a tap: its length, the number of a port, how many packets were lost there so
far (host/tap.py).
"""
BLOCK = 1 << 20
LINE = 16 << 20
JOB_S = 600.0
"""How long (s) a shadow waits for its job to begin."""
DRAIN_S, QUIET_S = 3.0, 0.3
"""How long (s) what is on its way from the taps is waited for once the job has ended: at most; and
until nothing comes any more.
"""
TICK_S = 0.05
SEND_S = 30.0


class Peer(Connection):
    """One of a tap, or of rank 0: tap, job, state or restore."""

    def __init__(self, link: socket.socket, key: bytes, who: str) -> None:
        super().__init__(link, key, who)
        self.announced: tuple[int, int] | None = None  # of a state: its iteration and size
        self.lost: dict[int, int] = {}  # by port, packets that a tap had no room for


class Reader(Server[Peer]):
    """Waits for all that comes in, and hands it to the follower."""

    name = "shadow"
    roles = ("tap", "job", "state", "restore")
    noted = ("tap", "job")

    def __init__(
        self,
        listener: socket.socket,
        key: bytes,
        directory: Path,
        checkpoints: Checkpoints,
        torch: Any,
    ) -> None:
        super().__init__(listener, key, Peer)
        self._torch = torch
        self._checkpoints = checkpoints
        self._records = (directory / RECORDS).open("a", buffering=1)
        self._follower = Follower(torch, self._ask, self._judged)
        self._job: Peer | None = None
        self._ended_s = self._latest_s = 0.0  # when the job ended; when a tap sent something
        self._lost = 0

    def run(self) -> int:
        """Follow the job until it ends; return the exit code."""
        began_s = time.monotonic()
        self.listen()
        while not self._over(time.monotonic()):
            now_s = self.wait(TICK_S if self._follower.waits or self._ended_s else 1.0)
            self._follower.advance(now_s)
            if self._follower.shape is None and now_s - began_s > JOB_S:
                print(f"shadow: no job came within {JOB_S:.0f} s", file=sys.stderr)
                return 75
        self._follower.end(time.monotonic())
        self._keep()
        return 0

    def _over(self, now_s: float) -> bool:
        # it is asked to end once the ranks have: what they said last may be on its way
        if self.stopped and not self._ended_s:
            self._ended_s = now_s
        if not self._ended_s:
            return False
        quiet = not self._follower.waits or now_s - max(self._latest_s, self._ended_s) > QUIET_S
        return (
            quiet and (self._job is None or self._follower.shape is None)
        ) or now_s - self._ended_s > DRAIN_S

    def admits(self, role: str) -> bool:
        return super().admits(role) and not (role == "job" and (self._job or self._ended_s))

    def greeted(self, peer: Peer) -> None:
        if peer.role == "job":
            self._job = peer
        if peer.role == "restore":
            self._restore(peer)

    def closed(self, peer: Peer) -> None:
        if peer is self._job:
            self._job, self._ended_s = None, time.monotonic()

    def taken(self, peer: Peer) -> None:
        {"tap": self._tap, "job": self._reported, "state": self._state}.get(
            peer.role, self._nothing
        )(peer)

    def _nothing(self, peer: Peer) -> None:
        peer.data.clear()

    def _tap(self, peer: Peer) -> None:
        """Blocks of a tap."""
        at, data = 0, peer.data
        self._latest_s = time.monotonic()
        with memoryview(data) as whole:
            while at + HEAD.size <= len(data):
                size, port, lost = HEAD.unpack_from(data, at)
                if size > BLOCK:
                    raise ValueError(f"a block of {size} bytes")
                if at + HEAD.size + size > len(data):
                    break
                peer.lost[port] = lost
                with whole[at + HEAD.size : at + HEAD.size + size] as block:
                    for segment in segments(block):
                        self._follower.streams.take(segment)
                        segment[3].release()
                at += HEAD.size + size
        del data[:at]
        self._lost = max(self._lost, sum(sum(each.lost.values()) for each in self._peers))

    def _reported(self, peer: Peer) -> None:
        """Messages of rank 0."""
        *lines, rest = peer.data.split(b"\n")
        peer.data = rest
        if len(rest) > LINE:
            raise ValueError(f"a message of more than {LINE} bytes")
        follower = self._follower
        for line in lines:
            message = json.loads(line)
            if "begin" in message:
                follower.begin(message["begin"])
            elif "rings" in message:
                follower.rings(message["rings"])
            elif "layout" in message:
                follower.layout(message["layout"])
            elif "iterated" in message:
                follower.iterated(message["iterated"], time.monotonic())

    def _state(self, peer: Peer) -> None:
        """A state that rank 0 sends: a line that says of which iteration and how large, then its
        bytes.
        """
        if peer.announced is None:
            if b"\n" not in peer.data[:4096]:
                return
            line, _, rest = bytes(peer.data).partition(b"\n")
            reply = json.loads(line)
            peer.announced, peer.data = (
                (int(reply["iteration"]), int(reply["bytes"])),
                bytearray(rest),
            )
        iteration, size = peer.announced
        if len(peer.data) > size or size > LINE * 64:
            raise ValueError(f"a state of more than {size} bytes")
        if len(peer.data) < size:
            return
        self._follower.state(iteration, peer.data, time.monotonic())
        peer.link.send(b".")
        self.close(peer)

    def _restore(self, peer: Peer) -> None:
        """Send the newest checkpoint that an earlier shadow left and that is still as it was
        written.
        """
        about: dict[str, Any] = {"iteration": 0, "bytes": 0, "same": {}}
        content = b""
        for iteration in reversed(self._checkpoints.kept()):
            try:
                kept = self._checkpoints.read(iteration)
                tensors = [each.reshape(-1) for each in (*kept["parameters"], *kept["momentum"])]
                content = self._torch.cat(tensors).numpy().tobytes()
                if digest([content]) != kept["digest"]:
                    raise ValueError("it has another hash than when it was written")
                about = {"iteration": iteration, "bytes": len(content), "same": kept["same"]}
                break
            except (Damaged, ValueError, TypeError, LookupError, RuntimeError) as error:
                print(
                    f"shadow: the checkpoint of iteration {iteration} is not used: {error}",
                    flush=True,
                )
                content = b""
        peer.link.settimeout(SEND_S)
        peer.link.sendall(json.dumps(about).encode() + b"\n" + content)
        peer.link.setblocking(False)

    def _ask(self) -> None:
        """Have rank 0 send its state."""
        if self._job is not None:
            with contextlib.suppress(OSError):
                self._job.link.send(b"s")

    def _judged(self, verdict: Verdict) -> None:
        record = {
            "iter": verdict.iteration,
            "equal": int(verdict.equal),
            "fetched": int(verdict.fetched),
            "missing": verdict.missing,
            "lost": self._lost,
            "lag_ms": verdict.lag_ms,
            "checkpoint": self._follower.checkpoint,
            "t_wall_ns": time.time_ns(),
        }
        self._records.write(json.dumps(record) + "\n")

    def _keep(self) -> None:
        """Write the newest checkpoint to disk."""
        newest: tuple[Shape, int, State] | None = self._follower.newest
        if newest is None:
            print("shadow: no iteration was followed", flush=True)
            return
        shape, iteration, state = newest
        tensors = {
            "parameters": [each.clone() for each in state.parameters],
            "momentum": [each.clone() for each in state.momentum],
        }
        same = dict(shape.same)
        reply = {"same": same, "digest": state.digest()}
        print(
            f"shadow: kept {self._checkpoints.write(iteration, same | tensors | reply)}", flush=True
        )


def main() -> int:
    try:
        met, storage_mbps = (
            meeting(os.environ.get(VARIABLE, ""), VARIABLE),
            storage_rate(os.environ),
        )
    except ValueError as error:
        print(f"shadow: {error}", file=sys.stderr)
        return 2
    listener = socket.create_server((met.address, met.port), backlog=CONNECTIONS)
    from workloads.training.eager import import_torch

    torch = import_torch()
    directory = Path(os.environ.get("TESTBED_JOB_DIR", "."))
    kept = Path(os.environ.get("TESTBED_CHECKPOINT_DIR") or directory)
    checkpoints = Checkpoints(kept, 0, torch, storage_mbps=storage_mbps)
    # they are of another training than the ranks', or older than what these begin from
    if not met.restore:
        checkpoints.forget()
    reader = Reader(listener, met.key, directory, checkpoints, torch)
    reader.handle_signals()
    return reader.run()


if __name__ == "__main__":
    sys.exit(main())
