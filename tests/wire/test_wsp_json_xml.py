"""The readers of WSP, JSON and XML: what they read is exact, what they write reads back the same,
anything else is Garbled.
"""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from drivers.wire import calient_rest, netconf, polatis, rest, roadm, wsp
from drivers.wire.wsp import Row
from optics import FrequencySlot, Garbled, PortState, Refused

GHZ = 1000
C_BAND = (191_250_000, 196_275_000)  # DOC: WSUTIL guide

decibels = st.decimals(0, 40, places=3, allow_nan=False).map(str)
phases = st.sampled_from(["0.000", "-1.57079", "3.14159265", "1e-3", "6.28"])


@st.composite
def profiles(draw: st.DrawFn) -> tuple[Row, ...]:
    first = C_BAND[0] + GHZ * draw(st.integers(0, 4000))
    cells = draw(st.lists(st.tuples(decibels, phases, st.integers(0, 4)), min_size=1, max_size=60))
    return tuple(Row(first + at * GHZ, *cell) for at, cell in enumerate(cells))


@given(profiles())
def test_a_profile_reads_back_as_it_was_written(rows: tuple[Row, ...]) -> None:
    assert wsp.parse(wsp.write(rows)) == rows
    assert wsp.parse(wsp.write(rows).replace("\n", "\r\n") + "\n\n") == rows


@given(profiles())
def test_bands_cover_exactly_the_rows_that_let_light_through(rows: tuple[Row, ...]) -> None:
    bands = wsp.bands(rows)
    assert sum(band.slot.width_mhz for band in bands) == GHZ * sum(not row.blocked for row in rows)
    for row in rows:
        held = [band for band in bands if band.slot.low_mhz <= row.mhz < band.slot.high_mhz]
        assert [(band.port, band.db) for band in held] == (
            [] if row.blocked else [(row.port, row.db)]
        )


@given(
    st.lists(
        st.tuples(st.integers(0, 99), st.integers(1, 4), st.integers(0, 300)),
        max_size=12,
        unique_by=lambda b: b[0],
    )
)
def test_bands_that_touch_stay_apart_and_keep_their_attenuation_and_phase(
    wanted: list[tuple[int, int, int]],
) -> None:
    first, last = C_BAND[0], C_BAND[0] + 999 * GHZ
    phased = tuple(Row(first + at * GHZ, "60.000", f"{at}.5", 0) for at in range(1000))
    rows = wsp.whole(phased, first, last)
    routes = {}
    for at, port, tenths in wanted:
        slot = FrequencySlot(first + at * 10 * GHZ, first + (at + 1) * 10 * GHZ)
        rows = wsp.lead(rows, slot, port, Decimal(tenths) / 10)
        routes[slot] = (port, tenths)
    assert {
        band.slot: (band.port, round(band.db * 10))
        for band in wsp.bands(wsp.parse(wsp.write(rows)))
    } == routes
    for slot in routes:
        rows = wsp.block(rows, slot)
    assert not wsp.bands(rows)
    assert [row.phase for row in rows] == [row.phase for row in phased]


@given(st.text(max_size=200))
@example("191.250\t0\t0\t1\t1")
@example("191.250\tnan\t0\t1")
@example("191.250\t0\tinf\t1")
@example("191.2505\t0\t0\t1")
@example("191.250\t0\t0\t1\n191.252\t0\t0\t1")
@example("191.251\t0\t0\t1\n191.250\t0\t0\t1")
@example("<html>busy</html>")
@example('{"rc": -1}')
@example("191.250 0 0 1")
@example("191.250\t0\t0\t-1")
@example("9" * 5000 + "\t0\t0\t1")
@example("+0\t0\t79\t2")  # no light has this frequency
def test_anything_else_is_no_profile(text: str) -> None:
    try:
        rows = wsp.parse(text)
    except Garbled:
        return
    assert rows and all(band.port for band in wsp.bands(rows))


def test_a_profile_of_too_many_rows_is_refused_before_it_is_read() -> None:
    with pytest.raises(Garbled, match="20001 rows"):
        wsp.parse("x\n" * 20_001)


def test_the_row_of_the_manual_is_read_exactly() -> None:
    # DOC: WSUTIL User Guide
    (row,) = wsp.parse("191.250\t22.80047795\t-1.57079\t1")
    assert (row.mhz, row.db, row.phase, row.port) == (
        191_250_000,
        Decimal("22.80047795"),
        "-1.57079",
        1,
    )


@pytest.mark.parametrize(
    ("attenuation", "db", "blocked"),
    [("-1.5", 0, False), ("30", 30, False), ("40.0", 40, False), ("40.1", 40.1, True)],
)
def test_attenuation_below_zero_is_zero_and_above_forty_blocks(
    attenuation: str, db: float, blocked: bool
) -> None:
    (row,) = wsp.parse(f"193.100\t{attenuation}\t0\t2")
    assert (float(row.db), row.blocked) == (db, blocked)


