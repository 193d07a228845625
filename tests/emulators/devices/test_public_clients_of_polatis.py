"""What public clients of Polatis switches send, byte by byte, and what they need in the answers.

The programs are not here: how each takes an answer apart is written in this module's own words.
"""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from lxml import etree

from tests.emulators.devices.wire import Wire


def taken(answer: bytes) -> list[str] | tuple[str, str]:
    """Return rows, or code and words, as pypolatis does: it forgets what stands before the second
    line end, skips the line of the completion, and after a denial needs two lines more and
    something behind them.
    """
    _, _, rest = answer.split(b"\r\n", 2)
    status, _, rest = rest.partition(b"\r\n")
    assert status.startswith(b"M  123 "), answer
    if status == b"M  123 COMPLD":
        *rows, end, _ = rest.split(b"\r\n")
        assert end == b";"
        return [row.decode() for row in rows]
    code, message, _ = rest.split(b"\r\n", 2)
    return code.decode(), message.decode()


def session(**more: object) -> Wire:
    """A 48x48 switch on which pypolatis has logged in."""
    wire = Wire("polatis-tl1", size="48x48", sid="PolatisOXC", **more)
    assert taken(wire.send(b"act-user::admin:123::root;\n")) == []
    assert taken(wire.send(b"opr-arc-eqpt::repmgr:123::ind;\n")) == []
    return wire


def test_pypolatis_takes_a_denied_login_for_one() -> None:
    wire = Wire("polatis-tl1", size="48x48")
    code, message = taken(wire.send(b"act-user::noadmin:123::root;\n"))
    assert "PICC" in code and message == ";"


def test_pypolatis_makes_moves_lists_exports_and_deletes_patches() -> None:
    wire = session()
    for command in (
        b"ent-patch::1,49:123:;\n",
        b"ent-patch::1&2,49&50:123:;\n",
        b"ent-patch::3&&5,51&&53:123:;\n",
    ):
        assert taken(wire.send(command)) == []
    rows = taken(wire.send(b"rtrv-patch::1&&5:123:;\n"))
    assert rows == [f'   "{port},{port + 48}"' for port in range(1, 6)]
    assert [row[4:-1].split(",") for row in rows] == [
        [str(port), str(port + 48)] for port in range(1, 6)
    ]
    assert (
        taken(wire.send(b"rtrv-patch::ALL:123:;\n"))
        == taken(wire.send(b"rtrv-patch:::123:;\n"))
        == rows
    )
    assert taken(wire.send(b"ent-patch::1,50:123::frcd;\n")) == []
    assert taken(wire.send(b"rtrv-patch::1&5:123:;\n")) == ['   "1,50"', '   "5,53"']
    assert (
        taken(wire.send(b"dlt-patch::1&5:123:;\n"))
        == taken(wire.send(b"dlt-patch::3&&5:123::frcd;\n"))
        == []
    )
    assert taken(wire.send(b"ent-patch::1&2&3,51&50&49:123:;\n")) == []
    assert wire.plant.pairs() == (("1", "51"), ("2", "50"), ("3", "49"))
    assert (
        taken(wire.send(b"dlt-patch::all:123:;\n"))
        == taken(wire.send(b"canc-user::admin:123:;\n"))
        == []
    )
    assert wire.plant.pairs() == ()


def test_pypolatis_is_told_which_port_is_wrong() -> None:
    wire = session()
    code, message = taken(wire.send(b"ent-patch::100,50:123:;\n"))
    assert "IIAC" in code and message.strip()[3:-3] == "Invalid OXC port: 100"


def test_pypolatis_flaps_a_port_and_reads_it() -> None:
    wire = session(preset=[["10", "58"]])
    assert taken(wire.send(b"ent-port-flap::10:123::10000&300&1:;\n")) == []
    assert taken(wire.send(b"rtrv-port-flap::10:123::;\n")) == ['   "10:10000,300,1"']
    assert taken(wire.send(b"opr-port-flap::10:123;\n")) == []
    assert not wire.plant.lit(wire.now)
    assert taken(wire.send(b"rls-port-flap::10:123;\n")) == []


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
            assert re.search(rb"M  123 COMPLD.*;", wire.send(line), re.S), (command, line)


