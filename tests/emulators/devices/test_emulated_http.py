"""HTTP as emulated devices serve it: framing, connections, logins, limits. Referees: http.client,
httpx, curl.
"""

from __future__ import annotations

import asyncio
import base64
import http.client
from collections.abc import Sequence
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from emulators.devices.dialects.base import Session
from emulators.devices.dialects.http import (
    MAX_BODY,
    MAX_HEAD,
    MAX_WAITING,
    HttpDialect,
    Request,
    Response,
)
from emulators.devices.server import DeviceServer
from emulators.optics.plant import Plant
from tests.emulators.emulated import Device

BASIC = "Basic " + base64.b64encode(b"admin:root").decode()


class Echo(HttpDialect[None]):
    """Answers with the request it received."""

    def answer(self, request: Request, now: float) -> Response:
        if request.path == "/nothing":
            return Response(204)
        reply = {
            "method": request.method,
            "path": request.path,
            "query": list(request.query),
            "body": request.body.decode("latin-1"),
        }
        return Response.of_json(reply)

    def snapshot(self, now: float) -> None:
        return None


def echo(**keys: Any) -> Echo:
    return Echo(Plant("d", ["1"], ["2"]), **keys)


@pytest.fixture
async def device() -> Any:
    made = Device(DeviceServer("d", echo(), scheme="http"))
    await made.server.start()
    yield made
    for client in made.clients:
        client.writer.close()
    await made.server.stop()


def send(dialect: Echo, *pieces: bytes) -> tuple[Session, list[bytes | None]]:
    session = dialect.open(0.0)
    assert session is not None
    for piece in pieces:
        dialect.receive(session, piece, 1.0)
    return session, [data for _, _, data in dialect.drain()]


def status(data: bytes | None) -> int:
    assert data is not None
    return int(data.split(b" ", 2)[1])


async def test_the_standard_library_keeps_a_connection_and_may_close_it(device: Device) -> None:
    def talk() -> list[tuple[int, Any]]:
        answers = []
        connection = http.client.HTTPConnection("127.0.0.1", device.server.port, timeout=2)
        connection.connect()
        sock = connection.sock
        for method, path, body in (
            ("GET", "/a%20b?x=1&x=2&y", b""),
            ("PUT", "/c", b"{}"),
            ("DELETE", "/nothing", b""),
        ):
            connection.request(method, path, body)
            assert connection.sock is sock
            response = connection.getresponse()
            answers.append((response.status, response.read()))
        connection.request("GET", "/z", headers={"Connection": "close"})
        response = connection.getresponse()
        answers.append((response.status, response.will_close))
        response.read()
        connection.close()
        return answers

    first, second, third, last = await asyncio.to_thread(talk)
    assert first == (
        200,
        b'{"method": "GET", "path": "/a b", "query": [["x", "1"], ["x", "2"], ["y", ""]], "body": ""}',
    )
    assert second[1] == b'{"method": "PUT", "path": "/c", "query": [], "body": "{}"}'
    assert third == (204, b"") and last == (200, True)


async def test_chunked_bodies_are_put_together(device: Device) -> None:
    async def pieces() -> Any:
        for piece in (b"ab", b"c" * 5000, b"d"):
            yield piece

    async with httpx.AsyncClient(trust_env=False) as client:
        answer = await client.post(f"http://127.0.0.1:{device.server.port}/", content=pieces())
    assert answer.json()["body"] == "ab" + "c" * 5000 + "d"


