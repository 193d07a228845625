"""Whether a program of the lab's owner shows iterations where its declaration says, and how long
one may wait for the first.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from orchestrator.hosts.output import last_line
from orchestrator.jobs.iterations import median_ms
from orchestrator.jobs.rank_records import sound
from orchestrator.jobs.record import ranks_of
from orchestrator.session import Session
from orchestrator.store.records import JobRecord
from orchestrator.store.store import Store

USUAL_S = 20.0
"""An iteration of a program that was never seen here takes this long (s)."""
LEAST_S = 10.0
ITERATIONS = 3
"""An iteration that does not show is reported after so many usual ones."""
LOOK_BACK = 20
"""Jobs in whose records an earlier run of the program is looked for."""


@dataclass(frozen=True, slots=True)
class Usual:
    """What an earlier run of the program took until its first iteration showed, and for one (s)."""

    first_s: float
    iteration_s: float

    @property
    def patience_s(self) -> float:
        """How long (s) to wait for the first iteration: its usual time, and three more
        iterations.
        """
        return max(self.first_s + ITERATIONS * self.iteration_s, LEAST_S)


NEVER_SEEN = Usual(0.0, USUAL_S)


def usual(store: Store, key: str, runs_dir: Path, program: str, before: int) -> Usual:
    """Of the latest earlier run of the program on this tenancy that made iterations; without one
    the stated default.

    before: the number of the job that runs now.
    """
    for number in range(before - 1, max(0, before - 1 - LOOK_BACK), -1):
        record = store.job(number)
        if record is None or record.lab != key or record.spec.wanted.program != program:
            continue
        try:
            found = sound(
                (runs_dir / record.run / f"{record.spec.on_hosts}.iterations.jsonl")
                .read_bytes()
                .splitlines()
            )
        except OSError:
            continue
        if found:
            first_ms = float(found[0]["iter_ms"])
            return Usual(first_ms / 1e3, (median_ms(found) or first_ms) / 1e3)
    return NEVER_SEEN


async def unseen(
    session: Session, store: Store, key: str, runs_dir: Path, record: JobRecord, state: str
) -> str:
    """What to say of a program none of whose iterations shows, and that had the time for it or has
    ended; else empty.
    """
    program = session.lab.programs.get(record.spec.wanted.program)
    if program is None or state not in ("starting", "finished"):
        return ""
    for_s, seen = time.time() - record.started, usual(store, key, runs_dir, program.name, record.id)
    if state == "starting" and for_s < seen.patience_s:
        return ""
    text = f"no iteration of {program.name} shows: {program.iterations.shown}"
    if state == "starting":
        by = (
            "as in its last run"
            if seen is not NEVER_SEEN
            else f"it never ran here, and {USUAL_S:g} s an iteration are assumed"
        )
        text += f" in {for_s:.0f} s (expected within {seen.patience_s:.0f} s, {by})"
    ranks = ranks_of(record, session.lab)
    line = await last_line(session.hosts, record.spec.on_hosts, ranks[0]) if ranks else ""
    last = f"the last line of its output: {line[:120]!r}" if line else "it has printed nothing"
    return f"{text}\n{last}; see iterations at {program.place}"
