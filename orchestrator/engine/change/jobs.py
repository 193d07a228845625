"""The job of a plan: brought up with it, watched through its hosts, its iterations kept beside the run that launched it."""

from __future__ import annotations

import asyncio
import dataclasses
import fcntl
import itertools
import json
import statistics
import time
from collections.abc import AsyncIterator, Collection, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from optics import HostName, Locked, Missing, NotVerified, Refused, TestbedError, Unreachable
from optics.plan import Job, Traffic
from orchestrator.engine.change import job_ports as jobports
from orchestrator.engine.change.keep_job import is_same
from orchestrator.engine.change.locking import holding
from orchestrator.hosts import Hosts, JobState, job_name
from orchestrator.hosts.failures import one_error
from orchestrator.hosts.launch import backend, identity
from orchestrator.inventory.lab import Lab
from orchestrator.plan.target import Target
from orchestrator.results import JobStatus, to_json
from orchestrator.session import Session, deadline, load_lab, open_session
from orchestrator.settings import Settings
from orchestrator.store.keys import lab_of, slice_of
from orchestrator.store.records import JobRecord
from orchestrator.store.scope import reach
from orchestrator.store.store import Store
from orchestrator.telemetry import environment
from orchestrator.telemetry.journal import Journal
from orchestrator.telemetry.progress import Progress
from orchestrator.telemetry.recorder import Recorder

FIRST_ITERATIONS = 4
"""`up` reports a job's speed once it has this many iterations: the first sets things up and does not count."""
FIRST_ITERATIONS_S = 120.0
LATEST = 20
"""The median iteration time is taken over the latest this many."""
GRACE_S = 15.0
"""Time (s) a job gets after SIGTERM to finish its iteration and write its checkpoint."""
POLL_S = 0.25
RESUME_S, LONGEST_RESUME_S, RESUME_LOOK_S = 1.0, 5.0, 0.05
"""How long a change waits to see its job go on: for three of its iterations, within these bounds."""


def spec_of(job: Job, lab: Lab, run: str) -> dict[str, Any]:
    """What the store keeps of a launched job; `wanted` alone decides whether another job is the same."""
    return {"wanted": to_json(job), "on_hosts": job_name(job.name, run), "backend": backend(job, lab)}


def _facts(record: JobRecord) -> tuple[str, str, dict[str, Any]]:
    """The job's name on the hosts, its backend, and what the plan said of it."""
    spec = record.spec
    wanted = spec.get("wanted") if isinstance(spec, dict) else None
    if not isinstance(spec, dict) or not isinstance(wanted, dict):
        raise TestbedError(f"job {record.name}: its record in the store is not readable")
    return str(spec["on_hosts"]), str(spec["backend"]), wanted


def _ranks(record: JobRecord, lab: Lab) -> tuple[HostName, ...]:
    """The hosts of the ranks that this inventory still knows."""
    return tuple(h for h in _facts(record)[2]["ranks"] if h in lab.hosts)


def affected(record: JobRecord | None, goal: Target) -> tuple[str, ...]:
    """Names of running jobs one of whose links the change breaks."""
    if record is None or record.ended is not None or not goal.change.changes:
        return ()
    ranks = set(_facts(record)[2]["ranks"])
    gone = set(goal.old_links) - set(goal.kept_links)
    return (record.name,) if any({link.a.host, link.b.host} <= ranks for link in gone) else ()


