"""Bytes with a stated source, spoken to the emulators over a socket."""

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest

from tests.emulators.emulated import Client, Start

FOLDER = Path(__file__).parent / "transcripts"
CALIENT: dict[str, Any] = {
    "sid": "CALIENT01TS",
    "model": "S162",
    "serial": "C00002227",
    "firmware": "6.0-3",
}
DEVICES: dict[str, tuple[str, dict[str, Any]]] = {
    "polatis-identity-701": (
        "polatis-scpi",
        {
            "model": "N-VST-192x192-LA1-DMHNV-701",
            "serial": "001705",
            "firmware": "6.5.1.7",
            "size": "192x192",
        },
    ),
    "polatis-identity-ost": ("polatis-scpi", {"model": "I-OST-24x24-LU1-DMHNS", "size": "24x24"}),
    "polatis-connect": ("polatis-scpi", {}),
    "calient-identity": ("calient-tl1", CALIENT),
    "calient-ports": (
        "calient-tl1",
        CALIENT
        | {
            "ports": ["1.1.1", "6.1.1"],
            "preset": [{"in": "6.1.1", "out": "6.1.1", "type": "1WAY"}],
        },
    ),
    "calient-port-sum": (
        "calient-tl1",
        CALIENT | {"meters": False, "preset": [{"in": "1.1.1", "out": "1.1.2", "type": "1WAY"}]},
    ),
    "calient-create-destroy": ("calient-tl1", CALIENT),
    "tl1-not-logged-in": ("calient-tl1", CALIENT),
}


def read(name: str) -> list[tuple[str, str]]:
    """Return (marker, text) of every line; `# ` lines state source and grade and are left out."""
    lines = [(line[:1], line[2:]) for line in (FOLDER / f"{name}.txt").read_text().splitlines()]
    head = [text for marker, text in lines if marker == "#"]
    assert head[0].startswith("source: "), name
    assert re.fullmatch("grade: (REAL|DOC|CODE|constructed)", head[1]), name
    return [(marker, text) for marker, text in lines if marker != "#"]


def plain(text: str) -> list[str]:
    """Forget line ends, empty lines and the time of day."""
    return [
        re.sub(r"\d\d-\d\d-\d\d \d\d:\d\d:\d\d", "<time>", line)
        for line in text.replace("\r", "").split("\n")
        if line
    ]


async def play(client: Client, lines: list[tuple[str, str]]) -> None:
    for index, (marker, text) in enumerate(lines):
        if marker == "~":
            await asyncio.sleep(float(text))
        elif marker == ">":
            client.send(text if text.endswith(";") else text + "\n")
            answer = []
            for next_marker, next_text in lines[index + 1 :]:
                if next_marker != "<":
                    break
                answer.append(next_text)
            if answer:
                seen = await client.block() if answer[-1] == ";" else await client.line()
                assert plain(seen) == plain("\n".join(answer)), f"after {text}"
            else:
                assert await client.silent(0.002), f"after {text}"


@pytest.mark.parametrize("name", sorted(path.stem for path in FOLDER.glob("*.txt")))
@pytest.mark.parametrize("chunking", ["whole", "byte"])
async def test_the_device_says_what_the_transcript_says(
    start: Start, name: str, chunking: str
) -> None:
    driver, overrides = DEVICES[name]
    device = await start(driver, chunking=chunking, **overrides)
    client = await device.connect()
    if driver == "calient-tl1" and name != "tl1-not-logged-in":
        client.send("ACT-USER::admin:in::emulated;INH-MSG:::q;")
        assert "COMPLD" in await client.block()
        assert "COMPLD" in await client.block()
    await play(client, read(name))
