"""All-reduce by an explicit schedule of sends between ranks that are joined directly: breadth-first
broadcast and the like.

A buffer is cut into a piece for each member. Gathering, in steps 1, 2, ..., each send passes a part
of some member's piece on to a neighbour that lacks it. Reducing comes before and is the same
backwards: from the last step to the first, what a send's target holds of that part is added at its
source. So each member first holds the sum of its own piece, and then all do of all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..transport.buffers import Buffer

if TYPE_CHECKING:
    from ..transport.loop import Task
    from ..transport.wires import Wires
    from .program import Job


@dataclass(frozen=True, slots=True)
class Send:
    """In step `step` (from 1) `source` sends `target` the part from `begin` to `end` (0 to 1) of
    the piece of `shard`.
    """

    step: int
    source: int
    target: int
    shard: int
    begin: float = 0.0
    end: float = 1.0


def elements(send: Send, members: Sequence[int], length: int) -> tuple[int, int]:
    """The elements [begin, end) of a buffer of `length` that a send is about, the same at both of
    its ends.
    """
    from ..transport.buffers import pieces

    begin, end = pieces(length, len(members))[members.index(send.shard)]
    return begin + round(send.begin * (end - begin)), begin + round(send.end * (end - begin))


class Scheduled:
    """A buffer with the sends that this rank has a part in, step by step."""

    def __init__(
        self,
        job: Job,
        schedule: Sequence[Send],
        members: Sequence[int],
        buffer: Buffer,
        wires: tuple[Wires, str] | None = None,
    ) -> None:
        """`wires`: connections to take, those from a to b called `NAME: a to b`; without them NCCL
        does it.
        """
        self._job, self._rank, self._wires = job, job.place.rank, wires
        self._steps: dict[int, list[tuple[int, Send, Buffer, Buffer | None]]] = {}
        for number, send in enumerate(schedule):
            if self._rank in (send.source, send.target):
                begin, end = elements(send, members, buffer.tensor.numel())
                if end > begin:
                    view, room = buffer.part(begin, end), None
                    if send.source == self._rank:  # for what is added while reducing
                        room = Buffer.zeros(end - begin, "float32", job.rings.device, job.torch)
                    self._steps.setdefault(send.step, []).append((number, send, view, room))

    def all_reduce(self) -> None:
        """Sum the buffer over all members, in place."""
        for step in sorted(self._steps, reverse=True):
            mine = self._steps[step]
            self._exchange(
                [(number, send.target, room) for number, send, _, room in mine if room is not None],
                [(number, send.source, view) for number, send, view, room in mine if room is None],
            )
            for _, _, view, room in mine:
                if room is not None:
                    view.tensor.add_(room.tensor)
        for step in sorted(self._steps):
            mine = self._steps[step]
            self._exchange(
                [(number, send.source, view) for number, send, view, room in mine if room is None],
                [
                    (number, send.target, view)
                    for number, send, view, room in mine
                    if room is not None
                ],
            )

    def _exchange(
        self, receives: list[tuple[int, int, Buffer]], sends: list[tuple[int, int, Buffer]]
    ) -> None:
        """Receive and send buffers from and to ranks, each under its number, until all are
        through.
        """
        # matched by order: both ends have the sends of a step in the order of their numbers
        if self._wires is None:
            dist = self._job.torch.distributed
            operations = [
                dist.P2POp(dist.irecv, buffer.tensor, peer) for _, peer, buffer in receives
            ]
            operations += [dist.P2POp(dist.isend, buffer.tensor, peer) for _, peer, buffer in sends]
            for work in dist.batch_isend_irecv(operations) if operations else []:
                work.wait()
            return
        from ..transport.tasks import ReceiveTask, SendTask

        (wires, name), here = self._wires, self._rank
        coming, going = _by_peer(receives), _by_peer(sends)
        tasks: list[Task] = [
            ReceiveTask(wires.into[f"{name}: {peer} to {here}"], buffers)
            for peer, buffers in coming.items()
        ]
        wires.carry(
            tasks
            + [
                SendTask(wires.out[f"{name}: {here} to {peer}"], buffers)
                for peer, buffers in going.items()
            ]
        )


def _by_peer(ends: list[tuple[int, int, Buffer]]) -> dict[int, list[memoryview]]:
    """The bytes for each peer, in the order of their numbers."""
    found: dict[int, list[memoryview]] = {}
    for _, peer, buffer in ends:
        found.setdefault(peer, []).append(buffer.memory)
    return found
