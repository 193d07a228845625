"""Who may look and who may press."""

from __future__ import annotations

import pytest

from orchestrator.views.web.access import SESSIONS, Keys, Names, is_loopback


@pytest.mark.parametrize(
    "host", ["127.0.0.1:8420", "localhost:8420", "[::1]:8420", "127.8.9.1:8420"]
)
def test_the_names_of_this_machine_alone_are_answered(host: str) -> None:
    assert Names("127.0.0.1", 8420).allow(host)


@pytest.mark.parametrize(
    "host",
    [
        *(
            "",
            "127.0.0.1",
            "127.0.0.1:80",
            "evil.example:8420",
            "localhost.evil.example:8420",
            "10.0.0.7:8420",
            "a@127.0.0.1:8420",
        ),
        *(
            "127.0.0.1:8420/x",
            "127.0.0.1:x",
            "[::1:8420",
            "2130706433:8420",
            "127.1:8420",
            "0.0.0.0:8420",
        ),
    ],
)
def test_any_other_name_is_refused(host: str) -> None:
    assert not Names("127.0.0.1", 8420).allow(host)


def test_a_server_for_all_answers_to_addresses_and_its_own_name_but_to_no_other_name() -> None:
    everywhere, named = Names("0.0.0.0", 8420), Names("lab1.example", 8420)
    assert (
        everywhere.allow("10.0.0.7:8420")
        and everywhere.allow("127.0.0.1:8420")
        and everywhere.allow("[fd00::7]:8420")
    )
    assert not everywhere.allow("evil.example:8420")
    assert named.allow("lab1.example:8420") and not named.allow("lab2.example:8420")


def test_a_key_works_once_and_the_next_one_is_told() -> None:
    lab_writer: list[str] = []
    keys = Keys(lab_writer.append)
    first = keys.once
    assert (
        keys.enter("") is None
        and keys.enter(first[:-1]) is None
        and keys.enter("\ud800") is None
        and not lab_writer
    )
    token = keys.enter(first)
    assert token is not None and keys.holds(token) and keys.enter(first) is None
    assert lab_writer == [keys.once] and lab_writer[0] not in (first, token) and len(token) >= 43
    assert (
        not keys.holds("")
        and not keys.holds(token[:-1])
        and not keys.holds(lab_writer[0])
        and not keys.holds("\udfff")
    )


def test_so_many_pages_may_hold_a_key_and_the_oldest_gives_way() -> None:
    keys = Keys()
    tokens = [keys.enter(keys.once) or "" for _ in range(SESSIONS + 1)]
    assert not keys.holds(tokens[0]) and all(map(keys.holds, tokens[1:]))


def test_what_is_of_this_machine_alone() -> None:
    assert [
        a
        for a in ("127.0.0.1", "::1", "localhost", "10.0.0.1", "0.0.0.0", "x", "")
        if is_loopback(a)
    ] == [
        "127.0.0.1",
        "::1",
        "localhost",
    ]
