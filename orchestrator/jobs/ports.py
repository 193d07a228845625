"""Port counters of hosts while a job runs: the hosts keep them, and every status request of the job
fetches them.
"""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path

from optics import Garbled, HostName, TestbedError
from optics.ranks import RankName, by_host, host_of_rank
from orchestrator.hosts import SAMPLE, HostEvent, Tail, counter_samples
from orchestrator.jobs.follow import ahead_ns, collection_mark
from orchestrator.session import Session
from orchestrator.telemetry import Journal

EVERY_S = 1.0
"""Hosts sample at this interval (s) at first, and more sparsely the longer a job runs
(`agent/measure/keeping.py`).
"""
AGAIN_S = 5.0
"""Minimum interval (s) between two requests to the hosts."""


async def start_port_sampling(session: Session, name: str, ranks: Collection[RankName]) -> None:
    """Have the hosts of a job's ranks sample their ports until it ends. A failure to sample never
    fails the job.
    """
    with suppress(TestbedError):
        await session.hosts.measure.keep_counters(name, EVERY_S, _one_a_host(ranks))


def _one_a_host(ranks: Collection[RankName]) -> list[RankName]:
    """The first rank of each host, under whose name the host keeps its samples."""
    return [here[0] for here in by_host(ranks).values()]


async def fetch_samples(
    session: Session,
    name: str,
    run: str,
    run_dir: Path,
    ranks: Collection[RankName],
    since: float,
    *,
    ended: bool,
) -> None:
    """Fetch what hosts kept since last time into the journal of the run that launched the job.

    since: wall time (s) from which samples count; the run itself sampled before. ended: the job has
    ended, these are the last.
    """
    with collection_mark(run_dir / f"{name}.ports.json") as note:
        if note is not None and (ended or note.due(AGAIN_S)):
            await _fetch(session, name, run, run_dir, _one_a_host(ranks), since, note.after)
            note.at = time.time()


async def _fetch(
    session: Session,
    name: str,
    run: str,
    run_dir: Path,
    ranks: Collection[RankName],
    since: float,
    after: dict[str, int],
) -> None:
    """All samples after those already read; a host that does not answer keeps its samples for the
    next time.
    """
    with suppress(TestbedError):
        ahead = await ahead_ns(session, [host_of_rank(rank) for rank in ranks])
        with Journal(run_dir, run, session.lab.name) as journal:
            left = list(ranks)
            while left:
                found = await session.hosts.measure.kept_counters(
                    name, {rank: after.get(rank, 0) for rank in left}
                )
                for rank, piece in found.items():
                    _write(
                        journal, host_of_rank(rank), piece, ahead.get(host_of_rank(rank), 0), since
                    )
                    after[rank] = piece.offset
                left = [
                    rank
                    for rank, piece in found.items()
                    if piece.text and piece.offset < piece.size
                ]


def _write(journal: Journal, host: HostName, piece: Tail, ahead_ns: int, since: float) -> None:
    for line in piece.text.splitlines():
        # an unreadable line leaves a gap in the curve
        with suppress(Garbled, ArithmeticError, ValueError, KeyError, TypeError):
            values: Mapping[str, int] = json.loads(line)
            at_ns = int(values["wall_ns"]) - ahead_ns - journal.anchor_ns
            begin_ns = round(since * 1e9) - journal.anchor_ns
            for port, rows in counter_samples(HostEvent(host, "counters", at_ns, values)).items():
                if kept := [row for row in rows if row[-1] > begin_ns]:
                    journal.samples(
                        "port",
                        {"host": port.host, "port": f"p{port.number}", "layer": "nic"},
                        SAMPLE,
                        kept,
                    )
