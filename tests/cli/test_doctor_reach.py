"""`doctor` asks devices and hosts: who they are, and whether they take the next run."""

from __future__ import annotations

import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from optics import Identity
from orchestrator.inventory.hosts import Host
from orchestrator.verify import doctor_reach
from orchestrator.verify.probe import Probe
from tests.cli.test_doctor import lab_at


@contextmanager
def answering(*replies: bytes) -> Iterator[int]:
    """A TCP server that answers its n-th line with the n-th of `replies`, and with nothing after
    the last.
    """

    class Talk(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            for reply in replies:
                if not self.rfile.readline():
                    return
                self.wfile.write(reply)
            self.rfile.read()

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True

    with Server(("127.0.0.1", 0), Talk) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()


async def test_a_device_says_who_it_is_and_a_missing_port_or_a_silent_one_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Device:
        def __init__(self, ingress: tuple[str, ...]) -> None:
            self.ingress, self.closed = ingress, False

        async def identify(self) -> Identity:
            return Identity("Polatis", "OST", "SN1", "1", self.ingress, ("17",))

        async def close(self) -> None:
            self.closed = True

    device = Device(("1",))
    monkeypatch.setattr("drivers.registry.open_device", lambda config: device)
    good = await doctor_reach.ask_device(lab_at(), "ocs1")
    assert good.state == "ok" and "Polatis OST SN1" in good.detail and device.closed
    device.ingress = ("2",)
    other = await doctor_reach.ask_device(lab_at(), "ocs1")
    assert other.state == "fail" and "has no port 1" in other.detail and other.area == "inventory"
    monkeypatch.undo()
    with answering() as port:
        silent = await doctor_reach.ask_device(lab_at(f"tcp://127.0.0.1:{port}"), "ocs1")
    assert silent.state == "fail" and "no answer" in silent.detail
    ended = await doctor_reach.ask_device(lab_at("tcp://127.0.0.1:1"), "ocs1")
    assert (
        ended.state == "fail"
        and "Connection refused" in ended.detail
        and "devices.yml" in ended.fix
    )


def test_a_host_that_does_not_answer_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_reach, "REACH_S", 0.3)
    with answering() as port:
        (check,) = doctor_reach.ask_host(lab_at(port=port).hosts["gpu01"])
    assert check.state == "fail" and check.area == "reach" and check.fix


def test_a_host_is_asked_about_the_ports_that_something_leads_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[set[int]] = []

    def ask_host(host: Host, token: None, env: None, cabled: set[int]) -> list[Probe]:
        asked.append(cabled)
        return []

    monkeypatch.setattr(doctor_reach, "ask_host", ask_host)
    for lab in (lab_at(), replace(lab_at(), fibres={})):
        doctor_reach.reach(lab, "somebody: up ring")
    assert asked == [{1}, set()]


def test_a_hosts_clock_disk_and_provisioning_are_read_from_what_it_prints() -> None:
    room = "/dev/sda1 1000000 1 {} 1% /"
    (fine,) = doctor_reach.read_host(
        "gpu01", "1000.2", room.format(900_000) + '\n"sha": "ab12"', 1000.0, "ab12"
    )
    assert fine.state == "ok" and fine.detail == "answers, provisioned"
    fresh, clock, disk = doctor_reach.read_host(
        "gpu01", "1090.5", room.format(1024), 1000.0, "ab12"
    )
    assert fresh.state == "ok" and "provisions it" in fresh.detail
    assert (
        clock.state == disk.state == "warn"
        and clock.detail == "90.5 s ahead of this machine"
        and disk.detail == "1 MB free in /var/lib"
    )
    assert doctor_reach.read_host("gpu01", "Welcome!", "", 0.0, "")[0].state == "fail"
    (ended,) = doctor_reach.read_host(
        "gpu01", "1000.2", room.format(900_000) + '\nno-user\n"sha": "ab12"', 1000.0, "ab12"
    )
    assert ended.state == "fail" and "the user that its jobs run as is gone" in ended.detail
    (new,) = doctor_reach.read_host(
        "gpu01", "1000.2", room.format(900_000) + "\nno-user\n", 1000.0, "ab12"
    )
    assert new.state == "ok", "a host that was never provisioned has none yet"


def test_a_host_whose_committer_is_dead_is_told(tmp_path: Path) -> None:
    rest = 'none 9 9 900000 1% /var/lib\n"sha": "ab12"\n{"token": 5}\n{"ok":false,"error":"not running"}\n'
    (found,) = doctor_reach.read_host("gpu01", "1000.2", rest, 1000.0, "ab12", 6)
    assert (
        found.state == "fail" and "agent does not run" in found.detail and "testbed up" in found.fix
    )


def test_hosts_that_know_a_newer_run_than_this_store_can_make_are_told_in_one(
    tmp_path: Path,
) -> None:
    rest = 'none 9 9 900000 1% /var/lib\n"sha": "ab12"\n{"token": 1826000000}\n{"version":1,"host":"gpu01"\n'
    lines = [
        doctor_reach.read_host(f"gpu0{n}", "1000.2", rest, 1000.0, "ab12", token)
        for n, token in enumerate([9, 1826000000, None])
    ]
    assert [len(checks) for checks in lines] == [2, 1, 1]
    found = lines[0][1]
    assert (
        found.state == "fail"
        and "token 1826000000 (2027-11-" in found.detail
        and "testbed lock release --hosts" in found.fix
    )
    one = doctor_reach.in_one(
        [
            c
            for n in range(6)
            for c in doctor_reach.read_host(f"gpu0{n}", "1000.2", rest, 1000.0, "ab12", 9)
        ]
    )
    assert len(one) == 7 and one[-1].detail.endswith("and 2 more")
