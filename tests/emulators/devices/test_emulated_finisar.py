"""A Finisar module as bytes on its line: staging, committing, blocking, and what it says no to."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from emulators.devices.families import device_from_config
from tests.emulators.devices.bench import Bench


@pytest.fixture
def module() -> Bench:
    return Bench("finisar-serial", transport="serial")


def ask(bench: Bench, text: str) -> list[str]:
    return bench.send(text, end="\r\n").splitlines()


def rows(bench: Bench) -> dict[int, tuple[str, str]]:
    echo, data, end = ask(bench, "RRA?")
    assert (echo, end) == ("RRA?", "OK")
    cells = (row.split(",") for row in data.split(";"))
    return {int(channel): (port, attenuation) for channel, port, attenuation in cells}


def test_every_answer_has_the_echo_the_data_and_ok(module: Bench) -> None:
    assert module.greeting == ""
    assert ask(module, "SNO?") == ["SNO?", "SN094032", "OK"]
    assert ask(module, "MFD?") == ["MFD?", "20140312", "OK"]
    raw = module.dialect.execute(module.session, "SNO?", module.now)
    assert raw == b"SNO?\r\nSN094032\r\nOK\r\n"


def test_all_96_channels_are_blocked_at_first(module: Bench) -> None:
    assert rows(module) == dict.fromkeys(range(1, 97), ("99", "99.9"))
    assert module.light() == set()


def test_what_is_staged_passes_no_light_until_it_is_committed_and_has_settled(
    module: Bench,
) -> None:
    assert ask(module, "URA 52,3,0.0;53,3,2.0") == ["URA 52,3,0.0;53,3,2.0", "OK"]
    module.wait(1.0)
    assert module.light() == set()
    assert rows(module)[52] == ("99", "99.9")
    assert ask(module, "RSW") == ["RSW", "OK"]
    assert rows(module)[52] == ("99", "99.9")
    module.wait(0.21)
    assert module.light() == {("in", "3", 193_875_000, 193_975_000)}
    assert (rows(module)[52], rows(module)[53]) == (("3", "0.0"), ("3", "2.0"))
    assert module.plant.writes == 2


def test_a_commit_commits_what_others_staged_too(module: Bench) -> None:
    ask(module, "URA 1,1,0.0")
    other = module.open()
    module.send("URA 2,2,0.0", other, end="\r\n")
    module.send("RSW", other, end="\r\n")
    module.wait(0.3)
    assert {path[1] for path in module.light()} == {"1", "2"}


def test_a_blocked_channel_goes_dark_and_its_neighbour_stays_lit(module: Bench) -> None:
    ask(module, "URA 10,1,0.0;12,2,0.0")
    ask(module, "RSW")
    module.wait(0.3)
    kept = next(band for band in module.plant.bands() if band.egress == "2")
    since = kept.since_s
    ask(module, "URA 10,1,99.9")
    ask(module, "RSW")
    module.wait(0.3)
    assert {path[1] for path in module.light()} == {"2"}
    assert next(iter(module.plant.bands())).since_s == since


@pytest.mark.parametrize(
    ("text", "end"),
    [
        ("FOO", "CER"),
        ("URA", "AER"),
        ("URA 1,2", "AER"),
        ("URA 1,2,x", "AER"),
        ("URA -1,2,0.0", "AER"),
        ("URA 0,1,0.0", "VER"),
        ("URA 97,1,0.0", "VER"),
        ("URA 1,10,0.0", "VER"),
        ("URA 1,1,15.1", "VER"),
        ("URA 1,1,0.0;97,1,0.0", "VER"),
        ("RSW now", "AER"),
    ],
)
def test_what_it_does_not_take_changes_nothing(module: Bench, text: str, end: str) -> None:
    assert ask(module, text) == [text, end]
    ask(module, "RSW")
    module.wait(0.3)
    assert module.light() == set()


def test_the_committed_map_comes_back_with_the_power_and_the_staged_one_does_not(
    module: Bench,
) -> None:
    ask(module, "URA 5,5,0.0")
    ask(module, "RSW")
    module.wait(0.3)
    ask(module, "URA 6,6,0.0")
    module.dialect.inject(module.now, "reboot-keep")
    assert module.light() == set()
    module.wait(2.0)
    assert {path[1] for path in module.light()} == {"5"}
    module.session = module.open()
    ask(module, "RSW")
    module.wait(0.3)
    assert {path[1] for path in module.light()} == {"5"}


def test_presets_pass_light_from_the_start() -> None:
    module = Bench("finisar-serial", preset=[[1, 2], [3, 4, 5.0]])
    assert {path[1] for path in module.light()} == {"2", "4"}
    assert rows(module)[3] == ("4", "5.0")
    for bad in ([[1]], [[97, 1]], [[1, 10]], [[1, 2], [1, 3]]):
        with pytest.raises(ValueError):
            Bench("finisar-serial", preset=bad)


def test_a_module_has_one_common_port() -> None:
    with pytest.raises(ValueError, match="one common port"):
        device_from_config("wss1", "finisar-serial", {"size": "2x9"})


@given(
    st.lists(
        st.one_of(
            st.binary(max_size=60),
            st.from_regex(rb"(URA ([0-9]{1,3},[0-9]{1,2},[0-9]{1,2}\.[0-9];?){1,4}|RSW|RRA\?)\r\n"),
        )
    )
)
@settings(max_examples=60, deadline=None)
def test_no_bytes_upset_it(pieces: list[bytes]) -> None:
    plant, dialect = device_from_config("wss1", "finisar-serial", {}, 1)
    session = dialect.open(0.0)
    assert session is not None
    for number, piece in enumerate(pieces):
        dialect.receive(session, piece, float(number))
    dialect.tick(1000.0)
    lit = sorted(path[2:] for path in plant.lit(1000.0))
    assert all(one[1] <= other[0] for one, other in pairwise(lit))
