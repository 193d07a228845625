"""What a mechanism does on hosts is in its folder: carried there, found, fenced, told of jobs,
tried. One is planted.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from agent import basics, daemon, fence
from orchestrator.extensions import folders
from orchestrator.hosts import facts as installed
from orchestrator.verify import doctor
from tests.agent.space import Peer, Space, facts
from tests.house.repository import ROOT
from tests.kit.waiting import until

LANTERN = """
from agent.basics import refused
from agent.mechanism import Mechanism


def dark():
    raise refused("this host has no oil: buy some")


class Lantern(Mechanism):
    OPERATIONS = {
        "lantern": lambda self, *_: {"seen": self.seen},
        "lantern.later": lambda self, request, answer: answer({"seen": ["later"]}),
        "lantern.light": lambda self, request, _: {"seen": self.seen + ["by hand"]},
    }
    FENCED = frozenset(("lantern.light",))
    TRIES = (("lanterns", "everything by day", lambda: None), ("oil", "what is lit already", dark))

    def __init__(self, server):
        super().__init__(server)
        self.seen = []
        self.controls = {"by-night": "reno"}

    def wish(self, request):
        if request.get("lantern") == "broken":
            raise refused("its glass is broken")
        return request.get("lantern")

    def begin(self, name, wanted):
        self.seen.append([name, wanted])

    def end(self, name):
        self.seen.append([name, "ended"])

    def clear(self):
        self.seen.append("cleared")

    def follow(self):
        self.seen.append(self.server.generations.active)


MECHANISMS = (Lantern,)
"""
UNPACK = """
import sys
from pathlib import Path

import extensions
from orchestrator import extensions as known

extensions.__path__.append(sys.argv[1])
known.NAMES.append("lantern")

from orchestrator.hosts.facts import programs

for name, content in programs():
    file = Path(sys.argv[2]) / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content)
"""


class Installed:
    """A host whose agent is what was unpacked there."""

    def __init__(self, space: Space, folder: Path) -> None:
        self.space, self.folder = space, folder
        self.message = [sys.executable, "-S", "-E", str(folder / "agent" / "__main__.py")]

    def agent(self, command: str, given: Any = None) -> list[dict[str, Any]]:
        done = self.space.run(
            *self.message, command, stdin="" if given is None else json.dumps(given)
        )
        assert not done.stderr, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What hosts are given, where there is one more extension than in the tree."""
    folder = tmp_path_factory.mktemp("host")
    part = folder / "more" / "lantern" / "host"
    part.mkdir(parents=True)
    (part / "__init__.py").write_text(dedent(LANTERN))
    argv = [sys.executable, "-c", UNPACK, str(part.parents[1]), str(folder / "testbed")]
    subprocess.run(argv, cwd=ROOT, check=True, timeout=60)
    return folder / "testbed"


@pytest.fixture(scope="module")
def present(unpacked: Path, spaces: Callable[[str], Space]) -> Installed:
    space, far = spaces("gpu01"), spaces("far")
    space.fibre(1, far, 1)
    made = Installed(space, unpacked)
    assert made.agent("provision", facts("gpu01", 1, 1))[0].get("changed")
    assert made.agent("start")[0]["started"]
    return made


@pytest.fixture
def channel(present: Installed) -> Iterator[Peer]:
    made = Peer(present.space.argv(*present.message, "attach"))
    yield made
    made.close()


