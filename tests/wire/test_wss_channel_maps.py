"""The channel map of a Finisar module: integers in, integers out, and nothing but Garbled for
anything else.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drivers.wire.wssmap import (
    CHANNELS,
    FIRST_MHZ,
    Entry,
    channels_of,
    parse_map,
    runs,
    slot_of,
    write_map,
)
from optics import FrequencySlot, Garbled

entries = st.builds(Entry, st.integers(1, 9), st.integers(0, 999).map(lambda n: n / 10))


@given(st.dictionaries(st.integers(1, CHANNELS), entries, min_size=1))
def test_a_map_that_is_written_is_read_back(entries: dict[int, Entry]) -> None:
    assert parse_map(write_map(entries)) == entries
    assert parse_map(write_map(entries) + ";") == entries  # public scripts end URA so


@given(st.text(alphabet="0123456789,;.- U\x00é", max_size=60))
def test_anything_is_a_map_or_garbled(text: str) -> None:
    try:
        found = parse_map(text)
    except Garbled:
        return
    assert found and all(1 <= channel <= CHANNELS for channel in found)


@pytest.mark.parametrize(
    "text",
    ["", ";", "52,3", "52,3,0.0,1", "52,3,0.0;52,3,1.0", "0,1,0.0", "97,1,0.0", "52,3,-1.0", "OK"],
)
def test_malformed_maps_are_garbled(text: str) -> None:
    with pytest.raises(Garbled):
        parse_map(text)


@given(st.integers(1, CHANNELS), st.integers(1, 8))
def test_slots_and_channels_are_exact(first: int, count: int) -> None:
    last = min(CHANNELS, first + count - 1)
    assert channels_of(slot_of(first, last)) == range(first, last + 1)


def test_a_slot_off_the_channels_has_none() -> None:
    assert channels_of(FrequencySlot(FIRST_MHZ - 25_000, FIRST_MHZ + 25_000)) == range(1, 2)
    assert channels_of(FrequencySlot(FIRST_MHZ - 12_500, FIRST_MHZ + 37_500)) is None
    # begins below channel 1
    assert channels_of(FrequencySlot(FIRST_MHZ - 75_000, FIRST_MHZ + 25_000)) is None
    assert channels_of(slot_of(CHANNELS, CHANNELS + 1)) is None


def test_adjacent_channels_that_do_the_same_are_one_passband() -> None:
    found = {
        1: Entry(2, 0.0),
        2: Entry(2, 0.0),
        3: Entry(2, 1.0),
        4: Entry(2, 99.9),
        96: Entry(9, 0.0),
    }
    assert list(runs(found)) == [
        (1, 2, Entry(2, 0.0)),
        (3, 3, Entry(2, 1.0)),
        (96, 96, Entry(9, 0.0)),
    ]
