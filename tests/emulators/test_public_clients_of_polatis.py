"""What public clients of Polatis switches send, byte by byte, and what they need in the answers.

The programs are not here: how each takes an answer apart is told in this module's own words.
"""

from __future__ import annotations

import re

from tests.emulators.wire import Wire


def taken(answer: bytes) -> list[str] | tuple[str, str]:
    """Return rows, or code and words, as pypolatis does: it forgets what stands before the second line end, skips the line of
    the completion, and after a denial needs two lines more and something behind them.
    """
    _, _, rest = answer.split(b"\r\n", 2)
    status, _, rest = rest.partition(b"\r\n")
    assert status.startswith(b"M  123 "), answer
    if status == b"M  123 COMPLD":
        *rows, end, _ = rest.split(b"\r\n")
        assert end == b";"
        return [row.decode() for row in rows]
    code, words, _ = rest.split(b"\r\n", 2)
    return code.decode(), words.decode()


def session(**more: object) -> Wire:
    """A 48x48 switch on which pypolatis has logged in."""
    wire = Wire("polatis-tl1", size="48x48", sid="PolatisOXC", **more)
    assert taken(wire.say(b"act-user::admin:123::root;\n")) == []
    assert taken(wire.say(b"opr-arc-eqpt::repmgr:123::ind;\n")) == []
    return wire


def test_pypolatis_takes_a_denied_login_for_one() -> None:
    wire = Wire("polatis-tl1", size="48x48")
    code, words = taken(wire.say(b"act-user::noadmin:123::root;\n"))
    assert "PICC" in code and words == ";"


def test_pypolatis_makes_moves_lists_exports_and_deletes_patches() -> None:
    wire = session()
    for command in (b"ent-patch::1,49:123:;\n", b"ent-patch::1&2,49&50:123:;\n", b"ent-patch::3&&5,51&&53:123:;\n"):
        assert taken(wire.say(command)) == []
    rows = taken(wire.say(b"rtrv-patch::1&&5:123:;\n"))
    assert rows == [f'   "{port},{port + 48}"' for port in range(1, 6)]
    assert [row[4:-1].split(",") for row in rows] == [[str(port), str(port + 48)] for port in range(1, 6)]
    assert taken(wire.say(b"rtrv-patch::ALL:123:;\n")) == taken(wire.say(b"rtrv-patch:::123:;\n")) == rows
    assert taken(wire.say(b"ent-patch::1,50:123::frcd;\n")) == []
    assert taken(wire.say(b"rtrv-patch::1&5:123:;\n")) == ['   "1,50"', '   "5,53"']
    assert taken(wire.say(b"dlt-patch::1&5:123:;\n")) == taken(wire.say(b"dlt-patch::3&&5:123::frcd;\n")) == []
    assert taken(wire.say(b"ent-patch::1&2&3,51&50&49:123:;\n")) == []
    assert wire.plant.pairs() == (("1", "51"), ("2", "50"), ("3", "49"))
    assert taken(wire.say(b"dlt-patch::all:123:;\n")) == taken(wire.say(b"canc-user::admin:123:;\n")) == []
    assert wire.plant.pairs() == ()


def test_pypolatis_is_told_which_port_is_wrong() -> None:
    wire = session()
    code, words = taken(wire.say(b"ent-patch::100,50:123:;\n"))
    assert "IIAC" in code and words.strip()[3:-3] == "Invalid OXC port: 100"


def test_pypolatis_flaps_a_port_and_reads_it() -> None:
    wire = session(preset=[["10", "58"]])
    assert taken(wire.say(b"ent-port-flap::10:123::10000&300&1:;\n")) == []
    assert taken(wire.say(b"rtrv-port-flap::10:123::;\n")) == ['   "10:10000,300,1"']
    assert taken(wire.say(b"opr-port-flap::10:123;\n")) == []
    assert not wire.plant.lit(wire.now)
    assert taken(wire.say(b"rls-port-flap::10:123;\n")) == []


DOCUMENTED = (
    "RTRV-PORT-SHUTTER::10&&17:123:;",
    "OPR-PORT-SHUTTER::10:123:;",
    "RLS-PORT-SHUTTER::10:123:;",
    "RTRV-PORT-LABEL::2:123:;",
    'ED-PORT-LABEL::2:123:::LABEL="SW49/2/3 in";',
    "RTRV-PATCH:::123:;",
    "RTRV-PATCH::11&4&10:123:;",
    "ENT-PATCH::11,64:123:;",
    "DLT-PATCH::11:123:;",
    "RTRV-PORT-FLAP:::123:;",
    "RTRV-PORT-FLAP::10&&17:123:;",
    "ENT-PORT-FLAP::10:123::1000, 500, 1;",
    "OPR-PORT-FLAP::10:123;",
    "RLS-PORT-FLAP::10:123;",
    "RTRV-EQPT::ATTEN:123:::PARAMETER=CONFIG;",
    "SET-PORT-ATTEN::49:123::: MODE=NONE;",
    "RTRV-PORT-ATTEN::49:123:;",
)


def test_an_expect_script_gets_each_documented_command_done_between_login_and_logout() -> None:
    """It sends the next line when what came since the last one matches."""
    wire = Wire("polatis-tl1", size="48x48", username="linuxtest", password="secret")
    for command in DOCUMENTED:
        for line in ("act-user::linuxtest:123::secret;", command, "canc-user::linuxtest:123:;"):
            assert re.search(rb"M  123 COMPLD.*;", wire.say(line), re.S), (command, line)


def test_a_lab_script_reads_all_labels_shutters_and_monitors_of_a_switch_of_640_ports() -> None:
    """It asks for 1&&640 and reads rows of one word behind the port."""
    wire = Wire("polatis-tl1", size="320x320", idle_s=None)
    wire.say("ACT-USER::admin:123::root;")
    wire.say("ED-PORT-LABEL::321:123:::LABEL=oxc2-rx;")

    def rows(command: str) -> dict[bytes, bytes]:
        lines = wire.say(command).split(b"\n")
        return {m[1]: m[2] for line in lines if (m := re.match(rb'\W*"(\d+):(\S+)"', line))}

    assert rows("RTRV-PORT-LABEL::1&&640:123:;") == {b"321": b"oxc2-rx"}
    assert rows("RTRV-PORT-SHUTTER::1&&640:123:;") == {b"%d" % port: b"OPEN" for port in range(1, 641)}
    assert len(rows("RTRV-PORT-PMON::1&&640:123:;")) == 640