@pytest.mark.parametrize(
    ("slot", "db", "text"),
    [
        (FrequencySlot.flexgrid(-280, 4), "3", ""),
        (FrequencySlot.flexgrid(-5, 3), "3", "grid of 1 GHz"),
        (FrequencySlot(193_000_000, 193_009_000), "3", "narrower than 10 GHz"),
        (FrequencySlot(191_249_000, 191_300_000), "3", "outside 191.250-196.275 THz"),
        (FrequencySlot(196_200_000, 196_277_000), "3", "outside"),
        (FrequencySlot(196_200_000, 196_276_000), "3", ""),
        (FrequencySlot(193_000_000, 193_050_000), "40.1", "would block"),
        (FrequencySlot(193_000_000, 193_050_000), "-0.1", "not between"),
    ],
)
def test_a_band_outside_the_rules_is_named(slot: FrequencySlot, db: str, text: str) -> None:
    reported = wsp.fault(slot, Decimal(db), *C_BAND)
    assert text in reported and bool(text) == bool(reported)


# JSON


@given(st.binary(max_size=200))
@example(b'{"pair":[{"ingress":1,')
@example(b"[" * 100_000)
@example(b'{"a":1,"a":2}')
@example(b"NaN")
@example(b"1" * 10_000)
@example(b'"\xff"')
@example(b"<html>503</html>")
@example(b"")
def test_any_bytes_are_json_or_garbled(body: bytes) -> None:
    try:
        rest.parse_json(body)
    except Garbled as error:
        assert len(str(error)) < 400


@given(st.decimals(-90, 90, places=2, allow_nan=False))
def test_numbers_are_exact_as_text_and_as_numbers(value: Decimal) -> None:
    row = rest.mapping(rest.parse_json(f'{{"a": {value:f}, "b": "{value:f}"}}'.encode()), "row")
    assert rest.number(row, "a") == rest.number(row, "b") == value


@pytest.mark.parametrize(
    "value", ["null", "true", "[]", "{}", '"x"', '"1e9"', '"١"', "1e400", '""']
)
def test_what_is_no_number_is_garbled(value: str) -> None:
    with pytest.raises(Garbled):
        rest.number(rest.mapping(rest.parse_json(f'{{"a": {value}}}'.encode()), "row"), "a")


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (
            b'{"ietf-restconf:errors":{"error":[{"error-tag":"in-use","error-message":"9"}]}}',
            "HTTP 409: in-use: 9",
        ),
        (
            b'{"ietf-restconf:errors":{"error":"x"}}',
            'HTTP 409: {"ietf-restconf:errors":{"error":"x"}}',
        ),
        (b"<html><body><h1>Conflict</h1></body></html>", "HTTP 409: Conflict"),
        (b"", "HTTP 409"),
        (b"\xff\xfe", "HTTP 409: \ufffd\ufffd"),
    ],
)
def test_the_words_of_an_error_page_are_found(body: bytes, text: str) -> None:
    assert rest.restconf_message(409, body) == text


# Polatis, Calient, Lumentum


@pytest.mark.parametrize("model", ["", "N-VST", "0x16", "x", "N-VST-99999x1", "9999x9999", "16x"])
def test_a_model_without_a_size_says_which_option_helps(model: str) -> None:
    with pytest.raises(Garbled, match="option size"):
        polatis.size(model)


@pytest.mark.parametrize(
    ("pairs", "fine"),
    [
        ([], True),
        ([(1, 9), (2, 10)], True),
        ([(1, 9), (1, 10)], False),
        ([(1, 9), (1, 9)], False),
        ([(0, 9)], False),
    ],
)
def test_a_map_with_a_port_in_two_circuits_is_none(
    pairs: list[tuple[int, int]], fine: bool
) -> None:
    if fine:
        assert polatis.whole_map(pairs) == frozenset(pairs)
    else:
        with pytest.raises(Garbled):
            polatis.whole_map(pairs)


def test_port_states_are_read_with_and_without_their_prefix() -> None:
    argv = ["ENABLED", "PC_ENABLED", "PC_DISABLED", "disabled", "PC_FAILED", "?"]
    enabled, disabled, failed = PortState.ENABLED, PortState.DISABLED, PortState.FAILED
    assert [polatis.port_state(word) for word in argv] == [
        enabled,
        enabled,
        disabled,
        disabled,
        failed,
        failed,
    ]


def test_every_item_of_a_batch_has_its_own_result() -> None:
    answer = rest.parse_json(
        b'[{"response":{"status":"1","msg":"ok"}},{"response":{"status":"0","msg":"Failed","description":"port in use"}}]'
    )
    assert calient_rest.refusals(answer, 2) == ["", "Failed: port in use"]
    with pytest.raises(Garbled, match="2 results for 3 items"):
        calient_rest.refusals(answer, 3)
    assert (
        calient_rest.refusals(rest.parse_json(b'{"status":"0","msg":"no rights"}'), 3)
        == ["no rights"] * 3
    )


