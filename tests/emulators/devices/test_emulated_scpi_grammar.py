"""Headers, lists, compounding and the error queue, without a device."""

import pytest

from emulators.devices.dialects.scpi import ErrorQueue, ScpiError, channels, spellings, units


def test_long_and_short_forms_mix_but_nothing_between_them() -> None:
    forms = set(spellings("OXC:SWITch:CONNect:STATe?"))
    assert {"OXC:SWIT:CONN:STAT?", "OXC:SWITCH:CONN:STATE?"} <= forms
    assert "OXC:SWITC:CONN:STAT?" not in forms
    assert len(forms) == 8


def test_a_channel_list_is_numbers_in_order() -> None:
    assert channels("(@1,2, 3),(@17,18,19)") == [["1", "2", "3"], ["17", "18", "19"]]
    assert channels("(@1,02),(@)") == [["1", "2"], []]
    assert channels("(@1:3, 7),(@19 : 17,20)") == [["1", "2", "3", "7"], ["19", "18", "17", "20"]]


@pytest.mark.parametrize(
    "text",
    ["", "1,2", "(@1:)", "(@1:2:3)", "(@1:9999)", "(@a)", "(@1,,2)", "(@1)x", "(@1", "(1,2)"],
)
def test_a_bad_channel_list_is_an_error(text: str) -> None:
    with pytest.raises(ScpiError):
        channels(text)


def test_semicolons_separate_outside_quotes_and_lists_only() -> None:
    assert units('a "x;y";b (@1;2);:c') == ['a "x;y"', "b (@1;2)", ":c"]


def test_the_error_queue_is_first_in_first_out_and_overflows_at_its_end() -> None:
    queue = ErrorQueue(2)
    for code in (-100, -109, -113):
        queue.add(code)
    assert queue.next() == '-100,"Command error"'
    assert queue.all() == '-350,"Queue overflow"'
    assert queue.next() == queue.all() == '0,"No error"'
