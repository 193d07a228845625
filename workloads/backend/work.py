"""What a collective returns: something to wait for."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist


class Work(dist.Work):  # type: ignore[misc]
    """A collective under way. It ends with its tensors or with the error that stopped it."""

    def __init__(self, tensors: Any) -> None:
        """`tensors`: what the program's future is to give, as with torch's own back-ends."""
        super().__init__()
        self._tensors = tensors
        self._ended: Any = torch.futures.Future()
        self._error: Exception | None = None

    def succeed(self) -> None:
        self._ended.set_result(self._tensors)

    def fail(self, error: Exception) -> None:
        self._error = error
        self._ended.set_exception(error)

    @classmethod
    def of(cls, works: Sequence[Work]) -> Work:
        """One that ends when all of these have ended, with the error of the first that has one."""
        whole = cls([tensor for work in works for tensor in work._tensors])

        def ended(_: Any) -> None:
            error = next((work._error for work in works if work._error is not None), None)
            if error is None:
                whole.succeed()
            else:
                whole.fail(error)

        torch.futures.collect_all([work._ended for work in works]).add_done_callback(ended)
        return whole

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Raises: RuntimeError - a peer is gone or silent (it names the rank), or this took longer
        than `timeout`.
        """
        if timeout > timedelta(0) and not self._ended.done():
            ended = threading.Event()
            self._ended.add_done_callback(lambda _: ended.set())
            if not ended.wait(timeout.total_seconds()):
                raise RuntimeError(
                    f"timed out: the collective is not done after {timeout.total_seconds():g} s"
                )
        self._ended.wait()
        return True

    def get_future(self) -> Any:
        # whose error torch's own code sees too, as it does not see one that was set from here
        return self._ended.then(_value)

    def is_completed(self) -> bool:
        return bool(self._ended.done())

    def is_success(self) -> bool:
        return self.is_completed() and self._error is None

    def exception(self) -> Exception | None:
        return self._error

    def result(self) -> Any:
        return self._tensors

    def synchronize(self) -> None:
        self.wait()


def _value(ended: Any) -> Any:
    return ended.value()
