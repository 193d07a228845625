"""A serial line: a pseudo-terminal whose name is a symbolic link at the path of the inventory."""

from __future__ import annotations

import contextlib
import os
import stat
import termios
import tty
from pathlib import Path

from emulators.devices.dialects.base import Session
from emulators.devices.transports.base import Conversation, Device

DEFAULT_BAUD = 38_400  # Polatis RS-232 (devices.md 3.1)
# bytes for a client that does not read; the rest is lost: a serial line has no memory
MAX_UNSENT = 262_144
PIECE = 4096


class Line:
    """The two ends of a pseudo-terminal, raw, 8 data bits. The lab holds the client's end too: its
    closing changes nothing.

    baud 0: any speed. Raises: OSError - no terminal, no such speed, or the path is taken by
    something other than a link.
    """

    def __init__(self, path: str, baud: int = DEFAULT_BAUD) -> None:
        self.path, self.baud = path, baud
        self.master = self._client_end = self._folder = -1
        speed = getattr(termios, f"B{baud or DEFAULT_BAUD}", None)
        if speed is None:
            raise OSError(f"{path}: {baud} baud: there is no such speed")
        self._speed: int = speed
        where = Path(path)
        where.parent.mkdir(parents=True, exist_ok=True)
        self._folder, self._name = (
            os.open(where.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC),
            where.name,
        )
        try:
            self.renew()
        except OSError:
            self.close()
            raise

    def renew(self) -> None:
        """Hang up on the client that has the line open, and offer a new one at the same path."""
        self._end()
        with contextlib.suppress(FileNotFoundError):
            if not stat.S_ISLNK(
                os.stat(self._name, dir_fd=self._folder, follow_symlinks=False).st_mode
            ):
                raise FileExistsError(
                    f"{self.path}: there is something else, which is no link of a lab"
                )
        self.master, self._client_end = os.openpty()
        os.set_blocking(self.master, False)
        tty.setraw(self._client_end)
        settings = termios.tcgetattr(self._client_end)
        settings[4] = settings[5] = self._speed
        termios.tcsetattr(self._client_end, termios.TCSANOW, settings)
        self._terminal = os.ttyname(self._client_end)
        draft = f".{self._name}.{os.getpid()}"
        with contextlib.suppress(FileNotFoundError):
            os.unlink(draft, dir_fd=self._folder)
        os.symlink(self._terminal, draft, dir_fd=self._folder)
        os.replace(draft, self._name, src_dir_fd=self._folder, dst_dir_fd=self._folder)

    @property
    def in_tune(self) -> bool:
        """Whether the client has set the speed of the line; otherwise neither side understands the
        other.
        """
        return not self.baud or bool(termios.tcgetattr(self._client_end)[5] == self._speed)

    def remove(self) -> None:
        """Remove the link if it is still this device's."""
        with contextlib.suppress(OSError):
            if os.readlink(self._name, dir_fd=self._folder) == self._terminal:
                os.unlink(self._name, dir_fd=self._folder)

    def close(self) -> None:
        """Close both ends. The link stays: another process of the lab may hold the line."""
        self._end()
        if self._folder >= 0:
            os.close(self._folder)
            self._folder = -1

    def _end(self) -> None:
        for end in (self.master, self._client_end):
            if end >= 0:
                os.close(end)
        self.master = self._client_end = -1


class SerialListener:
    """One line, one client.

    A conversation begins with the first byte and outlasts a closing of the line, which RS-232 does
    not signal. When the device hangs up, the USB converter is unplugged: the client gets EIO and
    reopens the path; a device that reboots only falls silent. Bytes take no time; with the wrong
    speed neither side receives anything.
    """

    port = 0

    def __init__(self, line: Line) -> None:
        self.line = line
        self._device: Device | None = None
        self._conversation: Conversation | None = None
        self._unsent = bytearray()

    @property
    def address(self) -> str:
        return f"serial://{self.line.path}" + (f"?baud={self.line.baud}" if self.line.baud else "")

    async def open(self, device: Device) -> None:
        self._device = device
        device.loop.add_reader(self.line.master, self._read)

    async def shut(self) -> None:
        if self._device is None:
            return
        self._silence(self._device)
        self._device = None
        self.line.remove()
        self.line.close()

    # ---- Wire

    def encode(self, data: bytes) -> bytes:
        return data

    def write(self, data: bytes) -> None:
        if self._device is None or not self.line.in_tune:
            return
        self._unsent += data[: MAX_UNSENT - len(self._unsent)]
        self._send()

    def close(self, session: Session) -> None:
        if self._device is None:
            return
        if self._device.dialect.down(self._device.loop.time()):
            self.abort()
            return
        self._silence(self._device)
        self.line.renew()
        self._device.loop.add_reader(self.line.master, self._read)

    def abort(self) -> None:
        conversation, self._conversation = self._conversation, None
        if conversation is not None:
            conversation.lost()

    # ---- inside

    def _silence(self, device: Device) -> None:
        device.loop.remove_reader(self.line.master)
        device.loop.remove_writer(self.line.master)
        self._unsent.clear()
        self.abort()

    def _read(self) -> None:
        assert self._device is not None
        with contextlib.suppress(BlockingIOError):
            data = os.read(self.line.master, PIECE)
            if not self.line.in_tune:
                return
            if self._conversation is None:
                self._conversation = self._device.open(self)
            if self._conversation is not None:
                self._conversation.receive(data)

    def _send(self) -> None:
        assert self._device is not None
        with contextlib.suppress(BlockingIOError):
            del self._unsent[: os.write(self.line.master, self._unsent)]
        if self._unsent:
            self._device.loop.add_writer(self.line.master, self._send)
        else:
            self._device.loop.remove_writer(self.line.master)