async def look(session: Session, store: Store, record: JobRecord, run_dir: Path) -> JobStatus:
    """Ask every rank, bring the new iterations home, note an end in the store. `run_dir`: of the run that launched the job."""
    name, chosen, wanted = _facts(record)
    ranks = _ranks(record, session.lab)
    states = await session.hosts.job_states(name, ranks)
    records = await bring_home(session, name, record, run_dir) if ranks else []
    state, detail = _state(record, states, len(records))
    launched = store.get(record.run)
    if ranks and launched is not None and launched.ended is not None:  # it samples the ports itself until then
        ended = state not in ("starting", "running")
        await jobports.bring_home(session, name, record.run, run_dir, ranks, launched.ended, ended=ended)
    if record.ended is None and state in ("finished", "failed"):
        store.set_job(record.id, state, detail, ended=True)
    busbw = [r["busbw_gbps"] * 125 for r in (records[1:] or records)[-LATEST:] if "busbw_gbps" in r]
    busy = [float(r["busy"]) for r in records[1:][-LATEST:] if "busy" in r]
    predicted = wanted.get("predicted") or {}
    return JobStatus(
        name=record.name,
        state=state,
        workload=str(wanted["workload"]),
        backend=chosen,
        ranks=len(wanted["ranks"]),
        iterations=len(records),
        iteration_ms=_median(records),
        busbw_mbps=round(statistics.median(busbw), 3) if busbw else None,
        busbw_expected_mbps=predicted.get("busbw_mbps"),
        iteration_expected_ms=predicted.get("iteration_ms"),
        time_scale=(wanted.get("traffic") or {}).get("time_scale", 1.0),
        exit_codes={i: s.code for i, h in enumerate(ranks) if (s := states[h]).code is not None},
        detail=detail,
        run=record.run,
        started=record.started,
        busy=statistics.median(busy) if busy else None,
        resumed_from=int(records[0].get("iter", 1)) - 1 if records else 0,
    )


def _median(records: list[dict[str, Any]]) -> float | None:
    """Median time (ms) of the latest iterations, the very first left out."""
    latest = [float(r["iter_ms"]) for r in records[1:][-LATEST:] if "iter_ms" in r]
    return round(statistics.median(latest), 2) if latest else None


def _state(record: JobRecord, states: Mapping[HostName, JobState], iterations: int) -> tuple[str, str]:
    bad = [
        f"{h}: {'exit ' + str(s.code) if s.code else s.state}"
        for h, s in states.items()
        if s.state in ("killed", "absent") or s.code
    ]
    if record.ended is not None:  # its hosts may have forgotten it since
        return record.state, record.detail
    if bad:
        return "failed", "; ".join(bad[:4]) + (f"; and {len(bad) - 4} more" if len(bad) > 4 else "")
    if any(s.state == "running" for s in states.values()):
        return ("running" if iterations else "starting"), ""
    return "finished", ""


async def bring_home(session: Session, name: str, record: JobRecord, run_dir: Path) -> list[dict[str, Any]]:
    """Fetch what rank 0 wrote since last time into the run's directory and journal; return all of the job's iterations."""
    run_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    local = run_dir / f"{name}.iterations.jsonl"
    local.touch(mode=0o600)
    first = _ranks(record, session.lab)[0]
    while True:
        offset = local.stat().st_size
        piece = await session.hosts.tail(name, first, "iterations.jsonl", offset)
        whole = piece.text[: piece.text.rfind("\n") + 1].encode()
        ahead_ns = await _ahead_ns(session, first) if whole else 0
        if whole and _append(local, offset, whole):
            with Journal(run_dir, record.run, session.lab.name) as journal:
                for line in whole.splitlines():
                    _iteration_point(journal, record, json.loads(line), ahead_ns)
        if not whole or offset + len(whole) >= piece.size:
            break
    return [json.loads(line) for line in local.read_text(encoding="utf-8").splitlines()]


async def _ahead_ns(session: Session, host: HostName) -> int:
    """A host's wall clock minus ours (ns); 0 where asking cannot tell them apart."""
    reading = (await session.hosts.clocks([host]))[host]
    return reading.offset_ns if abs(reading.offset_ns) > reading.round_trip_ns / 2 else 0


def _append(file: Path, offset: int, piece: bytes) -> bool:
    """Write `piece` at the end if the end is still at `offset`; false if another command brought the same home meanwhile."""
    with file.open("ab") as end:
        fcntl.flock(end, fcntl.LOCK_EX)
        if end.seek(0, 2) != offset:
            return False
        end.write(piece)
        return True


