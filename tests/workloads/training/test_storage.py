"""Checkpoints that are written at the rate of a storage, in virtual time."""

from __future__ import annotations

import io
from pathlib import Path
from typing import cast

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from workloads.training import checkpoint
from workloads.training.checkpoint import PIECE, Checkpoints, Paced


class Clock:
    """Time that passes only where somebody sleeps."""

    def __init__(self) -> None:
        self.now, self.sleeps = 5.0, 0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        assert seconds >= 0
        self.now += seconds
        self.sleeps += 1


class Storage(io.BytesIO):
    """Notes when how much of it was written, and takes its own time."""

    def __init__(self, clock: Clock, own_s: float) -> None:
        super().__init__()
        self.clock, self.own_s = clock, own_s
        self.seen: list[tuple[float, int]] = []

    def write(self, data: object) -> int:
        self.clock.now += self.own_s
        size = super().write(cast(bytes, data))
        self.seen.append((self.clock.now, size))
        return size


@given(
    st.lists(st.tuples(st.integers(0, 3 * PIECE), st.floats(0, 3)), max_size=12),
    st.floats(0.1, 1e5),
    st.sampled_from([0.0, 0.0, 0.01]),
)
def test_whatever_is_written_when_never_more_is_there_than_the_rate_and_a_piece_allow(
    writes: list[tuple[int, float]], mbps: float, own_s: float
) -> None:
    clock = Clock()
    storage, rate = Storage(clock, own_s), mbps * 1e6 / 8
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(checkpoint, "time", clock)
        paced = Paced(storage.write, mbps)
        for number, (size, idle_s) in enumerate(writes):
            clock.now += idle_s
            began = clock.now
            assert paced.write(bytes([number]) * size) == size
            assert clock.now - began >= (size - PIECE) / rate - 1e-6, (
                "it returns when these bytes would be there"
            )
    assert storage.getvalue() == b"".join(
        bytes([number]) * size for number, (size, _) in enumerate(writes)
    )
    assert clock.sleeps <= sum(-(-size // PIECE) for size, _ in writes), (
        "it waits, and does not spin"
    )
    for at, (since, _) in enumerate(storage.seen):
        written = 0
        for then, size in storage.seen[at:]:
            written += size
            assert written <= 2 * PIECE + rate * (then - since) * (1 + 1e-9) + 1e-3


def test_a_checkpoint_takes_the_time_of_its_storage_and_reads_as_any_other(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    state = {
        "parameters": [torch.arange(500_000, dtype=torch.float32)],
        "momentum": [torch.ones(3)],
    }
    fast, slow = (
        Checkpoints(tmp_path / "fast", 0, torch),
        Checkpoints(tmp_path / "slow", 0, torch, storage_mbps=40.0),
    )
    clock = Clock()
    monkeypatch.setattr(checkpoint, "time", clock)
    for each in (fast, slow):
        (tmp_path / each.path(1).parent.name).mkdir()
        took = clock.now
        size = each.write(1, state).stat().st_size
        took = clock.now - took
        found = each.read(1)
        assert (
            torch.equal(found["parameters"][0], state["parameters"][0]) and found["iteration"] == 1
        )
        assert took == (pytest.approx(size * 8 / 40e6, rel=0.05) if each is slow else 0.0)
