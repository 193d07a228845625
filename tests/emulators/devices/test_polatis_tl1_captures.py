"""An emulated Polatis against what a live one said, byte by byte, and against the denials that its
vendor's own tests expect.
"""

import datetime

import pytest

from tests.emulators.devices.wire import Wire

NOON = datetime.datetime(2026, 3, 29, 12, tzinfo=datetime.UTC).timestamp()
HEAD = b"\r\n\n   PolatisOXC 26-03-29 12:00:00\r\nM  123 "


def switch(*, login: bool = True, **more: object) -> Wire:
    """The size and name of the captured one; its clock stands still."""
    if login:
        more["login_s"] = 0
    wire = Wire(
        "polatis-tl1",
        size="48x48",
        sid="PolatisOXC",
        epoch_s=NOON,
        seconds_per_command=0.0,
        settle_s=0.0,
        **more,
    )
    if login:
        wire.send("act-user::admin:123::root;")
    return wire


def completed(*rows: str) -> bytes:
    return HEAD + b"COMPLD\r\n" + b"".join(f'   "{row}"\r\n'.encode() for row in rows) + b";\r\n"


def denied(code: str, text: str = "") -> bytes:
    comment = f"   /* {text} */\r\n" if text else ""
    return HEAD + f"DENY\r\n   {code}\r\n{comment};\r\n".encode()


def test_an_unknown_user_is_denied_by_a_code_alone_under_the_switchs_own_name() -> None:
    assert switch(login=False).send("act-user::noadmin:123::root;") == denied("PICC")


def test_a_port_that_is_not_there_is_named() -> None:
    wire = switch()
    assert wire.send("ent-patch::100,50:123:;") == denied("IIAC", "Invalid OXC port: 100")
    assert wire.plant.pairs() == () and wire.plant.writes == 0


def test_patches_are_made_one_by_one_in_lists_and_in_ranges() -> None:
    for aid, rows in (
        ("1,49", ["1,49"]),
        ("1&2,49&50", ["1,49", "2,50"]),
        ("1&&3,49&&51", ["1,49", "2,50", "3,51"]),
    ):
        wire = switch()
        assert wire.send(f"ent-patch::{aid}:123:;") == completed()
        assert wire.send("rtrv-patch::ALL:123:;") == completed(*rows)


def test_patches_are_listed_and_deleted_by_lists_and_ranges_in_which_some_ports_are_free() -> None:
    wire = switch(preset=[["1", "49"], ["2", "50"], ["3", "51"], ["5", "53"]])
    assert wire.send("rtrv-patch::1&5:123:;") == completed("1,49", "5,53")
    assert wire.send("rtrv-patch::1&&5:123:;") == completed("1,49", "2,50", "3,51", "5,53")
    assert wire.send("dlt-patch::1&5:123:;") == completed()
    assert wire.send("rtrv-patch:::123:;") == completed("2,50", "3,51")
    assert wire.send("dlt-patch::1&&5:123:;") == completed()
    assert (
        wire.send("dlt-patch::ALL:123:;")
        == wire.send("canc-user::admin:123:;")
        == wire.send("act-user::admin:123::root;")
    )
    assert wire.plant.pairs() == ()


def test_a_login_takes_as_long_as_on_the_live_switch_by_the_scale_of_the_lab() -> None:
    for scale in (1.0, 10.0):
        wire = switch(login=False, time_scale=scale)
        assert wire.delay("act-user::noadmin:123::root;") == pytest.approx(0.13 / scale)
        wire.now += 1.0
        assert wire.delay("act-user::admin:123::root;") == pytest.approx(0.62 / scale)
    assert switch(login=False, login_s=0, denied_s=0).delay("act-user::admin:123::root;") == 0


def test_a_patch_at_a_port_in_use_moves_it_and_the_light_that_was_there_is_gone() -> None:
    """The vendor's scripts create or move with one command."""
    wire = switch(preset=[["1", "49"], ["2", "50"]])
    assert wire.send("ent-patch::1,50:123:;") == completed()
    assert wire.send("rtrv-patch:::123:;") == completed("1,50")
    assert {v.pair for v in wire.plant.violations} == {("1", "49"), ("2", "50")}
    assert wire.send("ent-patch::1,50:123:;") == completed()
    assert len(wire.plant.violations) == 2


def test_ports_that_change_partners_in_one_command_do() -> None:
    wire = switch(preset=[["1", "49"], ["2", "50"], ["3", "51"]])
    assert wire.send("ent-patch::1&2,50&49:123::frcd;") == completed()
    assert wire.plant.pairs() == (("3", "51"), ("1", "50"), ("2", "49"))


def test_a_move_that_a_lock_a_stuck_mirror_or_a_failed_port_forbids_moves_nothing() -> None:
    for kind, port, text in (
        ("port-locked", "50", "Locked by bench2"),
        ("stuck-port", "2", "Port 2 stuck"),
        ("failed-port", "52", "Port 52 failed"),
    ):
        wire = switch(preset=[["1", "49"], ["2", "50"]])
        wire.dialect.inject(
            0.0, kind, port=port, **({"user": "bench2"} if kind == "port-locked" else {})
        )
        output = wire.send("ent-patch::3&1,52&50:123:;")
        assert b"DENY\r\n   SROF" in output and text.lower().encode() in output.lower(), output
        assert wire.plant.pairs() == (("1", "49"), ("2", "50"))


