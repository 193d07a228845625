"""What a job leaves behind: one JSON line per iteration and per ring change while it runs, one
summary when it ends.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import IO, Any

from ..collectives.rings import bus_factor

ITERATIONS = "iterations.jsonl"
RING_CHANGES = "ring_changes.jsonl"
SUMMARY = "summary.json"


class Records:
    """The record files of a job in `directory`; only rank 0 writes."""

    def __init__(self, directory: Path, rank: int) -> None:
        self._directory, self._writes = directory, rank == 0
        self._file: IO[str] | None = None
        self._move: int | None = None  # that of a ring change just before the next iteration
        self.paced_ms = 0.0
        """How long the rank waited for the beginning of this iteration, by its pace (see
        pace.py).
        """
        if self._writes:
            directory.mkdir(parents=True, exist_ok=True)

    def iteration(self, record: dict[str, Any], *, aloud: bool = True) -> None:
        """Keep the record of one iteration and, if `aloud`, say it in the log. A wait for its
        beginning is part of its time.
        """
        if not self._writes:
            return
        if self.paced_ms and "iter_ms" in record:
            began = (
                {"t_wall_ns": record["t_wall_ns"] - int(self.paced_ms * 1e6)}
                if "t_wall_ns" in record
                else {}
            )
            record = record | {
                "iter_ms": round(record["iter_ms"] + self.paced_ms, 3),
                "paced_ms": self.paced_ms,
                **began,
            }
        if self._file is None:
            # a line is visible as soon as it is whole
            self._file = (self._directory / ITERATIONS).open("a", buffering=1)
        if self._move is not None:
            record, self._move = record | {"move": self._move}, None
        self._file.write(json.dumps(record) + "\n")
        if aloud:
            text = f"iteration {record['iter']:>6}  {record['iter_ms']:>9.1f} ms"
            text += f"  exchange {record['comm_ms']:>9.1f} ms" if "comm_ms" in record else ""
            text += f"  loss {record['loss']:.4f}" if "loss" in record else ""
            print(text, flush=True)

    def note_ring_change(self, record: dict[str, Any]) -> None:
        """Keep the record of a ring change: move, after (the last iteration on the earlier rings),
        rings, traffic, t_wall_ns, held_ms.

        The next iteration's record names its move.
        """
        if not self._writes:
            return
        self._move = record["move"]
        with (self._directory / RING_CHANGES).open("a") as file:
            file.write(json.dumps(record) + "\n")
        print(
            f"changed after iteration {record['after']}: move {record['move']}, held {record['held_ms']:.1f} ms",
            flush=True,
        )

    def summary(self, record: dict[str, Any]) -> None:
        """Write the summary whole or not at all."""
        if self._writes:
            unfinished = self._directory / (SUMMARY + ".unfinished")
            unfinished.write_text(json.dumps(record, indent=2) + "\n")
            unfinished.replace(self._directory / SUMMARY)
            if self._file is not None:
                self._file.flush()
                os.fsync(self._file.fileno())


def rates(
    size_bytes: int, seconds: float, world: int, sent_bytes: int | None = None
) -> dict[str, float]:
    """Return algbw and busbw (Gbit/s, to be held against a link's rate) of one all-reduce of
    `size_bytes`.

    sent_bytes: what a rank sent for it, where that is known; else what it sends on a ring.
    """
    algbw = size_bytes * 8 / 1e9 / seconds if seconds > 0 else 0.0
    share = bus_factor(world) if sent_bytes is None or not size_bytes else sent_bytes / size_bytes
    return {"algbw_gbps": round(algbw, 6), "busbw_gbps": round(algbw * share, 6)}


class Clock:
    """Wall time from one anchor, so that a stepped clock never bends a duration."""

    def __init__(self) -> None:
        self._anchor_ns = time.time_ns() - time.monotonic_ns()

    def wall_ns(self, monotonic_ns: int) -> int:
        return self._anchor_ns + monotonic_ns