async def test_curl_waits_for_continue_and_is_told(device: Device) -> None:
    curl = await asyncio.create_subprocess_exec(
        "curl", "-sS", "--noproxy", "*", "-H", "Expect: 100-continue", "-d", "hello", f"http://127.0.0.1:{device.server.port}/",
        "--expect100-timeout", "10", "-m", "5", stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, _ = await curl.communicate()
    assert curl.returncode == 0 and b'"body": "hello"' in out


@pytest.mark.parametrize("chunking", ["whole", "split", "byte"])
async def test_pipelined_requests_are_answered_in_order(device: Device, chunking: Any) -> None:
    device.server.chunking = chunking
    client = await device.connect()
    for byte in (
        b"GET /1 HTTP/1.1\r\nHost: x\r\n\r\nGET /2 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    ):
        client.writer.write(bytes((byte,)))
    reported = await client.ended()
    assert (
        reported.index(b'"/1"') < reported.index(b'"/2"')
        and reported.count(b"HTTP/1.1 200 OK") == 2
    )


@pytest.mark.parametrize(
    ("message", "wanted"),
    [
        (b"hello\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n\r\n", 400),  # no Host: RFC 9112 3.2
        (b"GET /\x00 HTTP/1.1\r\nHost: x\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: x\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nz\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip\r\n\r\n", 501),
        (b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"y" * 2 * MAX_HEAD, 431),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
    ],
)
def test_what_is_no_request_gets_what_fits_and_the_connection_ends(
    message: bytes, wanted: int
) -> None:
    for pieces in (
        [message, b"\r\n\r\n"],
        [message[i : i + 1] for i in range(len(message))] + [b"\r\n\r\n"],
    ):
        _, out = send(echo(), *pieces)
        assert status(out[0]) == wanted and out[1:] == [None]
        assert out[0] and b"connection: close" in out[0]


def test_a_body_may_be_so_long_and_no_longer() -> None:
    head = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n"
    _, out = send(echo(), head % MAX_BODY, b"x" * MAX_BODY)
    assert status(out[0]) == 200
    _, out = send(echo(), head % (MAX_BODY + 1), b"x" * (MAX_BODY + 1))
    assert (status(out[0]), out[1]) == (413, None)


def test_nothing_is_read_behind_the_last_request() -> None:
    session, out = send(echo(), b"GET /1 HTTP/1.0\r\n\r\nGET /2 HTTP/1.0\r\n\r\n")
    assert len(out) == 2 and out[1] is None
    assert session.buffer == b""


def test_only_so_many_requests_may_wait() -> None:
    dialect = echo()
    dialect.inject(0.0, "slow", seconds=100)
    session, _ = send(dialect, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" * 1000)
    assert len(session.queue) <= MAX_WAITING + 1


@pytest.mark.parametrize(
    ("header", "wanted"),
    [
        ("", 401),
        (BASIC, 200),
        (BASIC.replace("Basic", "basic"), 200),
        ("Basic " + base64.b64encode(b"admin:toor").decode(), 401),
        ("Basic " + base64.b64encode(b"admin").decode(), 401),
        ("Basic !!!", 401),
        ("Basic é", 401),
        ("Bearer x", 401),
    ],
)
def test_a_name_and_a_password_are_asked_for(header: str, wanted: int) -> None:
    line = f"Authorization: {header}\r\n" if header else ""
    _, out = send(
        echo(username="admin", password="root"),
        f"GET / HTTP/1.1\r\nHost: x\r\n{line}\r\n".encode("latin-1"),
    )
    assert (
        status(out[0]) == wanted
        and out[0]
        and (b'www-authenticate: Basic realm="device"' in out[0]) is (wanted == 401)
    )


def test_a_head_has_no_body_but_its_length() -> None:
    _, out = send(echo(), b"HEAD / HTTP/1.1\r\nHost: x\r\n\r\n")
    assert out[0] and out[0].endswith(b"\r\n\r\n") and b"content-length: 56" in out[0]


@pytest.mark.parametrize(
    ("kind", "answers"),
    [
        ("swallow", []),
        ("drop-before", [None]),
        ("drop-after", [None]),
        ("refuse", [503]),
        ("plna", [401]),
        ("twice", [200]),
        ("unsolicited-before", [408]),
    ],
)
def test_faults_strike_requests(kind: str, answers: list[int | None]) -> None:
    dialect = echo()
    dialect.inject(0.0, kind, match="^GET /x ")
    _, out = send(dialect, b"GET /x HTTP/1.1\r\nHost: x\r\n\r\n")
    assert [None if data is None else status(data) for data in out] == answers
    assert kind != "twice" or (out[0] and out[0].count(b"HTTP/1.1 200") == 2)


def test_a_late_answer_still_ends_its_connection_and_not_before() -> None:
    dialect = echo()
    dialect.inject(0.0, "split", seconds=0.5)
    session = dialect.open(0.0)
    assert session is not None
    dialect.receive(session, b"GET /x HTTP/1.0\r\n\r\n", 1.0)
    assert [(at, data is None) for _, at, data in dialect.drain()] == [
        (1.0, False),
        (1.5, False),
        (1.5, True),
    ]


HEAD = st.sampled_from([b"GET", b"PUT", b"POST", b"DELETE", b"OPTIONS", b"HEAD", b"\0", b""])
TARGET = st.sampled_from(
    [
        b"/",
        b"/api/data/optical-switch:cross-connects",
        b"/rest/crossconnects/?id=add",
        b"*",
        b"%zz",
        b"//",
    ]
)
LINE = st.sampled_from(
    [
        b"Host: x",
        b"Content-Length: 3",
        b"Content-Length: -1",
        b"Transfer-Encoding: chunked",
        b"Connection: close",
    ]
)
REQUEST = st.builds(
    lambda method, target, version, lines, body: b"%b %b HTTP/%b\r\n%b\r\n\r\n%b"
    % (method, target, version, b"\r\n".join(lines), body),
    HEAD, TARGET, st.sampled_from([b"1.1", b"1.0", b"2", b""]), st.lists(LINE, max_size=4), st.binary(max_size=12),
)  # fmt: skip


@given(pieces=st.lists(st.one_of(st.binary(max_size=60), REQUEST), max_size=8))
@settings(deadline=None)
def test_no_bytes_upset_an_http_device(pieces: Sequence[bytes]) -> None:
    dialect = echo(username="admin", password="root")
    session, out = send(dialect, *pieces)
    lines = [data for data in out if data]
    assert all(data.startswith(b"HTTP/1.1 ") and b"\r\n\r\n" in data for data in lines)
    assert out.count(None) <= 1 and (None not in out or out[-1] is None)
    assert session.buffer == b""