def test_a_lab_script_reads_all_labels_shutters_and_monitors_of_a_switch_of_640_ports() -> None:
    """It asks for 1&&640 and reads rows of one word behind the port."""
    wire = Wire("polatis-tl1", size="320x320", idle_s=None)
    wire.send("ACT-USER::admin:123::root;")
    wire.send("ED-PORT-LABEL::321:123:::LABEL=oxc2-rx;")

    def rows(command: str) -> dict[bytes, bytes]:
        lines = wire.send(command).split(b"\n")
        return {m[1]: m[2] for line in lines if (m := re.match(rb'\W*"(\d+):(\S+)"', line))}

    assert rows("RTRV-PORT-LABEL::1&&640:123:;") == {b"321": b"oxc2-rx"}
    assert rows("RTRV-PORT-SHUTTER::1&&640:123:;") == {
        b"%d" % port: b"OPEN" for port in range(1, 641)
    }
    assert len(rows("RTRV-PORT-PMON::1&&640:123:;")) == 640


# RESTCONF

CROSS = "/api/data/optical-switch:cross-connects"
CURL = "User-Agent: curl/8.5.0\r\nAccept: application/yang-data+xml\r\nContent-Type: application/yang-data+xml\r\n"
REQUESTS = (
    "User-Agent: python-requests/2.32.3\r\nAccept-Encoding: gzip, deflate\r\nAccept: application/yang-data+json\r\n"
    "Connection: keep-alive\r\n"
)
AXIOS = (
    "Accept: application/yang-data+json\r\nCache-Control: no-store, no-cache, must-revalidate\r\n"
)
PAGE = "Accept: */*\r\nContent-Type: application/yang-data+json\r\nCache-Control: no-cache\r\nOrigin: null\r\n"
TYPED = "Content-Type: application/yang-data+json\r\n"


def rest(**more: object) -> Wire:
    return Wire("polatis-restconf", size="8x8", settle_s=0.0, **more)


def sent(wire: Wire, line: str, headers: str, body: str = "") -> tuple[int, bytes]:
    """Send a request as a client of that name does; return status and body."""
    wire.connect()
    length = f"Content-Length: {len(body)}\r\n" if body else ""
    head = f"{line} HTTP/1.1\r\nHost: 192.0.2.31:8008\r\nAuthorization: Basic YWRtaW46cm9vdA==\r\n{headers}{length}\r\n"
    head, _, rest = wire.send((head + body).encode()).partition(b"\r\n\r\n")
    text = b""
    while rest and b"transfer-encoding: chunked" in head:
        size, _, rest = rest.partition(b"\r\n")
        text, rest = text + rest[: int(size, 16)], rest[int(size, 16) + 2 :]
    return int(head[9:12]), text or rest


def test_a_shell_script_with_curl_makes_pairs_in_xml_and_deletes_all() -> None:
    wire = rest()
    for line, egress, status in (("PUT", 9, 201), ("PUT", 10, 204)):
        body = f"<pair><ingress>1</ingress><egress>{egress}</egress></pair>"
        assert sent(wire, f"{line} {CROSS}/pair=1", CURL, body) == (status, b"")
    assert wire.plant.pairs() == (("1", "10"),)
    assert sent(wire, f"DELETE {CROSS}", CURL) == (204, b"") and wire.plant.pairs() == ()


