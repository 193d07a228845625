"""The HTTP link: each kind of missing or wrong answer has its own error, and every wait is
bounded.
"""

from __future__ import annotations

import asyncio
import gzip
import re
import ssl
import subprocess
import tracemalloc
import zlib
from pathlib import Path

import pytest

from drivers.link import Dropped
from drivers.link.http import LONGEST_BODY, HttpLink
from drivers.session.rest import RestSession
from optics import BadFile, Garbled, Refused, TimedOut, Unreachable
from tests.drivers.scripted import Request, http, http_device
from tests.drivers.test_untagged_answers import answering


async def ask(answer: bytes, timeout_s: float = 0.3) -> bytes:
    async with http_device(lambda _: answer) as (address, _):
        link = HttpLink("ocs1", address, timeout_s)
        try:
            return (await link.exchange("GET", "/map", question="GET /map")).body
        finally:
            await link.close()


async def test_a_question_carries_the_login_and_nothing_of_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    async with http_device(lambda _: http(200, "[]", etag='"7"')) as (address, heard):
        link = HttpLink("ocs1", f"{address}/lab/", 1.0, username="admin", password="root")
        answer = await link.exchange(
            "PUT",
            "/x?id=1",
            question="PUT /x",
            body=b"{}",
            headers={"Content-Type": "application/json"},
        )
        await link.close()
        await link.close()
    assert (answer.status, answer.body, answer.headers["etag"]) == (200, b"[]", '"7"')
    (request,) = heard
    assert (request.method, request.path, request.body) == ("PUT", "/lab/x?id=1", b"{}")
    assert request.headers["authorization"] == "Basic YWRtaW46cm9vdA=="
    assert request.headers["content-type"] == "application/json"


async def test_cookies_come_back_until_the_link_is_closed() -> None:
    async with http_device(lambda _: http(200, "", set_cookie="session=5; Path=/")) as (
        address,
        heard,
    ):
        link = HttpLink("ocs1", address, 1.0)
        for _ in range(2):
            await link.exchange("GET", "/", question="GET /")
        await link.close()
        await link.exchange("GET", "/", question="GET /")
        await link.close()
    assert [request.headers.get("cookie") for request in heard] == [None, "session=5", None]


async def test_a_connection_that_ends_before_the_answer_is_dropped_not_unreachable() -> None:
    with pytest.raises(Dropped, match="GET /map"):
        await ask(b"")


@pytest.mark.parametrize(
    "answer",
    [
        b'HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n{"pair":[',
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n",
        b"\x00\x01\x02 nothing of the kind\r\n\r\n",
        b"SSH-2.0-OpenSSH_9.2\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"X: " + b"y" * 200_000 + b"\r\n\r\n",
        b"HTTP/1.1 abc\r\n\r\n",
    ],
    ids=["cut short", "bad chunk", "binary", "ssh", "endless header", "no status"],
)
async def test_what_is_not_whole_http_is_garbled(answer: bytes) -> None:
    with pytest.raises(Garbled, match=r'ocs1.*"GET /map"'):
        await ask(answer)


async def test_an_answer_without_end_is_not_taken_into_memory() -> None:
    with pytest.raises(Garbled, match=f"more than {LONGEST_BODY} bytes"):
        await ask(http(200, b" " * (LONGEST_BODY + 1)), timeout_s=5)


async def test_a_redirect_is_an_answer_and_is_not_followed() -> None:
    async with http_device(lambda _: http(302, "", location="http://127.0.0.1:1/")) as (
        address,
        heard,
    ):
        link = HttpLink("ocs1", address, 0.5, username="admin", password="root")
        assert (await link.exchange("GET", "/", question="GET /")).status == 302
        await link.close()
    assert len(heard) == 1


@pytest.mark.parametrize(
    "address",
    ["tcp://h:80", "http://", "http://h:99999", "http://u:p@h/", "http://h/?a=1", "http://h/#x"],
)
def test_an_address_of_another_form_is_refused(address: str) -> None:
    with pytest.raises(BadFile, match="ocs1: address"):
        HttpLink("ocs1", address, 1.0)


