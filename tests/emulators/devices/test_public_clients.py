"""What public clients send, byte by byte, and what each of them needs to find in the answer.

Of every client only the bytes on the wire are kept here, with a password of this project's own:
what it looks for is written again. A step is what is sent, what ends the answer for this client,
and what it must find in it; None: it is sent nothing.
"""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import pytest

from tests.emulators.emulated import Client, Start, until

Step = tuple[bytes, bytes, bytes] | tuple[bytes, None, None]

PROMPT = rb";\r\n<\Z"  # CODE: a lab reads its Glimmerglass up to here
DONE = rb"M  1 (COMPLD|DENY)\r\n(   .*\r\n)*;"
DONE_0 = rb"M  0 (COMPLD|DENY)\r\n(   .*\r\n)*;"
FINE = rb"M  [01] COMPLD"
LINE = rb"\n"
BODY = rb"\r\n\r\n\{.*\}\s*\Z"

REQUESTS = (
    b"Host: 169.254.6.8\r\nUser-Agent: python-requests/2.31.0\r\nAccept-Encoding: gzip, deflate\r\nAccept: */*\r\n"
    b"Connection: keep-alive\r\n"
)


def post(asked: dict[str, Any]) -> bytes:
    """A JSON text as the vendor's client posts it: without a type of content."""
    body = json.dumps(asked).encode()
    return (
        b"POST /waveshaper/loadprofile HTTP/1.1\r\n"
        + REQUESTS
        + b"Content-Length: %d\r\n\r\n" % len(body)
        + body
    )


VENDORS_FILE = "".join(
    f"{ghz / 1000:.3f}\t0.00\t0.00\t{int(191_250 <= ghz < 196_276)}\r\n"
    for ghz in range(191_100, 196_460)
)

