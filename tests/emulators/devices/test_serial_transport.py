"""Serial lines: a real terminal behind a link. Referees: pyserial, and termios by hand."""

from __future__ import annotations

import asyncio
import contextlib
import os
import termios
import tty
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import serial

from emulators.devices.families import device_from_config
from emulators.devices.server import DeviceServer, Line
from tests.emulators.emulated import until

IDENTITY = b"Polatis,N-VST-16x16-LA1-DMHNV-801,002414,6.5.2.18\r\n"


@asynccontextmanager
async def device(
    path: Path, driver: str = "polatis-scpi", baud: int = 38400, **keys: Any
) -> AsyncIterator[DeviceServer]:
    plant, dialect = device_from_config("ocs1", driver, {"settle_s": 0.01, **keys})
    server = DeviceServer("ocs1", dialect, plant, scheme="serial", sock=Line(str(path), baud))
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


def ask(path: Path, *questions: bytes, baud: int = 38400) -> list[bytes]:
    with serial.Serial(str(path), baud, timeout=1.0, exclusive=True) as line:
        answers = []
        for question in questions:
            line.write(question)
            answers.append(line.readline())
        return answers


async def test_pyserial_talks_to_it_closes_and_opens_again(tmp_path: Path) -> None:
    path = tmp_path / "ocs1"
    async with device(path) as server:
        assert server.address == f"serial://{path}?baud=38400"
        for _ in range(3):
            assert await asyncio.to_thread(ask, path, b"*IDN?\n", b":oxc:swit:size?\r\n") == [
                IDENTITY,
                b"16,16\r\n",
            ]
        await asyncio.to_thread(ask, path, b":oxc:swit:conn:add (@1),(@17);*idn?\n")
        await until(lambda: server.plant.lit(server.loop.time()) == {("1", "17")})
    assert not path.is_symlink()


async def test_all_bytes_pass_and_nothing_is_echoed(tmp_path: Path) -> None:
    """The line is raw from the start, whatever settings the client finds or makes."""
    async with device(tmp_path / "ocs1") as server:
        heard = bytearray()
        server.dialect.receive = lambda session, data, now: heard.extend(data)  # type: ignore[method-assign]
        end = os.open(tmp_path / "ocs1", os.O_RDWR | os.O_NOCTTY)
        try:
            os.write(end, bytes(range(256)) * 8)
            await until(lambda: len(heard) >= 2048)
            assert heard == bytes(range(256)) * 8
            os.set_blocking(end, False)
            with pytest.raises(BlockingIOError):
                os.read(end, 1)
        finally:
            os.close(end)


async def test_a_long_answer_waits_for_a_slow_reader(tmp_path: Path) -> None:
    async with device(tmp_path / "ocs1", size="320x320") as server:
        pairs = ",".join(map(str, range(1, 301))), ",".join(map(str, range(321, 621)))
        server.plant.preset([(str(k), str(320 + k)) for k in range(1, 301)])

        def slowly() -> bytes:
            with serial.Serial(str(tmp_path / "ocs1"), 38400, timeout=1.0) as line:
                line.write(b":oxc:swit:conn:stat?\n" * 20)
                data = b""
                while data.count(b"\n") < 20:
                    data += line.read(97) or pytest.fail("no more")
                return data

        assert (await asyncio.to_thread(slowly)).decode() == f"(@{pairs[0]}),(@{pairs[1]})\r\n" * 20


async def test_with_another_speed_neither_side_receives_anything(tmp_path: Path) -> None:
    path = tmp_path / "wss1"
    async with device(path, baud=115200) as server:
        with serial.Serial(str(path), 9600, timeout=0.05) as line:
            line.write(b"*IDN?\n")
            assert await asyncio.to_thread(line.readline) == b""
        assert await asyncio.to_thread(lambda: ask(path, b"*IDN?\n", baud=115200)) == [IDENTITY]
        assert len(server.dialect.sessions) == 1


