"""What rank 0 tells the job's shadow: rings, layout of the buckets, and after each iteration the
hash of its state.

Nothing here makes an iteration wait for the shadow. The hash of a state is computed by a thread
during the exchange of the next iteration, when the processor would wait for the links, and sent by
another. A state is copied at the end of an iteration when the shadow asks for one, and sent by a
thread on a connection of its own.
"""

from __future__ import annotations

import json
import queue
import socket
import sys
import threading
from collections.abc import Mapping
from typing import Any

from workloads.programs.observers import Observer, Training
from workloads.transport.buffers import Buffer
from workloads.transport.peers import Meeting, connect, exactly, meeting

from .follower import digest

VARIABLE = "TESTBED_OBSERVER_SHADOW"

CONNECT_S = 30.0
"""How long (s) a job that starts waits for its shadow, which imports torch as the ranks do."""
SEND_S = 10.0
"""A shadow that takes nothing for so long (s) is given up."""
UNSENT = 256
"""Messages that wait to be sent before the shadow is given up."""
LARGEST = 1 << 30
"""Bytes of a state."""


class ShadowObserver(Observer):
    """Rank 0's connection to the shadow. One that fails says so once, and the job goes on
    without.
    """

    def __init__(self, meeting: Meeting) -> None:
        self._meeting, self.alone = meeting, meeting.restore == "only"
        self._layouts: dict[tuple[Any, ...], int] = {}
        self._buckets: list[Any] = []  # of this iteration, by the ids of its parameters
        self._parts: dict[tuple[int, ...], dict[str, Any]] = {}
        self._set: str | None = None
        self._due: dict[str, Any] | None = None  # the iteration that has no hash yet
        self._to_hash: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._to_send: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._hashed = threading.Event()
        self._hashed.set()
        self._wanted = False
        self._link: socket.socket | None = None

    def restore(self, training: Training, after: int) -> int:
        """Take the shadow's newest checkpoint: rank 0 is sent it, and gives it to all. Raises:
        ValueError - there is none, and it is `alone`; on all ranks.
        """
        if not self._meeting.restore:
            return 0
        rank, torch = training.job.place.rank, training.job.torch
        tensors, iteration = [*training.parameters, *training.momentum], 0
        why = "rank 0 was given no checkpoint of the job's shadow"
        with torch.no_grad():
            if rank == 0:
                try:
                    found, flat = restored(self._meeting, training.same, torch, after)
                    if flat.numel() != (numbers := sum(tensor.numel() for tensor in tensors)):
                        raise ValueError(
                            f"the shadow's checkpoint has {flat.numel()} numbers, this job has {numbers}"
                        )
                    iteration = found
                except (OSError, ValueError) as error:
                    why = str(error)
                    if not self.alone:
                        text = f"# shadow: the ranks' own checkpoints are used: {error}"
                        print(text, file=sys.stderr, flush=True)
                else:
                    for tensor, was in zip(
                        tensors, flat.split([tensor.numel() for tensor in tensors]), strict=True
                    ):
                        tensor.copy_(was.view(tensor.shape))
            iteration = int(max(training.job.accord.gather("from the shadow", iteration)))
            for tensor in tensors if iteration else ():
                torch.distributed.broadcast(tensor, 0)
        if self.alone and not iteration:
            raise ValueError(why)
        return iteration

    def begin(self, training: Training, iteration: int) -> None:
        """Connect, and send the state. A failure is said; the job goes on. Raises: ValueError - it
        cannot be followed.
        """
        if training.job.place.rank:
            return  # it knows of the shadow to begin from it
        held = [each.detach() for each in (*training.parameters, *training.momentum)]
        self._memory = [Buffer.of(each.view(-1)).memory for each in held]
        self._numbers = {id(each): n for n, each in enumerate(training.parameters)}
        shapes = [list(each.shape) for each in training.parameters]
        try:
            self._link = connect(self._meeting, "job", CONNECT_S)
            self._link.settimeout(SEND_S)
            self._send(
                {"begin": {"lr": training.lr, "shapes": shapes, "same": dict(training.same)}}
            )
            self._send_state(iteration, b"".join(self._memory))
        except OSError as error:
            self._failed(error)
            return
        self._threads = [
            threading.Thread(target=each, daemon=True)
            for each in (self._digest, self._deliver, self._listen)
        ]
        for thread in self._threads:
            thread.start()

    def see(self, bucket: Any, rings: Any) -> None:
        """With the last bucket the processor has time for the state's hash."""
        if self._link is None:
            return
        if not self._buckets and rings.name != self._set:
            self._set = rings.name
            self._notify({"rings": {"set": rings.name, "orders": rings.orders}})
        parameters = bucket.parameters()
        key = tuple(map(id, parameters))
        if key not in self._parts:
            flat, gradients = bucket.buffer(), bucket.gradients()
            begins = [
                (each.data_ptr() - flat.data_ptr()) // flat.element_size() for each in gradients
            ]
            self._parts[key] = {
                "numbers": flat.numel(),
                "parts": [
                    [self._numbers[one], begin] for one, begin in zip(key, begins, strict=True)
                ],
            }
        self._buckets.append(key)
        if bucket.is_last():
            self._hash()

    def before_step(self) -> None:
        self._hashed.wait()

    def after_step(self, iteration: int) -> None:
        if self._link is None:
            return
        key = tuple(self._buckets)
        if key not in self._layouts:
            self._layouts[key] = len(self._layouts)
            self._notify(
                {
                    "layout": {
                        "layout": self._layouts[key],
                        "buckets": [self._parts[each] for each in key],
                    }
                }
            )
        self._buckets.clear()
        self._due = {"iteration": iteration, "set": self._set, "layout": self._layouts[key]}
        if self._wanted:
            self._wanted = False
            content = b"".join(self._memory)  # a copy, 1 ms for 10 MB
            threading.Thread(
                target=self._fetched, args=(iteration, content), name="state", daemon=True
            ).start()

    def end(self) -> None:
        """Have the last iteration's hash sent."""
        if self._link is None:
            return
        self._hash()
        self._to_hash.put(None)
        for thread in self._threads[:2]:
            thread.join(SEND_S)

    def _hash(self) -> None:
        """Have the due iteration's hash computed and sent."""
        due, self._due = self._due, None
        if due is not None:
            self._hashed.clear()
            self._to_hash.put(due)

    def _notify(self, message: dict[str, Any]) -> None:
        if self._to_send.qsize() > UNSENT:
            self._failed(TimeoutError(f"{UNSENT} messages were not taken"))
        self._to_send.put(message)

    # the threads

    def _digest(self) -> None:
        while (due := self._to_hash.get()) is not None:
            due["digest"] = digest(self._memory)
            self._hashed.set()
            self._notify({"iterated": due})
        self._to_send.put(None)

    def _deliver(self) -> None:
        while (message := self._to_send.get()) is not None:
            try:
                if self._link is not None:
                    self._send(message)
            except OSError as error:
                self._failed(error)
        if self._link is not None:
            self._link.close()

    def _listen(self) -> None:
        """Bytes that the shadow sends each ask for a state."""
        link = self._link
        assert link is not None
        while True:
            try:
                if not link.recv(64):
                    break
                self._wanted = True
            except TimeoutError:
                continue
            except OSError:
                break

    def _send(self, message: Mapping[str, Any]) -> None:
        assert self._link is not None
        self._link.sendall(json.dumps(message).encode() + b"\n")

    def _fetched(self, iteration: int, content: bytes) -> None:
        try:
            self._send_state(iteration, content)
        except OSError as error:
            print(
                f"# shadow: the state of iteration {iteration} could not be sent: {error}",
                file=sys.stderr,
            )

    def _send_state(self, iteration: int, content: bytes) -> None:
        with connect(self._meeting, "state", SEND_S) as link:
            link.settimeout(SEND_S)
            link.sendall(
                json.dumps({"iteration": iteration, "bytes": len(content)}).encode() + b"\n"
            )
            link.sendall(content)
            link.recv(1)  # it was taken

    def _failed(self, error: OSError) -> None:
        link, self._link = self._link, None
        if link is not None:
            link.close()
        print(f"# shadow: lost, the job goes on without: {error}", file=sys.stderr, flush=True)