async def test_https_is_trusted_only_with_the_right_certificate(tmp_path: Path) -> None:
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 1 -subj /CN=ocs1"
    files = [
        "-addext",
        "subjectAltName=IP:127.0.0.1",
        "-keyout",
        tmp_path / "key.pem",
        "-out",
        tmp_path / "cert.pem",
    ]
    made = await asyncio.to_thread(subprocess.run, [*command.split(), *files], capture_output=True)
    assert made.returncode == 0
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(tmp_path / "cert.pem", tmp_path / "key.pem")

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(http(200, "yes"))
        writer.close()

    server = await asyncio.start_server(talk, "127.0.0.1", 0, ssl=context)
    address = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    link = HttpLink("ocs1", address, 2.0)
    with pytest.raises(Unreachable, match="is not trusted") as raised:
        await link.exchange("GET", "/", question="GET /")
    assert "ca_file" in raised.value.hint
    await link.close()
    link = HttpLink("ocs1", address, 2.0, ca_file=str(tmp_path / "cert.pem"))
    assert (await link.exchange("GET", "/", question="GET /")).body == b"yes"
    await link.close()
    link = HttpLink("ocs1", address, 2.0, ca_file=str(tmp_path / "none.pem"))
    with pytest.raises(Unreachable, match=r"none\.pem"):
        await link.exchange("GET", "/", question="GET /")
    await link.close()
    server.close()
    await server.wait_closed()


async def test_a_lost_read_is_asked_again_and_a_lost_change_is_not() -> None:
    lost = iter([b"", http(200, "ok"), b""])
    async with http_device(lambda _: next(lost)) as (address, heard):
        session = RestSession(HttpLink("ocs1", address, 0.5))
        assert await session.ask("/map", lambda answer: answer.body) == b"ok"
        with pytest.raises(Dropped):
            await session.send("PUT", "/map", lambda answer: answer.body, body=b"x")
        await session.close()
    assert [request.method for request in heard] == ["GET", "GET", "PUT"]


async def test_a_session_that_is_over_is_begun_again_and_a_wrong_login_is_refused_without_its_password() -> (
    None
):
    def answers(request: Request) -> bytes:
        return (
            http(401)
            if request.headers.get("cookie") or "bad" in request.path
            else http(200, "[]", set_cookie="s=1")
        )

    async with http_device(answers) as (address, heard):
        session = RestSession(HttpLink("ocs1", address, 0.5, username="admin", password="hush"))
        for _ in range(2):
            assert await session.ask("/map", lambda answer: answer.body) == b"[]"
        with pytest.raises(Refused, match="refused the login of user 'admin'") as raised:
            await session.ask("/bad", lambda answer: answer.body)
        await session.close()
    assert "hush" not in str(raised.value) + raised.value.hint
    assert len(heard) == 5


async def test_a_time_out_states_how_long_it_took_not_how_long_a_silence_may_be() -> None:
    async def drip(line: str, writer: asyncio.StreamWriter) -> None:
        if not line:  # the end of the request
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n")
            for _ in range(6):
                writer.write(b"x")
                await asyncio.sleep(0.2)

    async with answering(drip) as port:
        link = HttpLink("ocs1", f"http://127.0.0.1:{port}", 0.6)
        with pytest.raises(TimedOut) as caught:
            await link.exchange("GET", "/map", question="GET /map")
        await link.close()
    lines = re.search(r"in (\d+\.\d) s; last received 'xxxxxx'", str(caught.value))
    assert lines and float(lines[1]) >= 1.5, str(caught.value)


# answers that are compressed though identity was asked for


@pytest.mark.parametrize(
    ("coding", "body"),
    [("gzip", gzip.compress(b"[1, 2]")), ("deflate", zlib.compress(b"[1, 2]"))],
    ids=["gzip", "deflate"],
)
async def test_a_compressed_answer_is_expanded(coding: str, body: bytes) -> None:
    assert await ask(http(200, body, content_encoding=coding)) == b"[1, 2]"


async def test_a_compressed_answer_is_expanded_no_further_than_an_answer_may_be_long() -> None:
    crush = zlib.compressobj(9, wbits=zlib.MAX_WBITS + 16)
    megabyte = bytes(1 << 20)
    bomb = b"".join(crush.compress(megabyte) for _ in range(200)) + crush.flush()
    assert len(bomb) < 300_000
    tracemalloc.start()
    try:
        with pytest.raises(Garbled, match=f"more than {LONGEST_BODY} bytes"):
            await ask(http(200, bomb, content_encoding="gzip"), timeout_s=10)
        assert tracemalloc.get_traced_memory()[1] < 3 * LONGEST_BODY
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("coding", "body", "text"),
    [
        ("gzip", gzip.compress(b"[1, 2]")[:-6], "cut short"),
        ("gzip", b"[1, 2]", "cannot be decoded"),
        ("br", b"x", "identity"),
    ],
    ids=["cut short", "not gzip", "brotli"],
)
async def test_a_compressed_answer_that_cannot_be_read_is_garbled(
    coding: str, body: bytes, text: str
) -> None:
    with pytest.raises(Garbled, match=text):
        await ask(http(200, body, content_encoding=coding))