@pytest.mark.parametrize(
    "item", ["[]", "{}", '{"status":"2"}', '{"status":null}', '{"response":[]}', '"1"', "1"]
)
def test_a_result_of_another_form_is_garbled(item: str) -> None:
    with pytest.raises(Garbled):
        calient_rest.refusal(rest.parse_json(item.encode()))


def test_powers_of_a_calient_port_are_text() -> None:
    # REAL: NTT Com RENAT
    row = rest.mapping(
        rest.parse_json(b'{"inpower":"-3.4","outpower":"-4.8","inoc":"NOHW","outpopt":""}'), "row"
    )
    assert (
        calient_rest.level(row, "inpower"),
        calient_rest.level(row, "outpopt"),
        calient_rest.level(row, "none"),
    ) == (
        -3.4,
        None,
        None,
    )


@given(st.integers(1, 10**9))
def test_gigahertz_are_exact(mhz: int) -> None:
    assert roadm.mhz_of(Decimal(roadm.ghz_of(mhz)), "f") == mhz


def test_the_connection_of_the_public_client_is_read_and_written_the_same() -> None:
    # CODE: Mininet-Optical
    config = (
        f'<connections xmlns="{roadm.NS}"><connection><dn>ne=1;chassis=1;card=1;module=1;connection=1</dn><config>'
        "<maintenance-state>in-service</maintenance-state><blocked>false</blocked><start-freq>191325.0</start-freq>"
        "<end-freq>191375.0</end-freq><attenuation>0.0</attenuation>"
        "<input-port-reference>ne=1;chassis=1;card=1;port=4101</input-port-reference>"
        "<output-port-reference>ne=1;chassis=1;card=1;port=4201</output-port-reference><custom-name>CH1</custom-name>"
        "</config></connection></connections>"
    )
    reply = netconf.parse_reply(
        f'<rpc-reply xmlns="{netconf.NC}" message-id="1"><data>{config}</data></rpc-reply>'
    )
    (found,) = roadm.parse_connections(netconf.data(reply))
    assert (found.dn, found.slot, found.lit) == (
        "ne=1;chassis=1;card=1;module=1;connection=1",
        FrequencySlot.flexgrid(-280, 4),
        True,
    )
    written = netconf.show(roadm.config_of(found)).replace(
        ' xmlns:nc="urn:ietf:params:xml:ns:netconf:base:1.0"', ""
    )
    assert written == config


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("<start-freq>191325.0", "<start-freq>191375.0"),
        ("<start-freq>191325.0", "<start-freq>191325.00001"),
        ("<start-freq>191325.0", "<start-freq>"),
        ("<blocked>false", "<blocked>maybe"),
        ("module=1;connection=1", "module=7;connection=1"),
        ("port=4101", "port=../4101"),
        ("<attenuation>0.0", "<attenuation>NaN"),
        ("<dn>", "<dnn>"),
    ],
)
def test_a_connection_outside_its_form_is_garbled(old: str, new: str) -> None:
    slot = FrequencySlot.flexgrid(-280, 4)
    good = netconf.show(
        roadm.config_of(roadm.Connection(1, 1, "4101", "4201", slot, Decimal(0), True, "x"))
    )
    assert old in good
    bad = (
        good.replace(old, new)
        .replace("<dnn>ne", "<dnn/><x>ne")
        .replace("</dn>", "</x>" if new == "<dnn>" else "</dn>")
    )
    reply = netconf.parse_reply(
        f'<rpc-reply xmlns="{netconf.NC}" message-id="1"><data>{bad}</data></rpc-reply>'
    )
    with pytest.raises(Garbled):
        roadm.parse_connections(netconf.data(reply))


@given(st.text(max_size=200))
@example("<rpc-reply/>")
@example('<!DOCTYPE x [<!ENTITY a "b">]><rpc-reply>&a;</rpc-reply>')
@example('<!DOCTYPE x SYSTEM "file:///etc/passwd"><rpc-reply/>')
@example("<rpc-reply><?x y?><!-- c --><ok/></rpc-reply>")
@example("<rpc-reply><rpc-error><error-severity>error</error-severity></rpc-error></rpc-reply>")
@example("<a:rpc-reply/>")
@example("\x00")
# libxml2 forgives a prefix without a namespace before a relative one
@example('<rpc-reply><d:t/><a xmlns="s"/></rpc-reply>')
def test_any_text_is_a_reply_or_garbled_or_refused(text: str) -> None:
    try:
        reply = netconf.parse_reply(text)
    except (Garbled, Refused):
        return
    assert netconf.name(reply) == "rpc-reply" and "<!" not in text.replace("<!--", "")
