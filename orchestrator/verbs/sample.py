"""`telemetry sample`: ports, optical power, GPUs and clocks of the lab, sampled at a given rate
into a run of its own.

It changes nothing and takes no lock. While another run locks the lab, no device is queried and the
connections are closed: some devices accept one session at a time.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from dataclasses import dataclass

from optics import Circuit, HostName, TestbedError, Unreachable
from optics.plain import counted
from orchestrator.change.port_counters import Counters, record_clocks, record_gpus
from orchestrator.deadline import endless
from orchestrator.hosts import Hello, HostEvent, Hosts
from orchestrator.inventory.lab import Lab
from orchestrator.results import JsonReport
from orchestrator.session import Command, Session, load_lab, open_session
from orchestrator.settings import Settings
from orchestrator.store.keys import key_of, tenancy_of
from orchestrator.store.locks import locks_of
from orchestrator.store.options import RunOptions
from orchestrator.store.store import Store
from orchestrator.telemetry.journal import Journal
from orchestrator.verify.power import measure, record_light

SLOW_S = 1.0
"""Interval (s) between readings of optical power, GPUs and clocks."""


@dataclass(frozen=True, slots=True)
class SampleReport(JsonReport):
    """What was sampled. samples: of all ports together; missed: samples that a busy host could not
    take in time.
    """

    run: str
    lab: str
    hosts: int
    ports: int
    hz: float
    seconds: float = 0.0
    samples: int = 0
    missed: int = 0
    light: int = 0
    gpus: int = 0
    journal: str = ""
    notes: tuple[str, ...] = ()


async def sample(command: Command, *, hz: float, seconds: float | None) -> SampleReport:
    """Sample every port `hz` times a second for `seconds` (None: until cancelled), and once a
    second what changes slowly.

    Raises: Unreachable - no host can be sampled.
    """
    endless()
    lab, store, settings = load_lab(command.inventory), command.store, command.settings
    current = store.current(tenancy_of(lab, settings))
    circuits = current.up.circuits(lab) if current is not None else ()
    async with open_session(
        lab, command.inventory, settings.cache_dir / "ansible", settings.bounds
    ) as session:
        names, notes = await _answering(session.hosts, lab, command.timeout_s)
        for note in notes:
            command.progress.note(note)
        plan = current.plan_name if current is not None else ""
        run = store.new_run(
            "sample",
            key_of(lab),
            plan_name=plan,
            inventory=command.inventory,
            user=settings.user,
            owner=settings.owner,
            options=RunOptions(hz=hz),
        )
        run_dir = settings.run_dir(run.id)
        with run, Journal(run_dir, run.id, lab.name) as journal:
            work = Sampling(session, store, settings, journal, names, circuits, notes)
            begun = time.monotonic()
            try:
                await work.go_on(hz, seconds)
            except asyncio.CancelledError:
                command.progress.note("stopped on request")
            finally:
                await work.end()
            took = time.monotonic() - begun
            run.finish("ok", summary={"samples": work.counters.rows, "seconds": took})
            return SampleReport(
                run=run.id,
                lab=lab.name,
                hosts=len(names),
                ports=len(work.counters.latest),
                hz=hz,
                seconds=round(took, 3),
                samples=work.counters.rows,
                missed=work.counters.missed,
                light=work.light,
                gpus=work.gpus,
                journal=str(journal.directory),
                notes=tuple(notes),
            )


async def _answering(hosts: Hosts, lab: Lab, timeout_s: float) -> tuple[list[HostName], list[str]]:
    """Hosts that can be sampled, and why others cannot. Raises: Unreachable - none can."""
    answers = await hosts.channels.connect(timeout_s=min(timeout_s, 10.0))
    old = set(hosts.channels.unprovisioned())
    names = [
        name
        for name, answer in answers.items()
        if isinstance(answer, Hello) and answer.installed and name not in old
    ]
    notes = [answer.line for answer in answers.values() if isinstance(answer, TestbedError)]
    if behind := [name for name in lab.hosts if name in old]:
        notes.append(
            f"{counted(len(behind), 'host')} not provisioned by this release ({', '.join(behind[:3])}): not sampled"
        )
    if not names:
        raise Unreachable(
            "\n".join([f"no host of {lab.name} can be sampled", *notes[:5]]), hint="testbed doctor"
        )
    return names, notes


class Sampling:
    """Everything that is sampled, until `end`."""

    def __init__(
        self,
        session: Session,
        store: Store,
        settings: Settings,
        journal: Journal,
        names: list[HostName],
        circuits: tuple[Circuit, ...],
        notes: list[str],
    ) -> None:
        self._session, self._store, self._settings = session, store, settings
        self._journal, self._names, self._circuits, self._notes = journal, names, circuits, notes
        self.counters = Counters(journal, circuits)
        self.light = self.gpus = 0
        self._queue = session.hosts.channels.subscribe()
        self._meters = bool(circuits)

    async def go_on(self, hz: float, seconds: float | None) -> None:
        """Sample until `seconds` have passed. Raises: TestbedError - a host is lost."""
        hosts = self._session.hosts
        listening = asyncio.create_task(self._listen())
        try:
            async with asyncio.timeout(seconds) as limit:
                await hosts.measure.stream_counters(1 / hz, self._names)
                await hosts.measure.stream_gpus(SLOW_S, self._names)
                while True:
                    due = time.monotonic() + SLOW_S
                    record_clocks(self._journal, await hosts.measure.clocks(self._names))
                    await self._look_at_light()
                    await asyncio.sleep(max(0.0, due - time.monotonic()))
        except TimeoutError:
            if not limit.expired():
                raise
        finally:
            listening.cancel()
            await asyncio.gather(listening, return_exceptions=True)

    async def _look_at_light(self) -> None:
        devices = self._session.devices
        if not self._meters:
            return
        held = locks_of(self._session.lab, self._settings, self._store).listed()
        if any(lock.state == "active" for lock in held):
            await asyncio.gather(
                *(device.close() for device in devices.values()), return_exceptions=True
            )
            return
        try:
            self.light += record_light(
                await measure(devices, self._session.lab, self._circuits), self._journal
            )
        except TestbedError as error:
            self._meters = False
            self._notes.append(f"light is not measured any more: {error.line}")

    async def _listen(self) -> None:
        while True:
            self._heard(await self._queue.get())

    def _heard(self, event: HostEvent) -> None:
        if event.kind == "counters":
            with suppress(TestbedError):  # an unreadable batch leaves a gap in the curve
                self.counters.add(event)
        elif event.kind == "gpus":
            self.gpus += record_gpus(self._journal, event)
        elif event.kind == "lost":
            self._notes.append(f"{event.host}: {event.values['error']}")

    async def end(self) -> None:
        """Ask the hosts to stop and take their last samples."""
        hosts = self._session.hosts
        names = [name for name in self._names if name in hosts.channels.attached()]
        with suppress(TestbedError):
            await hosts.measure.stream_counters(None, names)
            await hosts.measure.stream_gpus(None, names)
        hosts.channels.unsubscribe(self._queue)
        while not self._queue.empty():
            self._heard(self._queue.get_nowait())
        self.counters.rates()