@pytest.mark.parametrize(
    ("command", "code", "text"),
    [
        ("ENT-PATCH::,:123:;", "IIAC", "Empty parameters"),
        ("ENT-PATCH::1,2000:123:;", "IDNV", "Invalid OXC port: 2000"),
        ("ENT-PATCH::a,b:123:;", "IDNV", "Invalid OXC port: a"),
        ("ENT-PATCH::-10,-49:123:;", "IDNV", "Invalid OXC port: -10"),
        ("ENT-PATCH::@,#:123:;", "IDNV", "Invalid OXC port: @"),
        ("DLT-PATCH::1000:123:;", "IDNV", "Invalid OXC port: 1000"),
        ("DLT-PATCH::a&b:123:;", "IDNV", "Invalid OXC port: a"),
        ("DLT-PATCH::-10:123:;", "IDNV", "Invalid OXC port: -10"),
        ("DLT-PATCH::@:123:;", "IDNV", "Invalid OXC port: @"),
        ("OPR-PORT-SHUTTER::1000:123:;", "IDNV", "Invalid OXC port: 1000"),
        ("RLS-PORT-SHUTTER::1000:123:;", "IDNV", "Invalid OXC port: 1000"),
        ("RTRV-PORT-SHUTTER::1000:123:;", "IDNV", "Invalid OXC port: 1000"),
        ("ED-PORT-LABEL::1:123:::LABEL=@#$;", "IPNV", "Parameter not valid"),
        ("ED-PORT-LABEL::1:123:::LABEL=abcdefghijklmnopqrstuvwxyz;", "IPNV", "Parameter not valid"),
        ("ACT-USER::invalid:123::root;", "PICC", ""),
        ("ACT-USER:::123::root;", "IIAC", "Too few parameters (0/1)"),
        ("ACT-USER::admin:123::;", "IPMS", "Too few parameters (0/1) in block 1"),
        ("CANC-USER::invalid:123:;", "PICC", "Permission denied"),
        ("ED-EQPT::TIMEOUT:123:::ADMIN=61;", "IPNV", "Parameter not valid"),
        ("ED-EQPT::TIMEOUT:123:::ADMIN=-2;", "IPNV", "Parameter not valid"),
        ("ED-EQPT::TIMEOUT:123:::adm=0;", "IPNV", "Unexpected parameter adm in block 2"),
        ("ED-EQPT::BOOT:123:::MODE=sun;", "IDNV", "Invalid value sun"),
        ("RTRV-PATCH:9942:1:123:;", "IITA", "Parse error at offset 12 in command"),
    ],
)
def test_a_denial_has_the_code_and_the_words_that_the_vendors_tests_expect(
    command: str, code: str, text: str
) -> None:
    wire = switch(bad_port="IDNV", preset=[["1", "49"]])
    assert wire.send(command) == denied(code, text)
    assert wire.plant.writes == 0 and wire.plant.pairs() == (("1", "49"),)
    assert b"COMPLD" in wire.send("rtrv-patch:::123:;") or command.startswith("ACT-USER")


def test_a_command_without_a_ctag_is_denied_where_the_ctag_is_missing() -> None:
    reported = switch().send("ACT-USER::admin::123::root;")
    assert reported == denied("IICT", "Parse error at offset 17 in command").replace(
        b"M  123", b"M  0"
    )


def test_software_differs_in_its_name_before_the_login_in_all_and_in_the_code_for_a_port() -> None:
    assert b"\r\n\n   ( nil ) 26-" in switch(login=False, nil_sid=True).send("rtrv-hdr:::123:;")
    assert switch(all_aid=False).send("dlt-patch::ALL:123:;") == denied(
        "IIAC", "Invalid OXC port: ALL"
    )
    assert switch(bad_port="IDNV").send("ent-patch::100,50:123:;") == denied(
        "IDNV", "Invalid OXC port: 100"
    )
    with pytest.raises(ValueError, match="bad_port 'ICNV' is neither"):
        switch(bad_port="ICNV")


def test_labels_flaps_shutters_the_boot_mode_and_the_time_are_read_as_they_were_set() -> None:
    wire = switch()
    assert wire.send("ED-PORT-LABEL::1&2:123:::LABEL=src1&src2;") == completed()
    assert wire.send('ED-PORT-LABEL::49:123:::LABEL="SW49/2/3 in";') == completed()
    assert wire.send("RTRV-PORT-LABEL::1&&3&49:123:;") == completed(
        "1:src1", "2:src2", "3:", "49:SW49/2/3 in"
    )
    assert wire.send("DLT-PORT-LABEL::1&2:123:;") == completed()
    assert wire.send("RTRV-PORT-LABEL::1&49:123:;") == completed("1:", "49:SW49/2/3 in")
    assert wire.send("ENT-PORT-FLAP::10&11:123::1000, 500, 1;") == completed()
    assert (
        wire.send("RTRV-PORT-FLAP::9&&12:123:;")
        == wire.send("RTRV-PORT-FLAP:::123:;")
        == completed("10:1000,500,1", "11:1000,500,1")
    )
    assert wire.send("RTRV-PORT-FLAP::9:123:;") == completed()
    assert wire.send("OPR-PORT-SHUTTER::2:123:;") == completed()
    assert wire.send("RTRV-PORT-SHUTTER::1&2:123:;") == completed("1:OPEN", "2:CLOSED")
    assert wire.send("ED-EQPT::BOOT:123:::MODE=DARK;") == completed()
    assert wire.send("RTRV-EQPT::BOOT:123:::PARAMETER=MODE;") == completed("BOOT:MODE=DARK")
    assert wire.send("ED-EQPT::TIMEOUT:123:::ADMIN=0;") == completed()
    assert wire.send("RTRV-EQPT::TIMEOUT:123:::PARAMETER=ADMIN;") == completed("TIMEOUT:ADMIN=0")
    assert wire.send("RTRV-TOD:::123:;") == completed("2026,03,29,12,00,00")
    assert b"OCS" in wire.send("RTRV-NETYPE:::123:;")
