"""A driver opened for synchronous tests: its event loop runs only while a request is pending."""

from __future__ import annotations

import asyncio
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Coroutine, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from conformance.lab import Lab, end, free_ports, name_of
from conformance.run import Report, chosen, report, run_check
from conformance.subject import Subject
from conformance.truth import Truth
from optics import DeviceConfig, Identity, Missing, Outcome, Setting

T = TypeVar("T")
OPEN_S = 20.0


class Opened:
    """A device and, if it is one of this project's emulators, its true state."""

    def __init__(self, subject: Subject, runner: asyncio.Runner) -> None:
        self.subject, self._runner = subject, runner

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Await `work`, for example a request to `self.subject.device`."""
        return self._runner.run(work)

    @property
    def truth(self) -> Truth:
        """The emulator's true state. Raises: NotTried - this device does not disclose it."""
        return self.subject.known

    @property
    def config(self) -> DeviceConfig:
        return self.subject.config

    @property
    def identity(self) -> Identity:
        return self.subject.identity

    def identify(self) -> Identity:
        return self.run(self.subject.device.identify())

    def read(self) -> frozenset[Setting]:
        return self.run(self.subject.device.read())

    def apply(self, remove: Iterable[Setting] = (), add: Iterable[Setting] = ()) -> Outcome:
        return self.run(self.subject.apply(remove, add))

    def light(self, *pairs: tuple[int, int]) -> frozenset[Setting]:
        """The settings that connect the a-th input to the b-th output, for each (a, b)."""
        return self.subject.light(*pairs)

    def conform(self, *only: str) -> Report:
        """Run the checks of everything the driver declares, or those named."""

        async def every() -> Report:
            results = [await run_check(self.subject, check) for check in chosen(self.subject, only)]
            return report(self.subject, results)

        return self.run(every())


@contextmanager
def opened(config: DeviceConfig, truth: Truth | None) -> Iterator[Opened]:
    """Open a device, read its state, and restore and close it when the block ends."""
    with asyncio.Runner() as runner:

        async def begin() -> Subject:
            subject = Subject(config, truth)
            try:
                await subject.inspect()
            except BaseException:
                await subject.device.close()
                raise
            return subject

        async def finish(subject: Subject) -> None:
            try:
                if subject.truth:
                    subject.truth.mend()
                await subject.clear()
            finally:
                await subject.device.close()

        subject = runner.run(begin())
        try:
            yield Opened(subject, runner)
        finally:
            runner.run(finish(subject))


@contextmanager
def private(lab: Lab, driver: str) -> Iterator[Opened]:
    """The device of `driver` in a private lab."""
    name = name_of(driver)
    with opened(lab.devices[name], lab.truth(name)) as device:
        yield device


@contextmanager
def own_emulator(driver: str, command: str, address: str) -> Iterator[Opened]:
    """A device served by your own emulator, which `command` starts; `{port}` and `{python}` are
    filled in.

    Raises: Missing - it does not answer in time.
    """
    (port,) = free_ports(1)
    argv = [word.format(port=port, python=sys.executable) for word in shlex.split(command)]
    process = subprocess.Popen(argv, stdin=subprocess.DEVNULL)
    try:
        _wait(process, port, command)
        config = DeviceConfig(name_of(driver), driver, address.format(port=port), timeout_s=2.0)
        with opened(config, None) as device:
            yield device
    finally:
        end(process)


def _wait(process: subprocess.Popen[bytes], port: int, command: str) -> None:
    deadline = time.monotonic() + OPEN_S
    while process.poll() is None and time.monotonic() < deadline:
        try:
            socket.create_connection(("127.0.0.1", port), 1.0).close()
        except OSError:
            time.sleep(0.02)
        else:
            return
    raise Missing(
        f"{command!r} does not answer on port {port}",
        hint="the emulator listens on the port it is given",
    )
