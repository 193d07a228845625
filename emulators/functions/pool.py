"""Sums of integer vectors in a fixed number of slots: pure, by SwitchML's idea (NSDI 2021), with
chunks known by number.

A slot has two places, one for each version. A chunk may begin only when the one before it in the
slot is complete, so whoever sends it has the sum of the one whose place it takes: a place is never
emptied while somebody may still ask for its sum.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from emulators.functions.packets import HEADER_BYTES

UNUSED = -1


class Added(NamedTuple):
    """What came of a part. verdict: the counter's name; packet: header room and the sum, if it is
    to be sent.
    """

    verdict: str
    packet: memoryview | None = None


class Pool:
    """The slots of one allocation. Its memory is allocated once: 2 x slots x (slot_bytes + a
    header).
    """

    def __init__(self, workers: int, slots: int, slot_bytes: int) -> None:
        self._all = (1 << workers) - 1
        self._slots = slots
        stride = HEADER_BYTES + slot_bytes
        memory = memoryview(bytearray(2 * slots * stride))
        self._packets = [memory[at : at + stride] for at in range(0, len(memory), stride)]
        self._values = [np.frombuffer(packet[HEADER_BYTES:], "<i4") for packet in self._packets]
        self._epoch = UNUSED
        self._empty()

    def _empty(self) -> None:
        self._chunk = [UNUSED] * len(self._packets)
        self._seen = [0] * len(self._packets)
        self._bytes = [0] * len(self._packets)

    def add(self, worker: int, epoch: int, chunk: int, part: memoryview) -> Added:
        """Add a worker's part (int32, 1 to slot_bytes / 4 of them) of a chunk, unless it is there
        already or cannot belong here.

        Verdicts: `added`; `sums` - it was the last one, for everybody; `duplicates` - it is in,
        others are not; `repeated` - the same with the sum, for this worker; `stale`, `early`,
        `mismatched` - dropped.
        """
        if epoch > self._epoch:
            self._epoch = epoch
            self._empty()
        elif epoch < self._epoch:
            return Added("stale")
        version, slot = divmod(chunk % (2 * self._slots), self._slots)
        place, other = version * self._slots + slot, (1 - version) * self._slots + slot
        bit, held = 1 << worker, self._chunk[place]
        if chunk == held:
            if len(part) != self._bytes[place]:
                return Added("mismatched")
            if self._seen[place] & bit:
                return (
                    Added("repeated", self._sum(place))
                    if self._seen[place] == self._all
                    else Added("duplicates")
                )
            values = self._values[place][: len(part) // 4]
            np.add(values, np.frombuffer(part, "<i4"), out=values)
            self._seen[place] |= bit
        elif chunk < held:
            return Added("stale")
        elif chunk < self._slots or (
            self._chunk[other] == chunk - self._slots and self._seen[other] == self._all
        ):
            self._chunk[place], self._seen[place], self._bytes[place] = chunk, bit, len(part)
            self._packets[place][HEADER_BYTES : HEADER_BYTES + len(part)] = part
        else:
            return Added("early")
        return Added("sums", self._sum(place)) if self._seen[place] == self._all else Added("added")

    def _sum(self, place: int) -> memoryview:
        return self._packets[place][: HEADER_BYTES + self._bytes[place]]
