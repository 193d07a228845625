"""A serial line without a speed has that of the family behind it."""

from __future__ import annotations

from emulators.inventory.addresses import parse


def test_a_speed_that_is_not_named_is_the_familys() -> None:
    assert parse("serial:///tmp/line", 115_200).baud == 115_200
    assert parse("serial:///tmp/line?baud=9600", 115_200).baud == 9_600
    assert parse("serial:///tmp/line").baud == 38_400
