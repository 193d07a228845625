"""Poll the hosts while a view is open: carrier changes, port counters, the job's iterations.
Devices are not queried.

Samples are shown and not stored. The job's iterations go into the journal of the run that launched
it, as with `testbed job status`.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from dataclasses import replace

from optics import HostName, TestbedError, Unreachable
from optics.errors import first_line, unplanned
from orchestrator import emulated as labproc
from orchestrator.hosts import SAMPLE, Hello, HostEvent, counter_samples
from orchestrator.jobs.jobs import Jobs
from orchestrator.session import Session, open_session
from orchestrator.store.keys import tenancy_of
from orchestrator.store.verbs import verb_of
from orchestrator.views.live.watcher import Watcher

HZ = 5.0
"""Rate (Hz) at which hosts read their counters for a view: enough for a curve. A change samples
faster on its own.
"""
BATCH_S = 0.25
JOB_S = 1.0
AGAIN_S = 5.0
"""Hosts that do not answer are tried again after this long (s)."""
_RX, _TX, _OPER = (SAMPLE.index(name) for name in ("rx_bytes", "tx_bytes", "oper"))


async def collect(watcher: Watcher) -> None:
    """Update the watcher's picture until cancelled; errors are shown in it and retried."""
    while True:
        try:
            await _attached(watcher)
        # a view never ends because of an error: it is shown and retried
        except* Exception as errors:
            error: BaseException = errors
            while isinstance(error, BaseExceptionGroup):
                error = error.exceptions[0]
            watcher.picture.troubled("hosts", unplanned(error))
        await asyncio.sleep(AGAIN_S)


async def _attached(watcher: Watcher) -> None:
    """Follow the hosts that answer. Raises: TestbedError - none does, or one was lost."""
    settings = watcher.settings
    lab = replace(watcher.picture.lab, devices={}, secrets={}, trunks=())
    async with open_session(
        lab, settings.inventory, settings.cache_dir / "ansible", settings.bounds
    ) as session:
        answers = await session.hosts.channels.connect()
        existing = [h for h, a in answers.items() if isinstance(a, Hello) and a.installed]
        silent = {h: a for h, a in answers.items() if not isinstance(a, Hello)}
        if silent:
            first = next(iter(silent.values()))
            text = f"{len(silent)} of {len(answers)} hosts do not answer: {first.line}"
            if labproc.is_emulated(settings.inventory) and not labproc.is_running(
                settings.inventory
            ):
                text = "the emulated lab does not run: testbed lab start"
            watcher.picture.troubled("hosts", text)
        else:
            watcher.picture.troubled("hosts", "")
        if not existing:
            return  # hosts are not set up yet: the first `up` does that
        async with asyncio.TaskGroup() as group:
            group.create_task(_events(watcher, session, existing, again=bool(silent)))
            group.create_task(_job(watcher, session))


async def _events(
    watcher: Watcher, session: Session, existing: list[HostName], *, again: bool
) -> None:
    picture, hosts = watcher.picture, session.hosts
    queue = hosts.channels.subscribe()
    anchor_ns = time.time_ns() - time.monotonic_ns()
    for port, lit in (await hosts.measure.watch_links(existing)).items():
        picture.carrier(str(port), time.time() * 1e3, lit)
    await hosts.measure.stream_counters(1 / HZ, existing, batch_s=BATCH_S)
    give_up = time.monotonic() + 6 * AGAIN_S if again else float("inf")
    while time.monotonic() < give_up:
        with suppress(TimeoutError):
            # wait_for of Python 3.11 loses a cancellation that comes together with an event
            async with asyncio.timeout(AGAIN_S):
                event = await queue.get()
            _take_event(watcher, event, anchor_ns)
    raise Unreachable("some hosts did not answer; connecting to all of them again")


def _take_event(watcher: Watcher, event: HostEvent, anchor_ns: int) -> None:
    picture = watcher.picture
    match event.kind:
        case "link":
            at = (event.at_ns + anchor_ns) / 1e6
            picture.carrier(
                f"{event.host}:p{event.values['port']}", at, bool(event.values["carrier"])
            )
        case "counters":
            with suppress(TestbedError):  # one batch that cannot be read is a gap in a curve
                for port, rows in counter_samples(event).items():
                    for row in rows:
                        at = (row[-1] + anchor_ns) / 1e6
                        picture.count(str(port), at, row[_TX], row[_RX])
                        picture.carrier(str(port), at, bool(row[_OPER]))
        case "lost":
            raise Unreachable(
                f"{event.host}: {event.values.get('error') or 'its connection was lost'}"
            )


async def _job(watcher: Watcher, session: Session) -> None:
    """Collect the job's iterations, except during a run that collects them itself: turners and
    adapters do not.
    """
    store = watcher.store
    while True:
        record = watcher.picture.state.job
        running = watcher.picture.running
        if (
            record is not None
            and record.ended is None
            and (running is None or verb_of(running.verb).lasting)
        ):
            try:
                jobs = Jobs(
                    session,
                    store,
                    tenancy_of(session.lab, watcher.settings),
                    watcher.settings.runs_dir,
                )
                heartbeats = await jobs.heartbeats(record)
                watcher.picture.ranks.heard(record.run, heartbeats, time.time() * 1e3)
                await jobs.status(record, heartbeats)
                watcher.picture.troubled("job", "")
            except (TestbedError, OSError) as error:
                watcher.picture.troubled("job", f"job {record.name}: {first_line(error)}")
        await asyncio.sleep(JOB_S)