async def test_the_speed_may_be_set_by_hand(tmp_path: Path) -> None:
    async with device(tmp_path / "wss1", baud=115200):
        end = os.open(tmp_path / "wss1", os.O_RDWR | os.O_NOCTTY)
        try:
            tty.setraw(end)
            settings = termios.tcgetattr(end)
            settings[4] = settings[5] = termios.B115200
            termios.tcsetattr(end, termios.TCSANOW, settings)
            os.write(end, b"*IDN?\n")
            assert await asyncio.to_thread(os.read, end, 100) == IDENTITY
        finally:
            os.close(end)


async def test_a_hang_up_is_the_adapter_unplugged_and_the_path_works_again(tmp_path: Path) -> None:
    path = tmp_path / "ocs1"
    async with device(path) as server:
        server.add_fault("drop-after", match="size")
        with serial.Serial(str(path), 38400, timeout=1.0) as line:
            line.write(b":oxc:swit:size?\n")
            with pytest.raises((OSError, serial.SerialException)):
                while True:
                    if not await asyncio.to_thread(line.read, 1):
                        raise serial.SerialException("end of file")
        assert await asyncio.to_thread(ask, path, b"*IDN?\n") == [IDENTITY]


async def test_a_device_that_reboots_falls_silent_and_the_line_stays(tmp_path: Path) -> None:
    async with device(tmp_path / "ocs1", boot_s=0.15) as server:
        with serial.Serial(str(tmp_path / "ocs1"), 38400, timeout=0.05) as line:
            line.write(b"*IDN?\n")
            assert await asyncio.to_thread(line.readline) == IDENTITY
            server.add_fault("reboot-keep")
            line.write(b"*IDN?\n")
            assert await asyncio.to_thread(line.readline) == b""
            await asyncio.sleep(0.12)
            line.write(b"*IDN?\n")
            assert await asyncio.to_thread(line.readline) == IDENTITY


async def test_a_silent_session_ends_by_itself(tmp_path: Path) -> None:
    async with device(tmp_path / "ocs1", idle_s=0.05) as server:
        assert await asyncio.to_thread(ask, tmp_path / "ocs1", b"*IDN?\n") == [IDENTITY]
        await until(lambda: not server.dialect.sessions)
        assert await asyncio.to_thread(ask, tmp_path / "ocs1", b"*IDN?\n") == [IDENTITY]


def test_a_link_left_behind_is_replaced_and_anything_else_is_not(tmp_path: Path) -> None:
    (tmp_path / "old").symlink_to("/dev/pts/nowhere")
    line = Line(str(tmp_path / "old"))
    assert (tmp_path / "old").readlink().name.isdecimal()
    other = Line(str(tmp_path / "old"))
    line.remove()  # the link is another's by now
    assert (tmp_path / "old").is_symlink()
    other.remove()
    for each in (line, other):
        each.close()
    assert not list(tmp_path.iterdir())
    (tmp_path / "file").write_text("mine")
    with pytest.raises(FileExistsError, match="no link of a lab"):
        Line(str(tmp_path / "file"))
    with pytest.raises(OSError, match="no such speed"):
        Line(str(tmp_path / "x"), 12345)
    assert (tmp_path / "file").read_text() == "mine"


async def test_nothing_is_kept_for_a_client_that_never_reads(tmp_path: Path) -> None:
    async with device(tmp_path / "ocs1", size="320x320") as server:
        server.plant.preset([(str(k), str(320 + k)) for k in range(1, 301)])
        end = os.open(tmp_path / "ocs1", os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK)
        try:
            for _ in range(60):
                with contextlib.suppress(BlockingIOError):
                    os.write(end, b":oxc:swit:conn:stat?\n" * 20)
                await asyncio.sleep(0)
            assert len(server.listener._unsent) <= 262_144  # type: ignore[attr-defined]
        finally:
            os.close(end)