def _iteration_point(journal: Journal, record: JobRecord, r: Mapping[str, Any], ahead_ns: int) -> None:
    """Write what rank 0 said of one iteration: the step, and the all-reduce in it. ahead_ns: its clock minus ours."""
    wanted = _facts(record)[2]
    took, comm = float(r["iter_ms"]), r.get("comm_ms")
    at = int(r["t_wall_ns"]) - ahead_ns - journal.anchor_ns
    journal.point(
        "iteration",
        {"job": record.name, "workload": str(wanted["workload"])},
        {
            "iter": r["iter"],
            "iter_ms": took,
            "comm_ms": comm,
            "compute_ms": took - comm if comm is not None else None,
            "loss": r.get("loss"),
            "samples_per_s": r["samples"] / took * 1e3 if r.get("samples") and took else None,
            "ring_groups": max(1, len(wanted.get("rings") or ())),
        },
        at,
    )
    size, algbw, summed = r.get("bytes"), r.get("algbw_gbps"), r.get("allreduce_ms")
    if not size or not (algbw or summed):
        return
    summed = size * 8 / algbw / 1e6 if algbw else summed
    journal.point(
        "collective",
        {"job": record.name, "op": "all_reduce", "algo": "ring"},
        {
            "size_bytes": size,
            "iter": r["iter"],
            "iter_ms": summed,
            "algbw_gbps": size * 8 / summed / 1e6,
            "busbw_gbps": r.get("busbw_gbps"),
            "exposed_comm_ms": comm,
        },
        at,
    )


async def resumed(
    session: Session, store: Store, key: str, run_dir: Path, recorder: Recorder, after_ns: int, since_ns: int, was: int | None
) -> tuple[int, int]:
    """When the job ended its first iteration after `after_ns`, and the longest time between two ends from `since_ns` until then.

    Monotonic ns; 0 if none runs, or none ends within a second or two. was: the job that ran before, whose iterations count too.
    By the clocks of the hosts of ranks 0, compared with ours first.
    """
    record, journal = store.latest_job(key), recorder.journal
    if record is None or record.ended is not None or journal is None or not after_ns:
        return 0, 0
    ranks = _ranks(record, session.lab)
    patience_s, begun, usual_ms = RESUME_S, time.monotonic(), 0.0
    try:
        ahead_ns = await _ahead_ns(session, ranks[0]) if ranks else 0
        while ranks:
            found = await bring_home(session, _facts(record)[0], record, run_dir.parent / record.run)
            ends = _ends(found, ahead_ns + journal.anchor_ns)
            for r, at in zip(found[-LATEST:], ends[-LATEST:], strict=True):
                if at > after_ns:
                    recorder.add("resume", after_ns, at, f"{record.name}: first packet to the end of iteration {r['iter']}")
                    if was is not None and was != record.id:
                        ends += await _ends_before(session, store.job(was), run_dir.parent, journal.anchor_ns)
                    pairs = itertools.pairwise(sorted(end for end in ends if end <= at))
                    return at, max((end - before for before, end in pairs if end > since_ns), default=0)
            usual_ms = _median(found) or usual_ms
            patience_s = max(RESUME_S, min(3 * usual_ms / 1e3, LONGEST_RESUME_S))
            if time.monotonic() - begun > patience_s:
                break
            await asyncio.sleep(RESUME_LOOK_S)
    except (TestbedError, KeyError):
        pass  # how soon a job went on is no reason for a change to fail
    return 0, 0


def _ends(records: Iterable[Mapping[str, Any]], ahead_ns: int) -> list[int]:
    """When iterations ended; ahead_ns: their clock minus the one that counts."""
    return [int(r["t_wall_ns"]) - ahead_ns + int(float(r["iter_ms"]) * 1e6) for r in records]


async def _ends_before(session: Session, record: JobRecord | None, runs_dir: Path, anchor_ns: int) -> list[int]:
    """When the iterations of a job that was stopped ended, as far as they were brought home."""
    if record is None or not (ranks := _ranks(record, session.lab)):
        return []
    file = runs_dir / record.run / f"{_facts(record)[0]}.iterations.jsonl"
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    return _ends(map(json.loads, lines), await _ahead_ns(session, ranks[0]) + anchor_ns)


