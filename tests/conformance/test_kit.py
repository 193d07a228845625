"""The driver kit: a scaffolded driver fails until written, a recording holds no secret, a replay
answers as the device did.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from conformance import transcript
from conformance.replay import Replay
from conformance.scaffold import PROTOCOLS, scaffold
from conformance.transcript import MASK, PAUSE_S, Recorder, read_transcript
from drivers.registry import open_device
from optics import BadFile, DeviceConfig, Usage

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("protocol", sorted(PROTOCOLS))
def test_a_scaffold_installs_says_who_the_device_is_and_fails_in_the_rest(
    protocol: str, tmp_path: Path
) -> None:
    folder = tmp_path / "acme"
    scaffold("acme-x", protocol, folder)
    # what an installation leaves, entry points and all
    info = folder / "acme_x_testbed-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-x-testbed\nVersion: 0.1.0\n")
    (info / "entry_points.txt").write_text(
        "[testbed.drivers]\nacme-x = acme_x_testbed.driver:AcmeX\n\n[testbed.emulators]\nacme-x = acme_x_testbed.emulated\n"
    )
    ran = subprocess.run(
        [sys.executable, "-m", "orchestrator.cli.main", "devices", "driver", "conform", "acme-x"],
        env={**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert ran.returncode == 7, ran.stderr[-2000:]
    reply = {line.split()[0]: line for line in ran.stdout.splitlines() if line.startswith("  ")}
    assert " confirmed " in reply["identify"]
    assert all(" not confirmed " in reply[name] for name in ("read", "change", "ready"))
    assert "reading is not written yet" in ran.stdout and "Traceback" not in ran.stdout + ran.stderr


@pytest.mark.parametrize("protocol", sorted(PROTOCOLS))
def test_a_scaffolded_transcript_is_one(protocol: str, tmp_path: Path) -> None:
    scaffold("acme-x", protocol, tmp_path)
    transcript = read_transcript(tmp_path / "transcripts" / "acme-x.txt")
    assert transcript.grade == "constructed" and transcript.exchanges[-1].answer


@pytest.mark.parametrize("name", ["Acme", "a;b", "-a", "a--b", "a\nb", ""])
def test_a_name_that_could_not_be_typed_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(Usage, match="not a driver name"):
        scaffold(name, "scpi", tmp_path / "x")
    assert not (tmp_path / "x").exists()


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(Usage, match="not empty"):
        scaffold("acme-x", "scpi", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_a_recording_masks_a_password_that_comes_back_in_pieces(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = itertools.count(step=2 * PAUSE_S)
    monkeypatch.setattr(transcript.time, "monotonic", lambda: next(clock))
    recorder = Recorder(["s3cret"])
    recorder.hear(">", b"s3cret\n")
    for piece in (b"Password: s3", b"cr", b"et\r\nwelc", b"ome\r\n"):
        recorder.hear("<", piece)
        recorder.hear(">", b"x\n")
    text = recorder.text("own device; credentials masked", "REAL")
    assert not any(part in text for part in ("s3", "cr\n", "< et"))
    assert text.count(MASK) == 2
    assert "< welc" in text and "< ome" in text


def test_a_recording_masks_credentials_in_every_form_they_travel_in(tmp_path: Path) -> None:
    recorder = Recorder(["s3cret"], [("admin", "s3cret")])
    recorder.hear(">", b"ACT-USER::admin:1::s3cret;")
    recorder.hear("<", b"\r\n   NE 26-01-01 12:00:00\r\nM  1 COMPLD\r\n;")
    recorder.hear(">", b"GET /x\nauthorization: Basic YWRtaW46czNjcmV0\n\n")
    text = recorder.text("own device; credentials masked", "REAL")
    assert "s3cret" not in text and "YWRtaW46czNjcmV0" not in text and text.count(MASK) == 2
    path = tmp_path / "x.txt"
    path.write_text(text)
    assert read_transcript(path).exchanges[0].answer == [
        (0.0, ["", "   NE 26-01-01 12:00:00", "M  1 COMPLD", ";"])
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("> a\n< b\n", "no source"),
        ("# source: x\n# grade: GOOD\n> a\n", "grade: wanted one of"),
        ("# source: x\n# grade: REAL\n", "no question"),
        ("# source: x\n# grade: REAL\nhello\n", ":3: wanted a line that starts with"),
        ("# source: x\n# grade: REAL\n> a\n~ soon\n", ":4: wanted seconds"),
    ],
)
def test_a_file_that_is_no_transcript_is_refused_with_its_place(
    text: str, message: str, tmp_path: Path
) -> None:
    path = tmp_path / "x.txt"
    path.write_text(text)
    with pytest.raises(BadFile) as caught:
        read_transcript(path)
    assert message in str(caught.value)


@pytest.mark.testbed(driver="polatis-scpi")
async def test_what_was_recorded_of_a_device_is_the_device_again(
    emulated_lab, tmp_path: Path
) -> None:  # type: ignore[no-untyped-def]
    from drivers.link.recorder import listening

    (config,) = emulated_lab.devices.values()
    recorder = Recorder([])
    device = open_device(config)
    with listening(config.name, recorder.hear):
        identity, held = await device.identify(), await device.read()
    await device.close()
    path = tmp_path / "polatis.txt"
    path.write_text(recorder.text("emulated device", "constructed"))
    async with Replay(read_transcript(path), piece=1) as replay:
        again = open_device(DeviceConfig("ocs1", "polatis-scpi", f"tcp://127.0.0.1:{replay.port}"))
        assert await again.identify() == identity and {str(s)[4:] for s in await again.read()} == {
            str(s) for s in held
        }
        await again.close()
    assert replay.asked == ["*IDN?", ":oxc:swit:size?", ":oxc:swit:conn:stat?"]


async def test_http_is_served_from_a_transcript(tmp_path: Path) -> None:
    path = tmp_path / "x.txt"
    path.write_text(
        '# source: x\n# grade: constructed\n> GET /info\n< HTTP/1.1 200\n< content-type: application/json\n<\n< {"a": 1}\n'
        "> PUT /pair=1\n> content-type: text/plain\n>\n> 9\n< HTTP/1.1 204\n"
    )
    async with (
        Replay(read_transcript(path)) as replay,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{replay.port}") as client,
    ):
        assert (await client.get("/info")).json() == {"a": 1}
        assert (await client.put("/pair=1", content="9")).status_code == 204
        assert (await client.put("/pair=1", content="8")).status_code == 404
        assert (await client.get("/else")).status_code == 404


async def test_nothing_of_a_replay_is_left(tmp_path: Path) -> None:
    path = tmp_path / "x.txt"
    path.write_text("# source: x\n# grade: constructed\n> *IDN?\n< a,b,c,d\n")
    async with Replay(read_transcript(path)) as replay:
        reader, writer = await asyncio.open_connection("127.0.0.1", replay.port)
        writer.write(b"*IDN?\n")
        assert await reader.readline() == b"a,b,c,d\n"
    assert await reader.read() == b""
    writer.close()
    await writer.wait_closed()