def test_python_scripts_with_requests_put_the_whole_map_post_and_delete_pairs_by_both_ports() -> (
    None
):
    wire = rest()
    whole = '{"optical-switch:cross-connects": {"pair": [{"ingress": 1, "egress": 13}, {"ingress": 5, "egress": 9}]}}'
    assert sent(wire, f"PUT {CROSS}", REQUESTS + TYPED, whole)[0] in (200, 201, 204)
    one = '{"optical-switch:pair": [{"ingress": 2, "egress": 14}]}'
    assert (
        sent(wire, f"POST {CROSS}", REQUESTS + "Content-Type: application/json\r\n", one)[0] == 201
    )
    assert sent(wire, f"POST {CROSS}", REQUESTS + TYPED, one)[0] == 409
    assert sent(wire, f"DELETE {CROSS}/pair=2,14", REQUESTS)[0] == 204
    assert wire.plant.pairs() == (("1", "13"), ("5", "9"))
    xml = REQUESTS.replace("json", "xml")
    assert (
        sent(wire, f"POST {CROSS}", xml, "<pair><ingress>1</ingress><egress>12</egress></pair>")[0]
        == 409
    )
    status, body = sent(wire, f"GET {CROSS}/pair=1", REQUESTS)
    assert (status, json.loads(body)["optical-switch:pair"]["egress"]) == (200, 13)
    assert sent(wire, f"GET {CROSS}/pair=3", REQUESTS) == (204, b"")
    assert [sent(wire, f"DELETE {CROSS}/pair=1", REQUESTS)[0] for _ in range(2)] == [204, 404]
    assert sent(wire, "GET /api", REQUESTS)[0] == 200


def test_a_web_application_reads_and_changes_lists_under_names_without_a_module() -> None:
    """It takes the first value of what it is sent, and sends rows of a list by PATCH."""
    wire = rest(preset=[["1", "9"], ["7", "12"]])

    def first(path: str) -> Any:
        status, body = sent(wire, f"GET /api/data/{path}", AXIOS)
        return next(iter(json.loads(body).values())) if status == 200 else status

    def patch(path: str, body: str) -> int:
        return sent(wire, f"PATCH /api/data/{path}", AXIOS + TYPED, body)[0]

    assert first("cross-connects/pair") == [
        {"ingress": 1, "egress": 9},
        {"ingress": 7, "egress": 12},
    ]
    assert first("cross-connects/pair=7") == {"ingress": 7, "egress": 12}
    assert list(first("product-information")) == [
        "manufacturer",
        "serial-number",
        "model-name",
        "software-version",
    ]
    assert (
        patch(
            "port-config/port",
            '{"port":[{"port-id":1,"label":"QUINTON"},{"port-id":9,"label":"B"}]}',
        )
        == 204
    )
    assert first("port-config/port")[0] == {
        "port-id": 1,
        "status": "ENABLED",
        "label": "QUINTON",
        "peer-port": "",
    }
    assert patch("cross-connects/pair", '{"pair":{"ingress":2,"egress":10}}') == 204
    assert patch("cross-connects/pair", '{"pair":[{"ingress":1,"egress":11}]}') == 204
    assert wire.plant.pairs() == (("7", "12"), ("2", "10"), ("1", "11"))
    assert (
        len(first("opm-power/port")) == len(first("opm-config/port")) == 16
        and len(first("voa/port")) == 8
    )


@pytest.mark.parametrize("older", [True, False])
def test_a_web_page_reads_a_ports_label_where_older_software_has_it(older: bool) -> None:
    wire = rest(preset=[["1", "9"]], older_ports=older)
    sent(
        wire,
        "PATCH /api/data/optical-switch:port-config/port=1",
        TYPED,
        '{"port": {"label":"gpu01"}}',
    )
    status, body = sent(wire, f"GET {CROSS}", PAGE.replace("*/*", "application/yang-data+json"))
    assert status == 200 and json.loads(body)["optical-switch:cross-connects"]["pair"] == [
        {"ingress": 1, "egress": 9}
    ]
    status, body = sent(wire, "GET /api/data/optical-switch:ports/port=1/port-label", PAGE)
    assert status == (200 if older else 404)
    assert not older or json.loads(body) == {"optical-switch:port-label": "gpu01"}