async def bring(
    session: Session,
    store: Store,
    key: str,
    run: str,
    run_dir: Path,
    job: Job | None,
    recorder: Recorder,
    *,
    changed: bool,
    launch: bool,
    sample: bool = True,
) -> JobStatus | None:
    """Bring the lab's job in line with a plan that is up now.

    No job in the plan: one that runs keeps running. The same job: it keeps running, and is launched again if it failed or was
    stopped, or if it finished and the lab was `changed`. Another job: the old one is stopped at an iteration boundary and the new
    one takes its place. It goes on from the old one's checkpoints if both are one training, by name and `identity`; else it starts
    anew.
    """
    record, old = store.latest_job(key), None
    if record is not None and _ranks(record, session.lab):
        try:
            old = await look(session, store, record, run_dir.parent / record.run)
        except Unreachable:
            if record.ended is None:
                raise
            # one that has ended keeps nobody waiting: it may have run on hosts that this plan does not touch
    runs = old is not None and old.state in ("starting", "running")
    if job is None or not launch:
        return old if runs else None
    same = record is not None and is_same(record, job)
    if record is not None and old is not None and same and (runs or (old.state == "finished" and not changed)):
        return old
    if runs:
        assert record is not None
        with recorder.phase("job", f"stopping {record.name}") as phase:
            await halt(session, store, record, run_dir.parent / record.run, "replaced")
            phase.detail = f"stopped {record.name} after {old.iterations if old else 0} iterations"
    before = _wanted_job(record) if record is not None and old is not None and old.state != "finished" else None
    resume = before is not None and (before.name, identity(before)) == (job.name, identity(job))
    return await start(session, store, key, run, run_dir, job, recorder, resume=resume, sample=sample)


async def running(session: Session, store: Store, key: str) -> JobRecord | None:
    """The job that runs now, by its ranks' own word; one whose ranks cannot be asked counts as running."""
    record = store.latest_job(key)
    if record is None or record.ended is not None:
        return None
    name, ranks = _facts(record)[0], _ranks(record, session.lab)
    try:
        states = await session.hosts.job_states(name, ranks)
    except TestbedError:
        return record
    return record if any(s.state == "running" for s in states.values()) else None


async def again(
    session: Session,
    store: Store,
    key: str,
    run: str,
    run_dir: Path,
    number: int | None,
    recorder: Recorder,
    *,
    sample: bool = True,
) -> JobStatus | None:
    """Let the job run that ran before (None: none did): another one that runs is stopped, and it goes on from its checkpoint.

    Raises: Missing - what it was launched with is not known any more; else as `start`.
    """
    latest = store.latest_job(key)
    if latest is not None and latest.id != number and latest.ended is None and await running(session, store, key):
        with recorder.phase("job", f"stopping {latest.name}") as phase:
            await halt(session, store, latest, run_dir.parent / latest.run, "taken back")
            phase.detail = f"stopped {latest.name}"
    record = None if number is None else store.job(number)
    if record is None or record.state == "finished":
        return None
    if record.ended is None:
        status = await look(session, store, record, run_dir.parent / record.run)
        if status.state in ("starting", "running", "finished"):
            return status
    return await start(session, store, key, run, run_dir, _launched(record, session.lab), recorder, resume=True, sample=sample)


def _launched(record: JobRecord, lab: Lab) -> Job:
    """The job as it was launched, whatever launched it. Raises: Missing - a host of its ranks is not in the inventory any more."""
    if gone := [host for host in _facts(record)[2]["ranks"] if host not in lab.hosts]:
        raise Missing(f"job {record.name} ran on {', '.join(gone)}, not in the inventory any more", hint="testbed job launch")
    return _wanted_job(record)


def _wanted_job(record: JobRecord) -> Job:
    """The job that the record's plan asked for."""
    wanted = _facts(record)[2]
    kept = {**wanted, "ranks": tuple(wanted["ranks"]), "rings": tuple(map(tuple, wanted["rings"]))}
    return Job(**kept | ({"traffic": Traffic.of(wanted["traffic"])} if wanted.get("traffic") else {}))


