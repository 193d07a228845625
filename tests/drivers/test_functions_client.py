"""The client of the functions of packet switches: with the emulated switch, and with one that
answers as it must not.
"""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, TypeVar

import pytest

from drivers.functions import FunctionSwitch
from optics import Garbled, Missing, Refused, TimedOut, Unreachable
from tests.workloads.packetswitch import switch

T = TypeVar("T")


def asked(
    address: str, work: Callable[[FunctionSwitch], Awaitable[T]], timeout_s: float = 5.0
) -> T:
    async def run() -> T:
        client = FunctionSwitch("ideal", address, timeout_s)
        try:
            return await work(client)
        finally:
            await client.close()

    return asyncio.run(run())


def test_a_lease_is_had_renewed_counted_and_given_back_twice() -> None:
    async def work(client: FunctionSwitch) -> None:
        about = await client.capabilities()
        assert about.segment == "ideal" and about.functions["aggregate"]["free_slots"] == 16
        made = await client.allocate("aggregate", "train-a", ["10.0.0.1", "10.0.0.2"], 10, 5)
        assert (made.size, made.each_bytes, made.address) == (
            10,
            1024,
            about.address,
        ) and made.token not in repr(made)
        with pytest.raises(Refused, match=r'refused "allocate" \(full\): '):
            await client.allocate("aggregate", "train-b", ["10.0.0.3"], 10, 5)
        kept = await client.allocate("cache", "train-a", ["10.0.0.1"], 64, 5)
        assert (kept.size, kept.each_bytes) == (64, 1024) and kept.number != made.number
        await client.renew(made.number, made.token, 60)
        assert [each["lease_left_s"] > 30 for each in await client.counters()] == [True, False]
        for _ in range(2):
            await client.release(made.number, made.token)
        with pytest.raises(Missing, match="unknown"):
            await client.renew(made.number, made.token, 60)

    with switch() as at:
        asked(at.address, work)


GOOD = {
    "allocation": 1,
    "token": "00" * 8,
    "address": "10.0.0.9",
    "port": 7,
    "mac": "",
    "slots": 1,
    "slot_bytes": 64,
    "lease_s": 5,
}


@pytest.mark.parametrize(
    ("answer", "raised", "message"),
    [
        (lambda n: {"id": n, "ok": True, **GOOD, "token": "x"}, Garbled, "a token that is none"),
        (lambda n: {"id": n, "ok": True, **GOOD, "allocation": True}, Garbled, '"allocation" is'),
        (
            lambda n: {"id": n, "ok": True, **GOOD, "address": "10.0.0.999"},
            Garbled,
            "an address that is none",
        ),
        (lambda n: {"id": n, "ok": True, **GOOD, "port": 70_000}, Garbled, '"port" is'),
        (
            lambda n: {"id": n, "ok": False, "code": "full", "error": "\x1b[2J" + "x" * 999},
            Refused,
            r"\(full\): [^\x1b]{1,260}$",
        ),
        (lambda n: {"id": n, "ok": False, "code": "busy", "error": ""}, Refused, "busy"),
        (lambda n: {"id": n + 1, "ok": True, **GOOD}, TimedOut, "no answer"),
        (lambda n: [1], Garbled, "no JSON object"),
        (None, TimedOut, "ended before the answer"),
    ],
)
def test_answers_that_must_not_be_are_no_allocation(
    answer: Callable[[int], Any] | None,
    raised: type[Exception],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("drivers.functions.BUSY_S", 0.0)
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        talk, _ = listener.accept()
        # the client gives up what is not answered
        with suppress(ConnectionResetError), talk, talk.makefile("rwb") as file:
            for line in file:
                if answer is None:
                    return
                file.write(json.dumps(answer(json.loads(line)["id"])).encode() + b"\n")
                file.flush()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    with listener, pytest.raises(raised, match=message):
        asked(
            f"127.0.0.1:{listener.getsockname()[1]}",
            lambda c: c.allocate("aggregate", "a", ["10.0.0.1"], 1, 5),
            0.3,
        )
    thread.join(10)


def test_a_switch_that_is_not_there_is_unreachable() -> None:
    with socket.create_server(("127.0.0.1", 0)) as removed:
        port = removed.getsockname()[1]
    with pytest.raises(Unreachable, match="functions of ideal: cannot connect"):
        asked(f"127.0.0.1:{port}", lambda client: client.capabilities())
