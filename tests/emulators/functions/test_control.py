"""Who gets how much of a packet switch's functions, for how long: the control conversation."""

from __future__ import annotations

import json
from typing import Any

import pytest

from emulators.functions.control import Control, Place
from tests.emulators.functions.workers import ADD, GET, HIT, MISS, PUT, STORED, Wire, packet

FUNCTIONS = {
    "aggregate": {"slots": 8, "slot_bytes": 64, "jobs": 2},
    "cache": {"entries": 3, "entry_bytes": 16},
}
ASK = {
    "op": "allocate",
    "function": "aggregate",
    "job": "a",
    "workers": ["10.0.0.1", "10.0.0.2"],
    "slots": 4,
    "lease_s": 10,
}
KEEP = {
    "op": "allocate",
    "function": "cache",
    "job": "a",
    "workers": ["10.0.0.1"],
    "entries": 2,
    "lease_s": 10,
}


class Talk:
    """A wire and the control of its switch."""

    def __init__(self, **functions: dict[str, int]) -> None:
        self.wire = Wire(**(functions or FUNCTIONS))
        self.control = Control(
            self.wire.switch, Place("ideal", "10.253.0.1", 7470, "02:0a:fd:00:00:01", "F0001")
        )

    def send(self, line: bytes) -> dict[str, Any]:
        answer = self.control.answer(line, self.wire.now)
        assert answer.endswith(b"\n") and answer.count(b"\n") == 1
        return dict(json.loads(answer))

    def ask(self, **request: object) -> dict[str, Any]:
        return self.send(json.dumps(request).encode())


def test_what_is_allocated_is_not_free_until_it_is_released() -> None:
    talk = Talk()
    made = talk.ask(**ASK, id=7)
    assert made.pop("token") and made == {
        "id": 7, "ok": True, "allocation": 1, "address": "10.253.0.1", "port": 7470, "mac": "02:0a:fd:00:00:01",
        "slots": 4, "slot_bytes": 64, "lease_s": 10,
    }  # fmt: skip
    token = talk.wire.switch.allocations[1].token.hex()
    assert talk.ask(op="capabilities")["functions"] == {
        "aggregate": {**FUNCTIONS["aggregate"], "free_slots": 4, "free_jobs": 1},
        "cache": {**FUNCTIONS["cache"], "free_entries": 3},
    }
    assert talk.ask(**ASK | {"job": "b", "slots": 5})["error"] == "5 slots wanted, 4 of 8 are free"
    assert talk.ask(**ASK)["code"] == "exists"
    assert talk.ask(**ASK | {"job": "b", "slots": 3})["allocation"] == 2
    assert talk.ask(**ASK | {"job": "c", "slots": 1})["code"] == "full"  # a third job
    assert talk.ask(op="release", allocation=1, token="0" * 16)["code"] == "unknown"
    assert talk.ask(op="release", allocation=2, token=token)["code"] == "unknown"
    assert talk.ask(op="release", allocation=1, token=token) == {"ok": True}
    assert talk.ask(op="release", allocation=1, token=token)["code"] == "unknown"
    assert talk.ask(**ASK)["allocation"] == 3


def test_an_allocation_ends_with_its_lease_and_its_packets_are_nobodys() -> None:
    talk = Talk()
    made = talk.ask(**ASK | {"workers": ["10.0.0.1"]})
    part = packet(made, 0, ADD, 0, bytes(4))
    talk.wire.now += 9
    assert talk.ask(op="renew", allocation=1, token=made["token"], lease_s=1.5) == {
        "ok": True,
        "lease_s": 1.5,
    }
    talk.wire.now += 1.4
    assert talk.ask(op="counters")["allocations"][0]["lease_left_s"] == pytest.approx(0.1)
    assert len(talk.wire.give(part, 0)) == 1
    talk.wire.now += 0.1
    assert talk.ask(op="renew", allocation=1, token=made["token"], lease_s=10)["code"] == "unknown"
    assert talk.wire.give(part, 0) == [] and talk.ask(op="counters")["totals"]["foreign"] == 1
    assert talk.ask(op="capabilities")["functions"]["aggregate"]["free_slots"] == 8


def test_counters_tell_no_token_and_what_the_page_says() -> None:
    talk = Talk()
    made, kept = talk.ask(**ASK), talk.ask(**KEEP)
    talk.wire.give(packet(made, 0, ADD, 0, bytes(8)), 0)
    talk.wire.give(packet(kept, 0, PUT, 1, b"x"), 0)
    reply = talk.ask(op="counters")
    assert made["token"] not in json.dumps(reply) and "token" not in json.dumps(
        talk.control.state(talk.wire.now)
    )
    first, second = reply["allocations"]
    moved = {"packets_in": 1, "bytes_in": 40, "packets_out": 0, "bytes_out": 0}
    none = dict.fromkeys(("sums", "duplicates", "repeated", "stale", "early", "mismatched"), 0)
    who = {
        "allocation": 1,
        "function": "aggregate",
        "job": "a",
        "workers": 2,
        "slots": 4,
        "lease_left_s": 10,
    }
    assert first == who | moved | {"added": 1} | none
    assert (
        second["entries"],
        second["stored"],
        second["puts"],
        second["packets_out"],
        second["bytes_out"],
    ) == (2, 1, 1, 1, 32)
    assert reply["totals"] == {
        "packets_in": 2,
        "malformed": 0,
        "foreign": 0,
        "unsent": 0,
        "lost": 0,
    }


