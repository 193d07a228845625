"""Who talks to a process beside a job, and how long it waits for an answer."""

from __future__ import annotations

from typing import Any

import pytest

from workloads.transport.peers import GREETING_S, Meeting, connect


@pytest.mark.parametrize(("within_s", "waits_s"), [(0.0, 1.0), (5.0, 5.0), (90.0, GREETING_S)])
def test_a_listener_that_says_nothing_is_waited_for_as_long_as_one_that_is_not_there(
    monkeypatch: pytest.MonkeyPatch, within_s: float, waits_s: float
) -> None:
    class Silent:
        def __init__(self) -> None:
            self.waits, self.closed = list[float](), False

        def setsockopt(self, *_: int) -> None: ...

        def settimeout(self, seconds: float) -> None:
            self.waits.append(seconds)

        def recv(self, _: int) -> bytes:
            raise TimeoutError("timed out")

        def close(self) -> None:
            self.closed = True

    link = Silent()

    def connected(*_: Any, **__: Any) -> Any:
        return link

    monkeypatch.setattr("socket.create_connection", connected)
    with pytest.raises(TimeoutError):
        connect(Meeting("127.0.0.1", 1, bytes(32)), "keep", within_s)
    assert link.waits == [waits_s] and link.closed
