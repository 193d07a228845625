"""The shadow of a job: what it followed, brought home; and its end."""

from __future__ import annotations

import statistics
import time
from contextlib import suppress
from pathlib import Path

from optics import HostName, TestbedError, Unreachable
from orchestrator.engine.change.follow import MOST_BYTES, append, whole_lines
from orchestrator.engine.change.iterations import LATEST
from orchestrator.engine.change.job_record import shadow_host, tapped_hosts
from orchestrator.engine.change.rank_records import sound
from orchestrator.session import Session
from orchestrator.store.records import JobRecord
from orchestrator.telemetry.journal import Journal

CONNECT_S, AGAIN_S = 3.0, 15.0
"""How long (s) a shadow's host is waited for; one that did not answer is asked again so much later, for many looks would wait."""
NEEDED = ("iter", "equal", "t_wall_ns")
FIELDS = ("iter", "equal", "fetched", "missing", "lost", "lag_ms", "checkpoint")


async def end(session: Session, record: JobRecord | None) -> None:
    """End a job's shadow, should it still run, once its ranks have ended: it writes its checkpoint. A silent host is left alone."""
    if record is None or (host := shadow_host(record, session.lab)) is None or record.spec.alone:
        return
    with suppress(TestbedError):
        await _connected(session, host)
        await session.hosts.end_shadow(record.spec.on_hosts, host)


async def _connected(session: Session, host: HostName) -> None:
    """Raises: Unreachable - it does not answer, or did not a moment ago."""
    if host not in session.hosts.attached():
        if time.monotonic() >= session.away.get(host, 0.0):
            await session.hosts.connect([host], CONNECT_S)
            session.away[host] = time.monotonic() + AGAIN_S
        if host not in session.hosts.attached():
            raise Unreachable(f"{host}: does not answer")


async def status(session: Session, record: JobRecord, run_dir: Path) -> dict[str, int | float | str] | None:
    """How the shadow follows, as `JobStatus.shadow`; None: the job has none. lacks: why it has none, in place of figures.

    What it judged since the last time goes into the run's directory and journal. lost: packets that the taps had no room for.
    """
    shadow = record.spec.wanted.shadow
    if shadow is not None and (why := record.spec.alone):
        at = shadow.host
        lacks = f"launched without its shadow on {at}: {why}; once {at} answers, for one again: testbed job stop, then testbed up"
        return {"host": at, "state": "absent", "checkpoint": 0, "lacks": lacks}
    if (host := shadow_host(record, session.lab)) is None:
        return None
    name = record.spec.on_hosts
    run_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    local = run_dir / f"{name}.shadow.jsonl"
    local.touch(mode=0o600)
    state, places = "silent", {"host": host, "taps": " ".join(tapped_hosts(record, session.lab))}
    with suppress(TestbedError):
        await _connected(session, host)
        while True:
            offset = local.stat().st_size
            piece = await session.hosts.shadow_records(name, host, offset)
            state = piece.state
            whole = whole_lines(piece, offset)
            if whole and append(local, offset, whole):
                with Journal(run_dir, record.run, session.lab.name) as journal:
                    for found in sound(whole.splitlines(), NEEDED):
                        values = {key: found.get(key) for key in FIELDS}
                        journal.point("shadow", {"job": record.name}, values | places, int(found["t_wall_ns"]) - journal.anchor_ns)
            if not whole or offset + len(whole) >= min(piece.size, MOST_BYTES):
                break
    records = sound(local.read_bytes().splitlines(), NEEDED)
    lags = [float(each["lag_ms"]) for each in records[-LATEST:] if "lag_ms" in each]
    return {
        **places,
        "state": state,
        "iterations": len(records),
        "equal": sum(int(each["equal"]) for each in records),
        "fetched": sum(int(each.get("fetched", 0)) for each in records),
        "checkpoint": int(records[-1].get("checkpoint", 0)) if records else 0,
        "lost": int(records[-1].get("lost", 0)) if records else 0,
        **({"lag_ms": round(statistics.median(lags), 3)} if lags else {}),
    }
