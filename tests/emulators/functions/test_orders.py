"""The lab's side of a packet switch's functions: a process that is stopped, slow or gone holds up
nothing.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator

import pytest

from emulators.fabric import functions
from emulators.fabric.functions import Functions
from emulators.inventory.config import Segment


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Functions, socket.socket]]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    monkeypatch.setattr(functions, "ANSWER_S", 0.0)
    with ours, theirs:
        yield Functions(Segment("ideal", {}, 1), 4711, ours), theirs


def test_an_answer_that_comes_too_late_is_nobodys(ends: tuple[Functions, socket.socket]) -> None:
    seen, process = ends
    with pytest.raises(OSError, match="segment ideal: no answer"):
        seen.order(do="state")
    process.send(json.dumps({"late": 1}).encode())
    assert not seen.ended()
    with pytest.raises(OSError, match="no answer"):
        seen.order(do="state")


def test_a_stopped_process_never_makes_the_lab_wait_for_room(
    ends: tuple[Functions, socket.socket],
) -> None:
    seen, _ = ends
    for _ in range(2000):  # far more than fit
        with pytest.raises(OSError) as problem:
            seen.order(do="state")
        if isinstance(problem.value, BlockingIOError):
            return
    raise AssertionError("the orders should fill the socket")


def test_what_the_process_cannot_is_an_error_in_its_words(
    ends: tuple[Functions, socket.socket],
) -> None:
    seen, process = ends
    process.send(json.dumps({"error": "No module named 'numpy'"}).encode())
    with pytest.raises(OSError, match="segment ideal: functions: No module named 'numpy'"):
        seen.ready()
    process.close()
    assert seen.ended()