def test_a_leaf_is_a_resource_of_its_own() -> None:
    """RFC 8040 section 3.5."""
    wire, label = rest(preset=[["1", "9"]]), "/api/data/optical-switch:port-config/port=1/label"
    for method in ("PUT", "PATCH"):
        assert (
            sent(
                wire,
                f"{method} {label}",
                AXIOS + TYPED,
                json.dumps({"optical-switch:label": method}),
            )[0]
            == 204
        )
        assert json.loads(sent(wire, f"GET {label}", AXIOS)[1]) == {"optical-switch:label": method}
    assert sent(wire, f"DELETE {label}", AXIOS)[0] == 204
    assert json.loads(sent(wire, f"GET {label}", AXIOS)[1]) == {"optical-switch:label": ""}
    assert sent(wire, f"PUT {CROSS}/pair=1/egress", AXIOS + TYPED, '{"egress": 10}')[0] == 204
    assert wire.plant.pairs() == (("1", "10"),)
    assert sent(wire, f"DELETE {CROSS}/pair=1/egress", AXIOS)[0] == 400
    assert sent(wire, f"PUT {CROSS}/pair=1/ingress", AXIOS + TYPED, '{"ingress": 2}')[0] == 405
    assert sent(wire, f"PUT {CROSS}/pair=2/egress", AXIOS + TYPED, '{"egress": 11}')[0] == 404
    assert sent(wire, f"GET {CROSS}/pair=1/colour", AXIOS)[0] == 404
    assert wire.plant.pairs() == (("1", "10"),)


def test_an_answer_begins_as_the_recorded_one() -> None:
    wire = rest(preset=[["1", "9"]])
    wire.connect()
    output = wire.send(
        f"GET /api/data/cross-connects/pair HTTP/1.1\r\nHost: x\r\nAuthorization: Basic YWRtaW46cm9vdA==\r\n{AXIOS}\r\n".encode()
    )
    head = output.partition(b"\r\n\r\n")[0].decode().split("\r\n")
    assert (
        head[:2] == ["HTTP/1.1 200 OK", "server: "]
        and "content-type: application/yang-data+json" in head
    )
    assert re.fullmatch(r'etag: "\d{4}-\d{6}-\d{6}"', head[2])


# NETCONF

BASE, OPTICAL, SWITCH = (
    "urn:ietf:params:xml:ns:netconf:base:1.0",
    "http://www.polatis.com/yang/optical-switch",
    "http://www.polatis.com/yang/polatis-switch",
)
END = "]]>]]>"
METERS = f'<nc:filter type="subtree"><opm-config xmlns="{OPTICAL}"><port/></opm-config></nc:filter>'


def netconf(**more: object) -> Wire:
    """A switch that ncclient has greeted."""
    wire = Wire("polatis-netconf", size="8x8", settle_s=0.0, base_1_1=False, **more)
    wire.send(
        f'<?xml version="1.0" encoding="UTF-8"?><nc:hello xmlns:nc="{BASE}"><nc:capabilities>'
        f"<nc:capability>urn:ietf:params:netconf:base:1.0</nc:capability></nc:capabilities></nc:hello>{END}".encode()
    )
    return wire


def rpc(wire: Wire, operation: str) -> etree._Element:
    """Send what ncclient makes of an operation; return the content of the reply."""
    head = f'<?xml version="1.0" encoding="UTF-8"?><nc:rpc xmlns:nc="{BASE}" message-id="urn:uuid:6cc8d2a5">'
    reported = wire.send(f"{head}{operation}</nc:rpc>{END}".encode())
    (content,) = etree.fromstring(reported.removesuffix(END.encode()))
    return content


def get(wire: Wire, subtree: str) -> etree._Element:
    return rpc(wire, f'<nc:get><nc:filter type="subtree">{subtree}</nc:filter></nc:get>')


def edit(wire: Wire, config: str) -> etree._Element:
    return rpc(
        wire,
        f"<nc:edit-config><nc:target><nc:running/></nc:target><nc:config>{config}</nc:config></nc:edit-config>",
    )


def text(answer: etree._Element) -> str:
    assert answer.tag == f"{{{BASE}}}rpc-error"
    return str(answer.findtext(f"{{{BASE}}}error-message"))


