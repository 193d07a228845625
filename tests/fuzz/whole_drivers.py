"""Targets: whole drivers whose device says whatever the input holds: sessions, readers and
decisions together.

An input is what the device says, part by part, one part at each read of the link. `$T` in it
becomes the last tag asked with (TL1), `$Q` the last line asked, so that the fuzzer need not guess
them. An empty part, and the end of the input, ends the connection. Time is virtual: a loop that
never waits.
"""

from __future__ import annotations

import asyncio
import re
import selectors
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from importlib import import_module
from typing import Any

from drivers.link import Dropped, Link
from drivers.link.http import Answer
from drivers.registry import built_in_drivers, driver_class, open_device
from drivers.session import tl1
from optics import (
    Change,
    CrossConnect,
    DeviceConfig,
    FrequencySlot,
    Port,
    Setting,
    SpectralRoute,
    TestbedError,
    Unreachable,
)
from tests.fuzz.targets import pieces, target

MOST_VIRTUAL_S = 7200.0
"""The longest that a device may keep a driver busy with what fits into one input; a robot's move
takes minutes.
"""
_TAG = re.compile(rb":(\d+)[:;]")


class _NoWaiting(selectors.SelectSelector):
    """Time passes as soon as everybody waits for it."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> Any:
        if timeout is None:
            raise AssertionError("everybody waits and nothing will come")
        self.now += max(0.0, timeout)
        assert self.now < MOST_VIRTUAL_S, "the driver goes on for ever"
        return ()


class _Loop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self.clock = _NoWaiting()
        super().__init__(self.clock)

    def time(self) -> float:
        return self.clock.now


class _Talk:
    """What the device says, in turn."""

    def __init__(self, data: bytes) -> None:
        self._parts = pieces(data)
        self._asked = b""

    def asked(self, data: bytes) -> None:
        self._asked = data

    def send(self) -> bytes:
        part = next(self._parts, b"")
        if b"$" in part:
            tags = _TAG.findall(self._asked)
            line = self._asked.rstrip(b"\r\n").rpartition(b"\n")[2]
            part = part.replace(b"$T", tags[-1] if tags else b"1").replace(b"$Q", line)
        return part


class _Stream(Link):
    def __init__(self, talk: _Talk) -> None:
        super().__init__("ocs1", "tcp://x:1", 1.0)
        self._talk, self._alive, self._opened = talk, False, 0

    @property
    def alive(self) -> bool:
        return self._alive

    async def open(self) -> None:
        self._opened += 1
        if self._opened > 3:
            raise Unreachable("ocs1: no connection")
        self._alive = True

    async def close(self) -> None:
        self._alive = False

    async def _write(self, data: bytes) -> None:
        self._talk.asked(data)

    async def _read(self, silence_s: float) -> bytes:
        return self._talk.send()

    async def _discard(self) -> None:
        return None


class _Http:
    who, address, prefix, username, timeout_s, remembered = (
        "ocs1",
        "http://x:1",
        "",
        "admin",
        1.0,
        False,
    )

    def __init__(self, talk: _Talk) -> None:
        self._talk = talk

    async def exchange(self, method: str, path: str, *, question: str, **more: object) -> Answer:
        output = self._talk.send()
        if not output:
            raise Dropped(f'ocs1: connection ended before the answer to "{question}"')
        head, _, body = output.partition(b"\n\n")
        status, *lines = head.decode("latin-1").split("\n")
        pairs = (line.partition(": ") for line in lines)
        number = int(status) if re.fullmatch("[0-9]{3}", status, re.ASCII) else 200
        return Answer(number, body, {key.lower(): value for key, _, value in pairs})

    def forget(self) -> None:
        return None

    async def close(self) -> None:
        return None


class _Netconf:
    who, address, timeout_s = "ocs1", "netconf://x:1", 1.0
    capabilities: tuple[str, ...] = ()

    def __init__(self, talk: _Talk) -> None:
        self._talk, self.alive, self._opened = talk, False, 0

    async def open(self) -> None:
        self._opened += 1
        if self._opened > 3:
            raise Unreachable("ocs1: no connection")
        self.alive = True
        self.capabilities = tuple(self._talk.send().decode("utf-8", "replace").split())

    async def ask(self, operation: str, *, question: str, timeout_s: float | None = None) -> str:
        output = self._talk.send()
        if not output:
            self.alive = False
            raise Dropped(f'ocs1: session ended before the answer to "{question}"')
        return output.decode("utf-8", "replace")

    async def close(self) -> None:
        self.alive = False


class _Commands:
    """One command, one answer: what it printed, after a line with its exit status if that is not
    0.
    """

    def __init__(self, talk: _Talk) -> None:
        self.who, self._talk = "ocs1", talk

    async def run(self, command: str, timeout_s: float | None = None) -> tuple[str, int]:
        self._talk.asked(command.encode())
        output = self._talk.send()
        if not output:
            raise Dropped(f'ocs1: connection ended before the answer to "{command}"')
        text = output.decode("utf-8", "replace")
        status, _, printed = text.partition("\n")
        return (printed, int(status)) if re.fullmatch("[0-9]{1,3}", status, re.ASCII) else (text, 0)

    async def close(self) -> None:
        return None


_OPENERS = {
    "open_link": _Stream,
    "open_http": _Http,
    "open_netconf": _Netconf,
    "open_commands": _Commands,
}
_ADDRESSES = {
    "_Stream": "tcp://127.0.0.1:1",
    "_Http": "http://127.0.0.1:1",
    "_Netconf": "netconf://127.0.0.1:1",
    "_Commands": "ssh://x",
}
_CIRCUITS = {
    "calient-rest": ("1.1.1", "1.1.2"),
    "calient-tl1": ("1.1.1", "1.1.2"),
    "dicon-mxs": ("1", "2"),
    "dicon-scpi": ("1", "2"),
    "exfo-scpi": ("1.in", "1.2"),
    "finisar-serial": ("in", "2"),
    "glimmerglass-tl1": ("10001", "20002"),
    "lumentum-netconf": ("4101", "4201"),
    "openroadm-netconf": ("SRG1/3/0/C1", "DEG1"),
    "rome-cli": ("E1", "W2"),
    "santec-scpi": ("0.in", "0.2"),
    "sonic-ocs": ("1A", "2B"),
    "telescent-cli": ("1", "2"),
    "thorlabs-osw": ("1", "2"),
    "waveshaper-http": ("in", "2"),
}


@contextmanager
def _played(driver: str, talk: _Talk) -> Iterator[DeviceConfig]:
    """Put the talk in place of the driver's link while the body runs."""
    module: Any = import_module(driver_class(driver).__module__)
    if hasattr(module, "open_tl1"):
        module = tl1
    name, kind = next((name, kind) for name, kind in _OPENERS.items() if hasattr(module, name))
    was = getattr(module, name)
    setattr(module, name, lambda *_, **__: kind(talk))
    try:
        yield DeviceConfig(
            "ocs1", driver, _ADDRESSES[kind.__name__], "admin", "secret", timeout_s=1.0
        )
    finally:
        setattr(module, name, was)


