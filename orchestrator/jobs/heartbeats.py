"""What every rank of a job says of itself: asked once a second by whatever follows the job, its
iterations kept in the journal.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from optics import TestbedError
from optics.ranks import RankName, host_of_rank, hosts_of
from orchestrator.hosts import Heartbeat, late
from orchestrator.jobs.follow import ahead_ns, collection_mark
from orchestrator.session import Session
from orchestrator.telemetry import Journal

AGAIN_S = 0.9
"""Minimum interval (s) between two writes to the journal while all ranks run."""
CLOCKS_S = 60.0
"""Interval (s) at which the hosts' wall clocks are compared with the local one."""
EVERY_BITS = 12
"""Every iteration below 2 ** EVERY_BITS is kept, then half as many for each doubling: 2 to the
EVERY_BITS - 1 each time.
"""
NONE_AFTER = 1 << 62


def kept(iteration: int) -> bool:
    """Whether an iteration is kept, the same for all ranks: every one at first, then ever fewer,
    some 28 000 of ten million.

    >>> kept(4095), kept(4097), kept(4098), kept(8194), kept(8196)
    (True, False, True, False, True)
    """
    return iteration % (1 << max(0, iteration.bit_length() - EVERY_BITS)) == 0


async def collect_heartbeats(
    session: Session, name: str, job: str, run: str, run_dir: Path, ranks: Collection[RankName]
) -> list[Heartbeat]:
    """Ask every rank for its heartbeat; what it did since the last time goes into the journal of
    `run`, which launched the job.

    name: that of the job on the hosts. Ranks of hosts that do not answer are left out.
    """
    run_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    with collection_mark(run_dir / f"{name}.beats.json") as note:
        if note is None:
            return list(
                (
                    await session.hosts.measure.heartbeats(
                        name, ranks, dict.fromkeys(ranks, NONE_AFTER)
                    )
                ).values()
            )
        due = note.due(AGAIN_S)
        after = {rank: note.after.get(rank, -1) for rank in ranks}
        found = await session.hosts.measure.heartbeats(
            name, ranks, after if due else dict.fromkeys(ranks, NONE_AFTER)
        )
        # it ends: nobody may ask again
        if not due and any(heartbeat.state != "running" for heartbeat in found.values()):
            due, found = True, await session.hosts.measure.heartbeats(name, ranks, after)
        if any(heartbeat.times for heartbeat in found.values()):
            if abs(time.time() - note.clocks_at) >= CLOCKS_S:
                with suppress(TestbedError):
                    note.ahead, note.clocks_at = (
                        await ahead_ns(session, hosts_of(found)),
                        time.time(),
                    )
            with Journal(run_dir, run, session.lab.name) as journal:
                for heartbeat in found.values():
                    _write(journal, job, heartbeat, note.ahead.get(host_of_rank(heartbeat.rank), 0))
        if due:
            note.after |= {
                rank: heartbeat.times[-1].iteration
                for rank, heartbeat in found.items()
                if heartbeat.times
            }
            note.at = time.time()
    return list(found.values())


def _write(journal: Journal, job: str, heartbeat: Heartbeat, ahead_ns: int) -> None:
    for times in heartbeat.times:
        if not kept(times.iteration):
            continue
        parts: Mapping[str, float] = {}
        if times.exposed_ms or times.compute_ms:
            parts = {
                "compute_ms": times.compute_ms,
                "exposed_ms": times.exposed_ms,
                "wait_ms": times.wait_ms,
            }
        more = ("processor_ms", "rwnd_limited_ms", "retransmitted", "refused")
        slowed = {name: value for name in more if (value := getattr(times, name))}
        fields = {"iter": times.iteration, "iter_ms": times.iter_ms, **parts, **slowed}
        journal.point(
            "rank",
            {"job": job, "rank": heartbeat.rank},
            fields,
            times.t_wall_ns - ahead_ns - journal.anchor_ns,
        )


def late_text(heartbeats: Sequence[Heartbeat], iteration_ms: float | None) -> tuple[str, ...]:
    """Which ranks are silent or slow, as `JobStatus.late`."""
    return tuple(
        filter(
            None,
            (late.silent_text(heartbeats, iteration_ms), late.slow_text(late.medians(heartbeats))),
        )
    )
