"""RS-232 and USB serial lines: `serial:///dev/ttyUSB0?baud=38400` (8N1, the Polatis default)."""

from __future__ import annotations

import errno
import termios
import time
from contextlib import suppress
from typing import Any

from drivers.link.blocking import BlockingLink
from optics import Unreachable

BACK_S = 1.0
"""A line that was there before may be missing for so long (s): a USB converter comes back under its
name when it resets.
"""


class SerialLink(BlockingLink):
    """A serial line through pyserial."""

    def __init__(self, who: str, address: str, timeout_s: float, *, path: str, baud: int) -> None:
        super().__init__(who, address, timeout_s)
        self._path = path
        self._baud = baud
        self._line: Any = None
        self._known = False
        self._answer_owed = False

    def _open(self) -> None:
        # heavy and only here: an operator without serial devices never pays for it
        import serial

        ends = time.monotonic() + (min(self.timeout_s, BACK_S) if self._known else 0.0)
        while True:
            try:
                self._line = serial.Serial(
                    self._path, self._baud, timeout=0, write_timeout=self.timeout_s, exclusive=True
                )
            # SerialException is an OSError; ValueError is a baud rate the line cannot do
            except (OSError, ValueError) as error:
                if getattr(error, "errno", 0) != errno.ENOENT or time.monotonic() > ends:
                    raise Unreachable(f"{self.who}: cannot open {self.address}: {error}") from error
                time.sleep(0.01)  # in the line's own thread, and bounded
            else:
                self._known, self._answer_owed = True, False
                return

    def _close(self) -> None:
        line, self._line = self._line, None
        if line is not None:
            # what has not left this machine would leave it after the close, as soon as the device
            # is ready
            if self._answer_owed:
                with suppress(OSError, termios.error):
                    line.reset_output_buffer()
            line.close()

    def _owed(self, answer: bool) -> None:
        self._answer_owed = answer

    def _send(self, data: bytes) -> None:
        self._line.write(data)

    def _receive(self, silence_s: float) -> bytes | None:
        self._line.timeout = silence_s
        first: bytes = self._line.read(1)
        if not first:
            return None
        return first + bytes(self._line.read(self._line.in_waiting))

    def _forget(self) -> None:
        try:
            self._line.reset_input_buffer()
        except termios.error as error:  # no OSError, though it has an errno: the other end is gone
            raise OSError(*error.args) from error

    def _ended(self) -> bool:
        return self._line is None
