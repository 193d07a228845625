"""A real emulated lab for the whole folder, and the real command line against it."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.jsondata import fits
from tests.kit.command_line import typed

TESTBED = Path(sys.executable).with_name("testbed")
ROOT = Path(__file__).resolve().parents[2]
LOOKS = ("status", "verify", "plan", "run", "lock", "tagout")
"""Verbs that move no light and take no signal here."""


@dataclass
class Answer:
    """One finished command: the JSON envelope and the exit code the shell saw."""

    exit_code: int
    envelope: dict[str, Any]
    stderr: str

    def must(self) -> dict[str, Any]:
        """The data of a command that had to succeed."""
        assert self.exit_code == 0, self.envelope["message"]
        return dict(self.envelope["data"])


@dataclass
class Lab:
    """The lab and an operator in front of it. `inventory` may be replaced by a changed copy for one
    command.
    """

    folder: Path
    extra: dict[str, str] = field(default_factory=dict)
    clear: bool = False  # whether nothing is up for certain

    @property
    def inventory(self) -> Path:
        return self.folder / "inventory"

    @property
    def own(self) -> dict[str, str]:
        """What the environment of its commands has besides."""
        places = {name: str(self.folder / name.lower()) for name in ("DATA", "STATE", "LOCK")}
        return (
            {f"TESTBED_{k}_DIR": v for k, v in places.items()}
            | {"TESTBED_INVENTORY": str(self.inventory)}
            | self.extra
        )

    @property
    def env(self) -> dict[str, str]:
        return os.environ | self.own

    def command(self, *argv: str | Path, **env: str) -> subprocess.Popen[str]:
        """Start a command and leave it running."""
        return subprocess.Popen(
            [TESTBED, *map(str, argv), "--json"],
            env=self.env | env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )

    def testbed(self, *argv: str | Path, within_s: float = 110, **env: str) -> Answer:
        """Run a command to its end, which on a busy machine comes within this time (s); in this
        process if it looks, so that Python need not start.
        """
        if argv[0] in LOOKS and asyncio._get_running_loop() is None:
            answer = self.quick(*argv, **env)
        else:
            process = self.command(*argv, **env)
            out, err = process.communicate(timeout=within_s)
            answer = Answer(process.returncode, json.loads(out), err)
        fits([*map(str, argv)], answer.envelope)
        return answer

    def quick(self, *argv: str | Path, **env: str) -> Answer:
        """As `testbed`, in this process, whatever the verb."""
        done = typed(*argv, "--json", at=ROOT, **(self.own | env))
        return Answer(done.returncode, json.loads(done.stdout), done.stderr)

    def up(self, plan: Path | str, *argv: str, **env: str) -> Answer:
        return self.testbed("up", "--topology", plan, *argv, **env)

    def ask(self, op: str, **texts: object) -> dict[str, Any]:
        """A question to the lab itself, the keeper of the truth."""
        with socket.socket(socket.AF_UNIX) as link:
            link.settimeout(10)
            link.connect(str(self.folder / "lab" / "control.sock"))
            link.sendall(json.dumps({"op": op, **texts}).encode() + b"\n")
            heard = b""
            while not heard.endswith(b"\n"):
                heard += link.recv(1 << 20)
        answer: dict[str, Any] = json.loads(heard)
        assert answer["ok"], answer
        return answer

    def writes(self) -> dict[str, int]:
        return dict(self.ask("writes")["writes"])

    @contextmanager
    def settling(self, seconds: float) -> Iterator[None]:
        """Every device needs so long for a change, meanwhile."""
        devices = self.writes()
        try:
            for device in devices:
                self.ask("settle", device=device, s=seconds)
            yield
        finally:
            for device in devices:
                self.ask("settle", device=device, s=0.05)

    def light(self) -> dict[str, set[tuple[str, str]]]:
        return {
            name: {(a, b) for a, b in pairs} for name, pairs in self.ask("light")["light"].items()
        }

    def port(self, device: str) -> int:
        """The loopback port a device answers on."""
        return int(self.ask("status")["devices"][device]["address"].rpartition(":")[2])

    def plan(self, name: str, links: list[tuple[str, str]], **more: object) -> Path:
        path = self.folder / f"{name}.json"
        body = {
            "schema": "testbed.plan/1",
            "name": name,
            "links": [{"a": a, "b": b} for a, b in links],
            **more,
        }
        path.write_text(json.dumps(body))
        return path

    def holders(self) -> list[str]:
        """The locks of runs at work now; the store is asked, which is quicker than a command."""
        return self.stored("SELECT id FROM locks WHERE state='active' AND run != ''")

    def steps(self) -> list[str]:
        """The effects begun so far: where there is one, the run has connected to everybody it
        needs.
        """
        return self.stored("SELECT what FROM steps WHERE state != 'planned'")

    def stored(self, query: str) -> list[str]:
        """The first column of a query of the store."""
        with closing(sqlite3.connect(self.folder / "data" / "testbed.sqlite3", timeout=10)) as db:
            try:
                return [row[0] for row in db.execute(query)]
            except sqlite3.OperationalError:  # nobody has made the table yet
                return []

    def clean(self) -> None:
        """Faults gone, everybody reachable, nothing up."""
        for device, faults in self.ask("faults.list")["faults"].items():
            for fault in faults:
                self.ask("faults.remove", device=device, number=fault["number"])
        self.quick("down", "--yes").must()
        self.clear = True


@pytest.fixture(scope="session")
def running_lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    lab = Lab(tmp_path_factory.mktemp("lab"))
    generate = [
        sys.executable,
        "-m",
        "emulators.generate",
        "--hosts",
        "6",
        "--ports",
        "4",
        "--free-ports",
    ]
    subprocess.run(
        [*generate, "--out", lab.inventory, "--state", lab.folder / "lab"],
        check=True,
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
    )
    lab.testbed("lab", "start").must()
    yield lab
    lab.testbed("lab", "stop")


@pytest.fixture
def lab(running_lab: Lab) -> Iterator[Lab]:
    """The lab with nothing up, as the test before left it."""
    if not running_lab.clear:
        running_lab.clean()
    running_lab.clear = False
    yield running_lab
    running_lab.ask("host.sshd", host="gpu03", up=True)
    running_lab.clean()


@pytest.fixture(scope="module")
def small(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Lab]:
    """A lab of the module's own, of the size that its SMALL gives the generator."""
    lab = Lab(tmp_path_factory.mktemp("small"))
    argv = [*request.module.SMALL, "--out", str(lab.inventory), "--state", str(lab.folder / "lab")]
    subprocess.run(
        [sys.executable, "-m", "emulators.generate", *argv],
        check=True,
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
    )
    lab.testbed("lab", "start").must()
    try:
        yield lab
    finally:
        lab.testbed("service", "stop", "guard")
        lab.testbed("lab", "stop")


def ring(ports: tuple[int, int], stride: int = 1, hosts: int = 6) -> list[tuple[str, str]]:
    """A ring of duplex links over gpu01..gpu06, its steps using two ports in turn."""
    order = [(k * stride) % hosts + 1 for k in range(hosts)]
    return [
        (f"gpu{order[k]:02d}:p{ports[k % 2]}", f"gpu{order[(k + 1) % hosts]:02d}:p{ports[k % 2]}")
        for k in range(hosts)
    ]
