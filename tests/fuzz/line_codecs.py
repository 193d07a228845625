"""Targets: codecs of lines and messages, and what stands in them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from drivers import (
    dicon_scpi,
    glimmerglass_tl1,
    polatis_scpi,
    polatis_tl1,
    santec_scpi,
    thorlabs_osw,
)
from drivers.link.telnet import Negotiation, escaped
from drivers.session import routscan
from drivers.wire import calient_rows, joblog, rotor, scpi, sonic, telescent, tl1, wssmap
from optics import Garbled
from tests.fuzz.targets import target


def _tl1(data: bytes, size: int) -> tuple[list[tl1.Message], bool]:
    """The messages in `data` fed in pieces of `size`, and whether it was too much."""
    parser, found = tl1.Parser(), []
    try:
        for at in range(0, len(data), size):
            found += parser.feed(data[at : at + size])
    except Garbled:
        return found, True
    return found, False


@target("tl1-stream")
def tl1_stream(data: bytes) -> None:
    whole = _tl1(data, max(1, len(data)))
    size = 1 if len(data) < 128 else 97
    assert _tl1(data, size) == whole, f"pieces of {size} bytes are read otherwise"
    for message in whole[0]:
        if isinstance(message, tl1.Reply):
            assert message.message and isinstance(message.completed, bool)
            for row in message.rows:
                tl1.parse_row(row)


@target("tl1-rows")
def tl1_rows(data: bytes) -> None:
    text = data.decode("latin-1")
    row = tl1.parse_row(text)
    with suppress(Garbled):
        assert row["AS"] == row.fields["AS"]
    with suppress(ValueError):
        assert (
            tl1.quoted(text).isascii()
            and tl1.identifier(text).isascii()
            and tl1.target(text).isascii()
        )


@target("tl1-calient-rows")
def tl1_calient_rows(data: bytes) -> None:
    found, strange = [], []
    for line in data.decode("latin-1").split("\n"):
        strange.append(calient_rows.unreadable(line))
        with suppress(Garbled):
            row = calient_rows.parse(line)
            assert strange.pop().ports >= {row.source, row.destination}
            assert (
                calient_rows.is_aid(row.source)
                and calient_rows.is_aid(row.destination)
                and row.state
                and row.pairs
            )
            calient_rows.natural(row.source)
            found.append(row)
    pairs = sorted({pair for row in found for pair in row.pairs})
    calient_rows.work(
        found,
        frozenset(pairs[::3]),
        frozenset({("1.1.1", "1.1.2"), ("1.1.2", "1.1.1")}),
        "TESTBED",
        strange=strange,
    )


@target("tl1-glimmerglass-rows")
def tl1_glimmerglass_rows(data: bytes) -> None:
    with suppress(Garbled):
        repr(glimmerglass_tl1.parse(data.decode("latin-1")))


@target("tl1-polatis-rows")
def tl1_polatis_rows(data: bytes) -> None:
    with suppress(Garbled):
        polatis_tl1._level_text(data.decode("latin-1"))


@target("telnet")
def telnet(data: bytes) -> None:
    whole, single = Negotiation(), Negotiation()
    text, answer = whole.feed(data)
    size = 1 if len(data) < 128 else 17
    parts = [single.feed(data[at : at + size]) for at in range(0, len(data), size)]
    assert (b"".join(t for t, _ in parts), b"".join(a for _, a in parts)) == (text, answer)
    assert len(text) <= len(data) and len(answer) <= len(data)
    assert (
        Negotiation().feed(
            escaped(data.replace(b"\r", b"").replace(b"\n", b"").replace(b"\0", b""))
        )[1]
        == b""
    )


@target("scpi-lines")
def scpi_lines(data: bytes) -> None:
    whole, single = scpi.Lines(), scpi.Lines()
    lines = whole.feed(data)
    assert [line for at in range(len(data)) for line in single.feed(data[at : at + 1])] == lines
    assert all(line and line.isascii() and "\n" not in line for line in lines)


_SCPI: tuple[Callable[[str], object], ...] = (
    scpi.parse_channels,
    scpi.parse_error,
    scpi.parse_string,
    scpi.parse_identity,
    lambda text: scpi.parse_integers(text, 2),
    lambda text: scpi.parse_numbers(text, 2),
    polatis_scpi._parse_map,
    lambda text: polatis_scpi._parse_states(text, 2),
    dicon_scpi._parse_error,
    lambda text: dicon_scpi._parse_output(text, 1, 16),
    scpi.parse_bare_error,
    scpi.parse_size,
    routscan.state,
    santec_scpi.catalogue,
    thorlabs_osw._state,
)


@target("scpi-values")
def scpi_values(data: bytes) -> None:
    (text,) = scpi.Lines().feed(data.replace(b"\n", b" ").replace(b"\r", b" ") + b"\n") or [""]
    for parse in _SCPI:
        with suppress(Garbled):
            parse(text)


@target("rotor")
def rotor_lines(data: bytes) -> None:
    def replies(size: int) -> tuple[list[rotor.Reply], bool]:
        cut = rotor.Replies(["#1", "#2"])
        try:
            for at in range(0, len(data), max(1, size)):
                cut.feed(data[at : at + size])
        except Garbled:
            return cut.found, True
        return cut.found, False

    whole = replies(len(data))
    assert replies(1 if len(data) < 128 else 17)[1] == whole[1]
    readers = (
        rotor.parse_identity,
        rotor.parse_map,
        rotor.parse_failures,
        rotor.parse_power,
        rotor.parse_position,
    )
    for lines in [reply.lines for reply in whole[0]] + [
        tuple(data.decode("ascii", "backslashreplace").splitlines())
    ]:
        for read in readers:
            with suppress(Garbled):
                read(lines)
    with suppress(Garbled):
        pairs = rotor.parse_pairs(data.decode("ascii", "backslashreplace"))
        assert rotor.parse_pairs(rotor.write_pairs(pairs)) == pairs


@target("rome-log")
def rome_log(data: bytes) -> None:
    text = data.decode("ascii", "backslashreplace")
    clean, logs = joblog.without_logs(text)
    assert len(clean) <= len(text) and sum(map(len, logs)) <= len(text)
    for log in logs:
        joblog.ended(log)
    joblog.PROMPT.search(text)


@target("rome-tables")
def rome_tables(data: bytes) -> None:
    text = joblog.without_logs(data.decode("ascii", "backslashreplace"))[0]
    with suppress(Garbled):
        table = joblog.port_table(text)
        assert table.rows and all(row.ports and row.message for row in table.strange)
        joblog.connected(table.rows.values())
    with suppress(Garbled):
        joblog.pending(text)
    with suppress(Garbled):
        joblog.board(text)


@target("telescent-table")
def telescent_table(data: bytes) -> None:
    text = data.decode("ascii", "backslashreplace")
    assert len(telescent.complaint(text)) <= 160
    with suppress(Garbled):
        cells = telescent.switch_state(text)
        assert sorted(cells) == list(range(len(cells)))
        telescent.allocated(cells)


@target("wss-map")
def wss_map(data: bytes) -> None:
    with suppress(Garbled):
        entries = wssmap.parse_map(data.decode("ascii", "backslashreplace"))
        for first, last, entry in wssmap.runs(entries):
            assert 1 <= first <= last <= wssmap.CHANNELS and not entry.blocked
            assert wssmap.channels_of(wssmap.slot_of(first, last)) == range(first, last + 1)
        assert wssmap.parse_map(wssmap.write_map(entries)).keys() == entries.keys() or not entries


_SONIC: tuple[Callable[[str], object], ...] = (
    sonic.version,
    sonic.serial,
    sonic.ports,
    sonic.config,
    sonic.status,
    sonic.port_column,
    sonic.complaint,
    sonic.complains,
    sonic.unknown_command,
)


@target("sonic-text")
def sonic_text(data: bytes) -> None:
    text = data.decode("utf-8", "replace")
    for parse in _SONIC:
        with suppress(Garbled):
            parse(text)