@pytest.mark.parametrize(
    "change",
    [
        {"op": "list"}, {"op": 3}, {"op": None}, {"function": 5}, {"function": ["aggregate"]}, {"job": ""}, {"job": "a b"},
        {"job": "x" * 65}, {"job": "a\n"}, {"workers": []}, {"workers": "10.0.0.1"}, {"workers": ["10.0.0.1"] * 65},
        {"workers": ["::1"]}, {"workers": ["10.0.0.01"]}, {"workers": [167772161]}, {"slots": 0}, {"slots": -1},
        {"slots": 4097}, {"slots": 4.0}, {"slots": True}, {"lease_s": 0.5}, {"lease_s": 3601}, {"lease_s": float("nan")},
        {"lease_s": "10"}, {"lease_s": True}, {"entries": 1}, {"more": 1}, {"id": []}, {"id": "x" * 65}, {"id": 2**70},
    ],
)  # fmt: skip
def test_a_malformed_request_is_refused_and_allocates_nothing(change: dict[str, object]) -> None:
    talk = Talk()
    reply = talk.ask(**ASK | change)
    assert (
        (reply["ok"], reply["code"]) == (False, "malformed")
        and reply["error"]
        and not talk.wire.switch.allocations
    )


@pytest.mark.parametrize(
    "line",
    [b"\n", b"{", b"null\n", b"[]\n", b"\xff\xfe\n", b"[" * 16_000, b'{"op":' * 3_000, b'{"id":' + b"9" * 10_000 + b"}\n",
     b'{"op":"release","allocation":1e400,"token":"x"}\n', b'{"op":"capabilities","id":"\\ud800","x":1}\n'],
)  # fmt: skip
def test_a_line_that_is_no_request_is_answered_as_malformed(line: bytes) -> None:
    assert Talk().send(line)["code"] == "malformed"


@pytest.mark.parametrize("key", [key for key in ASK if key != "op"])
def test_what_a_request_lacks_is_named(key: str) -> None:
    reply = Talk().ask(**{k: v for k, v in ASK.items() if k != key})
    assert reply["code"] == "malformed" and key in reply["error"]


def test_a_function_that_the_switch_does_not_have_is_absent() -> None:
    talk = Talk(cache=FUNCTIONS["cache"])
    assert talk.ask(**ASK)["code"] == "absent" and list(
        talk.ask(op="capabilities")["functions"]
    ) == ["cache"]


def test_there_is_an_end_to_allocations_even_of_one_entry() -> None:
    talk = Talk(cache={"entries": 65_536, "entry_bytes": 1})
    lines = [talk.ask(**KEEP | {"job": f"j{n}", "entries": 1}) for n in range(129)]
    assert [each["ok"] for each in lines] == [True] * 128 + [False] and lines[-1]["code"] == "full"


def test_a_cache_keeps_what_was_used_last_and_each_job_its_own() -> None:
    talk = Talk()
    kept, other = talk.ask(**KEEP), talk.ask(**KEEP | {"job": "b", "entries": 1})
    give = talk.wire.give

    def get(made: dict[str, Any], key: int) -> tuple[int, bytes]:
        kind, _, number, value = give(packet(made, 0, GET, key), 0)[0]
        assert number == key
        return kind, value

    assert get(kept, 1) == (MISS, b"")
    assert give(packet(kept, 0, PUT, 1, b"one"), 0) == [(STORED, 0, 1, b"")]
    give(packet(kept, 0, PUT, 2**64 - 1, b"two"), 0)
    assert get(kept, 1) == (HIT, b"one")
    give(packet(kept, 0, PUT, 3, b"three"), 0)
    assert [get(kept, key) for key in (1, 2**64 - 1, 3)] == [
        (HIT, b"one"),
        (MISS, b""),
        (HIT, b"three"),
    ]
    give(packet(kept, 0, PUT, 3, b"again"), 0)
    assert get(kept, 3) == (HIT, b"again") and get(other, 3) == (MISS, b"")
    assert give(packet(kept, 0, PUT, 1, bytes(17)), 0) == give(packet(kept, 0, PUT, 1), 0) == []
    assert (
        give(packet(kept, 0, GET, 1, b"x"), 0) == give(packet(kept, 0, ADD, 1, bytes(4)), 0) == []
    )
    assert give(packet(kept, 0, GET, 1, epoch=1), 0) == []
    assert talk.wire.switch.total()["malformed"] == 5
    counted = talk.wire.counted()
    assert [counted[name] for name in ("gets", "hits", "puts", "evicted", "stored")] == [
        6,
        4,
        4,
        1,
        2,
    ]


def test_after_a_restart_nothing_is_left() -> None:
    talk = Talk()
    made = talk.ask(**ASK)
    talk.wire.switch.restart()
    assert talk.ask(op="renew", allocation=1, token=made["token"], lease_s=10)["code"] == "unknown"
    assert talk.ask(**ASK)["token"] != made["token"]