def restored(
    meeting: Meeting, same: Mapping[str, Any], torch: Any, after: int = 0
) -> tuple[int, Any]:
    """The shadow's newest checkpoint: its iteration, and its numbers: parameters, then their speeds
    (one flat tensor).

    Raises: ValueError - it has none of an iteration beyond `after`, or one of another training.
    OSError - it does not answer.
    """
    with connect(meeting, "restore", CONNECT_S) as link:
        link.settimeout(CONNECT_S)
        head = bytearray()
        while not head.endswith(b"\n"):
            if len(head) > 1 << 16:
                raise ConnectionError("the shadow's answer is too long")
            head += exactly(link, 1)
        about = json.loads(head)
        if not about["iteration"]:
            raise ValueError(
                "the job's shadow has no checkpoint to restore from; without it: testbed job launch"
            )
        if about["same"] != dict(same):
            raise ValueError(
                f"the shadow's checkpoint was made with {about['same']}, this job has {dict(same)}"
            )
        if about["iteration"] <= after:
            raise ValueError(
                f"the shadow's checkpoint is of iteration {about['iteration']}, the ranks have one of {after}"
            )
        if not 0 <= about["bytes"] <= LARGEST:
            raise ConnectionError(f"the shadow announced {about['bytes']} bytes")
        content = bytearray(exactly(link, about["bytes"]))
    return int(about["iteration"]), torch.frombuffer(content, dtype=torch.float32)


def observer(message: str) -> Observer:
    """As workloads/programs/observers.py has it."""
    return ShadowObserver(meeting(message, VARIABLE))