async def start(
    session: Session,
    store: Store,
    key: str,
    run: str,
    run_dir: Path,
    job: Job,
    recorder: Recorder,
    *,
    resume: bool,
    sample: bool = True,
) -> JobStatus:
    """Launch a job through Ansible and wait for its first iterations, or its early end. sample: hosts keep their ports' counters.

    Raises: NotVerified - it failed at once; the last words of a rank are quoted. Refused, Unreachable - it could not be started.
    """
    spec = spec_of(job, session.lab, run)
    with recorder.phase("launch", f"{job.workload} on {len(job.ranks)} hosts, through Ansible") as phase:
        number = store.add_job(key, run, job.name, spec)
        try:
            await session.hosts.launch(job, run, resume=resume)
        except TestbedError as error:
            store.set_job(number, "failed", str(error), ended=True)
            raise
        store.set_job(number, "running")
        if sample:
            await jobports.keep(session, spec["on_hosts"], job.ranks)
        phase.detail = f"{job.workload}, {len(job.ranks)} ranks, {spec['backend']}"
    record = store.latest_job(key)
    assert record is not None
    with recorder.phase("job", f"waiting for {FIRST_ITERATIONS} iterations") as phase:
        give_up = time.monotonic() + FIRST_ITERATIONS_S
        while True:
            status = await look(session, store, record, run_dir)
            if status.iterations >= FIRST_ITERATIONS or status.state not in ("starting", "running") or time.monotonic() > give_up:
                break
            recorder.progress.update("job", status.iterations, FIRST_ITERATIONS, f"iterations, {status.state}")
            await asyncio.sleep(POLL_S)
        if status.state == "failed":
            words = await last_words(session.hosts, spec["on_hosts"], record, session.lab)
            raise NotVerified(
                f"job {job.name} failed at its start: {status.detail}\n{words}",
                hint="testbed job logs; to start it anew, without its checkpoints: testbed job launch",
            )
        resumed_ = f", resumed after iteration {status.resumed_from}" if status.resumed_from else ""
        speed = f", iteration {status.iteration_ms:.0f} ms" if status.iteration_ms is not None else ""
        phase.detail = f"{job.name} {status.state}{resumed_}{speed}"
    return status


async def last_words(hosts: Hosts, name: str, record: JobRecord, lab: Lab) -> str:
    """The last line of each rank that ended badly, at most three of them."""
    found = []
    for host, state in (await hosts.job_states(name, _ranks(record, lab))).items():
        if state.code or state.state == "killed":
            lines = (await hosts.tail(name, host, "log", -2000)).text.strip().splitlines()
            found.append(f"  {host}: {lines[-1] if lines else 'said nothing'}")
    return "\n".join(found[:3])


async def halt(session: Session, store: Store, record: JobRecord, run_dir: Path, why: str) -> JobStatus:
    """Stop a job and keep its iterations. Raises: Refused - a rank does not stop even when killed."""
    name = _facts(record)[0]
    ended = await session.hosts.stop_job(name, GRACE_S, _ranks(record, session.lab))
    if still := [h for h, s in ended.items() if s.state == "running"]:
        raise Refused(f"job {record.name}: {', '.join(still)} did not stop", hint="testbed job stop again, or look at the host")
    status = await look(session, store, record, run_dir)
    store.set_job(record.id, "stopped", why, ended=True)
    return dataclasses.replace(status, state="stopped", detail=why)


async def leave(session: Session, store: Store, key: str, recorder: Recorder, runs_dir: Path) -> str:
    """Stop the lab's job if it runs; return its name, or nothing. Raises: Unreachable, Refused - not all of its ranks stopped."""
    record = store.latest_job(key)
    if record is None or record.ended is not None:
        return ""
    with recorder.phase("job", f"stopping {record.name}") as phase:
        try:
            status = await look(session, store, record, runs_dir / record.run)
        except Unreachable:  # the ranks on the hosts that answer are stopped all the same; then `halt` says who does not
            pass
        else:
            if status.state not in ("starting", "running"):
                phase.detail = f"{record.name} had {status.state}"
                return ""
        status = await halt(session, store, record, runs_dir / record.run, "down")
        phase.detail = f"{record.name} stopped after {status.iterations} iterations"
    return record.name