CLIENTS: dict[str, tuple[str, dict[str, Any], list[Step], set[tuple[object, ...]]]] = {
    "a lab's Glimmerglass client": (
        "glimmerglass-tl1",
        {"username": "admin", "password": "emulated"},
        [
            (b"act-user::admin:1::emulated;\n", PROMPT, FINE),
            (b"ent-crs-fiber::10001,20002:1:::OPMODE=Async;\n", PROMPT, FINE),
            (b"ent-crs-fiber::10002,20001:1:::OPMODE=Async;\n", PROMPT, FINE),
            (
                b"rtrv-sigtype-fiber::20002:2;\n",
                PROMPT,
                rb"PORTID=20002,PORTNAME=OUT2,SIGTYPE=1550",
            ),
            (
                b"rtrv-crs-fiber::20002:1;\n",
                PROMPT,
                rb"IPORTID=10001,.*OPORTID=20002,.*CONNSTATE=steady,CONNCAUSE=none",
            ),
            (b"dlt-crs-fiber::10001:1:::OPMODE=Async;\n", PROMPT, FINE),
            (b"canc-user:::1;\n", PROMPT, FINE),
        ],
        {("10002", "20001")},
    ),
    "a tester's Glimmerglass client": (
        "glimmerglass-tl1",
        {"echo": "once"},
        [
            (b"ED-PARAM:::1:::NAME=PowerMonitoringPeriod,VAL=1;", DONE, FINE),
            (b"ENT-CRS-FIBER::all,all:1:::opmode=sync;", DONE, FINE),
            (b"DLT-CRS-FIBER::all,all:1:::opmode=async;", DONE, FINE),
            (b"ENT-CRS-FIBER::10001&10002,20002&20001:1:::opmode=sync;", DONE, FINE),
            (b"DLT-CRS-FIBER::10001&10002,20002&20001:1:::opmode=sync;", DONE, FINE),
        ],
        set(),
    ),
    "a tester's Calient client": (
        "calient-tl1",
        {"ports": "numbers"},
        [
            (b"act-user::admin:1::emulated;", DONE, FINE),
            (b"ent-crs::1,1:::SYSTEM,1WAY,LOOPBACK_001,,;", DONE_0, FINE),
            (b"ent-crs::2,3:::,1WAY,;", DONE_0, FINE),
            (
                b"rtrv-crs;",
                DONE_0,
                rb'"1>1:SRCPORT=1,DSTPORT=1,.*CONNNAME=LOOPBACK_001,.*"2>3:SRCPORT=2,DSTPORT=3,',
            ),
            (
                b"rtrv-port-sum::0;",
                DONE_0,
                rb'"1:ALIAS=NONE,INPWR=-?[\d.]+,OUTPWR=-?[\d.]+,CONNNAME1=LOOPBACK_001,CONNSTATE1=NONE,',
            ),
            (b"dlt-crs::1,1:::LOOPBACK_001;", DONE_0, FINE),
            (b"dlt-crs-all;", DONE_0, FINE),
        ],
        set(),
    ),
    "a lab manager's Calient client": (
        "calient-tl1",
        {"meters": False},
        [
            (b"ACT-USER::admin:1::emulated;", DONE, FINE),
            (b"ENT-CRS::1.1.1,1.1.2:1::Quali,1WAY;", DONE, FINE),
            (b"RTRV-PORT-SUM::1.1.1;", DONE_0, rb"CONNNAME1=1.1.1>1.1.2,CONNSTATE1=NONE"),
            (b"ACT-CRS::1.1.1,1.1.2:1::1.1.1>1.1.2,Quali;", DONE, FINE),
            (b"RTRV-PORT-SUM::1.1.1;", DONE_0, rb"CONNNAME1=1.1.1>1.1.2,CONNSTATE1=ACT"),
            (b"CANC-CRS::1.1.1,1.1.2:1::,Quali,1.1.1>1.1.2;", DONE, FINE),
            (b"DLT-CRS::1.1.1,1.1.2:1::,Quali,1.1.1>1.1.2;", DONE, FINE),
            (b"ENT-CRS::1.1.3,1.1.4:1::Quali,2WAY;", DONE, FINE),
            (b"ACT-CRS::1.1.3,1.1.4:1::1.1.3-1.1.4,Quali;", DONE, FINE),
        ],
        {("1.1.3", "1.1.4"), ("1.1.4", "1.1.3")},
    ),
    "a lab's client of a DiCon matrix": (
        "dicon-scpi",
        {"module": True},
        [
            (b"X1 CH * 0\n", None, None),
            (b"X1 CH 1 3\n", None, None),
            (b"X1 CH 2 1\n", None, None),
            (b"X1 CH? 1\n", LINE, rb"\A3\n\Z"),
            (b"X1 CH? 3\n", LINE, rb"\A0\n\Z"),
        ],
        {("1", "3"), ("2", "1")},
    ),
    "the vendor's client of a WaveShaper": (
        "waveshaper-http",
        {
            "size": "1x1",
            "model": "1000A",
            "firmware": "1.3.1",
            "start_thz": 191.05,
            "stop_thz": 196.475,
            "served": {"scheme": "http"},
        },
        [
            (
                b"GET /waveshaper/devinfo HTTP/1.1\r\n" + REQUESTS + b"\r\n",
                BODY,
                rb'"startfreq": ?191.05, ?"stopfreq": ?196.475',
            ),
            (
                post({"type": "blockall", "port": 1, "center": 193.0, "bandwidth": 1.0, "attn": 0}),
                BODY,
                rb'"rc": ?0',
            ),
            (post({"type": "wsp", "wsp": VENDORS_FILE}), BODY, rb'"rc": ?0'),
        ],
        {("in", "1", 191_250_000, 196_276_000)},
    ),
}


async def answer(client: Client, end: bytes) -> bytes:
    heard = b""
    async with asyncio.timeout(5.0):
        while not re.search(end, heard, re.DOTALL if end is BODY else 0):
            piece = await client.reader.read(65_536)
            assert piece, f"the connection ended after {heard!r}"
            heard += piece
    return heard


@pytest.mark.parametrize("who", CLIENTS)
@pytest.mark.parametrize("chunking", ["whole", "split"])
async def test_a_public_client_gets_the_answers_it_needs(
    start: Start, who: str, chunking: str
) -> None:
    driver, overrides, steps, lit = CLIENTS[who]
    device = await start(driver, chunking=chunking, settle_s=0.0, **overrides)
    client = await device.connect()
    for sent, end, wanted in steps:
        client.writer.write(sent)
        if end is not None:
            heard = await answer(client, end)
            assert re.search(wanted, heard, re.DOTALL), f"{sent[:80]!r}: {heard[-400:]!r}"
    await until(lambda: device.lit() == lit)