def test_every_part_on_hosts_is_carried_there_under_its_own_name_and_nothing_else_of_an_extension(
    unpacked: Path,
) -> None:
    ours = {
        str(path.relative_to(ROOT))
        for path in ROOT.glob("extensions/*/host/**/*")
        if path.suffix in (".py", ".o")
    }
    found = {
        str(path.relative_to(unpacked))
        for path in unpacked.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert {name for name in found if not name.startswith("agent/")} == ours | {
        "extensions/lantern/host/__init__.py"
    }
    assert (
        set(folders("host"))
        == {str(path.relative_to(ROOT)) for path in ROOT.glob("extensions/*/host")}
        == {*basics.host_parts()}
    )
    assert {name for name, _ in installed.programs()} >= ours


def test_a_mechanism_is_told_of_jobs_routes_and_its_own_requests(
    present: Installed, channel: Peer
) -> None:
    routes = [["10.255.9.9/32", "10.1.0.9", "opt1", ""]]
    about = {
        "generation": 7,
        "routes": routes,
        "neighbours": [["10.1.0.9", "02:00:00:00:00:01", "opt1"]],
    }
    assert channel.ask("stage", **about, congctl="by-night")["congctl"] == "reno"
    assert "congctl reno" in present.space.ip("route", "show", "table", "7007")
    assert channel.ask("commit", generation=7)["ok"]
    assert (
        channel.ask("job.start", name="j", argv=["true"], lantern="broken")["error"]
        == "its glass is broken"
    )
    assert channel.ask("job.start", name="j", argv=["true"], lantern="oil")["ok"]
    assert until(lambda: ["j", "ended"] in channel.ask("lantern")["seen"])
    assert channel.ask("job.start", name="k", argv=["true"])["ok"]
    assert until(lambda: ["k", "ended"] in channel.ask("lantern")["seen"])
    assert channel.ask("lantern.later")["seen"] == ["later"]
    assert channel.ask("clear")["ok"]
    assert channel.ask("lantern")["seen"][:5] == [
        7,
        ["j", "oil"],
        ["j", "ended"],
        ["k", "ended"],
        "cleared",
    ]


def test_its_operations_are_fenced_as_it_says(channel: Peer) -> None:
    assert channel.ask("fence", token=9)["ok"]
    assert channel.ask("lantern.light", token=8)["code"] == "overtaken"
    assert channel.ask("lantern.light", token=9)["ok"] and channel.ask("lantern", token=8)["ok"]


def test_what_a_host_lacks_is_told_by_each_and_by_doctor(
    present: Installed, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = {reply["what"]: reply for reply in present.agent("try")}
    assert answer["lanterns"] == {"what": "lanterns", "without": "everything by day"}
    assert answer["oil"]["error"] == "this host has no oil: buy some" and len(answer) == 4
    monkeypatch.setattr(doctor, "AGENT", present.folder / "agent")
    probes = {probe.name: probe for probe in doctor._mechanisms()}
    assert probes["lanterns"].state == "ok"
    oil = probes["oil"]
    assert (oil.state, oil.detail, oil.fix, oil.works) == (
        "warn",
        "this host has no oil",
        "buy some",
        "what is lit already",
    )


def test_a_user_who_is_not_root_is_told_so(present: Installed) -> None:
    present.space.run("sh", "-c", f"umask 022 && cp -r {present.folder} /run/readable")
    nobody = [
        "setpriv",
        "--reuid",
        "65534",
        "--regid",
        "65534",
        "--clear-groups",
        "/usr/bin/env",
        "python3",
        "-S",
        "-E",
    ]
    done = present.space.run(*nobody, "/run/readable/agent/__main__.py", "try")
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert lines and {reply["error"] for reply in lines} == {
        "not tried, this user is not root: run it as root"
    }


def test_an_agent_that_does_not_start_is_a_warning_of_doctor(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "__main__.py").write_text("print('no JSON')\n")
    monkeypatch.setattr(doctor, "AGENT", tmp_path)
    (probe,) = doctor._mechanisms()
    assert probe.state == "warn" and str(tmp_path) in probe.fix


def test_an_agent_with_another_file_of_a_mechanism_is_another_agent(present: Installed) -> None:
    assert present.agent("start")[0]["started"] is False
    for name in (
        "extensions/congestion/host/bpf/progress.bpf.o",
        "extensions/lantern/host/__init__.py",
    ):
        with (present.folder / name).open("ab") as file:
            file.write(b"\n")
        assert present.agent("start")[0]["started"] is True, (
            "else the one that runs would go on with the old one"
        )


def test_a_mechanism_that_was_taken_away_is_gone_with_its_operations(present: Installed) -> None:
    present.space.run("rm", "-r", str(present.folder / "extensions"))
    assert present.agent("start")[0]["started"] is True
    reply = present.agent("call", {"op": "lantern"})[0]
    assert (
        reply["code"] == "unknown-op"
        and "commit" in reply["error"]
        and "lantern," not in reply["error"]
    )
    assert present.agent("try") == []


def test_no_two_have_an_operation_of_the_same_name_and_each_fences_its_own_alone() -> None:
    own = [name for kind in daemon.MECHANISMS for name in kind.OPERATIONS]
    assert own and len(own) == len(set(own))
    assert all(kind.OPERATIONS.keys() >= kind.FENCED for kind in daemon.MECHANISMS)
    assert daemon.OPERATIONS.keys() - {*own} >= fence.OWN