# --- the verbs ------------------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def _opened(inventory: Path, settings: Settings, timeout_s: float, verb: str) -> AsyncIterator[tuple[Session, str]]:
    lab = load_lab(inventory)
    async with deadline(timeout_s, verb), open_session(lab, inventory, settings.cache_dir / "ansible") as session:
        yield session, slice_of(lab, settings)


async def _connect(session: Session, names: Collection[HostName]) -> None:
    """Raises: Unreachable - naming every one of these hosts that does not answer."""
    answers = await session.hosts.connect(names)
    if silent := {h: e for h, e in answers.items() if isinstance(e, TestbedError)}:
        raise one_error(silent)


def _latest(store: Store, key: str) -> JobRecord:
    record = store.latest_job(key)
    if record is None:
        raise Missing("no job was ever launched on this lab", hint="testbed up with a plan that has a job")
    return record


async def job_launch(inventory: Path, *, progress: Progress, store: Store, settings: Settings, timeout_s: float) -> JobStatus:
    """Launch the job of the plan that is up, again if it ran before. Raises: Missing - no plan is up, or it has no job."""
    from orchestrator.plan.reader import read_plan

    async with _opened(inventory, settings, timeout_s, "job launch") as (session, key):
        current = store.current(key)
        if current is None:
            raise Missing("no plan is up on this lab", hint="testbed up --topology examples/ring-12.json")
        job = read_plan(current.plan_text, current.plan_name, session.lab).job
        if job is None:
            raise Missing(f"{current.plan_name} has no job", hint="add one to the plan; see docs/reference/plan.schema.json")
        await _connect(session, job.ranks)
        async with holding(session.lab, settings, store, reach(session.lab, job.ranks), "job launch", progress=progress) as lock:
            if store.current(key) != current:
                raise Locked("another plan came up while this command waited", hint="look first: testbed status")
            run = store.new_run(
                "job launch",
                lab_of(key),
                plan_name=current.plan_name,
                plan_sha=current.plan_sha,
                plan_text=current.plan_text,
                inventory=inventory,
                user=settings.user,
                owner=settings.owner,
            )
            lock.bind(run)
            await session.hosts.fence(run.token, job.ranks)
            run_dir = settings.run_dir(run.id)
            with run, Journal(run_dir, run.id, session.lab.name) as journal:
                environment.note(run_dir, session.lab, inventory)
                record = store.latest_job(key)
                if record is not None and record.ended is None:
                    await halt(session, store, record, run_dir.parent / record.run, "launched again")
                status = await start(
                    session,
                    store,
                    key,
                    run.id,
                    run_dir,
                    job,
                    Recorder(progress, journal),
                    resume=False,
                    sample=settings.sample_hz > 0,
                )
                run.finish("ok", summary={"iteration_ms": status.iteration_ms})
                return status


async def job_stop(inventory: Path, *, progress: Progress, store: Store, settings: Settings, timeout_s: float) -> JobStatus:
    """Stop the job at an iteration boundary and say how far it came."""
    async with _opened(inventory, settings, timeout_s, "job stop") as (session, key):
        record = _latest(store, key)
        run_dir = settings.run_dir(record.run)
        await session.hosts.connect(_ranks(record, session.lab))
        with suppress(Unreachable):  # the ranks on the hosts that answer are stopped all the same; `halt` says who does not
            status = await look(session, store, record, run_dir)
            if status.state not in ("starting", "running"):
                return status
        ranks = _ranks(record, session.lab)
        async with holding(session.lab, settings, store, reach(session.lab, ranks), "job stop", progress=progress):
            if _latest(store, key).id != record.id:
                raise Locked("another job was launched while this command waited", hint="again: testbed job stop")
            return await halt(session, store, record, run_dir, "stopped by the operator")