def _circuit(driver: str) -> Setting:
    enters, leaves = (Port("ocs1", label) for label in _CIRCUITS.get(driver, ("1", "17")))
    if driver_class(driver).TRAITS.spectral:
        return SpectralRoute(enters, leaves, FrequencySlot(193_075_000, 193_125_000))
    return CrossConnect(enters, leaves)


@cache
def _loop() -> _Loop:
    return _Loop()


async def _use(driver: str, config: DeviceConfig) -> None:
    device: Any = open_device(config)
    wanted = _circuit(driver)
    try:
        with suppress(TestbedError):
            await device.identify()
        with suppress(TestbedError):
            assert isinstance(await device.read(), frozenset)
        if hasattr(device, "power"):
            with suppress(TestbedError):
                await device.power([wanted.ingress, wanted.egress])
        with suppress(TestbedError):
            outcome = await device.apply(Change("ocs1", frozenset(), frozenset({wanted})))
            assert set(outcome.failed) <= {wanted}
    finally:
        await device.close()


def _fuzz(driver: str, data: bytes) -> None:
    loop = _loop()
    loop.clock.now = 0.0
    with _played(driver, _Talk(data)) as config:
        loop.run_until_complete(_use(driver, config))


def _enter(driver: str) -> None:
    @target(f"driver-{driver}")
    def fuzz(data: bytes) -> None:
        _fuzz(driver, data)


for _driver in built_in_drivers():
    _enter(_driver)