def test_a_client_built_on_ncclient_makes_reads_and_deletes_all_it_knows() -> None:
    wire = netconf()
    for ingress, egress in ((1, 9), (2, 10)):
        pair = f"<pair><ingress>{ingress}</ingress><egress>{egress}</egress></pair>"
        assert (
            edit(wire, f'<cross-connects xmlns="{OPTICAL}">{pair}</cross-connects>').tag
            == f"{{{BASE}}}ok"
        )
    for asked, found in (
        ("<ingress/><egress/>", 2),
        ("<ingress>1</ingress><egress/>", 1),
        ("<ingress>3</ingress><egress/>", 0),
    ):
        data = get(wire, f'<cross-connects xmlns="{OPTICAL}"><pair>{asked}</pair></cross-connects>')
        assert len(data.findall(f".//{{{OPTICAL}}}pair")) == found
    lost = '<pair nc:operation="delete"><ingress>1</ingress></pair>'
    assert (
        edit(wire, f'<cross-connects xmlns="{OPTICAL}">{lost}</cross-connects>').tag
        == f"{{{BASE}}}ok"
    )
    assert wire.plant.pairs() == (("2", "10"),)
    for config in (
        f'<opm-config xmlns="{OPTICAL}"><port><port-id>9</port-id><wavelength>1310.00</wavelength></port></opm-config>',
        f'<voa xmlns="{OPTICAL}"><port><port-id>9</port-id><atten-mode>VOA_MODE_MAXIMUM</atten-mode></port></voa>',
        f'<port-config xmlns="{OPTICAL}"><port><port-id>1</port-id><label>T</label><peer-port/></port></port-config>',
    ):
        assert edit(wire, config).tag == f"{{{BASE}}}ok", config
    for port in rpc(
        wire, f"<nc:get-config><nc:source><nc:running/></nc:source>{METERS}</nc:get-config>"
    ).iter(f"{{{OPTICAL}}}port"):
        found = [
            port.findtext(f"{{{OPTICAL}}}{leaf}")
            for leaf in ("port-id", "wavelength", "offset", "averaging-time")
        ]
        assert all(found) and (found[0] == "9") == (found[1] == "1310.00")
    for word in ("port-disab", "port-enab"):
        done = rpc(
            wire,
            f'<port-shutter-set-state xmlns="{SWITCH}"><{word}>2</{word}></port-shutter-set-state>',
        )
        assert done.tag == f"{{{BASE}}}ok"
    data = get(
        wire, f'<opm-power xmlns="{OPTICAL}"><port><port-id>10</port-id><power/></port></opm-power>'
    )
    assert float(str(data.findtext(f".//{{{OPTICAL}}}power"))) < 0
    data = get(
        wire, f'<port-config xmlns="{OPTICAL}"><port><port-id/><label/></port></port-config>'
    )
    assert data.findtext(f".//{{{OPTICAL}}}label") == "T"


@pytest.mark.parametrize(("revision", "name"), [("2017-08-03", "pairs"), ("2017-08-04", "pair")])
def test_an_error_has_the_words_that_the_vendors_tests_expect(revision: str, name: str) -> None:
    wire = netconf(revision=revision)

    def made(ingress: str, egress: str) -> str:
        pair = f"<{name}><ingress>{ingress}</ingress><egress>{egress}</egress></{name}>"
        return text(edit(wire, f'<cross-connects xmlns="{OPTICAL}">{pair}</cross-connects>'))

    assert made("1000", "9") == made("1000", "2000") == "Invalid OXC port: 1000"
    no_light = "Either the port is invalid or it does not have switching capability"
    assert (
        made("1", "2000") == made("1", "2") == f"/cross-connects/{name}[ingress='1'] : {no_light}"
    )
    for port in ("1000", "polatis"):
        answer = get(
            wire,
            f'<cross-connects xmlns="{OPTICAL}"><{name}><ingress>{port}</ingress></{name}></cross-connects>',
        )
        assert text(answer) == f"/opsw:cross-connects/{name}{{{port}}}: Invalid OXC port: {port}"
    assert wire.plant.pairs() == ()
